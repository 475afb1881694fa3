/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's forward: one pass over the state per group of tokens. Compiled once per ISA.
 *
 * The state lies in panels of PANEL_VECTORS vectors of columns, one behind the other, that stay in
 * the first cache. For GROUP tokens, a pass loads each row of a panel once, adds what the pairs
 * that are complete contribute, stores it, and multiplies the same registers by the group's keys
 * and queries: three products for one load and one store. What the group's own pairs add is worked
 * out from their Gram matrix and scores, and is the next pass's business. With
 *
 *     S_t = g Gamma_t S' + sum_j x_j w_{j,t}^T
 *
 * S' is what the panel holds; g is a factor per column, which saves the pass a multiplication. It
 * is folded into S' at the end of each block of tokens, and where it becomes small. A pair of a
 * sliding window is complete, so that x_j w_j^T moves into S', when the window has left it. */

#define PANEL       (PANEL_VECTORS * FWA_LANES)
#define FEATURE_ROW FWA_CPU_FEATURE_ROW
#define QUERY       (FEATURE_ROW / 2) /* where a row's query begins */
#define SMALL_SCALE 0x1p-10F          /* below this, g is folded into S' */
#define FOR_U       for (int u = 0; u < U; u++)

/* One row of features, padded with zeros: x = phi(norm(raw)). */
static void feature_row(const fwa_problem *p, int64_t dim, const float *raw, float *x)
{
    vec inverse = splat(1);
    int64_t d;
    if (p->qk_norm != FWA_NORM_NONE) {
        vec sum = splat(0);
        float root;
        for (d = 0; d < dim; d += FWA_LANES)
            sum += load(raw + d) * load(raw + d);
        root = sum_lanes(sum);
        if (p->qk_norm == FWA_NORM_RMS)
            root /= (float)p->key_dim;
        root = sqrtf(root + (float)p->norm_eps);
        inverse = splat(root != 0 ? 1 / root : 0);
    }
    for (d = 0; d < dim; d += FWA_LANES) {
        vec value = load(raw + d) * inverse;
        if (p->phi == FWA_FEATURE_MAP_RELU) {
            value = choose(value < splat(0), splat(0), value); /* a NaN stays */
        } else if (p->phi == FWA_FEATURE_MAP_ELU1) {
            const vec low = choose(value < splat(-104), splat(-104), value);
            value = choose(value > splat(0), value + splat(1),
                           exp_vector(choose(low > splat(0), splat(0), low)));
        }
        store(x + d, value);
    }
    for (d = p->key_dim; d < dim; d++)
        x[d] = 0;
}

typedef struct {
    vec v[PANEL_VECTORS];
} panel_row;

typedef struct {
    unit_work w; /* all but the chunk */
    fwa_cpu_fused *f;
    const fwa_cpu_fused_unit *unit;
    const fwa_forward_args *args; /* NULL: only the states are wanted */
    int64_t start, tokens;        /* of the block */
    int64_t base;                 /* row of its first token: B - 1 + GROUP */
    int64_t first;                /* row of the first pair that exists */
    int64_t dim, width;           /* D and value columns, padded to whole vectors */
    bool last;                    /* the sequence ends with it */
    /* Where the walk finds the block's values and leaves its outputs, rows of value columns: the
     * caller's tensors where they are rows of whole vectors, else the scratch. */
    bool direct_values, direct_outputs;
    const float *value;
    float *output;
    int64_t value_stride, output_stride;
    float output_scale; /* what the walk multiplies outputs by */
    float *residual;    /* where residuals are left for the backward, rows of residual_stride */
    int64_t residual_stride;
} fused_work;

/* True where the unit's columns of t can be read and written as whole vectors. */
static bool is_direct(const unit_work *w, const fwa_tensor *t)
{
    return t->dtype == FWA_DTYPE_F32 && t->stride[3] == 1 && !w->p->normalizer &&
           w->u.columns % FWA_LANES == 0;
}

static float *direct_row(const unit_work *w, const fwa_tensor *t, int64_t token)
{
    return (float *)(void *)fwa_element(t, fwa_at3(t, w->s->row, w->s->first + token, w->u.head) +
                                               w->u.column * t->stride[3]);
}

/* The head and block at hand. */
static void set_block(fused_work *f, int64_t start, int64_t tokens, const fwa_cpu_partials *kept)
{
    const unit_work *w = &f->w;
    const fwa_tensor *o = f->args ? &f->args->o : NULL;
    f->start = start;
    f->tokens = tokens;
    f->last = start + tokens == w->s->length;
    f->first = f->base + w->first_pair - start > 0 ? f->base + w->first_pair - start : 0;
    f->direct_values = w->window == 1 && is_direct(w, w->in.v);
    f->direct_outputs = o && is_direct(w, o);
    f->value = f->direct_values ? direct_row(w, w->in.v, start) : f->f->values;
    f->value_stride = f->direct_values ? w->in.v->stride[1] : f->f->stride;
    f->output = f->direct_outputs ? direct_row(w, o, start) : f->f->outputs;
    f->output_stride = f->direct_outputs ? o->stride[1] : f->f->stride;
    f->output_scale = w->p->normalizer ? 1 : (float)w->p->scale;
    f->residual_stride = fwa_cpu_residual_stride(w->p);
    f->residual = kept && kept->residuals
                      ? fwa_cpu_residual(w->p, kept, w->u.head, w->s->before + start) + w->u.column
                      : NULL;
}

INLINE panel_row row_load(const float *at, const int U)
{
    panel_row row = {{{0}}};
    FOR_U row.v[u] = load(at + u * FWA_LANES);
    return row;
}

INLINE void row_store(float *at, const panel_row *row, const int U)
{
    FOR_U store(at + u * FWA_LANES, row->v[u]);
}

/* sum += a * row */
INLINE void row_add(panel_row *sum, float a, const panel_row *row, const int U)
{
    vec factor = splat(a);
    PIN(factor);
    FOR_U sum->v[u] += factor * row->v[u];
}

INLINE void row_add_at(panel_row *sum, float a, const float *at, const int U)
{
    const panel_row row = row_load(at, U);
    row_add(sum, a, &row, U);
}

/* Rounded here, whatever is added: it is the same number in every function that does it. */
INLINE void row_scale(panel_row *row, const panel_row *by, const int U)
{
    FOR_U
    {
        row->v[u] *= by->v[u];
        PIN(row->v[u]);
    }
}

/* Calls run with U, keys and channel as constants. */
#define EACH_PANEL(f, run)                                                                         \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + PANEL <= (f)->width; at += PANEL)                                              \
            run(PANEL_VECTORS);                                                                    \
        for (; at < (f)->width; at += FWA_LANES)                                                   \
            run(1);                                                                                \
    } while (0)

/* ---- Rows that are fetched ahead of their use ---- */

/* The rows of q, k, v and o of the head and block that come next. They are shared out over the
 * passes of this one: each brings some rows into the second cache, a line or two for every four
 * rows of the state. */
typedef struct {
    const char *at[4];        /* the first row in each tensor */
    int64_t step[4];          /* bytes from row to row */
    int64_t lines[4];         /* of a row */
    int64_t rows;             /* of all four */
    int64_t row, line, limit; /* the next; what the pass stops at */
} fetcher;

