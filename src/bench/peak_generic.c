/* SPDX-License-Identifier: Apache-2.0 */
#define BENCH_LANES      4
#define BENCH_LOOP(name) name##_generic
#include "peak_tmpl.h"
#include "peak_isa.h"

const bench_loops bench_loops_generic = {"generic",   bench_has_generic, BENCH_LOOPS_FLOPS,
                                         fma_generic, update_generic,    triad_generic};
