/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's forward of bf16 inputs, where a step is one pair and gates are per head
 * (window 1, no normaliser), in products of bf16 pairs with sums in float32. Compiled once per kind
 * of such products: the including file, kernel_<isa>.c, defines FWA_ISA, FWA_AVAILABLE,
 * FWA_KERNEL(name), and BF16_TILES for products of tiles instead of dot products. All other
 * problems are those of the avx512 kernels.
 *
 * For a chunk of 16 tokens with the state S at its start, in the notation of the maths document,
 *
 *     R = (I + A)^-1 (V - E_p X S)      O = E_r Q S + W R      S = Gamma S + X^T (F R)
 *
 * Raw keys and queries are bf16 numbers as they are: what a norm divides by goes into A, W, E and
 * F. What is rounded to bf16 is S for X S and Q S, from the S in float32 that is kept, and F R for
 * the state. Every decay is a product of gammas. Rows of a chunk that a sequence ends before are
 * zeros: outputs do not tell, to the bit, what comes after them. */

#define FWA_LANES      16
#define GROUP          4
#define PANEL_VECTORS  2
#define DECODE_VECTORS 8

#include "kernels.h"
#include "../common/eigen.h"

#include "vector_tmpl.h"
#include "eigen_tmpl.h"
#include "chunk_tmpl.h"
#include "forward_tmpl.h"
#include "fused_tmpl.h"

#include "bf16_products_tmpl.h"
#ifdef BF16_TILES
#include "bf16_tile_tmpl.h"
#else
#include "bf16_dot_tmpl.h"
#endif
#include "bf16_block_tmpl.h"

/* ---- A panel ---- */

typedef fwa_cpu_bf16_panel bf16_panel;

/* U vectors of a row of a panel. */
typedef struct {
    __m512 v[PANEL_VECTORS];
} bf16_row;

INLINE bf16_row bf16_load(const float *from, const int U)
{
    bf16_row row = {{{0}}};
    FOR_U row.v[u] = _mm512_loadu_ps(from + u * 16);
    return row;
}

INLINE void bf16_store(float *to, const bf16_row *row, const int U)
{
    FOR_U _mm512_storeu_ps(to + u * 16, row->v[u]);
}

INLINE void bf16_store_rounded(uint16_t *to, const bf16_row *row, const int U)
{
    if (U == 2)
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(row->v[U - 1], row->v[0]));
    else
        _mm256_storeu_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh(row->v[0]));
}

/* row += a b, or -= */
INLINE void bf16_add(bf16_row *row, const float *a, const bf16_row *b, const int U)
{
    __m512 factor = _mm512_set1_ps(*a);
    PIN(factor);
    FOR_U row->v[u] = _mm512_fmadd_ps(factor, b->v[u], row->v[u]);
}

INLINE void bf16_subtract(bf16_row *row, const float *a, const bf16_row *b, const int U)
{
    __m512 factor = _mm512_set1_ps(*a);
    PIN(factor);
    FOR_U row->v[u] = _mm512_fnmadd_ps(factor, b->v[u], row->v[u]);
}

/* V - E_p X S, a row of it. */
INLINE bf16_row bf16_residual(const bf16_chunk *c, const bf16_panel *p, const bool regression,
                              int t, const int U)
{
    bf16_row row = {{{0}}};
    FOR_U row.v[u] = load_bf16(p->value + t * p->value_stride + u * 16);
    if (regression) {
        const bf16_row y = bf16_load(p->sums[t], U);
        bf16_subtract(&row, &c->predict[t], &y, U);
    }
    return row;
}

