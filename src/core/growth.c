/* SPDX-License-Identifier: MIT */
#include "src/core/growth.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/size.h"
#include "src/core/trim.h"

/* --- Extents. --- */

static struct xseg_extent *take_extent(struct xseg_arena *arena)
{
    struct xseg_list *spare = &arena->device->spare_extents;
    struct xseg_extent *extent;

    if (xseg_list_is_empty(spare)) {
        extent = calloc(1, sizeof(*extent));
        if (extent == NULL) {
            (void)xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a segment's record");
            return NULL;
        }
    } else {
        extent = XSEG_LIST_FIRST(spare, struct xseg_extent, link);
        xseg_list_remove(&extent->link);
    }
    xseg_list_init(&extent->link);
    extent->arena = arena;
    extent->first = NULL;
    extent->oversize = false;
    return extent;
}

static void put_extent(struct xseg_extent *extent)
{
    xseg_list_insert(&extent->arena->device->spare_extents, &extent->link);
}

/*
 * Make an extent known: starts, look-up, and its arena's list, as one busy block.  On failure the
 * segment ends and the record is spare again.
 */
static xseg_status announce(struct xseg_extent *extent, bool cover)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_device *device = arena->device;
    bool known = false;

    if (!xseg_starts_init(&extent->starts, extent->segment.bytes, arena->is_small))
        goto end_segment;
    if (cover && !xseg_starts_cover(&extent->starts, 0, extent->segment.bytes))
        goto end_starts;
    atomic_store_explicit(&extent->base, extent->segment.base, memory_order_relaxed);
    xseg_arena_lock(arena);
    if (xseg_arena_stock(arena, &arena->blocks, 2)) {
        xseg_lock_take(device->lookup_lock);
        known = xseg_lookup_insert(device->lookup, extent);
        xseg_lock_give(device->lookup_lock);
    }
    if (known)
        (void)xseg_arena_add_extent(arena, extent);
    xseg_arena_unlock(arena);
    if (known)
        return XSEG_OK;

end_starts:
    xseg_starts_fini(&extent->starts);
end_segment:
    (void)xseg_segment_end(&extent->segment);
    put_extent(extent);
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a segment's tables");
}

/* --- Limits. --- */

static xseg_status check_limit(const struct xseg_device *device, const struct xseg_need *need,
                               uint64_t more)
{
    const uint64_t limit = xseg_device_limit(device, need->config);
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t total = device->context.total_bytes;

    /* What the device cannot hold beside what is in use need not be tried page by page. */
    if (physical > total || more > total - physical)
        return xseg_fail(XSEG_ERR_NO_MEMORY,
                         "%" PRIu64 " bytes more than the %" PRIu64
                         " in use are more than the device's %" PRIu64 " bytes",
                         more, physical, total);
    if (physical <= limit && more <= limit - physical)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_LIMIT,
                     "%" PRIu64 " bytes more than the %" PRIu64
                     " in use would pass the limit of %" PRIu64 " bytes",
                     more, physical, limit);
}

static void note_growth(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_add_explicit(&device->reserved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&device->grown, 1, memory_order_relaxed);
}

/* --- Classic segments. --- */

