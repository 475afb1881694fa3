/* SPDX-License-Identifier: Apache-2.0 */
/* A unit's backward pass: segments from the last to the first, each recomputed from its kept state,
 * and in it chunks from the last to the first. Per chunk, the walk is run again with its history
 * kept, then its adjoint from the last token to the first, then the dense products. Compiled once
 * per ISA. */

/* Sum over a row of value columns. */
static float sum_row(const float *row, int64_t n)
{
    vec sum = splat(0);
    int64_t i;
    for (i = 0; i < n; i += FWA_LANES)
        sum += load(row + i);
    return sum_lanes(sum);
}

/* to += a * b, row by row */
static void add_products(float *to, const float *a, const float *b, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i += FWA_LANES)
        store(to + i, load(to + i) + load(a + i) * load(b + i));
}

/* to += a * row */
static void add_scaled(float *to, float a, const float *row, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i += FWA_LANES)
        store(to + i, load(to + i) + splat(a) * load(row + i));
}

/* The gradient of S^T q (and z^T q) from that of o, rows of c->o_grad. */
static void load_output_grads(const unit_work *w, const fwa_tensor *o_grad)
{
    const fwa_cpu_chunk *c = w->c;
    const float scale = (float)w->p->scale;
    int64_t t;
    int32_t i;
    for (t = 0; t < w->tokens; t++) {
        float *row = c->o_grad + t * c->stride;
        const float *o = c->o + t * c->stride;
        memset(row, 0, sizeof(float) * (size_t)c->stride);
        fwa_load_f32(o_grad,
                     fwa_at3(o_grad, w->s->row, w->s->first + w->start + t, w->u.head) +
                         w->u.column * o_grad->stride[3],
                     w->u.columns, row);
        if (w->p->normalizer) {
            float denominator = o[w->u.columns] + (float)w->p->eps_attn;
            float inverse = 1 / denominator, along = 0;
            if (denominator == 0) { /* nothing flows back */
                memset(row, 0, sizeof(float) * (size_t)c->stride);
                continue;
            }
            for (i = 0; i < w->u.columns; i++) {
                row[i] *= scale * inverse;
                along -= row[i] * o[i] * inverse;
            }
            row[w->u.columns] = along;
        } else {
            for (i = 0; i < w->u.columns; i++)
                row[i] *= scale;
        }
    }
}

/* The adjoint of o_t = Gamma Z0_t + sum_{i<rows} P[t,i] w_i at the moment of history entry
 * `moment`. */
static void read_back(const unit_work *w, int64_t t, int64_t rows, int64_t moment)
{
    const fwa_cpu_chunk *c = w->c;
    const float *grad = c->o_grad + t * c->stride, *decay = c->decay_trace + moment * c->stride;
    const float *history = c->w_trace + moment * w->pairs * c->stride;
    float *z0_grad = c->z0_grad + t * c->stride;
    int64_t i;
    for (i = 0; i < c->stride; i += FWA_LANES)
        store(z0_grad + i, load(decay + i) * load(grad + i));
    add_products(c->decay_grad, c->z0 + t * c->stride, grad, c->stride);
    for (i = w->first; i < rows; i++) {
        c->scores_grad[t * c->pair_stride + i] = dot(grad, history + i * c->stride, c->stride);
        add_scaled(c->w_grad + i * c->stride, c->scores[t * c->pair_stride + i], grad, c->stride);
    }
}

/* The residual of window pair i (0 .. count - 1) at token t, from the history. */
static void residual_of(const unit_work *w, int64_t t, int64_t low, int64_t i, float *r)
{
    const fwa_cpu_chunk *c = w->c;
    const float *v = c->v + (low + i) * c->stride;
    const float *y = c->y_trace + (t * w->window + i) * c->stride,
                *gamma = c->gamma + t * c->stride;
    int64_t n;
    for (n = 0; n < c->stride; n += FWA_LANES) {
        vec value = load(v + n);
        if (w->regression && w->decayed)
            value -= load(gamma + n) * load(y + n);
        else if (w->regression)
            value -= load(y + n);
        store(r + n, value);
    }
}

