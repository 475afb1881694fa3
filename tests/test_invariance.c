/* SPDX-License-Identifier: Apache-2.0 */
/* What must not change a result: the future, the batch, the neighbours, the threads, the memory
 * around, NaN elsewhere. Bit for bit. */

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some kernels take whole vectors alone. */
static bool in_vectors;
#define D (in_vectors ? 32 : 16)
#define V (in_vectors ? 48 : 12)
#define T 70

/* Heads that share keys, and heads that have their own: kernels write the gradients of those at
 * once. */
typedef struct head_counts {
    int32_t key, value;
} head_counts;
static const head_counts some_heads[] = {{2, 4}, {4, 4}};
static const head_counts *heads = some_heads;
#define HK        (heads->key)
#define HV        (heads->value)
#define SHARED    (HV / HK) /* value heads of a key head */
#define FOR_HEADS for (heads = some_heads; heads < some_heads + COUNT(some_heads); heads++)

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

static conformance_data rule_data(const engine *e, int rule, int alignment, int64_t batch,
                                  int64_t tokens, uint64_t seed)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    in_vectors = e->form == FWA_FORM_CHUNKED && e->dtype == FWA_DTYPE_BF16;
    problem.key_dim = D;
    problem.value_dim = V;
    problem.heads_key = HK;
    problem.heads_value = HV;
    problem.heads_query = seed % 2 ? HK : HV;
    problem.alignment = alignment;
    problem.read = (int32_t)(seed / 2 % 2);
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, batch, tokens, seed);
    random_gates(&data, seed);
    random_carry(&data, 3, seed);
    random_upstream(&data, 1, seed);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

/* ---- Batches and packs ---- */

/* A sequence alone, as row 3 of seven, and packed behind and before others. */
static void batch_invariance(const engine *e)
{
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data alone = rule_data(e, rule, rule % 2, 1, T, 5);
        conformance_data other = rule_data(e, rule, rule % 2, 1, T, 6);
        conformance_data small = rule_data(e, rule, rule % 2, 1, 11, 7);
        other.problem = small.problem = alone.problem;
        const conformance_data *rows[] = {&other, &other, &other, &alone, &other, &other, &other};
        const conformance_data *parts[] = {&small, &other, &alone, &small};
        /* q of the others has another head count where the seeds differ. */
        conformance_drop(&other, "q");
        conformance_drop(&small, "q");
        fill_between(&other, "q", 0.1, 1, 8);
        fill_between(&small, "q", 0.1, 1, 9);
        conformance_round(&other, e->dtype, FWA_DTYPE_NONE);
        conformance_round(&small, e->dtype, FWA_DTYPE_NONE);
        conformance_data batch = conformance_stack(rows, 7);
        conformance_data pack = conformance_pack(parts, 4);
        conformance_data want = run_engine(e, &alone, 1);
        conformance_data in_batch = run_engine(e, &batch, 1), in_pack = run_engine(e, &pack, 1);
        memcpy(conformance_add(&in_pack, "cu_seqlens"), get(&pack, "cu_seqlens"),
               5 * sizeof(double));
        conformance_data row = conformance_single(&in_batch, 3);
        conformance_data part = conformance_single(&in_pack, 2);
        expect_all_same(e, "in a batch of seven", &row, &want);
        expect_all_same(e, "in a pack", &part, &want);
        conformance_data *const all[] = {&alone, &other,    &small,   &batch, &pack,
                                         &want,  &in_batch, &in_pack, &row,   &part};
        for (int64_t i = 0; i < COUNT(all); i++)
            conformance_data_free(all[i]);
    }
}

/* cu_seqlens 0, 63, 64, 127: what the middle sequence holds is nothing to the first and the last.
 */
