/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 forward's blocks of tokens: what does not depend on the state. */

#define CHUNK FWA_CPU_BF16_CHUNK
#define BLOCK FWA_CPU_FUSED_BLOCK

typedef fwa_cpu_bf16_chunk bf16_chunk;

typedef struct {
    fused_work f; /* of its scratch only the state */
    fwa_cpu_bf16 s;
    int64_t words;        /* of a row of features: D / 2 */
    int64_t first, count; /* the block's chunks are [first, first + count) of s.chunks */
} bf16_work;

#define EACH_CHUNK(w, c)                                                                           \
    for (bf16_chunk *c = (w)->s.chunks + (w)->first; c < (w)->s.chunks + (w)->first + (w)->count;  \
         c++)

/* Cuts the block into chunks, which lie on a grid of the whole sequence. */
static void cut_block(bf16_work *w)
{
    const int64_t seen = w->f.w.s->seen + w->f.start;
    int64_t b, tokens;
    w->first = seen % BLOCK / CHUNK;
    w->count = 0;
    for (b = 0; b < w->f.tokens; b += tokens) {
        const int64_t left = w->f.tokens - b, n = w->first + w->count++;
        bf16_chunk *c = w->s.chunks + n;
        tokens = CHUNK - (seen + b) % CHUNK;
        tokens = tokens < left ? tokens : left;
        c->b = b;
        c->tokens = tokens;
        c->bare = w->f.start + b < w->f.w.first_pair;
        c->keys = w->s.keys + n * CHUNK * w->words;
        c->queries = w->s.queries + n * CHUNK * w->words;
        c->pairs = w->s.pairs + n * CHUNK * w->words;
        c->exact_keys = w->s.exact_keys + n * CHUNK * w->f.dim;
    }
}

/* ---- Features and what comes of them ---- */

/* What a row of words is divided by: its norm; and the sum of its squares behind the feature
 * map. */
typedef struct {
    float scale, energy;
} row_size;

/* Raw words to features, but for the factor of the norm. */
static row_size feature_words(const fwa_problem *p, int64_t words, const uint32_t *from,
                              uint32_t *to, bool energy)
{
    const bool norm = p->qk_norm != FWA_NORM_NONE, relu = p->phi == FWA_FEATURE_MAP_RELU;
    __m512 before = _mm512_setzero_ps(), after = before;
    row_size size = {1, 0};
    for (int64_t i = 0; i < words; i += 16) {
        __m512i row = _mm512_loadu_si512(from + i);
        if (norm)
            before = _mm512_dpbf16_ps(before, (__m512bh)row, (__m512bh)row);
        if (relu) { /* negative numbers, but no NaN */
            const __mmask32 nan = _mm512_cmpgt_epu16_mask(row, _mm512_set1_epi16((short)0xff80));
            row = _mm512_mask_max_epi16(row, ~nan, row, _mm512_setzero_si512());
        }
        if (energy)
            after = _mm512_dpbf16_ps(after, (__m512bh)row, (__m512bh)row);
        _mm512_storeu_si512(to + i, row);
    }
    if (norm) {
        float root = sum_lanes((vec)before);
        if (p->qk_norm == FWA_NORM_RMS)
            root /= (float)p->key_dim;
        root = sqrtf(root + (float)p->norm_eps);
        size.scale = root != 0 ? 1 / root : 0;
    }
    if (energy)
        size.energy = sum_lanes((vec)after) * (size.scale * size.scale);
    return size;
}

/* A row of a bf16 tensor: itself where it can be, else a copy. */
static const uint32_t *word_row(const bf16_work *w, const fwa_tensor *t, int64_t offset)
{
    const uint16_t *from = (const uint16_t *)(const void *)fwa_element(t, offset);
    const int64_t step = t->stride[t->rank - 1];
    uint16_t *to = (uint16_t *)(void *)w->s.raw;
    if (step == 1)
        return (const uint32_t *)(const void *)from;
    for (int64_t d = 0; d < 2 * w->words; d++)
        to[d] = from[d * step];
    return (const uint32_t *)(const void *)to;
}

