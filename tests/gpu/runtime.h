/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_GPU_RUNTIME_H
#define FWA_TESTS_GPU_RUNTIME_H

/*
 * Runs kernels of src/gpu on this processor, for tests: blocks one after another, the threads of a
 * block as fibres of the calling thread. A fibre runs until it waits; the last lane of a wave to come
 * releases the wave, the last wave to come releases the block.
 *
 * Threads that cannot all go on are a defect of the kernel, which is shown before the process aborts:
 * lanes of a wave that wait for different things, or of which some have returned; waves that wait at
 * barrier() where others have returned. Shared memory is as large as the launch says and no larger,
 * so AddressSanitizer sees what is beyond it, and is all ones (NaN) when a block begins.
 *
 * Any order of threads between two rendezvous must give the same results. Running in several shows
 * where a barrier is missing.
 */

#include "../../src/gpu/vendor/host.h"

namespace fwa
{
namespace emulation
{

/* forward: blocks, waves and lanes from the first to the last, a wave until it waits for others.
 * reverse: from the last to the first. random: blocks and lanes in changing orders, and waves take
 * turns whenever one waits, even if for nothing but its own lanes. */
enum class order { forward, reverse, random };

struct schedule {
    enum order order;
    uint64_t seed; /* of random: the same seed, the same order */
};

/* "forward", "reverse", "random" or "random:SEED"; false where it is none of them. */
bool parse_schedule(const char *words, schedule *result);

/* NULL: there is none of that name. */
kernel *find_kernel(const char *name);

/* Runs all blocks, 1 to INT32_MAX of them; false if there is no memory for that. */
bool run(const kernel &kernel, int64_t blocks, int32_t shared, const fwa_gpu_args &args,
         const schedule &schedule);

} // namespace emulation
} // namespace fwa

#endif
