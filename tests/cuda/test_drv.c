/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver's use, against a driver that records it (fake_cuda.c). Each test is a process, so the
 * driver is loaded anew in each. */

#include "../../src/gpu/drv.h"
#include "fake_cuda.h"

#include <criterion/criterion.h>
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAMS_CONTEXT 555

static const fwa_gpu_driver *const table = &fwa_gpu_driver_table;

static const fake_cuda_functions *fake(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const fake_cuda_functions *functions;
    cr_assert_not_null(library, "%s", dlerror());
    functions = dlsym(library, "fake_cuda_table");
    cr_assert_not_null(functions, "libcuda.so.1 is not the tests'");
    return functions;
}

static fake_cuda *record(void)
{
    return fake()->record();
}

/* The calling thread has a context of the program's; checks that it is still the one. */
static void expect_context(void)
{
    int depth;
    cr_assert_eq(fake()->current(&depth), PROGRAMS_CONTEXT);
    cr_assert_eq(depth, 1);
}

static void *open_first(void)
{
    fwa_gpu_properties properties;
    fwa_message message = {""};
    void *device = NULL;
    char name[100];
    cr_assert_eq(table->open(0, &device, &properties, name, sizeof name, &message), FWA_OK, "%s",
                 message.text);
    return device;
}

static void expect_no_device(const char *words)
{
    fwa_message message = {""};
    cr_assert_eq(table->device_count(&message), 0);
    cr_assert_not_null(strstr(message.text, words), "\"%s\" lacks \"%s\"", message.text, words);
}

/* ---- What there is ---- */

Test(cuda, one_device)
{
    fwa_message message = {""};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(table->device_count(&message), 1);
    cr_assert_eq(record()->inits, 1);
    cr_assert_eq(record()->contexts, 0);
}

Test(cuda, no_device_listed)
{
    setenv("FAKE_CUDA_DEVICES", "", 1);
    expect_no_device("no device");
}

Test(cuda, no_device_at_init)
{
    setenv("FAKE_CUDA_FAIL", "cuInit=100", 1);
    expect_no_device("no device");
}

Test(cuda, init_fails)
{
    setenv("FAKE_CUDA_FAIL", "cuInit=3", 1);
    expect_no_device("cuInit: CUDA_ERROR_NOT_INITIALIZED (initialization error)");
}

Test(cuda, list_fails)
{
    setenv("FAKE_CUDA_FAIL", "cuDeviceGetAttribute=1", 1);
    expect_no_device("CUDA_ERROR_INVALID_VALUE (invalid argument)");
}

Test(cuda, old_driver)
{
    char words[100];
    snprintf(words, sizeof words, "driver 11.4 is older than %d.0 that these kernels need",
             CUDA_VERSION / 1000);
    setenv("FAKE_CUDA_VERSION", "11040", 1);
    expect_no_device(words);
    cr_assert_eq(record()->inits, 0);
}

Test(cuda, old_driver_of_the_same_major_version)
{
    fwa_message message = {""};
    char version[16];
    snprintf(version, sizeof version, "%d", CUDA_VERSION / 1000 * 1000);
    setenv("FAKE_CUDA_VERSION", version, 1);
    cr_assert_eq(table->device_count(&message), 1);
}

Test(cuda, no_image)
{
    setenv("FAKE_CUDA_DEVICES", "75 61", 1);
    expect_no_device("device 0 (Fake 75A, sm_75) has no kernel image in this module "
                     "(sm_80 sm_90a compute_90)");
}

/* Those that there is an image for, in the driver's order. */
Test(cuda, several_devices)
{
    static const char *const names[] = {"Fake 90B, sm_90", "Fake 86C, sm_86", "Fake 120E, sm_120",
                                        "Fake 80F, sm_80", "Fake 89G, sm_89", "Fake 103H, sm_103"};
    static const int32_t architectures[] = {90, 86, 120, 80, 89, 103};
    fwa_message message = {""};
    setenv("FAKE_CUDA_DEVICES", "75 90 86 70 120 80 89 103", 1);
    cr_assert_eq(table->device_count(&message), 6);
    cr_assert_str_eq(message.text, "");
    for (int32_t i = 0; i < 6; i++) {
        fwa_gpu_properties properties = {0};
        void *device = NULL;
        char name[100];
        cr_assert_eq(table->open(i, &device, &properties, name, sizeof name, &message), FWA_OK);
        cr_assert_str_eq(name, names[i]);
        cr_assert_eq(properties.architecture, architectures[i]);
        cr_assert_eq(properties.processors, 132);
        cr_assert_eq(properties.wave, 32);
        cr_assert_eq(properties.shared, 232448);
        table->close(device);
    }
}

