/* SPDX-License-Identifier: Apache-2.0 */
/* How tasks reach threads: the context's own, the caller's parallel-for, or the caller's team. */

#include "common.h"
#include "pool.h"

static void run_serial(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    int64_t lane;
    for (lane = 0; lane < self->lanes; lane++)
        task(data, lane);
}

/* Serial, too, inside a parallel region of the caller's, whose threads have the processors already,
 * and where another thread's call has the pool. */
static void run_pool(const fwa_executor *self, void (*task)(void *, int64_t), void *data)
{
    const fwa_context *context = ((const fwa_call_executor *)(const void *)self)->context;
    if (self->lanes == 1 || context->in_parallel() ||
        !fwa_pool_run(context->pool, self->lanes, task, data))
        run_serial(self, task, data);
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
    fwa_call_executor executor = {{context->threads, 0, run_serial}, context, team};
    if (team) {
        executor.base.run = run_team;
        executor.base.team = 1;
        if (team->size < context->threads)
            executor.base.lanes = team->size;
    } else if (context->parallel_for) {
        executor.base.run = run_parallel_for;
    } else if (context->pool) {
        executor.base.run = run_pool;
    }
    return executor;
}

void fwa_executor_run(const fwa_executor *executor, int64_t most,
                      void (*task)(void *data, int64_t lane), void *data)
{
    fwa_call_executor fewer = *(const fwa_call_executor *)(const void *)executor;
    if (executor->run == run_pool && most < executor->lanes)
        fewer.base.lanes = (int32_t)most;
    executor->run(&fewer.base, task, data);
}
