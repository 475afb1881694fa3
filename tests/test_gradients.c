/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients: the reference against finite differences, and identities (G, as doc/maths.md names
 * them) that hold on every engine. */

#include "support.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define D 4
#define V 3
#define T 21

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

/* Adds the terms' sizes to `size`, which may be NULL. */
static double inner(const conformance_data *left, const char *name, const conformance_data *right,
                    const char *other, double *size)
{
    const double *a = conformance_get(left, name), *b = conformance_get(right, other);
    double sum = 0;
    for (int64_t i = a && b ? conformance_count(left, name) - 1 : -1; i >= 0; i--) {
        sum += a[i] * b[i];
        if (size)
            *size += fabs(a[i] * b[i]);
    }
    return sum;
}

/* ---- Finite differences ---- */

/* The scalar whose gradient the backward takes: outputs and final carry against what reaches them.
 * Adds the sizes of its terms to `size`. */
static double scalar(const conformance_data *data, double *size)
{
    static const char *const outputs[][2] = {{"o", "do"},
                                             {"state_out", "dstate_out"},
                                             {"prev_key_out", "dprev_key_out"},
                                             {"tail_key_out", "dtail_key_out"},
                                             {"tail_value_out", "dtail_value_out"},
                                             {"norm_out", "dnorm_out"}};
    conformance_data got = run_engine(&engines[0], data, 0);
    double sum = 0;
    for (int64_t i = 0; i < COUNT(outputs); i++)
        sum += inner(data, outputs[i][1], &got, outputs[i][0], size);
    conformance_data_free(&got);
    return sum;
}

/* Holds a gradient to the differences along a random direction, or along a coordinate. The
 * fourth-order formula's own error is about 1e-12 of the terms; that of the scalar, some roundings
 * of its terms (which may be large: direct steps need not be stable), is divided by the step. */
static void check_direction(conformance_data *data, const conformance_data *gradient,
                            const char *name, const char *label, int64_t coordinate,
                            conformance_random *random)
{
    char gradient_name[32];
    const double step = 4e-4;
    double sums[4], along = 0, size = 0, terms = 0;
    const int64_t n = conformance_count(data, name);
    double *values = get(data, name);
    double *kept = conformance_allocate((size_t)n, sizeof *kept);
    double *direction = conformance_allocate((size_t)n, sizeof *direction);
    snprintf(gradient_name, sizeof gradient_name, "d%s", name);
    const double *g = get(gradient, gradient_name);
    memcpy(kept, values, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++) {
        direction[i] = coordinate < 0 ? conformance_random_normal(random) : i == coordinate;
        direction[i] = isfinite(kept[i]) ? direction[i] : 0;
        along += g[i] * direction[i];
        size += fabs(g[i] * direction[i]);
    }
    for (int i = 0; i < 4; i++) {
        static const double steps[] = {-2, -1, 1, 2};
        for (int64_t j = 0; j < n; j++)
            values[j] = kept[j] + steps[i] * step * direction[j];
        sums[i] = scalar(data, &terms);
    }
    memcpy(values, kept, (size_t)n * sizeof *kept);
    const double slope = (8 * (sums[2] - sums[1]) - (sums[3] - sums[0])) / (12 * step);
    cr_expect_leq(fabs(slope - along), 1e-6 * size + 1e-9 + 4 * DBL_EPSILON * terms / step,
                  "%s: d%s: the slope is %.12g, the gradient says %.12g (terms of %g)", label, name,
                  slope, along, size);
    free(kept);
    free(direction);
}

static void check_gradients(conformance_data *data, const char *label, uint64_t seed)
{
    static const char *const names[] = {
        "q",        "k",           "v",           "beta",          "lambda", "log_gate",
        "state_in", "prev_key_in", "tail_key_in", "tail_value_in", "norm_in"};
    conformance_random random = conformance_random_seed(seed);
    conformance_data gradient = run_engine(&engines[0], data, 1);
    for (int64_t i = 0; i < COUNT(names); i++) {
        if (conformance_get(data, names[i]) == NULL)
            continue;
        const int64_t n = conformance_count(data, names[i]);
        check_direction(data, &gradient, names[i], label, -1, &random);
        for (int j = 0; j < 3; j++)
            check_direction(data, &gradient, names[i], label, conformance_random_below(&random, n),
                            &random);
    }
    conformance_data_free(&gradient);
}

