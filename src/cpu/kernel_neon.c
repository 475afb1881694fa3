/* SPDX-License-Identifier: Apache-2.0 */
/* NEON is part of every aarch64, so these are the generic kernels with blocks for 32 registers. Wide
 * panels and a short group rather than the other way round: a row then takes fewer instructions. */
#define FWA_LANES        4
#define GROUP            2
#define PANEL_VECTORS    4
#define DECODE_VECTORS   8
#define FWA_KERNEL(name) name##_neon
#include "kernel_tmpl.h"
#include "kernels.h"

const fwa_cpu_kernels fwa_cpu_kernels_neon = {
    .isa = "neon",
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL_VECTORS * FWA_LANES,
    .available = fwa_cpu_has_neon,
    .forward = forward_neon,
    .fused = fused_neon,
    .adjoint = adjoint_neon,
    .backward = backward_neon,
};
