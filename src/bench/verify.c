/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"

#include <string.h>

#define LIMIT  2e7 /* multiply-adds of one D x V product each: about a quarter of a second */
#define TOKENS 96  /* at least: more than a chunk, and no multiple of one away from the end */

typedef struct verify {
    const bench_problem *problem;
    const conformance_data *data;
    conformance_options options; /* of the run that is judged */
    fwa_context *reference;
    conformance_result worst;
    bench_message *message;
    bench_verify_result result;
} verify;

static int run(verify *v, const conformance_data *data, const conformance_options *options,
               const char *what, conformance_data *results)
{
    conformance_outcome outcome;
    if (conformance_run(data, options, results, &outcome) == 0)
        return 0;
    v->result = outcome.status == FWA_OK ? BENCH_VERIFY_WRONG : BENCH_VERIFY_REFUSED;
    return bench_fail(v->message, "%s%.480s", what, outcome.message);
}

static int run_reference(verify *v, const conformance_data *data, conformance_data *results)
{
    const conformance_options options = {.context = v->reference,
                                         .form = FWA_FORM_RECURRENT,
                                         .dtype = FWA_DTYPE_F64,
                                         .layout = CONFORMANCE_DENSE,
                                         .backward = v->options.backward};
    return run(v, data, &options, "the reference: ", results);
}

/* The backend on a part, its carry in float32 so that nothing is rounded between parts. */
static int run_part(verify *v, const conformance_data *data, int backward,
                    conformance_data *results)
{
    conformance_options options = v->options;
    options.backward = backward;
    options.saved = options.in_place = 0;
    options.state_dtype = FWA_DTYPE_NONE;
    return run(v, data, &options, "", results);
}

static void drop_carries(conformance_data *data, problem_role role)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (row->axes[0] == 'N' && row->role == role)
            conformance_drop(data, row->name);
    }
}

/* Makes the gradients of an incoming carry those that reach the outgoing one of *earlier. */
static void hand_back(const conformance_data *gradients, conformance_data *earlier)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        char name[32];
        if (row->axes[0] != 'N' || row->role != PROBLEM_UPSTREAM)
            continue;
        snprintf(name, sizeof name, "%.*sin", (int)strlen(row->name) - 3, row->name);
        const double *from = conformance_get(gradients, name);
        if (from == NULL)
            continue;
        double *to = conformance_add(earlier, row->name);
        memcpy(to, from, (size_t)conformance_count(earlier, row->name) * sizeof *to);
    }
}

static void judge(verify *v, const conformance_data *results, const conformance_data *want,
                  int64_t from, int64_t to)
{
    conformance_data part = conformance_slice(results, from, to);
    conformance_judge(&part, want, &v->problem->problem, &v->worst);
    conformance_data_free(&part);
}

static int check_all(verify *v, const conformance_data *results)
{
    conformance_data want;
    if (run_reference(v, v->data, &want))
        return -1;
    conformance_judge(results, &want, &v->problem->problem, &v->worst);
    conformance_data_free(&want);
    return 0;
}

static int check_last(verify *v, const conformance_data *results, int64_t n)
{
    const int64_t tokens = v->problem->tokens;
    conformance_data before = conformance_slice(v->data, 0, tokens - n);
    conformance_data last = conformance_slice(v->data, tokens - n, tokens);
    conformance_data carry, want;
    int failed = run_part(v, &before, 0, &carry);
    if (!failed) {
        conformance_hand_over(&carry, &last);
        conformance_data_free(&carry);
        failed = run_reference(v, &last, &want);
    }
    if (!failed) {
        drop_carries(&want, PROBLEM_GRADIENT);
        judge(v, results, &want, tokens - n, tokens);
        conformance_data_free(&want);
    }
    conformance_data_free(&last);
    conformance_data_free(&before);
    return failed;
}

/* Gradients that the tokens from n on send back. */
static int send_back(verify *v, conformance_data *first, int64_t n)
{
    conformance_data rest = conformance_slice(v->data, n, v->problem->tokens);
    conformance_data carry, gradients;
    int failed = run_part(v, first, 0, &carry);
    if (!failed) {
        conformance_hand_over(&carry, &rest);
        conformance_data_free(&carry);
        failed = run_part(v, &rest, 1, &gradients);
    }
    if (!failed) {
        hand_back(&gradients, first);
        conformance_data_free(&gradients);
    }
    conformance_data_free(&rest);
    return failed;
}

static int check_first(verify *v, const conformance_data *results, int64_t n)
{
    conformance_data first = conformance_slice(v->data, 0, n), want;
    int failed = v->options.backward ? send_back(v, &first, n) : 0;
    if (!failed)
        failed = run_reference(v, &first, &want);
    if (!failed) {
        drop_carries(&want, PROBLEM_OUTPUT);
        drop_carries(&want, PROBLEM_GRADIENT);
        judge(v, results, &want, 0, n);
        conformance_data_free(&want);
    }
    conformance_data_free(&first);
    return failed;
}

/* Tokens at each end; 0: all. */
static int64_t count_tokens(const bench_problem *problem, int backward, double limit)
{
    const fwa_problem *p = &problem->problem;
    const double token = (double)problem->batch * p->heads_value * p->key_dim * p->value_dim *
                         p->window * (backward ? 3 : 1);
    const double afford = (limit > 0 ? limit : LIMIT) / token;
    const int64_t n = afford < TOKENS ? TOKENS : afford < 1e9 ? (int64_t)afford : (int64_t)1e9;
    return 2 * n >= problem->tokens ? 0 : n;
}

bench_verify_result bench_verify(const bench_problem *problem, const conformance_data *data,
                                 fwa_context *context, fwa_context *reference, double limit,
                                 bench_check *check, conformance_data *results,
                                 bench_message *message)
{
    verify v = {.problem = problem, .data = data, .reference = reference, .message = message};
    const int backward = problem->pass == BENCH_BACKWARD || problem->pass == BENCH_TRAIN;
    v.options = (conformance_options){.context = context,
                                      .form = problem->problem.form,
                                      .dtype = problem->problem.dtype,
                                      .state_dtype = problem->problem.state_dtype,
                                      .layout = CONFORMANCE_DENSE,
                                      .backward = backward,
                                      .saved = backward && problem->saved,
                                      .in_place = problem->pass == BENCH_DECODE};
    memset(check, 0, sizeof *check);
    memset(results, 0, sizeof *results);
    if (run(&v, data, &v.options, "", results))
        return v.result;
    const int64_t n = count_tokens(problem, backward, limit);
    const int failed = n == 0 ? check_all(&v, results)
                              : check_first(&v, results, n) || check_last(&v, results, n);
    if (failed) {
        conformance_data_free(results);
        return v.result;
    }
    check->tokens = n;
    snprintf(check->tensor, sizeof check->tensor, "%s", v.worst.tensor);
    check->error = v.worst.error;
    check->bound = v.worst.bound;
    if (v.worst.ratio <= 1)
        return BENCH_VERIFY_GOOD;
    bench_fail(message, "%s is off by %.3g (bound %.3g), at most by %.3g (bound %.3g)",
               check->tensor, check->error.rms, check->bound.rms, check->error.maximum,
               check->bound.maximum);
    return BENCH_VERIFY_WRONG;
}