static void neighbours(const engine *e)
{
    static const double bad[] = {NAN, -1e30};
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data parts[3];
        parts[0] = rule_data(e, rule, rule % 2, 1, 63, 10);
        parts[1] = rule_data(e, rule, rule % 2, 1, 1, 12);
        parts[2] = rule_data(e, rule, rule % 2, 1, 63, 14);
        const conformance_data *list[] = {&parts[0], &parts[1], &parts[2]};
        conformance_data clean = conformance_pack(list, 3), want = run_engine(e, &clean, 1);
        for (int i = 0; i < 2; i++) {
            conformance_data dirty = conformance_data_copy(&clean);
            for (int64_t h = 0; h < HV; h++)
                get(&dirty, "log_gate")[63 * HV + h] = bad[i];
            for (int64_t j = 0; i == 0 && j < HV * V; j++)
                get(&dirty, "v")[63 * HV * V + j] = NAN;
            conformance_data got = run_engine(e, &dirty, 1);
            for (int n = 0; n < 3; n += 2) {
                conformance_data *const packs[] = {&got, &want};
                conformance_data singles[2];
                for (int j = 0; j < 2; j++) {
                    memcpy(conformance_add(packs[j], "cu_seqlens"), get(&clean, "cu_seqlens"),
                           4 * sizeof(double));
                    singles[j] = conformance_single(packs[j], n);
                }
                expect_all_same(e, factor_rules[rule].name, &singles[0], &singles[1]);
                conformance_data_free(&singles[0]);
                conformance_data_free(&singles[1]);
            }
            conformance_data_free(&got);
            conformance_data_free(&dirty);
        }
        conformance_data_free(&want);
        conformance_data_free(&clean);
        for (int i = 0; i < 3; i++)
            conformance_data_free(&parts[i]);
    }
}

LONG_TEST(invariance, batches_and_packs)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        batch_invariance(&engines[i]);
}

LONG_TEST(invariance, neighbours)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        neighbours(&engines[i]);
}

/* ---- The future ---- */

static const char *const token_inputs[] = {"q", "k", "v", "beta", "lambda", "log_gate"};
static const char *const token_gradients[] = {"dq", "dk", "dv", "dbeta", "dlambda", "dlog_gate"};
static const char *const carry_gradients[] = {"dstate_in", "dprev_key_in", "dtail_key_in",
                                              "dtail_value_in", "dnorm_in"};

/* Numbers of one token of a tensor of one row. */
static int64_t token_width(const conformance_data *data, const char *name)
{
    return conformance_count(data, name) / data->extent.tokens;
}

/* Other tokens from `from` on: 0 finite ones, 1 extreme gates and NaN. */
static void change_future(const engine *e, conformance_data *data, int64_t from, int kind)
{
    conformance_random random = conformance_random_seed(77);
    for (int64_t i = 0; i < COUNT(token_inputs); i++) {
        const int64_t width = token_width(data, token_inputs[i]);
        double *values = get(data, token_inputs[i]);
        for (int64_t j = from * width; j < data->extent.tokens * width; j++) {
            const double unit = conformance_random_unit(&random);
            values[j] = i < 3 ? 3 * conformance_random_normal(&random) : i < 5 ? unit : -20 * unit;
            if (kind == 1)
                values[j] = i == 5 ? (unit < 0.5 ? -INFINITY : -1e30) : NAN;
        }
    }
    conformance_round(data, e->dtype, FWA_DTYPE_NONE);
}

static void expect_prefix(const engine *e, const char *what, const char *name,
                          const conformance_data *got, const conformance_data *want, int64_t tokens)
{
    char label[96];
    snprintf(label, sizeof label, "%s: %s of the first %d tokens", what, name, (int)tokens);
    expect_equal(e, label, get(got, name), get(want, name), tokens * token_width(want, name));
}

static void check_causality(const engine *e, const conformance_data *data, int64_t prefix,
                            const char *what)
{
    conformance_data plain = conformance_data_copy(data);
    static const char *const carried[] = {"dstate_out", "dprev_key_out", "dtail_key_out",
                                          "dtail_value_out", "dnorm_out"};
    for (int64_t i = 0; i < COUNT(carried); i++)
        conformance_drop(&plain, carried[i]);
    /* The loss looks at the prefix alone. */
    const int64_t width = token_width(&plain, "do"), tokens = data->extent.tokens;
    for (int64_t i = prefix * width; i < tokens * width; i++)
        get(&plain, "do")[i] = 0;
    conformance_data want = run_engine(e, &plain, 1);
    conformance_data changed = conformance_data_copy(&plain);
    change_future(e, &changed, prefix, 0);
    conformance_data got = run_engine(e, &changed, 1);
    expect_prefix(e, what, "o", &got, &want, prefix);
    for (int64_t i = 0; i < COUNT(token_gradients); i++)
        expect_prefix(e, what, token_gradients[i], &got, &want, prefix);
    for (int64_t i = 0; i < COUNT(carry_gradients); i++)
        if (conformance_get(&want, carry_gradients[i]))
            expect_equal(e, carry_gradients[i], get(&got, carry_gradients[i]),
                         get(&want, carry_gradients[i]),
                         conformance_count(&want, carry_gradients[i]));
    conformance_data_free(&got);
    change_future(e, &changed, prefix, 1);
    got = run_engine(e, &changed, 0);
    expect_prefix(e, what, "o", &got, &want, prefix);
    conformance_data_free(&got);
    conformance_data_free(&changed);
    conformance_data_free(&want);
    conformance_data_free(&plain);
}

