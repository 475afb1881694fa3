/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the interface: bytes choose a problem, a call that fits it, and changes to the call.
 * Whatever they choose, a refused call has written nothing, and an accepted one touches only its
 * tensors. Each tensor has a buffer of exactly the bytes that its final shape and strides span, so
 * AddressSanitizer sees every step beside it. */

#include <fwa/fwa.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* ---- The bytes ---- */

typedef struct source {
    const uint8_t *at, *end;
} source;

static uint8_t take(source *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

static int64_t take_wide(source *s)
{
    static const int64_t known[] = {0,
                                    1,
                                    -1,
                                    2,
                                    3,
                                    4,
                                    8,
                                    16,
                                    255,
                                    256,
                                    INT32_MAX,
                                    INT32_MIN,
                                    INT64_MAX,
                                    INT64_MIN,
                                    (int64_t)1 << 32,
                                    (int64_t)1 << 40,
                                    (int64_t)1 << 59,
                                    (int64_t)1 << 60,
                                    (int64_t)1 << 61};
    uint8_t choice = take(s);
    uint64_t value = 0;
    int i;
    if (choice < 200)
        return known[choice % (sizeof known / sizeof known[0])];
    for (i = 0; i < 8; i++)
        value = value << 8 | take(s);
    return (int64_t)value;
}

/* Mostly from low to high; anything now and then. */
static int32_t take_int(source *s, int32_t low, int32_t high)
{
    uint8_t choice = take(s);
    return choice < 250 ? low + choice % (high - low + 1) : (int32_t)take_wide(s);
}

static double take_double(source *s, double usual)
{
    uint8_t choice = take(s);
    double value;
    int64_t bits;
    if (choice < 200)
        return usual;
    bits = take_wide(s);
    memcpy(&value, &bits, sizeof value);
    return choice < 228 ? (double)(int8_t)bits / 8 : value;
}

/* The product, wrapped around where it is too large. */
static int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    abort();
}

/* ---- The problem ---- */

static fwa_problem take_problem(source *s)
{
    fwa_problem p = FWA_PROBLEM_INIT;
    p.objective = take_int(s, 0, 1);
    p.dynamics = take_int(s, 0, 1);
    p.window = p.dynamics ? 1 : take_int(s, 1, 5);
    p.alignment = take_int(s, 0, 1);
    p.read = take_int(s, 0, 1);
    p.step = take_int(s, 0, 1);
    p.ridge = take_int(s, 0, 2);
    p.prediction = take_int(s, 0, 1);
    p.qk_norm = take_int(s, 0, 2);
    p.phi = take_int(s, 0, 2);
    p.normalizer = p.objective == 1 && p.dynamics == 0 ? take_int(s, 0, 1) : 0;
    p.form = take_int(s, 0, 3);
    p.eps = take_double(s, 1e-6);
    p.decay_floor = take_double(s, 1e-6);
    p.scale = take_double(s, 1);
    p.norm_eps = take_double(s, 1e-6);
    p.eps_attn = take_double(s, 0);
    p.heads_key = take_int(s, 1, 2);
    p.heads_value = (int32_t)times(p.heads_key, take_int(s, 0, 2));
    p.heads_query = take_int(s, 0, 1) ? p.heads_value : 0;
    p.key_dim = take_int(s, 1, 20);
    p.value_dim = take_int(s, 1, 20);
    p.dtype = take_int(s, FWA_DTYPE_F32, FWA_DTYPE_F16);
    p.state_dtype = take_int(s, FWA_DTYPE_NONE, FWA_DTYPE_F16);
    return p;
}

/* ---- The tensors ---- */

#define TENSORS    40
#define SIZE_LIMIT 65536

typedef struct entry {
    fwa_tensor *tensor;
    bool output;
    int host;       /* the entry whose buffer this one lies in: itself, or another */
    int64_t offset; /* bytes from the start of that buffer */
    unsigned char *memory;
    size_t size;
} entry;

typedef struct call {
    fwa_problem problem;
    bool backward;
    int64_t batch, tokens, sequences;
    fwa_forward_args forward_args;
    fwa_backward_args backward_args;
    entry entries[TENSORS];
    int count;
    bool too_large; /* a legal tensor that no buffer is made for: the call must be refused */
} call;

