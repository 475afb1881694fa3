/* SPDX-License-Identifier: Apache-2.0 */
/* Long sequences, and tensors of more than 2^31 elements. The largest ones run with
 * FWA_TEST_FULL=1. */

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double *get(const conformance_data *data, const char *name)
{
    double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s is absent", name);
    return values;
}

/* The forms whose work grows with T alone. */
static int is_linear(const engine *e)
{
    return e->form != FWA_FORM_MASKED;
}

/* All ones, past an internal limit that a 16-bit count of tokens would be. */
static void all_ones(int64_t tokens)
{
    enum { D = 8, HEADS = 2 };
    for (int rule = 0; rule < FACTOR_RULES; rule += 7) { /* falcon1, falcon1a, 3a with normaliser */
        fwa_problem problem = FWA_PROBLEM_INIT;
        problem.key_dim = problem.value_dim = D;
        problem.heads_key = HEADS;
        problem.decay_floor = 1e-3;
        set_rule(&problem, &factor_rules[rule]);
        conformance_data data = conformance_data_new(&problem, 1, tokens, 1);
        fill(&data, "q", 1);
        fill(&data, "k", 1);
        fill(&data, "v", 1);
        fill(&data, "beta", 0.5);
        fill(&data, "lambda", 0.125);
        conformance_data want = run_engine(&engines[0], &data, 0);
        const int64_t last = (tokens - 16) * HEADS * D;
        for (int i = 1; i < ENGINES; i++) {
            if (!is_linear(&engines[i]))
                continue;
            conformance_data got = run_engine(&engines[i], &data, 0);
            expect_all_close(&engines[i], factor_rules[rule].name, &got, &want);
            expect_close(&engines[i], "the last rows", get(&got, "o") + last,
                         get(&want, "o") + last, 16 * HEADS * D, 1);
            conformance_data_free(&got);
        }
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}

Test(long_sequences, all_ones)
{
    static const int64_t tokens[] = {65537, 65535, 65536, 131073};
    for (int64_t i = 0; i < (full_tests() ? COUNT(tokens) : 1); i++)
        all_ones(tokens[i]);
}

/* Gates like those of a gated layer, over 43884 tokens; all finite, and the last rows right. */
Test(long_sequences, gates)
{
    const int32_t width = full_tests() ? 64 : 16;
    const int64_t tokens = 43884;
    for (int rule = 0; rule < 8; rule += 7) {
        fwa_problem problem = FWA_PROBLEM_INIT;
        problem.key_dim = problem.value_dim = width;
        problem.qk_norm = FWA_NORM_L2;
        set_rule(&problem, &factor_rules[rule]);
        conformance_data data = random_data(&problem, 1, tokens, 1);
        fill_between(&data, "beta", 0.05, 1, 2);
        fill_normal(&data, "log_gate", 1, 3);
        double *gate = get(&data, "log_gate");
        for (int64_t t = 0; t < tokens; t++)
            gate[t] = -log1p(exp(-gate[t])); /* logsigmoid */
        random_upstream(&data, 1, 4);
        for (int i = 0; i < ENGINES; i++) {
            if (!is_linear(&engines[i]))
                continue;
            conformance_data rounded = conformance_data_copy(&data);
            conformance_round(&rounded, engines[i].dtype, FWA_DTYPE_NONE);
            conformance_data want = run_engine(&engines[0], &rounded, 1);
            conformance_data got = run_engine(&engines[i], &rounded, 1);
            const int64_t last = (tokens - 64) * width;
            expect_all_close(&engines[i], factor_rules[rule].name, &got, &want);
            expect_close(&engines[i], "the last rows", get(&got, "o") + last,
                         get(&want, "o") + last, 64 * width, 1);
            conformance_data_free(&got);
            conformance_data_free(&want);
            conformance_data_free(&rounded);
        }
        conformance_data_free(&data);
    }
}

/* Strong decay all along: |u| in the ten thousands. */
Test(long_sequences, strong_decay)
{
    for (int rule = 0; rule < FACTOR_RULES; rule++) {
        fwa_problem problem = FWA_PROBLEM_INIT;
        problem.key_dim = problem.value_dim = 8;
        set_rule(&problem, &factor_rules[rule]);
        conformance_data data = random_data(&problem, 1, 2000, 5);
        random_gates(&data, 5);
        fill_between(&data, "log_gate", -12, 0, 6);
        conformance_round(&data, FWA_DTYPE_F32, FWA_DTYPE_NONE);
        conformance_data want = run_engine(&engines[0], &data, 0);
        for (int i = 1; i < ENGINES_EXACT; i++) {
            conformance_data got = run_engine(&engines[i], &data, 0);
            expect_all_close(&engines[i], factor_rules[rule].name, &got, &want);
            conformance_data_free(&got);
        }
        conformance_data_free(&want);
        conformance_data_free(&data);
    }
}

/* Lengths around 2^15 in f16 (B016): finite, and as close to the reference as any. */
Test(long_sequences, f16_lengths)
{
    static const int64_t tokens[] = {32769, 32767, 32768, 40960};
    const int32_t width = full_tests() ? 64 : 16;
    for (int64_t i = 0; i < (full_tests() ? COUNT(tokens) : 1); i++) {
        for (int norm = 0; norm < 2; norm++) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            problem.key_dim = problem.value_dim = width;
            problem.qk_norm = norm ? FWA_NORM_L2 : FWA_NORM_NONE;
            /* Keys as they come are as long as sqrt(D), which normalised steps take out again. */
            problem.scale = norm ? 1 : 1 / (double)width;
            conformance_data data = random_data(&problem, 1, tokens[i], 11);
            fill_between(&data, "beta", 0, 1, 12);
            conformance_round(&data, FWA_DTYPE_F16, FWA_DTYPE_NONE);
            conformance_data want = run_engine(&engines[0], &data, 0);
            for (int j = 0; j < ENGINES; j++) {
                if (!is_linear(&engines[j]) || engines[j].dtype != FWA_DTYPE_F16)
                    continue;
                conformance_data got = run_engine(&engines[j], &data, 0);
                const double *o = get(&got, "o");
                for (int64_t n = conformance_count(&got, "o") - 1; n >= 0; n--)
                    cr_assert(isfinite(o[n]), "%s: element %lld of o", engine_name(&engines[j]),
                              (long long)n);
                expect_all_close(&engines[j], "f16", &got, &want);
                conformance_data_free(&got);
            }
            conformance_data_free(&want);
            conformance_data_free(&data);
        }
    }
}

