/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include "../conformance/cases.h"

#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the user asked for. */
typedef struct selection {
    tool_engine engine;
    char *filter; /* a glob over the cases' names */
    int json, verbose;
    int32_t form;  /* EVERY_FORM: all */
    int32_t dtype; /* NONE: all */
} selection;

/* The state of one `fwa check`. */
typedef struct check_run {
    selection want;
    fwa_context *context, *reference;
    int64_t count[CONFORMANCE_FAILED + 1]; /* by conformance_verdict */
    json_t *rows;                          /* NULL: not wanted */
    tool_progress progress;
} check_run;

static const int32_t forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED,
                                FWA_FORM_AUTO};
static const char *const verdicts[] = {"ok", "gap", "FAIL"};

#define FORMS      ((int64_t)(sizeof forms / sizeof *forms))
#define EVERY_FORM (-1)

/* The automatic choice is one of the other forms; but where a backend lacks the chunked one, what it
 * chooses may be a mixture. */
static int is_wanted(const check_run *all, const conformance_case *c, int32_t form)
{
    const selection *want = &all->want;
    const int every = want->form == EVERY_FORM &&
                      (form != FWA_FORM_AUTO ||
                       conformance_declared_gap(fwa_context_backend(all->context), FWA_FORM_CHUNKED,
                                                c->problem.dtype));
    return (every || want->form == form) &&
           (want->dtype == FWA_DTYPE_NONE || want->dtype == c->problem.dtype) &&
           (want->filter == NULL || fnmatch(want->filter, c->name, 0) == 0);
}

static void add_row(check_run *all, const conformance_case *c, int32_t form,
                    const conformance_result *result)
{
    /* JSON has no infinity: a comparison that found NaN has no numbers. */
    const int finite = result->ratio <= 1e300;
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "case", c->name, "form",
                            conformance_form_name(form), "kernel", result->kernel, "verdict",
                            verdicts[result->verdict], "tensor", result->tensor, "message",
                            result->message);
    if (finite) {
        json_object_set_new(row, "rms", json_real(result->error.rms));
        json_object_set_new(row, "maximum", json_real(result->error.maximum));
        json_object_set_new(row, "bound", json_real(result->bound.rms));
    }
    json_array_append_new(all->rows, row);
}

static void report(check_run *all, const conformance_case *c, int32_t form,
                   const conformance_result *result)
{
    all->count[result->verdict]++;
    if (all->rows != NULL) {
        add_row(all, c, form, result);
    } else if (result->verdict == CONFORMANCE_FAILED || all->want.verbose) {
        tool_progress_clear(&all->progress);
        printf("%-5s%s, %s: ", verdicts[result->verdict], c->name, conformance_form_name(form));
        if (result->message[0])
            printf("%s\n", result->message);
        else
            printf("%s, worst %s %.2e of %.2e\n", result->kernel, result->tensor, result->error.rms,
                   result->bound.rms);
    }
}

static void check_case(check_run *all, const conformance_case *c, int64_t index)
{
    conformance_answer answer = {0};
    for (int64_t i = 0; i < FORMS; i++) {
        if (!is_wanted(all, c, forms[i]))
            continue;
        tool_progress_show(&all->progress, index * FORMS + i, c->name);
        if (answer.c == NULL)
            answer = conformance_answer_new(c, all->reference);
        const conformance_result result = conformance_check(&answer, forms[i], all->context);
        report(all, c, forms[i], &result);
    }
    conformance_answer_free(&answer);
}

static void check_all(check_run *all)
{
    conformance_case *cases = conformance_cases();
    const int64_t count = conformance_case_count();
    all->progress = tool_progress_begin(count * FORMS);
    for (int64_t i = 0; i < count; i++)
        check_case(all, &cases[i], i);
    tool_progress_clear(&all->progress);
    free(cases);
}

static void summarise(check_run *all)
{
    const char *backend = fwa_context_backend(all->context);
    const long long passed = all->count[CONFORMANCE_PASSED], gaps = all->count[CONFORMANCE_GAP];
    const long long failed = all->count[CONFORMANCE_FAILED];
    if (all->rows == NULL) {
        printf("%s (%s): %lld passed, %lld failed", backend, fwa_context_device(all->context),
               passed, failed);
        printf(gaps ? ", %lld refused as declared\n" : "\n", gaps);
        return;
    }
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:O}", "backend", backend, "device",
                             fwa_context_device(all->context), "passed", (json_int_t)passed,
                             "failed", (json_int_t)failed, "gaps", (json_int_t)gaps, "cases",
                             all->rows);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static tool_exit run(check_run *all)
{
    tool_exit code = tool_form(all->want.engine.form, &all->want.form);
    if (code == TOOL_OK)
        code = tool_dtype("--dtype", all->want.engine.dtype, &all->want.dtype);
    if (code == TOOL_OK)
        code = tool_context("reference", all->want.engine.threads, &all->reference);
    if (code == TOOL_OK)
        code = tool_context(all->want.engine.backend, all->want.engine.threads, &all->context);
    if (code != TOOL_OK)
        return code;
    all->rows = all->want.json ? json_array() : NULL;
    check_all(all);
    summarise(all);
    json_decref(all->rows);
    if (all->count[CONFORMANCE_PASSED] + all->count[CONFORMANCE_GAP] +
            all->count[CONFORMANCE_FAILED] ==
        0) {
        tool_error("no case is called so (fwa check --verbose lists them)");
        return TOOL_USAGE;
    }
    return all->count[CONFORMANCE_FAILED] ? TOOL_MISMATCH : TOOL_OK;
}

int tool_check(int argc, const char **argv)
{
    check_run all = {.want.form = EVERY_FORM};
    poptContext context;
    const char *const *arguments;
    const struct poptOption options[] = {
        TOOL_OPTION_BACKEND(all.want.engine, "backend to check (default cpu)"),
        TOOL_OPTION_FORM(all.want.engine, "only this form: recurrent, masked, chunked or auto"),
        TOOL_OPTION_DTYPE(all.want.engine, "only cases of this type: f64, f32, bf16 or f16"),
        {"filter", 'F', POPT_ARG_STRING, &all.want.filter, 0,
         "only cases whose name matches, as '*falcon3*D64*'", "GLOB"},
        TOOL_OPTION_THREADS(all.want.engine),
        {"json", 'j', POPT_ARG_NONE, &all.want.json, 0, "all results as JSON", NULL},
        {"verbose", 'v', POPT_ARG_NONE, &all.want.verbose, 0, "a line for every case", NULL},
        POPT_AUTOHELP POPT_TABLEEND};
    tool_exit code = tool_parse(argc, argv, options, "", 0, 0, &context, &arguments);
    if (code == TOOL_OK) {
        code = run(&all);
        fwa_context_destroy(all.context);
        fwa_context_destroy(all.reference);
        poptFreeContext(context);
    }
    free(all.want.filter);
    tool_engine_free(&all.want.engine);
    return code;
}
