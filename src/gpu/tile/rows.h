/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_ROWS_H
#define FWA_GPU_TILE_ROWS_H

/* Operands of AMD's maps (map.h), from shared memory: a lane has tile_columns neighbours of one row.
 * Rows in shared memory are aligned to 16 bytes. See mma_host.h for what each function does. */

#include "map.h"

#include "../../common/half.h"

namespace fwa
{

FWA_DEVICE void tile_load_left(Operand &to, const uint16_t *from, int stride)
{
    const int on = thread() % wave;
    to = read_shared<Operand>(from + tile_row(on, 0) * stride + tile_column(on, 0));
}

FWA_DEVICE void tile_load_left_turned(Operand &to, const uint16_t *from, int stride)
{
    const int on = thread() % wave;
    const uint16_t *at = from + tile_column(on, 0) * stride + tile_row(on, 0);
#pragma unroll
    for (int i = 0; i < tile_elements / 2; i++) {
        const uint32_t low = read_shared<uint16_t>(at + 2 * i * stride);
        const uint32_t high = read_shared<uint16_t>(at + (2 * i + 1) * stride);
        to.at[i] = high << 16 | low;
    }
}

FWA_DEVICE uint32_t tile_round(float low, float high)
{
    return (uint32_t)fwa_bf16_from_float(high) << 16 | fwa_bf16_from_float(low);
}

} // namespace fwa

#endif
