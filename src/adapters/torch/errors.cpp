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

std::string error_text(xseg_status status)
{
    size_t length = xseg_error_message(nullptr, 0);
    if (length == 0) {
        return xseg_status_name(status);
    }
    std::vector<char> buffer(length + 1);
    xseg_error_message(buffer.data(), buffer.size());
    std::string text = buffer.data();
    size_t end = text.rfind("xseg_", 0) == 0 ? text.find(": ") : std::string::npos;
    return end == std::string::npos ? text : text.substr(end + 2);
}

std::string size_text(uint64_t bytes)
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

KeptException::~KeptException()
{
    if (object != nullptr) {
        destroy_exception_ptr(&object);
    }
}

KeptException KeptException::current()
{
    /* Initialized in place: the pointer is neither copied nor destroyed. */
    alignas(std::exception_ptr) unsigned char storage[sizeof(std::exception_ptr)];
    KeptException kept;

    new (storage) std::exception_ptr(std::current_exception());
    std::memcpy(&kept.object, storage, sizeof(kept.object));
    return kept;
}

void KeptException::rethrow() const
{
    rethrow_exception_ptr(&object);
}

/* `exception`: thrown by a callback since the request began; no exception can pass through the library. */
static thread_local struct {
    uint64_t bytes, segment_bytes;
    KeptException exception;
    bool is_new; /* the exception was thrown before record_failure() was called for the request */
} last_failed;

void record_failure(const struct xseg_oom_info *info)
{
    if (last_failed.bytes != info->bytes && !last_failed.is_new) {
        last_failed.exception = KeptException();
    }
    last_failed.is_new = false;
    last_failed.bytes = info->bytes;
    last_failed.segment_bytes = info->segment_bytes;
}

void keep_current_exception()
{
    if (!last_failed.exception.is_held()) {
        last_failed.exception = KeptException::current();
        last_failed.is_new = true;
    }
}

/* The exception of a callback during a request that has failed. */
static KeptException take_exception(size_t bytes)
{
    KeptException exception = std::move(last_failed.exception);
    last_failed.is_new = false;
    if (last_failed.bytes != bytes) {
        return KeptException();
    }
    return exception;
}

/* Whether the last failed request of the thread was rejected (throw_on_cudamalloc_oom). */
static thread_local bool is_rejected;

