/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the reference backend: the adjoint of each token, from the last to the first. The
 * states are kept every sqrt(T) tokens and computed again in between. */

#include "reference.h"

#include "host_call.h"

typedef struct {
    const fwa_reference_plan *plan;
    const fwa_call *call;
    fwa_inputs inputs;
    size_t lane_size;
} backward_work;

/* Gradients of keys, values and queries gather here over tokens and heads, then go out once. Pairs
 * are numbered as in fwa_reference_head; pair j is row j + window - 1. */
typedef struct {
    int64_t interval; /* tokens between two checkpoints */
    fwa_reference_token token;
    fwa_reference_state checkpoint; /* [tokens / interval] states before tokens 0, interval, ... */
    fwa_reference_state segment;    /* [interval + 1] states before and after its tokens */
    fwa_reference_state grad;       /* L and l, reaching the state after the token at hand */
    double *o, *o_grad, *numerator_grad; /* [V] */
    double *reach;                       /* [B, V] L^T x_j */
    double *residual_grad;               /* [B, V] dr_j */
    double *eta_grad, *gamma_grad;       /* [V] */
    double *mixed;                       /* [D] X a */
    double *raw;                         /* [D or V] */
    double *query_grad;                  /* [T, D] of the features */
    double *key_grad;   /* [T + B, D] of the features, then of the raw keys. Pair T is the prev_key
                           handed on */
    double *value_grad; /* [T + B - 1, V] */
} backward_scratch;

/* ---- Memory ---- */

static int64_t checkpoint_interval(int64_t tokens)
{
    int64_t interval = (int64_t)ceil(sqrt((double)tokens));
    return interval > 0 ? interval : 1;
}

static size_t take_backward(const fwa_reference_plan *plan, int64_t tokens, char *base,
                            backward_scratch *scratch)
{
    const fwa_problem *p = &plan->problem;
    const size_t d = (size_t)p->key_dim, v = (size_t)p->value_dim, b = (size_t)p->window;
    const size_t t = (size_t)tokens, real = sizeof(double);
    fwa_reference_arena arena = {base, 0};
    scratch->interval = checkpoint_interval(tokens);
    fwa_reference_take_token(&arena, p, &scratch->token);
    scratch->checkpoint = fwa_reference_take_states(&arena, p, t / (size_t)scratch->interval + 1);
    scratch->segment = fwa_reference_take_states(&arena, p, (size_t)scratch->interval + 1);
    scratch->grad = fwa_reference_take_states(&arena, p, 1);
    scratch->o = fwa_reference_take(&arena, v, real);
    scratch->o_grad = fwa_reference_take(&arena, v, real);
    scratch->numerator_grad = fwa_reference_take(&arena, v, real);
    scratch->reach = fwa_reference_take(&arena, b * v, real);
    scratch->residual_grad = fwa_reference_take(&arena, b * v, real);
    scratch->eta_grad = fwa_reference_take(&arena, v, real);
    scratch->gamma_grad = fwa_reference_take(&arena, v, real);
    scratch->mixed = fwa_reference_take(&arena, d, real);
    scratch->raw = fwa_reference_take(&arena, d > v ? d : v, real);
    scratch->query_grad = fwa_reference_take(&arena, t, d * real);
    scratch->key_grad = fwa_reference_take(&arena, t + b, d * real);
    scratch->value_grad = fwa_reference_take(&arena, t + b, v * real);
    return arena.used;
}

size_t fwa_reference_backward_size(const fwa_reference_plan *plan, int64_t tokens)
{
    backward_scratch layout;
    return take_backward(plan, tokens, NULL, &layout);
}

static void clear(double *at, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        at[i] = 0;
}

static double *key_grad(const fwa_reference_head *head, backward_scratch *sc, int64_t pair)
{
    const fwa_problem *p = &head->plan->problem;
    return sc->key_grad + (pair + p->window - 1) * p->key_dim;
}

static double *value_grad(const fwa_reference_head *head, backward_scratch *sc, int64_t pair)
{
    const fwa_problem *p = &head->plan->problem;
    return sc->value_grad + (pair + p->window - 1) * p->value_dim;
}

/* ---- The adjoint of one token ---- */

