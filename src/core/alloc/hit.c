/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/alloc.h"

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/best_fit.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"

/* A function that its callers call last; see alloc.h for the reasons of the attributes. */
#define XSEG_HIT_STEP static __attribute__((noinline, aligned(64))) xseg_status

/* --- Allocation: blocks. --- */

/* Split the first `bytes` off a cached block; returns the new block, which the caller marks as
 * allocated. The new block gets a new record. The remainder keeps the old record, so a split of the
 * last remainder does not change the free index. */
static inline __attribute__((always_inline)) struct xseg_block *
split_off_head(struct xseg_arena *arena, struct xseg_block *block, struct xseg_extent *extent,
               uint64_t bytes)
{
    struct xseg_block *head = xseg_slab_alloc_uninitialized(&arena->blocks), *prev = block->prev;
    const uint64_t base = block->base, remainder = block->bytes - bytes;

    XSEG_ASSERT(head != block && bytes < block->bytes);
    if (block == arena->last_remainder) {
        block->base = base + bytes;
        block->bytes = remainder;
        xseg_cached_record_gc_count(arena, block);
        if (remainder < arena->last_remainder_min) {
            arena->last_remainder = &arena->sentinel;
            xseg_cached_add(arena, block);
        }
    } else {
        xseg_free_index_remove(&arena->free_index, block);
        block->base = base + bytes;
        block->bytes = remainder;
        if (remainder >= arena->last_remainder_min)
            xseg_cached_set_last_remainder(arena, block);
        else
            xseg_cached_add(arena, block);
    }
    head->base = base;
    head->bytes = bytes;
    atomic_store_explicit(&head->extent, extent, memory_order_relaxed);
    head->prev = prev;
    head->next = block;
    head->gc_count_base = 0;
    block->prev = head;
    if (prev != NULL)
        prev->next = head;
    else
        extent->first = head;
    return head;
}

/* Allocate a cached block except its last `remainder` bytes, which stay cached; returns the
 * address. */
static inline __attribute__((always_inline)) uint64_t
allocate_cached_block(struct xseg_arena *arena, struct xseg_block *block, uint64_t remainder,
                      uint64_t requested, bool oversize, bool has_starts)
{
    struct xseg_extent *extent = xseg_block_extent(block);
    const uint64_t base = block->base, bytes = block->bytes - remainder;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && arena->has_starts == has_starts);
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && extent->arena == arena);
    XSEG_ASSERT(remainder < block->bytes && requested > 0 && requested <= bytes);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_split(&arena->counts, xseg_block_is_split(block), bytes, remainder);
    if (remainder != 0)
        block = split_off_head(arena, block, extent, bytes);
    else
        (void)xseg_cached_unindex(arena, block);
    block->uses = NULL;
    block->state = XSEG_BLOCK_ALLOCATED;
    block->mapped = true;
    block->flags = oversize ? XSEG_BLOCK_OVERSIZE : 0;
    block->spare = 0;
    block->requested = requested;
    if (has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, base),
                       xseg_block_handle(arena->records, block));
    else
        xseg_slot_add(xseg_page_map_slot(arena->page_map, base), block);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return base;
}

/* Allocate the best fit, for a configuration without max_split_size_mb; returns the address, or 0
 * if the slow path must serve the request.
 * expandable: whether the configuration has expandable segments */
