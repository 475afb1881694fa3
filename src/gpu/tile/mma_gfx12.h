/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_GFX12_H
#define FWA_GPU_TILE_MMA_GFX12_H

/* Products of tiles by v_wmma_f32_16x16x16_bf16 as gfx12 has it, waves of 32. The instruction's sum has
 * columns where ours has rows: operands are exchanged. */

#include "rows.h"

namespace fwa
{

using RightOperand = Operand;

FWA_DEVICE void tile_product(Sum &sum, const Operand &left, const RightOperand &right)
{
    sum = matrix_product(right, left, sum);
}

FWA_DEVICE void tile_load_right(RightOperand &to, const uint16_t *from, int stride)
{
    tile_load_left(to, from, stride);
}

FWA_DEVICE void tile_load_right_turned(RightOperand &to, const uint16_t *from, int stride)
{
    tile_load_left_turned(to, from, stride);
}

} // namespace fwa

#endif
