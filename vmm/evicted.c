/* SPDX-License-Identifier: MIT */
#include "vmm/evicted.h"

#include "src/base/align.h"
#include "vmm/segment_internal.h"

/* --- Runs of pages. --- */

/* A condition that selects pages, mostly by their state. */
typedef bool page_predicate(const struct xseg_segment *segment, uint32_t page);

static bool is_mapped(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_is_mapped(segment, page);
}

/* Whether a resume has mapped a page and not finished. */
static bool is_restoring(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_EVICTED_MAPPED ||
           segment->state[page] == XSEG_PAGE_FRESH_MAPPED;
}

static bool is_evicted(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_is_evicted(segment, page);
}

/* Whether a page is visited at this granule; an aliased page is visited at one of its mappings. */
static bool is_visited(const struct xseg_segment *segment, uint32_t page)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, page);

    return record == NULL || record->visit_address == xseg_segment_address(segment, page);
}

static bool is_visited_evicted(const struct xseg_segment *segment, uint32_t page)
{
    return is_evicted(segment, page) && is_visited(segment, page);
}

static bool is_visited_mapped(const struct xseg_segment *segment, uint32_t page)
{
    return is_mapped(segment, page) && is_visited(segment, page);
}

/* The granule after a page, or after an unmapped granule. */
static uint32_t next_page(const struct xseg_segment *segment, uint32_t at)
{
    return at + (segment->length[at] == 0 ? 1 : segment->length[at]);
}

/* Find the next run of selected pages from *first on.  Returns the number of its granules, 0 if
 * there is none. */
static uint32_t find_run(const struct xseg_segment *segment, page_predicate *is_selected,
                         uint32_t *first)
{
    uint32_t at = *first;

    while (at < segment->granules && !is_selected(segment, at))
        at = next_page(segment, at);
    *first = at;
    while (at < segment->granules && is_selected(segment, at))
        at = next_page(segment, at);
    return at - *first;
}

/* Whether a granule is mapped or evicted, and its page is visited there. */
static bool is_present(const struct xseg_segment *segment, uint32_t page)
{
    return is_visited_mapped(segment, page) || is_visited_evicted(segment, page);
}

uint32_t xseg_evicted_next_run(const struct xseg_segment *segment, uint32_t *first, bool *evicted)
{
    uint32_t at = *first;

    if (find_run(segment, is_present, &at) == 0)
        return 0;
    *evicted = is_evicted(segment, at);
    *first = at;
    return find_run(segment, *evicted ? is_visited_evicted : is_visited_mapped, first);
}

static void set_state(struct xseg_segment *segment, uint32_t page, enum xseg_page_state state)
{
    xseg_segment_set_state(segment, page, state);
}

void xseg_evicted_select_aliases(struct xseg_segment *segment)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++)
        if (xseg_alias_record(segment, at) != NULL && is_mapped(segment, at))
            segment->alias_record[at]->visit_address = xseg_segment_address(segment, at);
}

/* --- Unmapping a run. --- */

/* Set the state of a page after an unmap.  is_known: the page is unmapped; false: the page may be
 * mapped */
typedef void set_unmapped_state(struct xseg_segment *segment, uint32_t page, bool is_known);

/* Unmap a run in one call if the driver batches, else page by page.  A failure does not stop the
 * loop.  Returns the first error. */
static xseg_status unmap_page_run(struct xseg_segment *segment, uint32_t first, uint32_t count,
                                  set_unmapped_state *set_unmapped)
{
    struct xseg_context *context = segment->context;
    xseg_status result = XSEG_OK;
    bool is_batched = false;

    if (segment->length[first] < count && context->batches_unmap)
        is_batched = xseg_driver_unmap(context, xseg_segment_address(segment, first),
                                       count * segment->granule_bytes) == XSEG_OK;
    for (uint32_t page = first; page < first + count; page += segment->length[page]) {
        bool is_known = true;
        const xseg_status status =
            is_batched ? XSEG_OK : xseg_segment_unmap_page(segment, page, &is_known);

        if (status == XSEG_OK || !is_known)
            set_unmapped(segment, page, is_known);
        result = result == XSEG_OK ? status : result;
    }
    xseg_segment_record_change(segment, first, count, ++segment->page_cache->generation);
    return result;
}

/* --- Pause. --- */

/* A page that may be mapped is set to EVICTED_MAPPED; query_restoring_pages() will query the
 * driver. */
