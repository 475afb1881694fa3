/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

#include "matmul.h"
#include "ops.h"

#include <string.h>

static int64_t inner_width(const lm_model *model)
{
    return (int64_t)model->config.heads * model->config.head_dim;
}

/* ---- Forward ---- */

/* y [tokens, out] = x [tokens, in] W^T + keep * y. */
static int project(int64_t tokens, int64_t out, int64_t in, const float *x, const float *weight,
                   float keep, float *y)
{
    return matmul(MATMUL_PLAIN, MATMUL_TRANSPOSED, tokens, out, in, x, weight, keep, y);
}

static fwa_tensor sequence_starts(const lm_batch *batch)
{
    return fwa_tensor_contiguous(batch->starts, FWA_DTYPE_I64, 1, batch->sequences + 1);
}

/* The fixed gates are one row for all tokens: a stride of 0 broadcasts it. */
static fwa_tensor fixed_gates(const lm_model *model, int64_t tokens)
{
    const fwa_tensor row = fwa_tensor_contiguous(model->fixed_gate, FWA_DTYPE_F32, 3, 1, tokens,
                                                 model->config.heads);
    fwa_tensor tensor = row;
    tensor.stride[0] = tensor.stride[1] = 0;
    return tensor;
}

static int has_fixed_gates(const lm_model *model)
{
    return model->recipe->gate == GATE_RETNET || model->recipe->gate == GATE_LIGHTNING;
}

static int mix_forward(const lm_model *model, lm_activations *activations, const lm_batch *batch,
                       layer_activations *layer, const fwa_carry *carry, lm_message *message)
{
    const mixer_tensors tensors = mixer_tensors_of(model, batch->tokens, layer->features,
                                                   layer->beta, layer->lambda, layer->log_gate,
                                                   layer->o);
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    args.q = tensors.q;
    args.k = tensors.k;
    args.v = tensors.v;
    args.beta = tensors.beta;
    args.lambda = tensors.lambda;
    args.log_gate = has_fixed_gates(model) ? fixed_gates(model, batch->tokens) : tensors.log_gate;
    args.cu_seqlens = sequence_starts(batch);
    args.o = tensors.o;
    if (carry)
        args.carry_in = args.carry_out = *carry;
    args.workspace = activations->workspace;
    args.workspace_size = activations->workspace_size;
    if (activations->training && activations->saved_size > 0) {
        args.saved = layer->saved;
        args.saved_size = activations->saved_size;
    }
    if (fwa_forward(model->plan, &args) != FWA_OK)
        return lm_fail(message, "fwa_forward: %s", fwa_error_message());
    return 0;
}

static int mixer_forward(const lm_model *model, lm_activations *activations, const lm_batch *batch,
                         int32_t l, lm_state *state, lm_message *message)
{
    const layer_offsets *at = &model->layers[l];
    const float *weights = model->weights;
    layer_activations *layer = &activations->layers[l];
    const int64_t tokens = batch->tokens, dim = model->config.dim, inner = inner_width(model);
    float *history = state ? state->history[l] : NULL;
    int failed = 0;
    norm_forward(tokens, 1, dim, layer->x, weights + at->mixer_norm, layer->h, layer->h_inverse);
    failed |= project(tokens, 3 * inner, dim, layer->h, weights + at->qkv, 0.0f, layer->qkv);
    conv_forward(batch->sequences, batch->starts, 3 * inner, layer->qkv, weights + at->conv,
                 history, layer->mixed);
    if (history)
        conv_remember(batch->sequences, batch->starts, 3 * inner, layer->qkv, history);
    silu_split_forward(tokens, 3, inner, layer->mixed, layer->features);
    if (model->gate_width > 0)
        failed |= project(tokens, model->gate_width, dim, layer->h, weights + at->gates, 0.0f,
                          layer->gates);
    gates_forward(model, at, tokens, layer);
    if (mix_forward(model, activations, batch, layer, state ? &state->carry[l] : NULL, message) !=
        0)
        return -1;
    norm_forward(tokens * model->config.heads, model->config.heads, model->config.head_dim,
                 layer->o, weights + at->output_norm, layer->o_normed, layer->o_inverse);
    memcpy(layer->middle, layer->x, (size_t)(tokens * dim) * sizeof *layer->middle);
    failed |= project(tokens, dim, inner, layer->o_normed, weights + at->output, 1.0f,
                      layer->middle);
    return failed ? lm_fail(message, "a matrix product failed in %s", matmul_library()) : 0;
}

