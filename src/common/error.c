/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[1024];

const char *fwa_error_message(void)
{
    return error_text;
}

fwa_status fwa_fail(fwa_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(error_text, sizeof error_text, format, list);
    va_end(list);
    return status;
}

const char *fwa_status_name(fwa_status status)
{
    static const char *const names[] = {
        [FWA_OK] = "FWA_OK",
        [FWA_ERROR_NULL] = "FWA_ERROR_NULL",
        [FWA_ERROR_STRUCT_SIZE] = "FWA_ERROR_STRUCT_SIZE",
        [FWA_ERROR_VALUE] = "FWA_ERROR_VALUE",
        [FWA_ERROR_SHAPE] = "FWA_ERROR_SHAPE",
        [FWA_ERROR_STRIDE] = "FWA_ERROR_STRIDE",
        [FWA_ERROR_DTYPE] = "FWA_ERROR_DTYPE",
        [FWA_ERROR_ALIGNMENT] = "FWA_ERROR_ALIGNMENT",
        [FWA_ERROR_OVERLAP] = "FWA_ERROR_OVERLAP",
        [FWA_ERROR_WORKSPACE] = "FWA_ERROR_WORKSPACE",
        [FWA_ERROR_SEQUENCE] = "FWA_ERROR_SEQUENCE",
        [FWA_ERROR_UNSUPPORTED] = "FWA_ERROR_UNSUPPORTED",
        [FWA_ERROR_MEMORY] = "FWA_ERROR_MEMORY",
        [FWA_ERROR_NO_BACKEND] = "FWA_ERROR_NO_BACKEND",
        [FWA_ERROR_ABI] = "FWA_ERROR_ABI",
        [FWA_ERROR_DEVICE] = "FWA_ERROR_DEVICE",
        [FWA_ERROR_INTERNAL] = "FWA_ERROR_INTERNAL",
    };
    unsigned number = (unsigned)status;
    return number < sizeof names / sizeof names[0] ? names[number] : "FWA_STATUS_UNKNOWN";
}

fwa_status fwa_check_struct(const char *name, const void *data, size_t known)
{
    const unsigned char *bytes = data;
    size_t size, i;
    if (!data)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL", name);
    memcpy(&size, data, sizeof size);
    if (size < known || size > 65536)
        return fwa_fail(FWA_ERROR_STRUCT_SIZE,
                        "%s->struct_size is %zu; this library knows %zu bytes (use the INIT macro)",
                        name, size, known);
    for (i = known; i < size; i++)
        if (bytes[i])
            return fwa_fail(FWA_ERROR_STRUCT_SIZE,
                            "%s has a non-zero byte at offset %zu, beyond the %zu bytes that this "
                            "library knows: it uses a newer feature",
                            name, i, known);
    return FWA_OK;
}

uint32_t fwa_version(void)
{
    return FWA_VERSION_MAJOR * 1000000u + FWA_VERSION_MINOR * 1000u + FWA_VERSION_PATCH;
}

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const char *fwa_version_string(void)
{
    return TEXT(FWA_VERSION_MAJOR) "." TEXT(FWA_VERSION_MINOR) "." TEXT(FWA_VERSION_PATCH);
}

/* By fwa_dtype. */
static const struct {
    const char *name;
    size_t size;
} dtypes[] = {{"none", 0}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"f64", 8}, {"i32", 4}, {"i64", 8}};

size_t fwa_dtype_size(int32_t dtype)
{
    return dtype >= FWA_DTYPE_NONE && dtype <= FWA_DTYPE_I64 ? dtypes[dtype].size : 0;
}

const char *fwa_dtype_name(int32_t dtype)
{
    return dtypes[dtype >= FWA_DTYPE_NONE && dtype <= FWA_DTYPE_I64 ? dtype : 0].name;
}
