/* SPDX-License-Identifier: MIT */
#include "src/core/device.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/core/allocator.h"
#include "src/core/alone.h"
#include "src/core/deferred.h"
#include "src/core/departure.h"
#include "src/core/idle.h"
#include "src/core/ladder.h"
#include "src/core/mapping.h"
#include "src/core/pause.h"
#include "src/core/size.h"
#include "src/core/trace.h"
#include "src/core/trim.h"
#include "src/core/walk.h"

/* --- Opening. --- */

xseg_status xseg_device_open(struct xseg_allocator *allocator, int ordinal, char *why,
                             size_t why_bytes, struct xseg_device **out)
{
    struct xseg_device *device = calloc(1, sizeof(*device));
    xseg_status status;

    if (device == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory to open device %d", ordinal);
    status = xseg_leftovers_init(&device->leftovers, &device->context);
    if (status != XSEG_OK)
        goto free_device;
    status = xseg_context_open(&device->context, allocator->driver, ordinal, &device->leftovers,
                               why, why_bytes);
    if (status != XSEG_OK)
        goto end_leftovers;
    xseg_pages_init(&device->pages, &device->context, &device->leftovers);
    device->allocator = allocator;
    device->fork = &allocator->fork;
    device->lookup = &allocator->lookup;
    device->lookup_lock = &allocator->lookup_lock;
    xseg_lock_init(&device->growth_lock, XSEG_RANK_GROWTH);
    xseg_lock_init(&device->table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&device->streams, &device->context, &device->table_lock);
    xseg_pending_init(&device->pending, &device->context);
    xseg_routes_init(&device->routes, &device->context, &device->table_lock);
    xseg_totals_init(&device->totals);
    xseg_bounds_init(&device->bounds, xseg_allocator_config(allocator));
    device->pool_body.device = device;
    xseg_pool_init(&device->pool, &device->pool_body, NULL);
    xseg_retire_init(device);
    xseg_fill_init(&device->fill, allocator);
    xseg_free_log_init(&device->free_log);
    xseg_sharing_init(&device->sharing);
    xseg_list_init(&device->spare_extents);
    *out = device;
    return XSEG_OK;

end_leftovers:
    xseg_leftovers_fini(&device->leftovers);
free_device:
    free(device);
    return status;
}

/* --- Arenas. --- */

void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    xseg_retire_begin_visit(device);
    xseg_pool_visit_arenas(&device->pool_body, visit, self);
    for (struct xseg_pool_body *body = atomic_load(&device->private_pools); body != NULL;
         body = atomic_load(&body->next))
        xseg_pool_visit_arenas(body, visit, self);
    xseg_retire_end_visit(device);
}

xseg_status xseg_device_make_pool(struct xseg_device *device,
                                  const struct xseg_pool_options *options, struct xseg_pool **out)
{
    const xseg_status status = options->exportable ? xseg_share_try(device) : XSEG_OK;

    if (status != XSEG_OK)
        return status;
    xseg_retire_look(device);
    return xseg_retire_make_pool(device, options, out);
}

/* --- Closing. --- */

/* The first live blocks, for the error text. */
struct survivors {
    uint64_t count;
    struct xseg_text text;
    char buffer[512];
};

static void find_live(void *self, struct xseg_arena *arena)
{
    struct survivors *live = self;

    xseg_arena_lock(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        XSEG_WALK(part, extent)
        {
            if (part.state != XSEG_BLOCK_LIVE)
                continue;
            if (live->count++ < 4)
                xseg_text_add(&live->text, "%s %#" PRIx64 " of %" PRIu64 " bytes on stream %p",
                              live->count > 1 ? "," : "", part.base, part.requested,
                              (void *)xseg_arena_stream(arena)->handle);
        }
    }
    xseg_arena_unlock(arena);
}

static void end_extents(void *self, struct xseg_arena *arena)
{
    bool *all = self;

    *all = xseg_trim_end_holes(arena) && *all;
}

/* End a stream of the device's own. */
static xseg_status end_stream(struct xseg_device *device, xseg_stream *stream)
{
    const xseg_status status =
        *stream == NULL ? XSEG_OK : xseg_driver_stream_destroy(&device->context, *stream);

    if (status == XSEG_OK)
        *stream = NULL;
    return status;
}

