/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward of a group or less of tokens: decoding. */

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* ---- A group or less of tokens, on the carry's own memory: decoding ---- */

/* A state in memory, its rows so many bytes apart, and the one that comes after it: itself, where
 * none does. */
typedef struct {
    const char *from, *next;
    char *to;
    int64_t from_step, next_step, to_step; /* bytes */
} state_rows;

/* ---- Vectors of a state in its own type ---- */

typedef uint32_t uint_vec __attribute__((vector_size(FWA_LANES * 4)));
typedef uint32_t loose_uint __attribute__((vector_size(FWA_LANES * 4), aligned(2), may_alias));
typedef uint16_t half_vec __attribute__((vector_size(FWA_LANES * 2)));
typedef uint16_t loose_half __attribute__((vector_size(FWA_LANES * 2), aligned(2), may_alias));

/* mask ? a : b, lane by lane */
INLINE uint_vec choose_bits(int_vec mask, uint_vec a, uint_vec b)
{
    return ((uint_vec)mask & a) | (~(uint_vec)mask & b);
}

/* bf16 numbers in the upper halves; half.h says why. */
INLINE uint_vec bf16_bits(vec value)
{
    const uint_vec bits = (uint_vec)value, rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
#ifdef __AVX512F__
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q);
    return (uint_vec)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits,
                                          _mm512_set1_epi32(0x400000));
#else
    return choose_bits((int_vec)(value != value), bits | 0x400000u, rounded);
#endif
}

INLINE vec f16_to_vec(half_vec half)
{
#ifdef __AVX512F__
    return (vec)_mm512_cvtph_ps((__m256i)half);
#else
    const uint_vec low = __builtin_convertvector(half, uint_vec);
    const uint_vec sign = (low & 0x8000u) << 16, rest = (low & 0x7fffu) << 13;
    const uint_vec scaled = (uint_vec)((vec)rest * splat(0x1p112F));
    return (vec)(sign | choose_bits((int_vec)(rest >= 0x0f800000u),
                                    0x7f800000u | (rest & 0x7fffffu), scaled));
#endif
}

INLINE half_vec f16_from_vec(vec value)
{
#ifdef __AVX512F__
    return (half_vec)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const uint_vec bits = (uint_vec)value, rest = bits & 0x7fffffffu, none = {0};
    const uint_vec small = (uint_vec)((vec)rest + splat(0.5F)) - 0x3f000000u;
    uint_vec half = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
    half = choose_bits((int_vec)(rest < 0x38800000u), small, half);
    half = choose_bits((int_vec)(rest >= 0x477ff000u), none + 0x7c00u, half);
    half = choose_bits((int_vec)(rest > 0x7f800000u), none + 0x7e00u, half);
    return __builtin_convertvector(half | ((bits >> 16) & 0x8000u), half_vec);
#endif
}

/* Bytes of a vector. */
#define STATE_BYTES(dtype) (FWA_LANES * ((dtype) == FWA_DTYPE_F32 ? 4 : 2))

/* bf16 numbers are taken two to a word, the even columns of two vectors in one and the odd ones in
 * the other: nothing is widened or packed. `pairs_of` says whether U vectors are; `split_row` and
 * `join_row` bring other rows into that order and back. */
INLINE bool pairs_of(const int32_t dtype, const int U)
{
    return dtype == FWA_DTYPE_BF16 && U % 2 == 0;
}

#if FWA_LANES == 16
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_LANES  1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW_LANES  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_LANES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif FWA_LANES == 8
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_LANES  1, 3, 5, 7, 9, 11, 13, 15
#define LOW_LANES  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_LANES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN_LANES 0, 2, 4, 6
#define ODD_LANES  1, 3, 5, 7
#define LOW_LANES  0, 4, 1, 5
#define HIGH_LANES 2, 6, 3, 7
#endif

