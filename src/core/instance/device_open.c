/* SPDX-License-Identifier: MIT */
#include "src/core/instance/instance.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/string_util.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/share.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/stats/counts.h"

/* A device and the state of modules above `device`. */
struct device_state {
    struct xseg_device device; /* must be first: free() receives its address */
    struct xseg_pending pending;
    struct xseg_debug_fill fill;
    struct xseg_decay decay;
    struct xseg_pending_unmap pending_unmaps;
    struct xseg_ranges ranges;
    struct xseg_sharing sharing;
    struct xseg_budget_device budget;
};

_Static_assert(offsetof(struct device_state, device) == 0, "a device is freed by its own address");

/* --- Open. --- */

/* Set *exportable to whether pools are exportable by default: the configuration requests it and the
 * probe succeeds. */
static xseg_status probe_configured_export(struct xseg_device *device, bool *exportable)
{
    if (!xseg_allocator_config(device->allocator)->exportable)
        return XSEG_OK;
    const xseg_status status = xseg_page_probe_export(device, exportable);
    return status == XSEG_ERR_UNSUPPORTED ? XSEG_OK : status;
}

/* Probe the properties that the configuration requests for pages of the default pool. */
static xseg_status probe_page_properties(struct xseg_device *device)
{
    const struct xseg_config *config = xseg_allocator_config(device->allocator);
    bool is_exportable = false;

    device->sharing->exportable.is_configured = config->exportable;
    device->pool.options.rdma = config->rdma;
    const xseg_status status = config->rdma ? xseg_page_probe_rdma(device) : XSEG_OK;
    return status == XSEG_OK ? probe_configured_export(device, &is_exportable) : status;
}

/* Free a device that was not published.  It has no device memory, except memory of a probe that the
 * driver failed to release. */
static xseg_status abandon_open(struct xseg_device *device, xseg_status status)
{
    char reason[256];

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    (void)xseg_unreleased_retry(&device->unreleased);
    xseg_driver_release_context_or_keep(&device->context);
    xseg_device_free(device);
    return xseg_fail(status, "%s", reason);
}

xseg_status xseg_device_open(struct xseg_allocator *allocator, int ordinal, char *reason,
                             size_t reason_bytes, struct xseg_device **out)
{
    struct device_state *state = calloc(1, sizeof(*state));
    xseg_status status;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_FIRST) && ordinal >= 0);
    if (state == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, device %d", ordinal);
    struct xseg_device *device = &state->device;
    device->pending = &state->pending;
    device->fill = &state->fill;
    device->decay = &state->decay;
    device->pending_unmaps = &state->pending_unmaps;
    device->ranges = &state->ranges;
    device->sharing = &state->sharing;
    device->budget = &state->budget;
    status = xseg_unreleased_init(&device->unreleased, &device->context);
    if (status != XSEG_OK)
        goto free_device;
    status = xseg_context_open(&device->context, allocator->driver, ordinal, &device->unreleased,
                               reason, reason_bytes);
    if (status != XSEG_OK)
        goto release_unreleased;
    xseg_page_cache_init(&device->page_cache, &device->context, &device->unreleased);
    device->allocator = allocator;
    device->fork = &allocator->fork;
    device->page_map = &allocator->page_map;
    xseg_mutex_init(&device->memory_lock, XSEG_RANK_DEVICE_MEMORY);
    xseg_mutex_init(&device->table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&device->streams, &device->context, &device->table_lock);
    xseg_pending_init(device->pending, &device->context);
    xseg_routes_init(&device->routes, &device->context, &device->table_lock);
    xseg_totals_init(&device->totals);
    xseg_device_limits_init(&device->limits, xseg_allocator_config(allocator));
    xseg_pools_init(device);
    xseg_pool_init(&device->pool, device, NULL);
    xseg_debug_fill_init(device->fill, allocator);
    xseg_history_init(&device->history, &allocator->history, &allocator->observers,
                      device->context.ordinal);
    xseg_sharing_init(device, device->sharing);
    xseg_pending_unmap_init(device->pending_unmaps);
    xseg_ranges_init(device->ranges);
    xseg_budget_device_init(device->budget);
    atomic_init(&device->allowance, UINT64_MAX);
    xseg_list_init(&device->spare_extents);
    status = probe_page_properties(device);
    if (status != XSEG_OK)
        return abandon_open(device, status);
    *out = device;
    return XSEG_OK;

release_unreleased:
    xseg_unreleased_fini(&device->unreleased);
free_device:
    free(state);
    return status;
}

