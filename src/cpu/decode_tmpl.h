/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward of a group or less of tokens: decoding. */

/* ---- A group or less of tokens, on the carry's own memory: decoding ---- */

/* A state in memory, its rows `stride` apart, and the one that comes after it: itself, where none
 * does. */
typedef struct {
    const float *from;
    float *to;
    int64_t from_stride, to_stride;
    const char *next;
    int64_t next_step; /* bytes */
} state_rows;

/* Fetches the lines of the next state that are as many bytes from its start as `begin` to `end`. */
INLINE void fetch_part(const char *next, const int begin, const int end)
{
    UNROLL_16 for (int line = begin; line < end; line += 64) __builtin_prefetch(next + line, 0, 2);
}

/* Bytes of U vectors, and of those the half that the first pass over a state fetches. */
#define STRIP_BYTES(U) ((U)*FWA_LANES * (int)sizeof(float))
#define FIRST_BYTES(U) (STRIP_BYTES(U) / 2 / 64 * 64)

/* S^T x and S^T q of U vectors of columns; x is wanted where `keys` is. */
INLINE void project_wide(const int U, const bool keys, int64_t dim, const state_rows *r, int64_t at,
                         const float *key, float *key_to, float *query_to, bool ahead)
{
    vec key_sum[DECODE_VECTORS] = {{0}}, query_sum[DECODE_VECTORS] = {{0}};
    const float *s = r->from + at;
    const char *next = r->next + at * (int64_t)sizeof(float);
    int64_t d;
    for (d = 0; d < dim; d++, s += r->from_stride, next += r->next_step) {
        vec x = splat(key[d]), q = splat(key[d + QUERY]);
        PIN(x);
        PIN(q);
        if (ahead)
            fetch_part(next, 0, FIRST_BYTES(U));
        FOR_U
        {
            const vec row = load(s + u * FWA_LANES);
            if (keys)
                key_sum[u] += x * row;
            query_sum[u] += q * row;
        }
    }
    FOR_U
    {
        if (keys)
            store(key_to + at + u * FWA_LANES, key_sum[u]);
        store(query_to + at + u * FWA_LANES, query_sum[u]);
    }
}

/* S = keep S + x w^T, or keep S, of U vectors of columns. */
INLINE void add_wide(const int U, const bool pair_given, int64_t dim, const state_rows *r,
                     int64_t at, const float *x, const float *w, const float *keep, bool ahead)
{
    vec pair[DECODE_VECTORS] = {{0}}, factor[DECODE_VECTORS] = {{0}};
    const float *from = r->from + at;
    float *to = r->to + at;
    const char *next = r->next + at * (int64_t)sizeof(float);
    int64_t d;
    FOR_U
    {
        if (pair_given)
            pair[u] = load(w + at + u * FWA_LANES);
        factor[u] = keep ? load(keep + at + u * FWA_LANES) : splat(1);
    }
    for (d = 0; d < dim; d++, from += r->from_stride, to += r->to_stride, next += r->next_step) {
        vec a = splat(pair_given ? x[d] : 0);
        PIN(a);
        if (ahead)
            fetch_part(next, FIRST_BYTES(U), STRIP_BYTES(U));
        FOR_U
        {
            vec row = load(from + u * FWA_LANES) * factor[u];
            PIN(row);
            if (pair_given)
                row += a * pair[u];
            store(to + u * FWA_LANES, row);
        }
    }
}

/* Calls run(U) for the unit's columns, in as wide steps as there are. */
#define EACH_WIDE(f, run)                                                                          \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + DECODE_VECTORS * FWA_LANES <= (f)->width; at += DECODE_VECTORS * FWA_LANES)    \
            run(DECODE_VECTORS);                                                                   \
        for (; at + 2 * FWA_LANES <= (f)->width; at += 2 * FWA_LANES)                              \
            run(2);                                                                                \
        for (; at < (f)->width; at += FWA_LANES)                                                   \
            run(1);                                                                                \
    } while (0)

/* True where the state can be worked on where it is, and no pass is needed. */
static bool decode_fits(const fused_work *f)
{
    const fwa_sequence *s = f->w.s;
    const fwa_tensor *in = &f->w.carry->state;
    const fwa_tensor *out = f->args ? &f->args->carry_out.state : NULL;
    const int64_t columns = f->w.p->value_dim < f->unit->columns ? f->w.p->value_dim
                                                                 : f->unit->columns;
    return out && fwa_present(in) && fwa_present(out) && in->dtype == FWA_DTYPE_F32 &&
           out->dtype == FWA_DTYPE_F32 && in->stride[3] == 1 && out->stride[3] == 1 &&
           s->slot_in >= 0 && s->slot_out >= 0 && !f->w.p->normalizer &&
           f->w.p->value_dim % FWA_LANES == 0 && columns % FWA_LANES == 0 && s->length > 0 &&
           s->length <= GROUP - s->seen % GROUP;
}

