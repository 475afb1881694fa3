/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_COMPUTER_H
#define FWA_GPU_LOOP_CHUNK_COMPUTER_H

/* The waves that have the state (chunk.h). */

#include "chunk_place.h"

namespace fwa
{

template <int PARTS, int DIM, bool CHANNEL> struct ChunkComputer : Chunks<PARTS, DIM, CHANNEL> {
    using Base = Chunks<PARTS, DIM, CHANNEL>;
    using Base::a, Base::s, Base::first, Base::stride, Base::plane, Base::head, Base::tiles;

    int share; /* the wave's first column in the block */
    bool norm; /* its row 0 is z, and it has no others */
    Sum state[tiles];

    FWA_METHOD ChunkComputer(const Base &chunks, int first_column, bool has_norm)
        : Base(chunks), share(first_column), norm(has_norm)
    {
    }

    FWA_METHOD int64_t column(int h) const
    {
        return Base::column0 + share + tile_row(lane(), h);
    }

    /* Where the lane's first token and column are in a tile of values. */
    FWA_METHOD int tile_place() const
    {
        return tile_column(lane(), 0) * Base::width + share + tile_row(lane(), 0);
    }

    FWA_METHOD bool has_column(int h) const
    {
        return !norm && column(h) < a.value_dim;
    }

    FWA_METHOD bool has_norm(int h) const
    {
        return norm && tile_row(lane(), h) == 0;
    }

    /* Half a tile of the state for the wave, on its way between registers and memory. */
    static constexpr int room_rows = TILE / 2;

    FWA_METHOD float *tile_room() const
    {
        constexpr int each = FWA_GPU_STATE_TILE / 2;
        return (float *)(shared() + FWA_GPU_CHUNK_BYTES(PARTS, DIM, CHANNEL, Base::slots) -
                         FWA_GPU_CHUNK_COMPUTING * each + thread() / wave * each);
    }

    FWA_METHOD void load_state()
    {
        const fwa_gpu_view &view = a.carry_in.state, &z = a.carry_in.norm;
        const bool given = s.slot_in >= 0 && present(view), given_z = s.slot_in >= 0 && present(z);
        float *room = tile_room();
#pragma unroll
        for (int j = 0; j < 2 * tiles; j++) {
#pragma unroll 1
            for (int e = lane(); e < room_rows * TILE; e += wave) {
                const int64_t d = j * room_rows + e / TILE, c = Base::column0 + share + e % TILE;
                float value = 0;
                if (given && !norm && d < a.key_dim && c < a.value_dim)
                    value = load(view, at3(view, s.slot_in, head, d) + c * view.stride[3]);
                if (given_z && norm && d < a.key_dim && e % TILE == 0)
                    value = load(z, at2(z, s.slot_in, head) + d * z.stride[2]);
                room[e / TILE * (TILE + 1) + e % TILE] = value;
            }
            wave_barrier();
            tile_from_room<room_rows>(state[j / 2], room, j % 2);
            wave_barrier();
        }
    }

    /* z goes to the workspace: other blocks may still read the carry's. */
    FWA_METHOD void store_state() const
    {
        const fwa_gpu_view &view = a.carry_out.state;
        const bool wanted = s.slot_out >= 0 && present(view);
        float *z = a.norms + (s.index * a.heads_value + head) * a.key_dim, *room = tile_room();
#pragma unroll
        for (int j = 0; j < 2 * tiles; j++) {
            tile_to_room<room_rows>(room, state[j / 2], j % 2);
            wave_barrier();
#pragma unroll 1
            for (int e = lane(); e < room_rows * TILE; e += wave) {
                const int64_t d = j * room_rows + e / TILE, c = Base::column0 + share + e % TILE;
                const float value = room[e / TILE * (TILE + 1) + e % TILE];
                if (wanted && !norm && d < a.key_dim && c < a.value_dim)
                    store(view, at3(view, s.slot_out, head, d) + c * view.stride[3], value);
                if (norm && d < a.key_dim && e % TILE == 0)
                    z[d] = value;
            }
            wave_barrier();
        }
    }

    /* Nothing is committed: the state goes over bit for bit. */
    FWA_METHOD void copy_state() const
    {
        const fwa_gpu_view &from = a.carry_in.state, &to = a.carry_out.state;
        const bool zero = s.slot_in < 0 || !present(from);
        if (norm)
            store_state();
        if (norm || s.slot_out < 0 || !present(to))
            return;
        for (int64_t e = lane(); e < (int64_t)a.key_dim * TILE; e += wave) {
            const int64_t d = e / TILE, c = Base::column0 + share + e % TILE;
            if (c < a.value_dim)
                copy(from, zero ? 0 : at3(from, s.slot_in, head, d) + c * from.stride[3], to,
                     at3(to, s.slot_out, head, d) + c * to.stride[3], zero);
        }
    }

    FWA_METHOD void load_values(Walk &w, int chunk) const
    {
        const unsigned char *from = this->values_of(chunk) + tile_place() * Base::value_bytes;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int at = tile_column_step(e) * Base::width + tile_row_step(h);
                const uint32_t bits = Base::value_bytes == 4 ? ((const uint32_t *)from)[at]
                                                             : ((const uint16_t *)from)[at];
                w.value[h][e] = has_norm(h) ? 1 : from_bits<PARTS>(a.v, bits);
            }
    }

