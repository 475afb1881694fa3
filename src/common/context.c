/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"
#include "pool.h"

#include <omp.h>
#include <stdlib.h>

#define THREADS_LIMIT 4096

/* Turns a backend's failure into the thread's message. */
static fwa_status backend_failed(const fwa_context *context, fwa_status status,
                                 const fwa_message *message)
{
    return fwa_fail(status, "%s: %s", context->backend->name, message->text);
}

static fwa_status open_device(fwa_context *context, int32_t device)
{
    fwa_message message = {""};
    fwa_status status;
    int32_t count = context->backend->device_count(&message);
    if (count <= 0)
        return fwa_fail(FWA_ERROR_DEVICE, "backend %s has no device%s%s", context->backend->name,
                        message.text[0] ? ": " : "", message.text);
    if (device < 0 || device >= count)
        return fwa_fail(FWA_ERROR_VALUE, "options->device is %d; backend %s has %d device%s",
                        (int)device, context->backend->name, (int)count, count == 1 ? "" : "s");
    status = context->backend->open(device, &context->device, context->device_name,
                                    sizeof context->device_name, &message);
    return status == FWA_OK ? FWA_OK : backend_failed(context, status, &message);
}

fwa_status fwa_context_create(const fwa_context_options *options, fwa_context **result)
{
    static const fwa_context_options defaults = FWA_CONTEXT_OPTIONS_INIT;
    const fwa_backend *backend = NULL;
    fwa_context *context;
    fwa_status status;
    if (!result)
        return fwa_fail(FWA_ERROR_NULL, "context is NULL");
    if (!options)
        options = &defaults;
    status = fwa_check_struct("options", options, sizeof *options);
    if (status != FWA_OK)
        return status;
    if (options->threads < 0 || options->threads > THREADS_LIMIT)
        return fwa_fail(FWA_ERROR_VALUE, "options->threads is %d; it runs from 0 (automatic) to %d",
                        (int)options->threads, THREADS_LIMIT);
    status = fwa_registry_find(options->backend ? options->backend : "cpu", &backend);
    if (status != FWA_OK)
        return status;
    context = calloc(1, sizeof *context);
    if (!context)
        return fwa_fail(FWA_ERROR_MEMORY, "no memory for a context");
    context->backend = backend;
    context->threads = options->threads ? options->threads : fwa_default_threads();
    if (context->threads > THREADS_LIMIT)
        context->threads = THREADS_LIMIT;
    context->parallel_for = options->parallel_for;
    context->parallel_for_user = options->parallel_for_user;
    context->in_parallel = fwa_openmp_function("omp_in_parallel", omp_in_parallel);
    status = open_device(context, options->device);
    if (status != FWA_OK) {
        free(context);
        return status;
    }
    if (context->threads > 1 && !context->parallel_for &&
        !(context->pool = fwa_pool_create(context->threads))) {
        fwa_context_destroy(context);
        return fwa_fail(FWA_ERROR_MEMORY, "no memory for a context's threads");
    }
    *result = context;
    return FWA_OK;
}

void fwa_context_destroy(fwa_context *context)
{
    if (!context)
        return;
    fwa_pool_destroy(context->pool);
    context->backend->close(context->device);
    free(context);
}

const char *fwa_context_backend(const fwa_context *context)
{
    return context ? context->backend->name : "";
}

const char *fwa_context_device(const fwa_context *context)
{
    return context ? context->device_name : "";
}

int32_t fwa_context_threads(const fwa_context *context)
{
    return context ? context->threads : 0;
}

fwa_status fwa_memory_allocate(fwa_context *context, size_t size, void **memory)
{
    fwa_message message = {""};
    fwa_status status;
    if (!context || !memory)
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL", context ? "memory" : "context");
    status = context->backend->allocate(context->device, size, memory, &message);
    return status == FWA_OK ? FWA_OK : backend_failed(context, status, &message);
}

void fwa_memory_free(fwa_context *context, void *memory)
{
    if (context && memory)
        context->backend->release(context->device, memory);
}

fwa_status fwa_memory_write(fwa_context *context, void *device, const void *host, size_t size)
{
    fwa_message message = {""};
    fwa_status status;
    if (!context || (size && (!device || !host)))
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL",
                        !context ? "context"
                        : device ? "host"
                                 : "device");
    if (!size)
        return FWA_OK;
    status = context->backend->write(context->device, device, host, size, &message);
    return status == FWA_OK ? FWA_OK : backend_failed(context, status, &message);
}

fwa_status fwa_memory_read(fwa_context *context, void *host, const void *device, size_t size)
{
    fwa_message message = {""};
    fwa_status status;
    if (!context || (size && (!device || !host)))
        return fwa_fail(FWA_ERROR_NULL, "%s is NULL",
                        !context ? "context"
                        : device ? "host"
                                 : "device");
    if (!size)
        return FWA_OK;
    status = context->backend->read(context->device, host, device, size, &message);
    return status == FWA_OK ? FWA_OK : backend_failed(context, status, &message);
}
