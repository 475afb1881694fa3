/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"
#include "../conformance/data.h"
#include "machine.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define RUNS          5    /* of a sample; the best counts */
#define MEMORY_RUNS   3    /* the same for memory, where a run is long */
#define RUN_SECONDS   2e-3 /* of all other runs: long against the start of the threads */
#define ROUNDS_STEP   64   /* the rounds grow by this factor while a run is too short to tell */
#define ROUNDS_LIMIT  ((int64_t)1 << 36)
#define LEAST_SECONDS 1e-6 /* that a coarse clock may show as none */

static const bench_loops *const candidates[] = {
    &bench_loops_generic,
#ifdef FWA_CPU_X86
    &bench_loops_avx2,
    &bench_loops_avx512,
    &bench_loops_avx512bf16,
#endif
};

/* ---- The peaks ---- */

enum { IN_REGISTERS, IN_L1, IN_L2, IN_MEMORY }; /* a place of bench_meter's limits */

static const struct {
    const char *name, *unit;
    bench_loop_kind loop;
    int place;
} peaks[BENCH_PEAKS] = {
    [BENCH_PEAK_FMA_F32] = {"fma_f32", "GFLOP/s", BENCH_LOOP_FMA_F32, IN_REGISTERS},
    [BENCH_PEAK_FMA_BF16] = {"fma_bf16", "GFLOP/s", BENCH_LOOP_FMA_BF16, IN_REGISTERS},
    [BENCH_PEAK_FMA_F64] = {"fma_f64", "GFLOP/s", BENCH_LOOP_FMA_F64, IN_REGISTERS},
    [BENCH_PEAK_READ_L1] = {"read_l1", "GB/s", BENCH_LOOP_READ, IN_L1},
    [BENCH_PEAK_READ_L2] = {"read_l2", "GB/s", BENCH_LOOP_READ, IN_L2},
    [BENCH_PEAK_READ] = {"read_memory", "GB/s", BENCH_LOOP_READ, IN_MEMORY},
    [BENCH_PEAK_UPDATE] = {"update_memory", "GB/s", BENCH_LOOP_UPDATE, IN_MEMORY},
    [BENCH_PEAK_TRIAD] = {"triad_memory", "GB/s", BENCH_LOOP_TRIAD, IN_MEMORY},
};

const char *bench_peak_name(bench_peak peak)
{
    return peaks[peak].name;
}

const char *bench_peak_unit(bench_peak peak)
{
    return peaks[peak].unit;
}

/* ---- Runs ---- */

/* The part of [0, n) that belongs to one thread. */
static int64_t share_begin(int64_t n, int thread, int threads)
{
    return n / BENCH_LOOP_STEP * thread / threads * BENCH_LOOP_STEP;
}

/* Floats that one thread passes over: of its share, the part that half of a cache holds. */
static int64_t floats_of(const bench_meter *meter, bench_peak peak, int64_t share)
{
    const int64_t limit = meter->limits[peaks[peak].place];
    return limit < share ? limit : share;
}

/* One run on so many threads: operations or bytes a second; *seconds: how long it took. */
static double run(const bench_meter *meter, bench_peak peak, int threads, double *seconds)
{
    const bench_loop *loop = &meter->loops[peak]->loop[peaks[peak].loop];
    const int64_t rounds = meter->rounds[peak];
    const int in_registers = peaks[peak].place == IN_REGISTERS;
    double begin = INFINITY, end = 0, work = 0;
    float total = 0;
    /* Each thread looks at the clock itself: one that is held up shows. */
#pragma omp parallel num_threads(threads) reduction(min : begin) reduction(max : end)              \
    reduction(+ : work, total)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t from = share_begin(meter->floats, thread, team);
        const int64_t share = share_begin(meter->floats, thread + 1, team) - from;
        const int64_t n = floats_of(meter, peak, share);
#pragma omp barrier
        begin = bench_machine_now();
        total += loop->run(meter->memory + from, n, rounds);
        end = bench_machine_now();
        work += (double)loop->work * (double)rounds * (in_registers ? 1 : (double)n);
    }
    *seconds = end - begin;
    /* The comparison, which always holds, keeps the compiler from dropping the loops. */
    return total > 0 && *seconds > 0 ? work / *seconds : 0;
}

/* In GFLOP/s or GB/s. */
static double best_rate(const bench_meter *meter, bench_peak peak, int threads)
{
    const int runs = peaks[peak].place == IN_MEMORY ? MEMORY_RUNS : RUNS;
    double best = 0, seconds;
    for (int i = 0; i < runs; i++) {
        const double rate = run(meter, peak, threads, &seconds);
        best = rate > best ? rate : best;
    }
    return best * 1e-9;
}

/* ---- Choosing loops ---- */

