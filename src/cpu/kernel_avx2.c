/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        8
#define GROUP            2
#define PANEL_VECTORS    2
#define DECODE_VECTORS   4
#define FWA_KERNEL(name) name##_avx2
#include "kernel_tmpl.h"
#include "kernels.h"

const fwa_cpu_kernels fwa_cpu_kernels_avx2 = {
    .isa = "avx2",
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL_VECTORS * FWA_LANES,
    .available = fwa_cpu_has_avx2,
    .forward = forward_avx2,
    .fused = fused_avx2,
    .adjoint = adjoint_avx2,
    .backward = backward_avx2,
};
