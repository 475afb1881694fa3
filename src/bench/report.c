/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"
#include "../conformance/cases.h"

#include <math.h>
#include <string.h>

static const char *const verdicts[] = {"timed", "failed", "refused"};

/* Adds a number where there is one: JSON has no infinity, and 0 is "not measured". */
static void add_number(json_t *object, const char *key, double number)
{
    if (number > 0 && isfinite(number))
        json_object_set_new(object, key, json_real(number));
}

static json_t *report_peaks(const bench_meter *meter)
{
    json_t *list = json_array();
    for (int i = 0; i < meter->series_count; i++) {
        const bench_series *series = &meter->series[i];
        json_t *one = json_pack("{s:s, s:s, s:s, s:i, s:I}", "peak", bench_peak_name(series->peak),
                                "unit", bench_peak_unit(series->peak), "isa",
                                meter->loops[series->peak]->isa, "threads", series->threads,
                                "samples", (json_int_t)series->count);
        add_number(one, "first", series->first);
        add_number(one, "last", series->last);
        add_number(one, "least", series->least);
        add_number(one, "greatest", series->greatest);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *report_gates(int32_t gates)
{
    json_t *list = json_array();
    for (int32_t i = 1; bench_gate_name(i) != NULL; i++)
        if (gates & bench_gate(i))
            json_array_append_new(list, json_string(bench_gate_name(i)));
    return list;
}

static json_t *report_problem(const bench_problem *p)
{
    const fwa_problem *q = &p->problem;
    const bench_data_kind *kind = bench_data_get(p->data);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:o}", "name",
        p->name, "preset", p->preset, "pass", bench_pass_name(p->pass), "B", (json_int_t)p->batch,
        "T", (json_int_t)p->tokens, "Hk", (int)q->heads_key, "Hv", (int)q->heads_value, "Hq",
        (int)q->heads_query, "D", (int)q->key_dim, "V", (int)q->value_dim, "window", (int)q->window,
        "dtype", fwa_dtype_name(q->dtype), "form", conformance_form_name(q->form), "data",
        kind->name, "gates", report_gates(p->gates));
    if (p->set[0])
        json_object_set_new(object, "set", json_string(p->set));
    if (q->state_dtype != FWA_DTYPE_NONE)
        json_object_set_new(object, "state_dtype", json_string(fwa_dtype_name(q->state_dtype)));
    if (p->pass == BENCH_DECODE)
        json_object_set_new(object, "cache", json_string(p->cold ? "cold" : "hot"));
    else
        json_object_set_new(object, "packed", json_boolean(p->packed));
    if (p->pass == BENCH_BACKWARD || p->pass == BENCH_TRAIN)
        json_object_set_new(object, "saved", json_boolean(p->saved));
    return object;
}

static json_t *report_check(const bench_check *check)
{
    json_t *object = json_pack("{s:s}", "tensor", check->tensor);
    if (check->tokens > 0)
        json_object_set_new(object, "tokens_at_each_end", json_integer((json_int_t)check->tokens));
    if (check->pairs < check->all_pairs) {
        json_object_set_new(object, "row_heads", json_integer((json_int_t)check->pairs));
        json_object_set_new(object, "row_heads_repeated",
                            json_integer((json_int_t)(check->all_pairs - check->pairs)));
    }
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
    add_number(object, "host_seconds", result->host);
    add_number(object, "extra_bytes", result->extra);
    json_object_set_new(object, "copies", json_integer((json_int_t)result->copies));
    add_number(object, "flops", bench_flops(&result->problem));
    add_number(object, "state_bytes", bench_state_bytes(&result->problem));
    add_number(object, "gflops", rates.gflops);
    add_number(object, "gbytes", rates.gbytes);
    add_number(object, "tokens_per_second", rates.tokens);
    json_t *peaks = json_object();
    for (int peak = 0; peak < BENCH_PEAKS; peak++)
        add_number(peaks, bench_peak_name((bench_peak)peak), result->peaks[peak]);
    json_object_set_new(object, "peaks", peaks);
    if (result->peaks[result->bound] > 0)
        json_object_set_new(object, "bound", json_string(bench_peak_name(result->bound)));
    add_number(object, "of_bound", rates.of_bound);
}

static json_t *report_result(const bench_result *result)
{
    json_t *object = report_problem(&result->problem);
    json_object_set_new(object, "threads", json_integer(result->threads));
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

static json_t *report_results(const bench_result *results, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) {
        json_t *one = report_result(&results[i]);
        add_number(one, "efficiency", bench_efficiency(results, count, &results[i]));
        json_array_append_new(list, one);
    }
    return list;
}

/* The CPU backend's devices are named "PROCESSOR, ISA". */
static void add_isa(json_t *root, const fwa_context *context)
{
    const char *comma = strrchr(fwa_context_device(context), ',');
    if (comma && strcmp(fwa_context_backend(context), "cpu") == 0)
        json_object_set_new(root, "isa", json_string(comma + 1 + strspn(comma + 1, " ")));
}

json_t *bench_report(const bench_setup *setup, const bench_origin *origin,
                     const bench_result *results, int64_t count)
{
    const fwa_context *context = setup->context;
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:o, s:o, s:o}", "version", fwa_version_string(), "backend",
        fwa_context_backend(context), "device", fwa_context_device(context), "date", origin->date,
        "threads", (int)fwa_context_threads(context), "machine", bench_report_machine(), "build",
        bench_report_build(), "environment", bench_report_environment());
    if (root == NULL)
        return NULL;
    add_isa(root, context);
    if (origin->command)
        json_object_set_new(root, "command", json_string(origin->command));
    if (setup->meter) {
        json_object_set_new(root, "peaks", report_peaks(setup->meter));
        json_object_set_new(root, "peak_drift", json_real(bench_meter_drift(setup->meter)));
        json_object_set_new(root, "peak_memory_bytes",
                            json_integer((json_int_t)sizeof(float) * setup->meter->floats));
    }
    json_object_set_new(root, "problems", report_results(results, count));
    return root;
}
