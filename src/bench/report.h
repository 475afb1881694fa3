/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_REPORT_H
#define FWA_BENCH_REPORT_H

/* The results as JSON, for tools: doc/benchmarks.md lists the members. */

#include "measure.h"

#include <jansson.h>

/* When a run began, and by what command. */
typedef struct bench_origin {
    char date[32];       /* "2026-01-31T23:59:59Z" */
    const char *command; /* NULL: by none */
} bench_origin;
bench_origin bench_origin_now(const char *command);

/* A new object; NULL without memory. */
json_t *bench_report(const bench_setup *setup, const bench_origin *origin,
                     const bench_result *results, int64_t count);

/* Members of it: what it ran on; what was built, from what, with what. */
json_t *bench_report_machine(void);
json_t *bench_report_build(void);
/* The environment variables that are set and change how the threads run, or which kernels. */
json_t *bench_report_environment(void);

#endif