/* One gate at every token, from mild to closed: what a chunk spans in the exponent is up to 5120
 * (B002). */
Test(long_sequences, constant_gates)
{
    static const double gates[] = {-0.5, -1, -2.5, -3, -5, -8, -20};
    for (int64_t i = 0; i < COUNT(gates); i++) {
        for (int rule = 0; rule < 8; rule += 7) { /* falcon1, falcon1a */
            fwa_problem problem = FWA_PROBLEM_INIT;
            problem.key_dim = problem.value_dim = full_tests() ? 128 : 32;
            problem.qk_norm = FWA_NORM_L2;
            set_rule(&problem, &factor_rules[rule]);
            conformance_data data = random_data(&problem, 1, 256, 21);
            fill_between(&data, "beta", 0.05, 1, 22);
            fill(&data, "log_gate", gates[i]);
            random_upstream(&data, 1, 23);
            for (int j = 1; j < ENGINES; j++) {
                conformance_data rounded = conformance_data_copy(&data);
                conformance_round(&rounded, engines[j].dtype, FWA_DTYPE_NONE);
                conformance_data want = run_engine(&engines[0], &rounded, 1);
                conformance_data got = run_engine(&engines[j], &rounded, 1);
                char label[64];
                snprintf(label, sizeof label, "%s, gate %g", factor_rules[rule].name, gates[i]);
                expect_all_close(&engines[j], label, &got, &want);
                conformance_data_free(&got);
                conformance_data_free(&want);
                conformance_data_free(&rounded);
            }
            conformance_data_free(&data);
        }
    }
}

