/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        16
#define GROUP            4
#define PANEL_VECTORS    2
#define DECODE_VECTORS   8
#define FWA_KERNEL(name) name##_avx512
#include "kernel_tmpl.h"
#include "kernels.h"

const fwa_cpu_kernels fwa_cpu_kernels_avx512 = {
    .isa = "avx512",
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL_VECTORS * FWA_LANES,
    .available = fwa_cpu_has_avx512,
    .forward = forward_avx512,
    .fused = fused_avx512,
    .adjoint = adjoint_avx512,
    .backward = backward_avx512,
};
