/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_SIZE 8u

/* Where the bytes come from: memory or a descriptor. Both know their size before anything is read.
 */
typedef struct source {
    const unsigned char *bytes;
    int descriptor; /* used where bytes is NULL */
    uint64_t size;
} source;

/* One entry of the header. Offsets count from the first byte of the data. */
typedef struct entry {
    const char *name;
    const safetensors_type *type;
    int32_t rank;
    int64_t shape[FWA_MAX_RANK];
    uint64_t begin, end;
} entry;

static int source_fetch(const source *from, uint64_t offset, void *to, size_t size,
                        safetensors_message *message)
{
    if (from->bytes != NULL) {
        memcpy(to, from->bytes + offset, size);
        return 0;
    }
    for (size_t done = 0; done < size;) {
        const ssize_t got = pread(from->descriptor, (char *)to + done, size - done,
                                  (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return safetensors_fail(message, "cannot read: %s", strerror(errno));
        if (got == 0)
            return safetensors_fail(message, "the file became shorter while it was read");
        done += (size_t)got;
    }
    return 0;
}

static int parse_shape(const json_t *shape, entry *out, safetensors_message *message)
{
    if (!json_is_array(shape))
        return safetensors_fail(message, "tensor '%.64s' has no 'shape' list", out->name);
    if (json_array_size(shape) > FWA_MAX_RANK)
        return safetensors_fail(message, "tensor '%.64s' has rank %zu; the most is %d", out->name,
                                json_array_size(shape), FWA_MAX_RANK);
    out->rank = (int32_t)json_array_size(shape);
    for (int32_t axis = 0; axis < out->rank; axis++) {
        const json_t *extent = json_array_get(shape, (size_t)axis);
        if (!json_is_integer(extent))
            return safetensors_fail(message, "tensor '%.64s': extent %d is no integer", out->name,
                                    (int)axis);
        out->shape[axis] = json_integer_value(extent);
    }
    return 0;
}

static int parse_offsets(const json_t *offsets, entry *out, uint64_t data_size,
                         safetensors_message *message)
{
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return safetensors_fail(message, "tensor '%.64s' has no 'data_offsets' of two integers",
                                out->name);
    const json_int_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first || (uint64_t)last > data_size)
        return safetensors_fail(message,
                                "tensor '%.64s': data_offsets [%lld, %lld] do not lie in the %llu "
                                "bytes of data (is the file truncated?)",
                                out->name, (long long)first, (long long)last,
                                (unsigned long long)data_size);
    out->begin = (uint64_t)first;
    out->end = (uint64_t)last;
    return 0;
}

static int parse_entry(const char *name, const json_t *value, uint64_t data_size, entry *out,
                       safetensors_message *message)
{
    size_t size;
    if (!safetensors_name_valid(name))
        return safetensors_fail(message, "a tensor's name is empty or holds control characters");
    out->name = name;
    if (!json_is_object(value) || json_object_size(value) != 3)
        return safetensors_fail(
            message, "tensor '%.64s' is not described by dtype, shape and data_offsets", name);
    const char *type = json_string_value(json_object_get(value, "dtype"));
    if (type == NULL)
        return safetensors_fail(message, "tensor '%.64s' has no 'dtype' string", name);
    out->type = safetensors_type_named(type);
    if (out->type == NULL)
        return safetensors_fail(message,
                                "tensor '%.64s' has the type '%.16s', which is none "
                                "of " SAFETENSORS_TYPE_NAMES,
                                name, type);
    if (parse_shape(json_object_get(value, "shape"), out, message) ||
        parse_offsets(json_object_get(value, "data_offsets"), out, data_size, message) ||
        safetensors_bytes(name, out->type, out->rank, out->shape, &size, message))
        return -1;
    if (out->end - out->begin != size)
        return safetensors_fail(message,
                                "tensor '%.64s' takes %zu bytes by its shape and type, but its "
                                "data_offsets hold %llu",
                                name, size, (unsigned long long)(out->end - out->begin));
    return 0;
}

static int parse_metadata(const json_t *value, safetensors *file, safetensors_message *message)
{
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return safetensors_fail(message, SAFETENSORS_METADATA " is no object");
    json_object_foreach((json_t *)(uintptr_t)value, key, text)
    {
        if (!json_is_string(text))
            return safetensors_fail(message, "metadata '%.64s' is no string", key);
        if (safetensors_append_metadata(file, key, json_string_value(text)))
            return safetensors_fail(message, "out of memory");
    }
    return 0;
}

static int by_offset(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* The tensors, in the order of their bytes, must fill the data without a hole or an overlap. */
static int check_cover(entry *entries, size_t count, uint64_t data_size,
                       safetensors_message *message)
{
    uint64_t reached = 0;
    qsort(entries, count, sizeof *entries, by_offset);
    for (size_t i = 0; i < count; i++) {
        if (entries[i].begin != reached)
            return safetensors_fail(message,
                                    "tensor '%.64s' begins at byte %llu of the data, %s %llu",
                                    entries[i].name, (unsigned long long)entries[i].begin,
                                    entries[i].begin < reached ? "inside the tensor that ends at"
                                                               : "which leaves a hole after",
                                    (unsigned long long)reached);
        reached = entries[i].end;
    }
    if (reached != data_size)
        return safetensors_fail(message, "%llu bytes follow the last tensor",
                                (unsigned long long)(data_size - reached));
    return 0;
}

/* Fills entries (room for every key of the header) and the metadata of *file. */
static int parse_header(const json_t *header, uint64_t data_size, safetensors *file, entry *entries,
                        size_t *count, safetensors_message *message)
{
    const char *key;
    json_t *value;
    *count = 0;
    json_object_foreach((json_t *)(uintptr_t)header, key, value)
    {
        const int failed = strcmp(key, SAFETENSORS_METADATA) == 0
                               ? parse_metadata(value, file, message)
                               : parse_entry(key, value, data_size, &entries[*count], message);
        if (failed)
            return -1;
        *count += strcmp(key, SAFETENSORS_METADATA) != 0;
    }
    return check_cover(entries, *count, data_size, message);
}

static int load_tensors(const source *from, uint64_t data_start, const entry *entries, size_t count,
                        safetensors *file, safetensors_message *message)
{
    for (size_t i = 0; i < count; i++) {
        const entry *one = &entries[i];
        safetensors_tensor *tensor = safetensors_append(file, one->name, one->type, one->rank,
                                                        one->shape, message);
        if (tensor == NULL ||
            source_fetch(from, data_start + one->begin, tensor->data, tensor->size, message))
            return -1;
        safetensors_host_order(tensor->data, tensor->size, one->type->size);
    }
    return 0;
}

/* The JSON of the header; NULL on failure. *data_start is where the data begin. */
static json_t *load_header(const source *from, uint64_t *data_start, safetensors_message *message)
{
    unsigned char prefix[PREFIX_SIZE];
    json_error_t error;
    uint64_t length = 0;
    if (from->size < PREFIX_SIZE) {
        safetensors_fail(message,
                         "not a safetensors file: %llu bytes, too short for the header's length",
                         (unsigned long long)from->size);
        return NULL;
    }
    if (source_fetch(from, 0, prefix, PREFIX_SIZE, message))
        return NULL;
    for (int i = PREFIX_SIZE - 1; i >= 0; i--)
        length = length << 8 | prefix[i];
    if (length > SAFETENSORS_HEADER_LIMIT || length > from->size - PREFIX_SIZE) {
        safetensors_fail(message,
                         "not a safetensors file, or truncated: it claims a header of %llu bytes; "
                         "the file has %llu after the length, and the limit is %u",
                         (unsigned long long)length, (unsigned long long)(from->size - PREFIX_SIZE),
                         SAFETENSORS_HEADER_LIMIT);
        return NULL;
    }
    char *text = malloc((size_t)length + 1);
    if (text == NULL) {
        safetensors_fail(message, "no memory for a header of %llu bytes",
                         (unsigned long long)length);
        return NULL;
    }
    json_t *header = NULL;
    if (source_fetch(from, PREFIX_SIZE, text, (size_t)length, message) == 0) {
        header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
        if (header == NULL)
            safetensors_fail(message, "the header is no JSON: %.120s at byte %d", error.text,
                             error.position);
    }
    free(text);
    *data_start = PREFIX_SIZE + length;
    return header;
}

static safetensors *load(const source *from, safetensors_message *message)
{
    uint64_t data_start;
    size_t count;
    json_t *header = load_header(from, &data_start, message);
    if (header == NULL)
        return NULL;
    safetensors *file = NULL;
    entry *entries = NULL;
    int failed = -1;
    if (!json_is_object(header)) {
        safetensors_fail(message, "the header is no JSON object");
    } else {
        file = safetensors_new(message);
        entries = calloc(json_object_size(header) + 1, sizeof *entries);
        if (entries == NULL)
            safetensors_fail(message, "out of memory");
        else if (file != NULL)
            failed = parse_header(header, from->size - data_start, file, entries, &count,
                                  message) ||
                     load_tensors(from, data_start, entries, count, file, message);
    }
    free(entries);
    json_decref(header);
    if (failed) {
        safetensors_free(file);
        return NULL;
    }
    return file;
}

safetensors *safetensors_parse(const void *bytes, size_t size, safetensors_message *message)
{
    static const unsigned char nothing[1];
    const source from = {bytes == NULL ? nothing : bytes, -1, bytes == NULL ? 0 : size};
    return load(&from, message);
}

safetensors *safetensors_read(const char *path, safetensors_message *message)
{
    struct stat status;
    safetensors_message inner = {{0}};
    safetensors *file = NULL;
    /* O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        safetensors_fail(&inner, "%s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        safetensors_fail(&inner, "it is %s",
                         S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
    } else {
        const source from = {NULL, descriptor, (uint64_t)status.st_size};
        file = load(&from, &inner);
    }
    if (descriptor >= 0)
        close(descriptor);
    if (file == NULL)
        safetensors_fail(message, "%.160s: %.340s", path, inner.text);
    return file;
}
