/* SPDX-License-Identifier: MIT */
#include "src/core/pool/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/arena/origins.h"
#include "src/core/arena/recorder.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/blocker.h"
#include "src/core/pool/checkpoint_ranges.h"
#include "src/core/pool/pause.h"
#include "src/core/small/small_free.h"

/* --- Walking the blocks of a pool. --- */

/* The blocks of a pool, as a walk collects them. */
struct harvest {
    struct xseg_checkpoint_block *block;  /* [capacity], live; NULL: blocks are only counted */
    struct xseg_checkpoint_block *cached; /* [cached_capacity] */
    uint64_t *users; /* [capacity], or NULL: the words of blocks are not wanted */
    size_t count, capacity, cached_count, cached_capacity;
    /* Numbers of freed blocks that wait, and of live ones that other streams use. */
    size_t pending, used;
};

static void harvest_cached(struct harvest *harvest, struct xseg_arena *arena,
                           const struct xseg_part *part)
{
    if (harvest->cached_count < harvest->cached_capacity)
        harvest->cached[harvest->cached_count] =
            (struct xseg_checkpoint_block){arena, part->base, part->bytes, part->bytes};
    harvest->cached_count++;
}

static void harvest_part(struct harvest *harvest, struct xseg_arena *arena,
                         const struct xseg_part *part)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    /* A lent block is held by the default pool. */
    if (part->is_fallback)
        return;
    harvest->pending += part->state == XSEG_BLOCK_PENDING_FREE || part->state == XSEG_BLOCK_CLAIMED;
    if (part->state == XSEG_BLOCK_CACHED)
        harvest_cached(harvest, arena, part);
    if (part->state != XSEG_BLOCK_ALLOCATED)
        return;
    harvest->used += part->has_uses;
    if (harvest->count < harvest->capacity) {
        harvest->block[harvest->count] =
            (struct xseg_checkpoint_block){arena, part->base, part->bytes, part->requested};
        if (harvest->users != NULL)
            harvest->users[harvest->count] = xseg_origins_user(part->extent, part->base);
    }
    harvest->count++;
}

static void harvest_pool(struct xseg_pool *pool, struct harvest *harvest)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    harvest->count = harvest->cached_count = harvest->pending = harvest->used = 0;
    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire)) {
        xseg_arena_lock(arena);
        XSEG_LIST_FOR(node, &arena->extents)
        {
            const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

            /* What is committed of a range is no block (checkpoint_ranges.h). */
            if (extent->elastic != NULL)
                continue;
            XSEG_WALK(part, extent)
            {
                harvest_part(harvest, arena, &part);
            }
        }
        xseg_arena_unlock(arena);
    }
}

/* Collect the live blocks of a pool past `head` bytes of new memory, and past these the cached blocks and the words of live
 * blocks where they are wanted.  The device memory lock is held, so only hits of other threads change them; after such a change the
 * memory is made anew. */
static xseg_status harvest_all(struct xseg_pool *pool, size_t head, bool with_cached,
                               bool with_users, void **memory, struct harvest *harvest)
{
    const size_t each = sizeof(*harvest->block) + (with_users ? sizeof(*harvest->users) : 0);

    XSEG_ASSERT(*memory == NULL);
    *harvest = (struct harvest){0};
    harvest_pool(pool, harvest);
    do {
        free(*memory);
        harvest->capacity = harvest->count;
        harvest->cached_capacity = with_cached ? harvest->cached_count : 0;
        *memory = malloc(head + (harvest->capacity + 1) * each +
                         harvest->cached_capacity * sizeof(*harvest->cached));
        if (*memory == NULL)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu blocks",
                             harvest->count);
        harvest->block = (struct xseg_checkpoint_block *)(void *)((char *)*memory + head);
        harvest->cached = harvest->block + harvest->capacity + 1;
        if (with_users)
            harvest->users = (uint64_t *)(void *)(harvest->cached + harvest->cached_capacity);
        harvest_pool(pool, harvest);
    } while (harvest->count > harvest->capacity ||
             (with_cached && harvest->cached_count > harvest->cached_capacity));
    XSEG_ASSERT(harvest->count <= harvest->capacity);
    return XSEG_OK;
}

