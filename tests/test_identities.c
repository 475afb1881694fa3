/* SPDX-License-Identifier: Apache-2.0 */
/* What must be the same, computed in two ways: D (alignment, reads, windows), E (symmetries), F
 * (the rules of other papers), as doc/maths.md names them. Each runs on every engine. */

#include "support.h"

#include <stdlib.h>
#include <string.h>

#define IDENTITY(name, count)                                                                      \
    static void name(const engine *e);                                                             \
    Test(identities, name)                                                                         \
    {                                                                                              \
        for (int i = 0; i < (count); i++)                                                          \
            name(&engines[i]);                                                                     \
    }                                                                                              \
    static void name(const engine *e)

#define D 6
#define V 5
#define T 37

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

static void round_to(const engine *e, conformance_data *data)
{
    conformance_round(data, e->dtype, FWA_DTYPE_NONE);
}

/* Random data for a row of factor_rules. */
static conformance_data rule_data(const engine *e, int rule, int alignment, int64_t tokens,
                                  uint64_t seed)
{
    fwa_problem problem = same_step_problem(D, V);
    problem.alignment = alignment;
    problem.heads_key = 1;
    problem.heads_value = 2;
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 1, tokens, seed);
    random_gates(&data, seed);
    round_to(e, &data);
    return data;
}

/* Compares tokens [from, T) of one o with tokens [from - shift, T - shift) of another. */
static void expect_shifted(const engine *e, const char *what, const conformance_data *late,
                           const conformance_data *early, int64_t from, int64_t shift, int bitwise)
{
    const int64_t width = (int64_t)late->problem.heads_value * V;
    const int64_t n = (late->extent.tokens - from) * width;
    const double *got = get(late, "o") + from * width;
    const double *want = get(early, "o") + (from - shift) * width;
    if (bitwise)
        expect_equal(e, what, got, want, n);
    else
        expect_close(e, what, got, want, n, 1);
}

/* ---- D ---- */

/* A fresh next_latent sequence is the same_step one of the keys before and the tokens after. */
IDENTITY(d1_shifted_keys, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 41);
        conformance_data same = conformance_slice(&data, 1, T);
        same.problem.alignment = FWA_ALIGNMENT_SAME_STEP;
        memcpy(get(&same, "k"), get(&data, "k"), (T - 1) * D * sizeof(double));
        conformance_data next = run_engine(e, &data, 0), got = run_engine(e, &same, 0);
        expect_shifted(e, factor_rules[rule].name, &next, &got, 1, 1, 0);
        expect_close(e, "state_out", get(&next, "state_out"), get(&got, "state_out"), 2 * D * V, 1);
        conformance_data_free(&next);
        conformance_data_free(&got);
        conformance_data_free(&same);
        conformance_data_free(&data);
    }
}

IDENTITY(d2_shifted_queries, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_SAME_STEP, T, 42);
        data.problem.read = FWA_READ_BEFORE_WRITE;
        conformance_data before = run_engine(e, &data, 0);
        data.problem.read = FWA_READ_AFTER_WRITE;
        memmove(get(&data, "q"), get(&data, "q") + D, (T - 1) * D * sizeof(double));
        conformance_data after = run_engine(e, &data, 0);
        expect_shifted(e, factor_rules[rule].name, &before, &after, 1, 1, 0);
        conformance_data_free(&before);
        conformance_data_free(&after);
        conformance_data_free(&data);
    }
}

