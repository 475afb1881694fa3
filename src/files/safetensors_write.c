/* SPDX-License-Identifier: Apache-2.0 */
#include "atomic_file.h"
#include "safetensors_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_ALIGNMENT                                                                           \
    8u /* of the header's end, so that the data are aligned in a mapped file                       \
        */

/* Wide elements first: every tensor then begins at a multiple of its element. */
static const size_t element_sizes[] = {8, 4, 2};

static json_t *describe(const safetensors_tensor *tensor, uint64_t begin)
{
    json_t *shape = json_array();
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        json_array_append_new(shape, json_integer(tensor->shape[axis]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_type_of(tensor->dtype)->name,
                     "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + tensor->size));
}

/* Lists the tensors in the order of their bytes; the array has room for all of them. */
static void order_tensors(const safetensors *file, const safetensors_tensor **ordered)
{
    int32_t count = 0;
    for (size_t width = 0; width < sizeof element_sizes / sizeof *element_sizes; width++)
        for (int32_t i = 0; i < file->count; i++)
            if (safetensors_type_of(file->tensors[i]->dtype)->size == element_sizes[width])
                ordered[count++] = file->tensors[i];
}

/* The header's text, without padding; free() it. NULL where there is no memory or a string is not
 * UTF-8, which JSON cannot hold. */
static char *header_text(const safetensors *file, const safetensors_tensor *const *ordered)
{
    json_t *header = json_object();
    uint64_t begin = 0;
    int failed = header == NULL;
    if (file->metadata_count > 0) {
        json_t *metadata = json_object();
        for (int32_t i = 0; i < file->metadata_count; i++)
            failed |= json_object_set_new(metadata, file->metadata[i].key,
                                          json_string(file->metadata[i].value));
        failed |= json_object_set_new(header, SAFETENSORS_METADATA, metadata);
    }
    for (int32_t i = 0; i < file->count && !failed; i++) {
        failed |= json_object_set_new(header, ordered[i]->name, describe(ordered[i], begin));
        begin += ordered[i]->size;
    }
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static int write_tensor(FILE *stream, const safetensors_tensor *tensor)
{
    const size_t element = safetensors_type_of(tensor->dtype)->size;
    safetensors_host_order(tensor->data, tensor->size, element);
    const size_t written = fwrite(tensor->data, 1, tensor->size, stream);
    safetensors_host_order(tensor->data, tensor->size, element);
    return written == tensor->size ? 0 : -1;
}

static int write_all(FILE *stream, const safetensors *file,
                     const safetensors_tensor *const *ordered, const char *text)
{
    const size_t length = strlen(text);
    const size_t padded = (length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    int failed = fwrite(prefix, 1, sizeof prefix, stream) != sizeof prefix;
    failed |= fprintf(stream, "%s%*s", text, (int)(padded - length), "") < 0;
    for (int32_t i = 0; i < file->count && !failed; i++)
        failed |= write_tensor(stream, ordered[i]);
    return failed;
}

int safetensors_write(const safetensors *file, const char *path, safetensors_message *message)
{
    atomic_file out;
    const safetensors_tensor **ordered = calloc((size_t)file->count + 1, sizeof *ordered);
    char *text = NULL;
    if (ordered != NULL) {
        order_tensors(file, ordered);
        text = header_text(file, ordered);
    }
    int failed = -1;
    if (text == NULL)
        safetensors_fail(message,
                         "cannot write '%.200s': no memory for its header, or a string "
                         "in it is not UTF-8",
                         path);
    else if (strlen(text) > SAFETENSORS_HEADER_LIMIT)
        safetensors_fail(message, "cannot write '%.200s': its header would exceed %u bytes", path,
                         SAFETENSORS_HEADER_LIMIT);
    else if (atomic_file_open(&out, path, message) == 0) {
        if (write_all(out.stream, file, ordered, text))
            /* The stream keeps its error: the commit fails, names it and removes the file. */
            fflush(out.stream);
        failed = atomic_file_commit(&out, message);
    }
    free(text);
    free(ordered);
    return failed;
}
