/* SPDX-License-Identifier: Apache-2.0 */
/* A state that is kept in 16 bits is worked on in float32 and rounded once a call, whatever the
 * number of tokens and of pairs: on every level of instructions that this machine has. */

#include "support.h"

#include <stdlib.h>

#define MOST_TOKENS 6
#define MOST_WINDOW 5

/* Half of the distance between two numbers of the type at that size. */
static double half_step(int32_t dtype, double size)
{
    const int digits = dtype == FWA_DTYPE_BF16 ? 8 : 11,
              least = dtype == FWA_DTYPE_BF16 ? -126 : -14;
    int exponent; /* size < 2^exponent */
    frexp(size, &exponent);
    return ldexp(0.5, (exponent - 1 < least ? least : exponent - 1) - digits + 1);
}

/* A continuation: in front of a group of tokens, with the window's tail full. */
static conformance_data state_data(const factor_rule *rule, int64_t tokens, int32_t columns,
                                   int32_t dtype, uint64_t seed)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = 19;
    problem.value_dim = columns;
    problem.heads_value = 2;
    problem.alignment = (int32_t)(seed % 2);
    problem.read = (int32_t)(seed / 2 % 2);
    problem.prediction = (int32_t)(seed / 3 % 2);
    set_rule(&problem, rule);
    conformance_data data = random_data(&problem, 1, tokens, seed);
    random_gates(&data, seed);
    random_carry(&data, 16, seed);
    conformance_round(&data, FWA_DTYPE_F32, dtype);
    return data;
}

/* The number that is rounded is off by what float32 may be, of the largest element; rounding adds
 * half a step. A second rounding on the way would add up to as much again. */
static void check_state(const char *level, fwa_context *context, const conformance_data *data,
                        const conformance_data *right, int32_t dtype)
{
    const conformance_options options = {
        .context = context, .form = FWA_FORM_CHUNKED, .dtype = FWA_DTYPE_F32, .state_dtype = dtype};
    conformance_data results = run_options(&options, data);
    const double *got = conformance_get(&results, "state_out");
    const double *want = conformance_get(right, "state_out");
    const int64_t n = conformance_count(right, "state_out");
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    const double arithmetic = compare_bound_for(FWA_DTYPE_F32).maximum * largest;
    for (int64_t i = 0; i < n; i++) {
        const double most = arithmetic + half_step(dtype, fabs(want[i]) + arithmetic);
        worst = fmax(worst, fabs(got[i] - want[i]) / most);
    }
    cr_expect_leq(worst, 1, "%s: %s state, objective %d, window %d, %d tokens, V = %d: %.2f times",
                  level, fwa_dtype_name(dtype), (int)data->problem.objective,
                  (int)data->problem.window, (int)data->extent.tokens, (int)data->problem.value_dim,
                  worst);
    conformance_data_free(&results);
}

/* As many tokens as decoding takes where the state lies, and more. In vectors of 4, 8 and 16 columns,
 * what a pass takes at once (two to eight vectors) leaves some over. */
static void check_level(const char *level, fwa_context *context, const factor_rule *rule)
{
    static const int32_t columns[] = {44, 40, 144}, dtypes[] = {FWA_DTYPE_BF16, FWA_DTYPE_F16};
    for (int64_t tokens = 1; tokens <= MOST_TOKENS; tokens++)
        for (int64_t c = 0; c < COUNT(columns); c++)
            for (int64_t type = 0; type < COUNT(dtypes); type++) {
                const uint64_t seed = (uint64_t)(rule->window * 100 + tokens * 10 + c);
                conformance_data data = state_data(rule, tokens, columns[c], dtypes[type], seed);
                conformance_data want = run_engine(&engines[0], &data, 0);
                check_state(level, context, &data, &want, dtypes[type]);
                conformance_data_free(&want);
                conformance_data_free(&data);
            }
}

/* Contexts of levels that there are none of are refused; api/levels.c holds which. */
Test(states, rounded_once)
{
    static const char *const levels[] = {"generic", "avx2", "avx512", "avx512bf16", "amx", "neon"};
    int found = 0;
    for (int64_t i = 0; i < COUNT(levels); i++) {
        fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
        fwa_context *context = NULL;
        options.backend = "cpu";
        options.threads = 1;
        setenv("FWA_CPU_ISA", levels[i], 1);
        if (fwa_context_create(&options, &context) == FWA_OK) {
            for (int32_t objective = 0; objective < 2; objective++)
                for (int32_t window = 1; window <= MOST_WINDOW; window++)
                    for (int32_t channels = 0; channels < (window == 1 ? 2 : 1); channels++) {
                        const factor_rule rule = {"", objective, channels, window, 0};
                        check_level(levels[i], context, &rule);
                    }
            found++;
        }
        fwa_context_destroy(context);
    }
    cr_expect_geq(found, 1);
}
