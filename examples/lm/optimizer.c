/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer.h"

#include <math.h>

static const double MEAN_DECAY = 0.9, VARIANCE_DECAY = 0.95, EPSILON = 1e-8, LAST_RATE = 0.1;

double optimizer_rate(double peak, double warmup, double progress)
{
    double rest;
    if (progress < warmup)
        return peak * progress / warmup;
    rest = warmup < 1.0 ? (progress - warmup) / (1.0 - warmup) : 1.0;
    return peak * (LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + cos(M_PI * fmin(rest, 1.0))));
}

/* One thread sums one tensor at a time, so that the sum does not depend on their number. */
static double gradient_norm(const lm_model *model)
{
    double total = 0.0;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        const parameter *entry = &model->parameters[i];
        const float *gradient = model->gradients + entry->offset;
        double sum = 0.0;
        for (int64_t j = 0; j < entry->rows * entry->columns; j++)
            sum += (double)gradient[j] * (double)gradient[j];
        total += sum;
    }
    return sqrt(total);
}

double optimizer_step(lm_model *model, const optimizer_options *options, double rate, int64_t step)
{
    const double norm = gradient_norm(model);
    const float factor = options->clip > 0.0 && norm > options->clip ? (float)(options->clip / norm)
                                                                     : 1.0f;
    const float a = (float)MEAN_DECAY, b = (float)VARIANCE_DECAY, epsilon = (float)EPSILON;
    const float step_size = (float)(rate / (1.0 - pow(MEAN_DECAY, (double)step)));
    const float variance_scale = (float)(1.0 / (1.0 - pow(VARIANCE_DECAY, (double)step)));
    if (!isfinite(norm))
        return norm;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        const parameter *entry = &model->parameters[i];
        const float keep = entry->decay ? (float)(1.0 - rate * options->weight_decay) : 1.0f;
        const float *gradient = model->gradients + entry->offset;
        float *weight = model->weights + entry->offset, *mean = model->mean + entry->offset;
        float *variance = model->variance + entry->offset;
#pragma omp parallel for simd schedule(static)
        for (int64_t j = 0; j < entry->rows * entry->columns; j++) {
            const float g = factor * gradient[j];
            mean[j] = a * mean[j] + (1.0f - a) * g;
            variance[j] = b * variance[j] + (1.0f - b) * g * g;
            weight[j] = keep * weight[j] -
                        step_size * mean[j] / (sqrtf(variance[j] * variance_scale) + epsilon);
        }
    }
    return norm;
}
