/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's backward where a step is one pair and gates are per head (window 1, no
 * normaliser): the chunk adjoint of Falcon-1 and Falcon-1A. Compiled once per ISA.
 *
 * A unit is one head with all its value columns. States and their gradients are kept transposed,
 * rows of features per value column: all products with them but one, X dS, then add multiples of
 * rows. Segments go from the last to the first. In each, the states at its chunks' starts come from
 * the kept state and the kept residuals; then the chunks' adjoints, from the last to the first:
 *
 *     dR = W^T dO + F X dS      H = (I + A)^-T dR = dV
 *     dQ = Wb X + Eb dO S^T     dX = Wb^T Q + (Ab + Ab^T) X + F R dS^T - Ea H S^T
 *     dS_0 = (Eb Q)^T dO + Gamma dS - (Ea X)^T H
 *
 * in the notation of the maths document. Gradients of gammas never divide by one. */

#define ADJOINT      FWA_CPU_ADJOINT_CHUNK
#define MOMENT_LANES ((2 * ADJOINT + 1 + FWA_LANES - 1) / FWA_LANES * FWA_LANES)

typedef struct {
    unit_work w; /* all but the chunk */
    const fwa_backward_args *args;
    const fwa_cpu_partials *parts;
    fwa_cpu_adjoint *a;
    int64_t dim, width;    /* D and V, padded to whole vectors */
    int64_t segment;       /* first token of the segment at hand */
    int64_t start, tokens; /* of the chunk at hand */
    const float *features; /* of the chunk at hand */
    const float *residual; /* of the chunk at hand, rows of a->width_stride */
} adjoint_work;

/* Gates of the chunk at hand, and products of gammas. Token t's gamma is gamma[t]. */
typedef struct {
    fwa_decay_step_t_f32 step[ADJOINT];
    float lambda[ADJOINT], statistic[ADJOINT];
    float gamma[ADJOINT], eta[ADJOINT];
    float whole;                             /* product of all */
    float before[ADJOINT + 1];               /* product of the first t */
    float behind[ADJOINT];                   /* product of those after t */
    float between[ADJOINT + 1][ADJOINT + 1]; /* [e][s]: product of gammas s .. e - 1; 0 if e < s */
    int64_t active;                          /* tokens before this one are no pairs */
} chunk_gates;

/* ---- States, transposed ---- */

/* to [V, dim] = from [D, V] in blocks that stay in the cache. */
static void transpose(int64_t rows, int64_t columns, const float *from, int64_t from_stride,
                      float *to, int64_t to_stride)
{
    int64_t r, c, i, j;
    for (c = 0; c < columns; c += 16)
        for (r = 0; r < rows; r += 16)
            for (j = c; j < c + 16 && j < columns; j++)
                for (i = r; i < r + 16 && i < rows; i++)
                    to[j * to_stride + i] = from[i * from_stride + j];
}

/* The gradient of the state that the sequence hands on. */
static void load_state_grad(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *grad = &a->args->carry_out_grad.state;
    float row[FWA_COLUMNS_LIMIT];
    int64_t d, v;
    memset(a->a->grad, 0, sizeof(float) * (size_t)(w->p->value_dim * a->dim));
    for (d = 0; fwa_present(grad) && d < w->p->key_dim; d++) {
        fwa_load_f32(grad, fwa_at3(grad, w->s->index, w->u.head, d), w->p->value_dim, row);
        for (v = 0; v < w->p->value_dim; v++)
            a->a->grad[v * a->dim + d] = row[v];
    }
}

static void store_state_grad(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *grad = &a->args->carry_in_grad.state;
    float row[FWA_COLUMNS_LIMIT] = {0};
    int64_t d, v;
    for (d = 0; fwa_present(grad) && d < w->p->key_dim; d++) {
        for (v = 0; w->s->slot_in >= 0 && v < w->p->value_dim; v++) /* else nothing was read */
            row[v] = a->a->grad[v * a->dim + d];
        fwa_store_f32(grad, fwa_at3(grad, w->s->index, w->u.head, d), w->p->value_dim, row);
    }
}

/* ---- Chunks ---- */

