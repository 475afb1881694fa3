/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CPU_KERNELS_H
#define FWA_CPU_KERNELS_H

#include "cpu.h"

/* One table per ISA, each in its own file; kernels.c lists those that were compiled. */
extern const fwa_cpu_kernels fwa_cpu_kernels_generic, fwa_cpu_kernels_avx2, fwa_cpu_kernels_avx512,
    fwa_cpu_kernels_avx512bf16, fwa_cpu_kernels_amx, fwa_cpu_kernels_neon;

/* Does this machine, and its operating system, run them? In files without ISA flags. */
bool fwa_cpu_has_baseline(void);
bool fwa_cpu_has_avx2(void);
bool fwa_cpu_has_avx512(void);
bool fwa_cpu_has_avx512bf16(void);
bool fwa_cpu_has_amx(void); /* asks the kernel for the tiles, for the whole process */
bool fwa_cpu_has_neon(void);

#endif
