/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_FMA_H
#define FWA_GPU_TILE_FMA_H

/* Products of tiles by multiply-adds, for processors of AMD's without matrix instructions for bf16. A right
 * operand stays in shared memory, and is read as it is needed. */

#include "rows.h"

namespace fwa
{

struct RightOperand {
    const uint16_t *from;
    int row, depth; /* strides */
};

FWA_DEVICE void tile_product(Sum &sum, const Operand &left, const RightOperand &right)
{
    const int on = thread() % wave, n0 = tile_column(on, 0);
#pragma unroll 1
    for (int k = 0; k < TILE; k++) {
        uint32_t mine = left.at[0];
#pragma unroll
        for (int i = 1; i < tile_elements / 2; i++)
            mine = tile_element_of(k) / 2 == i ? left.at[i] : mine;
        const uint32_t pair = shuffle(mine, tile_owner(on, k));
        const float value = fwa_float_from_bits(k % 2 ? pair & 0xffff0000u : pair << 16);
        const uint16_t *at = right.from + n0 * right.row + k * right.depth;
#pragma unroll
        for (int e = 0; e < tile_columns; e++)
            sum.at[e] += value * fwa_bf16_to_float(read_shared<uint16_t>(at + e * right.row));
    }
}

FWA_DEVICE void tile_load_right(RightOperand &to, const uint16_t *from, int stride)
{
    to = {from, stride, 1};
}

FWA_DEVICE void tile_load_right_turned(RightOperand &to, const uint16_t *from, int stride)
{
    to = {from, 1, stride};
}

} // namespace fwa

#endif