static void causality(const engine *e)
{
    static const int64_t prefixes[] = {1, 15, 17, 33, 65};
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule))
        for (int64_t i = 0; i < COUNT(prefixes); i++) {
            const uint64_t seed = 20 + (uint64_t)(rule + i);
            conformance_data data = rule_data(e, rule, (int)(i % 2), 1, T, seed);
            check_causality(e, &data, prefixes[i], factor_rules[rule].name);
            conformance_data_free(&data);
        }
}

/* 70 tokens, and 71. */
static void one_token_more(const engine *e)
{
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data more = rule_data(e, rule, rule % 2, 1, T + 1, 31);
        conformance_data data = conformance_slice(&more, 0, T);
        conformance_data longer = run_engine(e, &more, 0), got = run_engine(e, &data, 0);
        expect_prefix(e, factor_rules[rule].name, "o", &longer, &got, T);
        conformance_data_free(&longer);
        conformance_data_free(&got);
        conformance_data_free(&data);
        conformance_data_free(&more);
    }
}

LONG_TEST(invariance, future_exact)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES_EXACT; i++)
        causality(&engines[i]);
}

LONG_TEST(invariance, future_16_bit)
{
    FOR_HEADS
    for (int i = ENGINES_EXACT; i < ENGINES; i++)
        causality(&engines[i]);
}

Test(invariance, one_token_more)
{
    for (int i = 0; i < ENGINES; i++)
        one_token_more(&engines[i]);
}

/* Shapes at random; 200 of them where the long tests are asked for. */
Test(invariance, future_of_random_shapes)
{
    conformance_random random = conformance_random_seed(41);
    const int shapes = full_tests() ? 200 : 24;
    for (int i = 0; i < shapes; i++) {
        fwa_problem problem = FWA_PROBLEM_INIT;
        const engine *e = &engines[1 + conformance_random_below(&random, ENGINES - 1)];
        const int64_t tokens = 2 + conformance_random_below(&random, 140);
        problem.key_dim = 1 + (int32_t)conformance_random_below(&random, 80);
        problem.value_dim = 1 + (int32_t)conformance_random_below(&random, 80);
        problem.heads_value = 1 + (int32_t)conformance_random_below(&random, 3);
        problem.alignment = (int32_t)conformance_random_below(&random, 2);
        problem.read = (int32_t)conformance_random_below(&random, 2);
        problem.prediction = (int32_t)conformance_random_below(&random, 2);
        set_rule(&problem, &factor_rules[conformance_random_below(&random, FACTOR_RULES)]);
        conformance_data data = random_data(&problem, 1, tokens, 100 + (uint64_t)i);
        random_gates(&data, 100 + (uint64_t)i);
        random_upstream(&data, 0, 100 + (uint64_t)i);
        conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
        check_causality(e, &data, 1 + conformance_random_below(&random, tokens - 1), "drawn shape");
        conformance_data_free(&data);
    }
}

/* ---- Threads and repetitions ---- */

static conformance_data run_threads(const engine *e, const conformance_data *data, int32_t threads)
{
    const conformance_options options = {.context = context_of(e->backend, threads),
                                         .form = e->form,
                                         .dtype = e->dtype,
                                         .backward = 1,
                                         .saved = 1};
    return run_options(&options, data);
}

