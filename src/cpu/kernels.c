/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this machine runs. */

#include "kernels.h"

#include <stdio.h>
#ifdef FWA_CPU_AARCH64
#include <sys/auxv.h>
#endif
#ifdef FWA_CPU_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

bool fwa_cpu_has_baseline(void)
{
    return true;
}

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

#ifdef FWA_CPU_AVX512BF16
/* Intel's processors take a dot product of pairs as long as four multiply-adds or more: there the
 * level would be slower than avx512, with which they would have it. */
bool fwa_cpu_has_avx512bf16(void)
{
    return fwa_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           !__builtin_cpu_is("intel");
}
#endif

#ifdef FWA_CPU_AMX
/* The operating system keeps tiles over switches of threads: bits 17 and 18 of XCR0. */
static bool keeps_tiles(void)
{
    unsigned int a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3;
}

/* Linux gives tiles, part 18 of a thread's state, to processes that ask. */
bool fwa_cpu_has_amx(void)
{
    const unsigned int tile = 1u << 24, bf16 = 1u << 22;
    const long ask = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned int a, b, c, d;
    return fwa_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile) && (d & bf16) && keeps_tiles() &&
           syscall(SYS_arch_prctl, ask, tile_data) == 0;
}
#endif

#ifdef FWA_CPU_AARCH64
bool fwa_cpu_has_neon(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
}
#endif

/* Best first. */
static const fwa_cpu_kernels *const tables[] = {
#ifdef FWA_CPU_AMX
    &fwa_cpu_kernels_amx,
#endif
#ifdef FWA_CPU_AVX512BF16
    &fwa_cpu_kernels_avx512bf16,
#endif
#ifdef FWA_CPU_X86
    &fwa_cpu_kernels_avx512,     &fwa_cpu_kernels_avx2,
#endif
#ifdef FWA_CPU_AARCH64
    &fwa_cpu_kernels_neon,
#endif
    &fwa_cpu_kernels_generic,
};

const fwa_cpu_kernels *fwa_cpu_kernels_select(const char *isa)
{
    const size_t count = sizeof tables / sizeof tables[0];
    size_t i;
    for (i = 0; i < count; i++)
        if (isa ? strcmp(tables[i]->isa, isa) == 0 : tables[i]->available())
            return tables[i]->available() ? tables[i] : NULL;
    return NULL;
}

void fwa_cpu_kernels_list(char *text, size_t size)
{
    const size_t count = sizeof tables / sizeof tables[0];
    size_t i, used = 0;
    text[0] = '\0';
    for (i = count; i-- > 0 && used < size;)
        if (tables[i]->available())
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     tables[i]->isa);
}
