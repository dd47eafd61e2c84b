/* SPDX-License-Identifier: MIT */
/* The doors of blocks, of xseg/allocator.h. */
#include "xseg/allocator.h"

#include <string.h>

#include "src/core/hit.h"
#include "src/core/large.h"
#include "src/core/live.h"
#include "src/door.h"

/* The most that an address can be asked to be a multiple of. */
#define ALIGNMENT_MAX XSEG_GIB

/* The device of the pool that a request names, or of its number. */
static xseg_status find_device(struct xseg_allocator *allocator, const struct xseg_request *request,
                               struct xseg_device **out)
{
    if (request->pool == NULL)
        return xseg_allocator_device(allocator, request->device, out);
    XSEG_DOOR_REQUIRE(xseg_allocator_owns(allocator, request->pool),
                      "xseg_alloc_with: the pool belongs to another allocator");
    XSEG_DOOR_REQUIRE(!xseg_pool_is_retired(request->pool),
                      "xseg_alloc_with: nobody holds the pool any more");
    *out = request->pool->device;
    return XSEG_OK;
}

/* has_asked: what is pending has been looked at for this request */
static xseg_status alloc_as(struct xseg_allocator *allocator, const struct xseg_request *request,
                            void **out, bool has_asked)
{
    struct xseg_device *device = NULL;

    XSEG_DOOR_REQUIRE(out != NULL, "an allocation: out is NULL");
    XSEG_DOOR_REQUIRE(request->alignment == 0 || (xseg_is_power_of_two(request->alignment) &&
                                                  request->alignment <= ALIGNMENT_MAX),
                      "xseg_alloc_with: an alignment of %zu bytes: give a power of two up to 1 GiB",
                      request->alignment);
    const xseg_status status = find_device(allocator, request, &device);
    if (status != XSEG_OK)
        return status;
    if (request->pool != NULL && request->alignment <= XSEG_SIZE_QUANTUM && !request->zeroed &&
        xseg_hit_alloc_in(allocator, request->pool, request->bytes, request->stream, out))
        return XSEG_OK;
    if (request->bytes == 0) {
        *out = NULL;
        return XSEG_OK;
    }
    const struct xseg_device_request wanted = {
        .pool = request->pool,
        .config = xseg_allocator_config(allocator),
        .bytes = request->bytes,
        .alignment = request->alignment,
        .stream = request->stream,
        .zeroed = request->zeroed,
        .has_asked = has_asked,
    };
    return xseg_device_alloc(device, &wanted, out);
}

/* Members that the caller does not know keep their defaults. */
static struct xseg_request request_of(const struct xseg_request *given)
{
    struct xseg_request request = XSEG_REQUEST_INIT;

    if (__builtin_expect(given->struct_bytes == sizeof(request), 1))
        return *given;
    memcpy(&request, given, given->struct_bytes);
    return request;
}

xseg_status xseg_alloc_with(struct xseg_allocator *allocator, const struct xseg_request *given,
                            void **out)
{
    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(given != NULL &&
                          (XSEG_DOOR_PUBLISHED(given, struct xseg_request) ||
                           XSEG_DOOR_PUBLISHED_BEFORE(given, struct xseg_request, zeroed)),
                      "xseg_alloc_with: the request is NULL or of unknown size: start from "
                      "XSEG_REQUEST_INIT");
    const struct xseg_request request = request_of(given);
    return alloc_as(allocator, &request, out, false);
}

/*
 * A hit ends in one of these, the earlier the shorter.  Each takes what the door was given, or the
 * arena that it led to, and ends in a call of the next, so that what the compiler makes of it are jumps, and a door saves no registers.
 */
#define NEXT static __attribute__((noinline)) xseg_status

NEXT alloc_generally(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
                     void **out, bool has_asked)
{
    struct xseg_request request = XSEG_REQUEST_INIT;

    request.device = device;
    request.bytes = bytes;
    request.stream = stream;
    return alloc_as(allocator, &request, out, has_asked);
}

NEXT alloc_slowly(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
                  void **out)
{
    bool has_asked = false;

    XSEG_DOOR(allocator);
    if (out != NULL && xseg_hit_alloc(allocator, device, bytes, stream, out, &has_asked))
        return XSEG_OK;
    return alloc_generally(allocator, device, bytes, stream, out, has_asked);
}

static inline const struct xseg_config *config_of(const struct xseg_arena *arena)
{
    return xseg_allocator_config(arena->device->allocator);
}

