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

#define ADJOINT              FWA_CPU_ADJOINT_CHUNK
#define EDGE                 (2 * ADJOINT) /* floats in a row of products of gammas */
#define SEGMENT              FWA_CPU_SEGMENT_TOKENS
#define EACH_TOKEN_VECTOR(i) for (int64_t i = 0; i < ADJOINT; i += FWA_LANES)

typedef struct {
    unit_work w; /* all but the chunk */
    const fwa_backward_args *args;
    const fwa_cpu_partials *parts;
    fwa_cpu_adjoint *a;
    float *grad;               /* of the head at hand: the state's gradient, transposed */
    int64_t dim, width;        /* D and V, padded to whole vectors */
    const float *state;        /* at the start of the chunk at hand, transposed */
    int64_t first_head, heads; /* of the unit */
    int64_t segment, to;       /* tokens of the segment at hand: [segment, to) */
    int64_t start, tokens;     /* of the chunk at hand */
    const float *features;     /* of the chunk at hand */
    const float *residual;     /* of the chunk at hand, rows of residual_stride */
    int64_t residual_stride;
    fetcher ahead;
    /* Of the segment's tokens. */
    fwa_decay_step_t_f32 step[SEGMENT];
    float lambda[SEGMENT], statistic[SEGMENT];
    float gamma[SEGMENT + ADJOINT], eta[SEGMENT + ADJOINT]; /* a chunk's are whole vectors */
} adjoint_work;

/* Gates of the chunk at hand, and products of gammas. Token t's gamma is gamma[t]. */
typedef struct {
    const float *gamma, *eta;
    int64_t active; /* tokens before this one are no pairs */
    /* [e][s] and, transposed, [s][e]: the product of gammas s .. e - 1; 0 if e < s */
    float between[ADJOINT + 1][EDGE], until[ADJOINT + 1][EDGE];
} chunk_gates;

/* The matrices of a chunk, [token][pair]; what a row has beyond its pairs is zero. */
typedef struct {
    float gram[ADJOINT][ADJOINT], scores[ADJOINT][ADJOINT]; /* x_t . x_j, q_t . x_j */
    float hr[ADJOINT][ADJOINT], dor[ADJOINT][ADJOINT];      /* H_t . R_j, dO_t . R_j */
    float solve[ADJOINT][ADJOINT], read[ADJOINT][ADJOINT];  /* A and W, then their gradients */
    float moment[2][ADJOINT][ADJOINT];                      /* of reads, of predictions */
} chunk_matrices;

/* ---- States, transposed ---- */

/* to [columns, .] = from [rows, .], transposed, `rows` rounded up to whole vectors with zeros. What
 * follows a row of `from` may be read, up to a whole vector. */
static void transpose(int64_t rows, int64_t columns, const float *from, int64_t from_stride,
                      float *to, int64_t to_stride)
{
    int64_t r, c, i;
    for (c = 0; c < columns; c += FWA_LANES)
        for (r = 0; r < rows; r += FWA_LANES) {
            const int64_t some = columns - c < FWA_LANES ? columns - c : FWA_LANES;
            vec tile[FWA_LANES];
            if (r + FWA_LANES <= rows) {
                UNROLL_16 for (i = 0; i < FWA_LANES; i++)
                    tile[i] = load(from + (r + i) * from_stride + c);
            } else {
                for (i = 0; i < FWA_LANES; i++)
                    tile[i] = r + i < rows ? load(from + (r + i) * from_stride + c) : splat(0);
            }
            transpose_tile(tile);
            if (some == FWA_LANES) {
                UNROLL_16 for (i = 0; i < FWA_LANES; i++)
                    store(to + (c + i) * to_stride + r, tile[i]);
            } else {
                for (i = 0; i < some; i++)
                    store(to + (c + i) * to_stride + r, tile[i]);
            }
        }
}

/* The gradient of the state that the sequence hands on. */
static void load_state_grad(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *grad = &a->args->carry_out_grad.state;
    float row[FWA_COLUMNS_LIMIT];
    int64_t d, v;
    memset(a->grad, 0, sizeof(float) * (size_t)(w->p->value_dim * a->a->state_stride));
    for (d = 0; fwa_present(grad) && d < w->p->key_dim; d++) {
        fwa_load_f32(grad, fwa_at3(grad, w->s->index, w->u.head, d), w->p->value_dim, row);
        for (v = 0; v < w->p->value_dim; v++)
            a->grad[v * a->a->state_stride + d] = row[v];
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
            row[v] = a->grad[v * a->a->state_stride + d];
        fwa_store_f32(grad, fwa_at3(grad, w->s->index, w->u.head, d), w->p->value_dim, row);
    }
}

