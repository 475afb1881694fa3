/* SPDX-License-Identifier: Apache-2.0 */
/* A unit's forward pass. Compiled once per ISA. */

/* Stores o = scale S^T q, or scale S^T q / (z^T q + eps_attn), of `tokens` tokens from `start` on;
 * `rows` hold S^T q and z^T q. */
static void store_outputs(const unit_work *w, const fwa_tensor *o, int64_t start, int64_t tokens,
                          float *rows, int64_t stride)
{
    int64_t t;
    int32_t i;
    for (t = 0; t < tokens; t++) {
        float *row = rows + t * stride;
        float factor = (float)w->p->scale;
        if (w->p->normalizer) {
            float denominator = row[w->u.columns] + (float)w->p->eps_attn;
            for (i = 0; i < w->u.columns; i++)
                row[i] = denominator != 0 ? factor * row[i] / denominator : 0;
        } else {
            for (i = 0; i < w->u.columns; i++)
                row[i] *= factor;
        }
        fwa_store_f32(o, fwa_at3(o, w->s->row, w->s->first + start + t, w->u.head) + w->u.column,
                      w->u.columns, row);
    }
}

/* Writes a state of this unit to the carry; z too, from the first block of columns. */
static void store_state(const unit_work *w, const fwa_carry *out, const float *state)
{
    int64_t slot = w->s->slot_out, d;
    for (d = 0; slot >= 0 && d < w->p->key_dim; d++) {
        const float *row = state + d * w->c->stride;
        if (fwa_present(&out->state))
            fwa_store_f32(&out->state,
                          fwa_at3(&out->state, slot, w->u.head, d) +
                              w->u.column * out->state.stride[3],
                          w->u.columns, row);
        if (fwa_present(&out->norm) && w->u.column == 0)
            fwa_store_f32(&out->norm, fwa_at2(&out->norm, slot, w->u.head) + d, 1,
                          row + w->u.columns);
    }
}

/* Nothing is committed: this unit's part of the carry goes over bit for bit. */
static void copy_state(const unit_work *w, const fwa_carry *out)
{
    fwa_tensor from = w->carry->state, to = out->state;
    if (w->s->slot_out < 0)
        return;
    if (fwa_present(&to)) {
        to.data = fwa_element(&to, w->u.column * to.stride[3]);
        to.shape[3] = w->u.columns;
        if (fwa_present(&from))
            from.data = fwa_element(&from, w->u.column * from.stride[3]);
        fwa_carry_copy(&from, w->s->slot_in, &to, w->s->slot_out, w->u.head, 1);
    }
    if (fwa_present(&out->norm) && w->u.column == 0)
        fwa_carry_copy(&w->carry->norm, w->s->slot_in, &out->norm, w->s->slot_out, w->u.head, 1);
}

/* The masked form's weights of one value column (or of the head): m[t,j] = gamma_t m[t-1,j] +
 * kappa_t for j in the window; row t is what token t reads. */
static void store_mask_column(const unit_work *w, const fwa_tensor *mask, int64_t base,
                              int32_t column)
{
    const fwa_cpu_chunk *c = w->c;
    float *row = c->mask;
    int64_t token_axis = mask->rank - 2, t, j;
    memset(row, 0, sizeof(float) * (size_t)w->tokens);
    for (t = 0; t < w->tokens; t++) {
        int64_t low, count = window_of(w, t, &low), at = base + t * mask->stride[token_axis];
        float gamma = c->gamma[t * c->stride + column], kappa = c->kappa[t * c->stride + column];
        if (w->before)
            fwa_store_f32(mask, at, w->tokens, row);
        for (j = 0; j < t; j++)
            row[j] *= gamma;
        for (j = low - (w->window - 1); j < low - (w->window - 1) + count; j++)
            if (j >= 0)
                row[j] += kappa;
        if (!w->before)
            fwa_store_f32(mask, at, w->tokens, row);
    }
}

