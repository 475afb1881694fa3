/* SPDX-License-Identifier: Apache-2.0 */
/* The adjoint's states, rows and gates: what its walk and its products work on. */

#define ADJOINT_CHUNK   FWA_CPU_ADJOINT_CHUNK
#define ADJOINT_VECTORS 2 /* of a strip of value columns, at most */
#define STRIP_ROW       (ADJOINT_VECTORS * FWA_LANES)
#define SEGMENT         FWA_CPU_SEGMENT_TOKENS

typedef struct {
    unit_work w; /* with the chunk's extent, without its scratch */
    const fwa_backward_args *args;
    const fwa_cpu_partials *parts;
    fwa_cpu_adjoint *a; /* with the chunk's matrices */
    const fwa_cpu_adjoint *first;
    int64_t dim, width;        /* D and the unit's columns, padded to whole vectors */
    int64_t first_unit, units; /* side by side */
    int64_t unit;              /* at hand */
    float *grad;               /* of it: the state's gradient, transposed, */
    float *late_values;        /* and what later chunks said of the tail's values, */
    float *late_keys;          /* and of its features */
    int64_t segment, to;       /* tokens of the segment at hand: [segment, to) */
    /* The chunk at hand. */
    const float *state;    /* at its start, transposed */
    const float *tail;     /* predictions of the tail's pairs, there */
    const float *features; /* of its first pair */
    const float *values;   /* likewise */
    const float *kept;     /* of its first token, rows of kept_stride: see fwa_cpu_keeps_y */
    int64_t kept_stride;
    fetcher ahead;
    /* Of the segment's tokens. */
    fwa_decay_step_t_f32 step[SEGMENT];
    float lambda[SEGMENT], gate[SEGMENT], statistic[SEGMENT];
    float gamma_of[SEGMENT], kappa_of[SEGMENT]; /* where gates are per head */
    /* Of the chunk's tokens, where gates are per head. */
    const float *gamma, *kappa;
    float decay[ADJOINT_CHUNK + 1]; /* products of the gammas before each, and of all */
    vec gamma_sums[ADJOINT_CHUNK], kappa_sums[ADJOINT_CHUNK];
} adjoint_work;

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

/* The gradients of what the sequence hands on: of the state, and of the tail's values. */
static void load_state_grad(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *grad = &a->args->carry_out_grad.state;
    const fwa_tensor *late = &a->args->carry_out_grad.tail_value;
    const int64_t tail = w->window - 1, fill = fwa_tail_fill(w->p, w->s->seen + w->s->length);
    float row[FWA_COLUMNS_LIMIT];
    int64_t d, v, i;
    memset(a->grad, 0, sizeof(float) * (size_t)(w->u.columns * a->a->state_stride));
    for (d = 0; fwa_present(grad) && d < w->p->key_dim; d++) {
        fwa_load_f32(grad, fwa_at3(grad, w->s->index, w->u.head, d) + w->u.column * grad->stride[3],
                     w->u.columns, row);
        for (v = 0; v < w->u.columns; v++)
            a->grad[v * a->a->state_stride + d] = row[v];
    }
    memset(a->late_values, 0, sizeof(float) * (size_t)(tail * a->a->width_stride));
    memset(a->late_keys, 0, sizeof(float) * (size_t)(tail * a->a->dim_stride));
    for (i = tail - fill; fwa_present(late) && i < tail; i++)
        fwa_load_f32(late, fwa_at3(late, w->s->index, i, w->u.head) + w->u.column * late->stride[3],
                     w->u.columns, a->late_values + i * a->a->width_stride);
}

/* Those of what was handed in; the tail's keys are the finishing pass's business. */
static void store_state_grad(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_tensor *grad = &a->args->carry_in_grad.state;
    const fwa_tensor *early = &a->args->carry_in_grad.tail_value;
    float row[FWA_COLUMNS_LIMIT] = {0};
    int64_t d, v, i;
    for (d = 0; fwa_present(grad) && d < w->p->key_dim; d++) {
        for (v = 0; w->s->slot_in >= 0 && v < w->u.columns; v++) /* else nothing was read */
            row[v] = a->grad[v * a->a->state_stride + d];
        fwa_store_f32(grad,
                      fwa_at3(grad, w->s->index, w->u.head, d) + w->u.column * grad->stride[3],
                      w->u.columns, row);
    }
    for (i = 0; fwa_present(early) && i < w->window - 1; i++)
        fwa_store_f32(early,
                      fwa_at3(early, w->s->index, i, w->u.head) + w->u.column * early->stride[3],
                      w->u.columns, a->late_values + i * a->a->width_stride);
    if (w->plan->own_keys && w->window > 1)
        memcpy(fwa_cpu_key_grad(w->plan, a->parts, a->unit, w->s, 1 - w->window), a->late_keys,
               sizeof(float) * (size_t)((w->window - 1) * a->a->dim_stride));
}