/* ---- A segment's rows and gates ---- */

/* Tokens of the chunk that begins at token `start`. */
static int64_t adjoint_tokens(const unit_work *w, int64_t start)
{
    int64_t tokens = ADJOINT - (w->s->seen + start) % ADJOINT, left = w->s->length - start;
    return tokens < left ? tokens : left;
}

/* A padded row of a tensor, itself where it can be, else a copy. */
static const float *whole_row(const adjoint_work *a, const fwa_tensor *t, int64_t offset)
{
    const int64_t dim = a->w.p->key_dim;
    if (t->dtype == FWA_DTYPE_F32 && t->stride[3] == 1 && dim == a->dim)
        return (const float *)(const void *)fwa_element(t, offset);
    fwa_load_f32(t, offset, dim, a->a->raw);
    for (int64_t d = dim; d < a->dim; d++)
        a->a->raw[d] = 0;
    return a->a->raw;
}

static const float *raw_query(const adjoint_work *a, int64_t t)
{
    const fwa_tensor *q = a->w.in.q;
    return whole_row(a, q, fwa_at3(q, a->w.s->row, a->w.s->first + t, a->w.u.query_head));
}

/* The raw key of the pair that token t writes; there is one. */
static const float *raw_key(const adjoint_work *a, int64_t t)
{
    const unit_work *w = &a->w;
    const int64_t at = t - (w->p->alignment == FWA_ALIGNMENT_NEXT_LATENT);
    if (at >= 0)
        return whole_row(a, w->in.k, fwa_at3(w->in.k, w->s->row, w->s->first + at, w->u.key_head));
    load_raw_key(w, t, a->a->raw);
    for (int64_t d = w->p->key_dim; d < a->dim; d++)
        a->a->raw[d] = 0;
    return a->a->raw;
}

/* Features of the segment's tokens, and where A rules have them, values in place of residuals. */
static void load_rows(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    int64_t t;
    for (t = a->segment; t < a->to; t++) {
        float *key = a->a->features + 2 * (t - a->segment) * a->a->feature_stride;
        float *value = a->a->values + (t - a->segment) * a->a->width_stride;
        if (t < w->first_pair)
            memset(key, 0, sizeof(float) * (size_t)a->dim);
        else
            feature_row(w->p, a->dim, raw_key(a, t), key);
        feature_row(w->p, a->dim, raw_query(a, t), key + a->a->feature_stride);
        if (!w->regression) {
            memset(value, 0, sizeof(float) * (size_t)a->width);
            if (t >= w->first_pair)
                load_value(w, t, value);
        }
    }
}

/* A gate of the segment's tokens. */
static void load_segment_gate(const adjoint_work *a, const fwa_tensor *t, float absent, float *to)
{
    const unit_work *w = &a->w;
    const int64_t n = a->to - a->segment;
    const float *from;
    int64_t i;
    if (!fwa_present(t)) {
        for (i = 0; i < n; i++)
            to[i] = absent;
        return;
    }
    from = (const float *)(const void *)fwa_element(
        t, fwa_at3(t, w->s->row, w->s->first + a->segment, w->u.head));
    for (i = 0; i < n; i++)
        to[i] = from[i * t->stride[1]];
}

static void load_steps_of_segment(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t n = a->to - a->segment;
    float beta[SEGMENT], gate[SEGMENT];
    int64_t t;
    load_segment_gate(a, w->in.beta, 1, beta);
    load_segment_gate(a, w->in.lambda, 0, a->lambda);
    load_segment_gate(a, w->in.log_gate, 0, gate);
    for (t = 0; t < n; t++)
        gate[t] = fwa_decay_clip_gate_f32(gate[t]);
    for (t = n; t % FWA_LANES; t++)
        gate[t] = 0;
    for (t = 0; t < n; t += FWA_LANES)
        store(gate + t, exp_vector(load(gate + t)));
    for (t = 0; t < n; t++) {
        const float *key = a->a->features + 2 * t * a->a->feature_stride;
        a->gamma[t] = 1;
        a->eta[t] = 0;
        if (a->segment + t < w->first_pair)
            continue;
        a->statistic[t] = w->needs_statistic ? dot(key, key, a->dim) : 0;
        a->step[t] = fwa_decay_step_of_gate_f32(&w->knobs, beta[t], a->lambda[t], gate[t],
                                                a->statistic[t]);
        a->gamma[t] = a->step[t].gamma;
        a->eta[t] = a->step[t].eta;
    }
}

/* ---- Chunks ---- */