/* The adjoint of the window's recursion y_j = gamma y_j + kappa sum_i G[j,i] r_i; y_grad of the
 * window is that after the step, and becomes that before it. r and r_grad: rows of the window. */
static void window_back(const unit_work *w, int64_t t, int64_t low, int64_t count, const float *r,
                        float *r_grad)
{
    const fwa_cpu_chunk *c = w->c;
    const float *gamma = c->gamma + t * c->stride, *kappa = c->kappa + t * c->stride;
    float *gamma_grad = c->gamma_grad, *kappa_grad = c->kappa_grad, *scaled = c->scaled;
    int64_t i, j, n;
    for (j = window_leaves(w, t, count); j < count; j++) {
        float *y_grad = c->y_grad + (low + j) * c->stride;
        add_products(gamma_grad, y_grad, c->y_trace + (t * w->window + j) * c->stride, c->stride);
        for (n = 0; n < c->stride; n += FWA_LANES) {
            store(scaled + n, load(kappa + n) * load(y_grad + n));
        }
        for (i = 0; i < count; i++) {
            int64_t high = i > j ? i : j, less = i > j ? j : i;
            float g = c->gram[(low + high) * c->pair_stride + low + less];
            for (n = 0; n < c->stride; n += FWA_LANES)
                store(kappa_grad + n, load(kappa_grad + n) + splat(g) * load(y_grad + n) *
                                                                 load(r + i * c->stride + n));
            c->gram_grad[(low + j) * c->pair_stride + low + i] += dot(scaled, r + i * c->stride,
                                                                      c->stride);
            add_scaled(r_grad + i * c->stride, g, scaled, c->stride);
        }
        for (n = 0; n < c->stride; n += FWA_LANES)
            store(y_grad + n, load(gamma + n) * load(y_grad + n));
    }
}

/* The adjoint of token t's write. On return w_grad, y_grad and decay_grad are those before it, and
 * gamma_grad, kappa_grad (rows of value columns) those of the token. */
static void write_back(const unit_work *w, int64_t t)
{
    const fwa_cpu_chunk *c = w->c;
    const float *gamma = c->gamma + t * c->stride, *kappa = c->kappa + t * c->stride;
    const float *history = c->w_trace + t * w->pairs * c->stride;
    const size_t row_bytes = sizeof(float) * (size_t)c->stride;
    int64_t low, count = window_of(w, t, &low), p = t + w->window - 1, i, n;
    float *r = c->residual, *r_grad = c->residual_grad;
    memset(c->gamma_grad, 0, row_bytes);
    memset(c->kappa_grad, 0, row_bytes);
    memset(r_grad, 0, row_bytes * (size_t)count);
    for (i = 0; i < count; i++)
        residual_of(w, t, low, i, r + i * c->stride);
    if (w->window > 1 && w->regression)
        window_back(w, t, low, count, r, r_grad);
    for (i = 0; i < count; i++) {
        const float *w_grad = c->w_grad + (low + i) * c->stride;
        add_products(r_grad + i * c->stride, kappa, w_grad, c->stride);
        add_products(c->kappa_grad, w_grad, r + i * c->stride, c->stride);
    }
    for (i = w->first; t > 0 && i < p; i++) {
        float *w_grad = c->w_grad + i * c->stride;
        add_products(c->gamma_grad, w_grad, history + i * c->stride, c->stride);
        for (n = 0; n < c->stride; n += FWA_LANES)
            store(w_grad + n, load(gamma + n) * load(w_grad + n));
    }
    add_products(c->gamma_grad, c->decay_grad, c->decay_trace + t * c->stride, c->stride);
    for (n = 0; n < c->stride; n += FWA_LANES)
        store(c->decay_grad + n, load(gamma + n) * load(c->decay_grad + n));
    for (i = 0; i < count; i++) {
        const float *grad = r_grad + i * c->stride,
                    *y = c->y_trace + (t * w->window + i) * c->stride;
        float *y_grad = c->y_grad + (low + i) * c->stride;
        add_scaled(c->v_grad + (low + i) * c->stride, 1, grad, c->stride);
        for (n = 0; w->regression && n < c->stride; n += FWA_LANES) {
            vec rho = splat(1);
            if (w->decayed)
                rho = load(gamma + n);
            store(y_grad + n, load(y_grad + n) - rho * load(grad + n));
            if (w->decayed)
                store(c->gamma_grad + n, load(c->gamma_grad + n) - load(grad + n) * load(y + n));
        }
    }
}

