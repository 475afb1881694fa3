/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"
#include "../files/element.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

static int is_backward(const bench_problem *problem)
{
    return problem->pass == BENCH_BACKWARD || problem->pass == BENCH_TRAIN;
}

static int is_carry(const problem_tensor *row)
{
    return row->axes[0] == 'N';
}

static int64_t elements_of(const fwa_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        count *= tensor->shape[axis];
    return count;
}

static int refuse(bench_message *message, const char *what)
{
    return bench_fail(message, "%s: %.400s", what, fwa_error_message());
}

/* ---- Tensors ---- */

static int is_bound(const bench_call *call, const conformance_data *data, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    switch (row->role) {
    case PROBLEM_INPUT: return data->values[i] != NULL;
    case PROBLEM_UPSTREAM: return data->values[i] != NULL && is_backward(call->problem);
    case PROBLEM_OUTPUT: return problem_tensor_applies(row, &call->problem->problem);
    case PROBLEM_GRADIENT:
        return is_backward(call->problem) && conformance_get(data, row->name + 1) != NULL;
    default: return 0;
    }
}

/* Decoding works in place: "state_out" is the memory of "state_in". */
static const fwa_tensor *find_shared(const bench_call *call, const problem_tensor *row)
{
    char name[32];
    if (call->problem->pass != BENCH_DECODE || row->role != PROBLEM_OUTPUT || !is_carry(row))
        return NULL;
    snprintf(name, sizeof name, "%.*sin", (int)strlen(row->name) - 3, row->name);
    const fwa_tensor *tensor = &call->tensors[problem_tensor_find(name) - problem_tensor_get(0)];
    return tensor->rank > 0 ? tensor : NULL;
}

static void put(const fwa_tensor *tensor, void *at, int64_t i, double value)
{
    if (tensor->dtype == FWA_DTYPE_I64)
        ((int64_t *)at)[i] = (int64_t)value;
    else
        element_set(tensor->dtype, at, i, value);
}

/* Fills the tensor with `values`, over and over where it is a pool; NULL: with NaN. */
static fwa_status fill(const bench_call *call, const fwa_tensor *tensor, const double *values)
{
    const int64_t copies = values && tensor->shape[0] > call->problem->batch ? call->groups : 1;
    const int64_t n = elements_of(tensor) / copies;
    const size_t size = (size_t)n * fwa_dtype_size(tensor->dtype);
    char *image = conformance_allocate(size, 1);
    fwa_status status = FWA_OK;
    if (values == NULL)
        memset(image, 0xff, size);
    for (int64_t i = 0; values && i < n; i++)
        put(tensor, image, i, values[i]);
    for (int64_t copy = 0; copy < copies && status == FWA_OK; copy++)
        status = fwa_memory_write(call->context, (char *)tensor->data + (size_t)copy * size, image,
                                  size);
    free(image);
    return status;
}

static fwa_status bind(bench_call *call, const conformance_data *data, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    const fwa_problem *p = &call->problem->problem;
    const fwa_tensor *shared = find_shared(call, row);
    fwa_tensor *tensor = &call->tensors[i];
    problem_extent extent = {call->problem->batch, call->problem->tokens, call->problem->batch};
    int64_t shape[FWA_MAX_RANK] = {0};
    if (shared) {
        *tensor = *shared;
        return FWA_OK;
    }
    if (is_carry(row) && call->groups > 1)
        extent.sequences *= call->groups;
    const int32_t rank = problem_tensor_shape(row, p, &extent, shape);
    fwa_tensor made = fwa_tensor_dense(NULL, problem_tensor_dtype(row, p), rank, shape[0], shape[1],
                                       shape[2], shape[3], shape[4]);
    const size_t size = (size_t)elements_of(&made) * fwa_dtype_size(made.dtype);
    const fwa_status status = fwa_memory_allocate(call->context, size, &made.data);
    if (status != FWA_OK)
        return status;
    *tensor = made;
    call->owned[i] = 1;
    return fill(call, tensor, data->values[i]);
}

static int bind_all(bench_call *call, const conformance_data *data, bench_message *message)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (!is_bound(call, data, i))
            continue;
        if (bind(call, data, i) != FWA_OK)
            return refuse(message, row->name);
        if (row->forward != PROBLEM_NO_FIELD)
            memcpy((char *)&call->forward + row->forward, &call->tensors[i], sizeof(fwa_tensor));
        if (row->backward != PROBLEM_NO_FIELD)
            memcpy((char *)&call->backward + row->backward, &call->tensors[i], sizeof(fwa_tensor));
    }
    return 0;
}

/* ---- Pools ---- */

static int64_t count_groups(const bench_problem *problem, int threads)
{
    const double state = bench_state_bytes(problem) / 2;
    if (!problem->cold)
        return 1;
    const int64_t groups = (int64_t)((double)bench_machine_beyond_cache(threads) / state) + 1;
    return groups < 2 ? 2 : groups;
}

static int make_slots(bench_call *call, bench_message *message)
{
    const int64_t batch = call->problem->batch, n = call->groups * batch;
    const size_t size = (size_t)n * sizeof(int32_t);
    void *memory = NULL;
    if (call->groups == 1)
        return 0;
    int32_t *image = conformance_allocate((size_t)n, sizeof *image);
    for (int64_t i = 0; i < n; i++)
        image[i] = (int32_t)i;
    const int failed = fwa_memory_allocate(call->context, size, &memory) != FWA_OK ||
                       fwa_memory_write(call->context, memory, image, size) != FWA_OK;
    call->slots = memory;
    free(image);
    return failed ? refuse(message, "slots") : 0;
}