/* The previous key comes in as a token, or with the carry. */
IDENTITY(d3_prepended_token, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 43);
        fill_normal(&data, "state_in", 0.3, 44);
        if (data.problem.normalizer)
            fill_between(&data, "norm_in", 0.5, 1.5, 45);
        round_to(e, &data);
        conformance_data rest = conformance_slice(&data, 1, T);
        fill(&rest, "seen_in", 1);
        memcpy(conformance_add(&rest, "prev_key_in"), get(&data, "k"), D * sizeof(double));
        if (data.problem.window > 1) {
            fill(&rest, "tail_key_in", NAN);
            fill(&rest, "tail_value_in", NAN);
        }
        conformance_data whole = run_engine(e, &data, 0), got = run_engine(e, &rest, 0);
        expect_shifted(e, factor_rules[rule].name, &whole, &got, 1, 1, 1);
        expect_equal(e, "state_out", get(&whole, "state_out"), get(&got, "state_out"), 2 * D * V);
        conformance_data_free(&whole);
        conformance_data_free(&got);
        conformance_data_free(&rest);
        conformance_data_free(&data);
    }
}

IDENTITY(d4_one_fresh_token, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 1, 46);
        fill_normal(&data, "state_in", 1, 47);
        round_to(e, &data);
        conformance_data got = run_engine(e, &data, 0);
        expect_equal(e, factor_rules[rule].name, get(&got, "state_out"), get(&data, "state_in"),
                     2 * D * V);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* The residual against gamma S: first a token that only decays, then one that only writes. */
IDENTITY(d5_decay_then_write, ENGINES_EXACT)
{
    for (int rule = 0; rule < 2; rule++) { /* falcon1, falcon2 */
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_SAME_STEP, T, 48);
        data.problem.step = FWA_STEP_DIRECT;
        conformance_drop(&data, "lambda");
        conformance_drop(&data, "beta");
        random_gates(&data, 48);
        conformance_drop(&data, "lambda");
        round_to(e, &data);
        conformance_data twice = conformance_data_new(&data.problem, 1, 2 * T, 1);
        static const char *const names[] = {"q", "k", "v", "beta", "log_gate"};
        for (int i = 0; i < 5; i++) {
            double *to = conformance_add(&twice, names[i]);
            const int64_t width = conformance_count(&data, names[i]) / T;
            const int first = i == 4; /* the gate acts on the token before */
            for (int64_t t = 0; t < T; t++)
                memcpy(to + (2 * t + !first) * width, get(&data, names[i]) + t * width,
                       (size_t)width * sizeof *to);
        }
        data.problem.prediction = FWA_PREDICTION_DECAYED;
        conformance_data want = run_engine(e, &data, 0), got = run_engine(e, &twice, 0);
        double odd[T * 2 * V];
        for (int64_t t = 0; t < T; t++)
            memcpy(odd + t * 2 * V, get(&got, "o") + (2 * t + 1) * 2 * V, 2 * V * sizeof *odd);
        expect_close(e, factor_rules[rule].name, odd, get(&want, "o"), T * 2 * V, 1);
        conformance_data_free(&want);
        conformance_data_free(&got);
        conformance_data_free(&twice);
        conformance_data_free(&data);
    }
}

IDENTITY(d6_open_gate, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 49);
        random_upstream(&data, 1, 49);
        conformance_drop(&data, "log_gate");
        conformance_data absent = run_engine(e, &data, 1);
        conformance_add(&data, "log_gate");
        conformance_data open = run_engine(e, &data, 1);
        conformance_drop(&open, "dlog_gate");
        expect_all_same(e, factor_rules[rule].name, &open, &absent);
        conformance_data_free(&absent);
        conformance_data_free(&open);
        conformance_data_free(&data);
    }
}

IDENTITY(d7_no_decay, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 50);
        random_upstream(&data, 1, 50);
        conformance_drop(&data, "log_gate");
        conformance_drop(&data, "lambda");
        conformance_data previous = run_engine(e, &data, 1);
        data.problem.prediction = FWA_PREDICTION_DECAYED;
        conformance_data decayed = run_engine(e, &data, 1);
        expect_all_close(e, factor_rules[rule].name, &decayed, &previous);
        conformance_data_free(&previous);
        conformance_data_free(&decayed);
        conformance_data_free(&data);
    }
}

