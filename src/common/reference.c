/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include "eigen.h"
#include "host_call.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Memory ---- */

#define LINE 64

/* a * b and a + b, SIZE_MAX where that is too much. */
static size_t multiply(size_t a, size_t b)
{
    return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

static size_t add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

void *fwa_reference_take(fwa_reference_arena *arena, size_t count, size_t size)
{
    char *at = arena->base ? arena->base + arena->used : NULL;
    size_t bytes = add(multiply(count, size), LINE - 1);
    arena->used = add(arena->used, bytes == SIZE_MAX ? bytes : bytes / LINE * LINE);
    return at;
}

void fwa_reference_take_token(fwa_reference_arena *arena, const fwa_problem *p,
                              fwa_reference_token *token)
{
    const size_t d = (size_t)p->key_dim, v = (size_t)p->value_dim, b = (size_t)p->window;
    token->query = fwa_reference_take(arena, d, sizeof(double));
    token->key = fwa_reference_take(arena, b * d, sizeof(double));
    token->prediction = fwa_reference_take(arena, b * v, sizeof(double));
    token->residual = fwa_reference_take(arena, b * v, sizeof(double));
    token->top = fwa_reference_take(arena, b, sizeof(double));
    token->gram = fwa_reference_take(arena, b * b, sizeof(double));
    token->step = fwa_reference_take(arena, v, sizeof(fwa_decay_step_t_f64));
    token->eta = fwa_reference_take(arena, v, sizeof(double));
    token->gamma = fwa_reference_take(arena, v, sizeof(double));
    token->rho = fwa_reference_take(arena, v, sizeof(double));
}

fwa_reference_state fwa_reference_take_states(fwa_reference_arena *arena, const fwa_problem *p,
                                              size_t count)
{
    const size_t d = (size_t)p->key_dim, v = (size_t)p->value_dim;
    fwa_reference_state states;
    states.s = fwa_reference_take(arena, count, d * v * sizeof(double));
    states.z = fwa_reference_take(arena, count, d * sizeof(double));
    return states;
}

fwa_reference_state fwa_reference_state_at(const fwa_problem *p, fwa_reference_state states,
                                           int64_t i)
{
    states.s += i * p->key_dim * p->value_dim;
    states.z += i * p->key_dim;
    return states;
}

void fwa_reference_copy_state(const fwa_problem *p, fwa_reference_state from,
                              fwa_reference_state to)
{
    const size_t d = (size_t)p->key_dim, v = (size_t)p->value_dim;
    memcpy(to.s, from.s, d * v * sizeof(double));
    memcpy(to.z, from.z, d * sizeof(double));
}

void fwa_reference_load_state(const fwa_reference_head *head, const fwa_carry *carry, int64_t row,
                              fwa_reference_state state)
{
    const int64_t d = head->plan->problem.key_dim, v = head->plan->problem.value_dim;
    const bool given = row >= 0 && fwa_present(&carry->state);
    int64_t i;
    for (i = 0; i < d * v; i++)
        state.s[i] = 0;
    for (i = 0; i < d; i++)
        state.z[i] = 0;
    for (i = 0; given && i < d; i++)
        fwa_load_f64(&carry->state, fwa_at3(&carry->state, row, head->value, i), v,
                     state.s + i * v);
    if (row >= 0 && head->plan->problem.normalizer && fwa_present(&carry->norm))
        fwa_load_f64(&carry->norm, fwa_at2(&carry->norm, row, head->value), d, state.z);
}

void fwa_reference_store_state(const fwa_reference_head *head, const fwa_carry *carry, int64_t row,
                               fwa_reference_state state)
{
    const int64_t d = head->plan->problem.key_dim, v = head->plan->problem.value_dim;
    int64_t i;
    for (i = 0; fwa_present(&carry->state) && i < d; i++)
        fwa_store_f64(&carry->state, fwa_at3(&carry->state, row, head->value, i), v,
                      state.s + i * v);
    if (fwa_present(&carry->norm))
        fwa_store_f64(&carry->norm, fwa_at2(&carry->norm, row, head->value), d, state.z);
}

/* ---- Heads, pairs, tokens ---- */

fwa_reference_head fwa_reference_head_get(const fwa_reference_plan *plan, const fwa_inputs *inputs,
                                          const fwa_carry *carry, const fwa_sequence *sequence,
                                          int64_t value_head)
{
    fwa_reference_head head = {plan, inputs, carry, *sequence, value_head, 0, 0, 0};
    head.key = value_head / plan->group;
    head.query = value_head / plan->query_group;
    head.first_pair = fwa_starts_bare(&plan->problem, sequence->seen)
                          ? 1
                          : -fwa_tail_fill(&plan->problem, sequence->seen);
    return head;
}

void fwa_reference_raw_query(const fwa_reference_head *head, int64_t token, double *raw)
{
    const fwa_tensor *q = head->inputs->q;
    const fwa_sequence *s = &head->sequence;
    fwa_load_f64(q, fwa_at3(q, s->row, s->first + token, head->query), head->plan->problem.key_dim,
                 raw);
}

/* next_latent pairs the value of token j with the key of token j - 1. */
void fwa_reference_raw_key(const fwa_reference_head *head, int64_t pair, double *raw)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_sequence *s = &head->sequence;
    const fwa_tensor *k = head->inputs->k, *tail = &head->carry->tail_key;
    const fwa_tensor *prev = &head->carry->prev_key;
    const int64_t token = p->alignment == FWA_ALIGNMENT_NEXT_LATENT ? pair - 1 : pair;
    if (pair < 0)
        fwa_load_f64(tail, fwa_at3(tail, s->slot_in, p->window - 1 + pair, head->key), p->key_dim,
                     raw);
    else if (token < 0)
        fwa_load_f64(prev, fwa_at2(prev, s->slot_in, head->key), p->key_dim, raw);
    else
        fwa_load_f64(k, fwa_at3(k, s->row, s->first + token, head->key), p->key_dim, raw);
}

static void load_value(const fwa_reference_head *head, int64_t pair, double *value)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_sequence *s = &head->sequence;
    const fwa_tensor *v = head->inputs->v, *tail = &head->carry->tail_value;
    if (pair < 0)
        fwa_load_f64(tail, fwa_at3(tail, s->slot_in, p->window - 1 + pair, head->value),
                     p->value_dim, value);
    else
        fwa_load_f64(v, fwa_at3(v, s->row, s->first + pair, head->value), p->value_dim, value);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    int64_t i;
    for (i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* E_t: the mean of |x_j|^2 for the inner product, lambda_max(X^T X) / B_t for regression (4.15);
 * both are |x_t|^2 where the window is 1. */
static double statistic(const fwa_problem *p, fwa_reference_token *token)
{
    const int64_t d = p->key_dim, n = token->pairs;
    double sum = 0;
    int64_t i, j;
    if (p->objective == FWA_OBJECTIVE_INNER_PRODUCT) {
        for (j = 0; j < n; j++)
            sum += dot(token->key + j * d, token->key + j * d, d);
        return sum / (double)n;
    }
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++)
            token->gram[i * n + j] = dot(token->key + i * d, token->key + j * d, d);
    return fwa_top_eigen((int)n, token->gram, token->top) / (double)n;
}