/* A gate that is open all along changes no bit, however long the sequence; and the bound, which does
 * not know the length, holds at each (B004, B005). */
Test(long_sequences, open_gates)
{
    static const int64_t tokens[] = {7, 50, 100, 500, 1000, 2000};
    for (int64_t i = 0; i < COUNT(tokens); i++) {
        for (int rule = 0; rule < 8; rule += 7) {
            fwa_problem problem = FWA_PROBLEM_INIT;
            problem.key_dim = problem.value_dim = 16;
            problem.qk_norm = FWA_NORM_L2;
            set_rule(&problem, &factor_rules[rule]);
            conformance_data bare = random_data(&problem, 1, tokens[i], 31);
            fill_between(&bare, "beta", 0.05, 1, 32);
            conformance_round(&bare, FWA_DTYPE_BF16, FWA_DTYPE_NONE); /* exact in every type */
            conformance_data gated = conformance_data_copy(&bare);
            fill(&gated, "log_gate", 0);
            conformance_data exact = run_engine(&engines[0], &bare, 0);
            for (int j = 1; j < ENGINES; j++) {
                if (engines[j].dtype == FWA_DTYPE_F16)
                    continue;
                conformance_data want = run_engine(&engines[j], &bare, 0);
                conformance_data got = run_engine(&engines[j], &gated, 0);
                expect_all_same(&engines[j], factor_rules[rule].name, &got, &want);
                expect_all_close(&engines[j], factor_rules[rule].name, &got, &exact);
                conformance_data_free(&want);
                conformance_data_free(&got);
            }
            conformance_data_free(&exact);
            conformance_data_free(&bare);
            conformance_data_free(&gated);
        }
    }
}

/* f16 with keys of no particular size and steps taken as they are: the state grows until outputs
 * leave f16 (B008). They are infinite where the reference's are, with its signs, and never NaN. */
Test(long_sequences, f16_overflow)
{
    enum { D = 64, TOKENS = 64 };
    fwa_problem problem = same_step_problem(D, D);
    problem.step = FWA_STEP_DIRECT;
    conformance_data data = random_data(&problem, 1, TOKENS, 41);
    fill_normal(&data, "beta", 1, 42);
    for (int64_t t = 0; t < TOKENS; t++)
        get(&data, "beta")[t] = 1 / (1 + exp(-get(&data, "beta")[t]));
    conformance_round(&data, FWA_DTYPE_F16, FWA_DTYPE_NONE);
    const engine reference = {"reference", FWA_FORM_RECURRENT, FWA_DTYPE_F16};
    conformance_data want = run_engine(&reference, &data, 0);
    const double *expected = get(&want, "o");
    for (int j = 0; j < ENGINES; j++) {
        if (engines[j].dtype != FWA_DTYPE_F16)
            continue;
        conformance_data got = run_engine(&engines[j], &data, 0);
        const double *o = get(&got, "o");
        int64_t infinite = 0, finite = 0, wrong = 0, nan = 0;
        for (int64_t i = conformance_count(&got, "o") - 1; i >= 0; i--) {
            nan += isnan(o[i]) != 0;
            infinite += isinf(expected[i]) != 0;
            finite += isfinite(expected[i]) != 0;
            wrong += isinf(expected[i]) ? o[i] != expected[i] : !isfinite(o[i]);
        }
        cr_expect(infinite > 0 && finite > 0, "%lld infinite, %lld finite", (long long)infinite,
                  (long long)finite);
        cr_expect_eq(nan, 0, "%s: %lld are NaN", engine_name(&engines[j]), (long long)nan);
        cr_expect_eq(wrong, 0, "%s: %lld of %lld infinite, %lld finite", engine_name(&engines[j]),
                     (long long)wrong, (long long)infinite, (long long)finite);
        conformance_data_free(&got);
    }
    conformance_data_free(&want);
    conformance_data_free(&data);
}

/* ---- More than 2^31 elements ---- */

enum { HUGE_HEADS = 16, HUGE_DIM = 128, HUGE_TAIL = 64 };

#define GIBIBYTE ((int64_t)1 << 30)

