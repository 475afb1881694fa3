/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_RECURRENT_H
#define FWA_GPU_OP_RECURRENT_H

/*
 * The recurrent form: token by token, the state in registers. It serves decoding too, where it
 * reads and writes a state once.
 *
 * A block has one sequence, value head and 32 value columns. Thread (row, column) holds the state's
 * rows row, row + 16, ..., and four columns. All inner products over rows that a token needs (with
 * the query, with the keys of the window) are taken of the state before the token, so that the
 * waves meet once a token: o_t = gamma S_{t-1}^T q + sum_j (x_j . q) w_j.
 */

#include "../math/feature.h"
#include "workspace.h"

namespace fwa
{

/* SINGLE: for a window of 1, which most rules have. */
template <int ROWS, bool SINGLE = false> struct Recurrent {
    static constexpr int padded = FWA_GPU_ROW_GROUPS * ROWS;
    static constexpr int columns = FWA_GPU_COLUMNS;
    static constexpr int waves = FWA_GPU_THREADS / wave;

    const fwa_gpu_args &a;
    Sequence s;
    int64_t head, key, query, column0; /* value, key and query head; the block's first column */
    int64_t first;                     /* pair */
    int row, column, turn;
    float state[ROWS][4], norm[ROWS];
    /* In shared memory. Rows of x, squares and v are pairs, the oldest of the window first. */
    float *x, *q, *v, *eta, *gamma, *w, *squares, *scores, *sums, *rest;

    FWA_METHOD int window() const
    {
        return SINGLE ? 1 : a.window;
    }

    FWA_METHOD int window_count(int64_t t) const
    {
        return SINGLE ? t >= first : window_pairs(a, s, t);
    }

    FWA_METHOD Recurrent(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t unit)
        : a(args), s(sequence_get(args, n)), head(value_head), key(key_head(args, value_head)),
          query(query_head(args, value_head)), column0(unit * columns), first(first_pair(args, s)),
          row(thread() / 8), column(thread() % 8 * 4), turn(0)
    {
        const int pairs = window() - 1 + FWA_GPU_TOKENS;
        x = (float *)shared();
        q = x + pairs * padded;
        v = q + FWA_GPU_TOKENS * padded;
        eta = v + pairs * columns;
        gamma = eta + FWA_GPU_TOKENS * columns;
        w = gamma + FWA_GPU_TOKENS * columns;
        sums = w + window() * columns;
        squares = sums + 2 * waves * FWA_GPU_SUMS * columns;
        scores = squares + pairs;
        rest = scores + FWA_GPU_TOKENS * window();
    }

    /* ---- States in memory ---- */

    FWA_METHOD bool whole(const fwa_gpu_view &view) const
    {
        return view.dtype == F32 && view.stride[3] == 1 && a.value_dim % 4 == 0 &&
               (view.stride[0] | view.stride[1] | view.stride[2]) % 4 == 0 &&
               (uintptr_t)view.data % 16 == 0;
    }

    FWA_METHOD int64_t state_at(const fwa_gpu_view &view, int64_t slot, int r) const
    {
        return at3(view, slot, head, row + r * FWA_GPU_ROW_GROUPS) +
               (column0 + column) * view.stride[3];
    }

    FWA_METHOD bool has_row(int r) const
    {
        return row + r * FWA_GPU_ROW_GROUPS < a.key_dim;
    }

    FWA_METHOD bool has_column(int c) const
    {
        return column0 + column + c < a.value_dim;
    }

    FWA_METHOD void load_state(const fwa_gpu_view &view, int64_t slot)
    {
        const bool given = slot >= 0 && present(view), fours = given && whole(view);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (fours) {
                Four four = {{0, 0, 0, 0}};
                if (has_row(r) && has_column(0))
                    four = *(const Four *)((const float *)view.data + state_at(view, slot, r));
#pragma unroll
                for (int c = 0; c < 4; c++)
                    state[r][c] = four.at[c];
                continue;
            }
#pragma unroll
            for (int c = 0; c < 4; c++)
                state[r][c] = given && has_row(r) && has_column(c)
                                  ? load(view, state_at(view, slot, r) + c * view.stride[3])
                                  : 0;
        }
    }

