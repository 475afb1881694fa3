/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_CUDA_FAKE_CUDA_H
#define FWA_TESTS_CUDA_FAKE_CUDA_H

/*
 * A libcuda.so.1 that computes nothing and records what is asked of it. The environment says what it
 * finds:
 *
 *     FAKE_CUDA_VERSION   the driver's version; the toolkit's by default
 *     FAKE_CUDA_DEVICES   compute capabilities, "90 75"; one "90" by default
 *     FAKE_CUDA_FAIL      "cuMemAlloc=2": that function returns that
 */

#include <stddef.h>
#include <stdint.h>

typedef struct fake_cuda {
    /* What is held now. */
    _Atomic int contexts, modules, allocations;
    /* What was called. */
    _Atomic int inits, synchronized, launches, limits_set, foreign; /* foreign: in a forked child */
    /* The last of each. */
    const void *image;
    size_t allocated;
    int synchronized_before_copy; /* `synchronized` when the copy began */
    struct {
        void *function, *stream;
        unsigned grid[3], block[3], shared;
        size_t size;
        unsigned char args[4096];
    } launch;
    int shared_limit; /* of the one function there is */
} fake_cuda;

typedef struct fake_cuda_functions {
    fake_cuda *(*record)(void);
    void (*push)(uintptr_t context); /* makes a program's own context current */
    uintptr_t (*current)(int *depth);
} fake_cuda_functions;

extern const fake_cuda_functions fake_cuda_table;

#endif
