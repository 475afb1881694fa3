/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_RANDOM_H
#define LM_RANDOM_H

/* Random numbers as a pure function of (seed, domain, index): row i of the training data is the
 * same whatever was drawn before it, so a run can be resumed without saving a generator. */

#include <math.h>
#include <stdint.h>

typedef enum random_domain {
    RANDOM_WEIGHTS = 1,
    RANDOM_TRAIN = 2,
    RANDOM_VALIDATION = 3,
    RANDOM_TEST = 4,
    RANDOM_SAMPLE = 5
} random_domain;

typedef struct random_stream {
    uint64_t state;
} random_stream;

/* splitmix64. */
static inline uint64_t random_bits(random_stream *stream)
{
    uint64_t z = (stream->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline random_stream random_start(uint64_t seed, random_domain domain, uint64_t index)
{
    random_stream stream = {seed};
    stream.state = random_bits(&stream) ^ (uint64_t)domain;
    stream.state = random_bits(&stream) ^ index;
    stream.state = random_bits(&stream);
    return stream;
}

/* In [0, 1). */
static inline double random_uniform(random_stream *stream)
{
    return (double)(random_bits(stream) >> 11) * 0x1p-53;
}

/* In [0, limit); the bias is below limit / 2^53. */
static inline int64_t random_below(random_stream *stream, int64_t limit)
{
    return (int64_t)(random_uniform(stream) * (double)limit);
}

static inline double random_normal(random_stream *stream)
{
    double radius = sqrt(-2.0 * log(1.0 - random_uniform(stream)));
    return radius * cos(6.283185307179586 * random_uniform(stream));
}

#endif
