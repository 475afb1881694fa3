/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_GPU_H
#define FWA_GPU_GPU_H

/* The host side of the GPU backends: plans, sizes, launches. */

#include "drv.h"
#include "op/workspace.h"

#include <stdbool.h>

typedef struct fwa_gpu_device {
    void *driver; /* the driver's own */
    fwa_gpu_properties properties;
} fwa_gpu_device;

/* In the order of fwa_gpu_kernels in plan.c. */
typedef enum fwa_gpu_kernel_id {
    FWA_GPU_STATISTIC,
    FWA_GPU_CARRY_GATHER,
    FWA_GPU_CARRY_SCATTER,
    FWA_GPU_ORDER_SUCCESSORS,
    FWA_GPU_ORDER_LIST,
    FWA_GPU_CHUNK_FORWARD,
    FWA_GPU_CHUNK_PREPARE,
    FWA_GPU_CHUNK_FORWARD_PASS,
    FWA_GPU_CHUNK_BACKWARD_PASS,
    FWA_GPU_CHUNK_GRADIENTS,
    FWA_GPU_RECURRENT_FORWARD,
    FWA_GPU_RECURRENT_ORDERED,
    FWA_GPU_RECURRENT_BACKWARD,
    FWA_GPU_KEY_GRADIENTS,
    FWA_GPU_QUERY_GRADIENTS,
    FWA_GPU_GATE_GRADIENTS,
    FWA_GPU_NORM_GRADIENTS,
    FWA_GPU_KERNELS
} fwa_gpu_kernel_id;

typedef struct fwa_gpu_kernel {
    void *kernel; /* the driver's; NULL: the problem does not need it */
    int32_t threads, shared;
} fwa_gpu_kernel;

typedef struct fwa_gpu_plan {
    const fwa_gpu_device *device;
    fwa_problem problem;
    bool chunked;         /* the automatic choice is chunks, forward, */
    bool framed;          /* those with records, and backward too (loop/chunk_frame.h) */
    int32_t parts, tiles; /* bf16 parts of a number; the length of such chunks, in tiles */
    int32_t padded;       /* key_dim, rounded up to what kernels are compiled for */
    fwa_gpu_kernel kernels[FWA_GPU_KERNELS];
    char name[2][128];
} fwa_gpu_plan;

/* True where E is an eigenvalue that a kernel of its own finds. */
static inline bool fwa_gpu_has_eigen(const fwa_problem *p)
{
    return p->objective == FWA_OBJECTIVE_REGRESSION && p->window > 1;
}

/* Value columns of a block of the chunked kernels; the normaliser's z takes the place of 16. */
static inline int32_t fwa_gpu_chunk_columns(const fwa_problem *p)
{
    return 16 * (FWA_GPU_CHUNK_COMPUTING - (p->normalizer != 0));
}

static inline int32_t fwa_gpu_blocks(const fwa_problem *p)
{
    return (p->value_dim + FWA_GPU_COLUMNS - 1) / FWA_GPU_COLUMNS;
}

/* plan.c */
int32_t fwa_gpu_score(void *device, const fwa_problem *problem, fwa_message *message);
fwa_status fwa_gpu_make_plan(void *device, const fwa_problem *problem, int32_t lanes, void **plan,
                             fwa_message *message);
void fwa_gpu_release_plan(void *plan);
const char *fwa_gpu_kernel_name(const void *plan, fwa_pass pass);
size_t fwa_gpu_workspace_size(const void *plan, fwa_pass pass, const fwa_extent *extent);
size_t fwa_gpu_saved_size(const void *plan, const fwa_extent *extent);
/* Lets the arguments' parts of the workspace lie at `base` (NULL: nowhere); returns its size. */
size_t fwa_gpu_place(const fwa_gpu_plan *plan, fwa_pass pass, const fwa_extent *extent, char *base,
                     fwa_gpu_args *args);

/* launch.c */
fwa_status fwa_gpu_forward(const void *plan, const fwa_call *call, fwa_message *message);
fwa_status fwa_gpu_backward(const void *plan, const fwa_call *call, fwa_message *message);

#endif
