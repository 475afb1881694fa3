/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_verify.h"
#include "safetensors_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTYPES (FWA_DTYPE_F64 + 1) /* the floating types are 1 to F64 */
#define PROBES 4

/* How large the terms of each answer are, by the row of its tensor. */
typedef struct answer_terms {
    int32_t known;
    double norm[PROBLEM_TENSORS], largest[PROBLEM_TENSORS];
} answer_terms;

struct problem_verify {
    const safetensors *file;
    fwa_context *reference;
    int32_t backward;
    int32_t data_dtype; /* of q, k, v in the file */
    problem_answer exact;
    problem_answer rounded[DTYPES]; /* by the type of the inputs; made when first wanted */
    answer_terms terms[DTYPES];     /* likewise; F64: of the inputs as they are */
};

static int is_answer(const problem_tensor *row)
{
    return row->role == PROBLEM_OUTPUT || row->role == PROBLEM_GRADIENT;
}

/* ---- Running ---- */

static problem_run_result run_reference(const problem_verify *verify, int32_t rounded_dtype,
                                        int32_t rounded_state, uint64_t disturbed,
                                        problem_answer *answer, safetensors_message *message)
{
    const problem_run_options options = {.context = verify->reference,
                                         .form = FWA_FORM_RECURRENT,
                                         .dtype = FWA_DTYPE_F64,
                                         .rounded_dtype = rounded_dtype,
                                         .rounded_state_dtype = rounded_state,
                                         .disturbed = disturbed,
                                         .backward = verify->backward};
    return problem_run(verify->file, &options, answer, message);
}

/* ---- Terms ---- */

/* Euclidean norm and largest size of the differences of two results, or (NULL) of one result's
 * numbers; of what is finite. */
static double differences(const safetensors_tensor *left, const safetensors_tensor *right,
                          double *largest)
{
    double sum = 0;
    *largest = 0;
    for (int64_t i = safetensors_elements(left) - 1; i >= 0; i--) {
        const double other = right ? ((const double *)right->data)[i] : 0;
        const double size = fabs(((const double *)left->data)[i] - other);
        if (!isfinite(size))
            continue;
        *largest = fmax(*largest, size);
        sum += size * size;
    }
    return sqrt(sum);
}

static double largest_of(const safetensors *results)
{
    double all = 0, one;
    for (int32_t i = 0; i < safetensors_count(results); i++) {
        const safetensors_tensor *tensor = safetensors_get(results, i);
        if (tensor->dtype != FWA_DTYPE_F64)
            continue;
        differences(tensor, NULL, &one);
        all = fmax(all, one);
    }
    return all;
}

/* Takes in what inputs that are disturbed in their last digit change. */
static void add_probe(answer_terms *terms, const safetensors *results, const safetensors *probe)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const char *name = problem_tensor_get(i)->name;
        const safetensors_tensor *one = safetensors_find(results, name);
        double largest, norm;
        if (one == NULL || one->dtype != FWA_DTYPE_F64)
            continue;
        norm = differences(one, safetensors_find(probe, name), &largest);
        terms->norm[i] = fmax(terms->norm[i], norm / DBL_EPSILON);
        terms->largest[i] = fmax(terms->largest[i], largest / DBL_EPSILON);
    }
}

/* Holds what the probes said to reason. A kink (a decay just at its floor) would say too much: no
 * term is taken to be larger than the largest number of all results. Of an answer that is zero to
 * the last digit, disturbed or not, they say nothing: it is held to zero absolutely, as where the
 * right answer is one, though the file has another algebra's rounding there. */
static void bound_terms(answer_terms *terms, const safetensors *results)
{
    const double most = largest_of(results);
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const safetensors_tensor *one = safetensors_find(results, problem_tensor_get(i)->name);
        double largest;
        if (one == NULL || one->dtype != FWA_DTYPE_F64)
            continue;
        if (terms->largest[i] == 0 && differences(one, NULL, &largest) == 0) {
            terms->largest[i] = 1;
            terms->norm[i] = sqrt((double)safetensors_elements(one));
        }
        const double down = terms->largest[i] > most ? most / terms->largest[i] : 1;
        terms->norm[i] *= down;
        terms->largest[i] *= down;
    }
}

/* Where the float64 recurrence changes by d when each input changes by its last digit, d over that
 * digit is what its terms sum up to, even where all that is left of them is rounding. */
