/* SPDX-License-Identifier: Apache-2.0 */
/* What an error is, how a file is bound and run, and that verifying sees what is wrong. */
#include "../src/files/compare.h"
#include "../src/files/problem_answer.h"
#include "../src/files/problem_verify.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Errors
 * -------------------------------------------------------------------------------------- */

static const struct {
    double got[3], want[3];
    int64_t n;
    double rms, maximum;
} pairs[] = {
    {{3, 4.5}, {3, 4}, 2, 0.1, 0.125},
    {{0, 0, 0}, {0, 3, 4}, 3, 1, 1},
    {{5}, {5}, 1, 0, 0},
    {{7}, {1}, 0, 0, 0},
    {{0, 0}, {0, 0}, 2, 0, 0},
    {{3, -4}, {0, 0}, 2, 3.5355339059327378, 4}, /* absolute: sqrt(25 / 2) */
    {{-0.0, 0}, {0.0, -0.0}, 2, 0, 0},
    {{3e200, 4.5e200}, {3e200, 4e200}, 2, 0.1, 0.125},     /* squares overflow */
    {{3e-200, 4.5e-200}, {3e-200, 4e-200}, 2, 0.1, 0.125}, /* squares vanish */
    {{NAN, 3, 4.5}, {NAN, 3, 4}, 3, 0.1, 0.125},
    {{INFINITY, 3, 4.5}, {INFINITY, 3, 4}, 3, 0.1, 0.125},
    {{NAN}, {NAN}, 1, 0, 0},
    {{NAN, 4}, {3, 4}, 2, INFINITY, INFINITY},
    {{3, 4}, {NAN, 4}, 2, INFINITY, INFINITY},
    {{INFINITY}, {-INFINITY}, 1, INFINITY, INFINITY},
    {{INFINITY}, {NAN}, 1, INFINITY, INFINITY},
    {{1}, {INFINITY}, 1, INFINITY, INFINITY},
    {{1e308}, {-1e308}, 1, INFINITY, INFINITY}, /* the difference overflows */
};

static void expect_close(double got, double want, size_t row)
{
    if (isinf(want))
        cr_expect_eq(got, want, "row %zu", row);
    else
        cr_expect_leq(fabs(got - want), 1e-14, "row %zu: %g, not %g", row, got, want);
}

Test(compare, definition)
{
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const compare_error error = compare_arrays(pairs[i].got, pairs[i].want, pairs[i].n);
        expect_close(error.rms, pairs[i].rms, i);
        expect_close(error.maximum, pairs[i].maximum, i);
    }
}

Test(compare, tensors)
{
    static const int64_t two[] = {2}, row[] = {1, 2};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    safetensors_tensor *wide = safetensors_add(file, "a", FWA_DTYPE_F64, 1, two, &message);
    safetensors_tensor *half = safetensors_add(file, "b", FWA_DTYPE_F16, 1, two, &message);
    safetensors_tensor *flat = safetensors_add(file, "c", FWA_DTYPE_F64, 2, row, &message);
    safetensors_tensor *count = safetensors_add(file, "d", FWA_DTYPE_I64, 1, two, &message);
    safetensors_tensor *other = safetensors_add(file, "e", FWA_DTYPE_I64, 1, two, &message);
    ((double *)wide->data)[0] = 3;
    ((double *)wide->data)[1] = 4;
    ((uint16_t *)half->data)[0] = 0x4200; /* 3 */
    ((uint16_t *)half->data)[1] = 0x4480; /* 4.5 */
    expect_close(compare_tensors(half, wide).rms, 0.1, 0);
    cr_expect_eq(compare_tensors(flat, wide).rms, INFINITY);
    cr_expect_eq(compare_tensors(count, wide).rms, INFINITY);
    /* Beyond 2^53 doubles would not see the difference. */
    ((int64_t *)count->data)[0] = ((int64_t)1 << 53) + 1;
    ((int64_t *)other->data)[0] = (int64_t)1 << 53;
    cr_expect_eq(compare_tensors(count, other).maximum, INFINITY);
    ((int64_t *)other->data)[0]++;
    cr_expect_eq(compare_tensors(count, other).maximum, 0);
    safetensors_free(file);
}

