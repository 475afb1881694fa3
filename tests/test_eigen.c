/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' eigenvalues of many windows at once, on every level that this machine has, against
 * eigen.h, which takes one. */

#include "../src/common/eigen.h"
#include "../src/conformance/random.h"
#include "../src/cpu/cpu.h"

#include <criterion/criterion.h>

#define LANES 16 /* at most */
#define LOWER ((FWA_EIGEN_MAX + 1) * FWA_EIGEN_MAX / 2)

static const char *const levels[] = {"generic", "avx2", "avx512", "neon"};
#define LEVELS (sizeof levels / sizeof levels[0])

typedef struct {
    int n;
    float gram[FWA_EIGEN_MAX][FWA_EIGEN_MAX];
} window;

typedef enum { RANDOM, REPEATED, RANK_ONE, NEARLY, ORTHOGONAL, ONE_PAIR, ZERO, KINDS } kind;

/* Element d of key i, from that of the first key and a random number. */
static double key_element(kind what, int i, int d, double first, double own)
{
    switch (what) {
    case REPEATED: return i % 3 ? own : first;
    case RANK_ONE: return first * (i + 1);
    case NEARLY: return first + 1e-4 * own;
    case ORTHOGONAL: return i == d;
    case ONE_PAIR: return i == 0 ? first : 0;
    case ZERO: return 0;
    default: return own;
    }
}

/* The Gram matrix of n keys of that kind, times `size`. */
static window make_window(kind what, int n, double size, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    double keys[FWA_EIGEN_MAX][FWA_EIGEN_MAX], first[FWA_EIGEN_MAX];
    window w = {.n = n};
    for (int d = 0; d < n; d++)
        first[d] = conformance_random_normal(&random);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < n; d++)
            keys[i][d] = key_element(what, i, d, first[d], conformance_random_normal(&random));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int d = 0; d < n; d++)
                sum += keys[i][d] * keys[j][d];
            w.gram[i][j] = (float)(sum * size);
        }
    return w;
}

static double expected(const window *w)
{
    double gram[FWA_EIGEN_MAX * FWA_EIGEN_MAX], vector[FWA_EIGEN_MAX];
    for (int i = 0; i < w->n; i++)
        for (int j = 0; j < w->n; j++)
            gram[i * w->n + j] = (double)w->gram[i][j];
    return fwa_top_eigen(w->n, gram, vector);
}

static double matrices[LOWER * LANES] __attribute__((aligned(64)));

static void load_matrices(const fwa_cpu_kernels *kernels, const window *windows)
{
    const int n = windows[0].n;
    double *at = matrices;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            for (int t = 0; t < kernels->lanes; t++)
                *at++ = (double)windows[t].gram[i][j];
}

/* Of as many windows of n pairs as the kernels take. */
static void eigenvalues(const fwa_cpu_kernels *kernels, const window *windows, double *to)
{
    load_matrices(kernels, windows);
    kernels->top_eigenvalues(windows[0].n, matrices, to);
}

/* The same, and the vectors, [n][lanes]; the values must be those above. */
static void eigenvectors(const fwa_cpu_kernels *kernels, const window *windows, double *to,
                         double *vectors)
{
    static double room[LOWER * LANES] __attribute__((aligned(64)));
    double values[LANES];
    eigenvalues(kernels, windows, values);
    load_matrices(kernels, windows);
    kernels->top_eigenvectors(windows[0].n, matrices, room, to, vectors);
    cr_expect_arr_eq(to, values, sizeof(double) * (size_t)kernels->lanes);
}

/* |G v - lambda v| over lambda, of the window in lane t: lambda is the largest eigenvalue, so only its
 * vectors have little of it. The vector's length is 1. */
static double residual(const window *w, double value, const double *vectors, int lanes, int t)
{
    double square = 0, length = 0;
    for (int i = 0; i < w->n; i++) {
        double sum = -value * vectors[i * lanes + t];
        for (int j = 0; j < w->n; j++)
            sum += (double)w->gram[i][j] * vectors[j * lanes + t];
        square += sum * sum;
        length += vectors[i * lanes + t] * vectors[i * lanes + t];
    }
    cr_expect_float_eq(length, 1, 1e-9);
    return value > 0 ? sqrt(square) / value : sqrt(square);
}