/* The order of the pairs that a step rehearses does not matter. */
IDENTITY(d9_order_in_window, ENGINES_EXACT)
{
    static const int64_t order[] = {2, 0, 1};
    for (int objective = 0; objective < 2; objective++) {
        fwa_problem problem = same_step_problem(D, V);
        problem.objective = objective;
        problem.window = 4;
        conformance_data data = random_data(&problem, 1, 1, 51);
        random_gates(&data, 51);
        random_carry(&data, 40, 51);
        round_to(e, &data);
        conformance_data turned = conformance_data_copy(&data);
        for (int64_t i = 0; i < 3; i++) {
            memcpy(get(&turned, "tail_key_in") + i * D, get(&data, "tail_key_in") + order[i] * D,
                   D * sizeof(double));
            memcpy(get(&turned, "tail_value_in") + i * V,
                   get(&data, "tail_value_in") + order[i] * V, V * sizeof(double));
        }
        conformance_data want = run_engine(e, &data, 0), got = run_engine(e, &turned, 0);
        expect_close(e, "o", get(&got, "o"), get(&want, "o"), V, 1);
        expect_close(e, "state_out", get(&got, "state_out"), get(&want, "state_out"), D * V, 1);
        conformance_data_free(&want);
        conformance_data_free(&got);
        conformance_data_free(&turned);
        conformance_data_free(&data);
    }
}

IDENTITY(d10_longer_window, ENGINES)
{
    for (int objective = 0; objective < 2; objective++) {
        conformance_data results[2];
        for (int i = 0; i < 2; i++) {
            fwa_problem problem = same_step_problem(D, V);
            problem.objective = objective;
            problem.window = i ? 32 : 11;
            conformance_data data = random_data(&problem, 1, 10, 52);
            random_gates(&data, 52);
            random_upstream(&data, 0, 52);
            results[i] = run_engine(e, &data, 1);
            conformance_drop(&results[i], "tail_key_out");
            conformance_drop(&results[i], "tail_value_out");
            conformance_data_free(&data);
        }
        results[1].problem.window = results[0].problem.window;
        expect_all_same(e, "window 11 and 32", &results[0], &results[1]);
        conformance_data_free(&results[0]);
        conformance_data_free(&results[1]);
    }
}

/* ---- E ---- */

/* A reflection of the D coordinates: x - 2 (u . x) u / |u|^2. */
static void reflect(double *rows, int64_t count, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    double u[D], length = 0;
    for (int i = 0; i < D; i++) {
        u[i] = conformance_random_normal(&random);
        length += u[i] * u[i];
    }
    for (int64_t row = 0; row < count; row++) {
        double along = 0;
        for (int i = 0; i < D; i++)
            along += u[i] * rows[row * D + i];
        for (int i = 0; i < D; i++)
            rows[row * D + i] -= 2 * along * u[i] / length;
    }
}

/* Coordinate i becomes coordinate i + 2. */
static void permute(double *rows, int64_t count, int64_t width, int64_t shift)
{
    for (int64_t row = 0; row < count; row++) {
        double turned[64];
        for (int64_t i = 0; i < width; i++)
            turned[(i + shift) % width] = rows[row * width + i];
        memcpy(rows + row * width, turned, (size_t)width * sizeof *rows);
    }
}

IDENTITY(e1_rotation, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 53);
        conformance_data want = run_engine(e, &data, 0);
        reflect(get(&data, "q"), T, 54);
        reflect(get(&data, "k"), T, 54);
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, factor_rules[rule].name, get(&got, "o"), get(&want, "o"), T * 2 * V, 1);
        conformance_data_free(&want);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

IDENTITY(e2_permutation, ENGINES_EXACT)
{
    for (int phi = 0; phi < 3; phi++)
        for (int norm = 0; norm < 3; norm++) {
            conformance_data data = rule_data(e, 4, FWA_ALIGNMENT_NEXT_LATENT, T, 55);
            data.problem.phi = phi;
            data.problem.qk_norm = norm;
            conformance_data want = run_engine(e, &data, 0);
            permute(get(&data, "q"), T, D, 2);
            permute(get(&data, "k"), T, D, 2);
            conformance_data got = run_engine(e, &data, 0);
            expect_close(e, "permuted features", get(&got, "o"), get(&want, "o"), T * 2 * V, 1);
            conformance_data_free(&want);
            conformance_data_free(&got);
            conformance_data_free(&data);
        }
}

