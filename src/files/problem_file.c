/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_file.h"
#include "element.h"
#include "safetensors_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The knobs: metadata keys and the fields that they set ---- */

typedef enum knob_kind { KNOB_NAME, KNOB_INTEGER, KNOB_NUMBER } knob_kind;

#define KNOB_NAMES 4

typedef struct knob {
    const char *key;
    knob_kind kind;
    size_t field;                  /* offset in fwa_problem */
    const char *names[KNOB_NAMES]; /* KNOB_NAME: by the enum's number; the first is the default */
    const char *legal;             /* for the message */
} knob;

#define FIELD(name) offsetof(fwa_problem, name)

static const knob knobs[] = {
    {"align",
     KNOB_NAME,
     FIELD(alignment),
     {"next_latent", "same_step"},
     "one of next_latent, same_step"},
    {"read",
     KNOB_NAME,
     FIELD(read),
     {"after_write", "before_write"},
     "one of after_write, before_write"},
    {"step", KNOB_NAME, FIELD(step), {"normalized", "direct"}, "one of normalized, direct"},
    {"ridge",
     KNOB_NAME,
     FIELD(ridge),
     {"actual", "scale_coupled", "scale_coupled_live"},
     "one of actual, scale_coupled, scale_coupled_live"},
    {"predict_from",
     KNOB_NAME,
     FIELD(prediction),
     {"previous", "decayed"},
     "one of previous, decayed"},
    {"qk_norm", KNOB_NAME, FIELD(qk_norm), {"none", "l2", "rms"}, "one of none, l2, rms"},
    {"phi", KNOB_NAME, FIELD(phi), {"identity", "relu", "elu1"}, "one of identity, relu, elu1"},
    {"normalizer", KNOB_NAME, FIELD(normalizer), {"0", "1"}, "one of 0, 1"},
    {"window", KNOB_INTEGER, FIELD(window), {NULL}, "an integer"},
    {"eps", KNOB_NUMBER, FIELD(eps), {NULL}, "a finite number"},
    {"decay_floor", KNOB_NUMBER, FIELD(decay_floor), {NULL}, "a finite number"},
    {"scale", KNOB_NUMBER, FIELD(scale), {NULL}, "a finite number"},
    {"norm_eps", KNOB_NUMBER, FIELD(norm_eps), {NULL}, "a finite number"},
    {"eps_attn", KNOB_NUMBER, FIELD(eps_attn), {NULL}, "a finite number"},
};

#define KNOBS (sizeof knobs / sizeof *knobs)

/* A rule is three fields; the window of the sliding rules is a knob of its own. */
typedef struct rule {
    const char *name;
    int32_t objective, dynamics, sliding;
} rule;

static const rule rules[] = {
    {"falcon1", FWA_OBJECTIVE_REGRESSION, FWA_DYNAMICS_PER_HEAD, 0},
    {"falcon2", FWA_OBJECTIVE_REGRESSION, FWA_DYNAMICS_PER_CHANNEL, 0},
    {"falcon3", FWA_OBJECTIVE_REGRESSION, FWA_DYNAMICS_PER_HEAD, 1},
    {"falcon1a", FWA_OBJECTIVE_INNER_PRODUCT, FWA_DYNAMICS_PER_HEAD, 0},
    {"falcon2a", FWA_OBJECTIVE_INNER_PRODUCT, FWA_DYNAMICS_PER_CHANNEL, 0},
    {"falcon3a", FWA_OBJECTIVE_INNER_PRODUCT, FWA_DYNAMICS_PER_HEAD, 1},
};

#define RULES      (sizeof rules / sizeof *rules)
#define RULE_KEY   "rule"
#define NOTE_KEY   "note"
#define WINDOW_KEY "window"

static int32_t *integer_field(fwa_problem *problem, const knob *one)
{
    return (int32_t *)(void *)((char *)problem + one->field);
}

static double *number_field(fwa_problem *problem, const knob *one)
{
    return (double *)(void *)((char *)problem + one->field);
}

/* ---- Reading ---- */

/* 0, or -1 where the text is no legal value of the knob. Numbers have the syntax of strtod and
 * strtol in the C locale, which is the only one that the tool and the tests run in. */
