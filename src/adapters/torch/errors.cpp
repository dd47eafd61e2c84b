/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/errors.h"

#include <c10/util/Logging.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <new>
#include <sstream>
#include <utility>
#include <vector>

#include "src/adapters/torch/settings.h"

namespace xseg_torch
{

std::string error_message(xseg_status status)
{
    size_t length = xseg_error_message(nullptr, 0);
    if (length == 0) {
        return xseg_status_name(status);
    }
    std::vector<char> buffer(length + 1);
    xseg_error_message(buffer.data(), buffer.size());
    std::string message = buffer.data();
    size_t end = message.rfind("xseg_", 0) == 0 ? message.find(": ") : std::string::npos;
    return end == std::string::npos ? message : message.substr(end + 2);
}

std::string size_string(uint64_t bytes)
{
    const struct {
        uint64_t limit, unit;
        const char *name;
    } scales[] = {
        {1048576, 1024, " KiB"}, {1073741824, 1048576, " MiB"}, {UINT64_MAX, 1073741824, " GiB"}};
    std::ostringstream text;
    if (bytes <= 1024) {
        text << bytes << " bytes";
        return text.str();
    }
    for (const auto &scale : scales) {
        if (bytes <= scale.limit) {
            text << std::fixed << std::setprecision(2)
                 << static_cast<double>(bytes) / static_cast<double>(scale.unit) << scale.name;
            break;
        }
    }
    return text.str();
}

/* std::exception_ptr::~exception_ptr() and std::rethrow_exception(), which takes the address of its argument. */
extern "C" void
destroy_exception_ptr(void *pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
extern "C" [[noreturn]] void rethrow_exception_ptr(const void *pointer) __asm__(
    "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE");

static_assert(sizeof(std::exception_ptr) == sizeof(void *) &&
                  alignof(std::exception_ptr) == alignof(void *),
              "an exception_ptr is a pointer");

StoredException::~StoredException()
{
    if (object != nullptr) {
        destroy_exception_ptr(&object);
    }
}

StoredException StoredException::current()
{
    /* Initialized in place: the pointer is neither copied nor destroyed. */
    alignas(std::exception_ptr) unsigned char storage[sizeof(std::exception_ptr)];
    StoredException stored;

    new (storage) std::exception_ptr(std::current_exception());
    std::memcpy(&stored.object, storage, sizeof(stored.object));
    return stored;
}

void StoredException::rethrow() const
{
    rethrow_exception_ptr(&object);
}

/* The last failed request of the thread.  `exception` was thrown by a callback during the request, because no exception can
 * propagate through the library. */
static thread_local struct {
    uint64_t bytes, segment_bytes;
    StoredException exception;
    bool is_new;      /* the exception was thrown before record_failure() recorded the request */
    bool is_rejected; /* the request was rejected (throw_on_cudamalloc_oom) */
} last_failed;

void record_failure(const struct xseg_oom_info *info)
{
    if (last_failed.bytes != info->bytes && !last_failed.is_new) {
        last_failed.exception = StoredException();
    }
    last_failed.is_new = last_failed.is_rejected = false;
    last_failed.bytes = info->bytes;
    last_failed.segment_bytes = info->segment_bytes;
}

void record_rejection(const struct xseg_oom_info *info)
{
    record_failure(info);
    last_failed.is_rejected = true;
}

void store_current_exception()
{
    if (!last_failed.exception.has_value()) {
        last_failed.exception = StoredException::current();
        last_failed.is_new = true;
    }
}

/* Get the exception of a callback during a failed request, and clear it. */
static StoredException extract_exception(size_t bytes)
{
    StoredException exception = std::move(last_failed.exception);
    last_failed.is_new = false;
    if (last_failed.bytes != bytes) {
        return StoredException();
    }
    return exception;
}

/* Device memory in bytes; 0 if the query fails. */
struct DeviceMemory {
    size_t free = 0, total = 0;
};

static DeviceMemory device_memory(DeviceIndex device)
{
    DeviceMemory memory;
    c10::cuda::OptionalCUDAGuard guard(device);
    if (cudaMemGetInfo(&memory.free, &memory.total) != cudaSuccess) {
        (void)cudaGetLastError();
        return {};
    }
    return memory;
}

void log_out_of_memory(const struct xseg_oom_info *info)
{
    if (info->status != XSEG_ERR_NO_MEMORY || info->attempt > 0) {
        return;
    }
    DeviceMemory memory = device_memory(static_cast<DeviceIndex>(info->device));
    LOG(INFO) << "memory allocation failed with OOM on device " << info->device
              << " while trying to allocate " << info->segment_bytes
              << " bytes (free: " << memory.free << ", total: " << memory.total << ").";
}

/* Get the bytes that PyTorch's message reports: the size of the segment that the request would have allocated. */
static uint64_t attempted_bytes(size_t bytes)
{
    return last_failed.bytes == bytes ? last_failed.segment_bytes : bytes;
}

void check(xseg_status status, const char *operation)
{
    TORCH_CHECK(status == XSEG_OK, "xseg.torch: ", operation, ": ", error_message(status));
}

void warn(xseg_status status, const char *operation)
{
    if (status != XSEG_OK && status != XSEG_ERR_FORKED && status != XSEG_ERR_DEVICE_LOST) {
        TORCH_WARN("xseg.torch: ", operation, ": ", error_message(status));
    }
}

static bool is_out_of_memory(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/* In a forked child PyTorch's own allocator throws the initialization error of the CUDA runtime. */
static void throw_forked(const std::string &text)
{
    try {
        C10_CUDA_CHECK(cudaErrorInitializationError);
    } catch (c10::Error &error) {
        error.add_context(text);
        throw;
    }
}

/*
 * The functions of NVML that report the processes of a device.  The header of NVML is part of a CUDA toolkit and not of
 * PyTorch, so the types are declared here.  The library remains loaded.
 */
namespace nvml
{

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7 };

/* The first version of nvmlProcessInfo_t, which the function without a version suffix fills. */
struct Process {
    unsigned id;
    unsigned long long bytes; /* UINT64_MAX: unknown */
};

struct Functions {
    int (*init)();
    int (*device_by_bus)(const char *bus, void **device);
    int (*processes)(void *device, unsigned *count, struct Process *processes);
};

template <class Function>
static void find_function(void *library, const char *name, Function &function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
}

/* Load NVML.  Returns null pointers if it is missing or cannot be initialized. */
static Functions load_functions()
{
    Functions functions = {};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library != nullptr) {
        find_function(library, "nvmlInit_v2", functions.init);
        find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", functions.device_by_bus);
        find_function(library, "nvmlDeviceGetComputeRunningProcesses", functions.processes);
    }
    bool is_usable = functions.init != nullptr && functions.device_by_bus != nullptr &&
                     functions.processes != nullptr && functions.init() == SUCCESS;
    return is_usable ? functions : Functions{};
}

/* Get the processes that use a device; empty if NVML does not report them. */
static std::vector<Process> processes_of(DeviceIndex device)
{
    static const Functions functions = load_functions();
    char bus[32] = "";
    void *handle = nullptr;
    if (functions.init == nullptr) {
        return {};
    }
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
        (void)cudaGetLastError();
        return {};
    }
    if (functions.device_by_bus(bus, &handle) != SUCCESS) {
        return {};
    }
    std::vector<Process> processes(8);
    unsigned count = 0;
    int result = INSUFFICIENT_SIZE;
    while (result == INSUFFICIENT_SIZE && processes.size() <= 1024) {
        count = static_cast<unsigned>(processes.size());
        result = functions.processes(handle, &count, processes.data());
        if (result == INSUFFICIENT_SIZE) {
            processes.resize(std::max<size_t>(count, 2 * processes.size()));
        }
    }
    processes.resize(result == SUCCESS ? count : 0);
    return processes;
}

} // namespace nvml

