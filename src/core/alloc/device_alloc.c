/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/device_alloc.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/core/alloc/allocator_free.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/guarded.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/instance/housekeeping.h"
#include "src/core/pending/debug_fill.h"
#include "src/core/pending/deferred.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/release.h"
#include "src/core/report/oom.h"

/* The pool of a request on a stream; *routed is set to it if a route selects it, and is then retained for the request. */
static xseg_status find_pool(struct xseg_device *device, const struct xseg_device_request *request,
                             struct xseg_known_stream *stream, struct xseg_pool **routed,
                             struct xseg_pool **pool)
{
    xseg_status status = XSEG_OK;

    *pool = request->pool;
    if (request->pool == NULL && xseg_routes_exist(&device->routes)) {
        status = xseg_routes_find(&device->routes, stream, routed);
        *pool = *routed;
    }
    if (*pool == NULL)
        *pool = &device->pool;
    return status;
}

/* Compute the allocation parameters of a request, and find its arena. */
static xseg_status prepare(struct xseg_device *device, const struct xseg_device_request *request,
                           struct xseg_alloc_params *params, struct xseg_pool **routed,
                           struct xseg_arena **arena)
{
    struct xseg_known_stream *stream = NULL;
    struct xseg_pool *pool = NULL;

    XSEG_ASSERT(request->bytes > 0 && request->config != NULL);
    XSEG_ASSERT((request->alignment & (request->alignment - 1)) == 0);
    if (__builtin_expect(request->bytes >= XSEG_SIZE_MAX, 0)) {
        atomic_fetch_add_explicit(&device->ooms, 1, memory_order_relaxed);
        return xseg_fail(XSEG_ERR_NO_MEMORY,
                         "requested size exceeds the maximum allocation size, %" PRIu64 " bytes",
                         request->bytes);
    }
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    xseg_status status = xseg_stream_retirement_get(device, request->stream, &stream);
    if (status == XSEG_OK)
        status = find_pool(device, request, stream, routed, &pool);
    if (status != XSEG_OK)
        return status;
    if (xseg_pending_captures(device->pending)) {
        xseg_streams_claim(stream);
        atomic_store_explicit(&pool->is_captured, true, memory_order_relaxed);
    }
    params->config = request->config;
    params->requested = request->bytes;
    params->bytes = xseg_size_round(request->config, request->bytes);
    params->alignment = xseg_max(request->alignment, XSEG_SIZE_UNIT);
    params->is_small = xseg_size_is_small(params->bytes);
    status = xseg_pool_arena(pool, stream, params->is_small, arena);
    if (status != XSEG_OK)
        return status;
    params->expandable = request->config->expandable_segments && device->context.has_vmm &&
                         !xseg_pool_has_own_memory(pool);
    /* Fixed since the pool has an arena. */
    params->is_single = xseg_pool_is_single(pool) && !params->is_small && params->expandable;
    params->no_split = params->is_single || xseg_pool_is_whole(pool);
    /* A single page has its alignment from the address at which it is mapped. */
    params->span = params->bytes + (params->is_single ? 0 : params->alignment - XSEG_SIZE_UNIT);
    params->ages = request->config->garbage_collection_threshold > 0 &&
                   xseg_device_limits_fraction(&device->limits) < 1.0;
    params->segment_bytes = xseg_max(xseg_size_segment(request->config, params->bytes),
                                     xseg_round_up(params->span, XSEG_SIZE_SEGMENT_STEP));
    XSEG_ASSERT(params->bytes >= params->requested && params->span >= params->bytes);
    XSEG_ASSERT(params->segment_bytes >= params->span);
    return XSEG_OK;
}

/*
 * PyTorch asks about every stream's next event at every allocation, and its statistics show that.  Once
 * memory has been short, its statistics need not be matched, and the question is left out where it cannot serve
 * this request, because no block of its arena is pending.  A miss asks in any case.
 */
