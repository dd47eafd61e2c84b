/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/observers.h"

#include <mutex>

#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/history.h"
#include "src/adapters/torch/pools.h"

namespace xseg_torch
{

namespace
{

using RejectionObserver = std::function<void(int64_t, size_t, size_t, size_t)>;

/* Observers are never removed, as in PyTorch. */
struct Observers {
    std::mutex mutex;
    std::vector<OutOfMemoryObserver> out_of_memory;
    std::vector<RejectionObserver> rejection;
    std::vector<AllocatorTraceTracker *> trackers;
    struct xseg_allocator *library = nullptr; /* once it is open */
};

Observers &observers()
{
    static Observers *const the_observers = new Observers;
    return *the_observers;
}

/* Free bytes at the last out-of-memory of each device. */
std::atomic<uint64_t> free_at_last_oom[DEVICES_MAX];

/* Call PyTorch's registered callbacks that free memory, such as the collection of memory that was sent to other processes. */
bool on_low_memory(void *, const struct xseg_oom_info *info)
{
    log_out_of_memory(info);
    if (info->attempt > 0) {
        return false;
    }
    record_failure(info);
    bool has_freed = false;
    try {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
            has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        }
    } catch (...) {
        store_current_exception();
    }
    return has_freed;
}

/* The memory profiler records an event for each failed request. */
void report_to_profiler(struct xseg_allocator *library, const struct xseg_oom_info *info)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = info->device;
    struct xseg_statistics statistics = {sizeof(statistics)};
    if (!c10::memoryProfilingEnabled() || xseg_stats_get(library, &scope, &statistics) != XSEG_OK) {
        return;
    }
    try {
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(info->block_bytes),
            statistics.allocated_bytes[XSEG_STAT_ALL].current,
            statistics.reserved_bytes[XSEG_STAT_ALL].current,
            c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(info->device)));
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: cannot report an out-of-memory to the profiler: ", failure.what());
    }
}

void on_out_of_memory(void *context, const struct xseg_oom_info *info)
{
    log_out_of_memory(info);
    record_failure(info);
    free_at_last_oom[info->device].store(info->free_bytes);
    report_to_profiler(static_cast<struct xseg_allocator *>(context), info);
    std::vector<OutOfMemoryObserver> copies;
    {
        std::lock_guard<std::mutex> lock(observers().mutex);
        copies = observers().out_of_memory;
    }
    /* As in PyTorch, an exception terminates the request, and the remaining observers are not called. */
    try {
        for (const OutOfMemoryObserver &observer : copies) {
            observer(info->device, info->segment_bytes, info->allowed_bytes, info->free_bytes);
        }
    } catch (...) {
        store_current_exception();
    }
}

void on_rejected(void *context, const struct xseg_oom_info *info)
{
    record_rejection(info);
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = info->device;
    struct xseg_statistics statistics = {sizeof(statistics)};
    if (xseg_stats_get(static_cast<struct xseg_allocator *>(context), &scope, &statistics) !=
        XSEG_OK) {
        return;
    }
    std::vector<RejectionObserver> copies;
    {
        std::lock_guard<std::mutex> lock(observers().mutex);
        copies = observers().rejection;
    }
    try {
        for (const RejectionObserver &observer : copies) {
            observer(info->device, info->segment_bytes,
                     statistics.reserved_bytes[XSEG_STAT_ALL].current, statistics.device_bytes);
        }
    } catch (...) {
        store_current_exception();
    }
}

void call_tracker(AllocatorTraceTracker *tracker, const TraceEntry &entry)
{
    try {
        (*tracker)(entry);
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: trace tracker failed: ", failure.what());
    }
}

/* Segments are reported by `on_map` and `on_unmap`, which run after mapping and before unmapping: NCCL must deregister memory
 * before it is unmapped. */
void on_trace(void *context, const struct xseg_trace_entry *entry)
{
    static const TraceEntry::Action actions[] = {TraceEntry::ALLOC, TraceEntry::FREE_REQUESTED,
                                                 TraceEntry::FREE_COMPLETED};
    if (entry->action > XSEG_TRACE_FREE_COMPLETED && entry->action != XSEG_TRACE_OOM) {
        return;
    }
    /* An out-of-memory entry has the free bytes in the place of the address. */
    bool is_out_of_memory = entry->action == XSEG_TRACE_OOM;
    TraceEntry::Action action = is_out_of_memory ? TraceEntry::OOM : actions[entry->action];
    size_t address = is_out_of_memory ? free_at_last_oom[entry->device].load()
                                      : reinterpret_cast<size_t>(entry->base);
    call_tracker(static_cast<AllocatorTraceTracker *>(context),
                 make_entry(action, static_cast<DeviceIndex>(entry->device), address, entry->bytes,
                            entry->stream, id_of_pool(entry->pool)));
}

void notify_mapping(void *context, const struct xseg_mapping *mapping, TraceEntry::Action action)
{
    call_tracker(static_cast<AllocatorTraceTracker *>(context),
                 make_entry(action, static_cast<DeviceIndex>(mapping->device),
                            reinterpret_cast<size_t>(mapping->base), mapping->bytes,
                            mapping->stream, id_of_pool(mapping->pool)));
}

/* Trackers that register memory, such as NCCL's hooks, handle whole segments only.  A single-page segment is whole. */
bool is_part(const struct xseg_mapping *mapping)
{
    return mapping->is_expandable && !mapping->is_single_page;
}

void on_map(void *context, const struct xseg_mapping *mapping)
{
    notify_mapping(context, mapping,
                   is_part(mapping) ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC);
}

void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    notify_mapping(context, mapping,
                   is_part(mapping) ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE);
}

void add_tracker(struct xseg_allocator *library, AllocatorTraceTracker *tracker)
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    observer.context = tracker;
    observer.on_trace = on_trace;
    observer.on_map = on_map;
    observer.on_unmap = on_unmap;
    check(xseg_observer_add(library, &observer, &id), "attachAllocatorTraceTracker");
}

} // namespace

void add_observers(struct xseg_allocator *library)
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    observer.context = library;
    observer.on_low_memory = on_low_memory;
    observer.on_out_of_memory = on_out_of_memory;
    observer.on_rejected = on_rejected;
    check(xseg_observer_add(library, &observer, &id), "torch.cuda.init");
    AdapterLock<std::mutex> lock(observers().mutex);
    for (AllocatorTraceTracker *tracker : observers().trackers) {
        add_tracker(library, tracker);
    }
    observers().library = library;
}

void remove_observers()
{
    AdapterLock<std::mutex> lock(observers().mutex);
    observers().library = nullptr;
}

void Allocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer)
{
    std::lock_guard<std::mutex> lock(observers().mutex);
    observers().out_of_memory.push_back(std::move(observer));
}

void Allocator::attachOomRejectionObserver(RejectionObserver observer)
{
    std::lock_guard<std::mutex> lock(observers().mutex);
    observers().rejection.push_back(std::move(observer));
}

void Allocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker)
{
    auto *added = new AllocatorTraceTracker(std::move(tracker));
    AdapterLock<std::mutex> lock(observers().mutex);
    observers().trackers.push_back(added);
    if (observers().library != nullptr) {
        add_tracker(observers().library, added);
    }
}

} // namespace xseg_torch
