/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        4
#define GROUP            2
#define PANEL_VECTORS    2
#define DECODE_VECTORS   4
#define FWA_KERNEL(name) name##_generic
#include "kernel_tmpl.h"
#include "kernels.h"

static bool always(void)
{
    return true;
}

const fwa_cpu_kernels fwa_cpu_kernels_generic = {
    .isa = "generic",
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL_VECTORS * FWA_LANES,
    .available = always,
    .forward = forward_generic,
    .fused = fused_generic,
    .adjoint = adjoint_generic,
    .backward = backward_generic,
};