Test(cuda, index_out_of_range)
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
    cr_assert_eq(record()->contexts, 0);
}

/* ---- Opening and closing ---- */

Test(cuda, open_and_close)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba}; /* of a fat binary */
    void *first, *second;
    fake()->push(PROGRAMS_CONTEXT);
    first = open_first();
    second = open_first();
    cr_assert_eq(record()->contexts, 2);
    cr_assert_eq(record()->modules, 2);
    cr_assert_arr_eq(record()->image, magic, sizeof magic);
    expect_context();
    table->close(first);
    cr_assert_eq(record()->contexts, 1);
    cr_assert_eq(record()->modules, 1);
    cr_assert_geq(record()->synchronized, 1);
    table->close(second);
    cr_assert_eq(record()->contexts, 0);
    cr_assert_eq(record()->modules, 0);
    expect_context();
}

/* Whichever call fails, nothing is kept. */
Test(cuda, open_fails)
{
    static const struct {
        const char *fail, *words;
        fwa_status status;
    } cases[] = {
        {"cuDevicePrimaryCtxRetain=2",
         "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", FWA_ERROR_MEMORY},
        {"cuCtxPushCurrent=201", "cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT", FWA_ERROR_DEVICE},
        {"cuModuleLoadData=700", "cuModuleLoadData: CUDA_ERROR_ILLEGAL_ADDRESS", FWA_ERROR_DEVICE},
        {"cuModuleLoadData=98765", "cuModuleLoadData: unknown error 98765", FWA_ERROR_DEVICE},
        {"cuDeviceGetName=1", "cuDeviceGetName: CUDA_ERROR_INVALID_VALUE", FWA_ERROR_DEVICE},
        {"cuDeviceGetAttribute=1", "cuDeviceGetAttribute: ", FWA_ERROR_DEVICE},
    };
    fwa_message count = {""};
    cr_assert_eq(table->device_count(&count), 1);
    fake()->push(PROGRAMS_CONTEXT);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fwa_gpu_properties properties;
        fwa_message message = {""};
        void *device = NULL;
        char name[100];
        setenv("FAKE_CUDA_FAIL", cases[i].fail, 1);
        cr_assert_eq(table->open(0, &device, &properties, name, sizeof name, &message),
                     cases[i].status);
        cr_assert_not_null(strstr(message.text, cases[i].words), "%s", message.text);
        cr_assert_eq(record()->contexts, 0);
        cr_assert_eq(record()->modules, 0);
        expect_context();
    }
}

/* ---- Memory ---- */

Test(cuda, memory)
{
    const char text[] = "sixteen letters";
    fwa_message message = {""};
    char back[sizeof text] = "";
    void *device, *memory = NULL, *nothing = NULL;
    fake()->push(PROGRAMS_CONTEXT);
    device = open_first();
    cr_assert_eq(table->allocate(device, sizeof text, &memory, &message), FWA_OK);
    cr_assert_eq(record()->allocated, sizeof text);
    cr_assert_eq(table->allocate(device, 0, &nothing, &message), FWA_OK);
    cr_assert_eq(record()->allocated, 1);
    cr_assert_not_null(nothing);
    cr_assert_eq(record()->synchronized, 0);
    /* Both wait before the copy, the write also behind it. */
    cr_assert_eq(table->write(device, memory, text, sizeof text, &message), FWA_OK);
    cr_assert_eq(record()->synchronized_before_copy, 1);
    cr_assert_eq(record()->synchronized, 2);
    cr_assert_eq(table->read(device, back, memory, sizeof text, &message), FWA_OK);
    cr_assert_eq(record()->synchronized_before_copy, 3);
    cr_assert_str_eq(back, text);
    cr_assert_eq(table->write(device, NULL, NULL, 0, &message), FWA_OK);
    cr_assert_eq(table->read(device, NULL, NULL, 0, &message), FWA_OK);
    expect_context();
    table->release(device, memory);
    table->release(device, nothing);
    table->release(device, NULL);
    cr_assert_eq(record()->allocations, 0);
    expect_context();
    table->close(device);
}

