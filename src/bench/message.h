/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_MESSAGE_H
#define FWA_BENCH_MESSAGE_H

#include <stdarg.h>
#include <stdio.h>

typedef struct bench_message {
    char text[512];
} bench_message;

/* Fills *message and returns -1. */
__attribute__((format(printf, 2, 3))) static inline int bench_fail(bench_message *message,
                                                                   const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    return -1;
}

#endif
