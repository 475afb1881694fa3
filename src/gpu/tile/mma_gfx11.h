/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_GFX11_H
#define FWA_GPU_TILE_MMA_GFX11_H

/*
 * Products of tiles by v_wmma_f32_16x16x16_bf16 as gfx11 has it, waves of 32. Its operands are whole rows,
 * the same in lanes i and i + 16; of a row of its sum these have the even and the odd columns. Operands
 * are exchanged, since its sum has columns where ours has rows; rows of ours on the right are given in an
 * order that makes columns of the sum which a lane has neighbours: row n at place 2 n % 16 + n / 8.
 */

#include "rows.h"

namespace fwa
{

struct RightOperand {
    uint32_t at[TILE / 2];
};

/* The row at the place of a lane. */
FWA_DEVICE int tile_row_at_place(int lane)
{
    return lane % 2 * 8 + lane % TILE / 2;
}

/* A row in whole, of which each of two lanes has a half. */
FWA_DEVICE RightOperand tile_whole_row(const Operand &half)
{
    const bool first = thread() % wave < TILE;
    RightOperand row;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t own = half.at[i];
        const uint32_t other = other_half(own);
        row.at[i] = first ? own : other;
        row.at[4 + i] = first ? other : own;
    }
    return row;
}

FWA_DEVICE void tile_product(Sum &sum, const Operand &left, const RightOperand &right)
{
    sum = matrix_product(right, tile_whole_row(left), sum);
}

FWA_DEVICE void tile_load_right(RightOperand &to, const uint16_t *from, int stride)
{
    const uint16_t *at = from + tile_row_at_place(thread() % wave) * stride;
    const Operand low = read_shared<Operand>(at), high = read_shared<Operand>(at + 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to.at[i] = low.at[i];
        to.at[4 + i] = high.at[i];
    }
}

FWA_DEVICE void tile_load_right_turned(RightOperand &to, const uint16_t *from, int stride)
{
    const uint16_t *at = from + tile_row_at_place(thread() % wave);
#pragma unroll
    for (int i = 0; i < TILE / 2; i++) {
        const uint32_t low = read_shared<uint16_t>(at + 2 * i * stride);
        const uint32_t high = read_shared<uint16_t>(at + (2 * i + 1) * stride);
        to.at[i] = high << 16 | low;
    }
}

} // namespace fwa

#endif
