/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_table.h"
#include "tool.h"

#include "../bench/call.h"
#include "../bench/report.h"
#include "../files/atomic_file.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_SET   "default"
#define SECONDS_LIMIT 3600.0

/* The state of one `fwa bench`. */
typedef struct bench_run {
    tool_engine engine;
    char *pass, *json;
    int list;
    bench_list problems;
    bench_setup setup;
    bench_meter meter;
    bench_result *results;
    bench_origin origin;
    char command[1024];
    tool_progress progress;
    int64_t done;
    atomic_file file; /* where --json goes; stream NULL: to no file */
} bench_run;

/* ---- Sets ---- */

static void print_sets(void)
{
    for (int32_t i = 0; bench_set_get(i) != NULL; i++) {
        const bench_set *set = bench_set_get(i);
        printf("%s%s:\n", i ? "\n" : "", set->name);
        for (const char *at = set->text; *at;) {
            const int length = (int)strcspn(at, "\n");
            if (strstr(at, "SPDX-") != at + 2)
                printf("    %.*s\n", length, at);
            at += length + (at[length] == '\n');
        }
    }
}

/* One argument: a set, or else a file. */
static tool_exit add_problems(bench_run *all, const char *name)
{
    const bench_set *set = bench_set_find(name);
    bench_message message;
    const int failed = set ? bench_parse_text(set->text, name, &all->problems, &message)
                           : bench_read_file(name, &all->problems, &message);
    if (!failed)
        return TOOL_OK;
    if (set == NULL && strpbrk(name, "./") == NULL)
        tool_error("'%s' is no set (fwa bench --list shows them)", name);
    tool_error("%s", message.text);
    return TOOL_BAD_FILE;
}

/* Keeps the problems of the pass that was asked for, and puts form and type over theirs. */
static tool_exit select_problems(bench_run *all)
{
    int64_t kept = 0;
    int32_t form = FWA_FORM_AUTO, dtype = FWA_DTYPE_NONE, pass = -1;
    tool_exit code = tool_form(all->engine.form, &form);
    if (code == TOOL_OK)
        code = tool_dtype("--dtype", all->engine.dtype, &dtype);
    if (code != TOOL_OK)
        return code;
    for (int32_t i = 0; all->pass && i < BENCH_PASSES; i++)
        pass = strcmp(all->pass, bench_pass_name(i)) == 0 ? i : pass;
    if (all->pass && pass < 0 && strcmp(all->pass, "all") != 0) {
        tool_error("--pass is '%s'; it must be forward, backward, train, decode or all", all->pass);
        return TOOL_USAGE;
    }
    for (int64_t i = 0; i < all->problems.count; i++) {
        bench_problem *p = &all->problems.problems[kept];
        *p = all->problems.problems[i];
        p->problem.form = all->engine.form ? form : p->problem.form;
        p->problem.dtype = dtype == FWA_DTYPE_NONE ? p->problem.dtype : dtype;
        kept += pass < 0 || p->pass == pass;
    }
    all->problems.count = kept;
    if (kept > 0)
        return TOOL_OK;
    tool_error("no problem is left to run");
    return TOOL_USAGE;
}

/* ---- Running ---- */

static int is_table(const bench_run *all)
{
    return all->json == NULL || strcmp(all->json, "-") != 0;
}

static void show_phase(void *user, const char *what)
{
    bench_run *all = user;
    char line[96];
    snprintf(line, sizeof line, "%s: %s", all->problems.problems[all->done].name, what);
    tool_progress_show(&all->progress, all->done, line);
}

static void sample_peaks(bench_meter *meter)
{
    for (int peak = 0; peak < BENCH_PEAKS; peak++)
        for (int all = 0; all <= (meter->threads > 1); all++)
            bench_meter_sample(meter, (bench_peak)peak, all ? meter->threads : 1);
}

static tool_exit begin_meter(bench_run *all)
{
    bench_message message;
    if (!bench_on_host(all->setup.context))
        return TOOL_OK;
    if (bench_meter_begin(&all->meter, all->setup.reference,
                          (int)fwa_context_threads(all->setup.context), &message)) {
        tool_error("%s", message.text);
        return TOOL_LIBRARY;
    }
    all->setup.meter = &all->meter;
    sample_peaks(&all->meter);
    return TOOL_OK;
}

static tool_exit begin(bench_run *all)
{
    safetensors_message message;
    bench_message words;
    tool_exit code = tool_context("reference", all->engine.threads, &all->setup.reference);
    if (code == TOOL_OK)
        code = tool_context(all->engine.backend, all->engine.threads, &all->setup.context);
    if (code != TOOL_OK)
        return code;
    if (bench_list_expand(&all->problems, fwa_context_threads(all->setup.context), &words)) {
        tool_error("%s", words.text);
        return TOOL_LIBRARY;
    }
    all->results = calloc((size_t)all->problems.count, sizeof *all->results);
    if (all->results == NULL) {
        tool_error("no memory for the results of %lld problems", (long long)all->problems.count);
        return TOOL_LIBRARY;
    }
    /* Before the long part: a file that cannot be written is found out now. */
    if (all->json && is_table(all) && atomic_file_open(&all->file, all->json, &message)) {
        tool_error("%s", message.text);
        return TOOL_OUTPUT;
    }
    return begin_meter(all);
}

