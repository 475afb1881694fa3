/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors and small dense products, compiled once per ISA: FWA_LANES floats to a vector. Rows are
 * padded to multiples of 16 floats. The order of every sum is fixed by its own length: tiles and
 * remainders give the same bits. */

#define STRIP 4 /* vectors that a strip of columns has at most */

typedef float vec __attribute__((vector_size(FWA_LANES * 4)));
typedef float loose_vec __attribute__((vector_size(FWA_LANES * 4), aligned(4), may_alias));

static inline __attribute__((always_inline)) vec load(const float *at)
{
    return (vec) * (const loose_vec *)at;
}

static inline __attribute__((always_inline)) void store(float *at, vec value)
{
    *(loose_vec *)at = (loose_vec)value;
}

static inline __attribute__((always_inline)) vec splat(float value)
{
    return value - (vec){0};
}

/* Sum of the lanes, as a tree: halves onto each other. */
static inline __attribute__((always_inline)) float sum_lanes(vec v)
{
#if FWA_LANES == 16
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif FWA_LANES == 8
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
    return v[0] + v[1];
}

typedef int32_t int_vec __attribute__((vector_size(FWA_LANES * 4)));

/* mask ? a : b, lane by lane; mask is a comparison's result */
static inline __attribute__((always_inline)) vec choose(int_vec mask, vec a, vec b)
{
    return (vec)((mask & (int_vec)a) | (~mask & (int_vec)b));
}

/* exp(x) for -104 <= x <= 0, to less than one unit in the last place: x = n ln 2 + r, |r| <= ln 2 / 2,
 * exp(r) = 1 + r + r^2 p(r), with p fitted to the least error. A NaN stays. */
static inline __attribute__((always_inline)) vec exp_vector(vec x)
{
    const vec magic = splat(0x1.8p23F); /* adding it rounds to an integer, in the low bits */
    const vec shifted = x * splat(0x1.715476p0F) + magic, n = shifted - magic;
    const vec r = (x - n * splat(0x1.63p-1F)) - n * splat(-0x1.bd0106p-13F);
    const int_vec power = (int_vec)shifted - (int_vec)magic, half = power >> 1;
    vec p = splat(0x1.6d9a7p-10F);
    p = p * r + splat(0x1.123fe4p-7F);
    p = p * r + splat(0x1.55547cp-5F);
    p = p * r + splat(0x1.555488p-3F);
    p = p * r + splat(0.5F);
    p = p * (r * r) + r + splat(1);
    /* 2^n in two factors: n may be below what a normal number has. */
    return p * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23);
}

static float dot(const float *a, const float *b, int64_t n)
{
    vec sum = splat(0);
    int64_t i;
    for (i = 0; i < n; i += FWA_LANES)
        sum += load(a + i) * load(b + i);
    return sum_lanes(sum);
}

/* A (i, k) = a[i * row + k * column] for the products below. */
typedef struct {
    const float *a;
    int64_t row, column;
} operand;

/* R rows x U vectors of C = keep * C + A B. */
static inline __attribute__((always_inline)) void product_tile(int R, int U, int64_t depth,
                                                               operand a, const float *b,
                                                               int64_t b_stride, float *c,
                                                               int64_t c_stride, const float *keep)
{
    vec sum[4][2];
    int64_t k;
    int r, u;
    for (r = 0; r < R; r++)
        for (u = 0; u < U; u++)
            if (keep)
                sum[r][u] = load(keep + u * FWA_LANES) * load(c + r * c_stride + u * FWA_LANES);
            else
                sum[r][u] = splat(0);
    for (k = 0; k < depth; k++)
        for (r = 0; r < R; r++)
            for (u = 0; u < U; u++)
                sum[r][u] += splat(a.a[r * a.row + k * a.column]) *
                             load(b + k * b_stride + u * FWA_LANES);
    for (r = 0; r < R; r++)
        for (u = 0; u < U; u++)
            store(c + r * c_stride + u * FWA_LANES, sum[r][u]);
}

static inline __attribute__((always_inline)) void
product_columns(int U, int64_t rows, int64_t depth, operand a, const float *b, int64_t b_stride,
                float *c, int64_t c_stride, const float *keep)
{
    for (; rows >= 4; rows -= 4, a.a += 4 * a.row, c += 4 * c_stride)
        product_tile(4, U, depth, a, b, b_stride, c, c_stride, keep);
    for (; rows > 0; rows--, a.a += a.row, c += c_stride)
        product_tile(1, U, depth, a, b, b_stride, c, c_stride, keep);
}

/* C [rows, width] = A [rows, depth] B [depth, width], plus C times keep [width] where that is
 * given. */
static void product(int64_t rows, int64_t width, int64_t depth, operand a, const float *b,
                    int64_t b_stride, float *c, int64_t c_stride, const float *keep)
{
    int64_t at = 0;
    for (; at + 2 * FWA_LANES <= width; at += 2 * FWA_LANES)
        product_columns(2, rows, depth, a, b + at, b_stride, c + at, c_stride,
                        keep ? keep + at : NULL);
    for (; at < width; at += FWA_LANES)
        product_columns(1, rows, depth, a, b + at, b_stride, c + at, c_stride,
                        keep ? keep + at : NULL);
}