static int64_t adjoint_tokens(const adjoint_work *a, int64_t start)
{
    int64_t tokens = ADJOINT - (a->w.s->seen + start) % ADJOINT, left = a->w.s->length - start;
    return tokens < left ? tokens : left;
}

/* Features of the segment's tokens [from, to), and where A rules have them, values in place of
 * residuals. */
static void load_segment(const adjoint_work *a, int64_t from, int64_t to)
{
    const unit_work *w = &a->w;
    const fwa_tensor *q = w->in.q;
    int64_t t, d;
    for (t = from; t < to; t++) {
        float *key = a->a->features + (t - from) * FEATURE_ROW, *raw = a->a->raw;
        float *value = a->a->values + (t - from) * a->a->width_stride;
        for (d = w->p->key_dim; d < a->dim; d++)
            raw[d] = 0;
        if (t < w->first_pair) {
            memset(key, 0, sizeof(float) * (size_t)a->dim);
        } else {
            load_raw_key(w, t, raw);
            feature_row(w->p, a->dim, raw, key);
        }
        fwa_load_f32(q, fwa_at3(q, w->s->row, w->s->first + t, w->u.query_head), w->p->key_dim,
                     raw);
        feature_row(w->p, a->dim, raw, key + QUERY);
        if (!w->regression) {
            memset(value, 0, sizeof(float) * (size_t)a->width);
            if (t >= w->first_pair)
                load_value(w, t, value);
        }
    }
}

/* Turns to the chunk that begins at token `start`. */
static void set_chunk(adjoint_work *a, int64_t start)
{
    const unit_work *w = &a->w;
    a->start = start;
    a->tokens = adjoint_tokens(a, start);
    a->features = a->a->features + (start - a->segment) * FEATURE_ROW;
    a->residual = w->regression ? fwa_cpu_residual(w->p, a->parts, w->u.head, w->s->before + start)
                                : a->a->values + (start - a->segment) * a->a->width_stride;
}

static void load_chunk_gates(const adjoint_work *a, chunk_gates *g)
{
    const unit_work *w = &a->w;
    float unused[1];
    int64_t t, s, n = a->tokens;
    g->active = w->first_pair > a->start ? 1 : 0;
    for (t = 0; t < n; t++) {
        const float *key = a->features + t * FEATURE_ROW;
        gates given;
        g->gamma[t] = 1;
        g->eta[t] = 0;
        if (t < g->active)
            continue;
        g->statistic[t] = w->needs_statistic ? dot(key, key, a->dim) : 0;
        given = load_gates(w, a->start + t, unused);
        g->lambda[t] = given.lambda;
        g->step[t] = fwa_decay_step_f32(&w->knobs, given.beta, given.lambda, given.log_gate,
                                        g->statistic[t]);
        g->gamma[t] = g->step[t].gamma;
        g->eta[t] = g->step[t].eta;
    }
    for (s = 0; s <= n; s++) {
        float product = 1;
        for (t = 0; t < s; t++)
            g->between[t][s] = 0;
        for (t = s; t <= n; t++) {
            g->between[t][s] = product;
            if (t < n)
                product *= g->gamma[t];
        }
    }
}

/* Rows R scaled by what is left of them at the chunk's end: X^T (F R) is what the chunk writes. */
static void written_rows(const adjoint_work *a, const chunk_gates *g, float *to)
{
    int64_t t, i;
    for (t = 0; t < a->tokens; t++) {
        const vec factor = splat(g->eta[t] * g->between[a->tokens][t + 1]);
        for (i = 0; i < a->width; i += FWA_LANES)
            store(to + t * a->a->width_stride + i,
                  factor * load(a->residual + t * a->a->width_stride + i));
    }
}

/* The state at the next chunk's start from that at this one's. */
static void next_state(const adjoint_work *a, const float *from, float *to)
{
    const fwa_cpu_adjoint *s = a->a;
    const operand written = {s->scaled, 1, s->width_stride};
    chunk_gates g;
    int64_t i;
    load_chunk_gates(a, &g);
    written_rows(a, &g, s->scaled);
    memcpy(to, from, sizeof(float) * (size_t)(a->w.p->value_dim * a->dim));
    for (i = 0; i < a->dim; i++)
        s->keep[i] = g.between[a->tokens][0];
    product(a->w.p->value_dim, a->dim, a->tokens, written, a->features, FEATURE_ROW, to, a->dim,
            s->keep);
}

