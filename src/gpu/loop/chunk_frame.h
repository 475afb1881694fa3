/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_FRAME_H
#define FWA_GPU_LOOP_CHUNK_FRAME_H

/*
 * Chunks of one gate per head, as four kernels see them. All that depends on keys, queries and gates
 * alone is a chunk's record, which chunk_prepare makes for all chunks at once; the passes through a
 * sequence, forward and back, then need products only, and chunk_gradients again has all chunks at once.
 *
 * Chunks end where the tokens seen are a multiple of their length, and at the token whose state is
 * committed. Numbers of sequences' lengths are the device's alone, so chunks have slots by an upper bound:
 * those of sequence n begin at (tokens before it) / C + 3 n.
 */

#include "../math/feature.h"
#include "../op/workspace.h"
#include "../tile/tile.h"

namespace fwa
{

/* A chunk's tokens: rows begin .. end - 1 of it are there, none: there is no such chunk. Row i is token
 * t0 + i, which were seen a multiple of the chunk's length before: so a sequence may be cut anywhere, and
 * what is computed of a token stays the same to the bit. */
struct FramePlace {
    int64_t t0;
    int begin, end;

    FWA_METHOD bool has(int i) const
    {
        return i >= begin && i < end;
    }

    FWA_METHOD bool empty() const
    {
        return begin >= end;
    }
};

/* Features of a chunk's tokens in memory, in bf16 parts: rows from token 0 of the chunk on. */
struct FrameRows {
    const uint16_t *at;
    int64_t row, plane;
    int begin, end; /* the rows that are there */
};

template <int PARTS, int DIM> struct Frame {
    static constexpr int tiles = FWA_GPU_FRAME_TILES(PARTS, DIM, FWA_SHARED_LIMIT);
    static constexpr int chunk = tiles * TILE; /* tokens */
    static constexpr int stride = DIM + 8;     /* eight rows of 16 bytes then lie in all banks */
    static constexpr int plane = chunk * stride;
    static constexpr int threads = FWA_GPU_FRAME_WAVES * wave;
    static constexpr int solving = FWA_GPU_SOLVING_PARTS(PARTS);
    static constexpr int record_bytes = FWA_GPU_RECORD_BYTES(PARTS, tiles);
    static constexpr int square = TILE * TILE;

    const fwa_gpu_args &a;
    Sequence s;
    int64_t head, key, query;
    int64_t first; /* pair */

    FWA_METHOD Frame(const fwa_gpu_args &args, int64_t n, int64_t value_head)
        : a(args), s(sequence_get(args, n)), head(value_head), key(key_head(args, value_head)),
          query(query_head(args, value_head)), first(first_pair(args, s))
    {
    }

    /* ---- Places ---- */

    FWA_METHOD FramePlace place_at(int64_t index) const
    {
        const int64_t offset = s.seen % chunk, cut = s.commit;
        const bool cuts = cut > 0 && cut < s.length && (offset + cut) % chunk != 0;
        const int64_t cut_index = cuts ? (offset + cut) / chunk : INT64_MAX;
        const int64_t t0 = (index > cut_index ? index - 1 : index) * chunk - offset;
        int64_t begin = t0, end = t0 + chunk;
        if (index == cut_index)
            end = cut;
        if (cuts && index == cut_index + 1)
            begin = cut;
        if (begin < 0)
            begin = 0;
        if (end > s.length)
            end = s.length;
        return {t0, (int)(begin - t0), begin < end ? (int)(end - t0) : 0};
    }

    static FWA_METHOD int64_t first_slot(int64_t before, int64_t n)
    {
        return before / chunk + 3 * n;
    }

    FWA_METHOD int64_t slot_of(int64_t index) const
    {
        return first_slot(s.before, s.index) + index;
    }

    /* The sequence that has a slot. */
    static FWA_METHOD int64_t sequence_of_slot(const fwa_gpu_args &a, int64_t slot)
    {
        int64_t low = 0, high = a.sequences;
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            const int64_t before = present(a.cu_seqlens)
                                       ? clamp(integer(a.cu_seqlens, middle), 0, a.tokens)
                                       : middle * a.tokens;
            if (first_slot(before, middle) <= slot)
                low = middle;
            else
                high = middle;
        }
        return low;
    }

    /* ---- Records ---- */

    FWA_METHOD int64_t unit_of(int64_t index) const
    {
        return slot_of(index) * a.heads_value + head;
    }

    FWA_METHOD unsigned char *record_of(int64_t index) const
    {
        return a.records + unit_of(index) * record_bytes;
    }

    static FWA_METHOD uint16_t *inverse_tile(unsigned char *record, int i)
    {
        return (uint16_t *)record + i * solving * square;
    }

    /* What residuals of tile j take from those of tile i behind, negative. */
    static FWA_METHOD uint16_t *key_tile(unsigned char *record, int i, int j)
    {
        return (uint16_t *)record + (tiles + i * (i - 1) / 2 + j) * solving * square;
    }

    static FWA_METHOD uint16_t *query_tile(unsigned char *record, int i, int j)
    {
        return (uint16_t *)record + tiles * (tiles + 1) / 2 * solving * square +
               (i * (i + 1) / 2 + j) * solving * square;
    }

    static FWA_METHOD float *factors(unsigned char *record, int which)
    {
        return (float *)(record + FWA_GPU_RECORD_TILES(PARTS, tiles)) + which * chunk;
    }

    /* ---- Rows ---- */

