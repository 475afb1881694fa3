/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"
#include "../files/element.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *conformance_allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "fwa: out of memory (%zu x %zu bytes)\n", count, size);
        exit(EXIT_FAILURE);
    }
    return memory;
}

static void *duplicate(const void *source, size_t count, size_t size)
{
    void *memory = conformance_allocate(count, size);
    if (count)
        memcpy(memory, source, count * size);
    return memory;
}

conformance_data conformance_data_new(const fwa_problem *problem, int64_t batch, int64_t tokens,
                                      int64_t sequences)
{
    conformance_data data;
    memset(&data, 0, sizeof data);
    data.problem = *problem;
    if (data.problem.heads_value == 0)
        data.problem.heads_value = problem->heads_key;
    if (data.problem.heads_query == 0)
        data.problem.heads_query = problem->heads_key;
    data.extent.batch = batch;
    data.extent.tokens = tokens;
    data.extent.sequences = sequences;
    return data;
}

conformance_data conformance_data_copy(const conformance_data *data)
{
    conformance_data copy = *data;
    const size_t n = (size_t)data->extent.sequences;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        if (data->values[i])
            copy.values[i] = duplicate(data->values[i],
                                       (size_t)conformance_row_count(data, problem_tensor_get(i)),
                                       sizeof(double));
    copy.slot_in = data->slot_in ? duplicate(data->slot_in, n, sizeof(int32_t)) : NULL;
    copy.slot_out = data->slot_out ? duplicate(data->slot_out, n, sizeof(int32_t)) : NULL;
    copy.commit = data->commit ? duplicate(data->commit, n, sizeof(int32_t)) : NULL;
    return copy;
}

void conformance_data_free(conformance_data *data)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        free(data->values[i]);
    free(data->slot_in);
    free(data->slot_out);
    free(data->commit);
    memset(data, 0, sizeof *data);
}

static int32_t row_index(const char *name)
{
    const problem_tensor *row = problem_tensor_find(name);
    if (row == NULL) {
        fprintf(stderr, "fwa: there is no tensor '%s'\n", name);
        abort();
    }
    return (int32_t)(row - problem_tensor_get(0));
}

double *conformance_add(conformance_data *data, const char *name)
{
    const int32_t i = row_index(name);
    if (data->values[i] == NULL)
        data->values[i] = conformance_allocate((size_t)conformance_count(data, name),
                                               sizeof(double));
    return data->values[i];
}

void conformance_drop(conformance_data *data, const char *name)
{
    const int32_t i = row_index(name);
    free(data->values[i]);
    data->values[i] = NULL;
}

double *conformance_get(const conformance_data *data, const char *name)
{
    return data->values[row_index(name)];
}

/* Carries have a row for each slot, their gradients one for each sequence. */
int32_t conformance_shape(const conformance_data *data, const problem_tensor *row,
                          int64_t shape[FWA_MAX_RANK])
{
    problem_extent extent = data->extent;
    if (data->pool > 0 && row->axes[0] == 'N' &&
        (row->role == PROBLEM_INPUT || row->role == PROBLEM_OUTPUT))
        extent.sequences = data->pool;
    return problem_tensor_shape(row, &data->problem, &extent, shape);
}

int64_t conformance_row_count(const conformance_data *data, const problem_tensor *row)
{
    int64_t shape[FWA_MAX_RANK], count = 1;
    const int32_t rank = conformance_shape(data, row, shape);
    for (int32_t axis = 0; axis < rank; axis++)
        count *= shape[axis];
    return count;
}

int64_t conformance_count(const conformance_data *data, const char *name)
{
    return conformance_row_count(data, problem_tensor_get(row_index(name)));
}

int64_t conformance_first(const conformance_data *data, int64_t sequence)
{
    const double *cu = conformance_get(data, "cu_seqlens");
    return cu ? (int64_t)cu[sequence] : 0;
}

int64_t conformance_length(const conformance_data *data, int64_t sequence)
{
    const double *cu = conformance_get(data, "cu_seqlens");
    return cu ? (int64_t)(cu[sequence + 1] - cu[sequence]) : data->extent.tokens;
}

/* ---- New calls from old ones ---- */

static int is_tokens(const problem_tensor *row)
{
    return row->axes[0] == 'B';
}

/* Copies a block of tokens [first, first + length) of batch row `from` to another call. */
static void copy_tokens(const conformance_data *source, int64_t from, int64_t first, int64_t length,
                        conformance_data *target, int64_t to, int64_t place, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    int64_t shape[FWA_MAX_RANK], width = 1;
    const int32_t rank = conformance_shape(source, row, shape);
    for (int32_t axis = 2; axis < rank; axis++)
        width *= shape[axis];
    if (length * width > 0)
        memcpy(target->values[i] + (to * target->extent.tokens + place) * width,
               source->values[i] + (from * source->extent.tokens + first) * width,
               (size_t)(length * width) * sizeof(double));
}

