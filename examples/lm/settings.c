/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include "data.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum field_kind { FLAG, INTEGER, REAL, TEXT, RANGE } field_kind;

typedef enum field_use {
    TRANSIENT = 0, /* of this run only */
    STORED = 1,    /* kept in a checkpoint; the command line wins */
    SHAPE = 2      /* kept, and a checkpoint with another value is refused */
} field_use;

typedef struct lm_option {
    const char *name, *argument, *start, *help;
    field_kind kind;
    field_use use;
    size_t offset;
    double low, high;
} lm_option;

/* More steps than anyone will wait for. */
#define STEPS_LIMIT "1000000000000000"

#define AT(member) offsetof(lm_settings, member)

static const lm_option FIELDS[] = {
    {"rule", "NAME", "falcon1", "fast-weight rule: a preset of libfwa", TEXT, SHAPE, AT(rule), 0,
     0},
    {"window", "B", "0", "pairs each step rehearses; 0: the rule's own", INTEGER, SHAPE, AT(window),
     0, 32},
    {"layers", "N", "2", "layers", INTEGER, SHAPE, AT(layers), 1, 256},
    {"dim", "N", "128", "width of the residual stream", INTEGER, SHAPE, AT(dim), 1, 65536},
    {"heads", "N", "4", "heads", INTEGER, SHAPE, AT(heads), 1, 1024},
    {"head-dim", "N", "32", "width of a head's keys and values", INTEGER, SHAPE, AT(head_dim), 1,
     256},
    {"hidden", "N", "0", "width of the MLP; 0: 8/3 of dim", INTEGER, SHAPE, AT(hidden), 0, 262144},
    {"text", "FILE", "", "train on the bytes of FILE", TEXT, STORED, AT(text), 0, 0},
    {"addition", NULL, "0", "train on additions: 47+85=231", FLAG, STORED, AT(addition), 0, 1},
    {"digits", "LO:HI", "1:6", "digits of the summands in training", RANGE, STORED, AT(digits), 1,
     DIGITS_LIMIT},
    {"test-digits", "LO:HI", "1:9", "digits of the summands in the final test", RANGE, STORED,
     AT(test_digits), 1, DIGITS_LIMIT},
    {"test-count", "N", "64", "additions per width in the final test", INTEGER, STORED,
     AT(test_count), 1, 65536},
    {"steps", "N", "1000", "optimiser steps; with --resume, so many more", INTEGER, STORED,
     AT(steps), 0, 1e15},
    {"seconds", "S", "0", "train for so long instead; with --resume, so much longer", REAL, STORED,
     AT(seconds), 0, 1e9},
    {"batch", "N", "8", "sequences of a step", INTEGER, STORED, AT(batch), 1, 65536},
    {"context", "N", "256", "tokens of a sequence of text", INTEGER, STORED, AT(context), 1,
     1048576},
    {"learning-rate", "R", "0.006", "peak of the learning rate", REAL, STORED, AT(learning_rate), 0,
     10},
    {"warmup", "P", "0.05", "part of the run with a rising rate", REAL, STORED, AT(warmup), 0, 1},
    {"weight-decay", "R", "0.1", "of the matrices", REAL, STORED, AT(weight_decay), 0, 10},
    {"clip", "R", "1", "largest norm of a gradient; 0: any", REAL, STORED, AT(clip), 0, 1e9},
    {"seed", "N", "1", "of weights, data and samples", INTEGER, STORED, AT(seed), 0, 1e15},
    {"backend", "NAME", "cpu", "backend of libfwa, with memory the host can use", TEXT, TRANSIENT,
     AT(backend), 0, 0},
    {"threads", "N", "0", "threads; 0: all that the process may use", INTEGER, TRANSIENT,
     AT(threads), 0, 4096},
    {"checkpoint", "FILE", "", "save the run to FILE (safetensors)", TEXT, TRANSIENT,
     AT(checkpoint), 0, 0},
    {"resume", "FILE", "", "go on from a checkpoint, to the end of its run unless told otherwise",
     TEXT, TRANSIENT, AT(resume), 0, 0},
    {"curve", "FILE", "", "write the losses to FILE (CSV)", TEXT, TRANSIENT, AT(curve), 0, 0},
    {"summary", "FILE", "", "append the final figures to FILE (CSV)", TEXT, TRANSIENT, AT(summary),
     0, 0},
    {"sample", "N", "0", "generate N bytes at the end", INTEGER, TRANSIENT, AT(sample), 0, 1e9},
    {"temperature", "R", "0.8", "of the generation; 0: the likeliest byte", REAL, TRANSIENT,
     AT(temperature), 0, 100},
    {"prompt", "TEXT", "\n", "what the generation goes on from", TEXT, TRANSIENT, AT(prompt), 0, 0},
    {"self-test", NULL, "0", "check gradients, generation and checkpoints", FLAG, TRANSIENT,
     AT(self_test), 0, 1},
    {"list-rules", NULL, "0", "list the rules", FLAG, TRANSIENT, AT(list_rules), 0, 1},
};

enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS, HELP_SIZE = 128 };

/* ---- One value ---- */

int parse_integer(const char *name, const char *text, int64_t low, int64_t high, int64_t *value,
                  lm_message *message)
{
    char *end = NULL;
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return lm_fail(message, "--%s: '%.60s' is not a whole number", name, text);
    if (*value < low || *value > high)
        return lm_fail(message, "--%s: %.60s is not between %" PRId64 " and %" PRId64, name, text,
                       low, high);
    return 0;
}

static int parse_real(const lm_option *field, const char *text, double *value, lm_message *message)
{
    char *end = NULL;
    *value = strtod(text, &end);
    if (end == text || *end)
        return lm_fail(message, "--%s: '%.60s' is not a number", field->name, text);
    if (!(*value >= field->low && *value <= field->high))
        return lm_fail(message, "--%s: %.60s is not between %g and %g", field->name, text,
                       field->low, field->high);
    return 0;
}

static int parse_range(const lm_option *field, const char *text, lm_range *value,
                       lm_message *message)
{
    char low[32];
    const char *colon = strchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof low)
        return lm_fail(message, "--%s: '%.60s' is not of the form LO:HI", field->name, text);
    snprintf(low, sizeof low, "%.*s", (int)(colon - text), text);
    if (parse_integer(field->name, low, (int64_t)field->low, (int64_t)field->high, &value->low,
                      message) != 0)
        return -1;
    return parse_integer(field->name, colon + 1, value->low, (int64_t)field->high, &value->high,
                         message);
}

static int set_field(lm_settings *settings, int index, const char *text, lm_message *message)
{
    const lm_option *field = &FIELDS[index];
    char *copy = strdup(text), *at = (char *)settings + field->offset;
    if (!copy)
        return lm_fail(message, "no memory for --%s", field->name);
    free(settings->texts[index]);
    settings->texts[index] = copy;
    switch (field->kind) {
    case FLAG:
    case INTEGER:
        return parse_integer(field->name, copy, (int64_t)field->low, (int64_t)field->high,
                             (int64_t *)(void *)at, message);
    case REAL: return parse_real(field, copy, (double *)(void *)at, message);
    case RANGE: return parse_range(field, copy, (lm_range *)(void *)at, message);
    default: *(const char **)(void *)at = copy; return 0;
    }
}

/* ---- The command line ---- */

static void fill_options(struct poptOption *options, char (*help)[HELP_SIZE])
{
    static const struct poptOption autohelp[] = {POPT_AUTOHELP POPT_TABLEEND};
    for (int i = 0; i < FIELD_COUNT; i++) {
        const int shown = FIELDS[i].kind != FLAG && FIELDS[i].start[0] > ' ';
        if (shown)
            snprintf(help[i], HELP_SIZE, "%s (%s)", FIELDS[i].help, FIELDS[i].start);
        else
            snprintf(help[i], HELP_SIZE, "%s", FIELDS[i].help);
        options[i].longName = FIELDS[i].name;
        options[i].argInfo = FIELDS[i].kind == FLAG ? POPT_ARG_NONE : POPT_ARG_STRING;
        options[i].val = i + 1;
        options[i].descrip = help[i];
        options[i].argDescrip = FIELDS[i].argument;
    }
    options[FIELD_COUNT] = autohelp[0];
}

