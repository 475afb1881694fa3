/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_GFX9_H
#define FWA_GPU_TILE_MMA_GFX9_H

/* Products of tiles by v_mfma_f32_16x16x16_bf16, waves of 64; gfx90a and gfx94x. The instruction's sum has
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