/* o = scale S^T q / d, d = z^T q + eps_attn or 1. */
static void read_backward(const fwa_reference_head *head, backward_scratch *sc,
                          fwa_reference_state state)
{
    const fwa_problem *p = &head->plan->problem;
    const int64_t d = p->key_dim, v = p->value_dim;
    const double denominator = fwa_reference_read(head, &sc->token, state, sc->o);
    double *query_grad = sc->query_grad + sc->token.index * d, denominator_grad = 0;
    int64_t i, c;
    if (denominator == 0)
        return;
    for (c = 0; c < v; c++) {
        sc->numerator_grad[c] = p->scale * sc->o_grad[c] / denominator;
        denominator_grad -= sc->o_grad[c] * sc->o[c] / denominator;
    }
    for (i = 0; i < d; i++) {
        for (c = 0; c < v; c++) {
            query_grad[i] += state.s[i * v + c] * sc->numerator_grad[c];
            sc->grad.s[i * v + c] += sc->token.query[i] * sc->numerator_grad[c];
        }
        if (p->normalizer) {
            query_grad[i] += state.z[i] * denominator_grad;
            sc->grad.z[i] += sc->token.query[i] * denominator_grad;
        }
    }
}

/* dr_j, and the gradients of eta and gamma per value column. */
static void residual_backward(const fwa_reference_head *head, backward_scratch *sc,
                              fwa_reference_state before)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_reference_token *token = &sc->token;
    const int64_t d = p->key_dim, v = p->value_dim;
    const bool decayed = p->objective == FWA_OBJECTIVE_REGRESSION &&
                         p->prediction == FWA_PREDICTION_DECAYED;
    int64_t i, j, c;
    clear(sc->reach, token->pairs * v);
    clear(sc->eta_grad, v);
    clear(sc->gamma_grad, v);
    for (i = 0; i < d; i++)
        for (c = 0; c < v; c++)
            sc->gamma_grad[c] += before.s[i * v + c] * sc->grad.s[i * v + c];
    for (j = 0; j < token->pairs; j++) {
        double *reach = sc->reach + j * v, *residual_grad = sc->residual_grad + j * v;
        for (i = 0; i < d; i++)
            for (c = 0; c < v; c++)
                reach[c] += sc->grad.s[i * v + c] * token->key[j * d + i];
        for (c = 0; c < v; c++) {
            residual_grad[c] = token->eta[c] / (double)token->pairs * reach[c];
            sc->eta_grad[c] += token->residual[j * v + c] * reach[c] / (double)token->pairs;
            if (decayed)
                sc->gamma_grad[c] -= residual_grad[c] * token->prediction[j * v + c];
        }
    }
    for (i = 0; p->normalizer && i < d; i++) {
        for (j = 0; j < token->pairs; j++)
            sc->eta_grad[0] += token->key[j * d + i] * sc->grad.z[i] / (double)token->pairs;
        sc->gamma_grad[0] += before.z[i] * sc->grad.z[i];
    }
}

/* dv_j, and dx_j as far as it comes from the write itself. */
static void pairs_backward(const fwa_reference_head *head, backward_scratch *sc,
                           fwa_reference_state before)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_reference_token *token = &sc->token;
    const int64_t d = p->key_dim, v = p->value_dim;
    const double weight = 1 / (double)token->pairs;
    int64_t i, j, c;
    for (j = 0; j < token->pairs; j++) {
        const double *residual = token->residual + j * v,
                     *residual_grad = sc->residual_grad + j * v;
        double *dx = key_grad(head, sc, token->index - j);
        double *dv = value_grad(head, sc, token->index - j);
        for (c = 0; c < v; c++)
            dv[c] += residual_grad[c];
        for (i = 0; i < d; i++) {
            for (c = 0; c < v; c++)
                dx[i] += sc->grad.s[i * v + c] * token->eta[c] * residual[c] * weight;
            for (c = 0; p->objective == FWA_OBJECTIVE_REGRESSION && c < v; c++)
                dx[i] -= before.s[i * v + c] * token->rho[c] * residual_grad[c];
            if (p->normalizer)
                dx[i] += token->eta[0] * weight * sc->grad.z[i];
        }
    }
}

/* dx_j as far as it comes from E_t. */
static void statistic_backward(const fwa_reference_head *head, backward_scratch *sc,
                               double statistic_grad)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_reference_token *token = &sc->token;
    const int64_t d = p->key_dim;
    const double weight = 2 * statistic_grad / (double)token->pairs;
    int64_t i, j;
    clear(sc->mixed, d);
    for (j = 0; p->objective == FWA_OBJECTIVE_REGRESSION && j < token->pairs; j++)
        for (i = 0; i < d; i++)
            sc->mixed[i] += token->top[j] * token->key[j * d + i];
    for (j = 0; j < token->pairs; j++) {
        double *dx = key_grad(head, sc, token->index - j);
        for (i = 0; i < d; i++)
            dx[i] += weight * (p->objective == FWA_OBJECTIVE_REGRESSION
                                   ? token->top[j] * sc->mixed[i]
                                   : token->key[j * d + i]);
    }
}

