/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/mapping.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"

/* --- Runs. --- */

/* The number of granules of an extent; 1 for a classic segment. */
static uint32_t count_granules(const struct xseg_extent *extent)
{
    return xseg_extent_is_expandable(extent) ? extent->segment.granules : 1;
}

static uint64_t generation_at(const struct xseg_segment *segment, uint32_t granule)
{
    return atomic_load_explicit(&segment->generation[granule], memory_order_relaxed);
}

static struct xseg_mapping describe_mapping(const struct xseg_extent *extent, uint32_t granule)
{
    const struct xseg_segment *segment = &extent->segment;
    const struct xseg_arena *arena = extent->arena;
    XSEG_ASSERT(granule < count_granules(extent));
    const uint64_t base = segment->base + granule * segment->granule_bytes;

    return (struct xseg_mapping){
        .struct_size = sizeof(struct xseg_mapping),
        .device = arena->device->context.ordinal,
        .base = (void *)(uintptr_t)base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = segment->bytes,
        .page_bytes = segment->bytes,
        .generation = generation_at(segment, granule),
        .stream = xseg_arena_stream(arena)->handle,
        .pool = xseg_pool_of(extent),
        .is_expandable = xseg_segment_is_expandable(segment),
        .is_single_page = xseg_pool_is_single_page(extent),
    };
}

static bool continues_mapping(const struct xseg_segment *segment, uint32_t first, uint32_t granule)
{
    return xseg_segment_is_mapped(segment, granule) &&
           segment->length[granule] == segment->length[first] &&
           generation_at(segment, granule) == generation_at(segment, first);
}

/* Find the next mapping in granules [*granule, end), and advance *granule past the mapping.  A
 * classic segment has the single granule 0.  The members for pins and exports are not set.  The
 * caller holds the device memory lock, or the granules are of a claimed block.  Returns whether a
 * mapping was found. */
static bool next_mapping(const struct xseg_extent *extent, uint32_t *granule, uint32_t end,
                         struct xseg_mapping *out)
{
    const struct xseg_segment *segment = &extent->segment;
    uint32_t first = *granule;

    XSEG_ASSERT(end <= count_granules(extent));
    if (!xseg_segment_is_expandable(segment)) {
        *granule = end;
        if (first >= end)
            return false;
        *out = describe_mapping(extent, 0);
        return true;
    }
    while (first < end && !xseg_segment_is_mapped(segment, first))
        first++;
    *granule = first;
    if (first >= end)
        return false;
    while (*granule < end && continues_mapping(segment, first, *granule))
        *granule += segment->length[*granule];
    XSEG_ASSERT(*granule > first && *granule <= end);
    *out = describe_mapping(extent, first);
    out->bytes = (*granule - first) * segment->granule_bytes;
    out->page_bytes = segment->length[first] * segment->granule_bytes;
    return true;
}

/* --- All mappings of a device. --- */

struct collection {
    const struct xseg_pool *pool;
    const struct xseg_known_stream *stream;
    struct xseg_mapping_list *list;
    xseg_status status;
};

static xseg_status append_mapping(struct xseg_mapping_list *list,
                                  const struct xseg_mapping *mapping)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 64 : list->capacity * 2;
        struct xseg_mapping *grown = realloc(list->mapping, capacity * sizeof(*grown));

        if (grown == NULL)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu mappings",
                             capacity);
        list->mapping = grown;
        list->capacity = capacity;
    }
    XSEG_ASSERT(list->count < list->capacity);
    list->mapping[list->count++] = *mapping;
    return XSEG_OK;
}

/* Set whether pages of a mapping that ends before granule `end` are pinned or exported. */
static void set_retained_flags(const struct xseg_extent *extent, uint32_t end,
                               struct xseg_mapping *mapping)
{
    const struct xseg_segment *segment = &extent->segment;
    const uint32_t count =
        xseg_extent_is_expandable(extent) ? (uint32_t)(mapping->bytes / segment->granule_bytes) : 1;

    XSEG_ASSERT(count > 0 && count <= end);
    mapping->is_pinned = xseg_segment_is_pinned(segment, end - count, count);
    mapping->is_exported = xseg_segment_is_exported(segment, end - count, count);
}