/* A combination of knobs that the seed draws. Kinks (relu at 0, the clamp, repeated eigenvalues)
 * are measure zero; a step across one would show, so relu's inputs keep away from 0, and the live
 * ridge is the only coupled one: the detached one is no derivative. */
static conformance_data drawn_data(uint64_t seed, char *label, size_t size)
{
    conformance_random random = conformance_random_seed(seed);
    fwa_problem problem = FWA_PROBLEM_INIT;
    const factor_rule *rule = &factor_rules[seed % FACTOR_RULES];
    problem.key_dim = D;
    problem.value_dim = V;
    set_rule(&problem, rule);
    problem.alignment = (int32_t)conformance_random_below(&random, 2);
    problem.read = (int32_t)conformance_random_below(&random, 2);
    problem.step = (int32_t)conformance_random_below(&random, 2);
    problem.prediction = (int32_t)conformance_random_below(&random, 2);
    problem.ridge = conformance_random_below(&random, 2) ? FWA_RIDGE_SCALE_COUPLED_LIVE
                                                         : FWA_RIDGE_ACTUAL;
    problem.qk_norm = (int32_t)conformance_random_below(&random, 3);
    problem.phi = (int32_t)conformance_random_below(&random, 3);
    problem.eps = conformance_random_below(&random, 2) ? 1e-6 : 0.25;
    problem.eps_attn = conformance_random_below(&random, 2) ? 0 : 0.25;
    problem.norm_eps = 0.125;
    problem.scale = conformance_random_between(&random, -2, 2);
    problem.heads_value = 1 + (int32_t)conformance_random_below(&random, 2);
    problem.heads_query = conformance_random_below(&random, 2) ? 1 : problem.heads_value;
    conformance_data data = random_data(&problem, 2, T, seed);
    random_gates(&data, seed);
    if (conformance_random_below(&random, 3) > 0)
        random_carry(&data, 1 + conformance_random_below(&random, 6), seed);
    random_upstream(&data, 1, seed);
    for (int64_t i = conformance_count(&data, "lambda") - 1; i >= 0; i--) {
        get(&data, "lambda")[i] += 0.02; /* no step across the limits */
        get(&data, "log_gate")[i] -= 0.02;
    }
    static const char *const features[] = {"q", "k", "prev_key_in", "tail_key_in"};
    for (int64_t i = 0; i < COUNT(features); i++) {
        double *values = conformance_get(&data, features[i]);
        for (int64_t j = values ? conformance_count(&data, features[i]) - 1 : -1; j >= 0; j--)
            values[j] += values[j] < 0 ? -0.1 : 0.1;
    }
    snprintf(label, size,
             "seed %d: %s, alignment %d, read %d, step %d, ridge %d, prediction %d, "
             "norm %d, phi %d, seen %g",
             (int)seed, rule->name, problem.alignment, problem.read, problem.step, problem.ridge,
             problem.prediction, problem.qk_norm, problem.phi,
             conformance_get(&data, "seen_in") ? get(&data, "seen_in")[0] : 0);
    return data;
}

/* Four tests, so that they share the machine. */
static void check_seeds(uint64_t from, uint64_t to)
{
    for (uint64_t seed = from; seed < to; seed++) {
        char label[256];
        conformance_data data = drawn_data(seed, label, sizeof label);
        check_gradients(&data, label, seed);
        conformance_data_free(&data);
    }
}

Test(finite_differences, seeds_0)
{
    check_seeds(0, 32);
}

Test(finite_differences, seeds_1)
{
    check_seeds(32, 64);
}

Test(finite_differences, seeds_2)
{
    check_seeds(64, 96);
}

Test(finite_differences, seeds_3)
{
    check_seeds(96, full_tests() ? 512 : 128);
}