Test(compare, bounds)
{
    const compare_bound f64 = compare_bound_for(FWA_DTYPE_F64);
    const compare_bound f32 = compare_bound_for(FWA_DTYPE_F32);
    const compare_bound none = compare_bound_for(FWA_DTYPE_I64);
    cr_expect_leq(f64.rms, 1e-9);
    cr_expect_leq(f32.rms, 2e-5);
    cr_expect_leq(compare_bound_for(FWA_DTYPE_F16).rms, 1e-3);
    cr_expect_leq(compare_bound_for(FWA_DTYPE_BF16).rms, 4e-3);
    cr_expect_eq(compare_bound_looser(f32, f64).rms, f32.rms);
    cr_expect_eq(compare_bound_looser(f64, f32).maximum, f32.maximum);
    cr_expect_eq(compare_ratio((compare_error){0, 0}, none), 0);
    cr_expect_eq(compare_ratio((compare_error){INFINITY, INFINITY}, f64), INFINITY);
    cr_expect_eq(compare_ratio((compare_error){INFINITY, INFINITY}, none), INFINITY);
    cr_expect_eq(compare_ratio((compare_error){2 * f32.rms, 0}, f32), 2);
    cr_expect_eq(compare_ratio((compare_error){f32.rms, 4 * f32.maximum}, f32), 4);
}

/* Small numbers: what a type has no numbers for, and what is left of terms that cancel. */
static const struct {
    double got[2], want[2];
    compare_allowance allowance; /* of two elements with terms of 1: {smallest, sqrt(2), 1} */
    double rms, maximum;
} small[] = {
    /* Flushed, or rounded to a multiple of 2^-24: nothing. */
    {{0, 0}, {1e-45, -1e-38}, {0x1p-116, 0, 0}, 0, 0},
    {{0, 0x1p-24}, {0x1p-26, 0x1.8p-24}, {0x1p-25, 0, 0}, 0, 0},
    /* What is beyond counts as ever: twice what is allowed, and a number where there is none. */
    {{0, 0}, {0x1p-24, 0}, {0x1p-25, 0, 0}, 0.5, 0.5},
    {{1 + 0x1p-25, 0}, {0, 0}, {0x1p-25, 0, 0}, 0.70710678118654757, 1},
    {{3, 4.5}, {3, 4}, {0x1p-116, 0, 0}, 0.1, 0.125},
    {{NAN, 0}, {0, 0}, {0x1p-25, 0, 0}, INFINITY, INFINITY},
    /* Rounding of terms of 1, in float32 and in float64; a wrong gradient; a wrong zero. */
    {{3e-8, 0}, {1e-17, 0}, {0, 1.4142135623730951, 1}, 2.1213203428602677e-8, 2.999999999e-8},
    {{0, 1e-3}, {1e-17, 0}, {0, 1.4142135623730951, 1}, 7.0710678118654755e-4, 1e-3},
    {{0, 0}, {0x1p-25, 0}, {0, 1.4142135623730951, 1}, 2.1073424255447017e-8, 0x1p-25},
    /* Terms of 1 have digits of 2^-24 and more: relative to itself. */
    {{0, 0}, {0x1p-24, 0}, {0, 1.4142135623730951, 1}, 1, 1},
    {{3e-6, 0}, {1e-6, 0}, {0, 1.4142135623730951, 1}, 2, 2},
    {{3, 4.5}, {3, 4}, {0, 1.4142135623730951, 1}, 0.1, 0.125},
};

