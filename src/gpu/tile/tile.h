/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_TILE_H
#define FWA_GPU_TILE_TILE_H

/*
 * Products of tiles at the accuracy that the I/O type asks for. A number is the sum of PARTS bf16
 * numbers, each the rounding of what the ones before leave: 8, 16 or 24 bits of it. Products of parts
 * whose places add up to less than the greater number of parts are taken: of equal numbers one, three
 * or six. bf16 has float32's range, so nothing overflows on the way.
 */

#if defined(__CUDACC__)
#include "mma_sm80.h"
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

/* The parts of a matrix in shared memory lie `plane` numbers apart. */
template <int PARTS>
FWA_DEVICE void tile_load_left(Parts<PARTS> &to, const uint16_t *from, int stride, int plane)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        tile_load_left(to.part[part], from + part * plane, stride);
}

/* sum += left right^T; rows of the matrix in shared memory go along k. */
template <int LEFT, int RIGHT>
FWA_DEVICE void tile_multiply(Sum &sum, const Parts<LEFT> &left, const uint16_t *right, int stride,
                              int plane)
{
    constexpr int places = LEFT > RIGHT ? LEFT : RIGHT;
#pragma unroll
    for (int j = 0; j < RIGHT; j++) {
        Operand operand;
        tile_load_right(operand, right + j * plane, stride);
#pragma unroll
        for (int i = 0; i < LEFT && i + j < places; i++)
            tile_product(sum, left.part[i], operand);
    }
}

/* The same; rows go along n. */
template <int LEFT, int RIGHT>
FWA_DEVICE void tile_multiply_turned(Sum &sum, const Parts<LEFT> &left, const uint16_t *right,
                                     int stride, int plane)
{
    constexpr int places = LEFT > RIGHT ? LEFT : RIGHT;
#pragma unroll
    for (int j = 0; j < RIGHT; j++) {
        Operand operand;
        tile_load_right_turned(operand, right + j * plane, stride);
#pragma unroll
        for (int i = 0; i < LEFT && i + j < places; i++)
            tile_product(sum, left.part[i], operand);
    }
}

} // namespace fwa

#endif