/* E3: v M gives o M. E4: M a permutation; every column has its own arithmetic, so that is exact on
 * the reference. */
IDENTITY(e3_mixed_values, ENGINES_EXACT)
{
    static const int rules[] = {0, 4, 7, 9};
    for (int i = 0; i < 4; i++) {
        conformance_data data = rule_data(e, rules[i], FWA_ALIGNMENT_NEXT_LATENT, T, 56);
        double mix[V * V], mixed[T * 2 * V], want[T * 2 * V];
        conformance_random random = conformance_random_seed(57);
        for (int j = 0; j < V * V; j++)
            mix[j] = conformance_random_normal(&random);
        conformance_data plain = run_engine(e, &data, 0);
        for (int64_t j = 0; j < T * 2 * V; j++) {
            mixed[j] = want[j] = 0;
            for (int64_t c = 0; c < V; c++) {
                mixed[j] += get(&data, "v")[j / V * V + c] * mix[c * V + j % V];
                want[j] += get(&plain, "o")[j / V * V + c] * mix[c * V + j % V];
            }
        }
        memcpy(get(&data, "v"), mixed, sizeof mixed);
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, factor_rules[rules[i]].name, get(&got, "o"), want, T * 2 * V, 1);
        conformance_data_free(&plain);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

IDENTITY(e4_permuted_values, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 58);
        conformance_data want = run_engine(e, &data, 0);
        permute(get(&data, "v"), 2 * T, V, 1);
        if (data.problem.dynamics == FWA_DYNAMICS_PER_CHANNEL)
            permute(get(&data, "beta"), 2 * T, V, 1);
        conformance_data got = run_engine(e, &data, 0);
        permute(get(&want, "o"), 2 * T, V, 1);
        expect_close(e, factor_rules[rule].name, get(&got, "o"), get(&want, "o"), T * 2 * V, 1);
        conformance_data_free(&want);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

IDENTITY(e5_linear, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        conformance_data parts[3], results[3];
        double want[T * 2 * V];
        for (int i = 0; i < 3; i++) {
            parts[i] = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 59);
            fill_normal(&parts[i], "v", 1, 60 + (uint64_t)i);
            fill_normal(&parts[i], "state_in", 1, 70 + (uint64_t)i);
            if (parts[i].problem.normalizer)
                fill(&parts[i], "norm_in", 1);
        }
        for (int64_t i = 0; i < T * 2 * V; i++)
            get(&parts[2], "v")[i] = 0.75 * get(&parts[0], "v")[i] - 1.5 * get(&parts[1], "v")[i];
        for (int64_t i = 0; i < 2 * D * V; i++)
            get(&parts[2], "state_in")[i] = 0.75 * get(&parts[0], "state_in")[i] -
                                            1.5 * get(&parts[1], "state_in")[i];
        for (int i = 0; i < 3; i++)
            results[i] = run_engine(e, &parts[i], 0);
        for (int64_t i = 0; i < T * 2 * V; i++)
            want[i] = 0.75 * get(&results[0], "o")[i] - 1.5 * get(&results[1], "o")[i];
        expect_close(e, factor_rules[rule].name, get(&results[2], "o"), want, T * 2 * V, 1);
        for (int i = 0; i < 3; i++) {
            conformance_data_free(&parts[i]);
            conformance_data_free(&results[i]);
        }
    }
}

/* E6: with a scale-coupled ridge and eps 0 the length of the keys cancels. E7: with an actual one
 * it does where lambda and eps grow with the square. Reads grow with the queries, and shrink with
 * the state. */
