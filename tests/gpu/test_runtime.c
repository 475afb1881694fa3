/* SPDX-License-Identifier: Apache-2.0 */
/* The emulation of GPUs: what barriers, shuffles and sums give, in every order of threads; that kernels
 * which are wrong are found to be. Kernels: test_kernels.cpp. */

#include "../../src/gpu/args.h"
#include "../../src/gpu/drv.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 128
#define WAVES   (THREADS / FWA_WAVE)
#define BLOCKS  3
#define SHARED  (THREADS * 4)

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#endif
#ifndef HAVE_ASAN
#define HAVE_ASAN 0
#endif

static const char *const orders[] = {"forward", "reverse", "random", "random:7"};
#define ORDERS 4

static const fwa_gpu_driver *const driver = &fwa_gpu_driver_table;

/* ---- Devices and launches ---- */

static void *open_in_order(const char *order)
{
    fwa_message message = {{0}};
    fwa_gpu_properties properties;
    char name[64];
    void *device = NULL;
    setenv("FWA_GPU_EMULATION_ORDER", order, 1);
    cr_assert_eq(driver->open(0, &device, &properties, name, sizeof name, &message), FWA_OK, "%s",
                 message.text);
    return device;
}

static fwa_status try_launch(void *device, const char *name, int64_t blocks, int32_t shared,
                             const fwa_gpu_args *args, fwa_message *message)
{
    void *kernel = NULL;
    const fwa_status status = driver->kernel(device, name, shared, &kernel, message);
    return status != FWA_OK ? status
                            : driver->launch(device, kernel, blocks, THREADS, shared, NULL, args,
                                             sizeof *args, message);
}

static void launch(void *device, const char *name, int64_t blocks, int32_t shared,
                   const fwa_gpu_args *args)
{
    fwa_message message = {{0}};
    cr_assert_eq(try_launch(device, name, blocks, shared, args, &message), FWA_OK, "%s: %s", name,
                 message.text);
}

static void *zeros(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    cr_assert(memory);
    return memory;
}

/* ---- The driver ---- */

Test(gpu_driver, device)
{
    fwa_message message = {{0}};
    fwa_gpu_properties properties = {0};
    char name[64];
    void *device = NULL;
    cr_assert_eq(driver->device_count(&message), 1);
    unsetenv("FWA_GPU_EMULATION_ORDER");
    cr_assert_eq(driver->open(0, &device, &properties, name, sizeof name, &message), FWA_OK);
    cr_assert_eq(properties.processors, 4);
    cr_assert_eq(properties.wave, FWA_WAVE);
    cr_assert_eq(properties.shared, FWA_SHARED_LIMIT);
    cr_assert_eq(properties.architecture, 0);
    cr_assert(strstr(name, "emulated"));
    driver->close(device);
    cr_assert_eq(driver->open(1, &device, &properties, name, sizeof name, &message),
                 FWA_ERROR_DEVICE);
    for (int i = 0; i < 3; i++) {
        static const char *const wrong[] = {"backwards", "random:", "random:1x"};
        setenv("FWA_GPU_EMULATION_ORDER", wrong[i], 1);
        cr_assert_eq(driver->open(0, &device, &properties, name, sizeof name, &message),
                     FWA_ERROR_VALUE);
        cr_assert(strstr(message.text, wrong[i]), "%s", message.text);
    }
}

