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
 * Of the chunks of one gate per head; a sequence has some `slots` of them, and may leave some unused
 * (loop/chunk_frame.h):
 *
 *     records    [slots, Hv] records      a chunk's small matrices and factors
 *     key_rows   [rows, Hk, parts, C, padded D]   features that are not as in the caller's tensor:
 *     query_rows [rows, Hq, parts, C, padded D]   of all chunks, or of each sequence's first
 *     chunk_states      [slots, Hv, solving parts, V, padded D]  the state before a chunk, transposed,
 *     chunk_state_grads [slots, Hv, parts, V, padded D]  and the gradient of the one behind. Gradients
 *                                         of gates are small differences of products with the former
 *     residuals  [slots, Hv, solving parts, V, C]  what tokens write over eta, transposed,
 *     residual_grads (the same)           and its gradient
 *     energy_grad  [Hv, tokens]           the gradient of E
 *
 * Tokens are counted through the batch. V is in whole blocks of columns there.
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
    FWA_GPU_CHUNK_TILE = 4096,  /* and for a tile of values: 16 tokens, 64 columns, 4 bytes each */
    FWA_GPU_FRAME_COLUMNS = 64, /* value columns of a block of the kernels with records, */
    FWA_GPU_FRAME_STRIDE = 72,  /* between rows of a tile of their values, */
    FWA_GPU_FRAME_WAVES = 4,    /* which have 16 of them a wave */
    FWA_GPU_SLICE = 32,         /* value columns that chunk_gradients has in shared memory, */
    FWA_GPU_SLICE_DIMS = 64,    /* and dimensions of keys */
    FWA_GPU_STATISTIC_THREADS = 64,
    FWA_GPU_STATISTIC_TOKENS = 4
};

/* Shared memory of the chunked kernels, in bytes. A slot holds a chunk of 16 tokens: keys and queries,
 * in so many bf16 parts and in rows of a multiple of 64 dimensions with 16 bytes behind; a tile of
 * values, which the outputs take the place of; and with gates per channel (1, else 0) a tile of gains.
 * With one slot one chunk's matrices are enough. Behind them is half a tile of the state for each wave
 * that has some, on its way between registers and memory. */
#define FWA_GPU_STATE_TILE (16 * 17 * 4)
#define FWA_GPU_CHUNK_SLOT_BYTES(parts, dim, channel)                                              \
    (2 * (parts)*16 * ((dim) + 8) * 2 + (1 + (channel)) * FWA_GPU_CHUNK_TILE)
#define FWA_GPU_CHUNK_BYTES(parts, dim, channel, slots)                                            \
    ((slots)*FWA_GPU_CHUNK_SLOT_BYTES(parts, dim, channel) +                                       \
     ((slots) == 1 ? 1 : 2) * FWA_GPU_CHUNK_MATRICES +                                             \
     FWA_GPU_CHUNK_COMPUTING * FWA_GPU_STATE_TILE / 2)
#define FWA_GPU_CHUNK_SLOTS(parts, dim, channel, limit)                                            \
    (FWA_GPU_CHUNK_BYTES(parts, dim, channel, 3) <= (limit)   ? 3                                  \
     : FWA_GPU_CHUNK_BYTES(parts, dim, channel, 2) <= (limit) ? 2                                  \
                                                              : 1)

/* Arrays of floats in a record, one number a token. */
enum {
    FWA_GPU_KEY_FACTOR,    /* of what a raw key reads in the state before the chunk */
    FWA_GPU_QUERY_FACTOR,  /* the same of a query, scale included */
    FWA_GPU_WRITE_FACTOR,  /* of a residual and a raw key in the state behind */
    FWA_GPU_INVERSE,       /* of the key's norm */
    FWA_GPU_QUERY_INVERSE, /* of the query's */
    FWA_GPU_ETA,
    FWA_GPU_GAMMA,
    FWA_GPU_ENERGY,
    FWA_GPU_SCALARS, /* [0]: decay of the state over the chunk; [1]: the first token of great gain */
    FWA_GPU_FACTORS
};

/* A record: tiles of 16 x 16 in bf16 parts, rows of later tokens against columns of earlier ones: the
 * inverses on the diagonal, what residuals take from later ones, what they give to reads; then the
 * factors. What stands between tokens of a chunk has two parts at least: errors of bf16 would add up. `tiles` is the chunk's length in tiles. */
#define FWA_GPU_SOLVING_PARTS(parts) ((parts) == 3 ? 3 : 2)
#define FWA_GPU_RECORD_TILES(parts, tiles)                                                         \
    (2 * 512 * ((tiles) * ((tiles) + 1) / 2) * FWA_GPU_SOLVING_PARTS(parts))
