/* SPDX-License-Identifier: Apache-2.0 */
/* The adjoint's walk through a chunk, by strips of value columns: in `history`, the coefficients w
 * before each token, and after the last; then from the last token back to the first. What a strip
 * needs is in the second cache at the latest (doc/design.md has sizes). Inner products over the
 * value columns are summed lane by lane, in vectors, strip after strip. */

/* Of a strip: a row of gammas or kappas. */
INLINE strip gate_strip(const adjoint_work *a, const float *of_head, const float *of_channels,
                        int64_t t, int64_t at, const int U)
{
    strip s;
    int u;
    if (a->w.per_channel)
        return strip_load(of_channels + t * a->a->width_stride + at, U);
    FOR_STRIP s.v[u] = splat(of_head[t]);
    return s;
}

/* The prediction of pair i at token t, before its write. */
INLINE strip prediction_strip(const adjoint_work *a, int64_t t, int64_t i, const bool windows,
                              int64_t at, const int U)
{
    if (windows)
        return strip_load(a->a->y + i * STRIP_ROW, U);
    return strip_load(a->kept + t * a->kept_stride + at, U);
}

/* The residual of pair i at token t, with prediction y where residuals are not kept. */
INLINE strip residual_strip(const adjoint_work *a, int64_t t, int64_t i, const strip *y,
                            const strip *gamma, const bool regression, const bool with_y,
                            int64_t at, const int U)
{
    strip r;
    int u;
    if (regression && !with_y)
        return strip_load(a->kept + t * a->kept_stride + at, U);
    r = strip_load(a->values + i * a->a->width_stride + at, U);
    if (regression && a->w.decayed)
        FOR_STRIP r.v[u] -= gamma->v[u] * y->v[u];
    else if (regression)
        FOR_STRIP r.v[u] -= y->v[u];
    return r;
}

/* The window's predictions after token t, by what it has written. */
INLINE void step_predictions(const adjoint_work *a, int64_t t, int64_t low, const strip *gamma,
                             const int U)
{
    const fwa_cpu_adjoint *s = a->a;
    const int64_t B = a->w.window, p = t + B - 1;
    int64_t i, j;
    int u;
    for (j = p - low + 1 == B ? low + 1 : low; j <= p; j++) {
        strip y = strip_load(s->y + j * STRIP_ROW, U);
        FOR_STRIP y.v[u] *= gamma->v[u];
        for (i = low; i <= p; i++)
            strip_add(&y, s->gram[(i > j ? i : j) * s->pair_stride + (i > j ? j : i)],
                      s->strip_rows + (i - low) * STRIP_ROW, U);
        strip_store(s->y + j * STRIP_ROW, &y, U);
    }
}

/* The walk; without `trace` only the last coefficients are left, in the first row of `history`. */
INLINE void walk_ahead(const adjoint_work *a, int64_t at, const bool regression, const bool windows,
                       const bool trace, const int U)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t B = windows ? w->window : 1, moment = trace ? w->pairs * STRIP_ROW : 0;
    const bool with_y = windows || w->per_channel;
    float *now = s->history;
    int64_t t, i;
    int u;
    for (i = w->first; i < B - 1; i++) {
        const strip none = {{{0}}};
        strip_store(now + i * STRIP_ROW, &none, U);
        if (regression) {
            const strip y = strip_load(a->tail + i * s->width_stride + at, U);
            strip_store(s->y + i * STRIP_ROW, &y, U);
        }
    }
    for (t = 0; t < w->tokens; t++, now += moment) {
        const int64_t p = t + B - 1, low = windows && t > w->first ? t : windows ? w->first : p;
        const strip gamma = gate_strip(a, a->gamma, s->gamma, t, at, U);
        const strip kappa = gate_strip(a, a->kappa, s->kappa, t, at, U);
        float *next = now + moment;
        if (p < w->first)
            continue;
        for (i = w->first; i < low; i++) {
            strip coefficient = strip_load(now + i * STRIP_ROW, U);
            strip_multiply(&coefficient, &gamma, U);
            strip_store(next + i * STRIP_ROW, &coefficient, U);
        }
        if (windows && regression) {
            const strip y = strip_load(a->kept + t * a->kept_stride + at, U);
            strip_store(s->y + p * STRIP_ROW, &y, U);
        }
        for (i = low; i <= p; i++) {
            strip y = {{{0}}}, sum;
            if (regression && with_y)
                y = prediction_strip(a, t, i, windows, at, U);
            if (regression && windows && trace)
                strip_store(s->y_trace + (t * B + i - low) * STRIP_ROW, &y, U);
            sum = residual_strip(a, t, i, &y, &gamma, regression, with_y, at, U);
            strip_multiply(&sum, &kappa, U);
            if (regression && windows)
                strip_store(s->strip_rows + (i - low) * STRIP_ROW, &sum, U);
            if (i < p && t > 0) { /* before, all are zero, whatever gamma is */
                const strip old = strip_load(now + i * STRIP_ROW, U);
                FOR_STRIP sum.v[u] += gamma.v[u] * old.v[u];
            }
            strip_store(next + i * STRIP_ROW, &sum, U);
        }
        if (regression && windows)
            step_predictions(a, t, low, &gamma, U);
    }
}