static inline __attribute__((always_inline)) uint64_t
allocate_best_fit(struct xseg_arena *arena, uint64_t requested, bool expandable, bool is_small)
{
    const uint64_t bytes = (requested + XSEG_SIZE_UNIT - 1) & ~(XSEG_SIZE_UNIT - 1);
    struct xseg_block *block = xseg_cached_find(arena, bytes);

    XSEG_ASSERT(requested > 0 && bytes - requested < XSEG_SIZE_UNIT);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    /* If the free index is empty, the block is the last remainder, and there is no alternative. */
    if (expandable && arena->free_index.used.top != 0 && xseg_block_can_grow(block))
        block = xseg_cached_prefer_enclosed(arena, block);
    if (!expandable && xseg_extent_is_expandable(xseg_block_extent(block)))
        return 0;
    const uint64_t remainder = block->bytes - bytes;
    return allocate_cached_block(
        arena, block, is_small || expandable || remainder > XSEG_SIZE_SMALL_MAX ? remainder : 0,
        requested, false, is_small);
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

/* Allocate by the rules of a configuration, without alignment; returns the address, or 0 if the
 * slow path must serve the request. */
static __attribute__((noinline)) uint64_t
allocate_by_config(const struct xseg_config *config, struct xseg_arena *arena, uint64_t bytes)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_alloc_params params; /* members that a hit does not read are not set */
    uint64_t base;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && bytes > 0 && bytes < XSEG_SIZE_MAX);
    XSEG_ASSERT(arena->is_small == (bytes <= XSEG_SIZE_SMALL_MAX));
    params.config = config;
    params.requested = bytes;
    params.bytes = params.span = (bytes + XSEG_SIZE_UNIT - 1) & ~(XSEG_SIZE_UNIT - 1);
    params.is_small = arena->is_small;
    params.expandable = config->expandable_segments && arena->device->context.has_vmm;
    params.no_split = false;
    struct xseg_block *block = xseg_cached_choose(arena, &params);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    const uint64_t remainder = xseg_cached_remainder(block, &params);
    const bool oversize = block->bytes - remainder >= config->max_split_bytes;
    if (oversize)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    if (arena->has_starts)
        base = allocate_cached_block(arena, block, remainder, bytes, oversize, true);
    else
        base = allocate_cached_block(arena, block, remainder, bytes, oversize, false);
    if (__builtin_expect(config->records_blocks, 0))
        record_allocation(arena, base, bytes);
    return base;
}

/* --- Allocation: continue on the slow path. --- */

/* Continue on the slow path (alloc.h) after a miss in an arena.
 * has_polled: whether pending blocks were polled before the search */
XSEG_HIT_STEP continue_on_slow_path(struct xseg_arena *arena, void **out, size_t bytes,
                                    bool has_polled)
{
    struct xseg_device *device = arena->device;
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(device->allocator),
        .arena = arena,
        .stream = xseg_arena_stream(arena)->handle,
        .requested = bytes,
        .has_polled = has_polled,
    };
    XSEG_OPERATION("xseg_alloc");

    return xseg_slow_path_alloc(device, &params, out);
}

/* Allocate on the slow path when no arena was searched. */
static xseg_status allocate_on_slow_path(struct xseg_allocator *allocator, int ordinal,
                                         size_t bytes, xseg_stream stream, void **out)
{
    struct xseg_request request = {sizeof(request)};
    XSEG_OPERATION("xseg_alloc");

    request.device = ordinal;
    request.bytes = bytes;
    request.stream = stream;
    return xseg_slow_path_alloc_request(allocator, &request, NULL, out);
}

/* Allocate for a stream that is not in the lookup cache: through its entry (alloc.h), else on
 * the slow path. */
XSEG_HIT_STEP allocate_without_cache_entry(struct xseg_allocator *allocator, int ordinal,
                                           size_t bytes, xseg_stream stream, void **out)
{
    struct xseg_arena *searched = NULL;
    bool has_polled = false;
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK)
        return status;
    xseg_allocator_gather(allocator, NULL);
    if (xseg_hit_alloc_on_stream(allocator, ordinal, bytes, stream, out, &searched, &has_polled))
        return XSEG_OK;
    return searched != NULL ? continue_on_slow_path(searched, out, bytes, has_polled)
                            : allocate_on_slow_path(allocator, ordinal, bytes, stream, out);
}

/* Check the allocator, and continue on the slow path after a miss in an arena. */
XSEG_HIT_STEP allocate_after_miss(struct xseg_arena *arena, void **out, size_t bytes)
{
    struct xseg_allocator *allocator = arena->device->allocator;
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK)
        return status;
    xseg_allocator_gather(allocator, NULL);
    return continue_on_slow_path(arena, out, bytes, false);
}

