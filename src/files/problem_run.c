/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_run.h"
#include "element.h"
#include "safetensors_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A few bytes of a file can ask for huge carries (empty sequences, zero tokens). Results may take
 * as much as this, whatever the file: 256 MiB and 1024 times its tensors; a sequence of one token
 * with the largest D and V has results of 230 times its inputs. */
#define RESULTS_BASE   ((uint64_t)256 << 20)
#define RESULTS_FACTOR 1024u

#define POISON_SIZE 65536 /* bytes written at a time */

/* ---- Binding ---- */

static fwa_tensor dense(void *data, int32_t dtype, int32_t rank, const int64_t *shape)
{
    int64_t extent[FWA_MAX_RANK] = {0};
    memcpy(extent, shape, (size_t)rank * sizeof *shape);
    return fwa_tensor_dense(data, dtype, rank, extent[0], extent[1], extent[2], extent[3],
                            extent[4]);
}

/* An element that the file has and a type has not. */
static int out_of_range(const safetensors_tensor *source, int64_t at, int32_t dtype,
                        safetensors_message *message)
{
    char index[FWA_MAX_RANK * 24] = "";
    int64_t rest = at, of[FWA_MAX_RANK];
    for (int32_t axis = source->rank; axis-- > 0; rest /= source->shape[axis])
        of[axis] = rest % source->shape[axis];
    for (int32_t axis = 0, used = 0; axis < source->rank; axis++)
        used += snprintf(index + used, sizeof index - (size_t)used, "%s%lld", axis ? ", " : "",
                         (long long)of[axis]);
    return safetensors_fail(message,
                            "tensor '%s' has %g at [%s], which is outside the range of %s, the "
                            "type that it is run in",
                            source->name, element_get(source->dtype, source->data, at), index,
                            fwa_dtype_name(dtype));
}

/* A number's neighbour, above or below by the seed's bits. Zero and infinity stay: so do signs. */
static double disturb(double value, uint64_t seed, int64_t i)
{
    uint64_t bits = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    return value * (bits >> 63 ? 1 + DBL_EPSILON : 1 - DBL_EPSILON);
}

/* Converts a tensor of the file; rounds to `rounded` first unless that is NONE. */
static int bind_given(const safetensors_tensor *source, const problem_tensor *row, int32_t dtype,
                      int32_t rounded, uint64_t disturbed, problem_buffer *buffer,
                      safetensors_message *message)
{
    const int64_t n = safetensors_elements(source);
    if (source->rank < 1)
        return safetensors_fail(message, "tensor '%s' has rank 0; it must be 1 or more", row->name);
    if (dtype == FWA_DTYPE_NONE)
        dtype = source->dtype;
    const safetensors_type *type = safetensors_type_of(dtype);
    if (safetensors_bytes(row->name, type, source->rank, source->shape, &buffer->size, message))
        return -1;
    void *data = malloc(buffer->size + 1);
    if (data == NULL)
        return safetensors_fail(message, "tensor '%s': no memory for %zu bytes", row->name,
                                buffer->size);
    if (!element_is_float(dtype)) {
        memcpy(data, source->data, buffer->size);
    } else {
        const int32_t narrow = rounded == FWA_DTYPE_NONE ? dtype : rounded;
        for (int64_t i = 0; i < n; i++) {
            const double value = element_get(source->dtype, source->data, i);
            const double run = element_round(narrow, value);
            if (isinf(run) && !isinf(value)) {
                free(data);
                return out_of_range(source, i, narrow, message);
            }
            element_set(dtype, data, i, disturbed ? disturb(run, disturbed, i) : run);
        }
    }
    buffer->row = row;
    buffer->tensor = dense(data, dtype, source->rank, source->shape);
    return 0;
}

static int bind_result(const problem_binding *binding, const problem_tensor *row,
                       problem_buffer *buffer, safetensors_message *message)
{
    int64_t shape[FWA_MAX_RANK];
    const int32_t rank = problem_tensor_shape(row, &binding->problem, &binding->extent, shape);
    const int32_t dtype = problem_tensor_dtype(row, &binding->problem);
    if (safetensors_bytes(row->name, safetensors_type_of(dtype), rank, shape, &buffer->size,
                          message))
        return -1;
    buffer->row = row;
    buffer->tensor = dense(NULL, dtype, rank, shape);
    return 0;
}