/* Sums of a lane that stand for an inner product: += a . b */
INLINE void add_lanes(float *sums, const strip *x, const strip *y, const int U)
{
    vec sum = load(sums);
    for (int u = 0; u < U; u++)
        sum += x->v[u] * y->v[u];
    store(sums, sum);
}

/* Back over what token t reads of rows [first, to) of w, those of `history`. */
INLINE void read_strip_back(const adjoint_work *a, int64_t t, int64_t to, const float *history,
                            int64_t at, const int U)
{
    const fwa_cpu_adjoint *s = a->a;
    const strip grad = strip_load(s->rows + (2 * t + 1) * s->width_stride + at, U);
    const float *scores = s->scores + t * s->pair_stride;
    float *sums = s->score_sums + t * s->pair_stride * FWA_LANES;
    int u;
    for (int64_t i = a->w.first; i < to; i++) {
        const strip w = strip_load(history + i * STRIP_ROW, U);
        strip w_grad = strip_load(s->w_grad + i * STRIP_ROW, U);
        add_lanes(sums + i * FWA_LANES, &grad, &w, U);
        FOR_STRIP w_grad.v[u] += splat(scores[i]) * grad.v[u];
        strip_store(s->w_grad + i * STRIP_ROW, &w_grad, U);
    }
}

/* The adjoint of a window's write and of its predictions' step at token t: gradients of the
 * window's values and predictions before it; of kappa, and part of that of gamma. */
INLINE void window_strip_back(const adjoint_work *a, int64_t t, int64_t low, const strip *gamma,
                              const strip *kappa, strip *gamma_grad, strip *kappa_grad,
                              const bool regression, int64_t at, const int U)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t B = w->window, p = t + B - 1;
    const int64_t stays = low + window_leaves(w, t, p - low + 1);
    int64_t i, j;
    int u;
    for (i = low; i <= p; i++) {
        strip y = {{{0}}}, r, along = strip_load(s->w_grad + i * STRIP_ROW, U), value;
        if (regression)
            y = strip_load(s->y_trace + (t * B + i - low) * STRIP_ROW, U);
        r = residual_strip(a, t, i, &y, gamma, regression, true, at, U);
        for (j = stays; regression && j <= p; j++)
            strip_add(&along, s->gram[(i > j ? i : j) * s->pair_stride + (i > j ? j : i)],
                      s->y_grad + j * STRIP_ROW, U);
        FOR_STRIP kappa_grad->v[u] += along.v[u] * r.v[u];
        strip_multiply(&r, kappa, U);
        for (j = stays; regression && j <= p; j++) {
            const strip y_grad = strip_load(s->y_grad + j * STRIP_ROW, U);
            add_lanes(s->gram_sums +
                          ((i > j ? i : j) * s->pair_stride + (i > j ? j : i)) * FWA_LANES,
                      &y_grad, &r, U);
        }
        strip_multiply(&along, kappa, U); /* the residual's gradient */
        strip_store(s->strip_rows + (i - low) * STRIP_ROW, &along, U);
        value = strip_load(s->v_grad + i * STRIP_ROW, U);
        FOR_STRIP value.v[u] += along.v[u];
        strip_store(s->v_grad + i * STRIP_ROW, &value, U);
    }
    for (i = low; regression && i <= p; i++) {
        const strip y = strip_load(s->y_trace + (t * B + i - low) * STRIP_ROW, U);
        const strip r_grad = strip_load(s->strip_rows + (i - low) * STRIP_ROW, U);
        strip y_grad = {{{0}}};
        if (i >= stays) {
            y_grad = strip_load(s->y_grad + i * STRIP_ROW, U);
            FOR_STRIP gamma_grad->v[u] += y_grad.v[u] * y.v[u];
            strip_multiply(&y_grad, gamma, U);
        }
        if (w->decayed) {
            FOR_STRIP gamma_grad->v[u] -= r_grad.v[u] * y.v[u];
            FOR_STRIP y_grad.v[u] -= gamma->v[u] * r_grad.v[u];
        } else {
            FOR_STRIP y_grad.v[u] -= r_grad.v[u];
        }
        strip_store(s->y_grad + i * STRIP_ROW, &y_grad, U);
    }
}

