/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forward's vectors and rows: features, rows fetched ahead, and products of a panel. */

#define PANEL       (PANEL_VECTORS * FWA_LANES)
#define FEATURE_ROW FWA_CPU_FEATURE_ROW
#define QUERY       (FEATURE_ROW / 2) /* where a row's query begins */
#define SMALL_SCALE 0x1p-10F          /* below this, g is folded into S' */
#define FOR_U       for (int u = 0; u < U; u++)
/* 1 where a pass's pairs, sums, two rows and two factors fit into the registers */
#define ROW_AHEAD ((3 * GROUP + 2) * PANEL_VECTORS + 2 <= REGISTERS)
/* Rows of a pass to a turn of its loop: where they are short, the loop itself costs 3 % (Zen 3). */
#define PASS_ROWS (ROW_AHEAD ? 1 : 4)

/* The root of the norm of a padded row; 1 without a norm. */
INLINE float feature_root(const fwa_problem *p, int64_t dim, const float *raw)
{
    vec sum = splat(0);
    float root;
    if (p->qk_norm == FWA_NORM_NONE)
        return 1;
    for (int64_t d = 0; d < dim; d += FWA_LANES)
        sum += load(raw + d) * load(raw + d);
    root = sum_lanes(sum);
    if (p->qk_norm == FWA_NORM_RMS)
        root /= (float)p->key_dim;
    return sqrtf(root + (float)p->norm_eps);
}

INLINE vec elu1(vec value)
{
    const vec low = choose(value < splat(-104), splat(-104), value);
    return choose(value > splat(0), value + splat(1),
                  exp_vector(choose(low > splat(0), splat(0), low)));
}

/* One row of features, padded with zeros: x = phi(norm(raw)). */
static void feature_row(const fwa_problem *p, int64_t dim, const float *raw, float *x)
{
    const float root = feature_root(p, dim, raw);
    const vec inverse = splat(root != 0 ? 1 / root : 0);
    int64_t d;
#define EACH_VALUE(map)                                                                            \
    for (d = 0; d < dim; d += FWA_LANES) {                                                         \
        const vec value = load(raw + d) * inverse;                                                 \
        store(x + d, map);                                                                         \
    }
    if (p->phi == FWA_FEATURE_MAP_RELU)
        EACH_VALUE(choose(value < splat(0), splat(0), value)) /* a NaN stays */
    else if (p->phi == FWA_FEATURE_MAP_ELU1)
        EACH_VALUE(elu1(value))
    else
        EACH_VALUE(value)
#undef EACH_VALUE
    for (d = p->key_dim; d < dim; d++)
        x[d] = 0;
}

/* The gradient of raw from that of x: du = (g - w <w, g> / m) / n with w = raw / n, m = 1 (l2) or D
 * (rms); one element has a slope of its own. All rows are padded with zeros; raw is not looked at
 * where x is raw. */
