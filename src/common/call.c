/* SPDX-License-Identifier: Apache-2.0 */
/* fwa_forward and fwa_backward: validation of a call, then the backend. */

#include "call.h"

/* What a team's first member found out, for the others. */
typedef struct {
    fwa_status status;
    int32_t ordered;
    char text[480];
} verdict;

size_t fwa_front_size(int64_t sequences)
{
    size_t size = sizeof(verdict) + 64 + fwa_sequences_scratch(sequences);
    return (size + FWA_FRONT_ALIGNMENT - 1) / FWA_FRONT_ALIGNMENT * FWA_FRONT_ALIGNMENT;
}

#define RULE_LIMIT 40 /* the backward has 33 */

typedef struct {
    fwa_tensor_rule rules[RULE_LIMIT];
    int32_t count;
    const fwa_problem *problem;
    fwa_extent extent;
    int32_t wide; /* type of gates and carries */
} rule_list;

enum { OPTIONAL = 0, REQUIRED = 1, OUTPUT = 2 };

static int32_t add(rule_list *list, const char *name, const fwa_tensor *tensor, int32_t dtype,
                   int flags, int32_t rank, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    fwa_tensor_rule *rule = &list->rules[list->count];
    *rule = (fwa_tensor_rule){name,
                              tensor,
                              dtype,
                              rank,
                              {n0, n1, n2, n3, 0},
                              (flags & REQUIRED) != 0,
                              (flags & OUTPUT) != 0,
                              false,
                              -1};
    return list->count++;
}

/* q, k, v, beta, lambda, log_gate, or their gradients. */
static void add_tokens(rule_list *list, const char *const names[6],
                       const fwa_tensor *const tensors[6], int flags, int gate_flags)
{
    const fwa_problem *p = list->problem;
    const int64_t b = list->extent.batch, t = list->extent.tokens;
    const int32_t channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    add(list, names[0], tensors[0], p->dtype, flags, 4, b, t, p->heads_query, p->key_dim);
    add(list, names[1], tensors[1], p->dtype, flags, 4, b, t, p->heads_key, p->key_dim);
    add(list, names[2], tensors[2], p->dtype, flags, 4, b, t, p->heads_value, p->value_dim);
    add(list, names[3], tensors[3], list->wide, gate_flags, 3 + channel, b, t, p->heads_value,
        p->value_dim);
    add(list, names[4], tensors[4], list->wide, gate_flags, 3, b, t, p->heads_value, 0);
    add(list, names[5], tensors[5], list->wide, gate_flags, 3, b, t, p->heads_value, 0);
}

/* The parts of a carry with `rows` rows (-1: as many as the first given part has). Returns the
 * index of the first rule. names: seen, state, prev_key, tail_key, tail_value, norm. */
static int32_t add_carry(rule_list *list, const char *const names[6], const fwa_carry *carry,
                         int32_t state_dtype, int flags, int64_t rows)
{
    const fwa_problem *p = list->problem;
    const int64_t tail = p->window - 1;
    const fwa_tensor *parts[] = {&carry->seen,     &carry->state,      &carry->prev_key,
                                 &carry->tail_key, &carry->tail_value, &carry->norm};
    int32_t first = list->count, i;
    for (i = 0; rows < 0 && i < 6; i++)
        if (parts[i]->rank > 0)
            rows = parts[i]->shape[0];
    add(list, names[0], parts[0], FWA_DTYPE_I64, flags, 1, rows, 0, 0, 0);
    i = add(list, names[1], parts[1], state_dtype, flags, 4, rows, p->heads_value, p->key_dim,
            p->value_dim);
    list->rules[i].any_last = true;
    add(list, names[2], parts[2], list->wide, flags, 3, rows, p->heads_key, p->key_dim, 0);
    add(list, names[3], parts[3], list->wide, flags, 4, rows, tail, p->heads_key, p->key_dim);
    add(list, names[4], parts[4], list->wide, flags, 4, rows, tail, p->heads_value, p->value_dim);
    add(list, names[5], parts[5], list->wide, flags, 3, rows, p->heads_value, p->key_dim, 0);
    return first;
}

