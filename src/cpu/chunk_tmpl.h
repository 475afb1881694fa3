/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk of a unit: its features, gates and dense products, and the walk through its tokens.
 * Compiled once per ISA. Pair row i of a chunk is the pair that token start - (B - 1) + i writes;
 * token t of the chunk writes row t + B - 1. */

typedef struct {
    const fwa_cpu_plan *plan;
    const fwa_problem *p;
    fwa_inputs in;
    const fwa_carry *carry; /* read at row s->slot_in */
    const fwa_sequence *s;
    fwa_cpu_unit u;
    fwa_cpu_chunk *c;
    fwa_decay_knobs_f32 knobs;
    int32_t window;
    bool regression, per_channel, before, decayed;
    bool needs_statistic, needs_eigen;
    bool reads;         /* outputs are wanted, not states alone */
    bool known;         /* c->statistic and c->eigen are those of the chunk at hand */
    int64_t first_pair; /* pairs before this token do not exist */
    /* The chunk at hand. */
    int64_t start, tokens, pairs, first; /* first: row of the first pair that exists */
} unit_work;

static unit_work unit_begin(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *carry,
                            const fwa_sequence *s, fwa_cpu_unit unit, fwa_cpu_chunk *c)
{
    const fwa_problem *p = &plan->problem;
    unit_work w = {
        .plan = plan, .p = p, .in = fwa_call_inputs(call), .carry = carry, .s = s, .c = c};
    w.u = unit;
    w.knobs = fwa_problem_knobs_f32(p);
    w.window = p->window;
    w.regression = p->objective == FWA_OBJECTIVE_REGRESSION;
    w.per_channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    w.before = p->read == FWA_READ_BEFORE_WRITE;
    w.decayed = p->prediction == FWA_PREDICTION_DECAYED;
    w.needs_statistic = w.knobs.normalized || w.knobs.coupled;
    w.needs_eigen = w.needs_statistic && w.regression && p->window > 1;
    w.first_pair = fwa_cpu_first_pair(p, s);
    return w;
}

/* Tokens from `start` to where chunks (or blocks) of so many end; 0: the whole sequence. They lie
 * on a grid of the whole sequence, what was seen before the call included: a cut between chunks,
 * and a token that comes in with the carry instead of the call, move no border and change no
 * bit. */
static int64_t grid_tokens(const unit_work *w, int64_t start, int64_t grid)
{
    const int64_t left = w->s->length - start;
    const int64_t tokens = grid ? grid - (w->s->seen + start) % grid : left;
    return tokens < left ? tokens : left;
}

static int64_t chunk_tokens(const unit_work *w, int64_t start)
{
    return grid_tokens(w, start, w->plan->chunk);
}

/* Pairs in the window of token t of the sequence; 0 where the token is no pair. */
static int64_t pairs_at(const unit_work *w, int64_t t)
{
    const int64_t pairs = t - w->first_pair + 1;
    return pairs < 0 ? 0 : pairs < w->window ? pairs : w->window;
}

static void load_state(const unit_work *w)
{
    const fwa_problem *p = w->p;
    const fwa_carry *carry = w->carry;
    fwa_cpu_chunk *c = w->c;
    int64_t slot = w->s->slot_in, d;
    memset(c->state, 0, sizeof(float) * (size_t)p->key_dim * (size_t)c->stride);
    if (slot < 0)
        return;
    for (d = 0; d < p->key_dim; d++) {
        float *row = c->state + d * c->stride;
        if (fwa_present(&carry->state))
            fwa_load_f32(&carry->state,
                         fwa_at3(&carry->state, slot, w->u.head, d) +
                             w->u.column * carry->state.stride[3],
                         w->u.columns, row);
        if (p->normalizer)
            row[w->u.columns] = fwa_load_one_f32(
                &carry->norm, fwa_at2(&carry->norm, slot, w->u.head) + d * carry->norm.stride[2],
                0);
    }
}

