/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_TILE_H
#define FWA_GPU_TILE_TILE_H

/*
 * Products of tiles at the accuracy that the I/O type asks for. A number is the sum of PARTS bf16
 * numbers, each the rounding of what the ones before leave: 8, 16 or 24 bits of it. Products of parts
 * whose places add up to less than the greater number of parts are taken: of equal numbers one, three
 * or six. bf16 has float32's range, so nothing overflows on the way.
 */

#if defined(__HIP__)
#include "mma_amd.h"
#elif defined(__CUDACC__)
#include "mma_sm80.h"
#elif defined(FWA_TILE_HEADER)
#include FWA_TILE_HEADER
#else
#include "mma_host.h"
#endif

namespace fwa
{

template <int PARTS> struct Parts {
    Operand part[PARTS];
};

FWA_DEVICE float tile_low(uint32_t pair)
{
    return fwa_float_from_bits(pair << 16);
}

FWA_DEVICE float tile_high(uint32_t pair)
{
    return fwa_float_from_bits(pair & 0xffff0000u);
}

/* A sum as a left operand. */
template <int PARTS> FWA_DEVICE void tile_left(Parts<PARTS> &to, const Sum &from)
{
#pragma unroll
    for (int i = 0; i < tile_elements / 2; i++) {
        float low = from.at[2 * i], high = from.at[2 * i + 1];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint32_t pair = tile_round(low, high);
            to.part[part].at[i] = pair;
            low -= tile_low(pair);
            high -= tile_high(pair);
        }
    }
}

/* COLUMNS columns of a tile of sums, from the `part`-th such number on, from shared memory where they are
 * rows, a number more than a tile's apart, and to it: so a tile may be read and written in another order
 * without much code. */
template <int COLUMNS = TILE>
FWA_DEVICE void tile_from_room(Sum &sum, const float *room, int part = 0)
{
    const int on = thread() % wave;
#pragma unroll
    for (int h = 0; h < tile_rows; h++)
#pragma unroll
        for (int e = 0; e < tile_columns; e++) {
            const int n = tile_column(on, e);
            if (COLUMNS == TILE || n / COLUMNS == part)
                sum.at[tile_index(h, e)] = room[n % COLUMNS * (TILE + 1) + tile_row(on, h)];
        }
}

template <int COLUMNS = TILE>
FWA_DEVICE void tile_to_room(float *room, const Sum &sum, int part = 0)
{
    const int on = thread() % wave;
#pragma unroll
    for (int h = 0; h < tile_rows; h++)
#pragma unroll
        for (int e = 0; e < tile_columns; e++) {
            const int n = tile_column(on, e);
            if (COLUMNS == TILE || n / COLUMNS == part)
                room[n % COLUMNS * (TILE + 1) + tile_row(on, h)] = sum.at[tile_index(h, e)];
        }
}

/* The parts of a matrix in shared memory lie `plane` numbers apart. Rows of a left operand are m and go
 * along k, turned ones the other way round; likewise n and k of a right operand. */
template <int PARTS, bool TURNED = false>
FWA_DEVICE void tile_load_left(Parts<PARTS> &to, const uint16_t *from, int stride, int plane)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (TURNED)
            tile_load_left_turned(to.part[part], from + part * plane, stride);
        else
            tile_load_left(to.part[part], from + part * plane, stride);
    }
}

/* sum += left right^T */
template <int LEFT, int RIGHT, bool TURNED = false>
FWA_DEVICE void tile_multiply(Sum &sum, const Parts<LEFT> &left, const uint16_t *right, int stride,
                              int plane)
{
    constexpr int places = LEFT > RIGHT ? LEFT : RIGHT;
#pragma unroll
    for (int j = 0; j < RIGHT; j++) {
        RightOperand operand;
        keep_order();
        if (TURNED)
            tile_load_right_turned(operand, right + j * plane, stride);
        else
            tile_load_right(operand, right + j * plane, stride);
#pragma unroll
        for (int i = 0; i < LEFT && i + j < places; i++)
            tile_product(sum, left.part[i], operand);
    }
}

FWA_DEVICE bool tile_finite(float value)
{
    return (fwa_float_bits(value) & 0x7f800000u) != 0x7f800000u;
}

/* The sum of an element's parts. */
template <int PARTS> FWA_DEVICE float tile_element(const uint16_t *from, int plane)
{
    float value = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        value += fwa_bf16_to_float(from[part * plane]);
    return value;
}

/* What NaN and infinity in `left` add to the product with a triangle, see below. Seldom run, so short. */
template <int RIGHT, bool TURNED>
FWA_DEVICE void tile_spread(Sum &sum, const Sum &left, const uint16_t *right, bool own)
{
    const int on = thread() % wave;
#pragma unroll 1
    for (int k = 0; k < TILE; k++) {
        const int element = tile_element_of(k);
#pragma unroll
        for (int h = 0; h < tile_rows; h++) {
            float mine = left.at[tile_index(h, 0)];
#pragma unroll
            for (int e = 1; e < tile_columns; e++)
                if (e == element)
                    mine = left.at[tile_index(h, e)];
            const float share = shuffle(mine, tile_owner(on, k));
            if (tile_finite(share))
                continue;
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int n = tile_column(on, e);
                const int at = TURNED ? k * TILE + n : n * TILE + k;
                if ((TURNED ? n < k : n > k) || (own && n == k))
                    sum.at[tile_index(h, e)] += share *
                                                tile_element<RIGHT>(right + at, TILE * TILE);
            }
        }
    }
}

/* sum += left right^T for a right side of TILE numbers a row that is zero where column k is behind row n
 * (TURNED: before it; `own` is false where it is zero at k = n too): what stands there of left is
 * none of a row's business, NaN included. */
template <int LEFT, int RIGHT, bool TURNED = false>
FWA_DEVICE void tile_multiply_triangle(Sum &sum, const Sum &left, const uint16_t *right, bool own)
{
    constexpr int plane = TILE * TILE;
    Sum clean = left;
    Parts<LEFT> parts;
    bool all = true;
#pragma unroll
    for (int i = 0; i < tile_elements; i++)
        if (!tile_finite(left.at[i])) {
            all = false;
            clean.at[i] = 0;
        }
    tile_left<LEFT>(parts, clean);
    tile_multiply<LEFT, RIGHT, TURNED>(sum, parts, right, TILE, plane);
    if (wave_any(!all))
        tile_spread<RIGHT, TURNED>(sum, left, right, own);
}

} // namespace fwa

#endif