Test(compare, small_numbers)
{
    static const int64_t two[] = {2};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    safetensors_tensor *got = safetensors_add(file, "a", FWA_DTYPE_F64, 1, two, &message);
    safetensors_tensor *want = safetensors_add(file, "b", FWA_DTYPE_F64, 1, two, &message);
    for (size_t i = 0; i < COUNT(small); i++) {
        memcpy(got->data, small[i].got, sizeof small[i].got);
        memcpy(want->data, small[i].want, sizeof small[i].want);
        const compare_error error = compare_tensors_allowing(got, want, &small[i].allowance);
        expect_close(error.rms, small[i].rms, i);
        expect_close(error.maximum, small[i].maximum, i);
    }
    safetensors_free(file);
    /* Far below all that anybody computes with, and no more than rounding in f16. */
    cr_expect_leq(compare_smallest_for(FWA_DTYPE_F64), 1e-300);
    cr_expect_leq(compare_smallest_for(FWA_DTYPE_F32), 1e-34);
    cr_expect_leq(compare_smallest_for(FWA_DTYPE_BF16), 1e-34);
    cr_expect_leq(compare_smallest_for(FWA_DTYPE_F16), 0x1p-25);
    cr_expect_eq(compare_smallest_for(FWA_DTYPE_I64), 0);
}

/* ---- Files
 * --------------------------------------------------------------------------------------- */

static safetensors *vector(const char *name)
{
    char path[4096];
    const char *folder = getenv("FWA_VECTORS");
    safetensors_message message = {""};
    snprintf(path, sizeof path, "%s/%s.safetensors", folder ? folder : "tests/vectors", name);
    safetensors *file = safetensors_read(path, &message);
    cr_assert_not_null(file, "%s", message.text);
    return file;
}

static fwa_context *reference(void)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context;
    options.backend = "reference";
    cr_assert_eq(fwa_context_create(&options, &context), FWA_OK, "%s", fwa_error_message());
    return context;
}

/* The file without one tensor. */
static safetensors *without(const char *name, const char *dropped)
{
    safetensors_message message = {""};
    safetensors *file = vector(name), *out = safetensors_new(&message);
    for (int32_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *one = safetensors_get(file, i);
        if (strcmp(one->name, dropped) == 0)
            continue;
        memcpy(safetensors_add(out, one->name, one->dtype, one->rank, one->shape, &message)->data,
               one->data, one->size);
    }
    for (int32_t i = 0; i < safetensors_metadata_count(file); i++) {
        const char *key = safetensors_metadata_key(file, i);
        safetensors_set_metadata(out, key, safetensors_metadata(file, key), &message);
    }
    safetensors_free(file);
    return out;
}

static const problem_buffer *bound(const problem_binding *binding, const char *name)
{
    for (int32_t i = 0; i < binding->count; i++)
        if (strcmp(binding->buffers[i].row->name, name) == 0)
            return &binding->buffers[i];
    return NULL;
}

Test(problem_run, binding_converts_and_rounds)
{
    safetensors *file = vector("falcon3_continue");
    safetensors_message message = {""};
    problem_binding binding;
    const double q0 = ((const double *)safetensors_find(file, "q")->data)[0];

    problem_run_options options = {.dtype = FWA_DTYPE_BF16, .state_dtype = FWA_DTYPE_F16};
    cr_assert_eq(problem_bind(file, &options, &binding, &message), 0, "%s", message.text);
    cr_expect_eq(bound(&binding, "q")->tensor.dtype, FWA_DTYPE_BF16);
    cr_expect_eq(bound(&binding, "beta")->tensor.dtype, FWA_DTYPE_F32);
    cr_expect_eq(bound(&binding, "state_in")->tensor.dtype, FWA_DTYPE_F16);
    cr_expect_eq(bound(&binding, "tail_key_in")->tensor.dtype, FWA_DTYPE_F32);
    cr_expect_eq(bound(&binding, "seen_in")->tensor.dtype, FWA_DTYPE_I64);
    cr_expect_null(bound(&binding, "o")->tensor.data);
    cr_expect_null(bound(&binding, "do"), "the backward was not asked for");
    cr_expect_null(bound(&binding, "norm_out"), "there is no normaliser");
    const uint32_t bits = (uint32_t) * (const uint16_t *)bound(&binding, "q")->tensor.data << 16;
    float rounded;
    memcpy(&rounded, &bits, sizeof rounded);
    cr_expect_leq(fabs((double)rounded - q0), fabs(q0) / 256);
    problem_binding_free(&binding);

    /* F64 that was rounded to bf16 first: the same number. */
    options = (problem_run_options){
        .dtype = FWA_DTYPE_F64, .rounded_dtype = FWA_DTYPE_BF16, .backward = 1};
    cr_assert_eq(problem_bind(file, &options, &binding, &message), 0, "%s", message.text);
    cr_expect_eq(*(const double *)bound(&binding, "q")->tensor.data, (double)rounded);
    cr_expect_neq(*(const double *)bound(&binding, "q")->tensor.data, q0);
    cr_expect_not_null(bound(&binding, "dtail_key_in"));
    cr_expect_null(bound(&binding, "dlog_gate"), "the file has no gate");
    problem_binding_free(&binding);
    safetensors_free(file);
}

