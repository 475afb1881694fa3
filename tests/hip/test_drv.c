/* SPDX-License-Identifier: Apache-2.0 */
/* The HIP runtime's use, against a runtime that records it (fake_hip.cpp). Each test is a process, so the
 * runtime is loaded anew in each. FAKE_HIP_DEVICES is set: one device that there is an image for. */

#include "../../src/gpu/args.h"
#include "../../src/gpu/drv.h"
#include "fake_hip.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const fwa_gpu_driver *const table = &fwa_gpu_driver_table;

static const fake_hip_functions *fake(void)
{
    void *library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    const fake_hip_functions *functions;
    cr_assert_not_null(library, "%s", dlerror());
    functions = dlsym(library, "fake_hip_table");
    cr_assert_not_null(functions, "libamdhip64.so.6 is not the tests'");
    return functions;
}

static fake_hip *record(void)
{
    return fake()->record();
}

static void *open_device(int32_t index)
{
    fwa_gpu_properties properties;
    fwa_message message = {""};
    void *device = NULL;
    char name[100];
    cr_assert_eq(table->open(index, &device, &properties, name, sizeof name, &message), FWA_OK,
                 "%s", message.text);
    return device;
}

/* Of which the second is the one that is used. */
static void two_devices(void)
{
    char devices[64] = "";
    const char *first = getenv("FAKE_HIP_DEVICES");
    snprintf(devices, sizeof devices, "%s %s", first, first);
    setenv("FAKE_HIP_DEVICES", devices, 1);
}

static void expect_no_device(const char *words)
{
    fwa_message message = {""};
    cr_assert_eq(table->device_count(&message), 0);
    cr_assert_not_null(strstr(message.text, words), "\"%s\" lacks \"%s\"", message.text, words);
}

/* ---- What there is ---- */

Test(hip, one_device)
{
    fwa_message message = {""};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(table->device_count(&message), 1);
    cr_assert_eq(record()->modules, 0);
}

Test(hip, no_device_listed)
{
    setenv("FAKE_HIP_DEVICES", "", 1);
    expect_no_device("no device");
}

Test(hip, count_fails)
{
    setenv("FAKE_HIP_FAIL", "hipGetDeviceCount=3", 1);
    expect_no_device("hipErrorNotInitialized (initialization error)");
}

Test(hip, properties_fail)
{
    setenv("FAKE_HIP_FAIL", "hipGetDevicePropertiesR0600=1", 1);
    expect_no_device("hipErrorInvalidValue (invalid argument)");
}

Test(hip, old_runtime)
{
    setenv("FAKE_HIP_VERSION", "50221152", 1);
    expect_no_device("HIP runtime 5.2 is older than 6.0 that these kernels need");
}

Test(hip, oldest_runtime_that_will_do)
{
    fwa_message message = {""};
    setenv("FAKE_HIP_VERSION", "60000000", 1);
    cr_assert_eq(table->device_count(&message), 1);
}

Test(hip, no_image)
{
    setenv("FAKE_HIP_DEVICES", "gfx906:sramecc+ gfx1030", 1);
    expect_no_device("device 0 (Fake A, gfx906:sramecc+) has no kernel image in this module "
                     "(" FWA_HIP_TARGETS ")");
}

/* A name that only begins as one that there is. */
Test(hip, no_image_of_that_name)
{
    setenv("FAKE_HIP_DEVICES", "gfx90", 1);
    expect_no_device("device 0 (Fake A, gfx90) has no kernel image");
}

