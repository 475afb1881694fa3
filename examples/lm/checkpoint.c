/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FORMAT[] = "libfwa-lm-1";

/* The flat arrays of a model that a checkpoint holds. */
enum { ARRAYS = 3 };
static const char *const PREFIXES[ARRAYS] = {"", "adam.mean.", "adam.variance."};

static float *array_of(const lm_model *model, int32_t index)
{
    float *const arrays[ARRAYS] = {model->weights, model->mean, model->variance};
    return arrays[index];
}

static void tensor_name(char (*name)[96], int32_t array, const parameter *entry)
{
    snprintf(*name, sizeof *name, "%s%s", PREFIXES[array], entry->name);
}

static int add_tensors(safetensors *file, const lm_model *model, safetensors_message *problem)
{
    for (int32_t a = 0; a < ARRAYS; a++)
        for (int32_t i = 0; i < model->parameter_count; i++) {
            const parameter *entry = &model->parameters[i];
            const int64_t shape[2] = {entry->rows, entry->columns};
            char name[96];
            safetensors_tensor *tensor;
            tensor_name(&name, a, entry);
            tensor = safetensors_add(file, name, FWA_DTYPE_F32, 2, shape, problem);
            if (!tensor)
                return -1;
            memcpy(tensor->data, array_of(model, a) + entry->offset, tensor->size);
        }
    return 0;
}

static int add_progress(safetensors *file, const lm_progress *progress,
                        safetensors_message *problem)
{
    char step[32], position[32], tokens[32], seconds[40];
    snprintf(step, sizeof step, "%" PRId64, progress->step);
    snprintf(position, sizeof position, "%" PRId64, progress->position);
    snprintf(tokens, sizeof tokens, "%" PRId64, progress->tokens);
    snprintf(seconds, sizeof seconds, "%.17g", progress->seconds);
    return safetensors_set_metadata(file, "format", FORMAT, problem) ||
                   safetensors_set_metadata(file, "progress.step", step, problem) ||
                   safetensors_set_metadata(file, "progress.position", position, problem) ||
                   safetensors_set_metadata(file, "progress.tokens", tokens, problem) ||
                   safetensors_set_metadata(file, "progress.seconds", seconds, problem)
               ? -1
               : 0;
}

int checkpoint_write(const char *path, const lm_model *model, const lm_settings *settings,
                     const lm_progress *progress, lm_message *message)
{
    safetensors_message problem;
    safetensors *file = safetensors_new(&problem);
    int result = -1;
    if (!file || add_tensors(file, model, &problem) != 0 ||
        add_progress(file, progress, &problem) != 0)
        lm_fail(message, "cannot make the checkpoint %.200s: %.250s", path, problem.text);
    else if (settings_write(settings, file, message) == 0) {
        result = safetensors_write(file, path, &problem);
        if (result != 0)
            lm_fail(message, "cannot write the checkpoint: %.400s", problem.text);
    }
    safetensors_free(file);
    return result;
}

safetensors *checkpoint_open(const char *path, lm_settings *settings, lm_message *message)
{
    safetensors_message problem;
    lm_message reason;
    safetensors *file = safetensors_read(path, &problem);
    const char *format = file ? safetensors_metadata(file, "format") : NULL;
    if (!file) {
        lm_fail(message, "cannot read the checkpoint: %.400s", problem.text);
    } else if (!format || strcmp(format, FORMAT) != 0) {
        lm_fail(message, "%.300s is not a checkpoint of this program", path);
    } else if (settings_read(settings, file, &reason) != 0) {
        lm_fail(message, "%.200s cannot be resumed: %.250s", path, reason.text);
    } else {
        return file;
    }
    safetensors_free(file);
    return NULL;
}

static int load_tensor(const safetensors *file, const lm_model *model, int32_t array,
                       const parameter *entry, lm_message *message)
{
    const safetensors_tensor *tensor;
    char name[96];
    tensor_name(&name, array, entry);
    tensor = safetensors_find(file, name);
    if (!tensor)
        return lm_fail(message, "'%s' is missing", name);
    if (tensor->dtype != FWA_DTYPE_F32 || tensor->rank != 2 || tensor->shape[0] != entry->rows ||
        tensor->shape[1] != entry->columns)
        return lm_fail(message, "'%s' is not f32 [%" PRId64 ", %" PRId64 "]", name, entry->rows,
                       entry->columns);
    memcpy(array_of(model, array) + entry->offset, tensor->data, tensor->size);
    return 0;
}

static int load_count(const safetensors *file, const char *key, int64_t *value, lm_message *message)
{
    const char *text = safetensors_metadata(file, key);
    if (!text)
        return lm_fail(message, "it has no '%s' in its metadata", key);
    return parse_integer(key, text, 0, INT64_MAX, value, message);
}

static int load_all(const safetensors *file, lm_model *model, lm_progress *progress,
                    lm_message *message)
{
    const char *seconds = safetensors_metadata(file, "progress.seconds");
    for (int32_t a = 0; a < ARRAYS; a++)
        for (int32_t i = 0; i < model->parameter_count; i++)
            if (load_tensor(file, model, a, &model->parameters[i], message) != 0)
                return -1;
    progress->seconds = seconds ? strtod(seconds, NULL) : 0.0;
    if (!(progress->seconds >= 0.0))
        progress->seconds = 0.0;
    return load_count(file, "progress.step", &progress->step, message) ||
                   load_count(file, "progress.position", &progress->position, message) ||
                   load_count(file, "progress.tokens", &progress->tokens, message)
               ? -1
               : 0;
}

int checkpoint_load(const char *path, const safetensors *file, lm_model *model,
                    lm_progress *progress, lm_message *message)
{
    lm_message reason;
    if (load_all(file, model, progress, &reason) != 0)
        return lm_fail(message, "%.200s cannot be resumed: %.250s", path, reason.text);
    return 0;
}