static void collect_arena_mappings(struct collection *collection, struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (collection->stream != NULL && xseg_arena_stream(arena) != collection->stream)
        return;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);
        struct xseg_mapping mapping;

        if (collection->pool != NULL && arena->pool != collection->pool)
            continue;
        for (uint32_t granule = 0, end = count_granules(extent);
             collection->status == XSEG_OK && next_mapping(extent, &granule, end, &mapping);) {
            set_retained_flags(extent, granule, &mapping);
            collection->status = append_mapping(collection->list, &mapping);
        }
    }
}

xseg_status xseg_mapping_collect(struct xseg_device *device, const struct xseg_pool *pool,
                                 const struct xseg_known_stream *stream,
                                 struct xseg_mapping_list *list)
{
    struct collection collection = {pool, stream, list, XSEG_OK};

    xseg_mutex_lock(&device->memory_lock);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        collect_arena_mappings(&collection, arena);
    }
    xseg_mutex_unlock(&device->memory_lock);
    return collection.status;
}

/* --- Pins. --- */

/*
 * Whether an address is in an extent, at a time when no extent is being moved.  An extent that
 * moves to another arena is temporarily removed from the page map, under the device memory lock of
 * its device.
 */
static bool is_address_mapped(struct xseg_allocator *allocator, uint64_t address)
{
    bool found = false;

    for (int i = 0; i < allocator->device_count && !found; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        xseg_mutex_lock(&device->memory_lock);
        found = xseg_page_map_find(&allocator->page_map, address) != NULL;
        xseg_mutex_unlock(&device->memory_lock);
    }
    return found;
}

struct xseg_extent *xseg_mapping_lock_extent(struct xseg_allocator *allocator,
                                             uint64_t address) XSEG_UNCHECKED
{
    for (;;) {
        struct xseg_extent *extent = xseg_page_map_find(&allocator->page_map, address);

        if (extent == NULL && is_address_mapped(allocator, address))
            continue;
        if (extent == NULL)
            return NULL;
        struct xseg_device *device = extent->arena->device;
        xseg_mutex_lock(&device->memory_lock);
        const bool is_unchanged = extent == xseg_page_map_find(&allocator->page_map, address) &&
                                  extent->arena->device == device;
        if (is_unchanged && address >= extent->segment.base &&
            address - extent->segment.base < extent->segment.bytes)
            return extent;
        xseg_mutex_unlock(&device->memory_lock);
        if (is_unchanged)
            return NULL;
    }
}

xseg_status xseg_mapping_fail_past_end(const struct xseg_segment *segment, uint64_t address,
                                       uint64_t bytes)
{
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "size exceeds the segment, %" PRIu64 " bytes at %#" PRIx64
                     "; the segment ends at %#" PRIx64 ", make one call for each segment",
                     bytes, address, segment->base + segment->bytes);
}

bool xseg_mapping_is_claimed(const struct xseg_extent *extent, uint64_t begin, uint64_t end)
{
    struct xseg_arena *arena = extent->arena;
    bool found = false;

    xseg_biased_lock_lock(&arena->lock);
    for (uint64_t address = begin; address < end && !found;) {
        const struct xseg_block_view view = xseg_extent_view_at(extent, address);

        found = view.state == XSEG_BLOCK_CLAIMED;
        address = xseg_block_view_end(&view);
    }
    xseg_biased_lock_unlock(&arena->lock);
    return found;
}

xseg_status xseg_mapping_fail_claimed(uint64_t address)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "memory is being mapped or unmapped by another call, %#" PRIx64
                     "; retry after that call has returned",
                     address);
}

/* Check that [address, address + bytes) is part of one allocated block. */
static xseg_status check_allocated_range(const struct xseg_extent *extent, uint64_t address,
                                         uint64_t bytes)
{
    struct xseg_arena *arena = extent->arena;

    xseg_biased_lock_lock(&arena->lock);
    const struct xseg_block_view view = xseg_extent_view_at(extent, address);
    xseg_biased_lock_unlock(&arena->lock);
    if (view.state == XSEG_BLOCK_CLAIMED)
        return xseg_mapping_fail_claimed(address);
    if (view.state != XSEG_BLOCK_ALLOCATED)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address is not in an allocated block, %#" PRIx64
                         "; pin the memory before the block is freed",
                         address);
    if (bytes > xseg_block_view_end(&view) - address)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "size exceeds the block, %" PRIu64 " bytes at %#" PRIx64
                         "; the block at %#" PRIx64 " has %" PRIu64 " bytes",
                         bytes, address, view.base, view.bytes);
    return XSEG_OK;
}