/* Parts that the problem does not have must not be given: the caller expects something of them. */
static fwa_status check_parts(const rule_list *list, int32_t first)
{
    const fwa_problem *p = list->problem;
    const struct {
        bool has;
        const char *why;
    } parts[] = {{true, ""},
                 {true, ""},
                 {p->alignment == FWA_ALIGNMENT_NEXT_LATENT, "alignment is same_step"},
                 {true, ""},
                 {true, ""},
                 {p->normalizer != 0, "normalizer is 0"}};
    int32_t i;
    for (i = 0; i < 6; i++)
        if (!parts[i].has && list->rules[first + i].tensor->rank)
            return fwa_fail(FWA_ERROR_VALUE, "%s is given, but the problem's %s",
                            list->rules[first + i].name, parts[i].why);
    return FWA_OK;
}

/* Batch, tokens and sequences of a call, from q and cu_seqlens. */
static fwa_status find_extent(rule_list *list, const fwa_tensor *q, const fwa_tensor *cu_seqlens)
{
    fwa_extent *e = &list->extent;
    if (!q->rank && !q->data)
        return fwa_fail(FWA_ERROR_NULL, "q is absent");
    if (q->rank != 4)
        return fwa_fail(FWA_ERROR_SHAPE, "q.rank is %d; it must be 4", (int)q->rank);
    e->batch = e->sequences = q->shape[0];
    e->tokens = q->shape[1];
    if (e->batch < 0 || e->tokens < 0 || e->batch > FWA_AXIS_LIMIT || e->tokens > FWA_AXIS_LIMIT ||
        (e->tokens && e->batch > FWA_AXIS_LIMIT / e->tokens))
        return fwa_fail(FWA_ERROR_SHAPE,
                        "q.shape is [%lld, %lld, ..]; extents and their product run from 0 to %lld",
                        (long long)e->batch, (long long)e->tokens, (long long)FWA_AXIS_LIMIT);
    if (cu_seqlens->rank) {
        if (e->batch != 1)
            return fwa_fail(FWA_ERROR_SHAPE, "q.shape[0] is %lld; with cu_seqlens it must be 1",
                            (long long)e->batch);
        if (cu_seqlens->rank != 1 || cu_seqlens->shape[0] < 1)
            return fwa_fail(
                FWA_ERROR_SHAPE,
                "cu_seqlens has rank %d and %lld elements; it must have rank 1 and N + 1",
                (int)cu_seqlens->rank, (long long)cu_seqlens->shape[0]);
        e->sequences = cu_seqlens->shape[0] - 1;
    }
    if (e->sequences > INT32_MAX)
        return fwa_fail(FWA_ERROR_SHAPE, "the call has %lld sequences; it may have up to %d",
                        (long long)e->sequences, INT32_MAX);
    return FWA_OK;
}

static const char *const token_names[] = {"q", "k", "v", "beta", "lambda", "log_gate"};
static const char *const token_grad_names[] = {"q_grad",    "k_grad",      "v_grad",
                                               "beta_grad", "lambda_grad", "log_gate_grad"};
#define CARRY_NAMES(x)                                                                             \
    {                                                                                              \
        x ".seen", x ".state", x ".prev_key", x ".tail_key", x ".tail_value", x ".norm"            \
    }
static const char *const carry_in_names[] = CARRY_NAMES("carry_in");
static const char *const carry_out_names[] = CARRY_NAMES("carry_out");
static const char *const carry_in_grad_names[] = CARRY_NAMES("carry_in_grad");
static const char *const carry_out_grad_names[] = CARRY_NAMES("carry_out_grad");