/* S_t -> S_{t-1}: L <- gamma L - sum_j x_j (rho dr_j)^T, l <- gamma l. */
static void state_backward(const fwa_reference_head *head, backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_reference_token *token = &sc->token;
    const int64_t d = p->key_dim, v = p->value_dim;
    int64_t i, j, c;
    for (i = 0; i < d; i++) {
        double *grad = sc->grad.s + i * v;
        for (c = 0; c < v; c++)
            grad[c] *= token->gamma[c];
        for (j = 0; p->objective == FWA_OBJECTIVE_REGRESSION && j < token->pairs; j++)
            for (c = 0; c < v; c++)
                grad[c] -= token->key[j * d + i] * token->rho[c] * sc->residual_grad[j * v + c];
        if (p->normalizer)
            sc->grad.z[i] *= token->gamma[0];
    }
}

static void store_gates(const fwa_reference_head *head, const fwa_backward_args *args, int64_t t,
                        const double *beta_grad, double lambda_grad, double log_gate_grad)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_tensor *beta = &args->beta_grad, *lambda = &args->lambda_grad;
    const fwa_tensor *log_gate = &args->log_gate_grad;
    const int64_t row = head->sequence.row, at = head->sequence.first + t;
    if (fwa_present(beta))
        fwa_store_f64(beta, fwa_at3(beta, row, at, head->value),
                      p->dynamics == FWA_DYNAMICS_PER_CHANNEL ? p->value_dim : 1, beta_grad);
    if (fwa_present(lambda))
        fwa_store_f64(lambda, fwa_at3(lambda, row, at, head->value), 1, &lambda_grad);
    if (fwa_present(log_gate))
        fwa_store_f64(log_gate, fwa_at3(log_gate, row, at, head->value), 1, &log_gate_grad);
}

/* From eta and gamma to beta, lambda, the gate and E. Stores the gates' gradients, returns dE. */
static double steps_backward(const fwa_reference_head *head, const fwa_backward_args *args,
                             backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_reference_token *token = &sc->token;
    const bool channels = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    double lambda_grad = 0, log_gate_grad = 0, statistic_grad = 0;
    int64_t c;
    for (c = 1; !channels && c < p->value_dim; c++) {
        sc->eta_grad[0] += sc->eta_grad[c];
        sc->gamma_grad[0] += sc->gamma_grad[c];
    }
    for (c = 0; c < (channels ? p->value_dim : 1); c++) {
        fwa_decay_gradient_f64 grad = fwa_decay_step_backward_f64(
            &head->plan->knobs, &token->step[c], token->lambda, token->statistic, sc->eta_grad[c],
            sc->gamma_grad[c]);
        sc->eta_grad[c] = grad.beta;
        lambda_grad += grad.lambda;
        log_gate_grad += grad.log_gate;
        statistic_grad += grad.statistic;
    }
    store_gates(head, args, token->index, sc->eta_grad, lambda_grad, log_gate_grad);
    return statistic_grad;
}

/* Takes L and l from after token t to before it. */
static void token_backward(const fwa_reference_head *head, const fwa_backward_args *args,
                           backward_scratch *sc, int64_t t, fwa_reference_state before,
                           fwa_reference_state after)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_sequence *s = &head->sequence;
    fwa_load_f64(&args->o_grad, fwa_at3(&args->o_grad, s->row, s->first + t, head->value),
                 p->value_dim, sc->o_grad);
    fwa_reference_gather(head, t, &sc->token);
    fwa_reference_predict(head, &sc->token, before);
    if (p->read == FWA_READ_AFTER_WRITE)
        read_backward(head, sc, after);
    if (sc->token.pairs > 0) {
        residual_backward(head, sc, before);
        pairs_backward(head, sc, before);
        state_backward(head, sc);
        statistic_backward(head, sc, steps_backward(head, args, sc));
    } else {
        clear(sc->eta_grad, p->value_dim);
        store_gates(head, args, t, sc->eta_grad, 0, 0);
    }
    if (p->read == FWA_READ_BEFORE_WRITE)
        read_backward(head, sc, before);
}

/* ---- Sequences ---- */