    /* Rows of such a tensor are features as they are. */
    FWA_METHOD bool plain(const fwa_gpu_view &view) const
    {
        return PARTS == 1 && a.key_dim == DIM && a.phi == IDENTITY && view.stride[3] == 1 &&
               (uintptr_t)view.data % 16 == 0 &&
               (view.stride[0] | view.stride[1] | view.stride[2]) % 8 == 0;
    }

    /* The first pair of a call may have prev_key's key, so the first chunk's keys are always copied. */
    template <bool KEYS> FWA_METHOD bool copied(const FramePlace &place) const
    {
        return !plain(KEYS ? a.k : a.q) || (KEYS && place.t0 + place.begin == 0);
    }

    template <bool KEYS> FWA_METHOD uint16_t *copy_of(int64_t index) const
    {
        const int64_t heads = KEYS ? a.heads_key : a.heads_query;
        const int64_t row = plain(KEYS ? a.k : a.q) ? s.index : slot_of(index);
        return (KEYS ? a.key_rows : a.query_rows) +
               (row * heads + (KEYS ? key : query)) * PARTS * chunk * DIM;
    }

    template <bool KEYS> FWA_METHOD FrameRows rows_of(int64_t index, const FramePlace &place) const
    {
        if (copied<KEYS>(place))
            return {copy_of<KEYS>(index), DIM, (int64_t)chunk * DIM, 0, chunk};
        const fwa_gpu_view &view = KEYS ? a.k : a.q;
        const int shift = KEYS && a.alignment == NEXT_LATENT;
        const int64_t at = at3(view, s.row, s.first + place.t0 - shift, KEYS ? key : query);
        return {(const uint16_t *)view.data + at, view.stride[1], 0, place.begin, place.end};
    }

    /* Dimensions d0 .. d0 + WIDTH - 1 of a chunk's rows on their way to shared memory. */
    template <int WIDTH>
    FWA_METHOD void stage_rows(const FrameRows &rows, int64_t d0, uint16_t *to) const
    {
        constexpr int pieces = WIDTH / 8, step = threads / pieces;
        const int d = thread() % pieces * 8, first_row = thread() / pieces;
        const Four zeros = {{0, 0, 0, 0}};
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint16_t *from = rows.at + part * rows.plane + first_row * rows.row + d0 + d;
            uint16_t *target = to + (part * chunk + first_row) * (WIDTH + 8) + d;
#pragma unroll
            for (int i = 0; i < chunk; i += step) {
                const int row = first_row + i;
                if (row >= rows.begin && row < rows.end)
                    copy_async(target, from);
                else if (row < chunk)
                    *(Four *)target = zeros;
                from += step * rows.row;
                target += step * (WIDTH + 8);
            }
        }
    }

    /* ---- Values ---- */

    static constexpr int value_bytes = PARTS == 3 ? 4 : 2;
    static constexpr int value_stride = FWA_GPU_FRAME_STRIDE;

    /* True where a block's columns of such a tensor are whole pieces of 16 bytes. */
    FWA_METHOD bool in_pieces(const fwa_gpu_view &view) const
    {
        constexpr int each = 16 / value_bytes;
        return view.stride[3] == 1 && (uintptr_t)view.data % 16 == 0 && a.value_dim % each == 0 &&
               (view.stride[0] | view.stride[1] | view.stride[2]) % each == 0;
    }

    /* WIDTH columns of a chunk's tokens from `from` on, in their own type, on their way to shared memory,
     * rows `to_stride` apart; zeros elsewhere. */
    template <int WIDTH>
    FWA_METHOD void stage_values(const fwa_gpu_view &view, const FramePlace &place, int from,
                                 int64_t column0, int to_stride, unsigned char *to) const
    {
        constexpr int each = 16 / value_bytes, pieces = WIDTH / each;
        const int64_t offset = at3(view, s.row, s.first + place.t0, head);
        const Four zeros = {{0, 0, 0, 0}};
        if (in_pieces(view)) {
            constexpr int step = threads / pieces;
            const int c = thread() % pieces * each, first_row = thread() / pieces;
            const unsigned char *source = (const unsigned char *)view.data +
                                          (offset + first_row * view.stride[1] + column0 + c) *
                                              value_bytes;
            unsigned char *target = to + (first_row * to_stride + c) * value_bytes;
            const int end = column0 + c < a.value_dim ? place.end : 0;
#pragma unroll
            for (int i = 0; i < chunk; i += step) {
                const int row = first_row + i;
                if (row >= from && row < end)
                    copy_async(target, source);
                else if (row < chunk)
                    *(Four *)target = zeros;
                source += step * view.stride[1] * value_bytes;
                target += step * to_stride * value_bytes;
            }
            return;
        }
#pragma unroll 1
        for (int e = thread(); e < chunk * WIDTH; e += threads) {
            const int i = e / WIDTH, c = e % WIDTH;
            const int64_t at = offset + i * view.stride[1] + (column0 + c) * view.stride[3];
            const bool given = i >= from && i < place.end && column0 + c < a.value_dim;
            const int target = i * to_stride + c;
            if (value_bytes == 4)
                ((uint32_t *)to)[target] = given ? ((const uint32_t *)view.data)[at] : 0;
            else
                ((uint16_t *)to)[target] = given ? ((const uint16_t *)view.data)[at] : 0;
        }
    }

    /* `bytes` of memory, a multiple of 16, on their way to shared memory. */
    static FWA_METHOD void stage_bytes(const void *from, int bytes, void *to)
    {
#pragma unroll 4
        for (int e = thread() * 16; e < bytes; e += threads * 16)
            copy_async((unsigned char *)to + e, (const unsigned char *)from + e);
    }
};

} // namespace fwa

#endif
