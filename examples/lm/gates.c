/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"
#include "pass.h"

#include <math.h>

/* beta = slope * sigmoid(projection): slope keeps beta |x|^2 in range, see recipe_key_scale(). */
static float beta_slope(const lm_model *model)
{
    return model->recipe->beta_limit / model->key_scale;
}

static void token_gates(const lm_model *model, const float *log_rate, const float *raw, float *beta,
                        float *lambda, float *log_gate)
{
    const float *lambda_raw = raw + model->beta_width, *rate_raw = lambda_raw + model->lambda_width;
    for (int32_t i = 0; i < model->beta_width; i++)
        beta[i] = model->recipe->beta == BETA_SOFTPLUS ? softplus(raw[i])
                                                       : beta_slope(model) * sigmoid(raw[i]);
    for (int32_t i = 0; i < model->lambda_width; i++)
        lambda[i] = model->key_scale * softplus(lambda_raw[i]);
    for (int32_t h = 0; model->trained_rate && h < model->config.heads; h++)
        log_gate[h] = -expf(log_rate[h]) *
                      (model->recipe->gate == GATE_OF_BETA ? beta[h] : softplus(rate_raw[h]));
}

void gates_forward(const lm_model *model, const layer_offsets *at, int64_t tokens,
                   layer_activations *layer)
{
    const int32_t width = model->gate_width, heads = model->config.heads;
    const float *bias = model->weights + at->gates_bias;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        float *raw = layer->gates + t * width;
        for (int32_t i = 0; i < width; i++)
            raw[i] += bias[i];
        token_gates(model, model->weights + at->rate, raw, layer->beta + t * model->beta_width,
                    layer->lambda + t * model->lambda_width, layer->log_gate + t * heads);
    }
}

static void token_gates_backward(const lm_model *model, const float *log_rate, const float *raw,
                                 const float *beta, float *beta_grad, const float *lambda_grad,
                                 const float *log_gate_grad, float *raw_grad)
{
    const float *lambda_raw = raw + model->beta_width, *rate_raw = lambda_raw + model->lambda_width;
    float *lambda_raw_grad = raw_grad + model->beta_width;
    float *rate_raw_grad = lambda_raw_grad + model->lambda_width;
    for (int32_t h = 0; model->trained_rate && h < model->config.heads; h++) {
        if (model->recipe->gate == GATE_OF_BETA)
            beta_grad[h] -= log_gate_grad[h] * expf(log_rate[h]);
        else
            rate_raw_grad[h] = -log_gate_grad[h] * expf(log_rate[h]) * sigmoid(rate_raw[h]);
    }
    for (int32_t i = 0; i < model->beta_width; i++)
        raw_grad[i] = beta_grad[i] * (model->recipe->beta == BETA_SOFTPLUS
                                          ? sigmoid(raw[i])
                                          : beta[i] * (1.0f - sigmoid(raw[i])));
    for (int32_t i = 0; i < model->lambda_width; i++)
        lambda_raw_grad[i] = lambda_grad[i] * model->key_scale * sigmoid(lambda_raw[i]);
}

void gates_backward(lm_model *model, const layer_offsets *at, int64_t tokens,
                    const layer_activations *layer, gradient_buffers *gradient)
{
    const int32_t width = model->gate_width, heads = model->config.heads;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++)
        token_gates_backward(model, model->weights + at->rate, layer->gates + t * width,
                             layer->beta + t * model->beta_width,
                             gradient->beta + t * model->beta_width,
                             gradient->lambda + t * model->lambda_width,
                             gradient->log_gate + t * heads, gradient->gates + t * width);
    if (width > 0)
        column_sums(tokens, width, gradient->gates, model->gradients + at->gates_bias);
    /* log_gate = -exp(log_rate) * ..., so its derivative by log_rate is log_gate itself. */
    for (int32_t h = 0; model->trained_rate && h < heads; h++)
        for (int64_t t = 0; t < tokens; t++)
            model->gradients[at->rate + h] += gradient->log_gate[t * heads + h] *
                                              layer->log_gate[t * heads + h];
}
