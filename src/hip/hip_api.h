/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_HIP_HIP_API_H
#define FWA_HIP_HIP_API_H

/*
 * The HIP runtime's functions, loaded at run time: libamdhip64 comes with ROCm, and a machine without it
 * is no error. What is used of its binary interface stands here, as version 6 and later have it, so that
 * nothing of ROCm is needed to build.
 */

#include <fwa/backend.h>

#include <stdbool.h>

enum {
    FWA_HIP_SUCCESS = 0,
    FWA_HIP_OUT_OF_MEMORY = 2,
    FWA_HIP_NO_DEVICE = 100,
    /* Attributes of devices. */
    FWA_HIP_PROCESSORS = 63,
    FWA_HIP_SHARED_MEMORY = 74,
    FWA_HIP_WAVE = 87,
    /* Directions of copies. */
    FWA_HIP_TO_DEVICE = 1,
    FWA_HIP_TO_HOST = 2,
    /* The properties of a device, and where the name of its architecture begins in them. */
    FWA_HIP_PROPERTIES = 1472,
    FWA_HIP_ARCHITECTURE_NAME = 1160,
    FWA_HIP_DEVICE_LIMIT = 64
};

/* Of `extra` in hipModuleLaunchKernel: a pair of an address and a size, and the end. */
#define FWA_HIP_BUFFER_POINTER ((void *)1)
#define FWA_HIP_BUFFER_SIZE    ((void *)2)
#define FWA_HIP_BUFFER_END     ((void *)3)

/* result, name, arguments */
#define FWA_HIP_FUNCTIONS(X)                                                                       \
    X(int, hipRuntimeGetVersion, (int *))                                                          \
    X(const char *, hipGetErrorName, (int))                                                        \
    X(const char *, hipGetErrorString, (int))                                                      \
    X(int, hipGetDeviceCount, (int *))                                                             \
    X(int, hipGetDevice, (int *))                                                                  \
    X(int, hipSetDevice, (int))                                                                    \
    X(int, hipDeviceGetAttribute, (int *, int, int))                                               \
    X(int, hipGetDevicePropertiesR0600, (void *, int))                                             \
    X(int, hipDeviceSynchronize, (void))                                                           \
    X(int, hipModuleLoadData, (void **, const void *))                                             \
    X(int, hipModuleUnload, (void *))                                                              \
    X(int, hipModuleGetFunction, (void **, void *, const char *))                                  \
    X(int, hipModuleLaunchKernel,                                                                  \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,       \
       void **, void **))                                                                          \
    X(int, hipMalloc, (void **, size_t))                                                           \
    X(int, hipFree, (void *))                                                                      \
    X(int, hipMemcpy, (void *, const void *, size_t, int))

#define FWA_HIP_MEMBER(result, name, arguments) result(*name) arguments;
typedef struct fwa_hip_api {
    FWA_HIP_FUNCTIONS(FWA_HIP_MEMBER)
} fwa_hip_api;
#undef FWA_HIP_MEMBER

/* The compiled kernels for one architecture, as the build embeds them; behind the last is one without a
 * name. */
typedef struct fwa_hip_image {
    const char *architecture; /* "gfx942" */
    const unsigned char *object;
} fwa_hip_image;
extern const fwa_hip_image fwa_hip_images[];

/* A device that there is an image for. */
typedef struct fwa_hip_target {
    int device;
    char name[256], architecture[64];
    const fwa_hip_image *image;
} fwa_hip_target;

/* The runtime as this process found it. */
typedef struct fwa_hip_runtime {
    fwa_hip_api api;
    int32_t device_count; /* 0: the message says why */
    fwa_hip_target device[FWA_HIP_DEVICE_LIMIT];
    char message[480];
} fwa_hip_runtime;

/* Loads and asks the runtime, once. Thread-safe. */
const fwa_hip_runtime *fwa_hip_load(void);

/* False in a process that was forked from the one that loaded the runtime, which is unusable there. */
bool fwa_hip_usable(void);

#endif
