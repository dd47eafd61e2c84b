/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <pthread.h>

#include <cstdlib>
#include <cstring>

#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/foreign.h"
#include "src/adapters/torch/pools.h"
#include "src/adapters/torch/settings.h"
#include "src/adapters/torch/share.h"

namespace xseg_torch
{

static std::atomic<Allocator *> the_allocator{nullptr};
static std::atomic<bool> is_child{false}; /* of the process that opened the library */

Allocator *installed()
{
    return the_allocator.load(std::memory_order_acquire);
}

void set_installed(Allocator *allocator)
{
    the_allocator.store(allocator, std::memory_order_release);
}

/* PYTORCH_NO_CUDA_MEMORY_CACHING; PyTorch also reads it once. */
static bool is_caching_disabled()
{
    static const bool is_set = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr ||
                               std::getenv("PYTORCH_NO_HIP_MEMORY_CACHING") != nullptr;
    return is_set;
}

/* Python's hooks for sanitizers.  A free is reported before it happens, because another thread can get the address
 * immediately afterwards. */
static void trace_allocation(void *ptr)
{
    if (const auto *trace = c10::impl::GPUTrace::get_trace()) {
        (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
}

static void trace_free(void *ptr)
{
    if (const auto *trace = c10::impl::GPUTrace::get_trace()) {
        (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
}

static xseg_status free_attached(struct xseg_allocator *library, void *ptr)
{
    xseg_status status = close_export(library, ptr);
    if (status != XSEG_OK) {
        return status;
    }
    return wait_for_foreign(library, ptr) ? xseg_free(library, ptr) : XSEG_OK;
}

static xseg_status free_block(struct xseg_allocator *library, void *ptr)
{
    bool is_attached = attached_count.load(std::memory_order_relaxed) != 0;
    return C10_UNLIKELY(is_attached) ? free_attached(library, ptr) : xseg_free(library, ptr);
}

static void delete_uncached(void *ptr)
{
    if (ptr != nullptr) {
        trace_free(ptr);
        C10_CUDA_CHECK_WARN(cudaFree(ptr));
    }
}

/* Without caching, PyTorch allocates from the CUDA runtime, also during a capture, where this is an error as in PyTorch. */
static void *allocate_uncached(size_t bytes)
{
    void *ptr = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
    trace_allocation(ptr);
    return ptr;
}

bool Allocator::is_forked() const
{
    return is_child.load(std::memory_order_relaxed);
}

/* A comparison of process IDs would need a system call for each free. */
void Allocator::follow_forks()
{
    static const int error =
        pthread_atfork(nullptr, nullptr, [] { is_child.store(installed()->library() != nullptr); });
    TORCH_CHECK(error == 0, "xseg.torch: pthread_atfork failed, ", std::strerror(error));
}

void Allocator::check_device(DeviceIndex device) const
{
    TORCH_CHECK(0 <= device && device < device_count_, "Invalid device argument ",
                static_cast<int>(device), ": did you call init?");
}

void Allocator::open_device(DeviceIndex device)
{
    check_device(device);
    begin_device(library_, device);
    open_[device].store(true, std::memory_order_relaxed);
}

static void report_memory_usage(Allocator *allocator, void *ptr, int64_t bytes, DeviceIndex device)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    struct xseg_statistics statistics = {sizeof(statistics)};
    if (xseg_stats_get(allocator->library(), &scope, &statistics) == XSEG_OK) {
        c10::reportMemoryUsageToProfiler(ptr, bytes,
                                         statistics.allocated_bytes[XSEG_STAT_ALL].current,
                                         statistics.reserved_bytes[XSEG_STAT_ALL].current,
                                         c10::Device(c10::DeviceType::CUDA, device));
    }
}

void *Allocator::allocate_block(size_t bytes, DeviceIndex device, cudaStream_t stream)
{
    void *ptr = nullptr;
    if (C10_UNLIKELY(!is_open(device))) {
        open_device(device);
    }
    xseg_status status = xseg_alloc(library_, device, bytes, stream, &ptr);
    if (C10_UNLIKELY(status != XSEG_OK)) {
        Failure failed = failure_of(library_, status, device, bytes);
        if (status == XSEG_ERR_ARGUMENT) {
            status = allocate_foreign(library_, bytes, device, stream, &ptr);
        }
        if (status != XSEG_OK) {
            raise(status == failed.status ? std::move(failed)
                                          : failure_of(library_, status, device, bytes));
        }
    }
    report_allocation(ptr, device);
    return ptr;
}

void Allocator::report_allocation(void *ptr, DeviceIndex device)
{
    trace_allocation(ptr);
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
        struct xseg_block_info block = {sizeof(block)};
        report_memory_usage(this, ptr,
                            xseg_block_query(library_, ptr, &block) == XSEG_OK
                                ? static_cast<int64_t>(block.bytes)
                                : 0,
                            device);
    }
}

/* Get whether an address is in an allocated block of the library. */
static bool is_allocated(struct xseg_allocator *library, const void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};
    return xseg_block_query(library, ptr, &block) == XSEG_OK && block.state == XSEG_BLOCK_ALLOCATED;
}

/* The event of the profiler has the size of the block, as in PyTorch, and the allocated bytes after the free. */
static xseg_status free_profiled(Allocator *allocator, void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};
    bool is_known = xseg_block_query(allocator->library(), ptr, &block) == XSEG_OK;
    xseg_status status = free_block(allocator->library(), ptr);
    if (is_known && status == XSEG_OK) {
        report_memory_usage(allocator, ptr, -static_cast<int64_t>(block.bytes),
                            static_cast<DeviceIndex>(block.device));
    }
    return status;
}

static xseg_status free_traced(Allocator *allocator, void *ptr)
{
    /* A free that will fail is not reported. */
    if (C10_UNLIKELY(c10::impl::GPUTrace::get_trace() != nullptr) &&
        is_allocated(allocator->library(), ptr)) {
        trace_free(ptr);
    }
    return C10_UNLIKELY(c10::memoryProfilingEnabled()) ? free_profiled(allocator, ptr)
                                                       : free_block(allocator->library(), ptr);
}

static void delete_cached(void *ptr)
{
    if (ptr != nullptr) {
        warn(free_traced(installed(), ptr), "free");
    }
}

/* Get the current device of the thread.  C10_CUDA_CHECK costs half as much as a hit, so only a failure uses it. */
static DeviceIndex current_device()
{
    DeviceIndex device = 0;
    if (C10_UNLIKELY(c10::cuda::GetDevice(&device) != cudaSuccess)) {
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    }
    return device;
}

c10::DataPtr Allocator::allocate(size_t bytes)
{
    constexpr size_t MAX_BYTES = static_cast<size_t>(1) << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < MAX_BYTES,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    DeviceIndex device = current_device();
    c10::Device torch_device(c10::DeviceType::CUDA, device);
    if (C10_UNLIKELY(is_caching_disabled() || !isEnabled())) {
        void *ptr = bytes == 0 ? nullptr : allocate_uncached(bytes);
        return {ptr, ptr, &delete_uncached, torch_device};
    }
    void *ptr = bytes == 0 ? nullptr
                           : allocate_block(bytes, device,
                                            c10::cuda::getCurrentCUDAStream(device).stream());
    return {ptr, ptr, cached_deleter(), torch_device};
}

c10::DeleterFnPtr cached_deleter()
{
    return &delete_cached;
}

c10::DeleterFnPtr Allocator::raw_deleter() const
{
    return is_caching_disabled() || !isEnabled() ? &delete_uncached : cached_deleter();
}

void Allocator::copy_data(void *to, const void *from, std::size_t bytes) const
{
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

void *Allocator::raw_alloc(size_t bytes)
{
    return allocate(bytes).release_context();
}

void *Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream)
{
    if (bytes == 0) {
        return nullptr;
    }
    if (is_caching_disabled() || !isEnabled()) {
        return allocate_uncached(bytes);
    }
    return allocate_block(bytes, current_device(), stream);
}

/* Memory that was allocated while caching was disabled belongs to the CUDA runtime, also after caching was enabled again. */
void Allocator::raw_delete(void *ptr)
{
    if (ptr == nullptr || is_forked()) {
        return;
    }
    if ((is_caching_disabled() || !isEnabled()) && !is_allocated(library_, ptr)) {
        delete_uncached(ptr);
        return;
    }
    xseg_status status = free_traced(this, ptr);
    TORCH_CHECK(status != XSEG_ERR_NOT_ALLOCATED, "invalid device pointer: ", ptr,
                ": xseg.torch: ", error_message(status));
    warn(status, "free");
}

bool Allocator::initialized()
{
    return device_count_ > 0;
}

void Allocator::enable(bool value)
{
    is_enabled_.store(value);
}

bool Allocator::isEnabled() const
{
    return is_enabled_.load(std::memory_order_relaxed);
}

void Allocator::recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream)
{
    /* The owner of foreign storage orders its reuse. */
    if (ptr.get() == nullptr || ptr.get_deleter() != &delete_cached) {
        return;
    }
    if (C10_UNLIKELY(ptr.device().index() != stream.device_index())) {
        TORCH_CHECK(is_forked() || is_allocated(library_, ptr.get()),
                    "xseg.torch: record_stream: not an allocated block, ", ptr.get());
        if (!is_forked()) {
            record_foreign_use(ptr.get(), ptr.device().index(), stream);
        }
        return;
    }
    xseg_status status = xseg_record_stream(library_, ptr.get(), stream.stream());
    if (status != XSEG_ERR_FORKED) {
        check(status, "record_stream");
    }
}

