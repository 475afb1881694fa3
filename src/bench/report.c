/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"
#include "machine.h"

#include <math.h>
#include <string.h>

static const char *const verdicts[] = {"timed", "failed", "refused"};

/* Adds a number where there is one: JSON has no infinity, and 0 is "not measured". */
static void add_number(json_t *object, const char *key, double number)
{
    if (number > 0 && isfinite(number))
        json_object_set_new(object, key, json_real(number));
}

static json_t *report_series(const bench_series *series)
{
    json_t *object = json_object();
    json_object_set_new(object, "samples", json_integer((json_int_t)series->count));
    add_number(object, "first", series->first);
    add_number(object, "last", series->last);
    add_number(object, "least", series->least);
    add_number(object, "greatest", series->greatest);
    return object;
}

static json_t *report_peaks(const bench_meter *meter)
{
    static const char *const names[] = {"fma_gflops", "update_gbytes", "triad_gbytes"};
    json_t *object = json_object();
    json_object_set_new(object, "isa", json_string(meter->loops->isa));
    json_object_set_new(object, "stream_bytes",
                        json_integer((json_int_t)(3 * sizeof(float)) * meter->floats));
    json_object_set_new(object, "drift", json_real(bench_meter_drift(meter)));
    for (int peak = 0; peak < BENCH_PEAKS; peak++) {
        json_t *list = json_array();
        for (int all = 0; all <= (meter->threads > 1); all++) {
            json_t *one = report_series(bench_meter_series(meter, (bench_peak)peak, all));
            json_object_set_new(one, "threads", json_integer(all ? meter->threads : 1));
            json_array_append_new(list, one);
        }
        json_object_set_new(object, names[peak], list);
    }
    return object;
}

static json_t *report_problem(const bench_problem *p)
{
    const fwa_problem *q = &p->problem;
    const bench_data_kind *kind = bench_data_get(p->data);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s}",
                     "name", p->name, "preset", p->preset, "pass", bench_pass_name(p->pass), "B",
                     (json_int_t)p->batch, "T", (json_int_t)p->tokens, "Hk", (int)q->heads_key,
                     "Hv", (int)q->heads_value, "Hq", (int)q->heads_query, "D", (int)q->key_dim,
                     "V", (int)q->value_dim, "window", (int)q->window, "dtype",
                     fwa_dtype_name(q->dtype), "form", conformance_form_name(q->form), "data",
                     kind->name, "cache", p->cold ? "cold" : "hot");
}

static json_t *report_check(const bench_check *check)
{
    json_t *object = json_pack("{s:s}", "tensor", check->tensor);
    if (check->tokens > 0)
        json_object_set_new(object, "tokens_at_each_end", json_integer((json_int_t)check->tokens));
    if (isfinite(check->error.rms)) {
        json_object_set_new(object, "rms", json_real(check->error.rms));
        json_object_set_new(object, "maximum", json_real(check->error.maximum));
    }
    add_number(object, "rms_bound", check->bound.rms);
    add_number(object, "maximum_bound", check->bound.maximum);
    return object;
}

static void add_times(json_t *object, const bench_result *result)
{
    const bench_rates rates = bench_rates_of(result);
    json_object_set_new(object, "seconds",
                        json_pack("{s:f, s:f, s:f, s:I, s:I}", "minimum", result->minimum, "median",
                                  result->median, "p90", result->p90, "samples",
                                  (json_int_t)result->samples, "calls_a_sample",
                                  (json_int_t)result->calls));
    add_number(object, "spread", result->p90 / result->minimum);
    add_number(object, "processor", result->processor);
    add_number(object, "flops", bench_flops(&result->problem));
    add_number(object, "state_bytes", bench_state_bytes(&result->problem));
    add_number(object, "gflops", rates.gflops);
    add_number(object, "gbytes", rates.gbytes);
    add_number(object, "tokens_per_second", rates.tokens);
    add_number(object, "peak_fma_gflops", result->peak_fma);
    add_number(object, "peak_update_gbytes", result->peak_update);
    add_number(object, "of_fma", rates.of_fma);
    add_number(object, "of_update", rates.of_update);
}

static json_t *report_result(const bench_result *result)
{
    json_t *object = report_problem(&result->problem);
    json_object_set_new(object, "verdict", json_string(verdicts[result->verdict]));
    if (result->message.text[0])
        json_object_set_new(object, "message", json_string(result->message.text));
    if (result->kernel[0])
        json_object_set_new(object, "kernel", json_string(result->kernel));
    if (result->check.tensor[0])
        json_object_set_new(object, "verified", report_check(&result->check));
    if (result->verdict == BENCH_TIMED)
        add_times(object, result);
    return object;
}

json_t *bench_report(const bench_setup *setup, const bench_result *results, int64_t count)
{
    char cpu[128];
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, report_result(&results[i]));
    bench_machine_cpu(cpu, sizeof cpu);
    json_t *machine = json_pack("{s:s, s:I}", "cpu", cpu, "last_cache_bytes",
                                (json_int_t)bench_machine_cache());
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:i, s:o, s:o}", "version", fwa_version_string(), "backend",
        fwa_context_backend(setup->context), "device", fwa_context_device(setup->context),
        "threads", (int)fwa_context_threads(setup->context), "machine", machine, "problems", list);
    if (root && setup->meter)
        json_object_set_new(root, "peaks", report_peaks(setup->meter));
    return root;
}
