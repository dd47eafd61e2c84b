/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/pools.h"

namespace xseg_torch
{

namespace
{

template <class Stat> void copy_stat(Stat &to, const struct xseg_stat &from)
{
    to.current = static_cast<int64_t>(from.current);
    to.peak = static_cast<int64_t>(from.peak);
    to.allocated = static_cast<int64_t>(from.allocated);
    to.freed = static_cast<int64_t>(from.freed);
}

/* PyTorch's order of groups is the library's: all, small, large. */
template <class Array, class Groups> void copy_groups(Array &to, const Groups &from)
{
    for (size_t group = 0; group < XSEG_STAT_GROUPS; group++) {
        copy_stat(to[group], from[group]);
    }
}

template <class Stats>
void copy_pools(Stats &to, struct xseg_allocator *library, DeviceIndex device)
{
    if constexpr (requires { to.reserved_bytes_by_private_pools; }) {
        for (const auto &[id, sums] : pool_statistics(library, device)) {
            copy_groups(to.reserved_bytes_by_private_pools[id], sums);
        }
    }
}

template <class Stats> void copy_counters(Stats &to, const struct xseg_statistics &from)
{
    to.num_alloc_retries = static_cast<int64_t>(from.num_alloc_retries);
    to.num_ooms = static_cast<int64_t>(from.num_ooms);
    to.num_sync_all_streams = static_cast<int64_t>(from.num_sync_all_streams);
    to.num_device_alloc = static_cast<int64_t>(from.num_device_alloc);
    to.num_device_free = static_cast<int64_t>(from.num_device_free);
    to.max_split_size = static_cast<int64_t>(from.max_split_size);
    if constexpr (requires { to.num_oom_rejections; }) {
        to.num_oom_rejections = static_cast<int64_t>(from.num_oom_rejections);
    }
}

struct xseg_scope device_scope(DeviceIndex device)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    return scope;
}

} // namespace

DeviceStats Allocator::getDeviceStats(DeviceIndex device)
{
    check_device(device);
    struct xseg_statistics statistics = {sizeof(statistics)};
    struct xseg_scope scope = device_scope(device);
    statistics.max_split_size = UINT64_MAX;
    /* A query must not create a context on the device. */
    if (is_open(device)) {
        check(xseg_stats_get(library_, &scope, &statistics), "memory_stats");
    }
    DeviceStats stats;
    copy_groups(stats.allocation, statistics.allocation);
    copy_groups(stats.segment, statistics.segment);
    copy_groups(stats.active, statistics.active);
    copy_groups(stats.inactive_split, statistics.inactive_split);
    copy_groups(stats.allocated_bytes, statistics.allocated_bytes);
    copy_groups(stats.reserved_bytes, statistics.reserved_bytes);
    copy_groups(stats.active_bytes, statistics.active_bytes);
    copy_groups(stats.inactive_split_bytes, statistics.inactive_split_bytes);
    copy_groups(stats.requested_bytes, statistics.requested_bytes);
    copy_stat(stats.oversize_allocations, statistics.oversize_allocations);
    copy_stat(stats.oversize_segments, statistics.oversize_segments);
    copy_counters(stats, statistics);
    stats.num_sync_all_streams += syncs_[device].load(std::memory_order_relaxed);
    copy_pools(stats, library_, device);
    return stats;
}

static void reset_statistics(Allocator *allocator, DeviceIndex device, unsigned reset)
{
    allocator->check_device(device);
    if (allocator->is_open(device) && !allocator->is_forked()) {
        struct xseg_scope scope = device_scope(device);
        check(xseg_stats_reset(allocator->library(), &scope, reset), "reset_memory_stats");
        reset_pool_statistics(allocator->library(), device, reset);
    }
}

void Allocator::resetAccumulatedStats(DeviceIndex device)
{
    reset_statistics(this, device, XSEG_RESET_ACCUMULATED);
    syncs_[device].store(0, std::memory_order_relaxed);
}

void Allocator::resetPeakStats(DeviceIndex device)
{
    reset_statistics(this, device, XSEG_RESET_PEAK);
}

#ifdef XSEG_TORCH_SEGMENT_SIZES

namespace
{

struct Sizes {
    void *last = nullptr;
    std::vector<caching::StreamSegmentSize> found;
};

bool add_segment(void *context, const struct xseg_block_info *block)
{
    Sizes *sizes = static_cast<Sizes *>(context);
    /* PyTorch releases the addresses of a segment with its last page; xseg keeps them. */
    if (block->is_expandable && block->segment_mapped > 0 && block->segment_base != sizes->last) {
        sizes->last = block->segment_base;
        sizes->found.emplace_back(block->stream, block->is_small, block->segment_mapped);
    }
    return true;
}

} // namespace

std::vector<caching::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex device)
{
    check_device(device);
    Sizes sizes;
    struct xseg_scope scope = device_scope(device);
    check(xseg_for_each_block(library_, &scope, add_segment, &sizes), "getExpandableSegmentSizes");
    return sizes.found;
}

#endif

} // namespace xseg_torch
