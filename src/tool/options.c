/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

void tool_engine_free(tool_engine *engine)
{
    free(engine->backend);
    free(engine->form);
    free(engine->dtype);
    free(engine->state_dtype);
    memset(engine, 0, sizeof *engine);
}

static int count_arguments(const char *const *list)
{
    int count = 0;
    while (list != NULL && list[count] != NULL)
        count++;
    return count;
}

tool_exit tool_parse(int argc, const char **argv, const struct poptOption *options,
                     const char *arguments, int least, int most, poptContext *context,
                     const char *const **arguments_left)
{
    static const char *const none[] = {NULL};
    *context = poptGetContext("fwa", argc, argv, options, 0);
    if (*context == NULL) {
        tool_error("out of memory");
        return TOOL_LIBRARY;
    }
    poptSetOtherOptionHelp(*context, arguments);
    const int code = poptGetNextOpt(*context);
    if (code < -1) {
        tool_error("%s: %s (try %s --help)", poptBadOption(*context, POPT_BADOPTION_NOALIAS),
                   poptStrerror(code), argv[0]);
    } else {
        const char *const *left = (const char *const *)poptGetArgs(*context);
        const int count = count_arguments(left);
        *arguments_left = left == NULL ? none : left;
        if (count >= least && (most < 0 || count <= most))
            return TOOL_OK;
        if (count < least)
            tool_error("an argument is missing (try %s --help)", argv[0]);
        else
            tool_error("'%s' is one argument too many (try %s --help)", left[most], argv[0]);
    }
    *context = poptFreeContext(*context);
    return TOOL_USAGE;
}

tool_exit tool_form(const char *text, int32_t *form)
{
    static const char *const forms[] = {"auto", "recurrent", "masked", "chunked"};
    for (int32_t i = 0; text != NULL && i < (int32_t)(sizeof forms / sizeof *forms); i++) {
        if (strcmp(forms[i], text) == 0) {
            *form = i;
            return TOOL_OK;
        }
    }
    if (text == NULL)
        return TOOL_OK;
    tool_error("--form is '%s'; it must be auto, recurrent, masked or chunked", text);
    return TOOL_USAGE;
}

tool_exit tool_dtype(const char *option, const char *text, int32_t *dtype)
{
    static const int32_t dtypes[] = {FWA_DTYPE_F64, FWA_DTYPE_F32, FWA_DTYPE_BF16, FWA_DTYPE_F16};
    for (size_t i = 0; text != NULL && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(fwa_dtype_name(dtypes[i]), text) == 0) {
            *dtype = dtypes[i];
            return TOOL_OK;
        }
    }
    if (text == NULL)
        return TOOL_OK;
    tool_error("%s is '%s'; it must be f64, f32, bf16 or f16", option, text);
    return TOOL_USAGE;
}

tool_exit tool_context(const char *name, int threads, fwa_context **context)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    options.backend = name;
    options.threads = threads;
    const fwa_status status = fwa_context_create(&options, context);
    if (status == FWA_OK)
        return TOOL_OK;
    tool_error("%s", fwa_error_message());
    return status == FWA_ERROR_VALUE ? TOOL_USAGE : TOOL_LIBRARY;
}

tool_exit tool_plan_dtype(const safetensors *file, const fwa_context *context, int32_t *dtype,
                          safetensors_message *message)
{
    fwa_problem problem;
    if (*dtype != FWA_DTYPE_NONE)
        return TOOL_OK;
    if (problem_file_read_problem(file, &problem, message))
        return TOOL_BAD_FILE;
    const int reference = strcmp(fwa_context_backend(context), "reference") == 0;
    *dtype = problem.dtype == FWA_DTYPE_F64 && !reference ? FWA_DTYPE_F32 : problem.dtype;
    return TOOL_OK;
}

tool_exit tool_run_exit(problem_run_result result, fwa_status status)
{
    if (result == PROBLEM_RUN_OK)
        return TOOL_OK;
    if (result == PROBLEM_RUN_BAD_FILE)
        return TOOL_BAD_FILE;
    switch (status) {
    case FWA_ERROR_NULL: /* a tensor that the problem needs is not in the file */
    case FWA_ERROR_VALUE:
    case FWA_ERROR_SHAPE:
    case FWA_ERROR_SEQUENCE: return TOOL_BAD_FILE;
    default: return TOOL_LIBRARY;
    }
}
