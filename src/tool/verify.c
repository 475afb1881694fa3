/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include "../files/problem_verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the user asked for: lists to run, and whether each was named or is "all" or a default. */
typedef struct selection {
    const char *backend; /* NULL: cpu and reference; "all" */
    const char *form;    /* NULL or "all": every form of the backend */
    const char *dtype;   /* NULL: f64 for the reference, f32 for others; "all" */
    int32_t named_form, named_dtype;
    int threads;
} selection;

#define BACKENDS 32

/* The state of one `fwa verify`. */
typedef struct verification {
    selection want;
    fwa_context *reference;
    fwa_context *contexts[BACKENDS];
    int contexts_count;
    int file_width;
    int64_t passed, failed;
    tool_exit code;
    tool_progress progress;
} verification;

static const int32_t all_forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED};
static const int32_t all_dtypes[] = {FWA_DTYPE_F64, FWA_DTYPE_F32, FWA_DTYPE_BF16, FWA_DTYPE_F16};

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static int is_all(const char *text)
{
    return text != NULL && strcmp(text, "all") == 0;
}

/* A mismatch outranks a file or backend that could not be judged; of those the first counts. */
static void note_code(verification *all, tool_exit code)
{
    if (all->code == TOOL_OK || code == TOOL_MISMATCH)
        all->code = code;
}

/* ---- Contexts ---- */

static tool_exit add_context(verification *all, const char *name)
{
    if (all->contexts_count == BACKENDS)
        return TOOL_OK;
    const tool_exit code = tool_context(name, all->want.threads,
                                        &all->contexts[all->contexts_count]);
    all->contexts_count += code == TOOL_OK;
    return code;
}

static tool_exit open_contexts(verification *all)
{
    static const char *const defaults[] = {"cpu", "reference"};
    tool_exit code = tool_context("reference", all->want.threads, &all->reference);
    if (code != TOOL_OK)
        return code;
    if (is_all(all->want.backend)) {
        for (int32_t i = 0; i < fwa_backend_count() && code == TOOL_OK; i++) {
            fwa_backend_info info = FWA_BACKEND_INFO_INIT;
            if (fwa_backend_get(i, &info) == FWA_OK && info.available)
                code = add_context(all, info.name);
        }
        return code;
    }
    if (all->want.backend != NULL)
        return add_context(all, all->want.backend);
    for (int i = 0; i < COUNT(defaults) && code == TOOL_OK; i++)
        code = add_context(all, defaults[i]);
    return code;
}

static void close_contexts(verification *all)
{
    for (int i = 0; i < all->contexts_count; i++)
        fwa_context_destroy(all->contexts[i]);
    fwa_context_destroy(all->reference);
}

/* ---- Lines ---- */

enum {
    FILE_COLUMN,
    KERNEL_COLUMN,
    TENSOR_COLUMN,
    AGAINST_COLUMN,
    RMS_COLUMN,
    MAXIMUM_COLUMN,
    BOUND_COLUMN,
    VERDICT_COLUMN,
    COLUMNS
};

static void columns_for(const verification *all, tool_column columns[COLUMNS])
{
    const tool_column fresh[COLUMNS] = {{"file", all->file_width, 0},
                                        {"kernel", 66, 0},
                                        {"worst tensor", 14, 0},
                                        {"against", 7, 0},
                                        {"rms", 8, 1},
                                        {"max", 8, 1},
                                        {"bound", 8, 1},
                                        {"verdict", 0, 0}};
    memcpy(columns, fresh, sizeof fresh);
}

static void print_verdict(verification *all, const char *file, const problem_verdict *verdict)
{
    tool_column columns[COLUMNS];
    char numbers[3][32];
    const double values[] = {verdict->error.rms, verdict->error.maximum, verdict->bound.rms};
    for (int i = 0; i < 3; i++)
        snprintf(numbers[i], sizeof numbers[i], "%.2e", values[i]);
    const char *cells[COLUMNS] = {
        file,       verdict->kernel, verdict->tensor, verdict->against,
        numbers[0], numbers[1],      numbers[2],      verdict->passed ? "ok" : "FAIL"};
    tool_progress_clear(&all->progress);
    columns_for(all, columns);
    tool_table_row(columns, COLUMNS, cells);
}

static void file_error(verification *all, const char *path, const char *text, tool_exit code)
{
    tool_progress_clear(&all->progress);
    tool_error("%s: %s", path, text);
    note_code(all, code);
    all->failed++;
}

/* ---- Running ---- */

/* The forms and types to run on one context. */
typedef struct lists {
    const int32_t *forms;
    int forms_count;
    const int32_t *dtypes;
    int dtypes_count;
} lists;

static lists lists_for(const selection *want, const fwa_context *context)
{
    static const int32_t wide[] = {FWA_DTYPE_F64}, narrow[] = {FWA_DTYPE_F32};
    const int reference = strcmp(fwa_context_backend(context), "reference") == 0;
    lists result = {all_forms, COUNT(all_forms), all_dtypes, COUNT(all_dtypes)};
    if (want->form != NULL && !is_all(want->form)) {
        result.forms = &want->named_form;
        result.forms_count = 1;
    }
    if (want->dtype == NULL) {
        result.dtypes = reference ? wide : narrow;
        result.dtypes_count = 1;
    } else if (!is_all(want->dtype)) {
        result.dtypes = &want->named_dtype;
        result.dtypes_count = 1;
    }
    return result;
}

