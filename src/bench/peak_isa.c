/* SPDX-License-Identifier: Apache-2.0 */
#include "peak_isa.h"

int bench_has_generic(void)
{
    return 1;
}

#ifdef FWA_CPU_X86
int bench_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

int bench_has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           bench_has_avx2();
}

int bench_has_avx512bf16(void)
{
    return bench_has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif
