/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with all their tensors. */

#include "support.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const backends[2] = {"cpu", "reference"};

/* ---- Setups ---- */

setup setup_small(const char *backend)
{
    setup s = {.backend = backend, .problem = FWA_PROBLEM_INIT, .batch = 2, .tokens = 5};
    s.problem.window = 3;
    s.problem.heads_key = 1;
    s.problem.heads_value = 2;
    s.problem.heads_query = 2;
    s.problem.key_dim = 4;
    s.problem.value_dim = 3;
    s.problem.scale = 0.5;
    s.seen = 4;
    s.threads = 1;
    s.seed = 1;
    return s;
}

setup setup_normalizer(const char *backend)
{
    setup s = setup_small(backend);
    s.problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    s.problem.window = 1;
    s.problem.normalizer = 1;
    s.problem.eps_attn = 0.125;
    s.problem.phi = FWA_FEATURE_MAP_ELU1;
    return s;
}

fwa_context *make_context(const char *backend, int32_t threads)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    options.backend = backend;
    options.threads = threads;
    cr_assert_eq(fwa_context_create(&options, &context), FWA_OK, "%s", fwa_error_message());
    return context;
}

fwa_plan *make_plan(fwa_context *context, const fwa_problem *problem)
{
    fwa_plan *plan = NULL;
    cr_assert_eq(fwa_plan_create(context, problem, &plan), FWA_OK, "%s", fwa_error_message());
    return plan;
}

/* ---- The tensors of a call ---- */

typedef struct range {
    double low, high;
} range;

/* Inputs by the last part of their name; all others hold -1 to 1. */
static range range_of(const char *name)
{
    static const struct {
        const char *name;
        range range;
    } table[] = {{"beta", {0.125, 1.5}},
                 {"lambda", {0, 0.25}},
                 {"log_gate", {-0.5, 0}},
                 {"carry_in.norm", {0.5, 1}}};
    size_t i;
    for (i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].range;
    return (range){-1, 1};
}

static uint64_t name_seed(const call *c, const char *name)
{
    uint64_t seed = c->setup.seed;
    for (; *name; name++)
        seed = mix(seed, (uint64_t)*name);
    return seed;
}

static call_tensor *enter(call *c, const char *name, fwa_tensor *tensor, bool output, block memory)
{
    call_tensor *entry = &c->tensors[c->count++];
    cr_assert_leq(c->count, CALL_TENSORS);
    *entry = (call_tensor){name, tensor, output, memory};
    return entry;
}

call_tensor *call_add(call *c, const char *name, fwa_tensor *tensor, bool output, int32_t dtype,
                      int32_t rank, const int64_t *shape)
{
    const size_t size = fwa_dtype_size(dtype);
    call_tensor *entry;
    block memory;
    *tensor = fwa_tensor_dense(NULL, dtype, rank, shape[0], rank > 1 ? shape[1] : 0,
                               rank > 2 ? shape[2] : 0, rank > 3 ? shape[3] : 0,
                               rank > 4 ? shape[4] : 0);
    memory = block_make((size_t)tensor_count(tensor) * size, size, c->setup.place);
    tensor->data = memory.data;
    entry = enter(c, name, tensor, output, memory);
    if (!output) {
        range r = range_of(name);
        tensor_fill(tensor, name_seed(c, name), r.low, r.high);
    }
    return entry;
}

static int32_t wide(const call *c)
{
    return c->setup.problem.dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
}

static int32_t state_type(const call *c)
{
    return c->setup.problem.state_dtype ? c->setup.problem.state_dtype : wide(c);
}

static int64_t heads_value(const call *c)
{
    const fwa_problem *p = &c->setup.problem;
    return p->heads_value ? p->heads_value : p->heads_key;
}

static int64_t sequences(const call *c)
{
    return c->setup.lengths ? c->setup.sequences : c->setup.batch;
}

typedef struct tokens_args {
    const char *names[6];
    fwa_tensor *tensors[6];
} tokens_args;

static void add_tokens(call *c, const tokens_args *a, bool output)
{
    const fwa_problem *p = &c->setup.problem;
    const int64_t hv = heads_value(c), hq = p->heads_query ? p->heads_query : p->heads_key;
    const int64_t b = c->setup.batch, t = c->setup.tokens;
    const int64_t shapes[6][4] = {{b, t, hq, p->key_dim},
                                  {b, t, p->heads_key, p->key_dim},
                                  {b, t, hv, p->value_dim},
                                  {b, t, hv, p->value_dim},
                                  {b, t, hv},
                                  {b, t, hv}};
    int i;
    for (i = 0; i < (c->setup.no_gates ? 3 : 6); i++)
        call_add(c, a->names[i], a->tensors[i], output, i < 3 ? p->dtype : wide(c),
                 i < 3 ? 4 : 3 + (i == 3 && p->dynamics == FWA_DYNAMICS_PER_CHANNEL), shapes[i]);
}

