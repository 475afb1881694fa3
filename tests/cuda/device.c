/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"
#include "../../src/files/element.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The driver ---- */

/* The two steps expand the macros of cuda.h in the name. */
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

static void find_function(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    cr_assert_not_null(symbol, "libcuda.so.1 has no %s", name);
    memcpy(function, &symbol, sizeof symbol);
}

const device_driver *device_load(void)
{
    static device_driver driver;
    if (driver.base)
        return &driver;
    const fwa_cuda_driver *base = fwa_cuda_load();
    cr_assert_gt(base->device_count, 0, "no GPU to test on: %s", base->message);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
#define LOAD(function) find_function(library, TEXT(function), &driver.function);
    DEVICE_FUNCTIONS(LOAD)
#undef LOAD
    void *create_context = dlsym(library, "cuCtxCreate_v2");
    memcpy(&driver.create_context, &create_context, sizeof create_context);
    driver.base = base;
    return &driver;
}

void device_expect(CUresult result, const char *call)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    device_load()->base->api.cuGetErrorName(result, &name);
    cr_assert_fail("%s: %s (%d)", call, name ? name : "an unknown error", (int)result);
}

void device_use(int32_t index)
{
    CUcontext context;
    CUDA(base->api.cuDevicePrimaryCtxRetain, &context, device_load()->base->device[index]);
    CUDA(cuCtxSetCurrent, context);
}

CUstream device_stream(void)
{
    CUstream stream;
    CUDA(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return stream;
}

/* ---- Contexts of the library ---- */

static void expect_ok(fwa_status status, const char *what)
{
    cr_assert_eq(status, FWA_OK, "%s: %s: %s", what, fwa_status_name(status), fwa_error_message());
}

fwa_context *device_context_new(int32_t index)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    options.backend = "cuda";
    options.device = index;
    expect_ok(fwa_context_create(&options, &context), "a context");
    return context;
}

int32_t device_count(void)
{
    fwa_backend_info info = FWA_BACKEND_INFO_INIT;
    for (int32_t i = 0; i < fwa_backend_count(); i++)
        if (fwa_backend_get(i, &info) == FWA_OK && strcmp(info.name, "cuda") == 0)
            break;
    cr_assert_str_eq(info.name, "cuda");
    cr_assert_gt(info.device_count, 0, "no GPU to test on: %s", info.reason);
    return info.device_count;
}

/* ---- Calls ---- */

static int64_t elements_of(const fwa_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        count *= tensor->shape[axis];
    return count;
}

static int is_result(int32_t i)
{
    const problem_role role = problem_tensor_get(i)->role;
    return role == PROBLEM_OUTPUT || role == PROBLEM_GRADIENT;
}

static int is_bound(const device_call *call, const conformance_data *data, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    switch (row->role) {
    case PROBLEM_INPUT: return data->values[i] != NULL;
    case PROBLEM_UPSTREAM: return data->values[i] != NULL && call->backward;
    case PROBLEM_OUTPUT: return problem_tensor_applies(row, &call->problem);
    case PROBLEM_GRADIENT:
        return call->backward && problem_tensor_applies(row, &call->problem) &&
               conformance_get(data, row->name + 1) != NULL;
    default: return 0;
    }
}

/* In place "state_out" is the memory of "state_in". */
static const fwa_tensor *find_shared(const device_call *call, const problem_tensor *row)
{
    char name[32];
    if (row->role != PROBLEM_OUTPUT || row->axes[0] != 'N')
        return NULL;
    snprintf(name, sizeof name, "%.*sin", (int)strlen(row->name) - 3, row->name);
    const fwa_tensor *tensor = &call->tensors[problem_tensor_find(name) - problem_tensor_get(0)];
    return tensor->rank > 0 ? tensor : NULL;
}

static void make_block(device_call *call, device_block *block, size_t size)
{
    block->size = size;
    block->image = conformance_allocate(size, 1);
    expect_ok(fwa_memory_allocate(call->context, size, &block->memory), "memory");
}

