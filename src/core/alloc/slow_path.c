/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/alloc.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/segments.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/report/snapshot.h"

/* The largest alignment of an address that a request can have. */
#define ALIGNMENT_MAX XSEG_GIB

_Static_assert(ALIGNMENT_MAX >= XSEG_SIZE_UNIT && (ALIGNMENT_MAX & (ALIGNMENT_MAX - 1)) == 0,
               "the largest alignment is a valid alignment");

/* --- Allocation parameters. --- */

/* Find the pool of a request on a stream.  *routed: the pool that a route selects, retained for the request; else unchanged */
static xseg_status find_pool(struct xseg_device *device, struct xseg_known_stream *stream,
                             struct xseg_alloc_params *params, struct xseg_pool **routed)
{
    if (params->pool != NULL)
        return XSEG_OK;
    if (xseg_routes_exist(&device->routes)) {
        const xseg_status status = xseg_routes_find(&device->routes, stream, routed);

        if (status != XSEG_OK)
            return status;
    }
    params->pool = *routed != NULL ? *routed : &device->pool;
    return XSEG_OK;
}

/* Find the stream, the pool and the arena of a request for which the fast path has searched no arena. */
static xseg_status find_arena(struct xseg_device *device, struct xseg_alloc_params *params,
                              struct xseg_pool **routed)
{
    struct xseg_known_stream *stream = NULL;
    xseg_status status = xseg_stream_retirement_get(device, params->stream, &stream);

    if (status == XSEG_OK)
        status = find_pool(device, stream, params, routed);
    if (status != XSEG_OK)
        return status;
    if (xseg_pending_captures(device->pending)) {
        xseg_streams_claim(stream);
        atomic_store_explicit(&params->pool->is_captured, true, memory_order_relaxed);
    }
    return xseg_pool_arena(params->pool, stream, params->is_small, &params->arena);
}

/* Compute the parameters that depend on the arena and the configuration. */
static void set_sizes(const struct xseg_device *device, struct xseg_alloc_params *params)
{
    const struct xseg_config *config = params->config;
    const struct xseg_pool *pool = params->pool;

    params->alignment = xseg_max(params->alignment, XSEG_SIZE_UNIT);
    params->expandable =
        config->expandable_segments && device->context.has_vmm && !pool->has_own_memory;
    /* is_single does not change after the pool has an arena. */
    params->is_single = atomic_load_explicit(&pool->is_single, memory_order_relaxed) &&
                        !params->is_small && params->expandable;
    params->no_split =
        params->is_single || atomic_load_explicit(&pool->no_split, memory_order_relaxed);
    /* A single page is mapped at an aligned address, so its block needs no bytes for the alignment. */
    params->span = params->bytes + (params->is_single ? 0 : params->alignment - XSEG_SIZE_UNIT);
    params->segment_bytes = xseg_max(xseg_size_segment(config, params->bytes),
                                     xseg_round_up(params->span, XSEG_SIZE_SEGMENT_STEP));
    params->collects_garbage =
        config->garbage_collection_threshold > 0 &&
        atomic_load_explicit(&device->limits.fraction, memory_order_relaxed) < 1.0;
    XSEG_ASSERT(params->bytes >= params->requested && params->span >= params->bytes);
    XSEG_ASSERT(params->segment_bytes >= params->span);
}

/* Complete the parameters of a request: the arena, unless the fast path has searched it, and all sizes. */
static xseg_status prepare_params(struct xseg_device *device, struct xseg_alloc_params *params,
                                  struct xseg_pool **routed)
{
    XSEG_ASSERT(params->requested > 0 && params->config != NULL);
    XSEG_ASSERT((params->alignment & (params->alignment - 1)) == 0);
    if (__builtin_expect(params->requested >= XSEG_SIZE_MAX, 0)) {
        atomic_fetch_add_explicit(&device->ooms, 1, memory_order_relaxed);
        return xseg_fail(XSEG_ERR_NO_MEMORY,
                         "requested size exceeds the maximum allocation size, %" PRIu64 " bytes",
                         params->requested);
    }
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    params->bytes = xseg_size_round(params->config, params->requested);
    params->is_small = params->bytes <= XSEG_SIZE_SMALL_MAX;
    params->is_searched = params->arena != NULL && params->arena->is_small == params->is_small &&
                          !xseg_pending_captures(device->pending) &&
                          (params->pool != NULL || !xseg_routes_exist(&device->routes));
    if (params->is_searched) {
        params->pool = params->arena->pool;
    } else {
        const xseg_status status = find_arena(device, params, routed);

        if (status != XSEG_OK)
            return status;
    }
    set_sizes(device, params);
    return XSEG_OK;
}

/* --- Pending blocks and the end of a call. --- */

/*
 * PyTorch queries the next event of every stream at every allocation, which its statistics show.  After the first memory
 * pressure the statistics need not match PyTorch's.  Then the query is omitted if no block of the arena is pending, since it
 * cannot free memory for this request.  A miss always queries the events.
 */
