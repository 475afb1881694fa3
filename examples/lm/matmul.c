/* SPDX-License-Identifier: Apache-2.0 */
#include "matmul.h"

#ifdef LM_USE_DNNL
#include <dnnl.h>
#else
#include <cblas.h>
#endif

#ifdef LM_USE_DNNL

const char *matmul_library(void)
{
    return "oneDNN";
}

void matmul_start(void)
{
}

/* oneDNN sees that it runs inside a parallel region and keeps to the calling thread. */
static int product(char ta, char tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                   const float *b, int64_t ldb, float keep, float *c)
{
    return dnnl_sgemm(ta, tb, m, n, k, 1.0f, a, lda, b, ldb, keep, c, n) != dnnl_success;
}

#else

const char *matmul_library(void)
{
    return "OpenBLAS";
}

void matmul_start(void)
{
    openblas_set_num_threads(1);
}

static int product(char ta, char tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                   const float *b, int64_t ldb, float keep, float *c)
{
    cblas_sgemm(CblasRowMajor, ta == 'T' ? CblasTrans : CblasNoTrans,
                tb == 'T' ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b,
                (int)ldb, keep, c, (int)n);
    return 0;
}

#endif

int matmul(matmul_side a_side, matmul_side b_side, int64_t m, int64_t n, int64_t k, const float *a,
           const float *b, float keep, float *c)
{
    enum { TALL = 1024, TALL_BLOCK = 256, BLOCK = 128 };
    const int64_t block = m >= TALL ? TALL_BLOCK : BLOCK;
    const int64_t blocks = (m + block - 1) / block;
    const int64_t lda = a_side == MATMUL_TRANSPOSED ? m : k;
    const int64_t ldb = b_side == MATMUL_TRANSPOSED ? k : n;
    int failed = 0;
    if (m == 0 || n == 0)
        return 0;
#pragma omp parallel for schedule(static) reduction(| : failed)
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t row = i * block;
        const float *from = a + (a_side == MATMUL_TRANSPOSED ? row : row * k);
        failed |= product(
            a_side == MATMUL_TRANSPOSED ? 'T' : 'N', b_side == MATMUL_TRANSPOSED ? 'T' : 'N',
            row + block < m ? block : m - row, n, k, from, lda, b, ldb, keep, c + row * n);
    }
    return failed;
}
