/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_CALL_H
#define FWA_BENCH_CALL_H

/* A call that is ready to be made over and over: plan, dense tensors, workspaces. On a device it has as
 * many copies of its tensors as no cache of the device holds, and each call takes the next. */

#include "../conformance/data.h"
#include "problems.h"

typedef struct bench_copy {
    fwa_forward_args forward;
    fwa_backward_args backward;
    fwa_tensor tensors[PROBLEM_TENSORS]; /* by row of the tensor table; rank 0: absent */
    int8_t owned[PROBLEM_TENSORS];       /* 0: the memory is that of the incoming carry */
    void *saved;
} bench_copy;

typedef struct bench_call {
    fwa_context *context;
    const bench_problem *problem;
    fwa_plan *plan;
    bench_copy *copies;
    int64_t count, next; /* of copies */
    void *workspace[2];  /* by fwa_pass */
    size_t workspace_size[2], saved_size;
    /* Cold decoding: a pool of `groups` times the batch, of which each call uses the next group. */
    int32_t *slots; /* [groups, batch], in the context's memory */
    int64_t groups, group;
    void *lengths; /* cu_seqlens of packed rows */
} bench_call;

/* 1 where the context's calls run on this machine's processors, in the calls themselves. */
int bench_on_host(const fwa_context *context);

/* `data` are those of the problem or of its part; the problem must live as long as the call. 0, or -1
 * with *message filled and nothing to end. */
int bench_call_begin(bench_call *call, fwa_context *context, const bench_problem *problem,
                     const conformance_data *data, bench_message *message);
void bench_call_end(bench_call *call);

/* Makes the call once; may return before a device has finished. */
fwa_status bench_call_run(bench_call *call);
/* Waits for all calls made. */
fwa_status bench_call_wait(const bench_call *call);

/* 1 where the outputs and gradients of all copies are, bit for bit, those of *results, the data's, as
 * the library promises; else 0, and *name is a tensor that differs. */
int bench_call_same(const bench_call *call, const conformance_data *results, const char **name);

#endif