static int set_knob(fwa_problem *problem, const knob *one, const char *text)
{
    char *end;
    errno = 0;
    if (one->kind == KNOB_NAME) {
        for (int32_t i = 0; i < KNOB_NAMES && one->names[i] != NULL; i++) {
            if (strcmp(one->names[i], text) == 0) {
                *integer_field(problem, one) = i;
                return 0;
            }
        }
        return -1;
    }
    if (*text == '\0' || strchr(" \t\r\n\f\v", *text) != NULL)
        return -1;
    if (one->kind == KNOB_INTEGER) {
        const long value = strtol(text, &end, 10);
        if (*end != '\0' || errno != 0 || value < INT32_MIN || value > INT32_MAX)
            return -1;
        *integer_field(problem, one) = (int32_t)value;
        return 0;
    }
    const double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value))
        return -1;
    *number_field(problem, one) = value;
    return 0;
}

static const knob *find_knob(const char *key)
{
    for (size_t i = 0; i < KNOBS; i++)
        if (strcmp(knobs[i].key, key) == 0)
            return &knobs[i];
    return NULL;
}

static int read_rule(const safetensors *file, fwa_problem *problem, safetensors_message *message)
{
    const char *name = safetensors_metadata(file, RULE_KEY);
    if (name == NULL)
        return safetensors_fail(message, "metadata 'rule' is missing");
    for (size_t i = 0; i < RULES; i++) {
        if (strcmp(rules[i].name, name) != 0)
            continue;
        if (!rules[i].sliding && problem->window != 1)
            return safetensors_fail(message,
                                    "metadata 'window' is %d, but %s has no window; it must be 1",
                                    (int)problem->window, name);
        problem->objective = rules[i].objective;
        problem->dynamics = rules[i].dynamics;
        return 0;
    }
    return safetensors_fail(message,
                            "metadata 'rule' is '%.32s'; it must be one of falcon1, falcon2, "
                            "falcon3, falcon1a, falcon2a, falcon3a",
                            name);
}

int problem_set_knob(fwa_problem *problem, const char *key, const char *text, const char **legal)
{
    const knob *one = find_knob(key);
    if (one == NULL)
        return 1;
    *legal = one->legal;
    return set_knob(problem, one, text);
}

static int read_knobs(const safetensors *file, fwa_problem *problem, safetensors_message *message)
{
    for (int32_t i = 0; i < safetensors_metadata_count(file); i++) {
        const char *key = safetensors_metadata_key(file, i);
        if (strcmp(key, RULE_KEY) == 0 || strcmp(key, NOTE_KEY) == 0)
            continue;
        const char *text = safetensors_metadata(file, key), *legal;
        const int result = problem_set_knob(problem, key, text, &legal);
        if (result > 0)
            return safetensors_fail(message, "metadata '%.64s' is no knob of a problem", key);
        if (result < 0)
            return safetensors_fail(message, "metadata '%s' is '%.64s'; it must be %s", key, text,
                                    legal);
    }
    return 0;
}

static int read_size(const safetensors *file, const char *name, int32_t axis, int32_t *size,
                     safetensors_message *message)
{
    const int64_t extent = safetensors_find(file, name)->shape[axis];
    if (extent < 1 || extent > INT32_MAX)
        return safetensors_fail(message, "tensor '%s': extent %d is %lld; it must be 1 to %d", name,
                                (int)axis, (long long)extent, INT32_MAX);
    *size = (int32_t)extent;
    return 0;
}

/* Every tensor must be one that problem files have, of a type that it can have, and the required
 * ones must be there. Ranks are checked where a size is read from them; the library checks the
 * rest. */
static int check_tensors(const safetensors *file, const fwa_problem *problem,
                         safetensors_message *message)
{
    for (int32_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *tensor = safetensors_get(file, i);
        const problem_tensor *row = problem_tensor_find(tensor->name);
        if (row == NULL || row->role == PROBLEM_MASK)
            return safetensors_fail(message, "tensor '%.64s' is none that a problem file has",
                                    tensor->name);
        const int integers = row->type == PROBLEM_TYPE_INDEX || row->type == PROBLEM_TYPE_COUNT;
        if (integers == element_is_float(tensor->dtype) ||
            (row->type == PROBLEM_TYPE_COUNT && tensor->dtype != FWA_DTYPE_I64))
            return safetensors_fail(message, "tensor '%s' has the type %s; it must be %s",
                                    tensor->name, safetensors_type_of(tensor->dtype)->name,
                                    row->type == PROBLEM_TYPE_COUNT ? "I64"
                                    : integers                      ? "I32 or I64"
                                                                    : "F64, F32, F16 or BF16");
    }
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        const safetensors_tensor *tensor = safetensors_find(file, row->name);
        if (row->required && tensor == NULL)
            return safetensors_fail(message, "tensor '%s' is missing", row->name);
        if (row->required && row->type == PROBLEM_TYPE_DATA && tensor->rank != 4)
            return safetensors_fail(message, "tensor '%s' has rank %d; it must be 4", row->name,
                                    (int)tensor->rank);
    }
    const int32_t rank = problem->dynamics == FWA_DYNAMICS_PER_CHANNEL ? 4 : 3;
    const safetensors_tensor *beta = safetensors_find(file, "beta");
    if (beta->rank != rank)
        return safetensors_fail(message, "tensor 'beta' has rank %d; with rule %s it must be %d",
                                (int)beta->rank, safetensors_metadata(file, RULE_KEY), (int)rank);
    /* Without seen_in every sequence is fresh and its state zero: other parts would be ambiguous.
     */
    for (int32_t i = 0; safetensors_find(file, "seen_in") == NULL && i < PROBLEM_TENSORS; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (row->role == PROBLEM_INPUT && *row->axes == 'N' &&
            safetensors_find(file, row->name) != NULL)
            return safetensors_fail(message, "tensor '%s' needs tensor 'seen_in'", row->name);
    }
    return 0;
}

