/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"
#include "call.h"
#include "inputs.h"
#include "machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS         4    /* of timed calls, with the peaks between them */
#define SAMPLE_SECONDS 1e-4 /* at least: long against a look at the clock */
#define DEVICE_SECONDS 1e-2 /* the same of a device: long against waiting for it */
#define CALLS_LIMIT    10000
#define HOST_CALLS     8 /* that no device lets its host wait for */
#define HOST_SAMPLES   20

typedef struct timing {
    const bench_setup *setup;
    bench_call *call;
    bench_result *result;
    double *samples; /* seconds of one call */
    int64_t count, room;
    double processor, wall; /* seconds of all rounds */
} timing;

static void say(const bench_setup *setup, const char *what)
{
    if (setup->phase)
        setup->phase(setup->user, what);
}

static int refuse(bench_result *result, const char *what, const char *why)
{
    result->verdict = BENCH_REFUSED;
    return bench_fail(&result->message, "%s%.480s", what, why);
}

/* ---- Timing ---- */

static void take_peak(timing *t, bench_peak peak)
{
    double *greatest = &t->result->peaks[peak];
    const double rate = bench_meter_sample(t->setup->meter, peak, t->result->threads);
    *greatest = rate > *greatest ? rate : *greatest;
}

/* All peaks, or the one that binds the calls and the one that tells how the clock moves. */
static void take_peaks(timing *t, int all)
{
    for (int peak = 0; t->setup->meter && peak < BENCH_PEAKS; peak++)
        if (all || peak == (int)t->result->bound || peak == BENCH_PEAK_FMA_F32)
            take_peak(t, (bench_peak)peak);
}

/* Seconds of `calls` calls; negative where one failed. */
static double run_calls(timing *t, int64_t calls)
{
    const double begin = bench_machine_now();
    for (int64_t i = 0; i < calls; i++)
        if (bench_call_run(t->call) != FWA_OK)
            return refuse(t->result, "", fwa_error_message());
    if (bench_call_wait(t->call) != FWA_OK)
        return refuse(t->result, "", fwa_error_message());
    return bench_machine_now() - begin;
}

