/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_PEAK_H
#define FWA_BENCH_PEAK_H

/* What this machine can do at most: multiply-adds that never leave the registers, reads from each
 * cache and from memory, and passes that write as well. Samples are short, so that they can be
 * taken before, between and after the calls that are timed: a clock that moves then shows. */

#include "message.h"

#include <stdint.h>

typedef enum bench_peak {
    BENCH_PEAK_FMA_F32,  /* GFLOP/s of x = x * m + b, two operations each */
    BENCH_PEAK_FMA_BF16, /* GFLOP/s of x = x + a . b on pairs of bf16, summed in float32: four */
    BENCH_PEAK_FMA_F64,
    BENCH_PEAK_READ_L1, /* GB/s read by each thread from a part of its own cache */
    BENCH_PEAK_READ_L2,
    BENCH_PEAK_READ,   /* GB/s read from memory */
    BENCH_PEAK_UPDATE, /* GB/s of a = a * m + b in place, read and write counted */
    BENCH_PEAK_TRIAD,  /* GB/s of a = b + s * c, two reads and one write counted */
    BENCH_PEAKS
} bench_peak;

/* "fma_f32" and so on, and "GFLOP/s" or "GB/s". */
const char *bench_peak_name(bench_peak peak);
const char *bench_peak_unit(bench_peak peak);

/* ---- The loops of one instruction set, in a file of its own ---- */

typedef enum bench_loop_kind {
    BENCH_LOOP_FMA_F32,
    BENCH_LOOP_FMA_BF16,
    BENCH_LOOP_FMA_F64,
    BENCH_LOOP_READ,
    BENCH_LOOP_UPDATE,
    BENCH_LOOP_TRIAD,
    BENCH_LOOP_KINDS
} bench_loop_kind;

/* n, the floats that each of the rounds passes over, is a multiple of this. */
#define BENCH_LOOP_STEP 384

typedef struct bench_loop {
    /* The result tells nothing: it is there so that the loop is not dropped. NULL: no such loop. */
    float (*run)(float *a, int64_t n, int64_t rounds);
    int64_t work; /* operations of a round, or bytes moved for each float of it */
} bench_loop;

typedef struct bench_loops {
    const char *isa;
    int (*available)(void);
    bench_loop loop[BENCH_LOOP_KINDS];
} bench_loops;

extern const bench_loops bench_loops_generic, bench_loops_avx2, bench_loops_avx512,
    bench_loops_avx512bf16;

/* ---- Samples ---- */

/* The samples of one peak on one number of threads; rates in the peak's unit. */
typedef struct bench_series {
    bench_peak peak;
    int threads;
    int64_t count;
    double first, last, least, greatest;
} bench_series;

typedef struct bench_meter {
    struct fwa_context *host; /* whose memory it is */
    int threads;              /* at most */
    float *memory;            /* more than the last caches hold */
    int64_t floats;
    int64_t limits[4];                     /* floats that a thread passes over, by where they are */
    const bench_loops *loops[BENCH_PEAKS]; /* the fastest of this machine; NULL: it has none */
    int64_t rounds[BENCH_PEAKS];           /* that take about two milliseconds */
    bench_series *series;
    int series_count;
} bench_meter;

/* Finds the fastest loops, and takes memory of four times the last caches from a context of the
 * host, which must live as long. 0, or -1 with *message
 * filled. */
int bench_meter_begin(bench_meter *meter, struct fwa_context *host, int threads,
                      bench_message *message);
void bench_meter_end(bench_meter *meter);

/* One sample on so many threads, added to its series: the best of a few runs. 0, and no sample,
 * where the machine has no such instructions. */
double bench_meter_sample(bench_meter *meter, bench_peak peak, int threads);
/* The series; one of no samples where there are none. */
bench_series bench_meter_series(const bench_meter *meter, bench_peak peak, int threads);
/* greatest / least - 1 of the float32 multiply-adds on all threads: how much the clock moved. */
double bench_meter_drift(const bench_meter *meter);

#endif
