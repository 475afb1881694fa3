/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_MATH_WALK_H
#define FWA_GPU_MATH_WALK_H

/*
 * The tokens of a chunk one after another, in float32, for the value columns of a wave: 16 columns
 * are the rows of a tile, 16 tokens its columns. It starts from what the chunk's keys and queries read
 * in the state before, and needs only the small matrices of the chunk's features besides: each token's
 * pair adds to the predictions and reads of those behind it.
 */

#include "view.h"

#include "../tile/map.h"

namespace fwa
{

/* The chunk's matrices and factors, in shared memory; column s of a matrix is 16 floats, ordered so
 * that a lane's tokens lie together. With gates per head, decays are in them; with gates per
 * channel the walk applies them. */
struct alignas(16) ChunkMatrices {
    float key[TILE *
              TILE]; /* what pair s adds to token t's prediction, s < t; per head times eta_t */
    float query[TILE * TILE];                   /* and to its read: s <= b(t) */
    float decay[TILE * TILE];                   /* per head: the decay from pair s to token t */
    float key_factor[TILE], query_factor[TILE]; /* of what is read in the state before */
    float write_factor[TILE];                   /* of what pair s leaves in the state after */
    float inverse[TILE], query_inverse[TILE];   /* of the norms */
    float energy[TILE], lambda[TILE], gate[TILE], eta[TILE], gamma[TILE];
    float prefix[TILE];      /* per head: of the state from the chunk's start to behind a token */
    float denominator[TILE]; /* z^T q + eps_attn, from the wave that has z */
    float retained;          /* the decay of the state over the chunk; per head */
    float exact;             /* bit t: token t's gain is beyond exact_gain; per head */
};

FWA_DEVICE int walk_place(int s, int t)
{
    return s * TILE + tile_sharer_of(t) * tile_columns + tile_element_of(t);
}

/* The numbers of one lane: its rows are value columns h, its columns tokens e. */
struct Walk {
    float key[tile_rows]
             [tile_columns]; /* per channel: predictions, as far as they are known; per head: what
                                * pairs write, as far as it is known */
    float query[tile_rows][tile_columns]; /* reads */
    float value[tile_rows][tile_columns];
    float written[tile_rows][tile_columns];
    float eta[tile_rows][tile_columns], gamma[tile_rows][tile_columns]; /* per channel */
    float retained[tile_rows];
    uint32_t exact[tile_rows]; /* bit t: token t's gain is beyond exact_gain */
};

/* A residual's error e becomes (1 - b) e in the next one with the same key, b = eta |x|^2. Beyond this
 * gain, rounding the state and what is written to bf16 would add up to more than the outputs' own
 * rounding: two parts are taken from such a token on, to the chunk's end. (What comes before it must not
 * depend on it.) */
constexpr float exact_gain = 1.25f;

/* Broadcasts element e of the lane that has column s to the lanes of its rows. */
FWA_DEVICE float walk_share(float mine, int s)
{
    return shuffle(mine, tile_owner(thread() % wave, s));
}

/* True where element e's column t may come at or behind s; t < s must stay as it is, whatever comes:
 * later values that are NaN are none of its business. */
FWA_DEVICE bool walk_reaches(int lane, int e, int s)
{
    if (tile_rows == 2 && (s < 8) != (e < 2))
        return e >= 2; /* known to the compiler */
    return tile_column(lane, e) >= s;
}

/* A lane's part of a matrix's column s. */
struct alignas(16) WalkColumn {
    float at[tile_columns];
};

FWA_DEVICE WalkColumn walk_column(const float *matrix, int s, int place)
{
    return *(const WalkColumn *)(matrix + s * TILE + place * tile_columns);
}

/* Step s with one gate a head. */
template <bool RULE> FWA_DEVICE void walk_head_step(Walk &w, const ChunkMatrices &m, int s)
{
    const int on = lane(), own = tile_element_of(s), place = tile_sharer(on);
    const WalkColumn keys = walk_column(m.key, s, place), queries = walk_column(m.query, s, place);
#pragma unroll
    for (int h = 0; h < tile_rows; h++) {
        const float put = walk_share(w.key[h][own], s);
        if (place == tile_sharer_of(s))
            w.written[h][own] = put;
#pragma unroll
        for (int e = 0; e < tile_columns; e++) {
            if (!walk_reaches(on, e, s))
                continue;
            if (RULE)
                w.key[h][e] -= keys.at[e] * put;
            w.query[h][e] += queries.at[e] * put;
        }
    }
}

/* Step s with a gate for each column: predictions, reads and what was written decay on the way. */
template <bool RULE>
FWA_DEVICE void walk_channel_step(Walk &w, const ChunkMatrices &m, int s, bool decayed, bool after)
{
    const int on = lane(), own = tile_element_of(s), place = tile_sharer(on);
    const WalkColumn keys = walk_column(m.key, s, place), queries = walk_column(m.query, s, place);
#pragma unroll
    for (int h = 0; h < tile_rows; h++) {
        const float gamma = walk_share(w.gamma[h][own], s);
        const float rho = decayed ? gamma : 1;
        const float residual = RULE ? w.value[h][own] - rho * w.key[h][own] : w.value[h][own];
        const float put = walk_share(w.eta[h][own] * residual, s);
        w.retained[h] *= gamma;
#pragma unroll
        for (int e = 0; e < tile_columns; e++) {
            const int t = tile_column(on, e);
            w.written[h][e] = t == s ? put : t < s ? gamma * w.written[h][e] : 0;
            if (!walk_reaches(on, e, s))
                continue;
            if (RULE)
                w.key[h][e] = gamma * w.key[h][e] + keys.at[e] * put;
            if (t > s || after)
                w.query[h][e] = gamma * w.query[h][e] + queries.at[e] * put;
        }
    }
}

} // namespace fwa

#endif