/* What to do with a row of the tensor table in this run. */
typedef enum use { USE_NOT, USE_GIVEN, USE_RESULT } use;

static use row_use(const safetensors *file, const problem_tensor *row,
                   const problem_run_options *options, const fwa_problem *problem)
{
    switch (row->role) {
    case PROBLEM_INPUT: return safetensors_find(file, row->name) ? USE_GIVEN : USE_NOT;
    case PROBLEM_OUTPUT: return problem_tensor_applies(row, problem) ? USE_RESULT : USE_NOT;
    case PROBLEM_MASK: return options->mask ? USE_RESULT : USE_NOT;
    case PROBLEM_UPSTREAM:
        return options->backward && safetensors_find(file, row->name) ? USE_GIVEN : USE_NOT;
    default: /* a gradient: "d" and the name of its input */
        return options->backward && problem_tensor_applies(row, problem) &&
                       safetensors_find(file, row->name + 1)
                   ? USE_RESULT
                   : USE_NOT;
    }
}

static int bind_rows(const safetensors *file, const problem_run_options *options,
                     problem_binding *binding, safetensors_message *message)
{
    fwa_problem rounded = binding->problem;
    uint64_t given = 0, results = 0;
    rounded.dtype = options->rounded_dtype;
    rounded.state_dtype = options->rounded_state_dtype;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        problem_buffer *buffer = &binding->buffers[binding->count];
        const use used = row_use(file, row, options, &binding->problem);
        if (used == USE_NOT)
            continue;
        const int failed =
            used == USE_RESULT
                ? bind_result(binding, row, buffer, message)
                : bind_given(safetensors_find(file, row->name), row,
                             problem_tensor_dtype(row, &binding->problem),
                             options->rounded_dtype ? problem_tensor_dtype(row, &rounded) : 0,
                             options->disturbed ? options->disturbed + (uint64_t)i : 0, buffer,
                             message);
        if (failed)
            return -1;
        binding->count++;
        given += used == USE_GIVEN ? buffer->size : 0;
        results += used == USE_RESULT && row->role != PROBLEM_MASK ? buffer->size : 0;
        if (results > INT64_MAX ||
            (results > RESULTS_BASE && (results - RESULTS_BASE) / RESULTS_FACTOR > given))
            return safetensors_fail(
                message,
                "the results would take %llu bytes or more, for inputs of %llu; "
                "the limit is 256 MiB and %u times the inputs",
                (unsigned long long)results, (unsigned long long)given, RESULTS_FACTOR);
    }
    return 0;
}

int problem_bind(const safetensors *file, const problem_run_options *options,
                 problem_binding *binding, safetensors_message *message)
{
    memset(binding, 0, sizeof *binding);
    if (problem_file_read_problem(file, &binding->problem, message) ||
        problem_file_extent(file, &binding->extent, message))
        return -1;
    if (options->dtype != FWA_DTYPE_NONE)
        binding->problem.dtype = options->dtype;
    binding->problem.state_dtype = options->state_dtype;
    binding->problem.form = options->form;
    if (options->backward && safetensors_find(file, "do") == NULL)
        return safetensors_fail(message, "tensor 'do' is missing: the backward needs the gradient "
                                         "that reaches o");
    if (bind_rows(file, options, binding, message)) {
        problem_binding_free(binding);
        return -1;
    }
    return 0;
}

void problem_binding_free(problem_binding *binding)
{
    for (int32_t i = 0; i < binding->count; i++)
        free(binding->buffers[i].tensor.data);
    memset(binding, 0, sizeof *binding);
}

/* ---- Running ---- */

/* Memory of one run, on the context's device. */
typedef struct device_memory {
    fwa_context *context;
    void *buffers[PROBLEM_TENSORS];
    void *workspace[2]; /* by fwa_pass */
    void *saved;
    size_t workspace_size[2], saved_size;
} device_memory;

static void device_free(device_memory *device)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        fwa_memory_free(device->context, device->buffers[i]);
    fwa_memory_free(device->context, device->workspace[FWA_PASS_FORWARD]);
    fwa_memory_free(device->context, device->workspace[FWA_PASS_BACKWARD]);
    fwa_memory_free(device->context, device->saved);
}

