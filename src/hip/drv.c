/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU backends' host code needs, over the HIP runtime. A device is used as programs over that
 * runtime use it, so their pointers and streams are valid here. */

#include "../gpu/drv.h"
#include "hip_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hip_device {
    const fwa_hip_api *api;
    int device;
    void *module;
} hip_device;

/* ---- Errors ---- */

static fwa_status check(const fwa_hip_api *api, int result, const char *call, fwa_message *message)
{
    if (result == FWA_HIP_SUCCESS)
        return FWA_OK;
    snprintf(message->text, sizeof message->text, "%s: %s (%s)", call, api->hipGetErrorName(result),
             api->hipGetErrorString(result));
    return result == FWA_HIP_OUT_OF_MEMORY ? FWA_ERROR_MEMORY : FWA_ERROR_DEVICE;
}

/* Calls a function of the runtime and makes a status of what it returns. */
#define CALL(d, function, message, ...)                                                            \
    check((d)->api, (d)->api->function(__VA_ARGS__), #function, message)

/* ---- The calling thread's device ---- */

static fwa_status refuse_fork(fwa_message *message)
{
    snprintf(message->text, sizeof message->text,
             "this process was forked from one that used HIP, and cannot");
    return FWA_ERROR_DEVICE;
}

/* Makes the device current; leave() brings back the one that was. */
static fwa_status enter(const hip_device *d, int *before, fwa_message *message)
{
    fwa_status status;
    if (!fwa_hip_usable())
        return refuse_fork(message);
    status = CALL(d, hipGetDevice, message, before);
    return status == FWA_OK && *before != d->device ? CALL(d, hipSetDevice, message, d->device)
                                                    : status;
}

static void leave(const hip_device *d, int before)
{
    if (before != d->device)
        d->api->hipSetDevice(before);
}

/* ---- Devices ---- */

static int32_t device_count(fwa_message *message)
{
    const fwa_hip_runtime *runtime = fwa_hip_load();
    if (runtime->device_count == 0)
        snprintf(message->text, sizeof message->text, "%s", runtime->message);
    return runtime->device_count;
}

static fwa_status get_properties(const hip_device *d, const fwa_hip_target *target,
                                 fwa_gpu_properties *properties, fwa_message *message)
{
    const struct {
        int attribute;
        int32_t *value;
    } wanted[] = {
        {FWA_HIP_PROCESSORS, &properties->processors},
        {FWA_HIP_WAVE, &properties->wave},
        {FWA_HIP_SHARED_MEMORY, &properties->shared},
    };
    size_t i;
    for (i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int value = 0;
        fwa_status status = CALL(d, hipDeviceGetAttribute, message, &value, wanted[i].attribute,
                                 d->device);
        if (status != FWA_OK)
            return status;
        *wanted[i].value = value;
    }
    /* "gfx942": its digits are hexadecimal. */
    properties->architecture = (int32_t)strtol(target->architecture + strlen("gfx"), NULL, 16);
    return FWA_OK;
}

static fwa_status load_module(hip_device *d, const fwa_hip_image *image, fwa_message *message)
{
    int before = 0;
    fwa_status status = enter(d, &before, message);
    if (status != FWA_OK)
        return status;
    status = CALL(d, hipModuleLoadData, message, &d->module, image->object);
    leave(d, before);
    return status;
}

static fwa_status open_device(int32_t index, void **device, fwa_gpu_properties *properties,
                              char *name, size_t name_size, fwa_message *message)
{
    const fwa_hip_runtime *runtime = fwa_hip_load();
    const fwa_hip_target *target;
    fwa_status status;
    hip_device *d;
    if (index < 0 || index >= runtime->device_count) {
        snprintf(message->text, sizeof message->text, "device %d is not one of %d", (int)index,
                 (int)runtime->device_count);
        return FWA_ERROR_VALUE;
    }
    if (!fwa_hip_usable())
        return refuse_fork(message);
    d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(message->text, sizeof message->text, "no memory for a device");
        return FWA_ERROR_MEMORY;
    }
    target = &runtime->device[index];
    d->api = &runtime->api;
    d->device = target->device;
    status = get_properties(d, target, properties, message);
    if (status == FWA_OK)
        status = load_module(d, target->image, message);
    if (status != FWA_OK) {
        free(d);
        return status;
    }
    snprintf(name, name_size, "%s, %s", target->name, target->architecture);
    *device = d;
    return FWA_OK;
}

