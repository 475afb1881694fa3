/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward's blocks of tokens: what does not depend on the state. */

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

/* The same for a whole group, window 1, from row `row` on: all at once. */
INLINE void group_products_of(const fused_work *f, int64_t row, float *scores, const bool all)
{
    enum { PAIRS = GROUP * (GROUP + 1) / 2, GRAMS = 0, SCORES = PAIRS };
    const fwa_cpu_fused *s = f->f;
    const float *key = s->features + row * FEATURE_ROW;
    vec sum[(2 * PAIRS + 3) / 4 * 4];
    float sums[(2 * PAIRS + 3) / 4 * 4];
    int64_t d;
    int n = 0;
    UNROLL_16 for (int i = 0; i < (2 * PAIRS + 3) / 4 * 4; i++) sum[i] = splat(0);
    for (d = 0; d < f->dim; d += FWA_LANES) {
        vec x[GROUP];
        UNROLL for (int t = 0; t < GROUP; t++)
        {
            const vec q = load(key + d + t * FEATURE_ROW + QUERY);
            x[t] = load(key + d + t * FEATURE_ROW);
            UNROLL for (int i = 0; i <= t; i++)
            {
                const int at = t * (t + 1) / 2 + i;
                if (all || i == 0)
                    sum[GRAMS + at] += x[t] * x[t - i];
                sum[SCORES + at] += q * x[t - i];
            }
        }
    }
    UNROLL_16 for (int i = 0; i < 2 * PAIRS; i += 4) sum_lanes_of_four(sum + i, sums + i);
    for (int t = 0; t < GROUP; t++)
        for (int i = 0; i <= t; i++, n++) {
            s->gram[(row + t) * s->back + i] = sums[GRAMS + n];
            scores[t * s->back + i] = sums[SCORES + n];
        }
}

OUTLINE void group_products(const fused_work *f, int64_t row, float *scores)
{
    if (f->w.regression)
        group_products_of(f, row, scores, true);
    else
        group_products_of(f, row, scores, false);
}

/* Tokens of the group in which token `b` of the block is, from it on: groups lie on a grid of the
 * whole sequence, as blocks do. */
INLINE int64_t group_tokens(const fused_work *f, int64_t b)
{
    int64_t tokens = GROUP - (f->w.s->seen + f->start + b) % GROUP, left = f->tokens - b;
    return tokens < left ? tokens : left;
}

/* The window's mean of |x|^2 for the token whose pair is row `row`, the window of which has `count`
 * pairs. */
static float mean_square(const fused_work *f, int64_t row, int64_t count)
{
    float sum = 0;
    int64_t i;
    for (i = count - 1; i >= 0; i--)
        sum += f->f->gram[(row - i) * f->f->back];
    return sum / (float)count;
}

/* The block's Gram matrix by diagonals: row d holds x_r . x_{r-d}, from the first pair of the first
 * token's window on; 0 where one of the two does not exist. */
static void fill_lags(const fused_work *f)
{
    const int64_t tail = f->w.window - 1, from = f->base - tail, pairs = tail + f->tokens;
    int64_t d, i;
    for (d = 0; d <= tail; d++) {
        const float *gram = f->f->gram + from * f->f->back + d;
        const int64_t some = (f->first > from ? f->first - from : 0) + d;
        float *row = f->f->lags + d * FWA_CPU_LAG_ROW;
        for (i = 0; i < some && i < pairs; i++)
            row[i] = 0;
        for (; i < pairs; i++)
            row[i] = gram[i * f->f->back];
        for (; i < pairs + FWA_LANES - 1; i++)
            row[i] = 0;
    }
}

/* The largest eigenvalues of the windows' Gram matrices, over the windows' pairs. Rows of pairs
 * that do not exist, and windows behind the block, are zeros. */
static void window_eigenvalues(const fused_work *f, float *statistic)
{
    const int B = f->w.window;
    double top[FWA_LANES];
    int64_t b, t;
    fill_lags(f);
    for (b = 0; b < f->tokens; b += FWA_LANES) {
        window_matrices(B, f->f->lags + b, FWA_CPU_LAG_ROW, f->f->matrices);
        FWA_KERNEL(top_eigenvalues)(B, f->f->matrices, top);
        for (t = b; t < f->tokens && t < b + FWA_LANES; t++) {
            const int64_t count = pairs_at(&f->w, f->start + t);
            statistic[t] = count ? (float)(top[t - b] / (double)count) : 0;
        }
    }
}

