/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)

/* ---- The processor ---- */

/* The value of a line "key : value" of /proc/cpuinfo; NULL: the line has another key. */
static const char *value_of(char *line, const char *key)
{
    const size_t length = strlen(key);
    char *at = strchr(line, ':');
    if (at == NULL || strncmp(line, key, length) != 0 || strspn(line + length, " \t:") == 0 ||
        line + length + strspn(line + length, " \t") != at)
        return NULL;
    at += 1 + strspn(at + 1, " ");
    at[strcspn(at, "\n")] = '\0';
    return at;
}

bench_cpu bench_machine_cpu(void)
{
    bench_cpu cpu = {"", -1, -1};
    char line[1024];
    struct utsname system;
    const char *value;
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(cpu.name, sizeof cpu.name, "%.100s", uname(&system) == 0 ? system.machine : "unknown");
    /* The first processor's lines end with an empty one. */
    while (file && fgets(line, sizeof line, file) && line[0] != '\n') {
        if ((value = value_of(line, "model name")) != NULL)
            snprintf(cpu.name, sizeof cpu.name, "%.127s", value);
        else if ((value = value_of(line, "cpu family")) != NULL)
            cpu.family = atoi(value);
        else if ((value = value_of(line, "model")) != NULL)
            cpu.model = atoi(value);
    }
    if (file)
        fclose(file);
    return cpu;
}

int bench_machine_processors(void)
{
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

/* ---- Caches ---- */

/* One file of one cache of the first processor; 0 where there is no such file. */
static int read_cache(int index, const char *file_name, char *text, int size)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, file_name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    const int read = fgets(text, size, file) != NULL;
    fclose(file);
    text[read ? strcspn(text, "\n") : 0] = '\0';
    return read;
}

/* How many processors a list such as "0-7,64-71" names. */
static int count_processors(const char *list)
{
    int count = 0;
    for (const char *at = list; *at;) {
        int first = 0, last = 0, used = 0;
        if (sscanf(at, "%d%n", &first, &used) != 1)
            break;
        at += used;
        last = first;
        if (sscanf(at, "-%d%n", &last, &used) == 1)
            at += used;
        count += last - first + 1;
        at += *at == ',';
    }
    return count > 0 ? count : 1;
}

int bench_machine_caches(bench_cache caches[BENCH_CACHES])
{
    int count = 0;
    char level[16], size[32], shared[1024];
    /* Not sysconf(): in a virtual machine it may count the caches of the whole host. */
    for (int index = 0; index < BENCH_CACHES; index++) {
        bench_cache *cache = &caches[count];
        char unit = 0;
        long long number = 0;
        if (!read_cache(index, "level", level, sizeof level) ||
            !read_cache(index, "size", size, sizeof size) ||
            !read_cache(index, "type", cache->type, sizeof cache->type) ||
            sscanf(size, "%lld%c", &number, &unit) < 1 || number <= 0)
            continue;
        cache->level = atoi(level);
        cache->size = number * (unit == 'K' ? 1024 : unit == 'M' ? MIB : 1);
        cache->shared = read_cache(index, "shared_cpu_list", shared, sizeof shared)
                            ? count_processors(shared)
                            : 1;
        count++;
    }
    return count;
}

int64_t bench_machine_cache(int level)
{
    bench_cache caches[BENCH_CACHES];
    const int count = bench_machine_caches(caches);
    for (int i = 0; i < count; i++)
        if (caches[i].level == level && strcmp(caches[i].type, "Instruction") != 0)
            return caches[i].size / caches[i].shared;
    return level == 1 ? 32 * 1024 : 512 * 1024;
}

/* Bytes of the last caches that so many processors use: one such cache for each group of them. */
static int64_t last_caches(int processors)
{
    bench_cache caches[BENCH_CACHES], last = {.size = 32 * MIB, .shared = 1 << 20};
    const int count = bench_machine_caches(caches), there = bench_machine_processors();
    for (int i = 0; i < count; i++)
        if (caches[i].level > last.level)
            last = caches[i];
    const int groups = (there + last.shared - 1) / last.shared;
    return last.size * (processors < groups ? processors : groups);
}

int64_t bench_machine_beyond_cache(int processors)
{
    const int64_t wanted = 4 * last_caches(processors), most = bench_machine_free() / 8;
    const int64_t size = wanted < most ? wanted : most;
    return size < 64 * MIB ? 64 * MIB : size;
}

/* ---- Memory and time ---- */

int64_t bench_machine_free(void)
{
    const int64_t pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? pages * page : INT64_MAX;
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
