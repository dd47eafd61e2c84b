/* SPDX-License-Identifier: MIT */
/*
 * Methods of PyTorch's allocator that Python cannot call, as C functions for ctypes.  They call the current allocator of
 * PyTorch.  Functions return 0, or -1 with a message in methods_error().
 *
 * Threads: one at a time; callbacks may run in any thread.
 */
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

/* A call of a trace tracker, an observer or an allocator.  The functions that fill records document the values. */
struct Record {
    uint64_t values[8];
};

std::string error;
std::mutex mutex; /* guards `records` and `own_calls` */
std::vector<Record> records;
std::vector<Record> own_calls;
std::atomic<bool> is_listening{false};
std::map<void *, c10::DataPtr> held;

template <class Work>
int guarded(Work work)
{
    try {
        work();
        return 0;
    } catch (const c10::Error &exception) {
        error = exception.what_without_backtrace();
    } catch (const std::exception &exception) {
        error = exception.what();
    }
    return -1;
}

void add(std::vector<Record> &to, const Record &record)
{
    std::lock_guard<std::mutex> lock(mutex);
    to.push_back(record);
}

size_t drain(std::vector<Record> &from, Record *to, size_t max)
{
    std::lock_guard<std::mutex> lock(mutex);
    size_t count = std::min(from.size(), max);
    std::copy_n(from.begin(), count, to);
    from.clear();
    return count;
}

/* Whether device memory is mapped at an address. */
bool is_mapped(uint64_t address)
{
    cudaPointerAttributes attributes = {};
    return cudaPointerGetAttributes(&attributes, reinterpret_cast<void *>(address)) == cudaSuccess &&
           attributes.type == cudaMemoryTypeDevice;
}

/* A callback that frees the blocks of `held` at its first call after it was armed. */
class FreesHeld : public c10::FreeMemoryCallback
{
  public:
    static inline std::atomic<bool> is_armed{false};
    bool Execute() override
    {
        if (!is_armed.exchange(false)) {
            return false;
        }
        held.clear();
        return true;
    }
};

} // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK(frees_held, FreesHeld);
}

