/* SPDX-License-Identifier: Apache-2.0 */
/* Where a lane's scratch memory has what. */

#include "cpu.h"

typedef struct {
    char *base;  /* NULL: only count */
    size_t size; /* SIZE_MAX once it has overflowed */
} arena;

/* Room for a * b * c floats, aligned to 64. */
static float *take(arena *a, int64_t rows, int64_t columns, int64_t planes)
{
    size_t bytes, at = a->size;
    if (__builtin_mul_overflow((size_t)rows, (size_t)columns, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)planes, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(float), &bytes) ||
        __builtin_add_overflow(bytes, at + 63, &bytes) || bytes > PTRDIFF_MAX) {
        a->size = SIZE_MAX;
        return NULL;
    }
    if (at == SIZE_MAX)
        return NULL;
    a->size = bytes / 64 * 64;
    return a->base ? (float *)(void *)(a->base + at) : NULL;
}

/* Bytes of states that a lane shall hold at once. */
#define FWA_CPU_FUSED_STATES (512 * 1024)

static int32_t padded(int32_t n)
{
    return (n + 15) / 16 * 16;
}

size_t fwa_cpu_chunk_layout(const fwa_cpu_plan *plan, int64_t tokens, bool backward, char *base,
                            fwa_cpu_chunk *c)
{
    const fwa_problem *p = &plan->problem;
    const int64_t window = p->window, dim = p->key_dim;
    const bool regression = p->objective == FWA_OBJECTIVE_REGRESSION;
    arena a = {base, 0};
    int64_t capacity = plan->chunk && plan->chunk < tokens ? plan->chunk : tokens;
    int64_t pairs = capacity + window - 1, row;
    memset(c, 0, sizeof *c);
    c->capacity = capacity;
    c->pair_stride = (pairs + 15) / 16 * 16;
    c->dim_stride = padded(p->key_dim);
    c->stride = padded(plan->block + p->normalizer);
    row = c->stride;
    c->state = take(&a, dim, row, 1);
    c->commit = backward ? NULL : take(&a, dim, row, 1);
    c->x = take(&a, pairs, c->dim_stride, 1);
    c->q = take(&a, capacity, c->dim_stride, 1);
    c->v = take(&a, pairs, row, 1);
    c->gamma = take(&a, capacity, row, 1);
    c->kappa = take(&a, capacity, row, 1);
    c->gram = take(&a, regression ? pairs : 0, c->pair_stride, 1);
    c->scores = take(&a, capacity, c->pair_stride, 1);
    c->w = take(&a, pairs, row, 1);
    c->y = take(&a, pairs, row, 1);
    c->y0 = take(&a, pairs, row, 1);
    c->z0 = take(&a, capacity, row, 1);
    c->o = take(&a, capacity, row, 1);
    c->decay = take(&a, 1, row, 1);
    c->statistic = take(&a, backward && plan->segment ? plan->segment : capacity, 1, 1);
    c->mask = take(&a, plan->form == FWA_FORM_MASKED && !backward ? capacity : 0, 1, 1);
    c->raw = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    if (!backward)
        return a.size;
    c->eigen = take(&a, plan->segment ? plan->segment : capacity, window, 1);
    c->w_trace = take(&a, capacity + 1, pairs, row);
    c->y_trace = take(&a, capacity, window, row);
    c->decay_trace = take(&a, capacity + 1, row, 1);
    c->starts = take(&a, plan->segment ? plan->segment / plan->chunk + 1 : 1, dim, row);
    c->state_grad = take(&a, dim, row, 1);
    c->x_grad = take(&a, pairs, c->dim_stride, 1);
    c->q_grad = take(&a, capacity, c->dim_stride, 1);
    c->v_grad = take(&a, pairs, row, 1);
    c->o_grad = take(&a, capacity, row, 1);
    c->w_grad = take(&a, pairs, row, 1);
    c->y_grad = take(&a, pairs, row, 1);
    c->y0_grad = take(&a, pairs, row, 1);
    c->z0_grad = take(&a, capacity, row, 1);
    c->gram_grad = take(&a, regression ? pairs : 0, c->pair_stride, 1);
    c->scores_grad = take(&a, capacity, c->pair_stride, 1);
    c->gamma_grad = take(&a, 1, row, 1);
    c->kappa_grad = take(&a, 1, row, 1);
    c->decay_grad = take(&a, 1, row, 1);
    c->residual = take(&a, window, row, 1);
    c->residual_grad = take(&a, window, row, 1);
    c->scaled = take(&a, 1, row, 1);
    c->ones = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    c->late_x = take(&a, window, c->dim_stride, 1);
    c->late_v = take(&a, window, row, 1);
    return a.size;
}