static xseg_status pin_range(struct xseg_extent *extent, uint64_t address, uint64_t bytes)
{
    const uint64_t offset = address - extent->segment.base;
    XSEG_ASSERT(offset < extent->segment.bytes);
    xseg_status status = xseg_pool_check_running(extent->arena->pool);

    if (status == XSEG_OK)
        status = check_allocated_range(extent, address, bytes);
    return status == XSEG_OK
               ? xseg_segment_retain(&extent->segment, XSEG_RETAIN_PIN, offset, offset + bytes)
               : status;
}

xseg_status xseg_mapping_pin(struct xseg_allocator *allocator, uint64_t address,
                             uint64_t bytes) XSEG_UNCHECKED
{
    struct xseg_extent *extent = xseg_mapping_lock_extent(allocator, address);

    if (extent == NULL)
        return xseg_allocator_fail_foreign(address);
    const xseg_status status = pin_range(extent, address, bytes);
    xseg_mutex_unlock(&extent->arena->device->memory_lock);
    return status;
}

xseg_status xseg_mapping_unpin(struct xseg_allocator *allocator, uint64_t address,
                               uint64_t bytes) XSEG_UNCHECKED
{
    struct xseg_extent *extent = xseg_mapping_lock_extent(allocator, address);
    bool was_pinned = false;

    if (extent == NULL)
        return xseg_allocator_fail_foreign(address);
    struct xseg_segment *segment = &extent->segment;
    const uint64_t offset = address - segment->base;
    XSEG_ASSERT(offset < segment->bytes && xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const bool is_inside = bytes <= segment->bytes - offset;
    const xseg_status status =
        is_inside ? XSEG_OK : xseg_mapping_fail_past_end(segment, address, bytes);
    if (is_inside)
        was_pinned = xseg_segment_release(segment, XSEG_RETAIN_PIN, offset, offset + bytes);
    xseg_mutex_unlock(&extent->arena->device->memory_lock);
    if (!is_inside)
        return status;
    return was_pinned ? XSEG_OK
                      : xseg_fail(XSEG_ERR_ARGUMENT,
                                  "memory is not pinned, %" PRIu64 " bytes at %#" PRIx64
                                  "; match each call to one xseg_pin()",
                                  bytes, address);
}

static void add_pinned_bytes(uint64_t *bytes, struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        *bytes += xseg_segment_all_retained_bytes(
                      &XSEG_CONTAINER(node, struct xseg_extent, link)->segment)
                      .pinned;
    }
}

uint64_t xseg_mapping_pinned(struct xseg_device *device)
{
    uint64_t bytes = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        add_pinned_bytes(&bytes, arena);
    }
    return bytes;
}

/* --- Notifications. --- */

bool xseg_notify_is_enabled(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->allocator->observers.mapping_count,
                                memory_order_relaxed) != 0;
}

/* Whether a callback of the notification that this thread delivers keeps the memory mapped. */
static _Thread_local bool keeps_memory;

void xseg_notify_keep(void)
{
    keeps_memory = true;
}

/* The pool whose complete unmapping the calling thread announces; NULL: none. */
static _Thread_local const struct xseg_pool *unmapping_pool;

bool xseg_notify_is_of_pool(const struct xseg_pool *pool)
{
    return unmapping_pool == pool;
}

/*
 * Unlock the device memory lock while callbacks run, and preserve the error of the calling thread.
 */
static void unlock_for_callbacks(struct xseg_device *device,
                                 struct xseg_fail_saved *saved_error) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_fail_save(saved_error);
    xseg_mutex_unlock(&device->memory_lock);
}

static void relock_after_callbacks(struct xseg_device *device,
                                   const struct xseg_fail_saved *saved_error) XSEG_UNCHECKED
{
    xseg_mutex_lock(&device->memory_lock);
    xseg_fail_restore(saved_error);
}

/* Begin a notification that memory is about to be unmapped.  Notifications nest: a callback may
 * cause another one.  Returns the state of the outer notification. */
static bool begin_unmap_notification(void)
{
    const bool outer_keeps = keeps_memory;

    keeps_memory = false;
    return outer_keeps;
}