void xseg_device_poll_pending(struct xseg_arena *arena, const struct xseg_config *config)
{
    struct xseg_device *device = arena->device;

    if (xseg_context_is_lost(&device->context))
        return;
    if (!xseg_pending_captures(device->pending)) {
        if (!atomic_load_explicit(&device->asks_late, memory_order_relaxed) ||
            xseg_arena_has_pending(arena))
            xseg_pending_poll(device->pending);
    } else if (config->graph_capture_record_stream_reuse) {
        xseg_deferred_reuse(device->pending, xseg_arena_stream(arena));
    }
}

void xseg_device_follow(struct xseg_device *device, const struct xseg_config *config)
{
    if (config->decays_on_calls)
        xseg_decay_pass(device, config);
    xseg_housekeeping_end_call(device->allocator);
}

/* Fail because the bytes at the requested address are not all cached memory of the arena. */
static xseg_status fail_at(const struct xseg_arena *arena, const struct xseg_alloc_params *params,
                           uint64_t at, const char *wrong)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "%s, %" PRIu64 " bytes at %#" PRIx64
                     "; pass cached memory of pool %s, stream %p, in %s segments",
                     wrong, params->bytes, at, xseg_pool_label(arena->pool),
                     (void *)xseg_arena_stream(arena)->handle, arena->is_small ? "small" : "large");
}

static xseg_status take_at(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                           uint64_t at, struct xseg_alloc_result *out) XSEG_REQUIRES(arena->lock)
{
    static const char *const lies[] = {
        [XSEG_BLOCK_ALLOCATED] = "address is in an allocated block",
        [XSEG_BLOCK_PENDING_FREE] = "address is in a freed block that another stream still uses",
        [XSEG_BLOCK_CACHED] = "cached block is too short",
        [XSEG_BLOCK_UNMAPPED] = "address is unmapped",
        [XSEG_BLOCK_CLAIMED] = "address is in a block that another thread is changing",
    };
    struct xseg_extent *extent = xseg_page_map_find(arena->page_map, at);

    if (extent == NULL || at < extent->segment.base ||
        at - extent->segment.base >= extent->segment.bytes)
        return fail_at(arena, params, at, "address is in no segment of this allocator");
    if (extent->arena != arena)
        return fail_at(arena, params, at, "segment belongs to another pool, stream or kind");
    if (!xseg_arena_reserve_records(arena, &arena->blocks, 4))
        return xseg_arena_fail_host_memory();
    const struct xseg_part part = xseg_walk_at(extent, at);
    if (part.state != XSEG_BLOCK_CACHED || xseg_part_end(&part) - at < params->bytes)
        return fail_at(arena, params, at, lies[part.state]);
    if (params->is_single && at != part.base)
        return fail_at(arena, params, at, "address is not the start of a single page");
    *out = xseg_arena_allocate_at(arena, extent, at, params);
    return XSEG_OK;
}