/* Two large heads of one sequence, or many small ones. */
static conformance_data wide_data(const engine *e, int rule, int many)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = many ? 8 : 64;
    problem.value_dim = many ? 8 : 128;
    problem.heads_value = many ? 6 : 2;
    problem.heads_key = problem.heads_value / SHARED;
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, many ? 3 : 1, problem.window > 8 ? 43 : 83, 51);
    random_gates(&data, 51);
    random_upstream(&data, 1, 51);
    /* Open gates at the ends of chunks. */
    double *gate = get(&data, "log_gate");
    for (int64_t i = 0; i < conformance_count(&data, "log_gate"); i++)
        gate[i] = i / problem.heads_value % 4 == 3 ? 0 : gate[i];
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

static void thread_counts(const engine *e)
{
    static const int32_t counts[] = {2, 3, 7};
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule))
        for (int many = 0; many < 2; many++) {
            conformance_data data = wide_data(e, rule, many), want = run_threads(e, &data, 1);
            for (int64_t i = 0; i < COUNT(counts); i++) {
                conformance_data got = run_threads(e, &data, counts[i]);
                expect_all_same(e, factor_rules[rule].name, &got, &want);
                conformance_data_free(&got);
            }
            conformance_data_free(&want);
            conformance_data_free(&data);
        }
}

LONG_TEST(invariance, threads)
{
    FOR_HEADS
    {
        for (int i = 0; i < ENGINES_EXACT; i++)
            thread_counts(&engines[i]);
        thread_counts(&engines[6]); /* bf16, chunked */
    }
}

/* As many heads as large models have, on numbers of threads that they are no multiple of (B118). */
LONG_TEST(invariance, many_heads)
{
    static const int32_t many[] = {16, 40, 48}, counts[] = {2, 3, 7, 24};
    static const int rules[] = {0, 1, 4, 7, 13}; /* each kernel once, the normaliser */
    for (int64_t h = 0; h < COUNT(many); h++)
        for (int64_t r = 0; r < COUNT(rules); r++) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            problem.key_dim = problem.value_dim = 8;
            problem.heads_key = problem.heads_value = problem.heads_query = many[h];
            set_rule(&problem, &factor_rules[rules[r]]);
            conformance_data data = random_data(&problem, 1, 35, 61);
            random_gates(&data, 61);
            random_upstream(&data, 1, 61);
            conformance_round(&data, FWA_DTYPE_F32, FWA_DTYPE_NONE);
            for (int i = 1; i < ENGINES_EXACT; i++) {
                conformance_data want = run_threads(&engines[i], &data, 1);
                for (int64_t j = 0; j < COUNT(counts); j++) {
                    conformance_data got = run_threads(&engines[i], &data, counts[j]);
                    expect_all_same(&engines[i], factor_rules[rules[r]].name, &got, &want);
                    conformance_data_free(&got);
                }
                conformance_data_free(&want);
            }
            conformance_data_free(&data);
        }
}

static void repetitions(const engine *e, int rule)
{
    conformance_data data = wide_data(e, rule, rule % 2);
    conformance_data want = run_threads(e, &data, 2);
    for (int times = 0; times < 20; times++) {
        conformance_data got = run_threads(e, &data, 2);
        expect_all_same(e, factor_rules[rule].name, &got, &want);
        conformance_data_free(&got);
    }
    conformance_data_free(&want);
    conformance_data_free(&data);
}

LONG_TEST(invariance, repetitions)
{
    static const int rules[] = {0, 1, 4, 7, 8, 13}; /* each kernel once, the normaliser */
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        for (int64_t j = 0; j < COUNT(rules); j++)
            repetitions(&engines[i], rules[j]);
}

/* ---- NaN elsewhere ---- */

/* Inputs of row 1: which of their heads is bad. */
static const struct {
    const char *name;
    int64_t head;
} bad_heads[] = {{"q", 1},      {"k", 1},        {"v", 2},        {"beta", 3},
                 {"lambda", 0}, {"log_gate", 2}, {"state_in", 1}, {"prev_key_in", 0}};

/* The axis of a tensor's heads: of queries, keys or values. */
static int64_t head_axis(const problem_tensor *row)
{
    int64_t axis = 0;
    while (row->axes[axis] != 'q' && row->axes[axis] != 'k' && row->axes[axis] != 'v')
        axis++;
    return axis;
}

