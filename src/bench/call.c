/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"
#include "../files/element.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

/* More than the last cache of any GPU so far holds, of which the interface does not tell the size. */
#define DEVICE_CACHES 0x1p28
#define COPIES_LIMIT  64

int bench_on_host(const fwa_context *context)
{
    const char *backend = fwa_context_backend(context);
    return strcmp(backend, "cpu") == 0 || strcmp(backend, "reference") == 0;
}

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
static const fwa_tensor *find_shared(const bench_call *call, const bench_copy *copy,
                                     const problem_tensor *row)
{
    char name[32];
    if (call->problem->pass != BENCH_DECODE || row->role != PROBLEM_OUTPUT || !is_carry(row))
        return NULL;
    snprintf(name, sizeof name, "%.*sin", (int)strlen(row->name) - 3, row->name);
    const fwa_tensor *tensor = &copy->tensors[problem_tensor_find(name) - problem_tensor_get(0)];
    return tensor->rank > 0 ? tensor : NULL;
}

static void put(int32_t dtype, void *at, int64_t i, double value)
{
    if (dtype == FWA_DTYPE_I64)
        ((int64_t *)at)[i] = (int64_t)value;
    else
        element_set(dtype, at, i, value);
}

/* Repeats the part along each axis until the whole is full. */
static void spread(const int64_t *whole, const int64_t *part, int32_t rank, size_t size,
                   const char *from, char *to)
{
    size_t from_step = size, to_step = size;
    if (rank == 0) {
        memcpy(to, from, size);
        return;
    }
    for (int32_t axis = 1; axis < rank; axis++) {
        from_step *= (size_t)part[axis];
        to_step *= (size_t)whole[axis];
    }
    for (int64_t i = 0; i < whole[0]; i++) {
        char *target = to + (size_t)i * to_step;
        const char *source = from + (size_t)(i % part[0]) * from_step;
        if (from_step == to_step)
            memcpy(target, source, from_step);
        else
            spread(whole + 1, part + 1, rank - 1, size, source, target);
    }
}

/* The bytes of the whole problem's tensor, rows as batch rows and one group of a pool, made of the
 * part's values; NULL: NaN. The caller frees them. */
static char *make_image(const bench_call *call, const conformance_data *data, int32_t i,
                        const double *values, size_t *size)
{
    const problem_tensor *row = problem_tensor_get(i);
    const bench_problem *problem = call->problem;
    const problem_extent extent = {problem->batch, problem->tokens, problem->batch};
    const int32_t dtype = problem_tensor_dtype(row, &problem->problem);
    const size_t element = fwa_dtype_size(dtype);
    int64_t whole[FWA_MAX_RANK], part[FWA_MAX_RANK], n = 1;
    const int32_t rank = problem_tensor_shape(row, &problem->problem, &extent, whole);
    conformance_shape(data, row, part);
    *size = element;
    for (int32_t axis = 0; axis < rank; axis++) {
        *size *= (size_t)whole[axis];
        n *= part[axis];
    }
    char *image = conformance_allocate(*size, 1);
    if (values == NULL) {
        memset(image, 0xff, *size);
        return image;
    }
    char *one = conformance_allocate((size_t)n, element);
    for (int64_t j = 0; j < n; j++)
        put(dtype, one, j, values[j]);
    spread(whole, part, rank, element, one, image);
    free(one);
    return image;
}

/* Fills a tensor of all copies. */
static fwa_status fill(const bench_call *call, const conformance_data *data, int32_t i)
{
    size_t size;
    char *image = make_image(call, data, i, data->values[i], &size);
    const int64_t groups = is_carry(problem_tensor_get(i)) ? call->groups : 1;
    fwa_status status = FWA_OK;
    for (int64_t n = 0; n < call->count * groups && status == FWA_OK; n++) {
        char *memory = call->copies[n / groups].tensors[i].data;
        status = fwa_memory_write(call->context, memory + (size_t)(n % groups) * size, image, size);
    }
    free(image);
    return status;
}