/* Give everything back to the driver; what it refuses is found again by the next attempt. */
static xseg_status give_everything_back(struct xseg_device *device)
{
    const struct xseg_trim_plan everything = {.wait = true, .held_pools = true};
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;
    bool all = true;
    xseg_status status = XSEG_OK;

    xseg_pause_forget_all(device);
    status = xseg_trim_device(device, &everything, &done);
    if (status != XSEG_OK)
        return status;
    xseg_device_visit_arenas(device, end_extents, &all);
    if (!all)
        return xseg_fail(XSEG_ERR_DRIVER,
                         "device %d: the driver did not take back %" PRIu64 " bytes: close again",
                         device->context.ordinal, done.kept_refused);
    status = xseg_leftovers_retry(&device->leftovers);
    if (status == XSEG_OK)
        status = end_stream(device, &device->side);
    if (status == XSEG_OK)
        status = end_stream(device, &device->copier);
    if (status != XSEG_OK)
        return status;
    xseg_idle_end(device);
    xseg_departure_end(device);
    return xseg_fences_fini(&device->pending.fences);
}

/* The host side of an extent whose device is lost. */
static void abandon_extents(void *self, struct xseg_arena *arena)
{
    (void)self;
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        xseg_lock_take(arena->device->lookup_lock);
        xseg_lookup_remove(arena->device->lookup, extent);
        xseg_lock_give(arena->device->lookup_lock);
        xseg_extent_fini(extent);
        xseg_segment_abandon(&extent->segment);
        extent->first = NULL;
        xseg_list_remove(&extent->link);
        xseg_list_insert(&arena->device->spare_extents, &extent->link);
    }
}

