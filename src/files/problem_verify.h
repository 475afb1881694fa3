/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_PROBLEM_VERIFY_H
#define FWA_FILES_PROBLEM_VERIFY_H

/* Holds backends to the answers of a problem file. Three comparisons, each with the bounds of
 * compare.h, so that neither a wrong answer in the file nor a wrong backend can hide behind
 * rounding:
 *
 *     answers:   the float64 reference on the file as it is, against the file's answers
 *     direct:    the run against the file's answers; f64 and f32 only, for in 16 bits the rounding
 *                of the inputs alone changes the answer by as much as the problem's conditioning
 *                says
 *     rounded:   the run against the float64 reference on inputs rounded to the run's types
 *
 * The bound of an answer is that of the type in which it is stored; beside 16-bit q, k, v, however,
 * an F32 answer is a widened 16-bit one and has their bound. What small numbers are allowed goes by
 * the types in which a tensor was computed and is stored. */

#include "compare.h"
#include "problem_run.h"

typedef struct problem_verify problem_verify;

typedef struct problem_verdict {
    int32_t passed;
    /* The worst of all comparisons, by error over bound. */
    char tensor[64];
    const char *against; /* "answers", "direct" or "rounded" */
    compare_error error;
    compare_bound bound;
    double ratio;
    /* The run's, of the pass that tensor comes from. */
    char kernel[PROBLEM_KERNEL_SIZE];
} problem_verdict;

/* Runs the reference on the file, with the backward where `do` is there. The file must live longer.
 * A file without answers, or with an answer that its problem does not have, is BAD_FILE. On REFUSED
 * *status says why. */
problem_run_result problem_verify_begin(const safetensors *file, fwa_context *reference,
                                        problem_verify **verify, fwa_status *status,
                                        safetensors_message *message);
/* Runs one combination and judges it. On REFUSED *status says why; *verdict is not filled then. */
problem_run_result problem_verify_run(problem_verify *verify, const problem_run_options *options,
                                      problem_verdict *verdict, fwa_status *status,
                                      safetensors_message *message);
/* Whether the file has `do`: whether the backward is verified. */
int problem_verify_backward(const problem_verify *verify);
void problem_verify_end(problem_verify *verify); /* NULL is fine */

#endif
