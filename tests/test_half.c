/* SPDX-License-Identifier: Apache-2.0 */
/* half.h: every bfloat16 and binary16 number, and every kind of rounding. */

#include "../src/common/half.h"

#include <criterion/criterion.h>
#include <math.h>

/* What a number of these fields is, from the definition. */
static double value_of(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double mantissa = bits & ((1u << mantissa_bits) - 1);
    const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

static float bf16_up(uint32_t bits)
{
    return fwa_bf16_to_float((uint16_t)bits);
}

static float f16_up(uint32_t bits)
{
    return fwa_f16_to_float((uint16_t)bits);
}

static const struct {
    const char *name;
    int exponent, mantissa;
    float (*up)(uint32_t bits);
    uint16_t (*down)(float value);
} types[] = {{"bf16", 8, 7, bf16_up, fwa_bf16_from_float},
             {"f16", 5, 10, f16_up, fwa_f16_from_float}};

Test(half, all_numbers)
{
    for (int type = 0; type < 2; type++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const float up = types[type].up(bits);
            const double want = value_of(bits, types[type].exponent, types[type].mantissa);
            if (isnan(want)) {
                cr_assert(isnan(up), "%s %04x is %g", types[type].name, bits, (double)up);
                cr_assert(isnan(types[type].up(types[type].down(up))), "%s %04x", types[type].name,
                          bits);
                continue;
            }
            cr_assert_eq((double)up, want, "%s %04x is %g, not %g", types[type].name, bits,
                         (double)up, want);
            cr_assert_eq(signbit(up) != 0, bits >> 15, "%s %04x has the wrong sign",
                         types[type].name, bits);
            cr_assert_eq(types[type].down(up), bits, "%s %04x comes back as %04x", types[type].name,
                         bits, types[type].down(up));
        }
}

/* Between two neighbours: below the middle down, above it up, on it to the even one. The last
 * finite number's upper neighbour is infinity, as if it were the next power of two. */
Test(half, rounding)
{
    for (int type = 0; type < 2; type++) {
        const uint32_t infinity = ((1u << types[type].exponent) - 1) << types[type].mantissa;
        for (uint32_t bits = 0; bits < infinity; bits++) {
            const double low = value_of(bits, types[type].exponent, types[type].mantissa);
            const double high = bits + 1 == infinity ? ldexp(1, 1 << (types[type].exponent - 1))
                                                     : value_of(bits + 1, types[type].exponent,
                                                                types[type].mantissa);
            const double middle = (low + high) / 2;
            const uint32_t even = bits % 2 ? bits + 1 : bits;
            const float on = (float)middle;
            for (uint32_t sign = 0; sign < 2; sign++) {
                const uint32_t top = sign << 15;
                const float s = sign ? -1 : 1;
                cr_assert_eq((double)on, middle);
                cr_assert_eq(types[type].down(s * on), top | even, "%s: the middle above %04x",
                             types[type].name, bits);
                cr_assert_eq(types[type].down(s * nextafterf(on, 0)), top | bits,
                             "%s: below the middle above %04x", types[type].name, bits);
                cr_assert_eq(types[type].down(s * nextafterf(on, INFINITY)), top | (bits + 1),
                             "%s: above the middle above %04x", types[type].name, bits);
            }
        }
    }
}

Test(half, extremes)
{
    /* NaN whose payload sits in the bits that go: rounding must not make infinity of it. */
    cr_expect(isnan(fwa_bf16_to_float(fwa_bf16_from_float(fwa_float_from_bits(0x7f800001u)))));
    cr_expect(isnan(fwa_bf16_to_float(fwa_bf16_from_float(fwa_float_from_bits(0xffffffffu)))));
    cr_expect(isnan(fwa_f16_to_float(fwa_f16_from_float(fwa_float_from_bits(0x7f800001u)))));
    cr_expect(isnan(fwa_f16_to_float(fwa_f16_from_float(fwa_float_from_bits(0xffffffffu)))));
    cr_expect_eq(fwa_bf16_from_float(3.4028235e38f), 0x7f80);
    cr_expect_eq(fwa_f16_from_float(65519.0f), 0x7bff);
    cr_expect_eq(fwa_f16_from_float(65520.0f), 0x7c00);
    cr_expect_eq(fwa_f16_from_float(1e30f), 0x7c00);
    cr_expect_eq(fwa_f16_from_float(-1e30f), 0xfc00);
    cr_expect_eq(fwa_f16_from_float(0x1p-24f), 1);
    cr_expect_eq(fwa_f16_from_float(0x1p-25f), 0);
    cr_expect_eq(fwa_f16_from_float(0x1.8p-24f), 2);
    cr_expect_eq(fwa_f16_from_float(1e-40f), 0);
    cr_expect_eq(fwa_f16_from_float(-1e-40f), 0x8000);
}