static int mlp_forward(const lm_model *model, int64_t tokens, const layer_offsets *at,
                       layer_activations *layer, float *x_next, lm_message *message)
{
    const int64_t dim = model->config.dim, hidden = model->config.hidden;
    const float *weights = model->weights;
    int failed = 0;
    norm_forward(tokens, 1, dim, layer->middle, weights + at->mlp_norm, layer->m, layer->m_inverse);
    failed |= project(tokens, 2 * hidden, dim, layer->m, weights + at->mlp_in, 0.0f, layer->up);
    swiglu_forward(tokens, hidden, layer->up, layer->activated);
    memcpy(x_next, layer->middle, (size_t)(tokens * dim) * sizeof *x_next);
    failed |= project(tokens, dim, hidden, layer->activated, weights + at->mlp_out, 1.0f, x_next);
    return failed ? lm_fail(message, "a matrix product failed in %s", matmul_library()) : 0;
}

int model_forward(const lm_model *model, lm_activations *activations, const lm_batch *batch,
                  lm_state *state, lm_message *message)
{
    const int64_t tokens = batch->tokens, dim = model->config.dim;
    const int32_t layers = model->config.layers;
    const float *embedding = model->weights + model->embedding;
    embedding_forward(tokens, dim, batch->input, embedding, activations->layers[0].x);
    for (int32_t l = 0; l < layers; l++) {
        float *next = l + 1 < layers ? activations->layers[l + 1].x : activations->x;
        if (mixer_forward(model, activations, batch, l, state, message) != 0 ||
            mlp_forward(model, tokens, &model->layers[l], &activations->layers[l], next, message))
            return -1;
    }
    norm_forward(tokens, 1, dim, activations->x, model->weights + model->final_norm, activations->h,
                 activations->h_inverse);
    if (project(tokens, VOCABULARY, dim, activations->h, embedding, 0.0f, activations->logits) != 0)
        return lm_fail(message, "a matrix product failed in %s", matmul_library());
    return 0;
}

double model_loss(lm_activations *activations, const lm_batch *batch, int64_t *count)
{
    double sum = 0.0;
    cross_entropy_forward(batch->tokens, VOCABULARY, activations->logits, batch->target,
                          activations->loss);
    *count = 0;
    for (int64_t t = 0; t < batch->tokens; t++) {
        sum += activations->loss[t];
        *count += batch->target[t] >= 0;
    }
    return sum;
}

/* ---- Backward ---- */

/* Of y = x W^T: x_grad = y_grad W + keep * x_grad, weight_grad += y_grad^T x. */
static int project_backward(int64_t tokens, int64_t out, int64_t in, const float *x,
                            const float *weight, const float *y_grad, float keep, float *x_grad,
                            float *weight_grad)
{
    return matmul(MATMUL_PLAIN, MATMUL_PLAIN, tokens, in, out, y_grad, weight, keep, x_grad) |
           matmul(MATMUL_TRANSPOSED, MATMUL_PLAIN, out, in, tokens, y_grad, x, 1.0f, weight_grad);
}

static int mlp_backward(lm_model *model, int64_t tokens, const layer_offsets *at,
                        const layer_activations *layer, gradient_buffers *gradient)
{
    const int64_t dim = model->config.dim, hidden = model->config.hidden;
    const float *weights = model->weights;
    float *gradients = model->gradients;
    int failed = 0;
    failed |= project_backward(tokens, dim, hidden, layer->activated, weights + at->mlp_out,
                               gradient->x, 0.0f, gradient->activated, gradients + at->mlp_out);
    swiglu_backward(tokens, hidden, layer->up, gradient->activated, gradient->up);
    failed |= project_backward(tokens, 2 * hidden, dim, layer->m, weights + at->mlp_in,
                               gradient->up, 0.0f, gradient->h, gradients + at->mlp_in);
    norm_backward(tokens, 1, dim, layer->middle, weights + at->mlp_norm, layer->m_inverse,
                  gradient->h, 1.0f, gradient->x, gradients + at->mlp_norm);
    return failed;
}

