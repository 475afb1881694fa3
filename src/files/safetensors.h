/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_SAFETENSORS_H
#define FWA_FILES_SAFETENSORS_H

/* A safetensors file in memory: named tensors (row-major, little endian) and string metadata.
 * The reader trusts nothing: header length, types, shapes and offsets are checked against each
 * other and against the size of the file, and memory grows only with the bytes that are really
 * there. */

#include <stddef.h>
#include <stdint.h>

#include <fwa/fwa.h>

/* The largest JSON header that is read, in bytes (the limit of the format's own reader). */
#define SAFETENSORS_HEADER_LIMIT 100000000u

typedef struct safetensors safetensors;

typedef struct safetensors_message {
    char text[512];
} safetensors_message;

typedef struct safetensors_tensor {
    const char *name;
    int32_t dtype; /* fwa_dtype: F64, F32, F16, BF16, I32, I64; others are refused */
    int32_t rank;  /* 0 to FWA_MAX_RANK */
    int64_t shape[FWA_MAX_RANK];
    void *data;  /* dense; owned by the file object, aligned to 64; never NULL */
    size_t size; /* bytes */
} safetensors_tensor;

/* An empty file, or one parsed from memory or disk. NULL with *message filled on any failure. */
safetensors *safetensors_new(safetensors_message *message);
safetensors *safetensors_parse(const void *bytes, size_t size, safetensors_message *message);
safetensors *safetensors_read(const char *path, safetensors_message *message);
void safetensors_free(safetensors *file); /* NULL is fine */

/* Writes to a temporary file beside `path`, then renames it: no half-written file is ever seen.
 * 0, or -1 with *message filled. */
int safetensors_write(const safetensors *file, const char *path, safetensors_message *message);

int32_t safetensors_count(const safetensors *file);
const safetensors_tensor *safetensors_get(const safetensors *file, int32_t index);
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name); /* or NULL */
/* Adds (or replaces) a zeroed tensor and returns it; NULL on failure. The pointer stays valid until
 * the file is freed; replacing a tensor changes what it points to. */
safetensors_tensor *safetensors_add(safetensors *file, const char *name, int32_t dtype,
                                    int32_t rank, const int64_t *shape,
                                    safetensors_message *message);

const char *safetensors_metadata(const safetensors *file, const char *key); /* or NULL */
int32_t safetensors_metadata_count(const safetensors *file);
const char *safetensors_metadata_key(const safetensors *file, int32_t index);
/* Sets or replaces one pair. 0, or -1 with *message filled. */
int safetensors_set_metadata(safetensors *file, const char *key, const char *value,
                             safetensors_message *message);

/* Elements of a tensor. */
int64_t safetensors_elements(const safetensors_tensor *tensor);

#endif
