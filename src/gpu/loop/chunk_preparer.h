/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_PREPARER_H
#define FWA_GPU_LOOP_CHUNK_PREPARER_H

/* The wave that forms a chunk's small matrices (chunk.h). */

#include "chunk_place.h"

namespace fwa
{

template <int PARTS, int DIM, bool CHANNEL> struct ChunkPreparer : Chunks<PARTS, DIM, CHANNEL> {
    using Base = Chunks<PARTS, DIM, CHANNEL>;
    using Base::a, Base::s, Base::first, Base::stride, Base::plane, Base::head;

    FWA_METHOD explicit ChunkPreparer(const Base &chunks) : Base(chunks)
    {
    }

    /* 1 / root of the norm from the sum of squares; 1 where the loader has divided. */
    FWA_METHOD float inverse_of(float square) const
    {
        if (a.qk_norm == NORM_NONE || a.phi == ELU1)
            return 1;
        const float sum = a.qk_norm == NORM_RMS ? square / (float)a.key_dim : square;
        const float root = sqrtf(sum + a.norm_eps);
        return root != 0 ? 1 / root : 0;
    }

    /* Products of keys with keys, of queries with keys, and of queries with queries, which only norms
     * need. */
    FWA_METHOD void grams(Sum &by_key, Sum &by_query, Sum &squares, int chunk) const
    {
        const uint16_t *keys = this->keys_of(chunk), *queries = this->queries_of(chunk);
        const bool norms = a.qk_norm != NORM_NONE && !has_raw_norms();
#pragma unroll
        for (int i = 0; i < tile_elements; i++)
            by_key.at[i] = by_query.at[i] = squares.at[i] = 0;
#pragma unroll 2
        for (int j = 0; j < Base::tiles; j++) {
            const uint16_t *key_tile = keys + j * TILE, *query_tile = queries + j * TILE;
            Parts<PARTS> left, asking;
            tile_load_left<PARTS>(left, key_tile, stride, plane);
            tile_load_left<PARTS>(asking, query_tile, stride, plane);
            tile_multiply<PARTS, PARTS>(by_key, left, key_tile, stride, plane);
            tile_multiply<PARTS, PARTS>(by_query, asking, key_tile, stride, plane);
            if (norms)
                tile_multiply<PARTS, PARTS>(squares, asking, query_tile, stride, plane);
        }
    }

    FWA_METHOD void store_diagonal(const Sum &sum, float *to) const
    {
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++)
                if (tile_row(lane(), h) == tile_column(lane(), e))
                    to[tile_row(lane(), h)] = sum.at[tile_index(h, e)];
    }

    FWA_METHOD float gate_input(const fwa_gpu_view &view, int64_t t, float absent) const
    {
        return present(view) ? load(view, at3(view, s.row, s.first + t, head)) : absent;
    }

    /* True where norms are not those of the rows as they are stored. */
    FWA_METHOD bool has_raw_norms() const
    {
        return a.phi == RELU && a.qk_norm != NORM_NONE;
    }

    /* The inputs of a token's step, which are on their way while products are formed. */
    struct Gates {
        float beta, lambda, log_gate;
        bool writes;
    };

    FWA_METHOD Gates load_gates(int64_t t0, int n, int i) const
    {
        const int64_t t = t0 + i;
        Gates gates = {1, 0, 0, i < n && t >= first};
        if (gates.writes) {
            gates.lambda = gate_input(a.lambda, t, 0);
            gates.log_gate = gate_input(a.log_gate, t, 0);
            gates.beta = CHANNEL ? 1 : gate_input(a.beta, t, 1);
        }
        return gates;
    }

    /* Norms, energy and, with gates per head, the step of token i; by one lane. Sums of squares come
     * in energy and query_inverse. Returns the token's bit where the gain is beyond exact_gain. */
    FWA_METHOD float prepare_token(ChunkMatrices &m, const Gates &gates, int i) const
    {
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        const float inverse = has_raw_norms() ? m.inverse[i] : inverse_of(m.energy[i]);
        const float energy = m.energy[i] * inverse * inverse;
        const float gate = gates.writes ? expf(fwa_decay_clip_gate_f32(gates.log_gate)) : 1;
        float eta = 0, gamma = 1;
        if (gates.writes && !CHANNEL) {
            const fwa_decay_step_t_f32 step = fwa_decay_step_of_gate_f32(
                &knobs, gates.beta, gates.lambda, gate, energy);
            eta = step.eta;
            gamma = step.gamma;
        }
        if (!has_raw_norms())
            m.query_inverse[i] = inverse_of(m.query_inverse[i]);
        m.inverse[i] = inverse;
        m.energy[i] = energy;
        m.lambda[i] = gates.lambda;
        m.gate[i] = gate;
        m.eta[i] = eta;
        m.gamma[i] = gamma;
        return eta * energy > exact_gain ? (float)(1 << i) : 0;
    }

