/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this machine runs. */

#include "kernels.h"

#ifdef FWA_CPU_X86
bool fwa_cpu_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool fwa_cpu_has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           fwa_cpu_has_avx2();
}
#endif

/* Best first. */
static const fwa_cpu_kernels *const tables[] = {
#ifdef FWA_CPU_X86
    &fwa_cpu_kernels_avx512,
    &fwa_cpu_kernels_avx2,
#endif
    &fwa_cpu_kernels_generic,
};

const fwa_cpu_kernels *fwa_cpu_kernels_select(void)
{
    size_t i = 0;
    while (!tables[i]->available())
        i++;
    return tables[i];
}
