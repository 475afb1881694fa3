/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: their number changes no bit, whoever they belong to; calls at once, nested, after a
 * fork. */

#include "support.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the results must not depend on threads for: each rule, a length with a tail, so many rows that
 * several are handed out at a time, crossing slots. */
#define VARIANTS 6
static setup variant(const char *backend, int i)
{
    setup s = i == 1 ? setup_normalizer(backend) : setup_small(backend);
    s.batch = 3;
    s.tokens = 75;
    s.problem.heads_key = 2;
    s.problem.heads_value = s.problem.heads_query = 4;
    s.problem.key_dim = 12;
    s.problem.value_dim = 40;
    s.problem.qk_norm = FWA_NORM_L2;
    switch (i) {
    case 2: s.problem.window = 1, s.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL; break;
    case 3: s.problem.dtype = FWA_DTYPE_BF16, s.problem.form = FWA_FORM_RECURRENT; break;
    case 4: s.tokens = 1, s.batch = 50; break;
    case 5: s.rows_in = s.rows_out = 5, s.in_place = true; break;
    default: break;
    }
    return s;
}

/* Slots that cross, for the variant in place. */
static void give_slots(call *c)
{
    static const int32_t in[] = {3, 1, 3}, out[] = {1, 3, 4};
    if (!c->setup.in_place)
        return;
    call_integers(c, "slot_in", 3, in);
    if (c->pass == FWA_PASS_FORWARD)
        call_integers(c, "slot_out", 3, out);
}

/* Outputs, and carries in place. */
static void expect_same_results(call *a, call *b, const char *what)
{
    for (int i = 0; i < a->count; i++)
        cr_assert(tensor_same(a->tensors[i].tensor, call_get(b, a->tensors[i].name)), "%s: %s",
                  what, a->tensors[i].name);
}

/* ---- The library's own threads ---- */

Test(threads, count_changes_nothing)
{
    static const int32_t counts[] = {2, 3, 7, 24};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            call *one = call_new(&s, (fwa_pass)pass);
            give_slots(one);
            call_ok(one);
            for (size_t j = 0; j < (i < 2 ? 4 : 3); j++) {
                s.threads = counts[j];
                call *many = call_new(&s, (fwa_pass)pass);
                give_slots(many);
                cr_assert_eq(fwa_context_threads(many->context), counts[j]);
                call_ok(many);
                expect_same_results(one, many, backend);
                call_free(many);
            }
            call_free(one);
        }
}

/* The same call again and again (B083). */
Test(threads, repeats)
{
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS - 1; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            s.threads = 3;
            call *first = call_new(&s, (fwa_pass)pass), *again = call_new(&s, (fwa_pass)pass);
            call_ok(first);
            for (int round = 0; round < 20; round++) {
                call_poison(again);
                memset(again->workspace.data, round, again->workspace.size);
                call_ok(again);
                expect_same_outputs(first, again);
            }
            call_free(first);
            call_free(again);
        }
}

/* ---- The caller's parallel-for ---- */

typedef struct pool_task {
    void (*task)(void *data, int64_t i);
    void *data;
    int64_t i;
} pool_task;

static void *run_pool_task(void *argument)
{
    pool_task *task = argument;
    task->task(task->data, task->i);
    return NULL;
}

static void count_call(void *user, int64_t count)
{
    if (user)
        *(int64_t *)user += count;
}

static void run_serial(void *user, int64_t count, void (*task)(void *, int64_t), void *data)
{
    count_call(user, count);
    for (int64_t i = 0; i < count; i++)
        task(data, i);
}

static void run_reversed(void *user, int64_t count, void (*task)(void *, int64_t), void *data)
{
    count_call(user, count);
    for (int64_t i = count - 1; i >= 0; i--)
        task(data, i);
}