/* H = (I + A)^-T dR in place, A_st = -(solve_st) below the diagonal. */
static void solve_back(const adjoint_work *a, const float *solve, float *rows, int64_t stride)
{
    int64_t at, t, s;
    for (at = 0; at < a->width; at += FWA_LANES)
        for (t = a->tokens - 1; t >= 0; t--) {
            vec sum = load(rows + t * stride + at);
            for (s = t + 1; s < a->tokens; s++)
                sum -= splat(solve[s * ADJOINT + t]) * load(rows + s * stride + at);
            store(rows + t * stride + at, sum);
        }
}

/* sum over all of S and its gradient, both [V, dim] */
static float state_product(const adjoint_work *a, const float *state)
{
    vec sum[4] = {{0}};
    int64_t i, n = a->w.p->value_dim * a->dim;
    for (i = 0; i + 4 * FWA_LANES <= n; i += 4 * FWA_LANES)
        for (int u = 0; u < 4; u++)
            sum[u] += load(state + i + u * FWA_LANES) * load(a->a->grad + i + u * FWA_LANES);
    for (; i < n; i += FWA_LANES)
        sum[0] += load(state + i) * load(a->a->grad + i);
    return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The gradients of the gates of the chunk's tokens, and what the statistic passes on to x.
 * moment[s] are rows: what pair s - 1 (0: the state before the chunk) contributes to each read,
 * prediction, and to the state at the end, as a product with its gradient; they come at the prefixes
 * `end`. eta_grad is complete. */
static void chunk_gate_grads(const adjoint_work *a, const chunk_gates *g,
                             const float moment[][MOMENT_LANES], const int *end,
                             const float *eta_grad, float *x_grad, float *to)
{
    const unit_work *w = &a->w;
    const int64_t items = 2 * ADJOINT + 1;
    float carried[MOMENT_LANES];
    int64_t t, i;
    memcpy(carried, moment[0], sizeof carried);
    for (t = 0; t < a->tokens; t++) {
        float gamma_grad = 0;
        fwa_decay_gradient_f32 grad = {0, 0, 0, 0};
        for (i = 0; i < items; i++)
            if (end[i] > t) /* others may be NaN, and 0 times NaN is that */
                gamma_grad += g->between[end[i]][t + 1] * carried[i];
        for (i = 0; i < items; i++)
            carried[i] = g->gamma[t] * carried[i] + moment[t + 1][i];
        if (t >= g->active)
            grad = fwa_decay_step_backward_f32(&w->knobs, &g->step[t], g->lambda[t],
                                               g->statistic[t], eta_grad[t], gamma_grad);
        if (w->needs_statistic && t >= g->active)
            add_scaled(x_grad + t * a->a->dim_stride, 2 * grad.statistic,
                       a->features + t * FEATURE_ROW, a->dim);
        to[3 * t] = grad.beta;
        to[3 * t + 1] = grad.lambda;
        to[3 * t + 2] = grad.log_gate;
    }
}

/* The adjoint of the chunk at hand, S^T at whose start is `state`. */
static void adjoint_chunk(const adjoint_work *a, int64_t unit, const float *state)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const fwa_tensor *o_grad = &a->args->o_grad, *v_grad = &a->args->v_grad;
    const int64_t n = a->tokens, stride = s->width_stride, dim = a->dim, V = w->p->value_dim;
    const int64_t token = w->s->before + a->start, after = !w->before;
    const float *x = a->features, *q = x + QUERY;
    /* Rows 2 t and 2 t + 1: those that belong to x_t and to q_t. */
    float *H = s->rows, *dO = H + stride, *by_state = s->by_state;
    float gram[ADJOINT * ADJOINT], scores[ADJOINT * ADJOINT], hr[ADJOINT * ADJOINT],
        dor[ADJOINT * ADJOINT], solve[ADJOINT * ADJOINT], read[ADJOINT * ADJOINT];
    float moment[ADJOINT + 1][MOMENT_LANES], eta_grad[ADJOINT];
    float *x_grad = a->parts->x + (unit * a->parts->rows + token) * s->dim_stride;
    float *q_grad = a->parts->q + (unit * a->parts->tokens + token) * s->dim_stride;
    int end[2 * ADJOINT + 1] = {0};
    int64_t t, j, i;
    chunk_gates g;
    load_chunk_gates(a, &g);
    /* Gram matrix and scores, and the coefficients A and W of the chunk. */
    inner_products_below(n, 0, dim, x, FEATURE_ROW, x, FEATURE_ROW, gram, ADJOINT);
    inner_products_below(n, 0, dim, q, FEATURE_ROW, x, FEATURE_ROW, scores, ADJOINT);
    for (t = 0; t < n; t++)
        for (j = 0; j < t + after; j++)
            read[t * ADJOINT + j] = scores[t * ADJOINT + j] * g.between[t + after][j + 1] *
                                    g.eta[j];
    for (t = 0; t < n; t++)
        for (j = 0; j < t; j++)
            solve[t * ADJOINT + j] = gram[t * ADJOINT + j] * g.between[t + w->decayed][j + 1] *
                                     g.eta[j];
    /* dO, and dR = F X dS + W^T dO. */
    for (t = 0; t < n; t++) {
        float *row = dO + 2 * t * stride;
        memset(row, 0, sizeof(float) * (size_t)a->width);
        fwa_load_f32(o_grad, fwa_at3(o_grad, w->s->row, w->s->first + a->start + t, w->u.head), V,
                     row);
        for (i = 0; i < a->width; i += FWA_LANES)
            store(row + i, splat((float)w->p->scale) * load(row + i));
    }
    inner_products(n, V, dim, x, FEATURE_ROW, s->grad, dim, s->written_grad, stride, false);
    for (t = 0; t < n; t++) {
        const float kept = g.eta[t] * g.between[n][t + 1];
        const float *from = s->written_grad + t * stride;
        eta_grad[t] = 0;
        moment[t + 1][2 * ADJOINT] = 0;
        if (t >= g.active) {
            const float along = dot(from, a->residual + t * stride, a->width);
            eta_grad[t] = g.between[n][t + 1] * along;
            moment[t + 1][2 * ADJOINT] = g.eta[t] * along;
        }
        for (i = 0; i < a->width; i += FWA_LANES)
            store(H + 2 * t * stride + i, splat(kept) * load(from + i));
    }
    {
        const operand reads = {read + (1 - after) * ADJOINT, ADJOINT, 1};
        product_below_transposed(n, a->width, n - (1 - after), 1, reads,
                                 dO + 2 * (1 - after) * stride, 2 * stride, H, 2 * stride, s->ones);
    }
    if (w->regression)
        solve_back(a, solve, H, 2 * stride);
    for (t = 0; t < g.active; t++)
        memset(H + 2 * t * stride, 0, sizeof(float) * (size_t)a->width);
    for (t = 0; fwa_present(v_grad) && t < n; t++)
        fwa_store_f32(v_grad, fwa_at3(v_grad, w->s->row, w->s->first + a->start + t, w->u.head), V,
                      H + 2 * t * stride);
    /* Products with the state and its gradient. */
    inner_products_below(n, 0, a->width, dO, 2 * stride, a->residual, stride, dor, ADJOINT);
    if (w->regression) {
        const operand both = {s->rows, stride, 1};
        inner_products_below(n, 0, a->width, H, 2 * stride, a->residual, stride, hr, ADJOINT);
        product(2 * n, dim, V, both, state, dim, by_state, dim, NULL);
    } else {
        const operand reads = {dO, 2 * stride, 1};
        product(n, dim, V, reads, state, dim, by_state + dim, 2 * dim, NULL);
    }
    {
        const operand residual = {a->residual, stride, 1};
        product(n, dim, V, residual, s->grad, dim, s->by_grad, dim, NULL);
    }
    /* What each pair contributes, for the gates; then coefficients become their gradients. */
    for (t = 0; t <= n; t++)
        memset(moment[t], 0, sizeof(float) * 2 * ADJOINT);
    for (i = 2 * ADJOINT + 1; i < MOMENT_LANES; i++)
        for (t = 0; t <= n; t++)
            moment[t][i] = 0;
    moment[0][2 * ADJOINT] = state_product(a, state);
    end[2 * ADJOINT] = (int)n;
    for (t = 0; t < n; t++) {
        end[t] = (int)(t + after);
        end[ADJOINT + t] = (int)(t + w->decayed);
        moment[0][t] = dot(q + t * FEATURE_ROW, by_state + (2 * t + 1) * dim, dim);
        for (j = g.active; j < t + after; j++) {
            const float weight = g.between[t + after][j + 1] * dor[t * ADJOINT + j];
            const float product = weight * scores[t * ADJOINT + j];
            eta_grad[j] += product;
            moment[j + 1][t] = scores[t * ADJOINT + j] * dor[t * ADJOINT + j] * g.eta[j];
            read[t * ADJOINT + j] = weight * g.eta[j];
        }
        if (!w->regression || t < g.active)
            continue;
        moment[0][ADJOINT + t] = -dot(x + t * FEATURE_ROW, by_state + 2 * t * dim, dim);
        for (j = g.active; j < t; j++) {
            const float weight = -g.between[t + w->decayed][j + 1] * hr[t * ADJOINT + j];
            const float product = weight * gram[t * ADJOINT + j];
            eta_grad[j] += product;
            moment[j + 1][ADJOINT + t] = -gram[t * ADJOINT + j] * hr[t * ADJOINT + j] * g.eta[j];
            solve[t * ADJOINT + j] = weight * g.eta[j];
        }
    }
    for (j = 0; j < g.active; j++)
        for (t = j; t < n; t++)
            read[t * ADJOINT + j] = solve[t * ADJOINT + j] = 0;
    /* dX and dQ. */
    for (t = 0; t < n; t++) {
        const vec from_q = splat(g.between[t + after][0]);
        const vec from_x = splat(g.between[t + w->decayed][0]);
        const vec kept = splat(g.eta[t] * g.between[n][t + 1]);
        for (i = 0; i < dim; i += FWA_LANES) {
            vec sum = kept * load(s->by_grad + t * dim + i);
            if (w->regression)
                sum -= from_x * load(by_state + 2 * t * dim + i);
            if (t < g.active)
                sum = splat(0);
            store(x_grad + t * s->dim_stride + i, sum);
            store(q_grad + t * s->dim_stride + i, from_q * load(by_state + (2 * t + 1) * dim + i));
        }
    }
    {
        const int64_t skip = 1 - after;
        const operand reads = {read + skip * ADJOINT, ADJOINT, 1};
        product_below(n - skip, dim, 1, reads, x, FEATURE_ROW, q_grad + skip * s->dim_stride,
                      s->dim_stride, s->ones);
        product_below_transposed(n, dim, n - skip, 1, reads, q + skip * FEATURE_ROW, FEATURE_ROW,
                                 x_grad, s->dim_stride, s->ones);
    }
    if (w->regression) {
        const operand below = {solve + ADJOINT, ADJOINT, 1};
        product_below(n - 1, dim, 1, below, x, FEATURE_ROW, x_grad + s->dim_stride, s->dim_stride,
                      s->ones);
        product_below_transposed(n, dim, n - 1, 1, below, x + FEATURE_ROW, FEATURE_ROW, x_grad,
                                 s->dim_stride, s->ones);
    }
    chunk_gate_grads(a, &g, (const float(*)[MOMENT_LANES])moment, end, eta_grad, x_grad,
                     a->parts->gates + (unit * a->parts->tokens + token) * 3);
    /* The state's gradient at the chunk's start. */
    for (t = 0; t < n; t++) {
        const vec from_q = splat(g.between[t + after][0]);
        const vec from_x = splat(t < g.active ? 0 : -g.between[t + w->decayed][0]);
        for (i = 0; i < a->width; i += FWA_LANES) {
            if (w->regression)
                store(s->scaled + 2 * t * stride + i, from_x * load(H + 2 * t * stride + i));
            store(s->scaled + (2 * t + 1) * stride + i, from_q * load(dO + 2 * t * stride + i));
        }
    }
    for (i = 0; i < dim; i++)
        s->keep[i] = g.between[n][0];
    if (w->regression) {
        const operand both = {s->scaled, 1, stride};
        product(V, dim, 2 * n, both, x, QUERY, s->grad, dim, s->keep);
    } else {
        const operand reads = {s->scaled + stride, 1, 2 * stride};
        product(V, dim, n, reads, q, FEATURE_ROW, s->grad, dim, s->keep);
    }
}

