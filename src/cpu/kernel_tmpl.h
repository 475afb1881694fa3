/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one ISA. The including file, kernel_<isa>.c, is compiled with that ISA's flags and
 * defines FWA_ISA (its name), FWA_AVAILABLE (can this machine run it?), FWA_LANES (floats to a
 * vector: 4, 8, 16), GROUP, PANEL_VECTORS and DECODE_VECTORS (panel_tmpl.h, decode_tmpl.h), and
 * FWA_KERNEL(name). */

#include "kernels.h"
#include "../common/eigen.h"

#include "vector_tmpl.h"
#include "eigen_tmpl.h"
#include "chunk_tmpl.h"
#include "forward_tmpl.h"
#include "fused_tmpl.h"
#include "backward_tmpl.h"
#include "adjoint_tmpl.h"

const fwa_cpu_kernels FWA_KERNEL(fwa_cpu_kernels) = {
    .isa = FWA_ISA,
    .chunk = 16,
    .block = 64,
    .group = GROUP,
    .lanes = FWA_LANES,
    .panel = PANEL,
    .available = FWA_AVAILABLE,
    .forward = FWA_KERNEL(forward),
    .fused = FWA_KERNEL(fused),
    .adjoint = FWA_KERNEL(adjoint),
    .backward = FWA_KERNEL(backward),
    .top_eigenvalues = FWA_KERNEL(top_eigenvalues),
    .top_eigenvectors = FWA_KERNEL(top_eigenvectors),
};
