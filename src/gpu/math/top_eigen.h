/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_MATH_TOP_EIGEN_H
#define FWA_GPU_MATH_TOP_EIGEN_H

/* The largest eigenvalue of a symmetric positive semidefinite matrix, and its unit eigenvector, by a
 * wave, in float32. */

#include "feature.h"

namespace fwa
{

/* The matrix squared so often leaves of an eigenvector whose eigenvalue is a 2^-20 smaller e^-16. A
 * rounding error of the k-th square is one of 2^-k of its size in the matrix itself: together they
 * are a few roundings of it. */
enum : int { EIGEN_SQUARES = 24 };

/* to = from * from / trace(from)^2; from is symmetric, and so is what is written, bit for bit. */
FWA_DEVICE void square_matrix(int n, const float *from, float *to)
{
    float trace = 0;
    for (int i = 0; i < n; i++)
        trace += from[i * n + i];
    const float inverse = 1 / trace;
    for (int e = lane(); e < n * n; e += wave) {
        const float *left = from + e / n * n, *right = from + e % n * n;
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum += (left[i] * inverse) * (right[i] * inverse);
        to[e] = sum;
    }
    wave_barrier();
}

/* gram [n, n] stays; scratch is [2, n, n]. The vector, where wanted, is [n]. At a repeated
 * eigenvalue it is one of the possible ones, always the same for the same matrix. NaN, vector
 * included, where an element is infinite or NaN. */
FWA_DEVICE float top_eigen(int n, const float *gram, float *scratch, float *vector)
{
    float check = 0, trace = 0, length = 0, top = 0;
    int best = 0;
    for (int i = 0; i < n * n; i++)
        check += gram[i] - gram[i];
    for (int i = 0; i < n; i++)
        trace += gram[i * n + i];
    if (check != 0 || trace < 1e-37f) { /* whose inverse would overflow: zero, but for rounding */
        for (int i = lane(); vector && i < n; i += wave)
            vector[i] = check != 0 ? check : i == 0;
        return check != 0 ? check : trace;
    }
    for (int k = 0; n > 1 && k < EIGEN_SQUARES; k++)
        square_matrix(n, k == 0 ? gram : scratch + (k + 1) % 2 * n * n, scratch + k % 2 * n * n);
    const float *powers = n > 1 ? scratch + (EIGEN_SQUARES - 1) % 2 * n * n : gram;
    for (int i = 1; i < n; i++)
        best = powers[i * n + i] > powers[best * n + best] ? i : best;
    const float *row = powers + best * n;
    for (int i = 0; i < n; i++)
        length += row[i] / row[best] * (row[i] / row[best]);
    length = sqrtf(length) * row[best];
    for (int i = lane(); i < n; i += wave) { /* the shares of a^T G a */
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += gram[i * n + j] * (row[j] / length);
        top += row[i] / length * sum;
        if (vector)
            vector[i] = row[i] / length;
    }
    top = wave_sum(top);
    wave_barrier();
    return top;
}

} // namespace fwa

#endif