static void run_threads(void *user, int64_t count, void (*task)(void *, int64_t), void *data)
{
    pthread_t threads[16];
    pool_task tasks[16];
    count_call(user, count);
    for (int64_t i = 0; i < count; i++) {
        tasks[i] = (pool_task){task, data, i};
        pthread_create(&threads[i], NULL, run_pool_task, &tasks[i]);
    }
    for (int64_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void use_parallel_for(call *c, fwa_parallel_for parallel_for, int64_t *calls)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_plan_destroy(c->plan);
    fwa_context_destroy(c->context);
    options.backend = c->setup.backend;
    options.threads = c->setup.threads;
    options.parallel_for = parallel_for;
    options.parallel_for_user = calls;
    cr_assert_eq(fwa_context_create(&options, &c->context), FWA_OK, "%s", fwa_error_message());
    c->plan = make_plan(c->context, &c->setup.problem);
}

Test(threads, parallel_for)
{
    static const fwa_parallel_for functions[] = {run_serial, run_reversed, run_threads};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            call *one = call_new(&s, (fwa_pass)pass);
            give_slots(one);
            call_ok(one);
            for (int j = 0; j < 3; j++)
                for (s.threads = 2; s.threads <= 5; s.threads += 3) {
                    int64_t lanes = 0;
                    call *many = call_new(&s, (fwa_pass)pass);
                    give_slots(many);
                    use_parallel_for(many, functions[j], &lanes);
                    call_ok(many);
                    expect_same_results(one, many, backend);
                    cr_assert_gt(lanes, 0, "parallel_for was not used");
                    cr_assert_eq(lanes % s.threads, 0, "%d lanes for %d threads", (int)lanes,
                                 (int)s.threads);
                    call_free(many);
                }
            call_free(one);
        }
}

/* ---- The caller's team ---- */

typedef struct member {
    call *call;
    fwa_team team;
    fwa_status status;
    char message[512];
} member;

static void wait_for_all(void *user)
{
    pthread_barrier_wait(user);
}

static void *run_member(void *argument)
{
    member *m = argument;
    fwa_forward_args forward = m->call->forward;
    fwa_backward_args backward = m->call->backward;
    forward.team = backward.team = &m->team;
    m->status = m->call->pass == FWA_PASS_FORWARD ? fwa_forward(m->call->plan, &forward)
                                                  : fwa_backward(m->call->plan, &backward);
    snprintf(m->message, sizeof m->message, "%s", fwa_error_message());
    return NULL;
}

static void run_team(call *c, member *members, int32_t size)
{
    pthread_t threads[16];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)size);
    for (int32_t i = 0; i < size; i++) {
        members[i] = (member){.call = c, .team = {i, size, wait_for_all, &barrier}};
        pthread_create(&threads[i], NULL, run_member, &members[i]);
    }
    for (int32_t i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
}

Test(threads, team)
{
    static const int32_t sizes[] = {1, 2, 5};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            call *one = call_new(&s, (fwa_pass)pass);
            give_slots(one);
            call_ok(one);
            for (int j = 0; j < 3; j++)
                for (s.threads = 1; s.threads <= 3; s.threads += 2) {
                    member members[5];
                    call *team = call_new(&s, (fwa_pass)pass);
                    give_slots(team);
                    run_team(team, members, sizes[j]);
                    for (int32_t m = 0; m < sizes[j]; m++)
                        cr_assert_eq(members[m].status, FWA_OK, "%s", members[m].message);
                    expect_same_results(one, team, backend);
                    call_free(team);
                }
            call_free(one);
        }
}

/* Whatever is wrong, each member hears the same. */
static void expect_team_fails(call *c, fwa_status status, const char *text)
{
    for (int32_t size = 1; size <= 5; size += 2) {
        member members[5];
        uint64_t before[CALL_TENSORS];
        for (int i = 0; i < c->count; i++)
            before[i] = block_hash(&c->tensors[i].memory);
        run_team(c, members, size);
        for (int32_t m = 0; m < size; m++) {
            cr_assert_eq(members[m].status, status, "member %d: %s", (int)m, members[m].message);
            cr_assert(strstr(members[m].message, text) != NULL, "member %d: %s", (int)m,
                      members[m].message);
            cr_assert_str_eq(members[m].message, members[0].message);
        }
        for (int i = 0; i < c->count; i++)
            cr_assert_eq(block_hash(&c->tensors[i].memory), before[i]);
    }
}

