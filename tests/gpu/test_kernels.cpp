/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for test_runtime.c, which says what each must give. Sizes and data come in whichever
 * arguments have the type: order and states are outputs, batch and columns say what to do. */

#include "../../src/gpu/vendor/vendor.h"

static const int threads = 128;

static int64_t global_thread()
{
    return fwa::block() * threads + fwa::thread();
}

static int32_t *shared_integers()
{
    return reinterpret_cast<int32_t *>(fwa::shared());
}

FWA_KERNEL(test_indices, threads)
{
    args.order[global_thread()] = (int32_t)global_thread();
}

/* Which block came when. */
FWA_KERNEL(test_block_order, threads)
{
    if (fwa::thread() == 0)
        args.order[fwa::block()] = args.order[args.pool_in]++;
}

/* Reverses threads, `batch` times; with a barrier left out where columns is 1. */
FWA_KERNEL(test_barrier, threads)
{
    int32_t *const exchange = shared_integers();
    int32_t value = (int32_t)global_thread();
    for (int64_t i = 0; i < args.batch; i++) {
        exchange[fwa::thread()] = value;
        if (args.columns != 1)
            fwa::barrier();
        value = exchange[threads - 1 - fwa::thread()] + 1;
        fwa::barrier();
    }
    args.order[global_thread()] = value;
}

/* The neighbour's value, of the same wave; with its barrier left out where columns is 1. */
FWA_KERNEL(test_wave_barrier, threads)
{
    int32_t *const exchange = shared_integers();
    exchange[fwa::thread()] = fwa::thread() + 1;
    if (args.columns != 1)
        fwa::wave_barrier();
    args.order[global_thread()] = exchange[fwa::thread() ^ 1];
}

/* Waves count in shared memory, one of them at a time between two rendezvous. */
FWA_KERNEL(test_turns, threads)
{
    int32_t *const turn = shared_integers();
    if (fwa::thread() == 0)
        *turn = 0;
    fwa::barrier();
    for (int i = 0; i < 4; i++) {
        if (fwa::thread() % fwa::wave == 0)
            args.order[(*turn)++] = fwa::thread() / fwa::wave;
        fwa::wave_barrier();
    }
}

/* A rotation by `batch` lanes, through each type; then from one lane. */
FWA_KERNEL(test_shuffle, threads)
{
    const int lane = fwa::thread() % fwa::wave;
    int value = 3 * fwa::thread();
    for (int64_t i = 0; i < args.batch; i++) {
        value = fwa::shuffle(value, (lane + 1) % fwa::wave);
        value = (int)fwa::shuffle((float)value, (lane + fwa::wave - 1) % fwa::wave);
        value = (int)fwa::shuffle((uint32_t)value, (lane + 1) % fwa::wave);
    }
    args.order[2 * global_thread()] = value;
    args.order[2 * global_thread() + 1] = fwa::shuffle(value, fwa::wave - 1);
}

template <int FROM, int TO, int N> static void sums(float *out)
{
    float values[N];
    for (int i = 0; i < N; i++)
        values[i] = (float)(fwa::thread() % fwa::wave + 1) + 0.25f * (float)i;
    fwa::sum_lanes<FROM, TO>(values);
    for (int i = 0; i < N; i++)
        out[i] = values[i];
}

/* Of 16 values a thread. */
FWA_KERNEL(test_sums, threads)
{
    float *const out = args.states + 16 * global_thread();
    sums<1, fwa::wave, 1>(out);
    sums<1, 8, 3>(out + 1);
    sums<4, 16, 2>(out + 4);
    sums<fwa::wave / 2, fwa::wave, 2>(out + 6);
    sums<8, 8, 8>(out + 8);
}

/* What shared memory holds at first; it is then written. */
FWA_KERNEL(test_poison, threads)
{
    int32_t *const mine = &shared_integers()[fwa::thread()];
    args.order[global_thread()] = *mine;
    *mine = 7;
    fwa::barrier();
}

/* Frames of many KiB that live across barriers. */
static float deep(int depth, const float *above)
{
    float values[2048];
    for (int i = 0; i < 2048; i++)
        values[i] = (float)(fwa::thread() + depth) + (above ? above[i] : 0.0f);
    fwa::barrier();
    const float below = depth > 0 ? deep(depth - 1, values) : 0.0f;
    fwa::barrier();
    return below + values[fwa::thread()];
}

FWA_KERNEL(test_deep, threads)
{
    args.states[global_thread()] = deep((int)args.batch, nullptr);
}

/* Kernels that are wrong. */

FWA_KERNEL(test_returned, threads)
{
    if (fwa::thread() >= args.batch)
        return;
    fwa::barrier();
    fwa::barrier();
}

FWA_KERNEL(test_lanes_returned, threads)
{
    if (fwa::thread() != 5)
        args.order[fwa::thread()] = fwa::shuffle(fwa::thread(), 0);
}

FWA_KERNEL(test_mixed, threads)
{
    if (fwa::thread() == args.batch)
        fwa::barrier();
    else
        fwa::wave_barrier();
}

FWA_KERNEL(test_mixed_sums, threads)
{
    float values[2] = {1, 2};
    if (fwa::thread() < 3)
        fwa::sum_lanes<1, 4>(values);
    else
        fwa::sum_lanes<1, 8>(values);
    args.states[global_thread()] = values[1];
}

FWA_KERNEL(test_no_lane, threads)
{
    args.order[global_thread()] = fwa::shuffle(1, (int)args.batch);
}

FWA_KERNEL(test_beyond, threads)
{
    if (fwa::thread() == threads - 1)
        args.order[0] = fwa::shared()[args.batch];
    fwa::barrier();
    if (fwa::thread() == threads - 1)
        fwa::shared()[args.batch + args.columns] = 1;
}
