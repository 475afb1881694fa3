/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_CALL_H
#define FWA_BENCH_CALL_H

/* A call that is ready to be made over and over: plan, dense tensors, workspaces. */

#include "../conformance/data.h"
#include "problems.h"

typedef struct bench_call {
    fwa_context *context;
    const bench_problem *problem;
    fwa_plan *plan;
    fwa_forward_args forward;
    fwa_backward_args backward;
    fwa_tensor tensors[PROBLEM_TENSORS]; /* by row of the tensor table; rank 0: absent */
    int8_t owned[PROBLEM_TENSORS];       /* 0: the memory is that of the incoming carry */
    void *workspace[2];                  /* by fwa_pass */
    void *saved;
    /* Cold decoding: a pool of `groups` times the batch, of which each call uses the next group. */
    int32_t *slots; /* [groups, batch], in the context's memory */
    int64_t groups, group;
} bench_call;

/* `data` and the problem must live as long as the call. 0, or -1 with *message filled and nothing
 * to end. */
int bench_call_begin(bench_call *call, fwa_context *context, const bench_problem *problem,
                     const conformance_data *data, bench_message *message);
void bench_call_end(bench_call *call);

/* Makes the call once; may return before a device has finished. */
fwa_status bench_call_run(bench_call *call);
/* Waits for all calls made. */
fwa_status bench_call_wait(const bench_call *call);

/* 1 where the outputs and gradients of the call are, bit for bit, those of *results, as the library
 * promises; else 0, and *name is a tensor that differs. */
int bench_call_same(const bench_call *call, const conformance_data *results, const char **name);

#endif
