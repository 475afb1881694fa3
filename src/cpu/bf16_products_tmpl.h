/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 forward's rows. A word is two bf16 numbers, which a product takes together; U vectors
 * are a row of a panel. */

#include <immintrin.h>

typedef uint32_t __attribute__((may_alias, aligned(1))) loose_word;

INLINE __m512 load_bf16(const uint16_t *from)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Features of a token that there is not. */
static const uint32_t zero_words[FWA_COLUMNS_LIMIT / 2];

INLINE __m512bh load_pairs(const uint32_t *from)
{
    return (__m512bh)_mm512_loadu_si512(from);
}

/* One word in all places: kept in a register, for each of the products that it is in. */
INLINE __m512bh splat_pair(const uint32_t *from)
{
    __m512i word = _mm512_set1_epi32((int)*(const loose_word *)from);
    PIN(word);
    return (__m512bh)word;
}

/* Rounds two rows to bf16, element by element to pairs. */
INLINE void store_pairs(uint32_t *to, __m512 even, __m512 odd)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
                                           24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1,
                                           16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, both));
}

/* Two rows of words, element by element to pairs. */
static void pair_rows(int64_t words, const uint32_t *even, const uint32_t *odd, uint32_t *to)
{
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < words; i += 16) {
        const __m512i a = _mm512_loadu_si512(even + i), b = _mm512_loadu_si512(odd + i);
        const __m512i low = _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16));
        const __m512i high = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
        _mm512_storeu_si512(to + 2 * i, _mm512_permutex2var_epi32(low, first, high));
        _mm512_storeu_si512(to + 2 * i + 16, _mm512_permutex2var_epi32(low, second, high));
    }
}

/* The panel's state, rounded. */
INLINE void copy_panel_of(const int U, int64_t dim, const float *from, uint32_t *copy)
{
    for (int64_t d = 0; d < dim; d += 2, from += 2 * U * 16, copy += U * 16)
        UNROLL for (int u = 0; u < U; u++) store_pairs(
            copy + u * 16, _mm512_loadu_ps(from + u * 16), _mm512_loadu_ps(from + (U + u) * 16));
}

OUTLINE void copy_panel(int U, int64_t dim, const float *from, uint32_t *copy)
{
#define COPY(U) copy_panel_of(U, dim, from, copy)
    WITH_U(U, COPY);
#undef COPY
}
