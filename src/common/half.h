/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_HALF_H
#define FWA_COMMON_HALF_H

/* bfloat16 and IEEE binary16 <-> float, in integer arithmetic: no ISA and no libgcc needed.
 * Rounding is to nearest even; NaN stays NaN. Valid device code too: define FWA_DEVICE to the
 * qualifiers a function needs there. */

#include <stdint.h>
#include <string.h>

#ifndef FWA_DEVICE
#define FWA_DEVICE static inline
#endif

FWA_DEVICE uint32_t fwa_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FWA_DEVICE float fwa_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FWA_DEVICE float fwa_bf16_to_float(uint16_t half)
{
    return fwa_float_from_bits((uint32_t)half << 16);
}

FWA_DEVICE uint16_t fwa_bf16_from_float(float value)
{
    uint32_t bits = fwa_float_bits(value);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    uint32_t quiet = bits | 0x400000u; /* rounding could carry a NaN's payload into infinity */
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

FWA_DEVICE float fwa_f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fffu) << 13;
    float scaled;
    if (rest >= 0x0f800000u) /* infinity or NaN */
        return fwa_float_from_bits(sign | 0x7f800000u | (rest & 0x7fffffu));
    /* 2^112 moves the exponent from bias 15 to bias 127 and makes subnormals exact. */
    scaled = fwa_float_from_bits(rest) * 0x1p112f;
    return fwa_float_from_bits(sign | fwa_float_bits(scaled));
}

FWA_DEVICE uint16_t fwa_f16_from_float(float value)
{
    uint32_t bits = fwa_float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) { /* below 2^-14: adding 1/2 leaves the subnormal's bits at the end */
        float shifted = fwa_float_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (fwa_float_bits(shifted) - 0x3f000000u));
    }
    rest += 0xfffu + ((rest >> 13) & 1u);
    return (uint16_t)(sign | ((rest - 0x38000000u) >> 13));
}

#endif
