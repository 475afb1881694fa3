/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that can be written down: rules A to C (doc/maths.md names them), and H. Each runs on
 * every engine; those that hold exactly, in every type. Unless said: same_step, after_write,
 * normalised steps, eps 0, lambda 0, no gate. */

#include "support.h"

#include <stdlib.h>
#include <string.h>

/* Runs `check` on the exact engines, or on all. */
#define CLOSED_FORM(name, count)                                                                   \
    static void name(const engine *e);                                                             \
    Test(closed_forms, name)                                                                       \
    {                                                                                              \
        for (int i = 0; i < (count); i++)                                                          \
            name(&engines[i]);                                                                     \
    }                                                                                              \
    static void name(const engine *e)

#define D 6
#define V 5
#define T 40

static void round_to(const engine *e, conformance_data *data)
{
    conformance_round(data, e->dtype, FWA_DTYPE_NONE);
}

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

/* One key and one value for all tokens. */
static conformance_data constant_data(const engine *e, const fwa_problem *problem, int64_t tokens,
                                      int queries_too)
{
    conformance_data data = random_data(problem, 1, tokens, 11);
    const struct {
        const char *name;
        int64_t width;
    } parts[] = {{"k", problem->key_dim}, {"v", problem->value_dim}, {"q", problem->key_dim}};
    for (int i = 0; i < 2 + queries_too; i++) {
        double *values = get(&data, i == 2 ? "q" : parts[i].name);
        const double *first = i == 2 ? get(&data, "k") : values;
        for (int64_t t = i == 2 ? 0 : 1; t < tokens; t++)
            memcpy(values + t * parts[i].width, first, (size_t)parts[i].width * sizeof *values);
    }
    round_to(e, &data);
    return data;
}

