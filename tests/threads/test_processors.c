/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of control groups, from files as the kernel shows them, below a folder of the test's. */

#include "common.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define FILES 6

typedef struct system_files {
    const char *name;
    int32_t processors;
    const char *files[FILES][2]; /* path, text */
} system_files;

#define GROUP  "proc/self/cgroup"
#define MOUNT  "sys/fs/cgroup/"
#define QUOTA  "/cpu.cfs_quota_us"
#define PERIOD "/cpu.cfs_period_us"

/* clang-format off */
static const system_files systems[] = {
    {"nothing at all", 0, {{NULL}}},
    {"version 2, no quota", 0,
     {{GROUP, "0::/\n"}, {MOUNT "cpu.max", "max 100000\n"}}},
    {"version 2, in a container", 2,
     {{GROUP, "0::/\n"}, {MOUNT "cpu.max", "200000 100000\n"}}},
    {"version 2, a part of a processor more", 3,
     {{GROUP, "0::/\n"}, {MOUNT "cpu.max", "200001 100000\n"}}},
    {"version 2, half a processor", 1,
     {{GROUP, "0::/a\n"}, {MOUNT "a/cpu.max", "50000 100000\n"}}},
    {"version 2, an ancestor has less", 3,
     {{GROUP, "0::/a/b/c\n"}, {MOUNT "a/b/c/cpu.max", "800000 100000\n"},
      {MOUNT "a/b/cpu.max", "max 100000\n"}, {MOUNT "a/cpu.max", "300000 100000\n"}}},
    {"version 2, a neighbour does not count", 8,
     {{GROUP, "0::/a/b\n"}, {MOUNT "a/b/cpu.max", "800000 100000\n"},
      {MOUNT "c/cpu.max", "100000 100000\n"}}},
    {"version 2, a path that is not below the mount", 4,
     {{GROUP, "0::/docker/0123\n"}, {MOUNT "cpu.max", "400000 100000\n"}}},
    {"version 2, a name with a colon", 5,
     {{GROUP, "0::/a:b\n"}, {MOUNT "a:b/cpu.max", "500000 100000\n"}}},
    {"version 1, no quota", 0,
     {{GROUP, "4:memory:/\n3:cpu,cpuacct:/\n"}, {MOUNT "cpu" QUOTA, "-1\n"},
      {MOUNT "cpu" PERIOD, "100000\n"}}},
    {"version 1", 2,
     {{GROUP, "4:memory:/m\n3:cpu:/a\n"}, {MOUNT "cpu/a" QUOTA, "150000\n"},
      {MOUNT "cpu/a" PERIOD, "100000\n"}}},
    {"version 1, beside others", 6,
     {{GROUP, "3:cpuacct,cpu:/\n"}, {MOUNT "cpu" QUOTA, "300000\n"},
      {MOUNT "cpu" PERIOD, "50000\n"}}},
    {"version 1, an ancestor has less", 1,
     {{GROUP, "3:cpu,cpuacct:/a/b\n"}, {MOUNT "cpu/a" QUOTA, "1000\n"},
      {MOUNT "cpu/a" PERIOD, "1000\n"}, {MOUNT "cpu/a/b" QUOTA, "9000\n"},
      {MOUNT "cpu/a/b" PERIOD, "1000\n"}}},
    {"version 1, only groups of others", 0,
     {{GROUP, "3:cpuset:/a\n2:cpuacct:/a\n"}, {MOUNT "cpu/a" QUOTA, "1000\n"},
      {MOUNT "cpu/a" PERIOD, "1000\n"}}},
    {"both versions, quota in 1", 2,
     {{GROUP, "3:cpu:/\n0::/x\n"}, {MOUNT "cpu" QUOTA, "200000\n"},
      {MOUNT "cpu" PERIOD, "100000\n"}, {MOUNT "unified/x/cgroup.procs", "1\n"}}},
    {"both versions, less in 1", 1,
     {{GROUP, "3:cpu:/\n0::/x\n"}, {MOUNT "cpu" QUOTA, "100000\n"},
      {MOUNT "cpu" PERIOD, "100000\n"}, {MOUNT "unified/x/cpu.max", "700000 100000\n"}}},
    {"both versions, less in 2", 1,
     {{GROUP, "3:cpu:/\n0::/x\n"}, {MOUNT "cpu" QUOTA, "200000\n"},
      {MOUNT "cpu" PERIOD, "100000\n"}, {MOUNT "unified/x/cpu.max", "70000 100000\n"}}},
    {"not numbers", 0,
     {{GROUP, "0::/\n3:cpu:/\nx\n\n1:\n"}, {MOUNT "cpu.max", "much\n"}, {MOUNT "cpu" QUOTA, ""},
      {MOUNT "cpu" PERIOD, "0\n"}}},
    {"a period of zero", 0,
     {{GROUP, "0::/\n"}, {MOUNT "cpu.max", "100000 0\n"}}},
    {"more than anyone has", 0,
     {{GROUP, "0::/\n"}, {MOUNT "cpu.max", "9223372036854775807 1\n"}}},
    {"no path", 2,
     {{GROUP, "0::\n"}, {MOUNT "cpu.max", "200000 100000\n"}}},
};
/* clang-format on */

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    FILE *file;
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    file = fopen(full, "w");
    cr_assert_not_null(file, "%s", full);
    fputs(text, file);
    fclose(file);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

Test(processors, quotas)
{
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++) {
        char root[] = "/tmp/fwa-processors-XXXXXX";
        int32_t processors;
        cr_assert_not_null(mkdtemp(root));
        for (int j = 0; j < FILES && systems[i].files[j][0]; j++)
            write_file(root, systems[i].files[j][0], systems[i].files[j][1]);
        processors = fwa_quota_processors(root);
        nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        cr_assert_eq(processors, systems[i].processors, "%s: %d instead of %d", systems[i].name,
                     (int)processors, (int)systems[i].processors);
    }
}

/* Lines and roots that do not fit are no reason to fail. */
Test(processors, long_names)
{
    char *root = malloc(8192);
    memset(root, 'a', 8191);
    root[8191] = '\0';
    cr_assert_eq(fwa_quota_processors(root), 0);
    free(root);
}

Test(processors, allowed)
{
    cpu_set_t all, allowed;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    cr_assert(fwa_allowed_processors(&allowed));
    cr_assert_geq(CPU_COUNT(&allowed), CPU_COUNT(&all));
    cr_assert_geq(fwa_default_threads(), 1);
    cr_assert_leq(fwa_default_threads(), CPU_COUNT(&allowed));
    omp_set_num_threads(1);
    cr_assert_eq(fwa_default_threads(), 1);
}
