/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_GRADIENTS_H
#define FWA_GPU_OP_GRADIENTS_H

/* Adds up the blocks' shares of gradients, in a fixed order, and takes those of features back
 * through phi and the norm. A wave has one row. */

#include "../math/feature.h"
#include "workspace.h"

namespace fwa
{

/* grad = the sum of `count` rows of D floats that lie `stride` apart. */
FWA_DEVICE void sum_shares(const fwa_gpu_args &a, const float *share, int64_t count, int64_t stride,
                           float (&grad)[row_shares])
{
#pragma unroll
    for (int e = 0; e < row_shares; e++)
        grad[e] = 0;
    for (int64_t i = 0; i < count; i++)
#pragma unroll
        for (int e = 0; e < row_shares; e++)
            if (lane() + e * wave < a.key_dim)
                grad[e] += share[i * stride + lane() + e * wave];
}

FWA_DEVICE void add_row(const fwa_gpu_args &a, const fwa_gpu_view &view, int64_t offset,
                        float (&grad)[row_shares])
{
    if (!present(view))
        return;
#pragma unroll
    for (int e = 0; e < row_shares; e++)
        if (lane() + e * wave < a.key_dim)
            grad[e] += load(view, offset + (lane() + e * wave) * view.stride[view.rank - 1]);
}

FWA_DEVICE void store_row(const fwa_gpu_args &a, const fwa_gpu_view &view, int64_t offset,
                          const float (&grad)[row_shares])
{
    if (!present(view))
        return;
#pragma unroll
    for (int e = 0; e < row_shares; e++)
        if (lane() + e * wave < a.key_dim)
            store(view, offset + lane() + e * wave, grad[e]);
}

/* Token i of the call's, by rows of `tokens`. */
struct TokenPlace {
    int64_t row, at;
};

FWA_DEVICE TokenPlace token_place(const fwa_gpu_args &a, int64_t i)
{
    if (i <= INT32_MAX && a.tokens <= INT32_MAX)
        return {(int32_t)i / (int32_t)a.tokens, (int32_t)i % (int32_t)a.tokens};
    return {i / a.tokens, i % a.tokens};
}

/* The gradient of the raw key of a pair, `length` included: the key that only prev_key has. */
FWA_DEVICE void key_gradient(const fwa_gpu_args &a, const Sequence &s, int64_t key, int64_t pair,
                             float (&grad)[row_shares])
{
    const int64_t tail = a.window - 1, tokens = a.batch * a.tokens;
    const int64_t rows = tokens + a.sequences * tail, slot = pair - (s.length - tail);
    const int64_t at = pair >= 0 ? s.before + pair : tokens + s.index * tail + tail + pair;
    const int64_t shares = (int64_t)(a.heads_value / a.heads_key) * a.blocks;
    const fwa_gpu_view &tail_key = a.carry_out_grad.tail_key, &prev = a.carry_out_grad.prev_key;
    const bool live = !s.padded && (s.length > 0 ? pair >= first_pair(a, s) : s.slot_in >= 0);
    const bool summed = live && s.length > 0 && pair < s.length;
    sum_shares(a, a.key_partial + (key * shares * rows + at) * a.key_dim, summed ? shares : 0,
               rows * a.key_dim, grad);
    if (summed) {
        float energy_grad = 0;
        for (int64_t i = key * shares; a.energy_grad && i < (key + 1) * shares; i++)
            energy_grad += a.energy_grad[i * tokens + at];
        feature_backward(a, key_row(a, s, key, pair), 2 * energy_grad, grad);
    }
    if (live && slot >= 0 && pair < s.length)
        add_row(a, tail_key, at3(tail_key, s.index, slot, key), grad);
    if (live && a.alignment == NEXT_LATENT && pair == s.length)
        add_row(a, prev, at2(prev, s.index, key), grad);
}

/* Rows: the keys of the call's tokens, then each sequence's tail and prev_key. */
FWA_DEVICE void key_gradients(const fwa_gpu_args &a)
{
    float grad[row_shares];
    const int64_t tokens = a.batch * a.tokens, rows = tokens + a.sequences * a.window;
    const int64_t shift = a.alignment == NEXT_LATENT, waves = FWA_GPU_THREADS / wave;
    for (int64_t e = block() * waves + thread() / wave; e < rows * a.heads_key;
         e += grid() * waves) {
        const Unit unit = unit_get(e, a.heads_key, 1);
        const int64_t i = unit.sequence, key = unit.head;
        if (i < tokens) {
            const auto [row, at] = token_place(a, i);
            const Sequence s = sequence_get(a, sequence_of(a, row, at));
            if (!present(a.k_grad))
                continue;
            key_gradient(a, s, key, at - s.first + shift, grad);
            store_row(a, a.k_grad, at3(a.k_grad, row, at, key), grad);
            continue;
        }
        const int64_t n = (i - tokens) / a.window, slot = (i - tokens) % a.window;
        const Sequence s = sequence_get(a, n);
        const fwa_gpu_view &tail = a.carry_in_grad.tail_key, &prev = a.carry_in_grad.prev_key;
        if (slot < a.window - 1 ? !present(tail) : !shift || !present(prev))
            continue;
        key_gradient(a, s, key, slot - (a.window - 1), grad);
        if (slot < a.window - 1)
            store_row(a, tail, at3(tail, n, slot, key), grad);
        else
            store_row(a, prev, at2(prev, n, key), grad);
    }
}

FWA_DEVICE void query_gradients(const fwa_gpu_args &a)
{
    float grad[row_shares];
    const int64_t tokens = a.batch * a.tokens, waves = FWA_GPU_THREADS / wave;
    const int64_t shares = (int64_t)(a.heads_value / a.heads_query) * a.blocks;
    for (int64_t e = block() * waves + thread() / wave; e < tokens * a.heads_query;
         e += grid() * waves) {
        const Unit unit = unit_get(e, a.heads_query, 1);
        const int64_t i = unit.sequence, query = unit.head;
        const auto [row, at] = token_place(a, i);
        const Sequence s = sequence_get(a, sequence_of(a, row, at));
        sum_shares(a, a.query_partial + (query * shares * tokens + i) * a.key_dim,
                   s.padded ? 0 : shares, tokens * a.key_dim, grad);
        if (!s.padded)
            feature_backward(a, query_row(a, s, query, at - s.first), 0, grad);
        store_row(a, a.q_grad, at3(a.q_grad, row, at, query), grad);
    }
}

FWA_DEVICE void store_gate(const fwa_gpu_view &view, int64_t row, int64_t at, int64_t head,
                           float value)
{
    if (present(view))
        store(view, at3(view, row, at, head), value);
}

FWA_DEVICE void gate_gradients(const fwa_gpu_args &a)
{
    const int64_t tokens = a.batch * a.tokens;
    for (int64_t e = block() * FWA_GPU_THREADS + thread(); e < tokens * a.heads_value;
         e += grid() * FWA_GPU_THREADS) {
        const int64_t i = e / a.heads_value, head = e % a.heads_value;
        const int64_t row = i / a.tokens, at = i % a.tokens;
        float sums[3] = {0, 0, 0};
        for (int b = 0; b < a.blocks; b++)
            for (int g = 0; g < 3; g++)
                sums[g] += a.gate_partial[((head * a.blocks + b) * tokens + i) * 3 + g];
        if (a.dynamics == PER_HEAD)
            store_gate(a.beta_grad, row, at, head, sums[0]);
        store_gate(a.lambda_grad, row, at, head, sums[1]);
        store_gate(a.log_gate_grad, row, at, head, sums[2]);
    }
}

FWA_DEVICE void norm_gradients(const fwa_gpu_args &a)
{
    const fwa_gpu_view &to = a.carry_in_grad.norm;
    const int64_t rows = a.sequences * a.heads_value;
    for (int64_t e = block() * FWA_GPU_THREADS + thread(); e < rows * a.key_dim;
         e += grid() * FWA_GPU_THREADS) {
        const int64_t i = e / a.key_dim, d = e % a.key_dim;
        float sum = 0;
        for (int b = 0; b < a.blocks; b++)
            sum += a.norms[(i * a.blocks + b) * a.key_dim + d];
        store(to, at2(to, i / a.heads_value, i % a.heads_value) + d, sum);
    }
}

} // namespace fwa

FWA_KERNEL(key_gradients, 128)
{
    fwa::key_gradients(args);
}

FWA_KERNEL(query_gradients, 128)
{
    fwa::query_gradients(args);
}

FWA_KERNEL(gate_gradients, 128)
{
    fwa::gate_gradients(args);
}

FWA_KERNEL(norm_gradients, 128)
{
    fwa::norm_gradients(args);
}

#endif