size_t fwa_cpu_fused_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_fused *f)
{
    const fwa_problem *p = &plan->problem;
    const int32_t group = plan->kernels->group, panel = plan->kernels->panel;
    const int32_t lanes = plan->kernels->lanes;
    const int64_t window = p->window, tail = window - 1, rows = tail + group,
                  block = FWA_CPU_FUSED_BLOCK;
    const bool eigen = p->objective == FWA_OBJECTIVE_REGRESSION && window > 1;
    const int64_t gates = p->dynamics == FWA_DYNAMICS_PER_CHANNEL ? block : 1;
    arena a = {base, 0};
    int64_t row;
    memset(f, 0, sizeof *f);
    f->back = (int32_t)rows;
    row = f->stride = (p->value_dim + p->normalizer + lanes - 1) / lanes * lanes;
    /* A group may be short of tokens: its rows are read all the same. */
    f->features = take(&a, rows + block + group, FWA_CPU_FEATURE_ROW, 1);
    f->values = take(&a, tail + block, row, 1);
    f->outputs = take(&a, block, row, 1);
    f->gram = take(&a, rows + block, rows, 1);
    f->scores = take(&a, block, rows, 1);
    f->lags = take(&a, eigen ? window : 0, FWA_CPU_LAG_ROW, 1);
    f->matrices = (double *)(void *)take(&a, eigen ? window * (window + 1) / 2 : 0, lanes, 2);
    f->gamma = take(&a, gates == 1 ? block : row, gates, 1);
    f->kappa = take(&a, gates == 1 ? block : row, gates, 1);
    f->factors = take(&a, block / group + 1, 2 * group + 3 * group * (group + 1) / 2 + 1, 1);
    f->sums = take(&a, 2 * group + window, row, 1);
    f->commit = take(&a, p->key_dim, panel, 1);
    f->aside = take(&a, 2 * rows, panel, 1);
    f->raw = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    f->head_size = a.size;
    f->state = take(&a, p->key_dim, row, 1);
    f->scale = take(&a, row, 1, 1);
    f->keep = take(&a, row, 1, 1);
    f->complete = take(&a, group, row, 1);
    f->pending = take(&a, rows, row, 1);
    f->predict = take(&a, rows, row, 1);
    f->fold = (bool *)take(&a, row, 1, 1);
    f->last_features = take(&a, rows, padded(p->key_dim), 1);
    f->last_gram = take(&a, rows, rows, 1);
    f->last_values = take(&a, tail, row, 1);
    f->head_size = a.size - f->head_size;
    return a.size + f->head_size * (size_t)(fwa_cpu_fused_heads(plan) - 1);
}

/* Room for `count` structs of so many bytes. */
static void *take_structs(arena *a, int64_t count, size_t size)
{
    return take(a, count, (int64_t)((size + sizeof(float) - 1) / sizeof(float)), 1);
}

size_t fwa_cpu_bf16_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_bf16 *f)
{
    const fwa_problem *p = &plan->problem;
    const int64_t chunk = FWA_CPU_BF16_CHUNK, block = FWA_CPU_FUSED_BLOCK;
    const int64_t dim = p->key_dim, panel = FWA_CPU_BF16_PANEL;
    arena a = {base, 0};
    memset(f, 0, sizeof *f);
    f->chunks = take_structs(&a, block / chunk, sizeof *f->chunks);
    f->panel = take_structs(&a, 1, sizeof *f->panel);
    f->keys = take_structs(&a, block, (size_t)dim * 2);
    f->queries = take_structs(&a, block, (size_t)dim * 2);
    f->pairs = take_structs(&a, block, (size_t)dim * 2);
    f->exact_keys = take(&a, p->objective == FWA_OBJECTIVE_REGRESSION ? block : 0, dim, 1);
    f->turned = take_structs(&a, chunk, (size_t)dim * 2);
    f->commit_pairs = take_structs(&a, chunk, (size_t)dim * 2);
    f->commit = take(&a, dim, panel, 1);
    f->raw = take(&a, 2, FWA_COLUMNS_LIMIT, 1);
    f->head_size = a.size;
    f->state = take(&a, dim, padded(p->value_dim), 1);
    f->copy = take_structs(&a, padded(p->value_dim), (size_t)dim * 2);
    f->head_size = a.size - f->head_size;
    return a.size + f->head_size * (size_t)(fwa_cpu_fused_heads(plan) - 1);
}

