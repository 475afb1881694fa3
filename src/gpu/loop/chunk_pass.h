/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_PASS_H
#define FWA_GPU_LOOP_CHUNK_PASS_H

/*
 * A pass through the chunks of a sequence, for one value head and a block of value columns, forward
 * or back. Each wave has 16 columns: their share of the state, or of its gradient, stays in registers as
 * sums of tiles. It is the left operand of the products with keys and queries, and gets products with
 * them added. Values, residuals and their gradients are tiles of 16 columns by 16 tokens.
 *
 * Copies of the next chunk are on their way while one is worked on, where there are two slots.
 */

#include "chunk_frame.h"

namespace fwa
{

/* Later residuals' errors are |1 - b| times earlier ones, b = eta |x|^2. Beyond this gain rounding the
 * state and what is written to bf16 would add up to more than the outputs' own rounding: two parts are
 * taken from such a token on. */
template <int PARTS, int DIM> struct ChunkPass : Frame<PARTS, DIM> {
    using Base = Frame<PARTS, DIM>;
    using Base::a, Base::s, Base::first, Base::head, Base::stride, Base::plane, Base::chunk;
    using Base::tiles, Base::solving, Base::square, Base::value_bytes, Base::value_stride;
    static constexpr int dims = DIM / TILE;
    static constexpr int slots = FWA_GPU_FRAME_SLOTS(PARTS, DIM, FWA_SHARED_LIMIT);
    static constexpr int slot_bytes = FWA_GPU_FRAME_SLOT(PARTS, DIM, tiles);

    int64_t column0; /* of the block */
    int share;       /* the wave's first column in the block */
    Sum state[dims];
    /* The chunk that is worked on. */
    int64_t index;
    FramePlace place;
    uint16_t *keys, *queries;
    unsigned char *values, *record;

    FWA_METHOD ChunkPass(const fwa_gpu_args &args, int64_t n, int64_t value_head, int64_t block)
        : Base(args, n, value_head), column0(block * FWA_GPU_FRAME_COLUMNS),
          share(thread() / wave * TILE)
    {
    }

    FWA_METHOD int64_t column(int h) const
    {
        return column0 + share + tile_row(lane(), h);
    }

    FWA_METHOD bool has_column(int h) const
    {
        return column(h) < a.value_dim;
    }

    FWA_METHOD const float *factor(int which) const
    {
        return this->factors(record, which);
    }

    static FWA_METHOD void clear(Sum &sum)
    {
#pragma unroll
        for (int i = 0; i < tile_elements; i++)
            sum.at[i] = 0;
    }

    /* ---- States in memory ---- */

    /* Tile j of the state goes through the wave's own: rows are dimensions there. */
    FWA_METHOD float *tile_room() const
    {
        return (float *)(shared() + slots * slot_bytes + thread() / wave * FWA_GPU_STATE_TILE);
    }

    FWA_METHOD void load_state(const fwa_gpu_view &view, int64_t slot)
    {
        const bool given = slot >= 0 && present(view);
        float *room = tile_room();
#pragma unroll
        for (int j = 0; j < dims; j++) {
#pragma unroll 1
            for (int e = lane(); e < square; e += wave) {
                const int64_t d = j * TILE + e / TILE, c = column0 + share + e % TILE;
                room[e / TILE * (TILE + 1) + e % TILE] = given && d < a.key_dim && c < a.value_dim
                                                             ? load(view, at3(view, slot, head, d) +
                                                                              c * view.stride[3])
                                                             : 0;
            }
            wave_barrier();
            tile_from_room(state[j], room);
            wave_barrier();
        }
    }

    FWA_METHOD void store_state(const fwa_gpu_view &view, int64_t slot) const
    {
        float *room = tile_room();
        if (slot < 0 || !present(view))
            return;
#pragma unroll
        for (int j = 0; j < dims; j++) {
            tile_to_room(room, state[j]);
            wave_barrier();
#pragma unroll 1
            for (int e = lane(); e < square; e += wave) {
                const int64_t d = j * TILE + e / TILE, c = column0 + share + e % TILE;
                if (d < a.key_dim && c < a.value_dim)
                    store(view, at3(view, slot, head, d) + c * view.stride[3],
                          room[e / TILE * (TILE + 1) + e % TILE]);
            }
            wave_barrier();
        }
    }

    /* Nothing is committed: the state goes over bit for bit. */
    FWA_METHOD void copy_state() const
    {
        const fwa_gpu_view &from = a.carry_in.state, &to = a.carry_out.state;
        const bool zero = s.slot_in < 0 || !present(from);
        if (s.slot_out < 0 || !present(to))
            return;
        for (int64_t e = lane(); e < (int64_t)a.key_dim * TILE; e += wave) {
            const int64_t d = e / TILE, c = column0 + share + e % TILE;
            if (c < a.value_dim)
                copy(from, zero ? 0 : at3(from, s.slot_in, head, d) + c * from.stride[3], to,
                     at3(to, s.slot_out, head, d) + c * to.stride[3], zero);
        }
    }

    /* The parts of a tile of 16 columns to rows of columns in the workspace, `width` numbers each. */
    template <int COUNT>
    FWA_METHOD void keep_tile(const Sum &sum, uint16_t *to, int width, int at) const
    {
        const int64_t all = (int64_t)a.chunk_blocks * FWA_GPU_FRAME_COLUMNS * width;
        Parts<COUNT> parts;
        tile_left<COUNT>(parts, sum);
#pragma unroll
        for (int part = 0; part < COUNT; part++)
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < tile_columns; e += 2)
                    *(uint32_t *)(to + part * all + column(h) * width + at +
                                  tile_column(lane(),
                                              e)) = parts.part[part].at[tile_index(h, e) / 2];
    }

