/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of src/gpu/drv.h over runtime.h: one device, this processor. Streams are ignored: a launch
 * returns when all has run. FWA_GPU_EMULATION_ORDER is read when a device is opened; it holds what
 * parse_schedule() takes. What a GPU's driver would refuse or might read wrongly is refused. */

#include <fwa/backend.h>
extern "C" {
#include "../../src/gpu/drv.h"
}
#include "runtime.h"

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

using namespace fwa;

static const int32_t most_shared = FWA_SHARED_LIMIT;

struct emulated_device {
    emulation::schedule schedule;
};

__attribute__((format(printf, 3, 4))) static fwa_status
refuse(fwa_message *message, fwa_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    return status;
}

static int32_t device_count(fwa_message *)
{
    return 1;
}

static fwa_status open_device(int32_t index, void **device, fwa_gpu_properties *properties,
                              char *name, size_t name_size, fwa_message *message)
{
    const char *words = getenv("FWA_GPU_EMULATION_ORDER");
    emulation::schedule schedule;
    if (index != 0)
        return refuse(message, FWA_ERROR_DEVICE, "there is no emulated device %d", (int)index);
    if (!emulation::parse_schedule(words ? words : "forward", &schedule))
        return refuse(message, FWA_ERROR_VALUE,
                      "FWA_GPU_EMULATION_ORDER is '%s', not forward, reverse, random or "
                      "random:SEED",
                      words);
    emulated_device *opened = new (std::nothrow) emulated_device{schedule};
    if (!opened)
        return refuse(message, FWA_ERROR_MEMORY, "no memory for an emulated device");
    *device = opened;
    *properties = {4, wave, most_shared, 0};
    snprintf(name, name_size, "emulated GPU with waves of %d", wave);
    return FWA_OK;
}

static void close_device(void *device)
{
    delete static_cast<emulated_device *>(device);
}

static fwa_status allocate(void *, size_t size, void **memory, fwa_message *message)
{
    if (posix_memalign(memory, 256, size) != 0 || !*memory)
        return refuse(message, FWA_ERROR_MEMORY, "no memory for %zu bytes of an emulated device",
                      size);
    memset(*memory, 0xff, size);
    return FWA_OK;
}

static void release(void *, void *memory)
{
    free(memory);
}

static fwa_status copy(void *, void *to, const void *from, size_t size, fwa_message *)
{
    if (size > 0)
        memcpy(to, from, size);
    return FWA_OK;
}

static fwa_status find(void *, const char *name, int32_t shared, void **kernel,
                       fwa_message *message)
{
    emulation::kernel *found = emulation::find_kernel(name);
    if (!found)
        return refuse(message, FWA_ERROR_DEVICE, "no kernel is called %s", name);
    if (shared < 0 || shared > most_shared)
        return refuse(message, FWA_ERROR_DEVICE, "%d bytes of shared memory for %s; there are %d",
                      (int)shared, name, (int)most_shared);
    int32_t known = found->shared;
    while (known < shared && !found->shared.compare_exchange_weak(known, shared))
        ;
    *kernel = found;
    return FWA_OK;
}

static fwa_status launch(void *device, void *kernel, int64_t blocks, int32_t threads,
                         int32_t shared, void *, const void *args, size_t args_size,
                         fwa_message *message)
{
    const emulation::kernel *known = static_cast<const emulation::kernel *>(kernel);
    fwa_gpu_args copied;
    if (blocks < 1 || blocks > INT32_MAX)
        return refuse(message, FWA_ERROR_DEVICE, "a launch of %s with %lld blocks", known->name,
                      (long long)blocks);
    if (threads != known->threads)
        return refuse(message, FWA_ERROR_DEVICE, "a launch of %s with %d threads; it has %d",
                      known->name, (int)threads, known->threads);
    if (shared < 0 || shared > known->shared)
        return refuse(message, FWA_ERROR_DEVICE,
                      "a launch of %s with %d bytes of shared memory; %d were asked for",
                      known->name, (int)shared, (int)known->shared);
    if (args_size != sizeof copied)
        return refuse(message, FWA_ERROR_DEVICE, "a launch of %s with %zu bytes of arguments",
                      known->name, args_size);
    memcpy(&copied, args, sizeof copied);
    if (!emulation::run(*known, blocks, shared, copied,
                        static_cast<const emulated_device *>(device)->schedule))
        return refuse(message, FWA_ERROR_MEMORY, "no memory for the stacks of %s", known->name);
    return FWA_OK;
}

static fwa_status write(void *device, void *to, const void *host, size_t size, fwa_message *message)
{
    return copy(device, to, host, size, message);
}

static fwa_status read(void *device, void *host, const void *from, size_t size,
                       fwa_message *message)
{
    return copy(device, host, from, size, message);
}

const fwa_gpu_driver fwa_gpu_driver_table = {
    device_count, open_device, close_device, allocate, release, write, read, find, launch,
};