/* Serve a request that names its address from cached memory of an arena.  The device memory lock keeps segments where they are. */
static xseg_status alloc_at(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            uint64_t at, struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;

    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = xseg_pool_check_running(arena->pool);
    if (status == XSEG_OK) {
        xseg_arena_lock(arena);
        status = take_at(arena, params, at, out);
        xseg_arena_unlock(arena);
    }
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

/* Serve a request that the cache does not serve. */
static xseg_status miss(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                        struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;

    if (xseg_page_probe_is_due(device->sharing) && !xseg_pending_captures(device->pending))
        xseg_page_probe_retry(device);
    bool rejected = false;
    const xseg_status status = xseg_fallback_chain_alloc(arena, params, out, &rejected);
    if (xseg_oom_cause_is_memory_pressure(status))
        xseg_oom_report(arena, params, status, rejected);
    return status;
}

/* Serve a prepared request. */
static xseg_status serve_params(const struct xseg_device_request *request, struct xseg_arena *arena,
                                struct xseg_alloc_params *params, struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = XSEG_OK;

    if (__builtin_expect(xseg_guarded_is_enabled(request->config), 0) && request->at == 0)
        status = xseg_guarded_choose(params, &arena);
    if (status != XSEG_OK)
        return status;
    if (!request->has_asked && xseg_pending_count(device->pending) != 0)
        xseg_device_poll_pending(arena, request->config);
    if (__builtin_expect(request->at != 0, 0))
        return alloc_at(arena, params, request->at, out);
    if (__builtin_expect(!params->is_guarded, 1))
        status = xseg_arena_alloc(arena, params, out);
    if (status == XSEG_OK && out->base == 0) {
        status = miss(arena, params, out);
        xseg_pools_notify(device);
    }
    return status;
}

/* Serve a request.  With XSEG_OK and no base in *out, the request has to be prepared again. */
static xseg_status serve(struct xseg_device *device, const struct xseg_device_request *request,
                         struct xseg_alloc_result *out)
{
    struct xseg_arena *arena = NULL;
    struct xseg_pool *routed = NULL;
    struct xseg_alloc_params params = {.keep = false};
    XSEG_ASSERT(out->base == 0);
    xseg_status status = prepare(device, request, &params, &routed, &arena);

    if (status == XSEG_OK)
        status = serve_params(request, arena, &params, out);
    if (routed != NULL)
        (void)xseg_release_pool(routed);
    return status;
}

/* Free a block that was not handed to the user yet: it has no uses, so the free does not fail.  The free gathers a
 * context of its own; that of the request stays for another try. */
static void give_back(const struct xseg_alloc_result *result)
{
    const struct xseg_history_gathered gathered = xseg_history_context_save();

    XSEG_ASSERT(result->base != 0 && result->arena != NULL);
    (void)xseg_allocator_free(
        result->arena->device->allocator,
        (void *)(uintptr_t)result->base); /* NOLINT(performance-no-int-to-ptr) */
    xseg_history_context_restore(&gathered);
}

/*
 * Check the debug pattern of a block, and zero the block if requested.  A block that cannot be zeroed is freed: the driver's
 * error is returned, or, if its pool has been paused since the block was taken, grant->base is 0.
 */
static xseg_status hand_out(struct xseg_alloc_result *result, bool zeroed)
{
    bool is_paused = false;
    const xseg_status status = xseg_debug_fill_allocated(result, zeroed, &is_paused);
    char reason[256];

    XSEG_ASSERT(result->base != 0);
    if (status != XSEG_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        give_back(result);
        return xseg_fail(status, "%s", reason);
    }
    if (is_paused && zeroed) {
        give_back(result);
        *result = (struct xseg_alloc_result){.base = 0};
    }
    return XSEG_OK;
}

xseg_status xseg_device_alloc(struct xseg_device *device, const struct xseg_device_request *request,
                              void **out)
{
    struct xseg_alloc_result result = {.base = 0};
    xseg_status status;

    do {
        status = serve(device, request, &result);
        if (status == XSEG_OK && result.base != 0 &&
            __builtin_expect(request->config->debug_fill || request->zeroed, 0))
            status = hand_out(&result, request->zeroed);
    } while (__builtin_expect(status == XSEG_OK && result.base == 0, 0));
    if (status == XSEG_OK)
        *out = (void *)(uintptr_t)result.base; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(request->config->has_call_epilogue, 0))
        xseg_device_follow(device, request->config);
    return status;
}

xseg_status xseg_device_prewarm(struct xseg_device *device,
                                const struct xseg_device_request *request)
{
    struct xseg_arena *arena = NULL;
    struct xseg_alloc_result result = {.base = 0};
    struct xseg_alloc_params params = {.keep = true};
    xseg_status status;

    XSEG_ASSERT(request->pool != NULL);
    do {
        status = prepare(device, request, &params, NULL, &arena);
        if (status == XSEG_OK)
            status = miss(arena, &params, &result);
    } while (status == XSEG_OK && result.base == 0);
    xseg_housekeeping_end_call(device->allocator);
    return status;
}