int problem_file_read_problem(const safetensors *file, fwa_problem *problem,
                              safetensors_message *message)
{
    const fwa_problem fresh = FWA_PROBLEM_INIT;
    *problem = fresh;
    if (read_knobs(file, problem, message) || read_rule(file, problem, message) ||
        check_tensors(file, problem, message) ||
        read_size(file, "q", 2, &problem->heads_query, message) ||
        read_size(file, "k", 2, &problem->heads_key, message) ||
        read_size(file, "v", 2, &problem->heads_value, message) ||
        read_size(file, "q", 3, &problem->key_dim, message) ||
        read_size(file, "v", 3, &problem->value_dim, message))
        return -1;
    problem->dtype = safetensors_find(file, "q")->dtype;
    return 0;
}

int problem_file_extent(const safetensors *file, problem_extent *extent,
                        safetensors_message *message)
{
    const safetensors_tensor *q = safetensors_find(file, "q");
    const safetensors_tensor *bounds = safetensors_find(file, "cu_seqlens");
    extent->batch = q->shape[0];
    extent->tokens = q->shape[1];
    extent->sequences = extent->batch;
    if (bounds == NULL)
        return 0;
    if (bounds->rank != 1 || bounds->shape[0] < 1)
        return safetensors_fail(message,
                                "tensor 'cu_seqlens' must have rank 1 and an entry or more");
    extent->sequences = bounds->shape[0] - 1;
    return 0;
}

/* ---- Writing ---- */

/* Writes the knob's text: 1 where it is that of a fresh problem, 0 where it differs, -1 where the
 * value is none that a file can hold. */
static int knob_text(const fwa_problem *problem, const knob *one, char *text, size_t size)
{
    fwa_problem fresh = FWA_PROBLEM_INIT, copy = *problem;
    if (one->kind == KNOB_NUMBER) {
        const double number = *number_field(&copy, one);
        snprintf(text, size, "%.17g", number); /* 17 digits bring every double back exactly */
        return !isfinite(number) ? -1 : number == *number_field(&fresh, one);
    }
    const int32_t integer = *integer_field(&copy, one);
    if (one->kind == KNOB_INTEGER)
        snprintf(text, size, "%d", (int)integer);
    else if (integer >= 0 && integer < KNOB_NAMES && one->names[integer] != NULL)
        snprintf(text, size, "%s", one->names[integer]);
    else
        return -1;
    return integer == *integer_field(&fresh, one);
}

int problem_file_write_problem(safetensors *file, const fwa_problem *problem,
                               safetensors_message *message)
{
    const char *name = NULL;
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].objective == problem->objective && rules[i].dynamics == problem->dynamics &&
            rules[i].sliding == (problem->window != 1))
            name = rules[i].name;
    if (name == NULL)
        return safetensors_fail(message, "no rule has objective %d, dynamics %d and window %d",
                                (int)problem->objective, (int)problem->dynamics,
                                (int)problem->window);
    if (safetensors_set_metadata(file, RULE_KEY, name, message))
        return -1;
    for (size_t i = 0; i < KNOBS; i++) {
        char text[64];
        const int same = knob_text(problem, &knobs[i], text, sizeof text);
        if (same < 0)
            return safetensors_fail(message, "knob '%s' has no legal value", knobs[i].key);
        if (same && safetensors_metadata(file, knobs[i].key) == NULL)
            continue;
        if (safetensors_set_metadata(file, knobs[i].key, text, message))
            return -1;
    }
    return 0;
}