#define CARRY_NAMES(x)                                                                             \
    {                                                                                              \
        x ".seen", x ".state", x ".prev_key", x ".tail_key", x ".tail_value", x ".norm"            \
    }

/* Parts that the problem has; those of `from` instead of new ones where it is given. */
static void add_carry(call *c, const char *const names[6], fwa_carry *carry, const fwa_carry *from,
                      int64_t rows, int32_t state, bool seen, bool output)
{
    const fwa_problem *p = &c->setup.problem;
    const int64_t hv = heads_value(c), hk = p->heads_key, tail = p->window - 1;
    const int64_t d = p->key_dim, v = p->value_dim;
    const struct {
        bool has;
        int32_t dtype, rank;
        int64_t shape[4];
    } parts[6] = {{seen, FWA_DTYPE_I64, 1, {rows}},
                  {true, state, 4, {rows, hv, d, v}},
                  {p->alignment == FWA_ALIGNMENT_NEXT_LATENT, wide(c), 3, {rows, hk, d}},
                  {tail > 0, wide(c), 4, {rows, tail, hk, d}},
                  {tail > 0, wide(c), 4, {rows, tail, hv, v}},
                  {p->normalizer == 1, wide(c), 3, {rows, hv, d}}};
    fwa_tensor *tensors[] = {&carry->seen,     &carry->state,      &carry->prev_key,
                             &carry->tail_key, &carry->tail_value, &carry->norm};
    const fwa_tensor *sources[] = {from ? &from->seen : NULL,       from ? &from->state : NULL,
                                   from ? &from->prev_key : NULL,   from ? &from->tail_key : NULL,
                                   from ? &from->tail_value : NULL, from ? &from->norm : NULL};
    int i;
    for (i = 0; i < 6; i++) {
        if (!parts[i].has)
            continue;
        if (from)
            *tensors[i] = *sources[i];
        else
            call_add(c, names[i], tensors[i], output, parts[i].dtype, parts[i].rank,
                     parts[i].shape);
        if (i == 0 && !output) {
            int64_t n;
            for (n = 0; n < rows; n++)
                tensor_set(tensors[i], n, (double)c->setup.seen);
        }
    }
}

static void add_lengths(call *c, fwa_tensor *tensor)
{
    const int64_t shape[] = {c->setup.sequences + 1};
    int64_t n, at = 0;
    if (!c->setup.lengths)
        return;
    call_add(c, "cu_seqlens", tensor, false, c->setup.wide_lengths ? FWA_DTYPE_I64 : FWA_DTYPE_I32,
             1, shape);
    for (n = 0; n <= c->setup.sequences; n++) {
        tensor_set(tensor, n, (double)at);
        at += n < c->setup.sequences ? c->setup.lengths[n] : 0;
    }
}

static void add_forward(call *c)
{
    static const char *const in[] = CARRY_NAMES("carry_in"), *const out[] = CARRY_NAMES(
                                                                 "carry_out");
    const setup *s = &c->setup;
    const fwa_problem *p = &s->problem;
    const bool channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    fwa_forward_args *a = &c->forward;
    const tokens_args tokens = {{"q", "k", "v", "beta", "lambda", "log_gate"},
                                {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate}};
    const int64_t o[] = {s->batch, s->tokens, heads_value(c), p->value_dim};
    const int64_t mask[] = {s->batch, heads_value(c), channel ? p->value_dim : s->tokens, s->tokens,
                            s->tokens};
    *a = (fwa_forward_args)FWA_FORWARD_ARGS_INIT;
    add_tokens(c, &tokens, false);
    add_lengths(c, &a->cu_seqlens);
    if (!s->no_carry_in)
        add_carry(c, in, &a->carry_in, NULL, s->rows_in ? s->rows_in : sequences(c), state_type(c),
                  true, false);
    if (!s->no_carry_out)
        add_carry(c, out, &a->carry_out, s->in_place ? &a->carry_in : NULL,
                  s->rows_out ? s->rows_out : sequences(c), state_type(c), true, true);
    call_add(c, "o", &a->o, true, p->dtype, 4, o);
    if (s->mask)
        call_add(c, "mask", &a->mask, true, wide(c), 4 + channel, mask);
}

