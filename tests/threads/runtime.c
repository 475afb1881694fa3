/* SPDX-License-Identifier: Apache-2.0 */
/* A program with an OpenMP runtime of its own, which may be another than libfwa's: its parallel regions
 * before, between and around calls. Compiled once for each runtime; prints a hash of the results,
 * which must be the same for all. */

#include <dirent.h>
#include <fwa/fwa.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { B = 3, T = 70, H = 4, D = 24, CALLERS = 4, ELEMENTS = B * T * H * D };

static float x[ELEMENTS], beta[B * T * H], expected[ELEMENTS];

#define REQUIRE(condition, ...)                                                                    \
    do                                                                                             \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    while (0)

/* ---- Calls ---- */

typedef struct layer {
    fwa_context *context;
    fwa_plan *plan;
    size_t workspace;
} layer;

static layer make_layer_with(int32_t threads, fwa_parallel_for parallel_for)
{
    layer l = {NULL, NULL, 0};
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_problem problem = FWA_PROBLEM_INIT;
    options.threads = threads;
    options.parallel_for = parallel_for;
    fwa_problem_preset(&problem, "falcon1");
    problem.qk_norm = FWA_NORM_L2;
    problem.heads_key = H;
    problem.key_dim = problem.value_dim = D;
    REQUIRE(fwa_context_create(&options, &l.context) == FWA_OK, "%s", fwa_error_message());
    REQUIRE(fwa_plan_create(l.context, &problem, &l.plan) == FWA_OK, "%s", fwa_error_message());
    fwa_plan_workspace_size(l.plan, FWA_PASS_FORWARD, B, T, B, &l.workspace);
    return l;
}

static layer make_layer(int32_t threads)
{
    return make_layer_with(threads, NULL);
}

static void free_layer(layer *l)
{
    fwa_plan_destroy(l->plan);
    fwa_context_destroy(l->context);
}

static void call(const layer *l, float *o)
{
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    args.q = args.k = args.v = fwa_tensor_contiguous(x, FWA_DTYPE_F32, 4, B, T, H, D);
    args.beta = fwa_tensor_contiguous(beta, FWA_DTYPE_F32, 3, B, T, H);
    args.o = fwa_tensor_contiguous(o, FWA_DTYPE_F32, 4, B, T, H, D);
    args.workspace_size = l->workspace;
    args.workspace = malloc(l->workspace);
    memset(o, 0xff, sizeof expected);
    REQUIRE(fwa_forward(l->plan, &args) == FWA_OK, "%s", fwa_error_message());
    free(args.workspace);
}

static void expect_call(const layer *l, const char *where)
{
    float *o = malloc(sizeof expected);
    call(l, o);
    REQUIRE(memcmp(o, expected, sizeof expected) == 0, "%s: other results", where);
    free(o);
}

/* ---- What the process does ---- */

static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    int count = 0;
    REQUIRE(folder, "no /proc");
    while ((entry = readdir(folder)))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static double processor_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Before this program has threads of its own, which would spin. */
static void threads_rest_after_a_call(void)
{
    const struct timespec pause = {0, 100 * 1000 * 1000};
    layer l = make_layer(2);
    for (int i = 0; i < 5; i++) {
        double used;
        expect_call(&l, "the only threads");
        used = processor_seconds();
        nanosleep(&pause, NULL);
        used = processor_seconds() - used;
        REQUIRE(count_threads() == 2, "%d threads", count_threads());
        REQUIRE(used < 0.005, "%.1f ms of processors within 100 ms after a call", 1e3 * used);
    }
    free_layer(&l);
}

static double own_region(int threads)
{
    double sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (int i = 0; i < 10000; i++)
        sum += i;
    return sum;
}

static void regions_between_calls(const layer *l)
{
    for (int i = 0; i < 20; i++) {
        REQUIRE(own_region(1 + i % 4) == 49995000, "wrong sum");
        expect_call(l, "between regions");
    }
}

/* Nobody gets more threads than the region has. */
static void calls_in_a_region(int levels)
{
    layer l = make_layer(8);
    int before = 0, after = 0, team = 0;
    omp_set_max_active_levels(levels);
    own_region(CALLERS);
#pragma omp parallel num_threads(CALLERS)
    {
#pragma omp single
        {
            team = omp_get_num_threads();
            before = count_threads();
        }
        for (int i = 0; i < 5; i++)
            expect_call(&l, "in a region");
#pragma omp barrier
#pragma omp single
        after = count_threads();
    }
    REQUIRE(team == CALLERS, "a team of %d", team);
    REQUIRE(after == before, "%d threads were %d", after, before);
    omp_set_max_active_levels(1);
    expect_call(&l, "after a region");
    REQUIRE(count_threads() == before + 7, "%d threads were %d", count_threads(), before);
    free_layer(&l);
}

static void openmp_for(void *user, int64_t count, void (*task)(void *data, int64_t i), void *data)
{
    (void)user;
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < count; i++)
        task(data, i);
}

/* This program's own threads do the work, and no others are there. */
static void calls_on_own_threads(void)
{
    layer l = make_layer_with(CALLERS, openmp_for);
    int before;
    omp_set_num_threads(CALLERS);
    own_region(CALLERS);
    before = count_threads();
    for (int i = 0; i < 5; i++)
        expect_call(&l, "by this program's loop");
    REQUIRE(count_threads() == before, "%d threads were %d", count_threads(), before);
    free_layer(&l);
}

static void calls_in_tasks(const layer *l)
{
#pragma omp parallel num_threads(CALLERS)
#pragma omp single
    for (int i = 0; i < 8; i++) {
#pragma omp task
        expect_call(l, "in a task");
    }
}

static void threads_as_this_program_says(void)
{
    layer l;
    omp_set_num_threads(1);
    l = make_layer(0);
    REQUIRE(fwa_context_threads(l.context) == 1, "%d", (int)fwa_context_threads(l.context));
    free_layer(&l);
}

static void call_in_a_child(const layer *l)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        expect_call(l, "in a child");
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child, "no child");
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status 0x%x", (unsigned)status);
}

int main(void)
{
    uint64_t hash = 0;
    layer one = make_layer(1), l;
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = (float)(i * 37 % 101 - 50) / 32;
    for (int i = 0; i < B * T * H; i++)
        beta[i] = (float)(i * 11 % 17) / 16;
    call(&one, expected);
    free_layer(&one);

    threads_rest_after_a_call();
    l = make_layer(3);
    regions_between_calls(&l);
    calls_in_a_region(1);
    calls_in_a_region(3);
    calls_on_own_threads();
    calls_in_tasks(&l);
    call_in_a_child(&l);
    threads_as_this_program_says();
    regions_between_calls(&l);
    free_layer(&l);

    for (int i = 0; i < ELEMENTS; i++) {
        uint32_t bits;
        memcpy(&bits, &expected[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    printf("%016llx\n", (unsigned long long)hash);
    return 0;
}