Test(threads, team_errors)
{
    static const int32_t slots[] = {1, 1, 2}, crossing[] = {9, 1, 2};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = variant(backend, 0);
        call *c = call_new(&s, (fwa_pass)pass);
        fwa_tensor *q = call_get(c, "q"), *beta = call_get(c, "beta");
        tensor_set(beta, 77, -3);
        expect_team_fails(c, FWA_ERROR_VALUE, "is -3; it must be at least 0");
        tensor_set(beta, 77, 1);
        q->stride[1] = -1;
        expect_team_fails(c, FWA_ERROR_STRIDE, "q.stride[1] is -1");
        q->stride[1] = 4 * 12;
        c->forward.workspace_size--;
        c->backward.workspace_size--;
        expect_team_fails(c, FWA_ERROR_WORKSPACE, "workspace_size is ");
        c->forward.workspace_size++;
        c->backward.workspace_size++;
        call_integers(c, "slot_in", 3, crossing);
        expect_team_fails(c, FWA_ERROR_SEQUENCE, "slot_in[0] is 9");
        call_integers(c, "slot_in", 3, slots);
        if (pass == FWA_PASS_FORWARD)
            expect_team_fails(c, FWA_ERROR_SEQUENCE, "slot_in[1] is 1, as slot_in[0] is");
        call_free(c);
    }
}

/* As soon as a member returns, the caller may do as it likes with the workspace: here the first to
 * come back, error or not, scribbles over it. */
static void *run_member_and_scribble(void *argument)
{
    member *m = argument;
    fwa_forward_args args = m->call->forward;
    args.team = &m->team;
    for (int round = 0; round < 200; round++) {
        m->status = fwa_forward(m->call->plan, &args);
        if (m->status != FWA_ERROR_VALUE ||
            !strstr(fwa_error_message(), "beta at [2, 74, 3] is -1")) {
            snprintf(m->message, sizeof m->message, "round %d: %s", round, fwa_error_message());
            m->status = FWA_ERROR_INTERNAL;
        }
        if (m->team.member == 0)
            memset(args.workspace, round, args.workspace_size);
        m->team.barrier(m->team.user);
        if (m->status == FWA_ERROR_INTERNAL)
            break;
    }
    return NULL;
}

Test(threads, team_errors_are_read_before_anyone_returns, .timeout = 60)
{
    enum { SIZE = 4 };
    setup s = variant("cpu", 0);
    call *c = call_new(&s, FWA_PASS_FORWARD);
    member members[SIZE];
    pthread_t threads[SIZE];
    pthread_barrier_t barrier;
    tensor_set(call_get(c, "beta"), 3 * 75 * 4 - 1, -1);
    pthread_barrier_init(&barrier, NULL, SIZE);
    for (int32_t i = 0; i < SIZE; i++) {
        members[i] = (member){.call = c, .team = {i, SIZE, wait_for_all, &barrier}};
        pthread_create(&threads[i], NULL, run_member_and_scribble, &members[i]);
    }
    for (int32_t i = 0; i < SIZE; i++)
        pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < SIZE; i++)
        cr_assert_eq(members[i].status, FWA_ERROR_VALUE, "%s", members[i].message);
    pthread_barrier_destroy(&barrier);
    call_free(c);
}

/* ---- Calls at once ---- */

typedef struct worker {
    call *call;
    const fwa_plan *plan;
    int rounds;
    fwa_status status;
} worker;

static void *run_worker(void *argument)
{
    worker *w = argument;
    for (int round = 0; round < w->rounds && w->status == FWA_OK; round++)
        w->status = w->call->pass == FWA_PASS_FORWARD ? fwa_forward(w->plan, &w->call->forward)
                                                      : fwa_backward(w->plan, &w->call->backward);
    return NULL;
}

