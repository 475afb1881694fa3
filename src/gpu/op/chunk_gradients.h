/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_CHUNK_GRADIENTS_H
#define FWA_GPU_OP_CHUNK_GRADIENTS_H

/*
 * Gradients of features and gates, of all chunks at once, from what the passes kept: the state S
 * before a chunk and the gradient L of the one behind, residuals r and their gradients g. Of a chunk's
 * tokens t and pairs s before them, with D the decay between two tokens, sums over value columns
 *
 *     U[t,s] = <do_t, r_s>    H[t,s] = <g_t, r_s>
 *
 * are the gradients of what t's query reads of s and, negative, of what t's key predicts of it:
 *
 *     dq_t = scale (Gamma S do_t + sum_s eta_s D U[t,s] x_s)
 *     dx_s = eta_s D L r_s - rho Gamma S g_s + sum_t scale eta_s D U[t,s] q_t
 *            - sum over t behind s, and sum over t before s, of rho eta D H x_t
 *
 * dgamma_t sums, without a division, what flows from sources before t (S, pairs) to sinks from t on
 * (reads, predictions, L): each inner product times the decays on both sides of t. deta_s is what flows
 * from pair s over eta_s. Columns and dimensions come through shared memory in slices.
 */

#include "../loop/chunk_frame.h"

namespace fwa
{

template <int PARTS, int DIM> struct ChunkGradients : Frame<PARTS, DIM> {
    using Base = Frame<PARTS, DIM>;
    using Base::a, Base::s, Base::first, Base::head, Base::chunk, Base::tiles, Base::threads;
    using Base::value_bytes, Base::solving;
    static constexpr int waves = FWA_GPU_FRAME_WAVES;
    static constexpr int pairs = tiles * (tiles + 1) / 2;
    static constexpr int shares = (pairs + waves - 1) / waves;
    static constexpr int slice = FWA_GPU_SLICE, slice_dims = FWA_GPU_SLICE_DIMS;
    static constexpr int row_stride = slice_dims + 8, row_plane = chunk * row_stride;
    static constexpr int state_plane = slice * row_stride;
    static constexpr int given_stride = slice + 8, given_plane = chunk * given_stride;
    static constexpr int turned_stride = chunk + 8, turned_plane = slice * turned_stride;
    static constexpr int matrix_plane = chunk * turned_stride;
    static constexpr int flow = chunk + 1; /* between rows of float matrices */
    static_assert(slice_dims == waves * TILE, "a wave has a tile of a slice's dimensions");

    int64_t index, unit; /* of the chunk in its sequence; of all chunks and heads */
    FramePlace place;
    unsigned char *record;
    /* In shared memory: numbers of tokens, [..][chunk]; then matrices, first floats, then parts, and
     * slices of the states; then slices of rows, of output gradients, of residuals. */
    float *scalar;
    float *reads, *predictions, *decay;
    uint16_t *matrix, *states, *state_grads;
    uint16_t *keys, *queries, *given, *residuals, *residual_grads;
    Sum u[shares], h[shares];

    /* Arrays in `scalar`; those of FWA_GPU_FACTORS come first. */
    enum {
        PREFIX = FWA_GPU_FACTORS, /* decay from the chunk's start to behind a token */
        END,                      /* and from there to its end */
        ETA_GRAD,
        GAMMA_GRAD,
        GAMMA_END,   /* what flows to L of it */
        STATE,       /* <S, L>, of each wave */
        ALONG_STATE, /* of each wave: <q_t, S do_t>, <x_t, S g_t>, <x_s, L r_s> */
        ARRAYS = ALONG_STATE + 3 * waves
    };
    static_assert(ARRAYS <= 28, "room for numbers of tokens");

    FWA_METHOD ChunkGradients(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t slot)
        : Base(args, n, value_head)
    {
        constexpr int matrices = FWA_GPU_GRADIENT_MATRICES(PARTS, tiles);
        index = slot - this->slot_of(0);
        unit = this->unit_of(index);
        place = this->place_at(index);
        record = this->record_of(index);
        scalar = (float *)shared();
        unsigned char *at = shared() + FWA_GPU_GRADIENT_SCALARS(tiles);
        reads = (float *)at;
        predictions = reads + chunk * flow;
        decay = predictions + chunk * flow;
        matrix = (uint16_t *)at;
        states = matrix + 4 * solving * matrix_plane;
        state_grads = states + solving * state_plane;
        keys = (uint16_t *)(at + matrices);
        queries = keys + PARTS * row_plane;
        given = queries + PARTS * row_plane;
        residuals = given + PARTS * given_plane;
        residual_grads = residuals + solving * turned_plane;
    }

    FWA_METHOD float *of(int which) const
    {
        return scalar + which * chunk;
    }

    FWA_METHOD int place_in_slice() const
    {
        return thread() / wave * TILE;
    }

    static FWA_METHOD void clear(Sum &sum)
    {
#pragma unroll
        for (int i = 0; i < tile_elements; i++)
            sum.at[i] = 0;
    }

    /* ---- Slices ---- */

    /* `width` numbers from `at` on of each of a slice's columns in an array of the workspace. */
    template <int COUNT, int WIDTH>
    FWA_METHOD void stage_columns(const uint16_t *array, int64_t v0, int length, int at,
                                  int to_stride, uint16_t *to) const
    {
        constexpr int pieces = WIDTH / 8, step = threads / pieces;
        const int64_t columns = (int64_t)a.chunk_blocks * FWA_GPU_FRAME_COLUMNS;
        const int d = thread() % pieces * 8, row = thread() / pieces;
        const uint16_t *from = array + (unit * COUNT * columns + v0 + row) * length + at + d;
        uint16_t *target = to + row * to_stride + d;
#pragma unroll
        for (int part = 0; part < COUNT; part++) {
#pragma unroll
            for (int v = 0; v < slice; v += step)
                if (row + v < slice)
                    copy_async(target + (part * slice + v) * to_stride, from + v * (int64_t)length);
            from += columns * length;
        }
    }

    FWA_METHOD void stage_given(int64_t v0) const
    {
        if (PARTS == 1) {
            this->template stage_values<slice>(a.o_grad, place, place.begin, v0, given_stride,
                                               (unsigned char *)given);
            return;
        }
        const int64_t offset = at3(a.o_grad, s.row, s.first + place.t0, head);
        for (int e = thread(); e < chunk * slice; e += threads) {
            const int i = e / slice, c = e % slice;
            float value = place.has(i) && v0 + c < a.value_dim
                              ? load(a.o_grad, offset + i * a.o_grad.stride[1] +
                                                   (v0 + c) * a.o_grad.stride[3])
                              : 0;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const uint16_t half = (uint16_t)(tile_round(value, 0) & 0xffffu);
                given[part * given_plane + i * given_stride + c] = half;
                value -= fwa_bf16_to_float(half);
            }
        }
    }