/* The step size, carry and rho of every value column. */
static void gather_steps(const fwa_reference_head *head, fwa_reference_token *token)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_inputs *in = head->inputs;
    const bool channels = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    const int64_t row = head->sequence.row, at = head->sequence.first + token->index;
    const double log_gate = fwa_load_one_f64(in->log_gate,
                                             fwa_at3(in->log_gate, row, at, head->value), 0);
    int64_t c;
    token->lambda = fwa_load_one_f64(in->lambda, fwa_at3(in->lambda, row, at, head->value), 0);
    for (c = 0; c < p->value_dim; c++) {
        fwa_decay_step_t_f64 *step = &token->step[channels ? c : 0];
        if (channels || c == 0) {
            int64_t offset = fwa_at3(in->beta, row, at, head->value);
            double beta = fwa_load_one_f64(in->beta,
                                           offset + (channels ? c * in->beta->stride[3] : 0), 1);
            *step = fwa_decay_step_f64(&head->plan->knobs, beta, token->lambda, log_gate,
                                       token->statistic);
        }
        token->eta[c] = step->eta;
        token->gamma[c] = step->gamma;
        token->rho[c] = p->prediction == FWA_PREDICTION_DECAYED ? step->gamma : 1;
    }
}

void fwa_reference_gather(const fwa_reference_head *head, int64_t index, fwa_reference_token *token)
{
    const fwa_problem *p = &head->plan->problem;
    int64_t j;
    token->index = index;
    token->pairs = index - head->first_pair + 1;
    if (token->pairs > p->window)
        token->pairs = p->window;
    fwa_reference_raw_query(head, index, token->query);
    fwa_feature_f64(p, token->query, token->query);
    if (token->pairs == 0)
        return;
    for (j = 0; j < token->pairs; j++) {
        double *x = token->key + j * p->key_dim;
        fwa_reference_raw_key(head, index - j, x);
        fwa_feature_f64(p, x, x);
    }
    token->statistic = statistic(p, token);
    gather_steps(head, token);
}

void fwa_reference_predict(const fwa_reference_head *head, fwa_reference_token *token,
                           fwa_reference_state before)
{
    const fwa_problem *p = &head->plan->problem;
    const int64_t d = p->key_dim, v = p->value_dim;
    int64_t j, i, c;
    for (j = 0; j < token->pairs; j++) {
        const double *x = token->key + j * d;
        double *prediction = token->prediction + j * v, *residual = token->residual + j * v;
        load_value(head, token->index - j, residual);
        if (p->objective == FWA_OBJECTIVE_INNER_PRODUCT)
            continue;
        for (c = 0; c < v; c++)
            prediction[c] = 0;
        for (i = 0; i < d; i++)
            for (c = 0; c < v; c++)
                prediction[c] += before.s[i * v + c] * x[i];
        for (c = 0; c < v; c++)
            residual[c] -= token->rho[c] * prediction[c];
    }
}

void fwa_reference_write(const fwa_reference_head *head, const fwa_reference_token *token,
                         fwa_reference_state state)
{
    const fwa_problem *p = &head->plan->problem;
    const int64_t d = p->key_dim, v = p->value_dim;
    int64_t j, i, c;
    if (token->pairs == 0)
        return;
    for (i = 0; i < d; i++) {
        double *s = state.s + i * v;
        for (c = 0; c < v; c++)
            s[c] *= token->gamma[c];
        if (p->normalizer)
            state.z[i] *= token->gamma[0];
        for (j = 0; j < token->pairs; j++) {
            const double x = token->key[j * d + i] / (double)token->pairs;
            const double *residual = token->residual + j * v;
            for (c = 0; c < v; c++)
                s[c] += token->eta[c] * residual[c] * x;
            if (p->normalizer)
                state.z[i] += token->eta[0] * x;
        }
    }
}

double fwa_reference_read(const fwa_reference_head *head, const fwa_reference_token *token,
                          fwa_reference_state state, double *o)
{
    const fwa_problem *p = &head->plan->problem;
    const int64_t d = p->key_dim, v = p->value_dim;
    const double denominator = p->normalizer ? dot(state.z, token->query, d) + p->eps_attn : 1;
    int64_t i, c;
    for (c = 0; c < v; c++)
        o[c] = 0;
    if (denominator == 0)
        return 0;
    for (i = 0; i < d; i++)
        for (c = 0; c < v; c++)
            o[c] += state.s[i * v + c] * token->query[i];
    for (c = 0; c < v; c++)
        o[c] = p->scale * o[c] / denominator;
    return denominator;
}

