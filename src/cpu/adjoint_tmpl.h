/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's backward, without the normaliser: the adjoint of a chunk of C tokens and the
 * J = C + B - 1 pairs that they write. Compiled once per ISA.
 *
 * A unit is a head, or of few heads a block of its value columns. States and their gradients are
 * kept transposed, rows of features per value column: all products with them but X dS (and, with
 * gates per channel, X S and Q S) then add multiples of rows. Segments go from the last to the
 * first. In each, the states at its chunks' starts come from the kept state and what the forward
 * kept of each token; then the chunks' adjoints, from the last to the first. With
 * S_t = Gamma_t S_0 + sum_j x_j w_{j,t}^T, the walk (adjoint_walk_tmpl.h) goes back from dW = X dS
 * to H, the gradients of the predictions that S_0 makes, and to those of Gram matrix (dG) and
 * scores (dP):
 *
 *     dQ = dP X + Gamma dO S_0^T      dX = dP^T Q + (dG + dG^T) X + W dS^T + Gamma H S_0^T
 *     dS_0 = Gamma dS + (Gamma Q)^T dO + (Gamma X)^T H
 *
 * Gradients of gammas never divide by one. */

#include "adjoint_rows_tmpl.h"
#include "adjoint_walk_tmpl.h"
#include "adjoint_gates_tmpl.h"

/* ---- What the walk works on ---- */

/* The products of all the chunk's gammas, a number per value column. */
static const float *end_decay(const adjoint_work *a)
{
    const fwa_cpu_adjoint *s = a->a;
    int64_t v;
    if (a->w.per_channel)
        return s->decay + a->w.tokens * s->width_stride;
    for (v = 0; v < a->w.u.columns; v++)
        s->keep[v] = a->decay[a->w.tokens];
    return s->keep;
}

/* The next state: to = Gamma from + X^T W, W the coefficients at the chunk's end; and the tail's
 * predictions there. */
static void next_state(adjoint_work *a, const float *from, float *to, float *tail)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t f = w->first, V = w->u.columns;
    const operand written = {s->written + f * s->width_stride, 1, s->width_stride};
    fetcher none = {.rows = 0};
    next_strips(a, tail);
    product_ahead(V, a->dim, w->pairs - f, written, key_of(a, f), 2 * s->feature_stride, from, to,
                  s->state_stride, end_decay(a), &none);
}

static void gram_matrix(const adjoint_work *a)
{
    const fwa_cpu_adjoint *s = a->a;
    const int64_t f = a->w.first, row = 2 * s->feature_stride;
    inner_products_below(a->w.pairs - f, 0, a->dim, key_of(a, f), row, key_of(a, f), row,
                         s->gram + f * s->pair_stride + f, s->pair_stride);
}

/* Gram matrix and scores, and what of the Gram matrix an entry's gradient meets. */
static void key_matrices(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t f = w->first, tail = w->window - 1, row = 2 * s->feature_stride;
    const int64_t pairs = s->pair_stride;
    int64_t t, i;
    inner_products_below(w->tokens, tail - f, a->dim, query_of(a, 0), row, key_of(a, f), row,
                         s->scores + f, pairs);
    if (!w->regression)
        return;
    gram_matrix(a);
    for (t = 0; t < w->tokens; t++) {
        const vec factor = splat(s->entry_factor[t] = !keeps_residuals(w) ? 1
                                                      : w->decayed        ? -a->gamma[t]
                                                                          : -1);
        const float *from = s->gram + (t + tail) * pairs;
        float *to = s->entries + (t + tail) * pairs;
        for (i = 0; i < t + tail; i += FWA_LANES)
            store(to + i, keeps_residuals(w) ? factor * load(from + i) : load(from + i));
    }
}

/* dO, scaled, to its rows. */
static void load_chunk_output_grads(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *o_grad = &a->args->o_grad;
    const vec scale = splat((float)w->p->scale);
    const bool direct = is_direct(w, o_grad);
    int64_t t, i;
    for (t = 0; t < w->tokens; t++) {
        const int64_t token = w->start + t;
        float *row = a->a->rows + (2 * t + 1) * a->a->width_stride;
        const float *from = row;
        if (direct) {
            from = direct_row(w, o_grad, token);
        } else {
            memset(row, 0, sizeof(float) * (size_t)a->width);
            fwa_load_f32(o_grad,
                         fwa_at3(o_grad, w->s->row, w->s->first + token, w->u.head) +
                             w->u.column * o_grad->stride[3],
                         w->u.columns, row);
        }
        for (i = 0; i < a->width; i += FWA_LANES)
            store(row + i, scale * load(from + i));
    }
}