/* The raw key of the pair that the sequence's token t writes. */
static const uint32_t *key_words(const bf16_work *w, int64_t t)
{
    const unit_work *u = &w->f.w;
    const int64_t at = t - (u->p->alignment == FWA_ALIGNMENT_NEXT_LATENT);
    uint16_t *to = (uint16_t *)(void *)(w->s.raw + FWA_COLUMNS_LIMIT);
    if (at >= 0)
        return word_row(w, u->in.k, fwa_at3(u->in.k, u->s->row, u->s->first + at, u->u.key_head));
    load_raw_key(u, t, w->s.raw);
    for (int64_t d = 0; d < 2 * w->words; d++)
        to[d] = fwa_bf16_from_float(w->s.raw[d]);
    return (const uint32_t *)(const void *)to;
}

/* Rows of the chunk's features; those that it has no tokens for are zeros. */
OUTLINE void load_chunk_rows(const bf16_work *w, bf16_chunk *c)
{
    const unit_work *u = &w->f.w;
    const fwa_tensor *q = u->in.q;
    const bool energy = u->needs_statistic && !u->regression;
    const size_t bytes = sizeof *c->keys * (size_t)w->words;
    for (int64_t t = 0; t < CHUNK; t++) {
        const int64_t token = w->f.start + c->b + t, at = u->s->first + token;
        uint32_t *key = c->keys + t * w->words, *query = c->queries + t * w->words;
        row_size size = {1, 0}, query_size = {1, 0};
        if (t < c->tokens && token >= u->first_pair)
            size = feature_words(u->p, w->words, key_words(w, token), key, energy);
        else
            memset(key, 0, bytes);
        if (t < c->tokens)
            query_size = feature_words(u->p, w->words,
                                       word_row(w, q, fwa_at3(q, u->s->row, at, u->u.query_head)),
                                       query, false);
        else
            memset(query, 0, bytes);
        c->key_scale[t] = size.scale;
        c->energy[t] = size.energy;
        c->query_scale[t] = query_size.scale;
    }
}

/* All of the chunk that keys and queries alone decide. */
OUTLINE void load_chunk_keys(const bf16_work *w, bf16_chunk *c)
{
    uint32_t *turned = w->s.turned;
    load_chunk_rows(w, c);
    for (int64_t k = 0; k < w->words; k += 16) {
        vec tile[16];
        UNROLL_16 for (int t = 0; t < 16; t++)
            tile[t] = load((const float *)(const void *)(c->keys + t * w->words + k));
        transpose_tile(tile);
        UNROLL_16 for (int i = 0; i < 16; i++)
            store((float *)(void *)(turned + (k + i) * CHUNK), tile[i]);
    }
    pair_chunk(w->words, CHUNK, c->keys, c->pairs);
    multiply_square(w->words, w->f.w.regression ? c->keys : NULL, c->queries, turned, c->gram,
                    c->scores);
    for (int64_t t = 0; w->f.w.regression && t < CHUNK; t++)
        c->energy[t] = c->gram[t][t] * (c->key_scale[t] * c->key_scale[t]);
}

/* gamma and eta of the block's tokens. */
OUTLINE void load_block_steps(const bf16_work *w)
{
    const unit_work *u = &w->f.w;
    const int64_t n = w->f.tokens;
    float beta[BLOCK], lambda[BLOCK], gate[BLOCK];
    load_gate(u, u->in.beta, w->f.start, n, 1, beta);
    load_gate(u, u->in.lambda, w->f.start, n, 0, lambda);
    load_gate(u, u->in.log_gate, w->f.start, n, 0, gate);
    for (int64_t b = 0; b < n; b++)
        gate[b] = fwa_decay_clip_gate_f32(gate[b]);
    for (int64_t b = n; b % FWA_LANES; b++)
        gate[b] = 0;
    for (int64_t b = 0; b < n; b += FWA_LANES)
        store(gate + b, exp_vector(load(gate + b)));
    EACH_CHUNK(w, c)
    {
        for (int64_t t = 0; t < CHUNK; t++) {
            const int64_t b = c->b + t;
            c->gamma[t] = 1;
            c->eta[t] = 0;
            if (t < c->tokens && w->f.start + b >= u->first_pair) {
                const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                    &u->knobs, beta[b], lambda[b], gate[b], c->energy[t]);
                c->gamma[t] = step.gamma;
                c->eta[t] = step.eta;
            }
        }
    }
}

/* Lane i: what is left, after the token that gamma is of, of what token i wrote; `token` is that
 * token's lane. */
INLINE vec decay_on(vec left, float gamma, int64_t token)
{
    return (vec)_mm512_mask_blend_ps((__mmask16)(1u << token), (__m512)(left * splat(gamma)),
                                     _mm512_set1_ps(1));
}

