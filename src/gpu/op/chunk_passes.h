/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_CHUNK_PASSES_H
#define FWA_GPU_OP_CHUNK_PASSES_H

/*
 * The two passes through a sequence's chunks (loop/chunk_pass.h). Forward, a chunk's residuals r are
 * those of its values and of what its keys predict in the state before; they give outputs and the
 * state behind (maths.md, section 8). Back, the gradients of outputs and of the state behind give
 * those of the residuals, which are the values', and of the state before (section 9).
 */

#include "../loop/chunk_pass.h"
#include "../math/walk.h"

namespace fwa
{

template <int PARTS, int DIM> struct ForwardPass : ChunkPass<PARTS, DIM> {
    using Base = ChunkPass<PARTS, DIM>;
    using Base::a, Base::s, Base::first, Base::tiles, Base::solving, Base::square, Base::place;
    using Base::record, Base::keys, Base::queries, Base::chunk;

    FWA_METHOD ForwardPass(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t block)
        : Base(args, n, value_head, block)
    {
    }

    FWA_METHOD void stage(int64_t number, const FramePlace &at) const
    {
        const int from = at.t0 + at.begin < first ? (int)(first - at.t0) : at.begin;
        if (!at.empty())
            Base::stage(number, at, a.v, from);
    }

    /* Values become residuals. */
    FWA_METHOD void solve(Sum (&r)[tiles], bool great) const
    {
        Sum predicted[tiles];
        Parts<solving> parts[tiles];
        this->read(predicted, keys, FWA_GPU_KEY_FACTOR);
        if (PARTS == 1 && great)
            this->read_rest(predicted, keys, FWA_GPU_KEY_FACTOR,
                            (int)this->factor(FWA_GPU_SCALARS)[1]);
#pragma unroll
        for (int i = 0; i < tiles; i++) {
#pragma unroll
            for (int e = 0; e < tile_elements; e++)
                predicted[i].at[e] = r[i].at[e] - predicted[i].at[e];
#pragma unroll
            for (int j = 0; j < i; j++)
                tile_multiply<solving, solving>(predicted[i], parts[j],
                                                this->key_tile(record, i, j), TILE, square);
            this->clear(r[i]);
            tile_multiply_triangle<solving, solving>(r[i], predicted[i],
                                                     this->inverse_tile(record, i), true);
            tile_left<solving>(parts[i], r[i]);
        }
    }

    FWA_METHOD void read_outputs(const Sum (&r)[tiles]) const
    {
        const bool after = a.read == AFTER_WRITE;
        Sum o[tiles];
        this->read(o, queries, FWA_GPU_QUERY_FACTOR);
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            Parts<solving> left;
            tile_left<solving>(left, r[j]);
            tile_multiply_triangle<solving, solving>(o[j], r[j], this->query_tile(record, j, j),
                                                     after);
#pragma unroll
            for (int i = j + 1; i < tiles; i++)
                tile_multiply<solving, solving>(o[i], left, this->query_tile(record, i, j), TILE,
                                                square);
        }
#pragma unroll
        for (int i = 0; i < tiles; i++)
            this->put_values(o[i], i, a.o);
        this->store_values(a.o);
    }

    FWA_METHOD void compute()
    {
        const bool great = this->factor(FWA_GPU_SCALARS)[1] < (float)chunk;
        Sum r[tiles];
#pragma unroll
        for (int i = 0; i < tiles; i++)
            this->load_values(r[i], i, a.v);
        if (a.objective == REGRESSION)
            solve(r, great);
        if (a.chunk_states) {
            this->template keep_state<solving>(a.chunk_states);
            this->keep_rows(r, a.residuals);
        } else {
            read_outputs(r);
        }
        this->decay_state();
        if (PARTS == 1 && great && a.objective == REGRESSION)
            this->template write<2>(r, FWA_GPU_WRITE_FACTOR, 1, keys);
        else
            this->template write<PARTS>(r, FWA_GPU_WRITE_FACTOR, 1, keys);
        if (place.t0 + place.end == s.commit)
            this->store_state(a.carry_out.state, s.slot_out);
    }