/* Check that nothing prevents taking or restoring a checkpoint. */
static xseg_status expect_quiet(struct xseg_pool *pool, const struct harvest *harvest)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_pending_captures(pool->device->pending))
        return xseg_pending_fail_capture(pool->device->pending);
    if (harvest->pending > 0)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "memory of pool %s is pending free, %zu block%s; synchronize the streams that "
            "use it first",
            xseg_pool_label(pool), harvest->pending, harvest->pending == 1 ? "" : "s");
    return XSEG_OK;
}

/* --- Taking. --- */

xseg_status xseg_checkpoint_take(struct xseg_pool *pool, struct xseg_checkpoint **out)
{
    struct xseg_device *device = pool->device;
    const bool with_users = (xseg_history_settings(&device->history) & XSEG_HISTORY_USERS) != 0;
    struct xseg_checkpoint_ranges *ranges = NULL;
    struct xseg_checkpoint *checkpoint = NULL;
    struct harvest harvest;
    void *memory = NULL;

    xseg_pending_poll(device->pending);
    xseg_mutex_lock(&device->growth_lock);
    xseg_status status =
        harvest_all(pool, sizeof(*checkpoint), true, with_users, &memory, &harvest);
    if (status == XSEG_OK)
        status = expect_quiet(pool, &harvest);
    if (status == XSEG_OK)
        status = xseg_checkpoint_ranges_take(pool, &ranges);
    xseg_mutex_unlock(&device->growth_lock);
    if (status != XSEG_OK) {
        free(memory);
        return status;
    }
    XSEG_ASSERT(memory != NULL && harvest.pending == 0);
    checkpoint = memory;
    checkpoint->pool = pool;
    checkpoint->serial = pool->serial;
    memcpy(checkpoint->label, pool->label, sizeof(checkpoint->label));
    checkpoint->count = harvest.count;
    checkpoint->users = harvest.users;
    checkpoint->cached = harvest.cached;
    checkpoint->cached_count = harvest.cached_count;
    checkpoint->ranges = ranges;
    *out = checkpoint;
    return XSEG_OK;
}

void xseg_checkpoint_free(struct xseg_checkpoint *checkpoint)
{
    if (checkpoint != NULL)
        xseg_checkpoint_ranges_free(checkpoint->ranges);
    free(checkpoint);
}

/* --- Restoring. --- */

static struct xseg_extent *extent_of(const struct xseg_pool *pool, uint64_t address)
{
    struct xseg_extent *extent = xseg_page_map_find(pool->device->page_map, address);

    return extent != NULL && address >= extent->segment.base &&
                   address - extent->segment.base < extent->segment.bytes
               ? extent
               : NULL;
}

/* Whether all bytes of a block of the checkpoint are still memory of its arena.
 * lent: set to a lent block that lies there, if there is one */
static bool is_there(const struct xseg_pool *pool, const struct xseg_checkpoint_block *saved,
                     struct xseg_part *fallback)
{
    struct xseg_extent *extent = extent_of(pool, saved->base);
    const uint64_t end = saved->base + saved->bytes;
    /* Where the segment of the block was, a range of the same arena may be now. */
    bool there = extent != NULL && extent->arena == saved->arena && extent->elastic == NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!there)
        return false;
    xseg_arena_lock(saved->arena);
    struct xseg_part part = xseg_walk_at(extent, saved->base);
    for (; there && part.extent != NULL && part.base < end; part = xseg_walk_next(&part)) {
        /* A busy block may be about to go. */
        there = part.state != XSEG_BLOCK_UNMAPPED && part.state != XSEG_BLOCK_CLAIMED;
        if (part.is_fallback)
            *fallback = part;
    }
    there = there && end <= extent->segment.base + extent->segment.bytes;
    xseg_arena_unlock(saved->arena);
    return there;
}

