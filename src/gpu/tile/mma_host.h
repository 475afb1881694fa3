/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_HOST_H
#define FWA_GPU_TILE_MMA_HOST_H

/* Products of tiles in software: the lanes of a wave hand over what they hold, the last one
 * multiplies. */

#include "map.h"

#include "../../common/half.h"

namespace fwa
{

using RightOperand = Operand;

namespace emulation
{

struct product {
    Sum *sum;
    const Operand *left;
    const RightOperand *right;

    static float element(const Operand &operand, int j)
    {
        return fwa_bf16_to_float((uint16_t)(operand.at[j / 2] >> (16 * (j % 2))));
    }

    static void complete(void *const *lanes)
    {
        float left[TILE][TILE], right[TILE][TILE], sum[TILE][TILE];
        for (int lane = 0; lane < wave; lane++) {
            const product *self = static_cast<const product *>(lanes[lane]);
            for (int h = 0; h < tile_rows; h++)
                for (int e = 0; e < tile_columns; e++)
                    left[tile_row(lane, h)][tile_column(lane, e)] = element(*self->left,
                                                                            tile_index(h, e));
            for (int j = 0; j < tile_elements; j++)
                right[tile_right_row(lane, j)][tile_right_depth(lane, j)] = element(*self->right,
                                                                                    j);
        }
        for (int m = 0; m < TILE; m++)
            for (int n = 0; n < TILE; n++) {
                sum[m][n] = 0;
                for (int k = 0; k < TILE; k++)
                    sum[m][n] += left[m][k] * right[n][k];
            }
        for (int lane = 0; lane < wave; lane++)
            for (int h = 0; h < tile_rows; h++)
                for (int e = 0; e < tile_columns; e++)
                    static_cast<const product *>(lanes[lane])->sum->at[tile_index(h, e)] +=
                        sum[tile_row(lane, h)][tile_column(lane, e)];
    }
};

inline constexpr rendezvous product_point{"tile_product()", 0, 0, 0, product::complete};

} // namespace emulation

FWA_DEVICE void tile_product(Sum &sum, const Operand &left, const RightOperand &right)
{
    emulation::product self{&sum, &left, &right};
    emulation::wait(emulation::product_point, &self);
}

FWA_DEVICE uint32_t tile_pair(uint16_t low, uint16_t high)
{
    return (uint32_t)high << 16 | low;
}

/* A left operand from memory whose rows are m, `stride` apart, and go along k. */
FWA_DEVICE void tile_load_left(Operand &to, const uint16_t *from, int stride)
{
    const int lane = thread() % wave;
    for (int h = 0; h < tile_rows; h++)
        for (int e = 0; e < tile_columns; e += 2) {
            const uint16_t *at = from + tile_row(lane, h) * stride + tile_column(lane, e);
            to.at[tile_index(h, e) / 2] = tile_pair(at[0], at[1]);
        }
}

/* The same from memory whose rows are k and go along m. */
FWA_DEVICE void tile_load_left_turned(Operand &to, const uint16_t *from, int stride)
{
    const int lane = thread() % wave;
    for (int h = 0; h < tile_rows; h++)
        for (int e = 0; e < tile_columns; e += 2) {
            const uint16_t *at = from + tile_column(lane, e) * stride + tile_row(lane, h);
            to.at[tile_index(h, e) / 2] = tile_pair(at[0], at[stride]);
        }
}

/* A right operand from memory whose rows are n and go along k. */
FWA_DEVICE void tile_load_right(RightOperand &to, const uint16_t *from, int stride)
{
    const int lane = thread() % wave;
    for (int j = 0; j < tile_elements; j += 2) {
        const uint16_t *at = from + tile_right_row(lane, j) * stride + tile_right_depth(lane, j);
        to.at[j / 2] = tile_pair(at[0], at[1]);
    }
}

/* A right operand from memory whose rows are k and go along n. */
FWA_DEVICE void tile_load_right_turned(RightOperand &to, const uint16_t *from, int stride)
{
    const int lane = thread() % wave;
    for (int j = 0; j < tile_elements; j += 2) {
        const int k = tile_right_depth(lane, j), n = tile_right_row(lane, j);
        to.at[j / 2] = tile_pair(from[k * stride + n], from[(k + 1) * stride + n]);
    }
}

/* Two floats, rounded. */
FWA_DEVICE uint32_t tile_round(float low, float high)
{
    return tile_pair(fwa_bf16_from_float(low), fwa_bf16_from_float(high));
}

} // namespace fwa

#endif
