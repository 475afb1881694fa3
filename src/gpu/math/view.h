/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_MATH_VIEW_H
#define FWA_GPU_MATH_VIEW_H

/* Elements of strided views, sequences of a call, pairs of a sequence: what host.h is to backends in
 * host memory. Numbers in device memory that no host has checked are brought within bounds here. */

#include "../vendor/vendor.h"

#define FWA_DECAY_FLOAT_ONLY /* there are no doubles on a device */
#include "../../common/decay.h"
#include "../../common/half.h"

namespace fwa
{

/* Numbers of fwa.h, which device code does not include. */
enum : int32_t { F32 = 1, BF16 = 2, F16 = 3, I32 = 5, I64 = 6 };
enum : int32_t { REGRESSION = 0, INNER_PRODUCT = 1 };
enum : int32_t { PER_HEAD = 0, PER_CHANNEL = 1 };
enum : int32_t { NEXT_LATENT = 0, SAME_STEP = 1 };
enum : int32_t { AFTER_WRITE = 0, BEFORE_WRITE = 1 };
enum : int32_t { DECAYED = 1 };
enum : int32_t { NORM_NONE = 0, NORM_L2 = 1, NORM_RMS = 2 };
enum : int32_t { IDENTITY = 0, RELU = 1, ELU1 = 2 };
enum : int64_t { SLOT_NONE = -1, SLOT_FRESH = -2 };

/* 16 bytes at once. */
struct alignas(16) Four {
    float at[4];
};

FWA_DEVICE int lane()
{
    return thread() % wave;
}

FWA_DEVICE bool present(const fwa_gpu_view &view)
{
    return view.rank != 0;
}

FWA_DEVICE float load_element(const void *data, int32_t dtype, int64_t offset)
{
    if (dtype == F32)
        return ((const float *)data)[offset];
    uint16_t half = ((const uint16_t *)data)[offset];
    return dtype == BF16 ? fwa_bf16_to_float(half) : fwa_f16_to_float(half);
}

FWA_DEVICE float load(const fwa_gpu_view &view, int64_t offset)
{
    return load_element(view.data, view.dtype, offset);
}

FWA_DEVICE void store(const fwa_gpu_view &view, int64_t offset, float value)
{
    if (view.dtype == F32)
        ((float *)view.data)[offset] = value;
    else
        ((uint16_t *)view.data)[offset] = view.dtype == BF16 ? fwa_bf16_from_float(value)
                                                             : fwa_f16_from_float(value);
}

/* The bits of an element, and the element of them, where PARTS (tile/tile.h) says what the type is: so
 * that nobody waits for a load before its number is needed. */
template <int PARTS> FWA_DEVICE uint32_t load_bits(const fwa_gpu_view &view, int64_t offset)
{
    if (PARTS == 3)
        return ((const uint32_t *)view.data)[offset];
    return ((const uint16_t *)view.data)[offset];
}

template <int PARTS> FWA_DEVICE float from_bits(const fwa_gpu_view &view, uint32_t bits)
{
    if (PARTS == 3)
        return fwa_float_from_bits(bits);
    if (PARTS == 1 || view.dtype == BF16)
        return fwa_bf16_to_float((uint16_t)bits);
    return fwa_f16_to_float((uint16_t)bits);
}

/* Copies an element bit for bit, or zeroes it. Types are the same. */
FWA_DEVICE void copy(const fwa_gpu_view &from, int64_t at, const fwa_gpu_view &to, int64_t offset,
                     bool zero)
{
    if (to.dtype == F32)
        ((uint32_t *)to.data)[offset] = zero ? 0 : ((const uint32_t *)from.data)[at];
    else
        ((uint16_t *)to.data)[offset] = zero ? 0 : ((const uint16_t *)from.data)[at];
}

FWA_DEVICE int64_t integer(const fwa_gpu_view &view, int64_t i)
{
    return view.dtype == I64 ? ((const int64_t *)view.data)[i * view.stride[0]]
                             : ((const int32_t *)view.data)[i * view.stride[0]];
}

FWA_DEVICE int64_t at2(const fwa_gpu_view &v, int64_t i, int64_t j)
{
    return i * v.stride[0] + j * v.stride[1];
}

FWA_DEVICE int64_t at3(const fwa_gpu_view &v, int64_t i, int64_t j, int64_t k)
{
    return at2(v, i, j) + k * v.stride[2];
}

FWA_DEVICE int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* One sequence of a call. Token i of it is [row, first + i] of q, k, v, ... */
struct Sequence {
    int64_t index, row, first, length;
    int64_t before;            /* tokens of the earlier sequences of the call */
    int64_t seen;              /* tokens before the call; 0: fresh */
    int64_t commit;            /* tokens after which the carry is written, 0 .. length */
    int64_t slot_in, slot_out; /* rows of the pools, or -1: from zeros, not written */
    bool padded;               /* nothing is read; outputs are zeros */
};

FWA_DEVICE Sequence sequence_get(const fwa_gpu_args &a, int64_t n)
{
    Sequence s = {n, n, 0, a.tokens, n * a.tokens, 0, 0, n, n, false};
    if (present(a.cu_seqlens)) {
        s.row = 0;
        s.first = s.before = clamp(integer(a.cu_seqlens, n), 0, a.tokens);
        s.length = clamp(integer(a.cu_seqlens, n + 1), s.first, a.tokens) - s.first;
    }
    if (present(a.slot_in))
        s.slot_in = s.slot_out = integer(a.slot_in, n);
    if (present(a.slot_out))
        s.slot_out = integer(a.slot_out, n);
    s.padded = s.slot_in == SLOT_NONE || s.slot_out == SLOT_NONE;
    if (s.padded || s.slot_in < 0 || s.slot_in >= a.pool_in)
        s.slot_in = -1;
    if (s.padded || s.slot_out < 0 || s.slot_out >= a.pool_out)
        s.slot_out = -1;
    s.commit = present(a.commit) && !s.padded ? clamp(integer(a.commit, n), 0, s.length) : s.length;
    if (s.slot_in >= 0 && present(a.carry_in.seen) &&
        (present(a.carry_in.prev_key) || a.alignment != NEXT_LATENT) &&
        (present(a.carry_in.tail_key) || a.window == 1) &&
        (present(a.carry_in.tail_value) || a.window == 1))
        s.seen = clamp(integer(a.carry_in.seen, s.slot_in), 0, INT64_MAX);
    return s;
}

/* The sequence that token `at` of row `row` of the call belongs to. */
FWA_DEVICE int64_t sequence_of(const fwa_gpu_args &a, int64_t row, int64_t at)
{
    if (!present(a.cu_seqlens))
        return row;
    int64_t low = 0, high = a.sequences; /* the last whose first token is not behind `at` */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (integer(a.cu_seqlens, middle) <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

FWA_DEVICE int64_t tail_fill(const fwa_gpu_args &a, int64_t seen)
{
    const int64_t pairs = a.alignment == NEXT_LATENT && seen > 0 ? seen - 1 : seen;
    return pairs < a.window - 1 ? pairs : a.window - 1;
}

/* Pair i is the one that token i of the call writes, negative ones are the tail's; these are the
 * pairs from the first on. */
FWA_DEVICE int64_t first_pair(const fwa_gpu_args &a, const Sequence &s)
{
    return a.alignment == NEXT_LATENT && s.seen == 0 ? 1 : -tail_fill(a, s.seen);
}

/* How many pairs token t rehearses; 0: it neither writes nor decays. */
FWA_DEVICE int window_pairs(const fwa_gpu_args &a, const Sequence &s, int64_t t)
{
    return (int)clamp(t - first_pair(a, s) + 1, 0, a.window);
}

FWA_DEVICE int64_t key_head(const fwa_gpu_args &a, int64_t head)
{
    return (int32_t)head / (a.heads_value / a.heads_key);
}

FWA_DEVICE int64_t query_head(const fwa_gpu_args &a, int64_t head)
{
    return (int32_t)head / (a.heads_value / a.heads_query);
}

/* Unit `index` of sequences, heads and blocks of columns, the last of which runs fastest. Divisions of 64
 * bits are a tenth of what a token takes, so those of 32 are used where they can be. */
struct Unit {
    int64_t sequence, head, block;
};

FWA_DEVICE Unit unit_get(int64_t index, int32_t heads, int32_t blocks)
{
    if (index <= INT32_MAX) {
        const int32_t row = (int32_t)index / blocks;
        return {row / heads, row % heads, (int32_t)index % blocks};
    }
    return {index / blocks / heads, index / blocks % heads, index % blocks};
}

/* A row of a tensor. */
struct Row {
    FWA_POINTER(void) data;
    int64_t offset, step; /* of its first element, between two of them */
    int32_t dtype;
};

FWA_DEVICE Row row_of(const fwa_gpu_view &view, int64_t offset)
{
    return {view.data, offset, view.stride[view.rank - 1], view.dtype};
}

FWA_DEVICE float load(const Row &row, int64_t i)
{
    return load_element(row.data, row.dtype, row.offset + i * row.step);
}

FWA_DEVICE Row query_row(const fwa_gpu_args &a, const Sequence &s, int64_t head, int64_t t)
{
    return row_of(a.q, at3(a.q, s.row, s.first + t, head));
}

/* The raw key of a pair: next_latent pairs the value of token j with the key of token j - 1. */
FWA_DEVICE Row key_row(const fwa_gpu_args &a, const Sequence &s, int64_t head, int64_t pair)
{
    const int64_t token = a.alignment == NEXT_LATENT ? pair - 1 : pair;
    if (pair < 0)
        return row_of(a.carry_in.tail_key,
                      at3(a.carry_in.tail_key, s.slot_in, a.window - 1 + pair, head));
    if (token < 0)
        return row_of(a.carry_in.prev_key, at2(a.carry_in.prev_key, s.slot_in, head));
    return row_of(a.k, at3(a.k, s.row, s.first + token, head));
}

FWA_DEVICE Row value_row(const fwa_gpu_args &a, const Sequence &s, int64_t head, int64_t pair)
{
    if (pair < 0)
        return row_of(a.carry_in.tail_value,
                      at3(a.carry_in.tail_value, s.slot_in, a.window - 1 + pair, head));
    return row_of(a.v, at3(a.v, s.row, s.first + pair, head));
}

FWA_DEVICE fwa_decay_knobs_f32 decay_knobs(const fwa_gpu_args &a)
{
    return {a.step == 0, a.ridge != 0, a.ridge == 2, a.eps, a.decay_floor};
}

} // namespace fwa

#endif
