/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_ISA          "generic"
#define FWA_AVAILABLE    fwa_cpu_has_baseline
#define FWA_LANES        4
#define GROUP            2
#define PANEL_VECTORS    2
#define DECODE_VECTORS   4
#define FWA_KERNEL(name) name##_generic
#include "kernel_tmpl.h"