/* R of a chunk, to rows of the scratch. Eight rows at a time are in registers. */
INLINE void solve_chunk(const bf16_chunk *c, bf16_panel *p, const bool regression, const int U)
{
    bf16_row r[8];
    UNROLL for (int half = 0; half < CHUNK; half += 8)
    {
        UNROLL for (int t = 0; t < 8; t++)
        {
            if (half)
                r[t] = bf16_load(p->rows[half + t], U);
            else
                r[t] = bf16_residual(c, p, regression, t, U);
        }
        if (half == 0 && c->bare)
            FOR_U r[0].v[u] = _mm512_setzero_ps();
        UNROLL for (int t = 0; t < 8; t++)
        {
            UNROLL for (int i = t + 1; regression && i < 8; i++)
                bf16_subtract(&r[i], &c->solve[half + i][half + t], &r[t], U);
            bf16_store(p->rows[half + t], &r[t], U);
        }
        UNROLL for (int first = 8; half == 0 && first < CHUNK; first += 4)
        {
            bf16_row rest[4];
            UNROLL for (int i = 0; i < 4; i++)
                rest[i] = bf16_residual(c, p, regression, first + i, U);
            UNROLL for (int t = 0; regression && t < 8; t++) UNROLL for (int i = 0; i < 4; i++)
                bf16_subtract(&rest[i], &c->solve[first + i][t], &r[t], U);
            UNROLL for (int i = 0; i < 4; i++) bf16_store(p->rows[first + i], &rest[i], U);
        }
    }
}

/* O = E_r Q S + W R of a chunk, rounded, from the rows of R. */
INLINE void read_chunk(const bf16_chunk *c, bf16_panel *p, const bool before, const int U)
{
    UNROLL for (int first = 0; first < CHUNK; first += 4)
    {
        bf16_row o[4];
        UNROLL for (int i = 0; i < 4; i++)
        {
            const __m512 factor = _mm512_set1_ps(c->recall[first + i]);
            o[i] = bf16_load(p->sums[CHUNK + first + i], U);
            FOR_U o[i].v[u] *= factor;
        }
        UNROLL_16 for (int j = 0; j < first + 4; j++)
        {
            const bf16_row r = bf16_load(p->rows[j], U);
            UNROLL for (int i = 0; i < 4; i++) if (j < first + i + !before)
                bf16_add(&o[i], &c->read[first + i][j], &r, U);
        }
        UNROLL for (int i = 0; i < 4; i++)
            bf16_store_rounded(p->output + (first + i) * p->output_stride, &o[i], U);
    }
}

/* F R of a chunk: what it writes. */
INLINE void write_chunk(const bf16_chunk *c, bf16_panel *p, const int U)
{
    UNROLL for (int t = 0; t < CHUNK; t += 2)
    {
        bf16_row even = bf16_load(p->rows[t], U), odd = bf16_load(p->rows[t + 1], U);
        FOR_U even.v[u] *= _mm512_set1_ps(c->write[t]);
        FOR_U odd.v[u] *= _mm512_set1_ps(c->write[t + 1]);
        FOR_U store_pairs(p->written[t / 2] + u * 16, even.v[u], odd.v[u]);
        if (c->writes_exactly) {
            bf16_store(p->exact_written[t], &even, U);
            bf16_store(p->exact_written[t + 1], &odd, U);
        }
    }
}

/* What a chunk does between its products with the state, of whatever rule. */
OUTLINE void walk_chunk(const bf16_work *w, const bf16_chunk *c, bf16_panel *p, int U)
{
    const bool regression = w->f.w.regression, before = w->f.w.before;
#define WALK(U)                                                                                    \
    do {                                                                                           \
        if (regression)                                                                            \
            solve_chunk(c, p, true, U);                                                            \
        else                                                                                       \
            solve_chunk(c, p, false, U);                                                           \
        if (before)                                                                                \
            read_chunk(c, p, true, U);                                                             \
        else                                                                                       \
            read_chunk(c, p, false, U);                                                            \
        write_chunk(c, p, U);                                                                      \
    } while (0)
    WITH_U(U, WALK);
#undef WALK
}

/* S = keep S + X^T F R of a panel's first tokens in float32. */
static void add_exact(const bf16_work *w, const bf16_chunk *c, int64_t tokens, int U,
                      const float *from, float *to, float keep, const float (*written)[PANEL])
{
    const int64_t dim = w->f.dim, width = U * 16;
    const operand keys = {c->exact_keys, 1, dim};
    float factor[FWA_COLUMNS_LIMIT];
    fetcher none = {.rows = 0};
    for (int64_t d = 0; d < dim; d += 16)
        store(factor + d, splat(keep));
    product_ahead(dim, width, tokens, keys, written[0], PANEL, from, to, width, factor, &none);
}

