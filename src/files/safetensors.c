/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_ALIGNMENT 64u

static const safetensors_type types[] = {
    {"F64", FWA_DTYPE_F64, 8},   {"F32", FWA_DTYPE_F32, 4}, {"F16", FWA_DTYPE_F16, 2},
    {"BF16", FWA_DTYPE_BF16, 2}, {"I32", FWA_DTYPE_I32, 4}, {"I64", FWA_DTYPE_I64, 8},
};

const safetensors_type *safetensors_type_named(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const safetensors_type *safetensors_type_of(int32_t dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

int safetensors_fail(safetensors_message *message, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    return -1;
}

int safetensors_name_valid(const char *name)
{
    if (*name == '\0' || strcmp(name, SAFETENSORS_METADATA) == 0)
        return 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            return 0;
    return 1;
}

int safetensors_bytes(const char *name, const safetensors_type *type, int32_t rank,
                      const int64_t *shape, size_t *size, safetensors_message *message)
{
    uint64_t elements = 1;
    int empty = 0;
    for (int32_t axis = 0; axis < rank; axis++) {
        if (shape[axis] < 0)
            return safetensors_fail(message, "tensor '%.64s': extent %d is %lld; it must be >= 0",
                                    name, (int)axis, (long long)shape[axis]);
        empty |= shape[axis] == 0;
    }
    for (int32_t axis = 0; axis < rank && !empty; axis++) {
        if ((uint64_t)shape[axis] > (uint64_t)INT64_MAX / type->size / elements)
            return safetensors_fail(message, "tensor '%.64s': its extents have no 63-bit product",
                                    name);
        elements *= (uint64_t)shape[axis];
    }
    if (!empty && elements > (SIZE_MAX - DATA_ALIGNMENT) / type->size)
        return safetensors_fail(message, "tensor '%.64s' is larger than this machine can address",
                                name);
    *size = empty ? 0 : (size_t)elements * type->size;
    return 0;
}

void safetensors_host_order(void *data, size_t size, size_t element)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    unsigned char *bytes = data;
    for (size_t start = 0; start + element <= size; start += element) {
        for (size_t i = 0; i < element / 2; i++) {
            const unsigned char byte = bytes[start + i];
            bytes[start + i] = bytes[start + element - 1 - i];
            bytes[start + element - 1 - i] = byte;
        }
    }
#else
    (void)data, (void)size, (void)element;
#endif
}

safetensors *safetensors_new(safetensors_message *message)
{
    safetensors *file = calloc(1, sizeof *file);
    if (file == NULL)
        safetensors_fail(message, "out of memory");
    return file;
}

static void tensor_free(safetensors_tensor *tensor)
{
    if (tensor == NULL)
        return;
    free((void *)(uintptr_t)tensor->name);
    free(tensor->data);
    free(tensor);
}

void safetensors_free(safetensors *file)
{
    if (file == NULL)
        return;
    for (int32_t i = 0; i < file->count; i++)
        tensor_free(file->tensors[i]);
    for (int32_t i = 0; i < file->metadata_count; i++) {
        free(file->metadata[i].key);
        free(file->metadata[i].value);
    }
    free(file->tensors);
    free(file->metadata);
    free(file);
}

int32_t safetensors_count(const safetensors *file)
{
    return file->count;
}

const safetensors_tensor *safetensors_get(const safetensors *file, int32_t index)
{
    return index >= 0 && index < file->count ? file->tensors[index] : NULL;
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    for (int32_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i]->name, name) == 0)
            return file->tensors[i];
    return NULL;
}

int64_t safetensors_elements(const safetensors_tensor *tensor)
{
    return (int64_t)(tensor->size / safetensors_type_of(tensor->dtype)->size);
}

/* Makes room for one more item of `width` bytes; NULL when there is no memory. */
static void *grow(void *items, int32_t count, int32_t *capacity, size_t width)
{
    if (count < *capacity)
        return items;
    const int32_t wanted = *capacity == 0 ? 32 : *capacity <= INT32_MAX / 2 ? *capacity * 2 : 0;
    void *grown = wanted == 0 ? NULL : realloc(items, (size_t)wanted * width);
    if (grown != NULL)
        *capacity = wanted;
    return grown;
}

