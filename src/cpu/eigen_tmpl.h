/* SPDX-License-Identifier: Apache-2.0 */
/* The largest eigenvalues of the Gram matrices of FWA_LANES windows, one to a lane, in float64, and
 * their eigenvectors. Compiled once per ISA.
 *
 * Householder reflections make a matrix tridiagonal; bisection by the signs of its leading minors
 * finds the largest eigenvalue; inverse iteration, with a shift just above it, its vector. All take
 * the same steps whatever the numbers are: a window's result does not depend, to the bit, on what
 * the other lanes hold, and a NaN stays where it is. */

typedef double wide __attribute__((vector_size(FWA_LANES * 4)));
typedef float narrow __attribute__((vector_size(FWA_LANES * 2)));
typedef float loose_narrow __attribute__((vector_size(FWA_LANES * 2), aligned(4), may_alias));
typedef int64_t wide_int __attribute__((vector_size(FWA_LANES * 4)));

/* An element of all matrices: two vectors, which take turns while steps wait for each other. */
typedef struct {
    wide v[2];
} wide_row;

#define FOR_H       UNROLL for (int h = 0; h < 2; h++)
#define EIGEN_STEPS 32                          /* of the bisection: to 2^-32 of the trace */
#define EIGEN_SHIFT 0x1p-31                     /* above what they find: above the eigenvalue */
#define EIGEN_TURNS 4                           /* of the inverse iteration */
#define EIGEN_TINY  0x1p-200                    /* of squares beside a trace of 1 to 2 */
#define LOWER(i, j) ((i) * ((i) + 1) / 2 + (j)) /* of a lower triangle, by rows */
#define WIDE_ONE    0x3ff0000000000000
#define WIDE_POWER  0x7ff0000000000000

INLINE wide wide_splat(double value)
{
    return value - (wide){0};
}

/* Half as many float32 numbers, as float64. */
INLINE wide load_wide(const float *at)
{
    return __builtin_convertvector((narrow) * (const loose_narrow *)at, wide);
}

INLINE void store_wide(double *at, wide value)
{
    memcpy(at, &value, sizeof value);
}

/* The Gram matrices of FWA_LANES windows of B pairs, each one pair behind the other, as the
 * functions below take them: row d of `lags` holds x_r . x_{r-d}, from the first window's first
 * pair on. */
static void window_matrices(int B, const float *lags, int64_t row, double *to)
{
    for (int i = 0; i < B; i++)
        for (int j = 0; j <= i; j++)
            for (int k = 0; k < FWA_LANES; k += FWA_LANES / 2, to += FWA_LANES / 2)
                store_wide(to, load_wide(lags + (i - j) * row + i + k));
}

INLINE wide wide_choose(wide_int mask, wide a, wide b)
{
    return (wide)((mask & (wide_int)a) | (~mask & (wide_int)b));
}

/* The square root of a normal number, to 1e-10: for a reflection, which is exact with any. */
INLINE wide wide_root(wide x)
{
    wide y = (wide)(0x5fe6eb50c7b537a9 - ((wide_int)x >> 1)); /* 1 / root, to 4 % */
    for (int i = 0; i < 3; i++) {
        const wide square = x * y * y;
        y *= 1.5 - 0.5 * square;
    }
    return x * y;
}

/* Divides each matrix by the power of two of its trace, and returns that: 0 for a trace of 0. What
 * `check` gets is 0, and NaN where an element is infinite or NaN. */
static wide_row eigen_scale(int n, wide_row *a, wide_row *check)
{
    wide_row trace = {{{0}}}, sum = {{{0}}}, power, by;
    for (int i = 0; i < n; i++)
        FOR_H trace.v[h] += a[LOWER(i, i)].v[h];
    FOR_H power.v[h] = (wide)((wide_int)trace.v[h] & WIDE_POWER);
    FOR_H by.v[h] = (wide)(2 * WIDE_ONE - (wide_int)power.v[h]);
    for (int i = 0; i < LOWER(n, 0); i++) {
        FOR_H sum.v[h] += a[i].v[h];
        FOR_H a[i].v[h] *= by.v[h];
    }
    FOR_H check->v[h] = sum.v[h] - sum.v[h];
    return power;
}

