/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_ISA          "avx512bf16"
#define FWA_AVAILABLE    fwa_cpu_has_avx512bf16
#define FWA_KERNEL(name) name##_avx512bf16
#include "bf16_tmpl.h"
