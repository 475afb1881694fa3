/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_MATMUL_H
#define LM_MATMUL_H

/* Dense float32 matrix products by oneDNN or OpenBLAS, whichever the build found. */

#include <stdint.h>

typedef enum matmul_side { MATMUL_PLAIN = 0, MATMUL_TRANSPOSED = 1 } matmul_side;

/* "oneDNN" or "OpenBLAS". */
const char *matmul_library(void);

/* Call once before the first product. */
void matmul_start(void);

/* c [m, n] = op(a) op(b) + keep * c, all dense and row-major: a is [m, k], or [k, m] where
 * transposed, b is [k, n] or [n, k]. Returns 0, or 1 where the library refused. The result does not
 * depend on the number of threads: rows of c are split into blocks of a fixed size, one thread
 * each. */
int matmul(matmul_side a_side, matmul_side b_side, int64_t m, int64_t n, int64_t k, const float *a,
           const float *b, float keep, float *c);

#endif