#define FWA_GPU_RECORD_BYTES(parts, tiles)                                                         \
    (FWA_GPU_RECORD_TILES(parts, tiles) + FWA_GPU_FACTORS * 16 * (tiles)*4)

/* Shared memory of the kernels that work on records. A slot of the passes has a chunk's keys, queries,
 * values or gradients of outputs, and its record. */
#define FWA_GPU_FRAME_ROWS(parts, dim, tiles) ((parts)*16 * (tiles) * ((dim) + 8) * 2)
#define FWA_GPU_FRAME_SLOT(parts, dim, tiles)                                                      \
    (2 * FWA_GPU_FRAME_ROWS(parts, dim, tiles) +                                                   \
     16 * (tiles)*FWA_GPU_FRAME_STRIDE * ((parts) == 3 ? 4 : 2) +                                  \
     FWA_GPU_RECORD_BYTES(parts, tiles))
/* Slots, and each wave's tile of the state. */
#define FWA_GPU_PASS_BYTES(parts, dim, tiles, slots)                                               \
    ((slots)*FWA_GPU_FRAME_SLOT(parts, dim, tiles) + FWA_GPU_FRAME_WAVES * FWA_GPU_STATE_TILE)
/* chunk_prepare: rows, decays, tiles on the diagonal, factors. */
#define FWA_GPU_PREPARE_BYTES(parts, dim, tiles)                                                   \
    (2 * FWA_GPU_FRAME_ROWS(parts, dim, tiles) +                                                   \
     (16 * (tiles) * (16 * (tiles) + 1) + (tiles)*16 * 17 + FWA_GPU_FACTORS * 16 * (tiles)) * 4)
/* chunk_gradients: see op/chunk_gradients.h */
#define FWA_GPU_GREATER(a, b)           ((a) > (b) ? (a) : (b))
#define FWA_GPU_GRADIENT_SCALARS(tiles) (28 * 16 * (tiles)*4)
#define FWA_GPU_GRADIENT_MATRICES(parts, tiles)                                                    \
    FWA_GPU_GREATER(3 * 16 * (tiles) * (16 * (tiles) + 1) * 4,                                     \
                    4 * FWA_GPU_SOLVING_PARTS(parts) * 16 * (tiles) * (16 * (tiles) + 8) * 2 +     \
                        ((parts) + FWA_GPU_SOLVING_PARTS(parts)) * FWA_GPU_SLICE *                 \
                            (FWA_GPU_SLICE_DIMS + 8) * 2)
#define FWA_GPU_GRADIENT_BYTES(parts, tiles)                                                       \
    (FWA_GPU_GRADIENT_SCALARS(tiles) + FWA_GPU_GRADIENT_MATRICES(parts, tiles) +                   \
     (parts)*2 *                                                                                   \
         (2 * 16 * (tiles) * (FWA_GPU_SLICE_DIMS + 8) + 16 * (tiles) * (FWA_GPU_SLICE + 8)) +      \
     FWA_GPU_SOLVING_PARTS(parts) * 4 * FWA_GPU_SLICE * (16 * (tiles) + 8))

/* Tiles of a chunk: as many as two slots have room for; the passes have one slot where even that is too
 * much. */
#define FWA_GPU_FRAME_FITS(parts, dim, tiles, limit)                                               \
    (FWA_GPU_PASS_BYTES(parts, dim, tiles, 2) <= (limit) &&                                        \
     FWA_GPU_PREPARE_BYTES(parts, dim, tiles) <= (limit) &&                                        \
     FWA_GPU_GRADIENT_BYTES(parts, tiles) <= (limit))
#define FWA_GPU_FRAME_TILES(parts, dim, limit)                                                     \
    (FWA_GPU_FRAME_FITS(parts, dim, 4, limit)   ? 4                                                \
     : FWA_GPU_FRAME_FITS(parts, dim, 2, limit) ? 2                                                \
                                                : 1)
#define FWA_GPU_FRAME_SLOTS(parts, dim, limit)                                                     \
    (FWA_GPU_PASS_BYTES(parts, dim, FWA_GPU_FRAME_TILES(parts, dim, limit), 2) <= (limit) ? 2 : 1)

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

/* A function of both sides; a vendor's dialect has its own qualifiers. */
#ifndef FWA_BOTH_SIDES
#define FWA_BOTH_SIDES static inline
#endif

FWA_BOTH_SIDES int64_t fwa_gpu_carry_floats(const fwa_gpu_args *a)
{
    const int64_t tail = a->window - 1;
    return 2 + (a->alignment == 0 ? (int64_t)a->heads_key * a->key_dim : 0) +
           tail * ((int64_t)a->heads_key * a->key_dim + (int64_t)a->heads_value * a->value_dim);
}

#endif