/* Few bytes that ask for much: 2^40 fresh sequences without a token. */
Test(problem_run, results_are_bounded_by_the_file)
{
    static const int64_t q[] = {(int64_t)1 << 40, 0, 1, 4}, beta[] = {(int64_t)1 << 40, 0, 1};
    const problem_run_options options = {.dtype = FWA_DTYPE_F32};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    problem_binding binding;
    safetensors_add(file, "q", FWA_DTYPE_F32, 4, q, &message);
    safetensors_add(file, "k", FWA_DTYPE_F32, 4, q, &message);
    safetensors_add(file, "v", FWA_DTYPE_F32, 4, q, &message);
    safetensors_add(file, "beta", FWA_DTYPE_F32, 3, beta, &message);
    safetensors_add(file, "lambda", FWA_DTYPE_F32, 3, beta, &message);
    safetensors_set_metadata(file, "rule", "falcon1", &message);
    cr_expect_eq(problem_bind(file, &options, &binding, &message), -1);
    cr_expect_not_null(strstr(message.text, "the limit is 256 MiB and 1024 times the inputs"), "%s",
                       message.text);
    safetensors_free(file);
}

Test(problem_run, gives_the_vectors_answers)
{
    safetensors *file = vector("falcon3_packed");
    fwa_context *context = reference();
    safetensors_message message = {""};
    const problem_run_options options = {.context = context, .dtype = FWA_DTYPE_F64, .backward = 1};
    problem_answer answer;
    cr_assert_eq(problem_run(file, &options, &answer, &message), PROBLEM_RUN_OK, "%s",
                 message.text);
    cr_expect_str_eq(answer.kernel[FWA_PASS_FORWARD],
                     "reference/recurrent/regression/head/window4/f64");
    int answers = 0;
    for (int32_t i = 0; i < safetensors_count(answer.results); i++) {
        const safetensors_tensor *got = safetensors_get(answer.results, i);
        const safetensors_tensor *want = safetensors_find(file, got->name);
        cr_assert_not_null(want, "%s", got->name);
        cr_expect_leq(compare_tensors(got, want).rms, 1e-12, "%s", got->name);
        answers++;
    }
    cr_expect_eq(answers, 16); /* o, 5 carry parts; 6 inputs and 4 carry parts have gradients */
    problem_answer_free(&answer);
    fwa_context_destroy(context);
    safetensors_free(file);
}

Test(problem_run, an_answer_is_a_problem_file)
{
    safetensors *file = vector("falcon1_continue");
    fwa_context *context = reference();
    safetensors_message message = {""};
    const problem_run_options options = {
        .context = context, .dtype = FWA_DTYPE_BF16, .state_dtype = FWA_DTYPE_F16, .backward = 1};
    problem_answer answer;
    problem_verify *verify;
    problem_verdict verdict;
    fwa_status status;
    cr_assert_eq(problem_run(file, &options, &answer, &message), PROBLEM_RUN_OK, "%s",
                 message.text);
    safetensors *out = problem_answer_file(file, &options, &answer, &message);
    cr_assert_not_null(out, "%s", message.text);
    cr_expect_eq(safetensors_count(out), safetensors_count(file));
    cr_expect_eq(safetensors_find(out, "q")->dtype, FWA_DTYPE_BF16);
    cr_expect_eq(safetensors_find(out, "do")->dtype, FWA_DTYPE_BF16);
    cr_expect_eq(safetensors_find(out, "o")->dtype, FWA_DTYPE_F32);
    cr_expect_eq(safetensors_find(out, "dq")->dtype, FWA_DTYPE_F32);
    cr_expect_eq(safetensors_find(out, "state_out")->dtype, FWA_DTYPE_F16);
    cr_expect_eq(safetensors_find(out, "seen_out")->dtype, FWA_DTYPE_I64);
    cr_assert_eq(problem_verify_begin(out, context, &verify, &status, &message), PROBLEM_RUN_OK,
                 "%s", message.text);
    const problem_run_options again = {.context = context};
    cr_assert_eq(problem_verify_run(verify, &again, &verdict, &status, &message), PROBLEM_RUN_OK);
    cr_expect(verdict.passed, "%s %s %g", verdict.tensor, verdict.against, verdict.error.rms);
    problem_verify_end(verify);
    safetensors_free(out);
    problem_answer_free(&answer);
    fwa_context_destroy(context);
    safetensors_free(file);
}