static void advance(const fwa_reference_head *head, backward_scratch *sc, int64_t t,
                    fwa_reference_state state)
{
    fwa_reference_gather(head, t, &sc->token);
    fwa_reference_predict(head, &sc->token, state);
    fwa_reference_write(head, &sc->token, state);
}

static void keep_checkpoints(const fwa_reference_head *head, backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    fwa_reference_state state = sc->segment;
    int64_t t;
    fwa_reference_load_state(head, head->carry, head->sequence.slot_in, state);
    for (t = 0; t < head->sequence.length; t++) {
        if (t % sc->interval == 0)
            fwa_reference_copy_state(p, state,
                                     fwa_reference_state_at(p, sc->checkpoint, t / sc->interval));
        advance(head, sc, t, state);
    }
}

static void tokens_backward(const fwa_reference_head *head, const fwa_backward_args *args,
                            backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const int64_t length = head->sequence.length;
    int64_t i, piece;
    keep_checkpoints(head, sc);
    for (piece = (length - 1) / sc->interval; length > 0 && piece >= 0; piece--) {
        const int64_t start = piece * sc->interval;
        const int64_t count = length - start < sc->interval ? length - start : sc->interval;
        fwa_reference_copy_state(p, fwa_reference_state_at(p, sc->checkpoint, piece), sc->segment);
        for (i = 0; i < count; i++) {
            fwa_reference_state next = fwa_reference_state_at(p, sc->segment, i + 1);
            fwa_reference_copy_state(p, fwa_reference_state_at(p, sc->segment, i), next);
            advance(head, sc, start + i, next);
        }
        for (i = count - 1; i >= 0; i--)
            token_backward(head, args, sc, start + i, fwa_reference_state_at(p, sc->segment, i),
                           fwa_reference_state_at(p, sc->segment, i + 1));
    }
}

/* True where the gradient of a pair means something. An empty sequence hands on all that it was
 * given, slots of the tail that were never filled included. */
static bool live(const fwa_reference_head *head, int64_t pair)
{
    const fwa_sequence *s = &head->sequence;
    return !s->padded && (s->length > 0 ? pair >= head->first_pair : s->slot_in >= 0);
}

/* to += n elements of `grad` from `offset` on, where the tensor is there. */
static void add_row(backward_scratch *sc, const fwa_tensor *grad, int64_t offset, int64_t n,
                    double *to)
{
    int64_t i;
    if (!fwa_present(grad))
        return;
    fwa_load_f64(grad, offset, n, sc->raw);
    for (i = 0; i < n; i++)
        to[i] += sc->raw[i];
}

static void store_row(const fwa_tensor *grad, int64_t offset, int64_t n, const double *from)
{
    if (fwa_present(grad))
        fwa_store_f64(grad, offset, n, from);
}

/* The value head's gradients of v and of the tail's values. Row n of a carry's gradient is the
 * sequence's. */
static void finish_values(const fwa_reference_head *head, const fwa_backward_args *args, int64_t n,
                          backward_scratch *sc)
{
    const fwa_tensor *out = &args->carry_out_grad.tail_value, *in = &args->carry_in_grad.tail_value;
    const fwa_sequence *s = &head->sequence;
    const int64_t slots = head->plan->problem.window - 1, v = head->plan->problem.value_dim;
    int64_t i;
    for (i = 0; i < slots; i++) {
        const int64_t pair = s->length - slots + i;
        if (live(head, pair))
            add_row(sc, out, fwa_at3(out, n, i, head->value), v, value_grad(head, sc, pair));
    }
    for (i = 0; i < slots; i++)
        store_row(in, fwa_at3(in, n, i, head->value), v, value_grad(head, sc, i - slots));
    for (i = 0; i < s->length; i++)
        store_row(&args->v_grad, fwa_at3(&args->v_grad, s->row, s->first + i, head->value), v,
                  value_grad(head, sc, i));
}

/* The key head's gradients of k, prev_key and the tail's keys, back through phi and the norm; those
 * of the carry handed on are raw. */
