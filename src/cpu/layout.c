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
    c->statistic = take(&a, capacity, 1, 1);
    c->mask = take(&a, plan->form == FWA_FORM_MASKED && !backward ? capacity : 0, 1, 1);
    c->raw = take(&a, 1, FWA_COLUMNS_LIMIT, 1);
    if (!backward)
        return a.size;
    c->eigen = take(&a, capacity, window, 1);
    c->w_trace = take(&a, capacity + 1, pairs, row);
    c->y_trace = take(&a, capacity, window, row);
    c->decay_trace = take(&a, capacity + 1, row, 1);
    c->starts = take(&a, plan->segment ? plan->segment : 1, dim, row);
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

/* A sequence whose first and last chunk are cut short has at most two segments more than whole ones
 * fit into its length. */
int64_t fwa_cpu_first_segment(const fwa_cpu_plan *plan, const fwa_sequence *s)
{
    return plan->segment ? s->before / (plan->segment * plan->chunk) + 2 * s->index : s->index;
}

int64_t fwa_cpu_segments(const fwa_cpu_plan *plan, const fwa_extent *e)
{
    int64_t tokens = e->batch * e->tokens;
    return plan->segment ? tokens / (plan->segment * plan->chunk) + 2 * e->sequences : e->sequences;
}
