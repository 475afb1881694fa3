/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward's units: states of the carry, blocks of a panel, heads. */

/* ---- States of the carry ---- */

/* Real columns of the panel, and whether the normaliser's is behind them. */
static int64_t panel_columns(const fused_work *f, int64_t at, int U, bool *norm)
{
    const int64_t left = f->w.u.columns - at, width = U * FWA_LANES;
    *norm = f->w.p->normalizer && left >= 0 && left < width;
    return left < 0 ? 0 : left < width ? left : width;
}

/* Row d of a state, in all panels. */
INLINE void scatter_row(const fused_work *f, int64_t d, const float *row)
{
    const int64_t dim = f->w.p->key_dim;
#define SCATTER(U)                                                                                 \
    do {                                                                                           \
        const panel_row part = row_load(row + at, U);                                              \
        row_store(f->f->state + at * dim + d * (U * FWA_LANES), &part, U);                         \
    } while (0)
    EACH_PANEL(f, SCATTER);
#undef SCATTER
}

/* The carry's state, or zeros. */
static void load_states(const fused_work *f)
{
    const unit_work *w = &f->w;
    const fwa_tensor *state = &w->carry->state, *norm = &w->carry->norm;
    const int64_t slot = w->s->slot_in;
    const bool given = slot >= 0 && fwa_present(state);
    float row[FWA_COLUMNS_LIMIT] = {0};
    int64_t d;
    for (d = 0; d < w->p->key_dim; d++) {
        const int64_t at = given
                               ? fwa_at3(state, slot, w->u.head, d) + w->u.column * state->stride[3]
                               : 0;
        if (given && is_direct(w, state)) {
            scatter_row(f, d, (const float *)(const void *)fwa_element(state, at));
            continue;
        }
        if (given)
            fwa_load_f32(state, at, w->u.columns, row);
        if (slot >= 0 && w->p->normalizer)
            row[w->u.columns] = fwa_load_one_f32(
                norm, fwa_at2(norm, slot, w->u.head) + d * norm->stride[2], 0);
        scatter_row(f, d, row);
    }
}

OUTLINE void store_panel(const fused_work *f, int64_t at, const float *row, int U)
{
    const unit_work *w = &f->w;
    const fwa_tensor *state = &f->args->carry_out.state, *norm = &f->args->carry_out.norm;
    const int64_t slot = w->s->slot_out;
    bool has_norm;
    const int64_t columns = panel_columns(f, at, U, &has_norm);
    int64_t d;
    for (d = 0; slot >= 0 && d < w->p->key_dim; d++, row += U * FWA_LANES) {
        const int64_t to = fwa_present(state) ? fwa_at3(state, slot, w->u.head, d) +
                                                    (w->u.column + at) * state->stride[3]
                                              : 0;
        if (columns && fwa_present(state) && is_direct(w, state)) {
            memcpy(fwa_element(state, to), row, sizeof(float) * (size_t)columns);
        } else if (columns && fwa_present(state)) {
            fwa_store_f32(state, to, columns, row);
        }
        if (has_norm && w->u.column == 0 && fwa_present(norm))
            fwa_store_f32(norm, fwa_at2(norm, slot, w->u.head) + d, 1, row + columns);
    }
}

OUTLINE void keep_panel(const fused_work *f, float *kept, int64_t at, int U)
{
    bool has_norm;
    const int64_t columns = panel_columns(f, at, U, &has_norm), dim = f->w.p->key_dim;
    const float *row = f->f->state + at * dim;
    int64_t d;
    for (d = 0; d < dim; d++, row += U * FWA_LANES, kept += fwa_cpu_kept_stride(f->w.p)) {
        memcpy(kept + f->w.u.column + at, row, sizeof(float) * (size_t)columns);
        if (has_norm && f->w.u.column == 0)
            kept[f->w.p->value_dim] = row[columns];
    }
}

/* Writes the carry's state after the first `due` tokens of the group; what comes behind them is not
 * looked at. The walk is taken twice: `pending` and `predict` are put back. */
OUTLINE void commit_panel(const fused_work *f, const group_work *g, int64_t due, int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim, width = U * FWA_LANES, stride = s->stride;
    const int64_t pairs = f->w.window - 1 + due;
    const size_t bytes = sizeof(float) * (size_t)width;
    int64_t i;
    for (i = 0; i < f->w.window - 1; i++) {
        memcpy(s->aside + 2 * i * width, s->pending + i * stride + g->at, bytes);
        memcpy(s->aside + (2 * i + 1) * width, s->predict + i * stride + g->at, bytes);
    }
    walk_first(f, g, due, U);
    if (g->low < pairs)
        add_pairs(U, pairs - g->low, dim, s->state + g->at * dim, s->commit, width, width,
                  s->features + (g->row + g->low) * FEATURE_ROW,
                  s->pending + g->low * stride + g->at, stride, s->keep + g->at);
    else
        memcpy(s->commit, s->state + g->at * dim, (size_t)dim * bytes);
    store_panel(f, g->at, s->commit, U);
    for (i = 0; i < f->w.window - 1; i++) {
        memcpy(s->pending + i * stride + g->at, s->aside + 2 * i * width, bytes);
        memcpy(s->predict + i * stride + g->at, s->aside + (2 * i + 1) * width, bytes);
    }
}

