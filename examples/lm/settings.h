/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_SETTINGS_H
#define LM_SETTINGS_H

/* The command line, and the part of it that a checkpoint keeps. One table describes both. */

#include "model.h"
#include "safetensors.h"

typedef struct lm_range {
    int64_t low, high;
} lm_range;

typedef struct lm_settings {
    /* The model. */
    const char *rule;
    int64_t window, layers, dim, heads, head_dim, hidden;
    /* The data. */
    const char *text;
    int64_t addition;
    lm_range digits, test_digits;
    int64_t test_count;
    /* Training. */
    int64_t steps, batch, context, seed;
    double seconds, learning_rate, warmup, weight_decay, clip;
    /* The machine. */
    const char *backend;
    int64_t threads;
    /* Files. */
    const char *checkpoint, *resume, *curve, *summary;
    /* Generation. */
    int64_t sample;
    double temperature;
    const char *prompt;
    /* Other things to do. */
    int64_t self_test, list_rules;

    char **texts; /* per row of the table, what was given; the pointers above point into these */
    uint8_t *given;
} lm_settings;

/* Defaults, then the command line. 0, or -1 with the message filled. --help prints and exits. */
int settings_parse(lm_settings *settings, int argc, const char **argv, lm_message *message);
void settings_destroy(lm_settings *settings);

/* 1 where the command line has this option. */
int settings_given(const lm_settings *settings, const char *name);

/* What the run is, for a checkpoint. */
int settings_write(const lm_settings *settings, safetensors *file, lm_message *message);
/* Takes from a checkpoint what the command line did not give. The model must agree. */
int settings_read(lm_settings *settings, const safetensors *file, lm_message *message);

/* Where the command line gives one of --steps and --seconds, the other is off. Call last. */
int settings_resolve(lm_settings *settings, lm_message *message);
/* On the command line of a resumed run, --steps and --seconds are what comes on top of what was
 * done before: makes them totals, which is what a checkpoint keeps. */
int settings_go_on(lm_settings *settings, int64_t steps_done, double seconds_done,
                   lm_message *message);

lm_config settings_model(const lm_settings *settings);

/* Checks one number in words: the whole text must be a number within [low, high]. */
int parse_integer(const char *name, const char *text, int64_t low, int64_t high, int64_t *value,
                  lm_message *message);

#endif
