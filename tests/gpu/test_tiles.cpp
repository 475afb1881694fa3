/* SPDX-License-Identifier: Apache-2.0 */
/* A wave's products of tiles, for test_tiles.c. `statistic`: matrices left and right; `top`: what comes of
 * them, and how often each element came; `window`: what is asked for. */

#include "../../src/gpu/tile/tile.h"
#include "test_tiles.h"

namespace fwa
{

constexpr int pitch = TILE + 8; /* rows are aligned to 16 bytes, and no tile's width apart */

FWA_DEVICE void put(const fwa_gpu_args &a, const Sum &sum)
{
    const int on = thread() % wave;
    for (int h = 0; h < tile_rows; h++)
        for (int e = 0; e < tile_columns; e++) {
            const int at = tile_row(on, h) * TILE + tile_column(on, e);
            a.top[at] = sum.at[tile_index(h, e)];
            a.top[TILE * TILE + at] += 1;
        }
}

FWA_DEVICE void run_tiles(const fwa_gpu_args &a)
{
    uint16_t *left = (uint16_t *)shared(), *right = left + TILE * pitch;
    float *room = (float *)(right + TILE * pitch);
    const bool turned_left = a.window & TEST_TURNED_LEFT,
               turned_right = a.window & TEST_TURNED_RIGHT;
    for (int e = thread(); e < TILE * TILE; e += wave) {
        const int i = e / TILE, k = e % TILE;
        left[turned_left ? k * pitch + i : i * pitch + k] = fwa_bf16_from_float(a.statistic[e]);
        right[turned_right ? k * pitch + i : i * pitch + k] = fwa_bf16_from_float(
            a.statistic[TILE * TILE + e]);
    }
    wave_barrier();
    Sum sum;
    Parts<1> operand;
    for (int i = 0; i < tile_elements; i++)
        sum.at[i] = 1;
    if (turned_left)
        tile_load_left<1, true>(operand, left, pitch, 0);
    else
        tile_load_left<1, false>(operand, left, pitch, 0);
    if (turned_right)
        tile_multiply<1, 1, true>(sum, operand, right, pitch, 0);
    else
        tile_multiply<1, 1, false>(sum, operand, right, pitch, 0);
    if (a.window & TEST_CHAINED) {
        Sum next = {};
        tile_left<1>(operand, sum);
        if (turned_right)
            tile_multiply<1, 1, true>(next, operand, right, pitch, 0);
        else
            tile_multiply<1, 1, false>(next, operand, right, pitch, 0);
        sum = next;
    }
    if (a.window & TEST_ROOM) {
        tile_to_room(room, sum);
        wave_barrier();
        for (int e = thread(); e < TILE * TILE; e += wave)
            room[e / TILE * (TILE + 1) + e % TILE] *= 2;
        wave_barrier();
        tile_from_room(sum, room);
    }
    if (a.window & TEST_ROWS) {
        float along[tile_rows] = {};
        for (int h = 0; h < tile_rows; h++)
            for (int e = 0; e < tile_columns; e++)
                along[h] += sum.at[tile_index(h, e)];
        tile_sum_row(along);
        for (int h = 0; h < tile_rows; h++)
            for (int e = 0; e < tile_columns; e++)
                sum.at[tile_index(h, e)] = along[h];
    }
    if (a.window & TEST_OWNERS) {
        const int on = thread() % wave;
        Sum shared_out = {};
        for (int n = 0; n < TILE; n++)
            for (int h = 0; h < tile_rows; h++) {
                const float got = shuffle(sum.at[tile_index(h, tile_element_of(n))],
                                          tile_owner(on, n));
                for (int e = 0; e < tile_columns; e++)
                    if (tile_column(on, e) == n)
                        shared_out.at[tile_index(h, e)] = got;
            }
        sum = shared_out;
    }
    put(a, sum);
}

} // namespace fwa

FWA_KERNEL(tiles, fwa::wave)
{
    fwa::run_tiles(args);
}