xseg_status xseg_device_create_pool(struct xseg_device *device,
                                    const struct xseg_pool_options *options, struct xseg_pool **out)
{
    struct xseg_pool_options effective = *options;
    xseg_status status = XSEG_OK;
    bool is_exportable = false;

    if (effective.exportable)
        status = xseg_page_probe_export(device, &is_exportable);
    else if (effective.memory.alloc == NULL)
        status = probe_configured_export(device, &effective.exportable);
    if (effective.memory.alloc == NULL && xseg_allocator_config(device->allocator)->rdma)
        effective.rdma = true;
    if (status == XSEG_OK && effective.rdma)
        status = xseg_page_probe_rdma(device);
    if (status != XSEG_OK)
        return status;
    return xseg_pools_create(device, &effective, false, out);
}

/* --- Close. --- */

/* The number of allocated blocks, and a list of the first ones for the error message. */
struct allocated_blocks {
    uint64_t count;
    struct xseg_strbuf text;
    char buffer[1024];
};

/* Number of frames that are printed of the stack of an allocated block. */
#define FRAMES_SHOWN 3u

static void list_allocated_block(void *self, const struct xseg_block_view *view)
{
    const struct xseg_arena *arena = view->extent->arena;
    struct allocated_blocks *blocks = self;

    if (view->state != XSEG_BLOCK_ALLOCATED || blocks->count++ >= 4)
        return;
    xseg_strbuf_printf(&blocks->text, "%s %#" PRIx64 " of %" PRIu64 " bytes on stream %p",
                       blocks->count > 1 ? "," : "", view->base, view->requested,
                       (void *)xseg_arena_stream(arena)->handle);
    xseg_history_store_print_stack(arena->history->store,
                                   xseg_origins_of(view->extent, view->base).stack, FRAMES_SHOWN,
                                   " from ", &blocks->text);
}

/* Destroy a stream that the library created. */
static xseg_status destroy_library_stream(struct xseg_device *device, xseg_stream *stream)
{
    const xseg_status status =
        *stream == NULL ? XSEG_OK : xseg_driver_stream_destroy(&device->context, *stream);

    if (status == XSEG_OK)
        *stream = NULL;
    return status;
}

/* Release all memory to the driver.  If the driver fails to release memory, the next attempt
 * retries it. */
static xseg_status release_all_memory(struct xseg_device *device)
{
    const struct xseg_trim_plan plan = {.wait = true, .retained_pools = true};
    struct xseg_trim_result result = {sizeof(result)};
    bool is_complete = true;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_context_is_lost(&device->context));
    xseg_discard_paused_pools(device, true);
    XSEG_DEVICE_FOR_POOLS(pool, device)
    {
        xseg_unexport_segments(pool);
    }
    status = xseg_trim_device(device, &plan, &result);
    if (status != XSEG_OK)
        return status;
    xseg_ranges_destroy_all(device);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        is_complete = xseg_reclaim_destroy_all_unmapped(arena) && is_complete;
    }
    if (!is_complete)
        return xseg_fail(XSEG_ERR_DRIVER,
                         "driver has not released all memory, %" PRIu64
                         " bytes on device %d; call xseg_close() again",
                         result.kept_failed, device->context.ordinal);
    status = xseg_unreleased_retry(&device->unreleased);
    if (status == XSEG_OK)
        status = destroy_library_stream(device, &device->wait_stream);
    if (status == XSEG_OK)
        status = destroy_library_stream(device, &device->copy_stream);
    if (status != XSEG_OK)
        return status;
    xseg_idle_return_fences(device);
    xseg_stream_retirement_finish_all(device);
    return xseg_fences_fini(&device->pending->fences);
}

