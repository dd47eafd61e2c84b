/* SPDX-License-Identifier: MIT */
#include "src/core/grow/remap.h"

#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/reclaim.h"

/* One attempt to steal. */
struct theft {
    struct xseg_device *device;
    const struct xseg_remap_plan *plan;
};

static uint64_t granularity(const struct theft *theft)
{
    return theft->plan->granule_bytes;
}

static struct xseg_page_kind kind_of(const struct theft *theft, uint64_t page)
{
    return (struct xseg_page_kind){page, theft->plan->filter.properties, NULL};
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
    return xseg_min(
        xseg_page_cache_usable_bytes(&theft->device->page_cache, page, &theft->plan->filter),
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
            xseg_page_cache_usable_bytes(&device->page_cache, page, &theft->plan->filter) >=
                theft->plan->full_pages * page)
            return XSEG_OK;
        if (xseg_device_physical(device) + device->promised + page > limit)
            return xseg_oom_cause_fail(theft->plan->arena->pool,
                                       limit < device->context.total_bytes
                                           ? xseg_oom_cause_of_limit(device, limit)
                                           : XSEG_OOM_CAUSE_DEVICE,
                                       page);
        device->refuser = XSEG_OOM_CAUSE_DRIVER;
        const xseg_status status =
            xseg_page_cache_create(&device->page_cache, kind_of(theft, page));
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

/* --- Surplus pages. --- */

/* The kind of an idle page that the request cannot use; a kind of 0 bytes if there is none. */
static struct xseg_page_kind find_surplus(const struct theft *theft)
{
    const struct xseg_page_cache *pages = &theft->device->page_cache;

    for (size_t i = 0; i < pages->kinds + pages->prepared_kinds; i++) {
        const struct xseg_page_cache_stack *stack = xseg_page_cache_stack(pages, i);
        const struct xseg_page_kind kind = stack->kind;
        const bool fits =
            kind.properties == theft->plan->filter.properties &&
            (kind.prepared_for == NULL || kind.prepared_for == theft->plan->filter.prepared_for);

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
            kind.properties != theft->plan->filter.properties);
}

/* Take a page over that was prepared for another taker, if it is of use here as it is. */
static bool take_over(struct theft *theft, struct xseg_page_kind kind)
{
    const struct xseg_page_filter *filter = &theft->plan->filter;

    return kind.prepared_for != NULL && kind.prepared_for != filter->prepared_for &&
           kind.properties == filter->properties &&
           useful(theft, kind.bytes) < room_for(theft, kind.bytes) &&
           xseg_page_cache_unprepare(&theft->device->page_cache, kind);
}

/* Make the missing pages; while memory is short, give surplus pages back to the driver, one by one. */
static xseg_status change_pages(struct theft *theft)
{
    struct xseg_page_cache *pages = &theft->device->page_cache;
    xseg_status status = make_all(theft);
    struct xseg_page_kind kind;

    while (is_shortage(status) && (kind = find_surplus(theft)).bytes != 0 &&
           (take_over(theft, kind) || xseg_page_cache_release_one(pages, kind)))
        status = makes_full(theft, kind) ? make_all(theft) : make_pages(theft, granularity(theft));
    return status;
}

xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan)
{
    struct theft theft = {.device = device, .plan = plan};
    struct xseg_reclaim_result result;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && plan->arena->device == device);
    XSEG_ASSERT(plan->page_bytes > 0 && plan->bytes % plan->granule_bytes == 0);
    const xseg_status status = make_all(&theft);
    if (!is_shortage(status) || xseg_pending_captures(device->pending))
        return status;
    XSEG_ASSERT(covered(&theft) <= xseg_page_cache_bytes(&device->page_cache));
    /* Surplus idle pages are released to the driver, which makes small pages of their memory. */
    const uint64_t needed = missing(&theft);
    const uint64_t surplus = xseg_page_cache_bytes(&device->page_cache) - covered(&theft);
    const struct xseg_reclaim_policy policy = {
        .scope = XSEG_RECLAIM_PAGES,
        .arena = plan->arena,
        .bytes = needed - xseg_min(needed, surplus),
        .min_block = granularity(&theft),
        .preferred_block = plan->full_pages > 0 ? plan->page_bytes : 0,
        .all_or_nothing = true,
        .work = plan->wait ? XSEG_RECLAIM_WAIT : XSEG_RECLAIM_QUERY,
        .keep_pages = true,
        .cause = XSEG_HISTORY_REMAP,
    };
    const xseg_status reclaimed = xseg_reclaim(device, &policy, &result);
    if (result.is_complete)
        return change_pages(&theft);
    return reclaimed == XSEG_ERR_DEVICE_LOST ? reclaimed : status;
}