/* Value heads that one of a tensor's heads belongs to. */
static int64_t values_of_head(const conformance_data *data, const problem_tensor *row)
{
    const char axis = row->axes[head_axis(row)];
    const fwa_problem *p = &data->problem;
    return p->heads_value / (axis == 'k'   ? p->heads_key
                             : axis == 'q' ? p->heads_query
                                           : p->heads_value);
}

/* Compares all rows but row 1, and of row 1 all heads but those that have to do with value heads
 * [first, first + count). */
static void expect_others(const engine *e, const char *what, const char *name,
                          const conformance_data *got, const conformance_data *want, int64_t first,
                          int64_t count)
{
    const problem_tensor *row = problem_tensor_find(name);
    const int64_t axis = head_axis(row), values = values_of_head(want, row);
    int64_t shape[FWA_MAX_RANK], inner = 1;
    char label[96];
    const int32_t rank = conformance_shape(want, row, shape);
    snprintf(label, sizeof label, "NaN in %s: %s of another head or row", what, name);
    for (int64_t i = axis + 1; i < rank; i++)
        inner *= shape[i];
    const int64_t n = conformance_row_count(want, row);
    for (int64_t i = 0; i < n; i += inner) {
        const int64_t head = i / inner % shape[axis] * values, batch = i / (n / shape[0]);
        if (batch != 1 || head + values <= first || head >= first + count)
            expect_equal(e, label, get(got, name) + i, get(want, name) + i, inner);
    }
}

static void poison(conformance_data *data, const char *name, int64_t head)
{
    const problem_tensor *row = problem_tensor_find(name);
    const int64_t axis = head_axis(row);
    int64_t shape[FWA_MAX_RANK], inner = 1;
    const int32_t rank = conformance_shape(data, row, shape);
    for (int64_t i = axis + 1; i < rank; i++)
        inner *= shape[i];
    const int64_t n = conformance_row_count(data, row);
    for (int64_t i = 0; i < n; i += inner)
        for (int64_t j = 0; j < inner; j++)
            if (i / inner % shape[axis] == head && i / (n / shape[0]) == 1)
                get(data, name)[i + j] = NAN;
}

static void nan_in_one_head(const engine *e)
{
    static const char *const results[] = {
        "o",       "state_out", "dq",        "dk",           "dv",           "dbeta",
        "dlambda", "dlog_gate", "dstate_in", "dprev_key_in", "dtail_key_in", "dtail_value_in"};
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data clean = rule_data(e, rule, FWA_ALIGNMENT_NEXT_LATENT, 3, 21, 60);
        conformance_data want = run_engine(e, &clean, 1);
        for (int64_t i = 0; i < COUNT(bad_heads); i++) {
            conformance_data dirty = conformance_data_copy(&clean);
            const int64_t values = values_of_head(&clean, problem_tensor_find(bad_heads[i].name));
            poison(&dirty, bad_heads[i].name, bad_heads[i].head);
            conformance_data got = run_engine(e, &dirty, 1);
            for (int64_t j = 0; j < COUNT(results); j++)
                if (conformance_get(&want, results[j]))
                    expect_others(e, bad_heads[i].name, results[j], &got, &want,
                                  bad_heads[i].head * values, values);
            conformance_data_free(&got);
            conformance_data_free(&dirty);
        }
        conformance_data_free(&want);
        conformance_data_free(&clean);
    }
}

LONG_TEST(invariance, nan_in_one_head)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        nan_in_one_head(&engines[i]);
}