static int mix_backward(const lm_model *model, lm_activations *activations, const lm_batch *batch,
                        const layer_activations *layer, lm_message *message)
{
    gradient_buffers *gradient = &activations->gradient;
    const mixer_tensors in = mixer_tensors_of(model, batch->tokens, layer->features, layer->beta,
                                              layer->lambda, layer->log_gate, layer->o);
    const mixer_tensors out = mixer_tensors_of(model, batch->tokens, gradient->features,
                                               gradient->beta, gradient->lambda, gradient->log_gate,
                                               gradient->o);
    fwa_backward_args args = FWA_BACKWARD_ARGS_INIT;
    args.q = in.q;
    args.k = in.k;
    args.v = in.v;
    args.beta = in.beta;
    args.lambda = in.lambda;
    args.log_gate = has_fixed_gates(model) ? fixed_gates(model, batch->tokens) : in.log_gate;
    args.cu_seqlens = sequence_starts(batch);
    args.o_grad = out.o;
    args.q_grad = out.q;
    args.k_grad = out.k;
    args.v_grad = out.v;
    args.beta_grad = out.beta;
    args.lambda_grad = out.lambda;
    args.log_gate_grad = out.log_gate;
    args.workspace = activations->workspace;
    args.workspace_size = activations->workspace_size;
    if (activations->saved_size > 0) {
        args.saved = layer->saved;
        args.saved_size = activations->saved_size;
    }
    if (fwa_backward(model->plan, &args) != FWA_OK)
        return lm_fail(message, "fwa_backward: %s", fwa_error_message());
    return 0;
}

static int mixer_backward(lm_model *model, lm_activations *activations, const lm_batch *batch,
                          int32_t l, lm_message *message)
{
    const layer_offsets *at = &model->layers[l];
    const layer_activations *layer = &activations->layers[l];
    gradient_buffers *gradient = &activations->gradient;
    const int64_t tokens = batch->tokens, dim = model->config.dim, inner = inner_width(model);
    const float *weights = model->weights;
    float *gradients = model->gradients;
    int failed = 0;
    failed |= project_backward(tokens, dim, inner, layer->o_normed, weights + at->output,
                               gradient->x, 0.0f, gradient->o_normed, gradients + at->output);
    norm_backward(tokens * model->config.heads, model->config.heads, model->config.head_dim,
                  layer->o, weights + at->output_norm, layer->o_inverse, gradient->o_normed, 0.0f,
                  gradient->o, gradients + at->output_norm);
    if (mix_backward(model, activations, batch, layer, message) != 0)
        return -1;
    silu_split_backward(tokens, 3, inner, layer->mixed, gradient->features, gradient->mixed);
    conv_backward(batch->sequences, batch->starts, 3 * inner, layer->qkv, weights + at->conv,
                  gradient->mixed, gradient->qkv, gradients + at->conv);
    gates_backward(model, at, tokens, layer, gradient);
    failed |= project_backward(tokens, 3 * inner, dim, layer->h, weights + at->qkv, gradient->qkv,
                               0.0f, gradient->h, gradients + at->qkv);
    if (model->gate_width > 0)
        failed |= project_backward(tokens, model->gate_width, dim, layer->h, weights + at->gates,
                                   gradient->gates, 1.0f, gradient->h, gradients + at->gates);
    norm_backward(tokens, 1, dim, layer->x, weights + at->mixer_norm, layer->h_inverse, gradient->h,
                  1.0f, gradient->x, gradients + at->mixer_norm);
    return failed ? lm_fail(message, "a matrix product failed in %s", matmul_library()) : 0;
}

int model_backward(lm_model *model, lm_activations *activations, const lm_batch *batch,
                   lm_message *message)
{
    const int64_t tokens = batch->tokens, dim = model->config.dim;
    gradient_buffers *gradient = &activations->gradient;
    float *gradients = model->gradients;
    int64_t count = 0;
    int failed = 0;
    memset(gradients, 0, model->size * sizeof *gradients);
    for (int64_t t = 0; t < tokens; t++)
        count += batch->target[t] >= 0;
    cross_entropy_backward(tokens, VOCABULARY, batch->target, 1.0f / (float)(count > 0 ? count : 1),
                           activations->logits);
    failed |= project_backward(tokens, VOCABULARY, dim, activations->h,
                               model->weights + model->embedding, activations->logits, 0.0f,
                               gradient->h, gradients + model->embedding);
    norm_backward(tokens, 1, dim, activations->x, model->weights + model->final_norm,
                  activations->h_inverse, gradient->h, 0.0f, gradient->x,
                  gradients + model->final_norm);
    for (int32_t l = model->config.layers - 1; l >= 0; l--) {
        failed |= mlp_backward(model, tokens, &model->layers[l], &activations->layers[l], gradient);
        if (mixer_backward(model, activations, batch, l, message) != 0)
            return -1;
    }
    embedding_backward(tokens, dim, batch->input, gradient->x, gradients + model->embedding);
    return failed ? lm_fail(message, "a matrix product failed in %s", matmul_library()) : 0;
}
