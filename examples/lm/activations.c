/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* Cuts arrays from one block of memory; on the first of two passes memory is NULL and only the size
 * is found. */
typedef struct arena {
    char *memory;
    size_t used;
} arena;

static void *take(arena *from, size_t bytes)
{
    char *at = from->memory ? from->memory + from->used : NULL;
    from->used += (bytes + 63) / 64 * 64;
    return at;
}

static float *take_floats(arena *from, int64_t rows, int64_t columns)
{
    return take(from, (size_t)rows * (size_t)columns * sizeof(float));
}

static void lay_out_layer(arena *from, const lm_model *model, int64_t tokens,
                          layer_activations *layer)
{
    const lm_config *config = &model->config;
    const int64_t inner = (int64_t)config->heads * config->head_dim;
    layer->x = take_floats(from, tokens, config->dim);
    layer->h = take_floats(from, tokens, config->dim);
    layer->h_inverse = take_floats(from, tokens, 1);
    layer->qkv = take_floats(from, tokens, 3 * inner);
    layer->mixed = take_floats(from, tokens, 3 * inner);
    layer->features = take_floats(from, tokens, 3 * inner);
    layer->gates = take_floats(from, tokens, model->gate_width);
    layer->beta = take_floats(from, tokens, model->beta_width);
    layer->lambda = take_floats(from, tokens, model->lambda_width);
    layer->log_gate = take_floats(from, tokens, config->heads);
    layer->o = take_floats(from, tokens, inner);
    layer->o_inverse = take_floats(from, tokens, config->heads);
    layer->o_normed = take_floats(from, tokens, inner);
    layer->middle = take_floats(from, tokens, config->dim);
    layer->m = take_floats(from, tokens, config->dim);
    layer->m_inverse = take_floats(from, tokens, 1);
    layer->up = take_floats(from, tokens, 2 * (int64_t)config->hidden);
    layer->activated = take_floats(from, tokens, config->hidden);
}

static void lay_out_gradients(arena *from, const lm_model *model, int64_t tokens,
                              gradient_buffers *gradient)
{
    const lm_config *config = &model->config;
    const int64_t inner = (int64_t)config->heads * config->head_dim;
    gradient->x = take_floats(from, tokens, config->dim);
    gradient->h = take_floats(from, tokens, config->dim);
    gradient->qkv = take_floats(from, tokens, 3 * inner);
    gradient->mixed = take_floats(from, tokens, 3 * inner);
    gradient->features = take_floats(from, tokens, 3 * inner);
    gradient->gates = take_floats(from, tokens, model->gate_width);
    gradient->beta = take_floats(from, tokens, model->beta_width);
    gradient->lambda = take_floats(from, tokens, model->lambda_width);
    gradient->log_gate = take_floats(from, tokens, config->heads);
    gradient->o = take_floats(from, tokens, inner);
    gradient->o_normed = take_floats(from, tokens, inner);
    gradient->up = take_floats(from, tokens, 2 * (int64_t)config->hidden);
    gradient->activated = take_floats(from, tokens, config->hidden);
}

static size_t lay_out(lm_activations *activations, const lm_model *model, int64_t tokens)
{
    arena from = {activations->memory, 0};
    for (int32_t l = 0; l < model->config.layers; l++) {
        lay_out_layer(&from, model, tokens, &activations->layers[l]);
        if (activations->training)
            activations->layers[l].saved = take(&from, activations->saved_size);
    }
    if (activations->training)
        lay_out_gradients(&from, model, tokens, &activations->gradient);
    activations->x = take_floats(&from, tokens, model->config.dim);
    activations->h = take_floats(&from, tokens, model->config.dim);
    activations->h_inverse = take_floats(&from, tokens, 1);
    activations->logits = take_floats(&from, tokens, VOCABULARY);
    activations->loss = take(&from, (size_t)tokens * sizeof *activations->loss);
    activations->workspace = take(&from, activations->workspace_size);
    return from.used;
}

static int ask_sizes(lm_activations *activations, const lm_model *model, int64_t tokens,
                     int64_t sequences, lm_message *message)
{
    size_t forward = 0, backward = 0, saved = 0;
    if (fwa_plan_workspace_size(model->plan, FWA_PASS_FORWARD, 1, tokens, sequences, &forward) ||
        (activations->training && (fwa_plan_workspace_size(model->plan, FWA_PASS_BACKWARD, 1,
                                                           tokens, sequences, &backward) ||
                                   fwa_plan_saved_size(model->plan, 1, tokens, sequences, &saved))))
        return lm_fail(message, "%s", fwa_error_message());
    activations->workspace_size = forward > backward ? forward : backward;
    activations->saved_size = saved;
    return 0;
}

int activations_create(lm_activations *activations, const lm_model *model, int64_t tokens,
                       int64_t sequences, int32_t training, lm_message *message)
{
    memset(activations, 0, sizeof *activations);
    activations->training = training;
    if (ask_sizes(activations, model, tokens, sequences, message) != 0)
        return -1;
    activations->layers = lm_allocate((size_t)model->config.layers, sizeof *activations->layers,
                                      message);
    if (activations->layers)
        activations->memory = lm_allocate(lay_out(activations, model, tokens), 1, message);
    if (!activations->memory) {
        activations_destroy(activations);
        return -1;
    }
    lay_out(activations, model, tokens);
    return 0;
}

void activations_destroy(lm_activations *activations)
{
    free(activations->layers);
    free(activations->memory);
    memset(activations, 0, sizeof *activations);
}

mixer_tensors mixer_tensors_of(const lm_model *model, int64_t tokens, float *features, float *beta,
                               float *lambda, float *log_gate, float *o)
{
    const int32_t heads = model->config.heads, dim = model->config.head_dim;
    const int64_t part = tokens * heads * dim;
    mixer_tensors tensors;
    memset(&tensors, 0, sizeof tensors);
    tensors.q = fwa_tensor_contiguous(features, FWA_DTYPE_F32, 4, 1, tokens, heads, dim);
    tensors.k = fwa_tensor_contiguous(features + part, FWA_DTYPE_F32, 4, 1, tokens, heads, dim);
    tensors.v = fwa_tensor_contiguous(features + 2 * part, FWA_DTYPE_F32, 4, 1, tokens, heads, dim);
    tensors.o = fwa_tensor_contiguous(o, FWA_DTYPE_F32, 4, 1, tokens, heads, dim);
    if (model->beta_width > heads)
        tensors.beta = fwa_tensor_contiguous(beta, FWA_DTYPE_F32, 4, 1, tokens, heads, dim);
    else if (model->beta_width > 0)
        tensors.beta = fwa_tensor_contiguous(beta, FWA_DTYPE_F32, 3, 1, tokens, heads);
    if (model->lambda_width > 0)
        tensors.lambda = fwa_tensor_contiguous(lambda, FWA_DTYPE_F32, 3, 1, tokens, heads);
    if (model->trained_rate)
        tensors.log_gate = fwa_tensor_contiguous(log_gate, FWA_DTYPE_F32, 3, 1, tokens, heads);
    return tensors;
}
