/* SPDX-License-Identifier: Apache-2.0 */
/* The handed vectors: answers that were made independently, forward and every gradient. */

#include "support.h"

#include "../src/files/problem_verify.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES   184
#define WORKERS 4

static const char *vectors(void)
{
    const char *folder = getenv("FWA_VECTORS");
    return folder ? folder : "tests/vectors";
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The sorted names. */
static void vector_names(char *names[FILES])
{
    DIR *folder = opendir(vectors());
    const struct dirent *entry;
    int count = 0;
    cr_assert_not_null(folder, "%s cannot be read", vectors());
    while ((entry = readdir(folder)) != NULL) {
        const char *end = strstr(entry->d_name, ".safetensors");
        if (end == NULL || end[strlen(".safetensors")] != '\0')
            continue;
        cr_assert_lt(count, FILES, "%s has more than %d vectors", vectors(), FILES);
        names[count++] = strdup(entry->d_name);
    }
    closedir(folder);
    cr_assert_eq(count, FILES, "%s has %d vectors, not %d", vectors(), count, FILES);
    qsort(names, FILES, sizeof *names, by_name);
}

static void verify_file(const char *name)
{
    char path[4096];
    safetensors_message message = {""};
    problem_verify *verify;
    fwa_status begun;
    snprintf(path, sizeof path, "%s/%s", vectors(), name);
    safetensors *file = safetensors_read(path, &message);
    cr_assert_not_null(file, "%s: %s", name, message.text);
    cr_assert_eq(problem_verify_begin(file, context_of("reference", 1), &verify, &begun, &message),
                 PROBLEM_RUN_OK, "%s: %s", name, message.text);
    /* Without eps a zero key has no gradient: the files of that kind hold none; all others do. */
    cr_expect_neq(problem_verify_backward(verify), strstr(name, "zero_keys_no_eps") != NULL,
                  "%s: has gradients: %d", name, problem_verify_backward(verify));
    for (int i = 0; i < 2 * ENGINES; i++) {
        const engine *e = &engines[i / 2];
        problem_verdict verdict;
        fwa_status status;
        const problem_run_options options = {.context = context_of(e->backend, 1),
                                             .form = e->form,
                                             .dtype = e->dtype,
                                             .saved = i % 2};
        const problem_run_result result = problem_verify_run(verify, &options, &verdict, &status,
                                                             &message);
        cr_expect_eq(result, PROBLEM_RUN_OK, "%s, %s: %s", name, engine_name(e), message.text);
        if (result == PROBLEM_RUN_OK)
            cr_expect(verdict.passed,
                      "%s, %s: %s (%s) is off by %.3g (bound %.3g), at most by %.3g", name,
                      engine_name(e), verdict.tensor, verdict.against, verdict.error.rms,
                      verdict.bound.rms, verdict.error.maximum);
    }
    problem_verify_end(verify);
    safetensors_free(file);
}

/* Every fourth file: the tests share the machine. */
static void verify_from(int first)
{
    char *names[FILES];
    vector_names(names);
    for (int i = first; i < FILES; i += WORKERS)
        verify_file(names[i]);
    for (int i = 0; i < FILES; i++)
        free(names[i]);
}

Test(vectors, part_0)
{
    verify_from(0);
}

Test(vectors, part_1)
{
    verify_from(1);
}

Test(vectors, part_2)
{
    verify_from(2);
}

Test(vectors, part_3)
{
    verify_from(3);
}