void xseg_device_end(struct xseg_device *device)
{
    xseg_retire_fini(device);
    xseg_pool_fini(&device->pool_body);
    XSEG_LIST_FOR_SAFE(node, &device->spare_extents)
    {
        free(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    xseg_routes_fini(&device->routes);
    xseg_streams_fini(&device->streams);
    xseg_pending_fini(&device->pending);
    xseg_totals_fini(&device->totals);
    xseg_pages_fini(&device->pages);
    xseg_free_log_fini(&device->free_log);
    xseg_sharing_fini(&device->sharing);
    xseg_leftovers_fini(&device->leftovers);
    xseg_lock_fini(&device->table_lock);
    xseg_lock_fini(&device->growth_lock);
    free(device);
}

xseg_status xseg_device_expect_none_live(struct xseg_device *device)
{
    struct survivors live = {0};

    if (xseg_pending_captures(&device->pending) || xseg_routes_exist(&device->routes))
        return xseg_fail(XSEG_ERR_BUSY, "a %s is under way on device %d: end it first",
                         xseg_pending_captures(&device->pending) ? "capture" : "route to a pool",
                         device->context.ordinal);
    xseg_text_init(&live.text, live.buffer, sizeof(live.buffer));
    xseg_lock_take(&device->growth_lock);
    xseg_device_visit_arenas(device, find_live, &live);
    const uint64_t pinned = xseg_mapping_pinned(device);
    xseg_lock_give(&device->growth_lock);
    if (live.count == 0 && pinned != 0 && !xseg_context_is_lost(&device->context))
        return xseg_fail(XSEG_ERR_BUSY,
                         "%" PRIu64 " bytes are pinned on device %d: unpin them first", pinned,
                         device->context.ordinal);
    if (live.count == 0)
        return xseg_share_expect_none(device);
    return xseg_fail(XSEG_ERR_BUSY, "%" PRIu64 " live block%s on device %d:%s%s", live.count,
                     live.count > 1 ? "s" : "", device->context.ordinal, live.buffer,
                     live.count > 4 ? ", ..." : "");
}

/* Nobody waits for a stream of a lost device. */
static void pass(void *self, struct xseg_known_stream *stream)
{
    struct xseg_device *device = self;

    xseg_pending_passed(&device->pending, stream);
}

/* What is pending is taken back while its extents are there: no slot of the look-up leads to it any more. */
static void abandon_pending(struct xseg_device *device)
{
    xseg_pending_lock(&device->pending);
    xseg_deferred_settle(&device->pending, NULL);
    xseg_pending_unlock(&device->pending);
    xseg_streams_visit(&device->streams, pass, device);
}

xseg_status xseg_device_give_back(struct xseg_device *device)
{
    xseg_status status = XSEG_OK;

    xseg_lock_take(&device->growth_lock);
    if (!xseg_context_is_lost(&device->context))
        status = give_everything_back(device);
    if (xseg_context_is_lost(&device->context)) {
        abandon_pending(device);
        xseg_pause_abandon(device);
        xseg_device_visit_arenas(device, abandon_extents, NULL);
        status = XSEG_OK;
    }
    xseg_lock_give(&device->growth_lock);
    return status;
}

xseg_status xseg_device_let_go(struct xseg_device *device)
{
    const xseg_status status = xseg_context_close(&device->context);

    /* The context of a lost device is gone, whatever the driver says to that. */
    return xseg_context_is_lost(&device->context) ? XSEG_OK : status;
}

void xseg_device_hold_again(struct xseg_device *device)
{
    if (!xseg_context_is_lost(&device->context))
        xseg_context_reopen(&device->context);
}

/* --- Allocating. --- */

/* Work out what a request wants, and of which arena; NULL if a route was there, and its pool has ended. */
static xseg_status prepare(struct xseg_device *device, const struct xseg_device_request *request,
                           struct xseg_need *need, struct xseg_arena **arena)
{
    struct xseg_known_stream *stream = NULL;
    struct xseg_pool *pool = request->pool;

    if (__builtin_expect(request->bytes >= XSEG_SIZE_ABSURD, 0)) {
        atomic_fetch_add_explicit(&device->ooms, 1, memory_order_relaxed);
        return xseg_fail(XSEG_ERR_NO_MEMORY,
                         "device %d has no room for %" PRIu64 " bytes: no device has so much",
                         device->context.ordinal, request->bytes);
    }
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    xseg_status status = xseg_departure_get(device, request->stream, &stream);
    if (status == XSEG_OK && pool == NULL && xseg_routes_exist(&device->routes))
        status = xseg_routes_find(&device->routes, stream, &pool);
    if (status != XSEG_OK)
        return status;
    if (pool == NULL)
        pool = &device->pool;
    if (xseg_pending_captures(&device->pending)) {
        xseg_streams_claim(stream);
        atomic_store_explicit(&pool->body->is_captured, true, memory_order_relaxed);
    }
    need->pool = pool->is_private ? pool : NULL;
    need->config = request->config;
    need->requested = request->bytes;
    need->bytes = xseg_size_round(request->config, request->bytes);
    need->alignment = xseg_max(request->alignment, XSEG_SIZE_QUANTUM);
    need->span = need->bytes + need->alignment - XSEG_SIZE_QUANTUM;
    need->is_small = xseg_size_is_small(need->bytes);
    need->expandable = request->config->expandable_segments && device->context.has_vmm &&
                       !xseg_pool_has_own_memory(pool);
    need->no_split = pool->no_split;
    need->packs =
        request->config->placement == XSEG_PLACEMENT_PAGES && need->expandable && !need->no_split;
    need->ages =
        request->config->garbage_collection_threshold > 0 && request->config->memory_fraction < 1.0;
    need->segment_bytes = xseg_max(xseg_size_segment(request->config, need->bytes),
                                   xseg_round_up(need->span, XSEG_SIZE_SEGMENT_STEP));
    status = xseg_pool_arena(pool, stream, need->is_small, arena);
    return status == XSEG_ERR_ARGUMENT && request->pool == NULL ? XSEG_OK : status;
}

/*
 * Take back what can be had again; in a capture only what its graph allows.
 *
 * PyTorch asks about every stream's next event at every allocation, and its statistics show that.  Once
 * memory has been short they are no model any more, and a question is left out that cannot serve this
 * request: nothing of its arena is pending.  A miss asks in any case.
 */
void xseg_device_look_at_pending(struct xseg_arena *arena, const struct xseg_config *config)
{
    struct xseg_device *device = arena->device;

    if (xseg_context_is_lost(&device->context))
        return;
    if (!xseg_pending_captures(&device->pending)) {
        if (!atomic_load_explicit(&device->asks_late, memory_order_relaxed) ||
            xseg_arena_has_pending(arena))
            xseg_pending_poll(&device->pending);
    } else if (config->graph_capture_record_stream_reuse) {
        xseg_deferred_reuse(&device->pending, xseg_arena_stream(arena));
    }
}

void xseg_device_follow(struct xseg_device *device, const struct xseg_config *config)
{
    if (config->decays_on_calls)
        xseg_decay_pass(device, config);
    xseg_trace_deliver(device->allocator);
}

/* What an allocation ends with where the configuration says so.  grant: NULL if it failed */
static void end_alloc(struct xseg_device *device, const struct xseg_device_request *request,
                      const struct xseg_grant *grant)
{
    const uint64_t now = xseg_births_now(device->allocator, request->config);

    if (grant != NULL && now != 0)
        xseg_births_note_at(device->allocator, grant->base, now);
    if (!request->config->follows_calls)
        return;
    if (grant != NULL)
        xseg_trace_note_grant(grant);
    xseg_device_follow(device, request->config);
}

/* Serve a request.  Nothing, with XSEG_OK, if its pool ended before its arena's lock was taken. */
static xseg_status serve(struct xseg_device *device, const struct xseg_device_request *request,
                         struct xseg_grant *out)
{
    struct xseg_arena *arena = NULL;
    struct xseg_need need = {.keep = false};
    xseg_status status = prepare(device, request, &need, &arena);

    if (status != XSEG_OK || arena == NULL)
        return status;
    if (__builtin_expect(xseg_alone_is_asked(request->config), 0))
        status = xseg_alone_choose(&need, &arena);
    if (status != XSEG_OK)
        return status;
    if (!request->has_asked && xseg_pending_count(&device->pending) != 0)
        xseg_device_look_at_pending(arena, request->config);
    if (__builtin_expect(!need.is_alone, 1))
        status = xseg_arena_alloc(arena, &need, out);
    if (status == XSEG_OK && out->base == 0)
        status = xseg_ladder_alloc(arena, &need, out);
    return status;
}

xseg_status xseg_device_alloc(struct xseg_device *device, const struct xseg_device_request *request,
                              void **out)
{
    struct xseg_grant grant = {.base = 0};
    xseg_status status;

    do {
        status = serve(device, request, &grant);
        if (status == XSEG_OK && grant.base != 0 &&
            __builtin_expect(grant.filled || request->zeroed, 0))
            status = xseg_fill_hand_out(&grant, request->zeroed);
    } while (__builtin_expect(status == XSEG_OK && grant.base == 0, 0));
    if (status == XSEG_OK)
        *out = (void *)(uintptr_t)grant.base; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(request->config->notes_allocs, 0))
        end_alloc(device, request, status == XSEG_OK ? &grant : NULL);
    return status;
}

xseg_status xseg_device_prewarm(struct xseg_device *device,
                                const struct xseg_device_request *request)
{
    struct xseg_arena *arena = NULL;
    struct xseg_grant grant = {.base = 0};
    struct xseg_need need = {.keep = true};
    xseg_status status;

    do {
        status = prepare(device, request, &need, &arena);
        if (status == XSEG_OK && arena != NULL)
            status = xseg_ladder_alloc(arena, &need, &grant);
    } while (status == XSEG_OK && grant.base == 0);
    xseg_trace_deliver(device->allocator);
    return status;
}

/* --- Figures. --- */

uint64_t xseg_device_limit(const struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t hard = xseg_bounds_hard(&device->bounds);

    if (config->memory_fraction >= 1.0)
        return hard;
    return xseg_min(hard,
                    (uint64_t)(config->memory_fraction * (double)device->context.total_bytes));
}

uint64_t xseg_device_physical(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->reserved, memory_order_relaxed) +
           xseg_pages_bytes(&device->pages) + xseg_leftovers_bytes(&device->leftovers);
}

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
    }
    xseg_arena_unlock(arena);
}