/* [C, D] features of the chunk's tokens, keys' or queries', to columns of `keys`. */
static void turn_features(const adjoint_work *a, const float *rows, int64_t column)
{
    const fwa_cpu_adjoint *s = a->a;
    int64_t d;
    for (d = 0; a->w.tokens < ADJOINT_CHUNK && d < a->dim; d++)
        memset(s->keys + d * 2 * ADJOINT_CHUNK + column, 0, sizeof(float) * ADJOINT_CHUNK);
    transpose(a->w.tokens, a->dim, rows, 2 * s->feature_stride, s->keys + column,
              2 * ADJOINT_CHUNK);
}

/* Inner products of the tail's keys with rows of a state, to rows of value columns. */
static void products_of_tail(const adjoint_work *a, const float *state, float *to)
{
    const fwa_cpu_adjoint *s = a->a;
    const int64_t f = a->w.first, tail = a->w.window - 1, V = a->w.u.columns;
    int64_t i, v;
    if (f < tail)
        inner_products(tail - f, V, a->dim, key_of(a, f), 2 * s->feature_stride, state,
                       s->state_stride, to + f * s->width_stride, s->width_stride, false);
    for (i = f; i < tail; i++)
        for (v = V; v < a->width; v++)
            to[i * s->width_stride + v] = 0;
}

/* dW at the chunk's end, X dS; and with gates per channel X S and Q S of its tokens. */
static void products_along_keys(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t V = w->u.columns, n = w->tokens, tail = w->window - 1, width = s->width_stride;
    const operand grad = {a->grad, s->state_stride, 1}, state = {a->state, s->state_stride, 1};
    turn_features(a, key_of(a, tail), 0);
    product(V, ADJOINT_CHUNK, a->dim, grad, s->keys, 2 * ADJOINT_CHUNK, s->turned,
            2 * ADJOINT_CHUNK, NULL);
    transpose(V, n, s->turned, 2 * ADJOINT_CHUNK, s->seeds + tail * width, width);
    products_of_tail(a, a->grad, s->seeds);
    if (!w->per_channel)
        return;
    turn_features(a, query_of(a, 0), ADJOINT_CHUNK);
    product(V, 2 * ADJOINT_CHUNK, a->dim, state, s->keys, 2 * ADJOINT_CHUNK, s->turned,
            2 * ADJOINT_CHUNK, NULL);
    transpose(V, n, s->turned, 2 * ADJOINT_CHUNK, s->recalled, 2 * width);
    transpose(V, n, s->turned + ADJOINT_CHUNK, 2 * ADJOINT_CHUNK, s->recalled + width, 2 * width);
}

/* Sums over rows of features of S times its gradient, by value columns; returns the sum of all. */
static float state_product(const adjoint_work *a)
{
    const fwa_cpu_adjoint *s = a->a;
    vec all = splat(0);
    int64_t v, i;
    for (v = 0; v < a->w.u.columns; v++) {
        const float *state = a->state + v * s->state_stride, *grad = a->grad + v * s->state_stride;
        vec sum[2] = {{0}};
        for (i = 0; i + 2 * FWA_LANES <= a->dim; i += 2 * FWA_LANES)
            UNROLL for (int u = 0; u < 2; u++)
                sum[u] += load(state + i + u * FWA_LANES) * load(grad + i + u * FWA_LANES);
        for (; i < a->dim; i += FWA_LANES)
            sum[0] += load(state + i) * load(grad + i);
        if (a->w.per_channel)
            s->whole[v] = sum_lanes(sum[0] + sum[1]);
        all += sum[0] + sum[1];
    }
    for (; a->w.per_channel && v < a->width; v++)
        s->whole[v] = 0;
    return sum_lanes(all);
}

