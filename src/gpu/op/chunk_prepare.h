/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_CHUNK_PREPARE_H
#define FWA_GPU_OP_CHUNK_PREPARE_H

/*
 * The records of all chunks of one gate per head (loop/chunk_frame.h). With B[t,s] = rho_t <x_t, x_s>
 * eta_s times the decay from s to t - 1, residuals are r = (1 + B)^-1 (v - rho y), y what keys read in
 * the state before the chunk; a record has -B below the tiles on its diagonal, and of these the
 * inverses. What reads see of residual s is scale <q_t, x_s> eta_s times the decay to the token whose
 * state they are of.
 */

#include "../loop/chunk_frame.h"
#include "../math/walk.h"

namespace fwa
{

template <int PARTS, int DIM> struct ChunkPrepare : Frame<PARTS, DIM> {
    using Base = Frame<PARTS, DIM>;
    using Base::a, Base::s, Base::first, Base::head, Base::stride, Base::plane, Base::chunk;
    using Base::tiles, Base::threads, Base::solving, Base::square;
    static constexpr int waves = FWA_GPU_FRAME_WAVES;
    static constexpr int pairs = tiles * (tiles + 1) / 2; /* of tiles */
    static constexpr int shares = (pairs + waves - 1) / waves;

    int64_t index;
    FramePlace place;
    uint16_t *keys, *queries;
    float *decay;    /* [chunk][chunk + 1]: from token s to t behind it */
    float *diagonal; /* [tiles][TILE][TILE + 1] */
    float *factor;   /* [FWA_GPU_FACTORS][chunk] */
    Sum by_key[shares], by_query[shares];

    FWA_METHOD ChunkPrepare(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t slot)
        : Base(args, n, value_head)
    {
        index = slot - this->slot_of(0);
        place = this->place_at(index);
        keys = (uint16_t *)shared();
        queries = keys + PARTS * plane;
        decay = (float *)(queries + PARTS * plane);
        diagonal = decay + chunk * (chunk + 1);
        factor = diagonal + tiles * TILE * (TILE + 1);
    }

    FWA_METHOD float *of(int which) const
    {
        return factor + which * chunk;
    }

    /* Row i of keys or queries as features, a row to a wave. A key's energy is that of its numbers
     * before they are rounded: prev_key has float32 ones. */
    template <bool KEYS> FWA_METHOD void convert_row(int i, uint16_t *to) const
    {
        const int64_t t = place.t0 + i;
        const bool given = place.has(i) && (!KEYS || t >= first);
        float values[DIM / wave], share = 0, energy = 0;
        const Row row = !given ? Row()
                        : KEYS ? key_row(a, s, this->key, t)
                               : query_row(a, s, this->query, t);
#pragma unroll
        for (int e = 0; e < DIM / wave; e++) {
            const int d = lane() + e * wave;
            values[e] = given && d < a.key_dim ? load(row, d) : 0;
            share += values[e] * values[e];
        }
        /* Norms are factors of rows, but not behind elu1; relu has other squares than the raw row. */
        const float inverse = a.phi == IDENTITY ? 1 : feature_inverse(a, share);
        if (a.phi == RELU && lane() == 0)
            of(KEYS ? FWA_GPU_INVERSE : FWA_GPU_QUERY_INVERSE)[i] = given ? inverse : 1;
#pragma unroll
        for (int e = 0; e < DIM / wave; e++) {
            const int d = lane() + e * wave;
            float value = 0;
            if (given && d < a.key_dim)
                value = feature_map(a, a.phi == ELU1 ? values[e] * inverse : values[e]);
            energy += value * value;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const uint16_t half = (uint16_t)(tile_round(value, 0) & 0xffffu);
                to[part * plane + i * stride + d] = half;
                value -= fwa_bf16_to_float(half);
            }
        }
        energy = KEYS ? wave_sum(energy) : 0;
        if (KEYS && lane() == 0)
            of(FWA_GPU_ENERGY)[i] = energy;
    }

