/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The backend that most engines are of, and which forms of it; where it has but one form by name, its
 * automatic choice is tested in place of the chunked one. */
#ifdef TEST_BACKEND
#define BY_BLOCK FWA_FORM_RECURRENT
#define BY_CHUNK FWA_FORM_AUTO
#else
#define TEST_BACKEND "cpu"
#define BY_BLOCK     FWA_FORM_MASKED
#define BY_CHUNK     FWA_FORM_CHUNKED
#endif

const engine engines[ENGINES] = {
    {"reference", FWA_FORM_RECURRENT, FWA_DTYPE_F64},
    {TEST_BACKEND, FWA_FORM_RECURRENT, FWA_DTYPE_F32},
    {TEST_BACKEND, BY_BLOCK, FWA_DTYPE_F32},
    {TEST_BACKEND, BY_CHUNK, FWA_DTYPE_F32},
    {TEST_BACKEND, FWA_FORM_RECURRENT, FWA_DTYPE_BF16},
    {TEST_BACKEND, BY_BLOCK, FWA_DTYPE_BF16},
    {TEST_BACKEND, BY_CHUNK, FWA_DTYPE_BF16},
    {TEST_BACKEND, FWA_FORM_RECURRENT, FWA_DTYPE_F16},
    {TEST_BACKEND, BY_BLOCK, FWA_DTYPE_F16},
    {TEST_BACKEND, BY_CHUNK, FWA_DTYPE_F16},
};

const char *engine_name(const engine *e)
{
    static char name[64];
    snprintf(name, sizeof name, "%s %s %s", e->backend, conformance_form_name(e->form),
             fwa_dtype_name(e->dtype));
    return name;
}

fwa_context *context_of(const char *backend, int32_t threads)
{
    static struct {
        char backend[32];
        int32_t threads;
        fwa_context *context;
    } made[16];
    const int32_t wanted = threads ? threads : 1;
    int i = 0;
    for (; i < 15 && made[i].context; i++)
        if (strcmp(made[i].backend, backend) == 0 && made[i].threads == wanted)
            return made[i].context;
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    options.backend = backend;
    options.threads = wanted;
    cr_assert_eq(fwa_context_create(&options, &made[i].context), FWA_OK, "%s: %s", backend,
                 fwa_error_message());
    snprintf(made[i].backend, sizeof made[i].backend, "%s", backend);
    made[i].threads = wanted;
    return made[i].context;
}

int full_tests(void)
{
    const char *full = getenv("FWA_TEST_FULL");
    return full != NULL && strcmp(full, "1") == 0;
}

/* ---- Problems ---- */

fwa_problem same_step_problem(int32_t key_dim, int32_t value_dim)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.alignment = FWA_ALIGNMENT_SAME_STEP;
    problem.eps = 0;
    problem.key_dim = key_dim;
    problem.value_dim = value_dim;
    return problem;
}

int next_rule(const engine *e, int rule)
{
    do
        rule++;
    while (rule < FACTOR_RULES && factor_rules[rule].window > 8 &&
           factor_rules[rule].objective == FWA_OBJECTIVE_REGRESSION && e->dtype != FWA_DTYPE_F32);
    return rule;
}

void set_rule(fwa_problem *problem, const factor_rule *rule)
{
    problem->objective = rule->objective;
    problem->dynamics = rule->dynamics;
    problem->window = rule->window;
    problem->normalizer = rule->normalizer;
}

void fill(conformance_data *data, const char *name, double value)
{
    double *values = conformance_add(data, name);
    for (int64_t i = conformance_count(data, name) - 1; i >= 0; i--)
        values[i] = value;
}

void fill_normal(conformance_data *data, const char *name, double size, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    double *values = conformance_add(data, name);
    for (int64_t i = conformance_count(data, name) - 1; i >= 0; i--)
        values[i] = size * conformance_random_normal(&random);
}

void fill_between(conformance_data *data, const char *name, double low, double high, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    double *values = conformance_add(data, name);
    for (int64_t i = conformance_count(data, name) - 1; i >= 0; i--)
        values[i] = conformance_random_between(&random, low, high);
}

static void fill_features(conformance_data *data, const char *name, uint64_t seed)
{
    fill_normal(data, name, 1, seed);
    double *values = conformance_get(data, name);
    for (int64_t i = conformance_count(data, name) - 1; data->problem.normalizer && i >= 0; i--)
        values[i] = fabs(values[i]) + 0.05;
}

conformance_data random_data(const fwa_problem *problem, int64_t batch, int64_t tokens,
                             uint64_t seed)
{
    conformance_data data = conformance_data_new(problem, batch, tokens, batch);
    fill_features(&data, "q", seed * 101 + 1);
    fill_features(&data, "k", seed * 101 + 2);
    fill_normal(&data, "v", 1, seed * 101 + 3);
    return data;
}