/* The same where the window is the token's own pair, whose prediction the state alone makes.
 * Returns the residual's gradient; with gates per channel it becomes the prediction's. */
INLINE strip single_strip_back(const adjoint_work *a, int64_t t, const strip *gamma,
                               const strip *kappa, strip *gamma_grad, strip *kappa_grad,
                               const bool regression, int64_t at, const int U)
{
    const fwa_cpu_adjoint *s = a->a;
    const bool with_y = a->w.per_channel;
    strip y = {{{0}}}, r, grad = strip_load(s->w_grad + t * STRIP_ROW, U);
    int u;
    if (regression && with_y)
        y = prediction_strip(a, t, t, false, at, U);
    r = residual_strip(a, t, t, &y, gamma, regression, with_y, at, U);
    FOR_STRIP kappa_grad->v[u] = grad.v[u] * r.v[u];
    strip_multiply(&grad, kappa, U);
    if (regression && !with_y) /* H holds it */
        return grad;
    strip_store(s->value_grads + t * s->width_stride + at, &grad, U);
    if (!with_y)
        return grad;
    if (a->w.decayed) {
        FOR_STRIP gamma_grad->v[u] = -grad.v[u] * y.v[u];
        FOR_STRIP grad.v[u] *= -gamma->v[u];
    } else {
        FOR_STRIP grad.v[u] = -grad.v[u];
    }
    return grad;
}

/* Back from after token t's step to before it, for the pairs that were there, rows [first, to) of
 * w; `entry` is the gradient of what enters at t, `grad` that of the output that is read before
 * it. */
INLINE void step_strip_back(const adjoint_work *a, const float *history, int64_t to,
                            const strip *gamma, strip *gamma_grad, const strip *entry,
                            const float *entries, float *entry_sums, const strip *grad,
                            const float *scores, float *score_sums, const bool regression,
                            const int U)
{
    const fwa_cpu_adjoint *s = a->a;
    int u;
    for (int64_t i = a->w.first; i < to; i++) {
        const strip w = strip_load(history + i * STRIP_ROW, U);
        strip w_grad = strip_load(s->w_grad + i * STRIP_ROW, U);
        FOR_STRIP gamma_grad->v[u] += w_grad.v[u] * w.v[u];
        strip_multiply(&w_grad, gamma, U);
        if (regression) {
            add_lanes(entry_sums + i * FWA_LANES, entry, &w, U);
            FOR_STRIP w_grad.v[u] += splat(entries[i]) * entry->v[u];
        }
        add_lanes(score_sums + i * FWA_LANES, grad, &w, U);
        FOR_STRIP w_grad.v[u] += splat(scores[i]) * grad->v[u];
        strip_store(s->w_grad + i * STRIP_ROW, &w_grad, U);
    }
}

/* What the walk back begins with. */
INLINE void begin_strip_back(const adjoint_work *a, int64_t at, const bool windows, const int U)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t n = w->tokens;
    int64_t i;
    for (i = w->first; i < w->pairs; i++) {
        const strip grad = strip_load(s->seeds + i * s->width_stride + at, U), none = {{{0}}};
        strip_store(s->w_grad + i * STRIP_ROW, &grad, U);
        if (!windows)
            continue;
        if (i >= n) {
            const strip late = strip_load(a->late_values + (i - n) * s->width_stride + at, U);
            strip_store(s->v_grad + i * STRIP_ROW, &late, U);
        } else {
            strip_store(s->v_grad + i * STRIP_ROW, &none, U);
        }
    }
}

/* The gradient of what the start's state contributes, column by column, with gates per channel:
 * += grad * recalled, for what has been read of it. */
