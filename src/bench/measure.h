/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_MEASURE_H
#define FWA_BENCH_MEASURE_H

/* One problem: verify it, then time it. */

#include "peak.h"
#include "problems.h"
#include "verify.h"

typedef enum bench_verdict {
    BENCH_TIMED,
    BENCH_WRONG,  /* the verification failed: no times */
    BENCH_REFUSED /* the library refuses the problem, or there is no memory */
} bench_verdict;

typedef struct bench_result {
    bench_problem problem;
    bench_verdict verdict;
    bench_message message; /* where it was not timed */
    int32_t threads;       /* of the calls */
    char kernel[256];      /* of forward and backward, with " + " between, where both are timed */
    bench_check check;
    int64_t samples; /* of `calls` calls each */
    int64_t calls;
    int64_t copies;   /* of the inputs and outputs that calls take in turn */
    double processor; /* of the time of all threads, the part in which they had a processor; 0: a
                         device has the work */
    double host;      /* seconds that the host needs to put a call on a device; 0: no device */
    double extra;     /* bytes that a step needs besides inputs and outputs: the larger of its
                         passes' workspaces, and what the forward saves */
    double minimum, median, p90; /* seconds of one call */
    double peaks[BENCH_PEAKS];   /* greatest samples, on the same threads; 0: not measured. Before
                                    the calls of all, between and after them of the bound */
    bench_peak bound;            /* what the calls cannot be faster than */
} bench_result;

typedef struct bench_setup {
    fwa_context *context, *reference; /* problems that say so get other threads */
    bench_meter *meter;               /* NULL: a device that the host's peaks say nothing about */
    double seconds;                   /* of timed calls */
    double part;                      /* of bench_inputs_part() */
    void (*phase)(void *user, const char *what); /* optional: what begins now */
    void *user;
} bench_setup;

void bench_measure(const bench_setup *setup, const bench_problem *problem, bench_result *result);

/* What the times mean; from the minimum, since the peaks are the best samples too. 0: unknown. */
typedef struct bench_rates {
    double gflops, gbytes, tokens; /* a second; gbytes of decoding only */
    double of_bound; /* the fraction of the measured peak that binds: updates of memory for
                        decoding, multiply-adds of the problem's type for all else */
} bench_rates;
bench_rates bench_rates_of(const bench_result *result);

/* t1 / (n tn), where the results hold the same problem on one thread and this one has n; 0
 * elsewhere. */
double bench_efficiency(const bench_result *results, int64_t count, const bench_result *one);

#endif