void random_gates(conformance_data *data, uint64_t seed)
{
    const fwa_problem *p = &data->problem;
    const double length = p->qk_norm == FWA_NORM_L2 ? 1 : 8.0 * p->key_dim;
    const int direct = p->step == FWA_STEP_DIRECT;
    fill_between(data, "beta", direct ? 0.1 / length : 0.1, direct ? 1 / length : 1,
                 seed * 101 + 4);
    fill_between(data, "lambda", 0, p->ridge == FWA_RIDGE_ACTUAL ? 0.1 * length : 0.2,
                 seed * 101 + 5);
    fill_between(data, "log_gate", -0.3, 0, seed * 101 + 6);
}

void random_carry(conformance_data *data, int64_t seen, uint64_t seed)
{
    const fwa_problem *p = &data->problem;
    fill(data, "seen_in", (double)seen);
    fill_normal(data, "state_in", 0.3, seed * 101 + 7);
    if (p->alignment == FWA_ALIGNMENT_NEXT_LATENT)
        fill_features(data, "prev_key_in", seed * 101 + 8);
    if (p->window > 1) {
        fill_features(data, "tail_key_in", seed * 101 + 9);
        fill_normal(data, "tail_value_in", 1, seed * 101 + 10);
    }
    if (p->normalizer)
        fill_between(data, "norm_in", 0.5, 1.5, seed * 101 + 11);
}

void random_upstream(conformance_data *data, int carry, uint64_t seed)
{
    static const char *const names[] = {"dstate_out", "dprev_key_out", "dtail_key_out",
                                        "dtail_value_out", "dnorm_out"};
    fill_normal(data, "do", 1, seed * 101 + 12);
    for (int64_t i = 0; carry && i < COUNT(names); i++)
        if (problem_tensor_applies(problem_tensor_find(names[i]), &data->problem))
            fill_normal(data, names[i], 0.3, seed * 101 + 13 + (uint64_t)i);
}

/* ---- Running and expecting ---- */

conformance_data run_options(const conformance_options *options, const conformance_data *data)
{
    conformance_data results;
    conformance_outcome outcome;
    cr_assert_eq(conformance_run(data, options, &results, &outcome), 0, "%s %s %s: %s",
                 fwa_context_backend(options->context), conformance_form_name(options->form),
                 fwa_dtype_name(options->dtype), outcome.message);
    return results;
}

conformance_data run_engine(const engine *e, const conformance_data *data, int backward)
{
    const conformance_options options = {.context = context_of(e->backend, 1),
                                         .form = e->form,
                                         .dtype = e->dtype,
                                         .backward = backward};
    return run_options(&options, data);
}

int64_t token_at(const conformance_data *data, int64_t batch, int64_t token, int64_t head,
                 int64_t heads, int64_t width)
{
    return ((batch * data->extent.tokens + token) * heads + head) * width;
}

void expect_close(const engine *e, const char *what, const double *got, const double *want,
                  int64_t n, double slack)
{
    const compare_error error = compare_arrays(got, want, n);
    const compare_bound bound = compare_bound_for(e->dtype);
    cr_expect_leq(compare_ratio(error, bound), slack,
                  "%s: %s is off by %.3g (bound %.3g), at most by %.3g", engine_name(e), what,
                  error.rms, bound.rms * slack, error.maximum);
}

void expect_equal(const engine *e, const char *what, const double *got, const double *want,
                  int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i])))
            continue;
        cr_expect_fail("%s: %s: element %lld is %.17g, not %.17g", engine_name(e), what,
                       (long long)i, got[i], want[i]);
        return;
    }
}

void expect_all_within(const engine *e, const char *what, const conformance_data *got,
                       const conformance_data *want, double slack)
{
    conformance_result result;
    fwa_problem problem = want->problem;
    memset(&result, 0, sizeof result);
    problem.dtype = e->dtype;
    problem.state_dtype = FWA_DTYPE_NONE;
    conformance_judge(got, want, &problem, &result);
    cr_expect_leq(result.ratio, slack, "%s: %s: %s is off by %.3g (bound %.3g), at most by %.3g",
                  engine_name(e), what, result.tensor, result.error.rms, slack * result.bound.rms,
                  result.error.maximum);
}

void expect_all_close(const engine *e, const char *what, const conformance_data *got,
                      const conformance_data *want)
{
    expect_all_within(e, what, got, want, 1);
}

void expect_all_same(const engine *e, const char *what, const conformance_data *got,
                     const conformance_data *want)
{
    const char *name = "";
    cr_expect(conformance_same(got, want, &name), "%s: %s: %s differs", engine_name(e), what, name);
}
