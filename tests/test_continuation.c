/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence in pieces, with the carry handed on, is the sequence in one; token by token too. */

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some kernels take whole vectors alone. */
static bool in_vectors;
#define D (in_vectors ? 32 : 16)
#define V (in_vectors ? 48 : 12)

/* Of keys: heads share one, or have their own. */
static const int32_t some_key_heads[] = {1, 2};
static const int32_t *key_heads = some_key_heads;
#define FOR_HEADS                                                                                  \
    for (key_heads = some_key_heads; key_heads < some_key_heads + COUNT(some_key_heads);           \
         key_heads++)

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

/* Two rows, fresh or not. */
static conformance_data rule_data(const engine *e, int rule, int alignment, int64_t tokens,
                                  uint64_t seed)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    in_vectors = e->form == FWA_FORM_CHUNKED && e->dtype == FWA_DTYPE_BF16;
    problem.key_dim = D;
    problem.value_dim = V;
    problem.heads_key = *key_heads;
    problem.heads_value = 2;
    problem.alignment = alignment;
    problem.read = (int32_t)(seed % 2);
    problem.prediction = (int32_t)(seed / 2 % 2);
    set_rule(&problem, &factor_rules[rule]);
    conformance_data data = random_data(&problem, 2, tokens, seed);
    random_gates(&data, seed);
    if (seed % 3 == 0)
        random_carry(&data, 2, seed);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

/* Two fresh rows. */
static conformance_data window_data(const engine *e, int window, int objective, int64_t tokens,
                                    uint64_t seed)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = D;
    problem.value_dim = V;
    problem.heads_key = *key_heads;
    problem.heads_value = 2;
    problem.alignment = (int32_t)(seed / 2 % 2);
    problem.read = (int32_t)(seed / 4 % 2);
    problem.objective = objective;
    problem.window = window;
    conformance_data data = random_data(&problem, 2, tokens, seed);
    random_gates(&data, seed);
    conformance_round(&data, e->dtype, FWA_DTYPE_NONE);
    return data;
}

/* Runs the pieces between the cuts (the last is T), the results of all in one. */
static conformance_data run_pieces(const engine *e, const conformance_data *data,
                                   const int64_t *cuts, int64_t count)
{
    conformance_data rest = conformance_data_copy(data), all;
    const int64_t tokens = data->extent.tokens;
    const int64_t width = (int64_t)data->problem.heads_value * V;
    double *o = conformance_allocate((size_t)(2 * tokens * width), sizeof *o);
    memset(&all, 0, sizeof all);
    for (int64_t i = 0, from = 0; i < count; from = cuts[i++]) {
        conformance_data part = conformance_slice(&rest, from, cuts[i]);
        conformance_data got = run_engine(e, &part, 0);
        const int64_t length = cuts[i] - from;
        for (int64_t b = 0; b < 2 && length > 0; b++)
            memcpy(o + (b * tokens + from) * width, get(&got, "o") + b * length * width,
                   (size_t)(length * width) * sizeof *o);
        conformance_hand_over(&got, &rest);
        conformance_data_free(&part);
        conformance_data_free(&all);
        all = got;
    }
    conformance_drop(&all, "o");
    all.extent.tokens = tokens;
    memcpy(conformance_add(&all, "o"), o, (size_t)(2 * tokens * width) * sizeof *o);
    conformance_data_free(&rest);
    free(o);
    return all;
}

static void check_cuts(const engine *e, const conformance_data *data, const conformance_data *whole,
                       const int64_t *cuts, int64_t count, const char *what, int bitwise)
{
    conformance_data got = run_pieces(e, data, cuts, count);
    if (bitwise)
        expect_all_same(e, what, &got, whole);
    else
        expect_all_close(e, what, &got, whole);
    conformance_data_free(&got);
}

/* Random cuts over T = 257, some of them equal: empty pieces. */
static void random_cuts(const engine *e)
{
    conformance_random random = conformance_random_seed(7);
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule))
        for (int alignment = 0; alignment < 2; alignment++) {
            conformance_data data = rule_data(e, rule, alignment, 257, (uint64_t)rule * 2 + 1);
            conformance_data whole = run_engine(e, &data, 0);
            for (int tries = 0; tries < 2; tries++) {
                int64_t cuts[5] = {0, 0, 0, 0, 257};
                for (int i = 0; i < 4; i++) {
                    const int64_t least = i ? cuts[i - 1] : 0;
                    cuts[i] = least + conformance_random_below(&random, (258 - least) / 2 + 1);
                }
                check_cuts(e, &data, &whole, cuts, 5, factor_rules[rule].name, 0);
            }
            conformance_data_free(&whole);
            conformance_data_free(&data);
        }
}

static void known_cuts(const engine *e)
{
    int64_t steps[100];
    const int64_t late[] = {99, 100}, blocks[] = {64, 100};
    for (int64_t i = 0; i < 100; i++)
        steps[i] = i + 1;
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data data = rule_data(e, rule, rule % 2, 100, 40 + (uint64_t)rule);
        conformance_data whole = run_engine(e, &data, 0);
        check_cuts(e, &data, &whole, late, 2, "99 + 1", 0);
        check_cuts(e, &data, &whole, blocks, 2, "64 + 36", 0);
        check_cuts(e, &data, &whole, steps, 100, "1 x 100", 0);
        conformance_data_free(&whole);
        conformance_data_free(&data);
    }
}

