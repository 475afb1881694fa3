/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    const char *title; /* argv[0] of the command, for its usage text */
    int (*function)(int argc, const char **argv);
    const char *words;
} commands[] = {
    {"info", "fwa info", tool_info, "version, backends, devices, presets"},
    {"run", "fwa run", tool_run, "outputs, and gradients, of a problem file"},
    {"verify", "fwa verify", tool_verify, "run problem files and compare with their answers"},
    {"check", "fwa check", tool_check, "hold this machine's backends to the reference"},
    {"bench", "fwa bench", tool_bench, "verify, then time"},
    {"mask", "fwa mask", tool_mask, "the effective attention matrix as a picture"},
};

#define COMMANDS (sizeof commands / sizeof *commands)

static void print_help(FILE *stream)
{
    fputs("Usage: fwa COMMAND [OPTION...]\n\n"
          "Fast-weight attention: runs, verifies and times the rules of libfwa.\n\n"
          "Commands:\n",
          stream);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(stream, "  %-8s%s\n", commands[i].name, commands[i].words);
    fputs("\n"
          "  fwa COMMAND --help   the options of a command\n"
          "  fwa --version        the version of the library\n"
          "  fwa --help           this text\n\n"
          "Exit status: 0 good, 1 an answer is beyond its bound, 2 usage, 3 a bad file, 4 the\n"
          "library refused or failed, 5 an output cannot be written. See fwa(1).\n",
          stream);
}

static int dispatch(int argc, const char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("fwa %s\n", fwa_version_string());
        return TOOL_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            argv[1] = commands[i].title;
            return commands[i].function(argc - 1, argv + 1);
        }
    }
    tool_error("'%s' is no command (try fwa --help)", argv[1]);
    return TOOL_USAGE;
}

int main(int argc, char **argv)
{
    /* A copy, since popt wants pointers to const, and the commands' titles replace a name. */
    const char **arguments = calloc((size_t)argc + 2, sizeof *arguments);
    if (arguments == NULL) {
        tool_error("out of memory");
        return TOOL_LIBRARY;
    }
    for (int i = 0; i < argc; i++)
        arguments[i] = argv[i];
    int code = dispatch(argc, arguments);
    free(arguments);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        tool_error("cannot write the standard output: %s", strerror(errno));
        code = TOOL_OUTPUT;
    }
    return code;
}
