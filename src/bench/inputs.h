/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_INPUTS_H
#define FWA_BENCH_INPUTS_H

#include "../conformance/data.h"
#include "problems.h"

/* Doubles of a large problem would take minutes to make and to verify, and more memory than there may
 * be. Its part has all of its tokens, but fewer rows and key heads: row b of the problem is row b modulo
 * the part's, and so are key heads, each with the value heads that share it. What a row and a head give
 * depends on no other, bit for bit. `limit`: numbers of q, k, v, o and states; 0: the default. */
bench_problem bench_inputs_part(const bench_problem *problem, double limit);

/* The problem's inputs, rounded to its types: the same at every call. Decoding continues sequences;
 * other passes start fresh. Free with conformance_data_free(). */
conformance_data bench_inputs(const bench_problem *problem);

/* Bytes of host memory that measuring the problem takes, roughly; `part`: what is verified of it. */
double bench_inputs_memory(const bench_problem *problem, const bench_problem *part);

#endif