/* Those that there is an image for, in the runtime's order. The runtime takes no other image. */
Test(hip, several_devices)
{
    char targets[] = FWA_HIP_TARGETS, devices[512] = "gfx906", *rest = targets;
    const char *target[32];
    int32_t count = 0;
    fwa_message message = {""};
    while ((target[count] = strtok_r(rest, " ", &rest)) != NULL) {
        const size_t length = strlen(devices);
        snprintf(devices + length, sizeof devices - length, " %s%s gfx803", target[count],
                 count % 2 ? "" : ":sramecc+:xnack-");
        count++;
    }
    setenv("FAKE_HIP_DEVICES", devices, 1);
    cr_assert_eq(table->device_count(&message), count, "%s", message.text);
    cr_assert_gt(count, 0);
    fake()->make_current(0);
    for (int32_t i = 0; i < count; i++) {
        fwa_gpu_properties properties = {0};
        void *device = NULL;
        char name[100], wanted[100];
        snprintf(wanted, sizeof wanted, "Fake %c, %s", 'B' + 2 * i, target[i]);
        cr_assert_eq(table->open(i, &device, &properties, name, sizeof name, &message), FWA_OK,
                     "%s", message.text);
        cr_assert_str_eq(name, wanted);
        cr_assert_eq(properties.architecture, strtol(target[i] + 3, NULL, 16));
        cr_assert_eq(properties.processors, 4);
        cr_assert_eq(properties.wave, strncmp(target[i], "gfx9", 4) == 0 ? 64 : 32);
        cr_assert_eq(properties.shared, 65536);
        cr_assert_eq(record()->device, 1 + 2 * i);
        cr_assert_eq(fake()->current(), 0);
        table->close(device);
        cr_assert_eq(fake()->current(), 0);
    }
    cr_assert_eq(record()->modules, 0);
}

Test(hip, index_out_of_range)
{
    static const int32_t bad[] = {-1, 1, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        fwa_gpu_properties properties;
        fwa_message message = {""};
        void *device = NULL;
        char name[100];
        cr_assert_eq(table->open(bad[i], &device, &properties, name, sizeof name, &message),
                     FWA_ERROR_VALUE);
        cr_assert_null(device);
        cr_assert_neq(message.text[0], '\0');
    }
}

/* ---- Opening and closing ---- */

/* Whichever call fails, nothing is kept, and the thread has the device that it had. */
Test(hip, open_fails)
{
    static const struct {
        const char *fail, *words;
    } cases[] = {
        {"hipGetDevice=3", "hipGetDevice: hipErrorNotInitialized (initialization error)"},
        {"hipSetDevice=101", "hipSetDevice: hipErrorInvalidDevice"},
        {"hipModuleLoadData=209", "hipModuleLoadData: hipErrorNoBinaryForGpu"},
        {"hipModuleLoadData=98765", "hipModuleLoadData: hipErrorUnknown (unknown error)"},
        {"hipDeviceGetAttribute=1", "hipDeviceGetAttribute: hipErrorInvalidValue"},
    };
    fwa_message count = {""};
    two_devices();
    cr_assert_eq(table->device_count(&count), 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fwa_gpu_properties properties;
        fwa_message message = {""};
        void *device = NULL;
        char name[100];
        setenv("FAKE_HIP_FAIL", cases[i].fail, 1);
        cr_assert_eq(table->open(1, &device, &properties, name, sizeof name, &message),
                     FWA_ERROR_DEVICE);
        cr_assert_null(device);
        cr_assert_not_null(strstr(message.text, cases[i].words), "%s", message.text);
        cr_assert_eq(record()->modules, 0);
        cr_assert_eq(fake()->current(), 0);
    }
}

/* ---- Memory ---- */

Test(hip, memory)
{
    const char text[] = "sixteen letters";
    fwa_message message = {""};
    char back[sizeof text] = "";
    void *device, *memory = NULL, *nothing = NULL;
    two_devices();
    device = open_device(1);
    cr_assert_eq(table->allocate(device, sizeof text, &memory, &message), FWA_OK);
    cr_assert_eq(record()->allocated, sizeof text);
    cr_assert_eq(record()->device, 1);
    cr_assert_eq(table->allocate(device, 0, &nothing, &message), FWA_OK);
    cr_assert_eq(record()->allocated, 1);
    cr_assert_not_null(nothing);
    cr_assert_eq(record()->synchronized, 0);
    /* Both wait before the copy and behind it. */
    cr_assert_eq(table->write(device, memory, text, sizeof text, &message), FWA_OK);
    cr_assert_eq(record()->synchronized_before_copy, 1);
    cr_assert_eq(record()->synchronized, 2);
    cr_assert_eq(table->read(device, back, memory, sizeof text, &message), FWA_OK);
    cr_assert_eq(record()->synchronized_before_copy, 3);
    cr_assert_str_eq(back, text);
    cr_assert_eq(table->write(device, NULL, NULL, 0, &message), FWA_OK);
    cr_assert_eq(table->read(device, NULL, NULL, 0, &message), FWA_OK);
    cr_assert_eq(fake()->current(), 0);
    table->release(device, memory);
    table->release(device, nothing);
    table->release(device, NULL);
    cr_assert_eq(record()->allocations, 0);
    table->close(device);
    cr_assert_eq(fake()->current(), 0);
}