/* C += A B for a trapezoid A: row r has first + r columns. Neither what A holds beyond them nor the
 * rows of B there are looked at: zero times NaN is NaN. `ones` is [width]. */
static void product_below(int64_t rows, int64_t width, int64_t first, operand a, const float *b,
                          int64_t b_stride, float *c, int64_t c_stride, const float *ones)
{
    int64_t row, i;
    for (row = 0; row < rows; row += 4) {
        int64_t some = rows - row < 4 ? rows - row : 4, depth = first + row;
        operand block = {a.a + row * a.row, a.row, a.column};
        product(some, width, depth, block, b, b_stride, c + row * c_stride, c_stride, ones);
        for (i = 1; i < some; i++) {
            operand rest = {block.a + i * a.row + depth * a.column, a.row, a.column};
            product(1, width, i, rest, b + depth * b_stride, b_stride, c + (row + i) * c_stride,
                    c_stride, ones);
        }
    }
}

/* C += A^T B for the same A [depth rows]: row r of C has what row r of A^T begins with at column
 * r + 1 - first. */
static void product_below_transposed(int64_t rows, int64_t width, int64_t depth, int64_t first,
                                     operand a, const float *b, int64_t b_stride, float *c,
                                     int64_t c_stride, const float *ones)
{
    int64_t row, i;
    for (row = 0; row < rows; row += 4) {
        int64_t some = rows - row < 4 ? rows - row : 4;
        int64_t all = row + some - first > 0 ? row + some - first : 0; /* from here on, all rows */
        operand block = {a.a + row * a.column + all * a.row, a.column, a.row};
        for (i = 0; i < some; i++) {
            int64_t from = row + i + 1 - first > 0 ? row + i + 1 - first : 0;
            operand part = {a.a + (row + i) * a.column + from * a.row, a.column, a.row};
            product(1, width, all - from, part, b + from * b_stride, b_stride,
                    c + (row + i) * c_stride, c_stride, ones);
        }
        product(some, width, depth - all, block, b + all * b_stride, b_stride, c + row * c_stride,
                c_stride, ones);
    }
}

static inline __attribute__((always_inline)) void inner_tile(int R, int Q, int64_t depth,
                                                             const float *a, int64_t a_stride,
                                                             const float *b, int64_t b_stride,
                                                             float *c, int64_t c_stride, bool add)
{
    vec sum[2][4];
    int64_t k;
    int r, q;
    for (r = 0; r < R; r++)
        for (q = 0; q < Q; q++)
            sum[r][q] = splat(0);
    for (k = 0; k < depth; k += FWA_LANES)
        for (r = 0; r < R; r++)
            for (q = 0; q < Q; q++)
                sum[r][q] += load(a + r * a_stride + k) * load(b + q * b_stride + k);
    for (r = 0; r < R; r++)
        for (q = 0; q < Q; q++) {
            float *at = c + r * c_stride + q;
            *at = (add ? *at : 0) + sum_lanes(sum[r][q]);
        }
}

static inline __attribute__((always_inline)) void inner_rows(int R, int64_t columns, int64_t depth,
                                                             const float *a, int64_t a_stride,
                                                             const float *b, int64_t b_stride,
                                                             float *c, int64_t c_stride, bool add)
{
    for (; columns >= 4; columns -= 4, b += 4 * b_stride, c += 4)
        inner_tile(R, 4, depth, a, a_stride, b, b_stride, c, c_stride, add);
    for (; columns > 0; columns--, b += b_stride, c++)
        inner_tile(R, 1, depth, a, a_stride, b, b_stride, c, c_stride, add);
}

/* C [rows, columns] = (or +=) A [rows, depth] B [columns, depth]^T; depth is padded. */
static void inner_products(int64_t rows, int64_t columns, int64_t depth, const float *a,
                           int64_t a_stride, const float *b, int64_t b_stride, float *c,
                           int64_t c_stride, bool add)
{
    for (; rows >= 2; rows -= 2, a += 2 * a_stride, c += 2 * c_stride)
        inner_rows(2, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
    for (; rows > 0; rows--, a += a_stride, c += c_stride)
        inner_rows(1, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
}

/* The same for rows [0, rows), each only up to and with column `first + row`. */
static void inner_products_below(int64_t rows, int64_t first, int64_t depth, const float *a,
                                 int64_t a_stride, const float *b, int64_t b_stride, float *c,
                                 int64_t c_stride)
{
    int64_t row;
    for (row = 0; row < rows; row += 4) {
        int64_t some = rows - row < 4 ? rows - row : 4;
        inner_products(some, first + row + some, depth, a + row * a_stride, a_stride, b, b_stride,
                       c + row * c_stride, c_stride, false);
    }
}