static void store_mask(const unit_work *w, const fwa_tensor *mask)
{
    int32_t i;
    if (!w->per_channel && w->u.column == 0)
        store_mask_column(w, mask, fwa_at2(mask, w->s->row, w->u.head), 0);
    for (i = 0; w->per_channel && i < w->u.columns; i++)
        store_mask_column(w, mask, fwa_at3(mask, w->s->row, w->u.head, w->u.column + i), i);
}

/* A padded row: its outputs are zeros. */
static void clear_outputs(const unit_work *w, const fwa_tensor *o)
{
    static const float zero[FWA_COLUMNS_LIMIT];
    int64_t t;
    for (t = 0; t < w->s->length; t++)
        fwa_store_f32(o, fwa_at3(o, w->s->row, w->s->first + t, w->u.head) + w->u.column,
                      w->u.columns, zero);
}

static void clear_mask(const unit_work *w, const fwa_tensor *mask)
{
    int32_t masks = !fwa_present(mask) ? 0 : w->per_channel ? w->u.columns : w->u.column == 0, i;
    int64_t t;
    for (i = 0; i < masks; i++) {
        int64_t base = w->per_channel ? fwa_at3(mask, w->s->row, w->u.head, w->u.column + i)
                                      : fwa_at2(mask, w->s->row, w->u.head);
        memset(w->c->mask, 0, sizeof(float) * (size_t)w->s->length);
        for (t = 0; t < w->s->length; t++)
            fwa_store_f32(mask, base + t * mask->stride[mask->rank - 2], w->s->length, w->c->mask);
    }
}

/* The carry after `commit` tokens, in the middle of a chunk: tokens behind it are not looked at. */
static void store_commit(const unit_work *w, const fwa_carry *out)
{
    fwa_cpu_chunk *c = w->c;
    int64_t rows = w->s->commit - w->start + w->window - 1;
    memcpy(c->commit, c->state, sizeof(float) * (size_t)w->p->key_dim * (size_t)c->stride);
    leave_chunk(w, rows, c->commit);
    store_state(w, out, c->commit);
}

/* One chunk: outputs, the new state, and the carry where it is due. */
static void forward_chunk(unit_work *w, int64_t start, int64_t tokens, const fwa_forward_args *args)
{
    int64_t due = args ? w->s->commit - start : -1, from = 0;
    w->reads = args != NULL;
    load_chunk(w, start, tokens);
    enter_chunk(w);
    if (due > 0 && due < tokens) {
        FOR_STRIPS(w, 0, due, walk_token);
        store_commit(w, &args->carry_out);
        from = due;
    }
    FOR_STRIPS(w, from, tokens, walk_token);
    leave_chunk(w, w->pairs, w->c->state);
    if (due == tokens)
        store_state(w, &args->carry_out, w->c->state);
    if (args)
        store_outputs(w, &args->o, start, tokens, w->c->o, w->c->stride);
    if (args && fwa_present(&args->mask))
        store_mask(w, &args->mask);
}

static void keep_state(const unit_work *w, float *kept)
{
    const float *row = w->c->state;
    int64_t d;
    for (d = 0; d < w->p->key_dim; d++, row += w->c->stride, kept += fwa_cpu_kept_stride(w->p))
        memcpy(kept + w->u.column, row, sizeof(float) * (size_t)w->u.width);
}

static void FWA_KERNEL(forward)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                                const fwa_sequence *s, int64_t unit, fwa_cpu_chunk *chunk,
                                const fwa_cpu_partials *kept)
{
    const fwa_forward_args *args = call->forward;
    unit_work w = unit_begin(plan, call, in, s, fwa_cpu_unit_get(plan, unit), chunk);
    int64_t start = 0, segment = fwa_cpu_first_segment(plan, s), tokens;
    if (s->padded) {
        if (args) {
            clear_outputs(&w, &args->o);
            clear_mask(&w, &args->mask);
        }
        return;
    }
    load_state(&w);
    if (args && s->commit == 0)
        copy_state(&w, &args->carry_out);
    for (; start < s->length; start += tokens) {
        tokens = chunk_tokens(&w, start);
        if (kept && fwa_cpu_segment_starts(plan, s, start))
            keep_state(&w, fwa_cpu_kept(w.p, kept, w.u.head, segment++));
        forward_chunk(&w, start, tokens, args);
    }
}