/* U vectors of a row of float32 numbers, in the order of such a state, and back. */
INLINE void split_row(const int32_t dtype, const int U, const float *from, vec *row)
{
    UNROLL FOR_U row[u] = load(from + u * FWA_LANES);
    if (!pairs_of(dtype, U))
        return;
    UNROLL for (int u = 0; u < U; u += 2)
    {
        const vec a = row[u], b = row[u + 1];
        row[u] = __builtin_shufflevector(a, b, EVEN_LANES);
        row[u + 1] = __builtin_shufflevector(a, b, ODD_LANES);
    }
}

INLINE void join_row(const int32_t dtype, const int U, const vec *row, float *to)
{
    UNROLL FOR_U
    {
        const vec even = row[u / 2 * 2], odd = row[(u / 2 * 2 + 1) % U];
        if (!pairs_of(dtype, U))
            store(to + u * FWA_LANES, row[u]);
        else if (u % 2 == 0)
            store(to + u * FWA_LANES, __builtin_shufflevector(even, odd, LOW_LANES));
        else
            store(to + u * FWA_LANES, __builtin_shufflevector(even, odd, HIGH_LANES));
    }
}

/* U vectors of a row of a state. */
INLINE void load_state_row(const int32_t dtype, const int U, const char *at, vec *row)
{
    UNROLL FOR_U
    {
        const char *here = at + u * STATE_BYTES(dtype);
        const char *pair = at + u / 2 * 2 * STATE_BYTES(dtype);
        if (dtype == FWA_DTYPE_F32) {
            row[u] = load((const float *)(const void *)here);
        } else if (pairs_of(dtype, U)) {
            const uint_vec words = (uint_vec) * (const loose_uint *)(const void *)pair;
            row[u] = (vec)(u % 2 ? words & 0xffff0000u : words << 16);
        } else {
            const half_vec half = (half_vec) * (const loose_half *)(const void *)here;
            row[u] = dtype == FWA_DTYPE_BF16 ? (vec)(__builtin_convertvector(half, uint_vec) << 16)
                                             : f16_to_vec(half);
        }
    }
}

INLINE void store_state_row(const int32_t dtype, const int U, const vec *row, char *at)
{
    UNROLL FOR_U
    {
        char *here = at + u * STATE_BYTES(dtype);
        if (dtype == FWA_DTYPE_F32) {
            store((float *)(void *)here, row[u]);
        } else if (pairs_of(dtype, U)) {
            if (u % 2 == 0)
                *(loose_uint *)(void *)here = (loose_uint)(bf16_bits(row[u]) >> 16 |
                                                           (bf16_bits(row[u + 1]) & 0xffff0000u));
        } else {
            *(loose_half *)(void *)here =
                (loose_half)(dtype == FWA_DTYPE_BF16
                                 ? __builtin_convertvector(bf16_bits(row[u]) >> 16, half_vec)
                                 : f16_from_vec(row[u]));
        }
    }
}

/* Fetches the lines of the next state that are as many bytes from its start as `begin` to `end`. */
INLINE void fetch_part(const char *next, const int begin, const int end)
{
    UNROLL_16 for (int line = begin; line < end; line += 64) __builtin_prefetch(next + line, 0, 2);
}

/* Bytes of U vectors, and of those the half that the first pass over a state fetches. */
#define STRIP_BYTES(dtype, U) ((U)*STATE_BYTES(dtype))
#define FIRST_BYTES(dtype, U) (STRIP_BYTES(dtype, U) / 2 / 64 * 64)

/* ---- Passes over a state ---- */

#define DECODE_ROWS 4 /* rows that a pass multiplies, or pairs that it adds, at once: at most */