/* The raw write key of pair `token`. */
static void load_raw_key(const unit_work *w, int64_t token, float *raw)
{
    const fwa_tensor *tail = &w->carry->tail_key, *previous = &w->carry->prev_key, *k = w->in.k;
    int64_t at = w->p->alignment == FWA_ALIGNMENT_NEXT_LATENT ? token - 1 : token;
    if (token < 0)
        fwa_load_f32(tail, fwa_at3(tail, w->s->slot_in, w->window - 1 + token, w->u.key_head),
                     w->p->key_dim, raw);
    else if (at < 0)
        fwa_load_f32(previous, fwa_at2(previous, w->s->slot_in, w->u.key_head), w->p->key_dim, raw);
    else
        fwa_load_f32(k, fwa_at3(k, w->s->row, w->s->first + at, w->u.key_head), w->p->key_dim, raw);
}

/* The value of pair `token`, and the normaliser's 1. */
static void load_value(const unit_work *w, int64_t token, float *value)
{
    const fwa_tensor *v = w->in.v, *tail = &w->carry->tail_value;
    if (token < 0)
        fwa_load_f32(tail,
                     fwa_at3(tail, w->s->slot_in, w->window - 1 + token, w->u.head) +
                         w->u.column * tail->stride[3],
                     w->u.columns, value);
    else
        fwa_load_f32(
            v, fwa_at3(v, w->s->row, w->s->first + token, w->u.head) + w->u.column * v->stride[3],
            w->u.columns, value);
    if (w->p->normalizer)
        value[w->u.columns] = 1;
}

static void load_pair(const unit_work *w, int64_t row)
{
    int64_t token = w->start - (w->window - 1) + row;
    load_raw_key(w, token, w->c->raw);
    fwa_feature_f32(w->p, w->c->raw, w->c->x + row * w->c->dim_stride);
    load_value(w, token, w->c->v + row * w->c->stride);
}

static void load_query(const unit_work *w, int64_t t)
{
    const fwa_tensor *q = w->in.q;
    fwa_load_f32(q, fwa_at3(q, w->s->row, w->s->first + w->start + t, w->u.query_head),
                 w->p->key_dim, w->c->raw);
    fwa_feature_f32(w->p, w->c->raw, w->c->q + t * w->c->dim_stride);
}

/* The rows [low, low + count) of the window of token t of the chunk; returns the count. */
static int64_t window_of(const unit_work *w, int64_t t, int64_t *low)
{
    *low = t > w->first ? t : w->first;
    return pairs_at(w, w->start + t);
}

/* E_t (section 4's table); the top eigenvector goes to c->eigen where the backward wants it. */
static float statistic_of(const unit_work *w, int64_t t)
{
    const fwa_cpu_chunk *c = w->c;
    double gram[FWA_EIGEN_MAX * FWA_EIGEN_MAX], vector[FWA_EIGEN_MAX];
    int64_t low, count = window_of(w, t, &low), i, j;
    float sum = 0;
    if (count == 0)
        return 0;
    if (!w->needs_eigen) {
        for (i = low; i < low + count; i++)
            sum += dot(c->x + i * c->dim_stride, c->x + i * c->dim_stride, c->dim_stride);
        return sum / (float)count;
    }
    for (i = 0; i < count; i++)
        for (j = 0; j <= i; j++)
            gram[i * count + j] = gram[j * count + i] =
                (double)c->gram[(low + i) * c->pair_stride + low + j];
    sum = (float)(fwa_top_eigen((int)count, gram, vector) / (double)count);
    for (i = 0; c->eigen && i < count; i++)
        c->eigen[t * w->window + i] = (float)vector[i];
    return sum;
}

/* A gate of one value a token, of `count` tokens of the sequence from `start` on. */
static void load_gate(const unit_work *w, const fwa_tensor *t, int64_t start, int64_t count,
                      float absent, float *to)
{
    const float *from;
    int64_t i;
    if (!fwa_present(t)) {
        for (i = 0; i < count; i++)
            to[i] = absent;
        return;
    }
    from = (const float *)(const void *)fwa_element(
        t, fwa_at3(t, w->s->row, w->s->first + start, w->u.head));
    for (i = 0; i < count; i++)
        to[i] = from[i * t->stride[1]];
}