    FWA_METHOD void store_state(const fwa_gpu_view &view, int64_t slot) const
    {
        if (slot < 0 || !present(view))
            return;
        const bool fours = whole(view);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (!has_row(r) || !has_column(0))
                continue;
            if (fours) {
                *(Four *)((float *)view.data + state_at(view, slot, r)) = Four{
                    {state[r][0], state[r][1], state[r][2], state[r][3]}};
                continue;
            }
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (has_column(c))
                    store(view, state_at(view, slot, r) + c * view.stride[3], state[r][c]);
        }
    }

    /* Nothing is committed: the state goes over bit for bit. */
    FWA_METHOD void copy_state(const fwa_gpu_view &from, int64_t slot) const
    {
        const fwa_gpu_view &to = a.carry_out.state;
        if (s.slot_out < 0 || !present(to))
            return;
        const bool zero = slot < 0 || !present(from);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; has_row(r) && c < 4; c++)
                if (has_column(c))
                    copy(from, zero ? 0 : state_at(from, slot, r) + c * from.stride[3], to,
                         state_at(to, s.slot_out, r) + c * to.stride[3], zero);
    }

    /* Copies the state that the row reads into another view, bit for bit. */
    FWA_METHOD void keep_state(const fwa_gpu_view &to) const
    {
        const fwa_gpu_view &from = a.carry_in.state;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; has_row(r) && c < 4; c++)
                if (has_column(c))
                    copy(from, state_at(from, s.slot_in, r) + c * from.stride[3], to,
                         state_at(to, 0, r) + c * to.stride[3], false);
    }

    FWA_METHOD void load_norm()
    {
        const fwa_gpu_view &view = a.carry_in.norm;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            norm[r] = a.normalizer && s.slot_in >= 0 && present(view) && has_row(r)
                          ? load(view, at2(view, s.slot_in, head) +
                                           (row + r * FWA_GPU_ROW_GROUPS) * view.stride[2])
                          : 0;
    }

    /* Where blocks share z the carry gets it from the workspace, once all have read it. */
    FWA_METHOD void store_norm() const
    {
        if (!a.normalizer || column0 != 0 || column != 0)
            return;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (has_row(r))
                a.norms[(s.index * a.heads_value + head) * a.key_dim + row +
                        r * FWA_GPU_ROW_GROUPS] = norm[r];
    }

    /* ---- A few tokens in shared memory ---- */

    FWA_METHOD float statistic(int64_t t, int i, int pairs) const
    {
        const int newest = i + window() - 1;
        if (a.objective == REGRESSION && window() > 1)
            return a.statistic[(s.before + t) * a.heads_key + key];
        float sum = 0;
        for (int j = 0; j < pairs; j++)
            sum += squares[newest - j];
        return sum / (float)pairs;
    }

    struct Inputs {
        float beta, lambda, log_gate;
    };

    FWA_METHOD Inputs inputs(int64_t t, int64_t c) const
    {
        const int64_t at = s.first + t;
        Inputs in = {1, 0, 0};
        if (present(a.beta))
            in.beta = load(a.beta, at3(a.beta, s.row, at, head) +
                                       (a.dynamics == PER_CHANNEL ? c * a.beta.stride[3] : 0));
        if (present(a.lambda))
            in.lambda = load(a.lambda, at3(a.lambda, s.row, at, head));
        if (present(a.log_gate))
            in.log_gate = load(a.log_gate, at3(a.log_gate, s.row, at, head));
        return in;
    }

    FWA_METHOD fwa_decay_step_t_f32 step(const Inputs &in, float statistic) const
    {
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        return fwa_decay_step_f32(&knobs, in.beta, in.lambda, in.log_gate, statistic);
    }

    static_assert(FWA_GPU_TOKENS * columns == FWA_GPU_THREADS, "a thread has one token and column");

    /* This thread's inputs, as early as can be. */
    FWA_METHOD Inputs stage_inputs(int64_t t0, int n) const
    {
        const int i = thread() / columns;
        const int64_t c = column0 + thread() % columns;
        if (i >= n || c >= a.value_dim || window_count(t0 + i) == 0)
            return {1, 0, 0};
        return inputs(t0 + i, c);
    }

    /* eta / B_t and gamma of n tokens and the block's columns. */
    FWA_METHOD void stage_gates(const Inputs &in, int64_t t0, int n)
    {
        const int i = thread() / columns;
        const int pairs = window_count(t0 + i);
        if (i >= n)
            return;
        eta[thread()] = 0;
        gamma[thread()] = 1;
        if (pairs == 0 || column0 + thread() % columns >= a.value_dim)
            return;
        const fwa_decay_step_t_f32 made = step(in, statistic(t0 + i, i, pairs));
        eta[thread()] = made.eta / (float)pairs;
        gamma[thread()] = made.gamma;
    }

    /* x_j . q_t of each pair of the window, newest first. */
    FWA_METHOD void stage_scores(int64_t t0, int n)
    {
        for (int e = thread() / wave; e < n * window(); e += waves) {
            const int i = e / window(), j = e % window();
            float sum = 0;
            if (j < window_count(t0 + i)) {
                const float *pair = x + (i + window() - 1 - j) * padded;
                for (int d = lane(); d < padded; d += wave)
                    sum += pair[d] * q[i * padded + d];
            }
            sum = wave_sum(sum);
            if (lane() == 0)
                scores[e] = sum;
        }
    }

    FWA_METHOD void stage(int64_t t0, int n)
    {
        const int pairs = window() - 1 + n;
        const Inputs in = stage_inputs(t0, n);
        barrier();
        for (int e = thread() / wave; e < pairs + n; e += waves) {
            const int64_t pair = t0 - (window() - 1) + e;
            float square = 0;
            if (e >= pairs)
                feature_row(a, query_row(a, s, query, t0 + e - pairs), q + (e - pairs) * padded,
                            padded);
            else if (pair >= first)
                square = feature_row(a, key_row(a, s, key, pair), x + e * padded, padded);
            if (e < pairs && lane() == 0)
                squares[e] = square;
        }
        for (int e = thread(); e < pairs * columns; e += FWA_GPU_THREADS) {
            const int64_t pair = t0 - (window() - 1) + e / columns, c = column0 + e % columns;
            v[e] = pair >= first && c < a.value_dim ? load(value_row(a, s, head, pair), c) : 0;
        }
        barrier();
        stage_gates(in, t0, n);
        stage_scores(t0, n);
        barrier();
    }

    /* ---- Sums over rows ---- */

    /* Each thread's shares of N vectors of its four columns become the sums over all rows, the same
     * in each thread of a column. */
    template <int N> FWA_METHOD void sum_rows(float (&share)[4 * N])
    {
        float *at = sums + turn * waves * FWA_GPU_SUMS * columns;
        turn ^= 1; /* a barrier lies between two uses of either half */
        sum_lanes<8, wave>(share);
        if (lane() < 8)
#pragma unroll
            for (int e = 0; e < 4 * N; e++)
                at[(thread() / wave * FWA_GPU_SUMS + e / 4) * columns + column + e % 4] = share[e];
        barrier();
#pragma unroll
        for (int e = 0; e < 4 * N; e++) {
            share[e] = 0;
            for (int i = 0; i < waves; i++)
                share[e] += at[(i * FWA_GPU_SUMS + e / 4) * columns + column + e % 4];
        }
    }

    /* matrix^T u for N rows u. */
    template <int N>
    FWA_METHOD void multiply(const float (&matrix)[ROWS][4], const float *const (&u)[N],
                             float (&product)[4 * N]) const
    {
#pragma unroll
        for (int e = 0; e < 4 * N; e++)
            product[e] = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int e = 0; e < 4 * N; e++)
                product[e] += matrix[r][e % 4] * u[e / 4][row + r * FWA_GPU_ROW_GROUPS];
    }

    /* ---- Tokens ---- */

    /* The rows of x and v of a pair of staged token i's window, newest first. */
    FWA_METHOD const float *pair_key(int i, int j) const
    {
        return x + (i + window() - 1 - j) * padded;
    }

    FWA_METHOD const float *pair_value(int i, int j) const
    {
        return v + (i + window() - 1 - j) * columns + column;
    }

    /* What pair j writes, from its prediction. */
    FWA_METHOD void written(int i, int j, const float *prediction, float (&to)[4]) const
    {
        const float *value = pair_value(i, j);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float rho = a.prediction == DECAYED ? gamma[i * columns + column + c] : 1;
            const float residual = a.objective == REGRESSION ? value[c] - rho * prediction[c]
                                                             : value[c];
            to[c] = eta[i * columns + column + c] * residual;
        }
    }

    FWA_METHOD void add_pair(const float *pair, const float (&written)[4])
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                state[r][c] += pair[row + r * FWA_GPU_ROW_GROUPS] * written[c];
    }

    FWA_METHOD void decay_state(int i)
    {
        const float *factor = gamma + i * columns + column;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                state[r][c] *= factor[c];
    }

    /* S_t from S_{t-1}; o gets S^T q before or after the write. One pair a token. */
    FWA_METHOD void advance_single(int i, int pairs, float (&o)[4])
    {
        const float *const rows[2] = {q + i * padded, pair_key(i, 0)};
        float product[8], put[4] = {0, 0, 0, 0};
        if (a.objective == REGRESSION) {
            multiply<2>(state, rows, product);
            sum_rows<2>(product);
        } else {
            const float *const query_row[1] = {rows[0]};
            float single[4];
            multiply<1>(state, query_row, single);
            sum_rows<1>(single);
#pragma unroll
            for (int c = 0; c < 4; c++)
                product[c] = single[c], product[4 + c] = 0;
        }
        if (pairs > 0)
            written(i, 0, product + 4, put);
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[c] = product[c];
        if (a.read == AFTER_WRITE)
#pragma unroll
            for (int c = 0; c < 4; c++)
                o[c] = gamma[i * columns + column + c] * product[c] +
                       (pairs > 0 ? scores[i] * put[c] : 0);
        decay_state(i);
        if (pairs > 0)
            add_pair(rows[1], put);
    }

    /* The same with a window. Predictions are those of the state before, so all come first. */
    FWA_METHOD void advance_window(int i, int pairs, float (&o)[4])
    {
        const float *const query_row[1] = {q + i * padded};
        float product[4];
        multiply<1>(state, query_row, product);
        sum_rows<1>(product);
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[c] = product[c] * (a.read == AFTER_WRITE ? gamma[i * columns + column + c] : 1);
        for (int j0 = 0; j0 < pairs; j0 += 4) {
            float predictions[16];
            const float *rows[4];
            for (int j = 0; j < 4; j++)
                rows[j] = pair_key(i, j0 + j < pairs ? j0 + j : 0);
            if (a.objective == REGRESSION) {
                multiply<4>(state, rows, predictions);
                sum_rows<4>(predictions);
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const int j = j0 + u;
                float put[4];
                if (j >= pairs)
                    continue;
                written(i, j, predictions + 4 * u, put);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    if (a.read == AFTER_WRITE)
                        o[c] += scores[i * window() + j] * put[c];
                    if (row == 0)
                        w[j * columns + column + c] = put[c];
                }
            }
        }
        barrier();
        decay_state(i);
        for (int j = 0; j < pairs; j++) {
            float put[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                put[c] = w[j * columns + column + c];
            add_pair(pair_key(i, j), put);
        } /* w is written again behind the next token's barrier */
    }

    /* z_t from z_{t-1}; returns z^T q before or after the write. */
    FWA_METHOD float advance_norm(int i, int pairs)
    {
        const float decay = gamma[i * columns], weight = eta[i * columns];
        float share[4] = {0, 0, 0, 0}, after = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            share[0] += norm[r] * q[i * padded + row + r * FWA_GPU_ROW_GROUPS];
        sum_rows<1>(share);
        /* Component 0 of the lanes' columns alone is summed: the first lane's is the same as all. */
        for (int j = 0; j < pairs; j++)
            after += scores[i * window() + j];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = 0;
            for (int j = 0; j < pairs; j++)
                sum += pair_key(i, j)[row + r * FWA_GPU_ROW_GROUPS];
            norm[r] = decay * norm[r] + weight * sum;
        }
        return a.read == AFTER_WRITE ? decay * share[0] + weight * after : share[0];
    }

    FWA_METHOD void advance(int i, int64_t t, float (&o)[4])
    {
        const int pairs = window_count(t);
        if (window() == 1)
            advance_single(i, pairs, o);
        else
            advance_window(i, pairs, o);
    }

    FWA_METHOD void write_output(int64_t t, const float (&o)[4]) const
    {
        if (row != 0)
            return;
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (has_column(c))
                store(a.o, at3(a.o, s.row, s.first + t, head) + (column0 + column + c), o[c]);
    }

    FWA_METHOD void forward_token(int i, int64_t t)
    {
        const int pairs = window_count(t);
        const float denominator = a.normalizer ? advance_norm(i, pairs) + a.eps_attn : 1;
        float o[4];
        advance(i, t, o);
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[c] = denominator != 0 ? a.scale * o[c] / denominator : 0;
        write_output(t, o);
    }

    /* Outputs, and the state where it is due. `from`: the pool that slot `slot` is of. */
    FWA_METHOD void forward(const fwa_gpu_view &from, int64_t slot)
    {
        const float zeros[4] = {0, 0, 0, 0};
        if (s.padded) {
            for (int64_t t = 0; t < s.length; t++)
                write_output(t, zeros);
            return;
        }
        load_state(from, slot);
        load_norm();
        if (s.commit == 0) {
            copy_state(from, slot);
            store_norm();
        }
        for (int64_t t0 = 0; t0 < s.length; t0 += FWA_GPU_TOKENS) {
            const int n = (int)clamp(s.length - t0, 0, FWA_GPU_TOKENS);
            stage(t0, n);
            for (int i = 0; i < n; i++) {
                forward_token(i, t0 + i);
                if (t0 + i + 1 == s.commit) {
                    store_state(a.carry_out.state, s.slot_out);
                    store_norm();
                }
            }
        }
    }
};

