/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_HALVES_H
#define FWA_GPU_TILE_MMA_HALVES_H

/* Products of tiles by v_mfma_f32_16x16x16_bf16 (gfx90a, gfx94x; waves of 64) and v_wmma_f32_16x16x16_bf16 as
 * gfx12 has it (waves of 32): both operands lie as rows.h loads a left one. The instructions' sums have
 * columns where ours have rows: operands are exchanged. */

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