/* Get the sentences of PyTorch's message about processes, such as "Process 12 has 1.00 GiB memory in use. " */
static std::string process_message(DeviceIndex device)
{
    std::ostringstream message;
    for (const nvml::Process &process : nvml::processes_of(device)) {
        if (process.bytes == UINT64_MAX) {
            continue;
        }
        if (process.id == static_cast<unsigned>(getpid())) {
            message << "Including non-PyTorch memory, this process";
        } else {
            message << "Process " << process.id;
        }
        message << " has " << size_string(process.bytes) << " memory in use. ";
    }
    return message.str();
}

static bool add_private(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_CACHED && block->pool != nullptr && !block->is_paused) {
        *static_cast<uint64_t *>(context) += block->bytes;
    }
    return true;
}

/* PyTorch counts cached memory of private pools as allocated.  Blocks of a paused pool are allocated without memory. */
static std::string usage_message(struct xseg_allocator *library, const struct xseg_scope &scope,
                                 const struct xseg_statistics &statistics)
{
    uint64_t private_bytes = 0;
    if (xseg_for_each_block(library, &scope, add_private, &private_bytes) != XSEG_OK) {
        private_bytes = 0;
    }
    uint64_t reserved = statistics.reserved_bytes[XSEG_STAT_ALL].current;
    uint64_t allocated = statistics.allocated_bytes[XSEG_STAT_ALL].current + private_bytes;
    std::ostringstream message;
    message << "Of the allocated memory " << size_string(allocated) << " is allocated by PyTorch, ";
    if (private_bytes > 0) {
        message << "with " << size_string(private_bytes)
                << " allocated in private pools (e.g., CUDA Graphs), ";
    }
    message << "and " << size_string(reserved > allocated ? reserved - allocated : 0)
            << " is reserved by PyTorch but unallocated.";
    return message.str();
}