static void set_evicted_state(struct xseg_segment *segment, uint32_t page, bool is_known)
{
    atomic_fetch_sub_explicit(&segment->mapped, xseg_segment_page_bytes(segment, page),
                              memory_order_relaxed);
    xseg_segment_count_unknown_page(segment, page, true);
    set_state(segment, page, is_known ? XSEG_PAGE_EVICTED : XSEG_PAGE_EVICTED_MAPPED);
}

xseg_status xseg_evicted_unmap(struct xseg_segment *segment)
{
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0, count;
         status == XSEG_OK && (count = find_run(segment, is_mapped, &at)) != 0; at += count)
        status = unmap_page_run(segment, at, count, set_evicted_state);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return status;
}

static void set_page_handle(struct xseg_segment *segment, uint32_t page, uint64_t handle)
{
    if (xseg_alias_record(segment, page) != NULL)
        xseg_alias_set_handle(segment, page, handle);
    else
        segment->handle[page] = handle;
}

/* Whether a granule uses the memory of a page, or may map it. */
static bool is_memory_in_use(const struct xseg_segment *segment, uint32_t page)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, page);

    return record != NULL &&
           (record->count.fresh != 0 || record->count.evicted != record->count.mappings);
}

/* Set a page to EVICTED without memory.  Memory of an aliased page is released with the last
 * granule that uses it. */
static void release_evicted_memory(struct xseg_segment *segment, uint32_t page)
{
    const uint64_t handle = xseg_alias_handle(segment, page);

    set_state(segment, page, XSEG_PAGE_EVICTED);
    if (handle == 0 || is_memory_in_use(segment, page))
        return;
    (void)xseg_segment_clear_exported(segment, page);
    xseg_segment_count_unknown_page(segment, page, false);
    set_page_handle(segment, page, 0);
    /* A page that the driver does not release becomes unreleased. */
    (void)xseg_page_cache_put(
        segment->page_cache,
        (struct xseg_page_kind){xseg_segment_page_bytes(segment, page), segment->properties, NULL},
        handle, segment->owner, false);
}

void xseg_evicted_release(struct xseg_segment *segment)
{
    for (uint32_t at = 0, count; (count = find_run(segment, is_evicted, &at)) != 0; at += count)
        for (uint32_t page = at; page < at + count; page += segment->length[page])
            if (segment->state[page] == XSEG_PAGE_EVICTED)
                release_evicted_memory(segment, page);
    XSEG_AUDIT(xseg_segment_audit, segment);
}

/* --- Resume. --- */

static bool lacks_memory(const struct xseg_segment *segment, uint32_t page)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, page);

    return segment->state[page] == XSEG_PAGE_EVICTED &&
           (xseg_alias_handle(segment, page) == 0 || (record != NULL && record->count.fresh != 0));
}

/* Whether a page lacks memory, and is visited at this granule. */
static bool is_visited_unbacked(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_EVICTED && xseg_alias_handle(segment, page) == 0 &&
           is_visited(segment, page);
}

static xseg_status create_evicted_memory(struct xseg_segment *segment, uint32_t page)
{
    const uint64_t bytes = xseg_segment_page_bytes(segment, page);
    /* The filter excludes pages of other pools, whose contents could be revealed. */
    const struct xseg_page_filter filter = {segment->owner, segment->properties, NULL};
    struct xseg_page idle = {.handle = 0};
    xseg_status status = XSEG_OK;

    /* The memory was created at another granule that maps the page. */
    if (xseg_alias_handle(segment, page) != 0) {
        set_state(segment, page, XSEG_PAGE_FRESH);
        return XSEG_OK;
    }
    if (!xseg_page_cache_acquire(segment->page_cache, bytes, &filter, &idle))
        status = xseg_driver_create(segment->context, bytes, segment->properties, &idle.handle);
    if (status != XSEG_OK)
        return status;
    set_page_handle(segment, page, idle.handle);
    set_state(segment, page, XSEG_PAGE_FRESH);
    xseg_segment_count_unknown_page(segment, page, true);
    return XSEG_OK;
}

xseg_status xseg_evicted_create(struct xseg_segment *segment)
{
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0, count;
         status == XSEG_OK && (count = find_run(segment, lacks_memory, &at)) != 0; at += count)
        for (uint32_t page = at; status == XSEG_OK && page < at + count;
             page += segment->length[page])
            status = create_evicted_memory(segment, page);
    return status;
}

/* Query whether pages in a mapped state are mapped: an earlier attempt may have failed without a
 * complete roll-back. */