/* The detached ridge: lambda-bar E with that E held fixed is an actual ridge of the same size. */
Test(finite_differences, detached_ridge)
{
    for (int rule = 0; rule < 2; rule++) {
        fwa_problem problem = same_step_problem(D, V);
        set_rule(&problem, &factor_rules[7 * rule]);
        problem.ridge = FWA_RIDGE_SCALE_COUPLED;
        conformance_data data = random_data(&problem, 1, T, 5);
        random_gates(&data, 5);
        random_upstream(&data, 1, 5);
        conformance_data got = run_engine(&engines[0], &data, 1);
        data.problem.ridge = FWA_RIDGE_ACTUAL;
        double energies[T];
        for (int64_t t = 0; t < T; t++) {
            energies[t] = 0;
            for (int64_t d = 0; d < D; d++)
                energies[t] += get(&data, "k")[t * D + d] * get(&data, "k")[t * D + d];
            get(&data, "lambda")[t] *= energies[t];
        }
        conformance_data want = run_engine(&engines[0], &data, 1);
        for (int64_t t = 0; t < T; t++)
            get(&want, "dlambda")[t] *= energies[t];
        expect_all_close(&engines[0], "detached", &got, &want);
        conformance_data_free(&got);
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}

/* ---- G ---- */

#define IDENTITY(name, count)                                                                      \
    static void name(const engine *e);                                                             \
    Test(gradient_identities, name)                                                                \
    {                                                                                              \
        for (int i = 0; i < (count); i++)                                                          \
            name(&engines[i]);                                                                     \
    }                                                                                              \
    static void name(const engine *e)

/* Random data for a row of factor_rules, going on after `seen` tokens (0: fresh, from a state);
 * so many heads of keys and of values. */
static conformance_data heads_data(const engine *e, int rule, int alignment, int64_t seen,
                                   uint64_t seed, const int32_t heads[2])
{
    fwa_problem problem = same_step_problem(D, V);
    problem.alignment = alignment;
    problem.heads_key = heads[0];
    problem.heads_value = heads[1];
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 1, T, seed);
    random_gates(&data, seed);
    random_carry(&data, seen, seed);
    random_upstream(&data, 1, seed);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

static conformance_data rule_data(const engine *e, int rule, int alignment, int64_t seen,
                                  uint64_t seed)
{
    return heads_data(e, rule, alignment, seen, seed, (const int32_t[]){1, 1});
}

/* Expects two sums of large terms to agree within the type's bound of the terms. */
static void expect_sum(const engine *e, const char *what, double got, double want, double terms)
{
    cr_expect_leq(fabs(got - want), compare_bound_for(e->dtype).rms * terms,
                  "%s: %s: %.9g, not %.9g (terms of %g)", engine_name(e), what, got, want, terms);
}

/* G1: the outputs are linear in v and S_0. */
IDENTITY(g1_linear, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++)
        for (int alignment = 0; alignment < 2; alignment++) {
            conformance_data data = rule_data(e, rule, alignment, 9, 10 + (uint64_t)rule);
            conformance_drop(&data, "dnorm_out");
            conformance_data got = run_engine(e, &data, 1);
            const double in = inner(&data, "v", &got, "dv", NULL) +
                              inner(&data, "state_in", &got, "dstate_in", NULL) +
                              inner(&data, "tail_value_in", &got, "dtail_value_in", NULL);
            const double out = inner(&got, "o", &data, "do", NULL) +
                               inner(&got, "state_out", &data, "dstate_out", NULL) +
                               inner(&got, "tail_value_out", &data, "dtail_value_out", NULL);
            expect_sum(e, factor_rules[rule].name, in, out, T * V);
            conformance_data_free(&got);
            conformance_data_free(&data);
        }
}

/* G2: each output is linear in its query, but for the normaliser. */
IDENTITY(g2_queries, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        double left[T], right[T];
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 0, 30);
        conformance_data got = run_engine(e, &data, 1);
        for (int64_t t = 0; t < T; t++) {
            left[t] = right[t] = 0;
            for (int64_t d = 0; d < D; d++)
                left[t] += get(&data, "q")[t * D + d] * get(&got, "dq")[t * D + d];
            for (int64_t c = 0; c < V; c++)
                right[t] += get(&got, "o")[t * V + c] * get(&data, "do")[t * V + c];
        }
        if (!data.problem.normalizer)
            expect_close(e, factor_rules[rule].name, left, right, T, 1);
        else /* of degree 0: nothing but eps_attn depends on the length */
            for (int64_t t = 0; t < T; t++)
                expect_sum(e, "degree 0", left[t], 0, 10);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* matrix += rows^T gradient over n rows of D (or, `columns` > 1, of [D, columns] blocks). */
