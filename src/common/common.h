/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_COMMON_H
#define FWA_COMMON_COMMON_H

/* What the parts of the front end share. */

#include <fwa/backend.h>
#include <sched.h>
#include <stdbool.h>

/* Sets the thread's message and returns the status. */
fwa_status fwa_fail(fwa_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Checks a public struct: struct_size as known, or greater with nothing but zeros behind. */
fwa_status fwa_check_struct(const char *name, const void *data, size_t known);

/* ---- Backends (registry.c, modules.c) ---- */

/* The backend of that name, loading its module where needed; or an error with its reason. */
fwa_status fwa_registry_find(const char *name, const fwa_backend **backend);
/* The module directory (modules.c): FWA_BACKEND_PATH where it is set and the program is not
 * privileged; else the one beside the library's own file, where there is one; else the installed
 * one. `path` has PATH_MAX bytes, which the result may lie in. */
const char *fwa_module_directory(char *path);

/* ---- Contexts and threads (context.c, parallel.c, pool.c, processors.c) ---- */

struct fwa_context {
    const fwa_backend *backend;
    void *device;
    int32_t threads;
    fwa_parallel_for parallel_for;
    void *parallel_for_user;
    struct fwa_pool *pool; /* NULL: one thread, or the caller's parallel-for */
    int (*in_parallel)(void);
    char device_name[256];
};

/* The executor of one call: begins with the part that backends see. */
typedef struct fwa_call_executor {
    fwa_executor base;
    const fwa_context *context;
    const fwa_team *team;
} fwa_call_executor;

fwa_call_executor fwa_executor_make(const fwa_context *context, const fwa_team *team);
/* As executor->run, but with no more than `most` of the lanes where the context's own threads run
 * them. */
void fwa_executor_run(const fwa_executor *executor, int64_t most,
                      void (*task)(void *data, int64_t lane), void *data);

/* A function of the OpenMP runtime that the program itself uses, by name; `own` is the one of the
 * runtime that this library is linked with, which may be another. */
int (*fwa_openmp_function(const char *name, int (*own)(void)))(void);
/* OpenMP's threads, limited by the allowed processors and the control group's quota. */
int32_t fwa_default_threads(void);
/* The processors that a thread may be on: OpenMP's places where it binds threads to them, else the
 * calling thread's affinity mask. False where that is unknown. */
bool fwa_allowed_processors(cpu_set_t *set);
/* Processors that the quotas of this process's control groups (versions 1 and 2) and their
 * ancestors amount to; 0 without one. Files are read below `root`, "" for the system's. */
int32_t fwa_quota_processors(const char *root);

/* ---- Problems and plans (problem.c, plan.c) ---- */

/* Checks a problem and fills in its defaults. */
fwa_status fwa_problem_resolve(const fwa_problem *given, fwa_problem *resolved);
/* The type of gates and carries: F64 where dtype is F64, else F32. */
int32_t fwa_wide_dtype(const fwa_problem *problem);

struct fwa_plan {
    fwa_context *context;
    const fwa_backend *backend;
    fwa_problem problem; /* resolved */
    void *plan;          /* the backend's */
};

/* ---- Calls (tensors.c, sequences.c, call.c) ---- */

/* What a tensor of a call must be. Extents of -1 are free. */
typedef struct fwa_tensor_rule {
    const char *name;
    const fwa_tensor *tensor;
    int32_t dtype; /* FWA_DTYPE_I32 | FWA_ANY_INTEGER: either integer type */
    int32_t rank;
    int64_t shape[FWA_MAX_RANK];
    bool required, output;
    bool any_last; /* the last axis may have any stride: states, which some keep value-major */
    int32_t
        partner; /* index of the rule of the tensor that this output may be in place with, or -1 */
} fwa_tensor_rule;
#define FWA_ANY_INTEGER 64

/* The workspace, or what the forward saves. */
typedef struct fwa_buffer {
    const char *name;
    const void *data;
    size_t size;
} fwa_buffer;

/* The address behind it; a size beyond the address space ends with that. */
static inline uintptr_t fwa_buffer_end(const fwa_buffer *buffer)
{
    uintptr_t at = (uintptr_t)buffer->data;
    return buffer->size > UINTPTR_MAX - at ? UINTPTR_MAX : at + buffer->size;
}

/* Checks ranks, shapes, strides, types, pointers and overlaps of `count` tensors, and that none
 * touches a buffer. */
fwa_status fwa_check_tensors(const fwa_tensor_rule *rules, int32_t count, const fwa_buffer *buffers,
                             int32_t buffer_count);

/* Checks cu_seqlens, slots, seen, commit, and the signs of beta, lambda and log_gate, in host
 * memory; finds the order that crossing slots need (NULL: none). `scratch` is for that. */
fwa_status fwa_check_sequences(const fwa_problem *problem, const fwa_call *call, void *scratch,
                               const fwa_order_step **order);
size_t fwa_sequences_scratch(int64_t sequences);
/* cu_seqlens alone. */
fwa_status fwa_check_lengths(const fwa_call *call);

#endif
