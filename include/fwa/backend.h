/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BACKEND_H
#define FWA_BACKEND_H

#include <fwa/fwa.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The plug-in interface of libfwa: what a backend implements
 * ==========================================================
 *
 * A backend is one fwa_backend table. The CPU and the reference are linked into the library; others
 * are modules, `<module directory>/fwa-<name>.so`. A module exports two symbols:
 *
 *     const uint32_t fwa_module_abi = FWA_BACKEND_ABI;
 *     const fwa_backend *fwa_module_backend(void);
 *
 * The library reads fwa_module_abi before it calls anything, and refuses a module whose number is
 * not its own. The module directory is fwa/backends2 beside the library's own file, or else the one
 * that is fixed when the library is built; FWA_BACKEND_PATH, read with secure_getenv, replaces both.
 * Modules are loaded with RTLD_NOW | RTLD_LOCAL and never unloaded.
 *
 * The front end validates everything that can be validated on the host. A backend therefore sees
 * only problems for which its score() is positive and calls whose tensors have the right ranks,
 * shapes, strides and types, with defaults filled in: absent slot arrays stay absent, heads and
 * state_dtype are never 0. It must not allocate, wait, print or read the environment in forward and
 * backward, and must give results that do not depend on executor->lanes.
 */

#define FWA_BACKEND_ABI 2u

/* A backend's words about a failure; the front end shows them through fwa_error_message(). */
typedef struct fwa_message {
    char text[480];
} fwa_message;

/* Runs task(data, lane) once for every lane in [0, lanes), possibly at once, and returns when all
 * are done. A lane never waits for another, so lanes may also run one after another. In a team this
 * is also where the members wait for each other: forward and backward call it at least once. */
typedef struct fwa_executor fwa_executor;
struct fwa_executor {
    int32_t lanes;
    int32_t team; /* 1: a caller's team: every member makes the same call and runs its own lane with
                     its own data, so lanes share nothing but the call's tensors and workspace */
    void (*run)(const fwa_executor *self, void (*task)(void *data, int64_t lane), void *data);
};

/* The size of a call, as in fwa_plan_workspace_size. */
typedef struct fwa_extent {
    int64_t batch, tokens, sequences;
} fwa_extent;

/* One step of the order in which sequences must run where slots cross (see fwa_call). */
typedef struct fwa_order_step {
    int32_t sequence; /* run this one */
    int32_t keep; /* >= 0: before it runs, copy the input row of that sequence aside; -1: nothing */
    int32_t kept; /* 1: read the copy kept aside instead of the pool */
} fwa_order_step;

/* One validated call. */
typedef struct fwa_call {
    const fwa_executor *executor;
    fwa_extent extent;
    void *workspace; /* aligned to 64, of the backend's own workspace_size or more; NULL where that
                        is 0 */
    /* Host-readable slots only. Rows may read slots that others write: where that happens (a row
     * reads a slot that an other row writes), `order` lists all rows so that running them one after
     * another, each reading its carry before it writes, gives every row the pool as it was. NULL:
     * any order will do. */
    const fwa_order_step *order;
    const fwa_forward_args *forward; /* exactly one of the two is set */
    const fwa_backward_args *backward;
} fwa_call;

typedef struct fwa_backend {
    uint32_t abi; /* FWA_BACKEND_ABI */
    uint32_t struct_size;
    const char *name; /* lower-case letters, digits and underscores */
    const char *description;
    int32_t
        host_memory; /* 1: the host may read the tensors; the front end then checks their data */

    /* How many devices there are; 0: message says why. */
    int32_t (*device_count)(fwa_message *message);
    /* Opens a device; *device is handed to all that follows. `name` gets a line of words. */
    fwa_status (*open)(int32_t index, void **device, char *name, size_t name_size,
                       fwa_message *message);
    void (*close)(void *device);

    fwa_status (*allocate)(void *device, size_t size, void **memory, fwa_message *message);
    void (*release)(void *device, void *memory);
    fwa_status (*write)(void *device, void *to, const void *host, size_t size,
                        fwa_message *message);
    fwa_status (*read)(void *device, void *host, const void *from, size_t size,
                       fwa_message *message);

    /* 0: cannot run this problem (say why in message); greater is better. Must agree with plan().
     */
    int32_t (*score)(void *device, const fwa_problem *problem, fwa_message *message);
    fwa_status (*plan)(void *device, const fwa_problem *problem, int32_t lanes, void **plan,
                       fwa_message *message);
    void (*plan_release)(void *plan);
    const char *(*kernel_name)(const void *plan, fwa_pass pass);
    /* Bytes, or SIZE_MAX on overflow. */
    size_t (*workspace_size)(const void *plan, fwa_pass pass, const fwa_extent *extent);
    size_t (*saved_size)(const void *plan, const fwa_extent *extent);

    fwa_status (*forward)(const void *plan, const fwa_call *call, fwa_message *message);
    fwa_status (*backward)(const void *plan, const fwa_call *call, fwa_message *message);
} fwa_backend;

typedef const fwa_backend *(*fwa_module_backend_function)(void);

#ifdef __cplusplus
}
#endif

#endif
