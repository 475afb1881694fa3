/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_VENDOR_HIP_H
#define FWA_GPU_VENDOR_HIP_H

/* HIP by the compiler's own builtins, without HIP's headers and device libraries; see vendor.h. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GFX9__)
#define FWA_TILE_COLUMNS 4
#else
#define FWA_TILE_COLUMNS 8
#endif

#define FWA_DEVICE     static __attribute__((device)) inline __attribute__((always_inline))
#define FWA_METHOD     __attribute__((device)) inline __attribute__((always_inline))
#define FWA_BOTH_SIDES static __attribute__((host)) __attribute__((device)) inline

#define FWA_SPACE_GLOBAL   __attribute__((address_space(1)))
#define FWA_SPACE_SHARED   __attribute__((address_space(3)))
#define FWA_SPACE_CONSTANT __attribute__((address_space(4)))

namespace fwa
{

/* A pointer of the arguments: the compiler learns that it is none to shared memory, and need not ask it
 * at each access. */
template <typename T> struct GlobalPointer {
    FWA_SPACE_GLOBAL T *address;

    GlobalPointer() = default;

    FWA_METHOD GlobalPointer(T *from) : address((FWA_SPACE_GLOBAL T *)from)
    {
    }

    FWA_METHOD operator T *() const
    {
        return (T *)address;
    }

    template <typename U> FWA_METHOD explicit operator U *() const
    {
        return (U *)(T *)address;
    }

    FWA_METHOD explicit operator bool() const
    {
        return address != nullptr;
    }

    FWA_METHOD explicit operator uintptr_t() const
    {
        return (uintptr_t)address;
    }
};

} // namespace fwa

#define FWA_POINTER(type) fwa::GlobalPointer<type>

#include "../args.h"

/* Arguments are read where they lie, which is the same for all threads: a copy of them that is taken
 * addresses of would lie in each thread's own memory. Blocks on a processor are left to the compiler,
 * which has no such number, only waves of a SIMD. */
#define FWA_KERNEL(name, threads)                  FWA_KERNEL_NAMED(name, threads)
#define FWA_KERNEL_RESIDENT(name, threads, blocks) FWA_KERNEL_NAMED(name, threads)
#define FWA_KERNEL_NAMED(name, threads)                                                            \
    FWA_DEVICE void name##_body(const fwa_gpu_args &args);                                         \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name(   \
        const fwa_gpu_args)                                                                        \
    {                                                                                              \
        name##_body(*(const fwa_gpu_args *)(const FWA_SPACE_CONSTANT fwa_gpu_args *)               \
                        __builtin_amdgcn_kernarg_segment_ptr());                                   \
    }                                                                                              \
    FWA_DEVICE void name##_body([[maybe_unused]] const fwa_gpu_args &args)

/* What is used of the C library, for the device: its functions are the host's. */
FWA_DEVICE void *memcpy(void *to, const void *from, size_t size)
{
    return __builtin_memcpy(to, from, size);
}

FWA_DEVICE float expf(float x)
{
    return __builtin_expf(x);
}

FWA_DEVICE float sqrtf(float x)
{
    return __builtin_sqrtf(x);
}

namespace fwa
{

#if defined(__GFX9__)
constexpr int wave = 64;
#else
constexpr int wave = 32;
#endif

FWA_DEVICE int thread()
{
    return (int)__builtin_amdgcn_workitem_id_x();
}

FWA_DEVICE int64_t block()
{
    return (int64_t)__builtin_amdgcn_workgroup_id_x();
}

/* The first of the arguments that code objects of version 5 have behind their own. */
FWA_DEVICE int64_t grid()
{
    return *(const FWA_SPACE_CONSTANT uint32_t *)__builtin_amdgcn_implicitarg_ptr();
}

extern __attribute__((shared, aligned(1024))) unsigned char fwa_shared[];

FWA_DEVICE unsigned char *shared()
{
    return fwa_shared;
}

FWA_DEVICE void barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

FWA_DEVICE void wave_barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

FWA_DEVICE void keep_order()
{
    asm volatile("" : : : "memory");
}

/* Through registers: of these processors few copy 16 bytes past them. */
FWA_DEVICE void copy_async(void *to, const void *from)
{
    typedef uint32_t four __attribute__((ext_vector_type(4)));
    *(FWA_SPACE_SHARED four *)to = *(const FWA_SPACE_GLOBAL four *)from;
}

FWA_DEVICE void copy_wait()
{
}

template <typename T> FWA_DEVICE T shuffle(T value, int lane)
{
    static_assert(sizeof(T) == 4, "shuffle() takes float, int and uint32_t");
    const int moved = __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, value));
    return __builtin_bit_cast(T, moved);
}

