/* SPDX-License-Identifier: Apache-2.0 */
#define BENCH_LANES      16
#define BENCH_LOOP(name) name##_avx512
#include "peak_tmpl.h"

const bench_loops bench_loops_avx512 = {"avx512", bench_has_avx512, BENCH_LOOPS};
