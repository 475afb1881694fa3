/* SPDX-License-Identifier: Apache-2.0 */
/* The backend table: built-in backends, modules and what was looked for in vain. The one place in
 * the library with state of its own, behind one lock. */

#include "common.h"
#include "reference.h"
#include "../cpu/cpu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define ENTRY_LIMIT 32

typedef struct {
    const fwa_backend *backend; /* NULL: absent */
    fwa_status status;
    fwa_backend_info info;
} entry;

/* The order of preference. A NULL backend is a module. */
static const struct {
    const char *name;
    const fwa_backend *backend;
} known[] = {
    {"cpu", &fwa_cpu_backend},
    {"cuda", NULL},
    {"hip", NULL},
    {"reference", &fwa_reference_backend},
};

#define KNOWN (sizeof known / sizeof known[0])

static struct {
    pthread_mutex_t lock;
    _Atomic int64_t process; /* that the lock is of; minus it: the lock is being made */
    bool begun;              /* those that are known have been added */
    int32_t count;
    entry entries[ENTRY_LIMIT];
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static fwa_status absent(entry *e, fwa_status status, const char *reason)
{
    snprintf(e->info.reason, sizeof e->info.reason, "%s", reason);
    e->info.description[0] = '\0';
    e->info.available = 0;
    e->info.device_count = 0;
    e->backend = NULL;
    e->status = status;
    return status;
}

static void present(entry *e, const fwa_backend *backend)
{
    fwa_message message = {""};
    e->backend = backend;
    e->status = FWA_OK;
    e->info.reason[0] = '\0';
    snprintf(e->info.description, sizeof e->info.description, "%s", backend->description);
    e->info.device_count = backend->device_count(&message);
    e->info.available = e->info.device_count > 0;
    if (!e->info.available)
        snprintf(e->info.reason, sizeof e->info.reason, "%s",
                 message.text[0] ? message.text : "no device");
}

static bool complete(const fwa_backend *b)
{
    return b->name && b->description && b->device_count && b->open && b->close && b->allocate &&
           b->release && b->write && b->read && b->score && b->plan && b->plan_release &&
           b->kernel_name && b->workspace_size && b->saved_size && b->forward && b->backward;
}

/* Checks an opened module before anything in it is called. */
static fwa_status accept_module(entry *e, void *module)
{
    const uint32_t *abi = (const uint32_t *)dlsym(module, "fwa_module_abi");
    fwa_module_backend_function function = NULL;
    const fwa_backend *backend;
    void *symbol = dlsym(module, "fwa_module_backend");
    char reason[160];
    if (!abi || !symbol)
        return absent(e, FWA_ERROR_NO_BACKEND,
                      "not a backend module: fwa_module_abi or fwa_module_backend is missing");
    if (*abi != FWA_BACKEND_ABI) {
        snprintf(reason, sizeof reason, "the module has backend ABI %u, this library has %u",
                 (unsigned)*abi, FWA_BACKEND_ABI);
        return absent(e, FWA_ERROR_ABI, reason);
    }
    memcpy(&function, &symbol, sizeof function);
    backend = function();
    if (!backend || backend->abi != FWA_BACKEND_ABI || backend->struct_size < sizeof *backend)
        return absent(e, FWA_ERROR_ABI, "the module's table is not one of this ABI");
    if (!complete(backend))
        return absent(e, FWA_ERROR_ABI, "the module's table has an empty entry");
    if (strcmp(backend->name, e->info.name) != 0)
        return absent(e, FWA_ERROR_NO_BACKEND, "the module's name for itself is another one");
    present(e, backend);
    return FWA_OK;
}

static fwa_status load_module(entry *e)
{
    char path[PATH_MAX];
    const char *directory = fwa_module_directory(path);
    int length = snprintf(e->info.origin, sizeof e->info.origin, "%s/fwa-%s.so", directory,
                          e->info.name);
    fwa_status status;
    void *module;
    if (directory[0] != '/')
        return absent(e, FWA_ERROR_NO_BACKEND, "FWA_BACKEND_PATH is not an absolute path");
    if (length < 0 || (size_t)length >= sizeof e->info.origin)
        return absent(e, FWA_ERROR_NO_BACKEND, "the module's path is too long");
    if (access(e->info.origin, F_OK) != 0)
        return absent(e, FWA_ERROR_NO_BACKEND, "no such file");
    module = dlopen(e->info.origin, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *words = dlerror();
        return absent(e, FWA_ERROR_NO_BACKEND, words ? words : "cannot be loaded");
    }
    status = accept_module(e, module);
    if (status != FWA_OK)
        dlclose(module);
    return status;
}

static entry *add_entry(const char *name)
{
    entry *e;
    if (registry.count == ENTRY_LIMIT)
        return NULL;
    e = &registry.entries[registry.count];
    *e = (entry){.status = FWA_ERROR_NO_BACKEND};
    snprintf(e->info.name, sizeof e->info.name, "%s", name);
    registry.count++; /* last: a fork may come in between */
    return e;
}

/* In a full table a name takes the place of the last that was looked for in vain. */
static entry *place_entry(const char *name)
{
    entry *e = add_entry(name);
    int32_t i;
    for (i = registry.count - 1; !e && i >= (int32_t)KNOWN; i--)
        if (!registry.entries[i].backend) {
            e = &registry.entries[i];
            snprintf(e->info.name, sizeof e->info.name, "%s", name);
        }
    return e;
}

/* The child of a fork that came in between begins again. */
static void add_known(void)
{
    size_t i;
    if (registry.begun)
        return;
    registry.count = 0;
    for (i = 0; i < KNOWN; i++) {
        entry *e = add_entry(known[i].name);
        if (known[i].backend) {
            snprintf(e->info.origin, sizeof e->info.origin, "built in");
            present(e, known[i].backend);
        }
    }
    registry.begun = true;
}

/* In a child, another thread of the parent may have held the lock, and is not there to leave it: each
 * process begins with a lock of its own, and what that thread was about is done again. */
static void enter_registry(void)
{
    const int64_t own = getpid();
    int64_t seen = atomic_load(&registry.process);
    while (seen != own)
        if (seen == -own) {
            sched_yield();
            seen = atomic_load(&registry.process);
        } else if (atomic_compare_exchange_weak(&registry.process, &seen, -own)) {
            pthread_mutex_init(&registry.lock, NULL);
            atomic_store(&registry.process, own);
            seen = own;
        }
    pthread_mutex_lock(&registry.lock);
    add_known();
}

static void leave_registry(void)
{
    pthread_mutex_unlock(&registry.lock);
}

static bool valid_name(const char *name, size_t length)
{
    return length > 0 && length < sizeof((fwa_backend_info *)0)->name &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") >= length;
}

static entry *find_entry(const char *name)
{
    int32_t i;
    for (i = 0; i < registry.count; i++)
        if (strcmp(registry.entries[i].info.name, name) == 0)
            return &registry.entries[i];
    return NULL;
}

/* Adds an entry for every fwa-NAME.so of the module directory. */
static void scan_directory(void)
{
    char buffer[PATH_MAX];
    const char *path = fwa_module_directory(buffer);
    DIR *directory = path[0] == '/' ? opendir(path) : NULL;
    const struct dirent *item;
    if (!directory)
        return;
    while ((item = readdir(directory)) != NULL) {
        const char *file = item->d_name;
        size_t length = strlen(file);
        char name[32];
        if (length < 8 || strncmp(file, "fwa-", 4) != 0 || strcmp(file + length - 3, ".so") != 0 ||
            !valid_name(file + 4, length - 7))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - 7), file + 4);
        if (!find_entry(name))
            add_entry(name);
    }
    closedir(directory);
}