/* A = H A H for the i x i triangle A, H = 1 - factor x x^T; `product` is for i numbers. */
static void eigen_reflect(int i, wide_row *a, const wide_row *x, wide_row *product,
                          const wide_row *factor)
{
    wide_row along = {{{0}}};
    for (int j = 0; j < i; j++) {
        wide_row sum = {{{0}}};
        for (int k = 0; k < i; k++)
            FOR_H sum.v[h] += a[k <= j ? LOWER(j, k) : LOWER(k, j)].v[h] * x[k].v[h];
        FOR_H product[j].v[h] = sum.v[h] * factor->v[h];
        FOR_H along.v[h] += product[j].v[h] * x[j].v[h];
    }
    FOR_H along.v[h] *= 0.5 * factor->v[h];
    for (int j = 0; j < i; j++)
        FOR_H product[j].v[h] -= along.v[h] * x[j].v[h];
    for (int j = 0; j < i; j++)
        for (int k = 0; k <= j; k++) {
            FOR_H a[LOWER(j, k)].v[h] -= product[j].v[h] * x[k].v[h];
            FOR_H a[LOWER(j, k)].v[h] -= x[j].v[h] * product[k].v[h];
        }
}

/* Makes the matrices tridiagonal, from the last row up. across[i]: the square of the element beside
 * the i-th of the diagonal. */
static void eigen_reduce(int n, wide_row *a, wide_row *across)
{
    wide_row product[FWA_EIGEN_MAX];
    for (int i = n - 1; i >= 1; i--) {
        wide_row *x = a + LOWER(i, 0), square = {{{0}}}, factor;
        for (int k = 0; k < i; k++)
            FOR_H square.v[h] += x[k].v[h] * x[k].v[h];
        across[i] = square;
        if (i == 1)
            break;
        FOR_H
        {
            const wide_int some = square.v[h] > wide_splat(EIGEN_TINY);
            const wide last = x[i - 1].v[h];
            const wide length = wide_root(wide_choose(some, square.v[h], wide_splat(1)));
            const wide head = last + wide_choose(last < wide_splat(0), -length, length);
            const wide sum = square.v[h] - last * last + head * head;
            factor.v[h] = wide_choose(some, 2 / sum, wide_splat(0));
            x[i - 1].v[h] = head;
        }
        eigen_reflect(i, a, x, product, &factor);
    }
}

/* The largest eigenvalues of the tridiagonal matrices, which are between 0 and 2. All leading
 * minors of at - A are positive where `at` is above; 32 of them do not overflow or underflow. */
static wide_row eigen_bisect(int n, const wide_row *a, const wide_row *across)
{
    wide_row at = {{{0}}}, step = {{{0}}};
    FOR_H at.v[h] = step.v[h] = wide_splat(1);
    for (int k = 0; k < EIGEN_STEPS; k++) {
        wide_row minor, before = {{{0}}};
        wide_int below[2];
        FOR_H step.v[h] *= 0.5;
        FOR_H minor.v[h] = at.v[h] - a[0].v[h];
        FOR_H below[h] = (wide_int)minor.v[h];
        FOR_H before.v[h] = wide_splat(1);
        for (int i = 1; i < n; i++)
            FOR_H
            {
                const wide next = at.v[h] - a[LOWER(i, i)].v[h];
                wide less = across[i].v[h] * before.v[h];
                PIN(less);
                before.v[h] = minor.v[h];
                minor.v[h] = next * minor.v[h] - less;
                below[h] |= (wide_int)minor.v[h];
            }
        FOR_H at.v[h] += (wide)((wide_int)step.v[h] ^ (~below[h] & INT64_MIN));
    }
    return at;
}

/* The largest eigenvalues, without their matrices' scale. */
INLINE wide_row eigen_values(int n, wide_row *a)
{
    wide_row across[FWA_EIGEN_MAX];
    eigen_reduce(n, a, across);
    return eigen_bisect(n, a, across);
}

/* shift - A = L D L^T, in place: the unit triangles, and in the diagonal's place 1 / D. The shift
 * is above all eigenvalues: D is positive. */