size_t fwa_cpu_adjoint_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_adjoint *f)
{
    const fwa_problem *p = &plan->problem;
    const int64_t chunk = FWA_CPU_ADJOINT_CHUNK, segment = FWA_CPU_SEGMENT_TOKENS;
    const int64_t dim = padded(p->key_dim), width = padded(plan->block), rows = plan->block;
    const int64_t window = p->window, tail = window - 1, pairs = chunk + tail;
    const int64_t units = fwa_cpu_adjoint_units(plan);
    const int64_t lanes = plan->kernels->lanes, strip = 2 * lanes;
    const bool channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    const bool eigen = p->objective == FWA_OBJECTIVE_REGRESSION && window > 1;
    const bool values = p->objective == FWA_OBJECTIVE_INNER_PRODUCT || fwa_cpu_keeps_y(p);
    arena a = {base, 0};
    int64_t stride;
    memset(f, 0, sizeof *f);
    f->dim_stride = dim;
    f->width_stride = width;
    f->state_stride = f->feature_stride = dim + 16;
    stride = f->pair_stride = padded((int32_t)pairs);
    f->chunks = plan->blocks > 1 ? segment / chunk : 1;
    f->starts = take(&a, segment / chunk, rows, f->state_stride);
    f->grads = take(&a, units, rows, f->state_stride);
    f->late_values = take(&a, units, tail, width);
    f->late_keys = take(&a, units, tail, dim);
    f->features = take(&a, tail + segment, f->feature_stride, 2);
    f->values = take(&a, values ? tail + segment : 0, width, 1);
    f->lags = take(&a, window, FWA_CPU_ADJOINT_LAG_ROW, 1);
    f->matrices = (double *)(void *)take(&a, eigen ? window * (window + 2) : 0, lanes, 2);
    f->eigen = take(&a, segment, window, 1);
    f->tails = take(&a, segment / chunk, tail, width);
    f->gram = take(&a, pairs, stride, f->chunks);
    f->scores = take(&a, chunk, stride, f->chunks);
    f->entries = take(&a, pairs, stride, f->chunks);
    f->entry_factor = take(&a, chunk, 1, f->chunks);
    f->gram_grad = take(&a, pairs, stride, 1);
    f->scores_grad = take(&a, chunk, stride, 1);
    f->rows = take(&a, 2 * chunk, width, 1);
    f->scaled = take(&a, 2 * chunk, width, 1);
    f->tail_rows = take(&a, tail, width, 1);
    f->seeds = take(&a, pairs, width, 1);
    f->written = take(&a, pairs, width, 1);
    f->value_grads = take(&a, pairs, width, 1);
    f->keys = take(&a, dim, 2 * chunk, 1);
    f->turned = take(&a, width, 2 * chunk, 1);
    f->by_state = take(&a, 2 * chunk, dim, 1);
    f->by_tail = take(&a, tail, dim, 1);
    f->by_grad = take(&a, pairs, dim, 1);
    f->x_grad = take(&a, pairs, dim, 1);
    f->q_grad = take(&a, chunk, dim, 1);
    f->gamma = take(&a, channel ? chunk : 0, width, 1);
    f->kappa = take(&a, channel ? chunk : 0, width, 1);
    f->decay = take(&a, channel ? chunk + 1 : 0, width, 1);
    f->recalled = take(&a, channel ? 2 * chunk : 0, width, 1);
    f->whole = take(&a, channel, width, 1);
    f->gamma_grads = take(&a, channel ? chunk : 0, width, 1);
    f->kappa_grads = take(&a, channel ? chunk : 0, width, 1);
    f->history = take(&a, chunk + 1, pairs, strip);
    f->w_grad = take(&a, pairs, strip, 1);
    f->y = take(&a, pairs, strip, 1);
    f->y_grad = take(&a, pairs, strip, 1);
    f->v_grad = take(&a, pairs, strip, 1);
    f->y_trace = take(&a, chunk, window, strip);
    f->strip_rows = take(&a, window, strip, 1);
    f->gram_sums = take(&a, pairs, stride, lanes);
    f->score_sums = take(&a, chunk, stride, lanes);
    f->keep = take(&a, width, 1, 1);
    f->ones = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    f->raw = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    return a.size;
}

int32_t fwa_cpu_adjoint_units(const fwa_cpu_plan *plan)
{
    const int64_t units = (int64_t)plan->problem.heads_value * plan->blocks;
    return units < FWA_CPU_FUSED_HEADS ? (int32_t)units : FWA_CPU_FUSED_HEADS;
}

int32_t fwa_cpu_fused_heads(const fwa_cpu_plan *plan)
{
    const int32_t state = plan->problem.key_dim * padded(plan->problem.value_dim) *
                          (int32_t)sizeof(float);
    const int32_t heads = FWA_CPU_FUSED_STATES / state;
    return heads < 1 ? 1 : heads < FWA_CPU_FUSED_HEADS ? heads : FWA_CPU_FUSED_HEADS;
}

/* A sequence has at most two segments more than whole ones fit into its length. */
int64_t fwa_cpu_first_segment(const fwa_cpu_plan *plan, const fwa_sequence *s)
{
    return plan->segment ? s->before / plan->segment + 2 * s->index : s->index;
}

int64_t fwa_cpu_segments(const fwa_cpu_plan *plan, const fwa_extent *e)
{
    int64_t tokens = e->batch * e->tokens;
    return plan->segment ? tokens / plan->segment + 2 * e->sequences : e->sequences;
}