/* beta of a token of the sequence, value column by value column. */
static void load_beta_row(const unit_work *w, int64_t token, float *to)
{
    const fwa_tensor *beta = w->in.beta;
    int64_t i;
    if (fwa_present(beta))
        fwa_load_f32(beta,
                     fwa_at3(beta, w->s->row, w->s->first + token, w->u.head) +
                         w->u.column * beta->stride[3],
                     w->u.columns, to);
    else
        for (i = 0; i < w->u.columns; i++)
            to[i] = 1;
}

/* The gates of a token of the sequence: beta where it is per head, lambda and exp(log_gate). */
typedef struct {
    float beta, lambda, gate;
} gates;

static gates load_gates(const unit_work *w, int64_t token, float *beta_row)
{
    const fwa_tensor *beta = w->in.beta, *lambda = w->in.lambda, *log_gate = w->in.log_gate;
    int64_t row = w->s->row, at = w->s->first + token;
    gates g = {1, 0, 1};
    if (w->per_channel)
        load_beta_row(w, token, beta_row);
    else
        g.beta = fwa_load_one_f32(beta, fwa_at3(beta, row, at, w->u.head), 1);
    g.lambda = fwa_load_one_f32(lambda, fwa_at3(lambda, row, at, w->u.head), 0);
    if (fwa_present(log_gate))
        g.gate = expf(fwa_decay_clip_gate_f32(
            fwa_load_one_f32(log_gate, fwa_at3(log_gate, row, at, w->u.head), 0)));
    return g;
}

/* Calls run(knobs) with knobs whose branches are constants: compilers then make vectors of loops
 * over columns, where nothing that they read may be written. */
#define WITH_KNOBS(given, run)                                                                     \
    do {                                                                                           \
        fwa_decay_knobs_f32 knobs_ = *(given);                                                     \
        const int branches_ = 2 * (knobs_.normalized != 0) + (knobs_.coupled != 0);                \
        switch (branches_) {                                                                       \
        case 0:                                                                                    \
            knobs_.normalized = 0, knobs_.coupled = 0;                                             \
            run(knobs_);                                                                           \
            break;                                                                                 \
        case 1:                                                                                    \
            knobs_.normalized = 0, knobs_.coupled = 1;                                             \
            run(knobs_);                                                                           \
            break;                                                                                 \
        case 2:                                                                                    \
            knobs_.normalized = 1, knobs_.coupled = 0;                                             \
            run(knobs_);                                                                           \
            break;                                                                                 \
        default: knobs_.normalized = 1, knobs_.coupled = 1; run(knobs_);                           \
        }                                                                                          \
    } while (0)

INLINE void column_steps_of(fwa_decay_knobs_f32 knobs, gates g, float statistic, float count,
                            int64_t columns, const float *restrict beta, float *restrict gamma,
                            float *restrict kappa)
{
    for (int64_t i = 0; i < columns; i++) {
        const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(&knobs, beta[i], g.lambda,
                                                                     g.gate, statistic);
        gamma[i] = step.gamma;
        kappa[i] = step.eta / count;
    }
}

/* gamma, and eta over `count`, of a token's value columns. */
OUTLINE void column_steps(const fwa_decay_knobs_f32 *knobs, const gates *g, float statistic,
                          float count, int64_t columns, const float *restrict beta,
                          float *restrict gamma, float *restrict kappa)
{
#define RUN(knobs) column_steps_of(knobs, *g, statistic, count, columns, beta, gamma, kappa)
    WITH_KNOBS(knobs, RUN);
#undef RUN
}

