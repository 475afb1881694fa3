/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_SAFETENSORS_INTERNAL_H
#define FWA_FILES_SAFETENSORS_INTERNAL_H

#include "safetensors.h"

typedef struct metadata_pair {
    char *key;
    char *value;
} metadata_pair;

struct safetensors {
    safetensors_tensor **tensors; /* pointers, so that a tensor never moves */
    int32_t count, capacity;
    metadata_pair *metadata;
    int32_t metadata_count, metadata_capacity;
};

/* One type of the format and its name there. */
typedef struct safetensors_type {
    const char *name;
    int32_t dtype;
    size_t size;
} safetensors_type;

/* By name or by number; NULL: not one that is read or written. */
const safetensors_type *safetensors_type_named(const char *name);
const safetensors_type *safetensors_type_of(int32_t dtype);

#define SAFETENSORS_TYPE_NAMES "F64 F32 F16 BF16 I32 I64"
#define SAFETENSORS_METADATA   "__metadata__"

/* Fills *message and returns -1. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int safetensors_fail(safetensors_message *message, const char *format, ...);

/* 1 where the bytes are a name that a tensor may have: not empty, no control characters. */
int safetensors_name_valid(const char *name);

/* Bytes of a dense tensor: 0, or -1 with *message filled for a negative extent or an overflow. */
int safetensors_bytes(const char *name, const safetensors_type *type, int32_t rank,
                      const int64_t *shape, size_t *size, safetensors_message *message);

/* safetensors_add without the look for an equal name, which the caller has excluded. */
safetensors_tensor *safetensors_append(safetensors *file, const char *name,
                                       const safetensors_type *type, int32_t rank,
                                       const int64_t *shape, safetensors_message *message);

/* The same for a pair of metadata: 0, or -1 without memory. */
int safetensors_append_metadata(safetensors *file, const char *key, const char *value);

/* Swaps the bytes of every element on a big-endian host, where the file's order is not the host's.
 */
void safetensors_host_order(void *data, size_t size, size_t element);

#endif