static void add(call *c, fwa_tensor *tensor, bool output, int32_t dtype, int32_t rank, int64_t n0,
                int64_t n1, int64_t n2, int64_t n3, int64_t n4)
{
    *tensor = fwa_tensor_dense(NULL, dtype, rank, n0, n1, n2, n3, n4);
    c->entries[c->count] = (entry){.tensor = tensor, .output = output, .host = c->count};
    c->count++;
}

static int64_t value_heads(const fwa_problem *p)
{
    return p->heads_value ? p->heads_value : p->heads_key;
}

static void add_tokens(call *c, fwa_tensor *const t[6], bool output, source *s)
{
    const fwa_problem *p = &c->problem;
    const int64_t b = c->batch, n = c->tokens, hv = value_heads(p);
    const int32_t wide = p->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
    const uint8_t given = output ? take(s) : (uint8_t)(7 | take(s));
    if (given & 1)
        add(c, t[0], output, p->dtype, 4, b, n, p->heads_query ? p->heads_query : p->heads_key,
            p->key_dim, 0);
    if (given & 2)
        add(c, t[1], output, p->dtype, 4, b, n, p->heads_key, p->key_dim, 0);
    if (given & 4)
        add(c, t[2], output, p->dtype, 4, b, n, hv, p->value_dim, 0);
    if (given & 8)
        add(c, t[3], output, wide, 3 + (p->dynamics == FWA_DYNAMICS_PER_CHANNEL), b, n, hv,
            p->value_dim, 0);
    if (given & 16)
        add(c, t[4], output, wide, 3, b, n, hv, 0, 0);
    if (given & 32)
        add(c, t[5], output, wide, 3, b, n, hv, 0, 0);
}

static void add_carry(call *c, fwa_carry *carry, bool output, bool seen, bool stored, int64_t rows,
                      source *s)
{
    const fwa_problem *p = &c->problem;
    const int64_t hv = value_heads(p), tail = p->window - 1;
    const int32_t wide = p->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
    const uint8_t given = take(s);
    if (seen && given & 1)
        add(c, &carry->seen, output, FWA_DTYPE_I64, 1, rows, 0, 0, 0, 0);
    if (given & 2)
        add(c, &carry->state, output, stored && p->state_dtype ? p->state_dtype : wide, 4, rows, hv,
            p->key_dim, p->value_dim, 0);
    if (given & 4 && p->alignment == FWA_ALIGNMENT_NEXT_LATENT)
        add(c, &carry->prev_key, output, wide, 3, rows, p->heads_key, p->key_dim, 0, 0);
    if (given & 8 && tail > 0)
        add(c, &carry->tail_key, output, wide, 4, rows, tail, p->heads_key, p->key_dim, 0);
    if (given & 16 && tail > 0)
        add(c, &carry->tail_value, output, wide, 4, rows, tail, hv, p->value_dim, 0);
    if (given & 32 && p->normalizer == 1)
        add(c, &carry->norm, output, wide, 3, rows, hv, p->key_dim, 0, 0);
}