static double square(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

/* Rows 0 .. count - 1 of an orthogonal matrix of order n: two reflections of the unit matrix. */
static void orthonormal(double *rows, int64_t count, int64_t n, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    memset(rows, 0, (size_t)(count * n) * sizeof *rows);
    for (int64_t i = 0; i < count; i++)
        rows[i * n + i] = 1;
    for (int reflection = 0; reflection < 2; reflection++) {
        double u[64];
        for (int64_t i = 0; i < n; i++)
            u[i] = conformance_random_normal(&random);
        const double length = square(u, n);
        for (int64_t i = 0; i < count; i++) {
            double along = 0;
            for (int64_t j = 0; j < n; j++)
                along += rows[i * n + j] * u[j];
            for (int64_t j = 0; j < n; j++)
                rows[i * n + j] -= 2 * along * u[j] / length;
        }
    }
}

static void copy_keys_to_queries(conformance_data *data)
{
    memcpy(get(data, "q"), get(data, "k"), (size_t)conformance_count(data, "q") * sizeof(double));
}

/* ---- A ---- */

CLOSED_FORM(a1_alternating, ENGINES)
{
    for (int read = 0; read < 2; read++) {
        fwa_problem problem = same_step_problem(D, V);
        double want[T * V];
        problem.read = read;
        conformance_data data = constant_data(e, &problem, T, 1);
        memset(get(&data, "k"), 0, T * D * sizeof(double));
        for (int64_t t = 0; t < T; t++)
            get(&data, "k")[t * D] = 1;
        copy_keys_to_queries(&data);
        fill(&data, "beta", 2);
        for (int64_t i = 0; i < T * V; i++)
            want[i] = (i / V + read) % 2 == 0 ? 2 * get(&data, "v")[i] : 0;
        conformance_data got = run_engine(e, &data, 0);
        expect_equal(e, "o", get(&got, "o"), want, T * V);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* A2, with a ridge A3. */
static void constant_key(const engine *e, int alignment, double ridge)
{
    fwa_problem problem = same_step_problem(D, V);
    const double beta = 0.375;
    double want[T * V];
    problem.alignment = alignment;
    conformance_data data = constant_data(e, &problem, T, 1);
    fill(&data, "beta", beta);
    fill(&data, "lambda", ridge);
    const double energy = square(get(&data, "k"), D);
    for (int64_t i = 0; i < T * V; i++) {
        const double steps = (double)(i / V) + (alignment == FWA_ALIGNMENT_SAME_STEP);
        want[i] = (1 - pow(1 - beta, steps)) * energy / (energy + ridge) * get(&data, "v")[i];
    }
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "o", get(&got, "o"), want, T * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a2_constant_key, ENGINES)
{
    constant_key(e, FWA_ALIGNMENT_SAME_STEP, 0);
    constant_key(e, FWA_ALIGNMENT_NEXT_LATENT, 0);
}

CLOSED_FORM(a3_constant_key_ridge, ENGINES)
{
    constant_key(e, FWA_ALIGNMENT_SAME_STEP, 2.5);
    constant_key(e, FWA_ALIGNMENT_NEXT_LATENT, 2.5);
}

CLOSED_FORM(a4_constant_key_1a, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    const double beta = 0.75, ridge = 0.5;
    double want[D * V];
    problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    conformance_data data = constant_data(e, &problem, T, 0);
    fill(&data, "beta", beta);
    fill(&data, "lambda", ridge);
    const double energy = square(get(&data, "k"), D);
    const double carry = 1 - beta / (energy + ridge) * ridge;
    for (int64_t i = 0; i < D * V; i++)
        want[i] = get(&data, "k")[i / V] * get(&data, "v")[i % V] * (1 - pow(carry, T)) / ridge;
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a5_read_of_the_write, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    const double beta = 0.625, ridge = 1.5;
    double want[T * V];
    conformance_data data = random_data(&problem, 1, T, 5);
    fill_normal(&data, "state_in", 1, 55);
    fill(&data, "beta", beta);
    fill(&data, "lambda", ridge);
    copy_keys_to_queries(&data);
    round_to(e, &data);
    data.problem.read = FWA_READ_BEFORE_WRITE;
    conformance_data before = run_engine(e, &data, 0);
    data.problem.read = FWA_READ_AFTER_WRITE;
    conformance_data got = run_engine(e, &data, 0);
    for (int64_t i = 0; i < T * V; i++) {
        const double energy = square(get(&data, "k") + i / V * D, D);
        want[i] = (1 - beta) * get(&before, "o")[i] +
                  beta * energy / (energy + ridge) * get(&data, "v")[i];
    }
    expect_close(e, "o", get(&got, "o"), want, T * V, 1);
    conformance_data_free(&before);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a6_exact_step, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    conformance_data data = random_data(&problem, 1, T, 6);
    fill_normal(&data, "state_in", 1, 66);
    copy_keys_to_queries(&data);
    round_to(e, &data);
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "o", get(&got, "o"), get(&data, "v"), T * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a7_zero_keys, ENGINES)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        fwa_problem problem = same_step_problem(D, V);
        set_rule(&problem, &factor_rules[rule]);
        for (int alignment = 0; alignment < 2; alignment++) {
            problem.alignment = alignment;
            conformance_data data = random_data(&problem, 2, T, 7);
            fill(&data, "k", 0);
            fill_between(&data, "beta", 0, 2, 77);
            fill_normal(&data, "state_in", 1, 78);
            round_to(e, &data);
            conformance_data got = run_engine(e, &data, 0);
            expect_equal(e, factor_rules[rule].name, get(&got, "state_out"), get(&data, "state_in"),
                         2 * D * V);
            conformance_data_free(&got);
            conformance_data_free(&data);
        }
    }
}

CLOSED_FORM(a8_zero_keys_decay, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    double want[D * V], kept = 1;
    conformance_data data = random_data(&problem, 1, T, 8);
    fill(&data, "k", 0);
    fill_between(&data, "beta", 0, 0.3, 88);
    fill(&data, "lambda", 0.7);
    fill_normal(&data, "state_in", 1, 89);
    round_to(e, &data);
    for (int64_t t = 0; t < T; t++)
        kept *= 1 - get(&data, "beta")[t];
    for (int64_t i = 0; i < D * V; i++)
        want[i] = kept * get(&data, "state_in")[i];
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a9_over_clamped, ENGINES)
{
    fwa_problem problem = same_step_problem(D, V);
    double want[D * V];
    problem.decay_floor = 0.5;
    conformance_data data = random_data(&problem, 1, T, 9);
    fill(&data, "k", 0);
    fill(&data, "beta", 1.5);
    fill(&data, "lambda", 2);
    fill_normal(&data, "state_in", 1, 99);
    round_to(e, &data);
    for (int64_t i = 0; i < D * V; i++)
        want[i] = ldexp(get(&data, "state_in")[i], -T);
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(a10_scale_coupled, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    const double beta = 0.5, ridge = 0.25;
    double want[D * V];
    problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    problem.ridge = FWA_RIDGE_SCALE_COUPLED;
    conformance_data data = random_data(&problem, 1, T, 10);
    fill(&data, "v", 0);
    fill(&data, "beta", beta);
    fill(&data, "lambda", ridge);
    fill_normal(&data, "state_in", 1, 100);
    round_to(e, &data);
    for (int64_t i = 0; i < D * V; i++)
        want[i] = pow(1 - beta * ridge / (1 + ridge), T) * get(&data, "state_in")[i];
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

/* ---- B ---- */

/* The sliding presets at window 1 are the plain rules. */
CLOSED_FORM(b1_window_one, ENGINES_EXACT)
{
    static const char *const pairs[][2] = {{"falcon3", "falcon1"}, {"falcon3a", "falcon1a"}};
    for (int i = 0; i < 2; i++) {
        conformance_data results[2];
        for (int j = 0; j < 2; j++) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            cr_assert_eq(fwa_problem_preset(&problem, pairs[i][j]), FWA_OK);
            problem.window = 1;
            problem.key_dim = D;
            problem.value_dim = V;
            conformance_data data = random_data(&problem, 1, T, 12);
            random_gates(&data, 12);
            results[j] = run_engine(e, &data, 0);
            conformance_data_free(&data);
        }
        expect_all_same(e, pairs[i][0], &results[0], &results[1]);
        conformance_data_free(&results[0]);
        conformance_data_free(&results[1]);
    }
}

/* Equal columns: 2 = 1. Unequal ones: column c of 2 is 1 on that column alone. */
CLOSED_FORM(b2_columns, ENGINES_EXACT)
{
    for (int objective = 0; objective < 2; objective++) {
        fwa_problem problem = same_step_problem(D, V);
        problem.objective = objective;
        problem.dynamics = FWA_DYNAMICS_PER_CHANNEL;
        conformance_data data = random_data(&problem, 1, T, 13);
        random_gates(&data, 13);
        round_to(e, &data);
        conformance_data whole = run_engine(e, &data, 0);
        for (int64_t c = 0; c < V; c++) {
            fwa_problem narrow = problem;
            double got[T];
            narrow.dynamics = FWA_DYNAMICS_PER_HEAD;
            narrow.value_dim = 1;
            conformance_data column = random_data(&narrow, 1, T, 13);
            random_gates(&column, 13);
            memcpy(get(&column, "k"), get(&data, "k"), T * D * sizeof(double));
            memcpy(get(&column, "q"), get(&data, "q"), T * D * sizeof(double));
            memcpy(get(&column, "lambda"), get(&data, "lambda"), T * sizeof(double));
            memcpy(get(&column, "log_gate"), get(&data, "log_gate"), T * sizeof(double));
            for (int64_t t = 0; t < T; t++) {
                get(&column, "v")[t] = get(&data, "v")[t * V + c];
                get(&column, "beta")[t] = get(&data, "beta")[t * V + c];
                got[t] = get(&whole, "o")[t * V + c];
            }
            conformance_data want = run_engine(e, &column, 0);
            expect_close(e, "one column", got, get(&want, "o"), T, 1);
            conformance_data_free(&want);
            conformance_data_free(&column);
        }
        conformance_data_free(&whole);
        conformance_data_free(&data);
    }
}

CLOSED_FORM(b3_equal_columns, ENGINES_EXACT)
{
    for (int objective = 0; objective < 2; objective++) {
        fwa_problem problem = same_step_problem(D, V);
        problem.objective = objective;
        conformance_data data = random_data(&problem, 1, T, 14);
        random_gates(&data, 14);
        round_to(e, &data);
        conformance_data want = run_engine(e, &data, 0);
        double beta[T];
        memcpy(beta, get(&data, "beta"), sizeof beta);
        conformance_drop(&data, "beta");
        data.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL;
        for (int64_t i = 0; i < T * V; i++)
            conformance_add(&data, "beta")[i] = beta[i / V];
        conformance_data got = run_engine(e, &data, 0);
        expect_all_close(e, "equal columns", &got, &want);
        conformance_data_free(&got);
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}

#define WIDE 48 /* more than two chunks of any kernel's */

static conformance_data orthonormal_data(const fwa_problem *problem, int64_t tokens)
{
    conformance_data data = random_data(problem, 1, tokens, 15);
    orthonormal(get(&data, "k"), tokens, problem->key_dim, 16);
    return data;
}

CLOSED_FORM(b6_orthonormal_keys, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(WIDE, V);
    conformance_data data = orthonormal_data(&problem, WIDE);
    fill_between(&data, "beta", 0.1, 1.9, 17);
    fill_between(&data, "lambda", 0, 0.5, 18);
    fill_between(&data, "log_gate", -0.2, 0, 19);
    conformance_data regression = run_engine(e, &data, 0);
    data.problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    conformance_data product = run_engine(e, &data, 0);
    expect_all_close(e, "falcon1 = falcon1a", &regression, &product);
    conformance_data_free(&regression);
    conformance_data_free(&product);
    conformance_data_free(&data);
}

CLOSED_FORM(b7_equal_keys_window, ENGINES_EXACT)
{
    for (int objective = 0; objective < 2; objective++) {
        fwa_problem problem = same_step_problem(D, V);
        problem.objective = objective;
        problem.window = 4;
        conformance_data data = constant_data(e, &problem, T, 0);
        fill_normal(&data, "v", 1, 20);
        fill_between(&data, "beta", 0.1, 1, 21);
        fill_between(&data, "lambda", 0, 0.5, 22);
        round_to(e, &data);
        conformance_data want_data = conformance_data_copy(&data);
        want_data.problem.window = 1;
        for (int64_t i = 0; i < T * V; i++) {
            const int64_t t = i / V, pairs = t < 3 ? t + 1 : 4;
            double sum = 0;
            for (int64_t j = 0; j < pairs; j++)
                sum += get(&data, "v")[i - j * V];
            get(&want_data, "v")[i] = sum / (double)pairs;
        }
        conformance_data got = run_engine(e, &data, 0), want = run_engine(e, &want_data, 0);
        expect_close(e, "o", get(&got, "o"), get(&want, "o"), T * V, 1);
        expect_close(e, "state_out", get(&got, "state_out"), get(&want, "state_out"), D * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&want);
        conformance_data_free(&want_data);
        conformance_data_free(&data);
    }
}

/* B8; with beta 1, B9: S_T = K^T V. */
static void rehearsed(const engine *e, int32_t window, double beta)
{
    fwa_problem problem = same_step_problem(WIDE, V);
    static double want[WIDE * V];
    problem.window = window;
    conformance_data data = orthonormal_data(&problem, WIDE);
    fill(&data, "beta", beta);
    round_to(e, &data);
    memset(want, 0, sizeof want);
    for (int64_t j = 0; j < WIDE; j++) {
        const double steps = (double)(WIDE - j < window ? WIDE - j : window);
        for (int64_t i = 0; i < WIDE * V; i++)
            want[i] += (1 - pow(1 - beta, steps)) * get(&data, "k")[j * WIDE + i / V] *
                       get(&data, "v")[j * V + i % V];
    }
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, WIDE * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(b8_orthonormal_window, ENGINES_EXACT)
{
    rehearsed(e, 4, 0.5);
    rehearsed(e, 8, 0.25);
}

CLOSED_FORM(b9_orthonormal_exact_step, ENGINES_EXACT)
{
    rehearsed(e, 1, 1);
    rehearsed(e, 4, 1);
}

CLOSED_FORM(b10_fixed_point, ENGINES_EXACT)
{
    static const int32_t windows[] = {1, 4};
    for (int i = 0; i < 2; i++) {
        fwa_problem problem = same_step_problem(D, V);
        double want[T * V];
        problem.window = windows[i];
        conformance_data data = random_data(&problem, 1, T, 23);
        fill_normal(&data, "state_in", 1, 24);
        fill_between(&data, "beta", 0.1, 1.9, 25);
        for (int64_t j = 0; j < T * V; j++) {
            double value = 0, read = 0;
            for (int64_t d = 0; d < D; d++) {
                value += get(&data, "state_in")[d * V + j % V] * get(&data, "k")[j / V * D + d];
                read += get(&data, "state_in")[d * V + j % V] * get(&data, "q")[j / V * D + d];
            }
            get(&data, "v")[j] = value;
            want[j] = read;
        }
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, "o", get(&got, "o"), want, T * V, 1);
        expect_close(e, "state_out", get(&got, "state_out"), get(&data, "state_in"), D * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* ---- C: rehearsal is gradient descent on ridge regression ---- */

#define B     4 /* the window, and the period of the data */
#define SMALL 3

typedef struct batch {
    double mean_square[SMALL * SMALL]; /* Cbar = X^T X / B */
    double mean_product[SMALL * V];    /* Nbar = X^T Y / B */
    double top;                        /* lambda_max(Cbar) */
    double optimum[SMALL * V];         /* (Cbar + lambda I)^-1 Nbar */
} batch;

/* a [n, n] x = b [n, m]; both are overwritten, b by x. */
static void solve(double *a, double *b, int64_t n, int64_t m)
{
    for (int64_t p = 0; p < n; p++)
        for (int64_t i = 0; i < n; i++) {
            const double factor = i == p ? 0 : a[i * n + p] / a[p * n + p];
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] -= factor * a[p * n + j];
            for (int64_t j = 0; j < m; j++)
                b[i * m + j] -= factor * b[p * m + j];
        }
    for (int64_t i = 0; i < n * m; i++)
        b[i] /= a[i / m * n + i / m];
}

static batch batch_of(const double *keys, const double *values, double ridge)
{
    batch b;
    double vector[SMALL] = {1, 1, 1}, matrix[SMALL * SMALL];
    memset(&b, 0, sizeof b);
    for (int64_t j = 0; j < B; j++)
        for (int64_t i = 0; i < SMALL; i++) {
            for (int64_t k = 0; k < SMALL; k++)
                b.mean_square[i * SMALL + k] += keys[j * SMALL + i] * keys[j * SMALL + k] / B;
            for (int64_t c = 0; c < V; c++)
                b.mean_product[i * V + c] += keys[j * SMALL + i] * values[j * V + c] / B;
        }
    for (int steps = 0; steps < 2000; steps++) {
        double next[SMALL] = {0};
        for (int64_t i = 0; i < SMALL * SMALL; i++)
            next[i / SMALL] += b.mean_square[i] * vector[i % SMALL];
        b.top = sqrt(square(next, SMALL));
        for (int64_t i = 0; i < SMALL; i++)
            vector[i] = next[i] / b.top;
    }
    memcpy(matrix, b.mean_square, sizeof matrix);
    memcpy(b.optimum, b.mean_product, sizeof b.optimum);
    for (int64_t i = 0; i < SMALL; i++)
        matrix[i * SMALL + i] += ridge;
    solve(matrix, b.optimum, SMALL, V);
    return b;
}

/* Keys and values of period B. */
static conformance_data periodic_data(const engine *e, int objective, int64_t tokens, double beta,
                                      double ridge)
{
    fwa_problem problem = same_step_problem(SMALL, V);
    problem.objective = objective;
    problem.window = B;
    conformance_data data = random_data(&problem, 1, tokens, 26);
    fill(&data, "beta", beta);
    fill(&data, "lambda", ridge);
    round_to(e, &data);
    for (int64_t t = B; t < tokens; t++) {
        memcpy(get(&data, "k") + t * SMALL, get(&data, "k") + t % B * SMALL,
               SMALL * sizeof(double));
        memcpy(get(&data, "v") + t * V, get(&data, "v") + t % B * V, V * sizeof(double));
    }
    return data;
}

CLOSED_FORM(c1_ridge_regression, ENGINES_EXACT)
{
    conformance_data data = periodic_data(e, FWA_OBJECTIVE_REGRESSION, 400, 1, 0.5);
    const batch b = batch_of(get(&data, "k"), get(&data, "v"), 0.5);
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), b.optimum, SMALL * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(c2_inner_product, ENGINES_EXACT)
{
    conformance_data data = periodic_data(e, FWA_OBJECTIVE_INNER_PRODUCT, 400, 1, 0.5);
    const batch b = batch_of(get(&data, "k"), get(&data, "v"), 0.5);
    double want[SMALL * V];
    for (int64_t i = 0; i < SMALL * V; i++)
        want[i] = b.mean_product[i] / 0.5;
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, SMALL * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

CLOSED_FORM(c3_one_pair, ENGINES_EXACT)
{
    fwa_problem problem = same_step_problem(D, V);
    double want[D * V];
    conformance_data data = constant_data(e, &problem, 150, 0);
    fill(&data, "beta", 0.5);
    fill(&data, "lambda", 2);
    const double energy = square(get(&data, "k"), D);
    for (int64_t i = 0; i < D * V; i++)
        want[i] = get(&data, "k")[i / V] * get(&data, "v")[i % V] / (energy + 2);
    conformance_data got = run_engine(e, &data, 0);
    expect_close(e, "state_out", get(&got, "state_out"), want, D * V, 1);
    conformance_data_free(&got);
    conformance_data_free(&data);
}

/* A carry whose tail holds the period before, so that every window is full. */
static void full_window(const engine *e, conformance_data *data)
{
    fill(data, "seen_in", 40);
    fill_normal(data, "state_in", 1, 27);
    conformance_add(data, "tail_key_in");
    conformance_add(data, "tail_value_in");
    memcpy(get(data, "tail_key_in"), get(data, "k") + SMALL, (B - 1) * SMALL * sizeof(double));
    memcpy(get(data, "tail_value_in"), get(data, "v") + V, (B - 1) * V * sizeof(double));
    round_to(e, data);
}

CLOSED_FORM(c4_error_contracts, ENGINES_EXACT)
{
    const double beta = 0.75, ridge = 0.25;
    for (int64_t tokens = 1; tokens < 40; tokens += 6) {
        conformance_data data = periodic_data(e, FWA_OBJECTIVE_REGRESSION, 40, beta, ridge);
        double want[SMALL * V];
        full_window(e, &data);
        const batch b = batch_of(get(&data, "k"), get(&data, "v"), ridge);
        const double eta = beta / (b.top + ridge);
        for (int64_t i = 0; i < SMALL * V; i++)
            want[i] = get(&data, "state_in")[i] - b.optimum[i];
        for (int64_t t = 0; t < tokens; t++) {
            double next[SMALL * V];
            for (int64_t i = 0; i < SMALL * V; i++) {
                next[i] = (1 - eta * ridge) * want[i];
                for (int64_t d = 0; d < SMALL; d++)
                    next[i] -= eta * b.mean_square[i / V * SMALL + d] * want[d * V + i % V];
            }
            memcpy(want, next, sizeof want);
        }
        for (int64_t i = 0; i < SMALL * V; i++)
            want[i] += b.optimum[i];
        conformance_data part = conformance_slice(&data, 0, tokens);
        conformance_data got = run_engine(e, &part, 0);
        expect_close(e, "state_out", get(&got, "state_out"), want, SMALL * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&part);
        conformance_data_free(&data);
    }
}

/* f(S) = sum_j |y_j - S^T x_j|^2 / 2B + lambda |S|^2 / 2, and |grad f|^2. */
static double loss(const conformance_data *data, const double *s, const batch *b, double ridge,
                   double *gradient)
{
    double f = ridge / 2 * square(s, SMALL * V);
    *gradient = 0;
    for (int64_t j = 0; j < B; j++)
        for (int64_t c = 0; c < V; c++) {
            double residual = get(data, "v")[j * V + c];
            for (int64_t d = 0; d < SMALL; d++)
                residual -= s[d * V + c] * get(data, "k")[j * SMALL + d];
            f += residual * residual / (2 * B);
        }
    for (int64_t i = 0; i < SMALL * V; i++) {
        double g = ridge * s[i] - b->mean_product[i];
        for (int64_t d = 0; d < SMALL; d++)
            g += b->mean_square[i / V * SMALL + d] * s[d * V + i % V];
        *gradient += g * g;
    }
    return f;
}

CLOSED_FORM(c5_loss_falls, ENGINES_EXACT)
{
    const double beta = 1.5, ridge = 0.25;
    conformance_data data = periodic_data(e, FWA_OBJECTIVE_REGRESSION, 40, beta, ridge);
    full_window(e, &data);
    const batch b = batch_of(get(&data, "k"), get(&data, "v"), ridge);
    const double eta = beta / (b.top + ridge), smooth = b.top + ridge;
    conformance_data rest = conformance_data_copy(&data);
    for (int64_t t = 0; t < 40; t++) {
        double gradient, unused;
        conformance_data part = conformance_slice(&rest, t, t + 1);
        const double before = loss(&data, get(&part, "state_in"), &b, ridge, &gradient);
        conformance_data got = run_engine(e, &part, 0);
        const double after = loss(&data, get(&got, "state_out"), &b, ridge, &unused);
        const double most = before - eta * (2 - eta * smooth) / 2 * gradient;
        cr_expect_leq(after, most + compare_bound_for(e->dtype).rms * before,
                      "%s: token %d: the loss goes from %g to %g; at most %g", engine_name(e),
                      (int)t, before, after, most);
        conformance_hand_over(&got, &rest);
        conformance_data_free(&got);
        conformance_data_free(&part);
    }
    conformance_data_free(&rest);
    conformance_data_free(&data);
}

/* ---- H: hard numbers ---- */

/* All tokens shrink the state along the key by the same 1 - eta |x|^2, whose rounding error, beta
 * 2^-24 in float32, is raised to the T-th power with it: 3e-5 after 256 tokens at beta 1.999. */
CLOSED_FORM(h1_equal_keys, ENGINES_EXACT)
{
    static const double betas[] = {1, 1.5, 1.9, 1.999};
    static const int64_t tokens[] = {64, 128, 256};
    for (int64_t i = 0; i < 12; i++) {
        fwa_problem problem = same_step_problem(D, V);
        conformance_data data = constant_data(e, &problem, tokens[i / 4], 0);
        fill_normal(&data, "v", 1, 28);
        fill(&data, "beta", betas[i % 4]);
        random_upstream(&data, 1, 29);
        round_to(e, &data);
        conformance_data got = run_engine(e, &data, 1), want = run_engine(&engines[0], &data, 1);
        expect_all_within(e, "equal keys", &got, &want,
                          1 + (double)tokens[i / 4] * betas[i % 4] * 0x1p-24 / 2e-5);
        conformance_data_free(&got);
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}

/* The residual of `previous` looks at the state before it is forgotten; of `decayed`, and of the
 * inner product, nothing is left but the present. */
CLOSED_FORM(h2_closed_gates, ENGINES_EXACT)
{
    for (int objective = 0; objective < 2; objective++) {
        fwa_problem problem = same_step_problem(D, V);
        double want[T * V];
        problem.objective = objective;
        problem.prediction = FWA_PREDICTION_DECAYED;
        conformance_data data = random_data(&problem, 1, T, 30);
        fill_normal(&data, "state_in", 1, 31);
        fill(&data, "log_gate", -INFINITY);
        fill_between(&data, "beta", 0.1, 1.9, 32);
        round_to(e, &data);
        for (int64_t i = 0; i < T * V; i++) {
            const double *q = get(&data, "q") + i / V * D, *k = get(&data, "k") + i / V * D;
            double along = 0;
            for (int64_t d = 0; d < D; d++)
                along += q[d] * k[d];
            want[i] = get(&data, "beta")[i / V] / square(k, D) * along * get(&data, "v")[i];
        }
        conformance_data got = run_engine(e, &data, 0);
        expect_close(e, "o", get(&got, "o"), want, T * V, 1);
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}

/* One token: S_1 = gamma S_0, element by element to 1e-6, for gamma of 1e-6 and 1e-8. */
CLOSED_FORM(h3_big_ridge, ENGINES_EXACT)
{
    static const double ridges[] = {1e6, 1e8};
    for (int i = 0; i < 2; i++) {
        fwa_problem problem = same_step_problem(D, V);
        problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
        problem.decay_floor = 1e-30;
        conformance_data data = random_data(&problem, 1, 1, 33);
        fill(&data, "v", 0);
        fill(&data, "lambda", ridges[i]);
        fill_normal(&data, "state_in", 1, 34);
        round_to(e, &data);
        const double energy = square(get(&data, "k"), D), carry = energy / (energy + ridges[i]);
        conformance_data got = run_engine(e, &data, 0);
        for (int64_t j = 0; j < D * V; j++) {
            const double want = carry * get(&data, "state_in")[j];
            cr_expect_leq(fabs(get(&got, "state_out")[j] - want), 1e-6 * fabs(want),
                          "%s: lambda %g: %.9g, not %.9g", engine_name(e), ridges[i],
                          get(&got, "state_out")[j], want);
        }
        conformance_data_free(&got);
        conformance_data_free(&data);
    }
}
