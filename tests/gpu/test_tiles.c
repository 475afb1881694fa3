/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles' maps (src/gpu/tile/map.h) and how operands are loaded, against products element by element. With
 * AMD's tiles the products are models of their instructions (tests/hip/matrix_models.h). */

#include "test_tiles.h"
#include "../../src/gpu/args.h"
#include "../../src/gpu/drv.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 16 };

static const fwa_gpu_driver *const driver = &fwa_gpu_driver_table;

/* Small integers, no two rows or columns alike: all sums are exact. */
static void fill(float (*left)[N], float (*right)[N])
{
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            left[i][k] = (float)((i * 5 + k * 3 + i * k) % 7 - 3) * (i == k ? 2 : 1);
            right[i][k] = (float)((i * 3 + k * 7 + i * i * k) % 3 - 1);
        }
}

static void multiply(float (*to)[N], float (*left)[N], float (*right)[N], float begin)
{
    for (int m = 0; m < N; m++)
        for (int n = 0; n < N; n++) {
            to[m][n] = begin;
            for (int k = 0; k < N; k++)
                to[m][n] += left[m][k] * right[n][k];
        }
}

static void expect(int mode, float (*sum)[N], float (*right)[N], float (*got)[N])
{
    float next[N][N];
    if (mode & TEST_CHAINED) {
        multiply(next, sum, right, 0);
        memcpy(sum, next, sizeof next);
    }
    for (int m = 0; m < N; m++) {
        float row = 0;
        for (int n = 0; n < N; n++) {
            sum[m][n] *= mode & TEST_ROOM ? 2 : 1;
            row += sum[m][n];
        }
        for (int n = 0; n < N; n++) {
            const float want = mode & TEST_ROWS ? row : sum[m][n];
            cr_assert_eq(got[m][n], want, "mode %d, element %d, %d: %g, not %g", mode, m, n,
                         (double)got[m][n], (double)want);
            cr_assert_eq(got[N + m][n], 1, "mode %d: element %d, %d came %g times", mode, m, n,
                         (double)got[N + m][n]);
        }
    }
}

Test(tiles, products)
{
    float matrices[2][N][N], sum[N][N], got[2 * N][N];
    fwa_gpu_args args = {0};
    fwa_gpu_properties properties;
    fwa_message message = {""};
    char name[64];
    void *device = NULL, *kernel = NULL;
    cr_assert_eq(driver->open(0, &device, &properties, name, sizeof name, &message), FWA_OK);
    cr_assert_eq(driver->kernel(device, "tiles", 4096, &kernel, &message), FWA_OK, "%s",
                 message.text);
    fill(matrices[0], matrices[1]);
    args.statistic = &matrices[0][0][0];
    args.top = &got[0][0];
    for (int mode = 0; mode < TEST_ALL; mode++) {
        args.window = mode;
        for (int i = 0; i < 2 * N * N; i++)
            got[i / N][i % N] = i < N * N ? NAN : 0;
        cr_assert_eq(driver->launch(device, kernel, 1, properties.wave, 4096, NULL, &args,
                                    sizeof args, &message),
                     FWA_OK, "%s", message.text);
        multiply(sum, matrices[0], matrices[1], 1);
        expect(mode, sum, matrices[1], got);
    }
    driver->close(device);
}