/* ---- Verifying
 * ----------------------------------------------------------------------------------- */

static problem_verdict verdict_on(const safetensors *file, const char *backend, int32_t dtype)
{
    fwa_context_options with = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = reference(), *run = NULL;
    with.backend = backend;
    cr_assert_eq(fwa_context_create(&with, &run), FWA_OK, "%s", fwa_error_message());
    const problem_run_options options = {.context = run, .dtype = dtype};
    safetensors_message message = {""};
    problem_verdict verdict;
    problem_verify *verify;
    fwa_status status;
    cr_assert_eq(problem_verify_begin(file, context, &verify, &status, &message), PROBLEM_RUN_OK,
                 "%s", message.text);
    cr_assert_eq(problem_verify_run(verify, &options, &verdict, &status, &message), PROBLEM_RUN_OK,
                 "%s", message.text);
    problem_verify_end(verify);
    fwa_context_destroy(run);
    fwa_context_destroy(context);
    return verdict;
}

static problem_verdict verdict_of(const safetensors *file, int32_t dtype)
{
    return verdict_on(file, "reference", dtype);
}

static const int32_t dtypes[] = {FWA_DTYPE_F64, FWA_DTYPE_F32, FWA_DTYPE_BF16, FWA_DTYPE_F16};

/* A wrong answer fails in every type, however coarse: the reference sees it at 1e-9. */
Test(problem_verify, sees_a_wrong_answer_in_every_type)
{
    static const char *const names[] = {"o", "state_out", "dq", "dlambda"};
    for (size_t i = 0; i < COUNT(names); i++) {
        safetensors *file = vector("falcon1_plain");
        double *data = safetensors_find(file, names[i])->data;
        for (size_t j = 0; j < COUNT(dtypes); j++)
            cr_expect(verdict_of(file, dtypes[j]).passed, "%s", names[i]);
        data[3] += 1e-6;
        for (size_t j = 0; j < COUNT(dtypes); j++) {
            const problem_verdict verdict = verdict_of(file, dtypes[j]);
            cr_expect_not(verdict.passed);
            cr_expect_str_eq(verdict.tensor, names[i]);
            cr_expect_str_eq(verdict.against, "answers");
        }
        data[3] = NAN;
        cr_expect_eq(verdict_of(file, FWA_DTYPE_F32).ratio, INFINITY);
        safetensors_free(file);
    }
}

/* A problem file as the reference answers it. Frees the question. */
static safetensors *answered(safetensors *file)
{
    fwa_context *context = reference();
    safetensors_message message = {""};
    const problem_run_options options = {.context = context, .dtype = FWA_DTYPE_F64, .backward = 1};
    problem_answer answer;
    cr_assert_eq(problem_run(file, &options, &answer, &message), PROBLEM_RUN_OK, "%s",
                 message.text);
    safetensors *out = problem_answer_file(file, &options, &answer, &message);
    cr_assert_not_null(out, "%s", message.text);
    problem_answer_free(&answer);
    fwa_context_destroy(context);
    safetensors_free(file);
    return out;
}

static double *doubles(safetensors *file, const char *name)
{
    return safetensors_find(file, name)->data;
}