/* Results begin as NaN: an element that the library forgets is seen. */
static fwa_status device_poison(fwa_context *context, void *memory, size_t size)
{
    unsigned char ones[POISON_SIZE];
    fwa_status status = FWA_OK;
    memset(ones, 0xff, sizeof ones);
    for (size_t done = 0; done < size && status == FWA_OK; done += sizeof ones) {
        const size_t left = size - done;
        status = fwa_memory_write(context, (char *)memory + done, ones,
                                  left < sizeof ones ? left : sizeof ones);
    }
    return status;
}

/* Uploads the inputs and poisons the results. */
static fwa_status device_fill(device_memory *device, const problem_binding *binding)
{
    for (int32_t i = 0; i < binding->count; i++) {
        const problem_buffer *buffer = &binding->buffers[i];
        fwa_status status = fwa_memory_allocate(device->context, buffer->size, &device->buffers[i]);
        if (status == FWA_OK && buffer->tensor.data == NULL)
            status = device_poison(device->context, device->buffers[i], buffer->size);
        else if (status == FWA_OK && buffer->size > 0)
            status = fwa_memory_write(device->context, device->buffers[i], buffer->tensor.data,
                                      buffer->size);
        if (status != FWA_OK)
            return status;
    }
    return FWA_OK;
}

/* Points the fields of an args struct at the device's tensors. */
static void fill_args(void *args, const problem_binding *binding, const device_memory *device,
                      fwa_pass pass)
{
    for (int32_t i = 0; i < binding->count; i++) {
        const problem_buffer *buffer = &binding->buffers[i];
        const size_t field = pass == FWA_PASS_FORWARD ? buffer->row->forward
                                                      : buffer->row->backward;
        if (field == PROBLEM_NO_FIELD)
            continue;
        fwa_tensor tensor = buffer->tensor;
        tensor.data = device->buffers[i];
        memcpy((char *)args + field, &tensor, sizeof tensor);
    }
}

static fwa_status run_forward(const fwa_plan *plan, const problem_binding *binding,
                              const device_memory *device)
{
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    fill_args(&args, binding, device, FWA_PASS_FORWARD);
    args.workspace = device->workspace[FWA_PASS_FORWARD];
    args.workspace_size = device->workspace_size[FWA_PASS_FORWARD];
    args.saved = device->saved;
    args.saved_size = device->saved_size;
    return fwa_forward(plan, &args);
}

static fwa_status run_backward(const fwa_plan *plan, const problem_binding *binding,
                               const device_memory *device)
{
    fwa_backward_args args = FWA_BACKWARD_ARGS_INIT;
    fill_args(&args, binding, device, FWA_PASS_BACKWARD);
    args.workspace = device->workspace[FWA_PASS_BACKWARD];
    args.workspace_size = device->workspace_size[FWA_PASS_BACKWARD];
    args.saved = device->saved;
    args.saved_size = device->saved_size;
    return fwa_backward(plan, &args);
}

/* Workspace of one pass; NULL where it is 0. */
static fwa_status make_workspace(const fwa_plan *plan, const problem_binding *binding,
                                 device_memory *device, fwa_pass pass)
{
    fwa_status status = fwa_plan_workspace_size(plan, pass, binding->extent.batch,
                                                binding->extent.tokens, binding->extent.sequences,
                                                &device->workspace_size[pass]);
    if (status == FWA_OK && device->workspace_size[pass] > 0)
        status = fwa_memory_allocate(device->context, device->workspace_size[pass],
                                     &device->workspace[pass]);
    return status;
}

static fwa_status make_saved(const fwa_plan *plan, const problem_binding *binding,
                             device_memory *device)
{
    fwa_status status = fwa_plan_saved_size(plan, binding->extent.batch, binding->extent.tokens,
                                            binding->extent.sequences, &device->saved_size);
    if (status == FWA_OK && device->saved_size > 0)
        status = fwa_memory_allocate(device->context, device->saved_size, &device->saved);
    return status;
}