/* X S of a panel for the tokens that want it exactly. */
OUTLINE void predict_exactly(const bf16_work *w, const bf16_chunk *c, bf16_panel *p,
                             const float *state, int U)
{
    const int64_t dim = w->f.dim;
    const operand keys = {c->exact_keys, dim, 1};
    product(CHUNK, U * 16, dim, keys, state, U * 16, p->exact_sums[0], PANEL, NULL);
    for (int64_t t = 0; t < CHUNK; t++)
        if (c->exact_predict[t])
            memcpy(p->sums[t], p->exact_sums[t], sizeof p->sums[t]);
}

/* The carry's state after the chunk's first `due` tokens; what comes behind them is not looked
 * at. */
OUTLINE void commit_chunk(const bf16_work *w, const bf16_chunk *c, const bf16_panel *p, int64_t at,
                          int64_t due, int U)
{
    const float *state = w->s.state + at * w->f.dim;
    float write[CHUNK], exact[CHUNK][PANEL] = {{0}};
    uint32_t written[CHUNK / 2][PANEL];
    const float keep = written_factors(c, due, write);
    bool exactly = false;
    for (int64_t t = 0; t < due; t++) {
        exactly |= c->exact_write[t];
        for (int64_t i = 0; i < U * 16; i += 16)
            store(exact[t] + i, splat(write[t]) * load(p->rows[t] + i));
    }
    pair_chunk(w->words, due, c->keys, w->s.commit_pairs);
    for (int64_t t = 0; t < CHUNK; t += 2) {
        for (int64_t i = 0; i < U * 16; i += 16)
            store_pairs(written[t / 2] + i, _mm512_loadu_ps(exact[t] + i),
                        _mm512_loadu_ps(exact[t + 1] + i));
    }
    if (exactly)
        add_exact(w, c, due, U, state, w->s.commit, keep, (const float(*)[PANEL])exact);
    else
        add_written(U, w->f.dim, state, w->s.commit, keep, w->s.commit_pairs, written, NULL);
    store_panel(&w->f, at, w->s.commit, U);
}

/* Turns to the chunk: its values and outputs are the caller's rows where those are whole, else rows
 * of the scratch, with zeros for tokens that it does not have. */
static void set_panel_rows(const bf16_work *w, const bf16_chunk *c, bf16_panel *p, int64_t at,
                           int64_t width)
{
    const unit_work *u = &w->f.w;
    const fwa_tensor *v = u->in.v, *o = w->f.args ? &w->f.args->o : NULL;
    const int64_t row = u->s->row, token = u->s->first + w->f.start + c->b;
    const int64_t column = u->u.column + at;
    p->value = (const uint16_t *)(const void *)fwa_element(v, fwa_at3(v, row, token, u->u.head) +
                                                                  column * v->stride[3]);
    p->value_stride = v->stride[1];
    p->output = p->outputs[0];
    p->output_stride = PANEL;
    if (o && c->tokens == CHUNK && o->stride[3] == 1) {
        p->output = (uint16_t *)(void *)fwa_element(o, fwa_at3(o, row, token, u->u.head) + column);
        p->output_stride = o->stride[1];
    }
    if (c->tokens == CHUNK && v->stride[3] == 1)
        return;
    memset(p->values, 0, sizeof p->values);
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t i = 0; i < width; i++)
            p->values[t][i] = p->value[t * v->stride[1] + i * v->stride[3]];
    p->value = p->values[0];
    p->value_stride = PANEL;
}

/* Outputs that are in the scratch. */
static void store_panel_outputs(const bf16_work *w, const bf16_chunk *c, const bf16_panel *p,
                                int64_t at, int64_t width)
{
    const unit_work *u = &w->f.w;
    const fwa_tensor *o = &w->f.args->o;
    const int64_t offset = fwa_at3(o, u->s->row, u->s->first + w->f.start + c->b, u->u.head) +
                           (u->u.column + at) * o->stride[3];
    uint16_t *to = (uint16_t *)(void *)fwa_element(o, offset);
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t i = 0; i < width; i++)
            to[t * o->stride[1] + i * o->stride[3]] = p->outputs[t][i];
}

/* Residuals for the backward. */
static void store_panel_residuals(const bf16_work *w, const bf16_chunk *c, const bf16_panel *p,
                                  int64_t at, int64_t width)
{
    float *to = w->f.kept + c->b * w->f.kept_stride + at;
    for (int64_t t = 0; t < c->tokens; t++, to += w->f.kept_stride)
        for (int64_t i = 0; i < width; i += 16)
            store(to + i, load(p->rows[t] + i));
}

