/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_INPUTS_H
#define FWA_BENCH_INPUTS_H

#include "../conformance/data.h"
#include "problems.h"

/* The problem's inputs, rounded to its types: the same at every call. Decoding continues sequences;
 * other passes start fresh. Free with conformance_data_free(). */
conformance_data bench_inputs(const bench_problem *problem);

/* Bytes of memory that measuring the problem takes, roughly. */
double bench_inputs_memory(const bench_problem *problem);

#endif