static int read_options(lm_settings *settings, poptContext context, lm_message *message)
{
    int code, result = 0;
    while (result == 0 && (code = poptGetNextOpt(context)) > 0) {
        char *text = FIELDS[code - 1].kind == FLAG ? NULL : poptGetOptArg(context);
        result = set_field(settings, code - 1, text ? text : "1", message);
        settings->given[code - 1] = 1;
        free(text);
    }
    if (result == 0 && code < -1)
        result = lm_fail(message, "%.200s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                         poptStrerror(code));
    if (result == 0 && poptPeekArg(context))
        result = lm_fail(message, "'%.200s' is not an option", poptPeekArg(context));
    return result;
}

int settings_parse(lm_settings *settings, int argc, const char **argv, lm_message *message)
{
    struct poptOption options[FIELD_COUNT + 2] = {0};
    char help[FIELD_COUNT][HELP_SIZE];
    poptContext context;
    int result = 0;
    memset(settings, 0, sizeof *settings);
    settings->texts = lm_allocate(FIELD_COUNT, sizeof *settings->texts, message);
    settings->given = lm_allocate(FIELD_COUNT, sizeof *settings->given, message);
    if (!settings->texts || !settings->given)
        return -1;
    for (int i = 0; result == 0 && i < FIELD_COUNT; i++)
        result = set_field(settings, i, FIELDS[i].start, message);
    if (result != 0)
        return result;
    fill_options(options, help);
    context = poptGetContext("lm", argc, argv, options, 0);
    if (!context)
        return lm_fail(message, "no memory for the command line");
    result = read_options(settings, context, message);
    poptFreeContext(context);
    return result;
}

void settings_destroy(lm_settings *settings)
{
    for (int i = 0; settings->texts && i < FIELD_COUNT; i++)
        free(settings->texts[i]);
    free(settings->texts);
    free(settings->given);
    memset(settings, 0, sizeof *settings);
}

static int find_field(const char *name)
{
    int index = 0;
    while (strcmp(FIELDS[index].name, name) != 0)
        index++;
    return index;
}

int settings_given(const lm_settings *settings, const char *name)
{
    return settings->given[find_field(name)];
}

int settings_resolve(lm_settings *settings, lm_message *message)
{
    const int steps = find_field("steps"), seconds = find_field("seconds");
    if (settings->given[seconds] && !settings->given[steps] && settings->seconds > 0)
        return set_field(settings, steps, STEPS_LIMIT, message);
    if (settings->given[steps] && !settings->given[seconds])
        return set_field(settings, seconds, "0", message);
    return 0;
}

int settings_go_on(lm_settings *settings, int64_t steps_done, double seconds_done,
                   lm_message *message)
{
    const int steps = find_field("steps"), seconds = find_field("seconds");
    char text[40];
    if (settings->given[steps] && settings->steps > 0) {
        snprintf(text, sizeof text, "%" PRId64, steps_done + settings->steps);
        if (set_field(settings, steps, text, message) != 0)
            return -1;
    }
    if (settings->given[seconds] && settings->seconds > 0) {
        snprintf(text, sizeof text, "%.17g", seconds_done + settings->seconds);
        return set_field(settings, seconds, text, message);
    }
    return 0;
}

lm_config settings_model(const lm_settings *settings)
{
    lm_config config;
    config.rule = settings->rule;
    config.window = (int32_t)settings->window;
    config.layers = (int32_t)settings->layers;
    config.dim = (int32_t)settings->dim;
    config.heads = (int32_t)settings->heads;
    config.head_dim = (int32_t)settings->head_dim;
    config.hidden = (int32_t)(settings->hidden > 0 ? settings->hidden
                                                   : (settings->dim * 8 / 3 + 15) / 16 * 16);
    return config;
}

/* ---- Checkpoints ---- */

int settings_write(const lm_settings *settings, safetensors *file, lm_message *message)
{
    safetensors_message problem;
    for (int i = 0; i < FIELD_COUNT; i++)
        if (FIELDS[i].use != TRANSIENT &&
            safetensors_set_metadata(file, FIELDS[i].name, settings->texts[i], &problem) != 0)
            return lm_fail(message, "%s", problem.text);
    return 0;
}

int settings_read(lm_settings *settings, const safetensors *file, lm_message *message)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        const char *stored;
        if (FIELDS[i].use == TRANSIENT)
            continue;
        stored = safetensors_metadata(file, FIELDS[i].name);
        if (!stored)
            return lm_fail(message, "it has no '%s' in its metadata", FIELDS[i].name);
        if (!settings->given[i]) {
            if (set_field(settings, i, stored, message) != 0)
                return -1;
        } else if (FIELDS[i].use == SHAPE && strcmp(stored, settings->texts[i]) != 0) {
            return lm_fail(message, "it was trained with --%s %.60s, not %.60s", FIELDS[i].name,
                           stored, settings->texts[i]);
        }
    }
    return 0;
}
