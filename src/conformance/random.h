/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CONFORMANCE_RANDOM_H
#define FWA_CONFORMANCE_RANDOM_H

/* Seeded numbers that are the same on every machine: a counter through a mixing function. */

#include <math.h>
#include <stdint.h>

typedef struct conformance_random {
    uint64_t state;
} conformance_random;

static inline conformance_random conformance_random_seed(uint64_t seed)
{
    const conformance_random random = {seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du};
    return random;
}

static inline uint64_t conformance_random_bits(conformance_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In (0, 1). */
static inline double conformance_random_unit(conformance_random *random)
{
    return ((double)(conformance_random_bits(random) >> 12) + 0.5) * 0x1p-52;
}

static inline double conformance_random_between(conformance_random *random, double low, double high)
{
    return low + (high - low) * conformance_random_unit(random);
}

/* In [0, count). */
static inline int64_t conformance_random_below(conformance_random *random, int64_t count)
{
    return (int64_t)(conformance_random_bits(random) % (uint64_t)count);
}

/* Mean 0, deviation 1. */
static inline double conformance_random_normal(conformance_random *random)
{
    const double radius = sqrt(-2 * log(conformance_random_unit(random)));
    return radius * cos(6.283185307179586 * conformance_random_unit(random));
}

#endif