Test(gpu_driver, memory)
{
    static const size_t sizes[] = {0, 1, 255, 256, 4097};
    void *device = open_in_order("forward");
    fwa_message message = {{0}};
    void *memory;
    for (int i = 0; i < 5; i++) {
        unsigned char *bytes;
        cr_assert_eq(driver->allocate(device, sizes[i], &memory, &message), FWA_OK);
        bytes = memory;
        cr_assert_eq((uintptr_t)memory % 256, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            cr_assert_eq(bytes[j], 0xff);
        driver->release(device, memory);
    }
    cr_assert_eq(driver->allocate(device, 8, &memory, &message), FWA_OK);
    char back[8] = "";
    cr_assert_eq(driver->write(device, memory, "written", 8, &message), FWA_OK);
    cr_assert_eq(driver->read(device, back, memory, 8, &message), FWA_OK);
    cr_assert_str_eq(back, "written");
    driver->release(device, memory);
    cr_assert_eq(driver->allocate(device, SIZE_MAX / 2, &memory, &message), FWA_ERROR_MEMORY);
    cr_assert(strstr(message.text, "no memory"));
    driver->close(device);
}

Test(gpu_driver, refusals)
{
    void *device = open_in_order("forward"), *kernel = NULL;
    const fwa_gpu_args args = {.batch = 0};
    fwa_message message = {{0}};
    const struct {
        int64_t blocks;
        int32_t threads, shared;
        size_t args_size;
        const char *words;
    } wrong[] = {
        {0, THREADS, 0, sizeof args, "0 blocks"},
        {-1, THREADS, 0, sizeof args, "-1 blocks"},
        {(int64_t)1 << 31, THREADS, 0, sizeof args, "2147483648 blocks"},
        {1, THREADS / 2, 0, sizeof args, "it has 128"},
        {1, THREADS, 1025, sizeof args, "1024 were asked for"},
        {1, THREADS, -1, sizeof args, "-1 bytes"},
        {1, THREADS, 0, sizeof args - 8, "bytes of arguments"},
    };
    cr_assert_eq(driver->kernel(device, "test_nothing", 0, &kernel, &message), FWA_ERROR_DEVICE);
    cr_assert(strstr(message.text, "test_nothing"));
    cr_assert_eq(driver->kernel(device, "test_indices", FWA_SHARED_LIMIT + 1, &kernel, &message),
                 FWA_ERROR_DEVICE);
    cr_assert_eq(driver->kernel(device, "test_indices", 1024, &kernel, &message), FWA_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(driver->launch(device, kernel, wrong[i].blocks, wrong[i].threads,
                                    wrong[i].shared, NULL, &args, wrong[i].args_size, &message),
                     FWA_ERROR_DEVICE, "%s", wrong[i].words);
        cr_assert(strstr(message.text, wrong[i].words), "%s", message.text);
    }
    driver->close(device);
}

/* ---- What kernels compute ---- */

Test(gpu_runtime, indices)
{
    int32_t *out = zeros(BLOCKS * THREADS, sizeof *out);
    for (int o = 0; o < ORDERS; o++) {
        void *device = open_in_order(orders[o]);
        const fwa_gpu_args args = {.order = out};
        memset(out, 0, BLOCKS * THREADS * sizeof *out);
        launch(device, "test_indices", BLOCKS, 0, &args);
        for (int i = 0; i < BLOCKS * THREADS; i++)
            cr_assert_eq(out[i], i);
        driver->close(device);
    }
    free(out);
}

static void expect_barriers(void *device, int64_t rounds)
{
    int32_t *out = zeros(BLOCKS * THREADS, sizeof *out);
    const fwa_gpu_args args = {.batch = rounds, .order = out};
    launch(device, "test_barrier", BLOCKS, SHARED, &args);
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        const int thread = i % THREADS, from = rounds % 2 ? THREADS - 1 - thread : thread;
        cr_assert_eq(out[i], i - thread + from + rounds);
    }
    free(out);
}

Test(gpu_runtime, barrier)
{
    for (int o = 0; o < ORDERS; o++) {
        void *device = open_in_order(orders[o]);
        expect_barriers(device, 1);
        expect_barriers(device, 16);
        driver->close(device);
    }
}

Test(gpu_runtime, wave_barrier)
{
    int32_t out[THREADS];
    for (int o = 0; o < ORDERS; o++) {
        void *device = open_in_order(orders[o]);
        const fwa_gpu_args args = {.order = out};
        launch(device, "test_wave_barrier", 1, SHARED, &args);
        for (int i = 0; i < THREADS; i++)
            cr_assert_eq(out[i], (i ^ 1) + 1);
        driver->close(device);
    }
}

Test(gpu_runtime, shuffle)
{
    int32_t *out = zeros(2 * BLOCKS * THREADS, sizeof *out);
    for (int o = 0; o < ORDERS; o++) {
        void *device = open_in_order(orders[o]);
        const fwa_gpu_args args = {.batch = 5, .order = out};
        launch(device, "test_shuffle", BLOCKS, 0, &args);
        for (int i = 0; i < BLOCKS * THREADS; i++) {
            const int thread = i % THREADS, first = thread / FWA_WAVE * FWA_WAVE;
            cr_assert_eq(out[2 * i], 3 * (first + (thread + 5) % FWA_WAVE));
            cr_assert_eq(out[2 * i + 1], 3 * (first + 4));
        }
        driver->close(device);
    }
    free(out);
}

/* The sum of n + 1 over the lanes n that differ from `lane` in the bits of [from, to) alone. */
static float lane_sum(int lane, int from, int to, float addend)
{
    float sum = 0;
    for (int n = 0; n < FWA_WAVE; n++)
        if (((n ^ lane) & ~(to - from)) == 0)
            sum += (float)(n + 1) + addend;
    return sum;
}