typedef struct huge {
    int64_t tokens;
    fwa_context *context;
    fwa_plan *plan;
    uint16_t *keys, *outputs; /* keys are queries and values too */
    float *gates;
} huge;

/* Tokens [from, to) of the call, from a state into a state. */
static void run_huge(const huge *h, int64_t from, int64_t to, uint16_t *outputs, float *state_in,
                     float *state_out)
{
    const int64_t width = (int64_t)HUGE_HEADS * HUGE_DIM, n = to - from;
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    args.q = fwa_tensor_contiguous(h->keys + from * width, FWA_DTYPE_BF16, 4, 1, n, HUGE_HEADS,
                                   HUGE_DIM);
    args.k = args.v = args.q;
    args.o = fwa_tensor_contiguous(outputs, FWA_DTYPE_BF16, 4, 1, n, HUGE_HEADS, HUGE_DIM);
    args.log_gate = fwa_tensor_contiguous(h->gates + from * HUGE_HEADS, FWA_DTYPE_F32, 3, 1, n,
                                          HUGE_HEADS);
    args.beta = args.log_gate;
    args.beta.data = h->gates + (h->tokens + from) * HUGE_HEADS;
    if (state_in)
        args.carry_in.state = fwa_tensor_contiguous(state_in, FWA_DTYPE_F32, 4, 1, HUGE_HEADS,
                                                    HUGE_DIM, HUGE_DIM);
    args.carry_out.state = fwa_tensor_contiguous(state_out, FWA_DTYPE_F32, 4, 1, HUGE_HEADS,
                                                 HUGE_DIM, HUGE_DIM);
    cr_assert_eq(fwa_plan_workspace_size(h->plan, FWA_PASS_FORWARD, 1, n, 1, &args.workspace_size),
                 FWA_OK);
    args.workspace = malloc(args.workspace_size);
    cr_assert_not_null(args.workspace);
    cr_assert_eq(fwa_forward(h->plan, &args), FWA_OK, "%s", fwa_error_message());
    free(args.workspace);
}

static huge make_huge(int form, int64_t tokens)
{
    huge h = {.tokens = tokens};
    const int64_t width = (int64_t)HUGE_HEADS * HUGE_DIM;
    fwa_problem problem = same_step_problem(HUGE_DIM, HUGE_DIM);
    conformance_random random = conformance_random_seed(9);
    problem.heads_key = HUGE_HEADS;
    problem.qk_norm = FWA_NORM_L2;
    problem.dtype = FWA_DTYPE_BF16;
    problem.form = form;
    h.context = context_of("cpu", 2);
    cr_assert_eq(fwa_plan_create(h.context, &problem, &h.plan), FWA_OK, "%s", fwa_error_message());
    h.keys = malloc((size_t)(tokens * width) * sizeof *h.keys);
    h.outputs = malloc((size_t)(tokens * width) * sizeof *h.outputs);
    h.gates = malloc((size_t)(2 * tokens * HUGE_HEADS) * sizeof *h.gates);
    cr_assert(h.keys && h.outputs && h.gates);
    /* bf16 between 0.5 and 2, of either sign. */
    for (int64_t i = 0; i < tokens * width; i += 4) {
        const uint64_t bits = conformance_random_bits(&random);
        for (int j = 0; j < 4; j++) {
            const uint32_t part = (uint32_t)(bits >> (16 * j)) & 0xffffu;
            h.keys[i + j] = (uint16_t)(0x3f00u + (part & 0xffu) + (part & 0x8000u));
        }
    }
    for (int64_t i = 0; i < tokens * HUGE_HEADS; i++) {
        h.gates[i] = -0.1f * (float)conformance_random_unit(&random);
        h.gates[tokens * HUGE_HEADS + i] = (float)conformance_random_unit(&random);
    }
    return h;
}

/* The last rows of a call equal those of a short call from the state
 * before them, bit for bit: 64 tokens are whole chunks. */