static fwa_status check_forward_tensors(rule_list *list, const fwa_forward_args *a,
                                        const fwa_buffer buffers[2])
{
    const fwa_problem *p = list->problem;
    const fwa_extent *e = &list->extent;
    const fwa_tensor *const tokens[] = {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate};
    const int32_t channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
    const bool slots_in = a->slot_in.rank != 0, slots_out = slots_in || a->slot_out.rank != 0;
    int32_t in, out, mask, i;
    fwa_status status;
    add_tokens(list, token_names, tokens, REQUIRED, OPTIONAL);
    add(list, "cu_seqlens", &a->cu_seqlens, FWA_ANY_INTEGER, OPTIONAL, 1, e->sequences + 1, 0, 0,
        0);
    add(list, "slot_in", &a->slot_in, FWA_DTYPE_I32, OPTIONAL, 1, e->sequences, 0, 0, 0);
    add(list, "slot_out", &a->slot_out, FWA_DTYPE_I32, OPTIONAL, 1, e->sequences, 0, 0, 0);
    add(list, "commit", &a->commit, FWA_DTYPE_I32, OPTIONAL, 1, e->sequences, 0, 0, 0);
    in = add_carry(list, carry_in_names, &a->carry_in, p->state_dtype, OPTIONAL,
                   slots_in ? -1 : e->sequences);
    out = add_carry(list, carry_out_names, &a->carry_out, p->state_dtype, OUTPUT,
                    slots_out ? -1 : e->sequences);
    for (i = 0; i < 6; i++)
        list->rules[out + i].partner = in + i;
    add(list, "o", &a->o, p->dtype, REQUIRED | OUTPUT, 4, e->batch, e->tokens, p->heads_value,
        p->value_dim);
    mask = add(list, "mask", &a->mask, list->wide, OUTPUT, 4 + channel, e->batch, p->heads_value,
               channel ? p->value_dim : e->tokens, e->tokens);
    list->rules[mask].shape[4] = e->tokens;
    if (a->mask.rank && (p->form != FWA_FORM_MASKED || a->cu_seqlens.rank))
        return fwa_fail(FWA_ERROR_UNSUPPORTED,
                        "mask is given; it needs FWA_FORM_MASKED and no cu_seqlens");
    if ((status = check_parts(list, in)) != FWA_OK || (status = check_parts(list, out)) != FWA_OK)
        return status;
    return fwa_check_tensors(list->rules, list->count, buffers, 2);
}

static fwa_status check_backward_tensors(rule_list *list, const fwa_backward_args *a,
                                         const fwa_buffer buffers[2])
{
    const fwa_problem *p = list->problem;
    const fwa_extent *e = &list->extent;
    const fwa_tensor *const tokens[] = {&a->q, &a->k, &a->v, &a->beta, &a->lambda, &a->log_gate};
    const fwa_tensor *const grads[] = {&a->q_grad,    &a->k_grad,      &a->v_grad,
                                       &a->beta_grad, &a->lambda_grad, &a->log_gate_grad};
    int32_t parts[3], i;
    fwa_status status;
    if (a->commit.rank || a->commit.data)
        return fwa_fail(FWA_ERROR_VALUE,
                        "commit is given; it is for inference, the backward refuses it");
    if (a->carry_out_grad.seen.rank || a->carry_in_grad.seen.rank)
        return fwa_fail(FWA_ERROR_VALUE, "%s.seen is given; seen has no gradient",
                        a->carry_out_grad.seen.rank ? "carry_out_grad" : "carry_in_grad");
    add_tokens(list, token_names, tokens, REQUIRED, OPTIONAL);
    add(list, "cu_seqlens", &a->cu_seqlens, FWA_ANY_INTEGER, OPTIONAL, 1, e->sequences + 1, 0, 0,
        0);
    add(list, "slot_in", &a->slot_in, FWA_DTYPE_I32, OPTIONAL, 1, e->sequences, 0, 0, 0);
    parts[0] = add_carry(list, carry_in_names, &a->carry_in, p->state_dtype, OPTIONAL,
                         a->slot_in.rank ? -1 : e->sequences);
    add(list, "o_grad", &a->o_grad, p->dtype, REQUIRED, 4, e->batch, e->tokens, p->heads_value,
        p->value_dim);
    parts[1] = add_carry(list, carry_out_grad_names, &a->carry_out_grad, list->wide, OPTIONAL,
                         e->sequences);
    add_tokens(list, token_grad_names, grads, OUTPUT, OUTPUT);
    parts[2] = add_carry(list, carry_in_grad_names, &a->carry_in_grad, list->wide, OUTPUT,
                         e->sequences);
    for (i = 0; i < 3; i++)
        if ((status = check_parts(list, parts[i])) != FWA_OK)
            return status;
    return fwa_check_tensors(list->rules, list->count, buffers, 2);
}

