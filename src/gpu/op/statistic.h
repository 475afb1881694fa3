/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_STATISTIC_H
#define FWA_GPU_OP_STATISTIC_H

/* E_t = lambda_max(X^T X) / B_t of regression with a window (4.15), for all tokens and key heads at
 * once, and the unit eigenvector where the backward wants it. A block has a few tokens of a head,
 * a wave one token. */

#include "../math/feature.h"
#include "../math/top_eigen.h"
#include "workspace.h"

namespace fwa
{

struct Statistic {
    const fwa_gpu_args &a;
    int64_t key;
    int stride; /* between rows of features */
    float *x, *matrices;

    FWA_METHOD Statistic(const fwa_gpu_args &args, int64_t key_head)
        : a(args), key(key_head), stride((args.key_dim + 31) / 32 * 32), x((float *)shared()),
          matrices(x + (args.window - 1 + FWA_GPU_STATISTIC_TOKENS) * stride +
                   thread() / wave * 3 * args.window * args.window)
    {
    }

    /* The Gram matrix of token i's window, newest pair first. */
    FWA_METHOD void gram(int i, int pairs, float *matrix) const
    {
        constexpr int batch = 8;
        for (int e0 = 0; e0 < pairs * pairs; e0 += batch) {
            float sums[batch];
#pragma unroll
            for (int e = 0; e < batch; e++) {
                const int entry = e0 + e < pairs * pairs ? e0 + e : 0;
                const float *left = x + (i + a.window - 1 - entry / pairs) * stride;
                const float *right = x + (i + a.window - 1 - entry % pairs) * stride;
                sums[e] = 0;
                for (int d = lane(); d < a.key_dim; d += wave)
                    sums[e] += left[d] * right[d];
            }
            sum_lanes<1, wave>(sums);
#pragma unroll
            for (int e = 0; e < batch; e++)
                if (lane() == 0 && e0 + e < pairs * pairs)
                    matrix[e0 + e] = sums[e];
        }
        wave_barrier();
    }

    FWA_METHOD void token(const Sequence &s, int i, int64_t t) const
    {
        const int pairs = window_pairs(a, s, t);
        const int64_t at = (s.before + t) * a.heads_key + key;
        float top = 0;
        if (pairs > 0) {
            gram(i, pairs, matrices);
            top = top_eigen(pairs, matrices, matrices + a.window * a.window,
                            a.top + (a.top ? at * a.window : 0));
        }
        if (lane() == 0)
            a.statistic[at] = pairs > 0 ? top / (float)pairs : 0;
    }

    /* Tokens t0 .. t0 + n - 1 of a sequence. */
    FWA_METHOD void tokens(const Sequence &s, int64_t t0, int n) const
    {
        const int waves = FWA_GPU_STATISTIC_THREADS / wave;
        const int64_t first = first_pair(a, s);
        barrier();
        for (int e = thread() / wave; e < a.window - 1 + n; e += waves) {
            const int64_t pair = t0 - (a.window - 1) + e;
            if (!s.padded && pair >= first)
                feature_row(a, key_row(a, s, key, pair), x + e * stride, stride);
        }
        barrier();
        for (int i = thread() / wave; !s.padded && i < n; i += waves)
            token(s, i, t0 + i);
    }
};

FWA_DEVICE void statistic(const fwa_gpu_args &a)
{
    const int64_t tiles = (a.tokens + FWA_GPU_STATISTIC_TOKENS - 1) / FWA_GPU_STATISTIC_TOKENS;
    for (int64_t unit = block(); unit < a.batch * tiles * a.heads_key; unit += grid()) {
        const Statistic work(a, unit % a.heads_key);
        const int64_t row = unit / a.heads_key / tiles;
        int64_t at = unit / a.heads_key % tiles * FWA_GPU_STATISTIC_TOKENS;
        const int64_t end = at + FWA_GPU_STATISTIC_TOKENS < a.tokens ? at + FWA_GPU_STATISTIC_TOKENS
                                                                     : a.tokens;
        while (at < end) {
            const Sequence s = sequence_get(a, sequence_of(a, row, at));
            const int64_t rest = s.first + s.length - at;
            const int n = (int)clamp(rest, 1, end - at);
            if (rest > 0 && at >= s.first)
                work.tokens(s, at - s.first, n);
            at += n;
        }
    }
}

} // namespace fwa

FWA_KERNEL(statistic, 64)
{
    fwa::statistic(args);
}

#endif