    FWA_METHOD void stage_values_of(int64_t v0) const
    {
        stage_given(v0);
        stage_columns<solving, chunk>(a.residuals, v0, chunk, 0, turned_stride, residuals);
        stage_columns<solving, chunk>(a.residual_grads, v0, chunk, 0, turned_stride,
                                      residual_grads);
    }

    FWA_METHOD void stage_features(int d0) const
    {
        this->template stage_rows<slice_dims>(this->template rows_of<true>(index, place), d0, keys);
        this->template stage_rows<slice_dims>(this->template rows_of<false>(index, place), d0,
                                              queries);
    }

    FWA_METHOD void stage_states(int64_t v0, int d0) const
    {
        stage_columns<solving, slice_dims>(a.chunk_states, v0, DIM, d0, row_stride, states);
        stage_columns<PARTS, slice_dims>(a.chunk_state_grads, v0, DIM, d0, row_stride, state_grads);
    }

    /* ---- Pairs of tokens ---- */

    FWA_METHOD void pairs_of_values()
    {
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
#pragma unroll 1
                for (int v = 0; v < slice; v += TILE) {
                    Parts<PARTS> left;
                    Parts<solving> behind;
                    const uint16_t *right = residuals + v * turned_stride + j * TILE;
                    tile_load_left<PARTS>(left, given + i * TILE * given_stride + v, given_stride,
                                          given_plane);
                    tile_multiply<PARTS, solving, true>(u[p / waves], left, right, turned_stride,
                                                        turned_plane);
                    if (a.objective != REGRESSION)
                        continue;
                    tile_load_left<solving, true>(behind,
                                                  residual_grads + v * turned_stride + i * TILE,
                                                  turned_stride, turned_plane);
                    tile_multiply<solving, solving, true>(h[p / waves], behind, right,
                                                          turned_stride, turned_plane);
                }
            }
    }

    FWA_METHOD void pairs_of_features(Sum (&by_key)[shares], Sum (&by_query)[shares]) const
    {
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
#pragma unroll 1
                for (int d = 0; d < slice_dims; d += TILE) {
                    Parts<PARTS> left;
                    const uint16_t *right = keys + j * TILE * row_stride + d;
                    tile_load_left<PARTS>(left, queries + i * TILE * row_stride + d, row_stride,
                                          row_plane);
                    tile_multiply<PARTS, PARTS>(by_query[p / waves], left, right, row_stride,
                                                row_plane);
                    if (a.objective != REGRESSION)
                        continue;
                    tile_load_left<PARTS>(left, keys + i * TILE * row_stride + d, row_stride,
                                          row_plane);
                    tile_multiply<PARTS, PARTS>(by_key[p / waves], left, right, row_stride,
                                                row_plane);
                }
            }
    }

    /* Inner products of each pair's reads and predictions with their gradients, but for eta and
     * decays. */
    FWA_METHOD void store_flows(const Sum (&by_key)[shares], const Sum (&by_query)[shares]) const
    {
        const bool after = a.read == AFTER_WRITE, regression = a.objective == REGRESSION;
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
#pragma unroll
                for (int at = 0; at < tile_elements; at++) {
                    const int t = i * TILE + element_row(at), pair = j * TILE + element_column(at);
                    const float inverse = of(FWA_GPU_INVERSE)[pair];
                    reads[t * flow + pair] = pair < t || (pair == t && after)
                                                 ? a.scale * of(FWA_GPU_QUERY_INVERSE)[t] *
                                                       inverse * by_query[p / waves].at[at] *
                                                       u[p / waves].at[at]
                                                 : 0;
                    predictions[t * flow + pair] = pair < t && regression
                                                       ? -of(FWA_GPU_INVERSE)[t] * inverse *
                                                             by_key[p / waves].at[at] *
                                                             h[p / waves].at[at]
                                                       : 0;
                }
            }
    }

    static FWA_METHOD int element_row(int at)
    {
        return tile_row(lane(), tile_row_of(at));
    }

    static FWA_METHOD int element_column(int at)
    {
        return tile_column(lane(), tile_column_of(at));
    }

    /* Decays from token i on, and its pair's flow: to its own eta, and over each later gamma, which
     * takes the place of the reads. By one thread. */
    FWA_METHOD void sum_flow(int i) const
    {
        const bool after = a.read == AFTER_WRITE, decayed = a.prediction == DECAYED;
        const float *gamma = of(FWA_GPU_GAMMA), *from = decay + i * flow;
        const float weight = of(FWA_GPU_ETA)[i];
        float behind = 0, next_read = 0, next_prediction = 0;
        for (int t = chunk - 1; t >= i; t--) {
            const float read = reads[t * flow + i], prediction = predictions[t * flow + i];
            const float sink = (after ? read : next_read) +
                               (decayed ? prediction : next_prediction);
            behind = sink + (t + 1 < chunk ? gamma[t + 1] * behind : 0);
            if (t > i)
                reads[t * flow + i] = weight * from[t - 1] * behind;
            next_read = read;
            next_prediction = prediction;
        }
        of(ETA_GRAD)[i] = behind;
    }

    FWA_METHOD void prepare_decays(int i) const
    {
        const float *gamma = of(FWA_GPU_GAMMA);
        float product = 1;
        for (int t = i < chunk ? i : 0; t < chunk; t++) {
            product *= t > i || i == chunk ? gamma[t] : 1;
            (i < chunk ? decay + i * flow : of(PREFIX))[t] = product;
        }
        if (i < chunk)
            of(END)[i] = product;
    }

    /* U and H times what they weigh other rows with; `which` of four matrices. */
    FWA_METHOD void store_matrix(int which, int t, int pair, float value) const
    {
        uint16_t *to = matrix + which * solving * matrix_plane + t * turned_stride + pair;
#pragma unroll
        for (int part = 0; part < solving; part++) {
            const uint16_t half = (uint16_t)(tile_round(value, 0) & 0xffffu);
            to[part * matrix_plane] = half;
            value -= fwa_bf16_to_float(half);
        }
    }

    FWA_METHOD void weigh_pairs()
    {
        const bool after = a.read == AFTER_WRITE, decayed = a.prediction == DECAYED;
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
#pragma unroll
                for (int at = 0; at < tile_elements; at++) {
                    const int t = i * TILE + element_row(at), pair = j * TILE + element_column(at);
                    const float *from = decay + pair * flow;
                    const float weight = of(FWA_GPU_ETA)[pair];
                    float &read = u[p / waves].at[at], &prediction = h[p / waves].at[at];
                    if (pair < t) {
                        read *= a.scale * weight * from[after ? t : t - 1];
                        prediction *= -weight * from[decayed ? t : t - 1];
                    } else {
                        read *= pair == t && after ? a.scale * weight : 0;
                        prediction = 0;
                    }
                }
            }
    }

    FWA_METHOD void store_matrices() const
    {
        int p = 0;
#pragma unroll
        for (int i = 0; i < tiles; i++)
#pragma unroll
            for (int j = 0; j <= i; j++, p++) {
                if (p % waves != thread() / wave)
                    continue;
#pragma unroll
                for (int at = 0; at < tile_elements; at++) {
                    const int t = i * TILE + element_row(at), pair = j * TILE + element_column(at);
                    const float read = u[p / waves].at[at], prediction = h[p / waves].at[at];
                    store_matrix(0, t, pair, read * of(FWA_GPU_INVERSE)[pair]);
                    store_matrix(1, t, pair, read * of(FWA_GPU_QUERY_INVERSE)[t]);
                    if (a.objective != REGRESSION)
                        continue;
                    store_matrix(2, t, pair, prediction * of(FWA_GPU_INVERSE)[pair]);
                    store_matrix(3, t, pair, prediction * of(FWA_GPU_INVERSE)[t]);
                }
            }
    }

    /* Leaves the weighed pairs as matrices, and the gradients of gates as far as they come from pairs. */
    FWA_METHOD void pairs_of_tokens()
    {
        Sum by_key[shares], by_query[shares];
#pragma unroll
        for (int i = 0; i < shares; i++)
            clear(u[i]), clear(h[i]), clear(by_key[i]), clear(by_query[i]);
        for (int64_t v0 = 0; v0 < a.value_dim; v0 += slice) {
            barrier();
            stage_values_of(v0);
            copy_wait();
            barrier();
            pairs_of_values();
        }
        for (int d0 = 0; d0 < DIM; d0 += slice_dims) {
            barrier();
            stage_features(d0);
            copy_wait();
            barrier();
            pairs_of_features(by_key, by_query);
        }
        if (thread() <= chunk)
            prepare_decays(thread());
        store_flows(by_key, by_query);
        barrier();
        if (thread() < chunk)
            sum_flow(thread());
        weigh_pairs();
        barrier();
        if (thread() < chunk) {
            float sum = 0;
            for (int pair = 0; pair < thread(); pair++)
                sum += reads[thread() * flow + pair];
            of(GAMMA_GRAD)[thread()] = sum;
        }
        barrier();
        store_matrices();
    }

    /* ---- Dimensions ---- */

    /* Inner products of rows of a slice's features with sums, added up per token. */
    FWA_METHOD void add_along(int which, int i, const Sum &sum, const uint16_t *rows,
                              bool begins) const
    {
        float along[tile_rows] = {};
        const uint16_t *from = rows + i * TILE * row_stride + place_in_slice();
#pragma unroll
        for (int h_ = 0; h_ < tile_rows; h_++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++)
                along[h_] += sum.at[tile_index(h_, e)] *
                             tile_element<PARTS>(from + tile_row(lane(), h_) * row_stride +
                                                     tile_column(lane(), e),
                                                 row_plane);
        tile_sum_row(along);
#pragma unroll
        for (int h_ = 0; h_ < tile_rows; h_++) {
            float *to = of(ALONG_STATE + which * waves + thread() / wave) + i * TILE +
                        tile_row(lane(), h_);
            if (tile_sharer(lane()) == 0)
                *to = (begins ? 0 : *to) + along[h_];
        }
    }

    /* A tile of gradients of features, of dimensions from d on. */
    FWA_METHOD void store_grads(float *array, int i, int d, const Sum &sum) const
    {
        float *to = array + (head * a.batch * a.tokens + s.before + place.t0) * a.key_dim;
#pragma unroll
        for (int at = 0; at < tile_elements; at++) {
            const int t = i * TILE + element_row(at), column = d + element_column(at);
            if (place.has(t) && column < a.key_dim)
                to[(int64_t)t * a.key_dim + column] = sum.at[at];
        }
    }

    FWA_METHOD void add_pairs(Sum &sum, int which, int i, int j, bool turned,
                              const uint16_t *rows) const
    {
        const uint16_t *from = matrix + which * solving * matrix_plane +
                               (turned ? j : i) * TILE * turned_stride + (turned ? i : j) * TILE;
        Parts<solving> left;
        if (turned)
            tile_load_left<solving, true>(left, from, turned_stride, matrix_plane);
        else
            tile_load_left<solving>(left, from, turned_stride, matrix_plane);
        tile_multiply<solving, PARTS, true>(
            sum, left, rows + j * TILE * row_stride + place_in_slice(), row_stride, row_plane);
    }

    /* Gradients of a slice's dimensions, from the products with states, which are weighed here. */
    FWA_METHOD void finish_dims(int d0, Sum (&by_read)[tiles], Sum (&by_write)[tiles],
                                Sum (&by_prediction)[tiles]) const
    {
        const bool after = a.read == AFTER_WRITE, decayed = a.prediction == DECAYED;
        const bool regression = a.objective == REGRESSION;
        const float *prefix = of(PREFIX);
#pragma unroll
        for (int i = 0; i < tiles; i++) {
            add_along(0, i, by_read[i], queries, d0 == 0);
            add_along(1, i, by_prediction[i], keys, d0 == 0);
            add_along(2, i, by_write[i], keys, d0 == 0);
#pragma unroll
            for (int at = 0; at < tile_elements; at++) {
                const int t = i * TILE + element_row(at);
                const float before = t > 0 ? prefix[t - 1] : 1, behind = prefix[t];
                by_read[i].at[at] *= a.scale * (after ? behind : before);
                by_write[i].at[at] = by_write[i].at[at] * of(FWA_GPU_ETA)[t] * of(END)[t] -
                                     by_prediction[i].at[at] * (decayed ? behind : before);
            }
#pragma unroll
            for (int j = 0; j < tiles; j++) {
                if (j <= i)
                    add_pairs(by_read[i], 0, i, j, false, keys);
                if (j >= i)
                    add_pairs(by_write[i], 1, i, j, true, queries);
                if (j <= i && regression)
                    add_pairs(by_write[i], 2, i, j, false, keys);
                if (j >= i && regression)
                    add_pairs(by_write[i], 3, i, j, true, keys);
            }
            store_grads(a.query_partial, i, d0 + place_in_slice(), by_read[i]);
            store_grads(a.key_partial, i, d0 + place_in_slice(), by_write[i]);
        }
    }

    /* Two neighbours from their parts. */
    template <int COUNT> static FWA_METHOD void load_pair(const uint16_t *from, float (&to)[2])
    {
        to[0] = to[1] = 0;
#pragma unroll
        for (int part = 0; part < COUNT; part++) {
            const uint32_t pair = *(const uint32_t *)(from + part * state_plane);
            to[0] += tile_low(pair);
            to[1] += tile_high(pair);
        }
    }

    FWA_METHOD float products_of_states(Sum (&by_read)[tiles], Sum (&by_write)[tiles],
                                        Sum (&by_prediction)[tiles]) const
    {
        float product = 0;
#pragma unroll 1
        for (int v = 0; v < slice; v += TILE) {
            const uint16_t *state = states + v * row_stride + place_in_slice();
            const uint16_t *grad = state_grads + v * row_stride + place_in_slice();
#pragma unroll
            for (int i = 0; i < tiles; i++) {
                Parts<PARTS> asked;
                Parts<solving> left;
                tile_load_left<PARTS>(asked, given + i * TILE * given_stride + v, given_stride,
                                      given_plane);
                tile_multiply<PARTS, solving, true>(by_read[i], asked, state, row_stride,
                                                    state_plane);
                tile_load_left<solving, true>(left, residuals + v * turned_stride + i * TILE,
                                              turned_stride, turned_plane);
                tile_multiply<solving, PARTS, true>(by_write[i], left, grad, row_stride,
                                                    state_plane);
                if (a.objective != REGRESSION)
                    continue;
                tile_load_left<solving, true>(left, residual_grads + v * turned_stride + i * TILE,
                                              turned_stride, turned_plane);
                tile_multiply<solving, solving, true>(by_prediction[i], left, state, row_stride,
                                                      state_plane);
            }
        }
#pragma unroll 2
        for (int e = 2 * thread(); e < slice * slice_dims; e += 2 * threads) {
            const int at = e / slice_dims * row_stride + e % slice_dims;
            float state[2], grad[2];
            load_pair<solving>(states + at, state);
            load_pair<PARTS>(state_grads + at, grad);
            product += state[0] * grad[0] + state[1] * grad[1];
        }
        return product;
    }

    FWA_METHOD void dimensions() const
    {
        float product[1] = {0};
        for (int d0 = 0; d0 < DIM; d0 += slice_dims) {
            Sum by_read[tiles], by_write[tiles], by_prediction[tiles];
#pragma unroll
            for (int i = 0; i < tiles; i++)
                clear(by_read[i]), clear(by_write[i]), clear(by_prediction[i]);
            for (int64_t v0 = 0; v0 < a.value_dim; v0 += slice) {
                barrier();
                stage_values_of(v0);
                stage_states(v0, d0);
                copy_wait();
                barrier();
                product[0] += products_of_states(by_read, by_write, by_prediction);
            }
            barrier();
            stage_features(d0);
            copy_wait();
            barrier();
            finish_dims(d0, by_read, by_write, by_prediction);
        }
        sum_lanes<1, wave>(product);
        if (lane() == 0)
            of(STATE)[thread() / wave] = product[0];
        barrier();
    }

    /* ---- Gates ---- */

    FWA_METHOD float along(int which, int t) const
    {
        float sum = 0;
        for (int w = 0; w < waves; w++)
            sum += of(ALONG_STATE + which * waves + w)[t];
        return sum;
    }

    /* What flows from the state before over each gamma; by one thread. */
    FWA_METHOD void flow_of_state() const
    {
        const bool after = a.read == AFTER_WRITE, decayed = a.prediction == DECAYED;
        float behind = 0, next_read = 0, next_prediction = 0;
        for (int w = 0; w < waves; w++)
            behind += of(STATE)[w];
        for (int t = chunk - 1; t >= 0; t--) {
            const float read = a.scale * of(FWA_GPU_QUERY_INVERSE)[t] * along(0, t);
            const float prediction = -of(FWA_GPU_INVERSE)[t] * along(1, t);
            const float sink = (after ? read : next_read) +
                               (decayed ? prediction : next_prediction);
            behind = sink + (t + 1 < chunk ? of(FWA_GPU_GAMMA)[t + 1] : 1) * behind;
            of(GAMMA_GRAD)[t] += (t > 0 ? of(PREFIX)[t - 1] : 1) * behind;
            next_read = read;
            next_prediction = prediction;
        }
    }

    /* And from pairs to L. */
    FWA_METHOD void flow_to_state() const
    {
        float before = 0;
        for (int t = 0; t < chunk; t++) {
            of(GAMMA_END)[t] = before * of(END)[t];
            before = of(FWA_GPU_GAMMA)[t] * before +
                     of(FWA_GPU_ETA)[t] * of(FWA_GPU_INVERSE)[t] * along(2, t);
        }
    }

    FWA_METHOD float gate_input(const fwa_gpu_view &view, int64_t t, float absent) const
    {
        return present(view) ? load(view, at3(view, s.row, s.first + t, head)) : absent;
    }

    FWA_METHOD void store_gate(const fwa_gpu_view &view, int64_t t, float value) const
    {
        if (present(view))
            store(view, at3(view, s.row, s.first + t, head), value);
    }

    FWA_METHOD void store_gates(int64_t t, const fwa_decay_gradient_f32 &made) const
    {
        store_gate(a.beta_grad, t, made.beta);
        store_gate(a.lambda_grad, t, made.lambda);
        store_gate(a.log_gate_grad, t, made.log_gate);
        a.energy_grad[head * a.batch * a.tokens + s.before + t] = made.statistic;
    }

    FWA_METHOD void gates(int i) const
    {
        const fwa_decay_knobs_f32 knobs = decay_knobs(a);
        const int64_t t = place.t0 + i;
        fwa_decay_gradient_f32 made = {0, 0, 0, 0};
        if (t >= first) {
            const float lambda = gate_input(a.lambda, t, 0), energy = of(FWA_GPU_ENERGY)[i];
            const fwa_decay_step_t_f32 step = fwa_decay_step_f32(
                &knobs, gate_input(a.beta, t, 1), lambda, gate_input(a.log_gate, t, 0), energy);
            const float eta_grad = of(ETA_GRAD)[i] +
                                   of(END)[i] * of(FWA_GPU_INVERSE)[i] * along(2, i);
            const float gamma_grad = of(GAMMA_GRAD)[i] + of(GAMMA_END)[i];
            made = fwa_decay_step_backward_f32(&knobs, &step, lambda, energy, eta_grad, gamma_grad);
        }
        store_gates(t, made);
    }

    FWA_METHOD void run()
    {
        for (int e = thread(); e < FWA_GPU_FACTORS * chunk; e += threads)
            scalar[e] = this->factors(record, 0)[e];
        pairs_of_tokens();
        dimensions();
        if (thread() == 0)
            flow_of_state();
        if (thread() == wave)
            flow_to_state();
        barrier();
        if (place.has(thread()))
            gates(thread());
    }

    FWA_METHOD void clear_gates() const
    {
        if (place.has(thread()))
            store_gates(place.t0 + thread(), {0, 0, 0, 0});
    }
};