/* --- Allocation: hit. --- */

/* Unlock the arena and return the address of the block.
 * base: 0 after a miss */
static inline xseg_status unlock_and_return(struct xseg_arena *arena, void **out, size_t bytes,
                                            uint64_t base) XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(base % XSEG_SIZE_UNIT == 0);
    xseg_biased_lock_unlock_owner(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return allocate_after_miss(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

XSEG_HIT_STEP allocate_small_block(struct xseg_arena *arena, void **out, size_t bytes,
                                   bool expandable) XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(arena->is_small && bytes > 0 && bytes <= XSEG_SIZE_SMALL_MAX);
    return unlock_and_return(arena, out, bytes, allocate_best_fit(arena, bytes, expandable, true));
}

XSEG_HIT_STEP allocate_large_block(struct xseg_arena *arena, void **out, size_t bytes,
                                   bool expandable) XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(!arena->is_small && bytes > XSEG_SIZE_SMALL_MAX);
    return unlock_and_return(arena, out, bytes, allocate_best_fit(arena, bytes, expandable, false));
}

/* Poll the events of pending blocks, then allocate. Used while a bit of the device's slow-path
 * flags is set: blocks are pending, or the device may be lost. The poll may discover that the
 * device is lost. */
XSEG_HIT_STEP poll_and_allocate(struct xseg_arena *arena, void **out, size_t bytes)
{
    struct xseg_device *device = arena->device;
    uint64_t base = 0;

    xseg_allocator_gather(device->allocator, NULL);
    xseg_slow_path_poll_pending(arena, xseg_allocator_config(device->allocator));
    xseg_biased_lock_lock(&arena->lock);
    if (__builtin_expect(!xseg_context_is_lost(&device->context), 1))
        base = allocate_by_config(xseg_allocator_config(device->allocator), arena, bytes);
    xseg_biased_lock_unlock(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return continue_on_slow_path(arena, out, bytes, true);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* Allocate from an arena that several threads use, or by a configuration that requires
 * allocate_by_config(). */
XSEG_HIT_STEP allocate_under_shared_lock(struct xseg_arena *arena, void **out, size_t bytes)
{
    struct xseg_allocator *allocator = arena->device->allocator;

    xseg_allocator_gather(allocator, NULL);
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t base = allocate_by_config(xseg_allocator_config(allocator), arena, bytes);
    xseg_biased_lock_unlock(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return allocate_after_miss(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

static inline __attribute__((always_inline)) xseg_status
allocate_for_stream(struct xseg_allocator *allocator, int ordinal, size_t bytes, xseg_stream handle,
                    void **out, bool is_small)
{
    const struct xseg_known_stream *stream =
        xseg_stream_cache_find(&allocator->stream_cache, ordinal, handle);

    if (__builtin_expect(stream == NULL, 0))
        return allocate_without_cache_entry(allocator, ordinal, bytes, handle, out);
    struct xseg_arena *arena =
        atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
    if (__builtin_expect(arena == NULL, 0))
        return allocate_without_cache_entry(allocator, ordinal, bytes, handle, out);
    XSEG_ASSERT(arena->is_small == is_small && !arena->is_private);
    const enum xseg_fast_path_mode fast_path_mode =
        atomic_load_explicit(&stream->fast_path_mode, memory_order_relaxed);
    if (__builtin_expect(!xseg_single_writer_equals(&arena->device->context.slow_path, 0), 0))
        return poll_and_allocate(arena, out, bytes);
    if (__builtin_expect(fast_path_mode == XSEG_FAST_PATH_BY_CONFIG, 0) ||
        !xseg_biased_lock_trylock_owner(&arena->lock))
        return allocate_under_shared_lock(arena, out, bytes);
    return is_small ? allocate_small_block(arena, out, bytes,
                                           fast_path_mode == XSEG_FAST_PATH_EXPANDABLE)
                    : allocate_large_block(arena, out, bytes,
                                           fast_path_mode == XSEG_FAST_PATH_EXPANDABLE);
}

XSEG_HIT_STEP allocate_large_for_stream(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                                        xseg_stream stream, void **out)
{
    if (__builtin_expect(bytes - 1 >= XSEG_SIZE_MAX - 1, 0))
        return allocate_without_cache_entry(allocator, ordinal, bytes, stream, out);
    return allocate_for_stream(allocator, ordinal, bytes, stream, out, false);
}

xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out)
{
    if (bytes - 1 >= XSEG_SIZE_SMALL_MAX)
        return allocate_large_for_stream(allocator, ordinal, bytes, stream, out);
    return allocate_for_stream(allocator, ordinal, bytes, stream, out, true);
}

/* --- Free: blocks. --- */

/* Begin a free in an arena with free actions: record the free, or fail if frees must use the slow
 * path. */
static __attribute__((noinline)) bool begin_recorded_free(struct xseg_arena *arena,
                                                          struct xseg_block *block)
{
    if ((atomic_load(&arena->free_actions) & XSEG_ARENA_SLOW_PATH) != 0)
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (block->flags != 0)
        xseg_block_clear_oversize(&arena->counts, block);
    xseg_arena_run_free_actions_slow(arena, block->extent, block->base, block->bytes);
    return true;
}

/* Begin the free of the block at an address: subtract the block from the counts. Returns false,
 * without a change, if no allocated block begins there, or if the free needs the slow path. On
 * success the caller clears the start or slot that led to the block. */
static inline __attribute__((always_inline)) bool
begin_free(struct xseg_arena *arena, struct xseg_block *block, uint64_t address)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && block->extent->arena == arena);
    if (block->base != address || block->state != XSEG_BLOCK_ALLOCATED || block->uses != NULL)
        return false;
    if (__builtin_expect(!xseg_single_writer_equals_relaxed(&arena->free_actions, 0), 0))
        return begin_recorded_free(arena, block);
    XSEG_ASSERT(block->requested <= block->bytes);
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_block_clear_oversize(&arena->counts, block);
    return true;
}

/* Remove the next block, which is cached and in no index, from the chain, and free its record. */
static inline void unlink_next_block(struct xseg_arena *arena, struct xseg_block *block,
                                     struct xseg_block *next)
{
    struct xseg_block *successor = next->next;

    block->next = successor;
    if (successor != NULL)
        successor->prev = block;
    xseg_slab_free(&arena->blocks, next);
}

/* Cache an allocated block, and coalesce it with its cached neighbors. The record of a neighbor
 * remains in use, so the free index does not change if the block coalesces with the last
 * remainder. */
static inline void coalesce_block(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *const prev = block->prev == NULL ? &arena->sentinel : block->prev;
    struct xseg_block *const next = block->next == NULL ? &arena->sentinel : block->next;
    const bool has_cached_prev = prev->state == XSEG_BLOCK_CACHED,
               has_cached_next = next->state == XSEG_BLOCK_CACHED;
    struct xseg_extent *extent = xseg_block_extent(block);
    const uint64_t bytes = block->bytes;
    struct xseg_block *result = block;
    bool was_last_remainder = false;
    uint64_t cached_bytes = 0;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && block->flags == 0);
    if (has_cached_prev) {
        result = prev;
        cached_bytes = prev->bytes;
        if (cached_bytes > arena->unindexed_max)
            was_last_remainder = xseg_cached_unindex(arena, prev);
        if (has_cached_next) {
            if (next->bytes > arena->unindexed_max)
                was_last_remainder |= xseg_cached_unindex(arena, next);
            cached_bytes += next->bytes;
            unlink_next_block(arena, block, next);
        }
        prev->bytes = cached_bytes + bytes;
        prev->requested = block->requested;
        prev->next = block->next;
        if (block->next != NULL)
            block->next->prev = prev;
        xseg_slab_free(&arena->blocks, block);
    } else if (has_cached_next) {
        result = next;
        cached_bytes = next->bytes;
        if (cached_bytes > arena->unindexed_max)
            was_last_remainder = xseg_cached_unindex(arena, next);
        next->base = block->base;
        next->bytes = cached_bytes + bytes;
        next->requested = block->requested;
        next->prev = block->prev;
        if (block->prev != NULL)
            block->prev->next = next;
        else
            extent->first = next;
        xseg_slab_free(&arena->blocks, block);
    } else {
        block->state = XSEG_BLOCK_CACHED;
    }
    if (was_last_remainder)
        xseg_cached_set_last_remainder(arena, result);
    else
        xseg_cached_index(arena, result);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_coalesce(&arena->counts, xseg_block_is_split(result),
                                (unsigned)has_cached_prev + has_cached_next, bytes, cached_bytes);
}

/*
 * Cache an allocated block that fills its segment, so it has no neighbors and is not a fragment.
 * With classic segments, 2 % (`gpt2_train`) to 83 % (`resnet_multiscale`) of freed large blocks do;
 * this shorter function saves 4 to 12 % of the time of a trace.
 *
 * The block becomes the last remainder, because the next request often has its size. Then the free
 * index does not change, which saves 5 to 7 % in traces with many such blocks.
 */
static inline void cache_whole_segment(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_split(block));
    block->state = XSEG_BLOCK_CACHED;
    xseg_cached_set_last_remainder(arena, block);
}

