/* SPDX-License-Identifier: MIT */
#include "src/core/grow/oom_account.h"

#include "src/core/config/size.h"
#include "src/core/grow/candidate.h"
#include "src/core/reclaim/idle.h"

/* The whole pages, or the whole segment, that a block not in use covers. */
static struct xseg_idle_bytes whole_of(const struct xseg_part *part)
{
    return xseg_idle_whole_bytes(&part->extent->segment, part->base, part->bytes);
}

/* Bytes that a cached block would have in whole small pages, beyond those in whole pages. */
static uint64_t small_whole(const struct xseg_part *part, const struct xseg_idle_bytes *whole)
{
    const struct xseg_segment *segment = &part->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const uint64_t have = whole->loose + whole->held.pinned + whole->held.exported;
    const uint64_t from = xseg_round_up(part->base - segment->base, granule);
    const uint64_t to = xseg_round_down(xseg_part_end(part) - segment->base, granule);

    return from < to && to - from > have ? to - from - have : 0;
}

/* Bytes that a block of a classic segment would have in whole pages of an expandable one, at least: where pages would
 * begin in it is not known. */
static uint64_t split_whole(const struct xseg_part *part, uint64_t page)
{
    XSEG_ASSERT(page > 0);
    return part->bytes / page > 1 ? (part->bytes / page - 1) * page : 0;
}

static void add_cached(struct xseg_oom_account *account, const struct xseg_arena *arena,
                       const struct xseg_part *part)
{
    const struct xseg_idle_bytes whole = whole_of(part);

    XSEG_ASSERT(part->state == XSEG_BLOCK_CACHED);

    if (arena == account->asked)
        account->longest = xseg_max(account->longest, part->bytes);
    if (!xseg_pool_may_shrink(arena->pool)) {
        account->held += part->bytes;
        account->held_whole += whole.loose;
        return;
    }
    account->cached += whole.loose;
    account->pinned += whole.held.pinned;
    account->exported += whole.held.exported;
    account->partial += part->bytes - whole.loose - whole.held.pinned - whole.held.exported;
    if (xseg_extent_is_expandable(part->extent))
        account->small_whole += small_whole(part, &whole);
    else if (whole.loose + whole.held.pinned == 0 && !xseg_pool_has_own_memory(arena->pool)) {
        account->split_small += split_whole(part, XSEG_SIZE_SMALL_SEGMENT);
        account->split_whole +=
            split_whole(part, arena->is_small ? XSEG_SIZE_SMALL_SEGMENT : account->large_page);
    }
}

static void count_part(void *self, const struct xseg_part *part)
{
    struct xseg_oom_account *account = self;
    const struct xseg_arena *arena = part->extent->arena;

    /* Evicted blocks take no memory. */
    if (arena->pool->state == XSEG_POOL_PAUSED)
        return;
    account->live += part->state == XSEG_BLOCK_ALLOCATED ? part->bytes : 0;
    account->pending += part->state == XSEG_BLOCK_PENDING_FREE ? part->bytes : 0;
    if (part->state == XSEG_BLOCK_PENDING_FREE && xseg_pool_may_shrink(arena->pool))
        account->pending_whole += whole_of(part).loose;
    if (part->state == XSEG_BLOCK_CACHED)
        add_cached(account, arena, part);
}

/* Bytes that the request would have to map, in small pages and where the fewest are missing, or to allocate. */
static uint64_t missing(struct xseg_arena *arena, const struct xseg_alloc_params *params)
{
    const uint64_t granule = arena->device->context.granularity;
    struct xseg_candidate_placement place;

    XSEG_ASSERT(params->span > 0);
    if (!params->expandable)
        return params->segment_bytes;
    if (params->is_guarded || params->is_single)
        return xseg_round_up(params->bytes, XSEG_SIZE_SMALL_SEGMENT);
    xseg_arena_lock(arena);
    const bool found = xseg_candidate_find_cheapest(arena, params->span, &place);
    xseg_arena_unlock(arena);
    return found ? place.missing : xseg_round_up(params->span, granule);
}

void xseg_oom_account_collect(struct xseg_oom_account *account, struct xseg_arena *asked,
                              const struct xseg_alloc_params *params)
{
    struct xseg_device *device = asked->device;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *account = (struct xseg_oom_account){
        .asked = asked,
        .large_page =
            params->config->page_sizes == XSEG_CONFIG_PAGES_SMALL
                ? XSEG_SIZE_SMALL_SEGMENT
                : xseg_round_up(params->config->large_segment_bytes, XSEG_SIZE_SMALL_SEGMENT),
    };
    xseg_device_walk(device, count_part, account);
    account->missing = missing(asked, params);
    account->taken = xseg_device_physical(device);
    account->reusable = xseg_page_cache_bytes(&device->page_cache);
    account->unknown = xseg_unreleased_bytes(&device->unreleased);
    XSEG_ASSERT(account->taken == reserved + account->reusable + account->unknown);
    account->moving =
        reserved -
        xseg_min(reserved, account->live + account->pending + account->cached + account->partial +
                               account->held + account->pinned + account->exported);
    if (xseg_device_memory(device, &account->free, &account->total) != XSEG_OK) {
        account->total = device->context.total_bytes;
        account->free = account->total - xseg_min(account->total, account->taken);
    }
    XSEG_ASSERT(account->free <= account->total);
    account->others = account->total - xseg_min(account->total, account->free + account->taken);
}

/* Add one part of the account, unless it is 0. */
static void add_part(struct xseg_strbuf *text, const char **before, uint64_t bytes,
                     const char *what)
{
    if (bytes == 0)
        return;
    xseg_strbuf_printf(text, "%s", *before);
    xseg_strbuf_add_mib(text, bytes);
    xseg_strbuf_printf(text, " %s", what);
    *before = ", ";
}

void xseg_oom_account_add(struct xseg_strbuf *text, const struct xseg_oom_account *account)
{
    const struct xseg_device *device = account->asked->device;
    const char *before = ", ", *part = ": ", *more = "; ";

    xseg_strbuf_printf(text, "; ");
    xseg_strbuf_add_mib(text, account->missing);
    xseg_strbuf_printf(text, " needed from the %s, ",
                       xseg_pool_has_own_memory(account->asked->pool) ? "memory functions"
                                                                      : "driver");
    xseg_strbuf_add_mib(text, account->free);
    xseg_strbuf_printf(text, " of ");
    xseg_strbuf_add_mib(text, account->total);
    xseg_strbuf_printf(text, " free");
    add_part(text, &before, account->others, "used by others");
    xseg_strbuf_printf(text, ", ");
    xseg_strbuf_add_mib(text, account->taken);
    xseg_strbuf_printf(text, " used by this allocator");
    add_part(text, &part, account->live, "allocated");
    add_part(text, &part, account->pending, "pending free");
    add_part(text, &part, account->cached, "cached");
    add_part(text, &part, account->partial, "fragmented");
    add_part(text, &part, account->held, "cached by private pools");
    add_part(text, &part, account->pinned, "cached and pinned");
    add_part(text, &part, account->exported, "cached and exported");
    add_part(text, &part, account->moving, "claimed by other threads");
    add_part(text, &part, account->reusable, "in the page cache");
    add_part(text, &part, account->unknown, "unreleased");
    add_part(text, &more, account->longest, "in the largest cached block on this stream");
    add_part(text, &more, device->promised, "reserved by quotas of ranges");
}
