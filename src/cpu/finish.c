/* SPDX-License-Identifier: Apache-2.0 */
/* The last part of a backward call: the units' partial gradients of features and gates, summed in a
 * fixed order and carried back through the feature pipeline. */

#include "cpu.h"

typedef struct {
    const fwa_cpu_plan *plan;
    const fwa_problem *p;
    const fwa_call *call;
    const fwa_backward_args *args;
    const fwa_cpu_partials *parts;
    fwa_inputs in;
    int64_t dim_stride, tasks;
    bool needs_raw; /* features are not the rows of keys and queries themselves */
} finish_work;

/* Units [first, last) write partials of one head. */
typedef struct {
    int64_t first, last;
} unit_range;

static unit_range key_units(const finish_work *w, int64_t head, int32_t heads)
{
    int64_t per_head = (int64_t)w->p->heads_value / heads * w->plan->blocks;
    return (unit_range){head * per_head, (head + 1) * per_head};
}

/* Sum over units of rows that begin at `from`, `step` floats apart. */
static void sum_partials(const float *from, int64_t step, int64_t count, unit_range units,
                         float *sum)
{
    int64_t unit, i;
    for (i = 0; i < count; i++)
        sum[i] = 0;
    for (unit = units.first; unit < units.last; unit++, from += step)
        for (i = 0; i < count; i++)
            sum[i] += from[i];
}

/* to += the row of an optional tensor */
static void add_row(const finish_work *w, const fwa_tensor *t, int64_t offset, float *to)
{
    float row[256];
    int32_t i;
    if (!fwa_present(t))
        return;
    fwa_load_f32(t, offset, w->p->key_dim, row);
    for (i = 0; i < w->p->key_dim; i++)
        to[i] += row[i];
}

/* The gradient of the raw key of pair `pair` of sequence n: features first, then what a tail handed
 * on said of it. `raw` is the key. */
static void key_gradient(const finish_work *w, const fwa_sequence *s, int64_t head, int64_t pair,
                         const float *raw, float *grad)
{
    const fwa_problem *p = w->p;
    const fwa_tensor *tail = &w->args->carry_out_grad.tail_key;
    int64_t index = pair - (s->length - (p->window - 1)); /* in the tail handed on */
    float features[256];
    const unit_range units = key_units(w, head, p->heads_key);
    sum_partials(fwa_cpu_key_grad(w->plan, w->parts, units.first, s, pair),
                 w->parts->pairs * w->dim_stride, p->key_dim, units, features);
    fwa_feature_backward_f32(p, raw, features, grad);
    if (index >= 0 && fwa_present(tail))
        add_row(w, tail, fwa_at3(tail, s->index, index, head), grad);
}

static void finish_keys(const finish_work *w, const fwa_sequence *s, int64_t head)
{
    const fwa_problem *p = w->p;
    const fwa_tensor *k = w->in.k, *out = &w->args->k_grad;
    const fwa_tensor *last = &w->args->carry_out_grad.prev_key;
    const int64_t late = p->alignment == FWA_ALIGNMENT_NEXT_LATENT;
    float raw[256] = {0}, grad[256];
    int64_t t = w->plan->own_keys && !s->padded ? s->length - late : 0; /* others are written */
    for (t = t > 0 ? t : 0; fwa_present(out) && t < s->length; t++) {
        memset(grad, 0, sizeof grad);
        if (!s->padded && t + late < s->length) { /* the last key of all writes nothing yet */
            if (w->needs_raw)
                fwa_load_f32(k, fwa_at3(k, s->row, s->first + t, head), p->key_dim, raw);
            key_gradient(w, s, head, t + late, raw, grad);
        }
        if (!s->padded && late && t == s->length - 1)
            add_row(w, last, fwa_at2(last, s->index, head), grad);
        fwa_store_f32(out, fwa_at3(out, s->row, s->first + t, head), p->key_dim, grad);
    }
}

/* The gradients of the keys handed in. */
static void finish_carry_keys(const finish_work *w, const fwa_sequence *s, int64_t head)
{
    const fwa_problem *p = w->p;
    const fwa_carry *in = &w->args->carry_in, *out = &w->args->carry_in_grad;
    const int64_t tail = p->window - 1, fill = s->padded ? 0 : fwa_tail_fill(p, s->seen);
    float raw[256], grad[256];
    int64_t i;
    if (fwa_present(&out->prev_key)) {
        memset(grad, 0, sizeof grad);
        if (!s->padded && s->seen > 0 && s->length > 0) {
            fwa_load_f32(&in->prev_key, fwa_at2(&in->prev_key, s->slot_in, head), p->key_dim, raw);
            key_gradient(w, s, head, 0, raw, grad);
        }
        fwa_store_f32(&out->prev_key, fwa_at2(&out->prev_key, s->index, head), p->key_dim, grad);
    }
    for (i = 0; fwa_present(&out->tail_key) && i < tail; i++) {
        memset(grad, 0, sizeof grad);
        if (i >= tail - fill && s->length > 0) {
            fwa_load_f32(&in->tail_key, fwa_at3(&in->tail_key, s->slot_in, i, head), p->key_dim,
                         raw);
            key_gradient(w, s, head, i - tail, raw, grad);
        }
        fwa_store_f32(&out->tail_key, fwa_at3(&out->tail_key, s->index, i, head), p->key_dim, grad);
    }
}