/* No sums of lanes yet, of `rows` rows that have `first` columns and one more each. */
static void clear_lanes(const adjoint_work *a, float *sums, int64_t rows, int64_t first)
{
    const size_t lanes = sizeof(float) * FWA_LANES;
    int64_t r;
    for (r = 0; r < rows; r++)
        memset(sums + r * a->a->pair_stride * FWA_LANES, 0,
               (size_t)((first + r + 3) / 4 * 4) * lanes);
}

/* Their sums. */
static void sum_rows_of_lanes(const adjoint_work *a, const float *sums, int64_t rows, int64_t first,
                              float *to)
{
    const int64_t stride = a->a->pair_stride;
    int64_t r, i;
    for (r = 0; r < rows; r++)
        for (i = 0; i < first + r; i += 4) {
            const float *from = sums + (r * stride + i) * FWA_LANES;
            vec four[4];
            for (int k = 0; k < 4; k++)
                four[k] = load(from + k * FWA_LANES);
            sum_lanes_of_four(four, to + r * stride + i);
        }
}

/* The walk, all strips; sums of lanes become those of inner products. */
static void walk_chunk(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    clear_lanes(a, s->score_sums, w->tokens, w->window);
    if (w->regression)
        clear_lanes(a, s->gram_sums, w->pairs, 1);
    memset(a->gamma_sums, 0, sizeof a->gamma_sums);
    memset(a->kappa_sums, 0, sizeof a->kappa_sums);
    walk_strips(a, NULL);
    sum_rows_of_lanes(a, s->score_sums, w->tokens, w->window, s->scores_grad);
    if (w->regression)
        sum_rows_of_lanes(a, s->gram_sums, w->pairs, 1, s->gram_grad);
}

/* The gradients of the chunk's values, and what it says of the tail's. */
static void store_value_grads(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const fwa_tensor *v_grad = &a->args->v_grad;
    const int64_t tail = w->window - 1, stride = s->width_stride;
    int64_t t, i;
    for (t = 0; fwa_present(v_grad) && t < w->tokens; t++) {
        float *row = keeps_residuals(w) ? s->rows + 2 * t * stride
                                        : s->value_grads + (tail + t) * stride;
        float *to;
        if (t + tail < w->first)
            memset(row, 0, sizeof(float) * (size_t)a->width);
        if (!is_direct(w, v_grad)) {
            fwa_store_f32(v_grad,
                          fwa_at3(v_grad, w->s->row, w->s->first + w->start + t, w->u.head) +
                              w->u.column * v_grad->stride[3],
                          w->u.columns, row);
            continue;
        }
        to = direct_row(w, v_grad, w->start + t);
        for (i = 0; i < a->width; i += FWA_LANES)
            store(to + i, load(row + i));
    }
    for (i = 0; i < tail; i++) {
        const size_t bytes = sizeof(float) * (size_t)a->width;
        if (i < w->first)
            memset(a->late_values + i * stride, 0, bytes);
        else
            memcpy(a->late_values + i * stride, s->value_grads + i * stride, bytes);
    }
}

/* ---- Products with the state and its gradient ---- */

/* H S^T and dO S^T, with their decays where those are not one number a row; and W dS^T. */
static void products_with_states(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = w->tokens, V = w->u.columns, stride = s->width_stride, f = w->first;
    const float *rows = w->per_channel ? s->scaled : s->rows;
    const operand both = {rows, stride, 1}, reads = {rows + stride, 2 * stride, 1};
    const operand written = {s->written + f * stride, stride, 1};
    const operand tail = {s->tail_rows + f * stride, stride, 1};
    if (w->regression)
        product_ahead(2 * n, a->dim, V, both, a->state, s->state_stride, NULL, s->by_state, a->dim,
                      NULL, &a->ahead);
    else
        product_ahead(n, a->dim, V, reads, a->state, s->state_stride, NULL, s->by_state + a->dim,
                      2 * a->dim, NULL, &a->ahead);
    if (w->regression && f < w->window - 1)
        product(w->window - 1 - f, a->dim, V, tail, a->state, s->state_stride,
                s->by_tail + f * a->dim, a->dim, NULL);
    product_ahead(w->pairs - f, a->dim, V, written, a->grad, s->state_stride, NULL,
                  s->by_grad + f * a->dim, a->dim, NULL, &a->ahead);
}