FWA_DEVICE bool wave_any(bool value)
{
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(value) != 0;
#else
    return __builtin_amdgcn_ballot_w32(value) != 0;
#endif
}

/* The value of the lane whose index differs in BIT: within four lanes by an operand's own permutation,
 * within 32 by one that takes no address. */
template <int BIT> FWA_DEVICE float exchange(float value)
{
    const int bits = __builtin_bit_cast(int, value);
    int moved;
    if constexpr (BIT == 1)
        moved = __builtin_amdgcn_mov_dpp(bits, 0xb1, 0xf, 0xf, true);
    else if constexpr (BIT == 2)
        moved = __builtin_amdgcn_mov_dpp(bits, 0x4e, 0xf, 0xf, true);
    else if constexpr (BIT < 32)
        moved = __builtin_amdgcn_ds_swizzle(bits, BIT << 10 | 0x1f);
    else
        moved = __builtin_amdgcn_ds_bpermute(4 * (thread() % wave ^ BIT), bits);
    return __builtin_bit_cast(float, moved);
}

template <int FROM, int TO, int N> FWA_DEVICE void sum_lanes(float (&values)[N])
{
    if constexpr (FROM < TO) {
#pragma unroll
        for (int i = 0; i < N; i++)
            values[i] += exchange<FROM>(values[i]);
        sum_lanes<2 * FROM, TO>(values);
    }
}

/* What the tiles of these processors (tile/mma_*.h) need besides. */

/* Reads 2, 8 or 16 bytes of shared memory. */
template <typename T> FWA_DEVICE T read_shared(const void *from)
{
    typedef uint32_t words __attribute__((ext_vector_type(sizeof(T) < 4 ? 1 : sizeof(T) / 4)));
    if constexpr (sizeof(T) < 4)
        return *(const FWA_SPACE_SHARED T *)from;
    else
        return __builtin_bit_cast(T, *(const FWA_SPACE_SHARED words *)from);
}

/* The word of the lane whose index differs in 16. */
FWA_DEVICE uint32_t other_half(uint32_t own)
{
    return (uint32_t)__builtin_amdgcn_permlanex16((int)own, (int)own, 0x76543210, (int)0xfedcba98,
                                                  false, false);
}

/* sum + a b in bf16, 16 x 16 x 16: a lane's numbers are as the instruction takes them. */
template <int HALVES> struct MatrixTypes {
    typedef short halves __attribute__((ext_vector_type(HALVES)));
    typedef float four __attribute__((ext_vector_type(4)));
    typedef float eight __attribute__((ext_vector_type(8)));
};

#if defined(__GFX9__)
template <typename A, typename B, typename S>
FWA_DEVICE S matrix_product(const A &a, const B &b, const S &sum)
{
    using types = MatrixTypes<4>;
    return __builtin_bit_cast(S, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                                     __builtin_bit_cast(typename types::halves, a),
                                     __builtin_bit_cast(typename types::halves, b),
                                     __builtin_bit_cast(typename types::four, sum), 0, 0, 0));
}
#elif defined(__GFX11__)
template <typename A, typename B, typename S>
FWA_DEVICE S matrix_product(const A &a, const B &b, const S &sum)
{
    using types = MatrixTypes<16>;
    return __builtin_bit_cast(S, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(
                                     __builtin_bit_cast(typename types::halves, a),
                                     __builtin_bit_cast(typename types::halves, b),
                                     __builtin_bit_cast(typename types::eight, sum)));
}
#elif defined(__GFX12__)
template <typename A, typename B, typename S>
FWA_DEVICE S matrix_product(const A &a, const B &b, const S &sum)
{
    using types = MatrixTypes<8>;
    return __builtin_bit_cast(S, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
                                     __builtin_bit_cast(typename types::halves, a),
                                     __builtin_bit_cast(typename types::halves, b),
                                     __builtin_bit_cast(typename types::eight, sum)));
}
#endif

} // namespace fwa

#endif