/* A query reaches the output of its token alone; a value its own column from its token on. */
static void nan_in_one_place(const engine *e)
{
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        const int64_t bad = 19, column = 5;
        conformance_data clean = rule_data(e, rule, rule % 2, 1, 40, 62);
        conformance_data want = run_engine(e, &clean, 0);
        conformance_data dirty = conformance_data_copy(&clean);
        get(&dirty, "q")[bad * HV * D + 3] = NAN;
        conformance_data got = run_engine(e, &dirty, 0);
        expect_equal(e, "NaN in q: tokens before", get(&got, "o"), get(&want, "o"), bad * HV * V);
        expect_equal(e, "NaN in q: tokens after", get(&got, "o") + (bad + 1) * HV * V,
                     get(&want, "o") + (bad + 1) * HV * V, (39 - bad) * HV * V);
        conformance_data_free(&got);
        conformance_data_free(&dirty);
        dirty = conformance_data_copy(&clean);
        get(&dirty, "v")[bad * HV * V + column] = NAN;
        got = run_engine(e, &dirty, 0);
        int64_t wrong = 0;
        for (int64_t i = 0; i < 40 * HV * V; i++)
            wrong += i % (HV * V) != column && get(&got, "o")[i] != get(&want, "o")[i];
        cr_expect_eq(wrong, 0, "%s: %s: NaN in a value column reaches %d numbers of others",
                     engine_name(e), factor_rules[rule].name, (int)wrong);
        conformance_data_free(&got);
        conformance_data_free(&dirty);
        conformance_data_free(&want);
        conformance_data_free(&clean);
    }
}

Test(invariance, nan_in_one_place)
{
    for (int i = 0; i < ENGINES; i++)
        nan_in_one_place(&engines[i]);
}

/* ---- Huge numbers, scales, groups, guard pages ---- */

/* Keys and values of 1e18: with normalised steps all is in range, and right. With direct steps the
 * second prediction overflows: every form must lose the same numbers. */
Test(invariance, infinities)
{
    for (int step = 0; step < 2; step++) {
        conformance_data recurrent;
        for (int i = 1; i < ENGINES_EXACT; i++) {
            fwa_problem problem = same_step_problem(8, 6);
            problem.step = step;
            conformance_data data = random_data(&problem, 1, 4, 71);
            for (int64_t j = 0; j < 4 * 8; j++)
                get(&data, "k")[j] *= 1e18;
            for (int64_t j = 0; j < 4 * 6; j++)
                get(&data, "v")[j] *= 1e18;
            conformance_round(&data, FWA_DTYPE_F32, FWA_DTYPE_NONE);
            conformance_data got = run_engine(&engines[i], &data, 0);
            if (step == FWA_STEP_NORMALIZED) {
                conformance_data want = run_engine(&engines[0], &data, 0);
                expect_all_close(&engines[i], "keys of 1e18", &got, &want);
                conformance_data_free(&want);
            }
            for (int64_t j = 0; i > 1 && j < 4 * 6; j++)
                cr_expect_eq(!isfinite(get(&got, "o")[j]), !isfinite(get(&recurrent, "o")[j]),
                             "%s: o[%d] is %g, in the recurrent form %g", engine_name(&engines[i]),
                             (int)j, get(&got, "o")[j], get(&recurrent, "o")[j]);
            for (int64_t j = 6; i == 1 && step == FWA_STEP_DIRECT && j < 4 * 6; j++)
                cr_expect(!isfinite(get(&got, "o")[j]), "o[%d] is %g", (int)j, get(&got, "o")[j]);
            conformance_data_free(&data);
            if (i == 1)
                recurrent = got;
            else
                conformance_data_free(&got);
        }
        conformance_data_free(&recurrent);
    }
}

/* The scale multiplies outputs, and nothing else. A power of two does so exactly. */
Test(invariance, scale)
{
    for (int i = 0; i < ENGINES; i++)
        for (int rule = next_rule(&engines[i], -1); rule < FACTOR_RULES;
             rule = next_rule(&engines[i], rule)) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            problem.key_dim = 64;
            problem.value_dim = 40;
            set_rule(&problem, &factor_rules[rule]);
            conformance_data data = random_data(&problem, 1, 9, 81);
            random_gates(&data, 81);
            conformance_round(&data, engines[i].dtype, FWA_DTYPE_NONE);
            conformance_data want = run_engine(&engines[i], &data, 0);
            data.problem.scale = 1 / sqrt(64);
            conformance_data got = run_engine(&engines[i], &data, 0);
            for (int64_t j = 0; j < 9 * 40; j++)
                get(&want, "o")[j] /= 8;
            /* f16 loses bits below 2^-14. */
            if (engines[i].dtype == FWA_DTYPE_F16)
                expect_all_close(&engines[i], factor_rules[rule].name, &got, &want);
            else
                expect_all_same(&engines[i], factor_rules[rule].name, &got, &want);
            conformance_data_free(&got);
            conformance_data_free(&want);
            conformance_data_free(&data);
        }
}