void xseg_slow_path_poll_pending(struct xseg_arena *arena, const struct xseg_config *config)
{
    struct xseg_device *device = arena->device;

    if (xseg_context_is_lost(&device->context))
        return;
    if (!xseg_pending_captures(device->pending)) {
        if (!atomic_load_explicit(&device->polls_on_miss, memory_order_relaxed) ||
            xseg_arena_has_pending(arena))
            xseg_pending_poll(device->pending);
    } else if (config->graph_capture_record_stream_reuse) {
        xseg_deferred_reuse(device->pending, xseg_arena_stream(arena));
    }
}

void xseg_slow_path_end_call(struct xseg_device *device, const struct xseg_config *config)
{
    if (config->decays_on_calls)
        xseg_decay_pass(device, config);
    xseg_housekeeping_end_call(device->allocator);
}

/* --- Allocation at an address. --- */

/* Fail because the bytes at the requested address are not all cached memory of the arena. */
static xseg_status fail_at_address(const struct xseg_alloc_params *params, const char *conflict)
{
    const struct xseg_arena *arena = params->arena;

    return xseg_fail(XSEG_ERR_BUSY,
                     "%s, %" PRIu64 " bytes at %#" PRIx64
                     "; pass cached memory of pool %s, stream %p, in %s segments",
                     conflict, params->bytes, params->address, xseg_pool_label(arena->pool),
                     (void *)xseg_arena_stream(arena)->handle, arena->is_small ? "small" : "large");
}

static xseg_status allocate_cached_at(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out) XSEG_REQUIRES(arena->lock)
{
    static const char *const conflicts[] = {
        [XSEG_BLOCK_ALLOCATED] = "address is in an allocated block",
        [XSEG_BLOCK_PENDING_FREE] = "address is in a freed block that another stream still uses",
        [XSEG_BLOCK_CACHED] = "cached block is too short",
        [XSEG_BLOCK_UNMAPPED] = "address is unmapped",
        [XSEG_BLOCK_CLAIMED] = "address is in a block that another thread is changing",
    };
    const uint64_t address = params->address;
    struct xseg_extent *extent = xseg_page_map_find(arena->page_map, address);

    if (extent == NULL || address < extent->segment.base ||
        address - extent->segment.base >= extent->segment.bytes)
        return fail_at_address(params, "address is in no segment of this allocator");
    if (extent->arena != arena)
        return fail_at_address(params, "segment belongs to another pool, stream or kind");
    if (!xseg_arena_reserve_records(arena, &arena->blocks, 4))
        return xseg_arena_fail_host_memory();
    const struct xseg_block_view view = xseg_extent_view_at(extent, address);
    if (view.state != XSEG_BLOCK_CACHED || xseg_block_view_end(&view) - address < params->bytes)
        return fail_at_address(params, conflicts[view.state]);
    if (params->is_single && address != view.base)
        return fail_at_address(params, "address is not the start of a single page");
    *out = xseg_arena_allocate_at(arena, extent, address, params);
    return XSEG_OK;
}

/* Allocate at params->address from cached memory of the arena.  Segments do not change under the device memory lock. */
static xseg_status allocate_at(const struct xseg_alloc_params *params,
                               struct xseg_alloc_result *out)
{
    struct xseg_arena *arena = params->arena;
    struct xseg_device *device = arena->device;

    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_pool_check_running(arena->pool);
    if (status == XSEG_OK) {
        xseg_biased_lock_lock(&arena->lock);
        status = allocate_cached_at(arena, params, out);
        xseg_biased_lock_unlock(&arena->lock);
    }
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

/* --- Allocation. --- */

/* Run the fallback chain for a request that no cached block serves, and report an out-of-memory failure. */
static xseg_status allocate_after_miss(const struct xseg_alloc_params *params,
                                       struct xseg_alloc_result *out)
{
    struct xseg_arena *arena = params->arena;
    struct xseg_device *device = arena->device;

    if (__builtin_expect(
            atomic_load_explicit(&device->sharing->has_deferred_probe, memory_order_relaxed), 0) &&
        !xseg_pending_captures(device->pending))
        xseg_page_probe_retry(device);
    bool rejected = false;
    const xseg_status status = xseg_fallback_chain_alloc(params, out, &rejected);
    if (xseg_oom_cause_is_memory_pressure(status))
        xseg_oom_report(arena, params, status, rejected);
    return status;
}

/* Allocate with complete parameters. */
static xseg_status allocate_from_arena(struct xseg_alloc_params *params,
                                       struct xseg_alloc_result *out)
{
    struct xseg_device *device = params->arena->device;
    xseg_status status = XSEG_OK;