/* Returns whether no callback keeps the memory mapped. */
static bool end_unmap_notification(bool outer_keeps)
{
    const bool may_unmap = !keeps_memory;

    keeps_memory = outer_keeps;
    return may_unmap;
}

/* Notify observers of the mapped granules [granule, end) of an extent.  No lock is held. */
static void notify_granules(const struct xseg_extent *extent, uint32_t granule, uint32_t end,
                            enum xseg_observer_event event)
{
    struct xseg_observers *observers = &extent->arena->device->allocator->observers;
    struct xseg_mapping mapping;

    XSEG_ASSERT(granule <= end);
    while (next_mapping(extent, &granule, end, &mapping))
        xseg_observers_notify_mapping(observers, event, &mapping);
}

/* Notify observers of bytes of an extent, which are whole pages or a whole classic segment. */
static void notify_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes,
                         enum xseg_observer_event event)
{
    const struct xseg_segment *segment = &extent->segment;

    XSEG_ASSERT(base >= segment->base && base + bytes <= segment->base + segment->bytes);
    if (!xseg_segment_is_expandable(segment))
        notify_granules(extent, 0, 1, event);
    else
        notify_granules(extent, (uint32_t)((base - segment->base) / segment->granule_bytes),
                        (uint32_t)((base + bytes - segment->base) / segment->granule_bytes), event);
}

static void notify_blocks(const struct xseg_block *claimed, enum xseg_observer_event event)
{
    for (; claimed != NULL; claimed = claimed->chain) {
        XSEG_ASSERT(claimed->state == XSEG_BLOCK_CLAIMED);
        notify_bytes(claimed->extent, claimed->base, claimed->bytes, event);
    }
}

bool xseg_notify_unmap(struct xseg_device *device, const struct xseg_block *claimed)
{
    struct xseg_fail_saved saved_error;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(claimed == NULL || claimed->state == XSEG_BLOCK_CLAIMED);
    if (claimed == NULL || !xseg_notify_is_enabled(device))
        return true;
    const bool outer_keeps = begin_unmap_notification();
    unlock_for_callbacks(device, &saved_error);
    notify_blocks(claimed, XSEG_OBSERVER_UNMAP);
    relock_after_callbacks(device, &saved_error);
    if (end_unmap_notification(outer_keeps) && !xseg_pending_captures(device->pending))
        return true;
    unlock_for_callbacks(device, &saved_error);
    notify_blocks(claimed, XSEG_OBSERVER_MAP);
    relock_after_callbacks(device, &saved_error);
    return false;
}

bool xseg_notify_unmap_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_fail_saved saved_error;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if (!xseg_notify_is_enabled(device))
        return true;
    const bool outer_keeps = begin_unmap_notification();
    unlock_for_callbacks(device, &saved_error);
    notify_bytes(extent, base, bytes, XSEG_OBSERVER_UNMAP);
    relock_after_callbacks(device, &saved_error);
    if (end_unmap_notification(outer_keeps) && !xseg_pending_captures(device->pending))
        return true;
    xseg_notify_map(extent, base, bytes);
    return false;
}

void xseg_notify_map(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_fail_saved saved_error;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if (!xseg_notify_is_enabled(device))
        return;
    unlock_for_callbacks(device, &saved_error);
    notify_bytes(extent, base, bytes, XSEG_OBSERVER_MAP);
    relock_after_callbacks(device, &saved_error);
}

bool xseg_notify_pool(struct xseg_pool *pool, bool is_unmap)
{
    struct xseg_device *device = pool->device;
    struct xseg_fail_saved saved_error;
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                pool->state == XSEG_POOL_TRANSITION);
    if (!xseg_notify_is_enabled(device))
        return true;
    const bool outer_keeps = begin_unmap_notification();
    const struct xseg_pool *outer_pool = unmapping_pool;
    unmapping_pool = is_unmap ? pool : NULL;
    unlock_for_callbacks(device, &saved_error);
    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire))
        XSEG_LIST_FOR(node, &arena->extents)
        {
            const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

            notify_granules(extent, 0, count_granules(extent),
                            is_unmap ? XSEG_OBSERVER_UNMAP : XSEG_OBSERVER_MAP);
        }
    relock_after_callbacks(device, &saved_error);
    unmapping_pool = outer_pool;
    return end_unmap_notification(outer_keeps);
}
