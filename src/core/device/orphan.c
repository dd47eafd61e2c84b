/* SPDX-License-Identifier: MIT */
#include "src/core/device/orphan.h"

#include "src/base/check.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/device/device.h"
#include "src/core/small/cell.h"
#include "src/core/small/small_free.h"
#include "src/core/small/tract.h"

static bool is_at_rest(const struct xseg_block *block)
{
    return block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_HOLE ||
           block->state == XSEG_BLOCK_TRACT;
}

/* Whether nothing in an arena is in use, and no thread works on a block of an extent of it. */
static bool is_quiet(const struct xseg_arena *arena, const struct xseg_extent *extent)
    XSEG_REQUIRES(arena->lock)
{
    const struct xseg_block *block = extent->first;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(extent->arena == arena);
    if (xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE) != 0)
        return false;
    while (block != NULL && is_at_rest(block))
        block = block->next;
    return block == NULL;
}

bool xseg_orphan_can_adopt(struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (arena->misses != 0)
        return false;
    xseg_arena_lock(arena);
    bool can = xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE) == 0;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        can = can && is_quiet(arena, XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    xseg_arena_unlock(arena);
    return can;
}

/* --- Leaving an arena. --- */

/* Make sure that an arena has `count` records.  While GROWTH is held, no other thread takes
 * records of this arena. */
static bool stock(struct xseg_arena *arena, uint32_t count)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_arena_lock(arena);
    const bool stocked = xseg_arena_stock(arena, &arena->blocks, count);
    xseg_arena_unlock(arena);
    return stocked;
}

static uint32_t count_blocks(const struct xseg_extent *extent)
{
    uint32_t count = 0;

    for (const struct xseg_block *block = extent->first; block != NULL; block = block->next)
        count++;
    return count;
}

/* Claim a cached block.  A tract is one cached cell without live blocks. */
static struct xseg_block *claim(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block->state != XSEG_BLOCK_TRACT)
        return xseg_arena_claim(arena, block);
    const struct xseg_cell cell = xseg_small_cached_at(block->extent, block->base);
    XSEG_ASSERT((uint64_t)cell.quanta << XSEG_CELLS_SHIFT == block->bytes);
    return xseg_tract_claim(arena, &cell);
}

/* Take an extent out of its arena and the page map.  Returns its blocks, all busy, whose records are still
 * the arena's. */
static struct xseg_block *leave(struct xseg_arena *arena, struct xseg_extent *extent)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_device *device = arena->device;
    struct xseg_block *first;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(extent->arena == arena && is_quiet(arena, extent));
    for (struct xseg_block *block = extent->first; block != NULL; block = block->next)
        block = claim(arena, block);
    first = extent->first;
    extent->first = NULL;
    XSEG_ASSERT(first != NULL && first->state == XSEG_BLOCK_BUSY);
    xseg_list_remove(&extent->link);
    xseg_lock_take(&device->page_map->lock);
    xseg_page_map_remove(device->page_map, extent);
    xseg_lock_give(&device->page_map->lock);
    xseg_extent_fini(extent);
    return first;
}

static void put_records(struct xseg_arena *arena, struct xseg_block *first)
{
    struct xseg_block *next;

    xseg_arena_lock(arena);
    for (struct xseg_block *block = first; block != NULL; block = next) {
        next = block->next;
        xseg_slab_put(&arena->blocks, block);
    }
    xseg_arena_unlock(arena);
}

/* --- Coming to another. --- */

/* Free the tables of a segment behind its last page. */
static void shorten(struct xseg_segment *segment, const struct xseg_block *first)
{
    uint64_t end = segment->base + segment->page_bytes;

    if (!xseg_segment_is_expandable(segment))
        return;
    for (const struct xseg_block *block = first; block != NULL; block = block->next)
        if (block->mapped)
            end = xseg_block_end(block);
    xseg_segment_shorten(segment, end - segment->base);
}

/* Divide an extent into blocks of the same sizes as a list of busy blocks. */
static void tile(struct xseg_arena *arena, struct xseg_extent *extent,
                 const struct xseg_block *like) XSEG_REQUIRES(arena->lock)
{
    struct xseg_block *block = xseg_arena_add_extent(arena, extent), *rest = NULL;

    for (; block != NULL; block = rest, like = like->next) {
        rest = like->bytes < block->bytes ? xseg_arena_cut(arena, block, like->bytes) : NULL;
        block->mapped = like->mapped;
        block->requested = like->requested;
        (void)xseg_arena_settle(arena, block);
    }
    XSEG_ASSERT(like == NULL || !like->mapped);
}

