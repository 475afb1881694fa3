/* SPDX-License-Identifier: Apache-2.0 */

/* AdamW against what can be said in closed form. */

#include "optimizer.h"
#include "self_test.h"

#include <math.h>
#include <stdlib.h>

static const double RATE = 0.01;
enum { STEPS = 3 };

static void set_gradients(lm_model *model, float size)
{
    for (size_t i = 0; i < model->size; i++)
        model->gradients[i] = i % 3 ? size : -size;
}

/* The largest distance of a weight from keep * its start + moved * (the sign against its gradient).
 */
static double largest_error(const lm_model *model, const float *start, double keep, double moved)
{
    double largest = 0.0;
    for (int32_t p = 0; p < model->parameter_count; p++) {
        const parameter *entry = &model->parameters[p];
        for (size_t j = 0; j < (size_t)(entry->rows * entry->columns); j++) {
            const size_t i = entry->offset + j;
            const double expected = (entry->decay ? keep : 1.0) * (double)start[i] +
                                    (i % 3 ? -moved : moved);
            const double error = fabs((double)model->weights[i] - expected);
            largest = error <= largest ? largest : error;
        }
    }
    return largest;
}

static double run_steps(lm_model *model, const optimizer_options *options)
{
    double norm = 0.0;
    for (int64_t step = 1; step <= STEPS; step++)
        norm = optimizer_step(model, options, RATE, step);
    return norm;
}

/* A constant gradient moves every weight by the rate, whatever its size: mean^2 = variance. */
static void check_constant(self_test_tally *tally, lm_model *model, float *start, double clip)
{
    const optimizer_options options = {0.0, clip};
    double norm, expected = 0.0, error, mean;
    for (size_t i = 0; i < model->size; i++) {
        model->mean[i] = model->variance[i] = 0.0f;
        start[i] = model->weights[i];
    }
    for (int32_t p = 0; p < model->parameter_count; p++)
        expected += (double)(model->parameters[p].rows * model->parameters[p].columns);
    expected = 0.25 * sqrt(expected);
    set_gradients(model, 0.25f);
    norm = run_steps(model, &options);
    error = largest_error(model, start, 1.0, STEPS * RATE);
    mean = 0.25 * (1.0 - pow(0.9, STEPS)) * (clip > 0.0 ? clip / expected : 1.0);
    self_test_check(tally, fabs(norm - expected) <= 1e-6 * expected,
                    "AdamW: the gradient's norm is %.9g, not %.9g", norm, expected);
    self_test_check(tally, fabs((double)model->mean[1] - mean) <= 1e-6 * mean,
                    "AdamW, clip %g: the mean is %.9g, not %.9g", clip, (double)model->mean[1],
                    mean);
    self_test_check(tally, error <= 1e-5, "AdamW, clip %g: a weight is off by %g", clip, error);
}

/* Without a gradient only the decay is left, and not on vectors. */
static void check_decay(self_test_tally *tally, lm_model *model, float *start)
{
    const optimizer_options options = {0.5, 1.0};
    double error;
    for (size_t i = 0; i < model->size; i++) {
        model->mean[i] = model->variance[i] = model->gradients[i] = 0.0f;
        start[i] = model->weights[i];
    }
    run_steps(model, &options);
    error = largest_error(model, start, pow(1.0 - RATE * options.weight_decay, STEPS), 0.0);
    self_test_check(tally, error <= 1e-6, "AdamW: decay leaves a weight off by %g", error);
}

static void check_divergence(self_test_tally *tally, lm_model *model)
{
    const optimizer_options options = {0.5, 1.0};
    const float before = model->weights[0];
    model->gradients[0] = NAN;
    self_test_check(tally,
                    isnan(optimizer_step(model, &options, RATE, 1)) && model->weights[0] == before,
                    "AdamW: a gradient that is not a number changes the weights");
}

static void check_schedule(self_test_tally *tally)
{
    static const double PLACES[][2] = {
        {0.0, 0.0}, {0.05, 0.5}, {0.1, 1.0}, {0.55, 0.55}, {1.0, 0.1}};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        const double rate = optimizer_rate(2.0, 0.1, PLACES[i][0]);
        self_test_check(tally, fabs(rate - 2.0 * PLACES[i][1]) <= 1e-12,
                        "the rate at %g of the run is %g", PLACES[i][0], rate);
    }
}

void self_test_optimizer(self_test_tally *tally)
{
    const lm_config config = {"falcon1", 0, 1, 6, 2, 3, 8};
    lm_message message = {""};
    lm_model model;
    float *start;
    const int made = model_create(&model, tally->context, &config, 1, &message);
    self_test_check(tally, made == 0, "AdamW: %s", message.text);
    if (made != 0)
        return;
    start = lm_allocate(model.size, sizeof *start, &message);
    self_test_check(tally, start != NULL, "AdamW: %s", message.text);
    if (start) {
        check_constant(tally, &model, start, 0.0);
        check_constant(tally, &model, start, 1.0);
        check_decay(tally, &model, start);
        check_divergence(tally, &model);
        check_schedule(tally);
    }
    free(start);
    model_destroy(&model);
}
