/* SPDX-License-Identifier: Apache-2.0 */
/* How tasks reach threads: OpenMP, the caller's parallel-for, or the caller's team. */

#include "common.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* The process that has used OpenMP's threads; its forks must not. 0: none has. Belongs to the
 * process, as the pool itself does. */
static atomic_int openmp_process;

static bool openmp_lost(void)
{
    int owner = atomic_load_explicit(&openmp_process, memory_order_relaxed);
    return owner != 0 && owner != (int)getpid();
}

static void run_serial(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    int64_t lane;
    for (lane = 0; lane < self->lanes; lane++)
        task(data, lane);
}

static void run_openmp(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    const int64_t lanes = self->lanes;
    if (lanes == 1 || openmp_lost()) {
        run_serial(self, task, data);
        return;
    }
    atomic_store_explicit(&openmp_process, (int)getpid(), memory_order_relaxed);
#pragma omp parallel num_threads((int)lanes)
    {
        /* OpenMP may give fewer threads than asked for, one in a nested region. */
        int64_t lane = omp_get_thread_num(), threads = omp_get_num_threads();
        for (; lane < lanes; lane += threads)
            task(data, lane);
    }
}

static void run_parallel_for(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    const fwa_context *context = ((const fwa_call_executor *)(const void *)self)->context;
    if (self->lanes == 1)
        task(data, 0);
    else
        context->parallel_for(context->parallel_for_user, self->lanes, task, data);
}

static void run_team(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    const fwa_team *team = ((const fwa_call_executor *)(const void *)self)->team;
    if (team->member < self->lanes)
        task(data, team->member);
    if (team->size > 1)
        team->barrier(team->user);
}

fwa_call_executor fwa_executor_make(const fwa_context *context, const fwa_team *team)
{
    fwa_call_executor executor = {{context->threads, 0, run_openmp}, context, team};
    if (team) {
        executor.base.run = run_team;
        executor.base.team = 1;
        if (team->size < context->threads)
            executor.base.lanes = team->size;
    } else if (context->parallel_for) {
        executor.base.run = run_parallel_for;
    }
    return executor;
}

/* Processors that the quota of one control group amounts to, rounded up; 0 without one. */
static int group_quota(const char *group)
{
    char path[600];
    long long quota, period;
    int processors = 0;
    FILE *file;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0)
        processors = (int)((quota + period - 1) / period);
    fclose(file);
    return processors;
}

/* The least quota of this process's control group (version 2) and its ancestors; 0 without one. */
static int quota_processors(void)
{
    char line[512], group[512] = "";
    FILE *file = fopen("/proc/self/cgroup", "re");
    int least = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "0::%511[^\n]", group) == 1)
            break;
    if (file)
        fclose(file);
    for (;;) {
        int quota = group_quota(group);
        char *slash = strrchr(group, '/');
        if (quota && (!least || quota < least))
            least = quota;
        if (!slash)
            return least;
        *slash = '\0';
    }
}

int32_t fwa_default_threads(void)
{
    cpu_set_t set;
    int threads = omp_get_max_threads(), quota = quota_processors();
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < threads)
        threads = CPU_COUNT(&set);
    if (quota && quota < threads)
        threads = quota;
    return threads < 1 ? 1 : threads;
}
