/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_ISA          "avx512"
#define FWA_AVAILABLE    fwa_cpu_has_avx512
#define FWA_LANES        16
#define GROUP            4
#define PANEL_VECTORS    2
#define DECODE_VECTORS   8
#define FWA_KERNEL(name) name##_avx512
#include "kernel_tmpl.h"