/* --- Free. --- */

/* Free on the slow path (alloc.h). */
XSEG_HIT_STEP free_on_slow_path(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_OPERATION("xseg_free");
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK || ptr == NULL)
        return status;
    return xseg_allocator_free(allocator, ptr);
}

/* Unlock the arena, and free on the slow path: no block that this path can free begins at the
 * address. */
XSEG_HIT_STEP unlock_and_free_on_slow_path(struct xseg_arena *arena, void *ptr)
    XSEG_RELEASES(arena->lock)
{
    xseg_biased_lock_unlock_owner(&arena->lock);
    return free_on_slow_path(arena->device->allocator, ptr);
}

XSEG_HIT_STEP coalesce_freed_block(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_RELEASES(arena->lock)
{
    coalesce_block(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Cache a block whose free has begun (begin_free()), and unlock the arena. */
static inline __attribute__((always_inline)) xseg_status cache_freed_block(struct xseg_arena *arena,
                                                                           struct xseg_block *block)
    XSEG_RELEASES(arena->lock)
{
    if (xseg_block_is_split(block))
        return coalesce_freed_block(arena, block);
    cache_whole_segment(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Free the block to which a start leads.
 * handle: the value of the start before the arena was locked */
XSEG_HIT_STEP free_small_block(struct xseg_arena *arena, xseg_start *start, void *ptr,
                               uint32_t handle) XSEG_RELEASES(arena->lock)
{
    struct xseg_block *block = xseg_block_at(arena->records, handle);

    if (__builtin_expect(!xseg_start_is_current(start, handle, block, arena) ||
                             !begin_free(arena, block, (uint64_t)(uintptr_t)ptr),
                         0))
        return unlock_and_free_on_slow_path(arena, ptr);
    xseg_start_set(start, 0);
    return cache_freed_block(arena, block);
}

/* Free the block to which a slot leads.
 * value: the value of the slot before the arena was locked */
XSEG_HIT_STEP free_large_block(struct xseg_arena *arena, xseg_slot *slot, void *ptr,
                               uintptr_t value) XSEG_RELEASES(arena->lock)
{
    struct xseg_block *block = xseg_slot_block(value);

    if (__builtin_expect(!xseg_slot_is_current(slot, value, arena) ||
                             !begin_free(arena, block, (uint64_t)(uintptr_t)ptr),
                         0))
        return unlock_and_free_on_slow_path(arena, ptr);
    xseg_slot_remove(slot);
    return cache_freed_block(arena, block);
}

/* Lock the arena of the block to which a slot leads, and free the block. */
XSEG_HIT_STEP lock_and_free_large_block(struct xseg_allocator *allocator, void *ptr,
                                        xseg_slot *slot)
{
    const uintptr_t value = atomic_load_explicit(slot, memory_order_acquire);

    if (__builtin_expect(value == 0, 0))
        return free_on_slow_path(allocator, ptr);
    struct xseg_arena *arena = xseg_slot_arena(value);
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return free_on_slow_path(allocator, ptr);
    return free_large_block(arena, slot, ptr, value);
}

xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr)
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;

    if (__builtin_expect(!atomic_load_explicit(allocator->fast_frees_enabled, memory_order_acquire),
                         0))
        return free_on_slow_path(allocator, ptr);
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf(&allocator->page_map, address);
    if (__builtin_expect(leaf == NULL, 0))
        return free_on_slow_path(allocator, ptr);
    xseg_start *start = xseg_page_map_start_in(leaf, address);
    const uint32_t handle = start == NULL ? 0 : atomic_load_explicit(start, memory_order_acquire);
    if (handle == 0)
        return lock_and_free_large_block(allocator, ptr, xseg_page_map_slot_in(leaf, address));
    struct xseg_arena *arena =
        xseg_block_load_arena(xseg_block_at(allocator->page_map.records.base, handle));
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return free_on_slow_path(allocator, ptr);
    return free_small_block(arena, start, ptr, handle);
}

/* --- Requests without an entry in the lookup cache. --- */

/* Whether a device permits the fast path: it is not lost, and no route or capture is active. */
static inline bool allows_fast_path(struct xseg_device *device)
{
    return !xseg_context_is_lost(&device->context) && !xseg_routes_exist(&device->routes) &&
           !xseg_pending_captures(device->pending);
}

/* Find the small or large arena of a stream in the default pool, or return NULL. */
static inline struct xseg_arena *find_default_arena(struct xseg_device *device, xseg_stream handle,
                                                    bool is_small)
{
    const struct xseg_known_stream *stream = xseg_streams_find_fast(&device->streams, handle);

    return stream == NULL ? NULL
                          : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
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

bool xseg_hit_alloc_on_stream(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
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
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t base = allocate_by_config(config, arena, bytes);
    xseg_biased_lock_unlock(&arena->lock);
    if (base == 0)
        return false;
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

bool xseg_hit_alloc_from_pool(struct xseg_allocator *allocator, struct xseg_pool *pool,
                              uint64_t bytes, xseg_stream handle, void **out,
                              struct xseg_arena **searched)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_device *device = pool->device;

    if (!config->has_fast_allocs || atomic_load_explicit(&pool->no_split, memory_order_relaxed) ||
        !xseg_pool_has_fast_path(pool) || bytes - 1 >= XSEG_SIZE_MAX - 1 ||
        xseg_pending_captures(device->pending) ||
        atomic_load_explicit(&device->context.slow_path, memory_order_relaxed) != 0)
        return false;
    const struct xseg_known_stream *stream = xseg_streams_find_fast(&device->streams, handle);
    if (stream == NULL)
        return false;
    struct xseg_arena *arena = xseg_pool_find_arena(pool, stream, bytes <= XSEG_SIZE_SMALL_MAX);
    if (arena == NULL)
        return false;
    *searched = arena;
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t base = arena->is_paused ? 0 : allocate_by_config(config, arena, bytes);
    xseg_biased_lock_unlock(&arena->lock);
    if (base == 0)
        return false;
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

xseg_status xseg_hit_alloc_request(struct xseg_allocator *allocator,
                                   const struct xseg_request *request, void **out)
{
    const bool is_aligned = request->alignment == 0 || (xseg_is_power_of_two(request->alignment) &&
                                                        request->alignment <= XSEG_SIZE_UNIT);
    struct xseg_arena *searched = NULL;

    if (request->pool != NULL && is_aligned && !request->zeroed &&
        xseg_allocator_owns(allocator, request->pool) && !xseg_pool_is_retired(request->pool) &&
        xseg_hit_alloc_from_pool(allocator, request->pool, request->bytes, request->stream, out,
                                 &searched))
        return XSEG_OK;
    return xseg_slow_path_alloc_request(allocator, request, searched, out);
}
