/* SPDX-License-Identifier: Apache-2.0 */
/* One case in one form on one backend: run, judge. */

#include "cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *conformance_form_name(int32_t form)
{
    static const char *const names[] = {"auto", "recurrent", "masked", "chunked"};
    return form >= 0 && form <= FWA_FORM_CHUNKED ? names[form] : "unknown";
}

/* ---- Gaps ---- */

#define ANY (-1)

/* What each backend says that it does not do. All else it must do. */
static const struct {
    const char *backend;
    int32_t form, dtype;
} gaps[] = {
    {"cpu", ANY, FWA_DTYPE_F64},           {"cuda", ANY, FWA_DTYPE_F64},
    {"cuda", FWA_FORM_MASKED, ANY},        {"cuda", FWA_FORM_CHUNKED, ANY},
    {"emulated32", ANY, FWA_DTYPE_F64},    {"emulated32", FWA_FORM_MASKED, ANY},
    {"emulated32", FWA_FORM_CHUNKED, ANY}, {"emulated64", ANY, FWA_DTYPE_F64},
    {"emulated64", FWA_FORM_MASKED, ANY},  {"emulated64", FWA_FORM_CHUNKED, ANY},
    {"hip", ANY, FWA_DTYPE_F64},           {"hip", FWA_FORM_MASKED, ANY},
    {"hip", FWA_FORM_CHUNKED, ANY},        {"reference", FWA_FORM_MASKED, ANY},
    {"reference", FWA_FORM_CHUNKED, ANY},
};

int conformance_declared_gap(const char *backend, int32_t form, int32_t dtype)
{
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
        if (strcmp(gaps[i].backend, backend) == 0 &&
            (gaps[i].form == ANY || gaps[i].form == form) &&
            (gaps[i].dtype == ANY || gaps[i].dtype == dtype))
            return 1;
    return 0;
}

/* ---- Judging ---- */

void conformance_judge(const conformance_data *got, const conformance_data *want,
                       const fwa_problem *problem, conformance_result *result)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const int32_t dtype = problem_tensor_dtype(row, problem);
        compare_error error = {INFINITY, INFINITY};
        if (want->values[i] == NULL)
            continue;
        if (got->values[i] != NULL)
            error = compare_arrays(got->values[i], want->values[i],
                                   conformance_row_count(want, row));
        const compare_bound bound = compare_bound_looser(compare_bound_for(dtype),
                                                         compare_bound_for(problem->dtype));
        const double ratio = compare_ratio(error, bound);
        if (ratio <= result->ratio && result->tensor[0])
            continue;
        snprintf(result->tensor, sizeof result->tensor, "%s", row->name);
        result->error = error;
        result->bound = bound;
        result->ratio = ratio;
    }
}

int conformance_same(const conformance_data *left, const conformance_data *right, const char **name)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const size_t size = (size_t)conformance_row_count(left, row) * sizeof(double);
        *name = row->name;
        if ((left->values[i] == NULL) != (right->values[i] == NULL) ||
            conformance_row_count(left, row) != conformance_row_count(right, row))
            return 0;
        if (left->values[i] && size && memcmp(left->values[i], right->values[i], size) != 0)
            return 0;
    }
    return 1;
}

/* ---- Running ---- */

typedef struct check {
    const conformance_case *c;
    const conformance_answer *answer;
    conformance_options options;
    conformance_result result;
} check;