static void scaled_keys(const engine *e, int rule, int coupled)
{
    const double scale = 3;
    conformance_data data = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, T, 61);
    data.problem.ridge = coupled ? FWA_RIDGE_SCALE_COUPLED : FWA_RIDGE_ACTUAL;
    data.problem.eps = coupled ? 0 : 0.5;
    fill_between(&data, "lambda", 0, coupled ? 0.3 : 3, 62);
    conformance_data want = run_engine(e, &data, 0);
    for (int64_t i = 0; i < T * D; i++) {
        get(&data, "k")[i] *= scale;
        get(&data, "q")[i] *= scale;
    }
    for (int64_t i = 0; i < 2 * T && !coupled; i++)
        get(&data, "lambda")[i] *= scale * scale;
    data.problem.eps *= scale * scale;
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, factor_rules[rule].name, get(&got, "o"), get(&want, "o"), T * 2 * V, 1);
    conformance_data_free(&want);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

IDENTITY(e6_scale_coupled, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++)
        scaled_keys(e, rule, 1);
}

IDENTITY(e7_scaled_keys, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++)
        scaled_keys(e, rule, 0);
}

/* E8: o = P v with a lower triangular P, which the values of unit vectors show. Where the rule is
 * an inner product, P[t, j] = mask[t, j] (q_t . x_j). */
IDENTITY(e8_effective_matrix, ENGINES_EXACT)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        fwa_problem problem = same_step_problem(D, T);
        set_rule(&problem, &factor_rules[rule]);
        if (problem.dynamics == FWA_DYNAMICS_PER_CHANNEL)
            continue; /* there is a matrix for each column */
        conformance_data unit = random_data(&problem, 1, T, 63);
        random_gates(&unit, 63);
        fill(&unit, "v", 0);
        for (int64_t t = 0; t < T; t++)
            get(&unit, "v")[t * T + t] = 1;
        round_to(e, &unit);
        conformance_data matrix = run_engine(e, &unit, 0);
        conformance_data data = conformance_data_copy(&unit);
        double want[T * T];
        fill_normal(&data, "v", 1, 64);
        for (int64_t i = 0; i < T * T; i++) {
            want[i] = 0;
            for (int64_t j = 0; j < T; j++)
                want[i] += get(&matrix, "o")[i / T * T + j] * get(&data, "v")[j * T + i % T];
            if (i % T > i / T)
                cr_expect_eq(get(&matrix, "o")[i], 0, "%s: %s: [%d, %d] is above the diagonal",
                             engine_name(e), factor_rules[rule].name, (int)(i / T), (int)(i % T));
        }
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, factor_rules[rule].name, get(&got, "o"), want, T * T, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
        conformance_data_free(&matrix);
        conformance_data_free(&unit);
    }
}

