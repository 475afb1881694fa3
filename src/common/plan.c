/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"
#include "call.h"

#include <stdlib.h>

fwa_status fwa_plan_create(fwa_context *context, const fwa_problem *problem, fwa_plan **result)
{
    fwa_message message = {""};
    fwa_problem resolved;
    fwa_status status;
    fwa_plan *plan;
    if (!context || !result)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL", context ? "plan" : "context");
    status = fwa_problem_resolve(problem, &resolved);
    if (status != FWA_OK)
        return status;
    if (context->backend->score(context->device, &resolved, &message) <= 0)
        return fwa_fail(FWA_ERROR_UNSUPPORTED, "backend %s: %s", context->backend->name,
                        message.text);
    plan = calloc(1, sizeof *plan);
    if (!plan)
        return fwa_fail(FWA_ERROR_MEMORY, "no memory for a plan");
    plan->context = context;
    plan->backend = context->backend;
    plan->problem = resolved;
    status = context->backend->plan(context->device, &plan->problem, context->threads, &plan->plan,
                                    &message);
    if (status != FWA_OK) {
        free(plan);
        return fwa_fail(status, "backend %s: %s", context->backend->name, message.text);
    }
    *result = plan;
    return FWA_OK;
}

void fwa_plan_destroy(fwa_plan *plan)
{
    if (!plan)
        return;
    plan->backend->plan_release(plan->plan);
    free(plan);
}

const char *fwa_plan_kernel_name(const fwa_plan *plan, fwa_pass pass)
{
    if (!plan || (pass != FWA_PASS_FORWARD && pass != FWA_PASS_BACKWARD))
        return "";
    return plan->backend->kernel_name(plan->plan, pass);
}

static fwa_status check_extent(const fwa_extent *extent)
{
    const struct {
        const char *name;
        int64_t value;
    } axes[] = {
        {"batch", extent->batch}, {"tokens", extent->tokens}, {"sequences", extent->sequences}};
    int64_t product;
    size_t i;
    for (i = 0; i < 3; i++)
        if (axes[i].value < 0 || axes[i].value > FWA_AXIS_LIMIT)
            return fwa_fail(FWA_ERROR_SHAPE, "%s is %lld; it runs from 0 to %lld", axes[i].name,
                            (long long)axes[i].value, (long long)FWA_AXIS_LIMIT);
    if (__builtin_mul_overflow(extent->batch, extent->tokens, &product) || product > FWA_AXIS_LIMIT)
        return fwa_fail(FWA_ERROR_SHAPE, "batch * tokens is %lld * %lld; it runs to %lld",
                        (long long)extent->batch, (long long)extent->tokens,
                        (long long)FWA_AXIS_LIMIT);
    return FWA_OK;
}

fwa_status fwa_total_workspace(const fwa_plan *plan, fwa_pass pass, const fwa_extent *extent,
                               size_t *size)
{
    size_t backend = plan->backend->workspace_size(plan->plan, pass, extent);
    size_t front = FWA_FRONT_ALIGNMENT + fwa_front_size(extent->sequences);
    if (backend > PTRDIFF_MAX - front)
        return fwa_fail(
            FWA_ERROR_SHAPE,
            "the workspace of %lld x %lld tokens takes more than %td bytes, the most that an "
            "object can have",
            (long long)extent->batch, (long long)extent->tokens, PTRDIFF_MAX);
    *size = backend + front;
    return FWA_OK;
}

fwa_status fwa_plan_workspace_size(const fwa_plan *plan, fwa_pass pass, int64_t batch,
                                   int64_t tokens, int64_t sequences, size_t *size)
{
    fwa_extent extent = {batch, tokens, sequences};
    fwa_status status;
    if (!plan || !size)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL", plan ? "size" : "plan");
    if (pass != FWA_PASS_FORWARD && pass != FWA_PASS_BACKWARD)
        return fwa_fail(FWA_ERROR_VALUE, "pass is %d; it is 0 or 1", (int)pass);
    status = check_extent(&extent);
    return status == FWA_OK ? fwa_total_workspace(plan, pass, &extent, size) : status;
}

fwa_status fwa_plan_saved_size(const fwa_plan *plan, int64_t batch, int64_t tokens,
                               int64_t sequences, size_t *size)
{
    fwa_extent extent = {batch, tokens, sequences};
    fwa_status status;
    size_t bytes;
    if (!plan || !size)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL", plan ? "size" : "plan");
    status = check_extent(&extent);
    if (status != FWA_OK)
        return status;
    bytes = plan->backend->saved_size(plan->plan, &extent);
    if (bytes > PTRDIFF_MAX)
        return fwa_fail(
            FWA_ERROR_SHAPE,
            "the saved states of %lld x %lld tokens take more than %td bytes, the most that "
            "an object can have",
            (long long)batch, (long long)tokens, PTRDIFF_MAX);
    *size = bytes;
    return FWA_OK;
}