static int fail(check *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(check *k, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(k->result.message, sizeof k->result.message, format, list);
    va_end(list);
    k->result.verdict = CONFORMANCE_FAILED;
    return -1;
}

/* The name must say what was asked for, so that a test knows what it tests. */
static int check_kernel(check *k, const char *kernel)
{
    const fwa_problem *p = &k->c->problem;
    const char *backend = fwa_context_backend(k->options.context);
    const size_t length = strlen(backend);
    char rule[96], form[32];
    snprintf(rule, sizeof rule, "/%s/%s/window%d/%s",
             p->objective == FWA_OBJECTIVE_REGRESSION ? "regression" : "inner_product",
             p->dynamics == FWA_DYNAMICS_PER_HEAD ? "head" : "channel", (int)p->window,
             fwa_dtype_name(p->dtype));
    snprintf(form, sizeof form, "/%s/", conformance_form_name(k->options.form));
    if (strncmp(kernel, backend, length) != 0 || kernel[length] != '/' ||
        (k->options.form != FWA_FORM_AUTO && strstr(kernel, form) == NULL) ||
        strstr(kernel, rule) == NULL)
        return fail(k, "the kernel is called '%s'; it must be '%s/..%s..%s'", kernel, backend, form,
                    rule);
    return 0;
}

/* One run and its judgement; the results go to *results, for the caller to free. */
static int run_once(check *k, int32_t saved, conformance_data *results)
{
    conformance_outcome outcome;
    conformance_options options = k->options;
    options.saved = saved && options.backward;
    if (conformance_run(&k->answer->data, &options, results, &outcome)) {
        fail(k, "%s", outcome.message);
        if (outcome.status == FWA_ERROR_UNSUPPORTED &&
            conformance_declared_gap(fwa_context_backend(options.context), options.form,
                                     options.dtype))
            k->result.verdict = CONFORMANCE_GAP;
        return -1;
    }
    conformance_judge(results, &k->answer->want, &k->c->problem, &k->result);
    const problem_tensor *worst = problem_tensor_find(k->result.tensor);
    const int pass = worst != NULL && worst->role == PROBLEM_GRADIENT ? FWA_PASS_BACKWARD
                                                                      : FWA_PASS_FORWARD;
    snprintf(k->result.kernel, sizeof k->result.kernel, "%s", outcome.kernel[pass]);
    if (check_kernel(k, outcome.kernel[FWA_PASS_FORWARD]) ||
        check_kernel(k, outcome.kernel[FWA_PASS_BACKWARD]))
        return 0;
    if (k->result.ratio > 1)
        fail(k, "%s is off by %.3g (bound %.3g), at most by %.3g (bound %.3g)%s", k->result.tensor,
             k->result.error.rms, k->result.bound.rms, k->result.error.maximum,
             k->result.bound.maximum, saved ? ", saved" : "");
    return 0;
}

static void run_all(check *k)
{
    conformance_data first, again;
    const char *name;
    if (run_once(k, 1, &first))
        return;
    if (k->result.verdict == CONFORMANCE_PASSED && run_once(k, 1, &again) == 0) {
        if (!conformance_same(&first, &again, &name))
            fail(k, "%s differs between two runs", name);
        conformance_data_free(&again);
    }
    if (k->result.verdict == CONFORMANCE_PASSED && k->options.backward &&
        run_once(k, 0, &again) == 0)
        conformance_data_free(&again);
    conformance_data_free(&first);
}

static int is_written(const conformance_data *data, int64_t slot)
{
    for (int64_t n = 0; n < data->extent.sequences; n++)
        if (data->slot_out[n] == slot && data->slot_in[n] != FWA_SLOT_NONE)
            return 1;
    return 0;
}

/* In place, the slots that no row writes keep what they hold. The reference has not run in place.
 */
static void keep_unwritten(const conformance_data *data, conformance_data *want)
{
    static const char *const parts[][2] = {
        {"seen_in", "seen_out"},         {"state_in", "state_out"},
        {"prev_key_in", "prev_key_out"}, {"tail_key_in", "tail_key_out"},
        {"norm_in", "norm_out"},         {"tail_value_in", "tail_value_out"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const double *from = conformance_get(data, parts[i][0]);
        double *to = conformance_get(want, parts[i][1]);
        const int64_t width = from ? conformance_count(data, parts[i][0]) / data->pool : 0;
        for (int64_t slot = 0; from && to && slot < data->pool; slot++)
            if (!is_written(data, slot))
                memcpy(to + slot * width, from + slot * width, (size_t)width * sizeof *to);
    }
}

conformance_answer conformance_answer_new(const conformance_case *c, fwa_context *reference)
{
    conformance_answer answer;
    conformance_outcome outcome;
    memset(&answer, 0, sizeof answer);
    answer.c = c;
    answer.data = conformance_case_data(c);
    const conformance_options options = {.context = reference,
                                         .form = FWA_FORM_RECURRENT,
                                         .dtype = FWA_DTYPE_F64,
                                         .backward = answer.data.commit == NULL};
    if (conformance_run(&answer.data, &options, &answer.want, &outcome))
        snprintf(answer.message, sizeof answer.message, "the reference: %.480s", outcome.message);
    else if (c->in_place && answer.data.pool > 0)
        keep_unwritten(&answer.data, &answer.want);
    return answer;
}

void conformance_answer_free(conformance_answer *answer)
{
    conformance_data_free(&answer->data);
    conformance_data_free(&answer->want);
}

conformance_result conformance_check(const conformance_answer *answer, int32_t form,
                                     fwa_context *context)
{
    const conformance_case *c = answer->c;
    check k;
    memset(&k, 0, sizeof k);
    k.c = c;
    k.answer = answer;
    k.options.context = context;
    k.options.form = form;
    k.options.dtype = c->problem.dtype;
    k.options.state_dtype = c->problem.state_dtype;
    k.options.layout = c->layout;
    k.options.in_place = c->in_place;
    k.options.index64 = c->index64;
    k.options.backward = answer->data.commit == NULL;
    if (answer->message[0])
        fail(&k, "%s", answer->message);
    else
        run_all(&k);
    return k.result;
}