static void check_huge(int form, int64_t tokens)
{
    enum { STATE = HUGE_HEADS * HUGE_DIM * HUGE_DIM };
    const int64_t width = (int64_t)HUGE_HEADS * HUGE_DIM, before = tokens - HUGE_TAIL;
    huge h = make_huge(form, tokens);
    float *states = conformance_allocate(3 * STATE, sizeof *states);
    uint16_t *tail = conformance_allocate((size_t)(HUGE_TAIL * width), sizeof *tail);
    run_huge(&h, 0, before, h.outputs, NULL, states);
    run_huge(&h, before, tokens, tail, states, states + STATE);
    run_huge(&h, 0, tokens, h.outputs, NULL, states + 2 * STATE);
    cr_expect_eq(
        memcmp(h.outputs + before * width, tail, (size_t)(HUGE_TAIL * width) * sizeof *tail), 0,
        "form %d: the last rows differ", form);
    cr_expect_eq(memcmp(states + STATE, states + 2 * STATE, STATE * sizeof *states), 0,
                 "form %d: the states differ", form);
    free(states);
    free(tail);
    free(h.keys);
    free(h.outputs);
    free(h.gates);
    fwa_plan_destroy(h.plan);
}

/* The states that a backward keeps, one a sequence at least, are more than 2^31 elements together
 * (B080): the last sequence's gradients are those that it has alone. */
static void check_kept_states(int64_t sequences)
{
    enum { DIM = 256 };
    fwa_problem problem = same_step_problem(DIM, DIM);
    fwa_plan *plan;
    conformance_random random = conformance_random_seed(17);
    const int64_t n = sequences * DIM;
    float *inputs = conformance_allocate((size_t)n, sizeof *inputs);
    float *gradients = conformance_allocate((size_t)n, sizeof *gradients);
    float *last = conformance_allocate(DIM, sizeof *last);
    for (int64_t i = 0; i < n; i++)
        inputs[i] = (float)conformance_random_normal(&random);
    problem.qk_norm = FWA_NORM_L2;
    problem.form = FWA_FORM_CHUNKED;
    cr_assert_eq(fwa_plan_create(context_of("cpu", 2), &problem, &plan), FWA_OK, "%s",
                 fwa_error_message());
    for (int alone = 0; alone < 2; alone++) {
        const int64_t rows = alone ? 1 : sequences;
        fwa_backward_args args = FWA_BACKWARD_ARGS_INIT;
        args.q = fwa_tensor_contiguous(inputs + n - rows * DIM, FWA_DTYPE_F32, 4, rows, 1, 1, DIM);
        args.k = args.v = args.o_grad = args.q;
        args.k_grad = fwa_tensor_contiguous(alone ? last : gradients, FWA_DTYPE_F32, 4, rows, 1, 1,
                                            DIM);
        cr_assert_eq(
            fwa_plan_workspace_size(plan, FWA_PASS_BACKWARD, rows, 1, rows, &args.workspace_size),
            FWA_OK);
        cr_assert(alone || args.workspace_size / sizeof(float) > (size_t)sequences * 2 * DIM * DIM,
                  "the backward keeps no states any more: %zu bytes", args.workspace_size);
        args.workspace = calloc(args.workspace_size, 1); /* no memory before it is written */
        cr_assert_not_null(args.workspace);
        cr_assert_eq(fwa_backward(plan, &args), FWA_OK, "%s", fwa_error_message());
        free(args.workspace);
    }
    cr_expect_eq(memcmp(gradients + n - DIM, last, sizeof *last * DIM), 0, "k_grad differs");
    fwa_plan_destroy(plan);
    free(inputs);
    free(gradients);
    free(last);
}

Test(long_sequences, kept_states)
{
    check_kept_states(full_tests() ? 16400 : 40); /* two states each */
}

/* 1048640 tokens of 16 heads of 128; without the long tests the same with few of them. */
Test(long_sequences, beyond_32_bits)
{
    const int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    const int64_t tokens = full_tests() ? 1048640 : 2112;
    cr_assert(!full_tests() || memory >= 12 * GIBIBYTE, "FWA_TEST_FULL=1 needs 12 GiB of memory");
    check_huge(FWA_FORM_CHUNKED, tokens);
    check_huge(FWA_FORM_RECURRENT, tokens);
}
