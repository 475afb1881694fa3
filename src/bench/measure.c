/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"
#include "call.h"
#include "inputs.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS         4    /* of timed calls, with the peaks between them */
#define SAMPLE_SECONDS 1e-4 /* at least: long against a look at the clock */
#define CALLS_LIMIT    10000

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

static void take_peaks(timing *t)
{
    bench_meter *meter = t->setup->meter;
    double rate;
    if (meter == NULL)
        return;
    rate = bench_meter_sample(meter, BENCH_PEAK_FMA, 1);
    t->result->peak_fma = rate > t->result->peak_fma ? rate : t->result->peak_fma;
    if (bench_state_bytes(&t->result->problem) == 0)
        return;
    rate = bench_meter_sample(meter, BENCH_PEAK_UPDATE, 1);
    t->result->peak_update = rate > t->result->peak_update ? rate : t->result->peak_update;
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
    r->processor = t->processor / (t->wall * fwa_context_threads(t->setup->context));
    r->minimum = t->samples[0];
    r->median = (t->samples[(n - 1) / 2] + t->samples[n / 2]) / 2;
    r->p90 = t->samples[(9 * n + 9) / 10 - 1];
}

static int time_calls(timing *t)
{
    const double once = run_calls(t, 1);
    if (once < 0)
        return -1;
    t->result->calls = once < SAMPLE_SECONDS ? (int64_t)(SAMPLE_SECONDS / (once + 1e-9)) + 1 : 1;
    if (t->result->calls > CALLS_LIMIT)
        t->result->calls = CALLS_LIMIT;
    take_peaks(t);
    for (int round = 0; round < ROUNDS; round++) {
        if (run_round(t))
            return -1;
        take_peaks(t);
    }
    summarise(t);
    return 0;
}

/* ---- All ---- */

static void name_kernel(const bench_call *call, bench_result *result)
{
    const int32_t pass = result->problem.pass;
    const char *forward = fwa_plan_kernel_name(call->plan, FWA_PASS_FORWARD);
    const char *backward = fwa_plan_kernel_name(call->plan, FWA_PASS_BACKWARD);
    snprintf(result->kernel, sizeof result->kernel, "%s%s%s", pass == BENCH_BACKWARD ? "" : forward,
             pass == BENCH_TRAIN ? " + " : "",
             pass == BENCH_BACKWARD || pass == BENCH_TRAIN ? backward : "");
}

/* The timed calls work on tensors of their own: their first answer must be the verified one. */
static int check_first_call(timing *t, const conformance_data *verified)
{
    const char *name = "";
    if (run_calls(t, 1) < 0)
        return -1;
    if (bench_call_same(t->call, verified, &name))
        return 0;
    t->result->verdict = BENCH_WRONG;
    return bench_fail(&t->result->message, "%s is not bit for bit what was verified", name);
}

static void time_verified(const bench_setup *setup, const conformance_data *data,
                          const conformance_data *verified, bench_result *result)
{
    bench_call call;
    timing t = {.setup = setup, .call = &call, .result = result};
    if (bench_call_begin(&call, setup->context, &result->problem, data, &result->message)) {
        result->verdict = BENCH_REFUSED;
        return;
    }
    name_kernel(&call, result);
    if (check_first_call(&t, verified) == 0)
        time_calls(&t);
    free(t.samples);
    bench_call_end(&call);
}

static int has_memory(const bench_problem *problem, bench_result *result)
{
    const double needed = bench_inputs_memory(problem);
    const double there = (double)bench_machine_free();
    if (needed <= there)
        return 1;
    result->verdict = BENCH_REFUSED;
    bench_fail(&result->message, "it takes about %.1f GiB of memory to verify; %.1f are free",
               needed / 0x1p30, there / 0x1p30);
    return 0;
}

void bench_measure(const bench_setup *setup, const bench_problem *problem, bench_result *result)
{
    conformance_data verified;
    memset(result, 0, sizeof *result);
    result->problem = *problem;
    if (!has_memory(problem, result))
        return;
    say(setup, "making data");
    conformance_data data = bench_inputs(problem);
    say(setup, "verifying");
    const bench_verify_result verdict = bench_verify(problem, &data, setup->context,
                                                     setup->reference, 0, &result->check, &verified,
                                                     &result->message);
    if (verdict == BENCH_VERIFY_GOOD) {
        say(setup, "timing");
        time_verified(setup, &data, &verified, result);
    } else {
        result->verdict = verdict == BENCH_VERIFY_WRONG ? BENCH_WRONG : BENCH_REFUSED;
    }
    conformance_data_free(&verified);
    conformance_data_free(&data);
}

bench_rates bench_rates_of(const bench_result *result)
{
    bench_rates rates = {0, 0, 0, 0, 0};
    const double bytes = bench_state_bytes(&result->problem);
    if (result->verdict != BENCH_TIMED || result->minimum <= 0)
        return rates;
    rates.gflops = bench_flops(&result->problem) / result->minimum * 1e-9;
    rates.gbytes = bytes / result->minimum * 1e-9;
    rates.tokens = (double)(result->problem.batch * result->problem.tokens) / result->minimum;
    if (bytes == 0 && result->peak_fma > 0)
        rates.of_fma = rates.gflops / result->peak_fma;
    if (bytes > 0 && result->peak_update > 0)
        rates.of_update = rates.gbytes / result->peak_update;
    return rates;
}
