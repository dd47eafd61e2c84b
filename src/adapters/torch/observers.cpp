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

/* Observers are never taken away, as in PyTorch. */
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

/* Of a device's last shortage. */
std::atomic<uint64_t> free_when_short[DEVICES_MOST];

/* What PyTorch's users registered to free memory, such as the collection of memory that was sent to other processes. */
bool spare(void *, const struct xseg_oom_info *shortage)
{
    log_shortage(shortage);
    if (shortage->attempt > 0) {
        return false;
    }
    note_refused(shortage);
    bool has_freed = false;
    try {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
            has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        }
    } catch (...) {
        keep_current_exception();
    }
    return has_freed;
}

/* A profiler that records memory has an event for each request that was refused. */
void tell_profiler(struct xseg_allocator *library, const struct xseg_oom_info *shortage)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    where.device = shortage->device;
    struct xseg_statistics now = {sizeof(now)};
    if (!c10::memoryProfilingEnabled() || xseg_stats_get(library, &where, &now) != XSEG_OK) {
        return;
    }
    try {
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(shortage->block_bytes), now.allocated_bytes[XSEG_STAT_ALL].current,
            now.reserved_bytes[XSEG_STAT_ALL].current,
            c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(shortage->device)));
    } catch (const std::exception &problem) {
        TORCH_WARN("xseg.torch: cannot report an out-of-memory to the profiler: ", problem.what());
    }
}

void tell_shortage(void *context, const struct xseg_oom_info *shortage)
{
    log_shortage(shortage);
    note_refused(shortage);
    free_when_short[shortage->device].store(shortage->free_bytes);
    tell_profiler(static_cast<struct xseg_allocator *>(context), shortage);
    std::vector<OutOfMemoryObserver> told;
    {
        std::lock_guard<std::mutex> lock(observers().mutex);
        told = observers().out_of_memory;
    }
    /* As in PyTorch, an exception ends the request, and later observers are not called. */
    try {
        for (const OutOfMemoryObserver &observer : told) {
            observer(shortage->device, shortage->segment_bytes, shortage->allowed_bytes,
                     shortage->free_bytes);
        }
    } catch (...) {
        keep_current_exception();
    }
}

void tell_rejection(void *context, const struct xseg_oom_info *shortage)
{
    note_rejected(shortage);
    struct xseg_scope where = XSEG_SCOPE_ALL;
    where.device = shortage->device;
    struct xseg_statistics now = {sizeof(now)};
    if (xseg_stats_get(static_cast<struct xseg_allocator *>(context), &where, &now) != XSEG_OK) {
        return;
    }
    std::vector<RejectionObserver> told;
    {
        std::lock_guard<std::mutex> lock(observers().mutex);
        told = observers().rejection;
    }
    try {
        for (const RejectionObserver &observer : told) {
            observer(shortage->device, shortage->segment_bytes,
                     now.reserved_bytes[XSEG_STAT_ALL].current, now.device_bytes);
        }
    } catch (...) {
        keep_current_exception();
    }
}

void call(AllocatorTraceTracker *tracker, const TraceEntry &entry)
{
    try {
        (*tracker)(entry);
    } catch (const std::exception &problem) {
        TORCH_WARN("xseg.torch: trace tracker failed: ", problem.what());
    }
}

/* Segments are told of by `on_map` and `on_unmap`, which come at the right side of the change: NCCL lets go of what is
 * registered before the memory goes. */
void trace(void *context, const struct xseg_trace_entry *entry)
{
    static const TraceEntry::Action actions[] = {TraceEntry::ALLOC, TraceEntry::FREE_REQUESTED,
                                                 TraceEntry::FREE_COMPLETED};
    if (entry->action > XSEG_TRACE_FREE_COMPLETED && entry->action != XSEG_TRACE_OOM) {
        return;
    }
    /* An out-of-memory has the bytes that were free where other entries have an address. */
    bool is_shortage = entry->action == XSEG_TRACE_OOM;
    TraceEntry::Action action = is_shortage ? TraceEntry::OOM : actions[entry->action];
    size_t address =
        is_shortage ? free_when_short[entry->device].load() : reinterpret_cast<size_t>(entry->base);
    call(static_cast<AllocatorTraceTracker *>(context),
         make_entry(action, static_cast<DeviceIndex>(entry->device), address, entry->bytes,
                    entry->stream, id_of_pool(entry->pool)));
}

void tell_mapping(void *context, const struct xseg_mapping *mapping, TraceEntry::Action action)
{
    call(static_cast<AllocatorTraceTracker *>(context),
         make_entry(action, static_cast<DeviceIndex>(mapping->device),
                    reinterpret_cast<size_t>(mapping->base), mapping->bytes, mapping->stream,
                    id_of_pool(mapping->pool)));
}

/* Trackers that register memory, such as NCCL's hooks, look at whole segments alone. A single page is one. */
bool is_part(const struct xseg_mapping *mapping)
{
    return mapping->is_expandable && !mapping->is_single_page;
}

void came(void *context, const struct xseg_mapping *mapping)
{
    tell_mapping(context, mapping,
                 is_part(mapping) ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC);
}

void leaving(void *context, const struct xseg_mapping *mapping)
{
    tell_mapping(context, mapping,
                 is_part(mapping) ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE);
}

void track(struct xseg_allocator *library, AllocatorTraceTracker *tracker)
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    observer.context = tracker;
    observer.on_trace = trace;
    observer.on_map = came;
    observer.on_unmap = leaving;
    check(xseg_observer_add(library, &observer, &id), "attachAllocatorTraceTracker");
}

} // namespace

void observe(struct xseg_allocator *library)
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    observer.context = library;
    observer.on_low_memory = spare;
    observer.on_out_of_memory = tell_shortage;
    observer.on_rejected = tell_rejection;
    check(xseg_observer_add(library, &observer, &id), "torch.cuda.init");
    Held<std::mutex> lock(observers().mutex);
    for (AllocatorTraceTracker *tracker : observers().trackers) {
        track(library, tracker);
    }
    observers().library = library;
}

void stop_observing()
{
    Held<std::mutex> lock(observers().mutex);
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
    auto *kept = new AllocatorTraceTracker(std::move(tracker));
    Held<std::mutex> lock(observers().mutex);
    observers().trackers.push_back(kept);
    if (observers().library != nullptr) {
        track(observers().library, kept);
    }
}

} // namespace xseg_torch
