/* SPDX-License-Identifier: MIT */
#include "src/core/grow/remap.h"

#include "src/core/grow/fallback_chain.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/reclaim.h"

static struct xseg_page_kind page_kind_of(const struct xseg_remap_plan *plan, uint64_t page)
{
    return (struct xseg_page_kind){page, plan->filter.properties, NULL};
}

/* Get the maximum number of bytes of pages of one size that can be mapped in the candidate range. */
static uint64_t max_usable_bytes(const struct xseg_remap_plan *plan, uint64_t page)
{
    if (page == plan->granule_bytes)
        return UINT64_MAX;
    return page == plan->page_bytes ? plan->full_pages * page : 0;
}

/* Get the bytes of idle pages of one size that the request can use. */
static uint64_t usable_bytes(const struct xseg_remap_plan *plan, uint64_t page)
{
    return xseg_min(
        xseg_page_cache_usable_bytes(&plan->arena->device->page_cache, page, &plan->filter),
        max_usable_bytes(plan, page));
}

/* Get the bytes that idle pages cover: small pages, and full pages up to the number of full-page slots. */
static uint64_t covered_bytes(const struct xseg_remap_plan *plan)
{
    const uint64_t page = plan->page_bytes;

    return (page == plan->granule_bytes ? 0 : usable_bytes(plan, page)) +
           usable_bytes(plan, plan->granule_bytes);
}

static uint64_t missing_bytes(const struct xseg_remap_plan *plan)
{
    const uint64_t covered = covered_bytes(plan);

    return covered < plan->bytes ? plan->bytes - covered : 0;
}

/* Deny the creation of a page.  limit: the result of xseg_device_allowance() */
static xseg_status deny_page(const struct xseg_remap_plan *plan, uint64_t limit, uint64_t page)
{
    const struct xseg_device *device = plan->arena->device;
    enum xseg_oom_cause cause = XSEG_OOM_CAUSE_DEVICE;

    if (device->free_limit < xseg_min(limit, device->context.total_bytes))
        cause = XSEG_OOM_CAUSE_FREE_MIN;
    else if (limit < device->context.total_bytes)
        cause = xseg_oom_cause_of_limit(device, limit);
    return xseg_oom_cause_fail(plan->arena->pool, cause, page);
}

/* Create pages of one size while at least one page is missing and limits and the driver allow it.  device->free_limit, which
 * keeps device_free_min_mb free, is from the last memory query. */