/* For `tokens` tokens from `start` on of value head `head`. */
static fetcher fetcher_make(const fused_work *f, int64_t head, int64_t start, int64_t tokens)
{
    const unit_work *w = &f->w;
    const fwa_cpu_unit u = fwa_cpu_head_unit(w->plan, head, f->unit->column, f->unit->columns);
    const fwa_tensor *tensor[4] = {w->in.q, w->in.k, w->in.v, f->args ? &f->args->o : w->in.v};
    const int64_t heads[4] = {u.query_head, u.key_head, u.head, u.head};
    fetcher a = {.rows = 4 * tokens};
    int i;
    for (i = 0; i < 4; i++) {
        const fwa_tensor *t = tensor[i];
        const int64_t size = t->dtype == FWA_DTYPE_F32 ? 4 : 2;
        a.at[i] = fwa_element(t, fwa_at3(t, w->s->row, w->s->first + start, heads[i]) +
                                     (i > 1 ? u.column * t->stride[3] : 0));
        a.step[i] = tokens > 1 ? t->stride[1] * size : 0; /* one token: any stride */
        a.lines[i] = ((i > 1 ? u.columns : w->p->key_dim) * size + 63) / 64;
    }
    return a;
}

INLINE void fetch(fetcher *a)
{
    const int64_t i = a->row & 3;
    if (a->row >= a->limit)
        return;
    __builtin_prefetch(a->at[i] + (a->row >> 2) * a->step[i] + 64 * a->line, 0, 2);
    if (++a->line >= a->lines[i]) {
        a->line = 0;
        a->row++;
    }
}

/* ---- Products of a panel with rows of features, FEATURE_ROW apart ---- */

/* S = keep S + sum_j x_j w_j^T for GROUP pairs from `x` on; sums = S^T x for the GROUP keys at
 * `key`, and behind them S^T q for their queries. */
INLINE void pass_rows(const int U, const bool keys, const bool scaled, int64_t dim, float *s,
                      const float *x, const float *complete, int64_t stride, const float *keep,
                      const float *key, float *sums, fetcher *ahead)
{
    panel_row pair[GROUP], key_sum[GROUP] = {{{{0}}}}, query_sum[GROUP] = {{{{0}}}},
                           factor = {{{0}}};
    fetcher next = *ahead; /* nothing else points to it: it stays in registers */
    int64_t d = 0;
    UNROLL for (int j = 0; j < GROUP; j++) pair[j] = row_load(complete + j * stride, U);
    if (scaled)
        factor = row_load(keep, U);
    while (d < dim) {
        int64_t until = d + 4 < dim ? d + 4 : dim;
        fetch(&next);
        for (; d < until; d++, s += U * FWA_LANES) {
            panel_row row = row_load(s, U);
            if (scaled)
                row_scale(&row, &factor, U);
            UNROLL for (int j = 0; j < GROUP; j++)
                row_add(&row, x[d + j * FEATURE_ROW], &pair[j], U);
            row_store(s, &row, U);
            UNROLL for (int j = 0; j < GROUP; j++)
            {
                const float *feature = key + d + j * FEATURE_ROW;
                if (keys)
                    row_add(&key_sum[j], feature[0], &row, U);
                row_add(&query_sum[j], feature[QUERY], &row, U);
            }
        }
    }
    ahead->row = next.row;
    ahead->line = next.line;
    UNROLL for (int j = 0; j < GROUP; j++)
    {
        if (keys)
            row_store(sums + j * PANEL, &key_sum[j], U);
        row_store(sums + (GROUP + j) * PANEL, &query_sum[j], U);
    }
}

/* S = keep S + sum_j x_j w_j^T for J <= 4 pairs; keep may be NULL. The sums are pass_rows'. */
INLINE void add_some(const int U, const int J, int64_t dim, const float *from, float *to,
                     int64_t from_stride, int64_t to_stride, const float *x, const float *w,
                     int64_t stride, const float *keep)
{
    panel_row pair[4], factor = {{{0}}};
    int64_t d;
    UNROLL for (int j = 0; j < J; j++) pair[j] = row_load(w + j * stride, U);
    if (keep)
        factor = row_load(keep, U);
    for (d = 0; d < dim; d++, from += from_stride, to += to_stride) {
        panel_row row = row_load(from, U);
        if (keep)
            row_scale(&row, &factor, U);
        UNROLL for (int j = 0; j < J; j++) row_add(&row, x[d + j * FEATURE_ROW], &pair[j], U);
        row_store(to, &row, U);
    }
}

/* The same for any number of pairs. */
INLINE void add_pairs_of(const int U, int64_t pairs, int64_t dim, const float *from, float *to,
                         int64_t from_stride, int64_t to_stride, const float *x, const float *w,
                         int64_t stride, const float *keep)
{
    bool begun = false;
    for (; pairs >= 4; pairs -= 4, x += 4 * FEATURE_ROW, w += 4 * stride, begun = true)
        add_some(U, 4, dim, begun ? to : from, to, begun ? to_stride : from_stride, to_stride, x, w,
                 stride, begun ? NULL : keep);
    for (; pairs > 0; pairs--, x += FEATURE_ROW, w += stride, begun = true)
        add_some(U, 1, dim, begun ? to : from, to, begun ? to_stride : from_stride, to_stride, x, w,
                 stride, begun ? NULL : keep);
    if (!begun && (from != to || keep))
        add_some(U, 0, dim, from, to, from_stride, to_stride, x, w, stride, keep);
}

/* These few are called once a block or less, or by rules that have more to do: one copy of each will
 * do, which finds its U out. */
#define WITH_U(U, run)                                                                             \
    do {                                                                                           \
        if ((U) == PANEL_VECTORS)                                                                  \
            run(PANEL_VECTORS);                                                                    \
        else                                                                                       \
            run(1);                                                                                \
    } while (0)
#define OUTLINE static __attribute__((noinline))

OUTLINE void add_pairs(int U, int64_t pairs, int64_t dim, const float *from, float *to,
                       int64_t from_stride, int64_t to_stride, const float *x, const float *w,
                       int64_t stride, const float *keep)
{
#define ADD(U) add_pairs_of(U, pairs, dim, from, to, from_stride, to_stride, x, w, stride, keep)
    WITH_U(U, ADD);
#undef ADD
}

INLINE void project_some(const int U, const int M, int64_t dim, const float *s, int64_t s_stride,
                         const float *a, int64_t a_stride, float *sums)
{
    panel_row sum[4] = {{{{0}}}};
    int64_t d;
    for (d = 0; d < dim; d++, s += s_stride) {
        const panel_row row = row_load(s, U);
        UNROLL for (int m = 0; m < M; m++) row_add(&sum[m], a[d + m * a_stride], &row, U);
    }
    UNROLL for (int m = 0; m < M; m++) row_store(sums + m * PANEL, &sum[m], U);
}

INLINE void project_of(const int U, int64_t rows, int64_t dim, const float *s, int64_t s_stride,
                       const float *a, int64_t a_stride, float *sums)
{
    for (; rows >= 4; rows -= 4, a += 4 * a_stride, sums += 4 * PANEL)
        project_some(U, 4, dim, s, s_stride, a, a_stride, sums);
    for (; rows >= 2; rows -= 2, a += 2 * a_stride, sums += 2 * PANEL)
        project_some(U, 2, dim, s, s_stride, a, a_stride, sums);
    if (rows)
        project_some(U, 1, dim, s, s_stride, a, a_stride, sums);
}

