/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

#include <math.h>
#include <string.h>

static const float NORM_EPSILON = 1e-6f;

/* Channels of a strip: one cache line. */
enum { STRIP = 16 };

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* exp with 2e-7 relative error, written so that a compiler can vectorise it. NaN gives exp(-87):
 * all callers multiply by something that is NaN then. */
static inline float exponential(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float whole, rest, sum, power;
    int32_t bits;
    x = x > -87.0f ? x : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    whole = (x * 1.44269504f + shift) - shift;
    rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    sum = 1.0f / 120.0f + rest * (1.0f / 720.0f);
    sum = 1.0f / 24.0f + rest * sum;
    sum = 1.0f / 6.0f + rest * sum;
    sum = 0.5f + rest * sum;
    sum = 1.0f + rest * (1.0f + rest * sum);
    bits = ((int32_t)whole + 127) * (1 << 23);
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

static inline float logistic(float x)
{
    return 1.0f / (1.0f + exponential(-x));
}

float sigmoid(float x)
{
    return logistic(x);
}

float softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

void norm_forward(int64_t rows, int64_t groups, int64_t width, const float *x, const float *weight,
                  float *y, float *inverse)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width, *scale = weight + r % groups * width;
        float *to = y + r * width, sum = 0.0f, n;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < width; c++)
            sum += from[c] * from[c];
        inverse[r] = n = 1.0f / sqrtf(sum / (float)width + NORM_EPSILON);
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            to[c] = from[c] * n * scale[c];
    }
}

static void norm_weight_backward(int64_t rows, int64_t groups, int64_t width, const float *x,
                                 const float *inverse, const float *y_grad, float *weight_grad)
{
    const int64_t strips = (width + STRIP - 1) / STRIP;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t g = 0; g < groups; g++)
        for (int64_t s = 0; s < strips; s++) {
            const int64_t first = s * STRIP, count = least(STRIP, width - first);
            float sum[STRIP] = {0};
            for (int64_t r = g; r < rows; r += groups)
                for (int64_t c = 0; c < count; c++) {
                    const int64_t at = r * width + first + c;
                    sum[c] += y_grad[at] * x[at] * inverse[r];
                }
            for (int64_t c = 0; c < count; c++)
                weight_grad[g * width + first + c] += sum[c];
        }
}

void norm_backward(int64_t rows, int64_t groups, int64_t width, const float *x, const float *weight,
                   const float *inverse, const float *y_grad, float keep, float *x_grad,
                   float *weight_grad)
{
    norm_weight_backward(rows, groups, width, x, inverse, y_grad, weight_grad);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width, *scale = weight + r % groups * width;
        const float *above = y_grad + r * width, n = inverse[r];
        float *to = x_grad + r * width, dot = 0.0f;
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < width; c++)
            dot += above[c] * scale[c] * from[c];
        dot *= n * n / (float)width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            const float gradient = n * (above[c] * scale[c] - from[c] * dot);
            to[c] = keep != 0.0f ? to[c] + gradient : gradient;
        }
    }
}

void embedding_forward(int64_t tokens, int64_t dim, const uint8_t *input, const float *table,
                       float *x)
{
    for (int64_t t = 0; t < tokens; t++)
        memcpy(x + t * dim, table + input[t] * dim, (size_t)dim * sizeof *x);
}

void embedding_backward(int64_t tokens, int64_t dim, const uint8_t *input, const float *x_grad,
                        float *table_grad)
{
    const int64_t strips = (dim + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < strips; s++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t c = s * STRIP; c < least(dim, (s + 1) * STRIP); c++)
                table_grad[input[t] * dim + c] += x_grad[t * dim + c];
}

void conv_forward(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                  const float *weight, const float *history, float *y)
{
    for (int64_t n = 0; n < sequences; n++) {
        const float *past = history ? history + n * (CONV_TAPS - 1) * width : NULL;
#pragma omp parallel for schedule(static)
        for (int64_t t = starts[n]; t < starts[n + 1]; t++) {
            float *to = y + t * width;
            memset(to, 0, (size_t)width * sizeof *to);
            for (int64_t j = 0; j < CONV_TAPS; j++) {
                const int64_t place = t - starts[n] - j;
                const float *from = place >= 0 ? x + (t - j) * width
                                    : past     ? past + (CONV_TAPS - 1 + place) * width
                                               : NULL;
                for (int64_t c = 0; from && c < width; c++)
                    to[c] += weight[j * width + c] * from[c];
            }
        }
    }
}