/* E of the block's tokens; 0 where it is not asked for, and before the first pair. */
static void fused_statistics(const fused_work *f, float *statistic)
{
    int64_t b;
    if (f->w.needs_eigen) {
        window_eigenvalues(f, statistic);
        return;
    }
    for (b = 0; b < f->tokens; b++) {
        const int64_t count = pairs_at(&f->w, f->start + b);
        statistic[b] = f->w.needs_statistic && count ? mean_square(f, f->base + b, count) : 0;
    }
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
        load_gate(w, w->in.beta, f->start, f->tokens, 1, beta);
    load_gate(w, w->in.lambda, f->start, f->tokens, 0, lambda);
    load_gate(w, w->in.log_gate, f->start, f->tokens, 0, gate);
    for (b = 0; b < f->tokens; b++)
        gate[b] = fwa_decay_clip_gate_f32(gate[b]);
    for (b = f->tokens; b % FWA_LANES; b++)
        gate[b] = 0;
    for (b = 0; b < f->tokens && fwa_present(w->in.log_gate); b += FWA_LANES)
        store(gate + b, exp_vector(load(gate + b)));
    for (b = 0; b < f->tokens && !fwa_present(w->in.log_gate); b++)
        gate[b] = 1;
    fused_statistics(f, statistic);
    if (!w->per_channel) {
        for (b = 0; b < f->tokens; b++) {
            const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                &w->knobs, beta[b], lambda[b], gate[b], statistic[b]);
            s->gamma[b] = step.gamma;
            s->kappa[b] = step.eta;
        }
        for (b = 0; w->window > 1 && b < f->tokens; b++)
            s->kappa[b] /= (float)(pairs_at(w, f->start + b) ? pairs_at(w, f->start + b) : 1);
    }
    for (b = 0; w->per_channel && b < f->tokens; b++) {
        float *gamma = s->gamma + b * s->stride, *kappa = s->kappa + b * s->stride;
        const gates given = {.lambda = lambda[b], .gate = gate[b]};
        load_beta_row(w, f->start + b, s->raw);
        column_steps(&w->knobs, &given, statistic[b], 1, w->u.columns, s->raw, gamma, kappa);
        for (i = w->u.columns; i < f->width; i++) {
            gamma[i] = 1;
            kappa[i] = 0;
        }
    }
    if (pairs_at(w, f->start) == 0) { /* a fresh sequence's first token is no pair */
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
    } else {
        memcpy(s->last_gram, s->gram + from * s->back, gram);
    }
    if (f->direct_values) /* and so will be all blocks that come */
        return;
    if (back)
        memcpy(s->values, s->last_values, values);
    else
        memcpy(s->last_values, s->values + from * s->stride, values);
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

/* What the walk multiplies by, for a group that begins on the grid, where w is not carried from
 * group to group and gates are per head: with S' at the group's start, Y = S'^T x and Z = S'^T q,
 *
 *     u_t = v_t - e_t Y_t      w_i = sum_{j<=i} M_ij u_j      o_t = b_t Z_t + sum_{j<=t} N_tj u_j
 *
 * e, b, M, N and T one behind the other, where r = T u; the last three are triangles, by rows. M
 * holds the decay to the group's end and, unless it is folded, 1/g; N and b hold the problem's
 * scale. The last factor is g at the group's end, not folded. Returns g where the next group
 * starts. */
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
    }
    for (b = 0; !same_keys && b < f->tokens; b += n) {
        const int64_t before = (w->s->seen + f->start + b) % GROUP;
        n = 1;
        if (w->window > 1 || before > 0 || b + GROUP > f->tokens) {
            fused_products(f, f->base + b, w->window + before, s->scores + b * s->back);
        } else {
            group_products(f, f->base + b, s->scores + b * s->back);
            n = GROUP;
        }
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
