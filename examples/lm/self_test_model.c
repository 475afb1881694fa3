/* SPDX-License-Identifier: Apache-2.0 */

/* One small model per rule: its gradients against differences of the loss, and generation against
 * the parallel forward. */

#include "pass.h"
#include "random.h"
#include "self_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, DIM = 12, HEADS = 2, HEAD_DIM = 8, HIDDEN = 16 };

/* Everything is moved away from its start, where many gradients are small: embeddings of a size
 * that bends the loss little over a difference step, and gates that matter. */
static void stir_weights(lm_model *model)
{
    for (int32_t i = 0; i < model->parameter_count; i++) {
        const parameter *entry = &model->parameters[i];
        random_stream random = random_start(7, RANDOM_TEST, (uint64_t)i);
        for (int64_t j = 0; j < entry->rows * entry->columns; j++)
            model->weights[entry->offset + (size_t)j] += 0.3f * (float)random_normal(&random);
    }
}

static int make_model(lm_model *model, fwa_context *context, const char *rule, lm_message *message)
{
    const lm_config config = {rule, 0, LAYERS, DIM, HEADS, HEAD_DIM, HIDDEN};
    if (model_create(model, context, &config, 3, message) != 0)
        return -1;
    stir_weights(model);
    return 0;
}

/* ---- Gradients ---- */

typedef struct loss_probe {
    lm_model *model;
    lm_activations *activations;
    const lm_batch *batch;
    float *start;     /* the weights of one tensor */
    float *direction; /* of unit length */
} loss_probe;

static int mean_loss(const loss_probe *probe, double *loss, lm_message *message)
{
    int64_t count;
    if (model_forward(probe->model, probe->activations, probe->batch, NULL, message) != 0)
        return -1;
    *loss = model_loss(probe->activations, probe->batch, &count) / (double)count;
    return 0;
}

/* The loss with one tensor moved by `step` along the direction. */
static int moved_loss(const loss_probe *probe, const parameter *entry, double step, double *loss,
                      lm_message *message)
{
    float *weights = probe->model->weights + entry->offset;
    const int64_t size = entry->rows * entry->columns;
    int result;
    for (int64_t j = 0; j < size; j++)
        weights[j] = (float)((double)probe->start[j] + step * (double)probe->direction[j]);
    result = mean_loss(probe, loss, message);
    memcpy(weights, probe->start, (size_t)size * sizeof *weights);
    return result;
}

/* Central differences of two step sizes, extrapolated to fourth order. */
static int slope(const loss_probe *probe, const parameter *entry, double step, double *result,
                 lm_message *message)
{
    double loss[4];
    static const double PLACES[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++)
        if (moved_loss(probe, entry, PLACES[i] * step, &loss[i], message) != 0)
            return -1;
    *result = (8.0 * (loss[2] - loss[1]) - (loss[3] - loss[0])) / (12.0 * step);
    return 0;
}

/* A direction halfway between the gradient, along which an error of its length shows, and a random
 * one, along which an error of its direction does. Returns the length of the gradient. */
static double choose_direction(const loss_probe *probe, const parameter *entry,
                               random_stream *random)
{
    const float *gradient = probe->model->gradients + entry->offset;
    const int64_t size = entry->rows * entry->columns;
    double length = 0.0, total = 0.0;
    for (int64_t j = 0; j < size; j++)
        length += (double)gradient[j] * (double)gradient[j];
    length = sqrt(length);
    for (int64_t j = 0; j < size; j++) {
        const double along = length > 0.0 ? (double)gradient[j] / length : 0.0;
        probe->direction[j] = (float)(along + random_normal(random) / sqrt((double)size));
        total += (double)probe->direction[j] * (double)probe->direction[j];
    }
    for (int64_t j = 0; j < size; j++)
        probe->direction[j] /= (float)sqrt(total);
    return length;
}

/* A step changes the loss by about so much: little enough for the sharp bends of a norm over small
 * outputs, and a thousand times the rounding of the loss, 5e-7. */
static const double LOSS_CHANGE = 0.0005;

static void check_parameter(self_test_tally *tally, const loss_probe *probe, const char *rule,
                            const parameter *entry, int32_t index)
{
    const int64_t size = entry->rows * entry->columns;
    const float *gradient = probe->model->gradients + entry->offset;
    random_stream random = random_start(11, RANDOM_TEST, (uint64_t)index);
    double expected = 0.0, found = NAN, length, bound;
    lm_message message = {""};
    int result;
    memcpy(probe->start, probe->model->weights + entry->offset, (size_t)size * sizeof(float));
    length = choose_direction(probe, entry, &random);
    for (int64_t j = 0; j < size; j++)
        expected += (double)gradient[j] * (double)probe->direction[j];
    bound = 3e-3 * length + 5e-5;
    result = slope(probe, entry, LOSS_CHANGE / (length + 0.1), &found, &message);
    self_test_check(tally, result == 0 && fabs(found - expected) <= bound,
                    "%s: gradient of %s: slope %.7f, expected %.7f (bound %.1e) %s", rule,
                    entry->name, found, expected, bound, message.text);
}

