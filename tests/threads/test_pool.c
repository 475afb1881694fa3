/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a context, from inside: each lane once, by whom, in what surroundings, after a fork. */

#include "pool.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LANES 24

TestSuite(pool, .timeout = 60);

/* ---- Each lane once ---- */

typedef struct counts {
    int runs[LANES]; /* plain: the pool itself must order what its lanes write */
} counts;

static void count_lane(void *data, int64_t lane)
{
    ((counts *)data)->runs[lane]++;
}

static void expect_counts(fwa_pool *pool, int32_t lanes, int regions)
{
    counts c = {{0}};
    for (int i = 0; i < regions; i++) {
        cr_assert(fwa_pool_run(pool, lanes, count_lane, &c));
        for (int lane = 0; lane < LANES; lane++)
            cr_assert_eq(c.runs[lane], lane < lanes ? i + 1 : 0, "region %d, lane %d: %d runs", i,
                         lane, c.runs[lane]);
    }
}

Test(pool, every_lane_runs_once)
{
    static const int32_t lanes[] = {2, 3, 7, LANES};
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        fwa_pool *pool = fwa_pool_create(lanes[i]);
        cr_assert_not_null(pool);
        expect_counts(pool, lanes[i], 2000);
        expect_counts(pool, 2, 500); /* fewer lanes than threads */
        fwa_pool_destroy(pool);
    }
}

/* With pauses, so that workers fall asleep in between: at any moment of that. */
Test(pool, sleepers_come_back)
{
    fwa_pool *pool = fwa_pool_create(4);
    for (int i = 0; i < 300; i++) {
        const struct timespec pause = {0, i * 500};
        nanosleep(&pause, NULL);
        expect_counts(pool, 4, 1);
    }
    fwa_pool_destroy(pool);
}

/* What the process takes of its processors while its threads wait: a few microseconds of looking
 * each, then nothing. Spinning, it would be the length of the pause for every thread that runs. */
Test(pool, waits_asleep)
{
    const struct timespec pause = {0, 300000000};
    struct timespec before, after;
    fwa_pool *pool = fwa_pool_create(4);
    expect_counts(pool, 4, 10);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const double taken = (double)(after.tv_sec - before.tv_sec) +
                         1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    cr_expect_lt(taken, 0.03, "%g s of processor time in a pause of 0.3 s", taken);
    fwa_pool_destroy(pool);
}

Test(pool, unused_and_null)
{
    fwa_pool *pool = fwa_pool_create(3);
    cr_assert_not_null(pool);
    fwa_pool_destroy(pool);
    fwa_pool_destroy(NULL);
}

/* ---- What a worker finds ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct surroundings {
    atomic_int here; /* lanes that have begun */
    pthread_t thread[2];
    int rounding;
    sigset_t blocked;
    cpu_set_t processors;
    struct timespec longer; /* that lane 1 takes than lane 0 */
    bool done;
} surroundings;

/* Goes on when both lanes have begun, so that lane 1 is a worker's. */
static void look_around(void *data, int64_t lane)
{
    surroundings *s = data;
    const double end = seconds() + 10;
    s->thread[lane] = pthread_self();
    if (lane == 1) {
        s->rounding = fegetround();
        pthread_sigmask(SIG_BLOCK, NULL, &s->blocked);
        sched_getaffinity(0, sizeof s->processors, &s->processors);
    }
    atomic_fetch_add(&s->here, 1);
    while (atomic_load(&s->here) < 2 && seconds() < end)
        sched_yield();
    if (lane == 1) {
        nanosleep(&s->longer, NULL);
        s->done = true;
    }
}

static surroundings look(fwa_pool *pool, long longer)
{
    surroundings s = {.rounding = -1, .longer = {0, longer}};
    cr_assert(fwa_pool_run(pool, 2, look_around, &s));
    cr_assert(s.done, "lane 1 is not at its end");
    cr_assert_eq(atomic_load(&s.here), 2);
    cr_assert(!pthread_equal(s.thread[0], s.thread[1]), "no worker came");
    cr_assert(pthread_equal(s.thread[0], pthread_self()));
    return s;
}

/* The caller waits: at first awake, then asleep. */
Test(pool, waits_for_the_last_lane)
{
    fwa_pool *pool = fwa_pool_create(2);
    for (long longer = 1000; longer < 10 * 1000 * 1000; longer *= 2)
        look(pool, longer);
    fwa_pool_destroy(pool);
}

/* The rounding of the moment of the call, not of that when the thread began. */
Test(pool, rounding_is_the_callers)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_DOWNWARD};
    fwa_pool *pool = fwa_pool_create(2);
    for (int i = 0; i < 4; i++) {
        surroundings s;
        cr_assert_eq(fesetround(modes[i]), 0);
        s = look(pool, 0);
        fesetround(FE_TONEAREST);
        cr_assert_eq(s.rounding, modes[i]);
    }
    fwa_pool_destroy(pool);
}

