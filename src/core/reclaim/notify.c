/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/notify.h"

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"

bool xseg_notify_is_enabled(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->allocator->observers.noticing, memory_order_relaxed) != 0;
}

/* Whether a callback of the notification that this thread delivers keeps the memory. */
static _Thread_local bool keeps;

void xseg_notify_keep(void)
{
    keeps = true;
}

/* The pool of which this thread reports that all memory is about to be unmapped; NULL: none. */
static _Thread_local const struct xseg_pool *leaving_pool;

bool xseg_notify_is_of_pool(const struct xseg_pool *pool)
{
    return leaving_pool == pool;
}

/* Give the device memory lock while observers are called, with let_go(), and take it again, with take_again(). */
static void let_go(struct xseg_device *device, struct xseg_fail_saved *kept) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_fail_save(kept);
    xseg_mutex_unlock(&device->growth_lock);
}

static void take_again(struct xseg_device *device,
                       const struct xseg_fail_saved *kept) XSEG_UNCHECKED
{
    xseg_mutex_lock(&device->growth_lock);
    xseg_fail_restore(kept);
}

/* Begin a notification that memory is about to be unmapped; a callback may deliver another one. */
static bool begin_leaving(void)
{
    const bool outer = keeps;

    keeps = false;
    return outer;
}

/* Returns: whether no callback keeps the memory */
static bool end_leaving(bool outer)
{
    const bool may_go = !keeps;

    keeps = outer;
    return may_go;
}

/* Tell observers of the mapped granules [at, end) of an extent.  No lock is held. */
static void tell(const struct xseg_extent *extent, uint32_t at, uint32_t end,
                 enum xseg_observers_subject subject)
{
    struct xseg_observers *observers = &extent->arena->device->allocator->observers;
    struct xseg_mapping mapping;

    XSEG_ASSERT(at <= end);
    while (xseg_mapping_next(extent, &at, end, &mapping))
        xseg_observers_notify_of(observers, subject, &mapping);
}

/* Tell observers of bytes of an extent, which are whole pages, or all of a classic segment. */
static void tell_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes,
                       enum xseg_observers_subject subject)
{
    const struct xseg_segment *segment = &extent->segment;

    XSEG_ASSERT(base >= segment->base && base + bytes <= segment->base + segment->bytes);
    if (!xseg_segment_is_expandable(segment))
        tell(extent, 0, 1, subject);
    else
        tell(extent, (uint32_t)((base - segment->base) / segment->granule_bytes),
             (uint32_t)((base + bytes - segment->base) / segment->granule_bytes), subject);
}

static void tell_chain(const struct xseg_block *claimed, enum xseg_observers_subject subject)
{
    for (; claimed != NULL; claimed = claimed->right) {
        XSEG_ASSERT(claimed->state == XSEG_BLOCK_CLAIMED);
        tell_bytes(claimed->extent, claimed->base, claimed->bytes, subject);
    }
}

bool xseg_notify_unmap(struct xseg_device *device, const struct xseg_block *claimed)
{
    struct xseg_fail_saved kept;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(claimed == NULL || claimed->state == XSEG_BLOCK_CLAIMED);
    if (claimed == NULL || !xseg_notify_is_enabled(device))
        return true;
    const bool outer = begin_leaving();
    let_go(device, &kept);
    tell_chain(claimed, XSEG_OBSERVERS_UNMAP);
    take_again(device, &kept);
    if (end_leaving(outer) && !xseg_pending_captures(device->pending))
        return true;
    let_go(device, &kept);
    tell_chain(claimed, XSEG_OBSERVERS_MAP);
    take_again(device, &kept);
    return false;
}

bool xseg_notify_unmap_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_fail_saved kept;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if (!xseg_notify_is_enabled(device))
        return true;
    const bool outer = begin_leaving();
    let_go(device, &kept);
    tell_bytes(extent, base, bytes, XSEG_OBSERVERS_UNMAP);
    take_again(device, &kept);
    if (end_leaving(outer) && !xseg_pending_captures(device->pending))
        return true;
    xseg_notify_map(extent, base, bytes);
    return false;
}

void xseg_notify_map(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_fail_saved kept;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if (!xseg_notify_is_enabled(device))
        return;
    let_go(device, &kept);
    tell_bytes(extent, base, bytes, XSEG_OBSERVERS_MAP);
    take_again(device, &kept);
}

bool xseg_notify_pool(struct xseg_pool *pool, bool leaves)
{
    struct xseg_device *device = pool->device;
    struct xseg_fail_saved kept;
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                pool->state == XSEG_POOL_TRANSITION);
    if (!xseg_notify_is_enabled(device))
        return true;
    const bool outer = begin_leaving();
    const struct xseg_pool *outer_pool = leaving_pool;
    leaving_pool = leaves ? pool : NULL;
    let_go(device, &kept);
    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire))
        XSEG_LIST_FOR(node, &arena->extents)
        {
            const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

            tell(extent, 0, xseg_mapping_granules(extent),
                 leaves ? XSEG_OBSERVERS_UNMAP : XSEG_OBSERVERS_MAP);
        }
    take_again(device, &kept);
    leaving_pool = outer_pool;
    return end_leaving(outer);
}
