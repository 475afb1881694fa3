/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_WORKSPACE_H
#define FWA_GPU_OP_WORKSPACE_H

/* Sizes that host and device agree on: blocks of threads, shared memory, the workspace. Plain C.
 *
 *     statistic  [tokens, Hk]            E of each token, where a window needs eigenvalues
 *     top        [tokens, Hk, window]    and the eigenvector, newest pair first; backward only
 *     norms      [N, Hv, D]              the normaliser's z after the committed tokens; backward:
 *                [N, Hv, blocks, D]      shares of the gradient of the one that is handed in
 *     carries    [N, carry_floats]       what a carry gets besides: prev_key, tail_key, tail_value
 *                                        and, as two halves of its bits, seen
 *     order      [5 N + 1]               the rows whose slots cross (op/order.h)
 *     kept       [Hv, D, V]              the state of a row whose slot is written before it is read
 *     states     [Hv, blocks, segments, padded D, columns], with [padded D] of z behind each
 *     segment    [grid, SEGMENT, ...]    the same for each token of a segment
 *     key_partial   [Hv, blocks, tokens + N (window - 1), D]   gradients of features, a share of
 *     query_partial [Hv, blocks, tokens, D]                    each block of columns
 *     gate_partial  [Hv, blocks, tokens, 3]                    beta, lambda, log_gate
 *
 * Tokens are counted through the batch.
 */

#include "../args.h"

enum {
    FWA_GPU_THREADS = 128,
    FWA_GPU_ROW_GROUPS = 16,     /* of a block's threads, which hold rows 16 apart */
    FWA_GPU_COLUMNS = 32,        /* value columns of a block, four to a thread */
    FWA_GPU_TOKENS = 4,          /* staged in shared memory at once */
    FWA_GPU_SEGMENT = 64,        /* tokens between the states that the backward keeps */
    FWA_GPU_SUMS = 4,            /* vectors that are summed over rows at once */
    FWA_GPU_CHUNK_COMPUTING = 4, /* waves of the chunked kernels that have 16 value columns each, */
    FWA_GPU_CHUNK_WAVES = 6,     /* and all: one loads, one prepares */
    FWA_GPU_CHUNK_MATRICES = 4096, /* bytes for the matrices of a chunk */
    FWA_GPU_CHUNK_TILE = 4096, /* and for a tile of values: 16 tokens, 64 columns, 4 bytes each */
    FWA_GPU_STATISTIC_THREADS = 64,
    FWA_GPU_STATISTIC_TOKENS = 4,
    FWA_GPU_ROW_FLOATS = 256 /* a wave's row of a gradient: the greatest D */
};

/* Shared memory of the chunked kernels, in bytes. A slot holds a chunk of 16 tokens: keys and queries,
 * in so many bf16 parts and in rows of a multiple of 64 dimensions with 16 bytes behind; a tile of
 * values, which the outputs take the place of; and with gates per channel (1, else 0) a tile of gains.
 * With one slot one chunk's matrices are enough. */
#define FWA_GPU_CHUNK_SLOT_BYTES(parts, dim, channel)                                              \
    (2 * (parts)*16 * ((dim) + 8) * 2 + (1 + (channel)) * FWA_GPU_CHUNK_TILE)
#define FWA_GPU_CHUNK_BYTES(parts, dim, channel, slots)                                            \
    ((slots)*FWA_GPU_CHUNK_SLOT_BYTES(parts, dim, channel) +                                       \
     ((slots) == 1 ? 1 : 2) * FWA_GPU_CHUNK_MATRICES)
#define FWA_GPU_CHUNK_SLOTS(parts, dim, channel, limit)                                            \
    (FWA_GPU_CHUNK_BYTES(parts, dim, channel, 3) <= (limit)   ? 3                                  \
     : FWA_GPU_CHUNK_BYTES(parts, dim, channel, 2) <= (limit) ? 2                                  \
                                                              : 1)

/* Floats of shared memory of the recurrent kernels; `padded` is D rounded up to a kernel's. */
static inline int32_t fwa_gpu_recurrent_floats(int32_t window, int32_t padded, int32_t waves,
                                               int32_t backward)
{
    const int32_t pairs = window - 1 + FWA_GPU_TOKENS;
    int32_t floats = (pairs + FWA_GPU_TOKENS) * padded;                /* x, q */
    floats += (pairs + 2 * FWA_GPU_TOKENS + window) * FWA_GPU_COLUMNS; /* v, eta, gamma, w */
    floats += pairs + FWA_GPU_TOKENS * window;                         /* squares, scores */
    floats += 2 * waves * FWA_GPU_SUMS * FWA_GPU_COLUMNS;              /* sums */
    if (backward) /* what L says of the window's pairs, gradients of their values, of outputs */
        floats += (2 * window + FWA_GPU_TOKENS) * FWA_GPU_COLUMNS;
    return floats;
}

/* And of the kernel that finds eigenvalues: features, and each wave's three matrices. */
static inline int32_t fwa_gpu_statistic_floats(int32_t window, int32_t key_dim, int32_t wave)
{
    return (window - 1 + FWA_GPU_STATISTIC_TOKENS) * ((key_dim + 31) / 32 * 32) +
           FWA_GPU_STATISTIC_THREADS / wave * 3 * window * window;
}

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int64_t
    fwa_gpu_carry_floats(const fwa_gpu_args *a)
{
    const int64_t tail = a->window - 1;
    return 2 + (a->alignment == 0 ? (int64_t)a->heads_key * a->key_dim : 0) +
           tail * ((int64_t)a->heads_key * a->key_dim + (int64_t)a->heads_value * a->value_dim);
}

#endif