void record_rejection(const struct xseg_oom_info *info)
{
    record_failure(info);
    is_rejected = true;
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

/* The bytes that PyTorch's message reports: those of the segment that it would have allocated. */
static uint64_t tried_bytes(size_t bytes)
{
    return last_failed.bytes == bytes ? last_failed.segment_bytes : bytes;
}

void check(xseg_status status, const char *operation)
{
    TORCH_CHECK(status == XSEG_OK, "xseg.torch: ", operation, ": ", error_text(status));
}

void warn(xseg_status status, const char *operation)
{
    if (status != XSEG_OK && status != XSEG_ERR_FORKED && status != XSEG_ERR_DEVICE_LOST) {
        TORCH_WARN("xseg.torch: ", operation, ": ", error_text(status));
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
 * NVML, as far as it reports the processes of a device.  The header of NVML comes with a CUDA toolkit, not with PyTorch, so
 * the types are declared here.  The library stays loaded.
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

template <class Function> static void find(void *library, const char *name, Function &function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
}

/* Returns: null pointers if NVML is missing or cannot be initialized */
static Functions load()
{
    Functions functions = {};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library != nullptr) {
        find(library, "nvmlInit_v2", functions.init);
        find(library, "nvmlDeviceGetHandleByPciBusId_v2", functions.device_by_bus);
        find(library, "nvmlDeviceGetComputeRunningProcesses", functions.processes);
    }
    bool is_usable = functions.init != nullptr && functions.device_by_bus != nullptr &&
                     functions.processes != nullptr && functions.init() == SUCCESS;
    return is_usable ? functions : Functions{};
}

/* The processes that use a device; empty if NVML does not report them. */
static std::vector<Process> processes_of(DeviceIndex device)
{
    static const Functions functions = load();
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

/* Sentences as in PyTorch's message, such as "Process 12 has 1.00 GiB memory in use. " */
static std::string process_text(DeviceIndex device)
{
    std::ostringstream text;
    for (const nvml::Process &process : nvml::processes_of(device)) {
        if (process.bytes == UINT64_MAX) {
            continue;
        }
        if (process.id == static_cast<unsigned>(getpid())) {
            text << "Including non-PyTorch memory, this process";
        } else {
            text << "Process " << process.id;
        }
        text << " has " << size_text(process.bytes) << " memory in use. ";
    }
    return text.str();
}

static bool add_private(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_CACHED && block->pool != nullptr && !block->is_paused) {
        *static_cast<uint64_t *>(context) += block->bytes;
    }
    return true;
}

/* PyTorch counts cached memory of private pools as allocated.  Blocks of a paused pool are allocated without memory. */
static std::string usage_text(struct xseg_allocator *library, const struct xseg_scope &where,
                              const struct xseg_statistics &statistics)
{
    uint64_t private_bytes = 0;
    if (xseg_for_each_block(library, &where, add_private, &private_bytes) != XSEG_OK) {
        private_bytes = 0;
    }
    uint64_t reserved = statistics.reserved_bytes[XSEG_STAT_ALL].current;
    uint64_t allocated = statistics.allocated_bytes[XSEG_STAT_ALL].current + private_bytes;
    std::ostringstream text;
    text << "Of the allocated memory " << size_text(allocated) << " is allocated by PyTorch, ";
    if (private_bytes > 0) {
        text << "with " << size_text(private_bytes)
             << " allocated in private pools (e.g., CUDA Graphs), ";
    }
    text << "and " << size_text(reserved > allocated ? reserved - allocated : 0)
         << " is reserved by PyTorch but unallocated.";
    return text.str();
}

/* PyTorch's advice.  The library's message names a setting only if the setting would have served the request. */
static std::string advice_text(xseg_status status)
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
static std::string out_of_memory_text(struct xseg_allocator *library, xseg_status status,
                                      DeviceIndex device, size_t bytes, const std::string &text)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    where.device = device;
    struct xseg_statistics statistics = {sizeof(statistics)};
    std::ostringstream sentence;
    sentence << "CUDA out of memory. ";
    if (std::exchange(is_rejected, false)) {
        sentence << "Allocation was preemptively rejected because it would exceed "
                    "per_process_memory_fraction limit. "
                 << "Requested size: " << size_text(tried_bytes(bytes)) << ". xseg.torch: " << text;
        return sentence.str();
    }
    sentence << "Tried to allocate " << size_text(tried_bytes(bytes)) << ".";
    if (xseg_stats_get(library, &where, &statistics) == XSEG_OK) {
        sentence << " GPU " << static_cast<int>(device) << " has a total capacity of "
                 << size_text(statistics.device_bytes) << " of which "
                 << size_text(device_memory(device).free) << " is free. " << process_text(device);
        if (statistics.limit_bytes != UINT64_MAX) {
            sentence << size_text(statistics.limit_bytes) << " allowed; ";
        }
        sentence << usage_text(library, where, statistics);
    }
    sentence << advice_text(status) << " xseg.torch: " << text;
    return sentence.str();
}

Failure failure_of(struct xseg_allocator *library, xseg_status status, DeviceIndex device,
                   size_t bytes)
{
    std::string text = error_text(status);
    if (is_out_of_memory(status)) {
        return {status, out_of_memory_text(library, status, device, bytes, text),
                take_exception(bytes)};
    }
    if (status == XSEG_ERR_FORKED) {
        return {status, "xseg.torch: " + text};
    }
    return {status, "xseg.torch: cannot allocate " + std::to_string(bytes) + " bytes on device " +
                        std::to_string(static_cast<int>(device)) + ": " + text};
}

void raise(const Failure &failure)
{
    if (failure.exception.is_held()) {
        failure.exception.rethrow();
    }
    if (failure.status == XSEG_ERR_FORKED) {
        throw_forked(failure.text);
    }
    TORCH_CHECK(is_out_of_memory(failure.status), failure.text);
    TORCH_CHECK_WITH(OutOfMemoryError, false, failure.text);
}

} // namespace xseg_torch