/* sums = S^T a for rows of features, a_stride apart. */
OUTLINE void project(int U, int64_t rows, int64_t dim, const float *s, int64_t s_stride,
                     const float *a, int64_t a_stride, float *sums)
{
#define PROJECT(U) project_of(U, rows, dim, s, s_stride, a, a_stride, sums)
    WITH_U(U, PROJECT);
#undef PROJECT
}

/* ---- A block's features, gates, Gram matrix and scores ---- */

INLINE void inner_some(const int count, const bool gram, const bool scores, int64_t dim,
                       const float *key, const float *back, float *gram_to, float *scores_to)
{
    vec gram_sum[4], score_sum[4];
    float sums[4];
    int64_t d;
    for (int i = 0; i < 4; i++)
        gram_sum[i] = score_sum[i] = splat(0);
    for (d = 0; d < dim; d += FWA_LANES) {
        const vec x = load(key + d), q = load(key + QUERY + d);
        UNROLL for (int i = 0; i < count; i++)
        {
            const vec other = load(back + d - i * FEATURE_ROW);
            if (gram)
                gram_sum[i] += x * other;
            if (scores)
                score_sum[i] += q * other;
        }
    }
    if (gram) {
        sum_lanes_of_four(gram_sum, sums);
        memcpy(gram_to, sums, sizeof(float) * (size_t)count);
    }
    if (scores) {
        sum_lanes_of_four(score_sum, sums);
        memcpy(scores_to, sums, sizeof(float) * (size_t)count);
    }
}

/* Inner products of the key at `key` with the keys of the `count` rows from there backwards, to
 * gram; and those of its query, to scores. */
INLINE void inner_back(const bool gram, const bool scores, int64_t dim, const float *key,
                       int64_t count, float *gram_to, float *scores_to)
{
    const float *back = key;
    for (; count >= 4; count -= 4, back -= 4 * FEATURE_ROW, gram_to += 4, scores_to += 4)
        inner_some(4, gram, scores, dim, key, back, gram_to, scores_to);
    switch (count) {
    case 3: inner_some(3, gram, scores, dim, key, back, gram_to, scores_to); break;
    case 2: inner_some(2, gram, scores, dim, key, back, gram_to, scores_to); break;
    case 1: inner_some(1, gram, scores, dim, key, back, gram_to, scores_to); break;
    }
}

/* A key's inner products with itself and the `count` - 1 keys before, as far as the rule wants
 * them; those of its query to `scores` unless that is NULL. */
static void fused_products(const fused_work *f, int64_t row, int64_t count, float *scores)
{
    const float *key = f->f->features + row * FEATURE_ROW;
    float *gram = f->f->gram + row * f->f->back, none[1];
    if (f->w.regression && scores)
        inner_back(true, true, f->dim, key, count, gram, scores);
    else if (f->w.regression)
        inner_back(true, false, f->dim, key, count, gram, none);
    else if (f->w.needs_statistic)
        inner_back(true, false, f->dim, key, 1, gram, none);
    if (!f->w.regression && scores)
        inner_back(false, true, f->dim, key, count, none, scores);
}

/* Tokens of the group in which token `b` of the block is, from it on: groups lie on a grid of the
 * whole sequence, as blocks do. */
INLINE int64_t group_tokens(const fused_work *f, int64_t b)
{
    int64_t tokens = GROUP - (f->w.s->seen + f->start + b) % GROUP, left = f->tokens - b;
    return tokens < left ? tokens : left;
}

static int64_t block_tokens(const unit_work *w, int64_t start)
{
    int64_t tokens = FWA_CPU_FUSED_BLOCK - (w->s->seen + start) % FWA_CPU_FUSED_BLOCK;
    int64_t left = w->s->length - start;
    return tokens < left ? tokens : left;
}

/* E of the token whose pair is row `row`, the window of which has `count` pairs. */
static float fused_statistic(const fused_work *f, int64_t row, int64_t count)
{
    const float *gram = f->f->gram;
    const int64_t back = f->f->back;
    double matrix[FWA_EIGEN_MAX * FWA_EIGEN_MAX], vector[FWA_EIGEN_MAX];
    float sum = 0;
    int64_t i, j;
    if (!f->w.needs_eigen) {
        for (i = count - 1; i >= 0; i--)
            sum += gram[(row - i) * back];
        return sum / (float)count;
    }
    for (i = 0; i < count; i++)
        for (j = 0; j <= i; j++)
            matrix[i * count + j] = matrix[j * count + i] =
                (double)gram[(row - count + 1 + i) * back + i - j];
    return (float)(fwa_top_eigen((int)count, matrix, vector) / (double)count);
}

INLINE int64_t window_count(const fused_work *f, int64_t row)
{
    int64_t pairs = row - f->first + 1;
    return pairs < 0 ? 0 : pairs < f->w.window ? pairs : f->w.window;
}

/* A gate of one value per token, of the block's tokens. */
static void load_gate(const fused_work *f, const fwa_tensor *t, float absent, float *to)
{
    const unit_work *w = &f->w;
    const float *from;
    int64_t b;
    if (!fwa_present(t)) {
        for (b = 0; b < f->tokens; b++)
            to[b] = absent;
        return;
    }
    from = (const float *)(const void *)fwa_element(
        t, fwa_at3(t, w->s->row, w->s->first + f->start, w->u.head));
    for (b = 0; b < f->tokens; b++)
        to[b] = from[b * t->stride[1]];
}

/* beta of the block's token b, value column by value column. */
static void load_betas(const fused_work *f, int64_t b, float *to)
{
    const unit_work *w = &f->w;
    const fwa_tensor *beta = w->in.beta;
    int64_t i;
    if (fwa_present(beta))
        fwa_load_f32(beta,
                     fwa_at3(beta, w->s->row, w->s->first + f->start + b, w->u.head) +
                         w->u.column * beta->stride[3],
                     w->u.columns, to);
    else
        for (i = 0; i < w->u.columns; i++)
            to[i] = 1;
}

/* gamma and kappa of the block's tokens. */
static void fused_steps(const fused_work *f)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    float beta[FWA_CPU_FUSED_BLOCK], lambda[FWA_CPU_FUSED_BLOCK], gate[FWA_CPU_FUSED_BLOCK],
        statistic[FWA_CPU_FUSED_BLOCK];
    int64_t b, i;
    if (!w->per_channel)
        load_gate(f, w->in.beta, 1, beta);
    load_gate(f, w->in.lambda, 0, lambda);
    load_gate(f, w->in.log_gate, 0, gate);
    for (b = 0; b < f->tokens; b++)
        gate[b] = fwa_decay_clip_gate_f32(gate[b]);
    for (b = f->tokens; b % FWA_LANES; b++)
        gate[b] = 0;
    for (b = 0; b < f->tokens && fwa_present(w->in.log_gate); b += FWA_LANES)
        store(gate + b, exp_vector(load(gate + b)));
    for (b = 0; b < f->tokens && !fwa_present(w->in.log_gate); b++)
        gate[b] = 1;
    for (b = 0; b < f->tokens; b++) {
        const int64_t count = window_count(f, f->base + b);
        statistic[b] = w->needs_statistic && count ? fused_statistic(f, f->base + b, count) : 0;
    }
    if (!w->per_channel) {
        for (b = 0; b < f->tokens; b++) {
            const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                &w->knobs, beta[b], lambda[b], gate[b], statistic[b]);
            s->gamma[b] = step.gamma;
            s->kappa[b] = step.eta;
        }
        for (b = 0; w->window > 1 && b < f->tokens; b++)
            s->kappa[b] /= (float)(window_count(f, f->base + b) ? window_count(f, f->base + b) : 1);
    }
    for (b = 0; w->per_channel && b < f->tokens; b++) {
        float *gamma = s->gamma + b * s->stride, *kappa = s->kappa + b * s->stride;
        load_betas(f, b, s->raw);
        for (i = 0; i < w->u.columns; i++) {
            const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                &w->knobs, s->raw[i], lambda[b], gate[b], statistic[b]);
            gamma[i] = step.gamma;
            kappa[i] = step.eta;
        }
        for (; i < f->width; i++) {
            gamma[i] = 1;
            kappa[i] = 0;
        }
    }
    if (window_count(f, f->base) == 0) { /* a fresh sequence's first token is no pair */
        for (i = 0; i < (w->per_channel ? f->width : 1); i++) {
            s->gamma[i] = 1;
            s->kappa[i] = 0;
        }
    }
}

