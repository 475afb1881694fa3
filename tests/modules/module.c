/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend modules for the tests, one per set of definitions:
 *
 *     MODULE_NAME        the name in the table
 *     MODULE_ABI         fwa_module_abi, if not the right one
 *     TABLE_ABI          the table's abi, if not the right one
 *     TABLE_SIZE_CHANGE  added to the table's struct_size
 *     DEVICES            number of devices, 1 if not given
 *     NO_DEVICE_REASON   what device_count says, "" if not given
 *     NO_ABI, NO_FUNCTION, NO_TABLE, NO_FORWARD  leave that out
 *     EMPTY_NAME         the table has no name
 *
 * The backend answers zeros to every question, to problems with D = 4 and V = 3 only, and holds the
 * library to what backend.h promises: where that is broken it returns FWA_ERROR_INTERNAL.
 */

#include <fwa/backend.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MODULE_ABI
#define MODULE_ABI FWA_BACKEND_ABI
#endif
#ifndef TABLE_ABI
#define TABLE_ABI FWA_BACKEND_ABI
#endif
#ifndef TABLE_SIZE_CHANGE
#define TABLE_SIZE_CHANGE 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef NO_DEVICE_REASON
#define NO_DEVICE_REASON ""
#endif

#ifdef NO_FORWARD
#define HAS_FORWARD 0
#else
#define HAS_FORWARD 1
#endif

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const uint32_t fwa_module_abi;
EXPORT const fwa_backend *fwa_module_backend(void);

typedef struct zeros_plan {
    fwa_problem problem;
    int32_t lanes;
} zeros_plan;

static int32_t device_count(fwa_message *message)
{
    snprintf(message->text, sizeof message->text, "%s", NO_DEVICE_REASON);
    return DEVICES;
}

/* Device 1 is always busy. */
static fwa_status open_device(int32_t index, void **device, char *name, size_t name_size,
                              fwa_message *message)
{
    if (index == 1) {
        snprintf(message->text, sizeof message->text, "device 1 is busy");
        return FWA_ERROR_DEVICE;
    }
    *device = malloc(1);
    snprintf(name, name_size, "zeros %d", (int)index);
    return *device ? FWA_OK : FWA_ERROR_MEMORY;
}

static fwa_status allocate(void *device, size_t size, void **memory, fwa_message *message)
{
    (void)device, (void)message;
    *memory = malloc(size ? size : 1);
    return *memory ? FWA_OK : FWA_ERROR_MEMORY;
}

static void release(void *device, void *memory)
{
    (void)device;
    free(memory);
}

static fwa_status copy(void *device, void *to, const void *from, size_t size, fwa_message *message)
{
    (void)device, (void)message;
    memcpy(to, from, size);
    return FWA_OK;
}

static int32_t score(void *device, const fwa_problem *problem, fwa_message *message)
{
    (void)device;
    if (problem->key_dim == 4 && problem->value_dim == 3)
        return 1;
    snprintf(message->text, sizeof message->text, "zeros come as 4 x 3 only");
    return 0;
}

static fwa_status create_plan(void *device, const fwa_problem *problem, int32_t lanes,
                              void **result, fwa_message *message)
{
    zeros_plan *plan;
    (void)device;
    if (problem->phi == FWA_FEATURE_MAP_RELU) {
        snprintf(message->text, sizeof message->text, "out of plans");
        return FWA_ERROR_MEMORY;
    }
    plan = malloc(sizeof *plan);
    if (!plan)
        return FWA_ERROR_MEMORY;
    plan->problem = *problem;
    plan->lanes = lanes;
    *result = plan;
    return FWA_OK;
}

static const char *kernel_name(const void *plan, fwa_pass pass)
{
    (void)plan;
    return pass == FWA_PASS_FORWARD ? "zeros/forward" : "zeros/backward";
}

/* The forward needs none, the backward a lane's worth. */
static size_t workspace_size(const void *plan, fwa_pass pass, const fwa_extent *extent)
{
    (void)extent;
    return pass == FWA_PASS_FORWARD ? 0 : (size_t)((const zeros_plan *)plan)->lanes;
}

static size_t saved_size(const void *plan, const fwa_extent *extent)
{
    (void)plan, (void)extent;
    return 0;
}

