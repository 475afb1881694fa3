/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int lm_fail(lm_message *message, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    return -1;
}

void *lm_allocate(size_t count, size_t size, lm_message *message)
{
    enum { ALIGNMENT = 64 };
    const size_t limit = SIZE_MAX - ALIGNMENT;
    void *memory = NULL;
    if (size == 0 || count <= limit / size) {
        size_t bytes = (count * size / ALIGNMENT + 1) * ALIGNMENT;
        memory = aligned_alloc(ALIGNMENT, bytes);
        if (memory)
            memset(memory, 0, bytes);
    }
    if (!memory)
        lm_fail(message, "no memory for %zu x %zu bytes", count, size);
    return memory;
}
