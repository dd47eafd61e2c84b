/* SPDX-License-Identifier: MIT */
#include "src/core/large/packing.h"

#include <stdlib.h>

#include "src/core/arena/arena.h"
#include "src/core/large/cached.h"

/* How many fitting blocks a search looks at. */
#define LOOKS 32u

/* How many times larger than a request a block may be, if there is another candidate. */
#define LARGER 4u

/* Entries of the table that a size may have. */
#define WAYS 4u

/* After so many arrivals, earlier ones count half. */
#define MEMORY 64u

/* The cost of each doubling of a page's time, where each doubling by which a block ends before its page costs 1. */
#define LATER 32

_Static_assert(XSEG_PACKING_SIZES % WAYS == 0, "the ways of a size lie in the table");

/* --- Tables. --- */

/* An extent that has no pages yet; NULL if all have. */
static struct xseg_extent *find_without_pages(const struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (extent->pages == NULL && xseg_extent_is_expandable(extent))
            return extent;
    }
    return NULL;
}

/* Whether an extent is of the arena, and still without pages, after the lock was let go. */
static bool wants_pages(const struct xseg_arena *arena, const struct xseg_extent *extent,
                        uint32_t granules)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        if (XSEG_CONTAINER(node, struct xseg_extent, link) == extent)
            return extent->pages == NULL && extent->segment.granules == granules;
    }
    return false;
}

/* Make the table of sizes; the arena's lock is let go meanwhile. */
static bool make_packing(struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_arena_unlock(arena);
    struct xseg_packing *packing = calloc(1, sizeof(*packing));
    xseg_arena_lock(arena);
    if (arena->packing == NULL)
        arena->packing = packing;
    else
        free(packing);
    return arena->packing != NULL;
}

/* Make the pages of an extent; the arena's lock is let go meanwhile. */
static bool make_pages(struct xseg_arena *arena, struct xseg_extent *extent) XSEG_UNCHECKED
{
    const uint32_t granules = extent->segment.granules;

    XSEG_ASSERT(granules > 0 && extent->pages == NULL);
    xseg_arena_unlock(arena);
    struct xseg_packing_page *pages = calloc(granules, sizeof(*pages));
    xseg_arena_lock(arena);
    if (pages != NULL && wants_pages(arena, extent, granules))
        extent->pages = pages;
    else
        free(pages);
    return pages != NULL;
}

bool xseg_packing_prepare(struct xseg_arena *arena)
{
    struct xseg_extent *extent;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && !arena->has_cells);
    if (__builtin_expect(arena->packing == NULL, 0) && !make_packing(arena))
        return false;
    while (__builtin_expect((extent = find_without_pages(arena)) != NULL, 0))
        if (!make_pages(arena, extent))
            return false;
    XSEG_ASSERT(arena->packing != NULL);
    return true;
}

/* --- Lifetimes. --- */

/* The first of the entries that a size may have. */
static struct xseg_packing_size *first_way(struct xseg_packing *packing, uint64_t bytes)
{
    const uint64_t hash = (bytes >> 9) * UINT64_C(0x9E3779B97F4A7C15) >> 32;

    return &packing->size[hash % (XSEG_PACKING_SIZES / WAYS) * WAYS];
}

static struct xseg_packing_size *find_size(struct xseg_packing *packing, uint64_t bytes)
{
    struct xseg_packing_size *size = first_way(packing, bytes);

    XSEG_ASSERT(bytes > 0);
    for (unsigned way = 0; way < WAYS; way++)
        if (size[way].bytes == bytes)
            return &size[way];
    return NULL;
}

/* The entry of a size.  A new one replaces the way with the fewest live blocks, and among these the one that has
 * not been seen for longest. */
static struct xseg_packing_size *get_size(struct xseg_packing *packing, uint64_t bytes)
{
    struct xseg_packing_size *size = find_size(packing, bytes), *least;

    if (size != NULL)
        return size;
    size = least = first_way(packing, bytes);
    for (unsigned way = 1; way < WAYS; way++)
        if (size[way].live < least->live ||
            (size[way].live == least->live && size[way].last < least->last))
            least = &size[way];
    *least = (struct xseg_packing_size){.bytes = bytes, .last = packing->clock};
    return least;
}