template <int PARTS, int DIM> FWA_DEVICE void chunk_gradients(const fwa_gpu_args &a)
{
    for (int64_t unit = block(); unit < a.chunk_slots * a.heads_value; unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, 1);
        const int64_t n = Frame<PARTS, DIM>::sequence_of_slot(a, at.sequence);
        ChunkGradients<PARTS, DIM> work(a, n, at.head, at.sequence);
        if (work.place.empty())
            continue;
        if (work.s.padded) {
            work.clear_gates();
            continue;
        }
        barrier(); /* the last unit's numbers may still be read */
        work.run();
    }
}

} // namespace fwa

#define FWA_CHUNK_GRADIENTS(parts, dim)                                                            \
    FWA_KERNEL(chunk_gradients_##parts##_##dim, FWA_GPU_FRAME_WAVES *fwa::wave)                    \
    {                                                                                              \
        fwa::chunk_gradients<parts, dim>(args);                                                    \
    }

FWA_CHUNK_GRADIENTS(1, 64)
FWA_CHUNK_GRADIENTS(1, 128)
FWA_CHUNK_GRADIENTS(1, 256)
FWA_CHUNK_GRADIENTS(2, 64)
FWA_CHUNK_GRADIENTS(2, 128)
FWA_CHUNK_GRADIENTS(2, 256)
FWA_CHUNK_GRADIENTS(3, 64)
FWA_CHUNK_GRADIENTS(3, 128)
FWA_CHUNK_GRADIENTS(3, 256)

#endif
