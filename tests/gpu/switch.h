/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_GPU_SWITCH_H
#define FWA_TESTS_GPU_SWITCH_H

/* Fibres and the switch from one to another, of which sanitizers are told. */

#include <boost/context/detail/fcontext.hpp>

#include <cstddef>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FWA_FIBRE_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define FWA_FIBRE_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FWA_FIBRE_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define FWA_FIBRE_TSAN 1
#endif

#ifdef FWA_FIBRE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FWA_FIBRE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace fwa
{
namespace emulation
{

struct rendezvous;

struct fibre {
    using transfer = boost::context::detail::transfer_t;

    int index = 0;                     /* of the thread in its block */
    const rendezvous *waits = nullptr; /* NULL: it runs, or can */
    boost::context::detail::fcontext_t context = nullptr;
    void *memory = nullptr; /* the guard page, then the stack */
    const void *stack = nullptr;
    size_t stack_size = 0;
    void *sanitizer = nullptr; /* AddressSanitizer's fake stack, ThreadSanitizer's fibre */

    /* Gives it a stack of its own, on which it begins with `enter`. */
    bool create(int thread, void (*enter)(transfer));
    void release();
    /* Stands for the calling thread. */
    void adopt();
};

/* A kernel's frame takes some KiB, under AddressSanitizer several times that. */
static const size_t fibre_stack_size = (size_t)256 << 10;

inline bool fibre::create(int thread, void (*enter)(transfer))
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *mapped = mmap(nullptr, page + fibre_stack_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapped == MAP_FAILED)
        return false;
    if (mprotect(mapped, page, PROT_NONE) != 0) {
        munmap(mapped, page + fibre_stack_size);
        return false;
    }
    index = thread;
    memory = mapped;
    stack = static_cast<char *>(mapped) + page;
    stack_size = fibre_stack_size;
    /* Frames at the same place of each page would share a few lines of the cache. */
    const size_t stagger = (size_t)thread % 64 * 64;
    context = boost::context::detail::make_fcontext(static_cast<char *>(mapped) + page +
                                                        fibre_stack_size - stagger,
                                                    fibre_stack_size - stagger, enter);
#ifdef FWA_FIBRE_TSAN
    sanitizer = __tsan_create_fiber(0);
#endif
    return true;
}

inline void fibre::release()
{
#ifdef FWA_FIBRE_ASAN
    /* Frames that never ended are marked there. */
    __asan_unpoison_memory_region(stack, stack_size);
#endif
#ifdef FWA_FIBRE_TSAN
    __tsan_destroy_fiber(sanitizer);
#endif
    munmap(memory, (size_t)sysconf(_SC_PAGESIZE) + fibre_stack_size);
}

inline void fibre::adopt()
{
#ifdef FWA_FIBRE_TSAN
    sanitizer = __tsan_get_current_fiber();
#endif
}

/* The first thing on the other side of a switch: `from` is where it came from. */
inline void arrived_fibre(fibre::transfer from, [[maybe_unused]] void *fake_stack)
{
    fibre &left = *static_cast<fibre *>(from.data);
    left.context = from.fctx;
#ifdef FWA_FIBRE_ASAN
    /* Tells the bounds of the stack that was left; those of the host thread are learnt here. */
    __sanitizer_finish_switch_fiber(fake_stack, &left.stack, &left.stack_size);
#endif
}

inline void entered_fibre(fibre::transfer from)
{
    arrived_fibre(from, nullptr);
}

/* Returns when something switches back. */
inline void switch_fibre(fibre &self, fibre &next)
{
#ifdef FWA_FIBRE_ASAN
    __sanitizer_start_switch_fiber(&self.sanitizer, next.stack, next.stack_size);
#endif
#ifdef FWA_FIBRE_TSAN
    __tsan_switch_to_fiber(next.sanitizer, 0);
#endif
    const fibre::transfer from = boost::context::detail::jump_fcontext(next.context, &self);
    arrived_fibre(from, self.sanitizer);
}

} // namespace emulation
} // namespace fwa

#endif
