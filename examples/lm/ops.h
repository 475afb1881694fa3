/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_OPS_H
#define LM_OPS_H

/*
 * The small layers of the model, forward and backward, on dense row-major float32 arrays.
 *
 * A backward writes the gradient of its input and adds to the gradients of its weights. Sums over
 * tokens are made by one thread per strip of channels, so nothing depends on the number of threads.
 */

#include <stdint.h>

/* y = x / sqrt(mean x^2 + 1e-6) * weight, per row of `width`; row r uses weights [r % groups,
 * width]. inverse [rows] keeps 1 / sqrt(...) for the backward. */
void norm_forward(int64_t rows, int64_t groups, int64_t width, const float *x, const float *weight,
                  float *y, float *inverse);
/* keep 0: x_grad = ..., 1: x_grad += ... */
void norm_backward(int64_t rows, int64_t groups, int64_t width, const float *x, const float *weight,
                   const float *inverse, const float *y_grad, float keep, float *x_grad,
                   float *weight_grad);

/* x [tokens, dim] = table[input]. */
void embedding_forward(int64_t tokens, int64_t dim, const uint8_t *input, const float *table,
                       float *x);
void embedding_backward(int64_t tokens, int64_t dim, const uint8_t *input, const float *x_grad,
                        float *table_grad);

/* Causal depthwise convolution: y[t, c] = sum_j weight[j, c] x[t - j, c], j < CONV_TAPS, within
 * each sequence starts[n] .. starts[n + 1] - 1. history [sequences, CONV_TAPS - 1, width], oldest
 * first, holds the rows before the sequence; NULL: zeros. */
enum { CONV_TAPS = 4 };
void conv_forward(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                  const float *weight, const float *history, float *y);
void conv_backward(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                   const float *weight, const float *y_grad, float *x_grad, float *weight_grad);
/* Moves the last rows of each sequence into its history. */
void conv_remember(int64_t sequences, const int64_t *starts, int64_t width, const float *x,
                   float *history);

/* y [parts, tokens, width] = silu(x [tokens, parts, width]): activates the fused projection and
 * takes it apart. The backward goes the other way. */
void silu_split_forward(int64_t tokens, int64_t parts, int64_t width, const float *x, float *y);
void silu_split_backward(int64_t tokens, int64_t parts, int64_t width, const float *x,
                         const float *y_grad, float *x_grad);

/* y [tokens, width] = silu(x[:, :width]) * x[:, width:]. */
void swiglu_forward(int64_t tokens, int64_t width, const float *x, float *y);
void swiglu_backward(int64_t tokens, int64_t width, const float *x, const float *y_grad,
                     float *x_grad);

/* sum[c] += sum over rows of x[r, c]. */
void column_sums(int64_t rows, int64_t width, const float *x, float *sum);

/* loss [tokens] = -log softmax(logits)[target]; 0 where the target is negative. */
void cross_entropy_forward(int64_t tokens, int64_t classes, const float *logits,
                           const int16_t *target, double *loss);
/* logits become scale * d loss / d logits. */
void cross_entropy_backward(int64_t tokens, int64_t classes, const int16_t *target, float scale,
                            float *logits);

float sigmoid(float x);
float softplus(float x);

#endif