/* Finds the rounds that one thread does in RUN_SECONDS; returns its rate. */
static double calibrate(bench_meter *meter, bench_peak peak)
{
    int64_t *rounds = &meter->rounds[peak];
    double seconds = 0;
    for (*rounds = 1; *rounds < ROUNDS_LIMIT; *rounds *= ROUNDS_STEP) {
        run(meter, peak, 1, &seconds);
        if (seconds > RUN_SECONDS / ROUNDS_STEP)
            break;
    }
    for (int i = 0; i < 2; i++) { /* the first run may find a sleeping clock */
        run(meter, peak, 1, &seconds);
        *rounds = (int64_t)((double)*rounds * RUN_SECONDS / fmax(seconds, LEAST_SECONDS)) + 1;
    }
    return best_rate(meter, peak, 1);
}

static void choose_loops(bench_meter *meter, bench_peak peak)
{
    const bench_loops *best = NULL;
    double best_rate_yet = 0;
    int64_t rounds = 1;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        if (candidates[i]->loop[peaks[peak].loop].run == NULL || !candidates[i]->available())
            continue;
        meter->loops[peak] = candidates[i];
        const double rate = calibrate(meter, peak);
        if (best == NULL || rate > best_rate_yet) {
            best = candidates[i];
            best_rate_yet = rate;
            rounds = meter->rounds[peak];
        }
    }
    meter->loops[peak] = best;
    meter->rounds[peak] = rounds;
}

/* ---- The meter ---- */

/* Floats that fill half of a cache. */
static int64_t half_cache(int level)
{
    const int64_t floats = bench_machine_cache(level) / 2 / (int64_t)sizeof(float);
    return floats / BENCH_LOOP_STEP * BENCH_LOOP_STEP;
}

int bench_meter_begin(bench_meter *meter, struct fwa_context *host, int threads,
                      bench_message *message)
{
    const int64_t bytes = bench_machine_beyond_cache(threads);
    void *memory;
    memset(meter, 0, sizeof *meter);
    meter->threads = threads;
    meter->limits[IN_L1] = half_cache(1);
    meter->limits[IN_L2] = half_cache(2);
    meter->limits[IN_MEMORY] = INT64_MAX;
    meter->floats = bytes / (int64_t)sizeof(float) / BENCH_LOOP_STEP * BENCH_LOOP_STEP;
    meter->host = host;
    if (fwa_memory_allocate(host, (size_t)meter->floats * sizeof(float), &memory) != FWA_OK)
        return bench_fail(message, "no memory for %lld MiB of numbers, whose bandwidth is the peak",
                          (long long)(bytes >> 20));
    meter->memory = memory;
    /* Each page is first touched by the thread that will work on it. */
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t end = share_begin(meter->floats, thread + 1, team);
        for (int64_t i = share_begin(meter->floats, thread, team); i < end; i++)
            meter->memory[i] = 1;
    }
    for (int peak = 0; peak < BENCH_PEAKS; peak++) {
        if (peaks[peak].place != IN_MEMORY) {
            choose_loops(meter, (bench_peak)peak);
        } else { /* where the width of a vector counts least */
            meter->loops[peak] = meter->loops[BENCH_PEAK_READ_L1];
            meter->rounds[peak] = 1;
        }
    }
    return 0;
}

void bench_meter_end(bench_meter *meter)
{
    if (meter->memory)
        fwa_memory_free(meter->host, meter->memory);
    free(meter->series);
    memset(meter, 0, sizeof *meter);
}

static bench_series *find_series(const bench_meter *meter, bench_peak peak, int threads)
{
    for (int i = 0; i < meter->series_count; i++)
        if (meter->series[i].peak == peak && meter->series[i].threads == threads)
            return &meter->series[i];
    return NULL;
}

static bench_series *add_series(bench_meter *meter, bench_peak peak, int threads)
{
    const size_t count = (size_t)meter->series_count;
    bench_series *grown = conformance_allocate(count + 1, sizeof *grown);
    if (count > 0)
        memcpy(grown, meter->series, count * sizeof *grown);
    free(meter->series);
    meter->series = grown;
    meter->series_count++;
    grown[count] = (bench_series){.peak = peak, .threads = threads};
    return &grown[count];
}

double bench_meter_sample(bench_meter *meter, bench_peak peak, int threads)
{
    if (meter->loops[peak] == NULL)
        return 0;
    const double rate = best_rate(meter, peak, threads);
    bench_series *series = find_series(meter, peak, threads);
    if (series == NULL)
        series = add_series(meter, peak, threads);
    if (series->count++ == 0)
        series->first = series->least = series->greatest = rate;
    series->last = rate;
    series->least = rate < series->least ? rate : series->least;
    series->greatest = rate > series->greatest ? rate : series->greatest;
    return rate;
}

bench_series bench_meter_series(const bench_meter *meter, bench_peak peak, int threads)
{
    const bench_series *series = find_series(meter, peak, threads);
    const bench_series none = {.peak = peak, .threads = threads};
    return series ? *series : none;
}

double bench_meter_drift(const bench_meter *meter)
{
    const bench_series fma = bench_meter_series(meter, BENCH_PEAK_FMA_F32, meter->threads);
    return fma.least > 0 ? fma.greatest / fma.least - 1 : 0;
}