/* The last rows of a block, which the head's next block looks back at, go aside and come back. */
static void copy_rows(const fused_work *f, bool back)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t from = back ? 0 : f->tokens, tail = f->w.window - 1;
    const size_t row = sizeof(float) * (size_t)f->dim;
    const size_t gram = sizeof(float) * (size_t)(f->base * s->back);
    const size_t values = sizeof(float) * (size_t)(tail * s->stride);
    int64_t i;
    for (i = 0; i < f->base; i++) {
        float *here = s->features + (from + i) * FEATURE_ROW,
              *there = s->last_features + i * f->dim;
        memcpy(back ? here : there, back ? there : here, row);
    }
    if (back) {
        memcpy(s->gram, s->last_gram, gram);
        memcpy(s->values, s->last_values, values);
    } else {
        memcpy(s->last_gram, s->gram + from * s->back, gram);
        memcpy(s->last_values, s->values + from * s->stride, values);
    }
}

/* D raw numbers, padded with zeros to whole vectors. */
static const float *pad_row(const fused_work *f, float *raw)
{
    int64_t d;
    for (d = f->w.p->key_dim; d < f->dim; d++)
        raw[d] = 0;
    return raw;
}

/* A padded row of a tensor: itself where it can be, else a copy. */
static const float *padded_row(const fused_work *f, const fwa_tensor *t, int64_t offset)
{
    const int64_t dim = f->w.p->key_dim;
    if (t->dtype == FWA_DTYPE_F32 && t->stride[t->rank - 1] == 1 && dim == f->dim)
        return (const float *)(const void *)fwa_element(t, offset);
    fwa_load_f32(t, offset, dim, f->f->raw);
    return pad_row(f, f->f->raw);
}

/* What the walk multiplies by, for a group that begins on the grid, where w is not carried from group
 * to group and gates are per head: with S' at the group's start, Y = S'^T x and Z = S'^T q,
 *
 *     u_t = v_t - e_t Y_t      w_i = sum_{j<=i} M_ij u_j      o_t = b_t Z_t + sum_{j<=t} N_tj u_j
 *
 * e, b, M, N and T one behind the other, where r = T u; the last three are triangles, by rows. M holds the decay to the
 * group's end and, unless it is folded, 1/g; N and b hold the problem's scale. The last factor is g
 * at the group's end, not folded. Returns g where the next group starts. */
#define TRIANGLE       (GROUP * (GROUP + 1) / 2)
#define IN_TRIANGLE(t) ((t) * ((t) + 1) / 2)
#define GROUP_FACTORS  (2 * GROUP + 3 * TRIANGLE + 1)

INLINE float group_factors_of(const fused_work *f, int64_t b, const bool whole, int64_t tokens,
                              float g, float *to)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    const float *gamma = s->gamma + b, *kappa = s->kappa + b, scale = f->output_scale;
    float *e = to, *read = to + GROUP, *M = to + 2 * GROUP, *N = M + TRIANGLE, *T = N + TRIANGLE,
          end = g, inverse;
    float decay[GROUP]; /* of pair i to the token at hand */
    float solve[GROUP][GROUP], written[GROUP][GROUP], before;
    UNROLL for (int t = 0; t < GROUP; t++)
    {
        if (!whole && t >= tokens)
            break;
        const float *gram = s->gram + (f->base + b + t) * s->back;
        const float *scores = s->scores + (b + t) * s->back;
        const float rho = w->decayed ? gamma[t] : 1;
        e[t] = rho * end;
        before = end;
        end *= gamma[t];
        read[t] = (w->before ? before : end) * scale;
        /* r_t = u_t - sum_i rho G_ti decay_i kappa_i r_i */
        for (int j = 0; j < t; j++) {
            float sum = 0;
            if (w->regression)
                UNROLL for (int i = j; i < t; i++)
                    sum -= rho * gram[t - i] * (decay[i] * written[i][j]);
            solve[t][j] = sum;
        }
        solve[t][t] = 1;
        UNROLL for (int j = 0; j <= t; j++)
        {
            T[IN_TRIANGLE(t) + j] = solve[t][j];
            written[t][j] = kappa[t] * solve[t][j];
        }
        UNROLL for (int j = 0; j <= t; j++)
        {
            float sum = 0;
            UNROLL for (int i = j; i < t; i++)
                sum += scores[t - i] * (decay[i] * (w->before ? 1 : gamma[t]) * written[i][j]);
            N[IN_TRIANGLE(t) + j] = scale * (w->before ? sum : sum + scores[0] * written[t][j]);
        }
        UNROLL for (int i = 0; i < t; i++) decay[i] *= gamma[t];
        decay[t] = 1;
    }
    inverse = end >= SMALL_SCALE && b + GROUP < f->tokens ? 1 / end : 1;
    for (int i = 0; i < GROUP; i++)
        for (int j = 0; j <= i; j++)
            if (whole || i < tokens)
                M[IN_TRIANGLE(i) + j] = decay[i] * inverse * written[i][j];
    to[GROUP_FACTORS - 1] = end;
    return end >= SMALL_SCALE ? end : 1;
}

static float group_factors(const fused_work *f, int64_t b, int64_t tokens, float g, float *to)
{
    if (tokens == GROUP)
        return group_factors_of(f, b, true, GROUP, g, to);
    return group_factors_of(f, b, false, tokens, g, to);
}

