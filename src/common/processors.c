/* SPDX-License-Identifier: Apache-2.0 */
/* How many processors this process may use, by its affinity, its control groups' quotas and what
 * OpenMP was told. */

#include "common.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Quotas of control groups ---- */

/* What is known of a quota: so many microseconds of processors in each period. */
typedef struct {
    long long quota, period;
} bandwidth;

/* The numbers at the start of a file, at most two; the count that there are. */
static int read_numbers(const char *root, const char *hierarchy, const char *group,
                        const char *name, long long *first, long long *second)
{
    char path[2048];
    int count = 0;
    FILE *file;
    if (snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, hierarchy, group, name) >=
        (int)sizeof path)
        return 0;
    file = fopen(path, "re");
    if (!file)
        return 0;
    count = fscanf(file, "%lld %lld", first, second);
    fclose(file);
    return count;
}

static bool read_version_2(const char *root, const char *group, bandwidth *b)
{
    /* The second is where hierarchies of both versions are mounted. */
    static const char *const mounted[] = {"", "/unified"};
    int i;
    for (i = 0; i < 2; i++)
        if (read_numbers(root, mounted[i], group, "cpu.max", &b->quota, &b->period) == 2)
            return true;
    return false;
}

static bool read_version_1(const char *root, const char *group, bandwidth *b)
{
    long long unused;
    return read_numbers(root, "/cpu", group, "cpu.cfs_quota_us", &b->quota, &unused) == 1 &&
           read_numbers(root, "/cpu", group, "cpu.cfs_period_us", &b->period, &unused) == 1;
}

/* The least quota of a group and its ancestors in processors, rounded up; 0 without one. A
 * container may see only the end of its path below its mount: what is not there has no quota. */
static int32_t group_quota(const char *root, char *group,
                           bool (*read)(const char *root, const char *group, bandwidth *b))
{
    int32_t least = 0;
    for (;;) {
        bandwidth b;
        char *slash = strrchr(group, '/');
        if (read(root, group, &b) && b.quota > 0 && b.period > 0) {
            const long long processors = (b.quota - 1) / b.period + 1;
            if (processors < INT32_MAX && (!least || processors < least))
                least = (int32_t)processors;
        }
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* True where a comma-separated list has the word. */
static bool listed(const char *list, const char *word)
{
    const size_t length = strlen(word);
    while (list) {
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
            return true;
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    return false;
}

/* Lines are "number:controllers:path"; version 2 has one without controllers. */
int32_t fwa_quota_processors(const char *root)
{
    char line[2048], path[1024];
    int32_t least = 0;
    FILE *file;
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
        return 0;
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group;
        int32_t quota = 0;
        if (!controllers || !(group = strchr(++controllers, ':')))
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!*controllers)
            quota = group_quota(root, group, read_version_2);
        else if (listed(controllers, "cpu"))
            quota = group_quota(root, group, read_version_1);
        if (quota && (!least || quota < least))
            least = quota;
    }
    if (file)
        fclose(file);
    return least;
}

/* ---- Affinity ---- */

/* A runtime that binds threads to places has bound this one too, to the first of them. */
static bool places(cpu_set_t *set)
{
    int ids[CPU_SETSIZE], place, i;
    CPU_ZERO(set);
    if (omp_get_proc_bind() == omp_proc_bind_false)
        return false;
    for (place = 0; place < omp_get_num_places(); place++) {
        const int count = omp_get_place_num_procs(place);
        if (count > CPU_SETSIZE)
            return false;
        omp_get_place_proc_ids(place, ids);
        for (i = 0; i < count; i++)
            if (ids[i] >= 0)
                CPU_SET((size_t)ids[i], set);
    }
    return CPU_COUNT(set) > 0;
}

bool fwa_allowed_processors(cpu_set_t *set)
{
    return places(set) || sched_getaffinity(0, sizeof *set, set) == 0;
}

/* ---- OpenMP ---- */

/* Symbols have versions, which hold this library to its own runtime; a search by name finds the one
 * that comes first in the program. */
int (*fwa_openmp_function(const char *name, int (*own)(void)))(void)
{
    int (*function)(void) = own;
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found)
        memcpy(&function, &found, sizeof function);
    return function;
}

int32_t fwa_default_threads(void)
{
    cpu_set_t set;
    int32_t limits[] = {fwa_openmp_function("omp_get_max_threads", omp_get_max_threads)(),
                        omp_get_thread_limit(), fwa_quota_processors(""),
                        fwa_allowed_processors(&set) ? CPU_COUNT(&set) : 0};
    int32_t threads = limits[0];
    size_t i;
    for (i = 1; i < sizeof limits / sizeof *limits; i++)
        if (limits[i] > 0 && limits[i] < threads)
            threads = limits[i];
    return threads < 1 ? 1 : threads;
}
