/* SPDX-License-Identifier: Apache-2.0 */
/* Backends and modules: what is found, what is refused and why. The tests may share a process, and
 * what was loaded stays: they hold in any order. */

#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void use_modules(void)
{
    setenv("FWA_BACKEND_PATH", MODULE_DIRECTORY, 1);
}

static fwa_status try_backend(const char *name)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    fwa_status status;
    options.backend = name;
    options.threads = 2;
    status = fwa_context_create(&options, &context);
    cr_assert((status == FWA_OK) == (context != NULL));
    fwa_context_destroy(context);
    return status;
}

/* Its place in the list; -1 where it is not listed. */
static int32_t find_info(const char *name, fwa_backend_info *info)
{
    for (int32_t i = 0; i < fwa_backend_count(); i++) {
        *info = (fwa_backend_info)FWA_BACKEND_INFO_INIT;
        cr_assert_eq(fwa_backend_get(i, info), FWA_OK);
        if (strcmp(info->name, name) == 0)
            return i;
    }
    return -1;
}

/* ---- Without modules ---- */

Test(registry, built_in)
{
    static const char *const names[] = {"cpu", "cuda", "hip", "reference"};
    unsetenv("FWA_BACKEND_PATH");
    cr_assert_geq(fwa_backend_count(), 4);
    for (int32_t i = 0; i < 4; i++) {
        fwa_backend_info info = FWA_BACKEND_INFO_INIT;
        cr_assert_eq(fwa_backend_get(i, &info), FWA_OK);
        cr_assert_str_eq(info.name, names[i]);
        if (i == 0 || i == 3) {
            cr_assert_str_eq(info.origin, "built in");
            cr_assert_str_eq(info.reason, "");
            cr_assert_gt(strlen(info.description), 0);
            cr_assert_eq(info.available, 1);
            cr_assert_eq(info.device_count, 1);
        } else if (!info.available) {
            cr_assert_gt(strlen(info.reason), 0);
            cr_assert_eq(info.origin[0], '/');
        }
    }
}

Test(registry, index_out_of_range)
{
    const int32_t count = fwa_backend_count(), bad[] = {-1, count, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        fwa_backend_info info = FWA_BACKEND_INFO_INIT, same = info;
        char text[48];
        snprintf(text, sizeof text, "index is %d; there are %d backends", (int)bad[i], (int)count);
        expect_message(fwa_backend_get(bad[i], &info), FWA_ERROR_VALUE, text);
        cr_assert_arr_eq(&info, &same, sizeof info);
    }
}

Test(registry, names)
{
    static const char *const names[] = {
        "",  "CPU",     "cpu ",   "../cpu",   "a/b",    "..",
        ".", "cuda-12", "fwa.so", "\xc3\xa9", "%s%s%n", "abcdefghijklmnopqrstuvwxyz_123456"};
    use_modules();
    const int32_t count = fwa_backend_count();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "options->backend is \"%s\"", names[i]);
        expect_message(try_backend(names[i]), FWA_ERROR_VALUE, text, "1 to 31");
    }
    cr_assert_eq(fwa_backend_count(), count);
}

Test(registry, missing)
{
    fwa_backend_info info;
    use_modules();
    expect_message(try_backend("tpu"), FWA_ERROR_NO_BACKEND,
                   "backend tpu: " MODULE_DIRECTORY "/fwa-tpu.so", "no such file");
    /* Looked for in vain: it is listed from now on. */
    cr_assert_geq(find_info("tpu", &info), 4);
    cr_assert_eq(info.available, 0);
    cr_assert_eq(info.device_count, 0);
    cr_assert_str_eq(info.reason, "no such file");
    cr_assert_str_eq(info.origin, MODULE_DIRECTORY "/fwa-tpu.so");
    cr_assert_str_eq(info.description, "");
}

/* ---- Paths ---- */