    /* The place of a chunk of such an array. */
    FWA_METHOD uint16_t *kept(uint16_t *array, int count, int width) const
    {
        return array +
               this->unit_of(index) * count * a.chunk_blocks * FWA_GPU_FRAME_COLUMNS * width;
    }

    template <int COUNT> FWA_METHOD void keep_state(uint16_t *array) const
    {
        uint16_t *to = kept(array, COUNT, DIM);
#pragma unroll
        for (int j = 0; j < dims; j++)
            keep_tile<COUNT>(state[j], to, DIM, j * TILE);
    }

    FWA_METHOD void keep_rows(const Sum (&rows)[tiles], uint16_t *array) const
    {
        uint16_t *to = kept(array, solving, chunk);
#pragma unroll
        for (int i = 0; i < tiles; i++)
            keep_tile<solving>(rows[i], to, chunk, i * TILE);
    }

    /* ---- Chunks in shared memory ---- */

    FWA_METHOD unsigned char *slot_at(int64_t number) const
    {
        return shared() + (slots == 1 ? 0 : (int)(number % slots)) * slot_bytes;
    }

    FWA_METHOD void stage(int64_t number, const FramePlace &at, const fwa_gpu_view &view,
                          int from) const
    {
        unsigned char *to = slot_at(number);
        this->template stage_rows<DIM>(this->template rows_of<true>(number, at), 0, (uint16_t *)to);
        this->template stage_rows<DIM>(this->template rows_of<false>(number, at), 0,
                                       (uint16_t *)to + PARTS * plane);
        to += 2 * PARTS * plane * 2;
        this->template stage_values<FWA_GPU_FRAME_COLUMNS>(view, at, from, column0, value_stride,
                                                           to);
        this->stage_bytes(this->record_of(number), Base::record_bytes,
                          to + chunk * value_stride * value_bytes);
    }

    FWA_METHOD void enter(int64_t number, const FramePlace &at)
    {
        index = number;
        place = at;
        keys = (uint16_t *)slot_at(number);
        queries = keys + PARTS * plane;
        values = (unsigned char *)(queries + PARTS * plane);
        record = values + chunk * value_stride * value_bytes;
    }

    /* Where the lane's first token and column are in a tile of values. */
    FWA_METHOD int value_place(int i) const
    {
        return (i * TILE + tile_column(lane(), 0)) * value_stride + share + tile_row(lane(), 0);
    }

