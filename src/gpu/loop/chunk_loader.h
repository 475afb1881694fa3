/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_LOOP_CHUNK_LOADER_H
#define FWA_GPU_LOOP_CHUNK_LOADER_H

/* The wave that loads chunks and stores their outputs (chunk.h). */

#include "chunk_place.h"

namespace fwa
{

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

} // namespace fwa

#endif
