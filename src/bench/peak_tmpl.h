/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of one ISA. The including file, peak_<isa>.c, is compiled with that ISA's flags and
 * defines BENCH_LANES (floats to a vector) and BENCH_LOOP(name), and then the table. */

#include "peak.h"
#include "peak_isa.h"

#define BENCH_VECTOR_BYTES (BENCH_LANES * 4)

typedef float vec __attribute__((vector_size(BENCH_VECTOR_BYTES)));
typedef double double_vec __attribute__((vector_size(BENCH_VECTOR_BYTES)));
typedef float loose_vec __attribute__((vector_size(BENCH_VECTOR_BYTES), aligned(4), may_alias));

#define BENCH_FMA    BENCH_LOOP(fma_f32)
#define BENCH_VECTOR vec
#define BENCH_REAL   float
#include "peak_fma_tmpl.h"

#define BENCH_FMA    BENCH_LOOP(fma_f64)
#define BENCH_VECTOR double_vec
#define BENCH_REAL   double
#include "peak_fma_tmpl.h"

/* Sums that do not wait for each other, as above; two loads start in each cycle. */
#define READ_CHAINS 8

static float BENCH_LOOP(read)(float *a, int64_t n, int64_t rounds)
{
    vec sum[READ_CHAINS] = {{0}};
    for (int64_t round = 0; round < rounds; round++)
        for (int64_t i = 0; i < n; i += READ_CHAINS * BENCH_LANES)
            for (int j = 0; j < READ_CHAINS; j++)
                sum[j] += *(const loose_vec *)(a + i + j * BENCH_LANES);
    for (int j = 1; j < READ_CHAINS; j++)
        sum[0] += sum[j];
    return sum[0][0];
}

static float BENCH_LOOP(update)(float *a, int64_t n, int64_t rounds)
{
    for (int64_t round = 0; round < rounds; round++)
        for (int64_t i = 0; i < n; i += BENCH_LANES) {
            loose_vec *at = (loose_vec *)(a + i);
            *at = *at * 0.5f + 1.0f;
        }
    return a[0];
}

/* a, b and c are the thirds of what is given. */
static float BENCH_LOOP(triad)(float *a, int64_t n, int64_t rounds)
{
    const float *b = a + n / 3, *c = b + n / 3;
    for (int64_t round = 0; round < rounds; round++)
        for (int64_t i = 0; i < n / 3; i += BENCH_LANES)
            *(loose_vec *)(a + i) = *(const loose_vec *)(b + i) +
                                    *(const loose_vec *)(c + i) * 0.5f;
    return a[0];
}

#define BENCH_LOOPS                                                                                \
    {                                                                                              \
        [BENCH_LOOP_FMA_F32] = {BENCH_LOOP(fma_f32), 2 * BENCH_CHAINS * BENCH_LANES},              \
        [BENCH_LOOP_FMA_F64] = {BENCH_LOOP(fma_f64), BENCH_CHAINS * BENCH_LANES},                  \
        [BENCH_LOOP_READ] = {BENCH_LOOP(read), 4}, [BENCH_LOOP_UPDATE] = {BENCH_LOOP(update), 8},  \
        [BENCH_LOOP_TRIAD] = {BENCH_LOOP(triad), 4},                                               \
    }