    /* Decays from pair i to the tokens behind it, products of gammas; by one lane. The last is the
     * pair's at the chunk's end. Lane 16 has the state's own. Gates per channel are the walk's. */
    FWA_METHOD void prepare_decays(ChunkMatrices &m, int i) const
    {
        float gamma[TILE], product = 1;
        float *to = i < TILE ? m.decay + i * TILE : m.prefix;
#pragma unroll
        for (int t = 0; t < TILE; t++)
            gamma[t] = CHANNEL ? 1 : m.gamma[t];
#pragma unroll
        for (int t = 0; t < TILE; t++) {
            product *= i == TILE || t > i ? gamma[t] : 1;
            to[t] = product;
        }
        if (i < TILE)
            m.write_factor[i] = product * m.inverse[i];
        else
            m.retained = product;
    }

    FWA_METHOD void prepare_factors(ChunkMatrices &m, int t) const
    {
        const float before = t > 0 ? m.prefix[t - 1] : 1, behind = m.prefix[t];
        m.key_factor[t] = m.inverse[t] * (a.prediction == DECAYED ? behind : before) *
                          (CHANNEL ? 1 : m.eta[t]);
        m.query_factor[t] = m.query_inverse[t] * (a.read == AFTER_WRITE ? behind : before);
    }

    FWA_METHOD void store_matrices(ChunkMatrices &m, const Sum &by_key, const Sum &by_query) const
    {
        const bool decayed = a.prediction == DECAYED && !CHANNEL, after = a.read == AFTER_WRITE;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int t = tile_row(lane(), h), pair = tile_column(lane(), e);
                const float of_key = by_key.at[tile_index(h, e)] * m.inverse[t] * m.inverse[pair];
                const float of_query = by_query.at[tile_index(h, e)] * m.query_inverse[t] *
                                       m.inverse[pair];
                const float *decay = m.decay + pair * TILE;
                float predicts = 0, reads = 0;
                if (pair < t) {
                    predicts = of_key * decay[decayed ? t : t - 1] * (CHANNEL ? 1 : m.eta[t]);
                    reads = of_query * decay[after ? t : t - 1];
                } else if (pair == t && after) {
                    reads = of_query;
                }
                m.key[walk_place(pair, t)] = predicts;
                m.query[walk_place(pair, t)] = reads;
            }
    }

    /* The norms of raw rows, where features have other squares. */
    FWA_METHOD void raw_norms(ChunkMatrices &m, int64_t t0, int n) const
    {
        for (int i = 0; i < TILE; i++) {
            float keys = 0, queries = 0;
            if (i < n && t0 + i >= first) {
                const Row row = key_row(a, s, this->key, t0 + i);
                for (int d = lane(); d < a.key_dim; d += wave)
                    keys += load(row, d) * load(row, d);
            }
            if (i < n) {
                const Row row = query_row(a, s, this->query, t0 + i);
                for (int d = lane(); d < a.key_dim; d += wave)
                    queries += load(row, d) * load(row, d);
            }
            keys = inverse_of(wave_sum(keys));
            queries = inverse_of(wave_sum(queries));
            if (lane() == 0)
                m.inverse[i] = keys, m.query_inverse[i] = queries;
        }
    }

    FWA_METHOD void prepare(int chunk, const ChunkPlace &place) const
    {
        ChunkMatrices &m = this->matrices_of(chunk);
        const int64_t t0 = place.t0;
        const int n = place.n;
        const Gates gates = load_gates(t0, n, lane() % TILE);
        Sum by_key, by_query, squares;
        float exact = 0;
        if (has_raw_norms())
            raw_norms(m, t0, n);
        grams(by_key, by_query, squares, chunk);
        if (!has_raw_norms())
            store_diagonal(squares, m.query_inverse);
        store_diagonal(by_key, m.energy);
        wave_barrier();
        if (lane() < TILE)
            exact = prepare_token(m, gates, lane());
        exact = wave_sum(exact);
        wave_barrier();
        if (lane() <= TILE)
            prepare_decays(m, lane());
        wave_barrier();
        if (lane() < TILE)
            prepare_factors(m, lane());
        if (lane() == 0)
            m.exact = exact;
        store_matrices(m, by_key, by_query);
    }
};

} // namespace fwa

#endif
