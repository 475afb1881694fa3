/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TOOL_BENCH_TABLE_H
#define FWA_TOOL_BENCH_TABLE_H

/* What `fwa bench` prints. */

#include "../bench/measure.h"

/* The library, and what of the peaks has been measured so far. */
void bench_table_machine(const bench_setup *setup);
void bench_table_head(void);
/* The row of the last of `count` results, with the name of its set where that is a new one. */
void bench_table_row(const bench_result *results, int64_t count);
/* How the multiply-adds changed, and whether that, or other programs, spoil the figures. */
void bench_table_drift(const bench_setup *setup, const bench_result *results, int64_t count);

#endif
