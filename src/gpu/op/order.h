/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_OP_ORDER_H
#define FWA_GPU_OP_ORDER_H

/*
 * Rows that read slots which other rows write, in place, where slot_in and slot_out both lie in
 * device memory. Each must read before the other writes. A row reads one slot, which has at most one
 * writer, its successor: the graph is trees whose edges lead to the root, and cycles with trees. The
 * rows of it run one after another, within each head and block of columns: leaves first; a cycle is
 * opened by copying one row's state aside.
 *
 * order: [0, N) 1 where the row is one of these; [N, 2N) its successor or -1; [2N, 3N) how many rows
 * it still waits for; [3N, 5N) the list; [5N] its length. An entry of the list is a row to run;
 * KEEP - row: copy that row's state aside; row | KEPT: run it from the copy.
 */

#include "recurrent.h"

namespace fwa
{

enum : int32_t { ORDER_KEEP = -1, ORDER_KEPT = 1 << 30 };

FWA_DEVICE void order_successors(const fwa_gpu_args &a)
{
    const int64_t all = a.sequences;
    for (int64_t n = block() * FWA_GPU_THREADS + thread(); n < all; n += grid() * FWA_GPU_THREADS) {
        const int64_t slot = sequence_get(a, n).slot_in;
        int32_t successor = -1, before = 0;
        const int64_t written = sequence_get(a, n).slot_out;
        for (int64_t m = 0; m < all; m++) {
            if (m == n)
                continue;
            const Sequence other = sequence_get(a, m);
            if (slot >= 0 && other.slot_out == slot)
                successor = (int32_t)m;
            if (written >= 0 && other.slot_in == written)
                before++;
        }
        a.order[n] = successor >= 0 || before > 0;
        a.order[all + n] = successor;
        a.order[2 * all + n] = before;
    }
}

/* One thread. A row that is done is marked by -1 rows to wait for. */
FWA_DEVICE void order_list(const fwa_gpu_args &a)
{
    const int64_t all = a.sequences;
    const int32_t *successor = a.order + all;
    int32_t *waits = a.order + 2 * all, *list = a.order + 3 * all, count = 0;
    if (block() != 0 || thread() != 0)
        return;
    for (int64_t n = 0; n < all; n++) /* along the paths, as far as they wait for nobody else */
        for (int64_t m = n; a.order[m] && waits[m] == 0;) {
            list[count++] = (int32_t)m;
            waits[m] = -1;
            m = successor[m] >= 0 ? successor[m] : m;
            if (waits[m] > 0)
                waits[m]--;
        }
    for (int64_t n = 0; n < all; n++) { /* cycles are left, each row waiting for one */
        if (!a.order[n] || waits[n] < 0)
            continue;
        list[count++] = ORDER_KEEP - (int32_t)n;
        waits[n] = -1;
        for (int32_t m = successor[n]; m != n; m = successor[m]) {
            list[count++] = m;
            waits[m] = -1;
        }
        list[count++] = (int32_t)n | ORDER_KEPT;
    }
    list[2 * all] = count;
}

/* The rows of the list, in its order, for one head and block of columns. */
template <int ROWS> FWA_DEVICE void recurrent_ordered(const fwa_gpu_args &a)
{
    const int32_t *list = a.order + 3 * a.sequences;
    const int32_t count = list[2 * a.sequences];
    for (int64_t unit = block(); unit < (int64_t)a.heads_value * a.blocks; unit += grid())
        for (int32_t i = 0; i < count; i++) {
            const int32_t entry = list[i], n = entry < 0 ? ORDER_KEEP - entry : entry & ~ORDER_KEPT;
            Recurrent<ROWS> r(a, n, unit / a.blocks, unit % a.blocks);
            if (entry < 0) {
                r.keep_state(a.kept);
                continue;
            }
            r.forward(entry & ORDER_KEPT ? a.kept : a.carry_in.state,
                      entry & ORDER_KEPT ? 0 : r.s.slot_in);
            barrier(); /* the next row reads what other threads may have written */
        }
}

} // namespace fwa

FWA_KERNEL(order_successors, 128)
{
    fwa::order_successors(args);
}

FWA_KERNEL(order_list, 128)
{
    fwa::order_list(args);
}

FWA_KERNEL(recurrent_ordered_64, 128)
{
    fwa::recurrent_ordered<4>(args);
}

FWA_KERNEL(recurrent_ordered_128, 128)
{
    fwa::recurrent_ordered<8>(args);
}

FWA_KERNEL(recurrent_ordered_256, 128)
{
    fwa::recurrent_ordered<16>(args);
}

#endif