/* Rows as they are in the call: batch rows, or packed. */
static problem_extent extent_of(const bench_problem *problem)
{
    const int64_t batch = problem->batch, tokens = problem->tokens;
    const problem_extent rows = {batch, tokens, batch}, packed = {1, batch * tokens, batch};
    return problem->packed ? packed : rows;
}

static fwa_status bind(bench_call *call, bench_copy *copy, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    const fwa_problem *p = &call->problem->problem;
    const fwa_tensor *shared = find_shared(call, copy, row);
    fwa_tensor *tensor = &copy->tensors[i];
    problem_extent extent = extent_of(call->problem);
    int64_t shape[FWA_MAX_RANK] = {0};
    if (shared) {
        *tensor = *shared;
        return FWA_OK;
    }
    if (is_carry(row))
        extent.sequences *= call->groups;
    const int32_t rank = problem_tensor_shape(row, p, &extent, shape);
    fwa_tensor made = fwa_tensor_dense(NULL, problem_tensor_dtype(row, p), rank, shape[0], shape[1],
                                       shape[2], shape[3], shape[4]);
    const size_t size = (size_t)elements_of(&made) * fwa_dtype_size(made.dtype);
    const fwa_status status = fwa_memory_allocate(call->context, size, &made.data);
    if (status != FWA_OK)
        return status;
    *tensor = made;
    copy->owned[i] = 1;
    return FWA_OK;
}

static int bind_all(bench_call *call, const conformance_data *data, bench_message *message)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (!is_bound(call, data, i))
            continue;
        for (int64_t n = 0; n < call->count; n++) {
            bench_copy *copy = &call->copies[n];
            if (bind(call, copy, i) != FWA_OK)
                return refuse(message, row->name);
            if (row->forward != PROBLEM_NO_FIELD)
                memcpy((char *)&copy->forward + row->forward, &copy->tensors[i],
                       sizeof(fwa_tensor));
            if (row->backward != PROBLEM_NO_FIELD)
                memcpy((char *)&copy->backward + row->backward, &copy->tensors[i],
                       sizeof(fwa_tensor));
        }
        if (call->copies[0].owned[i] && fill(call, data, i) != FWA_OK)
            return refuse(message, row->name);
    }
    return 0;
}

/* ---- Copies and pools ---- */

/* Bytes of q, k, v and o. */
static double input_bytes(const bench_problem *problem)
{
    const fwa_problem *p = &problem->problem;
    return (double)problem->batch * (double)problem->tokens * (double)fwa_dtype_size(p->dtype) *
           (p->key_dim * (p->heads_query + p->heads_key) + 2 * p->value_dim * p->heads_value);
}

/* Decoding has pools instead. */
static int64_t count_copies(const bench_problem *problem, const fwa_context *context)
{
    const double copies = DEVICE_CACHES / input_bytes(problem);
    if (problem->pass == BENCH_DECODE || bench_on_host(context))
        return 1;
    return copies > COPIES_LIMIT - 1 ? COPIES_LIMIT : (int64_t)copies + 1;
}

static int64_t count_groups(const bench_problem *problem, const fwa_context *context)
{
    const double state = bench_state_bytes(problem) / 2;
    if (!problem->cold)
        return 1;
    const double beyond = bench_on_host(context) ? (double)bench_machine_beyond_cache(
                                                       (int)fwa_context_threads(context))
                                                 : DEVICE_CACHES;
    const int64_t groups = (int64_t)(beyond / state) + 1;
    return groups < 2 ? 2 : groups;
}

/* Integers in the context's memory. */
static int upload(bench_call *call, const void *image, size_t size, void **memory)
{
    return fwa_memory_allocate(call->context, size, memory) != FWA_OK ||
           fwa_memory_write(call->context, *memory, image, size) != FWA_OK;
}

