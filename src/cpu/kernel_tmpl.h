/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one ISA. The including file, kernel_<isa>.c, is compiled with that ISA's flags and
 * defines FWA_LANES (floats to a vector: 4, 8, 16), GROUP, PANEL_VECTORS and
 * DECODE_VECTORS (fused_tmpl.h),
 * FWA_KERNEL(name), and then the table. */

#include "cpu.h"
#include "../common/eigen.h"

#include "vector_tmpl.h"
#include "chunk_tmpl.h"
#include "forward_tmpl.h"
#include "fused_tmpl.h"
#include "backward_tmpl.h"
#include "adjoint_tmpl.h"