static void add_forward(call *c, source *s, bool packed)
{
    fwa_forward_args *a = &c->forward_args;
    fwa_tensor *const tokens[] = {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate};
    const fwa_problem *p = &c->problem;
    const uint8_t given = take(s);
    const int64_t rows_in = given & 1 ? take(s) % 6 : c->sequences;
    const int64_t rows_out = given & 8 ? rows_in : given & 3 ? take(s) % 6 : c->sequences;
    int first, i;
    add_tokens(c, tokens, false, s);
    if (packed)
        add(c, &a->cu_seqlens, false, given & 4 ? FWA_DTYPE_I32 : FWA_DTYPE_I64, 1,
            c->sequences + 1, 0, 0, 0, 0);
    if (given & 1)
        add(c, &a->slot_in, false, FWA_DTYPE_I32, 1, c->sequences, 0, 0, 0, 0);
    if (given & 2)
        add(c, &a->slot_out, false, FWA_DTYPE_I32, 1, c->sequences, 0, 0, 0, 0);
    if (given & 16)
        add(c, &a->commit, false, FWA_DTYPE_I32, 1, c->sequences, 0, 0, 0, 0);
    first = c->count;
    add_carry(c, &a->carry_in, false, true, true, rows_in, s);
    if (given & 8) { /* in place */
        const int behind = c->count;
        a->carry_out = a->carry_in;
        for (i = first; i < behind; i++) {
            ptrdiff_t at = (char *)c->entries[i].tensor - (char *)&a->carry_in;
            c->entries[c->count++] = (entry){
                .tensor = (fwa_tensor *)(void *)((char *)&a->carry_out + at),
                .output = true,
                .host = i};
        }
    } else {
        add_carry(c, &a->carry_out, true, true, true, rows_out, s);
    }
    add(c, &a->o, true, p->dtype, 4, c->batch, c->tokens, value_heads(p), p->value_dim, 0);
    if (given & 32) {
        const bool channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
        add(c, &a->mask, true, FWA_DTYPE_F32, 4 + channel, c->batch, value_heads(p),
            channel ? p->value_dim : c->tokens, c->tokens, c->tokens);
    }
}

static void add_backward(call *c, source *s, bool packed)
{
    fwa_backward_args *a = &c->backward_args;
    fwa_tensor *const tokens[] = {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate};
    fwa_tensor *const grads[] = {&a->q_grad,    &a->k_grad,      &a->v_grad,
                                 &a->beta_grad, &a->lambda_grad, &a->log_gate_grad};
    const fwa_problem *p = &c->problem;
    const uint8_t given = take(s);
    const int64_t rows = given & 1 ? take(s) % 6 : c->sequences;
    add_tokens(c, tokens, false, s);
    if (packed)
        add(c, &a->cu_seqlens, false, given & 4 ? FWA_DTYPE_I32 : FWA_DTYPE_I64, 1,
            c->sequences + 1, 0, 0, 0, 0);
    if (given & 1)
        add(c, &a->slot_in, false, FWA_DTYPE_I32, 1, c->sequences, 0, 0, 0, 0);
    add_carry(c, &a->carry_in, false, true, true, rows, s);
    add(c, &a->o_grad, false, p->dtype, 4, c->batch, c->tokens, value_heads(p), p->value_dim, 0);
    add_carry(c, &a->carry_out_grad, false, false, false, c->sequences, s);
    add_tokens(c, grads, true, s);
    add_carry(c, &a->carry_in_grad, true, false, false, c->sequences, s);
}

/* ---- Changes ---- */

static void change(call *c, source *s)
{
    const int which = take(s) % c->count, axis = take(s) % FWA_MAX_RANK;
    entry *e = &c->entries[which];
    fwa_tensor *t = e->tensor;
    int i;
    switch (take(s) % 10) {
    case 0: t->rank = (int32_t)take_wide(s); break;
    case 1: t->dtype = (int32_t)take_wide(s); break;
    case 2: t->shape[axis] = take_wide(s); break;
    case 3: t->stride[axis] = take_wide(s); break;
    case 4: e->host = take(s) % c->count, e->offset = take(s); break;
    case 5: e->offset = take(s); break;
    case 6: /* wider rows */
        for (i = 0; i + 1 < t->rank && i < FWA_MAX_RANK; i++)
            t->stride[i] = times(t->stride[i], 2);
        break;
    case 7: /* two outer axes in the other order */
        if (t->rank >= 3 && t->rank <= FWA_MAX_RANK) {
            t->stride[0] = times(t->shape[2], t->stride[2]);
            t->stride[1] = times(t->shape[0], t->stride[0]);
        }
        break;
    case 8: *t = (fwa_tensor){0}; break;
    default: t->stride[axis] = 0; break;
    }
}

