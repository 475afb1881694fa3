/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MAP_H
#define FWA_GPU_TILE_MAP_H

/*
 * Tiles of 16 x 16, the unit of all products: sum[m][n] += sum over k of left[m][k] right[n][k],
 * operands in bf16, sums in float32, spread over the lanes of a wave. What lies where is an
 * architecture's; this is what code may rely on:
 *
 * - A sum's elements are a left operand's: what one product gave can be the next one's left side
 *   without leaving the lane (m, n) -> (m, k).
 * - Each row m of a sum is held by four lanes, each with four of its columns; a lane has SHARED of
 *   these rows: element (h, e) is column e of four in its h-th row.
 *
 * With waves of 32 these are the fragments of NVIDIA's mma.m16n8k16, two of them side by side; with
 * waves of 64 those of AMD's v_mfma_f32_16x16x16, with its two operands exchanged.
 */

#include "../vendor/vendor.h"

namespace fwa
{

constexpr int TILE = 16;
constexpr int tile_elements = TILE * TILE / wave; /* of a sum, and of an operand, in a lane */
constexpr int tile_rows = tile_elements / 4;      /* rows of a sum that a lane has a part of */

/* The lane's place among the four that share its rows. */
FWA_DEVICE int tile_quarter(int lane)
{
    return wave == 32 ? lane % 4 : lane / 16;
}

/* Row m of the lane's h-th row, column n of its e-th column. */
FWA_DEVICE int tile_row(int lane, int h)
{
    return wave == 32 ? lane / 4 + 8 * h : lane % 16;
}

FWA_DEVICE int tile_column(int lane, int e)
{
    return wave == 32 ? lane % 4 * 2 + e % 2 + e / 2 * 8 : lane / 16 * 4 + e;
}

/* How far the lane's h-th row and e-th column are from its first: constants to the compiler. */
FWA_DEVICE constexpr int tile_row_step(int h)
{
    return wave == 32 ? 8 * h : 0;
}

FWA_DEVICE constexpr int tile_column_step(int e)
{
    return wave == 32 ? e % 2 + e / 2 * 8 : e;
}

/* Where element (h, e) is in a lane. */
FWA_DEVICE constexpr int tile_index(int h, int e)
{
    return wave == 32 ? e % 2 + 2 * h + e / 2 * 4 : e;
}

/* Which of its columns column n is to the lane that has it, and that lane's quarter. */
FWA_DEVICE constexpr int tile_element_of(int n)
{
    return wave == 32 ? n % 2 + n / 8 * 2 : n % 4;
}

FWA_DEVICE constexpr int tile_quarter_of(int n)
{
    return wave == 32 ? n % 8 / 2 : n / 4;
}

/* The lane that has column n of the rows of `lane`. */
FWA_DEVICE int tile_owner(int lane, int n)
{
    return wave == 32 ? lane / 4 * 4 + tile_quarter_of(n) : lane % 16 + 16 * tile_quarter_of(n);
}

/* Element j of a right operand in a lane: row n and depth k. Those of a left operand are a sum's. */
FWA_DEVICE int tile_right_row(int lane, int j)
{
    return wave == 32 ? lane / 4 + j / 4 * 8 : lane % 16;
}

FWA_DEVICE int tile_right_depth(int lane, int j)
{
    return wave == 32 ? lane % 4 * 2 + j % 2 + j / 2 % 2 * 8 : lane / 16 * 4 + j;
}

/* Sums over the four lanes that share rows. */
template <int N> FWA_DEVICE void tile_sum_quarters(float (&values)[N])
{
    if (wave == 32)
        sum_lanes<1, 4>(values);
    else
        sum_lanes<16, wave>(values);
}

/* A part of a tile of sums, and of operands: two bf16 to a word. */
struct Sum {
    float at[tile_elements];
};

struct Operand {
    uint32_t at[tile_elements / 2];
};

} // namespace fwa

#endif