static fwa_status run_plan(const fwa_plan *plan, const problem_run_options *options,
                           const problem_binding *binding, device_memory *device)
{
    fwa_status status = device_fill(device, binding);
    if (status == FWA_OK && options->backward && options->saved)
        status = make_saved(plan, binding, device);
    if (status == FWA_OK)
        status = make_workspace(plan, binding, device, FWA_PASS_FORWARD);
    if (status == FWA_OK)
        status = run_forward(plan, binding, device);
    if (status == FWA_OK && options->backward)
        status = make_workspace(plan, binding, device, FWA_PASS_BACKWARD);
    if (status == FWA_OK && options->backward)
        status = run_backward(plan, binding, device);
    return status;
}

/* ---- Results ---- */

/* Reads one result back and widens it. 0, or -1 with *status and *message filled. */
static int collect_one(const problem_buffer *buffer, const device_memory *device, int32_t index,
                       safetensors *results, fwa_status *status, safetensors_message *message)
{
    const fwa_tensor *tensor = &buffer->tensor;
    const int floating = element_is_float(tensor->dtype);
    safetensors_tensor *wide = safetensors_add(results, buffer->row->name,
                                               floating ? FWA_DTYPE_F64 : tensor->dtype,
                                               tensor->rank, tensor->shape, message);
    void *narrow = malloc(buffer->size + 1);
    int failed = -1;
    *status = FWA_ERROR_MEMORY;
    if (narrow == NULL) {
        safetensors_fail(message, "out of memory");
    } else if (wide != NULL) {
        *status = buffer->size == 0 ? FWA_OK
                                    : fwa_memory_read(device->context, narrow,
                                                      device->buffers[index], buffer->size);
        failed = *status != FWA_OK;
        if (failed)
            safetensors_fail(message, "%s", fwa_error_message());
        for (int64_t i = 0; !failed && floating && i < safetensors_elements(wide); i++)
            ((double *)wide->data)[i] = element_get(tensor->dtype, narrow, i);
        if (!failed && !floating)
            memcpy(wide->data, narrow, buffer->size);
    }
    free(narrow);
    return failed ? -1 : 0;
}

static int collect(const problem_binding *binding, const device_memory *device,
                   problem_answer *answer, safetensors_message *message)
{
    for (int32_t i = 0; i < binding->count; i++)
        if (binding->buffers[i].tensor.data == NULL &&
            collect_one(&binding->buffers[i], device, i, answer->results, &answer->status, message))
            return -1;
    return 0;
}

static void name_kernels(const fwa_plan *plan, int32_t backward, problem_answer *answer)
{
    for (int pass = FWA_PASS_FORWARD; pass <= (backward ? FWA_PASS_BACKWARD : FWA_PASS_FORWARD);
         pass++)
        snprintf(answer->kernel[pass], sizeof answer->kernel[pass], "%s",
                 fwa_plan_kernel_name(plan, (fwa_pass)pass));
}

static int run_binding(const problem_binding *binding, const problem_run_options *options,
                       problem_answer *answer, safetensors_message *message)
{
    device_memory device = {0};
    fwa_plan *plan = NULL;
    int failed = -1;
    device.context = options->context;
    answer->status = fwa_plan_create(options->context, &binding->problem, &plan);
    if (answer->status == FWA_OK) {
        name_kernels(plan, options->backward, answer);
        answer->status = run_plan(plan, options, binding, &device);
    }
    if (answer->status == FWA_OK)
        failed = collect(binding, &device, answer, message);
    else
        safetensors_fail(message, "%s", fwa_error_message());
    device_free(&device);
    fwa_plan_destroy(plan);
    return failed;
}

problem_run_result problem_run(const safetensors *file, const problem_run_options *options,
                               problem_answer *answer, safetensors_message *message)
{
    problem_binding binding;
    memset(answer, 0, sizeof *answer);
    if (problem_bind(file, options, &binding, message))
        return PROBLEM_RUN_BAD_FILE;
    answer->problem = binding.problem;
    answer->results = safetensors_new(message);
    answer->status = FWA_ERROR_MEMORY;
    const int failed = answer->results == NULL || run_binding(&binding, options, answer, message);
    problem_binding_free(&binding);
    if (!failed)
        return PROBLEM_RUN_OK;
    safetensors_free(answer->results);
    answer->results = NULL;
    return PROBLEM_RUN_REFUSED;
}

void problem_answer_free(problem_answer *answer)
{
    safetensors_free(answer->results);
    answer->results = NULL;
}
