/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#include "random.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

static uint8_t draw(const float *logits, double temperature, random_stream *random)
{
    double weight[VOCABULARY], sum = 0.0, rest;
    int best = 0;
    for (int c = 1; c < VOCABULARY; c++)
        best = logits[c] > logits[best] ? c : best;
    if (temperature <= 0.0)
        return (uint8_t)best;
    for (int c = 0; c < VOCABULARY; c++) {
        weight[c] = exp(((double)logits[c] - (double)logits[best]) / temperature);
        sum += weight[c];
    }
    rest = sum * random_uniform(random);
    for (int c = 0; c < VOCABULARY; c++) {
        rest -= weight[c];
        if (rest < 0.0)
            return (uint8_t)c;
    }
    return (uint8_t)best;
}

static void print_byte(uint8_t byte, FILE *to)
{
    fputc(isprint(byte) || byte == '\n' || byte == '\t' ? byte : '?', to);
}

/* The prompt goes through in one call, each byte after it in a call of one token. */
static int write_text(const lm_model *model, const generate_options *options,
                      lm_activations *activations, lm_state *state, lm_batch *batch, FILE *to,
                      lm_message *message)
{
    const int64_t length = batch->token_capacity;
    random_stream random = random_start(options->seed, RANDOM_SAMPLE, 0);
    const float *logits = activations->logits + (length - 1) * VOCABULARY;
    memcpy(batch->input, options->prompt, (size_t)length);
    batch->tokens = batch->starts[1] = length;
    batch->sequences = 1;
    for (int64_t t = 0; t < length; t++)
        print_byte(batch->input[t], to);
    for (int64_t i = 0; i < options->count; i++) {
        if (model_forward(model, activations, batch, state, message) != 0)
            return -1;
        batch->input[0] = draw(logits, options->temperature, &random);
        print_byte(batch->input[0], to);
        batch->tokens = batch->starts[1] = 1;
        logits = activations->logits;
    }
    return 0;
}

int generate(const lm_model *model, const generate_options *options, FILE *to, lm_message *message)
{
    const int64_t length = (int64_t)strlen(options->prompt);
    lm_activations activations = {0};
    lm_state state = {0};
    lm_batch batch = {0};
    int result;
    if (length == 0)
        return lm_fail(message, "--prompt: generation needs at least one byte to go on from");
    result = batch_create(&batch, length, 1, message);
    if (result == 0)
        result = model_state_create(&state, model, 1, message);
    if (result == 0)
        result = activations_create(&activations, model, length, 1, 0, message);
    if (result == 0)
        result = write_text(model, options, &activations, &state, &batch, to, message);
    activations_destroy(&activations);
    model_state_destroy(&state);
    batch_destroy(&batch);
    return result;
}