/* ---- A segment's rows ---- */

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

/* True where the walk needs the values themselves: residuals are not kept. */
static bool needs_values(const unit_work *w)
{
    return !w->regression || fwa_cpu_keeps_y(w->p);
}

/* True where the forward has kept residuals of a pair a token: rows of predictions otherwise. */
static bool keeps_residuals(const unit_work *w)
{
    return w->regression && !fwa_cpu_keeps_y(w->p);
}

/* Features of the segment's tokens and of the tail before it. */
static void load_features(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t from = a->segment - (w->window - 1);
    int64_t t;
    for (t = from; t < a->to; t++) {
        float *key = a->a->features + 2 * (t - from) * a->a->feature_stride;
        if (t < w->first_pair)
            memset(key, 0, sizeof(float) * (size_t)a->dim);
        else
            feature_row(w->p, a->dim, raw_key(a, t), key);
        if (t >= a->segment)
            feature_row(w->p, a->dim, raw_query(a, t), key + a->a->feature_stride);
    }
}

/* Their values, where these are needed. */
static void load_values(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t from = a->segment - (w->window - 1);
    int64_t t;
    for (t = from; needs_values(w) && t < a->to; t++) {
        float *value = a->a->values + (t - from) * a->a->width_stride;
        memset(value, 0, sizeof(float) * (size_t)a->width);
        if (t >= w->first_pair)
            load_value(w, t, value);
    }
}

/* ---- Gates ---- */

/* Inner products of the segment's keys, from the tail's first on, with themselves and the keys
 * before them, as far as a window goes; 0 where one of the two does not exist. */
static void load_lags(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t from = a->segment - (w->window - 1), n = a->to - from;
    const int64_t row = 2 * s->feature_stride,
                  first = w->first_pair > from ? w->first_pair - from : 0;
    const int64_t most = w->needs_eigen ? w->window : 1;
    int64_t r, i;
    for (i = 0; i < most; i++)
        for (r = 0; r < n + FWA_LANES; r++)
            s->lags[i * FWA_CPU_ADJOINT_LAG_ROW + r] =
                r < first + i || r >= n
                    ? 0
                    : dot(s->features + r * row, s->features + (r - i) * row, a->dim);
}

/* The eigenvalues of FWA_LANES windows from token t of the segment on, over their pairs, and the
 * eigenvectors. */
static void load_eigen(adjoint_work *a, int64_t t)
{
    const fwa_cpu_adjoint *s = a->a;
    const int B = a->w.window;
    const int64_t size = (int64_t)B * (B + 1) / 2 * FWA_LANES, n = a->to - a->segment;
    double *vectors = s->matrices + 2 * size, top[FWA_LANES];
    int64_t k, i;
    window_matrices(B, s->lags + t, FWA_CPU_ADJOINT_LAG_ROW, s->matrices);
    FWA_KERNEL(top_eigenvectors)(B, s->matrices, s->matrices + size, top, vectors);
    for (k = 0; k < FWA_LANES && t + k < n; k++) {
        const int64_t count = pairs_at(&a->w, a->segment + t + k);
        a->statistic[t + k] = count ? (float)(top[k] / (double)count) : 0;
        for (i = 0; i < count; i++)
            s->eigen[(t + k) * B + i] = (float)vectors[(B - count + i) * FWA_LANES + k];
    }
}

/* E of the segment's tokens. */
static void load_statistics(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t n = a->to - a->segment;
    int64_t t, i;
    load_lags(a);
    for (t = 0; w->needs_eigen && t < n; t += FWA_LANES)
        load_eigen(a, t);
    for (t = 0; !w->needs_eigen && t < n; t++) {
        const int64_t count = pairs_at(w, a->segment + t);
        float sum = 0;
        for (i = 0; i < count; i++)
            sum += a->a->lags[t + w->window - count + i];
        a->statistic[t] = count ? sum / (float)count : 0;
    }
}