Test(pool, signals_stay_with_the_application)
{
    fwa_pool *pool = fwa_pool_create(2);
    const surroundings s = look(pool, 0);
    sigset_t own;
    cr_assert(sigismember(&s.blocked, SIGINT));
    cr_assert(sigismember(&s.blocked, SIGUSR1));
    cr_assert_not(sigismember(&s.blocked, SIGSEGV));
    pthread_sigmask(SIG_BLOCK, NULL, &own);
    cr_assert_not(sigismember(&own, SIGUSR1), "the caller's mask has changed");
    fwa_pool_destroy(pool);
}

/* The mask when the pool was made, though the thread that calls is bound to one processor later. */
Test(pool, affinity_of_creation)
{
    cpu_set_t all, one;
    fwa_pool *pool;
    surroundings s;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    pool = fwa_pool_create(2);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    s = look(pool, 0);
    cr_assert(CPU_EQUAL(&s.processors, &all), "%d processors instead of %d",
              CPU_COUNT(&s.processors), CPU_COUNT(&all));
    fwa_pool_destroy(pool);
    cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
}

/* ---- Calls at once ---- */

typedef struct second_call {
    fwa_pool *pool;
    bool ran;
} second_call;

static void *call_once(void *argument)
{
    second_call *second = argument;
    counts c = {{0}};
    second->ran = fwa_pool_run(second->pool, 2, count_lane, &c);
    cr_assert_eq(c.runs[0], second->ran ? 1 : 0);
    return NULL;
}

static void call_from_another_thread(void *data, int64_t lane)
{
    pthread_t other;
    if (lane != 0)
        return;
    pthread_create(&other, NULL, call_once, data);
    pthread_join(other, NULL);
}

Test(pool, busy)
{
    fwa_pool *pool = fwa_pool_create(2);
    second_call second = {pool, true};
    cr_assert(fwa_pool_run(pool, 2, call_from_another_thread, &second));
    cr_assert_not(second.ran, "two regions at once");
    call_once(&second);
    cr_assert(second.ran, "the pool was not given back");
    fwa_pool_destroy(pool);
}

/* ---- Forks ---- */

/* In a child: regions run, on threads of its own. 0 where all is well. */
static int use_in_child(fwa_pool *pool)
{
    surroundings s = {.rounding = -1};
    counts c = {{0}};
    alarm(20);
    if (!fwa_pool_run(pool, 4, count_lane, &c))
        return 1;
    for (int lane = 0; lane < 4; lane++)
        if (c.runs[lane] != 1)
            return 2;
    if (!fwa_pool_run(pool, 2, look_around, &s) || pthread_equal(s.thread[0], s.thread[1]))
        return 3;
    fwa_pool_destroy(pool);
    return 0;
}

static void expect_good_child(pid_t child)
{
    int status;
    cr_assert_gt(child, 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status 0x%x", (unsigned)status);
}

Test(pool, fork)
{
    fwa_pool *pool = fwa_pool_create(4);
    for (int used = 0; used < 2; used++) {
        pid_t child = fork();
        if (child == 0)
            _exit(use_in_child(pool));
        expect_good_child(child);
        expect_counts(pool, 4, 100);
    }
    fwa_pool_destroy(pool);
}

typedef struct fork_work {
    fwa_pool *pool;
    pid_t child;
} fork_work;

static void fork_in_lane_0(void *data, int64_t lane)
{
    fork_work *work = data;
    if (lane != 0)
        return;
    work->child = fork();
    if (work->child == 0)
        _exit(use_in_child(work->pool));
}

/* In the midst of a region, whose owner is not in the child. */
Test(pool, fork_while_busy)
{
    fwa_pool *pool = fwa_pool_create(4);
    for (int i = 0; i < 5; i++) {
        fork_work work = {pool, -1};
        cr_assert(fwa_pool_run(pool, 4, fork_in_lane_0, &work));
        expect_good_child(work.child);
        expect_counts(pool, 4, 100);
    }
    fwa_pool_destroy(pool);
}

/* A child that never calls can give back what it inherited. */
Test(pool, destroyed_in_a_child)
{
    fwa_pool *pool = fwa_pool_create(4);
    pid_t child;
    expect_counts(pool, 4, 10);
    child = fork();
    if (child == 0) {
        alarm(20);
        fwa_pool_destroy(pool);
        _exit(0);
    }
    expect_good_child(child);
    expect_counts(pool, 4, 10);
    fwa_pool_destroy(pool);
}