    /* Leaves copies for the kernels to come, once for a head of keys or queries. */
    template <bool KEYS> FWA_METHOD void store_rows(const uint16_t *from) const
    {
        constexpr int pieces = DIM / 8;
        const int64_t group = a.heads_value / (KEYS ? a.heads_key : a.heads_query);
        uint16_t *to = this->template copy_of<KEYS>(index);
        if ((int32_t)head % (int32_t)group != 0)
            return;
        for (int e = thread(); e < PARTS * chunk * pieces; e += threads)
            *(Four *)(to + e * 8) = *(const Four *)(from + e / pieces * stride + e % pieces * 8);
    }

    template <bool KEYS> FWA_METHOD void load_rows(uint16_t *to) const
    {
        if (!this->template copied<KEYS>(place)) {
            this->template stage_rows<DIM>(this->template rows_of<KEYS>(index, place), 0, to);
            return;
        }
        for (int i = thread() / wave; i < chunk; i += waves)
            convert_row<KEYS>(i, to);
    }

    /* Products of keys with keys, of queries with keys, and the squares of rows. */
    FWA_METHOD void products()
    {
        const bool norms = a.qk_norm != NORM_NONE && a.phi == IDENTITY;
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
                Sum key_sum, query_sum, squares;
#pragma unroll
                for (int e = 0; e < tile_elements; e++)
                    key_sum.at[e] = query_sum.at[e] = squares.at[e] = 0;
                const uint16_t *key_row = keys + i * TILE * stride,
                               *right = keys + j * TILE * stride;
                const uint16_t *query_row = queries + i * TILE * stride;
#pragma unroll 1
                for (int d = 0; d < DIM; d += TILE) {
                    Parts<PARTS> left, asking;
                    tile_load_left<PARTS>(left, key_row + d, stride, plane);
                    tile_load_left<PARTS>(asking, query_row + d, stride, plane);
                    tile_multiply<PARTS, PARTS>(key_sum, left, right + d, stride, plane);
                    tile_multiply<PARTS, PARTS>(query_sum, asking, right + d, stride, plane);
                    if (norms && i == j)
                        tile_multiply<PARTS, PARTS>(squares, asking, query_row + d, stride, plane);
                }
                by_key[p / waves] = key_sum;
                by_query[p / waves] = query_sum;
                if (i == j)
                    store_squares(i, key_sum, squares, norms);
            }
    }

    FWA_METHOD void store_squares(int i, const Sum &key_sum, const Sum &squares, bool norms) const
    {
        const bool known = this->template copied<true>(place);
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int row = tile_row(lane(), h);
                if (row != tile_column(lane(), e))
                    continue;
                if (!known)
                    of(FWA_GPU_ENERGY)[i * TILE + row] = key_sum.at[tile_index(h, e)];
                if (norms)
                    of(FWA_GPU_QUERY_INVERSE)[i * TILE + row] = squares.at[tile_index(h, e)];
            }
    }

    FWA_METHOD float gate_input(const fwa_gpu_view &view, int64_t t, float absent) const
    {
        return present(view) ? load(view, at3(view, s.row, s.first + t, head)) : absent;
    }

    FWA_METHOD float inverse_of(float squares) const
    {
        const float sum = a.qk_norm == NORM_RMS ? squares / (float)a.key_dim : squares;
        const float root = sqrtf(sum + a.norm_eps);
        return root != 0 ? 1 / root : 0;
    }

    /* Norms, energy and the step of token t, by one thread. */
    FWA_METHOD void prepare_token(int t) const
    {
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        const bool writes = place.has(t) && place.t0 + t >= first;
        float inverse = 1, query_inverse = 1;
        if (a.qk_norm != NORM_NONE && a.phi == IDENTITY) {
            inverse = inverse_of(of(FWA_GPU_ENERGY)[t]);
            query_inverse = inverse_of(of(FWA_GPU_QUERY_INVERSE)[t]);
        } else if (a.phi == RELU) {
            inverse = of(FWA_GPU_INVERSE)[t];
            query_inverse = of(FWA_GPU_QUERY_INVERSE)[t];
        }
        const float energy = of(FWA_GPU_ENERGY)[t] * inverse * inverse;
        float eta = 0, gamma = 1;
        if (writes) {
            const fwa_decay_step_t_f32 step = fwa_decay_step_f32(
                &knobs, gate_input(a.beta, place.t0 + t, 1), gate_input(a.lambda, place.t0 + t, 0),
                gate_input(a.log_gate, place.t0 + t, 0), energy);
            eta = step.eta;
            gamma = step.gamma;
        }
        of(FWA_GPU_INVERSE)[t] = inverse;
        of(FWA_GPU_QUERY_INVERSE)[t] = query_inverse;
        of(FWA_GPU_ENERGY)[t] = energy;
        of(FWA_GPU_ETA)[t] = eta;
        of(FWA_GPU_GAMMA)[t] = gamma;
    }

    /* Decays from token i to those behind it, products of gammas, by one thread; the last is the
     * pair's at the chunk's end. Thread `chunk` has the state's own, and the factors of reading it. */
    FWA_METHOD void prepare_decays(int i) const
    {
        const float *gamma = of(FWA_GPU_GAMMA);
        float product = 1;
        if (i < chunk) {
            float *to = decay + i * (chunk + 1);
            for (int t = i; t < chunk; t++) {
                product *= t > i ? gamma[t] : 1;
                to[t] = product;
            }
            of(FWA_GPU_WRITE_FACTOR)[i] = product * of(FWA_GPU_INVERSE)[i] * of(FWA_GPU_ETA)[i];
            return;
        }
        int great = chunk;
        for (int t = 0; t < chunk; t++) {
            const float before = product, behind = product * gamma[t];
            of(FWA_GPU_KEY_FACTOR)[t] = of(FWA_GPU_INVERSE)[t] *
                                        (a.prediction == DECAYED ? behind : before);
            of(FWA_GPU_QUERY_FACTOR)[t] = a.scale * of(FWA_GPU_QUERY_INVERSE)[t] *
                                          (a.read == AFTER_WRITE ? behind : before);
            if (great == chunk && of(FWA_GPU_ETA)[t] * of(FWA_GPU_ENERGY)[t] > exact_gain)
                great = t;
            product = behind;
        }
        of(FWA_GPU_SCALARS)[0] = product;
        of(FWA_GPU_SCALARS)[1] = (float)great;
    }

    /* What stands in row t and column p of the tiles. */
    FWA_METHOD float predicts(float product, int t, int p) const
    {
        const float *from = decay + p * (chunk + 1);
        if (p >= t)
            return 0;
        return -product * of(FWA_GPU_INVERSE)[t] * of(FWA_GPU_INVERSE)[p] * of(FWA_GPU_ETA)[p] *
               from[a.prediction == DECAYED ? t : t - 1];
    }

    FWA_METHOD float reads(float product, int t, int p) const
    {
        const bool after = a.read == AFTER_WRITE;
        if (p > t || (p == t && !after))
            return 0;
        return a.scale * product * of(FWA_GPU_QUERY_INVERSE)[t] * of(FWA_GPU_INVERSE)[p] *
               of(FWA_GPU_ETA)[p] * decay[p * (chunk + 1) + (after ? t : t - 1)];
    }

    /* Two neighbours of a row, in parts. */
    template <int COUNT> FWA_METHOD void store_pair(uint16_t *to, float low, float high) const
    {
#pragma unroll
        for (int part = 0; part < COUNT; part++) {
            const uint32_t pair = tile_round(low, high);
            *(uint32_t *)(to + part * square) = pair;
            low -= tile_low(pair);
            high -= tile_high(pair);
        }
    }

    FWA_METHOD void store_tiles(unsigned char *record) const
    {
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
                uint16_t *query_to = this->query_tile(record, i, j);
#pragma unroll
                for (int h = 0; h < tile_rows; h++)
#pragma unroll
                    for (int e = 0; e < tile_columns; e += 2) {
                        const int row = tile_row(lane(), h), column = tile_column(lane(), e);
                        const int t = i * TILE + row, pair = j * TILE + column;
                        const int at = tile_index(h, e), place_in = row * TILE + column;
                        const float low = predicts(by_key[p / waves].at[at], t, pair);
                        const float high = predicts(by_key[p / waves].at[at + 1], t, pair + 1);
                        store_pair<solving>(query_to + place_in,
                                            reads(by_query[p / waves].at[at], t, pair),
                                            reads(by_query[p / waves].at[at + 1], t, pair + 1));
                        if (i > j) {
                            store_pair<solving>(this->key_tile(record, i, j) + place_in, low, high);
                            continue;
                        }
                        diagonal[(i * TILE + row) * (TILE + 1) + column] = low;
                        diagonal[(i * TILE + row) * (TILE + 1) + column + 1] = high;
                    }
            }
    }

    /* Column c of the inverse of the i-th tile on the diagonal, by one thread. */
    FWA_METHOD void invert(int i, int c, uint16_t *to) const
    {
        float column[TILE];
#pragma unroll
        for (int t = 0; t < TILE; t++) {
            const float *row = diagonal + (i * TILE + t) * (TILE + 1);
            float sum = t == c ? 1 : 0;
#pragma unroll
            for (int p = 0; p < t; p++)
                sum += p >= c ? row[p] * column[p] : 0;
            column[t] = sum;
            float rest = sum;
#pragma unroll
            for (int part = 0; part < solving; part++) {
                const uint16_t half = (uint16_t)(tile_round(rest, 0) & 0xffffu);
                to[part * square + t * TILE + c] = half;
                rest -= fwa_bf16_to_float(half);
            }
        }
    }

    FWA_METHOD void run()
    {
        unsigned char *record = this->record_of(index);
        load_rows<true>(keys);
        load_rows<false>(queries);
        copy_wait();
        barrier();
        if (this->template copied<true>(place))
            store_rows<true>(keys);
        if (this->template copied<false>(place))
            store_rows<false>(queries);
        products();
        barrier();
        if (thread() < chunk)
            prepare_token(thread());
        barrier();
        if (thread() <= chunk)
            prepare_decays(thread());
        barrier();
        store_tiles(record);
        for (int e = thread(); e < FWA_GPU_FACTORS * chunk; e += threads)
            this->factors(record, 0)[e] = factor[e];
        barrier();
        if (a.objective == REGRESSION && thread() < chunk)
            invert(thread() / TILE, thread() % TILE, this->inverse_tile(record, thread() / TILE));
    }
};

