/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of one ISA. The including file, peak_<isa>.c, is compiled with that ISA's flags and
 * defines BENCH_LANES (floats to a vector) and BENCH_LOOP(name), and then the table. */

#include "peak.h"

#include <string.h>

typedef float vec __attribute__((vector_size(BENCH_LANES * 4)));
typedef float loose_vec __attribute__((vector_size(BENCH_LANES * 4), aligned(4), may_alias));

/* Sums that do not wait for each other: a multiply-add takes four to five cycles and two start in
 * each, so ten are needed; with m and b they fit in 16 registers. */
#define CHAINS 12

static float BENCH_LOOP(fma)(int64_t rounds, float m, float b)
{
    const vec factor = (vec){0} + m, term = (vec){0} + b;
    vec chain[CHAINS];
    float lane[BENCH_LANES], total = 0;
    for (int i = 0; i < CHAINS; i++)
        chain[i] = (vec){0} + (float)i;
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < CHAINS; i++)
            chain[i] = chain[i] * factor + term;
    for (int i = 0; i < CHAINS; i++) {
        memcpy(lane, &chain[i], sizeof lane);
        for (int j = 0; j < BENCH_LANES; j++)
            total += lane[j];
    }
    return total;
}

/* n is a multiple of BENCH_LANES in both. */
static void BENCH_LOOP(update)(float *a, int64_t n, float m, float b)
{
    for (int64_t i = 0; i < n; i += BENCH_LANES) {
        loose_vec *at = (loose_vec *)(a + i);
        *at = *at * m + b;
    }
}

static void BENCH_LOOP(triad)(float *a, const float *b, const float *c, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i += BENCH_LANES)
        *(loose_vec *)(a + i) = *(const loose_vec *)(b + i) + *(const loose_vec *)(c + i) * s;
}

#define BENCH_LOOPS_FLOPS (2 * CHAINS * BENCH_LANES)