/* Fills gamma and kappa of token t. */
static void load_steps(const unit_work *w, int64_t t)
{
    fwa_cpu_chunk *c = w->c;
    float *gamma = c->gamma + t * c->stride, *kappa = c->kappa + t * c->stride;
    int64_t low, count = window_of(w, t, &low);
    gates g;
    int32_t i;
    memset(gamma, 0, sizeof(float) * (size_t)c->stride);
    memset(kappa, 0, sizeof(float) * (size_t)c->stride);
    if (count == 0) {
        for (i = 0; i < w->u.width; i++)
            gamma[i] = 1;
        return;
    }
    if (!w->known)
        c->statistic[t] = w->needs_statistic ? statistic_of(w, t) : 0;
    g = load_gates(w, w->start + t, c->raw);
    i = w->per_channel ? w->u.width : 1;
    column_steps(&w->knobs, &g, c->statistic[t], (float)count, i, w->per_channel ? c->raw : &g.beta,
                 gamma, kappa);
    for (; i < w->u.width; i++) {
        gamma[i] = gamma[0];
        kappa[i] = kappa[0];
    }
}

/* Loads the chunk of `tokens` tokens at `start` and forms all that does not depend on the state. */
static void load_chunk(unit_work *w, int64_t start, int64_t tokens)
{
    fwa_cpu_chunk *c = w->c;
    int64_t i;
    w->start = start;
    w->tokens = tokens;
    w->pairs = tokens + w->window - 1;
    w->first = w->first_pair - start + w->window - 1;
    if (w->first < 0)
        w->first = 0;
    for (i = w->first; i < w->pairs; i++)
        load_pair(w, i);
    for (i = 0; w->reads && i < tokens; i++)
        load_query(w, i);
    if (w->regression)
        inner_products_below(w->pairs - w->first, 0, c->dim_stride, c->x + w->first * c->dim_stride,
                             c->dim_stride, c->x + w->first * c->dim_stride, c->dim_stride,
                             c->gram + w->first * c->pair_stride + w->first, c->pair_stride);
    if (w->reads)
        inner_products_below(tokens, w->window - 1 - w->first, c->dim_stride, c->q, c->dim_stride,
                             c->x + w->first * c->dim_stride, c->dim_stride, c->scores + w->first,
                             c->pair_stride);
    for (i = 0; i < tokens; i++)
        load_steps(w, i);
}

/* ---- The walk: one strip of U vectors of value columns, from column `at` on ---- */

typedef struct {
    vec v[STRIP];
} strip;

#define FOR_STRIP for (u = 0; u < U; u++)

INLINE strip strip_load(const float *at, const int U)
{
    strip s;
    int u;
    FOR_STRIP s.v[u] = load(at + u * FWA_LANES);
    return s;
}

INLINE void strip_store(float *at, const strip *s, const int U)
{
    int u;
    FOR_STRIP store(at + u * FWA_LANES, s->v[u]);
}

/* sum += a * row */
INLINE void strip_add(strip *sum, float a, const float *row, const int U)
{
    int u;
    FOR_STRIP sum->v[u] += splat(a) * load(row + u * FWA_LANES);
}

INLINE void strip_multiply(strip *s, const strip *by, const int U)
{
    int u;
    FOR_STRIP s->v[u] *= by->v[u];
}

/* The prediction of the pair that enters at token t, row p: Gamma Y0_p + sum_{i<p} G[p,i] w_i. */
INLINE void walk_enter(const unit_work *w, int64_t p, int64_t at, const int U)
{
    const fwa_cpu_chunk *c = w->c;
    const float *gram = c->gram + p * c->pair_stride;
    strip sum = strip_load(c->decay + at, U), y0 = strip_load(c->y0 + p * c->stride + at, U);
    int64_t i;
    strip_multiply(&sum, &y0, U);
    for (i = w->first; i < p; i++)
        strip_add(&sum, gram[i], c->w + i * c->stride + at, U);
    strip_store(c->y + p * c->stride + at, &sum, U);
}

/* o_t = Gamma Z0_t + sum_{i<rows} P[t,i] w_i. */
INLINE void walk_read(const unit_work *w, int64_t t, int64_t rows, int64_t at, const int U)
{
    const fwa_cpu_chunk *c = w->c;
    const float *scores = c->scores + t * c->pair_stride;
    strip sum = strip_load(c->decay + at, U), z0 = strip_load(c->z0 + t * c->stride + at, U);
    int64_t i;
    strip_multiply(&sum, &z0, U);
    for (i = w->first; i < rows; i++)
        strip_add(&sum, scores[i], c->w + i * c->stride + at, U);
    strip_store(c->o + t * c->stride + at, &sum, U);
}

