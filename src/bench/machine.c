/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)

void bench_machine_cpu(char *name, int size)
{
    char line[256];
    struct utsname system;
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, (size_t)size, "%s", uname(&system) == 0 ? system.machine : "unknown");
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || at == NULL)
            continue;
        at += 1 + strspn(at + 1, " ");
        snprintf(name, (size_t)size, "%.*s", (int)strcspn(at, "\n"), at);
        break;
    }
    if (file)
        fclose(file);
}

/* "32768K" in the file of one cache of the first processor; 0 where there is no such cache. */
static int64_t cache_size(int index)
{
    char path[80];
    long long size = 0;
    char unit = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%lld%c", &size, &unit) < 1)
        size = 0;
    fclose(file);
    return size * (unit == 'K' ? 1024 : unit == 'M' ? MIB : 1);
}

int64_t bench_machine_cache(void)
{
    /* Not sysconf(): in a virtual machine it may count the caches of the whole host. */
    for (int index = 4; index >= 0; index--) {
        const int64_t size = cache_size(index);
        if (size > 0)
            return size;
    }
    return 32 * MIB;
}

int64_t bench_machine_free(void)
{
    const int64_t pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? pages * page : INT64_MAX;
}

int64_t bench_machine_beyond_cache(void)
{
    const int64_t wanted = 4 * bench_machine_cache(), most = bench_machine_free() / 8;
    const int64_t size = wanted < most ? wanted : most;
    return size < 64 * MIB ? 64 * MIB : size;
}

static double read_clock(clockid_t clock)
{
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double bench_machine_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double bench_machine_processor(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
