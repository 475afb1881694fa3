/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_PEAK_H
#define FWA_BENCH_PEAK_H

/* What this machine can do at most: float32 multiply-adds that never leave the registers, and
 * passes over memory that no cache holds. Samples are short, so that they can be taken before,
 * between and after the calls that are timed: a clock that moves then shows. */

#include "message.h"

#include <stdint.h>

typedef enum bench_peak {
    BENCH_PEAK_FMA,    /* GFLOP/s of x = x * m + b, two operations each */
    BENCH_PEAK_UPDATE, /* GB/s of a = a * m + b in place, read and write counted */
    BENCH_PEAK_TRIAD,  /* GB/s of a = b + s * c, two reads and one write counted */
    BENCH_PEAKS
} bench_peak;

/* The loops of one instruction set, in a file of its own. */
typedef struct bench_loops {
    const char *isa;
    int (*available)(void);
    int64_t flops;                                  /* of one round */
    float (*fma)(int64_t rounds, float m, float b); /* the result, so that it is computed */
    void (*update)(float *a, int64_t n, float m, float b);
    void (*triad)(float *a, const float *b, const float *c, int64_t n, float s);
} bench_loops;

extern const bench_loops bench_loops_generic, bench_loops_avx2, bench_loops_avx512;

/* The samples of one peak; rates in GFLOP/s or GB/s. */
typedef struct bench_series {
    int64_t count;
    double first, last, least, greatest;
} bench_series;

typedef struct bench_meter {
    const bench_loops *loops; /* the fastest multiply-adds of this machine */
    int threads;
    int64_t rounds; /* of a multiply-add loop that takes about two milliseconds */
    float *memory;  /* three arrays */
    int64_t floats; /* in each of them */
    bench_series series[BENCH_PEAKS][2]; /* of one thread, and of `threads` */
} bench_meter;

/* Finds the fastest loops, and takes arrays of four times the last cache. 0, or -1 with *message
 * filled. */
int bench_meter_begin(bench_meter *meter, int threads, bench_message *message);
void bench_meter_end(bench_meter *meter);

/* One sample, added to its series: the best of a few runs. `all`: on all of the meter's threads,
 * else on one. */
double bench_meter_sample(bench_meter *meter, bench_peak peak, int all);
/* The series; that of one thread where the meter has only one. */
const bench_series *bench_meter_series(const bench_meter *meter, bench_peak peak, int all);
/* greatest / least - 1 of the multiply-adds on all threads: how much the clock moved. */
double bench_meter_drift(const bench_meter *meter);

#endif