/* The state's gradient at the chunk's start. */
static void state_gradient(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = w->tokens, stride = s->width_stride, tail = w->window - 1, f = w->first;
    const operand both = {s->scaled, 1, stride}, reads = {s->scaled + stride, 1, 2 * stride};
    const operand early = {s->tail_rows + f * stride, 1, stride};
    if (w->regression)
        product_ahead(w->u.columns, a->dim, 2 * n, both, key_of(a, tail), s->feature_stride,
                      a->grad, a->grad, s->state_stride, end_decay(a), &a->ahead);
    else
        product_ahead(w->u.columns, a->dim, n, reads, query_of(a, 0), 2 * s->feature_stride,
                      a->grad, a->grad, s->state_stride, end_decay(a), &a->ahead);
    if (w->regression && f < tail)
        product_ahead(w->u.columns, a->dim, tail - f, early, key_of(a, f), 2 * s->feature_stride,
                      a->grad, a->grad, s->state_stride, s->ones, &a->ahead);
}

/* dX and dQ, rows of dim_stride. Of the last pairs later chunks have said something. */
static void feature_gradients(const adjoint_work *a, float *x_grad, float *q_grad)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = w->tokens, dim = a->dim, to = s->dim_stride, row = 2 * s->feature_stride;
    const int64_t f = w->first, tail = w->window - 1, pairs = s->pair_stride, skip = w->before;
    const int64_t own = w->window > 1 ? 0 : 1; /* with a window, pairs meet themselves */
    const int64_t rows = w->pairs - f - own;
    const operand scores = {s->scores_grad + skip * pairs + f, pairs, 1};
    const operand gram = {s->gram_grad + (f + own) * pairs + f, pairs, 1};
    const float *x = key_of(a, f);
    int64_t t, i, d;
    for (i = 0; i < w->pairs; i++) {
        const vec factor = splat(i < tail || w->per_channel || !w->regression
                                     ? 1
                                     : s->entry_factor[i - tail] * a->decay[i - tail]);
        const float *by_state = i < tail ? s->by_tail + i * dim
                                         : s->by_state + 2 * (i - tail) * dim;
        for (d = 0; d < dim; d += FWA_LANES) {
            vec sum = i < n ? splat(0) : load(x_grad + i * to + d);
            if (i >= f)
                sum += load(s->by_grad + i * dim + d);
            if (i >= f && w->regression)
                sum += factor * load(by_state + d);
            store(x_grad + i * to + d, sum);
        }
    }
    for (t = 0; t < n; t++) {
        const vec factor = splat(w->per_channel ? 1 : a->decay[t + !w->before]);
        for (d = 0; d < dim; d += FWA_LANES)
            store(q_grad + t * to + d, factor * load(s->by_state + (2 * t + 1) * dim + d));
    }
    product_below(n - skip, dim, w->window - f, scores, x, row, q_grad + skip * to, to, s->ones);
    product_below_transposed(w->pairs - f, dim, n - skip, w->window - f, scores, query_of(a, skip),
                             row, x_grad + f * to, to, s->ones);
    if (w->regression && rows > 0) {
        product_below(rows, dim, 1, gram, x, row, x_grad + (f + own) * to, to, s->ones);
        product_below_transposed(rows, dim, rows, 1, gram, key_of(a, f + own), row, x_grad + f * to,
                                 to, s->ones);
    }
}

/* ---- A chunk ---- */

/* The gradient of a row of q or k from that of its features, and what else there is of it (`more`,
 * a tensor's row, may be NULL): written where it belongs. */
static void store_feature_grad(const adjoint_work *a, const fwa_tensor *t, int64_t offset,
                               const float *raw, const float *grad, const fwa_tensor *more,
                               int64_t more_offset)
{
    const int64_t dim = a->w.p->key_dim;
    const bool direct = t->dtype == FWA_DTYPE_F32 && t->stride[3] == 1 && dim == a->dim;
    float row[FWA_COLUMNS_LIMIT], other[FWA_COLUMNS_LIMIT];
    float *to = direct ? (float *)(void *)fwa_element(t, offset) : row;
    feature_row_backward(a->w.p, a->dim, raw, grad, to);
    if (more) {
        fwa_load_f32(more, more_offset, dim, other);
        for (int64_t d = 0; d < dim; d++)
            to[d] += other[d];
    }
    if (!direct)
        fwa_store_f32(t, offset, dim, row);
}

