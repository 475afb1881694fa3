/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 forward's products, by dot products of pairs. */

INLINE void products_begin(void)
{
}

INLINE void products_end(void)
{
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

/* X S and Q S of a panel, to rows of it: keys (NULL: not wanted) and queries are [16, words], b is
 * [words, U vectors]. */
OUTLINE void multiply(int U, int64_t words, const uint32_t *keys, const uint32_t *queries,
                      const uint32_t *b, float (*c)[FWA_CPU_BF16_PANEL], fetcher *ahead)
{
#define MULTIPLY(U)                                                                                \
    do {                                                                                           \
        for (int row = 0; keys && row < 16; row += 8)                                              \
            multiply_rows(8, U, words, keys + row * words, b, c[row], FWA_CPU_BF16_PANEL, ahead);  \
        for (int row = 0; row < 16; row += 8)                                                      \
            multiply_rows(8, U, words, queries + row * words, b, c[16 + row], FWA_CPU_BF16_PANEL,  \
                          ahead);                                                                  \
    } while (0)
    WITH_U(U, MULTIPLY);
#undef MULTIPLY
}

/* Eight rows of the product below: those of keys and queries take turns, as one would wait for
 * itself. */
INLINE void multiply_square_rows(const bool gram, int64_t words, const uint32_t *keys,
                                 const uint32_t *queries, const uint32_t *turned,
                                 float (*gram_to)[16], float (*scores_to)[16])
{
    __m512 gram_sum[8], score_sum[8];
    UNROLL for (int r = 0; r < 8; r++) gram_sum[r] = score_sum[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < words; k++) {
        const __m512bh column = load_pairs(turned + k * 16);
        UNROLL for (int r = 0; r < 8; r++)
        {
            if (gram)
                gram_sum[r] = _mm512_dpbf16_ps(gram_sum[r], splat_pair(keys + r * words + k),
                                               column);
            score_sum[r] = _mm512_dpbf16_ps(score_sum[r], splat_pair(queries + r * words + k),
                                            column);
        }
    }
    UNROLL for (int r = 0; r < 8; r++)
    {
        if (gram)
            _mm512_storeu_ps(gram_to[r], gram_sum[r]);
        _mm512_storeu_ps(scores_to[r], score_sum[r]);
    }
}

/* The Gram matrix and the scores of a chunk; `turned` are its keys, transposed. */
OUTLINE void multiply_square(int64_t words, const uint32_t *keys, const uint32_t *queries,
                             const uint32_t *turned, float (*gram)[FWA_CPU_BF16_CHUNK],
                             float (*scores)[FWA_CPU_BF16_CHUNK])
{
    for (int row = 0; row < 16; row += 8) {
        if (keys)
            multiply_square_rows(true, words, keys + row * words, queries + row * words, turned,
                                 gram + row, scores + row);
        else
            multiply_square_rows(false, words, NULL, queries + row * words, turned, NULL,
                                 scores + row);
    }
}

/* Keys of two tokens to a word, for the product below: [8, D]. Those from `tokens` on are zeros. */
static void pair_chunk(int64_t words, int64_t tokens, const uint32_t *keys, uint32_t *pairs)
{
    for (int64_t t = 0; t < 16; t += 2)
        pair_rows(words, t < tokens ? keys + t * words : zero_words,
                  t + 1 < tokens ? keys + (t + 1) * words : zero_words, pairs + t * words);
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