static void add_backward(call *c)
{
    static const char *const in[] = CARRY_NAMES("carry_in");
    static const char *const out_grad[] = CARRY_NAMES("carry_out_grad");
    static const char *const in_grad[] = CARRY_NAMES("carry_in_grad");
    const setup *s = &c->setup;
    const fwa_problem *p = &s->problem;
    fwa_backward_args *a = &c->backward;
    const tokens_args tokens = {{"q", "k", "v", "beta", "lambda", "log_gate"},
                                {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate}};
    const tokens_args grads = {
        {"q_grad", "k_grad", "v_grad", "beta_grad", "lambda_grad", "log_gate_grad"},
        {&a->q_grad, &a->k_grad, &a->v_grad, &a->beta_grad, &a->lambda_grad, &a->log_gate_grad}};
    const int64_t o[] = {s->batch, s->tokens, heads_value(c), p->value_dim};
    *a = (fwa_backward_args)FWA_BACKWARD_ARGS_INIT;
    add_tokens(c, &tokens, false);
    add_lengths(c, &a->cu_seqlens);
    if (!s->no_carry_in)
        add_carry(c, in, &a->carry_in, NULL, s->rows_in ? s->rows_in : sequences(c), state_type(c),
                  true, false);
    call_add(c, "o_grad", &a->o_grad, false, p->dtype, 4, o);
    if (!s->no_carry_out)
        add_carry(c, out_grad, &a->carry_out_grad, NULL, sequences(c), wide(c), false, false);
    add_tokens(c, &grads, true);
    if (!s->no_carry_in)
        add_carry(c, in_grad, &a->carry_in_grad, NULL, sequences(c), wide(c), false, true);
}

call *call_new(const setup *s, fwa_pass pass)
{
    call *c = calloc(1, sizeof *c);
    size_t size = 0;
    cr_assert(c != NULL);
    c->setup = *s;
    c->pass = pass;
    c->context = make_context(s->backend, s->threads);
    c->plan = make_plan(c->context, &s->problem);
    (pass == FWA_PASS_FORWARD ? add_forward : add_backward)(c);
    cr_assert_eq(fwa_plan_workspace_size(c->plan, pass, s->batch, s->tokens, sequences(c), &size),
                 FWA_OK, "%s", fwa_error_message());
    c->workspace = block_make(size, FWA_BUFFER_ALIGNMENT, s->place);
    c->forward.workspace = c->backward.workspace = c->workspace.data;
    c->forward.workspace_size = c->backward.workspace_size = size;
    return c;
}

void call_free(call *c)
{
    int i;
    for (i = 0; i < c->count; i++)
        block_free(&c->tensors[i].memory);
    block_free(&c->workspace);
    fwa_plan_destroy(c->plan);
    fwa_context_destroy(c->context);
    free(c);
}

/* ---- Changing a call ---- */

static call_tensor *look_up(const call *c, const char *name)
{
    int i;
    for (i = 0; i < c->count; i++)
        if (strcmp(c->tensors[i].name, name) == 0)
            return (call_tensor *)(uintptr_t)&c->tensors[i];
    return NULL;
}

call_tensor *call_find(call *c, const char *name)
{
    call_tensor *entry = look_up(c, name);
    cr_assert(entry != NULL, "the call has no %s", name);
    return entry;
}

fwa_tensor *call_get(call *c, const char *name)
{
    return call_find(c, name)->tensor;
}

bool call_has(const call *c, const char *name)
{
    return look_up(c, name) != NULL;
}

bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

void call_drop(call *c, const char *name)
{
    call_tensor *entry = call_find(c, name);
    *entry->tensor = (fwa_tensor){0};
    block_free(&entry->memory);
    *entry = c->tensors[--c->count];
}

void call_integers(call *c, const char *name, int64_t count, const int32_t *values)
{
    fwa_tensor *tensor = strcmp(name, "commit") == 0 ? &c->forward.commit
                         : strcmp(name, "slot_out") == 0
                             ? &c->forward.slot_out
                             : (c->pass == FWA_PASS_FORWARD ? &c->forward.slot_in
                                                            : &c->backward.slot_in);
    const int64_t shape[] = {count};
    int64_t n;
    if (call_has(c, name))
        call_drop(c, name);
    call_add(c, name, tensor, false, FWA_DTYPE_I32, 1, shape);
    for (n = 0; n < count; n++)
        tensor_set(tensor, n, values[n]);
}