/* dX and dQ of a unit that shares none with others go back through the features. The gradient of a
 * key handed in with the carry is left for the finishing pass. */
static void store_feature_grads(const adjoint_work *a, const float *x_grad, const float *q_grad)
{
    const unit_work *w = &a->w;
    const fwa_tensor *k = &a->args->k_grad, *q = &a->args->q_grad;
    const bool raw = w->p->qk_norm != FWA_NORM_NONE || w->p->phi != FWA_FEATURE_MAP_IDENTITY;
    const fwa_tensor *next = &a->args->carry_out_grad.tail_key;
    const int64_t late = w->p->alignment == FWA_ALIGNMENT_NEXT_LATENT, stride = a->a->dim_stride;
    const int64_t tail = w->window - 1;
    int64_t t;
    for (t = 0; t < w->tokens; t++) {
        const int64_t token = w->start + t, at = w->s->first + token;
        const int64_t handed_on = token - (w->s->length - tail); /* in the tail */
        const bool more = handed_on >= 0 && fwa_present(next);
        const float *grad = x_grad + (t + tail) * stride;
        if (w->plan->own_queries && fwa_present(q))
            store_feature_grad(a, q, fwa_at3(q, w->s->row, at, w->u.query_head),
                               raw ? raw_query(a, token) : NULL, q_grad + t * stride, NULL, 0);
        if (w->plan->own_keys && token < late)
            memcpy(fwa_cpu_key_grad(w->plan, a->parts, a->unit, w->s, token), grad,
                   sizeof(float) * (size_t)stride);
        else if (w->plan->own_keys && fwa_present(k))
            store_feature_grad(a, k, fwa_at3(k, w->s->row, at - late, w->u.key_head),
                               raw ? raw_key(a, token) : NULL, grad, more ? next : NULL,
                               more ? fwa_at3(next, w->s->index, handed_on, w->u.key_head) : 0);
    }
    if (w->plan->own_keys)
        memcpy(a->late_keys, x_grad, sizeof(float) * (size_t)(tail * stride));
}

/* The adjoint of the chunk at hand; `again`: its matrices are there. */
static void adjoint_chunk(adjoint_work *a, bool again)
{
    const unit_work *w = &a->w;
    const fwa_cpu_plan *plan = w->plan;
    float gamma_grad[ADJOINT_CHUNK], kappa_grad[ADJOINT_CHUNK], whole;
    float *x_grad = plan->own_keys ? a->a->x_grad
                                   : fwa_cpu_key_grad(plan, a->parts, a->unit, w->s,
                                                      w->start - (w->window - 1));
    float *q_grad = plan->own_queries ? a->a->q_grad
                                      : fwa_cpu_query_grad(plan, a->parts, a->unit, w->s, w->start);
    if (plan->own_keys)
        memcpy(x_grad + w->tokens * a->a->dim_stride, a->late_keys,
               sizeof(float) * (size_t)((w->window - 1) * a->a->dim_stride));
    if (!again)
        key_matrices(a);
    load_chunk_output_grads(a);
    products_along_keys(a);
    whole = state_product(a);
    walk_chunk(a);
    store_value_grads(a);
    products_with_states(a);
    if (!w->per_channel)
        head_gradients(a, whole, gamma_grad, kappa_grad);
    feature_gradients(a, x_grad, q_grad);
    gate_gradients(a, gamma_grad, kappa_grad, x_grad);
    store_feature_grads(a, x_grad, q_grad);
    state_gradient(a);
}

/* ---- Units ---- */