static int make_slots(bench_call *call, bench_message *message)
{
    const int64_t batch = call->problem->batch, n = call->groups * batch;
    void *memory = NULL;
    if (call->groups == 1)
        return 0;
    int32_t *image = conformance_allocate((size_t)n, sizeof *image);
    for (int64_t i = 0; i < n; i++)
        image[i] = (int32_t)i;
    const int failed = upload(call, image, (size_t)n * sizeof *image, &memory);
    call->slots = memory;
    free(image);
    return failed ? refuse(message, "slots") : 0;
}

static int make_lengths(bench_call *call, bench_message *message)
{
    const int64_t n = call->problem->batch + 1;
    if (!call->problem->packed)
        return 0;
    int64_t *image = conformance_allocate((size_t)n, sizeof *image);
    for (int64_t i = 0; i < n; i++)
        image[i] = i * call->problem->tokens;
    const int failed = upload(call, image, (size_t)n * sizeof *image, &call->lengths);
    const fwa_tensor lengths = fwa_tensor_contiguous(call->lengths, FWA_DTYPE_I64, 1, n);
    for (int64_t i = 0; i < call->count; i++)
        call->copies[i].forward.cu_seqlens = call->copies[i].backward.cu_seqlens = lengths;
    free(image);
    return failed ? refuse(message, "cu_seqlens") : 0;
}

/* ---- Begin, run, end ---- */

static int make_workspaces(bench_call *call, bench_message *message)
{
    const problem_extent e = extent_of(call->problem);
    for (int pass = 0; pass < 1 + is_backward(call->problem); pass++) {
        size_t *size = &call->workspace_size[pass];
        if (fwa_plan_workspace_size(call->plan, (fwa_pass)pass, e.batch, e.tokens, e.sequences,
                                    size) != FWA_OK)
            return refuse(message, "workspace");
        if (*size > 0 &&
            fwa_memory_allocate(call->context, *size, &call->workspace[pass]) != FWA_OK)
            return refuse(message, "workspace");
    }
    for (int64_t i = 0; i < call->count; i++) {
        bench_copy *copy = &call->copies[i];
        copy->forward.workspace = call->workspace[FWA_PASS_FORWARD];
        copy->forward.workspace_size = call->workspace_size[FWA_PASS_FORWARD];
        copy->backward.workspace = call->workspace[FWA_PASS_BACKWARD];
        copy->backward.workspace_size = call->workspace_size[FWA_PASS_BACKWARD];
    }
    return 0;
}

static int make_saved(bench_call *call, bench_message *message)
{
    const problem_extent e = extent_of(call->problem);
    if (!is_backward(call->problem) || !call->problem->saved)
        return 0;
    if (fwa_plan_saved_size(call->plan, e.batch, e.tokens, e.sequences, &call->saved_size) !=
        FWA_OK)
        return refuse(message, "saved");
    for (int64_t i = 0; i < call->count; i++) {
        bench_copy *copy = &call->copies[i];
        if (call->saved_size > 0 &&
            fwa_memory_allocate(call->context, call->saved_size, &copy->saved) != FWA_OK)
            return refuse(message, "saved");
        copy->forward.saved = copy->saved;
        copy->backward.saved = copy->saved;
        copy->forward.saved_size = copy->backward.saved_size = call->saved_size;
    }
    return 0;
}

int bench_call_begin(bench_call *call, fwa_context *context, const bench_problem *problem,
                     const conformance_data *data, bench_message *message)
{
    memset(call, 0, sizeof *call);
    call->context = context;
    call->problem = problem;
    call->count = count_copies(problem, context);
    call->copies = conformance_allocate((size_t)call->count, sizeof *call->copies);
    for (int64_t i = 0; i < call->count; i++) {
        call->copies[i].forward = fwa_forward_args_init();
        call->copies[i].backward = fwa_backward_args_init();
    }
    call->groups = count_groups(problem, context);
    int failed = fwa_plan_create(context, &problem->problem, &call->plan) != FWA_OK
                     ? refuse(message, "plan")
                     : bind_all(call, data, message) || make_slots(call, message) ||
                           make_lengths(call, message) || make_workspaces(call, message) ||
                           make_saved(call, message);
    /* The backward alone reads what one forward before it has saved. */
    for (int64_t i = 0; i < call->count && !failed && problem->pass == BENCH_BACKWARD; i++)
        if (fwa_forward(call->plan, &call->copies[i].forward) != FWA_OK)
            failed = refuse(message, "forward");
    if (failed)
        bench_call_end(call);
    return failed ? -1 : 0;
}

