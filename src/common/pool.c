/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"
#include "common.h"

#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long a thread that waits looks at memory before it sleeps. Long against the pause between two
 * regions of a call, short against anything that a processor is missed for. */
#define SPIN_NANOSECONDS 20000
/* Looks between two looks at the clock. */
#define SPIN_LOOKS 32

#define STOP    (-1)      /* in `unclaimed`: workers shall end */
#define WAITING (1 << 30) /* in `pending`: the region's owner sleeps */

/* A region is published by setting `unclaimed`. Whoever lowers it from n to n - 1 has lane n; the
 * owner of the region has lane 0, and takes further ones when it is done with that. A region cannot
 * end while a claimed lane is running, so what a worker reads after its claim is of the region that
 * the claim was for. Between regions `unclaimed` is 0. */
struct fwa_pool {
    alignas(64) atomic_int unclaimed;
    atomic_int sleepers;            /* workers that sleep on `unclaimed`, or are about to */
    alignas(64) atomic_int pending; /* lanes that are not done */
    alignas(64) atomic_int owner;   /* the process whose thread has the pool; 0: it is free */
    int process;                    /* the process that has the workers; 0: none yet */
    int32_t workers, started;
    void (*task)(void *data, int64_t lane);
    void *data;
    fenv_t environment; /* the caller's: rounding and the like belong to the results */
    bool bound;         /* `processors` is known */
    cpu_set_t processors;
    pthread_t threads[];
};

/* ---- Waiting ---- */

static void futex(atomic_int *word, int operation, int value)
{
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pause_processor(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* True as soon as the word has another value; false if it keeps this one. */
static bool spin_while(atomic_int *word, int value)
{
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    int i;
    do
        for (i = 0; i < SPIN_LOOKS; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != value)
                return true;
            pause_processor();
        }
    while (nanoseconds() < end);
    return false;
}

/* ---- Workers ---- */

/* Wakes two workers. Those wake two each, if there is work for them, so that the first to come need
 * not wait until all are called. */
static void wake_some(fwa_pool *pool)
{
    if (atomic_load(&pool->unclaimed) > 0 && atomic_load(&pool->sleepers) > 0)
        futex(&pool->unclaimed, FUTEX_WAKE, 2);
}

/* Returns a lane, now the caller's; 0 where there is none; STOP. */
static int claim(fwa_pool *pool)
{
    int lane = atomic_load_explicit(&pool->unclaimed, memory_order_relaxed);
    while (lane > 0 &&
           !atomic_compare_exchange_weak_explicit(&pool->unclaimed, &lane, lane - 1,
                                                  memory_order_acquire, memory_order_relaxed))
        ;
    return lane;
}

/* One of those that the owner waits for is done. */
static void arrive(fwa_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == WAITING + 1)
        futex(&pool->pending, FUTEX_WAKE, 1);
}

/* Either the owner sees that there are sleepers, or the kernel that the word has changed: both sides
 * write before they read. */
static void sleep_until_called(fwa_pool *pool)
{
    atomic_fetch_add(&pool->sleepers, 1);
    futex(&pool->unclaimed, FUTEX_WAIT, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *work(void *argument)
{
    fwa_pool *pool = argument;
    bool slept = true;
    int lane;
    pthread_setname_np(pthread_self(), "fwa");
    if (pool->bound)
        sched_setaffinity(0, sizeof pool->processors, &pool->processors);
    arrive(pool);
    while ((lane = claim(pool)) != STOP) {
        if (lane > 0) {
            if (slept)
                wake_some(pool);
            fesetenv(&pool->environment);
            pool->task(pool->data, lane);
            arrive(pool);
            slept = false;
        } else if (slept || !spin_while(&pool->unclaimed, 0)) {
            sleep_until_called(pool);
            slept = true;
        }
    }
    return NULL;
}

/* ---- The owner of a region ---- */

/* Returns when all have arrived, `own` of them by this. */
static void wait_for_workers(fwa_pool *pool, int own)
{
    int left = atomic_fetch_sub_explicit(&pool->pending, own, memory_order_acq_rel) - own;
    while (left > 0 && spin_while(&pool->pending, left))
        left = atomic_load_explicit(&pool->pending, memory_order_acquire);
    if (left == 0 || atomic_fetch_or(&pool->pending, WAITING) == 0)
        return;
    while ((left = atomic_load(&pool->pending)) != WAITING)
        futex(&pool->pending, FUTEX_WAIT, left);
}

/* The application's signal handlers run on its own threads. Faults happen where they happen. */
static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t blocked;
    size_t i;
    sigfillset(&blocked);
    for (i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

/* Starts the workers and waits until they run: what a thread does as it begins, such as to allocate,
 * is over then, and a fork cannot come into the midst of it. Anew where this process was forked: none
 * of the parent's workers is here, and what they left behind is of some moment of their work. With
 * fewer than wanted, or none, all goes on. */
static void start(fwa_pool *pool, int process)
{
    sigset_t signals;
    atomic_store(&pool->unclaimed, 0);
    atomic_store(&pool->sleepers, 0);
    atomic_store(&pool->pending, pool->workers);
    block_signals(&signals);
    for (pool->started = 0; pool->started < pool->workers; pool->started++)
        if (pthread_create(&pool->threads[pool->started], NULL, work, pool) != 0)
            break;
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    wait_for_workers(pool, pool->workers - pool->started);
    pool->process = process;
}

/* An owner in another process: this one was forked while a call ran there. */
static bool take(fwa_pool *pool, int process)
{
    int owner = 0;
    return atomic_compare_exchange_strong(&pool->owner, &owner, process) ||
           (owner != process && atomic_compare_exchange_strong(&pool->owner, &owner, process));
}

bool fwa_pool_run(fwa_pool *pool, int32_t lanes, void (*task)(void *data, int64_t lane), void *data)
{
    const int process = getpid();
    int lane, own;
    if (!take(pool, process))
        return false;
    if (pool->process != process)
        start(pool, process);
    pool->task = task;
    pool->data = data;
    fegetenv(&pool->environment);
    atomic_store_explicit(&pool->pending, lanes, memory_order_relaxed);
    atomic_store(&pool->unclaimed, lanes - 1);
    wake_some(pool);
    task(data, 0);
    for (own = 1; (lane = claim(pool)) > 0; own++)
        task(data, lane);
    wait_for_workers(pool, own);
    atomic_store_explicit(&pool->owner, 0, memory_order_release);
    return true;
}

/* ---- Pools ---- */

fwa_pool *fwa_pool_create(int32_t threads)
{
    const size_t size = sizeof(fwa_pool) + (size_t)(threads - 1) * sizeof(pthread_t);
    fwa_pool *pool = aligned_alloc(alignof(fwa_pool), (size + 63) / 64 * 64);
    if (!pool)
        return NULL;
    memset(pool, 0, sizeof *pool);
    pool->workers = threads - 1;
    pool->bound = fwa_allowed_processors(&pool->processors);
    return pool;
}

void fwa_pool_destroy(fwa_pool *pool)
{
    int32_t i;
    if (!pool)
        return;
    if (pool->process == getpid()) {
        atomic_store(&pool->unclaimed, STOP);
        futex(&pool->unclaimed, FUTEX_WAKE, INT_MAX);
        for (i = 0; i < pool->started; i++)
            pthread_join(pool->threads[i], NULL);
    }
    free(pool);
}
