/* SPDX-License-Identifier: MIT */
#include "src/core/grow/steal.h"

#include "src/core/grow/refusal.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"

/* The state of one attempt to steal. */
struct theft {
    struct xseg_device *device;
    const struct xseg_steal_plan *plan;
    uint64_t missing;           /* bytes that idle pages do not cover yet */
    uint64_t least;             /* bytes of the smallest blocks to look at */
    uint64_t claimed_bytes;     /* bytes of `claimed` */
    struct xseg_block *claimed; /* chained through `right` */
    xseg_status status;
};

static uint64_t granularity(const struct theft *theft)
{
    return theft->plan->granule_bytes;
}

static struct xseg_page_kind kind_of(const struct theft *theft, uint64_t page)
{
    return (struct xseg_page_kind){page, theft->plan->taker.properties, NULL};
}

/* Bytes of pages of one size that the request has room for. */
static uint64_t room_for(const struct theft *theft, uint64_t page)
{
    if (page == granularity(theft))
        return UINT64_MAX;
    return page == theft->plan->page_bytes ? theft->plan->full_pages * page : 0;
}

/* Bytes of the idle pages of one size that the request can use. */
static uint64_t useful(const struct theft *theft, uint64_t page)
{
    return xseg_min(xseg_pages_idle(&theft->device->pages, page, &theft->plan->taker),
                    room_for(theft, page));
}

/* Bytes that idle pages cover: small pages, and full pages that the request has room for. */
static uint64_t covered(const struct theft *theft)
{
    const uint64_t page = theft->plan->page_bytes;

    return (page == granularity(theft) ? 0 : useful(theft, page)) +
           useful(theft, granularity(theft));
}

static uint64_t missing(const struct theft *theft)
{
    const uint64_t have = covered(theft);

    return have < theft->plan->bytes ? theft->plan->bytes - have : 0;
}

/* Bytes that physical memory may reach. */
static uint64_t limit_of(const struct theft *theft)
{
    return xseg_min(xseg_device_allowance(theft->device), theft->device->context.total_bytes);
}