/* ---- Begin, run, end ---- */

static int make_scratch(bench_call *call, bench_message *message)
{
    const int64_t batch = call->problem->batch, tokens = call->problem->tokens;
    size_t *sizes[] = {&call->forward.workspace_size, &call->backward.workspace_size};
    void **pointers[] = {&call->forward.workspace, &call->backward.workspace};
    for (int pass = 0; pass < 1 + is_backward(call->problem); pass++) {
        if (fwa_plan_workspace_size(call->plan, (fwa_pass)pass, batch, tokens, batch,
                                    sizes[pass]) != FWA_OK)
            return refuse(message, "workspace");
        if (*sizes[pass] > 0 &&
            fwa_memory_allocate(call->context, *sizes[pass], &call->workspace[pass]) != FWA_OK)
            return refuse(message, "workspace");
        *pointers[pass] = call->workspace[pass];
    }
    size_t saved = 0;
    if (!is_backward(call->problem) || !call->problem->saved)
        return 0;
    if (fwa_plan_saved_size(call->plan, batch, tokens, batch, &saved) != FWA_OK ||
        (saved > 0 && fwa_memory_allocate(call->context, saved, &call->saved) != FWA_OK))
        return refuse(message, "saved");
    call->forward.saved = call->saved;
    call->backward.saved = call->saved;
    call->forward.saved_size = call->backward.saved_size = saved;
    return 0;
}

int bench_call_begin(bench_call *call, fwa_context *context, const bench_problem *problem,
                     const conformance_data *data, bench_message *message)
{
    memset(call, 0, sizeof *call);
    call->context = context;
    call->problem = problem;
    call->forward = fwa_forward_args_init();
    call->backward = fwa_backward_args_init();
    call->groups = count_groups(problem, (int)fwa_context_threads(context));
    int failed = fwa_plan_create(context, &problem->problem, &call->plan) != FWA_OK
                     ? refuse(message, "plan")
                     : bind_all(call, data, message) || make_slots(call, message) ||
                           make_scratch(call, message);
    /* The backward alone reads what one forward before it has saved. */
    if (!failed && problem->pass == BENCH_BACKWARD &&
        fwa_forward(call->plan, &call->forward) != FWA_OK)
        failed = refuse(message, "forward");
    if (failed)
        bench_call_end(call);
    return failed ? -1 : 0;
}

void bench_call_end(bench_call *call)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        if (call->owned[i])
            fwa_memory_free(call->context, call->tensors[i].data);
    for (int pass = 0; pass < 2; pass++)
        fwa_memory_free(call->context, call->workspace[pass]);
    fwa_memory_free(call->context, call->saved);
    fwa_memory_free(call->context, call->slots);
    fwa_plan_destroy(call->plan);
    memset(call, 0, sizeof *call);
}

fwa_status bench_call_run(bench_call *call)
{
    const int32_t pass = call->problem->pass;
    fwa_status status = FWA_OK;
    if (call->slots) {
        const int64_t batch = call->problem->batch;
        call->forward.slot_in = fwa_tensor_contiguous(call->slots + call->group * batch,
                                                      FWA_DTYPE_I32, 1, batch);
        call->group = (call->group + 1) % call->groups;
    }
    if (pass != BENCH_BACKWARD)
        status = fwa_forward(call->plan, &call->forward);
    if (status == FWA_OK && is_backward(call->problem))
        status = fwa_backward(call->plan, &call->backward);
    return status;
}

fwa_status bench_call_wait(const bench_call *call)
{
    char byte;
    return fwa_memory_read(call->context, &byte, call->forward.o.data, sizeof byte);
}

/* ---- Comparing ---- */

/* Equal numbers, or NaN in both. */
static int same_values(const fwa_tensor *tensor, const char *image, const double *values)
{
    const int64_t n = elements_of(tensor);
    for (int64_t i = 0; i < n; i++) {
        const double got = element_get(tensor->dtype, image, i);
        if (got != values[i] && (got == got || values[i] == values[i]))
            return 0;
    }
    return 1;
}

int bench_call_same(const bench_call *call, const conformance_data *results, const char **name)
{
    int same = 1;
    for (int32_t i = 0; i < PROBLEM_TENSORS && same; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const fwa_tensor *tensor = &call->tensors[i];
        /* Carries in place go on with every call; what came of them is in the outputs. */
        if (tensor->rank == 0 || !element_is_float(tensor->dtype) ||
            (row->role != PROBLEM_OUTPUT && row->role != PROBLEM_GRADIENT) ||
            (is_carry(row) && call->problem->pass == BENCH_DECODE))
            continue;
        const size_t size = (size_t)elements_of(tensor) * fwa_dtype_size(tensor->dtype);
        char *image = conformance_allocate(size, 1);
        *name = row->name;
        same = fwa_memory_read(call->context, image, tensor->data, size) == FWA_OK &&
               results->values[i] != NULL && same_values(tensor, image, results->values[i]);
        free(image);
    }
    return same;
}