static void add_product(double *matrix, double *terms, const double *x, const double *g, int64_t n,
                        int64_t columns)
{
    for (int64_t row = 0; x && g && row < n; row++)
        for (int64_t i = 0; i < D * D; i++)
            for (int64_t c = 0; c < columns; c++) {
                const double product = x[(row * D + i / D) * columns + c] *
                                       g[(row * D + i % D) * columns + c];
                matrix[i] += product;
                *terms += fabs(product);
            }
}

/* G3: a rotation of all keys, queries and states changes nothing. */
IDENTITY(g3_rotation, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        double matrix[D * D] = {0}, terms = 0;
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 9, 40);
        static const char *const given[] = {"dstate_out", "dprev_key_out", "dtail_key_out",
                                            "dtail_value_out", "dnorm_out"};
        for (int i = 0; i < 5; i++)
            conformance_drop(&data, given[i]);
        conformance_data got = run_engine(e, &data, 1);
        const struct {
            const char *x, *g;
            int64_t columns;
        } parts[] = {{"q", "dq", 1},
                     {"k", "dk", 1},
                     {"prev_key_in", "dprev_key_in", 1},
                     {"tail_key_in", "dtail_key_in", 1},
                     {"norm_in", "dnorm_in", 1},
                     {"state_in", "dstate_in", V}};
        for (int64_t i = 0; i < COUNT(parts); i++)
            if (conformance_get(&data, parts[i].x))
                add_product(matrix, &terms, get(&data, parts[i].x), get(&got, parts[i].g),
                            conformance_count(&data, parts[i].x) / D / parts[i].columns,
                            parts[i].columns);
        for (int64_t i = 0; i < D * D; i++)
            expect_sum(e, factor_rules[rule].name, matrix[i], matrix[i % D * D + i / D], terms / D);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* G6: a normalised key does not feel its length. */
IDENTITY(g6_normalised_keys, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_SAME_STEP, 0, 50);
        data.problem.qk_norm = FWA_NORM_L2;
        data.problem.norm_eps = 0;
        for (int64_t i = 0; conformance_get(&data, "dtail_key_out") &&
                            i < conformance_count(&data, "dtail_key_out");
             i++)
            get(&data, "dtail_key_out")[i] = 0; /* that one is raw */
        conformance_data got = run_engine(e, &data, 1);
        for (int64_t t = 0; t < T; t++) {
            double along = 0, terms = 0;
            for (int64_t d = 0; d < D; d++) {
                along += get(&data, "k")[t * D + d] * get(&got, "dk")[t * D + d];
                terms += fabs(get(&data, "k")[t * D + d] * get(&got, "dk")[t * D + d]);
            }
            expect_sum(e, factor_rules[rule].name, along, 0, terms);
        }
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* G12: one normalised feature is +-1 but for norm_eps, and what is left of its gradient is
 * f norm_eps / n^3. Element by element, with upstream gradients so large that f16 has its digits.
 */