static tool_exit write_json(bench_run *all)
{
    safetensors_message message;
    if (all->json == NULL)
        return TOOL_OK;
    FILE *stream = is_table(all) ? all->file.stream : stdout;
    json_t *report = bench_report(&all->setup, &all->origin, all->results, all->problems.count);
    int failed = report == NULL || json_dumpf(report, stream, JSON_INDENT(2)) != 0 ||
                 fputc('\n', stream) == EOF;
    json_decref(report);
    snprintf(message.text, sizeof message.text, "the JSON cannot be written");
    if (!failed && is_table(all))
        failed = atomic_file_commit(&all->file, &message);
    if (!failed)
        return TOOL_OK;
    tool_error("%s", message.text);
    return TOOL_OUTPUT;
}

static tool_exit measure_all(bench_run *all)
{
    tool_exit code = TOOL_OK;
    all->setup.phase = show_phase;
    all->setup.user = all;
    all->progress = tool_progress_begin(all->problems.count);
    if (is_table(all)) {
        bench_table_machine(&all->setup);
        bench_table_head();
        fflush(stdout);
    }
    for (; all->done < all->problems.count; all->done++) {
        bench_result *result = &all->results[all->done];
        bench_measure(&all->setup, &all->problems.problems[all->done], result);
        tool_progress_clear(&all->progress);
        if (result->verdict == BENCH_WRONG)
            code = TOOL_MISMATCH;
        else if (result->verdict == BENCH_REFUSED && code == TOOL_OK)
            code = TOOL_LIBRARY;
        if (is_table(all)) {
            bench_table_row(all->results, all->done + 1);
            fflush(stdout);
        } else if (result->verdict != BENCH_TIMED) {
            tool_error("%s: %s", result->problem.name, result->message.text);
        }
    }
    if (all->setup.meter)
        sample_peaks(&all->meter);
    if (is_table(all))
        bench_table_drift(&all->setup, all->results, all->done);
    return code;
}

static tool_exit run(bench_run *all, const char *const *names)
{
    static const char *const standard[] = {DEFAULT_SET, NULL};
    tool_exit code = TOOL_OK;
    if (all->list) {
        print_sets();
        return TOOL_OK;
    }
    if (!(all->setup.seconds > 0 && all->setup.seconds <= SECONDS_LIMIT)) {
        tool_error("--seconds is %g; it must be above 0 and at most %g", all->setup.seconds,
                   SECONDS_LIMIT);
        return TOOL_USAGE;
    }
    names = names[0] ? names : standard;
    for (int i = 0; names[i] != NULL && code == TOOL_OK; i++)
        code = add_problems(all, names[i]);
    if (code == TOOL_OK)
        code = select_problems(all);
    if (code == TOOL_OK)
        code = begin(all);
    if (code != TOOL_OK)
        return code;
    code = measure_all(all);
    const tool_exit written = write_json(all);
    return code == TOOL_OK ? written : code;
}

/* The words of the command line with blanks between, for the report. */
static void join_words(int argc, const char **argv, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < argc && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "", argv[i]);
}

int tool_bench(int argc, const char **argv)
{
    bench_run all = {.setup = {.seconds = 1}};
    poptContext context;
    const char *const *arguments;
    const struct poptOption options[] = {
        TOOL_OPTION_BACKEND(all.engine, "backend to time (default cpu)"),
        TOOL_OPTION_FORM(all.engine, "form of all problems: auto, recurrent, masked or chunked"),
        TOOL_OPTION_DTYPE(all.engine, "type of all problems: f64, f32, bf16 or f16"),
        {"pass", 'p', POPT_ARG_STRING, &all.pass, 0,
         "only this pass: forward, backward, train, decode or all", "PASS"},
        TOOL_OPTION_THREADS(all.engine),
        {"seconds", '\0', POPT_ARG_DOUBLE, &all.setup.seconds, 0,
         "time of the calls of each problem (default 1)", "S"},
        {"json", 'j', POPT_ARG_STRING, &all.json, 0,
         "write all results as JSON; '-': to the standard output, without the table", "FILE"},
        {"list", 'l', POPT_ARG_NONE, &all.list, 0, "show the sets and their problems", NULL},
        POPT_AUTOHELP POPT_TABLEEND};
    tool_exit code = tool_parse(argc, argv, options, "[OPTION...] [SET|FILE...]", 0, -1, &context,
                                &arguments);
    join_words(argc, argv, all.command, sizeof all.command);
    all.origin = bench_origin_now(all.command);
    if (code == TOOL_OK) {
        code = run(&all, arguments);
        poptFreeContext(context);
    }
    atomic_file_discard(&all.file);
    bench_meter_end(&all.meter);
    fwa_context_destroy(all.setup.context);
    fwa_context_destroy(all.setup.reference);
    bench_list_free(&all.problems);
    free(all.results);
    free(all.pass);
    free(all.json);
    tool_engine_free(&all.engine);
    return code;
}
