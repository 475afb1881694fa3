/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_COMMON_H
#define LM_COMMON_H

/* Failure messages and checked memory for the language model example. */

#include <stddef.h>
#include <stdint.h>

typedef struct lm_message {
    char text[512];
} lm_message;

/* Fills the message and returns -1, so that a caller can write `return lm_fail(...)`. */
int lm_fail(lm_message *message, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory aligned to 64 bytes; NULL with the message filled where there is none. A count of 0
 * is fine and gives a pointer that can be freed with free(). */
void *lm_allocate(size_t count, size_t size, lm_message *message);

#endif
