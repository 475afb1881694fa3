/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_ISA          "avx2"
#define FWA_AVAILABLE    fwa_cpu_has_avx2
#define FWA_LANES        8
#define GROUP            2
#define PANEL_VECTORS    2
#define DECODE_VECTORS   4
#define FWA_KERNEL(name) name##_avx2
#include "kernel_tmpl.h"