/* The residual of pair j at token t: v_j - rho y_j, or v_j for the inner product. */
INLINE strip walk_residual(const unit_work *w, int64_t t, int64_t j, int64_t at, const int U)
{
    const fwa_cpu_chunk *c = w->c;
    strip r = strip_load(c->v + j * c->stride + at, U), y;
    int u;
    if (!w->regression)
        return r;
    y = strip_load(c->y + j * c->stride + at, U);
    if (w->decayed)
        FOR_STRIP r.v[u] -= load(c->gamma + t * c->stride + at + u * FWA_LANES) * y.v[u];
    else
        FOR_STRIP r.v[u] -= y.v[u];
    return r;
}

/* Window pairs of token t whose predictions nobody asks for after its step: the one that leaves,
 * and at a chunk's end all. */
static inline int64_t window_leaves(const unit_work *w, int64_t t, int64_t count)
{
    return t + 1 == w->tokens ? count : count == w->window;
}

/* The window's predictions after the step: y_j = gamma y_j + kappa sum_i G[j,i] r_i. The residuals
 * stand in rows of `residual`. */
INLINE void walk_window(const unit_work *w, int64_t t, int64_t low, int64_t count,
                        const float *residual, int64_t at, const int U)
{
    const fwa_cpu_chunk *c = w->c;
    const strip gamma = strip_load(c->gamma + t * c->stride + at, U);
    const strip kappa = strip_load(c->kappa + t * c->stride + at, U);
    int64_t i, j;
    int u;
    for (j = low + window_leaves(w, t, count); j < low + count; j++) {
        strip y = strip_load(c->y + j * c->stride + at, U), sum;
        FOR_STRIP sum.v[u] = splat(0);
        for (i = low; i < low + count; i++) {
            float g = i <= j ? c->gram[j * c->pair_stride + i] : c->gram[i * c->pair_stride + j];
            strip_add(&sum, g, residual + (i - low) * FWA_LANES * STRIP, U);
        }
        FOR_STRIP y.v[u] = gamma.v[u] * y.v[u] + kappa.v[u] * sum.v[u];
        strip_store(c->y + j * c->stride + at, &y, U);
    }
}

/* The write of token t: w_i *= gamma for earlier rows, w_j += kappa r_j in the window. */
INLINE void walk_write(const unit_work *w, int64_t t, int64_t p, int64_t at, const int U)
{
    fwa_cpu_chunk *c = w->c;
    float residual[FWA_EIGEN_MAX * FWA_LANES * STRIP];
    const strip gamma = strip_load(c->gamma + t * c->stride + at, U);
    const strip kappa = strip_load(c->kappa + t * c->stride + at, U);
    strip decay = strip_load(c->decay + at, U);
    int64_t low, count = window_of(w, t, &low), i;
    int u;
    for (i = w->first; t > 0 && i < p; i++) { /* before, all are zero, whatever gamma is */
        strip coefficient = strip_load(c->w + i * c->stride + at, U);
        strip_multiply(&coefficient, &gamma, U);
        strip_store(c->w + i * c->stride + at, &coefficient, U);
    }
    for (i = low; i < low + count; i++) {
        strip r = walk_residual(w, t, i, at, U), coefficient;
        FOR_STRIP coefficient.v[u] = i < p ? load(c->w + i * c->stride + at + u * FWA_LANES)
                                           : splat(0);
        FOR_STRIP coefficient.v[u] += kappa.v[u] * r.v[u];
        strip_store(c->w + i * c->stride + at, &coefficient, U);
        strip_store(residual + (i - low) * FWA_LANES * STRIP, &r, U);
    }
    if (w->window > 1 && w->regression && count > 0)
        walk_window(w, t, low, count, residual, at, U);
    strip_multiply(&decay, &gamma, U);
    strip_store(c->decay + at, &decay, U);
}

