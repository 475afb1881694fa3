/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"
#include "machine.h"
#include "peak_isa.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define RUNS           5    /* of a sample; the best counts */
#define STREAM_RUNS    3    /* the same for memory, where a run is long */
#define FMA_SECONDS    2e-3 /* of a run: long against the start of the threads */
#define ARRAYS         3
#define FLOATS_A_SHARE 64 /* a thread's share of an array is a multiple of this: four lines */

/* ---- Instruction sets ---- */

int bench_has_generic(void)
{
    return 1;
}

#ifdef FWA_CPU_X86
int bench_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

int bench_has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           bench_has_avx2();
}
#endif

static const bench_loops *const loops[] = {
    &bench_loops_generic,
#ifdef FWA_CPU_X86
    &bench_loops_avx2,
    &bench_loops_avx512,
#endif
};

/* ---- Runs: seconds of one pass on `threads` threads ---- */

/* *team: how many threads there really were. */
static double run_fma(const bench_meter *meter, int threads, int *team)
{
    double begin = 0, end = 0;
    float total = 0;
    *team = 1;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
#pragma omp barrier
#pragma omp master
        {
            *team = omp_get_num_threads();
            begin = bench_machine_now();
        }
        total += meter->loops->fma(meter->rounds, 0.5f, 1.0f);
#pragma omp barrier
#pragma omp master
        end = bench_machine_now();
    }
    /* All chains approach 2; the comparison keeps the compiler from dropping them. */
    return total > 0 ? end - begin : 0;
}

/* The part of [0, n) that belongs to one thread. */
static int64_t share_begin(int64_t n, int thread, int threads)
{
    return n / FLOATS_A_SHARE * thread / threads * FLOATS_A_SHARE;
}

static double run_stream(const bench_meter *meter, bench_peak peak, int threads)
{
    double begin = 0, end = 0;
    const int64_t n = meter->floats;
    /* The update has all of the memory as one array. */
    const int64_t all = peak == BENCH_PEAK_UPDATE ? ARRAYS * n : n;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t from = share_begin(all, thread, team);
        const int64_t count = share_begin(all, thread + 1, team) - from;
        float *a = meter->memory + from;
#pragma omp barrier
#pragma omp master
        begin = bench_machine_now();
        if (peak == BENCH_PEAK_UPDATE)
            meter->loops->update(a, count, 0.5f, 1.0f);
        else
            meter->loops->triad(a, a + n, a + 2 * n, count, 0.5f);
#pragma omp barrier
#pragma omp master
        end = bench_machine_now();
    }
    return end - begin;
}

static double fma_rate(const bench_meter *meter, int threads)
{
    int team;
    const double seconds = run_fma(meter, threads, &team);
    const double flops = (double)meter->loops->flops * (double)meter->rounds * team;
    return seconds > 0 ? flops / seconds : 0;
}

static double stream_rate(const bench_meter *meter, bench_peak peak, int threads)
{
    const double seconds = run_stream(meter, peak, threads);
    /* The update reads and writes all; the triad reads two arrays and writes one. */
    const double arrays = peak == BENCH_PEAK_UPDATE ? 2 * ARRAYS : ARRAYS;
    return seconds > 0 ? arrays * sizeof(float) * (double)meter->floats / seconds : 0;
}

/* In GFLOP/s or GB/s. */
static double best_rate(const bench_meter *meter, bench_peak peak, int threads)
{
    const int runs = peak == BENCH_PEAK_FMA ? RUNS : STREAM_RUNS;
    double best = 0;
    for (int i = 0; i < runs; i++) {
        const double rate = peak == BENCH_PEAK_FMA ? fma_rate(meter, threads)
                                                   : stream_rate(meter, peak, threads);
        best = rate > best ? rate : best;
    }
    return best * 1e-9;
}

/* ---- The meter ---- */

/* Sets the rounds that one thread does in FMA_SECONDS; returns its rate. */
static double calibrate(bench_meter *meter)
{
    double rate = 0;
    meter->rounds = 1000;
    for (int i = 0; i < 4; i++) { /* the first run may find a sleeping clock */
        rate = best_rate(meter, BENCH_PEAK_FMA, 1);
        meter->rounds = (int64_t)(rate * 1e9 * FMA_SECONDS / (double)meter->loops->flops) + 1;
    }
    return rate;
}

static void choose_loops(bench_meter *meter)
{
    const bench_loops *best = NULL;
    double best_rate_yet = 0;
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        if (!loops[i]->available())
            continue;
        meter->loops = loops[i];
        const double rate = calibrate(meter);
        if (best == NULL || rate > best_rate_yet) {
            best = loops[i];
            best_rate_yet = rate;
        }
    }
    meter->loops = best;
    calibrate(meter);
}

int bench_meter_begin(bench_meter *meter, int threads, bench_message *message)
{
    const int64_t bytes = bench_machine_beyond_cache();
    memset(meter, 0, sizeof *meter);
    meter->threads = threads;
    meter->floats = bytes / (int64_t)sizeof(float) / ARRAYS / FLOATS_A_SHARE * FLOATS_A_SHARE;
    meter->memory = aligned_alloc(64, (size_t)meter->floats * ARRAYS * sizeof(float));
    if (meter->memory == NULL)
        return bench_fail(message, "no memory for %lld MiB of arrays, whose bandwidth is the peak",
                          (long long)(bytes >> 20));
    const int64_t all = meter->floats * ARRAYS;
    /* Each page is first touched by the thread that will work on it. */
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t end = share_begin(all, thread + 1, team);
        for (int64_t i = share_begin(all, thread, team); i < end; i++)
            meter->memory[i] = 1;
    }
    choose_loops(meter);
    return 0;
}

void bench_meter_end(bench_meter *meter)
{
    free(meter->memory);
    meter->memory = NULL;
}

static int series_index(const bench_meter *meter, int all)
{
    return all && meter->threads > 1;
}

double bench_meter_sample(bench_meter *meter, bench_peak peak, int all)
{
    const int index = series_index(meter, all);
    bench_series *series = &meter->series[peak][index];
    const double rate = best_rate(meter, peak, index ? meter->threads : 1);
    if (series->count++ == 0)
        series->first = series->least = series->greatest = rate;
    series->last = rate;
    series->least = rate < series->least ? rate : series->least;
    series->greatest = rate > series->greatest ? rate : series->greatest;
    return rate;
}

const bench_series *bench_meter_series(const bench_meter *meter, bench_peak peak, int all)
{
    return &meter->series[peak][series_index(meter, all)];
}

double bench_meter_drift(const bench_meter *meter)
{
    const bench_series *fma = bench_meter_series(meter, BENCH_PEAK_FMA, 1);
    return fma->least > 0 ? fma->greatest / fma->least - 1 : 0;
}