Test(registry, relative_path)
{
    static const char *const paths[] = {".", "modules", "../modules", "~/modules"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        setenv("FWA_BACKEND_PATH", paths[i], 1);
        cr_assert_eq(chdir(MODULE_DIRECTORY), 0);
        expect_message(try_backend("old_abi"), FWA_ERROR_NO_BACKEND, "FWA_BACKEND_PATH",
                       "not an absolute path");
    }
}

Test(registry, long_path)
{
    char path[2000];
    memset(path, 'd', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    setenv("FWA_BACKEND_PATH", path, 1);
    expect_message(try_backend("old_abi"), FWA_ERROR_NO_BACKEND, "backend old_abi", "too long");
    cr_assert_geq(fwa_backend_count(), 4);
}

Test(registry, empty_path_is_no_path)
{
    setenv("FWA_BACKEND_PATH", "", 1);
    expect_message(try_backend("old_abi"), FWA_ERROR_NO_BACKEND, "backend old_abi: /",
                   "fwa-old_abi.so: no such file");
}

Test(registry, path_that_is_not_there)
{
    const int32_t count = fwa_backend_count();
    setenv("FWA_BACKEND_PATH", "/nonexistent/directory", 1);
    expect_message(try_backend("cuda"), FWA_ERROR_NO_BACKEND,
                   "backend cuda: /nonexistent/directory/fwa-cuda.so: no such file");
    cr_assert_eq(fwa_backend_count(), count);
    cr_assert_eq(try_backend("cpu"), FWA_OK);
}

/* ---- Modules that are refused ---- */

Test(registry, refused)
{
    static const struct {
        const char *name;
        fwa_status status;
        const char *reason;
    } modules[] = {
        {"old_abi", FWA_ERROR_ABI, "the module has backend ABI 0, this library has "},
        {"new_abi", FWA_ERROR_ABI, "the module has backend ABI 4000000000, this library has "},
        {"table_abi", FWA_ERROR_ABI, "table"},
        {"smaller", FWA_ERROR_ABI, "table"},
        {"no_table", FWA_ERROR_ABI, "table"},
        {"no_forward", FWA_ERROR_ABI, "empty entry"},
        {"no_name", FWA_ERROR_ABI, "empty entry"},
        {"no_abi", FWA_ERROR_NO_BACKEND, "fwa_module_abi"},
        {"no_function", FWA_ERROR_NO_BACKEND, "fwa_module_backend"},
        {"alias", FWA_ERROR_NO_BACKEND, "name"},
        {"later", FWA_ERROR_NO_BACKEND, "name"},
        {"text", FWA_ERROR_NO_BACKEND, "fwa-text.so"},
    };
    use_modules();
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
            fwa_backend_info info;
            char where[600];
            snprintf(where, sizeof where, "backend %s: %s/fwa-%s.so: ", modules[i].name,
                     MODULE_DIRECTORY, modules[i].name);
            expect_message(try_backend(modules[i].name), modules[i].status, where,
                           modules[i].reason);
            cr_assert_geq(find_info(modules[i].name, &info), 4);
            cr_assert_eq(info.available, 0);
            cr_assert_eq(info.device_count, 0);
            cr_assert_str_eq(info.description, "");
            cr_assert(strstr(info.reason, modules[i].reason) != NULL, "%s", info.reason);
        }
}

Test(registry, no_device)
{
    fwa_backend_info info;
    use_modules();
    expect_message(try_backend("idle"), FWA_ERROR_DEVICE, "backend idle has no device");
    cr_assert_geq(find_info("idle", &info), 4);
    cr_assert_eq(info.available, 0);
    cr_assert_eq(info.device_count, 0);
    cr_assert_str_eq(info.reason, "no device");
}

/* A module knows why it has no device. */
Test(registry, no_device_and_why)
{
    fwa_backend_info info;
    use_modules();
    expect_message(try_backend("unplugged"), FWA_ERROR_DEVICE,
                   "backend unplugged has no device: the cable is loose");
    cr_assert_geq(find_info("unplugged", &info), 4);
    cr_assert_eq(info.available, 0);
    cr_assert_eq(info.device_count, 0);
    cr_assert_str_eq(info.reason, "the cable is loose");
}