static xseg_status grow_classic(struct xseg_arena *arena, const struct xseg_need *need,
                                struct xseg_block **out)
{
    struct xseg_device *device = arena->device;
    const uint64_t bytes = need->segment_bytes;
    xseg_status status = check_limit(device, need, bytes);

    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = take_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status = xseg_segment_allocate(&extent->segment, &device->context, &device->leftovers, bytes);
    if (status != XSEG_OK) {
        put_extent(extent);
        return status;
    }
    status = announce(extent, true);
    if (status != XSEG_OK)
        return status;
    note_growth(device, bytes);
    xseg_fill_busy(extent->first);
    xseg_arena_lock(arena);
    extent->oversize = bytes >= need->config->max_split_bytes;
    xseg_counts_up(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_up(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_up(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    const bool stocked = xseg_arena_stock(arena, &arena->blocks, 2);
    struct xseg_block *block = xseg_arena_settle(arena, extent->first);
    if (stocked)
        *out = need->keep ? block : xseg_arena_hand_out(arena, block, need);
    xseg_arena_unlock(arena);
    return stocked ? XSEG_OK
                   : xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a block's record");
}

/* --- Expandable segments. --- */

/* A stretch of neighbours, all claimed: holes to map, and cached blocks between them. */
struct claim {
    struct xseg_block *first, *last;
    uint64_t missing;          /* bytes of its holes */
    struct xseg_block *failed; /* the first hole that could not be mapped, or NULL */
};

static bool is_free(const struct xseg_block *block)
{
    return block != NULL && (block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_HOLE);
}

/* The lowest stretch with a hole in it that is long enough, by its first block; or NULL. */
static struct xseg_block *find_stretch(const struct xseg_arena *arena, uint64_t bytes)
{
    for (struct xseg_block *hole = xseg_tree_first(arena->holes); hole != NULL;
         hole = xseg_tree_next(arena->holes, hole)) {
        struct xseg_block *first = is_free(hole->prev) ? hole->prev : hole;
        uint64_t sum = 0;

        for (const struct xseg_block *block = first; is_free(block) && sum < bytes;
             block = block->next)
            sum += block->bytes;
        if (sum >= bytes)
            return first;
    }
    return NULL;
}

/* Claim a stretch for `bytes`; of the last hole only the pages that are needed. */
static struct claim claim_stretch(struct xseg_arena *arena, struct xseg_block *first,
                                  uint64_t bytes)
{
    struct claim claim = {.first = first};
    uint64_t sum = 0;

    for (struct xseg_block *block = first; sum < bytes; block = block->next) {
        const uint64_t page = block->extent->segment.page_bytes;
        const uint64_t wanted = xseg_round_up(bytes - sum, page);

        xseg_arena_claim(arena, block);
        if (!block->mapped && wanted < block->bytes)
            (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, wanted));
        claim.missing += block->mapped ? 0 : block->bytes;
        claim.last = block;
        sum += block->bytes;
    }
    return claim;
}

static xseg_status map_hole(struct xseg_block *hole)
{
    struct xseg_extent *extent = hole->extent;
    struct xseg_segment *segment = &extent->segment;
    const uint64_t begin = hole->base - segment->base;

    if (!xseg_starts_cover(&extent->starts, begin, begin + hole->bytes))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a segment's table");
    return xseg_segment_map(segment, (uint32_t)(begin / segment->page_bytes),
                            (uint32_t)(hole->bytes / segment->page_bytes));
}

/* Map the holes of a claim, lowest first, up to the first failure.  Without the arena's lock. */
static xseg_status map_claim(struct xseg_device *device, struct claim *claim)
{
    for (struct xseg_block *block = claim->first;; block = block->next) {
        if (!block->mapped) {
            const xseg_status status = map_hole(block);

            if (status != XSEG_OK) {
                claim->failed = block;
                return status;
            }
            note_growth(device, block->bytes);
            xseg_fill_busy(block);
        }
        if (block == claim->last)
            return XSEG_OK;
    }
}

/* Settle a claim: what was mapped is cached, the rest holes.  Returns the last block's new self. */
static struct xseg_block *settle_claim(struct xseg_arena *arena, const struct claim *claim,
                                       bool mapped)
{
    struct xseg_block *block = claim->first, *next, *result;

    for (;; block = next) {
        const bool is_last = block == claim->last;

        next = block->next;
        mapped = mapped && block != claim->failed;
        if (!block->mapped && mapped) {
            block->mapped = true;
            xseg_counts_up(&arena->counts, XSEG_COUNT_RESERVED_BYTES, block->bytes);
        }
        result = xseg_arena_settle(arena, block);
        if (is_last)
            return result;
    }
}

static xseg_status check_page(const struct xseg_device *device, uint64_t page)
{
    if (page % device->context.granularity == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "pages of %" PRIu64 " bytes: device %d maps multiples of %" PRIu64 " bytes",
                     page, device->context.ordinal, device->context.granularity);
}

/* Reserve a segment more for an arena: one hole. */
static xseg_status add_segment(struct xseg_arena *arena, const struct xseg_need *need)
{
    struct xseg_device *device = arena->device;
    const uint64_t total = device->context.total_bytes;
    const uint64_t page =
        arena->is_small ? XSEG_SIZE_SMALL_SEGMENT : need->config->large_segment_bytes;
    const uint64_t most = arena->is_small ? XSEG_STARTS_SMALL_MAX : XSEG_STARTS_LARGE_MAX;
    /* PyTorch's reservation: 9/8 of the device, so that a segment can hold all of it, with holes.
     * 512 GiB of small blocks are a segment's most; when they are full, another one follows. */
    const uint64_t bytes = xseg_min(xseg_round_up(total + total / 8, page), most / page * page);
    xseg_status status;

    if (need->span > bytes)
        return xseg_fail(XSEG_ERR_NO_MEMORY, "%" PRIu64 " bytes are more than device %d has",
                         need->span, device->context.ordinal);
    status = check_page(device, page);
    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = take_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status =
        xseg_segment_reserve(&extent->segment, &device->context, &device->leftovers, bytes, page);
    if (status != XSEG_OK) {
        put_extent(extent);
        return status;
    }
    const uint64_t reserved = extent->segment.reserved_bytes;
    status = announce(extent, false);
    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->addresses, reserved, memory_order_relaxed);
    xseg_arena_lock(arena);
    (void)xseg_arena_settle(arena, extent->first);
    xseg_arena_unlock(arena);
    return XSEG_OK;
}

/* Claim room to grow, in a new segment if need be. */
static xseg_status claim_room(struct xseg_arena *arena, const struct xseg_need *need,
                              struct claim *claim)
{
    xseg_status status = XSEG_OK;