void bench_call_end(bench_call *call)
{
    for (int64_t n = 0; n < call->count; n++) {
        const bench_copy *copy = &call->copies[n];
        for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
            if (copy->owned[i])
                fwa_memory_free(call->context, copy->tensors[i].data);
        fwa_memory_free(call->context, copy->saved);
    }
    for (int pass = 0; pass < 2; pass++)
        fwa_memory_free(call->context, call->workspace[pass]);
    fwa_memory_free(call->context, call->slots);
    fwa_memory_free(call->context, call->lengths);
    fwa_plan_destroy(call->plan);
    free(call->copies);
    memset(call, 0, sizeof *call);
}

fwa_status bench_call_run(bench_call *call)
{
    const int32_t pass = call->problem->pass;
    bench_copy *copy = &call->copies[call->next];
    fwa_status status = FWA_OK;
    call->next = (call->next + 1) % call->count;
    if (call->slots) {
        const int64_t batch = call->problem->batch;
        copy->forward.slot_in = fwa_tensor_contiguous(call->slots + call->group * batch,
                                                      FWA_DTYPE_I32, 1, batch);
        call->group = (call->group + 1) % call->groups;
    }
    if (pass != BENCH_BACKWARD)
        status = fwa_forward(call->plan, &copy->forward);
    if (status == FWA_OK && is_backward(call->problem))
        status = fwa_backward(call->plan, &copy->backward);
    return status;
}

fwa_status bench_call_wait(const bench_call *call)
{
    char byte;
    return fwa_memory_read(call->context, &byte, call->copies[0].forward.o.data, sizeof byte);
}

/* ---- Comparing ---- */

/* Equal numbers, or NaN in both. */
static int same_values(int32_t dtype, const char *left, const char *right, size_t size)
{
    const int64_t n = (int64_t)(size / fwa_dtype_size(dtype));
    if (memcmp(left, right, size) == 0)
        return 1;
    for (int64_t i = 0; i < n; i++) {
        const double got = element_get(dtype, left, i), want = element_get(dtype, right, i);
        if (got != want && (got == got || want == want))
            return 0;
    }
    return 1;
}

/* One tensor of all copies. */
static int same_tensor(const bench_call *call, const conformance_data *results, int32_t i)
{
    const int32_t dtype = call->copies[0].tensors[i].dtype;
    size_t size;
    if (results->values[i] == NULL)
        return 0;
    char *want = make_image(call, results, i, results->values[i], &size);
    char *got = conformance_allocate(size, 1);
    int same = 1;
    for (int64_t n = 0; n < call->count && same; n++)
        same = fwa_memory_read(call->context, got, call->copies[n].tensors[i].data, size) ==
                   FWA_OK &&
               same_values(dtype, got, want, size);
    free(want);
    free(got);
    return same;
}

int bench_call_same(const bench_call *call, const conformance_data *results, const char **name)
{
    int same = 1;
    for (int32_t i = 0; i < PROBLEM_TENSORS && same; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const fwa_tensor *tensor = &call->copies[0].tensors[i];
        /* Carries in place go on with every call; what came of them is in the outputs. */
        if (tensor->rank == 0 || !element_is_float(tensor->dtype) ||
            (row->role != PROBLEM_OUTPUT && row->role != PROBLEM_GRADIENT) ||
            (is_carry(row) && call->problem->pass == BENCH_DECODE))
            continue;
        *name = row->name;
        same = same_tensor(call, results, i);
    }
    return same;
}
