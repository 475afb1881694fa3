/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_H
#define FWA_GPU_LOOP_CHUNK_H

/*
 * The loop over the chunks of a sequence, for one value head and a block of value columns. Waves have
 * roles and meet once a chunk:
 *
 *     a loader      puts keys, queries and values of a chunk to come into shared memory, and takes
 *                   outputs from there
 *     a preparer    forms a chunk's small matrices (ChunkMatrices), one chunk ahead
 *     the others    each have 16 value columns: their share of the state stays in registers, as sums
 *                   of tiles; it is the left operand of the products with keys and queries, and gets
 *                   the product of what the chunk writes with its keys added
 *
 * Keys and queries are stored raw but for relu, norms are factors of the rows: of 16-bit inputs
 * nothing is rounded. (elu1 has no such factor; its features are.) Where shared memory holds less than
 * three chunks the preparer loads, one chunk ahead or none.
 *
 * Chunks end where the tokens seen are a multiple of 16, so that a sequence may be cut there without
 * changing a bit, and at the token whose state is committed.
 */

#include "chunk_computer.h"
#include "chunk_loader.h"
#include "chunk_preparer.h"

namespace fwa
{

/* Waves 0 .. computing - 1 compute, the last of them z where there is one. */
template <int PARTS, int DIM, bool CHANNEL>
FWA_DEVICE void chunk_loop(const Chunks<PARTS, DIM, CHANNEL> &chunks)
{
    constexpr int slots = Chunks<PARTS, DIM, CHANNEL>::slots, ahead = slots - 1;
    constexpr int computing = FWA_GPU_CHUNK_COMPUTING;
    const fwa_gpu_args &a = chunks.a;
    const int place = thread() / wave, role = place - computing;
    const bool loads = role == (slots == 3), prepares = role == 0;
    const ChunkLoader<PARTS, DIM, CHANNEL> loader(chunks);
    const ChunkPreparer<PARTS, DIM, CHANNEL> preparer(chunks);
    ChunkComputer<PARTS, DIM, CHANNEL> computer(chunks, place * TILE, a.normalizer && role == -1);
    if (role < 0) {
        computer.load_state();
        if (chunks.s.commit == 0)
            computer.copy_state();
    }
    /* The places of chunks `chunk - 1`, whose outputs are due, to `chunk + ahead`, which is loaded. */
    ChunkPlace places[ahead + 2];
#pragma unroll
    for (int i = 0; i <= ahead; i++)
        places[i] = {0, 0};
    places[ahead + 1] = chunks.place_from(0);
    for (int chunk = -ahead; chunk <= 0 || places[0].n > 0; chunk++) {
        constexpr int prepared = slots > 1 ? 2 : 1;
        if (loads && places[0].n > 0)
            loader.store_outputs(chunk - 1, places[0]);
        if (loads && places[ahead + 1].n > 0)
            loader.load_chunk(chunk + ahead, places[ahead + 1]);
        if (prepares && slots < 3)
            wave_barrier();
        if (prepares && places[prepared].n > 0)
            preparer.prepare(chunk + prepared - 1, places[prepared]);
        if (slots == 1)
            barrier();
        if (places[1].n > 0) {
            if (role < 0)
                computer.compute(chunk, places[1]);
            else if (a.normalizer)
                barrier();
        }
        barrier();
#pragma unroll
        for (int i = 0; i <= ahead; i++)
            places[i] = places[i + 1];
        places[ahead + 1] = chunks.place_behind(places[ahead + 1]);
    }
}

} // namespace fwa

#endif
