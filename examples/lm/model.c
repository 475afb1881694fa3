/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "ops.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Parameters ---- */

static size_t add_parameter(lm_model *model, int32_t layer, const char *name, int64_t rows,
                            int64_t columns, int32_t decay)
{
    /* On the first of two passes the table is not there yet: only the count and the size are made.
     */
    const size_t offset = model->size;
    if (model->parameters) {
        parameter *entry = &model->parameters[model->parameter_count];
        if (layer >= 0)
            snprintf(entry->name, sizeof entry->name, "layers.%d.%s", layer, name);
        else
            snprintf(entry->name, sizeof entry->name, "%s", name);
        entry->rows = rows;
        entry->columns = columns;
        entry->offset = offset;
        entry->decay = decay;
    }
    model->parameter_count++;
    model->size += ((size_t)(rows * columns) + 15) / 16 * 16;
    return offset;
}

static void add_layer(lm_model *model, int32_t layer)
{
    const lm_config *config = &model->config;
    const int64_t inner = (int64_t)config->heads * config->head_dim, dim = config->dim;
    layer_offsets *at = &model->layers[layer];
    at->mixer_norm = add_parameter(model, layer, "mixer.norm", 1, dim, 0);
    at->qkv = add_parameter(model, layer, "mixer.qkv", 3 * inner, dim, 1);
    at->conv = add_parameter(model, layer, "mixer.conv", CONV_TAPS, 3 * inner, 0);
    if (model->gate_width > 0) {
        at->gates = add_parameter(model, layer, "mixer.gates", model->gate_width, dim, 1);
        at->gates_bias = add_parameter(model, layer, "mixer.gates_bias", 1, model->gate_width, 0);
    }
    if (model->trained_rate)
        at->rate = add_parameter(model, layer, "mixer.log_rate", 1, config->heads, 0);
    at->output_norm = add_parameter(model, layer, "mixer.output_norm", 1, inner, 0);
    at->output = add_parameter(model, layer, "mixer.output", dim, inner, 1);
    at->mlp_norm = add_parameter(model, layer, "mlp.norm", 1, dim, 0);
    at->mlp_in = add_parameter(model, layer, "mlp.in", 2 * (int64_t)config->hidden, dim, 1);
    at->mlp_out = add_parameter(model, layer, "mlp.out", dim, config->hidden, 1);
}

static void add_all(lm_model *model)
{
    model->parameter_count = 0;
    model->size = 0;
    model->embedding = add_parameter(model, -1, "embedding", VOCABULARY, model->config.dim, 0);
    for (int32_t l = 0; l < model->config.layers; l++)
        add_layer(model, l);
    model->final_norm = add_parameter(model, -1, "final_norm", 1, model->config.dim, 0);
}

/* ---- Initial weights ---- */

static void fill_normal(float *to, int64_t count, float deviation, random_stream *random)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = deviation * (float)random_normal(random);
}