/* ---- Forward ---- */

typedef struct {
    const fwa_reference_plan *plan;
    const fwa_call *call;
    fwa_inputs inputs;
    char *lanes; /* scratch of all lanes */
    size_t lane_size;
} forward_work;

typedef struct {
    fwa_reference_token token;
    fwa_reference_state state;
    double *o; /* [V] */
} forward_scratch;

static size_t take_forward(const fwa_reference_plan *plan, char *base, forward_scratch *scratch)
{
    fwa_reference_arena arena = {base, 0};
    fwa_reference_take_token(&arena, &plan->problem, &scratch->token);
    scratch->state = fwa_reference_take_states(&arena, &plan->problem, 1);
    scratch->o = fwa_reference_take(&arena, (size_t)plan->problem.value_dim, sizeof(double));
    return arena.used;
}

/* The carry after s->commit tokens is due: the state as it is now. */
static void commit_state(const fwa_reference_head *head, const fwa_carry *out,
                         fwa_reference_state state)
{
    const fwa_sequence *s = &head->sequence;
    if (s->slot_out < 0)
        return;
    if (s->commit > 0) {
        fwa_reference_store_state(head, out, s->slot_out, state);
        return;
    }
    if (fwa_present(&out->state))
        fwa_carry_copy(&head->carry->state, s->slot_in, &out->state, s->slot_out, head->value, 1);
    if (fwa_present(&out->norm))
        fwa_carry_copy(&head->carry->norm, s->slot_in, &out->norm, s->slot_out, head->value, 1);
}

static void forward_token(const fwa_reference_head *head, forward_scratch *scratch, int64_t t)
{
    const bool before = head->plan->problem.read == FWA_READ_BEFORE_WRITE;
    fwa_reference_gather(head, t, &scratch->token);
    if (before)
        fwa_reference_read(head, &scratch->token, scratch->state, scratch->o);
    fwa_reference_predict(head, &scratch->token, scratch->state);
    fwa_reference_write(head, &scratch->token, scratch->state);
    if (!before)
        fwa_reference_read(head, &scratch->token, scratch->state, scratch->o);
}

/* A value head of a sequence. */
static void forward_unit(void *data, const fwa_carry *in, const fwa_sequence *sequence,
                         int64_t unit, int64_t lane)
{
    const forward_work *work = data;
    const fwa_reference_plan *plan = work->plan;
    const fwa_forward_args *args = work->call->forward;
    const fwa_reference_head head = fwa_reference_head_get(plan, &work->inputs, in, sequence, unit);
    forward_scratch scratch;
    int64_t t, c;
    take_forward(plan, work->lanes + (size_t)lane * work->lane_size, &scratch);
    fwa_reference_load_state(&head, in, sequence->slot_in, scratch.state);
    for (c = 0; c < plan->problem.value_dim; c++)
        scratch.o[c] = 0;
    for (t = 0; t <= sequence->length; t++) {
        if (t == sequence->commit)
            commit_state(&head, &args->carry_out, scratch.state);
        if (t == sequence->length)
            break;
        if (!sequence->padded)
            forward_token(&head, &scratch, t);
        fwa_store_f64(&args->o, fwa_at3(&args->o, sequence->row, sequence->first + t, unit),
                      plan->problem.value_dim, scratch.o);
    }
}

static fwa_status forward(const void *plan, const fwa_call *call, fwa_message *message)
{
    const fwa_reference_plan *reference = plan;
    const size_t kept = fwa_host_kept_size(&reference->problem);
    forward_scratch layout;
    forward_work work = {reference, call, fwa_call_inputs(call), NULL, 0};
    (void)message;
    work.lanes = (char *)call->workspace + kept;
    work.lane_size = take_forward(reference, NULL, &layout);
    fwa_host_forward(call, &reference->problem, reference->problem.heads_value, forward_unit, &work,
                     call->workspace);
    return FWA_OK;
}

