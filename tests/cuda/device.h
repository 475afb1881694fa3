/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_CUDA_DEVICE_H
#define FWA_TESTS_CUDA_DEVICE_H

/* For tests on a real GPU: CUDA's streams and graphs, and calls whose tensors keep their places in the
 * device's memory while what they hold changes. */

#include "../../src/conformance/cases.h"
#include "../../src/cuda/cuda_api.h"

/* ---- The driver ---- */

/* What tests use of it besides what the module does. */
#define DEVICE_FUNCTIONS(X)                                                                        \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxDestroy)                                                                                \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphGetNodes)                                                                             \
    X(cuGraphNodeGetType)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)

#define DEVICE_MEMBER(function) __typeof__(function) *function;
typedef struct device_driver {
    const fwa_cuda_driver *base; /* the module's part, loaded by this program for itself */
    DEVICE_FUNCTIONS(DEVICE_MEMBER)
    /* cuCtxCreate as it was before it took parameters; cuda.h may have the later one alone. NULL: there
     * is none. */
    CUresult (*create_context)(CUcontext *context, unsigned flags, CUdevice device);
} device_driver;
#undef DEVICE_MEMBER

/* Loads it, once; fails the test where there is no device that the module has kernels for. */
const device_driver *device_load(void);
/* Makes the primary context of the module's device `index` current. It is kept to the process's end.
 */
void device_use(int32_t index);
/* Fails the test unless the result is CUDA_SUCCESS. */
void device_expect(CUresult result, const char *call);
#define CUDA(function, ...) device_expect(device_load()->function(__VA_ARGS__), #function)

CUstream device_stream(void); /* one that does not wait for the default stream */

/* ---- Contexts of the library ---- */

fwa_context *device_context_new(int32_t index);
int32_t device_count(void);

/* ---- Calls ---- */

#define DEVICE_SLOTS 3 /* slot_in, slot_out, commit */

typedef struct device_block {
    void *memory; /* the device's */
    char *image;  /* what device_call_reset() writes there */
    size_t size;
} device_block;

typedef struct device_call {
    fwa_context *context;
    const fwa_plan *plan;
    fwa_problem problem; /* the plan's types */
    problem_extent extent;
    int64_t pool;
    int backward;                         /* 1: the backward follows the forward */
    fwa_tensor tensors[PROBLEM_TENSORS];  /* by row of the tensor table; rank 0: absent */
    device_block blocks[PROBLEM_TENSORS]; /* none where the memory is that of an input */
    device_block slots[DEVICE_SLOTS];
    void *workspace[2];
    fwa_forward_args forward;
    fwa_backward_args gradients;
} device_call;

/* Makes room for a call of data's shapes: its inputs, all outputs, gradients of all inputs where
 * `backward`. `in_place`: carries go out where they came in. Failures fail the test. */
device_call *device_call_new(fwa_context *context, const fwa_plan *plan, const fwa_problem *problem,
                             const conformance_data *data, int backward, int in_place);
void device_call_free(device_call *call);
/* Puts in other data of the same shapes, and NaN into all outputs. */
void device_call_fill(device_call *call, const conformance_data *data);
/* Puts in the same once more. */
void device_call_reset(device_call *call);

/* Makes the call; returns before it is done. No asserts: for any thread. */
fwa_status device_call_run(device_call *call, CUstream stream);
/* The same, which must be right. */
void device_call_good(device_call *call, CUstream stream);
/* All outputs, when all work of the device is done. Free with conformance_data_free(). */
conformance_data device_call_results(device_call *call);
/* Their bytes, in memory that the caller frees. */
char *device_call_bytes(device_call *call, size_t *size);

/* ---- Graphs ---- */

typedef struct device_graph {
    CUgraphExec exec;
    size_t nodes, kernels; /* all, and those that are kernels */
    fwa_status status;     /* of the call */
    CUresult result;       /* of the capture */
} device_graph;

/* Captures the call; .result and .status say whether that went well. No asserts: for any thread that
 * the device is current in. */
device_graph device_capture(device_call *call, CUstream stream, CUstreamCaptureMode mode);
CUresult device_replay(const device_graph *graph, CUstream stream);
void device_graph_free(device_graph *graph);

#endif