/* Everything of the block of `tokens` tokens at `start` that does not depend on the state. */
static void load_block(fused_work *f, bool same_keys)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    const fwa_tensor *q = w->in.q, *k = w->in.k;
    const int64_t late = w->p->alignment == FWA_ALIGNMENT_NEXT_LATENT, row = w->s->row;
    const int64_t bare = fwa_starts_bare(w->p, w->s->seen) && f->start == 0;
    int64_t b, n;
    float g = 1;
    for (b = 0; b < f->tokens; b++) {
        const int64_t token = w->s->first + f->start + b;
        float *key = s->features + (f->base + b) * FEATURE_ROW;
        if (!f->direct_values || b < bare)
            memset(s->values + (w->window - 1 + b) * s->stride, 0,
                   sizeof(float) * (size_t)s->stride);
        if (!f->direct_values && b >= bare)
            load_value(w, f->start + b, s->values + (w->window - 1 + b) * s->stride);
        if (same_keys)
            continue;
        if (b < bare) { /* no pair */
            memset(key, 0, sizeof(float) * (size_t)f->dim);
        } else if (f->start + b >= late) {
            feature_row(w->p, f->dim,
                        padded_row(f, k, fwa_at3(k, row, token - late, w->u.key_head)), key);
        } else {
            load_raw_key(w, f->start + b, s->raw);
            feature_row(w->p, f->dim, pad_row(f, s->raw), key);
        }
        feature_row(w->p, f->dim, padded_row(f, q, fwa_at3(q, row, token, w->u.query_head)),
                    key + QUERY);
        fused_products(f, f->base + b, w->window + (w->s->seen + f->start + b) % GROUP,
                       s->scores + b * s->back);
    }
    fused_steps(f);
    for (b = 0, n = 0; w->window == 1 && !w->per_channel && b < f->tokens; n++) {
        const int64_t tokens = group_tokens(f, b);
        float *factors = s->factors + n * GROUP_FACTORS;
        if ((w->s->seen + f->start + b) % GROUP == 0) {
            g = group_factors(f, b, tokens, g, factors);
        } else {
            for (int64_t t = 0; t < tokens; t++)
                g *= s->gamma[b + t];
            g = g >= SMALL_SCALE ? g : 1;
        }
        b += tokens;
    }
}

/* ---- The walk through a group, one panel ---- */

/* A group at hand, as one panel sees it. */
typedef struct {
    int64_t b, tokens; /* in the block */
    int64_t row;       /* of the first pair at hand; row + B - 1 is the group's first */
    int64_t low;       /* pairs before this one do not exist; 0 is `row` */
    int64_t at;        /* first column */
} group_work;

INLINE panel_row gate_row(const fused_work *f, const float *gate, int64_t b, int64_t at,
                          const bool channel, const int U)
{
    panel_row row = {{{0}}};
    if (channel)
        return row_load(gate + b * f->f->stride + at, U);
    FOR_U row.v[u] = splat(gate[b]);
    return row;
}

/* Of the token that is the t-th of the group, where the group's first `rows` pairs have been
 * written: decay * base + sum_i a[rows - 1 - i] w_i, w from `low` on. */
INLINE panel_row recall(const fused_work *f, const group_work *g, const panel_row *decay,
                        const float *base, const float *inner, int64_t skip, int64_t rows,
                        const int U)
{
    const float *pending = f->f->pending + g->at;
    panel_row sum = row_load(base, U);
    int64_t i;
    row_scale(&sum, decay, U);
    for (i = g->low; i < rows; i++)
        row_add_at(&sum, inner[rows - 1 - i + skip], pending + i * f->f->stride, U);
    return sum;
}

INLINE void store_output(const fused_work *f, int64_t b, int64_t at, const panel_row *o,
                         const int U)
{
    panel_row row = *o;
    FOR_U row.v[u] *= splat(f->output_scale);
    row_store(f->output + b * f->output_stride + at, &row, U);
}

/* The walk through the group's first `tokens` tokens: outputs, and w and y in `pending` and
 * `predict`. Returns g times the gammas. */
INLINE panel_row walk_group(const fused_work *f, const group_work *g, int64_t tokens,
                            const bool channel, const int U)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    const int64_t stride = s->stride, B = w->window;
    float *pending = s->pending + g->at, *predict = s->predict + g->at;
    panel_row decay = row_load(s->scale + g->at, U);
    int64_t t, i, j;
    for (t = 0; t < tokens; t++) {
        const int64_t row = t + B - 1, b = g->b + t;
        const int64_t low = t > g->low ? t : g->low; /* of the window */
        const float *gram = s->gram + (g->row + row) * s->back, *scores = s->scores + b * s->back;
        const float *sums = s->sums + t * PANEL,
                    *values = f->value + g->b * f->value_stride + g->at;
        const panel_row gamma = gate_row(f, s->gamma, b, g->at, channel, U);
        const panel_row kappa = gate_row(f, s->kappa, b, g->at, channel, U);
        panel_row residual[FWA_EIGEN_MAX], o = {{{0}}};
        const bool pair = row >= g->low;
        if (w->regression && pair) {
            panel_row y = recall(f, g, &decay, sums, gram, 1, row, U);
            row_store(predict + row * stride, &y, U);
        }
        if (w->before) {
            o = recall(f, g, &decay, sums + GROUP * PANEL, scores, 1, row, U);
            store_output(f, b, g->at, &o, U);
        }
        for (i = g->low; i < row; i++) {
            panel_row coefficient = row_load(pending + i * stride, U);
            FOR_U coefficient.v[u] *= gamma.v[u];
            row_store(pending + i * stride, &coefficient, U);
        }
        for (i = low; i <= row; i++) {
            panel_row r = row_load(values + i * f->value_stride, U), coefficient = {{{0}}};
            if (w->regression) {
                const panel_row y = row_load(predict + i * stride, U);
                if (w->decayed)
                    FOR_U r.v[u] -= gamma.v[u] * y.v[u];
                else
                    FOR_U r.v[u] -= y.v[u];
            }
            if (i < row)
                coefficient = row_load(pending + i * stride, U);
            FOR_U coefficient.v[u] += kappa.v[u] * r.v[u];
            row_store(pending + i * stride, &coefficient, U);
            residual[i - low] = r;
        }
        if (!pair) { /* it has no pair */
            const panel_row none = {{{0}}};
            row_store(pending + row * stride, &none, U);
        }
        /* The window's predictions after the step; that of the pair that leaves is not asked for.
         */
        for (j = row - B + 1 >= g->low ? low + 1 : low; w->regression && j <= row && B > 1; j++) {
            panel_row y = row_load(predict + j * stride, U), sum = {{{0}}};
            for (i = low; i <= row; i++)
                row_add(&sum,
                        s->gram[(g->row + (i > j ? i : j)) * s->back + (i > j ? i - j : j - i)],
                        &residual[i - low], U);
            FOR_U y.v[u] = gamma.v[u] * y.v[u] + kappa.v[u] * sum.v[u];
            row_store(predict + j * stride, &y, U);
        }
        FOR_U decay.v[u] *= gamma.v[u];
        if (!w->before) {
            o = recall(f, g, &decay, sums + GROUP * PANEL, scores, 0, row + 1, U);
            store_output(f, b, g->at, &o, U);
        }
    }
    return decay;
}

/* The same where a pair is complete with its token (window 1): nothing is carried from group to
 * group, and w stays in registers. */
