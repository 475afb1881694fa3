/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_POOL_H
#define FWA_COMMON_POOL_H

/* The threads of one context. OpenMP's own would go on spinning after a call: milliseconds with gcc's
 * runtime, 200 ms with LLVM's, and no program but the one that starts them can tell them not to. */

#include <stdbool.h>
#include <stdint.h>

typedef struct fwa_pool fwa_pool;

/* A pool whose regions run on `threads` threads, the caller's among them. It starts them with its
 * first region. NULL without memory. */
fwa_pool *fwa_pool_create(int32_t threads);
/* Ends the threads. No region may be running; NULL is fine. */
void fwa_pool_destroy(fwa_pool *pool);

/* Runs task(data, lane) for every lane in [0, lanes), lanes >= 2, and returns when all are done.
 * Threads that do not come in time are not waited for: the caller's runs the lanes that are left.
 * False, and nothing was run, where another thread's region is running. */
bool fwa_pool_run(fwa_pool *pool, int32_t lanes, void (*task)(void *data, int64_t lane),
                  void *data);

#endif
