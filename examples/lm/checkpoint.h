/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_CHECKPOINT_H
#define LM_CHECKPOINT_H

/* Checkpoints: one safetensors file with the weights under their names, AdamW's moments under
 * "adam.mean.NAME" and "adam.variance.NAME", and settings and progress as metadata. */

#include "settings.h"

typedef struct lm_progress {
    int64_t step;     /* optimiser steps done */
    int64_t position; /* rows of the training stream used */
    int64_t tokens;
    double seconds; /* spent in training steps */
} lm_progress;

/* Written beside the old file, then renamed over it. */
int checkpoint_write(const char *path, const lm_model *model, const lm_settings *settings,
                     const lm_progress *progress, lm_message *message);

/* Reads the file and takes settings from it; NULL with the message filled on failure. */
safetensors *checkpoint_open(const char *path, lm_settings *settings, lm_message *message);
/* Then, with the model made from the settings: its weights and moments, and the progress. */
int checkpoint_load(const char *path, const safetensors *file, lm_model *model,
                    lm_progress *progress, lm_message *message);

#endif