/* ---- Modules that work ---- */

Test(registry, listed)
{
    fwa_backend_info info;
    use_modules();
    cr_assert_geq(find_info("zeros", &info), 4);
    cr_assert_eq(info.available, 1);
    cr_assert_eq(info.device_count, 1);
    cr_assert_str_eq(info.reason, "");
    cr_assert_str_eq(info.description, "zeros, for tests");
    cr_assert_str_eq(info.origin, MODULE_DIRECTORY "/fwa-zeros.so");
    cr_assert_geq(find_info("bigger", &info), 4);
    cr_assert_eq(info.available, 1);
    /* Each one once, also after a second look. */
    const int32_t count = fwa_backend_count();
    cr_assert_eq(fwa_backend_count(), count);
    for (int32_t i = 0; i < count; i++) {
        fwa_backend_info one = FWA_BACKEND_INFO_INIT;
        cr_assert_eq(fwa_backend_get(i, &one), FWA_OK);
        cr_assert_eq(find_info(one.name, &info), i, "%s", one.name);
    }
}

static void check_zeros(const char *name)
{
    setup s = setup_small(name);
    s.threads = 2;
    for (int pass = 0; pass < 2; pass++) {
        call *c = call_new(&s, (fwa_pass)pass);
        cr_assert_str_eq(fwa_context_backend(c->context), name);
        cr_assert_str_eq(fwa_context_device(c->context), "zeros 0");
        cr_assert_str_eq(fwa_plan_kernel_name(c->plan, (fwa_pass)pass),
                         pass ? "zeros/backward" : "zeros/forward");
        call_ok(c);
        cr_assert(tensor_all(call_get(c, pass ? "q_grad" : "o"), 0));
        /* What the front end checks, it checks for modules too. */
        tensor_set(call_get(c, "beta"), 0, -1);
        call_fails(c, FWA_ERROR_VALUE, "beta at [0, 0, 0] is -1");
        call_free(c);
    }
}

Test(registry, works)
{
    use_modules();
    check_zeros("zeros");
}

Test(registry, newer_table_works)
{
    use_modules();
    check_zeros("bigger");
}

Test(registry, module_errors_reach_the_caller)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    fwa_plan *plan = NULL;
    int stream;
    use_modules();
    setup s = setup_small("zeros");
    call *c = call_new(&s, FWA_PASS_FORWARD);
    c->forward.stream = &stream;
    call_fails(c, FWA_ERROR_DEVICE, "backend zeros: the device faulted");
    s.problem.key_dim = 5;
    expect_message(fwa_plan_create(c->context, &s.problem, &plan), FWA_ERROR_UNSUPPORTED,
                   "backend zeros: zeros come as 4 x 3 only");
    s.problem.key_dim = 4;
    s.problem.phi = FWA_FEATURE_MAP_RELU;
    expect_message(fwa_plan_create(c->context, &s.problem, &plan), FWA_ERROR_MEMORY,
                   "backend zeros: out of plans");
    cr_assert_null(plan);
    call_free(c);
    options.backend = "pair";
    options.device = 1;
    expect_message(fwa_context_create(&options, &context), FWA_ERROR_DEVICE,
                   "pair: device 1 is busy");
    cr_assert_null(context);
    options.device = 2;
    expect_message(fwa_context_create(&options, &context), FWA_ERROR_VALUE, "options->device is 2",
                   "2 devices");
}