/* The adjoint of the prediction of the pair that enters at token t. */
static void enter_back(const unit_work *w, int64_t t)
{
    const fwa_cpu_chunk *c = w->c;
    const int64_t p = t + w->window - 1;
    const float *grad = c->y_grad + p * c->stride, *decay = c->decay_trace + t * c->stride;
    const float *history = c->w_trace + t * w->pairs * c->stride;
    float *y0_grad = c->y0_grad + p * c->stride;
    int64_t i;
    for (i = 0; i < c->stride; i += FWA_LANES)
        store(y0_grad + i, load(decay + i) * load(grad + i));
    add_products(c->decay_grad, c->y0 + p * c->stride, grad, c->stride);
    for (i = w->first; i < p; i++) {
        c->gram_grad[p * c->pair_stride + i] += dot(grad, history + i * c->stride, c->stride);
        add_scaled(c->w_grad + i * c->stride, c->gram[p * c->pair_stride + i], grad, c->stride);
    }
}

/* dE reaches the features of the window. */
static void statistic_back(const unit_work *w, int64_t t, float grad)
{
    const fwa_cpu_chunk *c = w->c;
    int64_t low, count = window_of(w, t, &low), i, d;
    if (w->needs_eigen) {
        const float *eigen = c->eigen + t * w->window;
        float *along = c->raw;
        memset(along, 0, sizeof(float) * (size_t)c->dim_stride);
        for (i = 0; i < count; i++)
            for (d = 0; d < w->p->key_dim; d++)
                along[d] += eigen[i] * c->x[(low + i) * c->dim_stride + d];
        for (i = 0; i < count; i++)
            add_scaled(c->x_grad + (low + i) * c->dim_stride, 2 * grad * eigen[i] / (float)count,
                       along, c->dim_stride);
    } else {
        for (i = low; i < low + count; i++)
            add_scaled(c->x_grad + i * c->dim_stride, 2 * grad / (float)count,
                       c->x + i * c->dim_stride, c->dim_stride);
    }
}

/* Gradients of a token's gates, a value column each. */
typedef struct {
    float beta[FWA_COLUMNS_LIMIT], lambda[FWA_COLUMNS_LIMIT], log_gate[FWA_COLUMNS_LIMIT],
        statistic[FWA_COLUMNS_LIMIT];
} column_gradients;

INLINE void column_steps_back_of(fwa_decay_knobs_f32 knobs, gates g, float statistic, float count,
                                 int64_t columns, const float *restrict beta,
                                 const float *restrict gamma_grad, const float *restrict kappa_grad,
                                 column_gradients *restrict to)
{
    for (int64_t i = 0; i < columns; i++) {
        const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(&knobs, beta[i], g.lambda,
                                                                     g.gate, statistic);
        const fwa_decay_gradient_f32 grad = fwa_decay_step_backward_f32(
            &knobs, &step, g.lambda, statistic, kappa_grad[i] / count, gamma_grad[i]);
        to->beta[i] = grad.beta;
        to->lambda[i] = grad.lambda;
        to->log_gate[i] = grad.log_gate;
        to->statistic[i] = grad.statistic;
    }
}

/* The adjoint of column_steps. */
OUTLINE void column_steps_back(const fwa_decay_knobs_f32 *knobs, const gates *g, float statistic,
                               float count, int64_t columns, const float *restrict beta,
                               const float *restrict gamma_grad, const float *restrict kappa_grad,
                               column_gradients *restrict to)
{
    int64_t i = columns;
#define RUN(knobs)                                                                                 \
    column_steps_back_of(knobs, *g, statistic, count, columns, beta, gamma_grad, kappa_grad, to)
    WITH_KNOBS(knobs, RUN);
#undef RUN
    for (; i % FWA_LANES; i++)
        to->beta[i] = to->lambda[i] = to->log_gate[i] = to->statistic[i] = 0;
}

