/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_CARRY_H
#define FWA_GPU_OP_CARRY_H

/*
 * The parts of carries that are no arithmetic: seen, prev_key, tail_key, tail_value, and the
 * normaliser's z. They are gathered into the workspace while all still read their slots, and
 * written when nobody does: in place, heads, blocks and rows would race otherwise.
 */

#include "../math/view.h"
#include "workspace.h"

namespace fwa
{

/* Element e of a part that has `inner` elements a row of its heads, from an input at [token]. */
FWA_DEVICE float part_element(const fwa_gpu_view &part, int64_t slot, int64_t index, int64_t inner,
                              int64_t e)
{
    if (slot < 0 || !present(part))
        return 0;
    const int64_t h = e / inner, d = e % inner;
    if (part.rank == 3)
        return load(part, at2(part, slot, h) + d * part.stride[2]);
    return load(part, at3(part, slot, index, h) + d * part.stride[3]);
}

FWA_DEVICE float token_element(const fwa_gpu_view &input, const Sequence &s, int64_t token,
                               int64_t inner, int64_t e)
{
    return load(input, at3(input, s.row, s.first + token, e / inner) + e % inner * input.stride[3]);
}

/* Element e of tail slot i: of the pair `age` tokens before the last committed one. Pairs older than
 * the call come from the tail that was handed in. */
FWA_DEVICE float tail_key_element(const fwa_gpu_args &a, const Sequence &s, int64_t i, int64_t e)
{
    const int64_t age = a.window - 1 - i, token = s.commit - age;
    const int64_t key_token = a.alignment == NEXT_LATENT ? token - 1 : token;
    if (s.commit == 0)
        return part_element(a.carry_in.tail_key, s.slot_in, i, a.key_dim, e);
    if (age > tail_fill(a, s.seen + s.commit))
        return 0;
    if (token < 0)
        return part_element(a.carry_in.tail_key, s.slot_in, i + s.commit, a.key_dim, e);
    if (key_token < 0)
        return part_element(a.carry_in.prev_key, s.slot_in, 0, a.key_dim, e);
    return token_element(a.k, s, key_token, a.key_dim, e);
}

FWA_DEVICE float tail_value_element(const fwa_gpu_args &a, const Sequence &s, int64_t i, int64_t e)
{
    const int64_t age = a.window - 1 - i, token = s.commit - age;
    if (s.commit == 0)
        return part_element(a.carry_in.tail_value, s.slot_in, i, a.value_dim, e);
    if (age > tail_fill(a, s.seen + s.commit))
        return 0;
    if (token < 0)
        return part_element(a.carry_in.tail_value, s.slot_in, i + s.commit, a.value_dim, e);
    return token_element(a.v, s, token, a.value_dim, e);
}

/* Where a sequence's parts lie in the workspace, and how many elements they have. */
struct CarryParts {
    int64_t prev, keys, values; /* elements of prev_key, of a tail slot's keys and values */
    float *at;
    FWA_METHOD CarryParts(const fwa_gpu_args &a, int64_t n)
        : prev(a.alignment == NEXT_LATENT ? (int64_t)a.heads_key * a.key_dim : 0),
          keys((int64_t)a.heads_key * a.key_dim), values((int64_t)a.heads_value * a.value_dim),
          at(a.carries + n * fwa_gpu_carry_floats(&a))
    {
    }
};

FWA_DEVICE void carry_gather(const fwa_gpu_args &a)
{
    const int64_t tail = a.window - 1;
    for (int64_t n = block(); n < a.sequences; n += grid()) {
        const Sequence s = sequence_get(a, n);
        const CarryParts parts(a, n);
        float *prev = parts.at + 2, *keys = prev + parts.prev, *values = keys + tail * parts.keys;
        const uint64_t seen = (uint64_t)(s.seen + s.commit);
        if (s.slot_out < 0)
            continue;
        if (thread() < 2)
            ((uint32_t *)parts.at)[thread()] = (uint32_t)(seen >> (32 * thread()));
        for (int64_t e = thread(); e < parts.prev; e += FWA_GPU_THREADS)
            prev[e] = s.commit > 0 ? token_element(a.k, s, s.commit - 1, a.key_dim, e)
                                   : part_element(a.carry_in.prev_key, s.slot_in, 0, a.key_dim, e);
        for (int64_t e = thread(); e < tail * parts.keys; e += FWA_GPU_THREADS)
            keys[e] = tail_key_element(a, s, e / parts.keys, e % parts.keys);
        for (int64_t e = thread(); e < tail * parts.values; e += FWA_GPU_THREADS)
            values[e] = tail_value_element(a, s, e / parts.values, e % parts.values);
    }
}

/* Element e of a part [slot, .., heads, inner] of rank 3 or 4. */
FWA_DEVICE void write_part(const fwa_gpu_view &part, int64_t slot, int64_t heads, int64_t inner,
                           int64_t e, float value)
{
    const int64_t d = e % inner, h = e / inner % heads, i = e / inner / heads;
    if (part.rank == 3)
        store(part, at2(part, slot, h) + d * part.stride[2], value);
    else
        store(part, at3(part, slot, i, h) + d * part.stride[3], value);
}

FWA_DEVICE void carry_scatter(const fwa_gpu_args &a)
{
    const fwa_gpu_carry &out = a.carry_out;
    const int64_t tail = a.window - 1;
    for (int64_t n = block(); n < a.sequences; n += grid()) {
        const int64_t slot = present(a.slot_out) || present(a.slot_in) ? sequence_get(a, n).slot_out
                                                                       : n;
        const CarryParts parts(a, n);
        const float *prev = parts.at + 2, *keys = prev + parts.prev;
        const float *values = keys + tail * parts.keys;
        const int64_t norms = (int64_t)a.heads_value * a.key_dim;
        if (slot < 0)
            continue;
        if (present(out.seen) && thread() == 0) {
            const uint32_t *half = (const uint32_t *)parts.at;
            ((int64_t *)out.seen.data)[slot * out.seen.stride[0]] =
                (int64_t)((uint64_t)half[1] << 32 | half[0]);
        }
        for (int64_t e = thread(); present(out.prev_key) && e < parts.prev; e += FWA_GPU_THREADS)
            write_part(out.prev_key, slot, a.heads_key, a.key_dim, e, prev[e]);
        for (int64_t e = thread(); present(out.tail_key) && e < tail * parts.keys;
             e += FWA_GPU_THREADS)
            write_part(out.tail_key, slot, a.heads_key, a.key_dim, e, keys[e]);
        for (int64_t e = thread(); present(out.tail_value) && e < tail * parts.values;
             e += FWA_GPU_THREADS)
            write_part(out.tail_value, slot, a.heads_value, a.value_dim, e, values[e]);
        for (int64_t e = thread(); present(out.norm) && e < norms; e += FWA_GPU_THREADS)
            write_part(out.norm, slot, a.heads_value, a.key_dim, e, a.norms[n * norms + e]);
    }
}

} // namespace fwa

FWA_KERNEL(carry_gather, 128)
{
    fwa::carry_gather(args);
}

FWA_KERNEL(carry_scatter, 128)
{
    fwa::carry_scatter(args);
}

#endif