/* ---- A block's panels ---- */

/* A group's pass over a panel. */
INLINE void pass_panel(const fused_work *f, int64_t b, int64_t at, const int U, const bool keys,
                       const bool scaled, fetcher *ahead)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim;
    pass_rows(U, keys, scaled, dim, s->state + at * dim, s->features + b * FEATURE_ROW,
              s->complete + at, s->stride, s->keep + at, s->features + (f->base + b) * FEATURE_ROW,
              s->sums + at, ahead);
}

/* The same and the walk behind it. */
INLINE void run_group(const fused_work *f, const group_work *g, const float *factors, const int U,
                      const bool keys, fetcher *ahead)
{
    const int64_t commit = f->w.s->commit, due = commit - f->start - g->b;
    if (f->f->fold[g->at / FWA_LANES])
        pass_panel(f, g->b, g->at, U, keys, true, ahead);
    else
        pass_panel(f, g->b, g->at, U, keys, false, ahead);
    if (f->args && due > 0 && due <= g->tokens && commit < f->w.s->length)
        commit_panel(f, g, due, U);
    if (has_factors(f, g->b, g->low)) {
        walk_group_factors(f, g, factors, keys, U);
    } else if (g->tokens == GROUP && is_short_window(f, g->low)) {
        walk_short_pass(f, g, U);
    } else {
        const panel_row decay = walk(f, g, g->tokens, U);
        finish_group(f, g, &decay, U);
    }
}

/* Up to where from the block's token b on all groups are whole, walked by factors, and not
 * committed within. */
static int64_t plain_end(const fused_work *f, int64_t b)
{
    const fwa_sequence *s = f->w.s;
    const int64_t commit = s->commit - f->start, row = GROUP + b;
    int64_t end = b + (f->tokens - b) / GROUP * GROUP;
    if (!has_factors(f, b, f->first > row ? f->first - row : 0))
        return b;
    if (f->args && s->commit < s->length && commit > b && commit <= end)
        end = b + (commit - 1 - b) / GROUP * GROUP;
    return end;
}

/* The walk of such a group through the panel at column `at`. */
INLINE void walk_plain(const fused_work *f, int64_t b, int64_t stop, const float *factors,
                       int64_t at, const bool keys, const int U)
{
    const group_work g = {.b = b, .tokens = GROUP};
    const float end = factors[GROUP_FACTORS - 1];
    const bool fold = is_folded(f, &g, end);
    walk_factors(f, b, true, GROUP, factors, at, f->f->complete + at, keys, U);
    if (fold || b + GROUP >= stop)
        hand_on(f, at, end, fold, U);
}

/* Such groups. A panel's walk comes after the next panel's pass: what it waits for is then there,
 * and the pass that waits for it is still to come. */
INLINE void run_plain(const fused_work *f, int64_t b, int64_t stop, const float *factors,
                      int64_t first, int64_t end, const int U, const bool keys, fetcher *ahead,
                      int64_t share)
{
    const bool alone = end - first <= PANEL;
    bool fold = f->f->fold[first / FWA_LANES];
    int64_t late_at = -1, late_b = b, at;
    const float *late_factors = factors;
    for (; b < stop; b += GROUP, factors += GROUP_FACTORS) {
        for (at = first; at < end; at += PANEL) {
            ahead->limit = ahead->limit + share < ahead->rows ? ahead->limit + share : ahead->rows;
            if (fold)
                pass_panel(f, b, at, U, keys, true, ahead);
            else
                pass_panel(f, b, at, U, keys, false, ahead);
            if (late_at >= 0)
                walk_plain(f, late_b, stop, late_factors, late_at, keys, U);
            late_at = at;
            late_b = b;
            late_factors = factors;
            if (alone) {
                walk_plain(f, b, stop, factors, at, keys, U);
                late_at = -1;
            }
        }
        const group_work g = {.b = b, .tokens = GROUP};
        fold = is_folded(f, &g, factors[GROUP_FACTORS - 1]);
    }
    if (late_at >= 0)
        walk_plain(f, late_b, stop, late_factors, late_at, keys, U);
}

/* The block at hand, `count` panels from column `first` on. Each pass brings `share` of the rows
 * that come next. Panels take turns: while one's walk waits for the last sums of its pass, the next
 * one's pass begins. */
