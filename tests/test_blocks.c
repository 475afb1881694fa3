/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's backward on few heads, whose value columns are several units of work: the same
 * bits on any number of threads and in any company, and the reference's numbers. */

#include "support.h"

#include <stdlib.h>
#include <string.h>

static const engine *const chunked[] = {&engines[3], &engines[6]};

typedef struct shape {
    int32_t heads_key, heads_value, key_dim, value_dim;
} shape;

/* One head in blocks of 32 columns and with what is left of a vector; two that share keys and two
 * that do not. */
static const shape shapes[] = {
    {1, 1, 32, 128}, {1, 1, 16, 96}, {1, 1, 33, 101}, {1, 2, 16, 128}, {2, 2, 17, 67},
};

/* More than a segment; a long window's eigenvalues take their time. */
static int64_t tokens_of(int rule)
{
    return factor_rules[rule].window > 8 ? 43 : 150;
}

static conformance_data shape_data(const engine *e, const shape *s, int rule, int64_t tokens,
                                   uint64_t seed)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = s->key_dim;
    problem.value_dim = s->value_dim;
    problem.heads_key = problem.heads_query = s->heads_key;
    problem.heads_value = s->heads_value;
    problem.alignment = rule % 2;
    problem.read = rule / 2 % 2;
    problem.prediction = rule / 4 % 2;
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 1, tokens, seed);
    random_gates(&data, seed);
    random_carry(&data, 5, seed);
    random_upstream(&data, 1, seed);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

static conformance_data run_laid(const engine *e, const conformance_data *data, int32_t threads,
                                 int saved, int32_t layout)
{
    const conformance_options options = {.context = context_of("cpu", threads),
                                         .form = FWA_FORM_CHUNKED,
                                         .dtype = e->dtype,
                                         .layout = layout,
                                         .backward = 1,
                                         .saved = saved};
    return run_options(&options, data);
}

static conformance_data run_on(const engine *e, const conformance_data *data, int32_t threads,
                               int saved)
{
    return run_laid(e, data, threads, saved, CONFORMANCE_DENSE);
}

/* Calls run(e, shape, rule) for all rules, with so many of the shapes each. */
static void each(void (*run)(const engine *e, const shape *s, int rule), int64_t some)
{
    for (int64_t i = 0; i < COUNT(chunked); i++)
        for (int rule = next_rule(chunked[i], -1); rule < FACTOR_RULES;
             rule = next_rule(chunked[i], rule))
            for (int64_t j = 0; j < some; j++)
                run(chunked[i], &shapes[(rule + i + 2 * j) % COUNT(shapes)], rule);
}

/* Between guard pages: workspaces of exactly the size asked for. */
static void like_reference(const engine *e, const shape *s, int rule)
{
    conformance_data data = shape_data(e, s, rule, tokens_of(rule), 5);
    conformance_data want = run_engine(&engines[0], &data, 1);
    for (int saved = 0; saved < 2; saved++) {
        conformance_data got = run_laid(e, &data, 1, saved, CONFORMANCE_GUARDED);
        expect_all_close(e, factor_rules[rule].name, &got, &want);
        conformance_data_free(&got);
    }
    conformance_data_free(&want);
    conformance_data_free(&data);
}

Test(blocks, like_reference)
{
    each(like_reference, COUNT(shapes));
}

static void on_threads(const engine *e, const shape *s, int rule)
{
    static const int32_t counts[] = {2, 3, 7};
    conformance_data data = shape_data(e, s, rule, tokens_of(rule), 6);
    conformance_data want = run_on(e, &data, 1, 1);
    for (int64_t i = 0; i < COUNT(counts); i++) {
        conformance_data got = run_on(e, &data, counts[i], (int)i % 2);
        expect_all_same(e, factor_rules[rule].name, &got, &want);
        conformance_data_free(&got);
    }
    conformance_data_free(&want);
    conformance_data_free(&data);
}

Test(blocks, threads)
{
    each(on_threads, 2);
}

/* Alone, as a row of a batch, and in a pack, where one thread takes all units together and several
 * share them out. */
static void in_company(const engine *e, const shape *s, int rule)
{
    const int64_t tokens = factor_rules[rule].window > 8 ? 23 : 40;
    conformance_data alone = shape_data(e, s, rule, tokens, 7);
    conformance_data other = shape_data(e, s, rule, tokens, 8);
    conformance_data small = shape_data(e, s, rule, 11, 9);
    const conformance_data *rows[] = {&other, &other, &alone, &other, &other};
    const conformance_data *parts[] = {&small, &other, &alone, &small};
    conformance_data batch = conformance_stack(rows, 5), pack = conformance_pack(parts, 4);
    conformance_data want = run_on(e, &alone, 1, 0);
    for (int32_t threads = 1; threads <= 7; threads += 6) {
        conformance_data in_batch = run_on(e, &batch, threads, 1);
        conformance_data in_pack = run_on(e, &pack, threads, 1);
        memcpy(conformance_add(&in_pack, "cu_seqlens"), conformance_get(&pack, "cu_seqlens"),
               5 * sizeof(double));
        conformance_data row = conformance_single(&in_batch, 2);
        conformance_data part = conformance_single(&in_pack, 2);
        expect_all_same(e, "in a batch of five", &row, &want);
        expect_all_same(e, "in a pack", &part, &want);
        conformance_data *const got[] = {&in_batch, &in_pack, &row, &part};
        for (int64_t i = 0; i < COUNT(got); i++)
            conformance_data_free(got[i]);
    }
    conformance_data *const all[] = {&alone, &other, &small, &batch, &pack, &want};
    for (int64_t i = 0; i < COUNT(all); i++)
        conformance_data_free(all[i]);
}