static void one_feature(const engine *e, int norm, double norm_eps)
{
    enum { ROWS = 24 };
    fwa_problem problem = same_step_problem(1, 1);
    set_rule(&problem, &factor_rules[7]); /* falcon1a */
    problem.step = FWA_STEP_DIRECT;
    problem.qk_norm = norm;
    problem.norm_eps = norm_eps;
    conformance_data data = random_data(&problem, ROWS, 1, 90);
    fill_between(&data, "q", 0.5, 1.5, 91);
    fill_between(&data, "k", -1.5, -0.5, 92);
    fill_between(&data, "v", 1, 2, 93);
    fill_between(&data, "beta", 0.5, 1, 94);
    fill_between(&data, "do", 4000, 8000, 95);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    conformance_data got = run_engine(e, &data, 1);
    for (int64_t i = 0; i < ROWS; i++) {
        const double q = get(&data, "q")[i], k = get(&data, "k")[i];
        const double q_root = sqrt(q * q + norm_eps), k_root = sqrt(k * k + norm_eps);
        const double along = get(&data, "do")[i] * get(&data, "beta")[i] * get(&data, "v")[i];
        const double dq = along * k / k_root * norm_eps / (q_root * q_root * q_root);
        const double dk = along * q / q_root * norm_eps / (k_root * k_root * k_root);
        expect_close(e, "dq", get(&got, "dq") + i, &dq, 1, 1);
        expect_close(e, "dk", get(&got, "dk") + i, &dk, 1, 1);
    }
    conformance_data_free(&got);
    conformance_data_free(&data);
}

IDENTITY(g12_one_normalised_feature, ENGINES)
{
    static const double norm_eps[] = {1e-6, 0.1, 0};
    for (int i = 0; i < 3; i++) {
        one_feature(e, FWA_NORM_L2, norm_eps[i]);
        one_feature(e, FWA_NORM_RMS, norm_eps[i]);
    }
}

/* G7: o = v whatever the state, where beta is 1 and the query is the key. */
IDENTITY(g7_exact_step, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    double want[T];
    conformance_data data = random_data(&problem, 1, T, 60);
    memcpy(get(&data, "q"), get(&data, "k"), T * D * sizeof(double));
    fill(&data, "beta", 1);
    fill_normal(&data, "state_in", 1, 61);
    random_upstream(&data, 0, 62);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    conformance_data got = run_engine(e, &data, 1);
    data.problem.read = FWA_READ_BEFORE_WRITE;
    conformance_data before = run_engine(e, &data, 0);
    expect_close(e, "dv", get(&got, "dv"), get(&data, "do"), T * V, 1);
    for (int64_t i = 0; i < T * D; i++)
        expect_sum(e, "dq + dk", get(&got, "dq")[i] + get(&got, "dk")[i], 0,
                   10 + fabs(get(&got, "dq")[i]) * 10);
    for (int64_t i = 0; i < D * V; i++)
        expect_sum(e, "dS_0", get(&got, "dstate_in")[i], 0, 10);
    for (int64_t t = 0; t < T; t++) {
        want[t] = 0;
        for (int64_t c = t * V; c < (t + 1) * V; c++)
            want[t] += get(&data, "do")[c] * (get(&data, "v")[c] - get(&before, "o")[c]);
    }
    expect_close(e, "dbeta", get(&got, "dbeta"), want, T, 1);
    conformance_data_free(&got);
    conformance_data_free(&before);
    conformance_data_free(&data);
}

/* G8: at the floor the ridge has no say (with direct steps, where it acts through the carry alone).
 */
IDENTITY(g8_clamped, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_SAME_STEP, 0, 70);
        double zeros[T] = {0};
        data.problem.step = FWA_STEP_DIRECT;
        fill(&data, "beta", 0.03125);
        fill(&data, "lambda", 64);
        conformance_data got = run_engine(e, &data, 1);
        expect_equal(e, factor_rules[rule].name, get(&got, "dlambda"), zeros, T);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

IDENTITY(g9_fresh_token, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 0, 80);
        const double zeros[V] = {0};
        conformance_data got = run_engine(e, &data, 1);
        const int channels = data.problem.dynamics == FWA_DYNAMICS_PER_CHANNEL;
        expect_equal(e, "dbeta", get(&got, "dbeta"), zeros, channels ? V : 1);
        expect_equal(e, "dlambda", get(&got, "dlambda"), zeros, 1);
        expect_equal(e, "dlog_gate", get(&got, "dlog_gate"), zeros, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* G10: no token, no change. */
IDENTITY(g10_no_tokens, ENGINES)
{
    static const char *const parts[] = {"state", "prev_key", "tail_key", "tail_value", "norm"};
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 40, 90);
        conformance_data none = conformance_slice(&data, 0, 0);
        conformance_data got = run_engine(e, &none, 1);
        for (int i = 0; i < 5; i++) {
            char given[32], result[32], in[32], out[32];
            snprintf(given, sizeof given, "d%s_out", parts[i]);
            snprintf(result, sizeof result, "d%s_in", parts[i]);
            snprintf(in, sizeof in, "%s_in", parts[i]);
            snprintf(out, sizeof out, "%s_out", parts[i]);
            if (conformance_get(&none, given) == NULL)
                continue;
            expect_equal(e, result, get(&got, result), get(&none, given),
                         conformance_count(&none, given));
            expect_equal(e, out, get(&got, out), get(&none, in), conformance_count(&none, in));
        }
        conformance_data_free(&got);
        conformance_data_free(&none);
        conformance_data_free(&data);
    }
}

