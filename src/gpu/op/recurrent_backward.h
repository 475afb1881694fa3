/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_RECURRENT_BACKWARD_H
#define FWA_GPU_OP_RECURRENT_BACKWARD_H

/*
 * The backward of the recurrent form, the adjoint of each token (maths.md, "Backward"). A block goes
 * forward through its sequence and keeps every 64th state; then, from the last segment to the first,
 * it forms the states of the segment's tokens and takes the gradient L of the state back through
 * them. Values' gradients are a block's own; those of features and gates are shares, which
 * op/gradients.h adds up in a fixed order.
 */

#include "recurrent.h"

namespace fwa
{

template <int ROWS> struct RecurrentBackward : Recurrent<ROWS> {
    using Base = Recurrent<ROWS>;
    using Base::a, Base::s, Base::head, Base::key, Base::column0, Base::first, Base::row;
    using Base::column, Base::state, Base::norm, Base::eta, Base::gamma, Base::q, Base::rest;
    static constexpr int padded = Base::padded, columns = Base::columns;
    static constexpr int64_t state_floats = padded * columns + padded; /* S and z */

    int64_t unit; /* of the head's blocks and heads: where its shares are */
    float grad[ROWS][4], norm_grad[ROWS];
    /* In shared memory; rows of a window by pair modulo window. */
    float *predictions, *reaches, *value_grads, *o_grads;
    float *segment; /* [SEGMENT] states */

    FWA_METHOD RecurrentBackward(const fwa_gpu_args &args, int64_t n, int64_t value_head,
                                 int64_t block_of_head)
        : Base(args, n, value_head, block_of_head), unit(value_head * args.blocks + block_of_head)
    {
        predictions = this->w; /* which only the way forward needs */
        reaches = rest;
        value_grads = reaches + a.window * columns;
        o_grads = value_grads + a.window * columns;
        segment = a.segment + block() * FWA_GPU_SEGMENT * state_floats;
    }

    /* ---- Kept states ---- */

    FWA_METHOD float *kept(int64_t index) const
    {
        const int64_t tokens = a.batch * a.tokens;
        const int64_t of_head = tokens / FWA_GPU_SEGMENT + a.sequences;
        return a.states +
               (unit * of_head + s.before / FWA_GPU_SEGMENT + s.index + index) * state_floats;
    }

    FWA_METHOD void put(float *at) const
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = row + r * FWA_GPU_ROW_GROUPS;
            *(Four *)(at + d * columns +
                      column) = Four{{state[r][0], state[r][1], state[r][2], state[r][3]}};
            if (column == 0)
                at[padded * columns + d] = norm[r];
        }
    }

    FWA_METHOD void get(const float *at)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = row + r * FWA_GPU_ROW_GROUPS;
            const Four four = *(const Four *)(at + d * columns + column);