static xseg_status check_place(const struct xseg_pool *pool,
                               const struct xseg_checkpoint_block *saved)
{
    struct xseg_part fallback = {0};
    const bool there = is_there(pool, saved, &fallback);

    if (fallback.extent != NULL)
        return xseg_blocker_fail_fallback(pool, fallback.base, fallback.bytes);
    return there ? XSEG_OK : xseg_checkpoint_fail_released(pool, saved->base);
}

/* Make sure that every arena of the pool has block records for the cuts: two a block. */
static xseg_status stock(const struct xseg_checkpoint *checkpoint)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t first = 0, end; first < checkpoint->count; first = end) {
        struct xseg_arena *arena = checkpoint->block[first].arena;

        for (end = first; end < checkpoint->count && checkpoint->block[end].arena == arena;)
            end++;
        xseg_arena_lock(arena);
        const bool stocked =
            xseg_arena_reserve_records(arena, &arena->blocks, (uint32_t)(2 * (end - first) + 2));
        xseg_arena_unlock(arena);
        if (!stocked)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu block records",
                             2 * (end - first));
    }
    return XSEG_OK;
}

static void free_live(const struct xseg_checkpoint_block *live)
{
    struct xseg_arena *arena = live->arena;

    xseg_arena_lock(arena);
    struct xseg_extent *extent = extent_of(arena->pool, live->base);
    XSEG_ASSERT(extent != NULL && extent->arena == arena);
    struct xseg_block *block = xseg_extent_block_at(extent, live->base);
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_free(
            arena, &(struct xseg_recorded_block){live->base, live->bytes, live->requested, false});
    if (block != NULL) {
        xseg_arena_free(arena, block);
    } else {
        xseg_small_free_at(arena, extent, live->base);
    }
    xseg_arena_unlock(arena);
}

/* Make a block of the checkpoint live again, with its word; all memory around it is cached, or live already. */
static void revive(const struct xseg_checkpoint_block *saved, uint64_t user,
                   const struct xseg_config *config)
{
    struct xseg_arena *arena = saved->arena;
    struct xseg_extent *extent = extent_of(arena->pool, saved->base);
    const struct xseg_alloc_params params = {.config = config,
                                             .requested = saved->requested,
                                             .bytes = saved->bytes,
                                             .alignment = XSEG_SIZE_UNIT,
                                             .span = saved->bytes,
                                             .is_small = arena->is_small,
                                             .expandable = true};

    xseg_history_set_user(arena->history->store, user);
    xseg_arena_lock(arena);
    XSEG_ASSERT(extent != NULL && extent->arena == arena && saved->requested <= saved->bytes);
    (void)xseg_arena_allocate_at(arena, extent, saved->base, &params);
    xseg_arena_unlock(arena);
}

/* Set the requested size of a cached block of the checkpoint.  Its memory may be gone. */
static void set_requested(const struct xseg_checkpoint_block *saved)
{
    struct xseg_arena *arena = saved->arena;
    struct xseg_extent *extent = extent_of(arena->pool, saved->base);

    if (extent == NULL || extent->arena != arena || extent->elastic != NULL)
        return;
    xseg_arena_lock(arena);
    xseg_arena_set_requested(extent, saved->base, saved->requested);
    xseg_arena_unlock(arena);
}

static xseg_status check_restore(const struct xseg_checkpoint *checkpoint,
                                 const struct harvest *harvest)
{
    xseg_status status = expect_quiet(checkpoint->pool, harvest);

    XSEG_ASSERT(checkpoint->count == 0 || checkpoint->block[0].arena != NULL);
    if (status == XSEG_OK && harvest->used > 0)
        status = xseg_fail(
            XSEG_ERR_BUSY,
            "memory of pool %s is used by other streams, %zu allocated block%s; free them "
            "first",
            xseg_pool_label(checkpoint->pool), harvest->used, harvest->used == 1 ? "" : "s");
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->count; i++)
        status = check_place(checkpoint->pool, &checkpoint->block[i]);
    return status == XSEG_OK ? stock(checkpoint) : status;
}

