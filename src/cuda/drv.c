/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU backends' host code needs, over the CUDA driver. A device is used through its primary
 * context, which programs over the CUDA runtime use too, so their pointers and streams are valid
 * here. */

#include "../gpu/drv.h"
#include "cuda_api.h"
#include "image.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct cuda_device {
    const fwa_cuda_api *api;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    pthread_mutex_t lock; /* of the functions' attributes */
} cuda_device;

/* ---- Errors ---- */

static fwa_status check(const fwa_cuda_api *api, CUresult result, const char *call,
                        fwa_message *message)
{
    const char *name = NULL, *words = NULL;
    if (result == CUDA_SUCCESS)
        return FWA_OK;
    api->cuGetErrorName(result, &name);
    api->cuGetErrorString(result, &words);
    if (name)
        snprintf(message->text, sizeof message->text, "%s: %s (%s)", call, name,
                 words ? words : "no description");
    else
        snprintf(message->text, sizeof message->text, "%s: unknown error %d", call, (int)result);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? FWA_ERROR_MEMORY : FWA_ERROR_DEVICE;
}

/* Calls a function of the driver and makes a status of what it returns. */
#define CALL(d, function, message, ...)                                                            \
    check((d)->api, (d)->api->function(__VA_ARGS__), #function, message)

/* ---- The calling thread's context ---- */

static fwa_status refuse_fork(fwa_message *message)
{
    snprintf(message->text, sizeof message->text,
             "this process was forked from one that used CUDA, and cannot");
    return FWA_ERROR_DEVICE;
}

/* Makes the device's context current; leave() brings back the one that was. */
static fwa_status enter(const cuda_device *d, fwa_message *message)
{
    if (!fwa_cuda_usable())
        return refuse_fork(message);
    return CALL(d, cuCtxPushCurrent, message, d->context);
}

static void leave(const cuda_device *d)
{
    CUcontext own;
    d->api->cuCtxPopCurrent(&own);
}

/* ---- Devices ---- */

static int32_t device_count(fwa_message *message)
{
    const fwa_cuda_driver *driver = fwa_cuda_load();
    if (driver->device_count == 0)
        snprintf(message->text, sizeof message->text, "%s", driver->message);
    return driver->device_count;
}

static fwa_status get_properties(const cuda_device *d, fwa_gpu_properties *properties,
                                 fwa_message *message)
{
    int32_t major = 0, minor = 0;
    const struct {
        CUdevice_attribute attribute;
        int32_t *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &properties->processors},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, &properties->wave},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &properties->shared},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
    };
    size_t i;
    for (i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int value = 0;
        fwa_status status = CALL(d, cuDeviceGetAttribute, message, &value, wanted[i].attribute,
                                 d->device);
        if (status != FWA_OK)
            return status;
        *wanted[i].value = value;
    }
    properties->architecture = 10 * major + minor;
    return FWA_OK;
}

/* Loads the kernels into the device's context, which it retains. */
static fwa_status load_module(cuda_device *d, fwa_message *message)
{
    fwa_status status = CALL(d, cuDevicePrimaryCtxRetain, message, &d->context, d->device);
    if (status != FWA_OK)
        return status;
    status = enter(d, message);
    if (status == FWA_OK) {
        status = CALL(d, cuModuleLoadData, message, &d->module, fwa_cuda_image);
        leave(d);
    }
    if (status != FWA_OK)
        d->api->cuDevicePrimaryCtxRelease(d->device);
    return status;
}

static fwa_status open_device(int32_t index, void **device, fwa_gpu_properties *properties,
                              char *name, size_t name_size, fwa_message *message)
{
    const fwa_cuda_driver *driver = fwa_cuda_load();
    char model[200] = "";
    fwa_status status;
    cuda_device *d;
    if (index < 0 || index >= driver->device_count) {
        snprintf(message->text, sizeof message->text, "device %d is not one of %d", (int)index,
                 (int)driver->device_count);
        return FWA_ERROR_VALUE;
    }
    if (!fwa_cuda_usable())
        return refuse_fork(message);
    d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(message->text, sizeof message->text, "no memory for a device");
        return FWA_ERROR_MEMORY;
    }
    d->api = &driver->api;
    d->device = driver->device[index];
    status = get_properties(d, properties, message);
    if (status == FWA_OK)
        status = CALL(d, cuDeviceGetName, message, model, sizeof model - 1, d->device);
    if (status == FWA_OK)
        status = load_module(d, message);
    if (status != FWA_OK) {
        free(d);
        return status;
    }
    pthread_mutex_init(&d->lock, NULL);
    snprintf(name, name_size, "%s, sm_%d", model, (int)properties->architecture);
    *device = d;
    return FWA_OK;
}