Test(hip, memory_fails)
{
    static const struct {
        const char *fail;
        fwa_status allocate, copy;
    } cases[] = {
        {"hipMalloc=2", FWA_ERROR_MEMORY, FWA_OK},
        {"hipMalloc=719", FWA_ERROR_DEVICE, FWA_OK},
        {"hipMemcpy=1", FWA_OK, FWA_ERROR_DEVICE},
        {"hipDeviceSynchronize=719", FWA_OK, FWA_ERROR_DEVICE},
        {"hipGetDevice=3", FWA_ERROR_DEVICE, FWA_ERROR_DEVICE},
    };
    char bytes[8] = "";
    fwa_message message = {""};
    void *device = open_device(0), *memory = NULL;
    cr_assert_eq(table->allocate(device, sizeof bytes, &memory, &message), FWA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *more = NULL;
        setenv("FAKE_HIP_FAIL", cases[i].fail, 1);
        message.text[0] = '\0';
        cr_assert_eq(table->allocate(device, 8, &more, &message), cases[i].allocate);
        cr_assert((more != NULL) == (cases[i].allocate == FWA_OK));
        cr_assert_eq(table->write(device, memory, bytes, 8, &message), cases[i].copy);
        cr_assert_eq(table->read(device, bytes, memory, 8, &message), cases[i].copy);
        cr_assert_eq(strncmp(message.text, cases[i].fail, strcspn(cases[i].fail, "=")), 0, "%s",
                     message.text);
        unsetenv("FAKE_HIP_FAIL");
        table->release(device, more);
    }
    table->release(device, memory);
    table->close(device);
    cr_assert_eq(record()->allocations, 0);
}

/* ---- Kernels ---- */

Test(hip, kernels)
{
    fwa_message message = {""};
    void *device = open_device(0), *kernel = NULL;
    cr_assert_eq(table->kernel(device, "order_list", 65536, &kernel, &message), FWA_OK);
    cr_assert_not_null(kernel);
    cr_assert_eq(table->kernel(device, "no_such_kernel", 0, &kernel, &message), FWA_ERROR_DEVICE);
    cr_assert_str_eq(message.text, "kernel no_such_kernel: hipModuleGetFunction: hipErrorNotFound "
                                   "(named symbol not found)");
    table->close(device);
}

/* Grids of 2^32 threads and more become smaller ones: kernels take a stride through their units. */
Test(hip, launch)
{
    static const int64_t blocks[] = {12345, 33554431, 33554432, INT32_MAX, INT64_MAX};
    static const unsigned grids[] = {12345, 33554431, 33554431, 33554431, 33554431};
    int stream_at; /* any address */
    void *const streams[] = {NULL, &stream_at};
    unsigned char args[sizeof(fwa_gpu_args)];
    fwa_message message = {""};
    void *device, *kernel = NULL;
    setenv("FAKE_HIP_IDLE", "1", 1);
    two_devices();
    for (size_t i = 0; i < sizeof args; i++)
        args[i] = (unsigned char)(i * 7 + i / 256);
    device = open_device(1);
    cr_assert_eq(table->kernel(device, "order_list", 1000, &kernel, &message), FWA_OK);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(table->launch(device, kernel, blocks[i], 128, 1000, streams[i % 2], args,
                                   sizeof args, &message),
                     FWA_OK, "%s", message.text);
        cr_assert_eq(record()->launches, i + 1);
        cr_assert_eq(record()->device, 1);
        cr_assert_str_eq(record()->launch.name, "order_list");
        cr_assert_eq(record()->launch.stream, streams[i % 2]);
        cr_assert_eq(record()->launch.grid[0], grids[i]);
        cr_assert_eq(record()->launch.block[0], 128);
        cr_assert_eq(record()->launch.shared, 1000);
        cr_assert_eq(record()->launch.size, sizeof args);
        cr_assert_arr_eq(record()->launch.args, args, sizeof args);
        cr_assert_eq(fake()->current(), 0);
    }
    cr_assert_eq(record()->synchronized, 0);
    table->close(device);
}