static fwa_status check_buffer(const char *name, const void *data, size_t size, size_t needed,
                               const fwa_extent *e)
{
    if (size < needed)
        return fwa_fail(FWA_ERROR_WORKSPACE,
                        "%s_size is %zu; %lld x %lld tokens in %lld sequences need %zu bytes", name,
                        size, (long long)e->batch, (long long)e->tokens, (long long)e->sequences,
                        needed);
    if (needed && !data)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL; it needs %zu bytes", name, needed);
    if ((uintptr_t)data % FWA_BUFFER_ALIGNMENT)
        return fwa_fail(FWA_ERROR_ALIGNMENT, "%s is %p, not aligned to %d", name, data,
                        FWA_BUFFER_ALIGNMENT);
    return FWA_OK;
}

/* The front end's part of the workspace, at its first aligned address. */
static char *front_of(const fwa_buffer *workspace)
{
    uintptr_t at = (uintptr_t)workspace->data + FWA_FRONT_ALIGNMENT - 1;
    return (char *)(at / FWA_FRONT_ALIGNMENT * FWA_FRONT_ALIGNMENT);
}

/* Checks the sizes and places of both buffers; the backend's part of the workspace is what is left.
 */
static fwa_status check_buffers(const fwa_plan *plan, fwa_pass pass, fwa_call *call,
                                const fwa_buffer buffers[2])
{
    const fwa_buffer *w = &buffers[0], *s = &buffers[1];
    const fwa_extent *e = &call->extent;
    const size_t front = fwa_front_size(e->sequences);
    size_t needed;
    fwa_status status = fwa_total_workspace(plan, pass, e, &needed);
    if (status != FWA_OK ||
        (status = check_buffer("workspace", w->data, w->size, needed, e)) != FWA_OK)
        return status;
    if (needed > front + FWA_FRONT_ALIGNMENT)
        call->workspace = front_of(w) + front;
    if (!s->data)
        return FWA_OK;
    needed = plan->backend->saved_size(plan->plan, e);
    if ((status = check_buffer("saved", s->data, s->size, needed, e)) != FWA_OK)
        return status;
    if ((uintptr_t)w->data < fwa_buffer_end(s) && (uintptr_t)s->data < fwa_buffer_end(w))
        return fwa_fail(FWA_ERROR_OVERLAP, "saved at %p shares memory with workspace at %p",
                        s->data, w->data);
    return FWA_OK;
}

static fwa_status check_team(const fwa_plan *plan, const fwa_team *team)
{
    if (!team)
        return FWA_OK;
    if (!plan->backend->host_memory)
        return fwa_fail(FWA_ERROR_UNSUPPORTED,
                        "team is given; backend %s does not run on the caller's threads",
                        plan->backend->name);
    if (team->size < 1 || team->member < 0 || team->member >= team->size)
        return fwa_fail(FWA_ERROR_VALUE, "team->member is %d of %d; it runs from 0 to size - 1",
                        (int)team->member, (int)team->size);
    if (team->size > 1 && !team->barrier)
        return fwa_fail(FWA_ERROR_NULL, "team->barrier is NULL");
    return FWA_OK;
}