/* S^T x of U vectors of columns, for N rows x. */
INLINE void project_wide(const int32_t dtype, const int U, const int N, int64_t dim,
                         const state_rows *r, int64_t at, const float *const *rows,
                         float *const *sums, bool ahead)
{
    vec sum[DECODE_ROWS][DECODE_VECTORS];
    const char *s = r->from + at * STATE_BYTES(dtype) / FWA_LANES;
    const char *next = r->next + at * STATE_BYTES(dtype) / FWA_LANES;
    int64_t d;
    UNROLL for (int n = 0; n < N; n++) UNROLL FOR_U sum[n][u] = splat(0);
    for (d = 0; d < dim; d++, s += r->from_step, next += r->next_step) {
        vec row[DECODE_VECTORS];
        if (ahead)
            fetch_part(next, 0, FIRST_BYTES(dtype, U));
        load_state_row(dtype, U, s, row);
        UNROLL for (int n = 0; n < N; n++)
        {
            vec x = splat(rows[n][d]);
            PIN(x);
            UNROLL FOR_U sum[n][u] += x * row[u];
        }
    }
    UNROLL for (int n = 0; n < N; n++) join_row(dtype, U, sum[n], sums[n] + at);
}

/* S = keep S + sum over P pairs of x w^T, of U vectors of columns. */
INLINE void add_wide(const int32_t dtype, const int U, const int P, int64_t dim,
                     const state_rows *r, int64_t at, const float *x, const float *w,
                     int64_t w_stride, const float *keep, bool ahead)
{
    vec pair[DECODE_ROWS][DECODE_VECTORS], factor[DECODE_VECTORS];
    const char *from = r->from + at * STATE_BYTES(dtype) / FWA_LANES;
    const char *next = r->next + at * STATE_BYTES(dtype) / FWA_LANES;
    char *to = r->to + at * STATE_BYTES(dtype) / FWA_LANES;
    int64_t d;
    UNROLL for (int p = 0; p < P; p++) split_row(dtype, U, w + p * w_stride + at, pair[p]);
    UNROLL FOR_U factor[u] = splat(1);
    if (keep)
        split_row(dtype, U, keep + at, factor);
    for (d = 0; d < dim; d++, from += r->from_step, to += r->to_step, next += r->next_step) {
        vec row[DECODE_VECTORS];
        if (ahead)
            fetch_part(next, FIRST_BYTES(dtype, U), STRIP_BYTES(dtype, U));
        load_state_row(dtype, U, from, row);
        UNROLL FOR_U
        {
            row[u] *= factor[u];
            PIN(row[u]);
        }
        UNROLL for (int p = 0; p < P; p++)
        {
            vec a = splat(x[p * FEATURE_ROW + d]);
            PIN(a);
            UNROLL FOR_U row[u] += a * pair[p][u];
        }
        store_state_row(dtype, U, row, to);
    }
}

/* Calls run(U, at) for the unit's columns, in as wide steps as there are, `most` vectors at
 * most. */
#define EACH_WIDE(f, most, run)                                                                    \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + (most)*FWA_LANES <= (f)->width; at += (most)*FWA_LANES)                        \
            run(most, at);                                                                         \
        for (; at < (f)->width; at += FWA_LANES)                                                   \
            run(1, at);                                                                            \
    } while (0)

/* Sums of a state's products with `count` rows. A narrow strip's rows stay in the first cache. */
INLINE void project_state(const fused_work *f, const int32_t dtype, const state_rows *r,
                          const float *const *rows, float *const *sums, int64_t count)
{
    const int64_t dim = f->w.p->key_dim;
    int64_t n;
#define PROJECT_ALL(U, at)                                                                         \
    do {                                                                                           \
        if (count == 2)                                                                            \
            project_wide(dtype, U, 2, dim, r, at, rows, sums, true);                               \
        else                                                                                       \
            project_wide(dtype, U, 1, dim, r, at, rows, sums, true);                               \
    } while (0)
#define PROJECT_SOME(U, at)                                                                        \
    do {                                                                                           \
        for (n = 0; n + 4 <= count; n += 4)                                                        \
            project_wide(dtype, U, 4, dim, r, at, rows + n, sums + n, n == 0);                     \
        for (; n + 2 <= count; n += 2)                                                             \
            project_wide(dtype, U, 2, dim, r, at, rows + n, sums + n, n == 0);                     \
        for (; n < count; n++)                                                                     \
            project_wide(dtype, U, 1, dim, r, at, rows + n, sums + n, n == 0);                     \
    } while (0)
    if (count <= 2)
        EACH_WIDE(f, DECODE_VECTORS, PROJECT_ALL);
    else
        EACH_WIDE(f, DECODE_VECTORS / 2, PROJECT_SOME);
#undef PROJECT_ALL
#undef PROJECT_SOME
}