/* Turns to the chunk that begins at token `start`. */
static void set_chunk(adjoint_work *a, int64_t start)
{
    const unit_work *w = &a->w;
    a->start = start;
    a->tokens = adjoint_tokens(w, start);
    a->features = a->a->features + 2 * (start - a->segment) * a->a->feature_stride;
    if (w->regression) {
        a->residual = fwa_cpu_residual(w->p, a->parts, w->u.head, w->s->before + start);
        a->residual_stride = fwa_cpu_residual_stride(w->p);
    } else {
        a->residual = a->a->values + (start - a->segment) * a->a->width_stride;
        a->residual_stride = a->a->width_stride;
    }
}

/* The products of gammas between any two of the chunk's tokens. */
static void chunk_products_of_gammas(const adjoint_work *a, chunk_gates *g)
{
    const int64_t n = a->tokens;
    int64_t t, i;
    g->gamma = a->gamma + (a->start - a->segment);
    g->eta = a->eta + (a->start - a->segment);
    g->active = a->w.first_pair > a->start ? 1 : 0;
    memset(g->between[0], 0, sizeof g->between[0]);
    memset(g->until[n], 0, sizeof g->until[n]);
    g->between[0][0] = g->until[n][n] = 1;
    for (t = 0; t < n; t++) {
        const vec last = splat(g->gamma[t]), first = splat(g->gamma[n - 1 - t]);
        for (i = 0; i < EDGE; i += FWA_LANES) {
            store(g->between[t + 1] + i, load(g->between[t] + i) * last);
            store(g->until[n - 1 - t] + i, first * load(g->until[n - t] + i));
        }
        g->between[t + 1][t + 1] = 1; /* whatever 0 times a gamma is */
        g->until[n - 1 - t][n - 1 - t] = 1;
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
                  factor * load(a->residual + t * a->residual_stride + i));
    }
}

/* The state at the next chunk's start from that at this one's. */
static void next_state(const adjoint_work *a, const float *from, float *to)
{
    const fwa_cpu_adjoint *s = a->a;
    const operand written = {s->scaled, 1, s->width_stride};
    fetcher none = {.rows = 0};
    chunk_gates g;
    int64_t i;
    chunk_products_of_gammas(a, &g);
    written_rows(a, &g, s->scaled);
    for (i = 0; i < a->dim; i++)
        s->keep[i] = g.between[a->tokens][0];
    product_ahead(a->w.p->value_dim, a->dim, a->tokens, written, a->features, 2 * s->feature_stride,
                  from, to, s->state_stride, s->keep, &none);
}

/* Lanes [from, to) of the vector that begins with lane `at`. */
INLINE int_vec lanes_between(int64_t at, int64_t from, int64_t to)
{
    int_vec lane;
    for (int i = 0; i < FWA_LANES; i++)
        lane[i] = (int32_t)at + i;
    return (lane >= (int32_t)from) & (lane < (int32_t)to);
}