static void eigen_factor(int n, wide_row *a, const wide_row *shift)
{
    for (int i = 0; i < n; i++) {
        wide_row *row = a + LOWER(i, 0), rest;
        FOR_H rest.v[h] = shift->v[h] - row[i].v[h];
        for (int k = 0; k < i; k++) {
            wide_row sum;
            FOR_H sum.v[h] = -row[k].v[h];
            for (int m = 0; m < k; m++)
                FOR_H sum.v[h] -= row[m].v[h] * a[LOWER(k, m)].v[h];
            row[k] = sum; /* times D, until the row is done */
        }
        for (int k = 0; k < i; k++) {
            const wide_row sum = row[k];
            FOR_H row[k].v[h] = sum.v[h] * a[LOWER(k, k)].v[h];
            FOR_H rest.v[h] -= sum.v[h] * row[k].v[h];
        }
        FOR_H row[i].v[h] = 1 / rest.v[h];
    }
}

/* x = (L D L^T)^-1 x */
static void eigen_solve(int n, const wide_row *a, wide_row *x)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            FOR_H x[i].v[h] -= a[LOWER(i, k)].v[h] * x[k].v[h];
    for (int i = 0; i < n; i++)
        FOR_H x[i].v[h] *= a[LOWER(i, i)].v[h];
    for (int i = n - 1; i > 0; i--)
        for (int k = 0; k < i; k++)
            FOR_H x[k].v[h] -= a[LOWER(i, k)].v[h] * x[i].v[h];
}

/* The unit eigenvectors of scaled matrices, which are destroyed. A turn leaves of other
 * eigenvectors EIGEN_SHIFT over the gap, at most. NaN reaches the whole vector through its length;
 * so does an infinite element, which makes a pivot infinite and meets its inverse, 0. */
static void eigen_vectors(int n, wide_row *a, const wide_row *top, wide_row *x)
{
    wide_row shift, square = {{{0}}};
    FOR_H shift.v[h] = top->v[h] + EIGEN_SHIFT;
    eigen_factor(n, a, &shift);
    for (int i = 0; i < n; i++) { /* no combination of a few small integers is orthogonal to it */
        const double golden = 0x1.3c6ef372fe95p-1 * i;
        FOR_H x[i].v[h] = wide_splat(0.5 + golden - (int)golden);
    }
    for (int turn = 0; turn < EIGEN_TURNS; turn++)
        eigen_solve(n, a, x);
    for (int i = 0; i < n; i++)
        FOR_H square.v[h] += x[i].v[h] * x[i].v[h];
    FOR_H square.v[h] = 1 / wide_root(square.v[h]);
    for (int i = 0; i < n; i++)
        FOR_H x[i].v[h] *= square.v[h];
}

/* The largest eigenvalues `to` of FWA_LANES symmetric positive semidefinite n x n matrices of
 * float32 numbers, which are destroyed: lower triangles by rows, each element of all of them behind
 * the other, aligned to 64 bytes. To 1e-8; NaN where an element is infinite or NaN. */
static void FWA_KERNEL(top_eigenvalues)(int n, double *matrices, double *to)
{
    wide_row *a = (wide_row *)(void *)matrices, check, top;
    const wide_row power = eigen_scale(n, a, &check);
    top = eigen_values(n, a);
    FOR_H top.v[h] *= power.v[h];
    FOR_H top.v[h] += check.v[h];
    FOR_H store_wide(to + h * (FWA_LANES / 2), top.v[h]);
}

/* The same, bit for bit, and unit eigenvectors [n] of all of them, laid out alike. `room`: as much
 * as the matrices take. At a repeated eigenvalue the vector is one of the possible ones. */
static void FWA_KERNEL(top_eigenvectors)(int n, double *matrices, double *room, double *to,
                                         double *vectors)
{
    wide_row *a = (wide_row *)(void *)matrices, *copy = (wide_row *)(void *)room,
             *x = (wide_row *)(void *)vectors, check, top;
    const wide_row power = eigen_scale(n, a, &check);
    memcpy(copy, a, sizeof *a * (size_t)LOWER(n, 0));
    top = eigen_values(n, a);
    eigen_vectors(n, copy, &top, x);
    FOR_H top.v[h] *= power.v[h];
    FOR_H top.v[h] += check.v[h];
    FOR_H store_wide(to + h * (FWA_LANES / 2), top.v[h]);
}
