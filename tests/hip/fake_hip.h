/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_HIP_FAKE_HIP_H
#define FWA_TESTS_HIP_FAKE_HIP_H

/*
 * A libamdhip64.so.6 whose devices are this processor: kernels are run as tests/gpu/runtime.h does, and
 * what is asked of it is recorded. The environment says what it finds:
 *
 *     FAKE_HIP_VERSION   the runtime's version; 60200000 (6.2) by default
 *     FAKE_HIP_DEVICES   architectures, "gfx942:sramecc+:xnack- gfx1030"; none by default
 *     FAKE_HIP_FAIL      "hipMalloc=2": that function returns that
 *     FAKE_HIP_IDLE      set: launches are recorded, and nothing is run
 *     FAKE_HIP_TRACE     a folder: the first launch of each kernel is written there, with all memory before
 *                        and after it (doc/hip-objects.md)
 *
 * As the runtime does, it refuses grids of 2^32 threads and more, more than 64 KiB of shared memory, code
 * objects of another architecture, and calls in a forked child.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_hip {
    /* What is held now. */
    int modules, allocations;
    /* What was called. */
    int synchronized, launches, foreign; /* foreign: in a forked child */
    /* The last of each. */
    const void *image;
    size_t allocated;
    int synchronized_before_copy; /* `synchronized` when the copy began */
    int device;                   /* that was current at the last launch, load or allocation */
    struct {
        void *stream;
        unsigned grid[3], block[3], shared;
        size_t size;
        unsigned char args[4096];
        char name[64];
    } launch;
} fake_hip;

typedef struct fake_hip_functions {
    fake_hip *(*record)(void);
    int (*current)(void); /* the calling thread's device */
    void (*make_current)(int device);
} fake_hip_functions;

extern const fake_hip_functions fake_hip_table;

#ifdef __cplusplus
}
#endif

#endif
