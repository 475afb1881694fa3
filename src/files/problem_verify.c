/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_verify.h"
#include "safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTYPES (FWA_DTYPE_F64 + 1) /* the floating types are 1 to F64 */

struct problem_verify {
    const safetensors *file;
    fwa_context *reference;
    int32_t backward;
    int32_t data_dtype; /* of q, k, v in the file */
    problem_answer exact;
    problem_answer rounded[DTYPES]; /* by the type of the inputs; made when first wanted */
};

static int is_answer(const problem_tensor *row)
{
    return row->role == PROBLEM_OUTPUT || row->role == PROBLEM_GRADIENT;
}

/* ---- Comparing ---- */

static compare_bound answer_bound(const problem_verify *verify, const safetensors_tensor *answer)
{
    const compare_bound bound = compare_bound_for(answer->dtype);
    return answer->dtype == FWA_DTYPE_F64
               ? bound
               : compare_bound_looser(bound, compare_bound_for(verify->data_dtype));
}

static void judge(const safetensors_tensor *got, const safetensors_tensor *want,
                  compare_bound bound, const char *against, problem_verdict *verdict)
{
    const compare_error error = compare_tensors(got, want);
    const double ratio = compare_ratio(error, bound);
    if (verdict->against != NULL && ratio <= verdict->ratio)
        return;
    snprintf(verdict->tensor, sizeof verdict->tensor, "%s", want->name);
    verdict->against = against;
    verdict->error = error;
    verdict->bound = bound;
    verdict->ratio = ratio;
}

/* Holds results to the file's answers; `dtype` is that of the run, NONE for the exact one. */
static void judge_answers(const problem_verify *verify, const safetensors *results, int32_t dtype,
                          const char *against, problem_verdict *verdict)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const safetensors_tensor *want = safetensors_find(verify->file, row->name);
        if (!is_answer(row) || want == NULL)
            continue;
        judge(safetensors_find(results, row->name), want,
              compare_bound_looser(answer_bound(verify, want), compare_bound_for(dtype)), against,
              verdict);
    }
}

/* Holds a run to the reference on the same rounded inputs. */
static void judge_rounded(const problem_answer *got, const problem_answer *want,
                          problem_verdict *verdict)
{
    for (int32_t i = 0; i < safetensors_count(want->results); i++) {
        const safetensors_tensor *tensor = safetensors_get(want->results, i);
        const problem_tensor *row = problem_tensor_find(tensor->name);
        judge(safetensors_find(got->results, tensor->name), tensor,
              compare_bound_looser(compare_bound_for(got->problem.dtype),
                                   compare_bound_for(problem_tensor_dtype(row, &got->problem))),
              "rounded", verdict);
    }
}

/* ---- Running ---- */

static problem_run_result run_reference(const problem_verify *verify, int32_t rounded_dtype,
                                        int32_t rounded_state, problem_answer *answer,
                                        safetensors_message *message)
{
    const problem_run_options options = {.context = verify->reference,
                                         .form = FWA_FORM_RECURRENT,
                                         .dtype = FWA_DTYPE_F64,
                                         .rounded_dtype = rounded_dtype,
                                         .rounded_state_dtype = rounded_state,
                                         .backward = verify->backward};
    return problem_run(verify->file, &options, answer, message);
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
    problem_run_result result = run_reference(made, FWA_DTYPE_NONE, FWA_DTYPE_NONE, &made->exact,
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
               : run_reference(verify, dtype, options->state_dtype, store, message);
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
        judge_rounded(&got, want, verdict);
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