/* Free the host memory of an arena's extents, because the device is lost.  The pools are freed with
 * the device. */
static void abandon_extents(struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_context_is_lost(&arena->device->context));
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        xseg_mutex_lock(&arena->device->page_map->lock);
        xseg_page_map_remove(arena->device->page_map, extent);
        xseg_mutex_unlock(&arena->device->page_map->lock);
        xseg_extent_fini(extent);
        xseg_segment_abandon(&extent->segment);
        extent->first = NULL;
        xseg_list_remove(&extent->link);
        xseg_list_insert(&arena->device->spare_extents, &extent->link);
    }
}

void xseg_device_free(struct xseg_device *device)
{
    /* The thread of exports finds segments by the extents of the device. */
    xseg_export_server_stop(&device->sharing->server);
    xseg_pools_fini(device);
    xseg_pool_fini(&device->pool);
    XSEG_LIST_FOR_SAFE(node, &device->spare_extents)
    {
        free(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    xseg_routes_fini(&device->routes);
    xseg_streams_fini(&device->streams);
    xseg_pending_fini(device->pending);
    xseg_debug_fill_fini(device->fill);
    xseg_totals_fini(&device->totals);
    xseg_page_cache_fini(&device->page_cache);
    xseg_history_fini(&device->history);
    xseg_sharing_fini(device->sharing);
    xseg_pending_unmap_fini(device->pending_unmaps);
    xseg_ranges_fini(device->ranges);
    xseg_unreleased_fini(&device->unreleased);
    xseg_mutex_fini(&device->table_lock);
    xseg_mutex_fini(&device->memory_lock);
    free(device);
}

xseg_status xseg_device_check_none_allocated(struct xseg_device *device)
{
    struct allocated_blocks blocks = {0};

    if (xseg_pending_captures(device->pending) || xseg_routes_exist(&device->routes))
        return xseg_fail(XSEG_ERR_BUSY, "%s is active on device %d; end it first",
                         xseg_pending_captures(device->pending) ? "capture" : "route to a pool",
                         device->context.ordinal);
    xseg_strbuf_init(&blocks.text, blocks.buffer, sizeof(blocks.buffer));
    xseg_mutex_lock(&device->memory_lock);
    xseg_device_walk(device, list_allocated_block, &blocks);
    const uint64_t pinned = xseg_mapping_pinned(device);
    const uint64_t held = xseg_ranges_held_bytes(device);
    xseg_mutex_unlock(&device->memory_lock);
    if (blocks.count == 0 && held != 0 && !xseg_context_is_lost(&device->context))
        return xseg_fail(XSEG_ERR_BUSY,
                         "decommitted granules are held, %" PRIu64
                         " bytes on device %d; call xseg_range_unhold() first",
                         held, device->context.ordinal);
    if (blocks.count == 0 && pinned != 0 && !xseg_context_is_lost(&device->context))
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is pinned, %" PRIu64
                         " bytes on device %d; call xseg_unpin() first",
                         pinned, device->context.ordinal);
    if (blocks.count == 0)
        return xseg_share_check_none(device);
    return xseg_fail(
        XSEG_ERR_BUSY, "blocks are allocated, %" PRIu64 " on device %d; free these first:%s%s",
        blocks.count, device->context.ordinal, blocks.buffer, blocks.count > 4 ? ", ..." : "");
}

/* Mark a stream of a lost device as synchronized. */
static void complete_stream(void *self, struct xseg_known_stream *stream)
{
    struct xseg_device *device = self;

    xseg_pending_stream_synchronized(device->pending, stream);
}

/* Free the pending blocks of a lost device before its extents are destroyed. */
static void complete_pending_blocks(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_biased_lock_lock(&device->pending->lock);
    xseg_deferred_flush(device->pending, NULL);
    xseg_biased_lock_unlock(&device->pending->lock);
    xseg_streams_for_each(&device->streams, complete_stream, device);
}

xseg_status xseg_device_release_memory(struct xseg_device *device)
{
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&device->memory_lock);
    if (!xseg_context_is_lost(&device->context))
        status = release_all_memory(device);
    if (xseg_context_is_lost(&device->context)) {
        complete_pending_blocks(device);
        xseg_discard_lost_contents(device);
        xseg_ranges_destroy_all(device);
        XSEG_DEVICE_FOR_ARENAS(arena, device)
        {
            abandon_extents(arena);
        }
        status = XSEG_OK;
    }
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_device_release_context(struct xseg_device *device)
{
    const xseg_status status = xseg_driver_release_context(&device->context);

    /* The context of a lost device no longer exists, independent of the driver's result. */
    return xseg_context_is_lost(&device->context) ? XSEG_OK : status;
}

void xseg_device_retain_context(struct xseg_device *device)
{
    if (!xseg_context_is_lost(&device->context))
        xseg_context_retain_again(&device->context);
}

/* --- Host memory and audit. --- */

static void add_arena_host_bytes(uint64_t *bytes, struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    *bytes += xseg_arena_host_bytes(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        *bytes += sizeof(*extent) + xseg_extent_host_bytes(extent) +
                  xseg_segment_host_bytes(&extent->segment);
        if (extent->elastic != NULL)
            *bytes += xseg_ranges_host_bytes(extent);
    }
    xseg_biased_lock_unlock(&arena->lock);
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

    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        add_arena_host_bytes(&bytes, arena);
    }
    return bytes;
}

