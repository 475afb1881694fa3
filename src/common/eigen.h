/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_EIGEN_H
#define FWA_COMMON_EIGEN_H

/* The top eigenvalue of a window's Gram matrix (4.15), with a unit eigenvector for its gradient.
 * Plain C that is also valid device code: define FWA_DEVICE to the qualifiers a function needs
 * there. */

#ifndef FWA_DEVICE
#define FWA_DEVICE static inline
#endif

#include <math.h>

#define FWA_EIGEN_MAX 32

/* n = 2, closed form; no cancellation in the vector. */
FWA_DEVICE double fwa_top_eigen_2(const double *gram, double *vector)
{
    double half = (gram[0] - gram[3]) / 2, across = gram[1], radius = hypot(half, across);
    double first = half >= 0 ? half + radius : across;
    double second = half >= 0 ? across : radius - half;
    double length = hypot(first, second);
    vector[0] = radius == 0 ? 1 : first / length;
    vector[1] = radius == 0 ? 0 : second / length;
    return (gram[0] + gram[3]) / 2 + radius;
}

/* Zeroes gram[p][q] by a rotation of rows and columns p and q; the rows of `basis` turn along. */
FWA_DEVICE void fwa_jacobi_rotate(int n, double *gram, double *basis, int p, int q)
{
    double theta, tangent, cosine, sine;
    int i;
    if (gram[p * n + q] == 0)
        return;
    theta = (gram[q * n + q] - gram[p * n + p]) / (2 * gram[p * n + q]);
    tangent = (theta < 0 ? -1 : 1) / (fabs(theta) + hypot(theta, 1.0));
    cosine = 1 / sqrt(tangent * tangent + 1);
    sine = tangent * cosine;
    for (i = 0; i < n; i++) {
        double left = gram[i * n + p], right = gram[i * n + q];
        gram[i * n + p] = cosine * left - sine * right;
        gram[i * n + q] = sine * left + cosine * right;
    }
    for (i = 0; i < n; i++) {
        double upper = gram[p * n + i], lower = gram[q * n + i];
        gram[p * n + i] = cosine * upper - sine * lower;
        gram[q * n + i] = sine * upper + cosine * lower;
        upper = basis[p * n + i], lower = basis[q * n + i];
        basis[p * n + i] = cosine * upper - sine * lower;
        basis[q * n + i] = sine * upper + cosine * lower;
    }
    gram[p * n + q] = gram[q * n + p] = 0;
}

/* True while an off-diagonal element matters beside the trace. */
FWA_DEVICE int fwa_jacobi_open(int n, const double *gram)
{
    double trace = 0, across = 0;
    int i, j;
    for (i = 0; i < n; i++) {
        trace += fabs(gram[i * n + i]);
        for (j = i + 1; j < n; j++)
            across = fabs(gram[i * n + j]) > across ? fabs(gram[i * n + j]) : across;
    }
    return across > 1e-18 * trace;
}

/* Cyclic Jacobi; the residual |G a - lambda a| is of the order of 1e-15 lambda. */
FWA_DEVICE double fwa_top_eigen_jacobi(int n, double *gram, double *vector)
{
    double basis[FWA_EIGEN_MAX * FWA_EIGEN_MAX];
    int i, p, q, sweep, top = 0;
    for (i = 0; i < n * n; i++)
        basis[i] = i % (n + 1) == 0;
    for (sweep = 0; sweep < 32 && fwa_jacobi_open(n, gram); sweep++)
        for (p = 0; p < n - 1; p++)
            for (q = p + 1; q < n; q++)
                fwa_jacobi_rotate(n, gram, basis, p, q);
    for (i = 1; i < n; i++)
        top = gram[i * (n + 1)] > gram[top * (n + 1)] ? i : top;
    for (i = 0; i < n; i++)
        vector[i] = basis[top * n + i];
    return gram[top * (n + 1)];
}

/* The largest eigenvalue of a symmetric positive semidefinite n x n matrix, 1 <= n <= 32, which is
 * destroyed, and a unit eigenvector [n]. At a repeated eigenvalue the vector is one of the possible
 * ones, always the same for the same matrix. NaN, vector included, where an element is infinite
 * or NaN. */
FWA_DEVICE double fwa_top_eigen(int n, double *gram, double *vector)
{
    double check = 0;
    int i;
    for (i = 0; i < n * n; i++)
        check += gram[i] - gram[i];
    if (check != 0) {
        for (i = 0; i < n; i++)
            vector[i] = check;
        return check;
    }
    vector[0] = 1;
    if (n == 1)
        return gram[0];
    return n == 2 ? fwa_top_eigen_2(gram, vector) : fwa_top_eigen_jacobi(n, gram, vector);
}

#endif
