/* SPDX-License-Identifier: MIT */
#include "src/core/instance/device_audit.h"

#include <inttypes.h>

#include "src/core/cache/arena_audit.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/pending/debug_fill.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/share.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/stats/counts.h"

static void add_host_bytes(void *self, struct xseg_arena *arena)
{
    uint64_t *bytes = self;

    xseg_arena_lock(arena);
    *bytes += xseg_arena_host_bytes(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        *bytes += sizeof(*extent) + xseg_extent_host_bytes(extent) +
                  xseg_segment_host_bytes(&extent->segment);
        if (extent->elastic != NULL)
            *bytes += xseg_ranges_host_bytes(extent);
    }
    xseg_arena_unlock(arena);
}

uint64_t xseg_device_host_bytes(struct xseg_device *device)
{
    uint64_t bytes = sizeof(*device) + sizeof(*device->pending) + sizeof(*device->fill) +
                     sizeof(*device->decay) + sizeof(*device->sharing) +
                     xseg_pending_unmap_host_bytes(device->pending_unmaps) +
                     atomic_load_explicit(&device->page_cache.record_bytes, memory_order_relaxed) +
                     xseg_history_host_bytes(&device->history) +
                     xseg_sharing_host_bytes(device->sharing) + xseg_pools_host_bytes(device) +
                     xseg_streams_host_bytes(&device->streams);

    xseg_device_visit_arenas(device, add_host_bytes, &bytes);
    return bytes;
}

struct inspection {
    struct xseg_violation *violation;
    uint64_t reserved, evicted;
    bool holds;
};

static void audit_arena(void *self, struct xseg_arena *arena)
{
    struct inspection *inspection = self;

    xseg_arena_lock(arena);
    if (inspection->holds)
        inspection->holds = xseg_arena_audit(arena, inspection->violation);
    inspection->reserved += xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES);
    inspection->evicted += arena->evicted;
    xseg_arena_unlock(arena);
}

static bool audit_totals(struct xseg_device *device, const struct inspection *inspection,
                         struct xseg_violation *violation)
{
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t evicted = atomic_load_explicit(&device->evicted, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));

    XSEG_INVARIANT(violation, "DEVICE-1", reserved == inspection->reserved,
                   "reserved says %" PRIu64 ", arenas %" PRIu64, reserved, inspection->reserved);
    XSEG_INVARIANT(violation, "DEVICE-2", evicted == inspection->evicted,
                   "away says %" PRIu64 ", arenas %" PRIu64, evicted, inspection->evicted);
    return xseg_totals_audit(&device->totals, violation) &&
           xseg_page_cache_audit(&device->page_cache, violation) &&
           xseg_unreleased_audit(&device->unreleased, violation);
}

static bool audit_labels(struct xseg_history_labels *labels, struct xseg_violation *violation)
{
    xseg_mutex_lock(&labels->lock);
    const bool holds = xseg_history_labels_audit(labels, violation);
    xseg_mutex_unlock(&labels->lock);
    return holds;
}

bool xseg_device_audit(struct xseg_device *device, struct xseg_violation *violation)
{
    struct inspection inspection = {.violation = violation, .holds = true};

    xseg_mutex_lock(&device->growth_lock);
    xseg_device_visit_arenas(device, audit_arena, &inspection);
    if (inspection.holds)
        inspection.holds = audit_totals(device, &inspection, violation);
    xseg_mutex_unlock(&device->growth_lock);
    return inspection.holds && audit_labels(&device->history.store->labels, violation);
}