static void fill(safetensors *file, const char *name, double value)
{
    for (int64_t i = safetensors_elements(safetensors_find(file, name)) - 1; i >= 0; i--)
        doubles(file, name)[i] = value;
}

/* The file passes on both backends in each of their types; with `off` added to an element of the
 * tensor it fails in all. */
static void expect_right_and_wrong(safetensors *file, const char *name, int64_t at, double off)
{
    double *data = doubles(file, name), right = data[at];
    for (int wrong = 0; wrong < 2; wrong++) {
        data[at] = wrong ? right + off : right;
        for (size_t i = 0; i < 2 * COUNT(dtypes); i++) {
            const char *backend = i % 2 ? "cpu" : "reference";
            if (i % 2 && dtypes[i / 2] == FWA_DTYPE_F64)
                continue;
            const problem_verdict verdict = verdict_on(file, backend, dtypes[i / 2]);
            cr_expect(verdict.passed != wrong, "%s %s: %s is off by %g, against %s", backend,
                      fwa_dtype_name(dtypes[i / 2]), verdict.tensor, verdict.error.rms,
                      verdict.against);
            cr_expect(!wrong || strcmp(verdict.tensor, name) == 0, "%s", verdict.tensor);
        }
    }
    safetensors_free(file);
}

/* Gradients of a millionth: f16 has few numbers there. */
Test(problem_verify, takes_what_f16_has_no_numbers_for)
{
    safetensors_message message = {""};
    safetensors *file = vector("falcon1_plain");
    safetensors_set_metadata(file, "scale", "1e-6", &message);
    expect_right_and_wrong(answered(file), "dq", 3, 1e-6);
}

/* Gradients of a gate at -104 are numbers that kernels flush. */
Test(problem_verify, takes_what_float32_has_no_numbers_for)
{
    safetensors *file = vector("falcon1a_gate_ramp");
    fill(file, "log_gate", -100);
    file = answered(file);
    cr_expect_lt(fabs(doubles(file, "dlog_gate")[3]), 1e-38);
    expect_right_and_wrong(file, "dlog_gate", 3, 1e-20);
}

/* Queries of one coordinate, and reads that are divided by their product with the keys' sum: no output
 * depends on them. What the file holds for their gradient is rounding. */
static safetensors *cancelling(void)
{
    static const struct {
        const char *name;
        int32_t rank;
        int64_t shape[4];
    } tensors[] = {{"q", 4, {1, 5, 1, 1}}, {"k", 4, {1, 5, 1, 1}},   {"v", 4, {1, 5, 1, 3}},
                   {"beta", 3, {1, 5, 1}}, {"lambda", 3, {1, 5, 1}}, {"do", 4, {1, 5, 1, 3}}};
    static const char *const knobs[][2] = {
        {"rule", "falcon1a"}, {"normalizer", "1"}, {"align", "same_step"}};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    for (size_t i = 0; i < COUNT(tensors); i++) {
        safetensors_tensor *tensor = safetensors_add(file, tensors[i].name, FWA_DTYPE_F64,
                                                     tensors[i].rank, tensors[i].shape, &message);
        for (int64_t j = safetensors_elements(tensor) - 1; j >= 0; j--)
            ((double *)tensor->data)[j] = 0.1 + fmod(0.618 * (double)(j + 1) * (double)(i + 1), 1);
    }
    for (size_t i = 0; i < COUNT(knobs); i++)
        safetensors_set_metadata(file, knobs[i][0], knobs[i][1], &message);
    return answered(file);
}

Test(problem_verify, takes_what_is_left_of_terms)
{
    safetensors *file = cancelling();
    const int64_t n = safetensors_elements(safetensors_find(file, "dq"));
    double all = 0;
    for (int64_t i = 0; i < n; i++)
        all += fabs(doubles(file, "dq")[i]);
    cr_expect(all > 0 && all < 1e-12, "%g", all);
    expect_right_and_wrong(file, "dq", 1, 1e-6);
    file = cancelling(); /* where the file holds zeros instead */
    memset(doubles(file, "dq"), 0, (size_t)n * sizeof(double));
    expect_right_and_wrong(file, "dq", 2, 1e-6);
}

