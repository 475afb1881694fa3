/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_H
#define FWA_GPU_LOOP_CHUNK_H

/*
 * The loop over the chunks of a sequence, for one value head and a block of value columns. Waves have
 * roles and meet once a chunk:
 *
 *     a loader      puts keys, queries and values of a chunk to come into shared memory, and takes
 *                   outputs from there
 *     a preparer    forms a chunk's small matrices (ChunkMatrices), one chunk ahead
 *     the others    each have 16 value columns: their share of the state stays in registers, as sums
 *                   of tiles; it is the left operand of the products with keys and queries, and gets
 *                   the product of what the chunk writes with its keys added
 *
 * Keys and queries are stored raw but for relu, norms are factors of the rows: of 16-bit inputs
 * nothing is rounded. (elu1 has no such factor; its features are.) Where shared memory holds less than
 * three chunks the preparer loads, one chunk ahead or none.
 *
 * Chunks end where the tokens seen are a multiple of 16, so that a sequence may be cut there without
 * changing a bit, and at the token whose state is committed.
 */

#include "../math/feature.h"
#include "../math/walk.h"
#include "../op/workspace.h"
#include "../tile/tile.h"

namespace fwa
{

static_assert(sizeof(ChunkMatrices) <= FWA_GPU_CHUNK_MATRICES, "room for a chunk's matrices");

/* A chunk's tokens; n = 0: there is no such chunk. */
struct ChunkPlace {
    int64_t t0;
    int n;
};

/* What all waves know of a sequence's chunks. A chunk has a number, which says where it is in shared
 * memory, and a place. */
template <int PARTS, int DIM, bool CHANNEL> struct Chunks {
    static constexpr int tiles = DIM / TILE;
    static constexpr int stride = DIM + 8; /* eight rows of 16 bytes then lie in all banks */
    static constexpr int plane = TILE * stride;
    static constexpr int side = PARTS * plane; /* the keys, or the queries, of a chunk */
    static constexpr int slots = FWA_GPU_CHUNK_SLOTS(PARTS, DIM, CHANNEL, FWA_SHARED_LIMIT);
    static constexpr int slot_bytes = FWA_GPU_CHUNK_SLOT_BYTES(PARTS, DIM, CHANNEL);
    static constexpr int width = FWA_GPU_CHUNK_COMPUTING * TILE; /* of a tile of values */
    static constexpr int value_bytes = PARTS == 3 ? 4 : 2;

    const fwa_gpu_args &a;
    Sequence s;
    int64_t head, key, query;
    int64_t first;   /* pair */
    int64_t column0; /* the block's first value column */

    FWA_METHOD Chunks(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t column)
        : a(args), s(sequence_get(args, n)), head(value_head), key(key_head(args, value_head)),
          query(query_head(args, value_head)), first(first_pair(args, s)), column0(column)
    {
    }

    /* The chunk that begins with token t0. */
    FWA_METHOD ChunkPlace place_from(int64_t t0) const
    {
        int64_t n = TILE - (s.seen + t0) % TILE;
        if (t0 < s.commit && s.commit - t0 < n)
            n = s.commit - t0;
        if (s.length - t0 < n)
            n = s.length - t0;
        return {t0, (int)n};
    }

    FWA_METHOD ChunkPlace place_behind(const ChunkPlace &place) const
    {
        return place.n > 0 ? place_from(place.t0 + place.n) : place;
    }

    FWA_METHOD unsigned char *slot_of(int chunk) const
    {
        return shared() + (slots == 1 ? 1 : 2) * FWA_GPU_CHUNK_MATRICES +
               (int)((unsigned)chunk % slots) * slot_bytes;
    }

    FWA_METHOD uint16_t *keys_of(int chunk) const
    {
        return (uint16_t *)slot_of(chunk);
    }

    FWA_METHOD uint16_t *queries_of(int chunk) const
    {
        return keys_of(chunk) + side;
    }

    /* [TILE, width] values in their own type; then outputs. */
    FWA_METHOD unsigned char *values_of(int chunk) const
    {
        return (unsigned char *)(queries_of(chunk) + side);
    }

    /* [TILE, width] gains, per channel. */
    FWA_METHOD float *gains_of(int chunk) const
    {
        return (float *)(values_of(chunk) + FWA_GPU_CHUNK_TILE);
    }

    FWA_METHOD ChunkMatrices &matrices_of(int chunk) const
    {
        const int place = slots == 1 ? 0 : chunk % 2;
        return *(ChunkMatrices *)(shared() + place * FWA_GPU_CHUNK_MATRICES);
    }
};

/* ---- The loader ---- */

template <int PARTS, int DIM, bool CHANNEL> struct ChunkLoader : Chunks<PARTS, DIM, CHANNEL> {
    using Base = Chunks<PARTS, DIM, CHANNEL>;
    using Base::a, Base::s, Base::first, Base::stride, Base::plane, Base::head, Base::column0;
    using Base::width, Base::value_bytes;

    FWA_METHOD explicit ChunkLoader(const Base &chunks) : Base(chunks)
    {
    }

    FWA_METHOD void put(uint16_t *to, int d, float value) const
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint16_t half = (uint16_t)(tile_round(value, 0) & 0xffffu);
            to[part * plane + d] = half;
            value -= fwa_bf16_to_float(half);
        }
    }

    /* Some rows at once, so that a row does not wait for the one before. */
    static constexpr int batch = DIM > 128 ? 4 : 8, shares = DIM / wave;

    /* Rows i0 .. i0 + batch - 1 of keys or queries, whatever their type and strides. */
    template <bool KEYS> FWA_METHOD void convert_rows(int64_t t0, int n, int i0, uint16_t *to) const
    {
        float value[batch][shares];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int64_t t = t0 + i0 + i;
            const bool given = i0 + i < n && (!KEYS || t >= first);
            const Row row = !given ? Row()
                            : KEYS ? key_row(a, s, this->key, t)
                                   : query_row(a, s, this->query, t);
#pragma unroll
            for (int e = 0; e < shares; e++) {
                const int d = lane() + e * wave;
                value[i][e] = given && d < a.key_dim ? load(row, d) : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            float share = 0, inverse = 1;
            if (a.phi == ELU1) {
#pragma unroll
                for (int e = 0; e < shares; e++)
                    share += value[i][e] * value[i][e];
                inverse = feature_inverse(a, share);
            }
            const bool given = i0 + i < n && (!KEYS || t0 + i0 + i >= first);
#pragma unroll
            for (int e = 0; e < shares; e++) {
                const int d = lane() + e * wave;
                put(to + (i0 + i) * stride, d,
                    given && d < a.key_dim ? feature_map(a, value[i][e] * inverse) : 0);
            }
        }
    }

    template <bool KEYS> FWA_METHOD void convert_all(int64_t t0, int n, uint16_t *to) const
    {
        for (int i0 = 0; i0 < TILE; i0 += batch)
            convert_rows<KEYS>(t0, n, i0, to);
    }

    /* Rows of such a tensor go as they are, 16 bytes at a time. */
    FWA_METHOD bool plain(const fwa_gpu_view &view) const
    {
        return PARTS == 1 && a.key_dim == DIM && a.phi == IDENTITY && view.stride[3] == 1 &&
               (uintptr_t)view.data % 16 == 0 &&
               (view.stride[0] | view.stride[1] | view.stride[2]) % 8 == 0;
    }

    /* Rows [begin, end) from the tokens at `offset` on; zeros in the others. */
    FWA_METHOD void copy_all(const fwa_gpu_view &view, int64_t offset, int begin, int end,
                             uint16_t *to) const
    {
        constexpr int pieces = DIM / 8;
        const Four zeros = {{0, 0, 0, 0}};
        const uint16_t *from = (const uint16_t *)view.data + offset;
#pragma unroll 8
        for (int e = lane(); e < TILE * pieces; e += wave) {
            const int i = e / pieces, d = e % pieces * 8;
            if (i >= begin && i < end)
                copy_async(to + i * stride + d, from + i * view.stride[1] + d);
            else
                *(Four *)(to + i * stride + d) = zeros;
        }
    }

    FWA_METHOD void load_chunk(int chunk, const ChunkPlace &place) const
    {
        const int64_t t0 = place.t0;
        const int n = place.n, shift = a.alignment == NEXT_LATENT;
        uint16_t *keys = this->keys_of(chunk), *queries = this->queries_of(chunk);
        /* The first pair of a call may have prev_key's key, which is float32. */
        if (plain(a.k) && t0 >= shift)
            copy_all(a.k, at3(a.k, s.row, s.first + t0 - shift, this->key), 0, n, keys);
        else if (plain(a.k) && first > 0)
            copy_all(a.k, at3(a.k, s.row, s.first + t0 - shift, this->key), 1, n, keys);
        else
            convert_all<true>(t0, n, keys);
        if (plain(a.q))
            copy_all(a.q, at3(a.q, s.row, s.first + t0, this->query), 0, n, queries);
        else
            convert_all<false>(t0, n, queries);
        load_tile<value_bytes>(a.v, at3(a.v, s.row, s.first + t0, head), t0, n,
                               this->values_of(chunk));
        if (CHANNEL && present(a.beta))
            load_tile<4>(a.beta, at3(a.beta, s.row, s.first + t0, head), t0, n,
                         (unsigned char *)this->gains_of(chunk));
        copy_wait();
    }

    /* True where the block's columns of such a tensor are whole pieces of 16 bytes. */
    template <int BYTES> FWA_METHOD bool in_pieces(const fwa_gpu_view &view) const
    {
        return view.stride[3] == 1 && (uintptr_t)view.data % 16 == 0 &&
               a.value_dim % (16 / BYTES) == 0 &&
               (view.stride[0] | view.stride[1] | view.stride[2]) % (16 / BYTES) == 0;
    }

    /* The block's columns of the tokens that write; zeros elsewhere. */
    template <int BYTES>
    FWA_METHOD void load_tile(const fwa_gpu_view &view, int64_t offset, int64_t t0, int n,
                              unsigned char *to) const
    {
        constexpr int each = 16 / BYTES, pieces = width / each;
        const int from = t0 < first ? (int)(first - t0) : 0;
        if (in_pieces<BYTES>(view)) {
            const Four zeros = {{0, 0, 0, 0}};
#pragma unroll 8
            for (int e = lane(); e < TILE * pieces; e += wave) {
                const int i = e / pieces, c = e % pieces * each;
                const int64_t at = offset + i * view.stride[1] + column0 + c;
                if (i >= from && i < n && column0 + c < a.value_dim)
                    copy_async(to + e * 16, (const unsigned char *)view.data + at * BYTES);
                else
                    *(Four *)(to + e * 16) = zeros;
            }
            return;
        }
#pragma unroll 8
        for (int e = lane(); e < TILE * width; e += wave) {
            const int i = e / width, c = e % width;
            const int64_t at = offset + i * view.stride[1] + (column0 + c) * view.stride[3];
            const bool given = i >= from && i < n && column0 + c < a.value_dim;
            if (BYTES == 4)
                ((uint32_t *)to)[e] = given ? ((const uint32_t *)view.data)[at] : 0;
            else
                ((uint16_t *)to)[e] = given ? ((const uint16_t *)view.data)[at] : 0;
        }
    }

    /* The outputs of a chunk that is done. */
    FWA_METHOD void store_outputs(int chunk, const ChunkPlace &place) const
    {
        constexpr int each = 16 / value_bytes, pieces = width / each;
        const int64_t offset = at3(a.o, s.row, s.first + place.t0, head);
        const int n = place.n, columns = a.chunk_columns;
        const unsigned char *from = this->values_of(chunk);
        if (in_pieces<value_bytes>(a.o)) {
#pragma unroll 4
            for (int e = lane(); e < n * pieces; e += wave) {
                const int i = e / pieces, c = e % pieces * each;
                const int64_t at = offset + i * a.o.stride[1] + column0 + c;
                if (c < columns && column0 + c < a.value_dim)
                    *(Four *)((unsigned char *)a.o.data +
                              at * value_bytes) = *(const Four *)(from + e * 16);
            }
            return;
        }
#pragma unroll 4
        for (int e = lane(); e < n * width; e += wave) {
            const int i = e / width, c = e % width;
            const int64_t at = offset + i * a.o.stride[1] + column0 + c;
            if (c >= columns || column0 + c >= a.value_dim)
                continue;
            if (value_bytes == 4)
                ((uint32_t *)a.o.data)[at] = ((const uint32_t *)from)[e];
            else
                ((uint16_t *)a.o.data)[at] = ((const uint16_t *)from)[e];
        }
    }
};