Test(cuda, memory_fails)
{
    static const struct {
        const char *fail;
        fwa_status allocate, write, read;
    } cases[] = {
        {"cuMemAlloc=2", FWA_ERROR_MEMORY, FWA_OK, FWA_OK},
        {"cuMemAlloc=700", FWA_ERROR_DEVICE, FWA_OK, FWA_OK},
        {"cuMemcpyHtoD=700", FWA_OK, FWA_ERROR_DEVICE, FWA_OK},
        {"cuMemcpyDtoH=1", FWA_OK, FWA_OK, FWA_ERROR_DEVICE},
        {"cuCtxSynchronize=700", FWA_OK, FWA_ERROR_DEVICE, FWA_ERROR_DEVICE},
        {"cuCtxPushCurrent=201", FWA_ERROR_DEVICE, FWA_ERROR_DEVICE, FWA_ERROR_DEVICE},
    };
    char bytes[8] = "";
    void *device, *memory = NULL;
    fwa_message message = {""};
    fake()->push(PROGRAMS_CONTEXT);
    device = open_first();
    cr_assert_eq(table->allocate(device, sizeof bytes, &memory, &message), FWA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *more = NULL;
        setenv("FAKE_CUDA_FAIL", cases[i].fail, 1);
        message.text[0] = '\0';
        cr_assert_eq(table->allocate(device, 8, &more, &message), cases[i].allocate);
        cr_assert((more != NULL) == (cases[i].allocate == FWA_OK));
        cr_assert_eq(table->write(device, memory, bytes, 8, &message), cases[i].write);
        cr_assert_eq(table->read(device, bytes, memory, 8, &message), cases[i].read);
        cr_assert_eq(strncmp(message.text, cases[i].fail, strcspn(cases[i].fail, "=")), 0, "%s",
                     message.text);
        expect_context();
        unsetenv("FAKE_CUDA_FAIL");
        table->release(device, more);
    }
    table->release(device, memory);
    table->close(device);
    cr_assert_eq(record()->allocations, 0);
}

/* ---- Kernels ---- */

/* Plans share a function: what one needs must not be taken away by the next. */
Test(cuda, shared_memory_limit_grows)
{
    static const int32_t wanted[] = {0, 49152, 100000, 50000, 100000, 232448, 10};
    static const int limit[] = {49152, 49152, 100000, 100000, 100000, 232448, 232448};
    fwa_message message = {""};
    void *device, *kernel = NULL;
    fake()->push(PROGRAMS_CONTEXT);
    device = open_first();
    for (int i = 0; i < 7; i++) {
        cr_assert_eq(table->kernel(device, "some", wanted[i], &kernel, &message), FWA_OK);
        cr_assert_eq(record()->shared_limit, limit[i]);
        cr_assert_not_null(kernel);
    }
    cr_assert_eq(record()->limits_set, 2);
    expect_context();
    cr_assert_eq(table->kernel(device, "some", 300000, &kernel, &message), FWA_ERROR_DEVICE);
    cr_assert_str_eq(message.text, "kernel some: cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE "
                                   "(invalid argument)");
    cr_assert_eq(table->kernel(device, "no_such_kernel", 0, &kernel, &message), FWA_ERROR_DEVICE);
    cr_assert_str_eq(message.text, "kernel no_such_kernel: cuModuleGetFunction: "
                                   "CUDA_ERROR_NOT_FOUND (named symbol not found)");
    expect_context();
    table->close(device);
}