/* Turns to one of the units. */
static void set_adjoint_unit(adjoint_work *a, int64_t unit)
{
    const int64_t index = unit - a->first_unit;
    a->unit = unit;
    a->w.u = fwa_cpu_unit_get(a->w.plan, unit);
    a->width = (a->w.u.columns + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    a->grad = a->a->grads + index * a->w.plan->block * a->a->state_stride;
    a->late_values = a->a->late_values + index * (a->w.window - 1) * a->a->width_stride;
    a->late_keys = a->a->late_keys + index * (a->w.window - 1) * a->a->dim_stride;
}

/* What is wanted in the cache while this chunk is worked on: rows that the next chunk reads and
 * writes, whichever unit's it is, and what the next unit's segment reads. */
static void fetch_next(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *rows[] = {&args->o_grad, &args->v_grad, &args->q_grad, &args->k_grad};
    const bool wanted[] = {true, true, w->plan->own_queries, w->plan->own_keys};
    const int64_t dim = w->p->key_dim, n = w->tokens, at = w->s->first;
    const bool last = a->unit == a->first_unit + a->units - 1, begins = w->start == a->segment;
    const int64_t other = last ? a->first_unit : a->unit + 1, unit = begins ? other : a->unit;
    const fwa_cpu_unit u = fwa_cpu_unit_get(w->plan, other), next = begins ? u : w->u;
    const int64_t row = a->a->dim_stride * (int64_t)sizeof(float);
    const int64_t end = begins && !last ? a->to : w->start, begin = end > n ? end - n : 0;
    const int64_t keys = last ? w->start - SEGMENT : w->start;
    fetcher *f = &a->ahead;
    size_t i;
    memset(f, 0, sizeof *f);
    for (i = 0; i < sizeof rows / sizeof rows[0] && end > 0; i++)
        if (wanted[i] && fwa_present(rows[i]))
            fetch_more(f, rows[i],
                       fwa_at3(rows[i], w->s->row, at + begin, next.head) +
                           (i < 2 ? next.column * rows[i]->stride[3] : 0),
                       i < 2 ? next.columns : dim);
    if (!w->plan->own_keys && end > 0)
        fetch_more_rows(f, fwa_cpu_key_grad(w->plan, a->parts, unit, w->s, begin), row, row);
    if (!w->plan->own_queries && end > 0)
        fetch_more_rows(f, fwa_cpu_query_grad(w->plan, a->parts, unit, w->s, begin), row, row);
    if (keys >= 0 && (last || u.head != w->u.head)) {
        fetch_more(f, w->in.q, fwa_at3(w->in.q, w->s->row, at + keys, u.query_head), dim);
        fetch_more(f, w->in.k, fwa_at3(w->in.k, w->s->row, at + keys, u.key_head), dim);
    }
    if (keys >= 0 && needs_values(w))
        fetch_more(f, w->in.v,
                   fwa_at3(w->in.v, w->s->row, at + keys, u.head) + u.column * w->in.v->stride[3],
                   u.columns);
    if (keys >= 0 && w->regression)
        fetch_more_rows(f, fwa_cpu_kept_row(w->p, a->parts, u.head, w->s->before + keys) + u.column,
                        fwa_cpu_kept_stride(w->p) * (int64_t)sizeof(float),
                        u.columns * (int64_t)sizeof(float));
    f->rows = f->limit = f->tensors * n;
}

/* A padded row: nothing was read, so all gradients of it are zeros. Those of queries and keys that
 * are a unit's own are the finishing pass's business. */
static void clear_adjoint(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *outs[3] = {w->per_channel ? NULL : &args->beta_grad, &args->lambda_grad,
                                 &args->log_gate_grad};
    const fwa_tensor *rows[2] = {&args->v_grad, w->per_channel ? &args->beta_grad : NULL};
    static const float zero[FWA_COLUMNS_LIMIT];
    const int64_t tail = w->window - 1;
    const size_t row = sizeof(float) * (size_t)a->a->dim_stride;
    int64_t t, i;
    if (!w->plan->own_keys)
        memset(fwa_cpu_key_grad(w->plan, a->parts, a->unit, w->s, -tail), 0,
               (size_t)(w->s->length + tail) * row);
    if (!w->plan->own_queries)
        memset(fwa_cpu_query_grad(w->plan, a->parts, a->unit, w->s, 0), 0,
               (size_t)w->s->length * row);
    memset(a->late_values, 0, sizeof(float) * (size_t)(tail * a->a->width_stride));
    memset(a->late_keys, 0, sizeof(float) * (size_t)(tail * a->a->dim_stride));
    for (t = 0; t < w->s->length; t++) {
        store_gates(a, outs, t, zero);
        for (i = 0; i < 2; i++)
            if (rows[i] && fwa_present(rows[i]))
                fwa_store_f32(rows[i],
                              fwa_at3(rows[i], w->s->row, w->s->first + t, w->u.head) +
                                  w->u.column * rows[i]->stride[3],
                              w->u.columns, zero);
    }
    store_state_grad(a);
}

/* What the last chunk adds to: nothing has been said of its last pairs. */
static void begin_adjoint(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t tail = w->window - 1;
    load_state_grad(a);
    if (tail > 0 && !w->plan->own_keys)
        memset(fwa_cpu_key_grad(w->plan, a->parts, a->unit, w->s, w->s->length - tail), 0,
               sizeof(float) * (size_t)(tail * a->a->dim_stride));
}

/* The segment at hand of the unit at hand, the states at whose start are number `index`. `again`:
 * the unit before had the same keys and gates. */
static void adjoint_segment(adjoint_work *a, int64_t index, bool again)
{
    const unit_work *w = &a->w;
    const fwa_problem *p = w->p;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t size = w->u.columns * s->state_stride, tail = (w->window - 1) * s->width_stride;
    int64_t starts[SEGMENT / ADJOINT_CHUNK + 1], start, i;
    if (!again) {
        load_features(a);
        load_steps_of_segment(a);
    }
    load_values(a);
    transpose(p->key_dim, w->u.columns, fwa_cpu_kept(p, a->parts, w->u.head, index) + w->u.column,
              fwa_cpu_kept_stride(p), s->starts, s->state_stride);
    for (start = a->segment, i = 0; start < a->to; start += w->tokens, i++) {
        starts[i] = start;
        set_chunk(a, start);
        set_matrices(a, i);
        a->tail = s->tails + i * tail;
        if (i == 0)
            products_of_tail(a, s->starts, s->tails);
        if (start + w->tokens >= a->to)
            continue;
        if (w->regression && w->window > 1 && !again)
            gram_matrix(a);
        next_state(a, s->starts + i * size, s->starts + (i + 1) * size, s->tails + (i + 1) * tail);
    }
    while (i-- > 0) {
        set_chunk(a, starts[i]);
        set_matrices(a, i);
        a->state = s->starts + i * size;
        a->tail = s->tails + i * tail;
        fetch_next(a);
        adjoint_chunk(a, again);
    }
}

/* Segment by segment, all of the units: their rows are neighbours in memory. */
static void FWA_KERNEL(adjoint)(const fwa_cpu_plan *plan, const fwa_call *call,
                                const fwa_sequence *s, int64_t unit, int64_t units,
                                const fwa_cpu_adjoint *scratch, const fwa_cpu_partials *parts)
{
    const fwa_backward_args *args = call->backward;
    const fwa_cpu_unit none = {0};
    fwa_cpu_adjoint now = *scratch;
    adjoint_work a = {.w = unit_begin(plan, call, &args->carry_in, s, none, NULL),
                      .args = args,
                      .parts = parts,
                      .a = &now,
                      .first = scratch,
                      .first_unit = unit,
                      .units = units};
    int64_t segment = 0, first = fwa_cpu_first_segment(plan, s), i;
    a.dim = (a.w.p->key_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    for (i = 0; i < FWA_COLUMNS_LIMIT; i++)
        scratch->ones[i] = 1;
    for (i = 0; i < units; i++) {
        set_adjoint_unit(&a, unit + i);
        if (s->padded)
            clear_adjoint(&a);
        else
            begin_adjoint(&a);
    }
    if (s->padded)
        return;
    while (fwa_cpu_segment_start(plan, s, segment + 1) < s->length)
        segment++;
    for (a.to = s->length; a.to > 0; a.to = a.segment, segment--) {
        a.segment = fwa_cpu_segment_start(plan, s, segment);
        for (i = 0; i < units; i++) {
            const int64_t before = a.w.u.head;
            set_adjoint_unit(&a, unit + i);
            adjoint_segment(&a, first + segment, i > 0 && a.w.u.head == before);
        }
    }
    for (i = 0; i < units; i++) {
        set_adjoint_unit(&a, unit + i);
        store_state_grad(&a);
    }
}
