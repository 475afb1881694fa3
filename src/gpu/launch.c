/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: the kernels' arguments, and which are launched in which order. */

#include "gpu.h"

#include <string.h>

/* Sequences of up to so many tokens are run token by token, for what a chunk would cost. The
 * sequence's own length decides, not the call's: a batch must not change a sequence's bits. */
#define SHORT_TOKENS 4

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- Arguments ---- */

static fwa_gpu_view view_of(const fwa_tensor *tensor)
{
    fwa_gpu_view view = {.data = tensor->data, .dtype = tensor->dtype, .rank = tensor->rank};
    memcpy(view.stride, tensor->stride, sizeof view.stride);
    return view;
}

static fwa_gpu_carry carry_of(const fwa_carry *carry)
{
    const fwa_gpu_carry views = {view_of(&carry->seen),       view_of(&carry->state),
                                 view_of(&carry->prev_key),   view_of(&carry->tail_key),
                                 view_of(&carry->tail_value), view_of(&carry->norm)};
    return views;
}

/* Rows of a pool; 0 where no part is given. */
static int64_t pool_rows(const fwa_carry *carry)
{
    const fwa_tensor *parts[] = {&carry->seen,     &carry->state,      &carry->prev_key,
                                 &carry->tail_key, &carry->tail_value, &carry->norm};
    size_t i;
    for (i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]->rank)
            return parts[i]->shape[0];
    return 0;
}

static fwa_gpu_args problem_args(const fwa_gpu_plan *plan, const fwa_call *call)
{
    const fwa_problem *p = &plan->problem;
    const fwa_gpu_args args = {
        .objective = p->objective,
        .dynamics = p->dynamics,
        .window = p->window,
        .alignment = p->alignment,
        .read = p->read,
        .step = p->step,
        .ridge = p->ridge,
        .prediction = p->prediction,
        .qk_norm = p->qk_norm,
        .phi = p->phi,
        .normalizer = p->normalizer,
        .heads_query = p->heads_query,
        .heads_key = p->heads_key,
        .heads_value = p->heads_value,
        .key_dim = p->key_dim,
        .value_dim = p->value_dim,
        .eps = (float)p->eps,
        .decay_floor = (float)p->decay_floor,
        .scale = (float)p->scale,
        .norm_eps = (float)p->norm_eps,
        .eps_attn = (float)p->eps_attn,
        .batch = call->extent.batch,
        .tokens = call->extent.tokens,
        .sequences = call->extent.sequences,
        .columns = FWA_GPU_COLUMNS,
        .blocks = fwa_gpu_blocks(p),
        .chunk_columns = fwa_gpu_chunk_columns(p),
        .chunk_blocks = (int32_t)divide_up(p->value_dim, fwa_gpu_chunk_columns(p)),
        .short_tokens = plan->chunked ? SHORT_TOKENS : INT64_MAX};
    return args;
}

static fwa_gpu_args forward_args(const fwa_gpu_plan *plan, const fwa_call *call)
{
    const fwa_forward_args *a = call->forward;
    fwa_gpu_args args = problem_args(plan, call);
    args.q = view_of(&a->q), args.k = view_of(&a->k), args.v = view_of(&a->v);
    args.o = view_of(&a->o);
    args.beta = view_of(&a->beta), args.lambda = view_of(&a->lambda);
    args.log_gate = view_of(&a->log_gate), args.cu_seqlens = view_of(&a->cu_seqlens);
    args.slot_in = view_of(&a->slot_in), args.slot_out = view_of(&a->slot_out);
    args.commit = view_of(&a->commit);
    args.carry_in = carry_of(&a->carry_in), args.carry_out = carry_of(&a->carry_out);
    args.pool_in = pool_rows(&a->carry_in), args.pool_out = pool_rows(&a->carry_out);
    /* A row may read a slot that another writes only where the pools are one, and the two arrays
     * are not the same. */
    args.crossing = a->slot_out.rank != 0 && a->carry_out.state.rank != 0 &&
                    a->carry_in.state.data == a->carry_out.state.data &&
                    !(a->slot_in.rank != 0 && a->slot_in.data == a->slot_out.data);
    fwa_gpu_place(plan, FWA_PASS_FORWARD, &call->extent, call->workspace, &args);
    return args;
}

static fwa_gpu_args backward_args(const fwa_gpu_plan *plan, const fwa_call *call)
{
    const fwa_backward_args *a = call->backward;
    fwa_gpu_args args = problem_args(plan, call);
    args.q = view_of(&a->q), args.k = view_of(&a->k), args.v = view_of(&a->v);
    args.beta = view_of(&a->beta), args.lambda = view_of(&a->lambda);
    args.log_gate = view_of(&a->log_gate), args.cu_seqlens = view_of(&a->cu_seqlens);
    args.slot_in = view_of(&a->slot_in);
    args.carry_in = carry_of(&a->carry_in);
    args.pool_in = pool_rows(&a->carry_in);
    args.o_grad = view_of(&a->o_grad);
    args.carry_out_grad = carry_of(&a->carry_out_grad);
    args.q_grad = view_of(&a->q_grad), args.k_grad = view_of(&a->k_grad);
    args.v_grad = view_of(&a->v_grad), args.beta_grad = view_of(&a->beta_grad);
    args.lambda_grad = view_of(&a->lambda_grad), args.log_gate_grad = view_of(&a->log_gate_grad);
    args.carry_in_grad = carry_of(&a->carry_in_grad);
    fwa_gpu_place(plan, FWA_PASS_BACKWARD, &call->extent, call->workspace, &args);
    if (plan->framed) { /* a head's gradients are whole, and chunks are for all sequences */
        args.blocks = 1;
        args.short_tokens = 0;
    }
    return args;
}

