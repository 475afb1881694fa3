/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors and small dense products, compiled once per ISA: FWA_LANES floats to a vector. Rows are
 * padded to multiples of 16 floats. The order of every sum is fixed by its own length: tiles and
 * remainders give the same bits. */

#define STRIP     4 /* vectors that a strip of columns has at most */
#define UNROLL    _Pragma("GCC unroll 8")
#define UNROLL_16 _Pragma("GCC unroll 16")
#ifdef FWA_CPU_CALLS /* for sanitizers: clang takes minutes to check a copy for each constant */
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif
#define OUTLINE static __attribute__((noinline))

/* Keeps a value in a register: compilers would fold the load of a broadcast into each of its uses,
 * and then wait for loads. It also ends an expression: no product is fused into a later sum. */
#if defined(__AVX512F__)
#define PIN(value) __asm__("" : "+v"(value))
#elif defined(__SSE2__)
#define PIN(value) __asm__("" : "+x"(value))
#elif defined(__aarch64__)
#define PIN(value) __asm__("" : "+w"(value))
#else
#define PIN(value) (void)0
#endif

/* Makes an address one of its own, which compilers would form from others each time. */
#define KEEP_ADDRESS(address) __asm__("" : "+r"(address))

/* Of vectors. And what a product's tile has of rows and vectors: its sums stay in registers. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define REGISTERS    32
#define TILE_VECTORS 4
#define TILE_INNER   4
#else
#define REGISTERS    16
#define TILE_VECTORS 2
#define TILE_INNER   2
#endif

typedef float vec __attribute__((vector_size(FWA_LANES * 4)));
typedef float loose_vec __attribute__((vector_size(FWA_LANES * 4), aligned(4), may_alias));

INLINE vec load(const float *at)
{
    return (vec) * (const loose_vec *)at;
}

INLINE void store(float *at, vec value)
{
    *(loose_vec *)at = (loose_vec)value;
}

INLINE vec splat(float value)
{
    return value - (vec){0};
}

/* Sum of the lanes, as a tree: halves onto each other. */
INLINE float sum_lanes(vec v)
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
INLINE vec choose(int_vec mask, vec a, vec b)
{
    return (vec)((mask & (int_vec)a) | (~mask & (int_vec)b));
}

/* exp(x) for -104 <= x <= 0, to less than one unit in the last place: x = n ln 2 + r, |r| <= ln 2 /
 * 2, exp(r) = 1 + r + r^2 p(r), with p fitted to the least error. A NaN stays. */
INLINE vec exp_vector(vec x)
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

/* The sums of the lanes of four vectors, each as sum_lanes does it. */
INLINE void sum_lanes_of_four(const vec *v, float *sums)
{
#if FWA_LANES == 16
#define HALVES(a, b)                                                                               \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +       \
     __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    const vec a = HALVES(v[0], v[1]), b = HALVES(v[2], v[3]);
    vec c =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    c += __builtin_shufflevector(c, c, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    sums[0] = c[0] + c[1], sums[1] = c[4] + c[5], sums[2] = c[8] + c[9], sums[3] = c[12] + c[13];
#elif FWA_LANES == 8
#define HALVES(a, b)                                                                               \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +                                     \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
    const vec a = HALVES(v[0], v[1]), b = HALVES(v[2], v[3]);
    const vec c = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) +
                  __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
    sums[0] = c[0] + c[1], sums[1] = c[2] + c[3], sums[2] = c[4] + c[5], sums[3] = c[6] + c[7];
#else
#define HALVES(a, b)                                                                               \
    (__builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7))
    const vec a = HALVES(v[0], v[1]), b = HALVES(v[2], v[3]);
    sums[0] = a[0] + a[1], sums[1] = a[2] + a[3], sums[2] = b[0] + b[1], sums[3] = b[2] + b[3];
#endif
#undef HALVES
}

/* tile[i][j] becomes tile[j][i]: halves, quarters, ... of pairs of rows are exchanged. */
#define EXCHANGE(distance, low, high)                                                              \
    UNROLL_16 for (int i = 0; i < FWA_LANES; i++) if (!(i & (distance)))                           \
    {                                                                                              \
        const vec a = tile[i], b = tile[i + (distance)];                                           \
        tile[i] = __builtin_shufflevector(a, b, LANES low);                                        \
        tile[i + (distance)] = __builtin_shufflevector(a, b, LANES high);                          \
    }