    /* Step sizes and carries of the lane's tokens and columns. */
    FWA_METHOD void load_gates(Walk &w, const ChunkMatrices &m, int chunk, int64_t t0, int n) const
    {
        const float *gains = this->gains_of(chunk) + tile_place();
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        float beyond[tile_rows] = {};
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int i = tile_column(lane(), e);
                w.eta[h][e] = 0;
                w.gamma[h][e] = 1;
                if (i >= n || t0 + i < first || !has_column(h))
                    continue;
                const int at = tile_column_step(e) * Base::width + tile_row_step(h);
                const float beta = present(a.beta) ? gains[at] : 1;
                const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                    &knobs, beta, m.lambda[i], m.gate[i], m.energy[i]);
                w.eta[h][e] = step.eta;
                w.gamma[h][e] = step.gamma;
                if (step.eta * m.energy[i] > exact_gain)
                    beyond[h] += (float)(1 << i);
            }
        tile_sum_row(beyond);
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
            w.exact[h] = (uint32_t)beyond[h];
    }

    /* What the chunk's keys, in regression, and queries read in the state; and what the keys read in
     * what the state's rounding leaves. */
    template <bool EXACT>
    FWA_METHOD void read_tiles(Sum &by_key, Sum &by_query, Sum &rest, int chunk) const
    {
        const uint16_t *keys = this->keys_of(chunk), *queries = this->queries_of(chunk);
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            Parts<PARTS + EXACT> left;
            Parts<PARTS> upper;
            tile_left<PARTS + EXACT>(left, state[j]);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                upper.part[part] = left.part[part];
            if (a.objective == REGRESSION)
                tile_multiply<PARTS, PARTS>(by_key, upper, keys + j * TILE, stride, plane);
            tile_multiply<PARTS, PARTS>(by_query, upper, queries + j * TILE, stride, plane);
            if constexpr (EXACT) {
                Parts<1> lower;
                lower.part[0] = left.part[PARTS];
                tile_multiply<1, 1>(rest, lower, keys + j * TILE, stride, plane);
            }
        }
    }

    FWA_METHOD bool is_exact(const Walk &w) const
    {
        bool any = false;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
            any |= w.exact[h] != 0;
        return PARTS == 1 && a.objective == REGRESSION && (CHANNEL ? wave_sum(any) > 0 : any);
    }

    FWA_METHOD void read_state(Walk &w, const ChunkMatrices &m, int chunk, bool exact) const
    {
        Sum by_key, by_query, rest;
#pragma unroll
        for (int i = 0; i < tile_elements; i++)
            by_key.at[i] = by_query.at[i] = rest.at[i] = 0;
        if (exact)
            read_tiles<PARTS == 1>(by_key, by_query, rest, chunk);
        else
            read_tiles<false>(by_key, by_query, rest, chunk);
#pragma unroll
        for (int h = 0; h < tile_rows; h++) {
            w.retained[h] = CHANNEL ? 1 : m.retained;
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int i = tile_column(lane(), e), at = tile_index(h, e);
                const bool both = (w.exact[h] & ((2u << i) - 1)) != 0;
                const float predicted = (both ? by_key.at[at] + rest.at[at] : by_key.at[at]) *
                                        m.key_factor[i];
                w.key[h][e] = CHANNEL ? predicted : m.eta[i] * w.value[h][e] - predicted;
                w.query[h][e] = by_query.at[at] * m.query_factor[i];
                w.written[h][e] = 0;
            }
        }
    }

    template <bool RULE> FWA_METHOD void walk(Walk &w, const ChunkMatrices &m) const
    {
        const bool decayed = a.prediction == DECAYED, after = a.read == AFTER_WRITE;
#pragma unroll
        for (int t = 0; t < TILE; t++)
            if (CHANNEL)
                walk_channel_step<RULE>(w, m, t, decayed, after);
            else
                walk_head_step<RULE>(w, m, t);
    }

    template <int WRITTEN>
    FWA_METHOD void write_tiles(const Walk &w, const Sum &written, const uint16_t *keys)
    {
        Parts<WRITTEN> left;
        tile_left<WRITTEN>(left, written);
#pragma unroll
        for (int j = 0; j < tiles; j++) {
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < tile_columns; e++)
                    state[j].at[tile_index(h, e)] *= w.retained[h];
            tile_multiply<WRITTEN, PARTS, true>(state[j], left, keys + j * TILE, stride, plane);
        }
    }

    FWA_METHOD void write_state(const Walk &w, const ChunkMatrices &m, const uint16_t *keys,
                                bool exact)
    {
        Sum written;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++)
                written.at[tile_index(h, e)] = w.written[h][e] *
                                               m.write_factor[tile_column(lane(), e)];
        if (exact)
            write_tiles<PARTS == 1 ? 2 : PARTS>(w, written, keys);
        else
            write_tiles<PARTS>(w, written, keys);
    }

    /* Reads become outputs: scaled, and divided by z's. */
    FWA_METHOD void finish_reads(Walk &w, const ChunkMatrices &m) const
    {
        const bool divides = a.normalizer != 0;
        const float scale = a.scale;
#pragma unroll
        for (int e = 0; e < tile_columns; e++) {
            const float denominator = divides ? m.denominator[tile_column(lane(), e)] : 1;
#pragma unroll
            for (int h = 0; h < tile_rows; h++) {
                w.query[h][e] *= scale;
                if (divides)
                    w.query[h][e] = denominator != 0 ? w.query[h][e] / denominator : 0;
            }
        }
    }

    FWA_METHOD void write_outputs(const Walk &w, int chunk) const
    {
        unsigned char *to = this->values_of(chunk) + tile_place() * Base::value_bytes;
        const bool bf16 = PARTS == 1 || a.o.dtype == BF16;
        uint32_t bits[tile_rows][tile_columns];
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++)
                bits[h][e] = PARTS == 3 ? fwa_float_bits(w.query[h][e])
                             : bf16     ? tile_round(w.query[h][e], 0)
                                        : fwa_f16_from_float(w.query[h][e]);
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int at = tile_column_step(e) * Base::width + tile_row_step(h);
                if (PARTS == 3)
                    ((uint32_t *)to)[at] = bits[h][e];
                else
                    ((uint16_t *)to)[at] = (uint16_t)bits[h][e];
            }
    }

    /* z's reads are the others' denominators. */
    FWA_METHOD void write_denominators(const Walk &w, ChunkMatrices &m) const
    {
#pragma unroll
        for (int e = 0; e < tile_columns; e++)
            if (has_norm(0))
                m.denominator[tile_column(lane(), e)] = w.query[0][e] + a.eps_attn;
    }

    FWA_METHOD void compute(int chunk, const ChunkPlace &place)
    {
        ChunkMatrices &m = this->matrices_of(chunk);
        const int64_t t0 = place.t0;
        const int n = place.n;
        Walk w;
        load_values(w, chunk);
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
            w.exact[h] = (uint32_t)m.exact;
        if (CHANNEL)
            load_gates(w, m, chunk, t0, n);
        const bool exact = is_exact(w);
        read_state(w, m, chunk, exact);
        if (a.objective == REGRESSION)
            walk<true>(w, m);
        else
            walk<false>(w, m);
        if (a.normalizer) {
            write_denominators(w, m);
            barrier();
        }
        finish_reads(w, m);
        write_outputs(w, chunk);
        write_state(w, m, this->keys_of(chunk), exact);
        if (t0 + n == s.commit)
            store_state();
    }
};

} // namespace fwa

#endif