template <int ROWS, bool SINGLE> FWA_DEVICE void recurrent_forward(const fwa_gpu_args &a)
{
    const int64_t units = a.sequences * a.heads_value * a.blocks;
    for (int64_t unit = block(); unit < units; unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, a.blocks);
        if (a.crossing && a.order[at.sequence] != 0)
            continue;
        Recurrent<ROWS, SINGLE> r(a, at.sequence, at.head, at.block);
        if (!r.s.padded && r.s.length > a.short_tokens)
            continue;
        r.forward(a.carry_in.state, r.s.slot_in);
    }
}

} // namespace fwa

/* With a window of 1, decoding: as many blocks at once as registers allow keep memory busy. */
#define FWA_RECURRENT_FORWARD(dim, blocks)                                                         \
    FWA_KERNEL_RESIDENT(recurrent_forward_single_##dim, FWA_GPU_THREADS, blocks)                   \
    {                                                                                              \
        fwa::recurrent_forward<dim / FWA_GPU_ROW_GROUPS, true>(args);                              \
    }                                                                                              \
    FWA_KERNEL(recurrent_forward_window_##dim, FWA_GPU_THREADS)                                    \
    {                                                                                              \
        fwa::recurrent_forward<dim / FWA_GPU_ROW_GROUPS, false>(args);                             \
    }

FWA_RECURRENT_FORWARD(64, 8)
FWA_RECURRENT_FORWARD(128, 5)
FWA_RECURRENT_FORWARD(256, 3)

#endif
