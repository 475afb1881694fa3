/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_REPORT_H
#define FWA_BENCH_REPORT_H

/* The results as JSON, for tools: doc/benchmarks.md lists the members. */

#include "measure.h"

#include <jansson.h>

/* A new object; NULL without memory. */
json_t *bench_report(const bench_setup *setup, const bench_result *results, int64_t count);

#endif
