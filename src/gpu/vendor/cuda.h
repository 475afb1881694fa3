/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_VENDOR_CUDA_H
#define FWA_GPU_VENDOR_CUDA_H

/* CUDA C++; see vendor.h. */

#include "../args.h"

#define FWA_TILE_COLUMNS          4
#define FWA_DEVICE                static __device__ __forceinline__
#define FWA_METHOD                __device__ __forceinline__
#define FWA_BOTH_SIDES            static __host__ __device__ inline
#define FWA_KERNEL(name, threads) FWA_KERNEL_RESIDENT(name, threads, 1)
#define FWA_KERNEL_RESIDENT(name, threads, blocks)                                                 \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ fwa_gpu_args args)

namespace fwa
{

constexpr int wave = 32;

FWA_DEVICE int thread()
{
    return (int)threadIdx.x;
}

FWA_DEVICE int64_t block()
{
    return (int64_t)blockIdx.x;
}

FWA_DEVICE int64_t grid()
{
    return (int64_t)gridDim.x;
}

FWA_DEVICE unsigned char *shared()
{
    extern __shared__ __align__(1024) unsigned char fwa_shared[];
    return fwa_shared;
}

FWA_DEVICE void barrier()
{
    __syncthreads();
}

FWA_DEVICE void wave_barrier()
{
    __syncwarp();
}

FWA_DEVICE void keep_order()
{
}

FWA_DEVICE void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

FWA_DEVICE void copy_wait()
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

template <typename T> FWA_DEVICE T shuffle(T value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

FWA_DEVICE bool wave_any(bool value)
{
    return __any_sync(0xffffffffu, value);
}

template <int FROM, int TO, int N> FWA_DEVICE void sum_lanes(float (&values)[N])
{
#pragma unroll
    for (int bit = FROM; bit < TO; bit *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            values[i] += __shfl_xor_sync(0xffffffffu, values[i], bit);
}

} // namespace fwa

#endif