static void finish_queries(const finish_work *w, const fwa_sequence *s, int64_t head)
{
    const fwa_problem *p = w->p;
    const fwa_tensor *q = w->in.q, *out = &w->args->q_grad;
    const unit_range units = key_units(w, head, p->heads_query);
    float raw[256] = {0}, grad[256] = {0};
    int64_t t;
    if (w->plan->own_queries && !s->padded)
        return;
    for (t = 0; fwa_present(out) && t < s->length; t++) {
        if (!w->plan->own_queries)
            sum_partials(fwa_cpu_query_grad(w->plan, w->parts, units.first, s, t),
                         w->parts->tokens * w->dim_stride, p->key_dim, units, grad);
        if (!s->padded) {
            if (w->needs_raw)
                fwa_load_f32(q, fwa_at3(q, s->row, s->first + t, head), p->key_dim, raw);
            fwa_feature_backward_f32(p, raw, grad, grad);
        }
        fwa_store_f32(out, fwa_at3(out, s->row, s->first + t, head), p->key_dim, grad);
    }
}

/* beta (per head), lambda and log_gate, and the normaliser's z, of one value head. */
static void finish_gates(const finish_work *w, const fwa_sequence *s, int64_t head)
{
    const fwa_problem *p = w->p;
    const fwa_backward_args *a = w->args;
    const fwa_tensor *outs[3] = {p->dynamics == FWA_DYNAMICS_PER_HEAD ? &a->beta_grad : NULL,
                                 &a->lambda_grad, &a->log_gate_grad};
    const unit_range units = key_units(w, head, p->heads_value);
    float sums[256];
    int64_t t, i;
    for (t = 0; t < s->length; t++) {
        sum_partials(fwa_cpu_gate_grads(w->parts, units.first, s, t), w->parts->tokens * 3, 3,
                     units, sums);
        for (i = 0; i < 3; i++)
            if (outs[i] && fwa_present(outs[i]))
                fwa_store_f32(outs[i], fwa_at3(outs[i], s->row, s->first + t, head), 1, sums + i);
    }
    if (fwa_present(&a->carry_in_grad.norm)) {
        const fwa_tensor *norm = &a->carry_in_grad.norm;
        sum_partials(w->parts->norm +
                         (units.first * w->parts->sequences + s->index) * w->dim_stride,
                     w->parts->sequences * w->dim_stride, p->key_dim, units, sums);
        fwa_store_f32(norm, fwa_at2(norm, s->index, head), p->key_dim, sums);
    }
}

/* No token, no change: the gradients of the carry pass through, bit for bit. */
static void pass_through(const finish_work *w, int64_t n)
{
    const fwa_carry *from = &w->args->carry_out_grad, *to = &w->args->carry_in_grad;
    const fwa_tensor *parts[][2] = {{&from->prev_key, &to->prev_key},
                                    {&from->tail_key, &to->tail_key},
                                    {&from->tail_value, &to->tail_value}};
    size_t i;
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (fwa_present(parts[i][1]))
            fwa_carry_copy(parts[i][0], n, parts[i][1], n, 0, parts[i][1]->shape[1]);
}

static void finish(void *data, int64_t index, int64_t lane)
{
    const finish_work *w = data;
    const fwa_problem *p = w->p;
    int64_t n = index / w->tasks, task = index % w->tasks;
    fwa_sequence s = fwa_sequence_get(&w->in, n);
    (void)lane;
    if (task < p->heads_key) {
        finish_keys(w, &s, task);
        finish_carry_keys(w, &s, task);
    } else if (task < p->heads_key + p->heads_query) {
        finish_queries(w, &s, task - p->heads_key);
    } else if (!w->plan->own_gates) {
        finish_gates(w, &s, task - p->heads_key - p->heads_query);
    }
}

static void finish_empty(void *data, int64_t n, int64_t lane)
{
    const finish_work *w = data;
    fwa_sequence s = fwa_sequence_get(&w->in, n);
    (void)lane;
    if (s.length == 0 && s.slot_in >= 0)
        pass_through(w, n);
}

void fwa_cpu_finish(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_cpu_partials *parts)
{
    const fwa_problem *p = &plan->problem;
    finish_work w = {.plan = plan, .p = p, .call = call, .args = call->backward, .parts = parts};
    w.in = fwa_call_inputs(call);
    w.dim_stride = (p->key_dim + 15) / 16 * 16;
    w.needs_raw = p->qk_norm != FWA_NORM_NONE || p->phi != FWA_FEATURE_MAP_IDENTITY;
    w.tasks = p->heads_key + p->heads_query + p->heads_value;
    fwa_host_tasks(call->executor, call->extent.sequences * w.tasks, finish, &w);
    fwa_host_tasks(call->executor, call->extent.sequences, finish_empty, &w);
}