/* What the backward wants to know of the moment before token t's write. */
INLINE void walk_trace(const unit_work *w, int64_t t, int64_t at, const int U)
{
    const fwa_cpu_chunk *c = w->c;
    int64_t low, count = window_of(w, t, &low), p = t + w->window - 1, i;
    strip s = strip_load(c->decay + at, U);
    strip_store(c->decay_trace + t * c->stride + at, &s, U);
    for (i = w->first; i < p && i < w->pairs; i++) {
        s = strip_load(c->w + i * c->stride + at, U);
        strip_store(c->w_trace + (t * w->pairs + i) * c->stride + at, &s, U);
    }
    for (i = low; w->regression && t < w->tokens && i < low + count; i++) {
        s = strip_load(c->y + i * c->stride + at, U);
        strip_store(c->y_trace + (t * w->window + i - low) * c->stride + at, &s, U);
    }
}

/* Rows [first, ..) of w that token t reads. At a chunk's start all are still zero: none. */
static inline int64_t rows_read(const unit_work *w, int64_t t)
{
    int64_t p = t + w->window - 1;
    return !w->before ? p + 1 : t == 0 ? w->first : p;
}

INLINE void walk_token(const unit_work *w, int64_t t, int64_t at, const int U)
{
    int64_t p = t + w->window - 1;
    if (w->regression && p >= w->first)
        walk_enter(w, p, at, U);
    if (w->reads && w->before)
        walk_read(w, t, rows_read(w, t), at, U);
    if (w->c->w_trace)
        walk_trace(w, t, at, U);
    walk_write(w, t, p, at, U);
    if (w->reads && !w->before)
        walk_read(w, t, rows_read(w, t), at, U);
}

/* Runs `run(w, t, at, U)` for tokens [from, to) on every strip of columns. */
#define FOR_STRIPS(w, from, to, run)                                                               \
    do {                                                                                           \
        int64_t at_ = 0, t_;                                                                       \
        for (; at_ + STRIP * FWA_LANES <= (w)->c->stride; at_ += STRIP * FWA_LANES)                \
            for (t_ = (from); t_ < (to); t_++)                                                     \
                run(w, t_, at_, STRIP);                                                            \
        for (; at_ < (w)->c->stride; at_ += FWA_LANES)                                             \
            for (t_ = (from); t_ < (to); t_++)                                                     \
                run(w, t_, at_, 1);                                                                \
    } while (0)

/* Products with the state at the chunk's start, and the start of the walk. */
static void enter_chunk(const unit_work *w)
{
    fwa_cpu_chunk *c = w->c;
    const operand q = {c->q, c->dim_stride, 1};
    const operand x = {c->x + w->first * c->dim_stride, c->dim_stride, 1};
    int64_t tail = (w->window - 1 > w->first ? w->window - 1 : w->first) - w->first;
    int32_t i;
    if (w->reads)
        product(w->tokens, c->stride, w->p->key_dim, q, c->state, c->stride, c->z0, c->stride,
                NULL);
    for (i = 0; i < c->stride; i++)
        c->decay[i] = 1;
    memset(c->w + w->first * c->stride, 0, sizeof(float) * (size_t)(tail * c->stride));
    if (!w->regression)
        return;
    product(w->pairs - w->first, c->stride, w->p->key_dim, x, c->state, c->stride,
            c->y0 + w->first * c->stride, c->stride, NULL);
    memcpy(c->y + w->first * c->stride, c->y0 + w->first * c->stride,
           sizeof(float) * (size_t)(tail * c->stride));
}

/* S = Gamma S + sum_{j < rows} x_j w_j^T, into `state` (which holds the S at the chunk's start). */
static void leave_chunk(const unit_work *w, int64_t rows, float *state)
{
    const fwa_cpu_chunk *c = w->c;
    const operand x = {c->x + w->first * c->dim_stride, 1, c->dim_stride};
    int64_t depth = rows > w->first ? rows - w->first : 0;
    product(w->p->key_dim, c->stride, depth, x, c->w + w->first * c->stride, c->stride, state,
            c->stride, c->decay);
}