/* Gram matrix and scores, and from them A (negated) and W. */
static void key_matrices(const adjoint_work *a, const chunk_gates *g, chunk_matrices *m)
{
    const unit_work *w = &a->w;
    const float *x = a->features, *q = x + a->a->feature_stride;
    const int64_t n = a->tokens, after = !w->before, row = 2 * a->a->feature_stride;
    int64_t t;
    inner_products_below(n, 0, a->dim, x, row, x, row, m->gram[0], ADJOINT);
    inner_products_below(n, 0, a->dim, q, row, x, row, m->scores[0], ADJOINT);
    for (t = 0; t < n; t++)
        EACH_TOKEN_VECTOR(i)
        {
            const vec eta = load(g->eta + i);
            const vec read = load(m->scores[t] + i) * load(g->between[t + after] + 1 + i) * eta;
            const vec solve = load(m->gram[t] + i) * load(g->between[t + w->decayed] + 1 + i) * eta;
            store(m->read[t] + i, choose(lanes_between(i, 0, t + after), read, splat(0)));
            store(m->solve[t] + i, choose(lanes_between(i, 0, t), solve, splat(0)));
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
    for (t = 0; t < a->tokens; t++) {
        const int64_t token = a->start + t;
        float *row = a->a->rows + (2 * t + 1) * a->a->width_stride;
        const float *from = row;
        if (direct) {
            from = direct_row(w, o_grad, token);
        } else {
            memset(row, 0, sizeof(float) * (size_t)a->width);
            fwa_load_f32(o_grad, fwa_at3(o_grad, w->s->row, w->s->first + token, w->u.head),
                         w->p->value_dim, row);
        }
        for (i = 0; i < a->width; i += FWA_LANES)
            store(row + i, scale * load(from + i));
    }
}

/* What the state's gradient says of what is written, F X dS, to the rows of H; along[t] is its
 * product with what token t would write, but for eta and the decay. */
static void written_gradient(const adjoint_work *a, const chunk_gates *g, float *along)
{
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = a->tokens;
    const operand grad = {a->grad, s->state_stride, 1};
    int64_t t, i;
    if (n < ADJOINT)
        memset(s->keys, 0, sizeof(float) * (size_t)(a->dim * ADJOINT));
    transpose(n, a->dim, a->features, 2 * s->feature_stride, s->keys, ADJOINT);
    product(a->w.p->value_dim, ADJOINT, a->dim, grad, s->keys, ADJOINT, s->written, ADJOINT, NULL);
    transpose(a->w.p->value_dim, n, s->written, ADJOINT, s->rows, 2 * s->width_stride);
    for (t = 0; t < n; t++) {
        const vec kept = splat(g->eta[t] * g->between[n][t + 1]);
        float *row = s->rows + 2 * t * s->width_stride;
        along[t] = t < g->active ? 0 : dot(row, a->residual + t * a->residual_stride, a->width);
        for (i = 0; i < a->width; i += FWA_LANES)
            store(row + i, kept * load(row + i));
    }
}

/* H = (I + A)^-T dR in place, A_st = solve_st below the diagonal. */
INLINE void solve_back(const bool whole, int64_t n, int64_t width,
                       const float solve[ADJOINT][ADJOINT], float *rows, int64_t stride)
{
    int64_t at;
    for (at = 0; at < width; at += FWA_LANES) {
        vec row[ADJOINT];
        if (whole) {
            UNROLL_16 for (int t = 0; t < ADJOINT; t++) row[t] = load(rows + t * stride + at);
            UNROLL_16 for (int t = ADJOINT - 1; t > 0; t--)
            {
                UNROLL_16 for (int s = 0; s < t; s++) row[s] -= splat(solve[t][s]) * row[t];
            }
            UNROLL_16 for (int t = 0; t < ADJOINT; t++) store(rows + t * stride + at, row[t]);
            continue;
        }
        for (int64_t t = n - 1; t > 0; t--)
            for (int64_t s = 0; s < t; s++)
                store(rows + s * stride + at,
                      load(rows + s * stride + at) -
                          splat(solve[t][s]) * load(rows + t * stride + at));
    }
}

/* The rows of H, from the gradients of what is written and read. Also dV. */
static void residual_gradient(const adjoint_work *a, const chunk_gates *g, const chunk_matrices *m)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const fwa_tensor *v_grad = &a->args->v_grad;
    const int64_t n = a->tokens, stride = 2 * s->width_stride, skip = w->before;
    const operand reads = {m->read[skip], ADJOINT, 1};
    float *H = s->rows;
    int64_t t, i;
    product_below_transposed(n, a->width, n - skip, 1, reads, H + s->width_stride + skip * stride,
                             stride, H, stride, s->ones);
    if (w->regression && n == ADJOINT && REGISTERS > ADJOINT)
        solve_back(true, n, a->width, m->solve, H, stride);
    else if (w->regression)
        solve_back(false, n, a->width, m->solve, H, stride);
    for (t = 0; t < g->active; t++)
        memset(H + t * stride, 0, sizeof(float) * (size_t)a->width);
    for (t = 0; fwa_present(v_grad) && t < n; t++) {
        const float *row = H + t * stride;
        float *to;
        if (!is_direct(w, v_grad)) {
            fwa_store_f32(v_grad, fwa_at3(v_grad, w->s->row, w->s->first + a->start + t, w->u.head),
                          w->p->value_dim, row);
            continue;
        }
        to = direct_row(w, v_grad, a->start + t);
        for (i = 0; i < a->width; i += FWA_LANES)
            store(to + i, load(row + i));
    }
}

/* H S^T, dO S^T, R dS^T, and inner products of the rows. */
static void state_products(adjoint_work *a, chunk_matrices *m)
{
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = a->tokens, V = a->w.p->value_dim, stride = s->width_stride;
    const operand both = {s->rows, stride, 1}, reads = {s->rows + stride, 2 * stride, 1};
    const operand residual = {a->residual, a->residual_stride, 1};
    inner_products_below(n, 0, a->width, reads.a, 2 * stride, a->residual, a->residual_stride,
                         m->dor[0], ADJOINT);
    if (a->w.regression) {
        inner_products_below(n, 0, a->width, both.a, 2 * stride, a->residual, a->residual_stride,
                             m->hr[0], ADJOINT);
        product_ahead(2 * n, a->dim, V, both, a->state, s->state_stride, NULL, s->by_state, a->dim,
                      NULL, &a->ahead);
    } else {
        product_ahead(n, a->dim, V, reads, a->state, s->state_stride, NULL, s->by_state + a->dim,
                      2 * a->dim, NULL, &a->ahead);
    }
    product_ahead(n, a->dim, V, residual, a->grad, s->state_stride, NULL, s->by_grad, a->dim, NULL,
                  &a->ahead);
}

