/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_VENDOR_VENDOR_H
#define FWA_GPU_VENDOR_VENDOR_H

/*
 * The dialect that kernels are written in: C++17 with what stands here, which each vendor's header
 * defines. Blocks and grids have one dimension.
 *
 *     FWA_DEVICE, FWA_METHOD        qualifiers of a function on the device, of a member function
 *     FWA_KERNEL(name, threads)     heads the definition of a kernel of blocks of that many threads,
 *                                   whose one argument is `const fwa_gpu_args args`
 *     FWA_KERNEL_RESIDENT(name, threads, blocks)  the same; so many blocks shall fit on a processor
 *     FWA_TILE_COLUMNS              4 or 8, see tile/map.h
 *     FWA_SHARED_LIMIT              bytes of shared memory that a block may use; set by the build
 *     namespace fwa:
 *     wave                          constexpr int: threads that run in step, 32 or 64
 *     thread(), block(), grid()     this thread's index in its block (int), the block's and how many
 *                                   blocks there are (int64_t)
 *     shared()                      unsigned char *: the block's shared memory, aligned to 128
 *     barrier()                     all threads of the block; orders shared and global memory
 *     wave_barrier()                the same for the threads of a wave
 *     keep_order()                  the compiler moves no access to memory over it: what is read twice is
 *                                   read again, not kept in registers
 *     copy_async(to, from)          copies 16 bytes from global to shared memory, some time; both are
 *                                   aligned to 16
 *     copy_wait()                   returns when the thread's copies have come; others see them
 *                                   behind the next barrier
 *     shuffle(value, lane)          the float, int or uint32_t of another lane of the wave; all
 *                                   lanes must call it
 *     wave_any(value)               bool: whether it is true in any lane; all lanes must call it
 *     sum_lanes<FROM, TO>(values)   float (&values)[N]: each becomes the sum over the lanes whose
 *                                   indices differ in the bits FROM, 2 FROM, .. below TO (powers of
 *                                   two) alone; the same bits in each of these lanes. All lanes of
 *                                   the wave must call it
 */

#if defined(__HIP__)
#include "hip.h"
#elif defined(__CUDACC__)
#include "cuda.h"
#else
#include "host.h"
#endif

#endif
