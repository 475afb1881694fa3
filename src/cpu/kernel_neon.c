/* SPDX-License-Identifier: Apache-2.0 */
/* NEON is part of every aarch64, so these are the generic kernels with blocks for 32 registers.
 * Wide panels and a short group rather than the other way round: a row then takes fewer
 * instructions. */
#define FWA_ISA          "neon"
#define FWA_AVAILABLE    fwa_cpu_has_neon
#define FWA_LANES        4
#define GROUP            2
#define PANEL_VECTORS    4
#define DECODE_VECTORS   8
#define FWA_KERNEL(name) name##_neon
#include "kernel_tmpl.h"