struct device_audit {
    struct xseg_violation *violation;
    uint64_t reserved, evicted;
    bool is_valid;
};

static void audit_arena(struct device_audit *audit, struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    if (audit->is_valid)
        audit->is_valid = xseg_arena_audit(arena, audit->violation);
    audit->reserved += xseg_counts_read(&arena->counts, XSEG_COUNT_RESERVED_BYTES).current;
    audit->evicted += arena->evicted;
    xseg_biased_lock_unlock(&arena->lock);
}

static bool audit_totals(struct xseg_device *device, const struct device_audit *audit,
                         struct xseg_violation *violation)
{
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t evicted = atomic_load_explicit(&device->evicted, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));

    XSEG_INVARIANT(violation, "DEVICE-1", reserved == audit->reserved,
                   "reserved is %" PRIu64 ", arenas %" PRIu64, reserved, audit->reserved);
    XSEG_INVARIANT(violation, "DEVICE-2", evicted == audit->evicted,
                   "evicted is %" PRIu64 ", arenas %" PRIu64, evicted, audit->evicted);
    return xseg_totals_audit(&device->totals, violation) &&
           xseg_page_cache_audit(&device->page_cache, violation) &&
           xseg_unreleased_audit(&device->unreleased, violation);
}

static bool audit_labels(struct xseg_history_labels *labels, struct xseg_violation *violation)
{
    xseg_mutex_lock(&labels->lock);
    const bool is_valid = xseg_history_labels_audit(labels, violation);
    xseg_mutex_unlock(&labels->lock);
    return is_valid;
}

bool xseg_device_audit(struct xseg_device *device, struct xseg_violation *violation)
{
    struct device_audit audit = {.violation = violation, .is_valid = true};

    xseg_mutex_lock(&device->memory_lock);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        audit_arena(&audit, arena);
    }
    if (audit.is_valid)
        audit.is_valid = audit_totals(device, &audit, violation);
    xseg_mutex_unlock(&device->memory_lock);
    return audit.is_valid && audit_labels(&device->history.store->labels, violation);
}
