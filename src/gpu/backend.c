/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU module's table, over its vendor's driver. */

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static fwa_status open_device(int32_t index, void **device, char *name, size_t name_size,
                              fwa_message *message)
{
    fwa_gpu_device *made = calloc(1, sizeof *made);
    fwa_status status;
    if (!made) {
        snprintf(message->text, sizeof message->text, "no memory for a device");
        return FWA_ERROR_MEMORY;
    }
    status = fwa_gpu_driver_table.open(index, &made->driver, &made->properties, name, name_size,
                                       message);
    if (status != FWA_OK) {
        free(made);
        return status;
    }
    *device = made;
    return FWA_OK;
}

static void close_device(void *device)
{
    fwa_gpu_device *opened = device;
    fwa_gpu_driver_table.close(opened->driver);
    free(opened);
}

static fwa_status allocate(void *device, size_t size, void **memory, fwa_message *message)
{
    return fwa_gpu_driver_table.allocate(((fwa_gpu_device *)device)->driver, size, memory, message);
}

static void release(void *device, void *memory)
{
    fwa_gpu_driver_table.release(((fwa_gpu_device *)device)->driver, memory);
}

static fwa_status write_memory(void *device, void *to, const void *host, size_t size,
                               fwa_message *message)
{
    return fwa_gpu_driver_table.write(((fwa_gpu_device *)device)->driver, to, host, size, message);
}

static fwa_status read_memory(void *device, void *host, const void *from, size_t size,
                              fwa_message *message)
{
    return fwa_gpu_driver_table.read(((fwa_gpu_device *)device)->driver, host, from, size, message);
}

static int32_t device_count(fwa_message *message)
{
    return fwa_gpu_driver_table.device_count(message);
}

static const fwa_backend backend = {
    .abi = FWA_BACKEND_ABI,
    .struct_size = sizeof(fwa_backend),
    .name = FWA_GPU_NAME,
    .description = FWA_GPU_DESCRIPTION,
    .host_memory = 0,
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .write = write_memory,
    .read = read_memory,
    .score = fwa_gpu_score,
    .plan = fwa_gpu_make_plan,
    .plan_release = fwa_gpu_release_plan,
    .kernel_name = fwa_gpu_kernel_name,
    .workspace_size = fwa_gpu_workspace_size,
    .saved_size = fwa_gpu_saved_size,
    .forward = fwa_gpu_forward,
    .backward = fwa_gpu_backward,
};

EXPORT extern const uint32_t fwa_module_abi;
EXPORT const fwa_backend *fwa_module_backend(void);

const uint32_t fwa_module_abi = FWA_BACKEND_ABI;

const fwa_backend *fwa_module_backend(void)
{
    return &backend;
}
