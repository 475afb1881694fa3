/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TOOL_TOOL_H
#define FWA_TOOL_TOOL_H

/* What the commands of `fwa` share: exit codes, options, messages, tables, progress. */

#include "../files/problem_run.h"

#include <fwa/fwa.h>
#include <popt.h>
#include <stdint.h>

/* ---- Exit codes (documented in fwa(1)) ---- */

typedef enum tool_exit {
    TOOL_OK = 0,
    TOOL_MISMATCH = 1, /* it ran, and an answer is beyond its bound */
    TOOL_USAGE = 2,    /* unknown command, option or value */
    TOOL_BAD_FILE = 3, /* a file cannot be read, or is no problem file */
    TOOL_LIBRARY = 4,  /* the library refused or failed: no such backend, unsupported, memory */
    TOOL_OUTPUT = 5    /* an output cannot be written */
} tool_exit;

/* ---- The commands ---- */

/* Each gets its arguments without the program's: argv[0] is "fwa run", argv[1] the first argument,
 * argv[argc] NULL. Returns a tool_exit. */
int tool_info(int argc, const char **argv);
int tool_run(int argc, const char **argv);
int tool_verify(int argc, const char **argv);
int tool_check(int argc, const char **argv);
int tool_bench(int argc, const char **argv);
int tool_mask(int argc, const char **argv);

/* ---- Options ---- */

/* The options that choose what runs. Strings are popt's: tool_engine_free() them. */
typedef struct tool_engine {
    char *backend;
    char *form;
    char *dtype;
    char *state_dtype;
    int threads; /* 0: all */
} tool_engine;

/* Rows for a command's struct poptOption table; `engine` is a tool_engine. */
#define TOOL_OPTION_BACKEND(engine, words)                                                         \
    {                                                                                              \
        "backend", 'b', POPT_ARG_STRING, &(engine).backend, 0, words, "NAME"                       \
    }
#define TOOL_OPTION_FORM(engine, words)                                                            \
    {                                                                                              \
        "form", 'f', POPT_ARG_STRING, &(engine).form, 0, words, "FORM"                             \
    }
#define TOOL_OPTION_DTYPE(engine, words)                                                           \
    {                                                                                              \
        "dtype", 'd', POPT_ARG_STRING, &(engine).dtype, 0, words, "TYPE"                           \
    }
#define TOOL_OPTION_STATE_DTYPE(engine)                                                            \
    {                                                                                              \
        "state-dtype", 's', POPT_ARG_STRING, &(engine).state_dtype, 0,                             \
            "type in which the carried state is stored: f32, bf16 or f16 (default f32)", "TYPE"    \
    }
#define TOOL_OPTION_THREADS(engine)                                                                \
    {                                                                                              \
        "threads", 't', POPT_ARG_INT, &(engine).threads, 0, "most threads (default: all)", "N"     \
    }

void tool_engine_free(tool_engine *engine);

/* Parses the options of a command, and checks that `least` to `most` arguments are left (most < 0:
 * any number). `arguments` is their line for the usage text. On TOOL_OK *arguments_left is a
 * NULL-ended list that lives as long as *context, which the caller frees with poptFreeContext(). */
tool_exit tool_parse(int argc, const char **argv, const struct poptOption *options,
                     const char *arguments, int least, int most, poptContext *context,
                     const char *const **arguments_left);

/* Names to enums; NULL text leaves *value as it is. TOOL_USAGE after a message. */
tool_exit tool_form(const char *text, int32_t *form);
tool_exit tool_dtype(const char *option, const char *text, int32_t *dtype);

/* A context for backend `name` (NULL: cpu); TOOL_LIBRARY or TOOL_USAGE after a message. */
tool_exit tool_context(const char *name, int threads, fwa_context **context);

/* Fills *dtype, unless it is set, with the type of a plan for this file: the file's own; F64, which
 * only the reference computes as it is, becomes F32 elsewhere. TOOL_BAD_FILE with *message filled.
 */
tool_exit tool_plan_dtype(const safetensors *file, const fwa_context *context, int32_t *dtype,
                          safetensors_message *message);

/* ---- Messages ---- */

/* "fwa: ..." on the standard error, on a line of its own. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void tool_error(const char *format, ...);

/* The exit code for a run that failed: the library's words about a file's contents are a bad file.
 */
tool_exit tool_run_exit(problem_run_result result, fwa_status status);

/* ---- Tables ---- */

typedef struct tool_column {
    const char *title;
    int width; /* at least the title's; longer cells push the rest of their row */
    int right; /* 1: aligned to the right */
} tool_column;

/* One line on the standard output: the titles, or a row of cells. */
void tool_table_head(const tool_column *columns, int count);
void tool_table_row(const tool_column *columns, int count, const char *const *cells);

/* ---- Progress ---- */

/* A bar on the standard error where that is a terminal, else nothing: the rows that a command
 * prints are then its progress. */
typedef struct tool_progress {
    int terminal;
    int64_t total;
    int drawn;
} tool_progress;

tool_progress tool_progress_begin(int64_t total);
void tool_progress_show(tool_progress *progress, int64_t done, const char *what);
/* Wipes the bar, so that a line can be printed; the next show draws it again. */
void tool_progress_clear(tool_progress *progress);

#endif