/* Value head h reads key head h / ratio: the same as with the keys repeated; their gradients add.
 */
static void grouped_heads(const engine *e, int32_t ratio, int rule)
{
    const int32_t keys = 2, values = 2 * ratio;
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = 8;
    problem.value_dim = 5;
    problem.heads_key = keys;
    problem.heads_value = values;
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 1, 37, 91);
    random_gates(&data, 91);
    random_upstream(&data, 0, 91);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    conformance_data wide = conformance_data_copy(&data);
    wide.problem.heads_key = wide.problem.heads_query = values;
    static const char *const repeated[] = {"q", "k"};
    for (int i = 0; i < 2; i++) {
        conformance_drop(&wide, repeated[i]);
        double *to = conformance_add(&wide, repeated[i]);
        for (int64_t t = 0; t < 37; t++)
            for (int64_t h = 0; h < values; h++)
                memcpy(to + (t * values + h) * 8,
                       get(&data, repeated[i]) + (t * keys + h / ratio) * 8, 8 * sizeof *to);
    }
    conformance_data got = run_engine(e, &data, 1), want = run_engine(e, &wide, 1);
    static const char *const same[] = {"o", "state_out", "dv", "dbeta", "dlambda", "dlog_gate"};
    for (int64_t i = 0; i < COUNT(same); i++)
        expect_close(e, same[i], get(&got, same[i]), get(&want, same[i]),
                     conformance_count(&want, same[i]), 1);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "dk" : "dq";
        double sums[37 * 2 * 8] = {0};
        for (int64_t t = 0; t < 37; t++)
            for (int64_t j = 0; j < values * 8; j++)
                sums[(t * keys + j / 8 / ratio) * 8 + j % 8] += get(&want,
                                                                    name)[t * values * 8 + j];
        expect_close(e, name, get(&got, name), sums, 37 * 2 * 8, 1);
    }
    conformance_data_free(&got);
    conformance_data_free(&want);
    conformance_data_free(&wide);
    conformance_data_free(&data);
}

LONG_TEST(invariance, grouped_heads)
{
    for (int i = 0; i < ENGINES; i++)
        for (int rule = next_rule(&engines[i], -1); rule < FACTOR_RULES;
             rule = next_rule(&engines[i], rule))
            grouped_heads(&engines[i], 1 + (rule + i) % 4, rule);
}

/* No byte behind a tensor's last is touched: there is a page that cannot be. */
static void guard_pages(const engine *e, int rule, int64_t tokens, const int32_t dims[2])
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = dims[0];
    problem.value_dim = dims[1];
    problem.heads_value = 2;
    problem.heads_key = 2 / SHARED;
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 1, tokens, 95);
    random_gates(&data, 95);
    random_carry(&data, 5, 95);
    random_upstream(&data, 1, 95);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    conformance_data want = run_engine(&engines[0], &data, 1);
    const conformance_options options = {.context = context_of("cpu", 1),
                                         .form = e->form,
                                         .dtype = e->dtype,
                                         .layout = CONFORMANCE_GUARDED,
                                         .backward = 1,
                                         .saved = 1};
    conformance_data got = run_options(&options, &data);
    expect_all_close(e, factor_rules[rule].name, &got, &want);
    conformance_data_free(&got);
    conformance_data_free(&want);
    conformance_data_free(&data);
}

Test(invariance, guard_pages)
{
    static const int64_t tokens[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 129};
    static const int32_t dims[][2] = {{16, 12}, {33, 31}, {7, 100}, {64, 64}, {3, 2}};
    FOR_HEADS
    for (int i = 1; i < ENGINES; i++)
        for (int64_t j = 0; j < COUNT(tokens); j++)
            guard_pages(&engines[i], (int)((i * 7 + j) % FACTOR_RULES), tokens[j],
                        dims[(i + j) % COUNT(dims)]);
}

/* A query is nothing to the gradients of keys that come after it, nor a key to those of queries
 * before it. */