    if (__builtin_expect(params->config->unmap_on_free || params->config->guard_page, 0) &&
        params->address == 0)
        status = xseg_guarded_choose(params);
    if (status != XSEG_OK)
        return status;
    if (!params->has_polled && xseg_pending_count(device->pending) != 0) {
        xseg_slow_path_poll_pending(params->arena, params->config);
        params->is_searched = false;
    }
    if (__builtin_expect(params->address != 0, 0))
        return allocate_at(params, out);
    if (!params->is_searched && !params->is_guarded) {
        params->counts_search = params->collects_garbage;
        status = xseg_arena_alloc(params->arena, params, out);
        params->counts_search = false;
    }
    if (status == XSEG_OK && out->base == 0) {
        status = allocate_after_miss(params, out);
        xseg_pools_notify(device);
    }
    return status;
}

/* Free a block that has not been returned to the caller.  The block has no uses, so the free does not fail.  The free gathers
 * a new context, so the context of the request is saved and restored for the next attempt. */
static void free_result(const struct xseg_alloc_result *result)
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
 * error is returned, or, if its pool has been paused since the allocation, result->base becomes 0.
 */
static xseg_status check_and_zero(struct xseg_alloc_result *result, bool zeroed)
{
    bool is_paused = false;
    const xseg_status status = xseg_debug_fill_allocated(result, zeroed, &is_paused);
    char reason[256];

    XSEG_ASSERT(result->base != 0);
    if (status != XSEG_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        free_result(result);
        return xseg_fail(status, "%s", reason);
    }
    if (is_paused && zeroed) {
        free_result(result);
        *result = (struct xseg_alloc_result){.base = 0};
    }
    return XSEG_OK;
}

xseg_status xseg_slow_path_alloc(struct xseg_device *device, struct xseg_alloc_params *params,
                                 void **out)
{
    const struct xseg_config *config = params->config;
    struct xseg_pool *const pool = params->pool;
    struct xseg_alloc_result result = {.base = 0};
    xseg_status status;

    for (;;) {
        struct xseg_pool *routed = NULL;

        status = prepare_params(device, params, &routed);
        if (status == XSEG_OK)
            status = allocate_from_arena(params, &result);
        if (routed != NULL)
            (void)xseg_release_pool(routed);
        if (status == XSEG_OK && result.base != 0 &&
            __builtin_expect(config->debug_fill || params->zeroed, 0))
            status = check_and_zero(&result, params->zeroed);
        if (__builtin_expect(status != XSEG_OK || result.base != 0, 1))
            break;
        params->pool = pool;
        params->arena = NULL;
        params->is_guarded = params->at_end = false;
    }
    if (status == XSEG_OK)
        *out = (void *)(uintptr_t)result.base; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(config->has_call_epilogue, 0))
        xseg_slow_path_end_call(device, config);
    return status;
}

/* Find the device of a request by its pool, or by its ordinal. */
static xseg_status find_request_device(struct xseg_allocator *allocator,
                                       const struct xseg_request *request, struct xseg_device **out)
{
    if (request->pool == NULL)
        return xseg_allocator_device(allocator, request->device, out);
    if (!xseg_allocator_owns(allocator, request->pool))
        return xseg_fail(XSEG_ERR_ARGUMENT, "pool is of another allocator, %s",
                         xseg_pool_label(request->pool));
    if (xseg_pool_is_retired(request->pool))
        return xseg_pool_fail_released(request->pool);
    *out = request->pool->device;
    return XSEG_OK;
}

xseg_status xseg_slow_path_alloc_request(struct xseg_allocator *allocator,
                                         const struct xseg_request *request,
                                         struct xseg_arena *searched, void **out)
{
    struct xseg_device *device = NULL;

    XSEG_ASSERT(request != NULL && out != NULL);
    if (request->alignment != 0 &&
        (!xseg_is_power_of_two(request->alignment) || request->alignment > ALIGNMENT_MAX))
        return xseg_fail(XSEG_ERR_ARGUMENT, "alignment is not a power of two up to 1 GiB, %zu",
                         request->alignment);
    const xseg_status status = find_request_device(allocator, request, &device);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device->allocator == allocator);
    if (request->bytes == 0) {
        *out = NULL;
        return XSEG_OK;
    }
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(allocator),
        .pool = request->pool,
        .stream = request->stream,
        .arena = searched,
        .requested = request->bytes,
        .alignment = request->alignment,
        .zeroed = request->zeroed,
    };
    return xseg_slow_path_alloc(device, &params, out);
}

xseg_status xseg_slow_path_prewarm(struct xseg_device *device, struct xseg_alloc_params *params)
{
    struct xseg_alloc_result result = {.base = 0};
    xseg_status status;

    XSEG_ASSERT(params->pool != NULL);
    params->is_prewarm = true;
    do {
        params->arena = NULL;
        status = prepare_params(device, params, NULL);
        if (status == XSEG_OK)
            status = allocate_after_miss(params, &result);
    } while (status == XSEG_OK && result.base == 0);
    xseg_housekeeping_end_call(device->allocator);
    return status;
}