/* Adds `count` pairs to a state, rows of x and w one behind the other; it is multiplied by
 * `keep`. */
INLINE void add_state(const fused_work *f, const int32_t dtype, const state_rows *given,
                      const float *x, const float *w, int64_t count, const float *keep)
{
    const int64_t dim = f->w.p->key_dim, stride = f->f->stride;
#define ADD(U, P, at) add_wide(dtype, U, P, dim, &r, at, x, w, stride, keep, true)
#define ADD_ALL(U, at)                                                                             \
    do {                                                                                           \
        const state_rows r = *given;                                                               \
        if (count == 1)                                                                            \
            ADD(U, 1, at);                                                                         \
        else                                                                                       \
            ADD(U, 0, at);                                                                         \
    } while (0)
#define ADD_SOME(U, at)                                                                            \
    do {                                                                                           \
        state_rows r = *given;                                                                     \
        if (count == 2)                                                                            \
            ADD(U, 2, at);                                                                         \
        else if (count == 3)                                                                       \
            ADD(U, 3, at);                                                                         \
        else                                                                                       \
            ADD(U, 4, at);                                                                         \
        r.from = r.to;                                                                             \
        r.from_step = r.to_step;                                                                   \
        for (int64_t n = 4; n < count; n++)                                                        \
            add_wide(dtype, U, 1, dim, &r, at, x + n * FEATURE_ROW, w + n * stride, stride, NULL,  \
                     false);                                                                       \
    } while (0)
    if (count <= 1)
        EACH_WIDE(f, DECODE_VECTORS, ADD_ALL);
    else
        EACH_WIDE(f, DECODE_VECTORS / 2, ADD_SOME);
#undef ADD
#undef ADD_ALL
#undef ADD_SOME
}

/* Each for the state's own type. */
#define WITH_STATE_TYPE(dtype, run)                                                                \
    do {                                                                                           \
        if ((dtype) == FWA_DTYPE_F32)                                                              \
            run(FWA_DTYPE_F32);                                                                    \
        else if ((dtype) == FWA_DTYPE_BF16)                                                        \
            run(FWA_DTYPE_BF16);                                                                   \
        else                                                                                       \
            run(FWA_DTYPE_F16);                                                                    \
    } while (0)

OUTLINE void project_any(const fused_work *f, int32_t dtype, const state_rows *r,
                         const float *const *rows, float *const *sums, int64_t count)
{
#define RUN(dtype) project_state(f, dtype, r, rows, sums, count)
    WITH_STATE_TYPE(dtype, RUN);
#undef RUN
}

OUTLINE void add_any(const fused_work *f, int32_t dtype, const state_rows *r, const float *x,
                     const float *w, int64_t count, const float *keep)
{
#define RUN(dtype) add_state(f, dtype, r, x, w, count, keep)
    WITH_STATE_TYPE(dtype, RUN);
#undef RUN
}

/* ---- A head ---- */

/* True where the state can be worked on where it is, and no pass is needed. A state of 16 bits
 * takes all pairs at once: it is rounded once. */
static bool decode_fits(const fused_work *f)
{
    const fwa_sequence *s = f->w.s;
    const fwa_tensor *in = &f->w.carry->state;
    const fwa_tensor *out = f->args ? &f->args->carry_out.state : NULL;
    const int64_t columns = f->w.p->value_dim < f->unit->columns ? f->w.p->value_dim
                                                                 : f->unit->columns;
    return out && fwa_present(in) && fwa_present(out) && in->dtype == out->dtype &&
           in->dtype != FWA_DTYPE_F64 && in->stride[3] == 1 && out->stride[3] == 1 &&
           s->slot_in >= 0 && s->slot_out >= 0 && !f->w.p->normalizer &&
           f->w.p->value_dim % FWA_LANES == 0 && columns % FWA_LANES == 0 && s->length > 0 &&
           s->length <= GROUP - s->seen % GROUP &&
           (in->dtype == FWA_DTYPE_F32 || s->length + f->w.window - 1 <= DECODE_ROWS);
}

