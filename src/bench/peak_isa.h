/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_PEAK_ISA_H
#define FWA_BENCH_PEAK_ISA_H

/* Does this machine, and its operating system, run these? In a file without ISA flags. */
int bench_has_generic(void);
int bench_has_avx2(void);
int bench_has_avx512(void);
int bench_has_avx512bf16(void);

#endif
