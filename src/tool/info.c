/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The levels of instructions that FWA_CPU_ISA may name, and that this machine and build have: each is
 * tried. What the environment holds is put back. */
static void print_levels(const char *backend)
{
    static const char *const levels[] = {"generic", "neon", "avx2", "avx512", "avx512bf16", "amx"};
    const char *set = getenv("FWA_CPU_ISA"), *before = "    this machine has ";
    char *kept = set ? strdup(set) : NULL;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
        fwa_context *context = NULL;
        options.backend = backend;
        options.threads = 1;
        if (setenv("FWA_CPU_ISA", levels[i], 1) != 0 ||
            fwa_context_create(&options, &context) != FWA_OK)
            continue;
        printf("%s%s", before, levels[i]);
        before = ", ";
        fwa_context_destroy(context);
    }
    printf("\n");
    if (kept)
        setenv("FWA_CPU_ISA", kept, 1);
    else
        unsetenv("FWA_CPU_ISA");
    free(kept);
}

static void print_devices(const fwa_backend_info *info)
{
    for (int32_t device = 0; device < info->device_count; device++) {
        fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
        fwa_context *context;
        options.backend = info->name;
        options.device = device;
        if (fwa_context_create(&options, &context) != FWA_OK) {
            printf("    device %d: %s\n", (int)device, fwa_error_message());
            continue;
        }
        printf("    device %d: %s; threads: %d\n", (int)device, fwa_context_device(context),
               (int)fwa_context_threads(context));
        fwa_context_destroy(context);
    }
}

static tool_exit print_backends(void)
{
    printf("\nBackends, in the order of preference:\n");
    for (int32_t i = 0; i < fwa_backend_count(); i++) {
        fwa_backend_info info = FWA_BACKEND_INFO_INIT;
        if (fwa_backend_get(i, &info) != FWA_OK) {
            tool_error("%s", fwa_error_message());
            return TOOL_LIBRARY;
        }
        if (info.available)
            printf("  %s: present, %s\n    %s\n", info.name, info.origin, info.description);
        else
            printf("  %s: absent: %s\n    looked for in %s\n", info.name, info.reason, info.origin);
        if (info.available && strcmp(info.name, "cpu") == 0)
            print_levels(info.name);
        if (info.available)
            print_devices(&info);
    }
    return TOOL_OK;
}

static void print_presets(void)
{
    const tool_column columns[] = {{"preset", 20, 0}, {"rule", 66, 0}, {"inputs", 0, 0}};
    printf("\nPresets:\n");
    tool_table_head(columns, 3);
    for (int32_t i = 0; fwa_preset_get(i) != NULL; i++) {
        const fwa_preset *preset = fwa_preset_get(i);
        const char *cells[] = {preset->name, preset->title, preset->inputs};
        tool_table_row(columns, 3, cells);
    }
}

int tool_info(int argc, const char **argv)
{
    const struct poptOption options[] = {POPT_AUTOHELP POPT_TABLEEND};
    const char *const *left;
    poptContext context;
    tool_exit code = tool_parse(argc, argv, options, "[OPTION...]", 0, 0, &context, &left);
    if (code != TOOL_OK)
        return code;
    printf("libfwa %s\n", fwa_version_string());
    code = print_backends();
    if (code == TOOL_OK)
        print_presets();
    poptFreeContext(context);
    return code;
}
