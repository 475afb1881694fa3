/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_ISA          "amx"
#define FWA_AVAILABLE    fwa_cpu_has_amx
#define FWA_KERNEL(name) name##_amx
#define BF16_TILES
#include "bf16_tmpl.h"