/* ---- The preparer ---- */

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
            for (int e = 0; e < 4; e++)
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
            for (int e = 0; e < 4; e++) {
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

/* ---- The waves that compute ---- */

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

    FWA_METHOD void load_state()
    {
        const fwa_gpu_view &view = a.carry_in.state, &z = a.carry_in.norm;
        const bool given = s.slot_in >= 0 && present(view), given_z = s.slot_in >= 0 && present(z);
#pragma unroll
        for (int j = 0; j < tiles; j++)
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int64_t d = j * TILE + tile_column(lane(), e);
                    float value = 0;
                    if (given && d < a.key_dim && has_column(h))
                        value = load(view,
                                     at3(view, s.slot_in, head, d) + column(h) * view.stride[3]);
                    if (given_z && d < a.key_dim && has_norm(h))
                        value = load(z, at2(z, s.slot_in, head) + d * z.stride[2]);
                    state[j].at[tile_index(h, e)] = value;
                }
    }

    /* z goes to the workspace: other blocks may still read the carry's. */
    FWA_METHOD void store_state() const
    {
        const fwa_gpu_view &view = a.carry_out.state;
        const bool wanted = s.slot_out >= 0 && present(view);
        float *z = a.norms + (s.index * a.heads_value + head) * a.key_dim;
#pragma unroll
        for (int j = 0; j < tiles; j++)
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int64_t d = j * TILE + tile_column(lane(), e);
                    const float value = state[j].at[tile_index(h, e)];
                    if (wanted && d < a.key_dim && has_column(h))
                        store(view, at3(view, s.slot_out, head, d) + column(h) * view.stride[3],
                              value);
                    if (d < a.key_dim && has_norm(h))
                        z[d] = value;
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
            for (int e = 0; e < 4; e++) {
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
            for (int e = 0; e < 4; e++) {
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
        tile_sum_quarters(beyond);
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
            Parts<1> lower;
            tile_left<PARTS + EXACT>(left, state[j]);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                upper.part[part] = left.part[part];
            if (a.objective == REGRESSION)
                tile_multiply<PARTS, PARTS>(by_key, upper, keys + j * TILE, stride, plane);
            tile_multiply<PARTS, PARTS>(by_query, upper, queries + j * TILE, stride, plane);
            if (EXACT) {
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
            for (int e = 0; e < 4; e++) {
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
                for (int e = 0; e < 4; e++)
                    state[j].at[tile_index(h, e)] *= w.retained[h];
            tile_multiply_turned<WRITTEN, PARTS>(state[j], left, keys + j * TILE, stride, plane);
        }
    }

    FWA_METHOD void write_state(const Walk &w, const ChunkMatrices &m, const uint16_t *keys,
                                bool exact)
    {
        Sum written;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < 4; e++)
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
        for (int e = 0; e < 4; e++) {
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
        uint32_t bits[tile_rows][4];
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                bits[h][e] = PARTS == 3 ? fwa_float_bits(w.query[h][e])
                             : bf16     ? tile_round(w.query[h][e], 0)
                                        : fwa_f16_from_float(w.query[h][e]);
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
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
        for (int e = 0; e < 4; e++)
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

/* ---- The loop ---- */

/* Waves 0 .. computing - 1 compute, the last of them z where there is one. */
template <int PARTS, int DIM, bool CHANNEL>
FWA_DEVICE void chunk_loop(const Chunks<PARTS, DIM, CHANNEL> &chunks)
{
    constexpr int slots = Chunks<PARTS, DIM, CHANNEL>::slots, ahead = slots - 1;
    constexpr int computing = FWA_GPU_CHUNK_COMPUTING;
    const fwa_gpu_args &a = chunks.a;
    const int place = thread() / wave, role = place - computing;
    const bool loads = role == (slots == 3), prepares = role == 0;
    const ChunkLoader<PARTS, DIM, CHANNEL> loader(chunks);
    const ChunkPreparer<PARTS, DIM, CHANNEL> preparer(chunks);
    ChunkComputer<PARTS, DIM, CHANNEL> computer(chunks, place * TILE, a.normalizer && role == -1);
    if (role < 0) {
        computer.load_state();
        if (chunks.s.commit == 0)
            computer.copy_state();
    }
    /* The places of chunks `chunk - 1`, whose outputs are due, to `chunk + ahead`, which is loaded. */
    ChunkPlace places[ahead + 2];
#pragma unroll
    for (int i = 0; i <= ahead; i++)
        places[i] = {0, 0};
    places[ahead + 1] = chunks.place_from(0);
    for (int chunk = -ahead; chunk <= 0 || places[0].n > 0; chunk++) {
        constexpr int prepared = slots > 1 ? 2 : 1;
        if (loads && places[0].n > 0)
            loader.store_outputs(chunk - 1, places[0]);
        if (loads && places[ahead + 1].n > 0)
            loader.load_chunk(chunk + ahead, places[ahead + 1]);
        if (prepares && slots < 3)
            wave_barrier();
        if (prepares && places[prepared].n > 0)
            preparer.prepare(chunk + prepared - 1, places[prepared]);
        if (slots == 1)
            barrier();
        if (places[1].n > 0) {
            if (role < 0)
                computer.compute(chunk, places[1]);
            else if (a.normalizer)
                barrier();
        }
        barrier();
#pragma unroll
        for (int i = 0; i <= ahead; i++)
            places[i] = places[i + 1];
        places[ahead + 1] = chunks.place_behind(places[ahead + 1]);
    }
}

} // namespace fwa

#endif