/* All kinds in turn, in the lanes of one call, of all scales that squared norms may have. */
Test(eigen, many_at_once)
{
    static const double sizes[] = {1, 1e-18, 1e18, 1e-30, 1e32};
    for (size_t level = 0; level < LEVELS; level++) {
        const fwa_cpu_kernels *kernels = fwa_cpu_kernels_select(levels[level]);
        for (uint64_t seed = 0; kernels && seed < 20 * FWA_EIGEN_MAX; seed++) {
            const int n = (int)(seed % FWA_EIGEN_MAX) + 1;
            window windows[LANES];
            static double vectors[FWA_EIGEN_MAX * LANES] __attribute__((aligned(64)));
            double got[LANES];
            for (int t = 0; t < LANES; t++)
                windows[t] = make_window((kind)((seed + (uint64_t)t) % KINDS), n,
                                         sizes[(seed / 7 + (uint64_t)t) % 5],
                                         100 * seed + (uint64_t)t);
            eigenvectors(kernels, windows, got, vectors);
            for (int t = 0; t < kernels->lanes; t++) {
                const double want = expected(&windows[t]);
                const double off = residual(&windows[t], want, vectors, kernels->lanes, t);
                cr_expect_leq(off, 2e-9, "%s, n %d, kind %d: %g", levels[level], n,
                              (int)((seed + (uint64_t)t) % KINDS), off);
                cr_expect_leq(fabs(got[t] - want), 2e-8 * want,
                              "%s, n %d, kind %d: %.12g, not %.12g", levels[level], n,
                              (int)((seed + (uint64_t)t) % KINDS), got[t], want);
            }
        }
    }
}

/* Windows that have no whole number of pairs yet hold rows of zeros: the value is that of the rest. */
Test(eigen, zero_rows)
{
    for (size_t level = 0; level < LEVELS; level++) {
        const fwa_cpu_kernels *kernels = fwa_cpu_kernels_select(levels[level]);
        for (int n = 2; kernels && n <= FWA_EIGEN_MAX; n++) {
            window windows[LANES];
            double got[LANES];
            for (int t = 0; t < LANES; t++) {
                windows[t] = make_window(RANDOM, n, 1, (uint64_t)(n * LANES + t));
                for (int i = 0; i < n; i++)
                    for (int j = 0; j < n; j++)
                        if (i < t % n || j < t % n)
                            windows[t].gram[i][j] = 0;
            }
            eigenvalues(kernels, windows, got);
            for (int t = 0; t < kernels->lanes; t++)
                cr_expect_leq(fabs(got[t] - expected(&windows[t])), 2e-8 * expected(&windows[t]));
        }
    }
}

/* True where lane t of one call's vectors [n][lanes] has the numbers that lane u of another has. */
static bool same_vector(const double *left, int t, const double *right, int u, int n, int lanes)
{
    bool same = true;
    for (int i = 0; i < n; i++)
        same = same && left[i * lanes + t] == right[i * lanes + u];
    return same;
}

static bool all_nan(const double *vectors, int t, int n, int lanes)
{
    bool nan = true;
    for (int i = 0; i < n; i++)
        nan = nan && isnan(vectors[i * lanes + t]);
    return nan;
}

/* A window's value and vector are the same bits whatever the other lanes hold, and whichever lane it
 * is in: an infinite number or a NaN makes NaN of that window's, of each element. */
Test(eigen, lanes_apart)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY, 0, 1e38f, 1e-38f};
    static double want[FWA_EIGEN_MAX * LANES] __attribute__((aligned(64)));
    static double vectors[FWA_EIGEN_MAX * LANES] __attribute__((aligned(64)));
    for (size_t level = 0; level < LEVELS; level++) {
        const fwa_cpu_kernels *kernels = fwa_cpu_kernels_select(levels[level]);
        const int lanes = kernels ? kernels->lanes : 0;
        for (int n = 1; kernels && n <= FWA_EIGEN_MAX; n++) {
            const window one = make_window(RANDOM, n, 1, (uint64_t)n);
            window windows[LANES];
            double alone[LANES], got[LANES];
            for (int t = 0; t < LANES; t++)
                windows[t] = one;
            eigenvectors(kernels, windows, alone, want);
            for (int t = 0; t < lanes; t++)
                cr_expect(alone[t] == alone[0] && same_vector(want, t, want, 0, n, lanes));
            for (int bad = 0; bad < 6 * lanes; bad++) {
                const int lane = bad % lanes, row = bad % n, column = bad % 2 ? row : row / 2;
                window odd = one;
                odd.gram[row][column] = odd.gram[column][row] = strange[bad / lanes];
                windows[lane] = odd;
                eigenvectors(kernels, windows, got, vectors);
                for (int t = 0; t < lanes; t++)
                    cr_expect(t == lane || (got[t] == alone[0] &&
                                            same_vector(vectors, t, want, 0, n, lanes)),
                              "%s, n %d: lane %d, from lane %d", levels[level], n, t, lane);
                cr_expect(bad / lanes > 2 || (isnan(got[lane]) && all_nan(vectors, lane, n, lanes)),
                          "%s, n %d: %g, and its vector", levels[level], n, got[lane]);
                windows[lane] = one;
            }
        }
    }
}