/* The gradients that a later piece hands to the one before it. */
static void hand_back(const conformance_data *later, conformance_data *earlier)
{
    static const char *const parts[][2] = {{"dstate_in", "dstate_out"},
                                           {"dprev_key_in", "dprev_key_out"},
                                           {"dtail_key_in", "dtail_key_out"},
                                           {"dtail_value_in", "dtail_value_out"},
                                           {"dnorm_in", "dnorm_out"}};
    for (int64_t i = 0; i < COUNT(parts); i++)
        if (conformance_get(later, parts[i][0]))
            memcpy(conformance_add(earlier, parts[i][1]), get(later, parts[i][0]),
                   (size_t)conformance_count(later, parts[i][0]) * sizeof(double));
}

/* The tokens' gradients of two pieces, and the incoming carry's of the first, are the whole's. */
static void expect_chained(const engine *e, const conformance_data *early,
                           const conformance_data *late, const conformance_data *whole, int64_t cut)
{
    static const char *const tokens[] = {"dq", "dk", "dv", "dbeta", "dlambda", "dlog_gate"};
    static const char *const carry[] = {"dstate_in", "dprev_key_in", "dtail_key_in",
                                        "dtail_value_in", "dnorm_in"};
    for (int64_t i = 0; i < COUNT(tokens); i++) {
        double joined[T * 8];
        const int64_t all = conformance_count(whole, tokens[i]), one = all / T;
        memcpy(joined, get(early, tokens[i]), (size_t)(cut * one) * sizeof *joined);
        memcpy(joined + cut * one, get(late, tokens[i]),
               (size_t)((T - cut) * one) * sizeof *joined);
        expect_close(e, tokens[i], joined, get(whole, tokens[i]), all, 1);
    }
    for (int64_t i = 0; i < COUNT(carry); i++)
        if (conformance_get(whole, carry[i]))
            expect_close(e, carry[i], get(early, carry[i]), get(whole, carry[i]),
                         conformance_count(whole, carry[i]), 1);
}

/* G11: the backward of two pieces, one after the other, is that of the whole; of heads that share
 * keys, and of heads that do not, whose gradients kernels write at once. */
IDENTITY(g11_chained, ENGINES_EXACT)
{
    static const int32_t heads[][2] = {{1, 1}, {1, 2}, {2, 2}}; /* of keys, of values */
    for (int i = 0; i < FACTOR_RULES * COUNT(heads); i++)
        for (int64_t cut = 1; cut < T; cut += 6) {
            const int32_t *counts = heads[i / FACTOR_RULES];
            conformance_data data = heads_data(e, i % FACTOR_RULES, FWA_ALIGNMENT_NEXT_LATENT, 40,
                                               99, counts);
            conformance_data whole = run_engine(e, &data, 1);
            conformance_data first = conformance_slice(&data, 0, cut);
            conformance_data last = conformance_slice(&data, cut, T);
            conformance_data forward = run_engine(e, &first, 0);
            conformance_hand_over(&forward, &last);
            conformance_data late = run_engine(e, &last, 1);
            hand_back(&late, &first);
            conformance_data early = run_engine(e, &first, 1);
            expect_chained(e, &early, &late, &whole, cut);
            conformance_data *const all[] = {&early, &late, &forward, &first, &last, &whole, &data};
            for (int64_t j = 0; j < COUNT(all); j++)
                conformance_data_free(all[j]);
        }
}