#pragma unroll
            for (int c = 0; c < 4; c++)
                state[r][c] = four.at[c];
            norm[r] = at[padded * columns + d];
        }
    }

    FWA_METHOD void advance(int i, int64_t t)
    {
        float o[4];
        if (a.normalizer)
            this->advance_norm(i, window_pairs(a, s, t));
        Base::advance(i, t, o);
    }

    /* The states before tokens t0 .. t0 + n - 1, from the one before t0, to `to` (NULL: nowhere). */
    FWA_METHOD void walk(int64_t t0, int64_t n, float *to)
    {
        for (int64_t b = 0; b < n; b += FWA_GPU_TOKENS) {
            const int count = (int)clamp(n - b, 0, FWA_GPU_TOKENS);
            this->stage(t0 + b, count);
            for (int i = 0; i < count; i++) {
                if (to)
                    put(to + (b + i) * state_floats);
                advance(i, t0 + b + i);
            }
        }
        barrier(); /* put's threads of column 0 wrote for the others of the row */
    }

    /* ---- Shares of gradients ---- */

    FWA_METHOD float *key_share(int64_t pair) const
    {
        const int64_t tail = a.window - 1, tokens = a.batch * a.tokens;
        const int64_t at = pair >= 0 ? s.before + pair : tokens + s.index * tail + tail + pair;
        return a.key_partial + (unit * (tokens + a.sequences * tail) + at) * a.key_dim;
    }

    FWA_METHOD float *query_share(int64_t t) const
    {
        return a.query_partial + (unit * a.batch * a.tokens + s.before + t) * a.key_dim;
    }

    /* Adds to the share of a pair of token t's window, which other threads do not touch. */
    FWA_METHOD void add_key_share(int64_t t, int j, int d, float value)
    {
        if (d >= a.key_dim)
            return;
        float *at = key_share(t - j) + d;
        const bool first_touch = j == a.window - 1 || t == s.length - 1;
        *at = (first_touch ? 0 : *at) + value;
    }

    /* Where gradients of a pair's value are summed. */
    FWA_METHOD int ring(int64_t pair) const
    {
        return (int)((pair + a.window) % a.window);
    }

    /* A sum over the block's columns from shares of each thread's four. */
    template <int N> FWA_METHOD void sum_columns(float (&share)[N]) const
    {
        sum_lanes<1, 8>(share);
    }

    /* ---- Tokens ---- */

    /* matrix^T u, summed over rows. */
    FWA_METHOD void apply(const float (&matrix)[ROWS][4], const float *u, float (&product)[4])
    {
        const float *const rows[1] = {u};
        this->template multiply<1>(matrix, rows, product);
        this->template sum_rows<1>(product);
    }

    FWA_METHOD float dot_norm(const float (&z)[ROWS], const float *u)
    {
        float share[4] = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            share[0] += z[r] * u[row + r * FWA_GPU_ROW_GROUPS];
        this->template sum_rows<1>(share);
        return share[0];
    }

    /* o_t = scale S^T q / (z^T q + eps_attn), back to q, S and z. */
    FWA_METHOD void read_backward(int i, int64_t t, const float (&read)[ROWS][4],
                                  const float (&z)[ROWS])
    {
        const float *asked = q + i * padded, *given = o_grads + i * columns + column;
        float numerator[4], along[1] = {0}, denominator = 1;
        if (a.normalizer) {
            float o[4];
            denominator = dot_norm(z, asked) + a.eps_attn;
            apply(read, asked, o);
#pragma unroll
            for (int c = 0; c < 4; c++)
                along[0] -= denominator != 0
                                ? given[c] * (a.scale * o[c] / denominator) / denominator
                                : 0;
            sum_columns(along);
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            numerator[c] = denominator != 0 ? a.scale * given[c] / denominator : 0;
        float *to = query_share(t);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = row + r * FWA_GPU_ROW_GROUPS;
            float share[1] = {0};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                share[0] += read[r][c] * numerator[c];
                grad[r][c] += asked[d] * numerator[c];
            }
            sum_columns(share);
            norm_grad[r] += asked[d] * along[0];
            if (column == 0 && d < a.key_dim)
                to[d] = share[0] + z[r] * along[0];
        }
    }

    /* Predictions of the window's pairs, and what L says of what they write. */
    FWA_METHOD void predict(int i, int pairs)
    {
        for (int j = 0; j < pairs; j++) {
            float product[4] = {0, 0, 0, 0};
            if (a.objective == REGRESSION)
                apply(state, this->pair_key(i, j), product);
#pragma unroll
            for (int c = 0; row == 0 && c < 4; c++)
                predictions[j * columns + column + c] = product[c];
        }
        barrier();
    }

    FWA_METHOD void reach(int i, int pairs)
    {
        for (int j = 0; j < pairs; j++) {
            float product[4];
            apply(grad, this->pair_key(i, j), product);
#pragma unroll
            for (int c = 0; row == 0 && c < 4; c++)
                reaches[j * columns + column + c] = product[c];
        }
        barrier();
    }

    FWA_METHOD void after_state(int i, int pairs, float (&after)[ROWS][4], float (&z)[ROWS])
    {
        const float *factor = gamma + i * columns + column;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            z[r] = gamma[i * columns] * norm[r];
#pragma unroll
            for (int c = 0; c < 4; c++)
                after[r][c] = factor[c] * state[r][c];
        }
        for (int j = 0; j < pairs; j++) {
            float put[4];
            this->written(i, j, predictions + j * columns + column, put);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float u = this->pair_key(i, j)[row + r * FWA_GPU_ROW_GROUPS];
                z[r] += eta[i * columns] * u;
#pragma unroll
                for (int c = 0; c < 4; c++)
                    after[r][c] += u * put[c];
            }
        }
    }

    /* <S_{t-1,c}, L_c>, and <z_{t-1}, l> and <sum of x, l> in the last two of six. */
    FWA_METHOD void inner(int i, int pairs, float (&product)[8])
    {
#pragma unroll
        for (int e = 0; e < 8; e++)
            product[e] = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                product[c] += state[r][c] * grad[r][c];
            if (!a.normalizer)
                continue;
            product[4] += norm[r] * norm_grad[r];
            for (int j = 0; j < pairs; j++)
                product[5] += this->pair_key(i, j)[row + r * FWA_GPU_ROW_GROUPS] * norm_grad[r];
        }
        this->template sum_rows<2>(product);
    }

    /* The gradients of eta / B_t's B_t-fold and of gamma, to the inputs of the step. Returns the
     * block's share of E's. */
    FWA_METHOD float steps_backward(int i, int64_t t, int pairs, float (&eta_grad)[4],
                                    float (&gamma_grad)[4])
    {
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        const float statistic = this->statistic(t, i, pairs);
        const bool channel = a.dynamics == PER_CHANNEL;
        float shares[4] = {0, 0, 0, 0}; /* beta, lambda, log_gate, statistic */
        if (!channel) {
            float both[2] = {0, 0};
#pragma unroll
            for (int c = 0; c < 4; c++)
                both[0] += eta_grad[c], both[1] += gamma_grad[c];
            sum_columns(both);
            eta_grad[0] = both[0], gamma_grad[0] = both[1];
        }
        for (int c = 0; c < (channel ? 4 : 1); c++) {
            if (channel && !this->has_column(c))
                continue;
            const typename Base::Inputs in = this->inputs(t, column0 + column + c);
            const fwa_decay_step_t_f32 step = this->step(in, statistic);
            const fwa_decay_gradient_f32 made = fwa_decay_step_backward_f32(
                &knobs, &step, in.lambda, statistic, eta_grad[c], gamma_grad[c]);
            shares[0] += made.beta;
            shares[1] += made.lambda;
            shares[2] += made.log_gate;
            shares[3] += made.statistic;
            if (channel && row == 0 && present(a.beta_grad))
                store(a.beta_grad,
                      at3(a.beta_grad, s.row, s.first + t, head) + column0 + column + c, made.beta);
        }
        if (channel)
            sum_columns(shares);
        float *to = a.gate_partial + (unit * a.batch * a.tokens + s.before + t) * 3;
        for (int e = 0; thread() == 0 && e < 3; e++)
            to[e] = shares[e];
        return shares[3];
    }

    /* dx_j as far as it comes from what the pairs write and predict. */
    FWA_METHOD void pairs_backward(int i, int64_t t, int pairs)
    {
        for (int j = 0; j < pairs; j++) {
            const float *rho = gamma + i * columns + column, *weight = eta + i * columns + column;
            float put[4], back[4];
            this->written(i, j, predictions + j * columns + column, put);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float residual_grad = weight[c] * reaches[j * columns + column + c];
                back[c] = a.prediction == DECAYED ? rho[c] * residual_grad : residual_grad;
                if (row == 0)
                    value_grads[ring(t - j) * columns + column + c] += residual_grad;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float share[1] = {0};
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    share[0] += grad[r][c] * put[c];
                    if (a.objective == REGRESSION)
                        share[0] -= state[r][c] * back[c];
                }
                sum_columns(share);
                if (column == 0)
                    add_key_share(t, j, row + r * FWA_GPU_ROW_GROUPS,
                                  share[0] + (a.normalizer ? eta[i * columns] * norm_grad[r] : 0));
            }
        }
    }

    /* The same as far as it comes from E_t. Thread of column 0 has the row. */
    FWA_METHOD void statistic_backward(int i, int64_t t, int pairs, float statistic_grad)
    {
        const float weight = 2 * statistic_grad / (float)pairs;
        const bool eigen = a.objective == REGRESSION && a.window > 1;
        const float *top = a.top + (eigen ? ((s.before + t) * a.heads_key + key) * a.window : 0);
#pragma unroll
        for (int r = 0; column == 0 && r < ROWS; r++) {
            const int d = row + r * FWA_GPU_ROW_GROUPS;
            float mixed = 0;
            for (int j = 0; eigen && j < pairs; j++)
                mixed += top[j] * this->pair_key(i, j)[d];
            for (int j = 0; d < a.key_dim && j < pairs; j++)
                key_share(t - j)[d] += weight * (eigen ? top[j] * mixed : this->pair_key(i, j)[d]);
        }
    }

    /* L_{t-1} from L_t. */
    FWA_METHOD void state_backward(int i, int pairs)
    {
        const float *factor = gamma + i * columns + column, *weight = eta + i * columns + column;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            norm_grad[r] *= gamma[i * columns];
#pragma unroll
            for (int c = 0; c < 4; c++)
                grad[r][c] *= factor[c];
        }
        for (int j = 0; a.objective == REGRESSION && j < pairs; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float rho = a.prediction == DECAYED ? factor[c] : 1;
                const float back = rho * weight[c] * reaches[j * columns + column + c];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    grad[r][c] -= this->pair_key(i, j)[row + r * FWA_GPU_ROW_GROUPS] * back;
            }
    }

    FWA_METHOD void write_backward(int i, int64_t t, int pairs)
    {
        float product[8], eta_grad[4] = {0, 0, 0, 0}, gamma_grad[4];
        reach(i, pairs);
        inner(i, pairs, product);
#pragma unroll
        for (int c = 0; c < 4; c++)
            gamma_grad[c] = product[c];
        for (int j = 0; j < pairs; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int e = j * columns + column + c;
                const float rho = a.prediction == DECAYED ? gamma[i * columns + column + c] : 1;
                const float residual = this->pair_value(i, j)[c] -
                                       (a.objective == REGRESSION ? rho * predictions[e] : 0);
                eta_grad[c] += residual * reaches[e] / (float)pairs;
                if (a.objective == REGRESSION && a.prediction == DECAYED)
                    gamma_grad[c] -= eta[i * columns + column + c] * reaches[e] * predictions[e];
            }
        if (a.normalizer && column == 0) { /* once in the sum over columns */
            eta_grad[0] += product[5] / (float)pairs;
            gamma_grad[0] += product[4];
        }
        pairs_backward(i, t, pairs);
        statistic_backward(i, t, pairs, steps_backward(i, t, pairs, eta_grad, gamma_grad));
        state_backward(i, pairs);
    }

    FWA_METHOD void no_steps(int64_t t)
    {
        float *to = a.gate_partial + (unit * a.batch * a.tokens + s.before + t) * 3;
        for (int e = 0; thread() == 0 && e < 3; e++)
            to[e] = 0;
#pragma unroll
        for (int c = 0; a.dynamics == PER_CHANNEL && row == 0 && c < 4; c++)
            if (this->has_column(c) && present(a.beta_grad))
                store(a.beta_grad,
                      at3(a.beta_grad, s.row, s.first + t, head) + column0 + column + c, 0);
    }

    FWA_METHOD void token_backward(int i, int64_t t)
    {
        const int pairs = window_pairs(a, s, t);
        predict(i, pairs);
        if (a.read == AFTER_WRITE) {
            float after[ROWS][4], z[ROWS];
            after_state(i, pairs, after, z);
            read_backward(i, t, after, z);
        }
        if (pairs > 0)
            write_backward(i, t, pairs);
        else
            no_steps(t);
        if (a.read != AFTER_WRITE)
            read_backward(i, t, state, norm);
        barrier();
        flush(t);
        barrier();
    }

    /* ---- Pairs whose gradients are complete ---- */

    FWA_METHOD bool live(int64_t pair) const
    {
        return !s.padded && (s.length > 0 ? pair >= first : s.slot_in >= 0);
    }

    /* The gradient of the value of a pair, with what reaches it through the carry handed on. */
    FWA_METHOD void store_value_grad(int64_t pair, int c, float value) const
    {
        const int64_t tail = a.window - 1, slot = pair - (s.length - tail), at = column0 + c;
        const fwa_gpu_view &out = a.carry_out_grad.tail_value, &in = a.carry_in_grad.tail_value;
        if (slot >= 0 && live(pair) && present(out))
            value += load(out, at3(out, s.index, slot, head) + at * out.stride[3]);
        if (pair >= 0 && present(a.v_grad))
            store(a.v_grad, at3(a.v_grad, s.row, s.first + pair, head) + at, value);
        else if (pair < 0 && present(in))
            store(in, at3(in, s.index, tail + pair, head) + at, value);
    }

    FWA_METHOD void flush(int64_t pair)
    {
        const int at = ring(pair);
        for (int c = thread(); c < columns; c += FWA_GPU_THREADS) {
            if (column0 + c < a.value_dim)
                store_value_grad(pair, c, value_grads[at * columns + c]);
            value_grads[at * columns + c] = 0;
        }
    }

    /* ---- Sequences ---- */

    FWA_METHOD void load_grads()
    {
        const fwa_gpu_view &z = a.carry_out_grad.norm;
        const int64_t n = s.padded ? -1 : s.index;
        this->load_state(a.carry_out_grad.state, n);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                grad[r][c] = state[r][c];
            norm_grad[r] = a.normalizer && n >= 0 && present(z) && this->has_row(r) && column0 == 0
                               ? load(z, at2(z, n, head) +
                                             (row + r * FWA_GPU_ROW_GROUPS) * z.stride[2])
                               : 0;
        }
    }

    FWA_METHOD void store_grads()
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                state[r][c] = s.slot_in < 0 ? 0 : grad[r][c];
            const int d = row + r * FWA_GPU_ROW_GROUPS;
            if (a.normalizer && column == 0 && d < a.key_dim)
                a.norms[(s.index * a.heads_value * a.blocks + unit) * a.key_dim + d] =
                    s.slot_in < 0 ? 0 : norm_grad[r];
        }
        this->store_state(a.carry_in_grad.state, s.index);
    }

    FWA_METHOD void segment_backward(int64_t index)
    {
        const int64_t t0 = index * FWA_GPU_SEGMENT;
        const int64_t n = clamp(s.length - t0, 0, FWA_GPU_SEGMENT);
        get(kept(index));
        walk(t0, n, segment);
        for (int64_t b = (n - 1) / FWA_GPU_TOKENS * FWA_GPU_TOKENS; b >= 0; b -= FWA_GPU_TOKENS) {
            const int count = (int)clamp(n - b, 0, FWA_GPU_TOKENS);
            this->stage(t0 + b, count);
            for (int e = thread(); e < count * columns; e += FWA_GPU_THREADS) {
                const int64_t at = s.first + t0 + b + e / columns, c = column0 + e % columns;
                o_grads[e] = c < a.value_dim ? load(a.o_grad, at3(a.o_grad, s.row, at, head) +
                                                                  c * a.o_grad.stride[3])
                                             : 0;
            }
            barrier();
            for (int i = count - 1; i >= 0; i--) {
                get(segment + (b + i) * state_floats);
                token_backward(i, t0 + b + i);
            }
        }
    }

    FWA_METHOD void backward()
    {
        barrier(); /* another sequence's rows may still be read */
        for (int e = thread(); e < a.window * columns; e += FWA_GPU_THREADS)
            value_grads[e] = 0;
        barrier();
        if (!s.padded) {
            this->load_state(a.carry_in.state, s.slot_in);
            this->load_norm();
            for (int64_t t = 0; t < s.length; t += FWA_GPU_SEGMENT) {
                put(kept(t / FWA_GPU_SEGMENT));
                if (t + FWA_GPU_SEGMENT < s.length)
                    walk(t, FWA_GPU_SEGMENT, nullptr);
            }
            barrier();
        }
        load_grads();
        if (!s.padded)
            for (int64_t i = (s.length - 1) / FWA_GPU_SEGMENT; s.length > 0 && i >= 0; i--)
                segment_backward(i);
        else
            for (int64_t t = 0; t < s.length; t++) {
                no_steps(t);
                flush(t);
            }
        for (int64_t pair = -1; pair > -a.window; pair--)
            flush(pair);
        store_grads();
    }
};

template <int ROWS> FWA_DEVICE void recurrent_backward(const fwa_gpu_args &a)
{
    const int64_t units = a.sequences * a.heads_value * a.blocks;
    for (int64_t unit = block(); unit < units; unit += grid()) {
        RecurrentBackward<ROWS> r(a, unit / a.blocks / a.heads_value,
                                  unit / a.blocks % a.heads_value, unit % a.blocks);
        r.backward();
    }
}

} // namespace fwa

FWA_KERNEL(recurrent_backward_64, 128)
{
    fwa::recurrent_backward<4>(args);
}

FWA_KERNEL(recurrent_backward_128, 128)
{
    fwa::recurrent_backward<8>(args);
}

FWA_KERNEL(recurrent_backward_256, 128)
{
    fwa::recurrent_backward<16>(args);
}

#endif
