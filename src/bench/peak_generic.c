/* SPDX-License-Identifier: Apache-2.0 */
#define BENCH_LANES      4
#define BENCH_LOOP(name) name##_generic
#include "peak_tmpl.h"

const bench_loops bench_loops_generic = {"generic", bench_has_generic, BENCH_LOOPS};