/* A padded row: nothing was read, so all gradients of it are zeros. */
static void clear_adjoint(const adjoint_work *a, int64_t unit)
{
    const unit_work *w = &a->w;
    const fwa_tensor *v_grad = &a->args->v_grad;
    static const float zero[FWA_COLUMNS_LIMIT];
    const size_t tokens = (size_t)w->s->length, row = (size_t)a->a->dim_stride * sizeof(float);
    int64_t t;
    memset(a->parts->x + (unit * a->parts->rows + w->s->before) * a->a->dim_stride, 0,
           row * tokens);
    memset(a->parts->q + (unit * a->parts->tokens + w->s->before) * a->a->dim_stride, 0,
           row * tokens);
    memset(a->parts->gates + (unit * a->parts->tokens + w->s->before) * 3, 0,
           3 * sizeof(float) * tokens);
    for (t = 0; fwa_present(v_grad) && t < w->s->length; t++)
        fwa_store_f32(v_grad, fwa_at3(v_grad, w->s->row, w->s->first + t, w->u.head),
                      w->p->value_dim, zero);
    store_state_grad(a);
}

static void FWA_KERNEL(adjoint)(const fwa_cpu_plan *plan, const fwa_call *call,
                                const fwa_sequence *s, int64_t unit, fwa_cpu_adjoint *scratch,
                                const fwa_cpu_partials *parts)
{
    const fwa_backward_args *args = call->backward;
    adjoint_work a = {.w = unit_begin(plan, call, &args->carry_in, s,
                                      fwa_cpu_head_unit(plan, unit, 0, plan->problem.value_dim),
                                      NULL),
                      .args = args,
                      .parts = parts,
                      .a = scratch};
    const fwa_problem *p = a.w.p;
    const int64_t size = p->value_dim * scratch->dim_stride;
    int64_t segment = 0, first = fwa_cpu_first_segment(plan, s), to, from, start, i;
    int64_t starts[FWA_CPU_SEGMENT_TOKENS / ADJOINT + 2];
    a.dim = scratch->dim_stride;
    a.width = (p->value_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    for (i = 0; i < FWA_COLUMNS_LIMIT; i++)
        scratch->ones[i] = 1;
    if (s->padded) {
        clear_adjoint(&a, unit);
        return;
    }
    memset(scratch->written_grad, 0,
           sizeof(float) * (size_t)(ADJOINT * scratch->width_stride)); /* its padding */
    load_state_grad(&a);
    while (fwa_cpu_segment_start(plan, s, segment + 1) < s->length)
        segment++;
    for (to = s->length; to > 0; to = from, segment--) {
        from = a.segment = fwa_cpu_segment_start(plan, s, segment);
        load_segment(&a, from, to);
        memset(scratch->starts, 0, sizeof(float) * (size_t)size);
        transpose(p->key_dim, p->value_dim, fwa_cpu_kept(p, parts, a.w.u.head, first + segment),
                  fwa_cpu_kept_stride(p), scratch->starts, a.dim);
        for (start = from, i = 0; start < to; start += a.tokens, i++) {
            starts[i] = start;
            set_chunk(&a, start);
            if (start + a.tokens < to)
                next_state(&a, scratch->starts + i * size, scratch->starts + (i + 1) * size);
        }
        while (i-- > 0) {
            set_chunk(&a, starts[i]);
            adjoint_chunk(&a, unit, scratch->starts + i * size);
        }
    }
    store_state_grad(&a);
}