INLINE panel_row walk_single(const fused_work *f, const group_work *g, int64_t tokens,
                             const bool regression, const bool channel, const int U)
{
    const unit_work *w = &f->w;
    const fwa_cpu_fused *s = f->f;
    const int64_t stride = s->stride;
    panel_row decay = row_load(s->scale + g->at, U), pair[GROUP] = {{{{0}}}};
    UNROLL for (int t = 0; t < GROUP; t++)
    {
        const int64_t b = g->b + t;
        const float *gram = s->gram + (g->row + t) * s->back, *scores = s->scores + b * s->back;
        panel_row gamma, kappa, r, o = {{{0}}};
        if (t >= tokens)
            break;
        gamma = gate_row(f, s->gamma, b, g->at, channel, U);
        kappa = gate_row(f, s->kappa, b, g->at, channel, U);
        r = row_load(f->value + b * f->value_stride + g->at, U);
        if (w->before) {
            o = row_load(s->sums + (GROUP + t) * PANEL, U);
            row_scale(&o, &decay, U);
            for (int i = 0; i < t; i++)
                row_add(&o, scores[t - i], &pair[i], U);
        }
        if (regression) {
            panel_row y = row_load(s->sums + t * PANEL, U);
            row_scale(&y, &decay, U);
            for (int i = 0; i < t; i++)
                row_add(&y, gram[t - i], &pair[i], U);
            if (w->decayed)
                FOR_U r.v[u] -= gamma.v[u] * y.v[u];
            else
                FOR_U r.v[u] -= y.v[u];
        }
        for (int i = 0; i < t; i++)
            FOR_U pair[i].v[u] *= gamma.v[u];
        if (f->residual) {
            const panel_row none = {{{0}}};
            row_store(f->residual + b * f->residual_stride + g->at, t >= g->low ? &r : &none, U);
        }
        if (t >= g->low)
            FOR_U pair[t].v[u] = kappa.v[u] * r.v[u];
        else
            FOR_U pair[t].v[u] = splat(0);
        FOR_U decay.v[u] *= gamma.v[u];
        if (!w->before) {
            o = row_load(s->sums + (GROUP + t) * PANEL, U);
            row_scale(&o, &decay, U);
            for (int i = 0; i <= t; i++)
                row_add(&o, scores[t - i], &pair[i], U);
        }
        store_output(f, b, g->at, &o, U);
    }
    UNROLL for (int t = 0; t < GROUP; t++)
    {
        if (t < tokens)
            row_store(s->pending + t * stride + g->at, &pair[t], U);
    }
    return decay;
}

/* The walk through a group, or what there is of it, by its factors: outputs, and rows of what its
 * pairs add to the state from `written` on. */
INLINE void walk_factors(const fused_work *f, int64_t b, const bool whole, int64_t tokens,
                         const float *factors, int64_t at, float *written, const bool regression,
                         const int U)
{
    const fwa_cpu_fused *s = f->f;
    const float *e = factors, *read = e + GROUP, *M = read + GROUP, *N = M + TRIANGLE;
    const bool before = f->w.before;
    panel_row u_row[GROUP] = {{{{0}}}}, row = {{{0}}};
    UNROLL for (int t = 0; t < GROUP; t++)
    {
        if (!whole && t >= tokens)
            break;
        u_row[t] = row_load(f->value + (b + t) * f->value_stride + at, U);
        if (regression) {
            const panel_row y = row_load(s->sums + t * PANEL, U);
            row_add(&u_row[t], -e[t], &y, U);
        }
    }
    UNROLL for (int i = 0; i < GROUP; i++)
    {
        const float *m = M + IN_TRIANGLE(i);
        if (!whole && i >= tokens)
            break;
        FOR_U row.v[u] = splat(m[0]) * u_row[0].v[u];
        FOR_U PIN(row.v[u]);
        UNROLL for (int j = 1; j <= i; j++) row_add(&row, m[j], &u_row[j], U);
        row_store(written + i * s->stride, &row, U);
    }
    UNROLL for (int t = 0; t < GROUP; t++)
    {
        const float *n = N + IN_TRIANGLE(t);
        if (!whole && t >= tokens)
            break;
        row = row_load(s->sums + (GROUP + t) * PANEL, U);
        FOR_U row.v[u] *= splat(read[t]);
        FOR_U PIN(row.v[u]);
        UNROLL for (int j = 0; j < t; j++) row_add(&row, n[j], &u_row[j], U);
        if (!before)
            row_add(&row, n[t], &u_row[t], U);
        row_store(f->output + (b + t) * f->output_stride + at, &row, U);
    }
    for (int t = 0; t < tokens && f->residual; t++) {
        const float *solve = N + TRIANGLE + IN_TRIANGLE(t);
        row = u_row[t];
        for (int j = 0; j < t; j++)
            row_add(&row, solve[j], &u_row[j], U);
        row_store(f->residual + (b + t) * f->residual_stride + at, &row, U);
    }
}

OUTLINE void walk_part(const fused_work *f, int64_t b, int64_t tokens, const float *factors,
                       int64_t at, float *written, int U)
{
#define WALK(U)                                                                                    \
    do {                                                                                           \
        if (f->w.regression)                                                                       \
            walk_factors(f, b, false, tokens, factors, at, written, true, U);                      \
        else                                                                                       \
            walk_factors(f, b, false, tokens, factors, at, written, false, U);                     \
    } while (0)
    WITH_U(U, WALK);
#undef WALK
}

/* True where a group that begins with the block's token b, with the first pair that exists at row
 * `low` of it, is walked by factors. Whatever is behind its tokens: outputs do not tell, to the bit,
 * what comes after them. */
INLINE bool has_factors(const fused_work *f, int64_t b, int64_t low)
{
    return f->w.window == 1 && !f->w.per_channel && low == 0 &&
           (f->w.s->seen + f->start + b) % GROUP == 0;
}

/* The same with what the next pass needs. */
INLINE void walk_group_factors(const fused_work *f, const group_work *g, const float *factors,
                               const bool regression, const int U)
{
    const fwa_cpu_fused *s = f->f;
    const float end = factors[GROUP_FACTORS - 1];
    const bool fold = g->b + g->tokens == f->tokens || !(end >= SMALL_SCALE);
    float *complete = s->complete + g->at;
    panel_row row = {{{0}}};
    if (g->tokens == GROUP) {
        walk_factors(f, g->b, true, GROUP, factors, g->at, complete, regression, U);
    } else {
        for (int64_t i = 0; i < GROUP - g->tokens; i++)
            row_store(complete + i * s->stride, &row, U);
        walk_part(f, g->b, g->tokens, factors, g->at, complete + (GROUP - g->tokens) * s->stride,
                  U);
    }
    FOR_U row.v[u] = splat(end);
    row_store(s->keep + g->at, &row, U);
    FOR_U row.v[u] = splat(fold ? 1 : end);
    row_store(s->scale + g->at, &row, U);
    s->fold[g->at / FWA_LANES] = fold;
}

/* The walk of whatever rule. A window over one has gates per head. */
OUTLINE panel_row walk(const fused_work *f, const group_work *g, int64_t tokens, int U)
{
    const bool regression = f->w.regression, channel = f->w.per_channel;
#define WALK(U)                                                                                    \
    do {                                                                                           \
        if (f->w.window > 1)                                                                       \
            return walk_group(f, g, tokens, false, U);                                             \
        if (regression && channel)                                                                 \
            return walk_single(f, g, tokens, true, true, U);                                       \
        if (regression)                                                                            \
            return walk_single(f, g, tokens, true, false, U);                                      \
        if (channel)                                                                               \
            return walk_single(f, g, tokens, false, true, U);                                      \
        return walk_single(f, g, tokens, false, false, U);                                         \
    } while (0)
    WITH_U(U, WALK);
#undef WALK
}

/* The walk through the group's first tokens, not for a pass: what they add to the state is left in
 * `pending`, and what is left of S' in `keep`. */