fwa_status fwa_registry_find(const char *name, const fwa_backend **backend)
{
    fwa_status status;
    entry *e;
    if (!valid_name(name, strlen(name)))
        return fwa_fail(FWA_ERROR_VALUE,
                        "options->backend is \"%.40s\"; a backend's name has 1 to 31 lower-case "
                        "letters, digits and underscores",
                        name);
    enter_registry();
    e = find_entry(name);
    if (!e)
        e = place_entry(name);
    if (e && !e->backend)
        load_module(e);
    if (!e)
        status = fwa_fail(FWA_ERROR_NO_BACKEND,
                          "backend %s: %d backends are loaded, the most there can be", name,
                          ENTRY_LIMIT);
    else if (!e->backend)
        status = fwa_fail(e->status, "backend %s: %s: %s", name, e->info.origin, e->info.reason);
    else
        status = FWA_OK;
    if (status == FWA_OK)
        *backend = e->backend;
    leave_registry();
    return status;
}

int32_t fwa_backend_count(void)
{
    int32_t count;
    enter_registry();
    scan_directory();
    count = registry.count;
    leave_registry();
    return count;
}

fwa_status fwa_backend_get(int32_t index, fwa_backend_info *info)
{
    int32_t count = fwa_backend_count();
    fwa_status status = fwa_check_struct("info", info, sizeof *info);
    size_t size;
    entry *e;
    if (status != FWA_OK)
        return status;
    if (index < 0 || index >= count)
        return fwa_fail(FWA_ERROR_VALUE, "index is %d; there are %d backends", (int)index,
                        (int)count);
    size = info->struct_size;
    enter_registry();
    e = &registry.entries[index];
    if (!e->backend)
        load_module(e);
    *info = e->info;
    leave_registry();
    info->struct_size = size;
    return FWA_OK;
}
