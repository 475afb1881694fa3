/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 16

static fake_cuda record = {.shared_limit = 49152};
static pid_t owner;
static _Thread_local uintptr_t contexts[DEPTH];
static _Thread_local int depth;

/* What the function of that name is to return. */
static CUresult result_of(const char *name)
{
    const char *fail = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(name);
    if (owner && getpid() != owner) {
        record.foreign++;
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (fail && strncmp(fail, name, length) == 0 && fail[length] == '=')
        return (CUresult)atoi(fail + length + 1);
    return CUDA_SUCCESS;
}

#define RETURN_IF_FAILED(name)                                                                     \
    do {                                                                                           \
        CUresult result_ = result_of(name);                                                        \
        if (result_ != CUDA_SUCCESS)                                                               \
            return result_;                                                                        \
    } while (0)

/* As above, and for what needs a context. */
#define RETURN_IF_OUTSIDE(name)                                                                    \
    do {                                                                                           \
        RETURN_IF_FAILED(name);                                                                    \
        if (depth == 0 || contexts[depth - 1] < 100)                                               \
            return CUDA_ERROR_INVALID_CONTEXT;                                                     \
    } while (0)

/* ---- For the tests ---- */

static fake_cuda *get_record(void)
{
    return &record;
}

static void push(uintptr_t context)
{
    contexts[depth++] = context;
}

static uintptr_t current(int *levels)
{
    *levels = depth;
    return depth ? contexts[depth - 1] : 0;
}

__attribute__((visibility("default")))
const fake_cuda_functions fake_cuda_table = {get_record, push, current};

/* ---- The driver and its devices ---- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    RETURN_IF_FAILED("cuInit");
    record.inits++;
    owner = getpid();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    const char *text = getenv("FAKE_CUDA_VERSION");
    *version = text ? atoi(text) : CUDA_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name, *words;
} errors[] = {
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
};

/* Text of an error; unknown ones have none. */
static CUresult text_of(CUresult error, int words, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == error)
            *text = words ? errors[i].words : errors[i].name;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    return text_of(error, 0, name);
}

CUresult cuGetErrorString(CUresult error, const char **words)
{
    return text_of(error, 1, words);
}

/* The compute capability of a device, and how many there are. */
static int capability(int ordinal, int *count)
{
    const char *list = getenv("FAKE_CUDA_DEVICES");
    int found = 0;
    char *end;
    *count = 0;
    for (list = list ? list : "90"; *list; list = end) {
        long value = strtol(list, &end, 10);
        if (end == list)
            break;
        if ((*count)++ == ordinal)
            found = (int)value;
    }
    return found;
}

CUresult cuDeviceGetCount(int *count)
{
    RETURN_IF_FAILED("cuDeviceGetCount");
    capability(0, count);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    RETURN_IF_FAILED("cuDeviceGet");
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    int count;
    RETURN_IF_FAILED("cuDeviceGetName");
    snprintf(name, (size_t)size, "Fake %d%c", capability(device, &count), 'A' + device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    int count, number = capability(device, &count);
    RETURN_IF_FAILED("cuDeviceGetAttribute");
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = number / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = number % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- Contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    RETURN_IF_FAILED("cuDevicePrimaryCtxRetain");
    record.contexts++;
    *context = (CUcontext)(uintptr_t)(100 + device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    RETURN_IF_FAILED("cuDevicePrimaryCtxRelease");
    record.contexts--;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    RETURN_IF_FAILED("cuCtxPushCurrent");
    push((uintptr_t)context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    RETURN_IF_OUTSIDE("cuCtxPopCurrent");
    *context = (CUcontext)contexts[--depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    RETURN_IF_OUTSIDE("cuCtxSynchronize");
    record.synchronized++;
    return CUDA_SUCCESS;
}

/* ---- Modules and launches ---- */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    RETURN_IF_OUTSIDE("cuModuleLoadData");
    record.modules++;
    record.image = image;
    *module = (CUmodule)(uintptr_t)7;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    RETURN_IF_OUTSIDE("cuModuleUnload");
    record.modules -= (uintptr_t)module == 7;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    RETURN_IF_OUTSIDE("cuModuleGetFunction");
    if (strcmp(name, "no_such_kernel") == 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(uintptr_t)9;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)function;
    RETURN_IF_OUTSIDE("cuFuncGetAttribute");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    *value = record.shared_limit;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function;
    RETURN_IF_OUTSIDE("cuFuncSetAttribute");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 232448)
        return CUDA_ERROR_INVALID_VALUE;
    record.shared_limit = value;
    record.limits_set++;
    return CUDA_SUCCESS;
}

/* Arguments come as a buffer and its size. */
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                        void **extra)
{
    RETURN_IF_OUTSIDE("cuLaunchKernel");
    if (params || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
        extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END ||
        *(size_t *)extra[3] > sizeof record.launch.args)
        return CUDA_ERROR_INVALID_VALUE;
    record.launches++;
    record.launch.function = function;
    record.launch.stream = stream;
    record.launch.grid[0] = gx, record.launch.grid[1] = gy, record.launch.grid[2] = gz;
    record.launch.block[0] = bx, record.launch.block[1] = by, record.launch.block[2] = bz;
    record.launch.shared = shared;
    record.launch.size = *(size_t *)extra[3];
    memcpy(record.launch.args, extra[1], record.launch.size);
    return CUDA_SUCCESS;
}

/* ---- Memory: the host's ---- */

CUresult cuMemAlloc(CUdeviceptr *memory, size_t size)
{
    RETURN_IF_OUTSIDE("cuMemAlloc");
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    record.allocated = size;
    *memory = (CUdeviceptr)(uintptr_t)malloc(size);
    record.allocations += *memory != 0;
    return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr memory)
{
    RETURN_IF_OUTSIDE("cuMemFree");
    free((void *)(uintptr_t)memory);
    record.allocations--;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
    RETURN_IF_OUTSIDE("cuMemcpyHtoD");
    record.synchronized_before_copy = record.synchronized;
    memcpy((void *)(uintptr_t)to, from, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
    RETURN_IF_OUTSIDE("cuMemcpyDtoH");
    record.synchronized_before_copy = record.synchronized;
    memcpy(to, (void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}
