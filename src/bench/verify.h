/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_VERIFY_H
#define FWA_BENCH_VERIFY_H

/*
 * Is the answer right? Held to the float64 reference on the same rounded inputs, with the bounds of
 * files/compare.h. The reference is slow, so that of a long call only the first and the last N
 * tokens are compared:
 *
 *     last    The reference gets the carry that the backend has after the tokens before; outputs,
 *             final carry and gradients of the last N tokens depend on nothing else.
 *     first   The outputs depend on these tokens only; their gradients also on the gradient that
 *             the later tokens send through the carry, and for that the reference gets the
 *             backend's.
 */

#include "../conformance/cases.h"
#include "problems.h"

typedef struct bench_check {
    int64_t tokens; /* N; 0: all were compared */
    /* Pairs of a row and a key head: that were compared, and that there are. The first call of those that
     * are timed must give the same for all, bit for bit. */
    int64_t pairs, all_pairs;
    char tensor[32]; /* the worst, by error over bound */
    compare_error error;
    compare_bound bound;
} bench_check;

typedef enum bench_verify_result {
    BENCH_VERIFY_GOOD,
    BENCH_VERIFY_WRONG,  /* beyond a bound, or memory was touched that must not be */
    BENCH_VERIFY_REFUSED /* the library refuses the problem */
} bench_verify_result;

/* Runs and judges; *results are all of the call's, to be freed unless REFUSED. *message says what
 * is wrong where the result is not GOOD. `limit`: products of D x V, over tokens, heads and pairs
 * of a window, that the reference may compute for one end; 0: the default. */
bench_verify_result bench_verify(const bench_problem *problem, const conformance_data *data,
                                 fwa_context *context, fwa_context *reference, double limit,
                                 bench_check *check, conformance_data *results,
                                 bench_message *message);

#endif