Test(cuda, launch)
{
    int stream_at; /* any address */
    void *const streams[] = {NULL, &stream_at};
    unsigned char args[3000];
    fwa_message message = {""};
    void *device, *kernel = NULL;
    for (size_t i = 0; i < sizeof args; i++)
        args[i] = (unsigned char)(i * 7 + i / 256);
    fake()->push(PROGRAMS_CONTEXT);
    device = open_first();
    cr_assert_eq(table->kernel(device, "some", 1000, &kernel, &message), FWA_OK);
    for (int i = 0; i < 2; i++) {
        const int64_t blocks = i ? INT32_MAX : 12345;
        cr_assert_eq(table->launch(device, kernel, blocks, 256, 1000, streams[i], args, sizeof args,
                                   &message),
                     FWA_OK);
        cr_assert_eq(record()->launches, i + 1);
        cr_assert_eq(record()->launch.function, kernel);
        cr_assert_eq(record()->launch.stream, streams[i]);
        cr_assert_eq(record()->launch.grid[0], (unsigned)blocks);
        cr_assert_eq(record()->launch.block[0], 256);
        for (int axis = 1; axis < 3; axis++) {
            cr_assert_eq(record()->launch.grid[axis], 1);
            cr_assert_eq(record()->launch.block[axis], 1);
        }
        cr_assert_eq(record()->launch.shared, 1000);
        cr_assert_eq(record()->launch.size, sizeof args);
        cr_assert_arr_eq(record()->launch.args, args, sizeof args);
        expect_context();
    }
    cr_assert_eq(record()->synchronized, 0);
    table->close(device);
}

Test(cuda, launches_refused)
{
    static const int64_t bad[] = {(int64_t)INT32_MAX + 1, INT64_MAX, -1};
    fwa_message message = {""};
    void *device, *kernel = NULL;
    int args = 0;
    fake()->push(PROGRAMS_CONTEXT);
    device = open_first();
    cr_assert_eq(table->kernel(device, "some", 0, &kernel, &message), FWA_OK);
    for (int i = 0; i < 3; i++) {
        char words[60];
        snprintf(words, sizeof words, "the call has %lld blocks", (long long)bad[i]);
        cr_assert_eq(
            table->launch(device, kernel, bad[i], 32, 0, NULL, &args, sizeof args, &message),
            FWA_ERROR_SHAPE);
        cr_assert_not_null(strstr(message.text, words), "%s", message.text);
    }
    /* No work is none. */
    cr_assert_eq(table->launch(device, kernel, 0, 32, 0, NULL, &args, sizeof args, &message),
                 FWA_OK);
    cr_assert_eq(record()->launches, 0);
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=700", 1);
    cr_assert_eq(table->launch(device, kernel, 1, 32, 0, NULL, &args, sizeof args, &message),
                 FWA_ERROR_DEVICE);
    cr_assert_str_eq(message.text,
                     "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access)");
    expect_context();
    table->close(device);
}

/* ---- Processes and threads ---- */

/* In a child: everything is an error, and nothing reaches the driver. 0 where that is so. */
static int use_in_child(void *device, void *kernel, void *memory)
{
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
        table->kernel(device, "some", 0, &other, &message) != FWA_ERROR_DEVICE ||
        table->launch(device, kernel, 1, 32, 0, NULL, &word, 4, &message) != FWA_ERROR_DEVICE)
        return 3;
    table->release(device, memory);
    table->close(device);
    return record()->foreign == 0 && record()->launches == 0 ? 0 : 4;
}

Test(cuda, fork)
{
    fwa_message message = {""};
    void *device = open_first(), *kernel = NULL, *memory = NULL;
    int status = -1;
    pid_t child;
    cr_assert_eq(table->kernel(device, "some", 0, &kernel, &message), FWA_OK);
    cr_assert_eq(table->allocate(device, 4, &memory, &message), FWA_OK);
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(use_in_child(device, kernel, memory));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    table->release(device, memory);
    table->close(device);
    cr_assert_eq(record()->contexts, 0);
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
        if (table->kernel(device, "some", 50000 + i, &kernel, &message) != FWA_OK ||
            table->allocate(device, 100, &memory, &message) != FWA_OK)
            return NULL;
        table->release(device, memory);
        table->close(device);
    }
    *(int *)good = 1;
    return NULL;
}

Test(cuda, threads)
{
    pthread_t threads[4];
    int good[4] = {0};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, use_in_thread, &good[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(good[i]);
    }
    cr_assert_eq(record()->inits, 1);
    cr_assert_eq(record()->contexts, 0);
    cr_assert_eq(record()->modules, 0);
    cr_assert_eq(record()->allocations, 0);
}
