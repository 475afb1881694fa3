/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_VENDOR_HOST_H
#define FWA_GPU_VENDOR_HOST_H

/*
 * Plain C++ on the host's processor; see vendor.h. For tests: tests/gpu/runtime.h runs the threads of
 * a block as fibres, one at a time, so a thread goes on until it waits for others here. What is
 * declared in `emulation` is that runtime's.
 *
 * FWA_WAVE, 32 or 64, and FWA_TILE_COLUMNS (4; 8 for AMD's waves of 32) come from the build.
 */

#include "../args.h"

#include <atomic>
#include <cstdint>
#include <math.h>
#include <string.h>
#include <type_traits>

static_assert(FWA_WAVE == 32 || FWA_WAVE == 64, "a wave has 32 or 64 threads");

#ifndef FWA_TILE_COLUMNS
#define FWA_TILE_COLUMNS 4
#endif

#define FWA_DEVICE static inline
#define FWA_METHOD inline
/* Arguments go by reference: a copy per thread would be most of what a small kernel does. Names are
 * expanded first, as a macro may have made them. */
#define FWA_KERNEL(name, threads)                  FWA_KERNEL_NAMED(name, threads)
#define FWA_KERNEL_RESIDENT(name, threads, blocks) FWA_KERNEL_NAMED(name, threads)
#define FWA_KERNEL_NAMED(name, threads)                                                            \
    static_assert((threads) > 0 && (threads) <= 1024 && (threads) % fwa::wave == 0,                \
                  "blocks have whole waves and at most 1024 threads");                             \
    static void name(const fwa_gpu_args &args);                                                    \
    static fwa::emulation::kernel name##_kernel(#name, name, threads);                             \
    static void name([[maybe_unused]] const fwa_gpu_args &args)

namespace fwa
{

constexpr int wave = FWA_WAVE;

namespace emulation
{

/* What threads wait for: one object for each function and set of template arguments. Lanes that wait
 * for different objects wait for ever. */
struct rendezvous {
    const char *name;
    int from, to, count;                  /* of sum_lanes */
    void (*complete)(void *const *lanes); /* called once for a wave, when all its lanes have come,
                                             with what each has handed over */
};

/* A kernel adds itself to the runtime's table. */
struct kernel {
    using entry = void (*)(const fwa_gpu_args &args);
    kernel(const char *name, entry function, int threads);

    const char *name;
    entry function;
    int threads;
    std::atomic<int32_t> shared{0}; /* the most bytes that a launch may ask for */
    kernel *next;
};

class machine;

/* Where the host thread is at the moment. */
struct position {
    int thread;
    int64_t block, grid;
    unsigned char *shared;
    class machine *machine;
};
/* A few bytes of the static storage that modules find in every process: no call for each access. */
extern __thread position here __attribute__((tls_model("initial-exec")));

/* Returns when all others have come. */
void wait(const rendezvous &point, void *handed_over);
/* Says where each thread of the block is, and aborts. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

/* Barriers hand nothing over. The runtime knows these by their addresses. */
inline constexpr rendezvous block_barrier{"barrier()", 0, 0, 0, nullptr};
inline constexpr rendezvous wave_barrier{"wave_barrier()", 0, 0, 0, nullptr};

template <typename T> struct shuffled {
    T value, result;
    int lane;

    static void complete(void *const *lanes)
    {
        for (int i = 0; i < wave; i++) {
            shuffled *self = static_cast<shuffled *>(lanes[i]);
            self->result = static_cast<const shuffled *>(lanes[self->lane])->value;
        }
    }
};

template <typename T>
inline constexpr rendezvous shuffle_point{std::is_same<T, float>::value ? "shuffle() of float"
                                          : std::is_same<T, int>::value ? "shuffle() of int"
                                                                        : "shuffle() of uint32_t",
                                          0, 0, 0, shuffled<T>::complete};

/* The exchange of pairs at distance FROM, then 2 FROM, and so on, as GPUs do it: sums get the same
 * bits. */
template <int FROM, int TO, int N> void complete_sums(void *const *lanes)
{
    for (int bit = FROM; bit < TO; bit *= 2)
        for (int i = 0; i < wave; i++) {
            if (i & bit)
                continue;
            float *a = static_cast<float *>(lanes[i]);
            float *b = static_cast<float *>(lanes[i + bit]);
            for (int n = 0; n < N; n++)
                a[n] = b[n] = a[n] + b[n];
        }
}

template <int FROM, int TO, int N>
inline constexpr rendezvous sum_point{"sum_lanes", FROM, TO, N, complete_sums<FROM, TO, N>};

} // namespace emulation

FWA_DEVICE int thread()
{
    return emulation::here.thread;
}

FWA_DEVICE int64_t block()
{
    return emulation::here.block;
}

FWA_DEVICE int64_t grid()
{
    return emulation::here.grid;
}

FWA_DEVICE unsigned char *shared()
{
    return emulation::here.shared;
}

FWA_DEVICE void barrier()
{
    emulation::wait(emulation::block_barrier, nullptr);
}

FWA_DEVICE void wave_barrier()
{
    emulation::wait(emulation::wave_barrier, nullptr);
}

FWA_DEVICE void keep_order()
{
}

FWA_DEVICE void copy_async(void *to, const void *from)
{
    memcpy(to, from, 16);
}

FWA_DEVICE void copy_wait()
{
}

template <typename T> FWA_DEVICE T shuffle(T value, int lane)
{
    static_assert(std::is_same<T, float>::value || std::is_same<T, int>::value ||
                      std::is_same<T, uint32_t>::value,
                  "shuffle() takes float, int and uint32_t");
    emulation::shuffled<T> self{value, value, lane};
    if (lane < 0 || lane >= wave)
        emulation::fail("shuffle() from lane %d", lane);
    emulation::wait(emulation::shuffle_point<T>, &self);
    return self.result;
}

template <int FROM, int TO, int N> FWA_DEVICE void sum_lanes(float (&values)[N])
{
    static_assert(FROM >= 1 && (FROM & (FROM - 1)) == 0 && TO >= 1 && (TO & (TO - 1)) == 0 &&
                      TO <= wave,
                  "FROM and TO are powers of two, TO at most the wave's size");
    if constexpr (FROM < TO)
        emulation::wait(emulation::sum_point<FROM, TO, N>, values);
}

FWA_DEVICE bool wave_any(bool value)
{
    float count[1] = {value ? 1.0F : 0.0F};
    sum_lanes<1, wave>(count);
    return count[0] > 0;
}

} // namespace fwa

#endif