/* sum over all of S and its gradient, both [V, dim] */
static float state_product(const adjoint_work *a)
{
    vec sum[4] = {{0}};
    int64_t v, i;
    for (v = 0; v < a->w.p->value_dim; v++) {
        const float *state = a->state + v * a->a->state_stride;
        const float *grad = a->grad + v * a->a->state_stride;
        for (i = 0; i + 4 * FWA_LANES <= a->dim; i += 4 * FWA_LANES)
            UNROLL for (int u = 0; u < 4; u++)
                sum[u] += load(state + i + u * FWA_LANES) * load(grad + i + u * FWA_LANES);
        for (; i < a->dim; i += FWA_LANES)
            sum[0] += load(state + i) * load(grad + i);
    }
    return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* What each pair contributes to each read and prediction, for the gates; and coefficients become
 * their gradients. */
static void coefficient_gradients(const adjoint_work *a, const chunk_gates *g, chunk_matrices *m,
                                  float *eta_grad)
{
    const unit_work *w = &a->w;
    const int64_t after = !w->before;
    int64_t t;
    if (a->tokens < ADJOINT)
        memset(m->moment, 0, sizeof m->moment);
    for (t = 0; t < a->tokens; t++)
        EACH_TOKEN_VECTOR(i)
        {
            const vec eta = load(g->eta + i), zero = splat(0), dor = load(m->dor[t] + i);
            const vec scores = load(m->scores[t] + i), gram = load(m->gram[t] + i);
            const int_vec pairs = lanes_between(i, g->active, t + after);
            vec weight = load(g->between[t + after] + 1 + i) * dor, sum = load(eta_grad + i);
            sum += choose(pairs, weight * scores, zero);
            store(m->moment[0][t] + i, choose(pairs, scores * dor * eta, zero));
            store(m->read[t] + i, choose(pairs, weight * eta, zero));
            if (w->regression) {
                const int_vec before = lanes_between(i, g->active, t < g->active ? 0 : t);
                const vec hr = -load(m->hr[t] + i);
                weight = load(g->between[t + w->decayed] + 1 + i) * hr;
                sum += choose(before, weight * gram, zero);
                store(m->moment[1][t] + i, choose(before, gram * hr * eta, zero));
                store(m->solve[t] + i, choose(before, weight * eta, zero));
            }
            store(eta_grad + i, sum);
        }
}

/* dX and dQ, rows of dim_stride. */
static void feature_gradients(const adjoint_work *a, const chunk_gates *g, const chunk_matrices *m,
                              float *x_grad, float *q_grad)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = a->tokens, dim = a->dim, to = s->dim_stride, after = !w->before;
    const int64_t skip = w->before, row = 2 * s->feature_stride;
    const float *x = a->features, *q = x + s->feature_stride;
    const operand reads = {m->read[skip], ADJOINT, 1}, below = {m->solve[1], ADJOINT, 1};
    int64_t t, i;
    for (t = 0; t < n; t++) {
        const vec from_q = splat(g->between[t + after][0]);
        const vec from_x = splat(g->between[t + w->decayed][0]);
        const vec kept = splat(g->eta[t] * g->between[n][t + 1]);
        for (i = 0; i < dim; i += FWA_LANES) {
            vec sum = kept * load(s->by_grad + t * dim + i);
            if (w->regression)
                sum -= from_x * load(s->by_state + 2 * t * dim + i);
            if (t < g->active)
                sum = splat(0);
            store(x_grad + t * to + i, sum);
            store(q_grad + t * to + i, from_q * load(s->by_state + (2 * t + 1) * dim + i));
        }
    }
    product_below(n - skip, dim, 1, reads, x, row, q_grad + skip * to, to, s->ones);
    product_below_transposed(n, dim, n - skip, 1, reads, q + skip * row, row, x_grad, to, s->ones);
    if (w->regression) {
        product_below(n - 1, dim, 1, below, x, row, x_grad + to, to, s->ones);
        product_below_transposed(n, dim, n - 1, 1, below, x + row, row, x_grad, to, s->ones);
    }
}

/* The gradients of gammas. What pair s - 1 (or, s = 0, the state before the chunk) contributes to
 * a read or a prediction at token t', and to the state at the end, has the factor `between` from s
 * on to there: `carried` is what those before the token at hand contribute. */