void Allocator::emptyCache()
{
    emptyCache({0, 0});
}

void Allocator::emptyCache(MempoolId_t id)
{
    if (library() == nullptr || is_forked()) {
        return;
    }
    struct xseg_trim_options options = {sizeof(options)};
    options.wait = true;
    close_deferred_imports();
    free_deferred(library());
    if (id.first == 0 && id.second == 0) {
        check(xseg_trim(library(), nullptr, &options, nullptr), "empty_cache");
        for (DeviceIndex device = 0; device < device_count(); device++) {
            if (!is_open(device)) {
                count_sync(device);
            }
        }
    }
    count_syncs_of_destroyed_pools(this, id);
    trim_released_pools(this, id, options);
    free_destroyed_pools();
}

static bool update_largest(void *context, const struct xseg_block_info *block)
{
    size_t *largest = static_cast<size_t *>(context);
    if (block->state == XSEG_BLOCK_CACHED && block->bytes > *largest) {
        *largest = block->bytes;
    }
    return true;
}

void Allocator::cacheInfo(DeviceIndex device, size_t *largest)
{
    check_device(device);
    if (*largest == 0) {
        size_t total = 0;
        c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
    }
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    check(xseg_for_each_block(library_, &scope, update_largest, largest), "cacheInfo");
}

void *Allocator::getBaseAllocation(void *ptr, size_t *bytes)
{
    struct xseg_block_info block = {sizeof(block)};
    xseg_status status = xseg_block_query(library_, ptr, &block);
    TORCH_CHECK(status == XSEG_OK && block.state == XSEG_BLOCK_ALLOCATED,
                "invalid device pointer: ", ptr);
    TORCH_CHECK(
        !block.is_expandable,
        "Tensors allocated with expandable_segments:True cannot be shared between processes. "
        "Consider using expandable_segments:False in data loading workers via "
        "torch.cuda.memory._set_allocator_settings('expandable_segments:False')");
    if (bytes != nullptr) {
        *bytes = block.segment_bytes;
    }
    return block.segment_base;
}

} // namespace xseg_torch