/* Bytes that a legal view spans; 0 for what the library must refuse or not touch; -1: too many. */
static int64_t span_of(const fwa_tensor *t)
{
    const int64_t size = (int64_t)fwa_dtype_size(t->dtype);
    __int128 span = size;
    int axis;
    if (t->rank < 1 || t->rank > FWA_MAX_RANK || size == 0)
        return 0;
    for (axis = 0; axis < t->rank; axis++) {
        if (t->shape[axis] == 0)
            return 0;
        if (t->shape[axis] < 0 || (t->stride[axis] < 0 && t->shape[axis] > 1))
            return 0;
    }
    for (axis = 0; axis < t->rank; axis++)
        if (t->shape[axis] > 1)
            span += (__int128)(t->shape[axis] - 1) * t->stride[axis] * size;
    return span > SIZE_LIMIT ? -1 : (int64_t)span;
}

/* ---- Memory ---- */

/* Integers that are right nearly always; the rest is the bytes themselves, as any type reads them.
 */
static void fill_integers(call *c, const fwa_tensor *t, int64_t limit, bool rising, source *s)
{
    int64_t i, at = 0;
    if (t->rank != 1 || t->shape[0] > 64 || span_of(t) <= 0)
        return;
    for (i = 0; i < t->shape[0]; i++) {
        const bool last = i + 1 == t->shape[0];
        int64_t value = rising ? at : (int64_t)(take(s) % (limit + 3)) - 2;
        char *to = (char *)t->data + i * t->stride[0] * (int64_t)fwa_dtype_size(t->dtype);
        if (take(s) > 250)
            value = take_wide(s);
        if (rising)
            at = last || i + 2 == t->shape[0]
                     ? c->tokens
                     : at + (c->tokens > at ? take(s) % (c->tokens - at + 1) : 0);
        if (t->dtype == FWA_DTYPE_I64)
            memcpy(to, &value, 8);
        else if (t->dtype == FWA_DTYPE_I32)
            memcpy(to, &(int32_t){(int32_t)value}, 4);
    }
}

static void allocate(call *c)
{
    int i;
    for (i = 0; i < c->count; i++) {
        entry *e = &c->entries[i];
        int64_t span = span_of(e->tensor);
        if (span < 0) {
            c->too_large = true;
            span = 0;
        }
        while (c->entries[e->host].host != e->host)
            e->host = c->entries[e->host].host;
        if (c->entries[e->host].size < (size_t)(span + e->offset))
            c->entries[e->host].size = (size_t)(span + e->offset);
    }
    for (i = 0; i < c->count; i++)
        if (c->entries[i].host == i)
            c->entries[i].memory = malloc(c->entries[i].size);
    for (i = 0; i < c->count; i++) {
        entry *e = &c->entries[i];
        if (e->tensor->rank || e->tensor->dtype)
            e->tensor->data = c->entries[e->host].memory + e->offset;
    }
}

/* Hosts in a circle would make allocate() run for ever. */
static void break_circles(call *c)
{
    int i, steps, at;
    for (i = 0; i < c->count; i++) {
        for (at = i, steps = 0; c->entries[at].host != at && steps <= c->count; steps++)
            at = c->entries[at].host;
        if (steps > c->count)
            c->entries[i].host = i;
    }
}

static void fill(call *c, source *s)
{
    const fwa_forward_args *f = &c->forward_args;
    const fwa_backward_args *b = &c->backward_args;
    const int64_t rows = 6;
    int i;
    for (i = 0; i < c->count; i++) {
        entry *e = &c->entries[i];
        size_t at;
        /* 0.5 in float32, and in the 16-bit types something small; raw bytes now and then. */
        static const uint8_t half[4] = {0, 0, 0, 0x3f};
        const bool raw = take(s) > 200;
        for (at = 0; at < e->size && e->memory; at++)
            e->memory[at] = raw ? take(s) : half[at % 4];
    }
    /* Gates hold what their signs allow, mostly. */
    for (i = 0; i < c->count; i++)
        if ((c->entries[i].tensor == &f->log_gate || c->entries[i].tensor == &b->log_gate) &&
            c->entries[i].memory && take(s) < 220)
            memset(c->entries[i].memory, 0, c->entries[i].size);
    fill_integers(c, c->backward ? &b->cu_seqlens : &f->cu_seqlens, 0, true, s);
    fill_integers(c, c->backward ? &b->slot_in : &f->slot_in, rows, false, s);
    fill_integers(c, &f->slot_out, rows, false, s);
    fill_integers(c, &f->commit, c->tokens, false, s);
    fill_integers(c, c->backward ? &b->carry_in.seen : &f->carry_in.seen, 12, false, s);
}

