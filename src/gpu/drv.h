/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_DRV_H
#define FWA_GPU_DRV_H

/*
 * What the GPU backends' host code needs of a vendor's driver. A module links the host code of
 * src/gpu, compiled with its name in FWA_GPU_NAME, with one fwa_gpu_driver_table: src/cuda/drv.c
 * over libcuda, src/hip/drv.c over libamdhip64, tests/gpu/drv.cpp over this processor alone.
 *
 * Functions are thread-safe, leave the calling thread's current device as it was, and name the
 * vendor's error in `message` where they fail.
 */

#include <fwa/backend.h>

/* A device's limits. */
typedef struct fwa_gpu_properties {
    int32_t processors;   /* multiprocessors or compute units */
    int32_t wave;         /* threads that run in step: 32 or 64 */
    int32_t shared;       /* most bytes of shared memory of a block, by opting in */
    int32_t architecture; /* the vendor's number: 90 for sm_90, 0x942 for gfx942 */
} fwa_gpu_properties;

typedef struct fwa_gpu_driver {
    /* Devices with a kernel image in this module; where there are none, `message` says why: no
     * driver library, too old a driver, no device, no image for the device. */
    int32_t (*device_count)(fwa_message *message);
    fwa_status (*open)(int32_t index, void **device, fwa_gpu_properties *properties, char *name,
                       size_t name_size, fwa_message *message);
    void (*close)(void *device);
    fwa_status (*allocate)(void *device, size_t size, void **memory, fwa_message *message);
    void (*release)(void *device, void *memory);
    fwa_status (*write)(void *device, void *to, const void *host, size_t size,
                        fwa_message *message);
    fwa_status (*read)(void *device, void *host, const void *from, size_t size,
                       fwa_message *message);
    /* The kernel of that name, which may be launched with up to `shared` bytes of shared memory. */
    fwa_status (*kernel)(void *device, const char *name, int32_t shared, void **kernel,
                         fwa_message *message);
    /* Puts blocks of `threads` threads on the stream (NULL: the default one). `args` are copied. */
    fwa_status (*launch)(void *device, void *kernel, int64_t blocks, int32_t threads,
                         int32_t shared, void *stream, const void *args, size_t args_size,
                         fwa_message *message);
} fwa_gpu_driver;

extern const fwa_gpu_driver fwa_gpu_driver_table;

#endif