/* Random bytes in three sequences, one of them a single token, some tokens without a loss. */
static void fill_batch(lm_batch *batch)
{
    static const int64_t LENGTHS[] = {9, 1, 6}, FIRST[] = {2, 0, 0};
    random_stream random = random_start(5, RANDOM_TEST, 0);
    uint8_t text[16];
    for (int i = 0; i < 3; i++) {
        for (size_t t = 0; t < sizeof text; t++)
            text[t] = (uint8_t)random_below(&random, VOCABULARY);
        batch_append(batch, text, LENGTHS[i], FIRST[i]);
    }
}

static int check_all_parameters(self_test_tally *tally, loss_probe *probe, const char *rule,
                                lm_message *message)
{
    double loss;
    if (mean_loss(probe, &loss, message) != 0 ||
        model_backward(probe->model, probe->activations, probe->batch, message) != 0)
        return -1;
    for (int32_t i = 0; i < probe->model->parameter_count; i++)
        check_parameter(tally, probe, rule, &probe->model->parameters[i], i);
    return 0;
}

static void check_gradients(self_test_tally *tally, lm_model *model, const char *rule)
{
    lm_activations activations = {0};
    lm_batch batch = {0};
    loss_probe probe = {model, &activations, &batch, NULL, NULL};
    lm_message message = {""};
    int result = -1;
    probe.start = lm_allocate(model->size, sizeof(float), &message);
    probe.direction = lm_allocate(model->size, sizeof(float), &message);
    if (probe.start && probe.direction && batch_create(&batch, 16, 3, &message) == 0 &&
        activations_create(&activations, model, 16, 3, 1, &message) == 0) {
        fill_batch(&batch);
        result = check_all_parameters(tally, &probe, rule, &message);
    }
    self_test_check(tally, result == 0, "%s: gradients: %s", rule, message.text);
    free(probe.start);
    free(probe.direction);
    batch_destroy(&batch);
    activations_destroy(&activations);
}

/* ---- Generation ---- */

enum { TEXT = 24, PREFIX = 7 };

static double largest_difference(const float *a, const float *b, int64_t count)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = fabs((double)a[i] - (double)b[i]);
        largest = difference <= largest ? largest : difference; /* NaN wins */
    }
    return largest;
}

/* Runs the text in pieces, `prefix` tokens first and then one at a time. */
static int run_pieces(const lm_model *model, const lm_batch *whole, int64_t prefix,
                      const float *expected, double *difference, lm_message *message)
{
    lm_activations activations = {0};
    lm_state state = {0};
    lm_batch piece = {0};
    int result = batch_create(&piece, prefix, 1, message);
    *difference = 0.0;
    if (result == 0)
        result = model_state_create(&state, model, 1, message);
    if (result == 0)
        result = activations_create(&activations, model, prefix, 1, 0, message);
    for (int64_t t = 0, length = prefix; result == 0 && t < TEXT; t += length, length = 1) {
        batch_clear(&piece);
        batch_append(&piece, whole->input + t, length, length);
        result = model_forward(model, &activations, &piece, &state, message);
        *difference = fmax(
            *difference,
            largest_difference(activations.logits, expected + t * VOCABULARY, length * VOCABULARY));
    }
    activations_destroy(&activations);
    model_state_destroy(&state);
    batch_destroy(&piece);
    return result;
}

static void check_generation(self_test_tally *tally, lm_model *model, const char *rule)
{
    static const int64_t PREFIXES[] = {1, PREFIX};
    lm_activations activations = {0};
    lm_batch whole = {0};
    lm_message message = {""};
    int result = batch_create(&whole, TEXT, 1, &message);
    if (result == 0)
        result = activations_create(&activations, model, TEXT, 1, 0, &message);
    if (result == 0) {
        uint8_t text[TEXT + 1];
        random_stream random = random_start(6, RANDOM_TEST, 0);
        for (size_t t = 0; t < sizeof text; t++)
            text[t] = (uint8_t)random_below(&random, VOCABULARY);
        batch_append(&whole, text, TEXT, TEXT);
        result = model_forward(model, &activations, &whole, NULL, &message);
    }
    self_test_check(tally, result == 0, "%s: parallel forward: %s", rule, message.text);
    for (int i = 0; result == 0 && i < 2; i++) {
        double difference;
        result = run_pieces(model, &whole, PREFIXES[i], activations.logits, &difference, &message);
        self_test_check(tally, result == 0 && difference <= 1e-4,
                        "%s: %d tokens, then one at a time: logits differ by %g %s", rule,
                        (int)PREFIXES[i], difference, message.text);
    }
    activations_destroy(&activations);
    batch_destroy(&whole);
}

void self_test_model(self_test_tally *tally, const char *rule)
{
    lm_model model;
    lm_message message = {""};
    const int result = make_model(&model, tally->context, rule, &message);
    self_test_check(tally, result == 0, "%s: %s", rule, message.text);
    if (result != 0)
        return;
    check_gradients(tally, &model, rule);
    check_generation(tally, &model, rule);
    model_destroy(&model);
}