INLINE void start_add(strip *start, const strip *grad, const float *recalled, const int U)
{
    const strip row = strip_load(recalled, U);
    int u;
    FOR_STRIP start->v[u] += grad->v[u] * row.v[u];
}

/* The walk back. Rows of gradients of predictions at their entry (H), of outputs, and both with
 * their decays; of values; of gammas and kappas. */
INLINE void walk_back(adjoint_work *a, int64_t at, const bool regression, const bool windows,
                      const int U)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t B = windows ? w->window : 1, n = w->tokens, stride = s->width_stride;
    const int64_t moment = w->pairs * STRIP_ROW, after = !w->before;
    const bool channel = w->per_channel;
    strip start = {{{0}}}, gamma, kappa;
    int64_t t, i;
    int u;
    begin_strip_back(a, at, windows, U);
    for (t = 0; t < n; t++) {
        const strip decay = gate_strip(a, a->decay, s->decay, t + after, at, U);
        strip grad = strip_load(s->rows + (2 * t + 1) * stride + at, U);
        strip_multiply(&grad, &decay, U);
        strip_store(s->scaled + (2 * t + 1) * stride + at, &grad, U);
    }
    if (channel)
        start = strip_load(s->whole + at, U);
    if (after) {
        read_strip_back(a, n - 1, w->pairs, s->history + n * moment, at, U);
        if (channel) {
            const strip grad = strip_load(s->rows + (2 * n - 1) * stride + at, U);
            start_add(&start, &grad, s->recalled + (2 * n - 1) * stride + at, U);
        }
    }
    for (t = n - 1; t >= 0; t--) {
        const int64_t p = t + B - 1, low = windows && t > w->first ? t : windows ? w->first : p;
        const int64_t reader = t - after;
        const strip decay = gate_strip(a, a->decay, s->decay, t, at, U);
        strip entry = {{{0}}}, gamma_grad = {{{0}}}, kappa_grad = {{{0}}}, grad = {{{0}}};
        gamma = gate_strip(a, a->gamma, s->gamma, t, at, U);
        kappa = gate_strip(a, a->kappa, s->kappa, t, at, U);
        if (reader >= 0)
            grad = strip_load(s->rows + (2 * reader + 1) * stride + at, U);
        if (p >= w->first && windows)
            window_strip_back(a, t, low, &gamma, &kappa, &gamma_grad, &kappa_grad, regression, at,
                              U);
        else if (p >= w->first)
            entry = single_strip_back(a, t, &gamma, &kappa, &gamma_grad, &kappa_grad, regression,
                                      at, U);
        if (windows && regression && p >= w->first)
            entry = strip_load(s->y_grad + p * STRIP_ROW, U);
        if (t > 0)
            step_strip_back(a, s->history + t * moment, p, &gamma, &gamma_grad, &entry,
                            s->entries + p * s->pair_stride,
                            s->gram_sums + p * s->pair_stride * FWA_LANES, &grad,
                            s->scores + reader * s->pair_stride,
                            s->score_sums + reader * s->pair_stride * FWA_LANES, regression, U);
        if (channel) {
            FOR_STRIP gamma_grad.v[u] += start.v[u] * decay.v[u];
            strip_multiply(&start, &gamma, U);
            if (reader >= 0)
                start_add(&start, &grad, s->recalled + (2 * reader + 1) * stride + at, U);
            if (regression)
                start_add(&start, &entry, s->recalled + 2 * t * stride + at, U);
            strip_store(s->gamma_grads + t * stride + at, &gamma_grad, U);
            strip_store(s->kappa_grads + t * stride + at, &kappa_grad, U);
        } else {
            FOR_STRIP a->gamma_sums[t] += gamma_grad.v[u];
            FOR_STRIP a->kappa_sums[t] += kappa_grad.v[u];
        }
        if (regression) {
            strip_store(s->rows + 2 * t * stride + at, &entry, U);
            FOR_STRIP entry.v[u] *= decay.v[u] * splat(s->entry_factor[t]);
            strip_store(s->scaled + 2 * t * stride + at, &entry, U);
        }
    }
    for (i = w->first; windows && i < w->pairs; i++) {
        const strip value = strip_load(s->v_grad + i * STRIP_ROW, U);
        strip_store(s->value_grads + i * stride + at, &value, U);
    }
    for (i = w->first; windows && regression && i < B - 1; i++) {
        const strip y = strip_load(s->y_grad + i * STRIP_ROW, U);
        strip_store(s->tail_rows + i * stride + at, &y, U);
    }
}

