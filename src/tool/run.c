/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include "../files/problem_answer.h"

#include <stdio.h>
#include <stdlib.h>

static tool_exit write_answer(const safetensors *file, const char *path,
                              const problem_run_options *options, const problem_answer *answer,
                              safetensors_message *message)
{
    safetensors *out = problem_answer_file(file, options, answer, message);
    if (out == NULL)
        return TOOL_LIBRARY;
    const tool_exit code = safetensors_write(out, path, message) ? TOOL_OUTPUT : TOOL_OK;
    if (code == TOOL_OK)
        printf("%s: %s%s%s\n", path, answer->kernel[FWA_PASS_FORWARD],
               options->backward ? ", " : "", answer->kernel[FWA_PASS_BACKWARD]);
    safetensors_free(out);
    return code;
}

static tool_exit run_file(const char *in, const char *path, const tool_engine *engine,
                          problem_run_options *options)
{
    safetensors_message message = {""};
    problem_answer answer;
    safetensors *file = NULL;
    tool_exit code = tool_context(engine->backend, engine->threads, &options->context);
    if (code != TOOL_OK)
        return code;
    file = safetensors_read(in, &message);
    if (file == NULL) {
        tool_error("%s", message.text);
        fwa_context_destroy(options->context);
        return TOOL_BAD_FILE;
    }
    code = tool_plan_dtype(file, options->context, &options->dtype, &message);
    if (code == TOOL_OK) {
        const problem_run_result result = problem_run(file, options, &answer, &message);
        code = tool_run_exit(result, answer.status);
        if (result == PROBLEM_RUN_OK) {
            code = write_answer(file, path, options, &answer, &message);
            problem_answer_free(&answer);
        }
    }
    if (code == TOOL_OUTPUT)
        tool_error("%s", message.text);
    else if (code != TOOL_OK)
        tool_error("%s: %s", in, message.text);
    safetensors_free(file);
    fwa_context_destroy(options->context);
    return code;
}

int tool_run(int argc, const char **argv)
{
    tool_engine engine = {0};
    problem_run_options run = {0};
    char *output = NULL;
    int backward = 0;
    const char *const *left;
    poptContext context;
    const struct poptOption options[] = {
        {"output", 'o', POPT_ARG_STRING, &output, 0, "where problem and answers go (required)",
         "OUT"},
        {"backward", 'g', POPT_ARG_NONE, &backward, 0,
         "the gradients too; the file must have the tensor 'do'", NULL},
        TOOL_OPTION_BACKEND(engine, "backend (default cpu)"),
        TOOL_OPTION_FORM(engine, "auto, recurrent, masked or chunked (default auto)"),
        TOOL_OPTION_DTYPE(engine,
                          "f64, f32, bf16 or f16 (default: the file's; f64 files run in f32 "
                          "on every backend but the reference)"),
        TOOL_OPTION_STATE_DTYPE(engine),
        TOOL_OPTION_THREADS(engine),
        POPT_AUTOHELP POPT_TABLEEND};
    tool_exit code = tool_parse(argc, argv, options, "IN -o OUT [OPTION...]", 1, 1, &context,
                                &left);
    if (code == TOOL_OK && output == NULL) {
        tool_error("-o OUT is missing (try %s --help)", argv[0]);
        code = TOOL_USAGE;
    }
    if (code == TOOL_OK)
        code = tool_form(engine.form, &run.form);
    if (code == TOOL_OK)
        code = tool_dtype("--dtype", engine.dtype, &run.dtype);
    if (code == TOOL_OK)
        code = tool_dtype("--state-dtype", engine.state_dtype, &run.state_dtype);
    run.backward = backward;
    if (code == TOOL_OK)
        code = run_file(left[0], output, &engine, &run);
    poptFreeContext(context);
    tool_engine_free(&engine);
    free(output);
    return code;
}