static void *zeroed(size_t size)
{
    const size_t rounded = (size / DATA_ALIGNMENT + 1) * DATA_ALIGNMENT;
    void *data = aligned_alloc(DATA_ALIGNMENT, rounded);
    if (data != NULL)
        memset(data, 0, rounded);
    return data;
}

static safetensors_tensor *tensor_new(const char *name, const safetensors_type *type, int32_t rank,
                                      const int64_t *shape, size_t size)
{
    safetensors_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL)
        return NULL;
    tensor->name = strdup(name);
    tensor->data = zeroed(size);
    if (tensor->name == NULL || tensor->data == NULL) {
        tensor_free(tensor);
        return NULL;
    }
    tensor->dtype = type->dtype;
    tensor->rank = rank;
    for (int32_t axis = 0; axis < rank; axis++)
        tensor->shape[axis] = shape[axis];
    tensor->size = size;
    return tensor;
}

static safetensors_tensor *no_memory(const char *name, size_t size, safetensors_message *message)
{
    safetensors_fail(message, "tensor '%.64s': no memory for its %zu bytes", name, size);
    return NULL;
}

safetensors_tensor *safetensors_append(safetensors *file, const char *name,
                                       const safetensors_type *type, int32_t rank,
                                       const int64_t *shape, safetensors_message *message)
{
    size_t size;
    if (safetensors_bytes(name, type, rank, shape, &size, message))
        return NULL;
    void *grown = grow(file->tensors, file->count, &file->capacity, sizeof *file->tensors);
    if (grown == NULL)
        return no_memory(name, size, message);
    file->tensors = grown;
    safetensors_tensor *tensor = tensor_new(name, type, rank, shape, size);
    if (tensor == NULL)
        return no_memory(name, size, message);
    file->tensors[file->count++] = tensor;
    return tensor;
}

safetensors_tensor *safetensors_add(safetensors *file, const char *name, int32_t dtype,
                                    int32_t rank, const int64_t *shape,
                                    safetensors_message *message)
{
    const safetensors_type *type = safetensors_type_of(dtype);
    if (!safetensors_name_valid(name) || type == NULL || rank < 0 || rank > FWA_MAX_RANK) {
        safetensors_fail(message,
                         "cannot add tensor '%.64s' of type %d and rank %d: a name must not be "
                         "empty or hold control characters, the types are " SAFETENSORS_TYPE_NAMES
                         ", ranks are 0 to %d",
                         name, (int)dtype, (int)rank, FWA_MAX_RANK);
        return NULL;
    }
    for (int32_t i = 0; i < file->count; i++) {
        if (strcmp(file->tensors[i]->name, name) != 0)
            continue;
        size_t size;
        if (safetensors_bytes(name, type, rank, shape, &size, message))
            return NULL;
        safetensors_tensor *fresh = tensor_new(name, type, rank, shape, size);
        if (fresh == NULL)
            return no_memory(name, size, message);
        safetensors_tensor old = *file->tensors[i];
        *file->tensors[i] = *fresh;
        *fresh = old;
        tensor_free(fresh);
        return file->tensors[i];
    }
    return safetensors_append(file, name, type, rank, shape, message);
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    for (int32_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}

int32_t safetensors_metadata_count(const safetensors *file)
{
    return file->metadata_count;
}

const char *safetensors_metadata_key(const safetensors *file, int32_t index)
{
    return index >= 0 && index < file->metadata_count ? file->metadata[index].key : NULL;
}

int safetensors_append_metadata(safetensors *file, const char *key, const char *value)
{
    void *grown = grow(file->metadata, file->metadata_count, &file->metadata_capacity,
                       sizeof *file->metadata);
    if (grown == NULL)
        return -1;
    file->metadata = grown;
    metadata_pair pair = {strdup(key), strdup(value)};
    if (pair.key == NULL || pair.value == NULL) {
        free(pair.key);
        free(pair.value);
        return -1;
    }
    file->metadata[file->metadata_count++] = pair;
    return 0;
}

int safetensors_set_metadata(safetensors *file, const char *key, const char *value,
                             safetensors_message *message)
{
    for (int32_t i = 0; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[i].key, key) != 0)
            continue;
        char *copy = strdup(value);
        if (copy == NULL)
            return safetensors_fail(message, "out of memory");
        free(file->metadata[i].value);
        file->metadata[i].value = copy;
        return 0;
    }
    if (safetensors_append_metadata(file, key, value))
        return safetensors_fail(message, "out of memory");
    return 0;
}