static void sum_up(struct xseg_packing_size *size, uint64_t now)
{
    XSEG_ASSERT(now >= size->last);
    size->exposure += size->live * (now - size->last);
    size->last = now;
    if (size->arrivals > MEMORY) {
        size->arrivals /= 2;
        size->exposure /= 2;
    }
}

static void note_arrival(struct xseg_packing_size *size, uint64_t now)
{
    sum_up(size, now);
    size->live++;
    size->arrivals++;
}

static void note_departure(struct xseg_packing_size *size, uint64_t now)
{
    sum_up(size, now);
    size->live -= size->live > 0; /* blocks that are older than the entry are not in it */
}

/* The mean lifetime by Little's law; UINT64_MAX before the first arrival. */
static uint64_t mean(const struct xseg_packing_size *size, uint64_t now)
{
    return size->arrivals == 0
               ? UINT64_MAX
               : (size->exposure + size->live * (now - size->last)) / size->arrivals;
}

uint64_t xseg_packing_lifetime(struct xseg_packing *packing, uint64_t bytes)
{
    const struct xseg_packing_size *size = find_size(packing, bytes);

    return mean(size != NULL ? size : &packing->all, packing->clock);
}

/* --- Pages. --- */

/* A page under a place: its granules, and whether the cached block covers all of it. */
struct page {
    uint32_t first, end;
    bool is_idle;
};

static struct page page_over(const struct xseg_block *block, uint64_t address)
{
    const struct xseg_segment *segment = &block->extent->segment;
    struct page page = {.first = (uint32_t)((address - segment->base) / segment->granule_bytes)};

    XSEG_ASSERT(address >= block->base && address < xseg_block_end(block));
    XSEG_ASSERT(page.first < segment->granules);
    while (segment->length[page.first] == 0)
        page.first--;
    page.end = page.first + segment->length[page.first];
    XSEG_ASSERT(page.end <= segment->granules);
    page.is_idle = segment->base + page.first * segment->granule_bytes >= block->base &&
                   segment->base + page.end * segment->granule_bytes <= xseg_block_end(block);
    return page;
}

/* The logarithm of a time, in sixteenths of doublings. */
static int log_of(uint64_t time)
{
    const uint64_t above = (time < UINT64_MAX ? time : time - 1) + 1;
    const unsigned whole = xseg_log2_floor(above);

    return (int)(whole * 16 + ((whole >= 4 ? above >> (whole - 4) : above << (4 - whole)) & 15));
}

/* How long a page will be in use; an overdue page, for half of the time that it has been in use. */
static uint64_t time_left(const struct xseg_packing_page *page, uint64_t now)
{
    const uint64_t left = page->until - xseg_min(page->until, now);

    XSEG_ASSERT(now >= page->opened);
    return xseg_max(left, (now - page->opened) / 2);
}

static int64_t cost_of_page(const struct xseg_arena *arena, const struct xseg_block *block,
                            const struct page *page, int life)
{
    XSEG_ASSERT(block->extent->pages != NULL);
    if (page->is_idle)
        return (int64_t)LATER * life;
    const int left = log_of(time_left(&block->extent->pages[page->first], arena->packing->clock));
    return life > left ? (int64_t)LATER * (life - left) : left - life;
}

/* The cost of a place.  Pages between its first and its last are idle. */
static int64_t cost_of(const struct xseg_arena *arena, const struct xseg_block *block,
                       uint64_t base, uint64_t bytes, int life)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const struct page first = page_over(block, base), last = page_over(block, base + bytes - 1);
    int64_t cost = cost_of_page(arena, block, &first, life);

    if (last.first == first.first)
        return cost;
    XSEG_ASSERT(last.first >= first.end);
    const uint64_t between = (last.first - first.end) * segment->granule_bytes;
    return cost + cost_of_page(arena, block, &last, life) +
           (int64_t)(between / segment->page_bytes) * LATER * life;
}

/* --- Choosing. --- */