Test(gpu_runtime, sums)
{
    static const struct {
        int at, from, to, count;
    } sums[] = {
        {0, 1, FWA_WAVE, 1}, {1, 1, 8, 3}, {4, 4, 16, 2}, {6, FWA_WAVE / 2, FWA_WAVE, 2},
        {8, 8, 8, 8},
    };
    float *out = zeros(16 * THREADS, sizeof *out);
    for (int o = 0; o < ORDERS; o++) {
        void *device = open_in_order(orders[o]);
        const fwa_gpu_args args = {.states = out};
        launch(device, "test_sums", 1, 0, &args);
        for (int i = 0; i < THREADS; i++)
            for (int s = 0; s < 5; s++)
                for (int n = 0; n < sums[s].count; n++)
                    cr_assert_eq(out[16 * i + sums[s].at + n],
                                 lane_sum(i % FWA_WAVE, sums[s].from, sums[s].to, 0.25f * (float)n),
                                 "thread %d, sum %d, value %d", i, s, n);
        driver->close(device);
    }
    free(out);
}

Test(gpu_runtime, poison)
{
    int32_t *out = zeros(BLOCKS * THREADS, sizeof *out);
    void *device = open_in_order("forward");
    const fwa_gpu_args args = {.order = out};
    launch(device, "test_poison", BLOCKS, SHARED, &args);
    for (int i = 0; i < BLOCKS * THREADS; i++)
        cr_assert_eq(out[i], -1);
    driver->close(device);
    free(out);
}

/* 64 KiB of frames. */
Test(gpu_runtime, deep_stacks)
{
    float out[THREADS];
    void *device = open_in_order("random");
    const fwa_gpu_args args = {.batch = 7, .states = out};
    launch(device, "test_deep", 1, 0, &args);
    for (int i = 0; i < THREADS; i++) {
        float expected = 0, values = 0;
        for (int depth = 7; depth >= 0; depth--)
            expected += values += (float)(i + depth);
        cr_assert_eq(out[i], expected);
    }
    driver->close(device);
}

typedef struct worker {
    pthread_t thread;
    void *device;
} worker;

static void *work(void *data)
{
    const worker *self = data;
    for (int i = 0; i < 20; i++)
        expect_barriers(self->device, i);
    return NULL;
}

Test(gpu_runtime, host_threads)
{
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i].device = open_in_order(orders[i]);
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        driver->close(workers[i].device);
    }
}

/* ---- Orders ---- */

static void order_of_blocks(const char *order, int32_t *out)
{
    void *device = open_in_order(order);
    const fwa_gpu_args args = {.pool_in = 10, .order = out};
    out[10] = 0;
    launch(device, "test_block_order", 10, 0, &args);
    driver->close(device);
}

Test(gpu_orders, blocks)
{
    int32_t out[11], again[11], seen = 0, moved = 0;
    order_of_blocks("forward", out);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(out[i], i);
    order_of_blocks("reverse", out);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(out[i], 9 - i);
    for (int seed = 0; seed < 4; seed++) {
        char order[24];
        snprintf(order, sizeof order, "random:%d", seed);
        order_of_blocks(order, out);
        order_of_blocks(order, again);
        cr_assert_arr_eq(out, again, sizeof out);
        seen = 0;
        for (int i = 0; i < 10; i++) {
            seen |= 1 << out[i];
            moved += out[i] != i && out[i] != 9 - i;
        }
        cr_assert_eq(seen, 1023);
    }
    cr_assert_gt(moved, 0);
}

static void order_of_waves(const char *order, int32_t *out)
{
    void *device = open_in_order(order);
    const fwa_gpu_args args = {.order = out};
    launch(device, "test_turns", 1, 4, &args);
    driver->close(device);
}

Test(gpu_orders, waves)
{
    int32_t out[4 * WAVES], changes = 0;
    order_of_waves("forward", out);
    for (int i = 0; i < 4 * WAVES; i++)
        cr_assert_eq(out[i], i / 4);
    order_of_waves("reverse", out);
    for (int i = 0; i < 4 * WAVES; i++)
        cr_assert_eq(out[i], WAVES - 1 - i / 4);
    order_of_waves("random:1", out);
    for (int i = 1; i < 4 * WAVES; i++)
        changes += out[i] != out[i - 1];
    cr_assert_geq(changes, WAVES, "waves take turns");
}

/* Where a barrier is missing, orders differ. */
static void expect_races(const char *kernel)
{
    int32_t out[2][THREADS];
    for (int o = 0; o < 2; o++) {
        void *device = open_in_order(orders[o]);
        const fwa_gpu_args args = {.batch = 1, .columns = 1, .order = out[o]};
        launch(device, kernel, 1, SHARED, &args);
        driver->close(device);
    }
    cr_assert_neq(memcmp(out[0], out[1], sizeof out[0]), 0);
}

