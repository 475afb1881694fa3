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
 * - A lane has tile_rows rows m of a sum, and of each tile_columns columns, even ones followed by their
 *   neighbours; element (h, e) is the e-th of these columns in its h-th row. TILE / tile_columns lanes
 *   share a row.
 *
 * There are three maps:
 *
 *     wave  rows  columns
 *     32    2     4         NVIDIA's mma.m16n8k16, two of them side by side
 *     64    1     4         AMD's v_mfma_f32_16x16x16 (gfx9), its two operands exchanged
 *     32    1     8         AMD's v_wmma_f32_16x16x16 (gfx11 and later), exchanged as well
 */

#include "../vendor/vendor.h"

namespace fwa
{

constexpr int TILE = 16;
constexpr int tile_columns = FWA_TILE_COLUMNS;
constexpr int tile_elements = TILE * TILE / wave; /* of a sum, and of a left operand, in a lane */
constexpr int tile_rows = tile_elements / tile_columns;
constexpr bool tile_paired = tile_rows == 2; /* the first of the maps */

/* Which of the lanes that share its rows a lane is. */
FWA_DEVICE int tile_sharer(int lane)
{
    return tile_paired ? lane % 4 : lane / TILE;
}

/* Row m of the lane's h-th row, column n of its e-th column. */
FWA_DEVICE int tile_row(int lane, int h)
{
    return tile_paired ? lane / 4 + 8 * h : lane % TILE;
}

FWA_DEVICE int tile_column(int lane, int e)
{
    return tile_paired ? lane % 4 * 2 + e % 2 + e / 2 * 8 : lane / TILE * tile_columns + e;
}

/* How far the lane's h-th row and e-th column are from its first: constants to the compiler. */
FWA_DEVICE constexpr int tile_row_step(int h)
{
    return tile_paired ? 8 * h : 0;
}

FWA_DEVICE constexpr int tile_column_step(int e)
{
    return tile_paired ? e % 2 + e / 2 * 8 : e;
}

/* Where element (h, e) is in a lane, and which h and e an element has. */
FWA_DEVICE constexpr int tile_index(int h, int e)
{
    return tile_paired ? e % 2 + 2 * h + e / 2 * 4 : e;
}

FWA_DEVICE constexpr int tile_row_of(int at)
{
    return tile_paired ? at / 2 % 2 : 0;
}

FWA_DEVICE constexpr int tile_column_of(int at)
{
    return tile_paired ? at % 2 + at / 4 * 2 : at;
}

/* Which of its columns column n is to the lanes that have it, and which sharers these are. */
FWA_DEVICE constexpr int tile_element_of(int n)
{
    return tile_paired ? n % 2 + n / 8 * 2 : n % tile_columns;
}

FWA_DEVICE constexpr int tile_sharer_of(int n)
{
    return tile_paired ? n % 8 / 2 : n / tile_columns;
}

/* The lane that has column n of the rows of `lane`. */
FWA_DEVICE int tile_owner(int lane, int n)
{
    return tile_paired ? lane / 4 * 4 + tile_sharer_of(n) : lane % TILE + TILE * tile_sharer_of(n);
}

/* Element j of a right operand in a lane: row n and depth k. Those of a left operand are a sum's. (An
 * architecture may have another right operand than this; only its own functions look into it.) */
FWA_DEVICE int tile_right_row(int lane, int j)
{
    return tile_paired ? lane / 4 + j / 4 * 8 : lane % TILE;
}

FWA_DEVICE int tile_right_depth(int lane, int j)
{
    return tile_paired ? lane % 4 * 2 + j % 2 + j / 2 % 2 * 8 : lane / TILE * tile_columns + j;
}

/* Sums over the lanes that share rows. */
template <int N> FWA_DEVICE void tile_sum_row(float (&values)[N])
{
    if (tile_paired)
        sum_lanes<1, 4>(values);
    else
        sum_lanes<TILE, wave>(values);
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