static void gamma_gradients(const adjoint_work *a, const chunk_gates *g, const chunk_matrices *m,
                            const float *along, float *gamma_grad)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = a->tokens, row = 2 * s->feature_stride;
    const int64_t end[2] = {!w->before, w->decayed}; /* beyond t' */
    float carried[2][ADJOINT] = {{0}}, moment[2][ADJOINT][ADJOINT], whole = state_product(a);
    int64_t t, k;
    for (k = 0; k < 1 + w->regression; k++)
        transpose(ADJOINT, ADJOINT, m->moment[k][0], ADJOINT, moment[k][0], ADJOINT);
    for (t = 0; t < n; t++) {
        const float *x = a->features + t * row;
        carried[0][t] = dot(x + s->feature_stride, s->by_state + (2 * t + 1) * a->dim, a->dim);
        if (w->regression && t >= g->active)
            carried[1][t] = -dot(x, s->by_state + 2 * t * a->dim, a->dim);
    }
    for (t = 0; t < n; t++) {
        const vec gamma = splat(g->gamma[t]);
        vec sum = splat(0);
        for (k = 0; k < 1 + w->regression; k++)
            EACH_TOKEN_VECTOR(i)
            {
                const vec old = load(carried[k] + i), until = load(g->until[t + 1] + end[k] + i);
                const int_vec late = lanes_between(i, t + 1 - end[k], n);
                sum += choose(late, until * old, splat(0)); /* others may be NaN */
                store(carried[k] + i, gamma * old + load(moment[k][t] + i));
            }
        gamma_grad[t] = sum_lanes(sum) + g->until[t + 1][n] * whole;
        whole = g->gamma[t] * whole + g->eta[t] * along[t];
    }
}

/* The gradients of beta, lambda and log_gate of a token, to those tensors that are there. */
static void store_gates(const unit_work *w, const fwa_tensor *const outs[3], int64_t token,
                        const float *grads)
{
    for (int i = 0; i < 3; i++)
        if (fwa_present(outs[i]))
            fwa_store_f32(outs[i], fwa_at3(outs[i], w->s->row, w->s->first + token, w->u.head), 1,
                          grads + i);
}

/* The gradients of the gates, and what the statistic passes on to x. */
static void gate_gradients(const adjoint_work *a, const chunk_gates *g, const float *eta_grad,
                           const float *gamma_grad, float *x_grad)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *outs[3] = {&args->beta_grad, &args->lambda_grad, &args->log_gate_grad};
    int64_t t;
    for (t = 0; t < a->tokens; t++) {
        const int64_t at = a->start - a->segment + t;
        fwa_decay_gradient_f32 grad = {0, 0, 0, 0};
        if (t >= g->active)
            grad = fwa_decay_step_backward_f32(&w->knobs, &a->step[at], a->lambda[at],
                                               a->statistic[at], eta_grad[t], gamma_grad[t]);
        if (w->needs_statistic && t >= g->active)
            add_scaled(x_grad + t * a->a->dim_stride, 2 * grad.statistic,
                       a->features + 2 * t * a->a->feature_stride, a->dim);
        store_gates(w, outs, a->start + t, (const float[]){grad.beta, grad.lambda, grad.log_gate});
    }
}

/* The state's gradient at the chunk's start. */
static void state_gradient(adjoint_work *a, const chunk_gates *g)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = a->tokens, stride = s->width_stride, after = !w->before;
    const operand both = {s->scaled, 1, stride}, reads = {s->scaled + stride, 1, 2 * stride};
    const float *x = a->features;
    int64_t t, i;
    for (t = 0; t < n; t++) {
        const vec from_q = splat(g->between[t + after][0]);
        const vec from_x = splat(t < g->active ? 0 : -g->between[t + w->decayed][0]);
        const float *H = s->rows + 2 * t * stride;
        float *to = s->scaled + 2 * t * stride;
        for (i = 0; i < a->width; i += FWA_LANES) {
            if (w->regression)
                store(to + i, from_x * load(H + i));
            store(to + stride + i, from_q * load(H + stride + i));
        }
    }
    for (i = 0; i < a->dim; i++)
        s->keep[i] = g->between[n][0];
    if (w->regression)
        product_ahead(w->p->value_dim, a->dim, 2 * n, both, x, s->feature_stride, a->grad, a->grad,
                      s->state_stride, s->keep, &a->ahead);
    else
        product_ahead(w->p->value_dim, a->dim, n, reads, x + s->feature_stride,
                      2 * s->feature_stride, a->grad, a->grad, s->state_stride, s->keep, &a->ahead);
}

/* The gradient of a row of q or k from that of its features: written where it belongs. */
static void store_feature_grad(const adjoint_work *a, const fwa_tensor *t, int64_t offset,
                               const float *raw, const float *grad)
{
    const int64_t dim = a->w.p->key_dim;
    const bool direct = t->dtype == FWA_DTYPE_F32 && t->stride[3] == 1 && dim == a->dim;
    float row[FWA_COLUMNS_LIMIT];
    float *to = direct ? (float *)(void *)fwa_element(t, offset) : row;
    feature_row_backward(a->w.p, a->dim, raw, grad, to);
    if (!direct)
        fwa_store_f32(t, offset, dim, row);
}