    FWA_METHOD void load_values(Sum &to, int i, const fwa_gpu_view &view) const
    {
        const unsigned char *from = values + value_place(i) * value_bytes;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const int at = tile_column_step(e) * value_stride + tile_row_step(h);
                const uint32_t bits = value_bytes == 4 ? ((const uint32_t *)from)[at]
                                                       : ((const uint16_t *)from)[at];
                to.at[tile_index(h, e)] = from_bits<PARTS>(view, bits);
            }
    }

    /* The wave's columns take the place of the values it had there. */
    FWA_METHOD void put_values(const Sum &from, int i, const fwa_gpu_view &view) const
    {
        unsigned char *to = values + value_place(i) * value_bytes;
        const bool bf16 = PARTS == 1 || view.dtype == BF16;
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++) {
                const float value = from.at[tile_index(h, e)];
                const int at = tile_column_step(e) * value_stride + tile_row_step(h);
                if (PARTS == 3)
                    ((uint32_t *)to)[at] = fwa_float_bits(value);
                else
                    ((uint16_t *)to)[at] = (uint16_t)(bf16 ? tile_round(value, 0)
                                                           : fwa_f16_from_float(value));
            }
    }

    /* And go to a tensor. */
    FWA_METHOD void store_values(const fwa_gpu_view &view) const
    {
        constexpr int each = 16 / value_bytes, pieces = TILE / each;
        const int64_t offset = at3(view, s.row, s.first + place.t0, head);
        const unsigned char *from = values + share * value_bytes;
        wave_barrier();
        if (this->in_pieces(view)) {
            for (int e = place.begin * pieces + lane(); e < place.end * pieces; e += wave) {
                const int i = e / pieces, c = e % pieces * each;
                const int64_t at = offset + i * view.stride[1] + column0 + share + c;
                if (column0 + share + c < a.value_dim)
                    *(Four *)((unsigned char *)view.data + at * value_bytes) = *(
                        const Four *)(from + (i * value_stride + c) * value_bytes);
            }
            return;
        }
        for (int e = place.begin * TILE + lane(); e < place.end * TILE; e += wave) {
            const int i = e / TILE, c = e % TILE;
            const int64_t at = offset + i * view.stride[1] + (column0 + share + c) * view.stride[3];
            if (column0 + share + c >= a.value_dim)
                continue;
            if (value_bytes == 4)
                ((uint32_t *)view.data)[at] = ((const uint32_t *)from)[i * value_stride + c];
            else
                ((uint16_t *)view.data)[at] = ((const uint16_t *)from)[i * value_stride + c];
        }
    }

    /* ---- Products ---- */

    /* What the chunk's rows read in the state, times `factor` of each token. */
    FWA_METHOD void read(Sum (&to)[tiles], const uint16_t *rows, int which) const
    {
        const float *by = factor(which);
#pragma unroll
        for (int i = 0; i < tiles; i++)
            clear(to[i]);
#pragma unroll
        for (int j = 0; j < dims; j++) {
            Parts<PARTS> left;
            tile_left<PARTS>(left, state[j]);
#pragma unroll
            for (int i = 0; i < tiles; i++)
                tile_multiply<PARTS, PARTS>(to[i], left, rows + i * TILE * stride + j * TILE,
                                            stride, plane);
        }
#pragma unroll
        for (int i = 0; i < tiles; i++)
            scale_tokens(to[i], by + i * TILE);
    }

    /* What rows from token `great` on read besides in what the state's rounding leaves. */
    FWA_METHOD void read_rest(Sum (&to)[tiles], const uint16_t *rows, int which, int great) const
    {
        const float *by = factor(which);
#pragma unroll
        for (int i = 0; i < tiles; i++) {
            Sum rest;
            clear(rest);
            if ((i + 1) * TILE <= great)
                continue;
#pragma unroll
            for (int j = 0; j < dims; j++) {
                Parts<PARTS + 1> left;
                Parts<1> lower;
                tile_left<PARTS + 1>(left, state[j]);
                lower.part[0] = left.part[PARTS];
                tile_multiply<1, 1>(rest, lower, rows + i * TILE * stride + j * TILE, stride,
                                    plane);
            }
            scale_tokens(rest, by + i * TILE);
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < tile_columns; e++)
                    if (i * TILE + tile_column(lane(), e) >= great)
                        to[i].at[tile_index(h, e)] += rest.at[tile_index(h, e)];
        }
    }

    static FWA_METHOD void scale_tokens(Sum &sum, const float *by)
    {
#pragma unroll
        for (int h = 0; h < tile_rows; h++)
#pragma unroll
            for (int e = 0; e < tile_columns; e++)
                sum.at[tile_index(h, e)] *= by[tile_column(lane(), e)];
    }

    FWA_METHOD void decay_state()
    {
        const float retained = factor(FWA_GPU_SCALARS)[0];
#pragma unroll
        for (int j = 0; j < dims; j++)
#pragma unroll
            for (int i = 0; i < tile_elements; i++)
                state[j].at[i] *= retained;
    }

    /* state += values, times `sign` and a factor of each token, by the chunk's rows. */
    template <int LEFT>
    FWA_METHOD void write(const Sum (&from)[tiles], int which, float sign, const uint16_t *rows)
    {
        const float *by = factor(which);
#pragma unroll
        for (int i = 0; i < tiles; i++) {
            Sum scaled = from[i];
            Parts<LEFT> left;
#pragma unroll
            for (int h = 0; h < tile_rows; h++)
#pragma unroll
                for (int e = 0; e < tile_columns; e++)
                    scaled.at[tile_index(h, e)] *= sign * by[i * TILE + tile_column(lane(), e)];
            tile_left<LEFT>(left, scaled);
#pragma unroll
            for (int j = 0; j < dims; j++)
                tile_multiply<LEFT, PARTS, true>(
                    state[j], left, rows + i * TILE * stride + j * TILE, stride, plane);
        }
    }
};

} // namespace fwa

#endif
