/* SPDX-License-Identifier: Apache-2.0 */
/* The dot products of pairs of bf16 that AVX512_BF16 adds; all else is as fast without. */
#include "peak.h"
#include "peak_isa.h"

#include <immintrin.h>

#define BENCH_FMA                       fma_bf16
#define BENCH_VECTOR                    __m512
#define BENCH_REAL                      float
#define BENCH_OPERAND                   __m512bh
#define BENCH_SPREAD(x)                 _mm512_cvtne2ps_pbh(_mm512_set1_ps(x), _mm512_set1_ps(x))
#define BENCH_STEP(chain, factor, term) _mm512_dpbf16_ps(chain, factor, term)
#include "peak_fma_tmpl.h"

/* 16 sums a vector, each of two products. */
const bench_loops bench_loops_avx512bf16 = {
    "avx512bf16",
    bench_has_avx512bf16,
    {[BENCH_LOOP_FMA_BF16] = {fma_bf16, 4 * BENCH_CHAINS * 16}},
};