/* The vector's lanes below n; what others hold is not looked at. */
INLINE vec lanes_below(int64_t n, vec value)
{
    return (vec)_mm512_maskz_mov_ps((__mmask16)((1u << n) - 1), (__m512)value);
}

/* F for the first `tokens` tokens of the chunk. Returns g at their end. */
static float written_factors(const bf16_chunk *c, int64_t tokens, float *to)
{
    vec left = splat(0);
    float end = c->scale;
    for (int64_t t = 0; t < tokens; t++) {
        left = decay_on(left, c->gamma[t], t);
        end *= c->gamma[t];
    }
    store(to, lanes_below(tokens, left * load(c->eta) * load(c->key_scale)));
    return end;
}

/* Where bf16 would not do. Gains b = eta |x|^2 make predictions as large as values times the root
 * of sum b^2 / sum (2 b - b^2), and their rounding with them: where a chunk's tokens so far have
 * more than 2.5 times as much of the first sum, by some slack, predictions are taken in float32.
 * And where keys of a chunk resemble each other, its residuals answer each other: what is left of
 * many is small beside what they are rounded by, so they are written in float32. Both are what a
 * token and those before it in the chunk know. */
#define MOST_GAIN  2.5F
#define GAIN_SLACK 3.0F
#define MOST_ALIKE 1.0F

static void find_exact_rows(const bf16_work *w, bf16_chunk *c)
{
    float excess = 0;
    c->predicts_exactly = c->writes_exactly = false;
    c->predicts_all_exactly = true;
    for (int64_t t = 0; t < CHUNK; t++) {
        const vec a = load(c->solve[t]);
        const float b = c->eta[t] * c->energy[t];
        bool gain, alike;
        excess += b * b - MOST_GAIN * (2 - b) * b;
        gain = w->f.w.regression && excess > GAIN_SLACK;
        alike = w->f.w.regression && sum_lanes(a * a) > MOST_ALIKE;
        c->exact_predict[t] = gain;
        c->exact_write[t] = gain || alike;
        c->predicts_exactly |= gain;
        c->predicts_all_exactly &= gain;
        c->writes_exactly |= gain || alike;
    }
    for (int64_t d = 0; c->writes_exactly && d < CHUNK * w->f.dim; d += 16)
        _mm512_storeu_ps(c->exact_keys + d, load_bf16((const uint16_t *)(const void *)c->keys + d));
}

/* E, A, W and F of the chunk, where g is such at its start. Returns g at its end: it is folded into
 * S' there where the block ends and where it becomes small. */
OUTLINE float chunk_factors(const bf16_work *w, bf16_chunk *c, float g)
{
    const unit_work *u = &w->f.w;
    const vec added = load(c->eta) * load(c->key_scale);
    const float scale = (float)u->p->scale;
    vec left = splat(0);
    float end = g;
    c->scale = g;
    for (int64_t t = 0; t < CHUNK; t++) {
        const float before = end, query = c->query_scale[t] * scale, key = c->key_scale[t];
        const vec last = left;
        left = decay_on(left, c->gamma[t], t);
        end *= c->gamma[t];
        c->predict[t] = (u->decayed ? end : before) * key;
        c->recall[t] = (u->before ? before : end) * query;
        if (u->regression)
            store(c->solve[t], lanes_below(t, load(c->gram[t]) * ((u->decayed ? left : last) *
                                                                  added * splat(key))));
        store(c->read[t],
              lanes_below(t + !u->before,
                          load(c->scores[t]) * ((u->before ? last : left) * added * splat(query))));
    }
    end = written_factors(c, CHUNK, c->write);
    find_exact_rows(w, c);
    c->keep = 1;
    if (c->b + c->tokens == w->f.tokens || !(end >= SMALL_SCALE)) {
        c->keep = end;
        return 1;
    }
    store(c->write, load(c->write) * splat(1 / end));
    return end;
}

/* Everything of the block that does not depend on the state. */
static void load_bf16_block(bf16_work *w, bool same_keys)
{
    float g = 1;
    cut_block(w);
    if (!same_keys)
        EACH_CHUNK(w, c) load_chunk_keys(w, c);
    load_block_steps(w);
    EACH_CHUNK(w, c) g = chunk_factors(w, c, g);
}