/* ---- The backend ---- */

static fwa_status fail(fwa_message *message, fwa_status status, const char *text)
{
    snprintf(message->text, sizeof message->text, "%s", text);
    return status;
}

static int32_t device_count(fwa_message *message)
{
    (void)message;
    return 1;
}

static fwa_status open_device(int32_t index, void **device, char *name, size_t name_size,
                              fwa_message *message)
{
    *device = NULL;
    if (index != 0)
        return fail(message, FWA_ERROR_VALUE, "the reference backend has the one device 0");
    snprintf(name, name_size, "float64 reference");
    return FWA_OK;
}

static void close_device(void *device)
{
    (void)device;
}

static int32_t score(void *device, const fwa_problem *problem, fwa_message *message)
{
    (void)device;
    if (problem->form == FWA_FORM_AUTO || problem->form == FWA_FORM_RECURRENT)
        return 1;
    fail(message, FWA_OK, "the reference backend has only the recurrent form");
    return 0;
}

static fwa_status create_plan(void *device, const fwa_problem *problem, int32_t lanes, void **plan,
                              fwa_message *message)
{
    const char *objective = problem->objective == FWA_OBJECTIVE_REGRESSION ? "regression"
                                                                           : "inner_product";
    const char *dynamics = problem->dynamics == FWA_DYNAMICS_PER_HEAD ? "head" : "channel";
    fwa_reference_plan *reference;
    *plan = NULL;
    if (score(device, problem, message) == 0)
        return FWA_ERROR_UNSUPPORTED;
    reference = calloc(1, sizeof *reference);
    if (!reference)
        return fail(message, FWA_ERROR_MEMORY, "no memory left for a plan");
    reference->problem = *problem;
    reference->lanes = lanes;
    reference->knobs = fwa_problem_knobs_f64(problem);
    reference->group = problem->heads_value / problem->heads_key;
    reference->query_group = problem->heads_value / problem->heads_query;
    snprintf(reference->kernel, sizeof reference->kernel, "reference/recurrent/%s/%s/window%d/%s",
             objective, dynamics, (int)problem->window, fwa_dtype_name(problem->dtype));
    *plan = reference;
    return FWA_OK;
}

static const char *kernel_name(const void *plan, fwa_pass pass)
{
    const fwa_reference_plan *reference = plan;
    (void)pass;
    return reference->kernel;
}

static size_t workspace_size(const void *plan, fwa_pass pass, const fwa_extent *extent)
{
    const fwa_reference_plan *reference = plan;
    forward_scratch layout;
    if (pass == FWA_PASS_BACKWARD)
        return multiply((size_t)reference->lanes,
                        fwa_reference_backward_size(reference, extent->tokens));
    return add(multiply((size_t)reference->lanes, take_forward(reference, NULL, &layout)),
               fwa_host_kept_size(&reference->problem));
}

static size_t saved_size(const void *plan, const fwa_extent *extent)
{
    (void)plan, (void)extent;
    return 0;
}

const fwa_backend fwa_reference_backend = {
    .abi = FWA_BACKEND_ABI,
    .struct_size = sizeof(fwa_backend),
    .name = "reference",
    .description = "the definition, token by token, in float64: slow and exact",
    .host_memory = 1,
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .allocate = fwa_host_allocate,
    .release = fwa_host_release,
    .write = fwa_host_copy,
    .read = fwa_host_copy,
    .score = score,
    .plan = create_plan,
    .plan_release = free,
    .kernel_name = kernel_name,
    .workspace_size = workspace_size,
    .saved_size = saved_size,
    .forward = forward,
    .backward = fwa_reference_backward,
};