static void copy_carry_row(const conformance_data *source, int64_t from, conformance_data *target,
                           int64_t to, int32_t i)
{
    const problem_tensor *row = problem_tensor_get(i);
    int64_t shape[FWA_MAX_RANK], width = 1;
    const int32_t rank = conformance_shape(source, row, shape);
    for (int32_t axis = 1; axis < rank; axis++)
        width *= shape[axis];
    if (width > 0)
        memcpy(target->values[i] + to * width, source->values[i] + from * width,
               (size_t)width * sizeof(double));
}

static int is_copied(const conformance_data *data, int32_t i)
{
    return data->values[i] != NULL && problem_tensor_get(i)->role != PROBLEM_MASK &&
           problem_tensor_get(i)->axes[0] != 'M';
}

conformance_data conformance_slice(const conformance_data *data, int64_t from, int64_t to)
{
    conformance_data part = conformance_data_new(&data->problem, data->extent.batch, to - from,
                                                 data->extent.sequences);
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        if (!is_copied(data, i))
            continue;
        conformance_add(&part, problem_tensor_get(i)->name);
        for (int64_t b = 0; b < data->extent.batch; b++) {
            if (is_tokens(problem_tensor_get(i)))
                copy_tokens(data, b, from, to - from, &part, b, 0, i);
            else
                copy_carry_row(data, b, &part, b, i);
        }
    }
    return part;
}

conformance_data conformance_single(const conformance_data *data, int64_t sequence)
{
    const int64_t length = conformance_length(data, sequence);
    const int packed = conformance_get(data, "cu_seqlens") != NULL;
    conformance_data part = conformance_data_new(&data->problem, 1, length, 1);
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        if (!is_copied(data, i))
            continue;
        conformance_add(&part, problem_tensor_get(i)->name);
        if (is_tokens(problem_tensor_get(i)))
            copy_tokens(data, packed ? 0 : sequence, conformance_first(data, sequence), length,
                        &part, 0, 0, i);
        else
            copy_carry_row(data, sequence, &part, 0, i);
    }
    return part;
}

static conformance_data join(const conformance_data *const *parts, int64_t count, int packed)
{
    int64_t total = 0;
    for (int64_t n = 0; n < count; n++)
        total += parts[n]->extent.tokens;
    conformance_data whole = conformance_data_new(&parts[0]->problem, packed ? 1 : count,
                                                  packed ? total : parts[0]->extent.tokens, count);
    double *cu = packed ? conformance_add(&whole, "cu_seqlens") : NULL;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        int64_t place = 0;
        if (!is_copied(parts[0], i))
            continue;
        conformance_add(&whole, problem_tensor_get(i)->name);
        for (int64_t n = 0; n < count; n++) {
            const int64_t length = parts[n]->extent.tokens;
            if (is_tokens(problem_tensor_get(i)))
                copy_tokens(parts[n], 0, 0, length, &whole, packed ? 0 : n, packed ? place : 0, i);
            else
                copy_carry_row(parts[n], 0, &whole, n, i);
            place += length;
            if (cu)
                cu[n + 1] = (double)place;
        }
    }
    return whole;
}

conformance_data conformance_pack(const conformance_data *const *parts, int64_t count)
{
    return join(parts, count, 1);
}

conformance_data conformance_stack(const conformance_data *const *parts, int64_t count)
{
    return join(parts, count, 0);
}

void conformance_hand_over(const conformance_data *results, conformance_data *next)
{
    static const char *const parts[][2] = {
        {"seen_out", "seen_in"},         {"state_out", "state_in"},
        {"prev_key_out", "prev_key_in"}, {"tail_key_out", "tail_key_in"},
        {"norm_out", "norm_in"},         {"tail_value_out", "tail_value_in"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const double *from = conformance_get(results, parts[i][0]);
        conformance_drop(next, parts[i][1]);
        if (from == NULL)
            continue;
        double *to = conformance_add(next, parts[i][1]);
        memcpy(to, from, (size_t)conformance_count(next, parts[i][1]) * sizeof *to);
    }
}

void conformance_round(conformance_data *data, int32_t dtype, int32_t state_dtype)
{
    fwa_problem problem = data->problem;
    problem.dtype = dtype;
    problem.state_dtype = state_dtype;
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const int32_t type = problem_tensor_dtype(row, &problem);
        const int64_t n = conformance_row_count(data, row);
        if (data->values[i] == NULL || !element_is_float(type))
            continue;
        for (int64_t j = 0; j < n; j++)
            data->values[i][j] = element_round(type, data->values[i][j]);
    }
}
