/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/hit_stream.h"

#include "src/core/alloc/slow_path.h"
#include "src/core/block/fast_path.h"
#include "src/core/block/recorder.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"

/* Whether a device permits the fast path: it is not lost, and no route or capture is active. */
static inline bool allows_fast_path(struct xseg_device *device)
{
    return !xseg_context_is_lost(&device->context) && !xseg_routes_exist(&device->routes) &&
           !xseg_pending_captures(device->pending);
}

/* The small or large arena of a stream in the default pool, or NULL. */
static inline struct xseg_arena *find_default_arena(struct xseg_device *device, xseg_stream handle,
                                                    bool is_small)
{
    const struct xseg_known_stream *stream = xseg_streams_find_fast(&device->streams, handle);

    return stream == NULL ? NULL
                          : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
}

static uint64_t allocate_cached(const struct xseg_config *config, struct xseg_arena *arena,
                                uint64_t bytes)
{
    const bool expandable = config->expandable_segments && arena->device->context.has_vmm;
    struct xseg_alloc_params params; /* members that a hit does not read are not set */

    params.config = config;
    params.requested = bytes;
    params.bytes = params.span = (bytes + XSEG_SIZE_UNIT - 1) & ~(XSEG_SIZE_UNIT - 1);
    params.is_small = arena->is_small;
    params.expandable = expandable;
    params.no_split = false;
    return xseg_fast_alloc(arena, &params);
}

/* Record an allocated block in the history and the origins. */
static __attribute__((noinline)) void record_allocation(struct xseg_arena *arena, uint64_t base,
                                                        uint64_t bytes)
{
    struct xseg_recorded_block block = {base, xseg_round_up(bytes, XSEG_SIZE_UNIT), bytes, false};

    /* A large block may be larger than the rounded request: a remainder of up to 1 MiB is not split
     * off. */
    if (!arena->is_small)
        block.bytes = xseg_slot_block_of(xseg_page_map_slot(arena->page_map, base), arena)->bytes;
    xseg_recorder_alloc(arena, &block);
}

uint64_t xseg_hit_stream_alloc_from_arena(const struct xseg_config *config,
                                          struct xseg_arena *arena, uint64_t bytes)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && bytes > 0 && bytes < XSEG_SIZE_MAX);
    XSEG_ASSERT(arena->is_small == (bytes <= XSEG_SIZE_SMALL_MAX));
    const uint64_t base = allocate_cached(config, arena, bytes);
    if (__builtin_expect(config->records_blocks, 0) && base != 0)
        record_allocation(arena, base, bytes);
    return base;
}

static enum xseg_fast_path_mode select_fast_path_mode(const struct xseg_config *config,
                                                      const struct xseg_device *device)
{
    if (config->max_split_bytes != UINT64_MAX || config->records_blocks)
        return XSEG_FAST_PATH_BY_CONFIG;
    return config->expandable_segments && device->context.has_vmm ? XSEG_FAST_PATH_EXPANDABLE
                                                                  : XSEG_FAST_PATH_CLASSIC;
}

/* Add a stream to the stream lookup cache, unless a condition of the fast path has changed since
 * the caller's check. */
static void add_to_stream_cache(struct xseg_allocator *allocator, struct xseg_device *device,
                                xseg_stream handle)
{
    struct xseg_stream_cache *stream_cache = &allocator->stream_cache;

    xseg_mutex_lock(stream_cache->lock);
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_known_stream *stream = xseg_streams_find_fast(&device->streams, handle);
    if (stream != NULL && config->has_fast_allocs && allows_fast_path(device)) {
        atomic_store_explicit(&stream->fast_path_mode, select_fast_path_mode(config, device),
                              memory_order_relaxed);
        xseg_stream_cache_add(stream_cache, stream);
    }
    xseg_mutex_unlock(stream_cache->lock);
}

bool xseg_hit_stream_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                           xseg_stream stream, void **out, struct xseg_arena **searched,
                           bool *has_polled)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);

    if ((unsigned)ordinal >= (unsigned)allocator->device_count || !config->has_fast_allocs ||
        bytes - 1 >= XSEG_SIZE_MAX - 1)
        return false;
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);
    if (device == NULL || !allows_fast_path(device))
        return false;
    struct xseg_arena *arena = find_default_arena(device, stream, bytes <= XSEG_SIZE_SMALL_MAX);
    if (arena == NULL)
        return false;
    if (xseg_stream_cache_has_space(&allocator->stream_cache, ordinal, stream))
        add_to_stream_cache(allocator, device, stream);
    if (!xseg_single_writer_equals(&device->context.slow_path, 0)) {
        xseg_slow_path_poll_pending(arena, config);
        *has_polled = true;
        if (xseg_context_is_lost(&device->context))
            return false;
    }
    *searched = arena;
    xseg_arena_lock(arena);
    const uint64_t base = xseg_hit_stream_alloc_from_arena(config, arena, bytes);
    xseg_arena_unlock(arena);
    if (base == 0)
        return false;
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

bool xseg_hit_stream_alloc_from_pool(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                     uint64_t bytes, xseg_stream handle, void **out,
                                     struct xseg_arena **searched)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_device *device = pool->device;

    if (!config->has_fast_allocs || xseg_pool_is_whole(pool) || !xseg_pool_has_fast_path(pool) ||
        bytes - 1 >= XSEG_SIZE_MAX - 1 || xseg_pending_captures(device->pending) ||
        atomic_load_explicit(&device->context.slow_path, memory_order_relaxed) != 0)
        return false;
    const struct xseg_known_stream *stream = xseg_streams_find_fast(&device->streams, handle);
    if (stream == NULL)
        return false;
    struct xseg_arena *arena = xseg_pool_find_arena(pool, stream, bytes <= XSEG_SIZE_SMALL_MAX);
    if (arena == NULL)
        return false;
    *searched = arena;
    xseg_arena_lock(arena);
    const uint64_t base =
        arena->is_paused ? 0 : xseg_hit_stream_alloc_from_arena(config, arena, bytes);
    xseg_arena_unlock(arena);
    if (base == 0)
        return false;
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

xseg_status xseg_hit_stream_request(struct xseg_allocator *allocator,
                                    const struct xseg_request *request, void **out)
{
    const bool is_aligned = request->alignment == 0 || (xseg_is_power_of_two(request->alignment) &&
                                                        request->alignment <= XSEG_SIZE_UNIT);
    struct xseg_arena *searched = NULL;

    if (request->pool != NULL && is_aligned && !request->zeroed &&
        xseg_allocator_owns(allocator, request->pool) && !xseg_pool_is_retired(request->pool) &&
        xseg_hit_stream_alloc_from_pool(allocator, request->pool, request->bytes, request->stream,
                                        out, &searched))
        return XSEG_OK;
    return xseg_slow_path_alloc_request(allocator, request, searched, out);
}