static void bind(device_call *call, const conformance_data *data, int32_t i, int in_place)
{
    const problem_tensor *row = problem_tensor_get(i);
    const fwa_tensor *shared = in_place ? find_shared(call, row) : NULL;
    fwa_tensor *tensor = &call->tensors[i];
    if (shared) {
        *tensor = *shared;
    } else {
        int64_t shape[FWA_MAX_RANK] = {0};
        const int32_t rank = conformance_shape(data, row, shape);
        int32_t dtype = problem_tensor_dtype(row, &call->problem);
        dtype = dtype == FWA_DTYPE_NONE ? FWA_DTYPE_I32 : dtype;
        *tensor = fwa_tensor_dense(NULL, dtype, rank, shape[0], shape[1], shape[2], shape[3],
                                   shape[4]);
        make_block(call, &call->blocks[i], (size_t)elements_of(tensor) * fwa_dtype_size(dtype));
        tensor->data = call->blocks[i].memory;
    }
    if (row->forward != PROBLEM_NO_FIELD)
        memcpy((char *)&call->forward + row->forward, tensor, sizeof *tensor);
    if (row->backward != PROBLEM_NO_FIELD)
        memcpy((char *)&call->gradients + row->backward, tensor, sizeof *tensor);
}

static const int32_t *slot_values(const conformance_data *data, int which)
{
    return which == 0 ? data->slot_in : which == 1 ? data->slot_out : data->commit;
}

static void bind_slots(device_call *call, const conformance_data *data)
{
    fwa_tensor *const fields[] = {&call->forward.slot_in, &call->forward.slot_out,
                                  &call->forward.commit};
    const int64_t n = data->extent.sequences;
    for (int which = 0; which < DEVICE_SLOTS; which++) {
        if (slot_values(data, which) == NULL)
            continue;
        make_block(call, &call->slots[which], (size_t)n * sizeof(int32_t));
        *fields[which] = fwa_tensor_contiguous(call->slots[which].memory, FWA_DTYPE_I32, 1, n);
    }
    call->gradients.slot_in = call->forward.slot_in;
}

static void make_scratch(device_call *call)
{
    const problem_extent *e = &call->extent;
    size_t *const sizes[] = {&call->forward.workspace_size, &call->gradients.workspace_size};
    for (int pass = 0; pass < 1 + call->backward; pass++) {
        expect_ok(fwa_plan_workspace_size(call->plan, (fwa_pass)pass, e->batch, e->tokens,
                                          e->sequences, sizes[pass]),
                  "the workspace's size");
        expect_ok(fwa_memory_allocate(call->context, *sizes[pass], &call->workspace[pass]),
                  "a workspace");
    }
    call->forward.workspace = call->workspace[FWA_PASS_FORWARD];
    call->gradients.workspace = call->workspace[FWA_PASS_BACKWARD];
}

device_call *device_call_new(fwa_context *context, const fwa_plan *plan, const fwa_problem *problem,
                             const conformance_data *data, int backward, int in_place)
{
    device_call *call = conformance_allocate(1, sizeof *call);
    call->context = context;
    call->plan = plan;
    call->problem = data->problem;
    call->problem.dtype = problem->dtype;
    call->problem.state_dtype = problem->state_dtype;
    call->extent = data->extent;
    call->pool = data->pool;
    call->backward = backward;
    call->forward = fwa_forward_args_init();
    call->gradients = fwa_backward_args_init();
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        if (is_bound(call, data, i))
            bind(call, data, i, in_place);
    bind_slots(call, data);
    make_scratch(call);
    device_call_fill(call, data);
    return call;
}

static void free_block(device_call *call, device_block *block)
{
    fwa_memory_free(call->context, block->memory);
    free(block->image);
}

void device_call_free(device_call *call)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        free_block(call, &call->blocks[i]);
    for (int which = 0; which < DEVICE_SLOTS; which++)
        free_block(call, &call->slots[which]);
    for (int pass = 0; pass < 2; pass++)
        fwa_memory_free(call->context, call->workspace[pass]);
    free(call);
}

static void put(int32_t dtype, void *at, int64_t i, double value)
{
    if (dtype == FWA_DTYPE_I32)
        ((int32_t *)at)[i] = (int32_t)value;
    else if (dtype == FWA_DTYPE_I64)
        ((int64_t *)at)[i] = (int64_t)value;
    else
        element_set(dtype, at, i, value);
}

void device_call_fill(device_call *call, const conformance_data *data)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const fwa_tensor *tensor = &call->tensors[i];
        device_block *block = &call->blocks[i];
        if (block->image == NULL)
            continue;
        if (is_result(i))
            memset(block->image, 0xff, block->size);
        for (int64_t j = 0; !is_result(i) && j < elements_of(tensor); j++)
            put(tensor->dtype, block->image, j, data->values[i][j]);
    }
    for (int which = 0; which < DEVICE_SLOTS; which++)
        if (call->slots[which].image)
            memcpy(call->slots[which].image, slot_values(data, which), call->slots[which].size);
    device_call_reset(call);
}