/* Checks what the tensors hold. A team's first member does it for all: the scratch is one. */
static fwa_status check_data(const fwa_plan *plan, fwa_call *call, const fwa_team *team,
                             char *front)
{
    verdict *shared = (verdict *)(void *)front;
    char *scratch = front + (sizeof *shared + 63) / 64 * 64;
    fwa_status status;
    if (!plan->backend->host_memory)
        return FWA_OK;
    if (!team || team->size == 1)
        return fwa_check_sequences(&plan->problem, call, scratch, &call->order);
    if (team->member == 0) {
        status = fwa_check_sequences(&plan->problem, call, scratch, &call->order);
        memset(shared, 0, sizeof *shared);
        shared->status = status;
        shared->ordered = call->order != NULL;
        if (status != FWA_OK)
            strncpy(shared->text, fwa_error_message(), sizeof shared->text - 1);
        team->barrier(team->user);
    } else {
        team->barrier(team->user);
        status = shared->status;
        if (status != FWA_OK)
            fwa_fail(status, "%s", shared->text);
        else if (shared->ordered)
            call->order = (const fwa_order_step *)(const void *)scratch;
    }
    /* No member may free or reuse the workspace while another still reads the verdict. After FWA_OK
     * the backend's own barriers see to that. */
    if (status != FWA_OK)
        team->barrier(team->user);
    return status;
}

/* A call whose struct is sound: checks the rest, then runs it. */
static fwa_status perform(const fwa_plan *plan, fwa_call *call)
{
    const fwa_forward_args *f = call->forward;
    const fwa_backward_args *b = call->backward;
    const fwa_pass pass = f ? FWA_PASS_FORWARD : FWA_PASS_BACKWARD;
    const fwa_team *team = f ? f->team : b->team;
    const void *saved = f ? f->saved : b->saved;
    const fwa_buffer buffers[] = {
        {"workspace", f ? f->workspace : b->workspace, f ? f->workspace_size : b->workspace_size},
        {"saved", saved,
         !saved ? 0
         : f    ? f->saved_size
                : b->saved_size}};
    rule_list list = {.problem = &plan->problem, .wide = fwa_wide_dtype(&plan->problem)};
    fwa_call_executor executor = fwa_executor_make(plan->context, team);
    fwa_message message = {""};
    fwa_status status;
    if ((status = check_team(plan, team)) != FWA_OK ||
        (status = find_extent(&list, f ? &f->q : &b->q, f ? &f->cu_seqlens : &b->cu_seqlens)) !=
            FWA_OK ||
        (status = f ? check_forward_tensors(&list, f, buffers)
                    : check_backward_tensors(&list, b, buffers)) != FWA_OK)
        return status;
    call->extent = list.extent;
    /* No sequence and no token: nothing to do, and no buffers are needed for it. */
    if (list.extent.batch == 0 || (list.extent.sequences == 0 && list.extent.tokens == 0))
        return plan->backend->host_memory ? fwa_check_lengths(call) : FWA_OK;
    if ((status = check_buffers(plan, pass, call, buffers)) != FWA_OK ||
        (status = check_data(plan, call, team, front_of(&buffers[0]))) != FWA_OK)
        return status;
    call->executor = &executor.base;
    status = (f ? plan->backend->forward : plan->backend->backward)(plan->plan, call, &message);
    return status == FWA_OK ? FWA_OK
                            : fwa_fail(status, "backend %s: %s", plan->backend->name, message.text);
}

fwa_status fwa_forward(const fwa_plan *plan, const fwa_forward_args *args)
{
    fwa_call call = {.forward = args};
    fwa_status status;
    if (!plan)
        return fwa_fail(FWA_ERROR_NULL, "plan is NULL");
    status = fwa_check_struct("args", args, sizeof *args);
    return status == FWA_OK ? perform(plan, &call) : status;
}

fwa_status fwa_backward(const fwa_plan *plan, const fwa_backward_args *args)
{
    fwa_call call = {.backward = args};
    fwa_status status;
    if (!plan)
        return fwa_fail(FWA_ERROR_NULL, "plan is NULL");
    status = fwa_check_struct("args", args, sizeof *args);
    return status == FWA_OK ? perform(plan, &call) : status;
}
