/* SPDX-License-Identifier: Apache-2.0 */
#define FWA_LANES        4
#define FWA_KERNEL(name) name##_generic
#include "kernel_tmpl.h"
#include "kernels.h"

static bool always(void)
{
    return true;
}

const fwa_cpu_kernels fwa_cpu_kernels_generic = {"generic",       16, 64, always, forward_generic,
                                                 backward_generic};