template <int PARTS, int DIM> FWA_DEVICE void chunk_prepare(const fwa_gpu_args &a)
{
    for (int64_t unit = block(); unit < a.chunk_slots * a.heads_value; unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, 1);
        const int64_t n = Frame<PARTS, DIM>::sequence_of_slot(a, at.sequence);
        ChunkPrepare<PARTS, DIM> work(a, n, at.head, at.sequence);
        if (work.s.padded || work.place.empty())
            continue;
        barrier(); /* the last unit's numbers may still be read */
        work.run();
    }
}

} // namespace fwa

#define FWA_CHUNK_PREPARE(parts, dim)                                                              \
    FWA_KERNEL_RESIDENT(chunk_prepare_##parts##_##dim, FWA_GPU_FRAME_WAVES *fwa::wave,             \
                        dim > 128 ? 2 : 4)                                                         \
    {                                                                                              \
        fwa::chunk_prepare<parts, dim>(args);                                                      \
    }

FWA_CHUNK_PREPARE(1, 64)
FWA_CHUNK_PREPARE(1, 128)
FWA_CHUNK_PREPARE(1, 256)
FWA_CHUNK_PREPARE(2, 64)
FWA_CHUNK_PREPARE(2, 128)
FWA_CHUNK_PREPARE(2, 256)
FWA_CHUNK_PREPARE(3, 64)
FWA_CHUNK_PREPARE(3, 128)
FWA_CHUNK_PREPARE(3, 256)

#endif