/* dX and dQ of the chunk's heads that share none with others go back through the features. The
 * gradient of a key handed in with the carry is left for the finishing pass. */
static void store_feature_grads(const adjoint_work *a, const float *x_grad, const float *q_grad)
{
    const unit_work *w = &a->w;
    const fwa_tensor *k = &a->args->k_grad, *q = &a->args->q_grad;
    const bool raw = w->p->qk_norm != FWA_NORM_NONE || w->p->phi != FWA_FEATURE_MAP_IDENTITY;
    const int64_t late = w->p->alignment == FWA_ALIGNMENT_NEXT_LATENT, stride = a->a->dim_stride;
    int64_t t;
    for (t = 0; t < a->tokens; t++) {
        const int64_t token = a->start + t, at = w->s->first + token;
        if (w->plan->own_queries && fwa_present(q))
            store_feature_grad(a, q, fwa_at3(q, w->s->row, at, w->u.query_head),
                               raw ? raw_query(a, token) : NULL, q_grad + t * stride);
        if (w->plan->own_keys && token < late)
            memcpy(fwa_cpu_key_grad(w->plan, a->parts, w->u.head, w->s, token), x_grad,
                   sizeof(float) * (size_t)stride);
        else if (w->plan->own_keys && fwa_present(k))
            store_feature_grad(a, k, fwa_at3(k, w->s->row, at - late, w->u.key_head),
                               raw ? raw_key(a, token) : NULL, x_grad + t * stride);
    }
}

/* The adjoint of the chunk at hand. */
static void adjoint_chunk(adjoint_work *a)
{
    const fwa_cpu_plan *plan = a->w.plan;
    chunk_gates g;
    chunk_matrices m;
    float along[ADJOINT] = {0}, eta_grad[ADJOINT] = {0}, gamma_grad[ADJOINT];
    float *x_grad = plan->own_keys
                        ? a->a->x_grad
                        : fwa_cpu_key_grad(plan, a->parts, a->w.u.head, a->w.s, a->start);
    float *q_grad = plan->own_queries
                        ? a->a->q_grad
                        : fwa_cpu_query_grad(plan, a->parts, a->w.u.head, a->w.s, a->start);
    int64_t t;
    chunk_products_of_gammas(a, &g);
    key_matrices(a, &g, &m);
    load_chunk_output_grads(a);
    written_gradient(a, &g, along);
    residual_gradient(a, &g, &m);
    state_products(a, &m);
    for (t = g.active; t < a->tokens; t++)
        eta_grad[t] = g.between[a->tokens][t + 1] * along[t];
    coefficient_gradients(a, &g, &m, eta_grad);
    feature_gradients(a, &g, &m, x_grad, q_grad);
    gamma_gradients(a, &g, &m, along, gamma_grad);
    gate_gradients(a, &g, eta_grad, gamma_grad, x_grad);
    store_feature_grads(a, x_grad, q_grad);
    state_gradient(a, &g);
}

/* ---- Units ---- */

/* Turns to a head of the unit. */
static void set_adjoint_head(adjoint_work *a, int64_t head)
{
    a->w.u = fwa_cpu_head_unit(a->w.plan, head, 0, a->w.p->value_dim);
    a->grad = a->a->grads + (head - a->first_head) * a->w.p->value_dim * a->a->state_stride;
}

/* What is wanted in the cache while this chunk is worked on: rows that the next chunk reads and
 * writes, whichever head's it is, and keys and queries of the next head's segment. */
static void fetch_next(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *rows[] = {&args->o_grad, &args->v_grad, w->in.v, &args->q_grad,
                                &args->k_grad};
    const bool wanted[] = {true, true, !w->regression, w->plan->own_queries, w->plan->own_keys};
    const int64_t dim = w->p->key_dim, V = w->p->value_dim, n = a->tokens, at = w->s->first;
    const bool last = w->u.head == a->first_head + a->heads - 1, begins = a->start == a->segment;
    const int64_t other = last ? a->first_head : w->u.head + 1, head = begins ? other : w->u.head;
    const int64_t end = begins && !last ? a->to : a->start, begin = end > n ? end - n : 0;
    const int64_t keys = last ? a->start - SEGMENT : a->start;
    const fwa_cpu_unit u = fwa_cpu_head_unit(w->plan, other, 0, (int32_t)V);
    fetcher *f = &a->ahead;
    size_t i;
    memset(f, 0, sizeof *f);
    for (i = 0; i < sizeof rows / sizeof rows[0] && end > 0; i++)
        if (wanted[i] && fwa_present(rows[i]))
            fetch_more(f, rows[i], fwa_at3(rows[i], w->s->row, at + begin, head), i < 3 ? V : dim);
    if (keys >= 0) {
        fetch_more(f, w->in.q, fwa_at3(w->in.q, w->s->row, at + keys, u.query_head), dim);
        fetch_more(f, w->in.k, fwa_at3(w->in.k, w->s->row, at + keys, u.key_head), dim);
        if (w->regression)
            fetch_more_rows(f, fwa_cpu_residual(w->p, a->parts, other, w->s->before + keys),
                            fwa_cpu_residual_stride(w->p) * (int64_t)sizeof(float),
                            V * (int64_t)sizeof(float));
    }
    f->rows = f->limit = f->tensors * n;
}

