/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_hip.h"

#include "../gpu/runtime.h"

#include <elf.h>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>

using namespace fwa;

namespace
{

enum error {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    no_device = 100,
    invalid_device = 101,
    no_binary = 209,
    invalid_handle = 400,
    not_found = 500,
    launch_failure = 719
};

fake_hip record;
std::mutex lock; /* of the record, and of what follows */
std::map<void *, size_t> allocations;
std::set<std::string> traced; /* kernels */
pid_t owner;
thread_local int current_device;

/* What the function of that name is to return. */
int result_of(const char *name)
{
    const char *fail = getenv("FAKE_HIP_FAIL");
    const size_t length = strlen(name);
    if (owner == 0)
        owner = getpid();
    if (getpid() != owner) {
        record.foreign++;
        return not_initialized;
    }
    if (fail && strncmp(fail, name, length) == 0 && fail[length] == '=')
        return atoi(fail + length + 1);
    return success;
}

#define RETURN_IF_FAILED(name)                                                                     \
    const std::lock_guard<std::mutex> held(lock);                                                  \
    do {                                                                                           \
        const int result_ = result_of(name);                                                       \
        if (result_ != success)                                                                    \
            return result_;                                                                        \
    } while (0)

/* ---- Architectures ---- */

/* What a code object of an architecture says in its header's flags. */
const struct {
    const char *name;
    unsigned machine;
    int wave;
} architectures[] = {
    {"gfx906", 0x2f, 64},  {"gfx90a", 0x3f, 64},  {"gfx942", 0x4c, 64},
    {"gfx950", 0x4f, 64},  {"gfx1030", 0x36, 32}, {"gfx1100", 0x41, 32},
    {"gfx1151", 0x4a, 32}, {"gfx1200", 0x48, 32}, {"gfx1201", 0x4e, 32},
};

/* The word of that number of the list of devices; returns how many there are. */
int list_devices(int ordinal, char *word, size_t size)
{
    const char *list = getenv("FAKE_HIP_DEVICES");
    int count = 0;
    list = list ? list : "";
    for (list += strspn(list, " "); *list; list += strspn(list, " ")) {
        const size_t length = strcspn(list, " ");
        if (count++ == ordinal)
            snprintf(word, size, "%.*s", static_cast<int>(length), list);
        list += length;
    }
    return count;
}

int number_of(int ordinal)
{
    char word[256] = "";
    list_devices(ordinal, word, sizeof word);
    word[strcspn(word, ":")] = '\0';
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++)
        if (strcmp(architectures[i].name, word) == 0)
            return static_cast<int>(i);
    return -1;
}

/* ---- For the tests ---- */

fake_hip *get_record()
{
    return &record;
}

int current()
{
    return current_device;
}