OUTLINE void walk_first(const fused_work *f, const group_work *g, int64_t tokens, int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t width = U * FWA_LANES;
    panel_row decay;
    if (has_factors(f, g->b, g->low)) {
        float factors[GROUP_FACTORS];
        fused_work part = *f;
        part.tokens = g->b + tokens; /* nothing is divided by g */
        group_factors(&part, g->b, tokens, s->scale[g->at], factors);
        walk_part(&part, g->b, tokens, factors, g->at, s->pending + g->at, U);
        for (int64_t i = 0; i < width; i++)
            s->keep[g->at + i] = factors[GROUP_FACTORS - 1];
        return;
    }
    decay = walk(f, g, tokens, U);
    memcpy(s->keep + g->at, &decay, sizeof(float) * (size_t)width);
}

/* Hands the pairs that are complete to the next pass, and moves the others to the front. */
INLINE void finish_group_of(const fused_work *f, const group_work *g, const panel_row *decay,
                            const bool channel, const int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t stride = s->stride, move = f->w.window - 1;
    float *pending = s->pending + g->at, *predict = s->predict + g->at;
    bool fold = g->b + g->tokens == f->tokens;
    panel_row inverse = {{{0}}}, row = {{{0}}};
    int64_t j, i;
    for (i = 0; i < (channel ? U * FWA_LANES : 1); i++)
        fold |= !(decay->v[i / FWA_LANES][i % FWA_LANES] >= SMALL_SCALE); /* or it is NaN */
    FOR_U inverse.v[u] = fold ? splat(1) : 1 / decay->v[u];
    for (j = 0; j < GROUP; j++) {
        i = j - (GROUP - g->tokens);
        FOR_U row.v[u] = splat(0);
        if (i >= g->low)
            row = row_load(pending + i * stride, U);
        if (i >= g->low && !fold)
            FOR_U row.v[u] *= inverse.v[u];
        row_store(s->complete + j * stride + g->at, &row, U);
    }
    for (i = 0; i < move; i++) {
        row = row_load(pending + (i + g->tokens) * stride, U);
        row_store(pending + i * stride, &row, U);
        row = row_load(predict + (i + g->tokens) * stride, U);
        row_store(predict + i * stride, &row, U);
    }
    row_store(s->keep + g->at, decay, U);
    FOR_U row.v[u] = fold ? splat(1) : decay->v[u];
    row_store(s->scale + g->at, &row, U);
    s->fold[g->at / FWA_LANES] = fold;
}

OUTLINE void finish_group(const fused_work *f, const group_work *g, const panel_row *decay, int U)
{
#define FINISH(U) finish_group_of(f, g, decay, f->w.per_channel, U)
    WITH_U(U, FINISH);
#undef FINISH
}

/* Nothing is left to add to S'. */
OUTLINE void clear_pending(const fused_work *f, int64_t at, int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t width = U * FWA_LANES;
    int64_t i, c;
    for (i = 0; i < GROUP; i++)
        memset(s->complete + i * s->stride + at, 0, sizeof(float) * (size_t)width);
    for (i = 0; i < f->w.window - 1; i++)
        memset(s->pending + i * s->stride + at, 0, sizeof(float) * (size_t)width);
    for (c = 0; c < width; c++)
        s->scale[at + c] = 1;
    s->fold[at / FWA_LANES] = false;
}

/* The predictions of the window's pairs before the group at hand, by the state in the panel. */
OUTLINE void predict_tail(const fused_work *f, int64_t row, int64_t at, int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim, tail = f->w.window - 1;
    int64_t i;
    for (i = f->first > row ? f->first - row : 0; f->w.regression && i < tail; i++) {
        project(U, 1, dim, s->state + at * dim, U * FWA_LANES,
                s->features + (row + i) * FEATURE_ROW, FEATURE_ROW, s->sums);
        memcpy(s->predict + i * s->stride + at, s->sums, sizeof(float) * (size_t)(U * FWA_LANES));
    }
}

/* Adds to the panel all that is still to be added at the block's end, as the next pass would. */
OUTLINE void settle(const fused_work *f, int64_t at, int U)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim, tail = f->w.window - 1, width = U * FWA_LANES;
    const int64_t row = GROUP + f->tokens, low = f->first > row ? f->first - row : 0;
    float *state = s->state + at * dim;
    add_pairs(U, GROUP, dim, state, state, width, width, s->features + f->tokens * FEATURE_ROW,
              s->complete + at, s->stride, s->fold[at / FWA_LANES] ? s->keep + at : NULL);
    if (low < tail)
        add_pairs(U, tail - low, dim, state, state, width, width,
                  s->features + (row + low) * FEATURE_ROW, s->pending + low * s->stride + at,
                  s->stride, NULL);
    clear_pending(f, at, U);
    predict_tail(f, row, at, U);
}

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

/* ---- A block of one panel ---- */

INLINE void run_panel(const fused_work *f, int64_t at, const int U, const bool keys, fetcher *ahead,
                      int64_t share, int64_t shares, bool keep)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t dim = f->w.p->key_dim, commit = f->w.s->commit;
    float *state = s->state + at * dim;
    group_work g = {.at = at};
    int64_t n = 0;
    for (g.b = 0; g.b < f->tokens; g.b += g.tokens, n++) {
        const float *x = s->features + g.b * FEATURE_ROW;
        const float *key = s->features + (f->base + g.b) * FEATURE_ROW;
        const int64_t due = commit - f->start - g.b;
        const int64_t limit = ahead->rows * (share * f->tokens + g.b + GROUP) /
                              (shares * f->tokens);
        ahead->limit = limit;
        g.tokens = group_tokens(f, g.b);
        g.row = GROUP + g.b;
        g.low = f->first > g.row ? f->first - g.row : 0;
        if (s->fold[at / FWA_LANES]) {
            pass_rows(U, keys, true, dim, state, x, s->complete + at, s->stride, s->keep + at, key,
                      s->sums, ahead);
        } else {
            pass_rows(U, keys, false, dim, state, x, s->complete + at, s->stride, NULL, key,
                      s->sums, ahead);
        }
        if (f->args && due > 0 && due <= g.tokens && commit < f->w.s->length)
            commit_panel(f, &g, due, U);
        if (has_factors(f, g.b, g.low)) {
            walk_group_factors(f, &g, s->factors + n * GROUP_FACTORS, keys, U);
        } else {
            const panel_row decay = walk(f, &g, g.tokens, U);
            finish_group(f, &g, &decay, U);
        }
    }
    if (f->last || keep || f->w.window > 1)
        settle(f, at, U);
    if (f->args && f->last && commit == f->w.s->length)
        store_panel(f, at, state, U);
}