    for (;;) {
        xseg_arena_lock(arena);
        const bool stocked = xseg_arena_stock(arena, &arena->blocks, 1);
        struct xseg_block *first = stocked ? find_stretch(arena, need->span) : NULL;
        if (first != NULL)
            *claim = claim_stretch(arena, first, need->span);
        xseg_arena_unlock(arena);
        if (!stocked)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a block's record");
        if (first != NULL)
            return XSEG_OK;
        status = add_segment(arena, need);
        if (status != XSEG_OK)
            return status;
    }
}

static xseg_status grow_expandable(struct xseg_arena *arena, const struct xseg_need *need,
                                   struct xseg_block **out)
{
    struct claim claim = {0};
    xseg_status status = claim_room(arena, need, &claim);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(claim.first != NULL && claim.last != NULL);
    const xseg_status limit = check_limit(arena->device, need, claim.missing);
    status = limit == XSEG_OK ? map_claim(arena->device, &claim) : limit;
    xseg_arena_lock(arena);
    const bool stocked = xseg_arena_stock(arena, &arena->blocks, 2);
    struct xseg_block *block = settle_claim(arena, &claim, limit == XSEG_OK);
    if (status == XSEG_OK && stocked)
        *out = need->keep ? block : xseg_arena_hand_out(arena, block, need);
    xseg_arena_unlock(arena);
    if (status == XSEG_OK && !stocked)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a block's record");
    return status;
}

/* --- A segment for one block; see alone.h. --- */

/* Reserve and announce a segment for a request: one busy hole.  NULL in case of an error. */
static xseg_status add_alone(struct xseg_arena *arena, const struct xseg_need *need, uint64_t bytes,
                             struct xseg_block **out)
{
    struct xseg_device *device = arena->device;
    const uint64_t page = XSEG_SIZE_SMALL_SEGMENT;
    xseg_status status = check_page(device, page);

    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = take_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status = xseg_segment_reserve_guarded(&extent->segment, &device->context, &device->leftovers,
                                          bytes, page, xseg_max(page, need->alignment));
    if (status != XSEG_OK) {
        put_extent(extent);
        return status;
    }
    const uint64_t reserved = extent->segment.reserved_bytes;
    status = announce(extent, false);
    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->addresses, reserved, memory_order_relaxed);
    *out = extent->first;
    return XSEG_OK;
}

/* Hand out the busy block of a segment, at the start of it or at the end; the rest is cached. */
static struct xseg_block *hand_out_alone(struct xseg_arena *arena, struct xseg_block *block,
                                         const struct xseg_need *need)
{
    const uint64_t offset =
        need->at_end ? xseg_round_down(block->bytes - need->bytes, need->alignment) : 0;

    if (offset == 0)
        return xseg_arena_hand_out(arena, xseg_arena_settle(arena, block), need);
    struct xseg_block *rest = xseg_arena_cut(arena, block, offset);
    rest = xseg_arena_hand_out(arena, xseg_arena_settle(arena, rest), need);
    (void)xseg_arena_settle(arena, block);
    return rest;
}

static xseg_status grow_alone(struct xseg_arena *arena, const struct xseg_need *need,
                              struct xseg_block **out)
{
    const uint64_t bytes = xseg_round_up(need->bytes, XSEG_SIZE_SMALL_SEGMENT);
    struct claim claim = {.missing = bytes};
    xseg_status status = check_limit(arena->device, need, bytes);

