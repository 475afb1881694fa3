/* SPDX-License-Identifier: Apache-2.0 */
/* Long sequences, and tensors of more than 2^31 elements. The largest ones run with
 * FWA_TEST_FULL=1. */

#include "support.h"

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

/* 1048640 tokens of 16 heads of 128; without the long tests the same with few of them. */
Test(long_sequences, beyond_32_bits)
{
    const int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    const int64_t tokens = full_tests() ? 1048640 : 2112;
    cr_assert(!full_tests() || memory >= 12 * GIBIBYTE, "FWA_TEST_FULL=1 needs 12 GiB of memory");
    check_huge(FWA_FORM_CHUNKED, tokens);
    check_huge(FWA_FORM_RECURRENT, tokens);
}
