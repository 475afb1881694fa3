/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the HIP runtime, and the devices that the module has kernels for. */

#include "hip_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The oldest runtime that has all functions and takes the code objects, which are of version 5. */
#define RUNTIME_NEEDED 60000000

static fwa_hip_runtime runtime;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t loaded_by;

/* Leaves the runtime without a device, and says why. */
static void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(runtime.message, sizeof runtime.message, format, arguments);
    va_end(arguments);
    runtime.device_count = 0;
}

static void refuse_call(const char *call, int result)
{
    refuse("%s: %s (%s)", call, runtime.api.hipGetErrorName(result),
           runtime.api.hipGetErrorString(result));
}

/* Returns the first function that is missing, or NULL. */
static const char *load_functions(void *library)
{
    const char *missing = NULL;
    void *symbol;
#define LOAD(result, name, arguments)                                                              \
    symbol = dlsym(library, #name);                                                                \
    memcpy(&runtime.api.name, &symbol, sizeof symbol);                                             \
    if (!symbol && !missing)                                                                       \
        missing = #name;
    FWA_HIP_FUNCTIONS(LOAD)
#undef LOAD
    return missing;
}

/* ---- Devices ---- */

/* "gfx942:sramecc+:xnack-" is a gfx942. */
static const fwa_hip_image *find_image(const char *architecture)
{
    const size_t length = strcspn(architecture, ":");
    const fwa_hip_image *image = fwa_hip_images;
    for (; image->architecture; image++)
        if (strlen(image->architecture) == length &&
            strncmp(image->architecture, architecture, length) == 0)
            return image;
    return NULL;
}

/* "gfx90a gfx942" */
static void list_images(char *text, size_t size)
{
    const fwa_hip_image *image = fwa_hip_images;
    size_t at = 0;
    text[0] = '\0';
    for (; image->architecture && at < size; image++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", at ? " " : "", image->architecture);
}

/* Adds the device where there is an image for it. */
static int add_device(int ordinal)
{
    /* Longer than the structure is known to be: a newer runtime's may have grown. */
    static char properties[FWA_HIP_PROPERTIES + 4096];
    const char *name = properties, *architecture = properties + FWA_HIP_ARCHITECTURE_NAME;
    const int result = runtime.api.hipGetDevicePropertiesR0600(properties, ordinal);
    fwa_hip_target *target = &runtime.device[runtime.device_count];
    char images[256];
    if (result != FWA_HIP_SUCCESS)
        return result;
    target->image = find_image(architecture);
    if (target->image) {
        target->device = ordinal;
        snprintf(target->name, sizeof target->name, "%.255s", name);
        snprintf(target->architecture, sizeof target->architecture, "%.*s",
                 (int)strcspn(architecture, ":"), architecture);
        runtime.device_count++;
    } else if (!runtime.message[0]) {
        list_images(images, sizeof images);
        snprintf(runtime.message, sizeof runtime.message,
                 "device %d (%.60s, %.60s) has no kernel image in this module (%s)", ordinal, name,
                 architecture, images);
    }
    return FWA_HIP_SUCCESS;
}

static void find_devices(void)
{
    int count = 0, i;
    int result = runtime.api.hipGetDeviceCount(&count);
    if (result == FWA_HIP_NO_DEVICE || (result == FWA_HIP_SUCCESS && count == 0)) {
        refuse("no device");
        return;
    }
    for (i = 0; i < count && i < FWA_HIP_DEVICE_LIMIT && result == FWA_HIP_SUCCESS; i++)
        result = add_device(i);
    if (result != FWA_HIP_SUCCESS)
        refuse_call("the devices cannot be listed", result);
}

/* One that the program has loaded already is the one to use: a process has one runtime. */
static void *find_library(void)
{
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so"};
    static const int ways[] = {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL};
    void *library = NULL;
    size_t way, i;
    for (way = 0; way < 2; way++)
        for (i = 0; i < sizeof names / sizeof names[0] && !library; i++)
            library = dlopen(names[i], ways[way]);
    return library;
}

static void load(void)
{
    int version = RUNTIME_NEEDED;
    const char *missing;
    void *library = find_library();
    loaded_by = getpid();
    if (!library) {
        refuse("libamdhip64.so.7, .6 and .5: none is found by the loader");
        return;
    }
    /* An old runtime may lack functions: its age comes first. */
    missing = load_functions(library);
    if (runtime.api.hipRuntimeGetVersion)
        runtime.api.hipRuntimeGetVersion(&version);
    if (version < RUNTIME_NEEDED)
        refuse("HIP runtime %d.%d is older than %d.%d that these kernels need", version / 10000000,
               version / 100000 % 100, RUNTIME_NEEDED / 10000000, RUNTIME_NEEDED / 100000 % 100);
    else if (missing)
        refuse("libamdhip64 has no %s", missing);
    else
        find_devices();
}

const fwa_hip_runtime *fwa_hip_load(void)
{
    pthread_once(&once, load);
    return &runtime;
}

bool fwa_hip_usable(void)
{
    return getpid() == loaded_by;
}