static void close_device(void *device)
{
    hip_device *d = device;
    fwa_message message;
    int before = 0;
    /* Kernels must not go while they run. */
    if (enter(d, &before, &message) == FWA_OK) {
        d->api->hipDeviceSynchronize();
        d->api->hipModuleUnload(d->module);
        leave(d, before);
    }
    free(d);
}

/* ---- Memory ---- */

static fwa_status allocate(void *device, size_t size, void **memory, fwa_message *message)
{
    const hip_device *d = device;
    void *allocated = NULL;
    int before = 0;
    fwa_status status = enter(d, &before, message);
    if (status != FWA_OK)
        return status;
    status = CALL(d, hipMalloc, message, &allocated, size ? size : 1);
    leave(d, before);
    if (status == FWA_OK)
        *memory = allocated;
    return status;
}

static void release(void *device, void *memory)
{
    const hip_device *d = device;
    fwa_message message;
    int before = 0;
    if (!memory || enter(d, &before, &message) != FWA_OK)
        return;
    d->api->hipFree(memory);
    leave(d, before);
}

/* Copies wait for all work of the device before, on whatever stream, and for themselves. */
static fwa_status copy(const hip_device *d, void *to, const void *from, size_t size, int direction,
                       fwa_message *message)
{
    int before = 0;
    fwa_status status = size ? enter(d, &before, message) : FWA_OK;
    if (status != FWA_OK || !size)
        return status;
    status = CALL(d, hipDeviceSynchronize, message);
    if (status == FWA_OK)
        status = CALL(d, hipMemcpy, message, to, from, size, direction);
    if (status == FWA_OK)
        status = CALL(d, hipDeviceSynchronize, message);
    leave(d, before);
    return status;
}

static fwa_status write_memory(void *device, void *to, const void *host, size_t size,
                               fwa_message *message)
{
    return copy(device, to, host, size, FWA_HIP_TO_DEVICE, message);
}

static fwa_status read_memory(void *device, void *host, const void *from, size_t size,
                              fwa_message *message)
{
    return copy(device, host, from, size, FWA_HIP_TO_HOST, message);
}

/* ---- Kernels ---- */

/* Shared memory needs no permission: what a block may have is less than a launch may ask for. */
static fwa_status find_kernel(void *device, const char *name, int32_t shared, void **kernel,
                              fwa_message *message)
{
    const hip_device *d = device;
    void *function = NULL;
    fwa_message cause = {""};
    int before = 0;
    fwa_status status = enter(d, &before, message);
    (void)shared;
    if (status != FWA_OK)
        return status;
    status = CALL(d, hipModuleGetFunction, &cause, &function, d->module, name);
    leave(d, before);
    if (status == FWA_OK)
        *kernel = function;
    else
        snprintf(message->text, sizeof message->text, "kernel %.60s: %.400s", name, cause.text);
    return status;
}

/* A grid has less than 2^32 threads, and kernels take a stride through their units. */
static fwa_status launch(void *device, void *kernel, int64_t blocks, int32_t threads,
                         int32_t shared, void *stream, const void *args, size_t args_size,
                         fwa_message *message)
{
    const hip_device *d = device;
    const int64_t most = UINT32_MAX / threads;
    /* The runtime copies what it reads; its interface has no const. */
    void *extra[] = {FWA_HIP_BUFFER_POINTER, (void *)(uintptr_t)args, FWA_HIP_BUFFER_SIZE,
                     &args_size, FWA_HIP_BUFFER_END};
    int before = 0;
    fwa_status status;
    if (blocks < 0) {
        snprintf(message->text, sizeof message->text, "the call has %lld blocks of work",
                 (long long)blocks);
        return FWA_ERROR_SHAPE;
    }
    status = blocks ? enter(d, &before, message) : FWA_OK;
    if (status != FWA_OK || !blocks)
        return status;
    status = CALL(d, hipModuleLaunchKernel, message, kernel,
                  (unsigned)(blocks < most ? blocks : most), 1, 1, (unsigned)threads, 1, 1,
                  (unsigned)shared, stream, NULL, extra);
    leave(d, before);
    return status;
}

const fwa_gpu_driver fwa_gpu_driver_table = {
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .write = write_memory,
    .read = read_memory,
    .kernel = find_kernel,
    .launch = launch,
};