static uint64_t hash_outputs(const call *c)
{
    uint64_t hash = 14695981039346656037u;
    size_t at;
    int i;
    for (i = 0; i < c->count; i++)
        for (at = 0; at < c->entries[i].size && c->entries[i].memory; at++)
            hash = (hash ^ c->entries[i].memory[at]) * 1099511628211u;
    return hash;
}

/* ---- The call ---- */

static void run(const fwa_plan *plan, call *c, source *s)
{
    const uint8_t knobs = take(s);
    size_t size = 0, saved_size = 0;
    uint64_t before;
    fwa_status status;
    void *workspace, *saved;
    if (fwa_plan_workspace_size(plan, (fwa_pass)c->backward, c->batch, c->tokens, c->sequences,
                                &size) ||
        fwa_plan_saved_size(plan, c->batch, c->tokens, c->sequences, &saved_size) ||
        size > 1 << 26 || saved_size > 1 << 26)
        return;
    if (c->too_large)
        size = 0;
    else if (knobs % 16 == 1 && size > 0)
        size -= 1 + take(s) % size;
    workspace = malloc(size);
    saved = knobs & 16 && !c->backward ? malloc(saved_size) : NULL;
    c->forward_args.workspace = c->backward_args.workspace = workspace;
    c->forward_args.workspace_size = c->backward_args.workspace_size = size;
    c->forward_args.saved = saved;
    c->forward_args.saved_size = saved_size;
    before = hash_outputs(c);
    status = c->backward ? fwa_backward(plan, &c->backward_args)
                         : fwa_forward(plan, &c->forward_args);
    if (status != FWA_OK && hash_outputs(c) != before)
        fail("a refused call has written");
    if (status != FWA_OK && !*fwa_error_message())
        fail("a refusal without words");
    if (status == FWA_ERROR_INTERNAL || fwa_status_name(status)[4] == 'S')
        fail(fwa_error_message());
    if (status == FWA_OK && c->too_large)
        fail("a call without workspace was accepted");
    free(workspace);
    free(saved);
}

/* Two lanes, one after the other. */
static void run_tasks(void *user, int64_t count, void (*task)(void *data, int64_t i), void *data)
{
    int64_t i;
    (void)user;
    for (i = count - 1; i >= 0; i--)
        task(data, i);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static fwa_context *contexts[4];
    source s = {bytes, bytes + size};
    const uint8_t kind = take(&s);
    const bool packed = kind & 8;
    fwa_context **context = &contexts[kind % 4];
    fwa_plan *plan = NULL;
    call c;
    int changes;
    memset(&c, 0, sizeof c);
    c.forward_args = fwa_forward_args_init();
    c.backward_args = fwa_backward_args_init();
    c.problem = take_problem(&s);
    c.backward = kind & 4;
    if (!*context) {
        fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
        options.backend = kind & 1 ? "reference" : "cpu";
        options.threads = kind & 2 ? 2 : 1;
        options.parallel_for = run_tasks;
        if (fwa_context_create(&options, context) != FWA_OK)
            fail(fwa_error_message());
    }
    if (fwa_plan_create(*context, &c.problem, &plan) != FWA_OK)
        return 0;
    c.batch = packed ? 1 : take(&s) % 4;
    c.tokens = take(&s) % 40;
    c.sequences = packed ? take(&s) % 5 : c.batch;
    (c.backward ? add_backward : add_forward)(&c, &s, packed);
    for (changes = take(&s) % 8 - 3; changes > 0; changes--)
        change(&c, &s);
    break_circles(&c);
    allocate(&c);
    fill(&c, &s);
    run(plan, &c, &s);
    for (changes = 0; changes < c.count; changes++)
        free(c.entries[changes].memory);
    fwa_plan_destroy(plan);
    return 0;
}
