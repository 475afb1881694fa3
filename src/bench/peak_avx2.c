/* SPDX-License-Identifier: Apache-2.0 */
#define BENCH_LANES      8
#define BENCH_LOOP(name) name##_avx2
#include "peak_tmpl.h"

const bench_loops bench_loops_avx2 = {"avx2", bench_has_avx2, BENCH_LOOPS};