static void finish_keys(const fwa_reference_head *head, const fwa_backward_args *args, int64_t n,
                        backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_carry *out = &args->carry_out_grad, *in = &args->carry_in_grad;
    const fwa_sequence *s = &head->sequence;
    const bool next_latent = p->alignment == FWA_ALIGNMENT_NEXT_LATENT;
    const int64_t slots = p->window - 1, d = p->key_dim;
    int64_t i;
    for (i = -slots; s->length > 0 && i < s->length; i++) {
        if (!live(head, i))
            continue;
        fwa_reference_raw_key(head, i, sc->raw);
        fwa_feature_backward_f64(p, sc->raw, key_grad(head, sc, i), key_grad(head, sc, i));
    }
    for (i = 0; i < slots; i++) {
        const int64_t pair = s->length - slots + i;
        if (live(head, pair))
            add_row(sc, &out->tail_key, fwa_at3(&out->tail_key, n, i, head->key), d,
                    key_grad(head, sc, pair));
    }
    if (next_latent && live(head, s->length))
        add_row(sc, &out->prev_key, fwa_at2(&out->prev_key, n, head->key), d,
                key_grad(head, sc, s->length));
    for (i = 0; i < slots; i++)
        store_row(&in->tail_key, fwa_at3(&in->tail_key, n, i, head->key), d,
                  key_grad(head, sc, i - slots));
    if (next_latent)
        store_row(&in->prev_key, fwa_at2(&in->prev_key, n, head->key), d, key_grad(head, sc, 0));
    for (i = 0; i < s->length; i++)
        store_row(&args->k_grad, fwa_at3(&args->k_grad, s->row, s->first + i, head->key), d,
                  key_grad(head, sc, next_latent ? i + 1 : i));
}

static void finish_queries(const fwa_reference_head *head, const fwa_backward_args *args,
                           backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_sequence *s = &head->sequence;
    int64_t t;
    for (t = 0; t < s->length; t++) {
        double *grad = sc->query_grad + t * p->key_dim;
        if (!s->padded) {
            fwa_reference_raw_query(head, t, sc->raw);
            fwa_feature_backward_f64(p, sc->raw, grad, grad);
        }
        store_row(&args->q_grad, fwa_at3(&args->q_grad, s->row, s->first + t, head->query),
                  p->key_dim, grad);
    }
}

/* One value head: all that is its own, and its share of the gradients of its key and query head. */
static void head_backward(const fwa_reference_head *head, const fwa_backward_args *args, int64_t n,
                          backward_scratch *sc)
{
    const fwa_problem *p = &head->plan->problem;
    const fwa_sequence *s = &head->sequence;
    int64_t t;
    clear(sc->value_grad, (s->length + p->window - 1) * p->value_dim);
    fwa_reference_load_state(head, &args->carry_out_grad, s->padded ? -1 : n, sc->grad);
    if (s->padded) {
        clear(sc->eta_grad, p->value_dim);
        for (t = 0; t < s->length; t++)
            store_gates(head, args, t, sc->eta_grad, 0, 0);
    } else {
        tokens_backward(head, args, sc);
    }
    finish_values(head, args, n, sc);
    if (s->slot_in < 0) {
        clear(sc->grad.s, (int64_t)p->key_dim * p->value_dim);
        clear(sc->grad.z, p->key_dim);
    }
    fwa_reference_store_state(head, &args->carry_in_grad, n, sc->grad);
}

/* A key head of a sequence; its value heads one after another, so that sums have one order. */
static void backward_unit(void *data, int64_t index, int64_t lane)
{
    const backward_work *work = data;
    const fwa_reference_plan *plan = work->plan;
    const fwa_problem *p = &plan->problem;
    const fwa_backward_args *args = work->call->backward;
    const int64_t n = index / p->heads_key, first = index % p->heads_key * plan->group;
    const fwa_sequence sequence = fwa_sequence_get(&work->inputs, n);
    fwa_reference_head head;
    backward_scratch sc;
    int64_t h;
    take_backward(plan, work->call->extent.tokens,
                  (char *)work->call->workspace + (size_t)lane * work->lane_size, &sc);
    clear(sc.key_grad, (sequence.length + p->window) * p->key_dim);
    for (h = first; h < first + plan->group; h++) {
        head = fwa_reference_head_get(plan, &work->inputs, work->inputs.carry, &sequence, h);
        if (h % plan->query_group == 0)
            clear(sc.query_grad, sequence.length * p->key_dim);
        head_backward(&head, args, n, &sc);
        if ((h + 1) % plan->query_group == 0)
            finish_queries(&head, args, &sc);
    }
    finish_keys(&head, args, n, &sc);
}

fwa_status fwa_reference_backward(const void *plan, const fwa_call *call, fwa_message *message)
{
    const fwa_reference_plan *reference = plan;
    backward_work work = {reference, call, fwa_call_inputs(call), 0};
    (void)message;
    work.lane_size = fwa_reference_backward_size(reference, call->extent.tokens);
    fwa_host_tasks(call->executor, call->extent.sequences * reference->problem.heads_key,
                   backward_unit, &work);
    return FWA_OK;
}