static xseg_status query_restoring_pages(struct xseg_segment *segment)
{
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0, count;
         status == XSEG_OK && (count = find_run(segment, is_restoring, &at)) != 0; at += count)
        for (uint32_t page = at; status == XSEG_OK && page < at + count;
             page += segment->length[page]) {
            bool mapped = true;

            status = xseg_driver_is_mapped(segment->context, xseg_segment_address(segment, page),
                                           &mapped);
            if (!mapped)
                set_state(segment, page,
                          segment->state[page] == XSEG_PAGE_FRESH_MAPPED ? XSEG_PAGE_FRESH
                                                                         : XSEG_PAGE_EVICTED);
        }
    return status;
}

/* Map a page unless it is mapped already. */
static xseg_status map_evicted_page(struct xseg_segment *segment, uint32_t page)
{
    xseg_status status;

    if (is_restoring(segment, page))
        return XSEG_OK;
    status =
        xseg_driver_map(segment->context, xseg_segment_address(segment, page),
                        xseg_segment_page_bytes(segment, page), xseg_alias_handle(segment, page));
    if (status == XSEG_OK)
        set_state(segment, page,
                  segment->state[page] == XSEG_PAGE_FRESH ? XSEG_PAGE_FRESH_MAPPED
                                                          : XSEG_PAGE_EVICTED_MAPPED);
    return status;
}

static bool has_memory(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_is_evicted(segment, page) && xseg_alias_handle(segment, page) != 0;
}

xseg_status xseg_evicted_map(struct xseg_segment *segment)
{
    xseg_status status = query_restoring_pages(segment);

    for (uint32_t at = 0, count;
         status == XSEG_OK && (count = find_run(segment, has_memory, &at)) != 0; at += count) {
        for (uint32_t page = at; status == XSEG_OK && page < at + count;
             page += segment->length[page])
            status = map_evicted_page(segment, page);
        if (status == XSEG_OK)
            status = xseg_segment_set_access(segment, at, count);
    }
    return status;
}

void xseg_evicted_finish(struct xseg_segment *segment)
{
    const uint64_t generation = ++segment->page_cache->generation;

    for (uint32_t at = 0, count; (count = find_run(segment, is_restoring, &at)) != 0; at += count) {
        for (uint32_t page = at; page < at + count; page += segment->length[page]) {
            xseg_segment_count_unknown_page(segment, page, false);
            atomic_fetch_add_explicit(&segment->mapped, xseg_segment_page_bytes(segment, page),
                                      memory_order_relaxed);
            set_state(segment, page, XSEG_PAGE_MAPPED);
        }
        xseg_segment_record_change(segment, at, count, generation);
    }
    XSEG_AUDIT(xseg_segment_audit, segment);
}

/* Set the state of a page that a roll-back has unmapped: release new memory, keep previous memory.
 * A page that may still be mapped keeps its state. */
static void set_rolled_back_state(struct xseg_segment *segment, uint32_t page, bool is_known)
{
    if (!is_known)
        return;
    if (segment->state[page] == XSEG_PAGE_EVICTED_MAPPED)
        set_state(segment, page, XSEG_PAGE_EVICTED);
    else
        release_evicted_memory(segment, page);
}

static bool is_fresh(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_FRESH;
}

xseg_status xseg_evicted_roll_back(struct xseg_segment *segment)
{
    xseg_status result = XSEG_OK;

    for (uint32_t at = 0, count; (count = find_run(segment, is_restoring, &at)) != 0; at += count) {
        const xseg_status status = unmap_page_run(segment, at, count, set_rolled_back_state);

        result = result == XSEG_OK ? status : result;
    }
    for (uint32_t at = 0, count; (count = find_run(segment, is_fresh, &at)) != 0; at += count)
        for (uint32_t page = at; page < at + count; page += segment->length[page])
            release_evicted_memory(segment, page);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return result;
}

/* --- Sums. --- */

static uint64_t sum_bytes(const struct xseg_segment *segment, page_predicate *is_selected)
{
    uint64_t granules = 0;

    for (uint32_t at = 0, count; (count = find_run(segment, is_selected, &at)) != 0; at += count)
        granules += count;
    return granules * segment->granule_bytes;
}

/* Whether a page is visited at this granule, and no granule is in state MAPPED. */
static bool is_fully_evicted(const struct xseg_segment *segment, uint32_t page)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, page);

    return is_visited_evicted(segment, page) && (record == NULL || record->count.mapped == 0);
}

uint64_t xseg_evicted_bytes(const struct xseg_segment *segment)
{
    return sum_bytes(segment, is_fully_evicted);
}

uint64_t xseg_evicted_unbacked_bytes(const struct xseg_segment *segment)
{
    return sum_bytes(segment, is_visited_unbacked);
}
