/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_PROBLEM_ANSWER_H
#define FWA_FILES_PROBLEM_ANSWER_H

/* Answers as problem files. */

#include "problem_run.h"

/* A complete problem file: the metadata of `file`; its inputs, and where it has `do` the gradients
 * that reach the outputs, as the run used them, that is, converted to the plan's types; and the
 * results, as F64 where the plan's type is F64, else as F32 (seen_out as I64, state_out in a 16-bit
 * state_dtype where the run had one). So the file holds
 * exactly the problem that was computed, and its answer. NULL with *message filled on failure. */
safetensors *problem_answer_file(const safetensors *file, const problem_run_options *options,
                                 const problem_answer *answer, safetensors_message *message);

#endif