static const answer_terms *terms_of(problem_verify *verify, int32_t inputs,
                                    const problem_answer *answer)
{
    answer_terms *terms = &verify->terms[inputs];
    const int32_t rounded = inputs == FWA_DTYPE_F64 ? FWA_DTYPE_NONE : inputs;
    if (terms->known)
        return terms;
    terms->known = 1;
    for (uint64_t i = 1; i <= PROBES; i++) {
        problem_answer probe;
        safetensors_message message;
        if (run_reference(verify, rounded, FWA_DTYPE_NONE, i << 32, &probe, &message) !=
            PROBLEM_RUN_OK)
            continue;
        add_probe(terms, answer->results, probe.results);
        problem_answer_free(&probe);
    }
    bound_terms(terms, answer->results);
    return terms;
}

/* ---- Comparing ---- */

static compare_bound answer_bound(const problem_verify *verify, const safetensors_tensor *answer)
{
    const compare_bound bound = compare_bound_for(answer->dtype);
    return answer->dtype == FWA_DTYPE_F64
               ? bound
               : compare_bound_looser(bound, compare_bound_for(verify->data_dtype));
}

/* The numbers that a plan of that type has none for, of one tensor. */
static double smallest_of(const problem_tensor *row, int32_t dtype)
{
    const fwa_problem problem = {.dtype = dtype};
    return compare_smallest_for(problem_tensor_dtype(row, &problem));
}

/* Two sides of one comparison. */
typedef struct sides {
    const safetensors_tensor *got, *want;
    double smallest;
    int32_t inputs;              /* the type that they were rounded to; NONE: no terms are known */
    const problem_answer *exact; /* of the reference on these inputs */
    const char *against;
} sides;

/* Terms are looked for only where an answer would fail without. */
static void judge(problem_verify *verify, const sides *s, compare_bound bound,
                  problem_verdict *verdict)
{
    compare_allowance allowance = {s->smallest, 0, 0};
    compare_error error = compare_tensors_allowing(s->got, s->want, &allowance);
    double ratio = compare_ratio(error, bound);
    if (ratio > 1 && s->inputs != FWA_DTYPE_NONE) {
        const answer_terms *terms = terms_of(verify, s->inputs, s->exact);
        for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
            if (strcmp(problem_tensor_get(i)->name, s->want->name) != 0)
                continue;
            allowance.terms_norm = terms->norm[i];
            allowance.terms_largest = terms->largest[i];
        }
        error = compare_tensors_allowing(s->got, s->want, &allowance);
        ratio = compare_ratio(error, bound);
    }
    if (verdict->against != NULL && ratio <= verdict->ratio)
        return;
    snprintf(verdict->tensor, sizeof verdict->tensor, "%s", s->want->name);
    verdict->against = s->against;
    verdict->error = error;
    verdict->bound = bound;
    verdict->ratio = ratio;
}

/* Holds results to the file's answers; `dtype` is that of the run, NONE for the exact one. */
static void judge_answers(problem_verify *verify, const safetensors *results, int32_t dtype,
                          const char *against, problem_verdict *verdict)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const safetensors_tensor *want = safetensors_find(verify->file, row->name);
        if (!is_answer(row) || want == NULL)
            continue;
        const int32_t stored = want->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : verify->data_dtype;
        const sides s = {.got = safetensors_find(results, row->name),
                         .want = want,
                         .smallest = fmax(compare_smallest_for(want->dtype),
                                          fmax(smallest_of(row, stored), smallest_of(row, dtype))),
                         .inputs = FWA_DTYPE_F64,
                         .exact = &verify->exact,
                         .against = against};
        judge(verify, &s,
              compare_bound_looser(answer_bound(verify, want), compare_bound_for(dtype)), verdict);
    }
}

/* Holds a run to the reference on the same rounded inputs. */
static void judge_rounded(problem_verify *verify, const problem_answer *got,
                          const problem_answer *want, int32_t inputs, problem_verdict *verdict)
{
    for (int32_t i = 0; i < safetensors_count(want->results); i++) {
        const safetensors_tensor *tensor = safetensors_get(want->results, i);
        const problem_tensor *row = problem_tensor_find(tensor->name);
        const int32_t dtype = problem_tensor_dtype(row, &got->problem);
        const sides s = {.got = safetensors_find(got->results, tensor->name),
                         .want = tensor,
                         .smallest = compare_smallest_for(dtype),
                         .inputs = inputs,
                         .exact = want,
                         .against = "rounded"};
        judge(verify, &s,
              compare_bound_looser(compare_bound_for(got->problem.dtype), compare_bound_for(dtype)),
              verdict);
    }
}