void call_restride(call *c, const char *name, const int64_t *stride, int64_t lead)
{
    call_tensor *entry = call_find(c, name);
    const int64_t size = (int64_t)fwa_dtype_size(entry->tensor->dtype);
    fwa_tensor old = *entry->tensor;
    block memory;
    int64_t span = lead + 1, i;
    int32_t axis;
    for (axis = 0; axis < old.rank; axis++) {
        entry->tensor->stride[axis] = stride[axis];
        span += old.shape[axis] > 1 ? (old.shape[axis] - 1) * stride[axis] : 0;
    }
    memory = block_make((size_t)(span * size), (size_t)size, c->setup.place);
    entry->tensor->data = memory.data + lead * size;
    for (i = tensor_count(&old) - 1; i >= 0 && !entry->output; i--)
        memcpy((char *)entry->tensor->data + tensor_offset(entry->tensor, i) * size,
               (char *)old.data + tensor_offset(&old, i) * size, (size_t)size);
    block_free(&entry->memory);
    entry->memory = memory;
}

/* ---- Running a call ---- */

void call_poison(call *c)
{
    int i;
    for (i = 0; i < c->count; i++)
        if (c->tensors[i].output)
            memset(c->tensors[i].memory.data, POISON, c->tensors[i].memory.size);
}

fwa_status call_run(call *c)
{
    return c->pass == FWA_PASS_FORWARD ? fwa_forward(c->plan, &c->forward)
                                       : fwa_backward(c->plan, &c->backward);
}

static const char *broken_margin(const call *c)
{
    int i;
    for (i = 0; i < c->count; i++)
        if (!block_margins_intact(&c->tensors[i].memory))
            return c->tensors[i].name;
    return block_margins_intact(&c->workspace) ? NULL : "workspace";
}

void call_ok(call *c)
{
    uint64_t before[CALL_TENSORS];
    const char *broken;
    int i;
    for (i = 0; i < c->count; i++)
        before[i] = block_hash(&c->tensors[i].memory);
    cr_assert_eq(call_run(c), FWA_OK, "%s", fwa_error_message());
    broken = broken_margin(c);
    cr_assert(broken == NULL, "memory around %s was written", broken);
    for (i = 0; i < c->count; i++)
        cr_assert(c->tensors[i].output || c->setup.in_place ||
                      block_hash(&c->tensors[i].memory) == before[i],
                  "the input %s was written", c->tensors[i].name);
}

static void check_message(const char *file, int line, fwa_status got, fwa_status status,
                          va_list texts)
{
    const char *text;
    cr_assert_eq(got, status, "%s:%d: got %s, not %s: %s", file, line, fwa_status_name(got),
                 fwa_status_name(status), fwa_error_message());
    while ((text = va_arg(texts, const char *)) != NULL)
        cr_assert(strstr(fwa_error_message(), text) != NULL, "%s:%d: no \"%s\" in \"%s\"", file,
                  line, text, fwa_error_message());
}

void expect_message_(const char *file, int line, fwa_status got, fwa_status status, ...)
{
    va_list texts;
    va_start(texts, status);
    check_message(file, line, got, status, texts);
    va_end(texts);
}

void call_fails_(call *c, const char *file, int line, fwa_status status, ...)
{
    uint64_t before[CALL_TENSORS];
    const char *broken;
    va_list texts;
    int i;
    for (i = 0; i < c->count; i++)
        before[i] = block_hash(&c->tensors[i].memory);
    va_start(texts, status);
    check_message(file, line, call_run(c), status, texts);
    va_end(texts);
    for (i = 0; i < c->count; i++)
        cr_assert_eq(block_hash(&c->tensors[i].memory), before[i], "%s:%d: %s was written", file,
                     line, c->tensors[i].name);
    broken = broken_margin(c);
    cr_assert(broken == NULL, "%s:%d: memory around %s was written", file, line, broken);
}

void expect_same_outputs_(call *a, call *b, const char *file, int line)
{
    int i, compared = 0;
    for (i = 0; i < a->count; i++) {
        if (!a->tensors[i].output)
            continue;
        cr_assert(tensor_same(a->tensors[i].tensor, call_get(b, a->tensors[i].name)),
                  "%s:%d: %s differs", file, line, a->tensors[i].name);
        compared++;
    }
    cr_assert_gt(compared, 0);
}