/* While something is pending, which is looked at first.  Its arena says who asks, as in alloc_held(); what
 * it says is asked again after the look, so that three registers are saved and not six. */
NEXT alloc_looking(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    uint64_t base = 0;

    xseg_device_look_at_pending(arena, config_of(arena));
    xseg_arena_lock(arena);
    const enum xseg_stream_way way =
        atomic_load_explicit(&xseg_arena_stream(arena)->way, memory_order_relaxed);
    /* The look may be what finds the device lost. */
    if (__builtin_expect(!xseg_context_is_lost(&arena->device->context), 1))
        base = !arena->is_small && way != XSEG_WAY_ASK
                   ? xseg_hit_large(arena, bytes, way)
                   : xseg_hit_serve(config_of(arena), arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return alloc_generally(arena->device->allocator, arena->device->context.ordinal, bytes,
                               xseg_arena_stream(arena)->handle, out, true);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From the arena that a shortcut leads to. */
NEXT alloc_from(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
                void **out, struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_arena_lock(arena);
    const uint64_t base = xseg_hit_serve(xseg_allocator_config(allocator), arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From a small one that is locked, and has to ask by what rule.  Its arena says who asks: with fewer
 * arguments to keep, what comes before it does without saved registers. */
NEXT alloc_held(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    struct xseg_device *device = arena->device;
    const xseg_stream stream = xseg_arena_stream(arena)->handle;
    const uint64_t base = xseg_hit_serve(config_of(arena), arena, bytes);

    xseg_latch_give_own(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(device->allocator, device->context.ordinal, bytes, stream, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* What was handed out passes a limit. */
NEXT alloc_counted(struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_counts_look_around_all(&arena->counts);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* From one that is locked, and whose rack has nothing that fits.  expandable: of the configuration */
NEXT alloc_wide(struct xseg_arena *arena, void **out, size_t bytes, bool expandable) XSEG_UNCHECKED
{
    const uint64_t base = xseg_small_hit_wide(arena, bytes, expandable);

    if (__builtin_expect(base == 0, 0))
        return alloc_held(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* From one that is locked. */
static inline __attribute__((always_inline)) xseg_status
cut_rack(struct xseg_arena *arena, void **out, size_t bytes, bool expandable) XSEG_UNCHECKED
{
    const uint64_t rounded = (bytes + XSEG_SIZE_QUANTUM - 1) & ~(XSEG_SIZE_QUANTUM - 1);
    const uint32_t size =
        xseg_rack_fit(&arena->small.rack, (uint32_t)(rounded >> XSEG_CELLS_SHIFT));

    if (size == 0)
        return alloc_wide(arena, out, bytes, expandable);
    const uint64_t base = xseg_plain_cut_size(&arena->small, bytes, size, expandable);
    if (__builtin_expect(base == 0, 0))
        return alloc_held(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    if (!expandable)
        xseg_fragments_cut(&arena->counts, rounded, ((uint64_t)size << XSEG_CELLS_SHIFT) - rounded);
    if (__builtin_expect(xseg_counts_alloc_passes(&arena->counts, rounded, bytes), 0))
        return alloc_counted(arena);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

NEXT alloc_racked(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return cut_rack(arena, out, bytes, true);
}

NEXT alloc_racked_classic(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return cut_rack(arena, out, bytes, false);
}

/* The same, where nothing but the frontier is cached. */
NEXT alloc_at_frontier(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    const uint64_t base = xseg_plain_cut_frontier(arena, bytes);

    if (__builtin_expect(base == 0, 0))
        return alloc_racked(arena, out, bytes);
    xseg_latch_give_own(&arena->lock);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* Give a large arena its latch back, and the user what it has served; base: 0 if it has not. */
static inline xseg_status finish_large(struct xseg_arena *arena, void **out, size_t bytes,
                                       uint64_t base) XSEG_UNCHECKED
{
    xseg_latch_give_own(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(arena->device->allocator, arena->device->context.ordinal, bytes,
                            xseg_arena_stream(arena)->handle, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From a large one that is locked, by the rules that are known. */
NEXT alloc_large_held(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return finish_large(arena, out, bytes, xseg_arena_hit_expandable(arena, bytes));
}

NEXT alloc_large_classic(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return finish_large(arena, out, bytes, xseg_arena_hit_classic(arena, bytes));
}

/* From the arena that a shortcut leads to, by the rules that its stream is known to have. */
static inline __attribute__((always_inline)) xseg_status
alloc_by_way(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
             void **out, bool is_small) XSEG_UNCHECKED
{
    enum xseg_stream_way way = XSEG_WAY_ASK;
    struct xseg_arena *arena = xseg_hit_arena(allocator, device, stream, is_small, &way);

    if (__builtin_expect(arena == NULL, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    if (__builtin_expect(xseg_hit_is_pending(arena), 0))
        return alloc_looking(arena, out, bytes);
    if (way <= XSEG_WAY_CLASSIC) {
        if (way == XSEG_WAY_ASK || !xseg_latch_try_own(&arena->lock))
            return alloc_from(allocator, device, bytes, stream, out, arena);
        return is_small ? alloc_racked_classic(arena, out, bytes)
                        : alloc_large_classic(arena, out, bytes);
    }
    if (!xseg_latch_try_own(&arena->lock))
        return alloc_from(allocator, device, bytes, stream, out, arena);
    if (!is_small)
        return alloc_large_held(arena, out, bytes);
    return __builtin_expect(xseg_plain_is_frontier_all(arena), 0)
               ? alloc_at_frontier(arena, out, bytes)
               : alloc_racked(arena, out, bytes);
}

NEXT alloc_large(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
                 void **out) XSEG_UNCHECKED
{
    if (__builtin_expect(bytes - 1 >= XSEG_SIZE_ABSURD - 1, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    return alloc_by_way(allocator, device, bytes, stream, out, false);
}

xseg_status xseg_alloc(struct xseg_allocator *allocator, int device, size_t bytes,
                       xseg_stream stream, void **out) XSEG_UNCHECKED
{
    if (__builtin_expect(allocator == NULL || out == NULL, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    if (bytes - 1 >= XSEG_SIZE_SMALL_MAX)
        return alloc_large(allocator, device, bytes, stream, out);
    return alloc_by_way(allocator, device, bytes, stream, out, true);
}

NEXT free_slowly(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_DOOR(allocator);
    if (xseg_hit_free(allocator, ptr))
        return XSEG_OK;
    return ptr == NULL ? XSEG_OK : xseg_allocator_free(allocator, ptr);
}

/* In an extent of a locked arena. */
NEXT free_held(struct xseg_arena *arena, struct xseg_extent *extent, void *ptr) XSEG_UNCHECKED
{
    const bool freed = xseg_hit_free_at(arena, extent, (uint64_t)(uintptr_t)ptr);

    xseg_latch_give_own(&arena->lock);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(arena->device->allocator, ptr);
}

/* A cell that merges, or ends in another word than it begins. */
NEXT free_merging(struct xseg_arena *arena, struct xseg_extent *extent,
                  uint32_t quantum) XSEG_UNCHECKED
{
    xseg_small_free(arena, extent, quantum);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* A cell of a classic segment has become a fragment. */
NEXT free_fragment(struct xseg_arena *arena, uint64_t bytes) XSEG_UNCHECKED
{
    xseg_fragments_add(&arena->counts, bytes);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* Whether a live cell of a locked arena begins at an address, and where. */
static inline bool is_cell(struct xseg_arena *arena, struct xseg_extent *extent, void *ptr,
                           uint32_t *quantum)
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;

    return __builtin_expect(extent->arena == arena && extent->first != NULL &&
                                xseg_live_lies_in(extent, address) &&
                                xseg_live_find_cell(extent, address, quantum),
                            1);
}

/* Of a small extent. */
NEXT free_cell(struct xseg_arena *arena, struct xseg_extent *extent, void *ptr) XSEG_UNCHECKED
{
    uint32_t quantum = 0;

    if (!is_cell(arena, extent, ptr, &quantum))
        return free_held(arena, extent, ptr);
    const uint64_t bytes = xseg_plain_free(arena, extent, quantum);
    if (bytes == 0)
        return free_merging(arena, extent, quantum);
    if (!xseg_extent_is_expandable(extent))
        return free_fragment(arena, bytes);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* The same, a little before the frontier. */
NEXT free_at_frontier(struct xseg_arena *arena, struct xseg_extent *extent,
                      void *ptr) XSEG_UNCHECKED
{
    if (!xseg_plain_join_frontier(arena, extent, (uint64_t)(uintptr_t)ptr))
        return free_cell(arena, extent, ptr);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* In an arena that several threads use. */
NEXT free_shared(struct xseg_allocator *allocator, void *ptr, struct xseg_extent *extent,
                 struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_arena_lock(arena);
    const bool freed = xseg_hit_free_at(arena, extent, (uint64_t)(uintptr_t)ptr);
    xseg_arena_unlock(arena);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(allocator, ptr);
}

/* Free what a slot leads to, in a locked arena; false if there is more to do, or it has changed. */
static inline bool frees_started(void *ptr, xseg_start *start, uintptr_t what,
                                 struct xseg_arena *arena)
{
    if (!xseg_start_is_still(start, what))
        return false;
    return xseg_start_is_extent(what)
               ? xseg_hit_free_at(arena, xseg_start_extent(what), (uint64_t)(uintptr_t)ptr)
               : xseg_arena_hit_free(arena, start, xseg_start_block(what),
                                     (uint64_t)(uintptr_t)ptr);
}

/* In an arena that several threads use. */
NEXT free_started_shared(struct xseg_allocator *allocator, void *ptr, xseg_start *start,
                         uintptr_t what) XSEG_UNCHECKED
{
    struct xseg_arena *arena = xseg_start_arena(what);

    xseg_arena_lock(arena);
    const bool freed = frees_started(ptr, start, what, arena);
    xseg_arena_unlock(arena);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(allocator, ptr);
}

/* What was taken back merges. */
NEXT free_split(struct xseg_arena *arena, struct xseg_block *block) XSEG_UNCHECKED
{
    xseg_large_merge(arena, block);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* A large block, to which its slot led before the arena was locked. */
NEXT free_block(struct xseg_arena *arena, xseg_start *start, void *ptr,
                uintptr_t what) XSEG_UNCHECKED
{
    struct xseg_block *block = xseg_start_block(what);

    if (__builtin_expect(!xseg_start_is_still(start, what) ||
                             !xseg_large_take_back(arena, start, block, (uint64_t)(uintptr_t)ptr),
                         0)) {
        xseg_latch_give_own(&arena->lock);
        return free_slowly(arena->device->allocator, ptr);
    }
    if (xseg_block_is_split(block))
        return free_split(arena, block);
    xseg_large_put_whole(arena, block);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* At a slot that leads to a large block, or to a classic extent with cells. */
NEXT free_started(struct xseg_allocator *allocator, void *ptr, xseg_start *start) XSEG_UNCHECKED
{
    const uintptr_t what = xseg_start_read(start);

    if (__builtin_expect(what == 0, 0))
        return free_slowly(allocator, ptr);
    struct xseg_arena *arena = xseg_start_arena(what);
    if (!xseg_latch_try_own(&arena->lock))
        return free_started_shared(allocator, ptr, start, what);
    return xseg_start_is_extent(what) ? free_cell(arena, xseg_start_extent(what), ptr)
                                      : free_block(arena, start, ptr, what);
}

xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;

    if (__builtin_expect(allocator == NULL ||
                             !atomic_load_explicit(&allocator->frees_plainly, memory_order_acquire),
                         0))
        return free_slowly(allocator, ptr);
    const uintptr_t entry = xseg_lookup_at(&allocator->lookup, address);
    struct xseg_lookup_leaf *leaf = xseg_lookup_leaf_of(entry);
    if (leaf != NULL)
        return free_started(allocator, ptr, xseg_lookup_start_in(leaf, address));
    struct xseg_extent *extent =
        (struct xseg_extent *)entry; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(extent == NULL, 0))
        return free_slowly(allocator, ptr);
    struct xseg_arena *arena = extent->arena;
    if (!xseg_latch_try_own(&arena->lock))
        return free_shared(allocator, ptr, extent, arena);
    if (xseg_plain_is_near_frontier(arena, extent, address))
        return free_at_frontier(arena, extent, ptr);
    return __builtin_expect(extent->has_cells, 1) ? free_cell(arena, extent, ptr)
                                                  : free_held(arena, extent, ptr);
}

xseg_status xseg_block(struct xseg_allocator *allocator, const void *anywhere,
                       struct xseg_block_info *out)
{
    struct xseg_block_info info = XSEG_BLOCK_INFO_INIT;

    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(
        out != NULL && XSEG_DOOR_KNOWS(out, struct xseg_block_info),
        "xseg_block: out is NULL or of unknown size: start from XSEG_BLOCK_INFO_INIT");
    const xseg_status status = xseg_allocator_describe(allocator, anywhere, &info);
    if (status != XSEG_OK)
        return status;
    info.struct_bytes = out->struct_bytes;
    memcpy(out, &info, out->struct_bytes);
    return XSEG_OK;
}
