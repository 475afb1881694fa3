/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CUDA_CUDA_API_H
#define FWA_CUDA_CUDA_API_H

/* The CUDA driver's functions, loaded at run time: libcuda.so.1 comes with the driver, and a machine
 * without one is no error. */

#include <fwa/backend.h>

#include <cuda.h>
#include <stdbool.h>

/* What is used of it. cuda.h's macros give some of these names a version (cuMemAlloc_v2), here and
 * wherever they are called. */
#define FWA_CUDA_FUNCTIONS(X)                                                                      \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuCtxSynchronize)                                                                            \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuFuncGetAttribute)                                                                          \
    X(cuFuncSetAttribute)                                                                          \
    X(cuLaunchKernel)                                                                              \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemcpyHtoD)                                                                                \
    X(cuMemcpyDtoH)

#define FWA_CUDA_MEMBER(function) __typeof__(function) *function;
typedef struct fwa_cuda_api {
    FWA_CUDA_FUNCTIONS(FWA_CUDA_MEMBER)
} fwa_cuda_api;
#undef FWA_CUDA_MEMBER

#define FWA_CUDA_DEVICE_LIMIT 64

/* The driver as this process found it. */
typedef struct fwa_cuda_driver {
    fwa_cuda_api api;
    int32_t device_count; /* devices with a kernel image; 0: the message says why */
    CUdevice device[FWA_CUDA_DEVICE_LIMIT];
    char message[480];
} fwa_cuda_driver;

/* Loads and asks the driver, once. Thread-safe. */
const fwa_cuda_driver *fwa_cuda_load(void);

/* False in a process that was forked from the one that loaded the driver, which is unusable there. */
bool fwa_cuda_usable(void);

#endif
