/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 forward's products, by tiles of 16 rows. Tiles 0 to 3 are sums, tile 4 has 16 rows of
 * words and tile 6 as many rows that they are multiplied with; 5 and 7 are the same of half the
 * depth. */

/* The intrinsics of some compilers do not say that they read memory. */
#define MEMORY __asm__ volatile("" ::: "memory")

/* A thread has tiles from here to products_end. */
static void products_begin(void)
{
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16]; /* of a row */
        uint8_t rows[16];
    } tiles = {.palette = 1,
               .bytes = {64, 64, 64, 64, 64, 32, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 8}};
    MEMORY;
    _tile_loadconfig(&tiles);
}

static void products_end(void)
{
    _tile_release();
}

/* X S and Q S of a panel, to rows of it: keys (NULL: not wanted) and queries are [16, words], b is
 * [words, U vectors]. Some lines are fetched meanwhile. */
OUTLINE void multiply(int U, int64_t words, const uint32_t *keys, const uint32_t *queries,
                      const uint32_t *b, float (*c)[FWA_CPU_BF16_PANEL], fetcher *ahead)
{
    const size_t row = sizeof *keys * (size_t)words, step = sizeof *b * 16 * (size_t)U;
    MEMORY;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < words; k += 16, b += 16 * U * 16) {
        _tile_loadd(4, queries + k, row);
        _tile_loadd(6, b, step);
        _tile_dpbf16ps(0, 4, 6);
        if (U > 1) {
            _tile_loadd(6, b + 16, step);
            _tile_dpbf16ps(1, 4, 6);
        }
        fetch_lines(ahead, 8 * U);
        if (!keys)
            continue;
        _tile_loadd(4, keys + k, row);
        if (U > 1) {
            _tile_dpbf16ps(3, 4, 6);
            _tile_loadd(6, b, step);
        }
        _tile_dpbf16ps(2, 4, 6);
    }
    _tile_stored(0, c[16], sizeof c[0]);
    if (U > 1)
        _tile_stored(1, c[16] + 16, sizeof c[0]);
    if (keys)
        _tile_stored(2, c[0], sizeof c[0]);
    if (keys && U > 1)
        _tile_stored(3, c[0] + 16, sizeof c[0]);
    MEMORY;
}

/* The Gram matrix and the scores of a chunk; `turned` are its keys, transposed. */
OUTLINE void multiply_square(int64_t words, const uint32_t *keys, const uint32_t *queries,
                             const uint32_t *turned, float (*gram)[FWA_CPU_BF16_CHUNK],
                             float (*scores)[FWA_CPU_BF16_CHUNK])
{
    const size_t row = sizeof *keys * (size_t)words;
    MEMORY;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t k = 0; k < words; k += 16, turned += 16 * 16) {
        _tile_loadd(6, turned, 64);
        _tile_loadd(4, queries + k, row);
        _tile_dpbf16ps(0, 4, 6);
        if (!keys)
            continue;
        _tile_loadd(4, keys + k, row);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, scores, 64);
    if (keys)
        _tile_stored(1, gram, 64);
    MEMORY;
}

/* Keys of two tokens to a word, for the product below: [D, 8]. Those from `tokens` on are zeros. */
static void pair_chunk(int64_t words, int64_t tokens, const uint32_t *keys, uint32_t *pairs)
{
    uint32_t rows[8][32];
    for (int64_t k = 0; k < words; k += 16) {
        for (int64_t t = 0; t < 16; t += 2)
            pair_rows(16, t < tokens ? keys + t * words + k : zero_words,
                      t + 1 < tokens ? keys + (t + 1) * words + k : zero_words, rows[t / 2]);
        for (int64_t half = 0; half < 32; half += 16) {
            vec tile[16];
            UNROLL_16 for (int j = 0; j < 16; j++)
                tile[j] = j < 8 ? load((const float *)(const void *)(rows[j] + half)) : splat(0);
            transpose_tile(tile);
            UNROLL_16 for (int i = 0; i < 16; i++)
                _mm256_storeu_ps((float *)(void *)(pairs + (2 * k + half + i) * 8),
                                 _mm512_castps512_ps256((__m512)tile[i]));
        }
    }
}

/* S = keep S + X^T W of a panel, where W are a chunk's `written` pairs of rows and X its pairs of
 * keys; `copy` gets S rounded unless it is NULL. */
OUTLINE void add_written(int U, int64_t dim, const float *from, float *to, float keep,
                         const uint32_t *pairs, uint32_t (*written)[FWA_CPU_BF16_PANEL],
                         uint32_t *copy)
{
    const size_t step = sizeof *to * 16 * (size_t)U;
    const __m512 factor = _mm512_set1_ps(keep);
    if (keep != 1 || from != to)
        for (int64_t i = 0; i < dim * U; i++)
            _mm512_storeu_ps(to + i * 16, factor * _mm512_loadu_ps(from + i * 16));
    MEMORY;
    for (int64_t d = 0; d < dim; d += 16, to += 16 * U * 16) {
        _tile_loadd(5, pairs + d * 8, 32);
        _tile_loadd(7, written, sizeof written[0]);
        _tile_loadd(0, to, step);
        _tile_dpbf16ps(0, 5, 7);
        _tile_stored(0, to, step);
        if (U == 1)
            continue;
        _tile_loadd(7, written[0] + 16, sizeof written[0]);
        _tile_loadd(1, to + 16, step);
        _tile_dpbf16ps(1, 5, 7);
        _tile_stored(1, to + 16, step);
    }
    MEMORY;
    if (copy)
        copy_panel(U, dim, to - dim * U * 16, copy);
}
