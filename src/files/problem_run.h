/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_PROBLEM_RUN_H
#define FWA_FILES_PROBLEM_RUN_H

/* From a problem file to its answer: convert the tensors to a plan's types, bind them to the
 * arguments of the library, run, and collect the results. Works on every backend: all memory that
 * the library sees comes from fwa_memory_allocate. */

#include "problem_file.h"

typedef struct problem_run_options {
    fwa_context *context;
    int32_t form;        /* fwa_form */
    int32_t dtype;       /* of the plan; NONE: the file's own */
    int32_t state_dtype; /* NONE: F32, F64 where dtype is F64 */
    /* Inputs are rounded first to the types of a plan with this dtype and state_dtype, then
     * converted. NONE: not rounded. A float64 run on such inputs is what a run in that dtype is
     * held against. */
    int32_t rounded_dtype, rounded_state_dtype;
    /* Not 0: each number of the inputs is made larger or smaller by its last float64 digit, in
     * another pattern for each seed. For float64 runs. */
    uint64_t disturbed;
    int32_t backward; /* 1: the gradients too; the file must have `do` */
    int32_t saved;    /* 1: the forward hands the backward a saved buffer */
    int32_t mask;     /* 1: the masked form's mask too */
} problem_run_options;

typedef enum problem_run_result {
    PROBLEM_RUN_OK = 0,
    PROBLEM_RUN_BAD_FILE, /* the file is at fault */
    PROBLEM_RUN_REFUSED   /* the library refused or failed: answer->status says how */
} problem_run_result;

#define PROBLEM_KERNEL_SIZE 128

typedef struct problem_answer {
    safetensors
        *results; /* F64 (seen_out: I64) tensors by their names in problem files, and "mask" */
    fwa_problem problem;                 /* as it was run */
    fwa_status status;                   /* FWA_OK unless REFUSED */
    char kernel[2][PROBLEM_KERNEL_SIZE]; /* by fwa_pass; "" where that pass did not run */
} problem_answer;

/* Runs. On OK, free the answer with problem_answer_free(); else *message says what is wrong and
 * nothing is to be freed. */
problem_run_result problem_run(const safetensors *file, const problem_run_options *options,
                               problem_answer *answer, safetensors_message *message);
void problem_answer_free(problem_answer *answer);

/* ---- The part before the library is called ---- */

/* One tensor of a call. Inputs have their converted data on the host; results have none. */
typedef struct problem_buffer {
    const problem_tensor *row;
    fwa_tensor tensor; /* dense, in the plan's type; data: on the host, or NULL for results */
    size_t size;       /* bytes */
} problem_buffer;

typedef struct problem_binding {
    fwa_problem problem;
    problem_extent extent;
    int32_t count;
    problem_buffer buffers[PROBLEM_TENSORS];
} problem_binding;

/* Everything that needs no context: problem, converted inputs, shapes of the results. 0, or -1 with
 * *message filled and nothing to free. */
int problem_bind(const safetensors *file, const problem_run_options *options,
                 problem_binding *binding, safetensors_message *message);
void problem_binding_free(problem_binding *binding);

#endif
