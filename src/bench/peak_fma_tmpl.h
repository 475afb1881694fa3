/* SPDX-License-Identifier: Apache-2.0 */
/* A loop of multiply-adds in registers. The including file defines its name, BENCH_FMA, the vector
 * type BENCH_VECTOR of BENCH_REAL numbers; and where the operands are not such vectors themselves,
 * BENCH_OPERAND, their type, BENCH_SPREAD(x), an operand of equal numbers, and BENCH_STEP. */

#include <string.h>

/* Sums that do not wait for each other: a multiply-add takes four to six cycles, and two start in
 * each, on some Arm processors four. With the operands they fit in the registers, of which Arm has
 * 32. */
#ifndef BENCH_CHAINS
#ifdef __aarch64__
#define BENCH_CHAINS 16
#else
#define BENCH_CHAINS 12
#endif
#endif

#ifndef BENCH_STEP
#define BENCH_OPERAND                   BENCH_VECTOR
#define BENCH_SPREAD(x)                 ((BENCH_VECTOR){0} + (x))
#define BENCH_STEP(chain, factor, term) ((chain) * (factor) + (term))
#endif

static float BENCH_FMA(float *a, int64_t n, int64_t rounds)
{
    const BENCH_OPERAND factor = BENCH_SPREAD(0.5f), term = BENCH_SPREAD(1.0f);
    BENCH_VECTOR chain[BENCH_CHAINS];
    BENCH_REAL lane[sizeof(BENCH_VECTOR) / sizeof(BENCH_REAL)], total = 0;
    (void)a;
    (void)n;
    for (int i = 0; i < BENCH_CHAINS; i++)
        chain[i] = (BENCH_VECTOR){0} + (BENCH_REAL)i;
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < BENCH_CHAINS; i++)
            chain[i] = BENCH_STEP(chain[i], factor, term);
    for (int i = 0; i < BENCH_CHAINS; i++) {
        memcpy(lane, &chain[i], sizeof lane);
        for (size_t j = 0; j < sizeof lane / sizeof *lane; j++)
            total += lane[j];
    }
    return (float)total;
}

#undef BENCH_FMA
#undef BENCH_VECTOR
#undef BENCH_REAL
#undef BENCH_OPERAND
#undef BENCH_SPREAD
#undef BENCH_STEP
