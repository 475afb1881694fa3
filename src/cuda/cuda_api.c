/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the CUDA driver, and the devices that the module has kernels for. */

#include "cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The oldest driver that takes images of the toolkit that compiled them: that of its major version. */
#define DRIVER_NEEDED (CUDA_VERSION / 1000 * 1000)

static fwa_cuda_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t loaded_by;

/* Leaves the driver without a device, and says why. */
static void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(driver.message, sizeof driver.message, format, arguments);
    va_end(arguments);
    driver.device_count = 0;
}

static void refuse_call(const char *call, CUresult result)
{
    const char *name = NULL, *words = NULL;
    driver.api.cuGetErrorName(result, &name);
    driver.api.cuGetErrorString(result, &words);
    refuse("%s: %s (%s)", call, name ? name : "an unknown error", words ? words : "no description");
}

/* The two steps expand the macros of cuda.h in the name. */
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

/* Returns the first function that is missing, or NULL. */
static const char *load_functions(void *library)
{
    const char *missing = NULL;
    void *symbol;
#define LOAD(function)                                                                             \
    symbol = dlsym(library, TEXT(function));                                                       \
    memcpy(&driver.api.function, &symbol, sizeof symbol);                                          \
    if (!symbol && !missing)                                                                       \
        missing = TEXT(function);
    FWA_CUDA_FUNCTIONS(LOAD)
#undef LOAD
    return missing;
}

/* ---- Images ---- */

/* One of the images' names: sm_80 runs on 8.0 and later minor versions, sm_90a on 9.0 alone, sm_100f
 * as sm_100 does; compute_90 can be translated for 9.0 and all that follow. */
static bool image_fits(const char *image, int32_t major, int32_t minor)
{
    const bool portable = strncmp(image, "compute_", 8) == 0;
    int32_t number = 0, length = 0;
    char feature = ' ';
    if (sscanf(image, portable ? "compute_%d%n" : "sm_%d%n", &number, &length) != 1)
        return false;
    feature = image[length];
    if (feature == 'a')
        return number == 10 * major + minor;
    if (portable && feature != 'f')
        return number <= 10 * major + minor;
    return number / 10 == major && number % 10 <= minor;
}

/* Is there an image for a device of that compute capability? */
static bool has_image(int32_t major, int32_t minor)
{
    const char *at = FWA_CUDA_IMAGES;
    while (*at) {
        if (image_fits(at, major, minor))
            return true;
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return false;
}

/* ---- Devices ---- */

/* Adds the device where there is an image for it. */
static CUresult add_device(int32_t ordinal)
{
    CUdevice device;
    int major = 0, minor = 0;
    char name[256] = "";
    CUresult result = driver.api.cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = driver.api.cuDeviceGetAttribute(
            &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = driver.api.cuDeviceGetAttribute(
            &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result != CUDA_SUCCESS)
        return result;
    if (has_image(major, minor)) {
        driver.device[driver.device_count++] = device;
    } else if (!driver.message[0]) {
        driver.api.cuDeviceGetName(name, sizeof name - 1, device);
        snprintf(driver.message, sizeof driver.message,
                 "device %d (%s, sm_%d%d) has no kernel image in this module (%s)", (int)ordinal,
                 name, major, minor, FWA_CUDA_IMAGES);
    }
    return CUDA_SUCCESS;
}

static void find_devices(void)
{
    int count = 0;
    int32_t i;
    CUresult result = driver.api.cuInit(0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE) {
        refuse_call("cuInit", result);
        return;
    }
    if (result == CUDA_SUCCESS)
        result = driver.api.cuDeviceGetCount(&count);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && count == 0)) {
        refuse("no device");
        return;
    }
    for (i = 0; i < count && i < FWA_CUDA_DEVICE_LIMIT && result == CUDA_SUCCESS; i++)
        result = add_device(i);
    if (result != CUDA_SUCCESS)
        refuse_call("the devices cannot be listed", result);
}

static void load(void)
{
    int version = DRIVER_NEEDED;
    const char *missing;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    loaded_by = getpid();
    if (!library) {
        const char *words = dlerror();
        refuse("%s", words ? words : "libcuda.so.1 cannot be loaded");
        return;
    }
    /* An old driver may lack functions: its age comes first. It can be asked before cuInit. */
    missing = load_functions(library);
    if (driver.api.cuDriverGetVersion)
        driver.api.cuDriverGetVersion(&version);
    if (version < DRIVER_NEEDED)
        refuse("driver %d.%d is older than %d.%d that these kernels need", version / 1000,
               version % 1000 / 10, DRIVER_NEEDED / 1000, DRIVER_NEEDED % 1000 / 10);
    else if (missing)
        refuse("libcuda.so.1 has no %s", missing);
    else
        find_devices();
}

const fwa_cuda_driver *fwa_cuda_load(void)
{
    pthread_once(&once, load);
    return &driver;
}

bool fwa_cuda_usable(void)
{
    return getpid() == loaded_by;
}