static void close_device(void *device)
{
    cuda_device *d = device;
    fwa_message message;
    /* Where the context cannot be entered, what it holds is lost. The kernels must not go while they
     * run. */
    if (enter(d, &message) == FWA_OK) {
        d->api->cuCtxSynchronize();
        d->api->cuModuleUnload(d->module);
        leave(d);
    }
    if (fwa_cuda_usable())
        d->api->cuDevicePrimaryCtxRelease(d->device);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* ---- Memory ---- */

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static fwa_status allocate(void *device, size_t size, void **memory, fwa_message *message)
{
    const cuda_device *d = device;
    CUdeviceptr allocated = 0;
    fwa_status status = enter(d, message);
    if (status != FWA_OK)
        return status;
    status = CALL(d, cuMemAlloc, message, &allocated, size ? size : 1);
    leave(d);
    if (status == FWA_OK)
        *memory = (void *)(uintptr_t)allocated;
    return status;
}

static void release(void *device, void *memory)
{
    const cuda_device *d = device;
    fwa_message message;
    if (!memory || enter(d, &message) != FWA_OK)
        return;
    d->api->cuMemFree(address(memory));
    leave(d);
}

/* Copies wait for all work of the device before, on whatever stream, and for themselves: a copy from
 * pageable memory returns before its last part has arrived. */

static fwa_status write_memory(void *device, void *to, const void *host, size_t size,
                               fwa_message *message)
{
    const cuda_device *d = device;
    fwa_status status = size ? enter(d, message) : FWA_OK;
    if (status != FWA_OK || !size)
        return status;
    status = CALL(d, cuCtxSynchronize, message);
    if (status == FWA_OK)
        status = CALL(d, cuMemcpyHtoD, message, address(to), host, size);
    if (status == FWA_OK)
        status = CALL(d, cuCtxSynchronize, message);
    leave(d);
    return status;
}

static fwa_status read_memory(void *device, void *host, const void *from, size_t size,
                              fwa_message *message)
{
    const cuda_device *d = device;
    fwa_status status = size ? enter(d, message) : FWA_OK;
    if (status != FWA_OK || !size)
        return status;
    status = CALL(d, cuCtxSynchronize, message);
    if (status == FWA_OK)
        status = CALL(d, cuMemcpyDtoH, message, host, address(from), size);
    leave(d);
    return status;
}

/* ---- Kernels ---- */

/* The limit is the function's, and plans share functions: it is raised, never lowered. */
static fwa_status allow_shared(cuda_device *d, CUfunction function, int32_t shared,
                               fwa_message *message)
{
    const CUfunction_attribute attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    fwa_status status;
    int most = 0;
    pthread_mutex_lock(&d->lock);
    status = CALL(d, cuFuncGetAttribute, message, &most, attribute, function);
    if (status == FWA_OK && most < shared)
        status = CALL(d, cuFuncSetAttribute, message, function, attribute, shared);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static fwa_status find_kernel(void *device, const char *name, int32_t shared, void **kernel,
                              fwa_message *message)
{
    cuda_device *d = device;
    CUfunction function = NULL;
    fwa_message cause = {""};
    fwa_status status = enter(d, message);
    if (status != FWA_OK)
        return status;
    status = CALL(d, cuModuleGetFunction, &cause, &function, d->module, name);
    if (status == FWA_OK)
        status = allow_shared(d, function, shared, &cause);
    leave(d);
    if (status == FWA_OK)
        *kernel = function;
    else
        snprintf(message->text, sizeof message->text, "kernel %.60s: %.400s", name, cause.text);
    return status;
}

static fwa_status launch(void *device, void *kernel, int64_t blocks, int32_t threads,
                         int32_t shared, void *stream, const void *args, size_t args_size,
                         fwa_message *message)
{
    const cuda_device *d = device;
    /* The driver copies what it reads; its interface has no const. */
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)args,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &args_size, CU_LAUNCH_PARAM_END};
    fwa_status status;
    if (blocks < 0 || blocks > INT32_MAX) {
        snprintf(message->text, sizeof message->text,
                 "the call has %lld blocks of work; a launch takes up to %d", (long long)blocks,
                 (int)INT32_MAX);
        return FWA_ERROR_SHAPE;
    }
    status = blocks ? enter(d, message) : FWA_OK;
    if (status != FWA_OK || !blocks)
        return status;
    status = CALL(d, cuLaunchKernel, message, kernel, (unsigned)blocks, 1, 1, (unsigned)threads, 1,
                  1, (unsigned)shared, stream, NULL, extra);
    leave(d);
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