/* Add a segment to an arena, with blocks of the same sizes as a list; the arena has records for
 * them. */
static void come(struct xseg_arena *arena, struct xseg_extent *extent,
                 const struct xseg_block *like)
{
    struct xseg_device *device = arena->device;

    XSEG_ASSERT(xseg_list_is_empty(&extent->link) && like != NULL);
    extent->arena = arena;
    shorten(&extent->segment, like);
    (void)xseg_extent_init(extent); /* without cells there is nothing to make */
    /* The blocks of a held pool may carry times older than their frees, since no look moves that pool's time.  An
     * event of this arena that is newer than such a time does not prove that work on the block has ended. */
    for (const struct xseg_block *block = like; block != NULL; block = block->next)
        if (block->mapped)
            xseg_arena_stamp(arena, extent, block->base, block->bytes);
    xseg_arena_lock(arena);
    xseg_lock_take(&device->page_map->lock);
    const bool is_known = xseg_page_map_insert(device->page_map, extent);
    XSEG_ASSERT(is_known); /* the tables of the page map are there */
    (void)is_known;
    xseg_lock_give(&device->page_map->lock);
    tile(arena, extent, like);
    xseg_arena_unlock(arena);
}

/* --- Adopting. --- */

/* Move an amount from one arena to another.  The totals of the former's pool stay: that has got the amount, and has
 * not freed it. */
static void move_count(struct xseg_arena *from, struct xseg_arena *to, enum xseg_count what,
                       uint64_t amount)
{
    xseg_counts_move(&from->counts, &to->counts, what, amount);
    from->up_before[what] -= amount;
}

static void move_counts(struct xseg_arena *from, struct xseg_arena *to,
                        const struct xseg_extent *extent)
{
    const uint64_t bytes = atomic_load_explicit(&extent->segment.mapped, memory_order_relaxed);

    XSEG_ASSERT(from->is_small == to->is_small && xseg_arena_stream(from) == xseg_arena_stream(to));
    move_count(from, to, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (!xseg_extent_is_expandable(extent))
        move_count(from, to, XSEG_COUNT_SEGMENT, 1);
    if (extent->oversize)
        move_count(from, to, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    xseg_pool_move_reserved(from, to, bytes);
}

/* Move an extent to another arena.  False without host memory, or where a request that began
 * before the pool was released has taken a block meanwhile: then the pool ends later. */
static bool move(struct xseg_arena *from, struct xseg_arena *to, struct xseg_extent *extent)
{
    xseg_arena_lock(from);
    const uint32_t blocks = count_blocks(extent);
    xseg_arena_unlock(from);
    if (!stock(from, 2 * blocks) || !stock(to, blocks + 1))
        return false;
    xseg_arena_lock(from);
    if (!is_quiet(from, extent) || count_blocks(extent) != blocks ||
        from->blocks.free_count < 2 * blocks) {
        xseg_arena_unlock(from);
        return false;
    }
    struct xseg_block *first = leave(from, extent);
    move_counts(from, to, extent);
    xseg_arena_unlock(from);
    come(to, extent, first);
    put_records(from, first);
    return true;
}

bool xseg_orphan_adopt(struct xseg_arena *arena)
{
    struct xseg_device *device = arena->device;
    struct xseg_pool *orphans = &device->retirement.orphans[xseg_pool_has_own_memory(arena->pool)];
    struct xseg_arena *to = NULL;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(xseg_pool_is_retired(arena->pool));
    if (xseg_list_is_empty(&arena->extents))
        return true;
    if (xseg_pool_arena(orphans, xseg_arena_stream(arena), arena->is_small, &to) != XSEG_OK)
        return false;
    XSEG_ASSERT(to != arena && to->pool == orphans);
    /* Looks at idle memory visit all arenas, so the new arena has the time of the last look. */
    xseg_arena_set_now(to, device->pages.now);
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        if (!move(arena, to, XSEG_CONTAINER(node, struct xseg_extent, link)))
            return false;
    }
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
    return true;
}