    FWA_METHOD void run()
    {
        constexpr int ahead = Base::slots > 1;
        FramePlace at = {0, 0, 0}, next = this->place_at(0);
        this->load_state(a.carry_in.state, s.slot_in);
        if (s.commit == 0)
            this->copy_state();
        for (int64_t number = -1; number < 0 || !at.empty(); number++) {
            if (ahead)
                stage(number + 1, next);
            if (number >= 0) {
                this->enter(number, at);
                compute();
            }
            if (!ahead) {
                barrier();
                stage(number + 1, next);
            }
            copy_wait();
            barrier();
            at = next;
            next = this->place_at(number + 2);
        }
    }
};

template <int PARTS, int DIM> struct BackwardPass : ChunkPass<PARTS, DIM> {
    using Base = ChunkPass<PARTS, DIM>;
    using Base::a, Base::s, Base::tiles, Base::solving, Base::square, Base::record, Base::keys;
    using Base::queries, Base::column0, Base::chunk;

    FWA_METHOD BackwardPass(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t block)
        : Base(args, n, value_head, block)
    {
    }

    /* Gradients of residuals, from later ones' to those of the residuals as they are given. */
    FWA_METHOD void solve(Sum (&r)[tiles]) const
    {
        Parts<solving> parts[tiles];
#pragma unroll
        for (int i = tiles - 1; i >= 0; i--) {
#pragma unroll
            for (int j = i + 1; j < tiles; j++)
                tile_multiply<solving, solving, true>(r[i], parts[j], this->key_tile(record, j, i),
                                                      TILE, square);
            const Sum given = r[i];
            this->clear(r[i]);
            tile_multiply_triangle<solving, solving, true>(r[i], given,
                                                           this->inverse_tile(record, i), true);
            tile_left<solving>(parts[i], r[i]);
        }
    }

    FWA_METHOD void compute()
    {
        const bool after = a.read == AFTER_WRITE, regression = a.objective == REGRESSION;
        const bool great = PARTS == 1 && regression &&
                           this->factor(FWA_GPU_SCALARS)[1] < (float)chunk;
        Sum given[tiles], r[tiles];
        this->template keep_state<PARTS>(a.chunk_state_grads);
        this->read(r, keys, FWA_GPU_WRITE_FACTOR);
        if (great)
            this->read_rest(r, keys, FWA_GPU_WRITE_FACTOR, 0);
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            Parts<PARTS> left; /* which is exact */
            this->load_values(given[j], j, a.o_grad);
            tile_left<PARTS>(left, given[j]);
            tile_multiply_triangle<PARTS, solving, true>(r[j], given[j],
                                                         this->query_tile(record, j, j), after);
#pragma unroll
            for (int i = 0; i < j; i++)
                tile_multiply<PARTS, solving, true>(r[i], left, this->query_tile(record, j, i),
                                                    TILE, square);
        }
        if (regression)
            solve(r);
        this->keep_rows(r, a.residual_grads);
        if (present(a.v_grad)) {
#pragma unroll
            for (int i = 0; i < tiles; i++)
                this->put_values(r[i], i, a.v_grad);
            this->store_values(a.v_grad);
        }
        this->decay_state();
        this->template write<PARTS>(given, FWA_GPU_QUERY_FACTOR, 1, queries);
        if (great)
            this->template write<2>(r, FWA_GPU_KEY_FACTOR, -1, keys);
        else if (regression)
            this->template write<PARTS>(r, FWA_GPU_KEY_FACTOR, -1, keys);
    }

    /* Nothing was read of a row that stands for no sequence. */
    FWA_METHOD void clear_values() const
    {
        const fwa_gpu_view &view = a.v_grad;
        if (!present(view))
            return;
        for (int64_t e = thread(); e < s.length * FWA_GPU_FRAME_COLUMNS; e += Base::threads) {
            const int64_t c = column0 + e % FWA_GPU_FRAME_COLUMNS;
            if (c < a.value_dim)
                store(view, at3(view, s.row, s.first + e / FWA_GPU_FRAME_COLUMNS, this->head) + c,
                      0);
        }
    }

    FWA_METHOD void run()
    {
        constexpr int ahead = Base::slots > 1;
        this->load_state(a.carry_out_grad.state, s.padded ? -1 : s.index);
        if (s.padded)
            clear_values();
        const int64_t count = s.padded || s.length == 0
                                  ? 0
                                  : (s.seen % chunk + s.length + chunk - 1) / chunk;
        FramePlace at = {0, 0, 0};
        for (int64_t number = count; count > 0 && number >= 0; number--) {
            const FramePlace next = this->place_at(number > 0 ? number - 1 : 0);
            if (ahead && number > 0)
                Base::stage(number - 1, next, a.o_grad, next.begin);
            if (number < count) {
                this->enter(number, at);
                compute();
            }
            if (!ahead) {
                barrier();
                if (number > 0)
                    Base::stage(number - 1, next, a.o_grad, next.begin);
            }
            copy_wait();
            barrier();
            at = next;
        }
        if (s.slot_in < 0)
#pragma unroll
            for (int j = 0; j < Base::dims; j++)
                this->clear(this->state[j]);
        this->store_state(a.carry_in_grad.state, s.index);
    }
};