/* One chunk of a panel. */
static void run_chunk(const bf16_work *w, const bf16_chunk *c, int64_t at, int U, fetcher *ahead)
{
    const int64_t dim = w->f.dim, commit = w->f.w.s->commit, due = commit - w->f.start - c->b;
    uint32_t *copy = w->s.copy + at * w->words;
    float *state = w->s.state + at * dim;
    bf16_panel *p = w->s.panel;
    const bool rounded = w->f.w.regression && !c->predicts_all_exactly;
    set_panel_rows(w, c, p, at, U * 16);
    multiply(U, w->words, rounded ? c->keys : NULL, c->queries, copy, p->sums, ahead);
    fetch_lines(ahead, INT64_MAX); /* what is left */
    if (c->predicts_exactly)
        predict_exactly(w, c, p, state, U);
    walk_chunk(w, c, p, U);
    if (w->f.args && p->output == p->outputs[0])
        store_panel_outputs(w, c, p, at, U * 16);
    if (w->f.kept)
        store_panel_residuals(w, c, p, at, U * 16);
    if (w->f.args && due > 0 && due <= c->tokens && commit < w->f.w.s->length)
        commit_chunk(w, c, p, at, due, U);
    if (c->writes_exactly) {
        add_exact(w, c, c->tokens, U, state, state, c->keep,
                  (const float(*)[PANEL])p->exact_written);
        copy_panel(U, dim, state, copy);
    } else {
        add_written(U, dim, state, state, c->keep, c->pairs, p->written, copy);
    }
}

/* The block at hand, one panel. Each chunk brings `share` of the rows that come next. */
static void run_bf16_panel(const bf16_work *w, int64_t at, int U, fetcher *ahead, int64_t share)
{
    const unit_work *u = &w->f.w;
    EACH_CHUNK(w, c)
    {
        ahead->limit = ahead->limit + share < ahead->rows ? ahead->limit + share : ahead->rows;
        run_chunk(w, c, at, U, ahead);
    }
    if (w->f.args && w->f.last && u->s->commit == u->s->length)
        store_panel(&w->f, at, w->s.state + at * w->f.dim, U);
}

/* ---- A unit: heads of one sequence ---- */

/* Turns to the unit's head `index`. */
static void select_bf16_head(bf16_work *w, const fwa_cpu_bf16 *first, int64_t index)
{
    fused_work *f = &w->f;
    f->f->state = (float *)(void *)((char *)first->state + (size_t)index * first->head_size);
    w->s.state = f->f->state;
    w->s.copy = (uint32_t *)(void *)((char *)first->copy + (size_t)index * first->head_size);
    f->w.u = fwa_cpu_head_unit(f->w.plan, f->unit->head + index, f->unit->column, f->unit->columns);
    f->width = f->w.u.width;
}

/* Before a sequence's first token. */
static void begin_bf16_heads(bf16_work *w, const fwa_cpu_bf16 *first)
{
    const unit_work *u = &w->f.w;
    for (int64_t h = 0; h < w->f.unit->heads; h++) {
        select_bf16_head(w, first, h);
        if (u->s->padded && w->f.args)
            clear_outputs(u, &w->f.args->o);
        else if (w->f.args && u->s->commit == 0)
            copy_state(u, &w->f.args->carry_out);
        if (u->s->padded)
            continue;
        load_states(&w->f);
#define COPY(U) copy_panel(U, w->f.dim, w->s.state + at * w->f.dim, w->s.copy + at * w->words)
        EACH_PANEL(&w->f, COPY);
#undef COPY
    }
}