extern "C" {

const char *methods_error()
{
    return error.c_str();
}

int methods_cache_info(int device, size_t *largest)
{
    return guarded([&] { caching::get()->cacheInfo(static_cast<c10::DeviceIndex>(device), largest); });
}

int methods_base(void *ptr, uint64_t *base, size_t *bytes)
{
    return guarded([&] { *base = reinterpret_cast<uint64_t>(caching::get()->getBaseAllocation(ptr, bytes)); });
}

/* Stream, whether the segment is of the small pool, bytes. */
int methods_segment_sizes(int device, Record *sizes, size_t max, size_t *count)
{
    return guarded([&] {
        *count = 0;
        for (const auto &size : caching::get()->getExpandableSegmentSizes(static_cast<c10::DeviceIndex>(device))) {
            if (*count < max) {
                sizes[(*count)++] = {{reinterpret_cast<uint64_t>(size.stream), size.is_small_pool, size.total_size}};
            }
        }
    });
}

int methods_push_compile_context(const char *name)
{
    return guarded([&] {
        std::string context = name;
        caching::get()->pushCompileContext(context);
    });
}

int methods_pop_compile_context()
{
    return guarded([] { caching::get()->popCompileContext(); });
}

/* Action, device, address, bytes, stream, the parts of the pool ID, whether memory is mapped at the address now. */
int methods_track()
{
    return guarded([] {
        caching::get()->attachAllocatorTraceTracker([](const caching::TraceEntry &entry) {
            if (is_listening) {
                bool is_memory = entry.action_ != caching::TraceEntry::OOM && is_mapped(entry.addr_);
                add(records, {{static_cast<uint64_t>(entry.action_), static_cast<uint64_t>(entry.device_),
                                  entry.addr_, entry.size_, reinterpret_cast<uint64_t>(entry.stream_),
                                  entry.mempool_.first, entry.mempool_.second, is_memory}});
            }
        });
    });
}

/* Device, requested bytes, reserved bytes, bytes of the device; the last value is 2. */
int methods_observe_rejections()
{
    return guarded([] {
        caching::get()->attachOomRejectionObserver([](int64_t device, size_t bytes, size_t reserved, size_t total) {
            if (is_listening) {
                add(records, {{static_cast<uint64_t>(device), bytes, reserved, total, 0, 0, 0, 2}});
            }
        });
    });
}

void methods_listen(bool is_on)
{
    is_listening = is_on;
}

/* Moves the records since the last call to `out`. */
size_t methods_records(Record *out, size_t max)
{
    return drain(records, out, max);
}

int methods_set_use_on_oom(int device, uint64_t first, uint64_t second, bool is_enabled)
{
    return guarded([&] { caching::get()->setUseOnOOM(static_cast<c10::DeviceIndex>(device), {first, second}, is_enabled); });
}

int methods_enable_peer_access(int device, int owner)
{
    return guarded([&] {
        caching::get()->enablePeerAccess(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(owner));
    });
}

int methods_memcpy(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream, bool is_peer)
{
    return guarded([&] {
        cudaError_t result = caching::get()->memcpyAsync(to, to_device, from, from_device, bytes,
                                                         static_cast<cudaStream_t>(stream), is_peer);
        TORCH_CHECK(result == cudaSuccess, cudaGetErrorName(result));
    });
}

int methods_copy_data(void *to, const void *from, size_t bytes)
{
    return guarded([&] { caching::get()->copy_data(to, from, bytes); });
}

/* Whether a block has a simple data pointer (PyTorch's term): the address alone suffices to free the block. */
int methods_is_simple(size_t bytes, bool *is_simple)
{
    return guarded([&] {
        c10::DataPtr block = caching::get()->allocate(bytes);
        *is_simple = caching::get()->is_simple_data_ptr(block) && block.get_deleter() == caching::get()->raw_deleter();
    });
}

/* The block is held until methods_free(). */
int methods_allocate_at(size_t bytes, void *address, uint64_t *allocated)
{
    return guarded([&] {
        c10::DataPtr block = caching::get()->allocateWithAddress(bytes, address);
        *allocated = reinterpret_cast<uint64_t>(block.get());
        held[block.get()] = std::move(block);
    });
}

int methods_free(void *ptr)
{
    return guarded([&] { held.erase(ptr); });
}

/* The block is held until methods_free(), or until a free-memory callback runs after methods_arm_callback(). */
int methods_hold(size_t bytes)
{
    return guarded([&] {
        c10::DataPtr block = caching::get()->allocate(bytes);
        held[block.get()] = std::move(block);
    });
}

/* Returns whether the callback was armed and has not run. */
bool methods_arm_callback(bool is_armed)
{
    return FreesHeld::is_armed.exchange(is_armed);
}

/* Bytes and number of the expandable segments of PyTorch's own allocator. */
void methods_address_gauges(size_t *bytes, size_t *count)
{
    *bytes = caching::getExpandableSegmentsReservedBytes();
    *count = caching::getExpandableSegmentsCount();
}

int methods_set_reserve_class(void *stream, const char *name, double fraction)
{
    return guarded([&] {
        caching::setDefaultExpandableSegmentReserveFractionForClass(name, fraction);
        caching::setExpandableSegmentReserveClassForStream(static_cast<cudaStream_t>(stream), name);
    });
}

/* Whether the stream has the class. */
int methods_has_reserve_class(void *stream, const char *name, bool *is_set)
{
    return guarded([&] {
        *is_set = caching::getExpandableSegmentReserveClassForStream(static_cast<cudaStream_t>(stream)) == name;
    });
}

int methods_memory_info(int device, size_t *free, size_t *total)
{
    return guarded([&] {
        std::tie(*free, *total) = caching::get()->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    });
}

/* An allocator of a pool, with the signatures of CUDAPluggableAllocator: it calls the runtime, and records each call. */
void *methods_own_alloc(ssize_t bytes, int device, cudaStream_t)
{
    void *ptr = nullptr;
    if (cudaMalloc(&ptr, static_cast<size_t>(bytes)) != cudaSuccess) {
        (void)cudaGetLastError();
        return nullptr;
    }
    add(own_calls, {{1, static_cast<uint64_t>(device), reinterpret_cast<uint64_t>(ptr), static_cast<uint64_t>(bytes)}});
    return ptr;
}

void methods_own_free(void *ptr, ssize_t bytes, int device, cudaStream_t)
{
    add(own_calls, {{0, static_cast<uint64_t>(device), reinterpret_cast<uint64_t>(ptr), static_cast<uint64_t>(bytes)}});
    (void)cudaFree(ptr);
}

/* 1 for an allocation or 0 for a free, device, address, bytes. */
size_t methods_own_calls(Record *out, size_t max)
{
    return drain(own_calls, out, max);
}
}