/* The block at hand, all panels. */
static void run_block(const fused_work *f, fetcher *ahead, bool keep)
{
    const int64_t panels = (f->width + PANEL - 1) / PANEL;
#define RUN(U, keys) run_panel(f, at, U, keys, ahead, at / PANEL, panels, keep)
#define RUN_RULE(U)                                                                                \
    do {                                                                                           \
        if (f->w.regression)                                                                       \
            RUN(U, true);                                                                          \
        else                                                                                       \
            RUN(U, false);                                                                         \
    } while (0)
    EACH_PANEL(f, RUN_RULE);
#undef RUN_RULE
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

/* ---- A group or less of tokens, on the carry's own memory: decoding ---- */

/* A state in memory, its rows `stride` apart, and the one that comes after it. */
typedef struct {
    const float *from;
    float *to;
    int64_t from_stride, to_stride;
    const char *next; /* NULL: none */
    int64_t next_step, next_lines;
} state_rows;

/* Fetches part `part` (0, 1) of row d of the state that comes next. */
INLINE void fetch_row(const state_rows *r, int64_t d, int64_t part)
{
    const int64_t half = (r->next_lines + 1) / 2, begin = part * half;
    const int64_t end = part ? r->next_lines : half;
    int64_t line;
    for (line = begin; r->next && line < end; line++)
        __builtin_prefetch(r->next + d * r->next_step + 64 * line, 0, 2);
}

/* S^T x and S^T q of U vectors of columns; x is wanted where `keys` is. */
INLINE void project_wide(const int U, const bool keys, int64_t dim, const state_rows *r, int64_t at,
                         const float *key, float *key_to, float *query_to, bool ahead)
{
    vec key_sum[DECODE_VECTORS] = {{0}}, query_sum[DECODE_VECTORS] = {{0}};
    const float *s = r->from + at;
    int64_t d;
    for (d = 0; d < dim; d++, s += r->from_stride) {
        vec x = splat(key[d]), q = splat(key[d + QUERY]);
        PIN(x);
        PIN(q);
        if (ahead)
            fetch_row(r, d, 0);
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
    int64_t d;
    FOR_U
    {
        if (pair_given)
            pair[u] = load(w + at + u * FWA_LANES);
        factor[u] = keep ? load(keep + at + u * FWA_LANES) : splat(1);
    }
    for (d = 0; d < dim; d++, from += r->from_stride, to += r->to_stride) {
        vec a = splat(pair_given ? x[d] : 0);
        PIN(a);
        if (ahead)
            fetch_row(r, d, 1);
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
                    NULL,
                    rows ? in->stride[2] * (int64_t)sizeof(float) : 0,
                    (u->columns * (int64_t)sizeof(float) + 63) / 64};
    if (has_next)
        r.next = (const char *)(u->head + 1 < f->unit->head + f->unit->heads
                                    ? state_row(in, f->w.s->slot_in, u->head + 1, u->column)
                                    : state_row(in, next->slot_in, f->unit->head, u->column));
    return r;
}

/* The walk of all columns through the first `tokens` tokens, from the products in `wide`: those of
 * the group's keys, its queries, a row of no use, and the tail's keys. */
static void decode_walk(const fused_work *f, int64_t tokens)
{
    const fwa_cpu_fused *s = f->f;
#define WALK(U)                                                                                    \
    do {                                                                                           \
        const group_work g = {0, tokens, GROUP, f->first > GROUP ? f->first - GROUP : 0, at};      \
        const size_t bytes = sizeof(float) * (size_t)(U * FWA_LANES);                              \
        for (int64_t i = 0; i < 2 * GROUP; i++)                                                    \
            memcpy(s->sums + i * PANEL, s->wide + i * s->stride + at, bytes);                      \
        for (int64_t i = 0; i < f->w.window - 1; i++)                                              \
            memcpy(s->predict + i * s->stride + at,                                                \
                   s->wide + (2 * GROUP + 1 + i) * s->stride + at, bytes);                         \
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
        float *key_to = s->wide + t * s->stride, *query_to = key_to + GROUP * s->stride;
#define PROJECT(U)                                                                                 \
    do {                                                                                           \
        if (f->w.regression)                                                                       \
            project_wide(U, true, dim, &r, at, key, key_to, query_to, t == 0 && at == 0);          \
        else                                                                                       \
            project_wide(U, false, dim, &r, at, key, key_to, query_to, t == 0 && at == 0);         \
    } while (0)
        EACH_WIDE(f, PROJECT);
#undef PROJECT
    }
    for (t = low; f->w.regression && t < tail; t++) {
        const float *key = s->features + (GROUP + t) * FEATURE_ROW;
#define PREDICT(U)                                                                                 \
    project_wide(U, true, dim, &r, at, key, s->wide + (2 * GROUP + 1 + t) * s->stride,             \
                 s->wide + 2 * GROUP * s->stride, false)
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
#define ADD(U) add_wide(U, true, dim, &r, at, x, w, keep, t == low && at == 0)
        EACH_WIDE(f, ADD);
#undef ADD
        r.from = r.to;
        r.from_stride = r.to_stride;
    }
    if (low >= tail + commit) { /* no pair */
#define COPY(U) add_wide(U, false, dim, &r, at, NULL, NULL, s->keep, at == 0)
        EACH_WIDE(f, COPY);
#undef COPY
    }
}

static void FWA_KERNEL(fused)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                              const fwa_sequence *s, const fwa_cpu_fused_unit *unit,
                              const fwa_cpu_fused *scratch, const fwa_cpu_partials *kept)
{
    fwa_cpu_fused first = *scratch, current = *scratch;
    const fwa_cpu_unit none = {0};
    fused_work f = {.w = unit_begin(plan, call, in, s, none, NULL),
                    .f = &current,
                    .unit = unit,
                    .args = call->forward};
    int64_t segment = fwa_cpu_first_segment(plan, s), start, tokens, next, after, h;
    f.base = f.w.window - 1 + GROUP;
    f.dim = (f.w.p->key_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    if (!kept && decode_fits(&f)) {
        const bool more = s->index + 1 < call->extent.sequences;
        fwa_sequence other = *s;
        if (more)
            other = fwa_sequence_get(&f.w.in, s->index + 1);
        for (h = 0; h < unit->heads; h++) {
            select_head(&f, &first, h);
            set_block(&f, 0, s->length, NULL);
            if (s->commit == 0)
                copy_state(&f.w, &f.args->carry_out);
            decode_head(&f, &other, h + 1 < unit->heads || (more && other.slot_in >= 0));
        }
        return;
    }
    for (h = 0; h < unit->heads; h++) {
        select_head(&f, &first, h);
        if (s->padded && f.args)
            clear_outputs(&f.w, &f.args->o);
        else if (f.args && s->commit == 0)
            copy_state(&f.w, &f.args->carry_out);
        set_block(&f, 0, 0, NULL);
        if (!s->padded && s->length > 0)
            begin_head(&f);
    }
    for (start = 0; !s->padded && start < s->length; start = next) {
        const bool segment_starts = kept && fwa_cpu_segment_starts(plan, s, start);
        tokens = block_tokens(&f.w, start);
        next = start + tokens;
        after = next < s->length ? block_tokens(&f.w, next) : 0;
        for (h = 0; h < unit->heads; h++) {
            const fwa_cpu_unit before = f.w.u;
            fetcher ahead;
            bool same_keys;
            select_head(&f, &first, h);
            same_keys = h > 0 && before.key_head == f.w.u.key_head &&
                        before.query_head == f.w.u.query_head;
            set_block(&f, start, tokens, kept);
            if (segment_starts) {
                float *to = fwa_cpu_kept(f.w.p, kept, f.w.u.head, segment);
#define KEEP(U) keep_panel(&f, to, at, U)
                EACH_PANEL(&f, KEEP);
#undef KEEP
            }
            copy_rows(&f, true);
            load_block(&f, same_keys);
            if (h + 1 < unit->heads)
                ahead = fetcher_make(&f, f.w.u.head + 1, start, tokens);
            else
                ahead = fetcher_make(&f, unit->head, after ? next : start, after);
            run_block(&f, &ahead, kept && fwa_cpu_segment_starts(plan, s, next));
            copy_rows(&f, false);
            if (f.args)
                store_block(&f);
        }
        segment += segment_starts;
    }
}