static void fill(float *to, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

static float inverse_softplus(float y)
{
    return y + log1pf(-expf(-y));
}

/* Log-uniform from 0.001 to 0.1: the usual first time steps of gated and state-space models. */
static float first_time_step(random_stream *random)
{
    return 0.001f * powf(100.0f, (float)random_uniform(random));
}

static void start_gates(lm_model *model, int32_t layer, random_stream *random)
{
    const lm_recipe *recipe = model->recipe;
    const layer_offsets *at = &model->layers[layer];
    float *bias = model->weights + at->gates_bias;
    if (model->gate_width > 0)
        fill_normal(model->weights + at->gates, (int64_t)model->gate_width * model->config.dim,
                    0.5f / sqrtf((float)model->config.dim), random);
    for (int32_t i = 0; i < model->beta_width; i++)
        *bias++ = recipe->beta == BETA_SIGMOID
                      ? logf(recipe->beta_start / (1.0f - recipe->beta_start))
                      : inverse_softplus(first_time_step(random));
    for (int32_t i = 0; i < model->lambda_width; i++)
        *bias++ = inverse_softplus(LAMBDA_START);
    for (int32_t i = 0; i < model->rate_width; i++)
        *bias++ = inverse_softplus(first_time_step(random));
    for (int32_t h = 0; model->trained_rate && h < model->config.heads; h++)
        model->weights[at->rate + h] = logf(1.0f + 15.0f * (float)random_uniform(random));
}

static void start_weights(lm_model *model, uint64_t seed)
{
    const lm_config *config = &model->config;
    const int64_t dim = config->dim, inner = (int64_t)config->heads * config->head_dim;
    const float branch = 1.0f / sqrtf(2.0f * (float)config->layers); /* residual branches add up */
    fill(model->weights + model->final_norm, dim, 1.0f);
    for (int32_t l = 0; l < config->layers; l++) {
        const layer_offsets *at = &model->layers[l];
        random_stream random = random_start(seed, RANDOM_WEIGHTS, (uint64_t)l + 1);
        fill(model->weights + at->mixer_norm, dim, 1.0f);
        fill(model->weights + at->output_norm, inner, 1.0f);
        fill(model->weights + at->mlp_norm, dim, 1.0f);
        fill_normal(model->weights + at->qkv, 3 * inner * dim, 1.0f / sqrtf((float)dim), &random);
        fill_normal(model->weights + at->conv, CONV_TAPS * 3 * inner, 0.5f, &random);
        fill_normal(model->weights + at->output, dim * inner, branch / sqrtf((float)inner),
                    &random);
        fill_normal(model->weights + at->mlp_in, 2 * config->hidden * dim, 1.0f / sqrtf((float)dim),
                    &random);
        fill_normal(model->weights + at->mlp_out, dim * config->hidden,
                    branch / sqrtf((float)config->hidden), &random);
        start_gates(model, l, &random);
    }
    random_stream random = random_start(seed, RANDOM_WEIGHTS, 0);
    fill_normal(model->weights + model->embedding, VOCABULARY * dim, 0.02f, &random);
}

/* ---- Model ---- */

static int make_plan(lm_model *model, fwa_context *context, lm_message *message)
{
    const lm_config *config = &model->config;
    fwa_problem problem = FWA_PROBLEM_INIT;
    if (fwa_problem_preset(&problem, config->rule) != FWA_OK)
        return lm_fail(message, "--rule: %s", fwa_error_message());
    if (config->window > 0)
        problem.window = config->window;
    if (problem.qk_norm == FWA_NORM_NONE && problem.phi == FWA_FEATURE_MAP_IDENTITY)
        problem.qk_norm = (int32_t)model->recipe->qk_norm;
    problem.heads_key = problem.heads_value = config->heads;
    problem.key_dim = problem.value_dim = config->head_dim;
    if (fwa_plan_create(context, &problem, &model->plan) != FWA_OK)
        return lm_fail(message, "%s", fwa_error_message());
    model->problem = problem;
    return 0;
}

static void count_gates(lm_model *model)
{
    const int32_t heads = model->config.heads;
    const int32_t per_channel = model->problem.dynamics == FWA_DYNAMICS_PER_CHANNEL;
    if (model->recipe->beta != BETA_ONE)
        model->beta_width = per_channel ? heads * model->config.head_dim : heads;
    model->lambda_width = model->recipe->lambda ? heads : 0;
    model->rate_width = model->recipe->gate == GATE_PROJECTED ? heads : 0;
    model->gate_width = model->beta_width + model->lambda_width + model->rate_width;
    model->trained_rate = model->recipe->gate == GATE_PROJECTED ||
                          model->recipe->gate == GATE_OF_BETA;
    model->key_scale = recipe_key_scale(&model->problem);
}

static int allocate_model(lm_model *model, lm_message *message)
{
    const size_t layers = (size_t)model->config.layers, heads = (size_t)model->config.heads;
    model->layers = lm_allocate(layers, sizeof *model->layers, message);
    model->fixed_gate = lm_allocate(heads, sizeof *model->fixed_gate, message);
    if (!model->layers || !model->fixed_gate)
        return -1;
    add_all(model);
    model->parameters = lm_allocate((size_t)model->parameter_count, sizeof *model->parameters,
                                    message);
    model->weights = lm_allocate(model->size, sizeof *model->weights, message);
    model->gradients = lm_allocate(model->size, sizeof *model->gradients, message);
    model->mean = lm_allocate(model->size, sizeof *model->mean, message);
    model->variance = lm_allocate(model->size, sizeof *model->variance, message);
    if (!model->parameters || !model->weights || !model->gradients || !model->mean ||
        !model->variance)
        return -1;
    add_all(model);
    return 0;
}

int model_create(lm_model *model, fwa_context *context, const lm_config *config, uint64_t seed,
                 lm_message *message)
{
    memset(model, 0, sizeof *model);
    model->config = *config;
    model->recipe = recipe_find(config->rule, message);
    if (!model->recipe)
        return -1;
    if (make_plan(model, context, message) != 0)
        goto failed;
    count_gates(model);
    if (allocate_model(model, message) != 0)
        goto failed;
    for (int32_t h = 0; h < config->heads; h++)
        model->fixed_gate[h] = recipe_fixed_gate(model->recipe->gate, h, config->heads);
    start_weights(model, seed);
    return 0;
failed:
    model_destroy(model);
    return -1;
}

void model_destroy(lm_model *model)
{
    fwa_plan_destroy(model->plan);
    free(model->fixed_gate);
    free(model->layers);
    free(model->parameters);
    free(model->weights);
    free(model->gradients);
    free(model->mean);
    free(model->variance);
    memset(model, 0, sizeof *model);
}

/* ---- Batches ---- */

int batch_create(lm_batch *batch, int64_t tokens, int64_t sequences, lm_message *message)
{
    memset(batch, 0, sizeof *batch);
    batch->token_capacity = tokens;
    batch->sequence_capacity = sequences;
    batch->starts = lm_allocate((size_t)sequences + 1, sizeof *batch->starts, message);
    batch->input = lm_allocate((size_t)tokens, sizeof *batch->input, message);
    batch->target = lm_allocate((size_t)tokens, sizeof *batch->target, message);
    if (!batch->starts || !batch->input || !batch->target) {
        batch_destroy(batch);
        return -1;
    }
    return 0;
}

void batch_destroy(lm_batch *batch)
{
    free(batch->starts);
    free(batch->input);
    free(batch->target);
    memset(batch, 0, sizeof *batch);
}

void batch_clear(lm_batch *batch)
{
    batch->tokens = batch->sequences = 0;
}

void batch_append(lm_batch *batch, const uint8_t *text, int64_t length, int64_t first)
{
    const int64_t start = batch->tokens;
    for (int64_t t = 0; t < length; t++) {
        batch->input[start + t] = text[t];
        batch->target[start + t] = t >= first ? (int16_t)text[t + 1] : (int16_t)-1;
    }
    batch->tokens += length;
    batch->starts[++batch->sequences] = batch->tokens;
}

/* ---- States ---- */

/* Cuts a part of a carry from memory; on the first of two passes memory is NULL. */
static fwa_tensor carve(char *memory, size_t *used, int32_t dtype, int32_t rank, int64_t a,
                        int64_t b, int64_t c, int64_t d)
{
    fwa_tensor tensor = fwa_tensor_contiguous(memory ? memory + *used : NULL, dtype, rank, a, b, c,
                                              d);
    const size_t count = (size_t)a * (size_t)(rank > 1 ? b : 1) * (size_t)(rank > 2 ? c : 1) *
                         (size_t)(rank > 3 ? d : 1);
    *used += (count * fwa_dtype_size(dtype) + 63) / 64 * 64;
    return tensor;
}

/* Only the parts that the rule has: see "What a sequence needs to go on" in fwa.h. */
static size_t lay_out_state(lm_state *state, const lm_model *model, char *memory)
{
    const fwa_problem *problem = &model->problem;
    const int64_t n = state->sequences, heads = model->config.heads, dim = model->config.head_dim;
    const int64_t tail = problem->window - 1;
    size_t used = 0;
    for (int32_t l = 0; l < model->config.layers; l++) {
        fwa_carry *carry = &state->carry[l];
        fwa_tensor history = carve(memory, &used, FWA_DTYPE_F32, 3, n, CONV_TAPS - 1,
                                   3 * heads * dim, 1);
        state->history[l] = history.data;
        carry->seen = carve(memory, &used, FWA_DTYPE_I64, 1, n, 1, 1, 1);
        carry->state = carve(memory, &used, FWA_DTYPE_F32, 4, n, heads, dim, dim);
        if (problem->alignment == FWA_ALIGNMENT_NEXT_LATENT)
            carry->prev_key = carve(memory, &used, FWA_DTYPE_F32, 3, n, heads, dim, 1);
        if (tail > 0) {
            carry->tail_key = carve(memory, &used, FWA_DTYPE_F32, 4, n, tail, heads, dim);
            carry->tail_value = carve(memory, &used, FWA_DTYPE_F32, 4, n, tail, heads, dim);
        }
        if (problem->normalizer)
            carry->norm = carve(memory, &used, FWA_DTYPE_F32, 3, n, heads, dim, 1);
    }
    return used;
}

int model_state_create(lm_state *state, const lm_model *model, int64_t sequences,
                       lm_message *message)
{
    const size_t layers = (size_t)model->config.layers;
    memset(state, 0, sizeof *state);
    state->sequences = sequences;
    state->carry = lm_allocate(layers, sizeof *state->carry, message);
    state->history = lm_allocate(layers, sizeof *state->history, message);
    if (state->carry && state->history)
        state->memory = lm_allocate(lay_out_state(state, model, NULL), 1, message);
    if (!state->memory) {
        model_state_destroy(state);
        return -1;
    }
    lay_out_state(state, model, state->memory);
    return 0;
}

void model_state_destroy(lm_state *state)
{
    free(state->carry);
    free(state->history);
    free(state->memory);
    memset(state, 0, sizeof *state);
}
