/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        16
#define FWA_KERNEL(name) name##_avx512
#include "kernel_tmpl.h"
#include "kernels.h"

const fwa_cpu_kernels fwa_cpu_kernels_avx512 = {
    "avx512", 16, 64, fwa_cpu_has_avx512, forward_avx512, backward_avx512};