static void feature_row_backward(const fwa_problem *p, int64_t dim, const float *raw,
                                 const float *x_grad, float *raw_grad)
{
    const bool norm = p->qk_norm != FWA_NORM_NONE;
    const float root = norm ? feature_root(p, dim, raw) : 1, inverse = root != 0 ? 1 / root : 0;
    vec sum = splat(0);
    float along;
    int64_t d;
    for (d = 0; d < dim; d += FWA_LANES) {
        vec grad = load(x_grad + d);
        if (p->phi != FWA_FEATURE_MAP_IDENTITY) {
            const vec value = load(raw + d) * splat(inverse);
            const vec below = p->phi == FWA_FEATURE_MAP_RELU ? splat(0) : grad * elu1(value);
            grad = choose(value > splat(0), grad, below);
        }
        if (norm)
            sum += load(raw + d) * grad;
        store(raw_grad + d, grad);
    }
    if (!norm)
        return;
    if (p->key_dim == 1) {
        raw_grad[0] *= fwa_feature_slope_f32(p, inverse);
        return;
    }
    along = sum_lanes(sum) * inverse;
    if (p->qk_norm == FWA_NORM_RMS)
        along /= (float)p->key_dim;
    for (d = 0; d < dim; d += FWA_LANES)
        store(raw_grad + d,
              (load(raw_grad + d) - load(raw + d) * splat(inverse * along)) * splat(inverse));
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
    const float *value; /* of the pair B - 1 before the block's first */
    float *output;
    int64_t value_stride, output_stride;
    float output_scale; /* what the walk multiplies outputs by */
    float *kept;        /* where rows are left for the backward (fwa_cpu_keeps_y); NULL: nowhere */
    int64_t kept_stride;
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
    f->direct_values = start >= w->window - 1 && is_direct(w, w->in.v);
    f->direct_outputs = o && is_direct(w, o);
    f->value = f->direct_values ? direct_row(w, w->in.v, start - w->window + 1) : f->f->values;
    f->value_stride = f->direct_values ? w->in.v->stride[1] : f->f->stride;
    f->output = f->direct_outputs ? direct_row(w, o, start) : f->f->outputs;
    f->output_stride = f->direct_outputs ? o->stride[1] : f->f->stride;
    f->output_scale = w->p->normalizer ? 1 : (float)w->p->scale;
    f->kept_stride = fwa_cpu_kept_stride(w->p);
    f->kept = kept && kept->rows
                  ? fwa_cpu_kept_row(w->p, kept, w->u.head, w->s->before + start) + w->u.column
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

/* Adds rows of so many bytes, `step` bytes apart. */
static void fetch_more_rows(fetcher *a, const void *at, int64_t step, int64_t bytes)
{
    const int64_t i = a->tensors++;
    a->at[i] = at;
    a->step[i] = step;
    a->lines[i] = (bytes + 63) / 64;
}

/* Adds the rows that begin at `offset` of tensor t, `count` elements wide, a token apart. */
static void fetch_more(fetcher *a, const fwa_tensor *t, int64_t offset, int64_t count)
{
    const int64_t size = t->dtype == FWA_DTYPE_F32 ? 4 : 2;
    fetch_more_rows(a, fwa_element(t, offset),
                    t->shape[1] > 1 ? t->stride[1] * size : 0, /* one token: any stride */
                    count * size);
}

/* For `tokens` tokens from `start` on of value head `head`: q, k, v, o and columns of beta, shared
 * out over the passes of a block. */
static fetcher fetcher_make(const fused_work *f, int64_t head, int64_t start, int64_t tokens)
{
    const unit_work *w = &f->w;
    const fwa_cpu_unit u = fwa_cpu_head_unit(w->plan, head, f->unit->column, f->unit->columns);
    const fwa_tensor *v = w->in.v, *o = f->args ? &f->args->o : v, *beta = w->in.beta;
    const int64_t row = w->s->row, token = w->s->first + start;
    fetcher a = {.rows = 0};
    fetch_more(&a, w->in.q, fwa_at3(w->in.q, row, token, u.query_head), w->p->key_dim);
    fetch_more(&a, w->in.k, fwa_at3(w->in.k, row, token, u.key_head), w->p->key_dim);
    fetch_more(&a, v, fwa_at3(v, row, token, u.head) + u.column * v->stride[3], u.columns);
    fetch_more(&a, o, fwa_at3(o, row, token, u.head) + u.column * o->stride[3], u.columns);
    if (w->per_channel && fwa_present(beta))
        fetch_more(&a, beta, fwa_at3(beta, row, token, u.head) + u.column * beta->stride[3],
                   u.columns);
    a.rows = a.tensors * tokens;
    return a;
}

/* ---- Products of a panel with rows of features, FEATURE_ROW apart ---- */

/* What the row of the state adds to the products with the group's j-th key and query. */
INLINE void pass_products(const int U, const bool keys, int j, const float *key,
                          const panel_row *row, panel_row *key_sum, panel_row *query_sum)
{
    const float *feature = key + j * FEATURE_ROW;
    if (keys)
        row_add(&key_sum[j], feature[0], row, U);
    row_add(&query_sum[j], feature[QUERY], row, U);
}

/* What a pass has in registers. */
typedef struct {
    panel_row pair[GROUP], key_sum[GROUP], query_sum[GROUP], factor, row;
} pass_state;

/* Row d of the state: what it adds to the sums, or with ROW_AHEAD the row before it does. */
INLINE void pass_row(const int U, const bool keys, const bool scaled, pass_state *p, float *s,
                     const float *x, const float *key)
{
    panel_row fresh = row_load(s, U);
    if (scaled)
        row_scale(&fresh, &p->factor, U);
    UNROLL for (int j = 0; j < GROUP; j++)
    {
        row_add(&fresh, x[ROW_AHEAD + j * FEATURE_ROW], &p->pair[j], U);
        if (ROW_AHEAD) {
            FOR_U PIN(fresh.v[u]); /* in this order */
            pass_products(U, keys, j, key, &p->row, p->key_sum, p->query_sum);
        }
    }
    row_store(s, &fresh, U);
    p->row = fresh;
    UNROLL for (int j = 0; !ROW_AHEAD && j < GROUP; j++)
        pass_products(U, keys, j, key, &p->row, p->key_sum, p->query_sum);
}

/* S = keep S + sum_j x_j w_j^T for GROUP pairs from `x` on; sums = S^T x for the GROUP keys at
 * `key`, and behind them S^T q for their queries. A row waits for its pairs one by one: with
 * registers enough it is formed while the products of the row before it are. */
INLINE void pass_rows(const int U, const bool keys, const bool scaled, int64_t dim, float *s,
                      const float *x, const float *complete, int64_t stride, const float *keep,
                      const float *key, float *sums, fetcher *ahead)
{
    pass_state p = {.row = {{{0}}}};
    const int64_t last = dim - ROW_AHEAD, apart = ahead->apart;
    int64_t d = 0;
    UNROLL for (int j = 0; j < GROUP; j++) p.pair[j] = row_load(complete + j * stride, U);
    if (scaled)
        p.factor = row_load(keep, U);
    if (ROW_AHEAD) {
        p.row = row_load(s, U);
        if (scaled)
            row_scale(&p.row, &p.factor, U);
        UNROLL for (int j = 0; j < GROUP; j++) row_add(&p.row, x[j * FEATURE_ROW], &p.pair[j], U);
        row_store(s, &p.row, U);
        s += U * FWA_LANES;
    }
    while (d < last) {
        const int64_t until = d + apart < last ? d + apart : last;
        fetch_row(ahead);
        for (; PASS_ROWS > 1 && d + PASS_ROWS <= until;
             d += PASS_ROWS, s += PASS_ROWS * U * FWA_LANES)
            UNROLL for (int i = 0; i < PASS_ROWS; i++)
                pass_row(U, keys, scaled, &p, s + i * U * FWA_LANES, x + d + i, key + d + i);
        for (; d < until; d++, s += U * FWA_LANES)
            pass_row(U, keys, scaled, &p, s, x + d, key + d);
    }
    UNROLL for (int j = 0; ROW_AHEAD && j < GROUP; j++)
        pass_products(U, keys, j, key + d, &p.row, p.key_sum, p.query_sum);
    UNROLL for (int j = 0; j < GROUP; j++)
    {
        if (keys)
            row_store(sums + j * stride, &p.key_sum[j], U);
        row_store(sums + (GROUP + j) * stride, &p.query_sum[j], U);
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
    for (; pairs > 4; pairs -= 4, x += 4 * FEATURE_ROW, w += 4 * stride) {
        add_some(U, 4, dim, from, to, from_stride, to_stride, x, w, stride, keep);
        from = to;
        from_stride = to_stride;
        keep = NULL;
    }
#define ADD(J) add_some(U, J, dim, from, to, from_stride, to_stride, x, w, stride, keep)
    switch (pairs) {
    case 4: ADD(4); break;
    case 3: ADD(3); break;
    case 2: ADD(2); break;
    case 1: ADD(1); break;
    default:
        if (from != to || keep)
            ADD(0);
    }
#undef ADD
}

/* These few are called once a block or less, or by rules that have more to do: one copy of each
 * will do, which finds its U out. */
#define WITH_U(U, run)                                                                             \
    do {                                                                                           \
        if ((U) == PANEL_VECTORS)                                                                  \
            run(PANEL_VECTORS);                                                                    \
        else                                                                                       \
            run(1);                                                                                \
    } while (0)

OUTLINE void add_pairs(int U, int64_t pairs, int64_t dim, const float *from, float *to,
                       int64_t from_stride, int64_t to_stride, const float *x, const float *w,
                       int64_t stride, const float *keep)
{
#define ADD(U) add_pairs_of(U, pairs, dim, from, to, from_stride, to_stride, x, w, stride, keep)
    WITH_U(U, ADD);
#undef ADD
}

INLINE void project_some(const int U, const int M, int64_t dim, const float *s, int64_t s_stride,
                         const float *a, int64_t a_stride, float *sums, int64_t stride)
{
    panel_row sum[4] = {{{{0}}}};
    int64_t d;
    for (d = 0; d < dim; d++, s += s_stride) {
        const panel_row row = row_load(s, U);
        UNROLL for (int m = 0; m < M; m++) row_add(&sum[m], a[d + m * a_stride], &row, U);
    }
    UNROLL for (int m = 0; m < M; m++) row_store(sums + m * stride, &sum[m], U);
}

INLINE void project_of(const int U, int64_t rows, int64_t dim, const float *s, int64_t s_stride,
                       const float *a, int64_t a_stride, float *sums, int64_t stride)
{
#define PROJECT(M) project_some(U, M, dim, s, s_stride, a, a_stride, sums, stride)
    for (; rows > 4; rows -= 4, a += 4 * a_stride, sums += 4 * stride)
        PROJECT(4);
    switch (rows) {
    case 4: PROJECT(4); break;
    case 3: PROJECT(3); break;
    case 2: PROJECT(2); break;
    case 1: PROJECT(1); break;
    }
#undef PROJECT
}

/* sums = S^T a for rows of features, a_stride apart; sums are `stride` apart. */
OUTLINE void project(int U, int64_t rows, int64_t dim, const float *s, int64_t s_stride,
                     const float *a, int64_t a_stride, float *sums, int64_t stride)
{
#define PROJECT(U) project_of(U, rows, dim, s, s_stride, a, a_stride, sums, stride)
    WITH_U(U, PROJECT);
#undef PROJECT
}
