/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_CHUNK_FORWARD_H
#define FWA_GPU_OP_CHUNK_FORWARD_H

/* The chunked form, forward: 16 tokens at once, dense inside. Sequences of a few tokens are the
 * recurrent kernels'. */

#include "../loop/chunk.h"

namespace fwa
{

template <int PARTS, int DIM, bool CHANNEL> FWA_DEVICE void chunk_forward(const fwa_gpu_args &a)
{
    const int64_t units = a.sequences * a.heads_value * a.chunk_blocks;
    for (int64_t unit = block(); unit < units; unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, a.chunk_blocks);
        const Chunks<PARTS, DIM, CHANNEL> chunks(a, at.sequence, at.head,
                                                 at.block * a.chunk_columns);
        if (chunks.s.padded || chunks.s.length <= a.short_tokens ||
            (a.crossing && a.order[chunks.s.index] != 0))
            continue;
        barrier(); /* the chunks of the last unit may still be read */
        chunk_loop<PARTS, DIM, CHANNEL>(chunks);
    }
}

} // namespace fwa

/* Of rows of up to 128 dimensions two blocks fit on a processor. */
#define FWA_CHUNK_FORWARD(parts, dim)                                                              \
    FWA_KERNEL_RESIDENT(chunk_forward_head_##parts##_##dim, FWA_GPU_CHUNK_WAVES *fwa::wave,        \
                        dim > 128 ? 1 : 2)                                                         \
    {                                                                                              \
        fwa::chunk_forward<parts, dim, false>(args);                                               \
    }                                                                                              \
    FWA_KERNEL_RESIDENT(chunk_forward_channel_##parts##_##dim, FWA_GPU_CHUNK_WAVES *fwa::wave,     \
                        dim > 128 ? 1 : 2)                                                         \
    {                                                                                              \
        fwa::chunk_forward<parts, dim, true>(args);                                                \
    }

FWA_CHUNK_FORWARD(1, 64)
FWA_CHUNK_FORWARD(1, 128)
FWA_CHUNK_FORWARD(1, 256)
FWA_CHUNK_FORWARD(2, 64)
FWA_CHUNK_FORWARD(2, 128)
FWA_CHUNK_FORWARD(2, 256)
FWA_CHUNK_FORWARD(3, 64)
FWA_CHUNK_FORWARD(3, 128)
FWA_CHUNK_FORWARD(3, 256)

#endif