/* The coefficients after the last token. */
INLINE void leave_strip(const adjoint_work *a, const float *last, int64_t at, const int U)
{
    for (int64_t i = a->w.first; i < a->w.pairs; i++) {
        const strip w = strip_load(last + i * STRIP_ROW, U);
        strip_store(a->a->written + i * a->a->width_stride + at, &w, U);
    }
}

/* A strip's walk there and back. */
INLINE void walk_strip(adjoint_work *a, int64_t at, const bool regression, const bool windows,
                       const int U)
{
    walk_ahead(a, at, regression, windows, true, U);
    leave_strip(a, a->a->history + a->w.tokens * a->w.pairs * STRIP_ROW, at, U);
    walk_back(a, at, regression, windows, U);
}

/* The coefficients after the last token where each pair is written once. */
INLINE void leave_single_pairs(const adjoint_work *a, int64_t at, const bool regression,
                               const int U)
{
    const unit_work *w = &a->w;
    const bool with_y = w->per_channel;
    strip later;
    int u;
    FOR_STRIP later.v[u] = splat(1);
    for (int64_t t = w->tokens - 1; t >= w->first; t--) {
        const strip gamma = gate_strip(a, a->gamma, a->a->gamma, t, at, U);
        const strip kappa = gate_strip(a, a->kappa, a->a->kappa, t, at, U);
        strip y = {{{0}}}, sum;
        if (regression && with_y)
            y = prediction_strip(a, t, t, false, at, U);
        sum = residual_strip(a, t, t, &y, &gamma, regression, with_y, at, U);
        strip_multiply(&sum, &kappa, U);
        strip_multiply(&sum, &later, U);
        strip_multiply(&later, &gamma, U);
        strip_store(a->a->written + t * a->a->width_stride + at, &sum, U);
    }
}

/* A strip's walk to the next chunk's start, where the tail's predictions are left. */
INLINE void next_strip(const adjoint_work *a, int64_t at, float *tail, const bool regression,
                       const bool windows, const int U)
{
    if (!windows) {
        leave_single_pairs(a, at, regression, U);
        return;
    }
    walk_ahead(a, at, regression, true, false, U);
    leave_strip(a, a->a->history, at, U);
    for (int64_t i = 0; regression && i < a->w.window - 1; i++) {
        const strip y = strip_load(a->a->y + (a->w.tokens + i) * STRIP_ROW, U);
        strip_store(tail + i * a->a->width_stride + at, &y, U);
    }
}

/* Calls run(U, column) for all strips. */
#define EACH_ADJOINT_STRIP(width, run)                                                             \
    do {                                                                                           \
        int64_t column = 0;                                                                        \
        for (; column + STRIP_ROW <= (width); column += STRIP_ROW)                                 \
            run(ADJOINT_VECTORS, column);                                                          \
        for (; column < (width); column += FWA_LANES)                                              \
            run(1, column);                                                                        \
    } while (0)

#define WALKS(name, walk)                                                                          \
    static void name(adjoint_work *a, float *tail)                                                 \
    {                                                                                              \
        (void)tail;                                                                                \
        if (a->w.regression && a->w.window > 1)                                                    \
            EACH_ADJOINT_STRIP(a->width, walk##_TT);                                               \
        else if (a->w.regression)                                                                  \
            EACH_ADJOINT_STRIP(a->width, walk##_TF);                                               \
        else if (a->w.window > 1)                                                                  \
            EACH_ADJOINT_STRIP(a->width, walk##_FT);                                               \
        else                                                                                       \
            EACH_ADJOINT_STRIP(a->width, walk##_FF);                                               \
    }
#define BACK_TT(U, at) walk_strip(a, at, true, true, U)
#define BACK_TF(U, at) walk_strip(a, at, true, false, U)
#define BACK_FT(U, at) walk_strip(a, at, false, true, U)
#define BACK_FF(U, at) walk_strip(a, at, false, false, U)
#define NEXT_TT(U, at) next_strip(a, at, tail, true, true, U)
#define NEXT_TF(U, at) next_strip(a, at, tail, true, false, U)
#define NEXT_FT(U, at) next_strip(a, at, tail, false, true, U)
#define NEXT_FF(U, at) next_strip(a, at, tail, false, false, U)
WALKS(walk_strips, BACK)
WALKS(next_strips, NEXT)