static void load_steps_of_segment(adjoint_work *a)
{
    const unit_work *w = &a->w;
    const int64_t n = a->to - a->segment;
    float beta[SEGMENT];
    int64_t t;
    load_gate(w, w->in.lambda, a->segment, n, 0, a->lambda);
    load_gate(w, w->in.log_gate, a->segment, n, 0, a->gate);
    for (t = 0; t < n; t++)
        a->gate[t] = fwa_decay_clip_gate_f32(a->gate[t]);
    for (t = n; t % FWA_LANES; t++)
        a->gate[t] = 0;
    for (t = 0; t < n; t += FWA_LANES)
        store(a->gate + t, exp_vector(load(a->gate + t)));
    memset(a->statistic, 0, sizeof a->statistic);
    if (w->needs_statistic)
        load_statistics(a);
    if (w->per_channel)
        return;
    load_gate(w, w->in.beta, a->segment, n, 1, beta);
    for (t = 0; t < n; t++) {
        const int64_t count = pairs_at(w, a->segment + t);
        a->gamma_of[t] = 1;
        a->kappa_of[t] = 0;
        if (count == 0)
            continue;
        a->step[t] = fwa_decay_step_of_gate_f32(&w->knobs, beta[t], a->lambda[t], a->gate[t],
                                                a->statistic[t]);
        a->gamma_of[t] = a->step[t].gamma;
        a->kappa_of[t] = a->step[t].eta / (float)count;
    }
}

static gates gates_of(const adjoint_work *a, int64_t t)
{
    const int64_t at = a->w.start - a->segment + t;
    return (gates){.lambda = a->lambda[at], .gate = a->gate[at]};
}

/* Rows of gamma, kappa, and the products of gammas, of the chunk's tokens. */
static void load_channel_steps(const adjoint_work *a)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t at = w->start - a->segment, stride = s->width_stride;
    int64_t t, i;
    for (i = 0; i < a->width; i++)
        s->decay[i] = 1;
    for (t = 0; t < w->tokens; t++) {
        float *gamma = s->gamma + t * stride, *kappa = s->kappa + t * stride;
        const int64_t columns = pairs_at(w, w->start + t) ? w->u.columns : 0;
        const gates g = gates_of(a, t);
        if (columns) {
            load_beta_row(w, w->start + t, s->raw);
            column_steps(&w->knobs, &g, a->statistic[at + t], 1, columns, s->raw, gamma, kappa);
        }
        for (i = columns; i < a->width; i++) {
            gamma[i] = 1;
            kappa[i] = 0;
        }
        for (i = 0; i < a->width; i += FWA_LANES)
            store(s->decay + (t + 1) * stride + i,
                  load(s->decay + t * stride + i) * load(gamma + i));
    }
}

/* ---- Chunks ---- */

/* Turns to the chunk that begins at token `start`. */
static void set_chunk(adjoint_work *a, int64_t start)
{
    unit_work *w = &a->w;
    const int64_t at = start - a->segment, first = w->first_pair - start + w->window - 1;
    int64_t t;
    w->start = start;
    w->tokens = grid_tokens(w, start, ADJOINT_CHUNK);
    w->pairs = w->tokens + w->window - 1;
    w->first = first > 0 ? first : 0;
    a->features = a->a->features + 2 * at * a->a->feature_stride;
    a->values = a->a->values + at * a->a->width_stride;
    if (w->regression)
        a->kept = fwa_cpu_kept_row(w->p, a->parts, w->u.head, w->s->before + start) + w->u.column;
    a->kept_stride = fwa_cpu_kept_stride(w->p);
    if (w->per_channel) {
        load_channel_steps(a);
        return;
    }
    a->gamma = a->gamma_of + at;
    a->kappa = a->kappa_of + at;
    a->decay[0] = 1;
    for (t = 0; t < w->tokens; t++)
        a->decay[t + 1] = a->decay[t] * a->gamma[t];
}

/* Turns to the matrices of the segment's chunk `index`. */
static void set_matrices(const adjoint_work *a, int64_t index)
{
    const fwa_cpu_adjoint *from = a->first;
    const int64_t pairs = from->pair_stride, rows = ADJOINT_CHUNK + a->w.window - 1;
    const int64_t at = index % from->chunks;
    a->a->gram = from->gram + at * rows * pairs;
    a->a->scores = from->scores + at * ADJOINT_CHUNK * pairs;
    a->a->entries = from->entries + at * rows * pairs;
    a->a->entry_factor = from->entry_factor + at * ADJOINT_CHUNK;
}

/* A query of the chunk. */
static const float *query_of(const adjoint_work *a, int64_t t)
{
    return a->features + (2 * (t + a->w.window - 1) + 1) * a->a->feature_stride;
}

/* A key of the chunk, by its pair. */
static const float *key_of(const adjoint_work *a, int64_t i)
{
    return a->features + 2 * i * a->a->feature_stride;
}