/* Make pages of one size while at least a page is missing, as far as the limit and the driver allow. */
static xseg_status make_pages(struct theft *theft, uint64_t page)
{
    struct xseg_device *device = theft->device;
    const uint64_t limit = limit_of(theft);

    XSEG_ASSERT(page > 0 && page % granularity(theft) == 0);
    while (missing(theft) >= page) {
        if (page != granularity(theft) &&
            xseg_pages_idle(&device->pages, page, &theft->plan->taker) >=
                theft->plan->full_pages * page)
            return XSEG_OK;
        if (xseg_device_physical(device) + device->promised + page > limit)
            return xseg_refusal_fail(theft->plan->arena->pool,
                                     limit < device->context.total_bytes
                                         ? xseg_refusal_of_limit(device, limit)
                                         : XSEG_REFUSER_DEVICE,
                                     page);
        device->refuser = XSEG_REFUSER_DRIVER;
        const xseg_status status = xseg_pages_make(&device->pages, kind_of(theft, page));
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

static bool is_shortage(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT;
}

/* Make full pages first, since ten small ones cost ten times as much; small pages for the rest. */
static xseg_status make_all(struct theft *theft)
{
    const xseg_status status = make_pages(theft, theft->plan->page_bytes);

    return status == XSEG_OK || is_shortage(status) ? make_pages(theft, granularity(theft))
                                                    : status;
}

/* --- Claiming. --- */

/* Claim idle memory of an arena, up to the missing bytes.  Each byte counts: a page that does not fit goes back to the
 * driver, which makes small pages of its memory. */
static void claim_arena(void *self, struct xseg_arena *arena)
{
    struct theft *theft = self;
    struct xseg_block *claimed = NULL, *next;
    uint64_t bytes = 0;
    bool idle = false;

    if (theft->claimed_bytes >= theft->missing || !xseg_pool_may_shrink(arena->pool) ||
        xseg_pool_has_own_memory(arena->pool))
        return;
    xseg_arena_lock(arena);
    const struct xseg_trim_wish wish = {theft->least, theft->missing - theft->claimed_bytes, NULL,
                                        NULL};
    claimed = xseg_trim_claim(arena, &wish, &bytes);
    xseg_arena_unlock(arena);
    if (claimed == NULL)
        return;
    const xseg_status status =
        xseg_trim_is_idle(theft->device, xseg_arena_stream(arena), theft->plan->wait, &idle);
    if (status != XSEG_OK && theft->status == XSEG_OK)
        theft->status = status;
    if (!idle) {
        xseg_trim_put_back(arena, claimed);
        return;
    }
    XSEG_ASSERT(claimed->state == XSEG_BLOCK_BUSY && bytes > 0);
    theft->claimed_bytes += bytes;
    for (; claimed != NULL; claimed = next) {
        next = claimed->right;
        claimed->right = theft->claimed;
        theft->claimed = claimed;
    }
}

static void put_all_back(struct theft *theft)
{
    struct xseg_block *next;

    for (struct xseg_block *block = theft->claimed; block != NULL; block = next) {
        XSEG_ASSERT(block->state == XSEG_BLOCK_BUSY);
        next = block->right;
        block->right = NULL;
        xseg_trim_put_back(block->extent->arena, block);
    }
}

/* Claim in the arena that asks, then in all arenas of the device. */
static void claim_everywhere(struct theft *theft)
{
    claim_arena(theft, theft->plan->arena);
    xseg_device_visit_arenas(theft->device, claim_arena, theft);
}

/* --- Taking. --- */

/* The kind of an idle page that the request cannot use; a kind of 0 bytes if there is none. */
static struct xseg_page_kind find_surplus(const struct theft *theft)
{
    const struct xseg_pages *pages = &theft->device->pages;

    for (size_t i = 0; i < pages->kinds + pages->prepared_kinds; i++) {
        const struct xseg_page_stack *stack = xseg_pages_stack(pages, i);
        const struct xseg_page_kind kind = stack->kind;
        const bool fits =
            kind.properties == theft->plan->taker.properties &&
            (kind.prepared_for == NULL || kind.prepared_for == theft->plan->taker.prepared_for);

        if (stack->count * kind.bytes > (fits ? useful(theft, kind.bytes) : 0))
            return kind;
    }
    return (struct xseg_page_kind){0, 0, NULL};
}

/* Whether full pages may fit in the memory of a surplus page that goes back to the driver. */
static bool makes_full(const struct theft *theft, struct xseg_page_kind kind)
{
    return kind.bytes > theft->plan->page_bytes ||
           (kind.bytes == theft->plan->page_bytes &&
            kind.properties != theft->plan->taker.properties);
}

/* Take a page over that was prepared for another taker, if it is of use here as it is. */
static bool take_over(struct theft *theft, struct xseg_page_kind kind)
{
    const struct xseg_page_taker *taker = &theft->plan->taker;

    return kind.prepared_for != NULL && kind.prepared_for != taker->prepared_for &&
           kind.properties == taker->properties &&
           useful(theft, kind.bytes) < room_for(theft, kind.bytes) &&
           xseg_pages_unprepare(&theft->device->pages, kind);
}

/* Make the missing pages; while memory is short, give surplus pages back to the driver, one by one. */
static xseg_status change_pages(struct theft *theft)
{
    struct xseg_pages *pages = &theft->device->pages;
    xseg_status status = make_all(theft);
    struct xseg_page_kind kind;

    while (is_shortage(status) && (kind = find_surplus(theft)).bytes != 0 &&
           (take_over(theft, kind) || xseg_pages_release(pages, kind)))
        status = makes_full(theft, kind) ? make_all(theft) : make_pages(theft, granularity(theft));
    return status;
}

static xseg_status take_all(struct theft *theft)
{
    struct xseg_block *next;

    for (struct xseg_block *block = theft->claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        (void)xseg_trim_give(block, true, XSEG_HISTORY_STEAL);
    }
    return change_pages(theft);
}

xseg_status xseg_steal(struct xseg_device *device, const struct xseg_steal_plan *plan)
{
    struct theft theft = {.device = device, .plan = plan};
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && plan->arena->device == device);
    XSEG_ASSERT(plan->page_bytes > 0 && plan->bytes % plan->granule_bytes == 0);
    const xseg_status status = make_all(&theft);

    if (!is_shortage(status) || xseg_pending_captures(device->pending))
        return status;
    theft.missing = missing(&theft);
    XSEG_ASSERT(covered(&theft) <= xseg_pages_bytes(&device->pages));
    /* Surplus idle pages will go back to the driver, which makes small pages of their memory. */
    theft.missing -= xseg_min(theft.missing, xseg_pages_bytes(&device->pages) - covered(&theft));
    /* Claim blocks with full pages where there is room for them, then blocks of any size. */
    theft.least = plan->page_bytes;
    if (plan->full_pages > 0)
        claim_everywhere(&theft);
    theft.least = granularity(&theft);
    claim_everywhere(&theft);
    if (theft.claimed_bytes >= theft.missing && xseg_notice_leave(device, theft.claimed))
        return take_all(&theft);
    put_all_back(&theft);
    return theft.status == XSEG_ERR_DEVICE_LOST ? theft.status : status;
}
