/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_MATH_FEATURE_H
#define FWA_GPU_MATH_FEATURE_H

/* x = phi(norm(raw)) and its gradient, a row to a wave. */

#include "view.h"

namespace fwa
{

FWA_DEVICE float wave_sum(float value)
{
    float values[1] = {value};
    sum_lanes<1, wave>(values);
    return values[0];
}

/* 1 / sqrt(sum or mean of u^2 + norm_eps) from the lanes' shares of the sum; 1 without a norm. */
FWA_DEVICE float feature_inverse(const fwa_gpu_args &a, float share)
{
    if (a.qk_norm == NORM_NONE)
        return 1;
    float sum = wave_sum(share);
    if (a.qk_norm == NORM_RMS)
        sum /= (float)a.key_dim;
    const float root = sqrtf(sum + a.norm_eps);
    return root != 0 ? 1 / root : 0;
}

FWA_DEVICE float feature_map(const fwa_gpu_args &a, float u)
{
    if (a.phi == RELU)
        return u < 0 ? 0 : u; /* a NaN stays */
    if (a.phi == ELU1)
        return u > 0 ? u + 1 : expf(u);
    return u;
}

/* Lets a wave write the features of a row, `padded` of them with zeros behind the last. Returns
 * |x|^2. */
FWA_DEVICE float feature_row(const fwa_gpu_args &a, const Row &row, float *x, int padded)
{
    float share = 0, square = 0;
    for (int d = lane(); d < a.key_dim; d += wave) {
        const float u = load(row, d);
        x[d] = u;
        share += u * u;
    }
    const float inverse = feature_inverse(a, share);
    for (int d = lane(); d < padded; d += wave) {
        const float u = d < a.key_dim ? feature_map(a, x[d] * inverse) : 0;
        x[d] = u;
        square += u * u;
    }
    return wave_sum(square);
}

/* A row of up to 256 numbers in a wave's registers: lane l has those at l, l + wave, .. */
constexpr int row_shares = 256 / wave;

/* Turns the gradient of a row's features into that of the raw row: du = (g - w <w,g>/m)/n with w = raw/n,
 * m = 1 (l2) or D (rms). First `energy_grad` times the features is added. */
FWA_DEVICE void feature_backward(const fwa_gpu_args &a, const Row &row, float energy_grad,
                                 float (&grad)[row_shares])
{
    float raw[row_shares], share = 0, along = 0;
#pragma unroll
    for (int i = 0; i < row_shares; i++) {
        const int d = lane() + i * wave;
        raw[i] = d < a.key_dim ? load(row, d) : 0;
        share += raw[i] * raw[i];
    }
    const float inverse = feature_inverse(a, share);
#pragma unroll
    for (int i = 0; i < row_shares; i++) {
        const float w = raw[i] * inverse;
        if (lane() + i * wave >= a.key_dim)
            continue;
        if (energy_grad != 0)
            grad[i] += energy_grad * feature_map(a, w);
        if (a.phi == RELU && !(w > 0))
            grad[i] = 0;
        else if (a.phi == ELU1 && !(w > 0))
            grad[i] *= expf(w);
        along += raw[i] * grad[i];
    }
    if (a.qk_norm == NORM_NONE)
        return;
    if (a.key_dim == 1) { /* the general formula is the difference of two almost equal terms */
        grad[0] *= a.norm_eps * inverse * inverse * inverse;
        return;
    }
    along = wave_sum(along) * inverse;
    if (a.qk_norm == NORM_RMS)
        along /= (float)a.key_dim;
#pragma unroll
    for (int i = 0; i < row_shares; i++)
        grad[i] = (grad[i] - raw[i] * inverse * along) * inverse;
}

} // namespace fwa

#endif