Test(blocks, company)
{
    each(in_company, 1);
}

/* A padded row between two others: its gradients are zeros, in every unit's share. */
static void around_padding(const engine *e, const shape *s, int rule)
{
    const int64_t tokens = factor_rules[rule].window > 8 ? 23 : 40;
    conformance_data first = shape_data(e, s, rule, tokens, 10);
    conformance_data other = shape_data(e, s, rule, tokens, 11);
    const conformance_data *rows[] = {&first, &other, &first};
    static const int32_t in[] = {0, FWA_SLOT_NONE, 2};
    static const char *const results[] = {"dq", "dk", "dv", "dbeta", "dlambda", "dlog_gate"};
    conformance_data batch = conformance_stack(rows, 3);
    batch.slot_in = conformance_allocate(3, sizeof *batch.slot_in);
    batch.slot_out = conformance_allocate(3, sizeof *batch.slot_out);
    memcpy(batch.slot_in, in, sizeof in);
    memcpy(batch.slot_out, in, sizeof in);
    batch.pool = 3;
    conformance_data want = run_on(e, &first, 1, 0), got = run_on(e, &batch, 2, 1);
    for (int64_t i = 0; i < COUNT(results); i++) {
        const int64_t row = conformance_count(&want, results[i]);
        const double *values = conformance_get(&got, results[i]);
        for (int64_t j = 0; j < row; j++)
            cr_assert_eq(values[row + j], 0, "%s: %s[%d] of a padded row is %g", engine_name(e),
                         results[i], (int)j, values[row + j]);
        expect_equal(e, results[i], values, conformance_get(&want, results[i]), row);
        expect_equal(e, results[i], values + 2 * row, conformance_get(&want, results[i]), row);
    }
    conformance_data *const all[] = {&first, &other, &batch, &want, &got};
    for (int64_t i = 0; i < COUNT(all); i++)
        conformance_data_free(all[i]);
}

Test(blocks, padding)
{
    each(around_padding, 1);
}

/* ---- What is shared out ---- */

static size_t workspace(const fwa_problem *problem, int32_t threads, int64_t tokens)
{
    fwa_plan *plan;
    size_t size = 0;
    cr_assert_eq(fwa_plan_create(context_of("cpu", threads), problem, &plan), FWA_OK, "%s",
                 fwa_error_message());
    cr_assert_eq(fwa_plan_workspace_size(plan, FWA_PASS_BACKWARD, 1, tokens, 1, &size), FWA_OK);
    fwa_plan_destroy(plan);
    return size;
}

/* Bytes of workspace that a token takes beyond the kept states and rows: for each unit its shares,
 * rows of keys and of queries and three numbers of gates; none where units are whole heads that
 * share no keys (doc/design.md, "Memory"). */
Test(blocks, shares)
{
    static const struct {
        int32_t heads, value_dim, units;
    } rows[] = {{1, 128, 4}, {1, 64, 2}, {1, 63, 0},  {1, 96, 3},  {1, 256, 4}, {1, 100, 2},
                {2, 128, 4}, {2, 64, 4}, {3, 128, 0}, {4, 128, 0}, {8, 256, 0}};
    const size_t dim = 48, tokens = 1024;
    for (int64_t i = 0; i < COUNT(rows); i++)
        for (int32_t threads = 1; threads <= 7; threads += 3) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            const size_t heads = (size_t)rows[i].heads,
                         width = (size_t)(rows[i].value_dim + 15) / 16 * 16;
            problem.key_dim = 40;
            problem.value_dim = rows[i].value_dim;
            problem.heads_key = problem.heads_value = problem.heads_query = rows[i].heads;
            problem.form = FWA_FORM_CHUNKED;
            const size_t more = workspace(&problem, threads, 3 * (int64_t)tokens) -
                                workspace(&problem, threads, 2 * (int64_t)tokens);
            const size_t kept = 4 * heads * width * (40 * tokens / 128 + tokens);
            cr_expect_eq(more - kept, 4 * (size_t)rows[i].units * (2 * dim + 3) * tokens,
                         "%d heads of %d columns: %zu bytes for 1024 tokens", rows[i].heads,
                         rows[i].value_dim, more - kept);
        }
}