/* 16 threads, one plan, a workspace each (B125); seeds differ, so that a mix-up shows. */
Test(threads, one_plan_for_many, .timeout = 120)
{
    enum { WORKERS = 16 };
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int threads = 1; threads <= 2; threads++) {
            setup s = variant(backend, 0);
            s.threads = threads;
            call *own = call_new(&s, (fwa_pass)pass);
            worker workers[WORKERS];
            pthread_t ids[WORKERS];
            for (int i = 0; i < WORKERS; i++) {
                s.seed = (uint64_t)i + 50;
                workers[i] = (worker){call_new(&s, (fwa_pass)pass), own->plan, 10, FWA_OK};
                pthread_create(&ids[i], NULL, run_worker, &workers[i]);
            }
            for (int i = 0; i < WORKERS; i++)
                pthread_join(ids[i], NULL);
            for (int i = 0; i < WORKERS; i++) {
                s.seed = (uint64_t)i + 50;
                call *alone = call_new(&s, (fwa_pass)pass);
                call_ok(alone);
                cr_assert_eq(workers[i].status, FWA_OK);
                expect_same_outputs(alone, workers[i].call);
                call_free(alone);
                call_free(workers[i].call);
            }
            call_free(own);
        }
}

/* Two plans in turn, as two layers have it (B113): no call remembers the one before. */
Test(threads, two_plans_in_turn)
{
    FOR_BACKENDS(backend)
    {
        setup a = variant(backend, 0), b = variant(backend, 2);
        call *calls[2] = {call_new(&a, FWA_PASS_FORWARD), call_new(&b, FWA_PASS_FORWARD)};
        call *alone[2] = {call_new(&a, FWA_PASS_FORWARD), call_new(&b, FWA_PASS_FORWARD)};
        call_ok(alone[0]);
        call_ok(alone[1]);
        for (int round = 0; round < 20; round++) {
            call_poison(calls[round % 2]);
            call_ok(calls[round % 2]);
            expect_same_outputs(alone[round % 2], calls[round % 2]);
        }
        for (int i = 0; i < 2; i++) {
            call_free(calls[i]);
            call_free(alone[i]);
        }
    }
}

Test(threads, nested_in_a_parallel_region)
{
    FOR_BACKENDS(backend)
    for (int levels = 1; levels <= 3; levels += 2)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, 0);
            s.threads = 3;
            call *alone = call_new(&s, (fwa_pass)pass), *calls[4];
            fwa_status status[4];
            for (int i = 0; i < 4; i++)
                calls[i] = call_new(&s, (fwa_pass)pass);
            call_ok(alone);
            omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(4)
            for (int i = 0; i < 4; i++)
                status[i] = call_run(calls[i]);
            for (int i = 0; i < 4; i++) {
                cr_assert_eq(status[i], FWA_OK);
                expect_same_outputs(alone, calls[i]);
                call_free(calls[i]);
            }
            call_free(alone);
        }
}

/* ---- Processes ---- */

/* The exit code of a child, or -1 where it does not finish within five seconds. */
static int wait_for_child(pid_t child)
{
    for (int i = 0; i < 500; i++) {
        int status;
        struct timespec pause = {0, 10 * 1000 * 1000};
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return -1;
}

/* In the child: 0 where it computes what the parent did, with the parent's plan and with its own.
 */
static int compute_as_parent(call *parent, call *again)
{
    setup s = parent->setup;
    call *own;
    if (call_run(again) != FWA_OK)
        return 1;
    for (int i = 0; i < parent->count; i++)
        if (!tensor_same(parent->tensors[i].tensor, again->tensors[i].tensor))
            return 2;
    own = call_new(&s, parent->pass);
    if (call_run(own) != FWA_OK)
        return 3;
    for (int i = 0; i < parent->count; i++)
        if (!tensor_same(parent->tensors[i].tensor, own->tensors[i].tensor))
            return 4;
    return 0;
}

/* A fork after the parent's context has started its threads (B119), and a fork of the fork. */
Test(threads, fork)
{
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = variant(backend, 0);
        s.threads = 4;
        call *c = call_new(&s, (fwa_pass)pass), *again = call_new(&s, (fwa_pass)pass);
        call_ok(c);
        for (int generation = 1; generation <= 2; generation++) {
            pid_t child = fork();
            cr_assert_geq(child, 0);
            if (child == 0) {
                if (generation == 2 && (child = fork()) != 0)
                    _exit(wait_for_child(child));
                _exit(compute_as_parent(c, again));
            }
            cr_assert_eq(wait_for_child(child), 0);
            /* The parent goes on with all of its threads. */
            call_poison(again);
            call_ok(again);
            expect_same_outputs(c, again);
        }
        call_free(c);
        call_free(again);
    }
}

