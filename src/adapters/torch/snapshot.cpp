/* SPDX-License-Identifier: MIT */
#include <algorithm>
#include <iterator>
#include <map>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/contexts.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/history.h"
#include "src/adapters/torch/pools.h"
#include "src/adapters/torch/settings.h"

namespace xseg_torch
{

namespace
{

struct Builder {
    std::vector<SegmentInfo> segments;
    const char *end = nullptr;     /* of the last block */
    const void *segment = nullptr; /* of the last block */
    const struct xseg_pool *pool = nullptr;
    MempoolId_t id{0, 0}; /* of `pool` */
};

template <class Segment> void set_order(Segment &segment, uint64_t generation)
{
    if constexpr (requires { segment.registration_counter; }) {
        segment.registration_counter = static_cast<int32_t>(generation);
    }
}

/* A block in memory of a fallback pool is in the segment of that pool. */
void begin_segment(Builder *builder, const struct xseg_block_info *block)
{
    const struct xseg_pool *pool =
        block->fallback_pool != nullptr ? block->fallback_pool : block->pool;
    if (pool != builder->pool) {
        builder->pool = pool;
        builder->id = id_of_pool(pool);
    }
    SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(block->device);
    segment.address = reinterpret_cast<size_t>(block->base);
    segment.stream = block->stream;
    segment.is_large = !block->is_small;
    segment.is_expandable = block->is_expandable;
    segment.owner_private_pool_id = builder->id;
    set_order(segment, block->generation);
    builder->segments.push_back(std::move(segment));
}

bool add_block(void *context, const struct xseg_block_info *block)
{
    Builder *builder = static_cast<Builder *>(context);
    if (block->state == XSEG_BLOCK_UNMAPPED) {
        builder->end = nullptr;
        return true;
    }
    if (block->base != builder->end || block->segment_base != builder->segment ||
        builder->segments.empty()) {
        begin_segment(builder, block);
    }
    builder->end = static_cast<const char *>(block->base) + block->bytes;
    builder->segment = block->segment_base;
    SegmentInfo &segment = builder->segments.back();
    BlockInfo info;
    info.size = block->bytes;
    info.requested_size = block->requested;
    info.allocated = block->state == XSEG_BLOCK_ALLOCATED;
    info.active = info.allocated || block->state == XSEG_BLOCK_PENDING_FREE;
    info.context_when_allocated = context_of(block->frames);
    segment.total_size += info.size;
    segment.allocated_size += info.allocated ? info.size : 0;
    segment.active_size += info.active ? info.size : 0;
    segment.requested_size += info.active ? info.requested_size : 0;
    segment.blocks.push_back(std::move(info));
    return true;
}

/* The stack of a segment is that of the event that mapped its first byte. */
void set_contexts(SnapshotInfo *info)
{
    std::map<std::pair<DeviceIndex, size_t>, SegmentInfo *> by_address;
    for (SegmentInfo &segment : info->segments) {
        by_address[{segment.device, segment.address}] = &segment;
    }
    for (const std::vector<TraceEntry> &entries : info->device_traces) {
        for (const TraceEntry &entry : entries) {
            if (entry.action_ == TraceEntry::SEGMENT_ALLOC ||
                entry.action_ == TraceEntry::SEGMENT_MAP) {
                auto found = by_address.find({entry.device_, entry.addr_});
                if (found != by_address.end()) {
                    found->second->context_when_allocated = entry.context_;
                }
            }
        }
    }
}

/* Like PyTorch: a snapshot is an event in the next one. */
void record_snapshots(Allocator *allocator, const std::vector<SegmentInfo> &segments)
{
    std::vector<size_t> active(static_cast<size_t>(allocator->device_count()));
    for (const SegmentInfo &segment : segments) {
        active[static_cast<size_t>(segment.device)] += segment.active_size;
    }
    for (size_t device = 0; device < active.size(); device++) {
        record_snapshot(allocator, static_cast<DeviceIndex>(device), active[device]);
    }
}

} // namespace

SnapshotInfo Allocator::snapshot()
{
    return snapshot({0, 0}, true);
}

SnapshotInfo Allocator::snapshot(MempoolId_t id)
{
    return snapshot(id, true);
}

SnapshotInfo Allocator::snapshot(MempoolId_t id, bool include_traces)
{
    Builder builder;
    SnapshotInfo result;
    if (library() != nullptr) {
        check(xseg_for_each_block(library(), nullptr, add_block, &builder), "memory_snapshot");
    }
    bool is_all = id.first == 0 && id.second == 0;
    for (SegmentInfo &segment : builder.segments) {
        if (is_all || segment.owner_private_pool_id == id) {
            result.segments.push_back(std::move(segment));
        }
    }
    std::sort(result.segments.begin(), result.segments.end(),
              [](const SegmentInfo &a, const SegmentInfo &b) {
                  return a.device != b.device ? a.device < b.device : a.address < b.address;
              });
    for (int device = 0; device < device_count_; device++) {
        result.device_traces.push_back(include_traces
                                           ? trace_entries(this, static_cast<DeviceIndex>(device))
                                           : std::vector<TraceEntry>());
    }
    if (include_traces) {
        result.external_annotations = time_annotations();
    }
    set_contexts(&result);
    record_snapshots(this, result.segments);
    result.config_metadata = config_info();
    return result;
}

} // namespace xseg_torch