static int add_sample(timing *t, double seconds)
{
    if (t->count == t->room) {
        const int64_t room = t->room ? 2 * t->room : 256;
        double *grown = realloc(t->samples, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return refuse(t->result, "", "no memory for the samples");
        t->samples = grown;
        t->room = room;
    }
    t->samples[t->count++] = seconds;
    return 0;
}

/* One round: a call that brings caches and threads back, then samples. */
static int run_round(timing *t)
{
    if (run_calls(t, 1) < 0)
        return -1;
    const double begin = bench_machine_now(), processor = bench_machine_processor();
    const double end = begin + t->setup->seconds / ROUNDS;
    do {
        const double seconds = run_calls(t, t->result->calls);
        if (seconds < 0 || add_sample(t, seconds / (double)t->result->calls))
            return -1;
    } while (bench_machine_now() < end);
    t->processor += bench_machine_processor() - processor;
    t->wall += bench_machine_now() - begin;
    return 0;
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void summarise(timing *t)
{
    bench_result *r = t->result;
    const int64_t n = t->count;
    qsort(t->samples, (size_t)n, sizeof *t->samples, by_size);
    r->samples = n;
    if (bench_on_host(t->call->context))
        r->processor = t->processor / (t->wall * r->threads);
    r->minimum = t->samples[0];
    r->median = (t->samples[(n - 1) / 2] + t->samples[n / 2]) / 2;
    r->p90 = t->samples[(9 * n + 9) / 10 - 1];
}

/* How many calls a sample has. On a device the first count is of a call that is waited for, so that it
 * is taken again of as many as it says. */
static int count_calls(timing *t)
{
    const int host = bench_on_host(t->call->context);
    const double wanted = host ? SAMPLE_SECONDS : DEVICE_SECONDS;
    int64_t *calls = &t->result->calls;
    *calls = 1;
    for (int turn = 0; turn < (host ? 1 : 4); turn++) {
        const double seconds = run_calls(t, *calls);
        if (seconds < 0)
            return -1;
        if (seconds >= wanted)
            break;
        *calls = (int64_t)(wanted / (seconds + 1e-9) * (double)*calls) + 1;
        *calls = *calls > CALLS_LIMIT ? CALLS_LIMIT : *calls;
    }
    return 0;
}

/* How long it takes the host to put a call on a device that has nothing before it: the least of some
 * samples. Long calls are few, since each sample ends with a wait. */
static int time_host(timing *t)
{
    const int64_t calls = t->result->calls < HOST_CALLS ? t->result->calls : HOST_CALLS;
    const double end = bench_machine_now() + t->setup->seconds / ROUNDS;
    double least = INFINITY;
    for (int i = 0; i < 2 || (i < HOST_SAMPLES && bench_machine_now() < end); i++) {
        const double begin = bench_machine_now();
        for (int64_t j = 0; j < calls; j++)
            if (bench_call_run(t->call) != FWA_OK)
                return refuse(t->result, "", fwa_error_message());
        least = fmin(least, (bench_machine_now() - begin) / (double)calls);
        if (bench_call_wait(t->call) != FWA_OK)
            return refuse(t->result, "", fwa_error_message());
    }
    t->result->host = least;
    return 0;
}

static int time_calls(timing *t)
{
    if (count_calls(t))
        return -1;
    take_peaks(t, 1);
    for (int round = 0; round < ROUNDS; round++) {
        if (run_round(t))
            return -1;
        take_peaks(t, 0);
    }
    summarise(t);
    return bench_on_host(t->call->context) ? 0 : time_host(t);
}

/* ---- All ---- */

/* float16 is computed in float32; so is bf16 where the machine has nothing better. */
static bench_peak find_bound(const bench_setup *setup, const bench_problem *problem)
{
    static const bench_peak by_dtype[] = {
        [FWA_DTYPE_F32] = BENCH_PEAK_FMA_F32,
        [FWA_DTYPE_BF16] = BENCH_PEAK_FMA_BF16,
        [FWA_DTYPE_F16] = BENCH_PEAK_FMA_F32,
        [FWA_DTYPE_F64] = BENCH_PEAK_FMA_F64,
    };
    const bench_peak fma = by_dtype[problem->problem.dtype];
    if (problem->pass == BENCH_DECODE)
        return BENCH_PEAK_UPDATE;
    return setup->meter && setup->meter->loops[fma] == NULL ? BENCH_PEAK_FMA_F32 : fma;
}

static void name_kernel(const bench_call *call, bench_result *result)
{
    const int32_t pass = result->problem.pass;
    const char *forward = fwa_plan_kernel_name(call->plan, FWA_PASS_FORWARD);
    const char *backward = fwa_plan_kernel_name(call->plan, FWA_PASS_BACKWARD);
    snprintf(result->kernel, sizeof result->kernel, "%s%s%s", pass == BENCH_BACKWARD ? "" : forward,
             pass == BENCH_TRAIN ? " + " : "",
             pass == BENCH_BACKWARD || pass == BENCH_TRAIN ? backward : "");
}

static double extra_bytes(const bench_call *call)
{
    const size_t *sizes = call->workspace_size;
    return (double)(sizes[0] > sizes[1] ? sizes[0] : sizes[1]) + (double)call->saved_size;
}

/* The timed calls work on tensors of their own: their first answer must be the verified one. */
static int check_first_call(timing *t, const conformance_data *verified)
{
    const char *name = "";
    if (run_calls(t, t->call->count) < 0)
        return -1;
    if (bench_call_same(t->call, verified, &name))
        return 0;
    t->result->verdict = BENCH_WRONG;
    return bench_fail(&t->result->message, "%s is not bit for bit what was verified", name);
}

static void time_verified(const bench_setup *setup, fwa_context *context,
                          const conformance_data *data, const conformance_data *verified,
                          bench_result *result)
{
    bench_call call;
    timing t = {.setup = setup, .call = &call, .result = result};
    if (bench_call_begin(&call, context, &result->problem, data, &result->message)) {
        result->verdict = BENCH_REFUSED;
        return;
    }
    name_kernel(&call, result);
    result->copies = call.count;
    result->extra = extra_bytes(&call);
    if (check_first_call(&t, verified) == 0)
        time_calls(&t);
    free(t.samples);
    bench_call_end(&call);
}

static int has_memory(const bench_problem *problem, const bench_problem *part, bench_result *result)
{
    const double needed = bench_inputs_memory(problem, part);
    const double there = (double)bench_machine_free();
    if (needed <= there)
        return 1;
    result->verdict = BENCH_REFUSED;
    bench_fail(&result->message, "it takes about %.1f GiB of memory to verify; %.1f are free",
               needed / 0x1p30, there / 0x1p30);
    return 0;
}

static void verify_and_time(const bench_setup *setup, fwa_context *context,
                            const bench_problem *part, bench_result *result)
{
    const bench_problem *problem = &result->problem;
    conformance_data verified;
    say(setup, "making data");
    conformance_data data = bench_inputs(part);
    say(setup, "verifying");
    const bench_verify_result verdict = bench_verify(part, &data, context, setup->reference, 0,
                                                     &result->check, &verified, &result->message);
    result->check.pairs = part->batch * part->problem.heads_key;
    result->check.all_pairs = problem->batch * problem->problem.heads_key;
    if (verdict == BENCH_VERIFY_GOOD) {
        say(setup, "timing");
        time_verified(setup, context, &data, &verified, result);
    } else {
        result->verdict = verdict == BENCH_VERIFY_WRONG ? BENCH_WRONG : BENCH_REFUSED;
    }
    conformance_data_free(&verified);
    conformance_data_free(&data);
}

/* The context of a problem's own number of threads. NULL with the result filled. */
static fwa_context *make_context(const bench_setup *setup, bench_result *result)
{
    const int32_t there = fwa_context_threads(setup->context);
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    options.backend = fwa_context_backend(setup->context);
    options.threads = result->threads;
    if (result->threads > there) {
        result->verdict = BENCH_REFUSED;
        bench_fail(&result->message, "it is for %d threads; there are %d", (int)result->threads,
                   (int)there);
    } else if (fwa_context_create(&options, &context) != FWA_OK) {
        refuse(result, "", fwa_error_message());
    }
    return context;
}

void bench_measure(const bench_setup *setup, const bench_problem *problem, bench_result *result)
{
    const int32_t there = fwa_context_threads(setup->context);
    const bench_problem part = bench_inputs_part(problem, setup->part);
    memset(result, 0, sizeof *result);
    result->problem = *problem;
    result->threads = problem->threads > 0 ? problem->threads : there;
    result->bound = find_bound(setup, problem);
    if (!has_memory(problem, &part, result))
        return;
    fwa_context *own = result->threads == there ? NULL : make_context(setup, result);
    if (own || result->threads == there)
        verify_and_time(setup, own ? own : setup->context, &part, result);
    fwa_context_destroy(own);
}

bench_rates bench_rates_of(const bench_result *result)
{
    bench_rates rates = {0, 0, 0, 0};
    const double peak = result->peaks[result->bound];
    const double bytes = bench_state_bytes(&result->problem);
    if (result->verdict != BENCH_TIMED || result->minimum <= 0)
        return rates;
    rates.gflops = bench_flops(&result->problem) / result->minimum * 1e-9;
    rates.gbytes = bytes / result->minimum * 1e-9;
    rates.tokens = (double)(result->problem.batch * result->problem.tokens) / result->minimum;
    if (peak > 0)
        rates.of_bound = (result->bound == BENCH_PEAK_UPDATE ? rates.gbytes : rates.gflops) / peak;
    return rates;
}

double bench_efficiency(const bench_result *results, int64_t count, const bench_result *one)
{
    if (one->verdict != BENCH_TIMED || one->threads == 1)
        return 0;
    for (int64_t i = 0; i < count; i++) {
        const bench_result *other = &results[i];
        if (other->verdict == BENCH_TIMED && other->threads == 1 &&
            strcmp(other->problem.set, one->problem.set) == 0 &&
            strcmp(other->problem.name, one->problem.name) == 0)
            return other->minimum / (one->threads * one->minimum);
    }
    return 0;
}