static float *state_row(const fwa_tensor *t, int64_t slot, int64_t head, int64_t column)
{
    return (float *)(void *)fwa_element(t, fwa_at2(t, slot, head)) + column;
}

static state_rows decode_rows(const fused_work *f, const fwa_sequence *next, bool has_next)
{
    const fwa_tensor *in = &f->w.carry->state, *out = &f->args->carry_out.state;
    const fwa_cpu_unit *u = &f->w.u;
    const bool rows = f->w.p->key_dim > 1; /* one row may have any stride */
    state_rows r = {state_row(in, f->w.s->slot_in, u->head, u->column),
                    state_row(out, f->w.s->slot_out, u->head, u->column),
                    rows ? in->stride[2] : 0,
                    rows ? out->stride[2] : 0,
                    (const char *)state_row(in, f->w.s->slot_in, u->head, u->column),
                    rows ? in->stride[2] * (int64_t)sizeof(float) : 0};
    if (has_next)
        r.next = (const char *)(u->head + 1 < f->unit->head + f->unit->heads
                                    ? state_row(in, f->w.s->slot_in, u->head + 1, u->column)
                                    : state_row(in, next->slot_in, f->unit->head, u->column));
    return r;
}

/* The walk of all columns through the first `tokens` tokens, from the products in `sums`: those of
 * the group's keys, its queries, a row of no use, and the tail's keys. */
static void decode_walk(const fused_work *f, int64_t tokens)
{
    const fwa_cpu_fused *s = f->f;
#define WALK(U)                                                                                    \
    do {                                                                                           \
        const group_work g = {0, tokens, GROUP, f->first > GROUP ? f->first - GROUP : 0, at};      \
        const size_t bytes = sizeof(float) * (size_t)(U * FWA_LANES);                              \
        for (int64_t i = 0; i < f->w.window - 1; i++)                                              \
            memcpy(s->predict + i * s->stride + at,                                                \
                   s->sums + (2 * GROUP + 1 + i) * s->stride + at, bytes);                         \
        clear_pending(f, at, U);                                                                   \
        walk_first(f, &g, tokens, U);                                                              \
    } while (0)
    EACH_PANEL(f, WALK);
#undef WALK
}

static void decode_head(fused_work *f, const fwa_sequence *next, bool has_next)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim, commit = f->w.s->commit, tail = f->w.window - 1;
    const int64_t low = f->first > GROUP ? f->first - GROUP : 0;
    state_rows r = decode_rows(f, next, has_next);
    int64_t t;
    load_tail(f);
    load_block(f, false);
    for (t = 0; t < f->tokens; t++) {
        const float *key = s->features + (f->base + t) * FEATURE_ROW;
        float *key_to = s->sums + t * s->stride, *query_to = key_to + GROUP * s->stride;
#define PROJECT(U)                                                                                 \
    do {                                                                                           \
        if (f->w.regression)                                                                       \
            project_wide(U, true, dim, &r, at, key, key_to, query_to, t == 0);                     \
        else                                                                                       \
            project_wide(U, false, dim, &r, at, key, key_to, query_to, t == 0);                    \
    } while (0)
        EACH_WIDE(f, PROJECT);
#undef PROJECT
    }
    for (t = low; f->w.regression && t < tail; t++) {
        const float *key = s->features + (GROUP + t) * FEATURE_ROW;
#define PREDICT(U)                                                                                 \
    project_wide(U, true, dim, &r, at, key, s->sums + (2 * GROUP + 1 + t) * s->stride,             \
                 s->sums + 2 * GROUP * s->stride, false)
        EACH_WIDE(f, PREDICT);
#undef PREDICT
    }
    decode_walk(f, f->tokens);
    store_block(f);
    if (commit == 0)
        return;
    if (commit < f->tokens) {
        decode_walk(f, commit); /* outputs are stored; this leaves w as of then */
    }
    for (t = low; t < tail + commit; t++) {
        const float *x = s->features + (GROUP + t) * FEATURE_ROW, *w = s->pending + t * s->stride;
        const float *keep = t == low ? s->keep : NULL;
#define ADD(U) add_wide(U, true, dim, &r, at, x, w, keep, t == low)
        EACH_WIDE(f, ADD);
#undef ADD
        r.from = r.to;
        r.from_stride = r.to_stride;
    }
    if (low >= tail + commit) { /* no pair */
#define COPY(U) add_wide(U, false, dim, &r, at, NULL, NULL, s->keep, true)
        EACH_WIDE(f, COPY);
#undef COPY
    }
}