static void tell(void (*moved)(void *self, void *pointer, bool freed), void *self,
                 const struct xseg_checkpoint_block *block, size_t count, bool freed)
{
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    for (size_t i = 0; moved != NULL && i < count; i++)
        moved(self, (void *)(uintptr_t)block[i].base, /* NOLINT(performance-no-int-to-ptr) */
              freed);
}

xseg_status xseg_checkpoint_restore(const struct xseg_checkpoint *checkpoint,
                                    void (*moved)(void *self, void *pointer, bool freed),
                                    void *self)
{
    struct xseg_device *device = checkpoint->pool->device;
    const struct xseg_config *config = xseg_allocator_config(device->allocator);
    struct harvest live;
    void *memory = NULL;

    xseg_pending_poll(device->pending);
    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = xseg_pool_check_running(checkpoint->pool);
    if (status == XSEG_OK)
        status = harvest_all(checkpoint->pool, 0, false, false, &memory, &live);
    if (status == XSEG_OK)
        status = check_restore(checkpoint, &live);
    if (status == XSEG_OK)
        status = xseg_checkpoint_ranges_begin(checkpoint->ranges, checkpoint->pool);
    for (size_t i = 0; status == XSEG_OK && i < live.count; i++)
        free_live(&live.block[i]);
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->count; i++)
        revive(&checkpoint->block[i], checkpoint->users == NULL ? 0 : checkpoint->users[i], config);
    xseg_history_set_user(device->history.store, 0);
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->cached_count; i++)
        set_requested(&checkpoint->cached[i]);
    if (status == XSEG_OK)
        xseg_checkpoint_ranges_finish(checkpoint->ranges, checkpoint->pool);
    xseg_mutex_unlock(&device->growth_lock);
    xseg_allocator_deliver(device->allocator);
    if (status == XSEG_OK) {
        tell(moved, self, live.block, live.count, true);
        tell(moved, self, checkpoint->block, checkpoint->count, false);
    }
    free(memory);
    return status;
}

/* --- Comparing. --- */

static int by_address(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

    return one < other ? -1 : one > other;
}

static int by_base(const void *a, const void *b)
{
    const struct xseg_checkpoint_block *one = a, *other = b;

    return by_address(&one->base, &other->base);
}

/* Whether sorted addresses, in which some may repeat, are the bases of sorted blocks. */
static bool are_equal(const uint64_t *address, size_t count, const struct harvest *live)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && address[i] == address[i - 1])
            continue;
        XSEG_ASSERT(i == 0 || address[i] > address[i - 1]);
        if (at == live->count || live->block[at].base != address[i])
            return false;
        at++;
    }
    return at == live->count;
}

xseg_status xseg_checkpoint_compare(struct xseg_pool *pool, void *const *pointers, size_t count,
                                    bool *exactly)
{
    struct xseg_device *device = pool->device;
    uint64_t *address = calloc(count + 1, sizeof(*address));
    struct harvest live;
    void *memory = NULL;

    XSEG_ASSERT(count == 0 || pointers != NULL);
    if (address == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu addresses", count);
    for (size_t i = 0; i < count; i++)
        address[i] = (uintptr_t)pointers[i];
    xseg_mutex_lock(&device->growth_lock);
    const xseg_status status = harvest_all(pool, 0, false, false, &memory, &live);
    xseg_mutex_unlock(&device->growth_lock);
    if (status == XSEG_OK) {
        qsort(address, count, sizeof(*address), by_address);
        qsort(live.block, live.count, sizeof(*live.block), by_base);
        *exactly = are_equal(address, count, &live);
    }
    free(address);
    free(memory);
    return status;
}
