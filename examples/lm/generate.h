/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_GENERATE_H
#define LM_GENERATE_H

/* Generation, a token at a time, with the state moved forward in place. */

#include "pass.h"

#include <stdio.h>

typedef struct generate_options {
    const char *prompt;
    int64_t count;
    double temperature; /* 0: the likeliest byte */
    uint64_t seed;
} generate_options;

/* Writes the prompt and `count` bytes; bytes that are no printable ASCII become '?'. */
int generate(const lm_model *model, const generate_options *options, FILE *to, lm_message *message);

#endif
