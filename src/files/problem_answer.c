/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_answer.h"
#include "element.h"

#include <string.h>

static int copy_metadata(const safetensors *file, safetensors *out, safetensors_message *message)
{
    for (int32_t i = 0; i < safetensors_metadata_count(file); i++) {
        const char *key = safetensors_metadata_key(file, i);
        if (safetensors_set_metadata(out, key, safetensors_metadata(file, key), message))
            return -1;
    }
    return 0;
}

static int copy_given(const problem_binding *binding, safetensors *out,
                      safetensors_message *message)
{
    for (int32_t i = 0; i < binding->count; i++) {
        const problem_buffer *buffer = &binding->buffers[i];
        if (buffer->tensor.data == NULL)
            continue;
        safetensors_tensor *tensor = safetensors_add(out, buffer->row->name, buffer->tensor.dtype,
                                                     buffer->tensor.rank, buffer->tensor.shape,
                                                     message);
        if (tensor == NULL)
            return -1;
        memcpy(tensor->data, buffer->tensor.data, buffer->size);
    }
    return 0;
}

/* The type in which a result is stored. A state that the run rounded to 16 bits keeps that type,
 * which says how exact it is. */
static int32_t stored_dtype(const problem_tensor *row, const fwa_problem *problem)
{
    if (row->type == PROBLEM_TYPE_DATA)
        return problem->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
    return problem_tensor_dtype(row, problem);
}

static int copy_results(const problem_answer *answer, safetensors *out,
                        safetensors_message *message)
{
    for (int32_t i = 0; i < safetensors_count(answer->results); i++) {
        const safetensors_tensor *result = safetensors_get(answer->results, i);
        const problem_tensor *row = problem_tensor_find(result->name);
        const int32_t stored = stored_dtype(row, &answer->problem);
        if (row->role == PROBLEM_MASK)
            continue;
        safetensors_tensor *tensor = safetensors_add(out, result->name, stored, result->rank,
                                                     result->shape, message);
        if (tensor == NULL)
            return -1;
        if (!element_is_float(stored))
            memcpy(tensor->data, result->data, result->size);
        for (int64_t n = 0; element_is_float(stored) && n < safetensors_elements(result); n++)
            element_set(stored, tensor->data, n, element_get(result->dtype, result->data, n));
    }
    return 0;
}

safetensors *problem_answer_file(const safetensors *file, const problem_run_options *options,
                                 const problem_answer *answer, safetensors_message *message)
{
    problem_binding binding;
    problem_run_options with_upstream = *options;
    with_upstream.backward = safetensors_find(file, "do") != NULL;
    if (problem_bind(file, &with_upstream, &binding, message))
        return NULL;
    safetensors *out = safetensors_new(message);
    if (out != NULL && (copy_metadata(file, out, message) || copy_given(&binding, out, message) ||
                        copy_results(answer, out, message))) {
        safetensors_free(out);
        out = NULL;
    }
    problem_binding_free(&binding);
    return out;
}