/* Sequences of a few tokens are the recurrent kernels', and so are those whose slots cross. */
template <int PARTS, int DIM> FWA_DEVICE void chunk_forward_pass(const fwa_gpu_args &a)
{
    for (int64_t unit = block(); unit < a.sequences * a.heads_value * a.chunk_blocks;
         unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, a.chunk_blocks);
        ForwardPass<PARTS, DIM> pass(a, at.sequence, at.head, at.block);
        if (pass.s.padded || pass.s.length <= a.short_tokens ||
            (a.crossing && a.order[pass.s.index] != 0))
            continue;
        barrier(); /* the chunks of the last unit may still be read */
        pass.run();
    }
}

template <int PARTS, int DIM> FWA_DEVICE void chunk_backward_pass(const fwa_gpu_args &a)
{
    for (int64_t unit = block(); unit < a.sequences * a.heads_value * a.chunk_blocks;
         unit += grid()) {
        const Unit at = unit_get(unit, a.heads_value, a.chunk_blocks);
        BackwardPass<PARTS, DIM> pass(a, at.sequence, at.head, at.block);
        barrier();
        pass.run();
    }
}

} // namespace fwa

/* Of rows of up to 128 dimensions two blocks fit on a processor. */
#define FWA_CHUNK_PASSES(parts, dim)                                                               \
    FWA_KERNEL_RESIDENT(chunk_forward_pass_##parts##_##dim, FWA_GPU_FRAME_WAVES *fwa::wave,        \
                        dim > 128 ? 1 : 2)                                                         \
    {                                                                                              \
        fwa::chunk_forward_pass<parts, dim>(args);                                                 \
    }                                                                                              \
    FWA_KERNEL_RESIDENT(chunk_backward_pass_##parts##_##dim, FWA_GPU_FRAME_WAVES *fwa::wave,       \
                        dim > 128 ? 1 : 2)                                                         \
    {                                                                                              \
        fwa::chunk_backward_pass<parts, dim>(args);                                                \
    }

FWA_CHUNK_PASSES(1, 64)
FWA_CHUNK_PASSES(1, 128)
FWA_CHUNK_PASSES(1, 256)
FWA_CHUNK_PASSES(2, 64)
FWA_CHUNK_PASSES(2, 128)
FWA_CHUNK_PASSES(2, 256)
FWA_CHUNK_PASSES(3, 64)
FWA_CHUNK_PASSES(3, 128)
FWA_CHUNK_PASSES(3, 256)

#endif