/* Where nothing is learned, the gradient of a value is zero, in the reference to the last digit. */
Test(problem_verify, takes_zeros_of_another_algebra)
{
    safetensors *file = vector("falcon1a_plain");
    fill(file, "beta", 0);
    file = answered(file);
    cr_expect_eq(doubles(file, "dv")[1], 0);
    doubles(file, "dv")[1] = 3e-16;
    expect_right_and_wrong(file, "dv", 4, 1e-6);
}

/* Decays that are just at their floor: the least change of an input turns gradients on or off. That
 * makes no wrong answer right. */
Test(problem_verify, kinks_excuse_nothing)
{
    safetensors_message message = {""};
    safetensors *file = vector("falcon1a_plain");
    safetensors_set_metadata(file, "step", "direct", &message);
    safetensors_set_metadata(file, "decay_floor", "0.5", &message);
    fill(file, "beta", 0.5);
    fill(file, "lambda", 1);
    expect_right_and_wrong(answered(file), "dlambda", 3, 0.125);
}

Test(problem_verify, sees_a_wrong_count)
{
    safetensors *file = vector("falcon1_continue");
    ((int64_t *)safetensors_find(file, "seen_out")->data)[1]++;
    const problem_verdict verdict = verdict_of(file, FWA_DTYPE_F64);
    cr_expect_not(verdict.passed);
    cr_expect_str_eq(verdict.tensor, "seen_out");
    safetensors_free(file);
}

static void expect_bad_file(safetensors *file, const char *words)
{
    fwa_context *context = reference();
    safetensors_message message = {""};
    problem_verify *verify;
    fwa_status status;
    cr_expect_eq(problem_verify_begin(file, context, &verify, &status, &message),
                 PROBLEM_RUN_BAD_FILE);
    cr_expect_null(verify);
    cr_expect_not_null(strstr(message.text, words), "%s", message.text);
    fwa_context_destroy(context);
    safetensors_free(file);
}

Test(problem_verify, needs_questions_and_answers)
{
    static const int64_t shape[] = {1, 2, 1, 1}, gate[] = {1, 2, 1};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    for (const char *const *name = (const char *const[]){"q", "k", "v", NULL}; *name; name++)
        safetensors_add(file, *name, FWA_DTYPE_F64, 4, shape, &message);
    safetensors_add(file, "beta", FWA_DTYPE_F64, 3, gate, &message);
    safetensors_add(file, "lambda", FWA_DTYPE_F64, 3, gate, &message);
    safetensors_set_metadata(file, "rule", "falcon1", &message);
    expect_bad_file(file, "the file holds no answers to verify");
    expect_bad_file(without("falcon1_plain", "do"),
                    "answers what the file does not ask: tensor 'do' is missing");
    file = vector("falcon1_plain");
    static const int64_t tail[] = {1, 3, 2, 8};
    safetensors_add(file, "tail_key_out", FWA_DTYPE_F64, 4, tail, &message);
    expect_bad_file(file, "tensor 'tail_key_out' answers what the file does not ask");
}

/* What the library says about a file's contents reaches the caller. */
Test(problem_run, passes_on_the_librarys_words)
{
    fwa_context *context = reference();
    safetensors *file = vector("falcon1_plain");
    const problem_run_options options = {.context = context};
    safetensors_message message = {""};
    problem_answer answer;
    ((double *)safetensors_find(file, "beta")->data)[2] = -1;
    cr_expect_eq(problem_run(file, &options, &answer, &message), PROBLEM_RUN_REFUSED);
    cr_expect_eq(answer.status, FWA_ERROR_VALUE);
    cr_expect_not_null(strstr(message.text, "beta"), "%s", message.text);
    safetensors_free(file);
    file = without("falcon1_plain", "do");
    const problem_run_options backward = {.context = context, .backward = 1};
    cr_expect_eq(problem_run(file, &backward, &answer, &message), PROBLEM_RUN_BAD_FILE);
    cr_expect_not_null(strstr(message.text, "tensor 'do' is missing"), "%s", message.text);
    safetensors_free(file);
    fwa_context_destroy(context);
}