/* Get PyTorch's advice.  The library's message names a setting only if the setting would have served the request. */
static std::string advice_message(xseg_status status)
{
    if (!config_info().expandable_segments) {
        return " If reserved but unallocated memory is large try setting "
               "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
               "to avoid fragmentation.  See documentation for Memory Management  "
               "(https://docs.pytorch.org/docs/stable/notes/"
               "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
    }
    std::string advice = " expandable_segments is enabled.";
    if (status == XSEG_ERR_NO_ADDRESSES) {
        advice += " The process is running out of virtual address space (VSZ); reduce it via "
                  "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve.";
    }
    return advice;
}

/* PyTorch's message, followed by the library's. */
static std::string out_of_memory_message(struct xseg_allocator *library, xseg_status status,
                                         DeviceIndex device, size_t bytes,
                                         const std::string &library_message)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    struct xseg_statistics statistics = {sizeof(statistics)};
    std::ostringstream message;
    message << "CUDA out of memory. ";
    if (std::exchange(last_failed.is_rejected, false)) {
        message << "Allocation was preemptively rejected because it would exceed "
                   "per_process_memory_fraction limit. "
                << "Requested size: " << size_string(attempted_bytes(bytes))
                << ". xseg.torch: " << library_message;
        return message.str();
    }
    message << "Tried to allocate " << size_string(attempted_bytes(bytes)) << ".";
    if (xseg_stats_get(library, &scope, &statistics) == XSEG_OK) {
        message << " GPU " << static_cast<int>(device) << " has a total capacity of "
                << size_string(statistics.device_bytes) << " of which "
                << size_string(device_memory(device).free) << " is free. "
                << process_message(device);
        if (statistics.limit_bytes != UINT64_MAX) {
            message << size_string(statistics.limit_bytes) << " allowed; ";
        }
        message << usage_message(library, scope, statistics);
    }
    message << advice_message(status) << " xseg.torch: " << library_message;
    return message.str();
}

Failure failure_of(struct xseg_allocator *library, xseg_status status, DeviceIndex device,
                   size_t bytes)
{
    std::string text = error_message(status);
    if (is_out_of_memory(status)) {
        return {status, out_of_memory_message(library, status, device, bytes, text),
                extract_exception(bytes)};
    }
    if (status == XSEG_ERR_FORKED) {
        return {status, "xseg.torch: " + text};
    }
    return {status, "xseg.torch: cannot allocate " + std::to_string(bytes) + " bytes on device " +
                        std::to_string(static_cast<int>(device)) + ": " + text};
}

void raise(const Failure &failure)
{
    if (failure.exception.has_value()) {
        failure.exception.rethrow();
    }
    if (failure.status == XSEG_ERR_FORKED) {
        throw_forked(failure.text);
    }
    TORCH_CHECK(is_out_of_memory(failure.status), failure.text);
    TORCH_CHECK_WITH(OutOfMemoryError, false, failure.text);
}

} // namespace xseg_torch