static int64_t chunk_length(const engine *e, const conformance_data *data)
{
    const conformance_options options = {
        .context = context_of(e->backend, 1), .form = e->form, .dtype = e->dtype};
    conformance_data got;
    conformance_outcome outcome;
    cr_assert_eq(conformance_run(data, &options, &got, &outcome), 0, "%s", outcome.message);
    conformance_data_free(&got);
    const char *form = strstr(outcome.kernel[FWA_PASS_FORWARD], "/chunked/");
    cr_assert_not_null(form, "kernel '%s' does not say its chunk", outcome.kernel[0]);
    const long chunk = strtol(form + strlen("/chunked/"), NULL, 10);
    cr_assert(chunk >= 1 && chunk <= 256, "kernel '%s' has a chunk of %ld tokens",
              outcome.kernel[0], chunk);
    return chunk;
}

/* Cuts where the tokens seen in all are a multiple of the chunk change no bit. Pieces of fewer than 16
 * tokens may be another kernel's. */
static void chunk_cuts(const engine *e)
{
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule))
        for (int alignment = 0; alignment < 2; alignment++) {
            conformance_data data = rule_data(e, rule, alignment, 4, 70 + (uint64_t)rule);
            const int64_t chunk = chunk_length(e, &data), tokens = 9 * chunk + 19;
            conformance_data_free(&data);
            data = rule_data(e, rule, alignment, tokens, 70 + (uint64_t)rule);
            const double *seen = conformance_get(&data, "seen_in");
            int64_t grid = seen ? chunk - (int64_t)seen[0] : chunk;
            grid += grid < 16 ? chunk : 0;
            const int64_t one[] = {grid, tokens}, two[] = {grid + 3 * chunk, tokens};
            const int64_t many[] = {grid + chunk, grid + 2 * chunk, grid + 6 * chunk,
                                    grid + 7 * chunk, tokens};
            conformance_data whole = run_engine(e, &data, 0);
            check_cuts(e, &data, &whole, one, 2, factor_rules[rule].name, 1);
            check_cuts(e, &data, &whole, two, 2, factor_rules[rule].name, 1);
            check_cuts(e, &data, &whole, many, 5, factor_rules[rule].name, 1);
            conformance_data_free(&whole);
            conformance_data_free(&data);
        }
}

/* The recurrent form has no chunks: no cut changes a bit. */
static void any_cuts(const engine *e)
{
    const int64_t cuts[] = {1, 2, 17, 17, 40, 70};
    for (int rule = next_rule(e, -1); rule < FACTOR_RULES; rule = next_rule(e, rule)) {
        conformance_data data = rule_data(e, rule, rule % 2, 70, 90 + (uint64_t)rule);
        conformance_data whole = run_engine(e, &data, 0);
        check_cuts(e, &data, &whole, cuts, 6, factor_rules[rule].name, 1);
        conformance_data_free(&whole);
        conformance_data_free(&data);
    }
}

/* Windows of every length, of which kernels have some as constants: as the reference has it, in one
 * and in pieces, and in the same bits where it is cut at a chunk. */
static void every_window(const engine *e)
{
    static const int64_t cuts[] = {1, 2, 7, 39, 66, 70};
    for (int window = 1; window <= 32; window++)
        for (int objective = 0; objective < 2; objective++) {
            const uint64_t seed = 200 + (uint64_t)(2 * window + objective);
            char what[32];
            snprintf(what, sizeof what, "window %d, objective %d", window, objective);
            conformance_data data = window_data(e, window, objective, 70, seed);
            const int64_t chunk[] = {chunk_length(e, &data), 70};
            conformance_data want = run_engine(&engines[0], &data, 0);
            conformance_data whole = run_engine(e, &data, 0);
            expect_all_close(e, what, &whole, &want);
            check_cuts(e, &data, &want, cuts, COUNT(cuts), what, 0);
            if (chunk[0] < 70)
                check_cuts(e, &data, &whole, chunk, 2, what, 1);
            conformance_data_free(&whole);
            conformance_data_free(&want);
            conformance_data_free(&data);
        }
}

Test(continuation, every_window)
{
    for (int i = 0; i < ENGINES_EXACT; i++)
        if (engines[i].form == FWA_FORM_CHUNKED)
            every_window(&engines[i]);
}

Test(continuation, random_cuts_exact)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES_EXACT; i++)
        random_cuts(&engines[i]);
}

Test(continuation, random_cuts_16_bit)
{
    FOR_HEADS
    for (int i = ENGINES_EXACT; i < ENGINES; i++)
        random_cuts(&engines[i]);
}

Test(continuation, known_cuts_exact)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES_EXACT; i++)
        known_cuts(&engines[i]);
}

Test(continuation, known_cuts_16_bit)
{
    FOR_HEADS
    for (int i = ENGINES_EXACT; i < ENGINES; i++)
        known_cuts(&engines[i]);
}

Test(continuation, chunk_cuts)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        if (engines[i].form == FWA_FORM_CHUNKED)
            chunk_cuts(&engines[i]);
}

Test(continuation, any_cuts)
{
    FOR_HEADS
    for (int i = 0; i < ENGINES; i++)
        if (engines[i].form == FWA_FORM_RECURRENT)
            any_cuts(&engines[i]);
}