static void nan_and_gradients(const engine *e)
{
    const int64_t bad = 19;
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule))
        for (uint64_t seed = 62; seed <= 64; seed += 2) { /* reads before, and after the write */
            conformance_data clean = rule_data(e, rule, rule % 2, 1, 40, seed);
            conformance_data want = run_engine(e, &clean, 1);
            conformance_data dirty = conformance_data_copy(&clean);
            get(&dirty, "q")[bad * HV * D + 3] = NAN;
            conformance_data got = run_engine(e, &dirty, 1);
            expect_equal(e, "NaN in q: dk behind", get(&got, "dk") + (bad + 1) * HK * D,
                         get(&want, "dk") + (bad + 1) * HK * D, (39 - bad) * HK * D);
            conformance_data_free(&got);
            conformance_data_free(&dirty);
            dirty = conformance_data_copy(&clean);
            get(&dirty, "k")[bad * HK * D + 3] = NAN;
            got = run_engine(e, &dirty, 1);
            expect_equal(e, "NaN in k: dq before", get(&got, "dq"), get(&want, "dq"), bad * HV * D);
            conformance_data_free(&got);
            conformance_data_free(&dirty);
            conformance_data_free(&want);
            conformance_data_free(&clean);
        }
}

LONG_TEST(invariance, nan_and_gradients)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        nan_and_gradients(&engines[i]);
}

/* Pairs of the tail do not stand in the state that the first token decays: with direct steps
 * nothing leads from its ridge to their gradients. (A prediction may: chunks sum over tokens.) */
static void nan_and_tail(const engine *e, int rule)
{
    static const char *const results[] = {"dtail_key_in", "dtail_value_in"};
    conformance_data data = rule_data(e, rule, rule % 2, 1, 9, 66);
    data.problem.step = FWA_STEP_DIRECT;
    fill(&data, "beta", 0.01);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    for (int64_t head = 0; head < HV; head++)
        get(&data, "lambda")[head] = NAN;
    conformance_data want = run_engine(&engines[0], &data, 1), got = run_engine(e, &data, 1);
    for (int64_t i = 0; i < COUNT(results); i++) {
        cr_expect(isfinite(get(&want, results[i])[0]), "%s", factor_rules[rule].name);
        expect_close(e, results[i], get(&got, results[i]), get(&want, results[i]),
                     conformance_count(&want, results[i]), 1);
    }
    conformance_data_free(&got);
    conformance_data_free(&want);
    conformance_data_free(&data);
}

Test(invariance, nan_and_tail)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        for (int rule = next_rule(&engines[i], -1); rule < FACTOR_RULES;
             rule = next_rule(&engines[i], rule))
            if (factor_rules[rule].window > 1 && !factor_rules[rule].normalizer &&
                factor_rules[rule].objective == FWA_OBJECTIVE_INNER_PRODUCT)
                nan_and_tail(&engines[i], rule);
}

/* Kernels may flush results below 2^-126 to zero: they give the caller's setting back, whatever the
 * gates, and read f16 numbers below 2^-14, which are such in between. */
Test(invariance, tiny_numbers)
{
    for (int i = 1; i < ENGINES; i++) {
        fwa_problem problem = same_step_problem(16, 16);
        volatile float tiny = 0x1p-126F;
        problem.scale = 0x1p20;
        conformance_data data = random_data(&problem, 1, 40, 97);
        random_carry(&data, 3, 97);
        random_upstream(&data, 1, 97);
        fill(&data, "log_gate", 0);
        for (int64_t t = 20; t < 30; t++)
            get(&data, "log_gate")[t] = -100;
        for (int64_t j = 0; j < 40 * 16; j++)
            get(&data, "v")[j] = ldexp(round(8 * get(&data, "v")[j]), -23);
        fill(&data, "state_in", 0);
        conformance_round(&data, engines[i].dtype, FWA_DTYPE_NONE);
        cr_assert(get(&data, "v")[0] != 0);
        conformance_data want = run_engine(&engines[0], &data, 0);
        conformance_data got = run_engine(&engines[i], &data, 1);
        expect_close(&engines[i], "o of tiny values", get(&got, "o"), get(&want, "o"), 40 * 16, 1);
        tiny *= 0.5F;
        cr_expect(tiny > 0, "%s: the caller's results are flushed", engine_name(&engines[i]));
        conformance_data_free(&got);
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}