/* Files in the directory that are no modules are not listed: other names, other endings. */
Test(registry, other_files)
{
    static const char *const files[] = {"fwa-Upper.so", "fwa-.so",
                                        "fwa-x.so.1",   "libfwa-y.so",
                                        "fwa-z",        "fwa-abcdefghijklmnopqrstuvwxyz_123456.so"};
    char directory[] = "/tmp/fwa-modules-XXXXXX", path[256], target[256];
    fwa_backend_info info;
    cr_assert_not_null(mkdtemp(directory));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        fclose(fopen(path, "w"));
    }
    const int32_t count = fwa_backend_count();
    setenv("FWA_BACKEND_PATH", directory, 1);
    cr_assert_eq(fwa_backend_count(), count);
    /* A module that is put there later is found later. */
    cr_assert_eq(try_backend("late"), FWA_ERROR_NO_BACKEND);
    snprintf(path, sizeof path, "%s/fwa-late.so", directory);
    snprintf(target, sizeof target, "%s/fwa-later.so", MODULE_DIRECTORY);
    cr_assert_eq(symlink(target, path), 0);
    cr_assert_eq(try_backend("late"), FWA_OK, "%s", fwa_error_message());
    cr_assert_geq(find_info("late", &info), 4);
    cr_assert_eq(info.available, 1);
    cr_assert_str_eq(info.origin, path);
    unlink(path);
    /* A loaded module stays. */
    cr_assert_eq(try_backend("late"), FWA_OK);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        unlink(path);
    }
    rmdir(directory);
}

/* A directory, or a file that may not be read, in place of a module. */
Test(registry, unreadable)
{
    char directory[] = "/tmp/fwa-modules-XXXXXX", path[256];
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/fwa-folder.so", directory);
    cr_assert_eq(mkdir(path, 0700), 0);
    setenv("FWA_BACKEND_PATH", directory, 1);
    expect_message(try_backend("folder"), FWA_ERROR_NO_BACKEND,
                   "backend folder: ", "fwa-folder.so");
    rmdir(path);
    rmdir(directory);
}

/* In a child: asks for more names than the table has room for. 0 where each has its own error, and a
 * backend that is there is found all the same. */
static int fill_table(void)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    char name[16];
    int i;
    options.backend = name;
    for (i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "none_%d", i);
        if (fwa_context_create(&options, &context) != FWA_ERROR_NO_BACKEND)
            return 1;
        if (!strstr(fwa_error_message(), name) || !strstr(fwa_error_message(), "no such file"))
            return 2;
    }
    if (fwa_backend_count() != 32)
        return 4;
    use_modules();
    if (try_backend("zeros") != FWA_OK || try_backend("none_0") != FWA_ERROR_NO_BACKEND ||
        fwa_backend_count() != 32)
        return 5;
    options.backend = "reference";
    if (fwa_context_create(NULL, &context) != FWA_OK ||
        fwa_context_create(&options, &context) != FWA_OK)
        return 3;
    return 0;
}

Test(registry, too_many_names)
{
    int status = -1;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(fill_table());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

static void *list_backends(void *argument)
{
    const atomic_bool *stop = argument;
    while (!atomic_load(stop))
        fwa_backend_count();
    return NULL;
}

/* A child does not wait for what another thread of its parent was about. */
Test(registry, fork_while_listing)
{
    atomic_bool stop = false;
    pthread_t thread;
    /* No folder is read: a sanitizer's allocator may hang in a child when it was busy. */
    setenv("FWA_BACKEND_PATH", "/nowhere", 1);
    cr_assert_eq(pthread_create(&thread, NULL, list_backends, &stop), 0);
    for (int i = 0; i < 40; i++) {
        int status = -1;
        pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            fwa_context *context;
            alarm(10);
            _exit(fwa_context_create(NULL, &context) != FWA_OK);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

static void *load_from_thread(void *argument)
{
    fwa_status *status = argument;
    *status = FWA_OK;
    for (int i = 0; i < 20 && *status == FWA_OK; i++) {
        fwa_backend_info info;
        *status = try_backend("zeros");
        if (try_backend("old_abi") != FWA_ERROR_ABI || find_info("bigger", &info) < 4)
            *status = FWA_ERROR_INTERNAL;
    }
    return NULL;
}

Test(registry, many_threads)
{
    pthread_t threads[8];
    fwa_status status[8];
    use_modules();
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, load_from_thread, &status[i]);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(status[i], FWA_OK);
}