/* A padded row: nothing was read, so all gradients of it are zeros. Those of queries and keys that
 * are a head's own are the finishing pass's business. */
static void clear_adjoint(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *outs[3] = {&args->beta_grad, &args->lambda_grad, &args->log_gate_grad};
    static const float zero[FWA_COLUMNS_LIMIT];
    const size_t bytes = sizeof(float) * (size_t)(w->s->length * a->a->dim_stride);
    int64_t t;
    if (!w->plan->own_keys)
        memset(fwa_cpu_key_grad(w->plan, a->parts, w->u.head, w->s, 0), 0, bytes);
    if (!w->plan->own_queries)
        memset(fwa_cpu_query_grad(w->plan, a->parts, w->u.head, w->s, 0), 0, bytes);
    for (t = 0; t < w->s->length; t++) {
        store_gates(w, outs, t, zero);
        if (fwa_present(&args->v_grad))
            fwa_store_f32(&args->v_grad,
                          fwa_at3(&args->v_grad, w->s->row, w->s->first + t, w->u.head),
                          w->p->value_dim, zero);
    }
    store_state_grad(a);
}

/* The segment at hand of the head at hand, the states at whose start are number `index`. */
static void adjoint_segment(adjoint_work *a, int64_t index)
{
    const fwa_problem *p = a->w.p;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t size = p->value_dim * s->state_stride;
    int64_t starts[SEGMENT / ADJOINT + 1], start, i;
    load_rows(a);
    load_steps_of_segment(a);
    transpose(p->key_dim, p->value_dim, fwa_cpu_kept(p, a->parts, a->w.u.head, index),
              fwa_cpu_kept_stride(p), s->starts, s->state_stride);
    for (start = a->segment, i = 0; start < a->to; start += a->tokens, i++) {
        starts[i] = start;
        set_chunk(a, start);
        if (start + a->tokens < a->to)
            next_state(a, s->starts + i * size, s->starts + (i + 1) * size);
    }
    while (i-- > 0) {
        set_chunk(a, starts[i]);
        a->state = s->starts + i * size;
        fetch_next(a);
        adjoint_chunk(a);
    }
}

/* Segment by segment, all of the unit's heads: their rows are neighbours in memory. */
static void FWA_KERNEL(adjoint)(const fwa_cpu_plan *plan, const fwa_call *call,
                                const fwa_sequence *s, int64_t head, int64_t heads,
                                fwa_cpu_adjoint *scratch, const fwa_cpu_partials *parts)
{
    const fwa_backward_args *args = call->backward;
    const fwa_cpu_unit none = {0};
    adjoint_work a = {.w = unit_begin(plan, call, &args->carry_in, s, none, NULL),
                      .args = args,
                      .parts = parts,
                      .a = scratch,
                      .first_head = head,
                      .heads = heads};
    int64_t segment = 0, first = fwa_cpu_first_segment(plan, s), i;
    a.dim = (a.w.p->key_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    a.width = (a.w.p->value_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    for (i = 0; i < FWA_COLUMNS_LIMIT; i++)
        scratch->ones[i] = 1;
    for (i = 0; i < heads; i++) {
        set_adjoint_head(&a, head + i);
        if (s->padded)
            clear_adjoint(&a);
        else
            load_state_grad(&a);
    }
    if (s->padded)
        return;
    while (fwa_cpu_segment_start(plan, s, segment + 1) < s->length)
        segment++;
    for (a.to = s->length; a.to > 0; a.to = a.segment, segment--) {
        a.segment = fwa_cpu_segment_start(plan, s, segment);
        for (i = 0; i < heads; i++) {
            set_adjoint_head(&a, head + i);
            adjoint_segment(&a, first + segment);
        }
    }
    for (i = 0; i < heads; i++) {
        set_adjoint_head(&a, head + i);
        store_state_grad(&a);
    }
}