INLINE void transpose_tile(vec *tile)
{
#define LANES(...) __VA_ARGS__
#if FWA_LANES == 16
    EXCHANGE(8, (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
             (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    EXCHANGE(4, (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
             (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    EXCHANGE(2, (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    EXCHANGE(1, (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
             (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif FWA_LANES == 8
    EXCHANGE(4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    EXCHANGE(2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    EXCHANGE(1, (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15))
#else
    EXCHANGE(2, (0, 1, 4, 5), (2, 3, 6, 7))
    EXCHANGE(1, (0, 4, 2, 6), (1, 5, 3, 7))
#endif
#undef LANES
}

static float dot(const float *a, const float *b, int64_t n)
{
    vec sum = splat(0);
    int64_t i;
    for (i = 0; i < n; i += FWA_LANES)
        sum += load(a + i) * load(b + i);
    return sum_lanes(sum);
}

/* ---- Rows that are fetched ahead of their use ---- */

#define FETCHED 8 /* tensors at most */

/* Rows of several tensors, token by token, that are wanted in the second cache. */
typedef struct {
    const char *at[FETCHED]; /* the first row in each tensor */
    int64_t step[FETCHED];   /* bytes from row to row */
    int64_t lines[FETCHED];  /* of a row */
    int64_t tensors, rows;   /* rows of all of them */
    int64_t row, limit;      /* the next; the first that is not wanted yet */
    int64_t token, tensor;   /* where the next is */
    int64_t apart;           /* rows of a state that a pass works on between two of these */
} fetcher;

/* The next row. */
INLINE void fetch_row(fetcher *a)
{
    const char *at = a->at[a->tensor] + a->token * a->step[a->tensor];
    if (a->row >= a->limit)
        return;
    for (int64_t i = 0; i < a->lines[a->tensor]; i++)
        __builtin_prefetch(at + 64 * i, 0, 2);
    a->row++;
    if (++a->tensor >= a->tensors) {
        a->tensor = 0;
        a->token++;
    }
}

/* The next rows, `count` lines or a few more. */
static void fetch_lines(fetcher *a, int64_t count)
{
    while (count > 0 && a->row < a->limit) {
        count -= a->lines[a->tensor];
        fetch_row(a);
    }
}

/* A (i, k) = a[i * row + k * column] for the products below. */
typedef struct {
    const float *a;
    int64_t row, column;
} operand;

/* R rows x U vectors of C = keep * C + A B, where C is read at `from`, and `keep` is a number per
 * column, or (by_row) per row. Of the R - 1 columns of A that come before the `depth`
 * whole ones, row r has those from r on (`lead`); of those behind them, the first r (`tail`). */
INLINE void product_tile(const int R, const int U, const bool lead, const bool tail, int64_t depth,
                         operand a, const float *b, int64_t b_stride, const float *from, float *c,
                         int64_t c_stride, const float *keep, const bool by_row)
{
    vec sum[16][TILE_VECTORS], row[TILE_VECTORS];
    const float *at[4]; /* every fourth row's: sixteen addresses would not fit into the registers */
    int64_t k;
#define ADD_ROWS(from, to)                                                                         \
    do {                                                                                           \
        UNROLL for (int u = 0; u < U; u++) row[u] = load(b + u * FWA_LANES);                       \
        UNROLL_16 for (int r = from; r < to; r++)                                                  \
        {                                                                                          \
            vec factor = splat(at[r / 4][r % 4 * a.row]);                                          \
            PIN(factor);                                                                           \
            UNROLL for (int u = 0; u < U; u++) sum[r][u] += factor * row[u];                       \
        }                                                                                          \
        b += b_stride;                                                                             \
        UNROLL for (int g = 0; g < (R + 3) / 4; g++) at[g] += a.column;                            \
    } while (0)
    UNROLL for (int i = 0; i < (R + 3) / 4; i++)
    {
        at[i] = a.a + 4 * i * a.row;
        KEEP_ADDRESS(at[i]);
    }
    UNROLL_16 for (int r = 0; r < R; r++) UNROLL for (int u = 0; u < U; u++)
        sum[r][u] = !keep ? splat(0)
                          : (by_row ? splat(keep[r]) : load(keep + u * FWA_LANES)) *
                                load(from + r * c_stride + u * FWA_LANES);
    UNROLL for (int i = 1; lead && i < R; i++) ADD_ROWS(0, i);
    for (k = 0; k < depth; k++)
        ADD_ROWS(0, R);
    UNROLL for (int i = 1; tail && i < R; i++) ADD_ROWS(i, R);
#undef ADD_ROWS
    UNROLL_16 for (int r = 0; r < R; r++) UNROLL for (int u = 0; u < U; u++)
        store(c + r * c_stride + u * FWA_LANES, sum[r][u]);
}

/* Calls run(U, column) for all columns of a product, in strips of as many vectors as a tile has. */
#define EACH_STRIP(width, run)                                                                     \
    do {                                                                                           \
        int64_t column = 0;                                                                        \
        for (; column + TILE_VECTORS * FWA_LANES <= (width); column += TILE_VECTORS * FWA_LANES)   \
            run(TILE_VECTORS, column);                                                             \
        for (; column < (width); column += FWA_LANES)                                              \
            run(1, column);                                                                        \
    } while (0)

/* A single vector takes more rows: a sum waits for itself. */
INLINE void product_columns(const int U, int64_t rows, int64_t depth, operand a, const float *b,
                            int64_t b_stride, const float *from, float *c, int64_t c_stride,
                            const float *keep, const bool by_row, fetcher *ahead)
{
#define RUN(R)                                                                                     \
    for (; rows >= R; rows -= R, a.a += R * a.row, from += R * c_stride, c += R * c_stride) {      \
        if (ahead)                                                                                 \
            fetch_lines(ahead, R *U / 2);                                                          \
        product_tile(R, U, false, false, depth, a, b, b_stride, from, c, c_stride, keep, by_row);  \
        if (keep && by_row)                                                                        \
            keep += R;                                                                             \
    }
    if (U == 1 && REGISTERS > 16)
        RUN(16)
    if (U == 1)
        RUN(8)
    RUN(6)
    RUN(4)
    RUN(2)
    RUN(1)
#undef RUN
}

INLINE void product_all(int64_t rows, int64_t width, int64_t depth, operand a, const float *b,
                        int64_t b_stride, const float *from, float *c, int64_t c_stride,
                        const float *keep, const bool by_row, fetcher *ahead)
{
#define RUN(U, at)                                                                                 \
    product_columns(U, rows, depth, a, b + at, b_stride, from + at, c + at, c_stride,              \
                    keep && !by_row ? keep + at : keep, by_row, ahead)
    EACH_STRIP(width, RUN);
#undef RUN
}

/* C [rows, width] = A [rows, depth] B [depth, width], plus C times keep [width] where that is
 * given. */
static void product(int64_t rows, int64_t width, int64_t depth, operand a, const float *b,
                    int64_t b_stride, float *c, int64_t c_stride, const float *keep)
{
    if (keep)
        product_all(rows, width, depth, a, b, b_stride, c, c, c_stride, keep, false, NULL);
    else
        product_all(rows, width, depth, a, b, b_stride, c, c, c_stride, NULL, false, NULL);
}

/* The same, where what is kept is `from`'s, `keep` [rows]. Some lines are fetched with each
 * tile. */
static void product_ahead(int64_t rows, int64_t width, int64_t depth, operand a, const float *b,
                          int64_t b_stride, const float *from, float *c, int64_t c_stride,
                          const float *keep, fetcher *ahead)
{
    if (keep)
        product_all(rows, width, depth, a, b, b_stride, from, c, c_stride, keep, true, ahead);
    else
        product_all(rows, width, depth, a, b, b_stride, c, c, c_stride, NULL, true, ahead);
}

/* C += A B for a trapezoid A: row r has first + r columns. Neither what A holds beyond them nor the
 * rows of B there are looked at: zero times NaN is NaN. `ones` is [width]. */
static void product_below(int64_t rows, int64_t width, int64_t first, operand a, const float *b,
                          int64_t b_stride, float *c, int64_t c_stride, const float *ones)
{
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4, a.a += 4 * a.row, c += 4 * c_stride) {
#define RUN(U, at)                                                                                 \
    product_tile(4, U, false, true, first + row, a, b + at, b_stride, c + at, c + at, c_stride,    \
                 ones + at, false)
        EACH_STRIP(width, RUN);
#undef RUN
    }
    for (; row < rows; row++, a.a += a.row, c += c_stride)
        product(1, width, first + row, a, b, b_stride, c, c_stride, ones);
}

/* C += A^T B for the same A [depth rows]: row r of C has what row r of A^T begins with at column
 * r + 1 - first. */
static void product_below_transposed(int64_t rows, int64_t width, int64_t depth, int64_t first,
                                     operand a, const float *b, int64_t b_stride, float *c,
                                     int64_t c_stride, const float *ones)
{
    const operand turned = {a.a, a.column, a.row};
    int64_t row = 0;
    while (row < rows) {
        const int64_t from = row + 1 - first;
        const int64_t begin = from > 0 ? from : 0;
        const operand part = {turned.a + row * turned.row + begin * turned.column, turned.row,
                              turned.column};
        const float *rest = b + begin * b_stride;
        float *to = c + row * c_stride;
        if (from >= 0 && row + 4 <= rows && from + 3 <= depth) {
#define RUN(U, at)                                                                                 \
    product_tile(4, U, true, false, depth - from - 3, part, rest + at, b_stride, to + at, to + at, \
                 c_stride, ones + at, false)
            EACH_STRIP(width, RUN);
#undef RUN
            row += 4;
        } else {
            product(1, width, depth - begin, part, rest, b_stride, to, c_stride, ones);
            row++;
        }
    }
}

INLINE void inner_tile(const int R, int64_t depth, const float *a, int64_t a_stride, const float *b,
                       int64_t b_stride, float *c, int64_t c_stride, int64_t columns, bool add)
{
    vec sum[TILE_INNER][4];
    int64_t k;
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < 4; q++) sum[r][q] = splat(0);
    for (k = 0; k < depth; k += FWA_LANES) {
        vec other[4];
        UNROLL for (int q = 0; q < 4; q++)
        {
            other[q] = load(b + (q < columns ? q : 0) * b_stride + k);
            if (q >= columns)
                PIN(other[q]); /* a product that two sums share would not be fused into either */
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            const vec row = load(a + r * a_stride + k);
            UNROLL for (int q = 0; q < 4; q++) sum[r][q] += row * other[q];
        }
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        float *to = c + r * c_stride, sums[4];
        sum_lanes_of_four(sum[r], sums);
        for (int q = 0; q < columns; q++)
            to[q] = add ? to[q] + sums[q] : sums[q];
    }
}

INLINE void inner_rows(const int R, int64_t columns, int64_t depth, const float *a,
                       int64_t a_stride, const float *b, int64_t b_stride, float *c,
                       int64_t c_stride, bool add)
{
    for (; columns >= 4; columns -= 4, b += 4 * b_stride, c += 4)
        inner_tile(R, depth, a, a_stride, b, b_stride, c, c_stride, 4, add);
    if (columns > 0)
        inner_tile(R, depth, a, a_stride, b, b_stride, c, c_stride, columns, add);
}

/* C [rows, columns] = (or +=) A [rows, depth] B [columns, depth]^T; depth is padded. */
static void inner_products(int64_t rows, int64_t columns, int64_t depth, const float *a,
                           int64_t a_stride, const float *b, int64_t b_stride, float *c,
                           int64_t c_stride, bool add)
{
    for (; rows >= TILE_INNER;
         rows -= TILE_INNER, a += TILE_INNER * a_stride, c += TILE_INNER * c_stride)
        inner_rows(TILE_INNER, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
    for (; rows > 0; rows--, a += a_stride, c += c_stride)
        inner_rows(1, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
}

/* Columns of C that are done for all rows before the next: their rows of B stay in a cache. */
#define INNER_BLOCK 64

/* The same for rows [0, rows), each only up to and with column `first + row`. */
static void inner_products_below(int64_t rows, int64_t first, int64_t depth, const float *a,
                                 int64_t a_stride, const float *b, int64_t b_stride, float *c,
                                 int64_t c_stride)
{
    int64_t row, column;
    for (column = 0; column < first + rows; column += INNER_BLOCK)
        for (row = column > first ? (column - first) / 4 * 4 : 0; row < rows; row += 4) {
            const int64_t some = rows - row < 4 ? rows - row : 4, all = first + row + some - column;
            inner_products(some, all < INNER_BLOCK ? all : INNER_BLOCK, depth, a + row * a_stride,
                           a_stride, b + column * b_stride, b_stride, c + row * c_stride + column,
                           c_stride, false);
        }
}