struct place {
    struct xseg_block *block;
    uint64_t base;
    int64_t cost;
};

/* Take a place for the best so far if it costs less. */
static void look_at(const struct xseg_arena *arena, const struct xseg_need *need, int life,
                    struct xseg_block *block, uint64_t base, struct place *best)
{
    const int64_t cost = cost_of(arena, block, base, need->bytes, life);

    XSEG_ASSERT(base >= block->base && base + need->bytes <= xseg_block_end(block));
    if (best->block == NULL || cost < best->cost)
        *best = (struct place){block, base, cost};
}

/* Oversize blocks are kept for oversize requests of nearly their size. */
static bool is_too_large(const struct xseg_block *block, const struct xseg_need *need)
{
    const struct xseg_config *config = need->config;

    if (need->bytes < config->max_split_bytes)
        return block->bytes >= config->max_split_bytes;
    return block->bytes >= xseg_add_saturate(need->bytes, config->max_non_split_rounding_bytes);
}

/* Note that the pages under a place have one more block, which ends at a time. */
static void note_pages(const struct xseg_arena *arena, const struct xseg_block *block,
                       uint64_t base, uint64_t bytes, uint64_t until)
{
    const struct xseg_segment *segment = &block->extent->segment;

    XSEG_ASSERT(bytes > 0 && base >= block->base && base + bytes <= xseg_block_end(block));
    for (uint64_t at = base; at < base + bytes;) {
        const struct page under = page_over(block, at);
        struct xseg_packing_page *page = &block->extent->pages[under.first];

        if (under.is_idle)
            *page = (struct xseg_packing_page){arena->packing->clock, until};
        page->until = xseg_max(page->until, until);
        at = segment->base + under.end * segment->granule_bytes;
    }
}

void xseg_packing_note(struct xseg_arena *arena, const struct xseg_block *block, uint64_t base,
                       uint64_t bytes)
{
    struct xseg_packing *packing = arena->packing;

    if (packing == NULL)
        return;
    packing->clock++;
    const uint64_t life = xseg_packing_lifetime(packing, bytes);
    if (block->extent->pages != NULL)
        note_pages(arena, block, base, bytes, xseg_add_saturate(packing->clock, life));
    note_arrival(get_size(packing, bytes), packing->clock);
    note_arrival(&packing->all, packing->clock);
}

/*
 * The place that keeps the fewest pages for the shortest time; without a block if there is none.  Blocks that are
 * much larger are left to larger requests, and the end of a block that could still grow stays free.
 */
static struct place find(struct xseg_arena *arena, const struct xseg_need *need)
{
    const int life = log_of(xseg_packing_lifetime(arena->packing, need->bytes));
    struct xseg_block *block = xseg_cached_find(arena, need->span);
    struct place best = {0};

    for (unsigned looks = 0; block != NULL && looks < LOOKS && !is_too_large(block, need);
         looks++, block = xseg_cached_next(arena, block)) {
        if (best.block != NULL && block->bytes / LARGER > need->span)
            break;
        if (block->extent->pages == NULL)
            continue;
        look_at(arena, need, life, block, xseg_round_up(block->base, need->alignment), &best);
        if (!xseg_block_can_grow(block))
            look_at(arena, need, life, block,
                    xseg_round_down(xseg_block_end(block) - need->bytes, need->alignment), &best);
    }
    return best;
}

struct xseg_block *xseg_packing_find(struct xseg_arena *arena, const struct xseg_need *need,
                                     uint64_t *base)
{
    const struct place place = find(arena, need);

    if (place.block == NULL)
        return NULL;
    XSEG_ASSERT(place.block->state == XSEG_BLOCK_CACHED);
    *base = place.base;
    if (!need->keep)
        xseg_packing_note(arena, place.block, place.base, need->bytes);
    return place.block;
}

void xseg_packing_note_end(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_packing *packing = arena->packing;
    struct xseg_packing_size *size = find_size(packing, bytes);

    XSEG_ASSERT(packing->clock > 0 || size == NULL);
    if (size != NULL)
        note_departure(size, packing->clock);
    note_departure(&packing->all, packing->clock);
}