static char *state_row(const fwa_tensor *t, int64_t slot, int64_t head, int64_t column)
{
    return (char *)fwa_element(t, fwa_at2(t, slot, head) + column);
}

static state_rows decode_rows(const fused_work *f, const fwa_sequence *next, bool has_next)
{
    const fwa_tensor *in = &f->w.carry->state, *out = &f->args->carry_out.state;
    const fwa_cpu_unit *u = &f->w.u;
    const int64_t size = (int64_t)fwa_dtype_size(in->dtype);
    const bool rows = f->w.p->key_dim > 1; /* one row may have any stride */
    state_rows r = {.from = state_row(in, f->w.s->slot_in, u->head, u->column),
                    .to = state_row(out, f->w.s->slot_out, u->head, u->column),
                    .from_step = rows ? in->stride[2] * size : 0,
                    .to_step = rows ? out->stride[2] * size : 0};
    r.next = r.from;
    r.next_step = r.from_step;
    if (has_next)
        r.next = u->head + 1 < f->unit->head + f->unit->heads
                     ? state_row(in, f->w.s->slot_in, u->head + 1, u->column)
                     : state_row(in, next->slot_in, f->unit->head, u->column);
    return r;
}

/* The walk of all columns through the first `tokens` tokens, from the products in `sums`: those of
 * the group's keys, its queries, and the tail's keys. */
static void decode_walk(const fused_work *f, int64_t tokens)
{
    const fwa_cpu_fused *s = f->f;
#define WALK(U)                                                                                    \
    do {                                                                                           \
        const group_work g = {0, tokens, GROUP, f->first > GROUP ? f->first - GROUP : 0, at};      \
        const size_t bytes = sizeof(float) * (size_t)(U * FWA_LANES);                              \
        for (int64_t i = 0; i < f->w.window - 1; i++)                                              \
            memcpy(s->predict + i * s->stride + at, s->sums + (2 * GROUP + i) * s->stride + at,    \
                   bytes);                                                                         \
        clear_pending(f, at, U);                                                                   \
        walk_first(f, &g, tokens, U);                                                              \
    } while (0)
    EACH_PANEL(f, WALK);
#undef WALK
}

static void decode_head(fused_work *f, const fwa_sequence *next, bool has_next)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t commit = f->w.s->commit, tail = f->w.window - 1, stride = s->stride;
    const int64_t low = f->first > GROUP ? f->first - GROUP : 0;
    const int32_t dtype = f->w.carry->state.dtype;
    const state_rows r = decode_rows(f, next, has_next);
    const float *rows[2 * GROUP + FWA_EIGEN_MAX];
    float *sums[2 * GROUP + FWA_EIGEN_MAX];
    int64_t count = 0, t;
    load_tail(f);
    load_block(f, false);
    for (t = 0; t < f->tokens; t++) {
        const float *key = s->features + (f->base + t) * FEATURE_ROW;
        if (f->w.regression) {
            rows[count] = key;
            sums[count++] = s->sums + t * stride;
        }
        rows[count] = key + QUERY;
        sums[count++] = s->sums + (GROUP + t) * stride;
    }
    for (t = low; f->w.regression && t < tail; t++) {
        rows[count] = s->features + (GROUP + t) * FEATURE_ROW;
        sums[count++] = s->sums + (2 * GROUP + t) * stride;
    }
    project_any(f, dtype, &r, rows, sums, count);
    decode_walk(f, f->tokens);
    store_block(f);
    if (commit == 0)
        return;
    if (commit < f->tokens)
        decode_walk(f, commit); /* outputs are stored; this leaves w as of then */
    count = tail + commit - low;
    add_any(f, dtype, &r, s->features + (GROUP + low) * FEATURE_ROW, s->pending + low * stride,
            count > 0 ? count : 0, s->keep);
}
