/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TEST_BENCH_SUPPORT_H
#define FWA_TEST_BENCH_SUPPORT_H

/* What the tests of the benchmarks share. */

#include "../src/bench/problems.h"

#include <criterion/criterion.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Failures end the test. */
bench_problem parse(const char *line);
fwa_context *context_of(const char *backend, int threads);
/* `path` is a template of mkstemp(). */
void write_file(char *path, const void *bytes, size_t size);

/* ---- Faults ------------------------------------------------------------------------------------
 * The library's two calls, with a fault of our own put into what the CPU backend answers: the
 * linker sends the callers of fwa_NAME to __wrap_fwa_NAME (--wrap). */

typedef struct fault {
    const char *tensor; /* NULL: none */
    int64_t token;      /* of the row that is hit, or the first element of a carry's part */
    int64_t tokens;     /* only calls of so many tokens */
    int calls;          /* right ones before */
} fault;

extern fault planted;
/* The CPU backend's backward calls so far; those of them that were given the forward's states. */
extern int64_t backwards, backwards_saved;

#endif