/* ---- Launches ---- */

/* A call's launches; the first failure stops them. */
typedef struct {
    const fwa_gpu_plan *plan;
    const fwa_gpu_args *args;
    void *stream;
    fwa_message *message;
    fwa_status status;
} launcher;

/* Kernels take a stride through their units, so a grid may always be smaller. */
static void launch(launcher *to, fwa_gpu_kernel_id id, int64_t blocks)
{
    const fwa_gpu_kernel *kernel = &to->plan->kernels[id];
    if (to->status != FWA_OK || blocks <= 0)
        return;
    to->status = fwa_gpu_driver_table.launch(
        to->plan->device->driver, kernel->kernel, blocks > INT32_MAX ? INT32_MAX : blocks,
        kernel->threads, kernel->shared, to->stream, to->args, sizeof *to->args, to->message);
}

static void launch_statistic(launcher *to)
{
    const fwa_gpu_args *a = to->args;
    if (fwa_gpu_has_eigen(&to->plan->problem))
        launch(to, FWA_GPU_STATISTIC,
               a->batch * divide_up(a->tokens, FWA_GPU_STATISTIC_TOKENS) * a->heads_key);
}

static bool writes_parts(const fwa_gpu_carry *out)
{
    return out->seen.rank || out->prev_key.rank || out->tail_key.rank || out->tail_value.rank ||
           out->norm.rank;
}

static void launch_chunks(launcher *to)
{
    const fwa_gpu_args *a = to->args;
    const int64_t units = a->sequences * a->heads_value * a->chunk_blocks;
    if (!to->plan->framed) {
        launch(to, FWA_GPU_CHUNK_FORWARD, units);
        return;
    }
    launch(to, FWA_GPU_CHUNK_PREPARE, a->chunk_slots * a->heads_value);
    launch(to, FWA_GPU_CHUNK_FORWARD_PASS, units);
}

static void launch_chunks_back(launcher *to)
{
    const fwa_gpu_args *a = to->args;
    launch_chunks(to);
    launch(to, FWA_GPU_CHUNK_BACKWARD_PASS, a->sequences * a->heads_value * a->chunk_blocks);
    launch(to, FWA_GPU_CHUNK_GRADIENTS, a->chunk_slots * a->heads_value);
}

fwa_status fwa_gpu_forward(const void *plan, const fwa_call *call, fwa_message *message)
{
    const fwa_gpu_args args = forward_args(plan, call);
    const int64_t units = (int64_t)args.heads_value * args.blocks;
    launcher to = {plan, &args, call->forward->stream, message, FWA_OK};
    launch_statistic(&to);
    if (args.crossing) {
        launch(&to, FWA_GPU_ORDER_SUCCESSORS, divide_up(args.sequences, FWA_GPU_THREADS));
        launch(&to, FWA_GPU_ORDER_LIST, args.sequences > 0);
    }
    if (args.tokens > args.short_tokens)
        launch_chunks(&to);
    if (args.tokens <= args.short_tokens || args.cu_seqlens.rank || args.slot_in.rank ||
        args.slot_out.rank)
        launch(&to, FWA_GPU_RECURRENT_FORWARD, args.sequences * units);
    if (args.crossing)
        launch(&to, FWA_GPU_RECURRENT_ORDERED, args.sequences > 0 ? units : 0);
    if (writes_parts(&args.carry_out)) {
        launch(&to, FWA_GPU_CARRY_GATHER, args.sequences);
        launch(&to, FWA_GPU_CARRY_SCATTER, args.sequences);
    }
    return to.status;
}

fwa_status fwa_gpu_backward(const void *plan, const fwa_call *call, fwa_message *message)
{
    const fwa_gpu_plan *self = plan;
    const fwa_gpu_args args = backward_args(plan, call);
    const int64_t tokens = args.batch * args.tokens;
    const int64_t waves = FWA_GPU_THREADS / self->device->properties.wave;
    launcher to = {plan, &args, call->backward->stream, message, FWA_OK};
    launch_statistic(&to);
    if (self->framed)
        launch_chunks_back(&to);
    else
        launch(&to, FWA_GPU_RECURRENT_BACKWARD, args.segments);
    if (args.k_grad.rank || args.carry_in_grad.tail_key.rank || args.carry_in_grad.prev_key.rank)
        launch(&to, FWA_GPU_KEY_GRADIENTS,
               divide_up((tokens + args.sequences * args.window) * args.heads_key, waves));
    if (args.q_grad.rank)
        launch(&to, FWA_GPU_QUERY_GRADIENTS, divide_up(tokens * args.heads_query, waves));
    if (!self->framed && (args.beta_grad.rank || args.lambda_grad.rank || args.log_gate_grad.rank))
        launch(&to, FWA_GPU_GATE_GRADIENTS, divide_up(tokens * args.heads_value, FWA_GPU_THREADS));
    if (args.carry_in_grad.norm.rank)
        launch(&to, FWA_GPU_NORM_GRADIENTS,
               divide_up(args.sequences * args.heads_value * args.key_dim, FWA_GPU_THREADS));
    return to.status;
}
