/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_SM80_H
#define FWA_GPU_TILE_MMA_SM80_H

/* Products of tiles by mma.m16n8k16, two for a tile; sm_80 and later. See mma_host.h for what each
 * function does. Rows in shared memory are aligned to 16 bytes. */

#include "map.h"

namespace fwa
{

using RightOperand = Operand;

FWA_DEVICE void tile_product(Sum &sum, const Operand &left, const RightOperand &right)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum.at[4 * half]), "+f"(sum.at[4 * half + 1]),
                       "+f"(sum.at[4 * half + 2]), "+f"(sum.at[4 * half + 3])
                     : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]),
                       "r"(right.at[2 * half]), "r"(right.at[2 * half + 1]));
}

FWA_DEVICE uint32_t tile_shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Lane i gives the address of row i % 8 of matrix i / 8 of the four 8 x 8 ones. */
FWA_DEVICE void tile_load_left(Operand &to, const uint16_t *from, int stride)
{
    const int i = thread() % wave;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
                 : "r"(tile_shared_address(from + i % 16 * stride + i / 16 * 8))
                 : "memory");
}

FWA_DEVICE void tile_load_left_turned(Operand &to, const uint16_t *from, int stride)
{
    const int i = thread() % wave;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
                 : "r"(tile_shared_address(from + (i % 8 + i / 16 * 8) * stride + i / 8 % 2 * 8))
                 : "memory");
}

FWA_DEVICE void tile_load_right(RightOperand &to, const uint16_t *from, int stride)
{
    const int i = thread() % wave;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
                 : "r"(tile_shared_address(from + (i % 8 + i / 16 * 8) * stride + i / 8 % 2 * 8))
                 : "memory");
}

FWA_DEVICE void tile_load_right_turned(RightOperand &to, const uint16_t *from, int stride)
{
    const int i = thread() % wave;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
                 : "r"(tile_shared_address(from + i % 16 * stride + i / 16 * 8))
                 : "memory");
}

FWA_DEVICE uint32_t tile_round(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

} // namespace fwa

#endif