/* The block of `tokens` tokens at `start`, all heads; `after` tokens come in the next one. */
static void run_bf16_block(bf16_work *w, const fwa_cpu_bf16 *first, int64_t start, int64_t tokens,
                           int64_t after, const fwa_cpu_partials *kept, int64_t segment)
{
    fused_work *f = &w->f;
    for (int64_t h = 0; h < f->unit->heads; h++) {
        const fwa_cpu_unit before = f->w.u;
        fetcher ahead;
        int64_t passes, share;
        bool same_keys;
        select_bf16_head(w, first, h);
        same_keys = h > 0 && before.key_head == f->w.u.key_head &&
                    before.query_head == f->w.u.query_head;
        set_block(f, start, tokens, kept);
        if (segment >= 0) {
            float *to = fwa_cpu_kept(f->w.p, kept, f->w.u.head, segment);
#define KEEP(U) keep_panel(f, to, at, U)
            EACH_PANEL(f, KEEP);
#undef KEEP
        }
        load_bf16_block(w, same_keys);
        if (h + 1 < f->unit->heads)
            ahead = fetcher_make(f, f->w.u.head + 1, start, tokens);
        else
            ahead = fetcher_make(f, f->unit->head, after ? start + tokens : start, after);
        passes = w->count * ((f->width + PANEL - 1) / PANEL);
        share = (ahead.rows + passes - 1) / passes;
#define RUN(U) run_bf16_panel(w, at, U, &ahead, share)
        EACH_PANEL(f, RUN);
#undef RUN
    }
}

static void FWA_KERNEL(bf16)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                             const fwa_sequence *s, const fwa_cpu_fused_unit *unit,
                             const fwa_cpu_bf16 *scratch, const fwa_cpu_partials *kept)
{
    fwa_cpu_fused states = {0};
    const fwa_cpu_unit none = {0};
    bf16_work w = {.f = {.w = unit_begin(plan, call, in, s, none, NULL),
                         .f = &states,
                         .unit = unit,
                         .args = call->forward},
                   .s = *scratch,
                   .words = plan->problem.key_dim / 2};
    int64_t segment = fwa_cpu_first_segment(plan, s), start, next;
    w.f.dim = plan->problem.key_dim;
    products_begin();
    begin_bf16_heads(&w, scratch);
    for (start = 0; !s->padded && start < s->length; start = next) {
        const bool starts = kept && fwa_cpu_segment_starts(plan, s, start);
        const int64_t tokens = grid_tokens(&w.f.w, start, FWA_CPU_FUSED_BLOCK);
        next = start + tokens;
        run_bf16_block(&w, scratch, start, tokens,
                       next < s->length ? grid_tokens(&w.f.w, next, FWA_CPU_FUSED_BLOCK) : 0, kept,
                       starts ? segment : -1);
        segment += starts;
    }
    products_end();
}

/* ---- What there is no other way to compute than avx512's ---- */

static void FWA_KERNEL(other_forward)(const fwa_cpu_plan *plan, const fwa_call *call,
                                      const fwa_carry *in, const fwa_sequence *s, int64_t unit,
                                      fwa_cpu_chunk *chunk, const fwa_cpu_partials *kept)
{
    fwa_cpu_kernels_avx512.forward(plan, call, in, s, unit, chunk, kept);
}

static void FWA_KERNEL(other_fused)(const fwa_cpu_plan *plan, const fwa_call *call,
                                    const fwa_carry *in, const fwa_sequence *s,
                                    const fwa_cpu_fused_unit *unit, const fwa_cpu_fused *scratch,
                                    const fwa_cpu_partials *kept)
{
    fwa_cpu_kernels_avx512.fused(plan, call, in, s, unit, scratch, kept);
}

static void FWA_KERNEL(other_adjoint)(const fwa_cpu_plan *plan, const fwa_call *call,
                                      const fwa_sequence *s, int64_t unit, int64_t units,
                                      const fwa_cpu_adjoint *scratch, const fwa_cpu_partials *parts)
{
    fwa_cpu_kernels_avx512.adjoint(plan, call, s, unit, units, scratch, parts);
}

static void FWA_KERNEL(other_backward)(const fwa_cpu_plan *plan, const fwa_call *call,
                                       const fwa_sequence *s, int64_t unit, fwa_cpu_chunk *chunk,
                                       const fwa_cpu_partials *parts)
{
    fwa_cpu_kernels_avx512.backward(plan, call, s, unit, chunk, parts);
}

/* The constants are avx512's. */
const fwa_cpu_kernels FWA_KERNEL(fwa_cpu_kernels) = {
    .isa = FWA_ISA,
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL,
    .available = FWA_AVAILABLE,
    .forward = FWA_KERNEL(other_forward),
    .fused = FWA_KERNEL(other_fused),
    .bf16 = FWA_KERNEL(bf16),
    .adjoint = FWA_KERNEL(other_adjoint),
    .backward = FWA_KERNEL(other_backward),
};