    if (status == XSEG_OK)
        status = add_alone(arena, need, bytes, &claim.first);
    if (status != XSEG_OK)
        return status;
    struct xseg_block *block = claim.last = claim.first;
    struct xseg_extent *extent = block->extent;
    status = map_claim(arena->device, &claim);
    xseg_arena_lock(arena);
    const bool stocked = xseg_arena_stock(arena, &arena->blocks, 3);
    if (status != XSEG_OK || !stocked) {
        (void)settle_claim(arena, &claim, true);
    } else {
        block->mapped = true;
        xseg_counts_up(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
        *out = hand_out_alone(arena, block, need);
    }
    xseg_arena_unlock(arena);
    if (status != XSEG_OK)
        (void)xseg_trim_end_hole(extent);
    else if (!stocked)
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a block's record");
    return status;
}

/* --- The way of a miss. --- */

static xseg_status grow(struct xseg_arena *arena, const struct xseg_need *need,
                        struct xseg_block **out)
{
    if (need->is_alone)
        return grow_alone(arena, need, out);
    return need->expandable ? grow_expandable(arena, need, out) : grow_classic(arena, need, out);
}

static bool is_shortage(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

static void end_holes(void *self, struct xseg_arena *arena)
{
    (void)self;
    (void)xseg_trim_end_holes(arena);
}

/* Search the shelf, unless the block is to have a segment of its own; NULL for a miss. */
static xseg_status search(struct xseg_arena *arena, const struct xseg_need *need,
                          struct xseg_block **out)
{
    return need->is_alone ? XSEG_OK : xseg_arena_alloc(arena, need, out);
}

/* Search the shelf, and grow where that finds nothing. */
static xseg_status search_and_grow(struct xseg_arena *arena, const struct xseg_need *need,
                                   struct xseg_block **out)
{
    const xseg_status status = search(arena, need, out);

    return status != XSEG_OK || *out != NULL ? status : grow(arena, need, out);
}

/*
 * Memory is short: wait for pending blocks, give all idle memory back, and grow; a cached block that
 * fits now is the last resort.  In this order the result is PyTorch's wherever PyTorch has one.
 */
static xseg_status make_room_and_grow(struct xseg_arena *arena, const struct xseg_need *need,
                                      struct xseg_block **out)
{
    struct xseg_device *device = arena->device;
    const struct xseg_trim_plan everything = {.wait = true};
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;
    const xseg_status trimmed = xseg_trim_device(device, &everything, &done);

    /* A stream that could not be waited for keeps only its own memory. */
    if (trimmed == XSEG_ERR_DEVICE_LOST)
        return trimmed;
    atomic_fetch_add_explicit(&device->retries, 1, memory_order_relaxed);
    xseg_status status = grow(arena, need, out);
    if (status == XSEG_ERR_NO_ADDRESSES) {
        xseg_device_visit_arenas(device, end_holes, NULL);
        status = grow(arena, need, out);
    }
    if (!is_shortage(status))
        return status;
    const xseg_status searched = search(arena, need, out);
    return searched != XSEG_OK || *out != NULL ? searched : status;
}

/* The sentence of an out-of-memory: what was asked, and where the memory is. */
static xseg_status report_shortage(struct xseg_arena *arena, const struct xseg_need *need,
                                   xseg_status status)
{
    struct xseg_device *device = arena->device;
    char reason[256], buffer[768];
    struct xseg_text text;
    uint64_t free = 0, total = 0;

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_text()->buffer);
    xseg_text_init(&text, buffer, sizeof(buffer));
    xseg_text_add(&text, "device %d has no room for ", device->context.ordinal);
    xseg_text_add_bytes(&text, need->requested);
    if (xseg_driver_memory(&device->context, &free, &total) == XSEG_OK) {
        xseg_text_add(&text, ": it has ");
        xseg_text_add_bytes(&text, free);
        xseg_text_add(&text, " free of ");
        xseg_text_add_bytes(&text, total);
    }
    xseg_text_add(&text, "; reserved here ");
    xseg_text_add_bytes(&text, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    xseg_text_add(&text, ", of which live ");
    xseg_text_add_bytes(&text, xseg_totals_current(&device->totals, XSEG_COUNT_ALLOCATED_BYTES));
    xseg_text_add(&text, ", freed but waiting for other streams ");
    xseg_text_add_bytes(&text,
                        xseg_totals_current(&device->totals, XSEG_COUNT_ACTIVE_BYTES) -
                            xseg_totals_current(&device->totals, XSEG_COUNT_ALLOCATED_BYTES));
    xseg_text_add(&text, "; %s", reason);
    return xseg_fail(status, "%s", buffer);
}

xseg_status xseg_growth_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                              struct xseg_block **out)
{
    struct xseg_device *device = arena->device;

    xseg_lock_take(&device->growth_lock);
    /* Another thread may have freed or grown what fits while this one waited for the lock. */
    xseg_status status = search_and_grow(arena, need, out);
    if (is_shortage(status))
        status = make_room_and_grow(arena, need, out);
    if (is_shortage(status)) {
        atomic_fetch_add_explicit(&device->ooms, 1, memory_order_relaxed);
        status = report_shortage(arena, need, status);
    }
    xseg_lock_give(&device->growth_lock);
    return status;
}
