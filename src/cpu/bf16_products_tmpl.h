/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 forward's products, by dot products of pairs. A word is two bf16 numbers; U vectors are a
 * row of a panel. */

#include <immintrin.h>

typedef uint32_t __attribute__((may_alias, aligned(1))) loose_word;

INLINE __m512 load_bf16(const uint16_t *from)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE void store_bf16(uint16_t *to, __m512 row)
{
    _mm256_storeu_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh(row));
}

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

/* R rows of the product below. A row is fetched with every sixteenth word: loads have room
 * for it. */
INLINE void multiply_rows(const int R, const int U, int64_t words, const uint32_t *a,
                          const uint32_t *b, float *c, const int stride, fetcher *ahead)
{
    __m512 sum[16][2];
    fetcher next = *ahead; /* nothing else points to it: it stays in registers */
    UNROLL_16 for (int r = 0; r < R; r++) UNROLL for (int u = 0; u < U; u++)
        sum[r][u] = _mm512_setzero_ps();
    for (int64_t k = 0; k < words; k += 4) {
        if (k % 16 == 0)
            fetch_row(&next);
        for (int i = 0; i < 4; i++, b += U * 16) {
            __m512bh row[2];
            UNROLL for (int u = 0; u < U; u++) row[u] = load_pairs(b + u * 16);
            UNROLL_16 for (int r = 0; r < R; r++)
            {
                const __m512bh factor = splat_pair(a + r * words + k + i);
                UNROLL for (int u = 0; u < U; u++)
                    sum[r][u] = _mm512_dpbf16_ps(sum[r][u], factor, row[u]);
            }
        }
    }
    UNROLL_16 for (int r = 0; r < R; r++) UNROLL for (int u = 0; u < U; u++)
        _mm512_storeu_ps(c + r * stride + u * 16, sum[r][u]);
    ahead->row = next.row;
    ahead->token = next.token;
    ahead->tensor = next.tensor;
}

/* C = A B of a chunk's rows: A [16, words], B [words, U vectors], C rows of a panel. */
OUTLINE void multiply(int U, int64_t words, const uint32_t *a, const uint32_t *b,
                      float (*c)[FWA_CPU_BF16_PANEL], fetcher *ahead)
{
#define MULTIPLY(U)                                                                                \
    do {                                                                                           \
        for (int row = 0; row < 16; row += 8)                                                      \
            multiply_rows(8, U, words, a + row * words, b, c[row], FWA_CPU_BF16_PANEL, ahead);     \
    } while (0)
    WITH_U(U, MULTIPLY);
#undef MULTIPLY
}

/* C = A B of a chunk's rows with as many columns: B are rows of a chunk, transposed. */
OUTLINE void multiply_square(int64_t words, const uint32_t *a, const uint32_t *b,
                             float (*c)[FWA_CPU_BF16_CHUNK])
{
    fetcher none = {.rows = 0};
    multiply_rows(16, 1, words, a, b, c[0], FWA_CPU_BF16_CHUNK, &none);
}

/* So many rows of a panel's state go through the registers at once. */
#define STATE_ROWS 4

INLINE void add_written_of(const int U, const bool scaled, const bool refresh, int64_t dim,
                           const float *from, float *to, float keep, const uint32_t *pairs,
                           uint32_t (*written)[FWA_CPU_BF16_PANEL], uint32_t *copy)
{
    const __m512 factor = _mm512_set1_ps(keep);
    __m512bh w[8][2];
    UNROLL for (int j = 0; j < 8; j++) UNROLL for (int u = 0; u < U; u++)
        w[j][u] = load_pairs(written[j] + u * 16);
    for (int64_t d = 0; d < dim; d += STATE_ROWS) {
        __m512 row[STATE_ROWS][2];
        UNROLL for (int i = 0; i < STATE_ROWS; i++) UNROLL for (int u = 0; u < U; u++)
        {
            row[i][u] = _mm512_loadu_ps(from + ((d + i) * U + u) * 16);
            if (scaled)
                row[i][u] *= factor;
        }
        UNROLL for (int j = 0; j < 8; j++) UNROLL for (int i = 0; i < STATE_ROWS; i++)
        {
            const __m512bh key = splat_pair(pairs + j * dim + d + i);
            UNROLL for (int u = 0; u < U; u++)
                row[i][u] = _mm512_dpbf16_ps(row[i][u], key, w[j][u]);
        }
        UNROLL for (int i = 0; i < STATE_ROWS; i++) UNROLL for (int u = 0; u < U; u++)
            _mm512_storeu_ps(to + ((d + i) * U + u) * 16, row[i][u]);
        UNROLL for (int i = 0; refresh && i < STATE_ROWS; i += 2) UNROLL for (int u = 0; u < U; u++)
            store_pairs(copy + ((d + i) / 2 * U + u) * 16, row[i][u], row[i + 1][u]);
    }
}

/* S = keep S + X^T W of a panel, where W are a chunk's `written` pairs of rows and X its pairs of
 * keys; `copy` gets S rounded unless it is NULL. */
OUTLINE void add_written(int U, int64_t dim, const float *from, float *to, float keep,
                         const uint32_t *pairs, uint32_t (*written)[FWA_CPU_BF16_PANEL],
                         uint32_t *copy)
{
#define ADD(U)                                                                                     \
    do {                                                                                           \
        if (copy && keep == 1)                                                                     \
            add_written_of(U, false, true, dim, from, to, keep, pairs, written, copy);             \
        else if (copy)                                                                             \
            add_written_of(U, true, true, dim, from, to, keep, pairs, written, copy);              \
        else                                                                                       \
            add_written_of(U, true, false, dim, from, to, keep, pairs, written, copy);             \
    } while (0)
    WITH_U(U, ADD);
#undef ADD
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