/* From the gradients of gamma and kappa of token t to those of its gates. */
static void steps_back(const unit_work *w, int64_t t, const fwa_tensor *beta_grad, float *partial)
{
    const fwa_cpu_chunk *c = w->c;
    const int64_t columns = w->per_channel ? w->u.columns : 1;
    const int64_t width = (columns + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    int64_t low, count = window_of(w, t, &low);
    column_gradients grads;
    gates g;
    memset(partial, 0, 3 * sizeof *partial);
    if (count > 0) {
        g = load_gates(w, w->start + t, c->raw);
        if (!w->per_channel) {
            c->gamma_grad[0] = sum_row(c->gamma_grad, c->stride);
            c->kappa_grad[0] = sum_row(c->kappa_grad, c->stride);
        }
        column_steps_back(&w->knobs, &g, c->statistic[t], (float)count, columns,
                          w->per_channel ? c->raw : &g.beta, c->gamma_grad, c->kappa_grad, &grads);
        partial[0] = grads.beta[0];
        partial[1] = sum_row(grads.lambda, width);
        partial[2] = sum_row(grads.log_gate, width);
        if (w->needs_statistic)
            statistic_back(w, t, sum_row(grads.statistic, width));
    } else {
        memset(grads.beta, 0, sizeof grads.beta);
    }
    if (w->per_channel && fwa_present(beta_grad))
        fwa_store_f32(beta_grad,
                      fwa_at3(beta_grad, w->s->row, w->s->first + w->start + t, w->u.head) +
                          w->u.column,
                      w->u.columns, grads.beta);
}

/* Gradients at the chunk's end: of the coefficients (S'^T x_j, S' the gradient of S_C), of Gamma,
 * and of x_j through x_j w_j^T. What later chunks said of the tail's pairs is added. */
static void end_back(const unit_work *w)
{
    const fwa_cpu_chunk *c = w->c;
    const int64_t rows = w->pairs - w->first, tail = w->window - 1;
    const size_t row = (size_t)c->stride * sizeof(float),
                 dim = (size_t)c->dim_stride * sizeof(float);
    const operand x = {c->x + w->first * c->dim_stride, c->dim_stride, 1};
    int64_t d, i;
    memset(c->x_grad, 0, dim * (size_t)w->pairs);
    memset(c->q_grad, 0, dim * (size_t)w->tokens);
    memset(c->v_grad, 0, row * (size_t)w->pairs);
    memset(c->y_grad, 0, row * (size_t)w->pairs);
    memset(c->y0_grad, 0, row * (size_t)w->pairs);
    memset(c->decay_grad, 0, row);
    for (i = w->first; w->regression && i < w->pairs; i++)
        memset(c->gram_grad + i * c->pair_stride, 0, sizeof(float) * (size_t)w->pairs);
    for (i = 0; i < w->tokens; i++)
        memset(c->scores_grad + i * c->pair_stride, 0, sizeof(float) * (size_t)w->pairs);
    memcpy(c->x_grad + w->tokens * c->dim_stride, c->late_x, dim * (size_t)tail);
    memcpy(c->v_grad + w->tokens * c->stride, c->late_v, row * (size_t)tail);
    product(rows, c->stride, w->p->key_dim, x, c->state_grad, c->stride,
            c->w_grad + w->first * c->stride, c->stride, NULL);
    for (d = 0; d < w->p->key_dim; d++)
        add_products(c->decay_grad, c->state + d * c->stride, c->state_grad + d * c->stride,
                     c->stride);
    inner_products(rows, w->p->key_dim, c->stride, c->w + w->first * c->stride, c->stride,
                   c->state_grad, c->stride, c->x_grad + w->first * c->dim_stride, c->dim_stride,
                   true);
}

/* The dense products at the chunk's start: gradients of features, queries and the state. */
static void start_back(const unit_work *w)
{
    const fwa_cpu_chunk *c = w->c;
    const int64_t rows = w->pairs - w->first, dim = w->p->key_dim, f = w->first;
    const float *x = c->x + f * c->dim_stride;
    float *x_grad = c->x_grad + f * c->dim_stride;
    /* Where reads come first, token 0 reads no pair, and token t as many as token t - 1
     * otherwise. */
    const int64_t skip = w->before, reads = w->tokens - skip;
    const operand scores = {c->scores_grad + skip * c->pair_stride + f, c->pair_stride, 1};
    const operand gram = {c->gram_grad + f * c->pair_stride + f, c->pair_stride, 1};
    const operand gram_t = {gram.a, 1, c->pair_stride};
    const operand x_t = {x, 1, c->dim_stride}, q_t = {c->q, 1, c->dim_stride};
    inner_products(w->tokens, dim, c->stride, c->z0_grad, c->stride, c->state, c->stride, c->q_grad,
                   c->dim_stride, false);
    product_below(reads, c->dim_stride, w->window - f, scores, x, c->dim_stride,
                  c->q_grad + skip * c->dim_stride, c->dim_stride, c->ones);
    product_below_transposed(rows, c->dim_stride, reads, w->window - f, scores,
                             c->q + skip * c->dim_stride, c->dim_stride, x_grad, c->dim_stride,
                             c->ones);
    product(dim, c->stride, w->tokens, q_t, c->z0_grad, c->stride, c->state_grad, c->stride,
            c->decay); /* decay holds the whole chunk's Gamma */
    if (!w->regression)
        return;
    inner_products(rows, dim, c->stride, c->y0_grad + f * c->stride, c->stride, c->state, c->stride,
                   x_grad, c->dim_stride, true);
    product(rows, c->dim_stride, rows, gram, x, c->dim_stride, x_grad, c->dim_stride, c->ones);
    product(rows, c->dim_stride, rows, gram_t, x, c->dim_stride, x_grad, c->dim_stride, c->ones);
    product(dim, c->stride, rows, x_t, c->y0_grad + f * c->stride, c->stride, c->state_grad,
            c->stride, c->ones);
}

/* Where a unit's partial rows of one sequence begin. */
static float *partial_x(const unit_work *w, const fwa_cpu_partials *parts, int64_t unit)
{
    return parts->x + (unit * parts->pairs + w->s->before + w->s->index * (w->window - 1)) *
                          (int64_t)w->c->dim_stride;
}

/* Hands out the gradients of the chunk's own tokens and keeps those of earlier pairs. */
static void store_grads(const unit_work *w, const fwa_backward_args *args,
                        const fwa_cpu_partials *parts, int64_t unit)
{
    const fwa_cpu_chunk *c = w->c;
    const int64_t tail = w->window - 1;
    const size_t dim = (size_t)c->dim_stride * sizeof(float);
    float *x = partial_x(w, parts, unit) + (tail + w->start) * c->dim_stride;
    float *q = parts->q + (unit * parts->tokens + w->s->before + w->start) * (int64_t)c->dim_stride;
    int64_t t;
    memcpy(x, c->x_grad + tail * c->dim_stride, dim * (size_t)w->tokens);
    memcpy(q, c->q_grad, dim * (size_t)w->tokens);
    memcpy(c->late_x, c->x_grad, dim * (size_t)tail);
    memcpy(c->late_v, c->v_grad, sizeof(float) * (size_t)(tail * c->stride));
    for (t = 0; fwa_present(&args->v_grad) && t < w->tokens; t++)
        fwa_store_f32(&args->v_grad,
                      fwa_at3(&args->v_grad, w->s->row, w->s->first + w->start + t, w->u.head) +
                          w->u.column,
                      w->u.columns, c->v_grad + (t + tail) * c->stride);
}

static void backward_chunk(unit_work *w, int64_t start, const fwa_backward_args *args,
                           const fwa_cpu_partials *parts, int64_t unit)
{
    fwa_cpu_chunk *c = w->c;
    float *gate_grads = fwa_cpu_gate_grads(parts, unit, w->s, start);
    int64_t t;
    w->reads = true;
    load_chunk(w, start, chunk_tokens(w, start));
    enter_chunk(w);
    FOR_STRIPS(w, 0, w->tokens, walk_token);
    FOR_STRIPS(w, w->tokens, w->tokens + 1, walk_trace);
    load_output_grads(w, &args->o_grad);
    end_back(w);
    for (t = w->tokens - 1; t >= 0; t--) {
        int64_t p = t + w->window - 1;
        if (!w->before)
            read_back(w, t, rows_read(w, t), t + 1);
        write_back(w, t);
        if (w->before)
            read_back(w, t, rows_read(w, t), t);
        if (w->regression && p >= w->first)
            enter_back(w, t);
        steps_back(w, t, &args->beta_grad, gate_grads + t * 3);
    }
    for (t = w->first; w->regression && t < w->window - 1; t++)
        memcpy(c->y0_grad + t * c->stride, c->y_grad + t * c->stride,
               sizeof(float) * (size_t)c->stride);
    start_back(w);
    store_grads(w, args, parts, unit);
}

/* The gradients that arrive at the end of the sequence. */
static void load_late(const unit_work *w, const fwa_backward_args *args)
{
    const fwa_cpu_chunk *c = w->c;
    const fwa_carry *grad = &args->carry_out_grad;
    const int64_t tail = w->window - 1, fill = fwa_tail_fill(w->p, w->s->seen + w->s->length);
    int64_t d, i;
    memset(c->state_grad, 0, sizeof(float) * (size_t)w->p->key_dim * (size_t)c->stride);
    memset(c->late_x, 0, sizeof(float) * (size_t)(tail * c->dim_stride));
    memset(c->late_v, 0, sizeof(float) * (size_t)(tail * c->stride));
    for (d = 0; d < w->p->key_dim; d++) {
        float *row = c->state_grad + d * c->stride;
        if (fwa_present(&grad->state))
            fwa_load_f32(&grad->state,
                         fwa_at3(&grad->state, w->s->index, w->u.head, d) +
                             w->u.column * grad->state.stride[3],
                         w->u.columns, row);
        if (w->p->normalizer)
            row[w->u.columns] = fwa_load_one_f32(
                &grad->norm,
                fwa_at2(&grad->norm, w->s->index, w->u.head) + d * grad->norm.stride[2], 0);
    }
    for (i = tail - fill; fwa_present(&grad->tail_value) && i < tail; i++)
        fwa_load_f32(&grad->tail_value,
                     fwa_at3(&grad->tail_value, w->s->index, i, w->u.head) +
                         w->u.column * grad->tail_value.stride[3],
                     w->u.columns, c->late_v + i * c->stride);
}

/* The gradients of the carry handed in, as far as this unit owns them; the rest goes to the
 * partials. */
static void store_early(const unit_work *w, const fwa_backward_args *args,
                        const fwa_cpu_partials *parts, int64_t unit)
{
    const fwa_cpu_chunk *c = w->c;
    const fwa_carry *grad = &args->carry_in_grad;
    const int64_t tail = w->window - 1;
    float *norm = parts->norm + (unit * parts->sequences + w->s->index) * c->dim_stride;
    int64_t d, i;
    if (w->s->slot_in < 0) /* nothing was read */
        memset(c->state_grad, 0, sizeof(float) * (size_t)w->p->key_dim * (size_t)c->stride);
    for (d = 0; d < w->p->key_dim; d++) {
        const float *row = c->state_grad + d * c->stride;
        if (fwa_present(&grad->state))
            fwa_store_f32(&grad->state,
                          fwa_at3(&grad->state, w->s->index, w->u.head, d) +
                              w->u.column * grad->state.stride[3],
                          w->u.columns, row);
        norm[d] = w->p->normalizer ? row[w->u.columns] : 0;
    }
    for (i = 0; fwa_present(&grad->tail_value) && i < tail; i++)
        fwa_store_f32(&grad->tail_value,
                      fwa_at3(&grad->tail_value, w->s->index, i, w->u.head) + w->u.column,
                      w->u.columns, c->late_v + i * c->stride);
    memcpy(partial_x(w, parts, unit), c->late_x, sizeof(float) * (size_t)(tail * c->dim_stride));
}

/* A padded row: nothing was read, so all gradients of it are zeros. */
static void clear_grads(const unit_work *w, const fwa_backward_args *args,
                        const fwa_cpu_partials *parts, int64_t unit)
{
    const fwa_cpu_chunk *c = w->c;
    const size_t tokens = (size_t)w->s->length, dim = (size_t)c->dim_stride * sizeof(float);
    static const float zero[FWA_COLUMNS_LIMIT];
    int64_t t, at;
    memset(partial_x(w, parts, unit), 0, dim * (tokens + (size_t)w->window - 1));
    memset(parts->q + (unit * parts->tokens + w->s->before) * (int64_t)c->dim_stride, 0,
           dim * tokens);
    memset(parts->gates + (unit * parts->tokens + w->s->before) * 3, 0, 3 * sizeof(float) * tokens);
    memset(c->late_v, 0, sizeof(float) * (size_t)((w->window - 1) * c->stride));
    memset(c->late_x, 0, dim * (size_t)(w->window - 1));
    for (t = 0; t < w->s->length; t++) {
        at = w->s->first + t;
        if (fwa_present(&args->v_grad))
            fwa_store_f32(&args->v_grad,
                          fwa_at3(&args->v_grad, w->s->row, at, w->u.head) + w->u.column,
                          w->u.columns, zero);
        if (w->per_channel && fwa_present(&args->beta_grad))
            fwa_store_f32(&args->beta_grad,
                          fwa_at3(&args->beta_grad, w->s->row, at, w->u.head) + w->u.column,
                          w->u.columns, zero);
    }
    store_early(w, args, parts, unit);
}

static void FWA_KERNEL(backward)(const fwa_cpu_plan *plan, const fwa_call *call,
                                 const fwa_sequence *s, int64_t unit, fwa_cpu_chunk *c,
                                 const fwa_cpu_partials *parts)
{
    const fwa_backward_args *args = call->backward;
    unit_work w = unit_begin(plan, call, &args->carry_in, s, fwa_cpu_unit_get(plan, unit), c);
    const size_t state = (size_t)w.p->key_dim * (size_t)c->stride;
    int64_t first = fwa_cpu_first_segment(plan, s), segment = 0, from, to, start, d, i;
    int64_t starts[FWA_CPU_SEGMENT_TOKENS];
    int32_t k;
    for (k = 0; k < FWA_COLUMNS_LIMIT; k++)
        c->ones[k] = 1;
    if (s->padded) {
        clear_grads(&w, args, parts, unit);
        return;
    }
    load_late(&w, args);
    while (plan->segment && fwa_cpu_segment_start(plan, s, segment + 1) < s->length)
        segment++;
    for (to = s->length; to > 0; to = from, segment--) {
        const float *kept = fwa_cpu_kept(w.p, parts, w.u.head, first + segment);
        float *trace = c->w_trace, *statistic = c->statistic, *eigen = c->eigen;
        from = plan->segment ? fwa_cpu_segment_start(plan, s, segment) : 0;
        memset(c->state, 0, state * sizeof(float));
        for (d = 0; d < w.p->key_dim; d++, kept += fwa_cpu_kept_stride(w.p))
            memcpy(c->state + d * c->stride, kept + w.u.column, sizeof(float) * (size_t)w.u.width);
        c->w_trace = NULL;
        for (start = from, i = 0; start < to; start += chunk_tokens(&w, start), i++) {
            starts[i] = start;
            memcpy(c->starts + (size_t)i * state, c->state, state * sizeof(float));
            c->statistic = statistic + (start - from);
            c->eigen = eigen + (start - from) * w.window;
            if (start + chunk_tokens(&w, start) < to)
                forward_chunk(&w, start, chunk_tokens(&w, start), NULL);
        }
        c->w_trace = trace;
        for (w.known = false; i-- > 0; w.known = true) { /* all but the last chunk's */
            c->statistic = statistic + (starts[i] - from);
            c->eigen = eigen + (starts[i] - from) * w.window;
            memcpy(c->state, c->starts + (size_t)i * state, state * sizeof(float));
            backward_chunk(&w, starts[i], args, parts, unit);
        }
        w.known = false;
        c->statistic = statistic;
        c->eigen = eigen;
    }
    store_early(&w, args, parts, unit);
}
