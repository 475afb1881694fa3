/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward's groups of tokens: the walk between two passes. */

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
        const float *sums = s->sums + t * stride + g->at, *query_sums = sums + GROUP * stride,
                    *values = f->value + g->b * f->value_stride + g->at;
        const panel_row gamma = gate_row(f, s->gamma, b, g->at, channel, U);
        const panel_row kappa = gate_row(f, s->kappa, b, g->at, channel, U);
        panel_row residual[FWA_EIGEN_MAX], o = {{{0}}};
        const bool pair = row >= g->low;
        if (w->regression && pair) {
            panel_row y = recall(f, g, &decay, sums, gram, 1, row, U);
            row_store(predict + row * stride, &y, U);
            if (f->kept)
                row_store(f->kept + b * f->kept_stride + g->at, &y, U);
        }
        if (w->before) {
            o = recall(f, g, &decay, query_sums, scores, 1, row, U);
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
            o = recall(f, g, &decay, query_sums, scores, 0, row + 1, U);
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
        panel_row gamma, kappa, r, y = {{{0}}}, o = {{{0}}};
        if (t >= tokens)
            break;
        gamma = gate_row(f, s->gamma, b, g->at, channel, U);
        kappa = gate_row(f, s->kappa, b, g->at, channel, U);
        r = row_load(f->value + b * f->value_stride + g->at, U);
        if (w->before) {
            o = row_load(s->sums + (GROUP + t) * stride + g->at, U);
            row_scale(&o, &decay, U);
            for (int i = 0; i < t; i++)
                row_add(&o, scores[t - i], &pair[i], U);
        }
        if (regression) {
            y = row_load(s->sums + t * stride + g->at, U);
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
        if (f->kept) {
            const panel_row none = {{{0}}}, *kept = channel ? &y : &r;
            row_store(f->kept + b * f->kept_stride + g->at, t >= g->low ? kept : &none, U);
        }
        if (t >= g->low)
            FOR_U pair[t].v[u] = kappa.v[u] * r.v[u];
        else
            FOR_U pair[t].v[u] = splat(0);
        FOR_U decay.v[u] *= gamma.v[u];
        if (!w->before) {
            o = row_load(s->sums + (GROUP + t) * stride + g->at, U);
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
            const panel_row y = row_load(s->sums + t * s->stride + at, U);
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
        row = row_load(s->sums + (GROUP + t) * s->stride + at, U);
        FOR_U row.v[u] *= splat(read[t]);
        FOR_U PIN(row.v[u]);
        UNROLL for (int j = 0; j < t; j++) row_add(&row, n[j], &u_row[j], U);
        if (!before)
            row_add(&row, n[t], &u_row[t], U);
        row_store(f->output + (b + t) * f->output_stride + at, &row, U);
    }
    for (int t = 0; t < tokens && f->kept; t++) {
        const float *solve = N + TRIANGLE + IN_TRIANGLE(t);
        row = u_row[t];
        for (int j = 0; j < t; j++)
            row_add(&row, solve[j], &u_row[j], U);
        row_store(f->kept + (b + t) * f->kept_stride + at, &row, U);
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
 * `low` of it, is walked by factors. Whatever is behind its tokens: outputs do not tell, to the
 * bit, what comes after them. */
INLINE bool has_factors(const fused_work *f, int64_t b, int64_t low)
{
    return f->w.window == 1 && !f->w.per_channel && low == 0 &&
           (f->w.s->seen + f->start + b) % GROUP == 0;
}

/* True where g, at the end of the group, is folded into S' by the next pass: at the block's end,
 * and where it is small or NaN. */
INLINE bool is_folded(const fused_work *f, const group_work *g, float end)
{
    return g->b + g->tokens == f->tokens || !(end >= SMALL_SCALE);
}

/* What the next pass multiplies S' by, or the walk behind it. */
INLINE void hand_on(const fused_work *f, int64_t at, float end, bool fold, const int U)
{
    const fwa_cpu_fused *s = f->f;
    panel_row row = {{{0}}};
    FOR_U row.v[u] = splat(end);
    row_store(s->keep + at, &row, U);
    FOR_U row.v[u] = splat(fold ? 1 : end);
    row_store(s->scale + at, &row, U);
    s->fold[at / FWA_LANES] = fold;
}

/* The same with what the next pass needs. */
INLINE void walk_group_factors(const fused_work *f, const group_work *g, const float *factors,
                               const bool regression, const int U)
{
    const fwa_cpu_fused *s = f->f;
    const float end = factors[GROUP_FACTORS - 1];
    const bool fold = is_folded(f, g, end);
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
    hand_on(f, g->at, end, fold, U);
}

/* ---- The walk through a group where the window is short and all its pairs exist ---- */

/* The window is a constant and everything is unrolled: a vector's rows stay in registers, and the
 * vectors of a panel, one after the other, overlap. */
#define WINDOW_MOST  8
#define WINDOW_PAIRS (WINDOW_MOST - 1 + 4) /* 4: the longest group */
/* clang obeys a pragma before it knows the constants of the caller, and leaves a loop; it unrolls
 * by itself. gcc does not where there is much to unroll. */
#ifdef __clang__
#define UNROLL_PAIRS
#else
#define UNROLL_PAIRS _Pragma("GCC unroll 16")
#endif

/* One vector of columns of w and y, of the pairs at hand. */
typedef struct {
    vec w[WINDOW_PAIRS], y[WINDOW_PAIRS];
} window_rows;

/* decay * base + sum_i inner[rows - 1 - i + skip] w_i */
INLINE vec window_recall(const window_rows *n, float decay, const float *base, const float *inner,
                         const int skip, const int rows)
{
    vec sum = splat(decay) * load(base);
    PIN(sum);
    UNROLL_PAIRS for (int i = 0; i < rows; i++) sum += splat(inner[rows - 1 - i + skip]) * n->w[i];
    return sum;
}

/* What token t writes: kappa (v_j - rho y_j) for the window's pairs. Their w and y after it; that y
 * of the pair that leaves is not asked for. Sums begin with rounded numbers, so that it does not
 * depend on the compiler which products are fused. */
INLINE void window_write(const fused_work *f, const group_work *g, window_rows *n, const int t,
                         const int B, const bool regression, int64_t at)
{
    const int64_t b = g->b + t, back = f->f->back;
    const float *gram = f->f->gram + (g->row + t) * back;
    const vec gamma = splat(f->f->gamma[b]), kappa = splat(f->f->kappa[b]);
    const vec rho = f->w.decayed ? gamma : splat(1);
    vec written[WINDOW_MOST];
    UNROLL_PAIRS for (int i = 0; i < B; i++)
    {
        vec r = load(f->value + (b + i) * f->value_stride + at);
        if (regression)
            r -= rho * n->y[t + i];
        written[i] = kappa * r;
        PIN(written[i]);
    }
    UNROLL_PAIRS for (int i = 0; i < t; i++) n->w[i] *= gamma;
    UNROLL_PAIRS for (int i = 0; i < B - 1; i++) n->w[t + i] = gamma * n->w[t + i] + written[i];
    n->w[t + B - 1] = written[B - 1];
    UNROLL_PAIRS for (int j = 1; regression && j < B; j++)
    {
        vec y = gamma * n->y[t + j];
        PIN(y);
        UNROLL_PAIRS for (int i = 0; i < B; i++)
            y += splat(gram[(i > j ? i : j) * back + (i > j ? i - j : j - i)]) * written[i];
        n->y[t + j] = y;
    }
}

/* Rows for the next pass, and those that the next group begins with. */
INLINE void window_hand_on(const fused_work *f, const window_rows *n, const int B,
                           const bool regression, float inverse, int64_t at)
{
    const fwa_cpu_fused *s = f->f;
    UNROLL for (int j = 0; j < GROUP; j++)
        store(s->complete + j * s->stride + at, splat(inverse) * n->w[j]);
    UNROLL_PAIRS for (int i = 0; i < B - 1; i++)
    {
        store(s->pending + i * s->stride + at, n->w[GROUP + i]);
        if (regression)
            store(s->predict + i * s->stride + at, n->y[GROUP + i]);
    }
}

/* The t-th token of the group, vector `u` of its panel. `decay` is g times the gammas so far. */
INLINE void window_token(const fused_work *f, const group_work *g, window_rows *n, float *decay,
                         const int t, const int B, const bool regression, int u)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t b = g->b + t, at = g->at + u * FWA_LANES;
    const float *gram = s->gram + (g->row + B - 1 + t) * s->back, *scores = s->scores + b * s->back;
    const float *sums = s->sums + t * s->stride + at, *query_sums = sums + GROUP * s->stride;
    const vec scale = splat(f->output_scale);
    float *output = f->output + b * f->output_stride + at;
    if (regression)
        n->y[t + B - 1] = window_recall(n, *decay, sums, gram, 1, t + B - 1);
    if (regression && f->kept)
        store(f->kept + b * f->kept_stride + at, n->y[t + B - 1]);
    if (f->w.before)
        store(output, scale * window_recall(n, *decay, query_sums, scores, 1, t + B - 1));
    window_write(f, g, n, t, B, regression, at);
    *decay *= s->gamma[b];
    if (!f->w.before)
        store(output, scale * window_recall(n, *decay, query_sums, scores, 0, t + B));
}

/* The walk of that vector. `pass`: a whole group, for the next pass; else w and y are left in
 * `pending` and `predict`. Returns g times the gammas. */
INLINE float window_vector(const fused_work *f, const group_work *g, int64_t tokens, bool pass,
                           const int B, const bool regression, int u)
{
    const fwa_cpu_fused *s = f->f;
    const int64_t at = g->at + u * FWA_LANES;
    float decay = s->scale[g->at];
    window_rows n;
    UNROLL_PAIRS for (int i = 0; i < GROUP + B - 1; i++)
    {
        n.w[i] = i < B - 1 ? load(s->pending + i * s->stride + at) : splat(0);
        n.y[i] = i < B - 1 && regression ? load(s->predict + i * s->stride + at) : splat(0);
    }
    /* No loop: clang unrolls the inner ones first, and their bounds must then be constants. */
#define TOKEN(t)                                                                                   \
    if ((t) < GROUP && (t) < tokens)                                                               \
    window_token(f, g, &n, &decay, t, B, regression, u)
    TOKEN(0);
    TOKEN(1);
    TOKEN(2);
    TOKEN(3);
#undef TOKEN
    if (pass) {
        window_hand_on(f, &n, B, regression, is_folded(f, g, decay) ? 1 : 1 / decay, at);
        return decay;
    }
    UNROLL_PAIRS for (int i = 0; i < GROUP + B - 1; i++)
    {
        store(s->pending + i * s->stride + at, n.w[i]);
        if (regression)
            store(s->predict + i * s->stride + at, n.y[i]);
    }
    return decay;
}

OUTLINE float walk_short(const fused_work *f, const group_work *g, int64_t tokens, bool pass, int U)
{
    float decay = 0;
#define WALK(B)                                                                                    \
    case B:                                                                                        \
        for (int u = 0; u < U; u++)                                                                \
            decay = f->w.regression ? window_vector(f, g, tokens, pass, B, true, u)                \
                                    : window_vector(f, g, tokens, pass, B, false, u);              \
        break
    switch (f->w.window) {
        WALK(2);
        WALK(3);
        WALK(4);
        WALK(5);
        WALK(6);
        WALK(7);
        WALK(8);
    }
#undef WALK
    return decay;
}

/* The same with what the next pass needs. */
OUTLINE void walk_short_pass(const fused_work *f, const group_work *g, int U)
{
    const float end = walk_short(f, g, GROUP, true, U);
    const bool fold = is_folded(f, g, end);
    hand_on(f, g->at, end, fold, U);
}

/* True where the window is short and has all its pairs. */
INLINE bool is_short_window(const fused_work *f, int64_t low)
{
    return f->w.window > 1 && f->w.window <= WINDOW_MOST && low == 0;
}

/* The walk of whatever rule. A window over one has gates per head. */
OUTLINE panel_row walk(const fused_work *f, const group_work *g, int64_t tokens, int U)
{
    const bool regression = f->w.regression, channel = f->w.per_channel;
    if (is_short_window(f, g->low)) {
        panel_row decay = {{{0}}};
        const float end = walk_short(f, g, tokens, false, U);
        for (int u = 0; u < U; u++)
            decay.v[u] = splat(end);
        return decay;
    }
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
    const int64_t low = f->first > row ? f->first - row : 0;
    if (f->w.regression && low < tail)
        project(U, tail - low, dim, s->state + at * dim, U * FWA_LANES,
                s->features + (row + low) * FEATURE_ROW, FEATURE_ROW,
                s->predict + low * s->stride + at, s->stride);
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