Test(hip, launches_refused)
{
    static const fwa_gpu_args args;
    fwa_message message = {""};
    void *device, *kernel = NULL;
    setenv("FAKE_HIP_IDLE", "1", 1);
    device = open_device(0);
    cr_assert_eq(table->kernel(device, "order_list", 0, &kernel, &message), FWA_OK);
    cr_assert_eq(table->launch(device, kernel, -1, 128, 0, NULL, &args, sizeof args, &message),
                 FWA_ERROR_SHAPE);
    cr_assert_str_eq(message.text, "the call has -1 blocks of work");
    /* No work is none. */
    cr_assert_eq(table->launch(device, kernel, 0, 128, 0, NULL, &args, sizeof args, &message),
                 FWA_OK);
    cr_assert_eq(record()->launches, 0);
    setenv("FAKE_HIP_FAIL", "hipModuleLaunchKernel=1", 1);
    cr_assert_eq(table->launch(device, kernel, 1, 128, 0, NULL, &args, sizeof args, &message),
                 FWA_ERROR_DEVICE);
    cr_assert_str_eq(message.text,
                     "hipModuleLaunchKernel: hipErrorInvalidValue (invalid argument)");
    table->close(device);
}

/* ---- Processes and threads ---- */

/* In a child: everything is an error, and nothing reaches the runtime. 0 where that is so. */
static int use_in_child(void *device, void *kernel, void *memory)
{
    static const fwa_gpu_args args;
    fwa_gpu_properties properties;
    fwa_message message = {""};
    void *other = NULL;
    char name[100];
    int32_t word = 0;
    if (table->open(0, &other, &properties, name, sizeof name, &message) != FWA_ERROR_DEVICE ||
        !strstr(message.text, "forked"))
        return 1;
    message.text[0] = '\0';
    if (table->allocate(device, 4, &other, &message) != FWA_ERROR_DEVICE ||
        !strstr(message.text, "forked"))
        return 2;
    if (table->write(device, memory, &word, 4, &message) != FWA_ERROR_DEVICE ||
        table->read(device, &word, memory, 4, &message) != FWA_ERROR_DEVICE ||
        table->kernel(device, "order_list", 0, &other, &message) != FWA_ERROR_DEVICE ||
        table->launch(device, kernel, 1, 128, 0, NULL, &args, sizeof args, &message) !=
            FWA_ERROR_DEVICE)
        return 3;
    table->release(device, memory);
    table->close(device);
    return record()->foreign == 0 && record()->launches == 0 ? 0 : 4;
}

Test(hip, fork)
{
    fwa_message message = {""};
    void *device = open_device(0), *kernel = NULL, *memory = NULL;
    int status = -1;
    pid_t child;
    cr_assert_eq(table->kernel(device, "order_list", 0, &kernel, &message), FWA_OK);
    cr_assert_eq(table->allocate(device, 4, &memory, &message), FWA_OK);
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(use_in_child(device, kernel, memory));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    table->release(device, memory);
    table->close(device);
    cr_assert_eq(record()->modules, 0);
}

static void *use_in_thread(void *good)
{
    for (int i = 0; i < 50; i++) {
        fwa_gpu_properties properties;
        fwa_message message = {""};
        void *device = NULL, *kernel = NULL, *memory = NULL;
        char name[100];
        if (table->device_count(&message) != 1 ||
            table->open(0, &device, &properties, name, sizeof name, &message) != FWA_OK)
            return NULL;
        if (table->kernel(device, "order_list", 1000, &kernel, &message) != FWA_OK ||
            table->allocate(device, 100, &memory, &message) != FWA_OK)
            return NULL;
        table->release(device, memory);
        table->close(device);
    }
    *(int *)good = 1;
    return NULL;
}

Test(hip, threads)
{
    pthread_t threads[4];
    int good[4] = {0};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, use_in_thread, &good[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(good[i]);
    }
    cr_assert_eq(record()->modules, 0);
    cr_assert_eq(record()->allocations, 0);
}
