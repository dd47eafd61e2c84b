/* SPDX-License-Identifier: MIT */
#include "src/core/hit.h"

#include "src/core/live.h"
#include "src/core/size.h"

/* Whether nothing is under way on a device that a plain request would have to ask about. */
static inline bool is_calm(struct xseg_device *device)
{
    return !xseg_context_is_lost(&device->context) && !xseg_routes_exist(&device->routes) &&
           !xseg_pending_captures(&device->pending);
}

/* The arena of the default pool that a stream's requests of a kind go to, or NULL. */
static inline struct xseg_arena *find_arena(struct xseg_device *device, xseg_stream handle,
                                            bool is_small)
{
    const struct xseg_known_stream *stream = xseg_streams_find_plain(&device->streams, handle);

    return stream == NULL ? NULL
                          : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
}

bool xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                    xseg_stream stream, void **out) XSEG_UNCHECKED
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t rounded = (bytes + XSEG_SIZE_QUANTUM - 1) & ~(XSEG_SIZE_QUANTUM - 1);

    if ((unsigned)ordinal >= (unsigned)allocator->device_count || !config->has_plain_hits ||
        bytes - 1 >= XSEG_SIZE_ABSURD - 1)
        return false;
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);
    if (device == NULL || !is_calm(device))
        return false;
    struct xseg_need need; /* what no hit asks for is left open */
    need.is_small = xseg_size_is_small(rounded);
    struct xseg_arena *arena = find_arena(device, stream, need.is_small);
    if (arena == NULL)
        return false;
    if (__builtin_expect(atomic_load_explicit(&device->pending.count, memory_order_relaxed) != 0,
                         0))
        xseg_device_look_at_pending(arena, config);
    need.config = config;
    need.requested = bytes;
    need.bytes = need.span = rounded;
    need.expandable = config->expandable_segments && device->context.has_vmm;
    need.no_split = false;
    xseg_arena_lock(arena);
    const uint64_t base =
        need.is_small ? xseg_small_hit(arena, &need) : xseg_arena_hit(arena, &need);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return false;
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

/* Free the block at an address of a locked extent, if that is all there is to do. */
static inline bool free_plainly(struct xseg_arena *arena, struct xseg_extent *extent,
                                uint64_t address)
{
    uint32_t quantum = 0;

    if (extent->has_cells && xseg_live_find_cell(extent, address, &quantum)) {
        xseg_small_free(arena, extent, quantum);
        return true;
    }
    struct xseg_block *block = xseg_extent_block_at(extent, address);
    return block != NULL && !extent->has_cells && xseg_arena_hit_free(arena, block);
}

bool xseg_hit_free(struct xseg_allocator *allocator, const void *pointer) XSEG_UNCHECKED
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t address = (uint64_t)(uintptr_t)pointer;

    if (!config->has_plain_frees)
        return false;
    struct xseg_extent *extent = xseg_live_lock_extent(allocator, address);
    if (extent == NULL)
        return false;
    struct xseg_arena *arena = extent->arena;
    const bool freed = free_plainly(arena, extent, address);
    xseg_arena_unlock(arena);
    return freed;
}
