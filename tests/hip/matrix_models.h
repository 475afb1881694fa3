/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_HIP_MATRIX_MODELS_H
#define FWA_TESTS_HIP_MATRIX_MODELS_H

/*
 * What src/gpu/tile/mma_halves.h and mma_gfx11.h use of their processors, as the vendor's documents of the instruction sets
 * (CDNA 2 and 3, RDNA 3, RDNA 4; "matrix instructions") describe it: which element of the matrices each
 * number of a lane is. Nothing here is of the tiles' own maps (tile/map.h), which are held against it.
 *
 * D = A B + C, all of 16 x 16. MATRIX_MODEL says whose: 9, 11 or 12.
 */

#include "../../src/common/half.h"
#include "../gpu/runtime.h"

namespace fwa
{

namespace emulation
{

struct matrix_layout {
    int wave, halves, floats; /* of a lane: numbers of A and of B, of C and D */
    /* A's row m or B's column n, k, of a lane's number j; D's row and column of number i. */
    int (*line)(int lane);
    int (*depth)(int lane, int j);
    int (*row)(int lane, int i);
};

inline int line_of(int lane)
{
    return lane % 16;
}

#if MATRIX_MODEL == 9
/* v_mfma_f32_16x16x16_bf16_1k, waves of 64. */
inline constexpr matrix_layout layout = {64,
                                         4,
                                         4,
                                         line_of,
                                         [](int lane, int j) { return lane / 16 * 4 + j; },
                                         [](int lane, int i) { return lane / 16 * 4 + i; }};
#elif MATRIX_MODEL == 11
/* v_wmma_f32_16x16x16_bf16 of gfx11, waves of 32: both halves of a wave have A and B in whole. */
inline constexpr matrix_layout layout = {32,
                                         16,
                                         8,
                                         line_of,
                                         [](int, int j) { return j; },
                                         [](int lane, int i) { return 2 * i + lane / 16; }};
#elif MATRIX_MODEL == 12
/* The same of gfx12. */
inline constexpr matrix_layout layout = {32,
                                         8,
                                         8,
                                         line_of,
                                         [](int lane, int j) { return lane / 16 * 8 + j; },
                                         [](int lane, int i) { return lane / 16 * 8 + i; }};
#endif
static_assert(layout.wave == wave, "the model's waves are not this build's");

struct matrices {
    const uint32_t *a, *b; /* two numbers to a word */
    float *sum;

    static float number(const uint32_t *words, int j)
    {
        return fwa_bf16_to_float((uint16_t)(words[j / 2] >> 16 * (j % 2)));
    }

    /* Lanes that have the same element must have the same number. */
    static void gather(void *const *lanes, bool left, float (&to)[16][16])
    {
        bool known[16][16] = {};
        for (int lane = 0; lane < wave; lane++) {
            const matrices *self = static_cast<const matrices *>(lanes[lane]);
            for (int j = 0; j < layout.halves; j++) {
                const float value = number(left ? self->a : self->b, j);
                float &element = to[layout.line(lane)][layout.depth(lane, j)];
                bool &is_known = known[layout.line(lane)][layout.depth(lane, j)];
                if (is_known && fwa_float_bits(element) != fwa_float_bits(value))
                    fail("lanes %d and %d differ in number %d", lane - 16, lane, j);
                element = value;
                is_known = true;
            }
        }
        for (int i = 0; i < 256; i++)
            if (!known[i / 16][i % 16])
                fail("no lane has element %d, %d", i / 16, i % 16);
    }

    static void complete(void *const *lanes)
    {
        float a[16][16], b[16][16];
        gather(lanes, true, a);
        gather(lanes, false, b);
        for (int lane = 0; lane < wave; lane++)
            for (int i = 0; i < layout.floats; i++) {
                const int m = layout.row(lane, i), n = lane % 16;
                float sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += a[m][k] * b[n][k];
                static_cast<const matrices *>(lanes[lane])->sum[i] += sum;
            }
    }
};

inline constexpr rendezvous matrix_point{"matrix_product()", 0, 0, 0, matrices::complete};

} // namespace emulation

template <typename A, typename B, typename S>
FWA_DEVICE S matrix_product(const A &a, const B &b, const S &sum)
{
    static_assert(sizeof(A) == 2 * emulation::layout.halves && sizeof(B) == sizeof(A) &&
                      sizeof(S) == 4 * emulation::layout.floats,
                  "a lane's numbers are not those of the instruction");
    S result = sum;
    emulation::matrices self{a.at, b.at, result.at};
    emulation::wait(emulation::matrix_point, &self);
    return result;
}

FWA_DEVICE uint32_t other_half(uint32_t own)
{
    return shuffle(own, thread() % wave ^ 16);
}

template <typename T> FWA_DEVICE T read_shared(const void *from)
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 8 || sizeof(T) == 16, "2, 8 or 16 bytes");
    T value;
    if ((uintptr_t)from % sizeof(T) != 0)
        emulation::fail("a read of %d bytes at %p", (int)sizeof(T), from);
    memcpy(&value, from, sizeof value);
    return value;
}

} // namespace fwa

#endif
