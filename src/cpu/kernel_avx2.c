/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        8
#define FWA_KERNEL(name) name##_avx2
#include "kernel_tmpl.h"
#include "kernels.h"

const fwa_cpu_kernels fwa_cpu_kernels_avx2 = {"avx2",           16,           64,
                                              fwa_cpu_has_avx2, forward_avx2, backward_avx2};