void conv_remember(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                   float *history)
{
    const int64_t kept = CONV_TAPS - 1;
    for (int64_t n = 0; n < sequences; n++) {
        const int64_t length = starts[n + 1] - starts[n], fresh = least(length, kept);
        float *past = history + n * kept * width;
        memmove(past, past + fresh * width, (size_t)((kept - fresh) * width) * sizeof *past);
        if (fresh > 0)
            memcpy(past + (kept - fresh) * width, x + (starts[n + 1] - fresh) * width,
                   (size_t)(fresh * width) * sizeof *past);
    }
}

void conv_backward(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                   const float *weight, const float *y_grad, float *x_grad, float *weight_grad)
{
    const int64_t strips = (width + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < strips; s++) {
        const int64_t first = s * STRIP, count = least(STRIP, width - first);
        float sum[CONV_TAPS][STRIP] = {{0}};
        for (int64_t n = 0; n < sequences; n++)
            for (int64_t t = starts[n]; t < starts[n + 1]; t++) {
                float *to = x_grad + t * width + first;
                memset(to, 0, (size_t)count * sizeof *to);
                for (int64_t j = 0; j < CONV_TAPS; j++) {
                    if (t + j < starts[n + 1]) {
                        const float *above = y_grad + (t + j) * width + first;
                        for (int64_t c = 0; c < count; c++) {
                            to[c] += weight[j * width + first + c] * above[c];
                            sum[j][c] += x[t * width + first + c] * above[c];
                        }
                    }
                }
            }
        for (int64_t j = 0; j < CONV_TAPS; j++)
            for (int64_t c = 0; c < count; c++)
                weight_grad[j * width + first + c] += sum[j][c];
    }
}

void silu_split_forward(int64_t tokens, int64_t parts, int64_t width, const float *x, float *y)
{
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t p = 0; p < parts; p++) {
            const float *from = x + (t * parts + p) * width;
            float *to = y + (p * tokens + t) * width;
#pragma omp simd
            for (int64_t c = 0; c < width; c++)
                to[c] = from[c] * logistic(from[c]);
        }
}

static inline float silu_slope(float x)
{
    const float s = logistic(x);
    return s * (1.0f + x * (1.0f - s));
}

void silu_split_backward(int64_t tokens, int64_t parts, int64_t width, const float *x,
                         const float *y_grad, float *x_grad)
{
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t p = 0; p < parts; p++) {
            const float *from = x + (t * parts + p) * width;
            const float *above = y_grad + (p * tokens + t) * width;
            float *to = x_grad + (t * parts + p) * width;
#pragma omp simd
            for (int64_t c = 0; c < width; c++)
                to[c] = above[c] * silu_slope(from[c]);
        }
}

void swiglu_forward(int64_t tokens, int64_t width, const float *x, float *y)
{
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *gate = x + 2 * t * width, *value = gate + width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            y[t * width + c] = gate[c] * logistic(gate[c]) * value[c];
    }
}

void swiglu_backward(int64_t tokens, int64_t width, const float *x, const float *y_grad,
                     float *x_grad)
{
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *gate = x + 2 * t * width, *value = gate + width, *above = y_grad + t * width;
        float *gate_grad = x_grad + 2 * t * width, *value_grad = gate_grad + width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            const float s = logistic(gate[c]);
            gate_grad[c] = above[c] * value[c] * s * (1.0f + gate[c] * (1.0f - s));
            value_grad[c] = above[c] * gate[c] * s;
        }
    }
}

void column_sums(int64_t rows, int64_t width, const float *x, float *sum)
{
    const int64_t strips = (width + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < strips; s++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = s * STRIP; c < least(width, (s + 1) * STRIP); c++)
                sum[c] += x[r * width + c];
}

/* The largest logit of a row, and the sum of exp(logit - largest). */
static float row_partition(int64_t classes, const float *row, float *largest)
{
    float sum = 0.0f;
    *largest = row[0];
    for (int64_t c = 1; c < classes; c++)
        *largest = row[c] > *largest ? row[c] : *largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < classes; c++)
        sum += exponential(row[c] - *largest);
    return sum;
}

void cross_entropy_forward(int64_t tokens, int64_t classes, const float *logits,
                           const int16_t *target, double *loss)
{
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *row = logits + t * classes;
        float largest, sum;
        loss[t] = 0.0;
        if (target[t] < 0)
            continue;
        sum = row_partition(classes, row, &largest);
        loss[t] = log((double)sum) + (double)largest - (double)row[target[t]];
    }
}

void cross_entropy_backward(int64_t tokens, int64_t classes, const int16_t *target, float scale,
                            float *logits)
{
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        float *row = logits + t * classes;
        float largest, factor;
        if (target[t] < 0) {
            memset(row, 0, (size_t)classes * sizeof *row);
            continue;
        }
        factor = scale / row_partition(classes, row, &largest);
#pragma omp simd
        for (int64_t c = 0; c < classes; c++)
            row[c] = factor * exponential(row[c] - largest);
        row[target[t]] -= scale;
    }
}