Test(identities, e8_mask)
{
    const engine *e = &engines[2];
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        fwa_problem problem = same_step_problem(D, V);
        set_rule(&problem, &factor_rules[rule]);
        if (problem.objective != FWA_OBJECTIVE_INNER_PRODUCT || problem.normalizer)
            continue;
        conformance_data data = random_data(&problem, 1, T, 65);
        random_gates(&data, 65);
        round_to(e, &data);
        const conformance_options options = {.context = context_of("cpu", 1),
                                             .form = FWA_FORM_MASKED,
                                             .dtype = FWA_DTYPE_F32,
                                             .mask = 1};
        conformance_data got = run_options(&options, &data);
        const int channels = problem.dynamics == FWA_DYNAMICS_PER_CHANNEL;
        double want[T * V];
        for (int64_t i = 0; i < T * V; i++) {
            const int64_t t = i / V, c = i % V;
            const double *mask = get(&got, "mask") + (channels ? c * T * T : 0) + t * T;
            want[i] = 0;
            for (int64_t j = 0; j < T; j++) {
                double along = 0;
                for (int64_t d = 0; d < D; d++)
                    along += get(&data, "q")[t * D + d] * get(&data, "k")[j * D + d];
                want[i] += mask[j] * along * get(&data, "v")[j * V + c];
                if (j > t)
                    cr_expect_eq(mask[j], 0, "%s: mask[%d, %d]", factor_rules[rule].name, (int)t,
                                 (int)j);
            }
        }
        expect_close(e, factor_rules[rule].name, get(&got, "o"), want, T * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* ---- F: other papers' rules, as they write them ---- */

typedef struct paper {
    const char *preset;
    int gated, fit, squared; /* squared: keys and queries are l2-normalised */
} paper;

static void unit_length(double *x)
{
    double sum = 1e-6;
    for (int d = 0; d < D; d++)
        sum += x[d] * x[d];
    for (int d = 0; d < D; d++)
        x[d] /= sqrt(sum);
}

/* S = g (I - b k k^T) S + b k v^T, or S = g S + b k v^T, from the state that comes in; o = S^T q. The
 * state that goes out is left in s. */
static void paper_rule(const paper *p, const conformance_data *data, double *o, double *s)
{
    memcpy(s, get(data, "state_in"), D * V * sizeof *s);
    for (int64_t t = 0; t < T; t++) {
        const double *v = get(data, "v") + t * V;
        const double *gate = conformance_get(data, "log_gate"),
                     *beta = conformance_get(data, "beta");
        const double b = beta ? beta[t] : 1, g = gate ? exp(gate[t]) : 1;
        double k[D], q[D];
        memcpy(k, get(data, "k") + t * D, sizeof k);
        memcpy(q, get(data, "q") + t * D, sizeof q);
        if (p->squared) {
            unit_length(k);
            unit_length(q);
        }
        for (int64_t c = 0; c < V; c++) {
            double along = 0, read = 0;
            for (int64_t d = 0; d < D; d++)
                along += k[d] * s[d * V + c];
            for (int64_t d = 0; d < D; d++) {
                s[d * V + c] = g * (s[d * V + c] - (p->fit ? b * k[d] * along : 0)) +
                               b * k[d] * v[c];
                read += s[d * V + c] * q[d];
            }
            o[t * V + c] = read;
        }
    }
}

IDENTITY(f_papers, ENGINES_EXACT)
{
    static const paper papers[] = {{"gated_deltanet", 1, 1, 1},      {"deltanet", 0, 1, 1},
                                   {"linear_attention", 0, 0, 0},    {"retnet", 1, 0, 0},
                                   {"lightning_attention", 1, 0, 0}, {"mamba2", 1, 0, 0}};
    for (int i = 0; i < 6; i++) {
        fwa_problem problem = FWA_PROBLEM_INIT;
        double want[T * V], state[D * V];
        cr_assert_eq(fwa_problem_preset(&problem, papers[i].preset), FWA_OK);
        problem.key_dim = D;
        problem.value_dim = V;
        conformance_data data = random_data(&problem, 1, T, 66);
        if (papers[i].fit || i == 5)
            fill_between(&data, "beta", 0.1, 1, 67);
        if (papers[i].gated && (i == 0 || i == 5))
            fill_between(&data, "log_gate", -0.5, 0, 68);
        else if (papers[i].gated)
            fill(&data, "log_gate", log(0.96875));
        fill_normal(&data, "state_in", 0.3, 69);
        round_to(e, &data);
        paper_rule(&papers[i], &data, want, state);
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, papers[i].preset, get(&got, "o"), want, T * V, 1);
        expect_close(e, "its state", get(&got, "state_out"), state, D * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* RetNet's parallel form: o_n = sum_m g^(n - m) (q_n . k_m) v_m. */
IDENTITY(f4_retention, ENGINES_EXACT)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    double want[T * V] = {0};
    cr_assert_eq(fwa_problem_preset(&problem, "retnet"), FWA_OK);
    problem.key_dim = D;
    problem.value_dim = V;
    conformance_data data = random_data(&problem, 1, T, 69);
    fill(&data, "log_gate", log(0.96875));
    round_to(e, &data);
    for (int64_t n = 0; n < T; n++)
        for (int64_t m = 0; m <= n; m++) {
            double along = 0;
            for (int64_t d = 0; d < D; d++)
                along += get(&data, "q")[n * D + d] * get(&data, "k")[m * D + d];
            for (int64_t c = 0; c < V; c++)
                want[n * V + c] += pow(0.96875, (double)(n - m)) * along *
                                   get(&data, "v")[m * V + c];
        }
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "retention", get(&got, "o"), want, T * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

/* F7, F8: the normaliser is one more value column of ones. */
IDENTITY(f8_column_of_ones, ENGINES_EXACT)
{
    static const int32_t windows[] = {1, 4};
    for (int i = 0; i < 4; i++) {
        fwa_problem problem = same_step_problem(D, V), wide;
        double want[T * V];
        problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
        problem.normalizer = 1;
        problem.eps_attn = 0.25;
        problem.phi = FWA_FEATURE_MAP_ELU1;
        problem.window = windows[i % 2];
        problem.read = i / 2;
        conformance_data data = random_data(&problem, 1, T, 71);
        random_gates(&data, 71);
        fill_normal(&data, "state_in", 1, 72);
        fill_between(&data, "norm_in", 0.5, 1, 73);
        round_to(e, &data);
        conformance_data got = run_engine(e, &data, 0);
        wide = data.problem;
        wide.normalizer = 0;
        wide.value_dim = V + 1;
        conformance_data more = random_data(&wide, 1, T, 71);
        static const char *const shared[] = {"q", "k", "beta", "lambda", "log_gate"};
        for (int j = 0; j < 5; j++)
            memcpy(conformance_add(&more, shared[j]), get(&data, shared[j]),
                   (size_t)conformance_count(&data, shared[j]) * sizeof(double));
        conformance_add(&more, "state_in");
        for (int64_t j = 0; j < T * (V + 1); j++)
            get(&more, "v")[j] = j % (V + 1) == V ? 1
                                                  : get(&data, "v")[j / (V + 1) * V + j % (V + 1)];
        for (int64_t j = 0; j < D * (V + 1); j++)
            get(&more, "state_in")[j] = j % (V + 1) == V
                                            ? get(&data, "norm_in")[j / (V + 1)]
                                            : get(&data, "state_in")[j / (V + 1) * V + j % (V + 1)];
        conformance_data columns = run_engine(e, &more, 0);
        for (int64_t j = 0; j < T * V; j++) {
            const double *row = get(&columns, "o") + j / V * (V + 1);
            want[j] = row[j % V] / (row[V] + 0.25);
        }
        expect_close(e, "o", get(&got, "o"), want, T * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&columns);
        conformance_data_free(&more);
        conformance_data_free(&data);
    }
}

IDENTITY(f9_constant_value, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    double want[T * V];
    problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    problem.normalizer = 1;
    conformance_data data = random_data(&problem, 1, T, 74);
    random_gates(&data, 74);
    for (int64_t i = V; i < T * V; i++)
        get(&data, "v")[i] = get(&data, "v")[i % V];
    round_to(e, &data);
    for (int64_t i = 0; i < T * V; i++)
        want[i] = get(&data, "v")[i % V];
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "o", get(&got, "o"), want, T * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

/* A pair that has gone through a whole window has been written with eta in all. */
IDENTITY(f11_total_step, ENGINES_EXACT)
{
    const double eta = 0.3125;
    fwa_problem problem = same_step_problem(D, V);
    double want[D * V];
    problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    problem.step = FWA_STEP_DIRECT;
    problem.window = 5;
    conformance_data data = random_data(&problem, 1, T, 75);
    fill(&data, "beta", eta);
    fill(&data, "v", 0);
    const int64_t pair = 9;
    for (int64_t c = 0; c < V; c++)
        get(&data, "v")[pair * V + c] = (double)(c + 1);
    round_to(e, &data);
    for (int64_t i = 0; i < D * V; i++)
        want[i] = eta * get(&data, "k")[pair * D + i / V] * (double)(i % V + 1);
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}
