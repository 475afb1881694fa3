/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_PLACE_H
#define FWA_GPU_LOOP_CHUNK_PLACE_H

/* Where the chunks of a sequence are, in it and in shared memory (chunk.h). */

#include "../math/feature.h"
#include "../math/walk.h"
#include "../op/workspace.h"
#include "../tile/tile.h"

namespace fwa
{

static_assert(sizeof(ChunkMatrices) <= FWA_GPU_CHUNK_MATRICES, "room for a chunk's matrices");

/* A chunk's tokens; n = 0: there is no such chunk. */
struct ChunkPlace {
    int64_t t0;
    int n;
};

/* What all waves know of a sequence's chunks. A chunk has a number, which says where it is in shared
 * memory, and a place. */
template <int PARTS, int DIM, bool CHANNEL> struct Chunks {
    static constexpr int tiles = DIM / TILE;
    static constexpr int stride = DIM + 8; /* eight rows of 16 bytes then lie in all banks */
    static constexpr int plane = TILE * stride;
    static constexpr int side = PARTS * plane; /* the keys, or the queries, of a chunk */
    static constexpr int slots = FWA_GPU_CHUNK_SLOTS(PARTS, DIM, CHANNEL, FWA_SHARED_LIMIT);
    static_assert(FWA_GPU_CHUNK_BYTES(PARTS, DIM, CHANNEL, slots) <= FWA_SHARED_LIMIT,
                  "a slot's shared memory");
    static constexpr int slot_bytes = FWA_GPU_CHUNK_SLOT_BYTES(PARTS, DIM, CHANNEL);
    static constexpr int width = FWA_GPU_CHUNK_COMPUTING * TILE; /* of a tile of values */
    static constexpr int value_bytes = PARTS == 3 ? 4 : 2;

    const fwa_gpu_args &a;
    Sequence s;
    int64_t head, key, query;
    int64_t first;   /* pair */
    int64_t column0; /* the block's first value column */

    FWA_METHOD Chunks(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t column)
        : a(args), s(sequence_get(args, n)), head(value_head), key(key_head(args, value_head)),
          query(query_head(args, value_head)), first(first_pair(args, s)), column0(column)
    {
    }

    /* The chunk that begins with token t0. */
    FWA_METHOD ChunkPlace place_from(int64_t t0) const
    {
        int64_t n = TILE - (s.seen + t0) % TILE;
        if (t0 < s.commit && s.commit - t0 < n)
            n = s.commit - t0;
        if (s.length - t0 < n)
            n = s.length - t0;
        return {t0, (int)n};
    }

    FWA_METHOD ChunkPlace place_behind(const ChunkPlace &place) const
    {
        return place.n > 0 ? place_from(place.t0 + place.n) : place;
    }

    FWA_METHOD unsigned char *slot_of(int chunk) const
    {
        return shared() + (slots == 1 ? 1 : 2) * FWA_GPU_CHUNK_MATRICES +
               (int)((unsigned)chunk % slots) * slot_bytes;
    }

    FWA_METHOD uint16_t *keys_of(int chunk) const
    {
        return (uint16_t *)slot_of(chunk);
    }

    FWA_METHOD uint16_t *queries_of(int chunk) const
    {
        return keys_of(chunk) + side;
    }

    /* [TILE, width] values in their own type; then outputs. */
    FWA_METHOD unsigned char *values_of(int chunk) const
    {
        return (unsigned char *)(queries_of(chunk) + side);
    }

    /* [TILE, width] gains, per channel. */
    FWA_METHOD float *gains_of(int chunk) const
    {
        return (float *)(values_of(chunk) + FWA_GPU_CHUNK_TILE);
    }

    FWA_METHOD ChunkMatrices &matrices_of(int chunk) const
    {
        const int place = slots == 1 ? 0 : chunk % 2;
        return *(ChunkMatrices *)(shared() + place * FWA_GPU_CHUNK_MATRICES);
    }
};

} // namespace fwa

#endif