Test(gpu_orders, missing_barrier)
{
    expect_races("test_barrier");
    expect_races("test_wave_barrier");
}

/* ---- Kernels that are wrong ---- */

/* What a child says that launches this kernel. Returns its wait status. */
static int launch_in_child(const char *kernel, const char *order, int32_t shared, fwa_gpu_args args,
                           char *text, size_t size)
{
    size_t length = 0;
    ssize_t count;
    int ends[2], status = 0;
    pid_t child;
    cr_assert_eq(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        static int32_t order_out[THREADS];
        static float states[THREADS];
        fwa_message message;
        void *device = open_in_order(order);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        args.order = order_out;
        args.states = states;
        _exit(try_launch(device, kernel, 1, shared, &args, &message) == FWA_OK ? 0 : 99);
    }
    cr_assert_gt(child, 0);
    close(ends[1]);
    while ((count = read(ends[0], text + length, size - 1 - length)) > 0)
        length += (size_t)count;
    text[length] = '\0';
    close(ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

static void expect_abort(const char *kernel, int64_t batch, const char *const words[4])
{
    for (int o = 0; o < ORDERS; o++) {
        char text[16384];
        const fwa_gpu_args args = {.batch = batch};
        const int status = launch_in_child(kernel, orders[o], 0, args, text, sizeof text);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s, %s: status 0x%x\n%s",
                  kernel, orders[o], (unsigned)status, text);
        cr_assert(strstr(text, kernel), "%s", text);
        cr_assert(strstr(text, "block 0 of 1"), "%s", text);
        for (int i = 0; i < 4 && words[i]; i++)
            cr_assert(strstr(text, words[i]), "%s, %s: '%s' is missing in\n%s", kernel, orders[o],
                      words[i], text);
    }
}

#define WORDS(...) ((const char *const[4]){__VA_ARGS__})

Test(gpu_wrong, returned)
{
    expect_abort("test_returned", 64,
                 WORDS("threads 0 to 63: at barrier()", "threads 64 to 127: returned"));
    expect_abort("test_returned", 63, WORDS("62: at barrier()", ": returned", "do not meet"));
    expect_abort("test_lanes_returned", 0,
                 WORDS("threads 0 to 4: at shuffle() of int", "thread 5: returned"));
}

Test(gpu_wrong, mixed)
{
    expect_abort("test_mixed", 0, WORDS("thread 0: at barrier()", ": at wave_barrier()", "wave 0"));
    expect_abort("test_mixed", 127, WORDS("thread 127: at barrier()", "to 126: at wave_barrier()"));
    expect_abort(
        "test_mixed_sums", 0,
        WORDS("threads 0 to 2: in sum_lanes<1, 4> of 2 values", "in sum_lanes<1, 8> of 2 values"));
}

Test(gpu_wrong, no_lane)
{
    expect_abort("test_no_lane", FWA_WAVE, WORDS("from lane"));
    expect_abort("test_no_lane", -1, WORDS("from lane -1"));
}

/* Shared memory ends where it does: only AddressSanitizer sees that. */
Test(gpu_wrong, beyond)
{
    static const struct {
        int64_t read;
        int32_t write;
        const char *words;
    } cases[] = {{99, 0, NULL}, {100, -1, "READ of size 1"}, {99, 1, "WRITE of size 1"}};
    for (int i = 0; i < (HAVE_ASAN ? 3 : 1); i++) {
        char text[16384];
        const fwa_gpu_args args = {.batch = cases[i].read, .columns = cases[i].write};
        const int status = launch_in_child("test_beyond", "forward", 100, args, text, sizeof text);
        cr_assert(WIFEXITED(status), "0x%x", (unsigned)status);
        cr_assert_eq(WEXITSTATUS(status) == 0, !cases[i].words, "%s", text);
        if (cases[i].words)
            cr_assert(strstr(text, "heap-buffer-overflow") && strstr(text, cases[i].words), "%s",
                      text);
    }
}

/* Too deep for a stack: a guard page, not a neighbour's stack. */
Test(gpu_wrong, stack)
{
    char text[16384];
    const fwa_gpu_args args = {.batch = 1000};
    const int status = launch_in_child("test_deep", "forward", 0, args, text, sizeof text);
    cr_assert(WIFSIGNALED(status) || strstr(text, "stack-overflow"), "0x%x %s", (unsigned)status,
              text);
}