/* A fork before any call: the child has threads of its own. */
Test(threads, fork_first)
{
    setup s = variant("cpu", 0);
    s.threads = 4;
    call *c = call_new(&s, FWA_PASS_FORWARD), *again = call_new(&s, FWA_PASS_FORWARD);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(call_run(c) == FWA_OK ? compute_as_parent(c, again) : 9);
    cr_assert_eq(wait_for_child(child), 0);
    call_ok(c);
    call_ok(again);
    expect_same_outputs(c, again);
    call_free(c);
    call_free(again);
}

/* The caller's own parallel-for goes on in a child. */
Test(threads, fork_with_parallel_for)
{
    setup s = variant("cpu", 0);
    s.threads = 3;
    call *c = call_new(&s, FWA_PASS_FORWARD), *again = call_new(&s, FWA_PASS_FORWARD);
    int64_t lanes = 0;
    use_parallel_for(again, run_reversed, &lanes);
    call_ok(c);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(compute_as_parent(c, again) != 0 ? 1 : lanes >= 3 ? 0 : 2);
    cr_assert_eq(wait_for_child(child), 0);
    call_free(c);
    call_free(again);
}

Test(threads, affinity)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    fwa_context *context = make_context("cpu", 0);
    cr_assert_eq(fwa_context_threads(context), 1);
    fwa_context_destroy(context);
    cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
    context = make_context("cpu", 0);
    cr_assert_leq(fwa_context_threads(context), CPU_COUNT(&all));
    cr_assert_geq(fwa_context_threads(context), 1);
    fwa_context_destroy(context);
    /* What the caller asks for stands, whatever the mask. */
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    context = make_context("cpu", 3);
    cr_assert_eq(fwa_context_threads(context), 3);
    fwa_context_destroy(context);
    cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
}

/* The threads that a new process gets with this setting of OpenMP's. */
static int threads_of_child(const char *variable, const char *value)
{
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        unsetenv("OMP_NUM_THREADS");
        setenv(variable, value, 1);
        execl(THREADS_CHILD, THREADS_CHILD, (char *)NULL);
        _exit(99);
    }
    return wait_for_child(child);
}

Test(threads, openmp_settings)
{
    cpu_set_t all;
    int most;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    most = threads_of_child("OMP_NUM_THREADS", "4000");
    cr_assert_leq(most, CPU_COUNT(&all));
    cr_assert_geq(most, 1);
    cr_assert_eq(threads_of_child("OMP_NUM_THREADS", "1"), 1);
    cr_assert_eq(threads_of_child("OMP_NUM_THREADS", "2"), most < 2 ? most : 2);
    cr_assert_eq(threads_of_child("OMP_THREAD_LIMIT", "1"), 1);
    /* The runtime has bound the thread that asks to one place of all. */
    cr_assert_eq(threads_of_child("OMP_PROC_BIND", "true"), most);
}

/* ---- Errors belong to threads ---- */

static void *fail_elsewhere(void *argument)
{
    (void)argument;
    fwa_context_create(NULL, NULL);
    return NULL;
}

Test(threads, messages_belong_to_threads)
{
    pthread_t other;
    fwa_problem problem = FWA_PROBLEM_INIT;
    cr_assert_eq(fwa_problem_preset(&problem, "falcon9"), FWA_ERROR_VALUE);
    pthread_create(&other, NULL, fail_elsewhere, NULL);
    pthread_join(other, NULL);
    cr_assert(strstr(fwa_error_message(), "falcon9") != NULL);
}