static xseg_status create_pages_of_size(const struct xseg_remap_plan *plan, uint64_t page)
{
    struct xseg_device *device = plan->arena->device;
    const uint64_t limit = xseg_device_allowance(device);
    const uint64_t max = xseg_min(xseg_min(limit, device->free_limit), device->context.total_bytes);

    XSEG_ASSERT(page > 0 && page % plan->granule_bytes == 0);
    while (missing_bytes(plan) >= page) {
        if (page != plan->granule_bytes &&
            xseg_page_cache_usable_bytes(&device->page_cache, page, &plan->filter) >=
                plan->full_pages * page)
            return XSEG_OK;
        if (xseg_device_physical(device) + device->unused_quota + page > max)
            return deny_page(plan, limit, page);
        device->oom_cause = XSEG_OOM_CAUSE_DRIVER;
        const xseg_status status =
            xseg_page_cache_create(&device->page_cache, page_kind_of(plan, page));
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

static bool is_creation_denied(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT;
}

/* Create full pages first, because ten small pages need ten times as many driver calls; then small pages for the
 * remaining bytes. */
static xseg_status create_full_and_small_pages(const struct xseg_remap_plan *plan)
{
    const xseg_status status = create_pages_of_size(plan, plan->page_bytes);

    return status == XSEG_OK || is_creation_denied(status)
               ? create_pages_of_size(plan, plan->granule_bytes)
               : status;
}

/* Query the memory of the device if pages are missing, then create them. */
static xseg_status create_pages(const struct xseg_remap_plan *plan)
{
    const xseg_status status =
        missing_bytes(plan) == 0 ? XSEG_OK : xseg_device_query_free_limit(plan->arena->device);

    return status == XSEG_OK ? create_full_and_small_pages(plan) : status;
}

/* --- Surplus pages. --- */

/* Find the kind of an idle page that the request cannot use.  Returns a kind of 0 bytes if there is none. */
static struct xseg_page_kind find_surplus_kind(const struct xseg_remap_plan *plan)
{
    const struct xseg_page_cache *pages = &plan->arena->device->page_cache;

    for (size_t i = 0; i < pages->kinds + pages->prepared_kinds; i++) {
        const struct xseg_page_cache_stack *stack = xseg_page_cache_stack(pages, i);
        const struct xseg_page_kind kind = stack->kind;
        const bool fits =
            kind.properties == plan->filter.properties &&
            (kind.prepared_for == NULL || kind.prepared_for == plan->filter.prepared_for);

        if (stack->count * kind.bytes > (fits ? usable_bytes(plan, kind.bytes) : 0))
            return kind;
    }
    return (struct xseg_page_kind){0, 0, NULL};
}

/* Whether the memory of a surplus page may suffice for full pages. */
static bool fits_full_pages(const struct xseg_remap_plan *plan, struct xseg_page_kind kind)
{
    return kind.bytes > plan->page_bytes ||
           (kind.bytes == plan->page_bytes && kind.properties != plan->filter.properties);
}

/* Reassign a page that was prepared for another owner, if its size and properties suit the request. */
static bool reassign_prepared_page(const struct xseg_remap_plan *plan, struct xseg_page_kind kind)
{
    const struct xseg_page_filter *filter = &plan->filter;

    return kind.prepared_for != NULL && kind.prepared_for != filter->prepared_for &&
           kind.properties == filter->properties &&
           usable_bytes(plan, kind.bytes) < max_usable_bytes(plan, kind.bytes) &&
           xseg_page_cache_unprepare(&plan->arena->device->page_cache, kind);
}

/* Create the missing pages; while the creation is denied, release surplus pages one by one. */
static xseg_status convert_surplus_pages(const struct xseg_remap_plan *plan)
{
    struct xseg_page_cache *pages = &plan->arena->device->page_cache;
    xseg_status status = create_pages(plan);
    struct xseg_page_kind kind;

    while (is_creation_denied(status) && (kind = find_surplus_kind(plan)).bytes != 0 &&
           (reassign_prepared_page(plan, kind) || xseg_page_cache_release_one(pages, kind)))
        status = fits_full_pages(plan, kind) ? create_full_and_small_pages(plan)
                                             : create_pages_of_size(plan, plan->granule_bytes);
    return status;
}

xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan)
{
    struct xseg_reclaim_result result;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && plan->arena->device == device);
    XSEG_ASSERT(plan->page_bytes > 0 && plan->bytes % plan->granule_bytes == 0);
    const xseg_status status = create_pages(plan);
    if (!is_creation_denied(status) || xseg_pending_captures(device->pending))
        return status;
    XSEG_ASSERT(covered_bytes(plan) <= xseg_page_cache_bytes(&device->page_cache));
    /* Surplus idle pages are released to the driver, which creates small pages from their memory. */
    const uint64_t needed = missing_bytes(plan);
    const uint64_t surplus = xseg_page_cache_bytes(&device->page_cache) - covered_bytes(plan);
    const struct xseg_reclaim_policy policy = {
        .scope = XSEG_RECLAIM_PAGES,
        .arena = plan->arena,
        .bytes = needed - xseg_min(needed, surplus),
        .min_block = plan->granule_bytes,
        .preferred_block = plan->full_pages > 0 ? plan->page_bytes : 0,
        .all_or_nothing = true,
        .work = plan->wait ? XSEG_RECLAIM_WAIT : XSEG_RECLAIM_QUERY,
        .keep_pages = true,
        .cause = XSEG_HISTORY_REMAP,
    };
    const xseg_status reclaimed = xseg_reclaim(device, &policy, &result);
    if (result.is_complete)
        return convert_surplus_pages(plan);
    return reclaimed == XSEG_ERR_DEVICE_LOST ? reclaimed : status;
}