void make_current(int device)
{
    current_device = device;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const fake_hip_functions fake_hip_table = {get_record, current, make_current};

/* ---- The runtime and its devices ---- */

EXPORT int hipRuntimeGetVersion(int *version)
{
    const char *text = getenv("FAKE_HIP_VERSION");
    *version = text ? atoi(text) : 60200000;
    return success;
}

static const struct {
    int error;
    const char *name, *words;
} errors[] = {
    {invalid_value, "hipErrorInvalidValue", "invalid argument"},
    {out_of_memory, "hipErrorOutOfMemory", "out of memory"},
    {not_initialized, "hipErrorNotInitialized", "initialization error"},
    {no_device, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {invalid_device, "hipErrorInvalidDevice", "invalid device ordinal"},
    {no_binary, "hipErrorNoBinaryForGpu",
     "no kernel image is available for execution on the device"},
    {not_found, "hipErrorNotFound", "named symbol not found"},
};

EXPORT const char *hipGetErrorName(int error)
{
    for (const auto &known : errors)
        if (known.error == error)
            return known.name;
    return "hipErrorUnknown";
}

EXPORT const char *hipGetErrorString(int error)
{
    for (const auto &known : errors)
        if (known.error == error)
            return known.words;
    return "unknown error";
}

EXPORT int hipGetDeviceCount(int *count)
{
    char word[256];
    RETURN_IF_FAILED("hipGetDeviceCount");
    *count = list_devices(-1, word, sizeof word);
    return *count ? success : no_device;
}

EXPORT int hipGetDevice(int *device)
{
    RETURN_IF_FAILED("hipGetDevice");
    *device = current_device;
    return success;
}

EXPORT int hipSetDevice(int device)
{
    char word[256];
    RETURN_IF_FAILED("hipSetDevice");
    if (device < 0 || device >= list_devices(-1, word, sizeof word))
        return invalid_device;
    current_device = device;
    return success;
}

EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    RETURN_IF_FAILED("hipDeviceGetAttribute");
    const int number = number_of(device);
    switch (attribute) {
    case 63: *value = 4; break;
    case 74: *value = 65536; break;
    case 87: *value = number < 0 ? 0 : architectures[number].wave; break;
    default: return invalid_value;
    }
    return success;
}

/* Its name first, that of its architecture where version 6 has it. */
EXPORT int hipGetDevicePropertiesR0600(void *properties, int device)
{
    char word[256] = "";
    RETURN_IF_FAILED("hipGetDevicePropertiesR0600");
    if (device >= list_devices(device, word, sizeof word))
        return invalid_device;
    memset(properties, 0x55, 1472);
    snprintf(static_cast<char *>(properties), 256, "Fake %c", 'A' + device);
    snprintf(static_cast<char *>(properties) + 1160, 256, "%s", word);
    return success;
}

EXPORT int hipDeviceSynchronize()
{
    RETURN_IF_FAILED("hipDeviceSynchronize");
    record.synchronized++;
    return success;
}

/* ---- Modules and launches ---- */

EXPORT int hipModuleLoadData(void **module, const void *image)
{
    Elf64_Ehdr header;
    RETURN_IF_FAILED("hipModuleLoadData");
    const int number = number_of(current_device);
    memcpy(&header, image, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != 224)
        return invalid_value;
    if (number < 0 || (header.e_flags & 0xff) != architectures[number].machine)
        return no_binary;
    record.modules++;
    record.image = image;
    record.device = current_device;
    *module = &record;
    return success;
}

EXPORT int hipModuleUnload(void *module)
{
    RETURN_IF_FAILED("hipModuleUnload");
    record.modules -= module == &record;
    return success;
}

EXPORT int hipModuleGetFunction(void **function, void *module, const char *name)
{
    RETURN_IF_FAILED("hipModuleGetFunction");
    emulation::kernel *kernel = emulation::find_kernel(name);
    if (module != &record)
        return invalid_handle;
    if (!kernel)
        return not_found;
    *function = kernel;
    return success;
}

static bool runs(const emulation::kernel &kernel, unsigned blocks, unsigned shared,
                 const void *args)
{
    const char *words = getenv("FWA_GPU_EMULATION_ORDER");
    emulation::schedule schedule;
    fwa_gpu_args copied;
    memcpy(&copied, args, sizeof copied);
    return emulation::parse_schedule(words ? words : "forward", &schedule) &&
           emulation::run(kernel, blocks, static_cast<int32_t>(shared), copied, schedule);
}

/* ---- Traces ---- */

/* Where in the arguments the pointers are. */
#define VIEW(name) offsetof(fwa_gpu_args, name.data)
#define CARRY(name)                                                                                \
    VIEW(name.seen), VIEW(name.state), VIEW(name.prev_key), VIEW(name.tail_key),                   \
        VIEW(name.tail_value), VIEW(name.norm)
#define PLACE(name) offsetof(fwa_gpu_args, name)
static const size_t pointers[] = {
    VIEW(q),
    VIEW(k),
    VIEW(v),
    VIEW(o),
    VIEW(beta),
    VIEW(lambda),
    VIEW(log_gate),
    VIEW(cu_seqlens),
    VIEW(slot_in),
    VIEW(slot_out),
    VIEW(commit),
    CARRY(carry_in),
    CARRY(carry_out),
    VIEW(o_grad),
    VIEW(q_grad),
    VIEW(k_grad),
    VIEW(v_grad),
    VIEW(beta_grad),
    VIEW(lambda_grad),
    VIEW(log_gate_grad),
    CARRY(carry_out_grad),
    CARRY(carry_in_grad),
    PLACE(statistic),
    PLACE(top),
    PLACE(norms),
    PLACE(carries),
    VIEW(kept),
    PLACE(order),
    PLACE(states),
    PLACE(segment),
    PLACE(key_partial),
    PLACE(query_partial),
    PLACE(gate_partial),
    PLACE(energy_grad),
    PLACE(records),
    PLACE(key_rows),
    PLACE(query_rows),
    PLACE(chunk_states),
    PLACE(chunk_state_grads),
    PLACE(residuals),
    PLACE(residual_grads),
};

static void write_file(const std::string &path, const void *bytes, size_t size)
{
    FILE *file = fopen(path.c_str(), "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path.c_str());
        abort();
    }
}

/* All memory, before the launch or after. */
static void trace_memory(const std::string &base, const char *when)
{
    int number = 0;
    for (const auto &[address, size] : allocations)
        write_file(base + "." + std::to_string(number++) + "." + when, address, size);
}

/* The launch itself; returns where its files' names begin, or nothing where it is not wanted. */
static std::string trace_launch(const char *kernel, unsigned grid, unsigned block, unsigned shared,
                                const void *args)
{
    const char *folder = getenv("FAKE_HIP_TRACE");
    if (!folder || !traced.insert(kernel).second)
        return "";
    const std::string base = std::string(folder) + "/" + kernel;
    std::string text = "{\n  \"kernel\": \"" + std::string(kernel) +
                       "\",\n  \"grid\": " + std::to_string(grid) +
                       ",\n  \"block\": " + std::to_string(block) +
                       ",\n  \"shared\": " + std::to_string(shared) + ",\n  \"args\": \"" + kernel +
                       ".args\",\n  \"args_size\": " + std::to_string(sizeof(fwa_gpu_args)) +
                       ",\n  \"pointers\": [";
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
        text += (i ? ", " : "") + std::to_string(pointers[i]);
    text += "],\n  \"memory\": [";
    int number = 0;
    for (const auto &[address, size] : allocations) {
        const std::string file = std::string(kernel) + "." + std::to_string(number);
        text += (number ? ",\n    " : "\n    ") + std::string("{\"address\": ") +
                std::to_string((uintptr_t)address) + ", \"size\": " + std::to_string(size) +
                ", \"before\": \"" + file + ".before\", \"after\": \"" + file + ".after\"}";
        number++;
    }
    text += "\n  ]\n}\n";
    write_file(base + ".json", text.data(), text.size());
    write_file(base + ".args", args, sizeof(fwa_gpu_args));
    trace_memory(base, "before");
    return base;
}

/* Arguments come as a buffer and its size. */
EXPORT int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, void *stream,
                                 void **params, void **extra)
{
    const emulation::kernel *kernel = static_cast<const emulation::kernel *>(function);
    std::string trace;
    {
        RETURN_IF_FAILED("hipModuleLaunchKernel");
        if (params || extra[0] != reinterpret_cast<void *>(1) ||
            extra[2] != reinterpret_cast<void *>(2) || extra[4] != reinterpret_cast<void *>(3) ||
            *static_cast<size_t *>(extra[3]) != sizeof(fwa_gpu_args) || gx < 1 ||
            static_cast<uint64_t>(gx) * bx > UINT32_MAX || gy != 1 || gz != 1 || by != 1 ||
            bz != 1 || static_cast<int>(bx) != kernel->threads || shared > 65536)
            return invalid_value;
        record.launches++;
        record.device = current_device;
        record.launch.stream = stream;
        record.launch.grid[0] = gx, record.launch.grid[1] = gy, record.launch.grid[2] = gz;
        record.launch.block[0] = bx, record.launch.block[1] = by, record.launch.block[2] = bz;
        record.launch.shared = shared;
        record.launch.size = sizeof(fwa_gpu_args);
        memcpy(record.launch.args, extra[1], sizeof(fwa_gpu_args));
        snprintf(record.launch.name, sizeof record.launch.name, "%s", kernel->name);
        trace = trace_launch(kernel->name, gx, bx, shared, extra[1]);
    }
    if (!getenv("FAKE_HIP_IDLE") && !runs(*kernel, gx, shared, extra[1]))
        return launch_failure;
    const std::lock_guard<std::mutex> held(lock);
    if (!trace.empty())
        trace_memory(trace, "after");
    return success;
}

/* ---- Memory: the host's ---- */

EXPORT int hipMalloc(void **memory, size_t size)
{
    RETURN_IF_FAILED("hipMalloc");
    if (size == 0)
        return invalid_value;
    if (posix_memalign(memory, 256, size) != 0)
        return out_of_memory;
    memset(*memory, 0xff, size);
    record.allocated = size;
    record.allocations++;
    allocations[*memory] = size;
    record.device = current_device;
    return success;
}

EXPORT int hipFree(void *memory)
{
    RETURN_IF_FAILED("hipFree");
    allocations.erase(memory);
    free(memory);
    record.allocations--;
    return success;
}

EXPORT int hipMemcpy(void *to, const void *from, size_t size, int direction)
{
    RETURN_IF_FAILED("hipMemcpy");
    if (direction != 1 && direction != 2)
        return invalid_value;
    record.synchronized_before_copy = record.synchronized;
    memcpy(to, from, size);
    return success;
}