INLINE void run_panels(const fused_work *f, int64_t first, int64_t count, const int U,
                       const bool keys, fetcher *ahead, int64_t share, bool keep)
{
    const int64_t end = first + count * PANEL;
    group_work g = {0};
    int64_t at, n = 0;
    while (g.b < f->tokens) {
        const int64_t plain = plain_end(f, g.b);
        const float *factors = f->f->factors + n * GROUP_FACTORS;
        if (plain > g.b) {
            run_plain(f, g.b, plain, factors, first, end, U, keys, ahead, share);
            n += (plain - g.b) / GROUP;
            g.b = plain;
            continue;
        }
        g.tokens = group_tokens(f, g.b);
        g.row = GROUP + g.b;
        g.low = f->first > g.row ? f->first - g.row : 0;
        for (g.at = first; g.at < end; g.at += PANEL) {
            ahead->limit = ahead->limit + share < ahead->rows ? ahead->limit + share : ahead->rows;
            run_group(f, &g, factors, U, keys, ahead);
        }
        g.b += g.tokens;
        n++;
    }
    for (at = first; at < end; at += PANEL) {
        if (f->last || keep || f->w.window > 1)
            settle(f, at, U);
        if (f->args && f->last && f->w.s->commit == f->w.s->length)
            store_panel(f, at, f->f->state + at * f->w.p->key_dim, U);
    }
}

/* The block at hand, all panels. */
static void run_block(const fused_work *f, fetcher *ahead, bool keep)
{
    const int64_t whole = f->width / PANEL, together = f->w.plan->together;
    const int64_t passes = (f->tokens + GROUP - 1) / GROUP * ((f->width + PANEL - 1) / PANEL);
    const int64_t share = (ahead->rows + passes - 1) / passes;
    int64_t at, count;
    ahead->apart = f->w.p->key_dim / (share > 0 ? share : 1);
    ahead->apart = ahead->apart > 4 ? ahead->apart : 4;
#define RUN(U, count)                                                                              \
    do {                                                                                           \
        if (f->w.regression)                                                                       \
            run_panels(f, at, count, U, true, ahead, share, keep);                                 \
        else                                                                                       \
            run_panels(f, at, count, U, false, ahead, share, keep);                                \
    } while (0)
    for (at = 0; at < whole * PANEL; at += count * PANEL) {
        count = whole - at / PANEL < together ? whole - at / PANEL : together;
        RUN(PANEL_VECTORS, count);
    }
    for (; at < f->width; at += FWA_LANES)
        RUN(1, 1);
#undef RUN
}

/* ---- A unit: heads of one sequence ---- */

/* Turns to the unit's head `index`. */
static void select_head(fused_work *f, fwa_cpu_fused *first, int64_t index)
{
    fwa_cpu_fused *s = f->f;
    const ptrdiff_t bytes = (ptrdiff_t)first->head_size * index;
#define MOVE(part) s->part = (void *)((char *)first->part + bytes)
    MOVE(state), MOVE(scale), MOVE(keep), MOVE(complete), MOVE(pending), MOVE(predict);
    MOVE(fold), MOVE(last_features), MOVE(last_gram), MOVE(last_values);
#undef MOVE
    f->w.u = fwa_cpu_head_unit(f->w.plan, f->unit->head + index, f->unit->column, f->unit->columns);
    f->width = (f->w.u.width + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
}

/* The pairs of the head's tail, from the carry. */
static void load_tail(const fused_work *f)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    const int64_t tail = w->window - 1;
    int64_t i;
    for (i = 0; i < tail; i++)
        memset(s->values + i * s->stride, 0, sizeof(float) * (size_t)s->stride);
    for (i = w->first_pair < 0 ? w->first_pair : 0; i < 0; i++) {
        load_raw_key(w, i, s->raw);
        feature_row(w->p, f->dim, pad_row(f, s->raw), s->features + (f->base + i) * FEATURE_ROW);
        load_value(w, i, s->values + (tail + i) * s->stride);
        fused_products(f, f->base + i, f->base + i - f->first + 1, NULL);
    }
}

/* The head's state and the pairs of its tail, from the carry. */
static void begin_head(const fused_work *f)
{
    int64_t i;
    for (i = 0; i < f->base; i++)
        memset(f->f->features + i * FEATURE_ROW, 0, sizeof(float) * (size_t)f->dim);
    load_tail(f);
    load_states(f);
#define LOAD(U)                                                                                    \
    do {                                                                                           \
        clear_pending(f, at, U);                                                                   \
        predict_tail(f, GROUP, at, U);                                                             \
    } while (0)
    EACH_PANEL(f, LOAD);
#undef LOAD
    copy_rows(f, false);
}

static void store_block(const fused_work *f)
{
    const unit_work *w = &f->w;
    const fwa_tensor *o = &f->args->o;
    int64_t b;
    if (w->p->normalizer)
        store_outputs(w, o, f->start, f->tokens, f->output, f->output_stride);
    for (b = 0; b < f->tokens && !w->p->normalizer && !f->direct_outputs; b++)
        fwa_store_f32(o, fwa_at3(o, w->s->row, w->s->first + f->start + b, w->u.head) + w->u.column,
                      w->u.columns, f->output + b * f->output_stride);
}