void device_call_reset(device_call *call)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS + DEVICE_SLOTS; i++) {
        const device_block *block = i < PROBLEM_TENSORS ? &call->blocks[i]
                                                        : &call->slots[i - PROBLEM_TENSORS];
        if (block->size)
            expect_ok(fwa_memory_write(call->context, block->memory, block->image, block->size),
                      "writing");
    }
}

fwa_status device_call_run(device_call *call, CUstream stream)
{
    call->forward.stream = call->gradients.stream = stream;
    const fwa_status status = fwa_forward(call->plan, &call->forward);
    return status == FWA_OK && call->backward ? fwa_backward(call->plan, &call->gradients) : status;
}

void device_call_good(device_call *call, CUstream stream)
{
    expect_ok(device_call_run(call, stream), "a call");
}

/* The bytes of one tensor. */
static char *read_tensor(const device_call *call, const fwa_tensor *tensor, size_t *size)
{
    *size = (size_t)elements_of(tensor) * fwa_dtype_size(tensor->dtype);
    char *bytes = conformance_allocate(*size, 1);
    expect_ok(fwa_memory_read(call->context, bytes, tensor->data, *size), "reading");
    return bytes;
}

conformance_data device_call_results(device_call *call)
{
    conformance_data results = conformance_data_new(&call->problem, call->extent.batch,
                                                    call->extent.tokens, call->extent.sequences);
    results.pool = call->pool;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const fwa_tensor *tensor = &call->tensors[i];
        size_t size;
        if (!is_result(i) || tensor->rank == 0)
            continue;
        char *bytes = read_tensor(call, tensor, &size);
        double *values = conformance_add(&results, problem_tensor_get(i)->name);
        for (int64_t j = 0; j < elements_of(tensor); j++)
            values[j] = tensor->dtype == FWA_DTYPE_I64 ? (double)((int64_t *)(void *)bytes)[j]
                                                       : element_get(tensor->dtype, bytes, j);
        free(bytes);
    }
    return results;
}

char *device_call_bytes(device_call *call, size_t *size)
{
    char *all = NULL;
    *size = 0;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        size_t part;
        if (!is_result(i) || call->tensors[i].rank == 0)
            continue;
        char *bytes = read_tensor(call, &call->tensors[i], &part);
        all = realloc(all, *size + part + 1);
        cr_assert_not_null(all);
        memcpy(all + *size, bytes, part);
        *size += part;
        free(bytes);
    }
    return all;
}

/* ---- Graphs ---- */

static CUresult count_nodes(const device_driver *d, CUgraph graph, device_graph *made)
{
    CUgraphNode nodes[64];
    size_t room = sizeof nodes / sizeof *nodes;
    CUresult result = d->cuGraphGetNodes(graph, NULL, &made->nodes);
    if (result == CUDA_SUCCESS && made->nodes > 0)
        result = d->cuGraphGetNodes(graph, nodes, &room);
    for (size_t i = 0; result == CUDA_SUCCESS && i < made->nodes && i < room; i++) {
        CUgraphNodeType type;
        result = d->cuGraphNodeGetType(nodes[i], &type);
        made->kernels += result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL;
    }
    return result;
}

device_graph device_capture(device_call *call, CUstream stream, CUstreamCaptureMode mode)
{
    const device_driver *d = device_load();
    device_graph made = {.status = FWA_OK};
    CUgraph graph = NULL;
    made.result = d->cuStreamBeginCapture(stream, mode);
    if (made.result != CUDA_SUCCESS)
        return made;
    made.status = device_call_run(call, stream);
    made.result = d->cuStreamEndCapture(stream, &graph);
    if (made.result == CUDA_SUCCESS)
        made.result = count_nodes(d, graph, &made);
    if (made.result == CUDA_SUCCESS)
        made.result = d->cuGraphInstantiateWithFlags(&made.exec, graph, 0);
    if (graph)
        d->cuGraphDestroy(graph);
    return made;
}

CUresult device_replay(const device_graph *graph, CUstream stream)
{
    return device_load()->cuGraphLaunch(graph->exec, stream);
}

void device_graph_free(device_graph *graph)
{
    if (graph->exec)
        device_load()->cuGraphExecDestroy(graph->exec);
    graph->exec = NULL;
}