typedef struct zeros_work {
    const fwa_tensor *tensor;
    int64_t lanes;
} zeros_work;

/* The rows lane, lane + lanes, ... of a rank-4 tensor. */
static void write_zeros(void *data, int64_t lane)
{
    const zeros_work *work = data;
    const fwa_tensor *t = work->tensor;
    const size_t size = fwa_dtype_size(t->dtype);
    int64_t row, rows = t->shape[0] * t->shape[1] * t->shape[2];
    for (row = lane; row < rows; row += work->lanes) {
        int64_t h = row % t->shape[2], i = row / t->shape[2] % t->shape[1];
        int64_t b = row / t->shape[2] / t->shape[1];
        int64_t offset = b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
        memset((char *)t->data + offset * (int64_t)size, 0, (size_t)t->shape[3] * size);
    }
}

/* What backend.h says about a call and a resolved problem. */
static const char *broken_promise(const zeros_plan *plan, const fwa_call *call, fwa_pass pass)
{
    const fwa_problem *p = &plan->problem;
    if (!call->executor || !call->executor->run || call->executor->lanes < 1 ||
        call->executor->lanes > plan->lanes)
        return "executor";
    if ((call->forward != NULL) == (call->backward != NULL) ||
        (call->forward != NULL) != (pass == FWA_PASS_FORWARD))
        return "pass";
    if (pass == FWA_PASS_FORWARD ? call->workspace != NULL
                                 : !call->workspace || (uintptr_t)call->workspace % 64)
        return "workspace";
    if (p->heads_key < 1 || p->heads_value < 1 || p->heads_query < 1 || p->state_dtype == 0)
        return "defaults";
    if (call->extent.batch != 2 || call->extent.tokens != 5 || call->extent.sequences != 2)
        return "extent";
    return NULL;
}

static fwa_status zeros(const zeros_plan *plan, const fwa_call *call, fwa_pass pass,
                        const fwa_tensor *output, fwa_message *message)
{
    const char *broken = broken_promise(plan, call, pass);
    zeros_work work = {output, call->executor->lanes};
    if (broken) {
        snprintf(message->text, sizeof message->text, "broken promise: %s", broken);
        return FWA_ERROR_INTERNAL;
    }
    call->executor->run(call->executor, write_zeros, &work);
    return FWA_OK;
}

/* With a stream, the device faults. */
static fwa_status forward(const void *plan, const fwa_call *call, fwa_message *message)
{
    if (call->forward->stream) {
        snprintf(message->text, sizeof message->text, "the device faulted");
        return FWA_ERROR_DEVICE;
    }
    return zeros(plan, call, FWA_PASS_FORWARD, &call->forward->o, message);
}

static fwa_status backward(const void *plan, const fwa_call *call, fwa_message *message)
{
    return zeros(plan, call, FWA_PASS_BACKWARD, &call->backward->q_grad, message);
}

static const struct {
    fwa_backend known;
    void *newer[4];
} table = {
    .known =
        {
            .abi = TABLE_ABI,
            .struct_size = (uint32_t)(sizeof(fwa_backend) + (TABLE_SIZE_CHANGE)),
#ifndef EMPTY_NAME
            .name = MODULE_NAME,
#endif
            .description = "zeros, for tests",
            .host_memory = 1,
            .device_count = device_count,
            .open = open_device,
            .close = free,
            .allocate = allocate,
            .release = release,
            .write = copy,
            .read = copy,
            .score = score,
            .plan = create_plan,
            .plan_release = free,
            .kernel_name = kernel_name,
            .workspace_size = workspace_size,
            .saved_size = saved_size,
            .forward = HAS_FORWARD ? forward : NULL,
            .backward = backward,
        },
};

#ifndef NO_ABI
const uint32_t fwa_module_abi = MODULE_ABI;
#endif

#ifdef NO_FUNCTION
const fwa_backend *hidden_backend(void);
const fwa_backend *hidden_backend(void)
#else
const fwa_backend *fwa_module_backend(void)
#endif
{
#ifdef NO_TABLE
    (void)table;
    return NULL;
#else
    /* A call of anything in a module of another ABI ends the test. */
    if (MODULE_ABI != FWA_BACKEND_ABI)
        abort();
    return &table.known;
#endif
}