uint64_t xseg_device_host_bytes(struct xseg_device *device)
{
    uint64_t bytes = sizeof(*device) + xseg_free_log_bytes(&device->free_log) +
                     xseg_sharing_host_bytes(&device->sharing) + xseg_retire_host_bytes(device) +
                     xseg_streams_host_bytes(&device->streams);

    xseg_device_visit_arenas(device, add_host_bytes, &bytes);
    return bytes;
}

struct inspection {
    struct xseg_finding *finding;
    uint64_t reserved, away;
    bool holds;
};

static void audit_arena(void *self, struct xseg_arena *arena)
{
    struct inspection *inspection = self;

    xseg_arena_lock(arena);
    if (inspection->holds)
        inspection->holds = xseg_arena_audit(arena, inspection->finding);
    inspection->reserved += xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES);
    inspection->away += arena->away;
    xseg_arena_unlock(arena);
}

static bool audit_totals(struct xseg_device *device, const struct inspection *inspection,
                         struct xseg_finding *finding)
{
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t away = atomic_load_explicit(&device->away, memory_order_relaxed);

    XSEG_HOLDS(finding, "DEVICE-1", reserved == inspection->reserved,
               "reserved says %" PRIu64 ", arenas %" PRIu64, reserved, inspection->reserved);
    XSEG_HOLDS(finding, "DEVICE-2", away == inspection->away,
               "away says %" PRIu64 ", arenas %" PRIu64, away, inspection->away);
    return xseg_totals_audit(&device->totals, finding) &&
           xseg_pages_audit(&device->pages, finding) &&
           xseg_leftovers_audit(&device->leftovers, finding);
}

bool xseg_device_audit(struct xseg_device *device, struct xseg_finding *finding)
{
    struct inspection inspection = {.finding = finding, .holds = true};

    xseg_lock_take(&device->growth_lock);
    xseg_device_visit_arenas(device, audit_arena, &inspection);
    if (inspection.holds)
        inspection.holds = audit_totals(device, &inspection, finding);
    xseg_lock_give(&device->growth_lock);
    return inspection.holds;
}
