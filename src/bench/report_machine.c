/* SPDX-License-Identifier: Apache-2.0 */
/* What a report says of the machine and of the build. */

#include "commit.h"
#include "machine.h"
#include "report.h"

#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>

bench_origin bench_origin_now(const char *command)
{
    bench_origin origin = {"", command};
    const time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts))
        strftime(origin.date, sizeof origin.date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return origin;
}

static json_t *report_caches(void)
{
    bench_cache caches[BENCH_CACHES];
    const int count = bench_machine_caches(caches);
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:I, s:i}", "level", caches[i].level, "type",
                                        caches[i].type, "bytes", (json_int_t)caches[i].size,
                                        "shared_by", caches[i].shared));
    return list;
}

json_t *bench_report_machine(void)
{
    const bench_cpu cpu = bench_machine_cpu();
    struct utsname system;
    json_t *object = json_pack("{s:s, s:i, s:o}", "cpu", cpu.name, "processors",
                               bench_machine_processors(), "caches", report_caches());
    if (cpu.family >= 0)
        json_object_set_new(object, "cpu_family", json_integer(cpu.family));
    if (cpu.model >= 0)
        json_object_set_new(object, "cpu_model", json_integer(cpu.model));
    if (uname(&system) == 0) {
        json_object_set_new(object, "architecture", json_string(system.machine));
        json_object_set_new(object, "kernel",
                            json_sprintf("%s %s", system.sysname, system.release));
    }
    return object;
}

json_t *bench_report_build(void)
{
    return json_pack("{s:s, s:s, s:s}", "commit", BENCH_COMMIT, "compiler", BENCH_COMPILER, "type",
                     BENCH_BUILDTYPE);
}

json_t *bench_report_environment(void)
{
    static const char *const names[] = {"FWA_CPU_ISA",   "OMP_NUM_THREADS", "OMP_PROC_BIND",
                                        "OMP_PLACES",    "OMP_DYNAMIC",     "OMP_WAIT_POLICY",
                                        "GOMP_SPINCOUNT"};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            json_object_set_new(object, names[i], json_string(getenv(names[i])));
    return object;
}
