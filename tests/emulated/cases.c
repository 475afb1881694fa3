/* SPDX-License-Identifier: Apache-2.0 */
/* The case table as a program that needs no library but fwa, so that it can be built for, and run on,
 * a processor that is emulated. Prints TAP; exits 1 if anything failed.
 *
 *     cases GLOB LEVEL...
 *
 * GLOB: only the cases whose name matches. LEVEL: the levels of instructions that the processor has,
 * the best last. The library must find these and no others, and choose the best. FWA_CPU_ISA must not
 * be set. */

#include "../../src/conformance/cases.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed, results;

static void report(int good, const char *what, const char *more)
{
    printf("%s - %s%s%s\n", good ? "ok" : "not ok", what, *more ? ": " : "", more);
    fflush(stdout); /* an illegal instruction ends the program without warning */
    failed += !good;
    results++;
}

/* On one thread: the cases are small. NULL where the library refuses. */
static fwa_context *open_backend(const char *backend)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    options.backend = backend;
    options.threads = 1;
    return fwa_context_create(&options, &context) == FWA_OK ? context : NULL;
}

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* A level that there is not is refused, with a list of those that there are. */
static void check_levels(char **levels, int count)
{
    char want[256];
    int used = snprintf(want, sizeof want, "FWA_CPU_ISA is \"none\"; this machine and build have");
    for (int i = 0; i < count; i++)
        used += snprintf(want + used, sizeof want - (size_t)used, "%s %.20s", i ? "," : "",
                         levels[i]);
    setenv("FWA_CPU_ISA", "none", 1);
    fwa_context *context = open_backend("cpu");
    report(!context && ends_with(fwa_error_message(), want), "the levels", fwa_error_message());
    fwa_context_destroy(context);
    unsetenv("FWA_CPU_ISA");
}

static void check_case(const conformance_case *c, const char *level, fwa_context *reference,
                       fwa_context *context)
{
    static const int32_t forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED};
    char kernel[32], what[256];
    conformance_answer answer = conformance_answer_new(c, reference);
    snprintf(kernel, sizeof kernel, "cpu/%s/", level);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const conformance_result result = conformance_check(&answer, forms[i], context);
        const int right_kernel = result.verdict == CONFORMANCE_GAP ||
                                 strncmp(result.kernel, kernel, strlen(kernel)) == 0;
        snprintf(what, sizeof what, "%s: %s, %s", level, c->name, conformance_form_name(forms[i]));
        report(result.verdict != CONFORMANCE_FAILED && right_kernel, what,
               result.message[0] ? result.message : result.kernel);
    }
    conformance_answer_free(&answer);
}

static void check_cases(const char *level, const char *glob)
{
    fwa_context *reference = open_backend("reference"), *context = open_backend("cpu");
    report(reference && context && ends_with(fwa_context_device(context), level),
           "the best level is chosen", context ? fwa_context_device(context) : fwa_error_message());
    if (reference && context) {
        const int before = results;
        const int32_t count = conformance_case_count();
        conformance_case *cases = conformance_cases();
        for (int32_t i = 0; i < count; i++)
            if (fnmatch(glob, cases[i].name, 0) == 0)
                check_case(&cases[i], level, reference, context);
        free(cases);
        report(results > before, "there were cases", "");
    }
    fwa_context_destroy(context);
    fwa_context_destroy(reference);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 8 || getenv("FWA_CPU_ISA")) {
        fprintf(stderr, "usage: cases GLOB LEVEL..., without FWA_CPU_ISA\n");
        return 2;
    }
    check_levels(argv + 2, argc - 2);
    check_cases(argv[argc - 1], argv[1]);
    printf("1..%d\n", results);
    return failed > 0;
}