static problem_run_result check_answers(const problem_verify *verify, safetensors_message *message)
{
    int32_t answers = 0;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (!is_answer(row) || safetensors_find(verify->file, row->name) == NULL)
            continue;
        answers++;
        if (safetensors_find(verify->exact.results, row->name) == NULL) {
            safetensors_fail(message, "tensor '%s' answers what the file does not ask%s", row->name,
                             row->role == PROBLEM_GRADIENT && !verify->backward
                                 ? ": tensor 'do' is missing"
                                 : "");
            return PROBLEM_RUN_BAD_FILE;
        }
    }
    if (answers > 0)
        return PROBLEM_RUN_OK;
    safetensors_fail(message, "the file holds no answers to verify");
    return PROBLEM_RUN_BAD_FILE;
}

problem_run_result problem_verify_begin(const safetensors *file, fwa_context *reference,
                                        problem_verify **verify, fwa_status *status,
                                        safetensors_message *message)
{
    fwa_problem problem;
    *verify = NULL;
    *status = FWA_ERROR_MEMORY;
    if (problem_file_read_problem(file, &problem, message))
        return PROBLEM_RUN_BAD_FILE;
    problem_verify *made = calloc(1, sizeof *made);
    if (made == NULL) {
        safetensors_fail(message, "out of memory");
        return PROBLEM_RUN_REFUSED;
    }
    made->file = file;
    made->reference = reference;
    made->backward = safetensors_find(file, "do") != NULL;
    made->data_dtype = problem.dtype;
    problem_run_result result = run_reference(made, FWA_DTYPE_NONE, FWA_DTYPE_NONE, 0, &made->exact,
                                              message);
    *status = made->exact.status;
    if (result == PROBLEM_RUN_OK)
        result = check_answers(made, message);
    if (result == PROBLEM_RUN_OK)
        *verify = made;
    else
        problem_verify_end(made);
    return result;
}

/* The reference's answer on inputs rounded to a run's types; *made is freed by the caller where the
 * answer is not one that is kept. */
static problem_run_result rounded_answer(problem_verify *verify, const problem_run_options *options,
                                         problem_answer *made, const problem_answer **answer,
                                         safetensors_message *message)
{
    const int32_t dtype = options->dtype == FWA_DTYPE_NONE ? verify->data_dtype : options->dtype;
    if (dtype == FWA_DTYPE_F64 && options->state_dtype == FWA_DTYPE_NONE) {
        *answer = &verify->exact;
        return PROBLEM_RUN_OK;
    }
    problem_answer *store = options->state_dtype == FWA_DTYPE_NONE ? &verify->rounded[dtype] : made;
    *answer = store;
    return store->results != NULL
               ? PROBLEM_RUN_OK
               : run_reference(verify, dtype, options->state_dtype, 0, store, message);
}

problem_run_result problem_verify_run(problem_verify *verify, const problem_run_options *options,
                                      problem_verdict *verdict, fwa_status *status,
                                      safetensors_message *message)
{
    problem_run_options with_backward = *options;
    problem_answer got, made = {0};
    const problem_answer *want = NULL;
    with_backward.backward = verify->backward;
    problem_run_result result = problem_run(verify->file, &with_backward, &got, message);
    *status = got.status;
    if (result != PROBLEM_RUN_OK)
        return result;
    const int32_t dtype = got.problem.dtype;
    memset(verdict, 0, sizeof *verdict);
    judge_answers(verify, verify->exact.results, FWA_DTYPE_NONE, "answers", verdict);
    if ((dtype == FWA_DTYPE_F64 || dtype == FWA_DTYPE_F32) &&
        options->state_dtype == FWA_DTYPE_NONE)
        judge_answers(verify, got.results, dtype, "direct", verdict);
    result = rounded_answer(verify, options, &made, &want, message);
    if (result == PROBLEM_RUN_OK)
        judge_rounded(verify, &got, want,
                      options->state_dtype == FWA_DTYPE_NONE ? dtype : FWA_DTYPE_NONE, verdict);
    else
        *status = want->status;
    const problem_tensor *worst = problem_tensor_find(verdict->tensor);
    snprintf(verdict->kernel, sizeof verdict->kernel, "%s",
             got.kernel[worst != NULL && worst->role == PROBLEM_GRADIENT ? FWA_PASS_BACKWARD
                                                                         : FWA_PASS_FORWARD]);
    verdict->passed = verdict->ratio <= 1;
    problem_answer_free(&made);
    problem_answer_free(&got);
    return result;
}

int problem_verify_backward(const problem_verify *verify)
{
    return verify->backward;
}

void problem_verify_end(problem_verify *verify)
{
    if (verify == NULL)
        return;
    problem_answer_free(&verify->exact);
    for (int32_t i = 0; i < DTYPES; i++)
        problem_answer_free(&verify->rounded[i]);
    free(verify);
}