/* Runs one file on one context in every form and type. A combination that the backend does not have
 * is passed over where it came from a list, and is an error where nothing else was asked of this
 * backend. Returns how many ran; *message has the last refusal. */
static int verify_context(verification *all, const char *path, problem_verify *verify,
                          fwa_context *context, safetensors_message *refusal)
{
    const lists run = lists_for(&all->want, context);
    int ran = 0;
    for (int i = 0; i < run.forms_count * run.dtypes_count; i++) {
        const problem_run_options options = {.context = context,
                                             .form = run.forms[i / run.dtypes_count],
                                             .dtype = run.dtypes[i % run.dtypes_count]};
        problem_verdict verdict;
        safetensors_message message = {""};
        fwa_status status;
        const problem_run_result result = problem_verify_run(verify, &options, &verdict, &status,
                                                             &message);
        if (result == PROBLEM_RUN_REFUSED && status == FWA_ERROR_UNSUPPORTED) {
            *refusal = message;
            continue;
        }
        ran++;
        if (result != PROBLEM_RUN_OK) {
            file_error(all, path, message.text, tool_run_exit(result, status));
            continue;
        }
        print_verdict(all, path, &verdict);
        all->passed += verdict.passed;
        all->failed += !verdict.passed;
        if (!verdict.passed)
            note_code(all, TOOL_MISMATCH);
    }
    return ran;
}

static void verify_file(verification *all, const char *path)
{
    safetensors_message message = {""};
    problem_verify *verify = NULL;
    safetensors *file = safetensors_read(path, &message);
    if (file == NULL) {
        tool_progress_clear(&all->progress);
        tool_error("%s", message.text);
        note_code(all, TOOL_BAD_FILE);
        all->failed++;
        return;
    }
    fwa_status status;
    const problem_run_result result = problem_verify_begin(file, all->reference, &verify, &status,
                                                           &message);
    if (result != PROBLEM_RUN_OK)
        file_error(all, path, message.text, tool_run_exit(result, status));
    int ran = 0;
    for (int i = 0; verify != NULL && i < all->contexts_count; i++) {
        const int here = verify_context(all, path, verify, all->contexts[i], &message);
        ran += here;
        /* A backend that was named must run something. */
        if (here == 0 && all->want.backend != NULL && !is_all(all->want.backend))
            file_error(all, path, message.text, TOOL_LIBRARY);
    }
    if (verify != NULL && ran == 0 && (all->want.backend == NULL || is_all(all->want.backend)))
        file_error(all, path, message.text, TOOL_LIBRARY);
    problem_verify_end(verify);
    safetensors_free(file);
}

static tool_exit verify_files(verification *all, const char *const *paths)
{
    tool_column columns[COLUMNS];
    int64_t count = 0;
    for (; paths[count] != NULL; count++)
        if ((int)strlen(paths[count]) > all->file_width)
            all->file_width = (int)strlen(paths[count]);
    all->progress = tool_progress_begin(count);
    columns_for(all, columns);
    tool_table_head(columns, COLUMNS);
    for (int64_t i = 0; i < count; i++) {
        tool_progress_show(&all->progress, i, paths[i]);
        verify_file(all, paths[i]);
    }
    tool_progress_clear(&all->progress);
    printf("%lld passed, %lld failed\n", (long long)all->passed, (long long)all->failed);
    return all->code;
}

int tool_verify(int argc, const char **argv)
{
    tool_engine engine = {0};
    verification all = {0};
    const char *const *left;
    poptContext context;
    const struct poptOption options[] = {
        TOOL_OPTION_BACKEND(engine, "backend, or all (default: cpu and reference)"),
        TOOL_OPTION_FORM(engine, "auto, recurrent, masked, chunked, or all (default: all that the "
                                 "backend has)"),
        TOOL_OPTION_DTYPE(engine, "f64, f32, bf16, f16, or all that the backend has (default: f64 "
                                  "on the reference, f32 elsewhere)"),
        TOOL_OPTION_THREADS(engine), POPT_AUTOHELP POPT_TABLEEND};
    tool_exit code = tool_parse(argc, argv, options, "FILE... [OPTION...]", 1, -1, &context, &left);
    if (code == TOOL_OK && !is_all(engine.form))
        code = tool_form(engine.form, &all.want.named_form);
    if (code == TOOL_OK && !is_all(engine.dtype))
        code = tool_dtype("--dtype", engine.dtype, &all.want.named_dtype);
    if (code == TOOL_OK) {
        all.want.backend = engine.backend;
        all.want.form = engine.form;
        all.want.dtype = engine.dtype;
        all.want.threads = engine.threads;
        code = open_contexts(&all);
        if (code == TOOL_OK)
            code = verify_files(&all, left);
        close_contexts(&all);
    }
    poptFreeContext(context);
    tool_engine_free(&engine);
    return code;
}
