/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_MACHINE_H
#define FWA_BENCH_MACHINE_H

#include <stdint.h>

/* ---- The processor ---- */

typedef struct bench_cpu {
    char name[128];    /* as the system tells it; the architecture where it tells none */
    int family, model; /* -1: not told. A virtual machine's name often says less than these */
} bench_cpu;
bench_cpu bench_machine_cpu(void);
/* Processors that are online. */
int bench_machine_processors(void);

/* ---- Caches ---- */

#define BENCH_CACHES 8

typedef struct bench_cache {
    int level;
    char type[16]; /* "Data", "Instruction", "Unified" */
    int64_t size;
    int shared; /* by so many processors */
} bench_cache;

/* The caches of the first processor; returns how many. */
int bench_machine_caches(bench_cache caches[BENCH_CACHES]);
/* Bytes for data of level 1 or 2 that one processor has for itself; a guess where the system does
 * not say. */
int64_t bench_machine_cache(int level);
/* Bytes of memory that the last caches of so many processors cannot hold. */
int64_t bench_machine_beyond_cache(int processors);

/* ---- Memory and time ---- */

/* Bytes of memory that are free now; INT64_MAX where the system does not say. */
int64_t bench_machine_free(void);
/* Seconds of a clock that never goes back. */
double bench_machine_now(void);
/* Seconds that all threads of this process have had a processor. */
double bench_machine_processor(void);

#endif
