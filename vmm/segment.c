/* SPDX-License-Identifier: MIT */
#include "vmm/segment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "vmm/segment_internal.h"

/* Alignment of every block, and therefore of every segment. */
#define ALIGNMENT 512u

static void init_segment(struct xseg_segment *segment, struct xseg_context *context,
                         struct xseg_page_cache *page_cache, uint64_t bytes)
{
    memset(segment, 0, sizeof(*segment));
    segment->context = context;
    segment->page_cache = page_cache;
    segment->bytes = bytes;
    segment->idle_since = &segment->classic_idle_since;
    segment->generation = &segment->id;
    atomic_init(&segment->id, ++page_cache->generation);
    atomic_init(&segment->mapped, 0);
}

static void lay_out_tables(struct xseg_segment *segment, void *memory, uint32_t granules)
{
    uint64_t *words = memory;
    uint32_t *lengths = (uint32_t *)(words + 3 * (size_t)granules);

    segment->granules = granules;
    segment->handle = words;
    segment->idle_since = words + granules;
    segment->generation = (atomic_uint_fast64_t *)(words + 2 * (size_t)granules);
    segment->length = lengths;
    segment->state = (uint8_t *)(lengths + granules);
}

static void free_granule_tables(struct xseg_segment *segment)
{
    xseg_segment_free_retains(segment);
    xseg_alias_free(segment);
    xseg_demand_zero_free(segment->handle, segment->granules * XSEG_SEGMENT_TABLES_BYTES);
    segment->idle_since = &segment->classic_idle_since;
    segment->generation = &segment->id;
    segment->handle = NULL;
    segment->length = NULL;
    segment->state = NULL;
}

/* Reserve the VA range of an initialized segment. */
static xseg_status reserve_range(struct xseg_segment *segment,
                                 const struct xseg_segment_reservation *reservation)
{
    struct xseg_context *context = segment->context;
    const uint64_t granule = xseg_max(reservation->granule_bytes, context->granularity);
    const uint32_t granules = (uint32_t)(segment->bytes / granule);
    xseg_status status;

    XSEG_ASSERT(granule % context->granularity == 0 && reservation->page_bytes % granule == 0);
    XSEG_ASSERT(segment->bytes % reservation->page_bytes == 0 &&
                segment->bytes / granule == granules);
    segment->page_bytes = reservation->page_bytes;
    segment->granule_bytes = granule;
    segment->reserved_bytes = segment->bytes + reservation->tail_bytes;
    void *memory = xseg_demand_zero_alloc(granules * XSEG_SEGMENT_TABLES_BYTES);
    if (memory == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of %" PRIu32 " granules",
                         granules);
    lay_out_tables(segment, memory, granules);
    status = xseg_driver_reserve(context, segment->reserved_bytes, reservation->alignment,
                                 &segment->base);
    if (status != XSEG_OK)
        goto free_tables;
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;

free_tables:
    free_granule_tables(segment);
    return status;
}

xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_page_cache *page_cache, uint64_t bytes,
                                 uint64_t page_bytes)
{
    const struct xseg_segment_reservation reservation = {
        .bytes = bytes,
        .page_bytes = page_bytes,
        .tail_bytes = xseg_round_up(bytes, XSEG_SEGMENT_ALIGNMENT) - bytes,
        .alignment = XSEG_SEGMENT_ALIGNMENT,
    };

    return xseg_segment_reserve_range(segment, context, page_cache, &reservation);
}

xseg_status xseg_segment_reserve_range(struct xseg_segment *segment, struct xseg_context *context,
                                       struct xseg_page_cache *page_cache,
                                       const struct xseg_segment_reservation *reservation)
{
    init_segment(segment, context, page_cache, reservation->bytes);
    return reserve_range(segment, reservation);
}

xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_page_cache *page_cache, uint64_t bytes)
{
    init_segment(segment, context, page_cache, bytes);
    const xseg_status status = xseg_driver_alloc(context, bytes, &segment->base);
    if (status == XSEG_OK)
        atomic_store_explicit(&segment->mapped, bytes, memory_order_relaxed);
    return status;
}

/* Pass a classic segment to the free callback of the user.  A capture on another device may forbid
 * the calls of the callback.  If the capture mode cannot be changed, the callback runs anyway, so
 * that the memory is not leaked. */
static void free_to_callback(const struct xseg_segment *segment)
{
    void *pointer = (void *)(uintptr_t)segment->base; /* NOLINT(performance-no-int-to-ptr) */
    int mode = 0;
    const bool is_relaxed = xseg_driver_relax_capture_mode(segment->context, &mode) == XSEG_OK;

    segment->memory.free(segment->memory.context, pointer, segment->bytes,
                         segment->context->ordinal, segment->stream);
    if (is_relaxed)
        xseg_driver_restore_capture_mode(segment->context, mode);
}

/* Call the allocation callback of the user, possibly during a capture. */
static xseg_status allocate_from_callback(struct xseg_context *context, uint64_t bytes,
                                          const struct xseg_pool_memory *memory, xseg_stream stream,
                                          void **out)
{
    int mode = 0;
    const xseg_status status = xseg_driver_relax_capture_mode(context, &mode);

    if (status != XSEG_OK)
        return status;
    *out = memory->alloc(memory->context, bytes, context->ordinal, stream);
    xseg_driver_restore_capture_mode(context, mode);
    return *out != NULL ? XSEG_OK
                        : xseg_fail(XSEG_ERR_NO_MEMORY,
                                    "memory function returned NULL, %" PRIu64 " bytes", bytes);
}

xseg_status xseg_segment_allocate_from_callback(struct xseg_segment *segment,
                                                struct xseg_context *context,
                                                struct xseg_page_cache *page_cache, uint64_t bytes,
                                                const struct xseg_pool_memory *memory,
                                                xseg_stream stream)
{
    void *pointer = NULL;
    const xseg_status status = allocate_from_callback(context, bytes, memory, stream, &pointer);

    init_segment(segment, context, page_cache, bytes);
    if (status != XSEG_OK)
        return status;
    segment->memory = *memory;
    segment->stream = stream;
    segment->base = (uintptr_t)pointer;
    atomic_store_explicit(&segment->mapped, bytes, memory_order_relaxed);
    if (segment->base % ALIGNMENT == 0)
        return XSEG_OK;
    free_to_callback(segment);
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "memory function returned an address that is not %u-byte aligned, %p",
                     ALIGNMENT, pointer);
}

/* --- Single pages. --- */

/* Release the memory of an unmapped page, or put it into the page cache. */
static void release_page_memory(struct xseg_segment *segment, uint32_t page, bool keep)
{
    const uint64_t bytes = xseg_segment_page_bytes(segment, page);
    bool was_exported = xseg_segment_clear_exported(segment, page);
    uint64_t handle = segment->handle[page];

    if (xseg_alias_record(segment, page) != NULL) {
        handle = xseg_alias_remove(segment, page, &was_exported);
    } else {
        xseg_segment_set_state(segment, page, XSEG_PAGE_UNMAPPED);
        segment->handle[page] = 0;
        segment->length[page] = 0;
    }
    if (handle != 0) /* a page that the driver does not release becomes unreleased */
        (void)xseg_page_cache_put(segment->page_cache,
                                  (struct xseg_page_kind){bytes, segment->properties, NULL}, handle,
                                  segment->owner, keep && !was_exported);
}

xseg_status xseg_segment_unmap_page(struct xseg_segment *segment, uint32_t page, bool *is_known)
{
    return xseg_unreleased_unmap(segment->context, xseg_segment_address(segment, page),
                                 xseg_segment_page_bytes(segment, page), is_known);
}

/* Remove an unmapped page, and update the byte counts. */
static void remove_unmapped_page(struct xseg_segment *segment, uint32_t page, bool keep)
{
    if (segment->state[page] == XSEG_PAGE_MAPPED)
        atomic_fetch_sub_explicit(&segment->mapped, xseg_segment_page_bytes(segment, page),
                                  memory_order_relaxed);
    else if (segment->handle[page] != 0)
        xseg_segment_count_unknown_page(segment, page, false);
    release_page_memory(segment, page, keep);
}

/* Set a page to state UNKNOWN: the page may be mapped, so it is not used until a map or a trim
 * determines its state. */
static void mark_page_unknown(struct xseg_segment *segment, uint32_t page)
{
    if (segment->state[page] == XSEG_PAGE_MAPPED) {
        atomic_fetch_sub_explicit(&segment->mapped, xseg_segment_page_bytes(segment, page),
                                  memory_order_relaxed);
        xseg_segment_count_unknown_page(segment, page, true);
    }
    xseg_segment_set_state(segment, page, XSEG_PAGE_UNKNOWN);
}

void xseg_segment_mark_unknown(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page += segment->length[page])
        mark_page_unknown(segment, page);
    XSEG_AUDIT(xseg_segment_audit, segment);
}

/* --- Unmap. --- */

static bool are_pages_mapped(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; at < first + count; at += segment->length[at])
        if (!xseg_segment_is_mapped(segment, at))
            return false;
    return true;
}

/* Whether a page was evicted and is not mapped, as in a pool that is destroyed while paused. */
static bool has_no_mapping(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_EVICTED || segment->state[page] == XSEG_PAGE_FRESH;
}

xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               bool keep, uint32_t *processed)
{
    struct xseg_context *context = segment->context;
    xseg_status result = XSEG_OK;
    bool is_batched = false;

    XSEG_ASSERT(count > 0 && first + count <= segment->granules && segment->length[first] != 0);
    XSEG_ASSERT(!xseg_segment_is_retained(segment, first, count));
    if (segment->length[first] < count && context->batches_unmap &&
        are_pages_mapped(segment, first, count))
        is_batched = xseg_driver_unmap(context, xseg_segment_address(segment, first),
                                       count * segment->granule_bytes) == XSEG_OK;
    for (*processed = 0; *processed < count;) {
        const uint32_t page = first + *processed, length = segment->length[page];
        xseg_status status = XSEG_OK;
        bool is_known = true;

        XSEG_ASSERT(length != 0 && *processed + length <= count);
        if (!is_batched && !has_no_mapping(segment, page))
            status = xseg_segment_unmap_page(segment, page, &is_known);
        result = result == XSEG_OK ? status : result;
        if (status != XSEG_OK && is_known)
            break;
        if (is_known)
            remove_unmapped_page(segment, page, keep);
        else
            mark_page_unknown(segment, page);
        *processed += length;
    }
    xseg_segment_record_change(segment, first, *processed, ++segment->page_cache->generation);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return result;
}

uint32_t xseg_segment_pages_inside(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                   uint32_t *first)
{
    const uint64_t granule = segment->granule_bytes;
    uint32_t from = (uint32_t)(xseg_round_up(begin, granule) / granule);
    uint32_t to = (uint32_t)(end / granule);

    /* A page that starts before `begin` or ends after `end` is not whole. */
    while (from < to && segment->length[from] == 0)
        from++;
    while (from < to && to < segment->granules && segment->length[to] == 0 &&
           segment->state[to] != XSEG_PAGE_UNMAPPED)
        to--;
    *first = from;
    return from < to ? to - from : 0;
}

uint32_t xseg_segment_page_end(const struct xseg_segment *segment, uint32_t granule)
{
    while (granule < segment->granules && segment->length[granule] == 0 &&
           segment->state[granule] != XSEG_PAGE_UNMAPPED)
        granule++;
    return granule;
}

/* --- Access rights. --- */

xseg_status xseg_segment_set_access(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    struct xseg_context *context = segment->context;
    const bool is_single_page = segment->length[first] == count;
    xseg_status status = XSEG_ERR_DRIVER;

    if (is_single_page || context->batches_access)
        status = xseg_driver_set_access(context, xseg_segment_address(segment, first),
                                        count * segment->granule_bytes);
    if (status == XSEG_OK || is_single_page)
        return status;
    status = XSEG_OK;
    for (uint32_t page = first; page < first + count && status == XSEG_OK;
         page += segment->length[page])
        status = xseg_driver_set_access(context, xseg_segment_address(segment, page),
                                        xseg_segment_page_bytes(segment, page));
    return status;
}

/* Change the access of a peer to a run of mapped pages.  A grant stops at the first error; a
 * revocation continues, and returns the last error. */
static xseg_status set_peer_access_run(struct xseg_segment *segment, uint32_t first, uint32_t count,
                                       int peer, bool is_allowed)
{
    struct xseg_context *context = segment->context;
    xseg_status result = XSEG_OK;

    if (segment->length[first] < count && context->batches_access &&
        xseg_driver_set_peer_access(context, peer, xseg_segment_address(segment, first),
                                    count * segment->granule_bytes, is_allowed) == XSEG_OK)
        return XSEG_OK;
    for (uint32_t page = first; page < first + count && (result == XSEG_OK || !is_allowed);
         page += segment->length[page]) {
        const xseg_status status =
            xseg_driver_set_peer_access(context, peer, xseg_segment_address(segment, page),
                                        xseg_segment_page_bytes(segment, page), is_allowed);

        result = status != XSEG_OK ? status : result;
    }
    return result;
}

static uint32_t count_mapped_run(const struct xseg_segment *segment, uint32_t first)
{
    uint32_t at = first;

    while (at < segment->granules && xseg_segment_is_mapped(segment, at))
        at++;
    return at - first;
}

xseg_status xseg_segment_set_peer_access(struct xseg_segment *segment,
                                         const struct xseg_context *peer, bool is_allowed)
{
    xseg_status result = XSEG_OK;

    XSEG_ASSERT(xseg_segment_is_expandable(segment));
    for (uint32_t at = 0, count; at < segment->granules && (result == XSEG_OK || !is_allowed);
         at += count == 0 ? 1 : count) {
        count = count_mapped_run(segment, at);
        const xseg_status status =
            count == 0 ? XSEG_OK
                       : set_peer_access_run(segment, at, count, peer->device, is_allowed);

        result = status != XSEG_OK ? status : result;
    }
    return result;
}

/* --- Map. --- */

/* Whether a page of a length fits at a granule: all its granules are unmapped and end before
 * `end`. */
static bool can_place_page(const struct xseg_segment *segment, uint32_t at, uint32_t end,
                           uint32_t length)
{
    if (end - at < length)
        return false;
    for (uint32_t granule = at; granule < at + length; granule++)
        if (segment->state[granule] != XSEG_PAGE_UNMAPPED)
            return false;
    return true;
}

/* Choose the length of the page at a granule, in granules.  At a full-page slot it is a full page,
 * doubled while that fits and the source permits it; elsewhere a small page.  If the source uses
 * small pages, an idle full page is used at any granule where it fits. */
static uint32_t choose_page_length(const struct xseg_segment *segment, uint32_t at, uint32_t end,
                                   const struct xseg_page_source *source, uint64_t idle_full)
{
    const uint32_t full = (uint32_t)(segment->page_bytes / segment->granule_bytes);
    const bool is_preferred = source->use_small ? idle_full != 0 : at % full == 0;
    uint32_t length = full;

    if (!is_preferred || !can_place_page(segment, at, end, full))
        return 1;
    while (!source->use_small && 2 * length * segment->granule_bytes <= source->max_page_bytes &&
           can_place_page(segment, at, end, 2 * length))
        length *= 2;
    return length;
}

uint64_t xseg_segment_bytes_from_page_cache(const struct xseg_segment *segment, uint32_t first,
                                            uint32_t count, const struct xseg_page_source *source,
                                            uint64_t *full, uint64_t *small)
{
    const uint32_t end = first + count;
    uint64_t covered = 0;

    for (uint32_t at = first, length; at < end; at += length) {
        if (segment->state[at] != XSEG_PAGE_UNMAPPED) {
            length = segment->length[at];
            continue;
        }
        length = choose_page_length(segment, at, end, source, *full);
        uint64_t *idle = length == 1 ? small : full;
        const uint64_t bytes = length * segment->granule_bytes;
        if (*idle >= bytes && bytes <= segment->page_bytes) {
            *idle -= bytes;
            covered += bytes;
        }
    }
    return covered;
}

/* Release the pages of a run that were acquired for unmapped granules. */
static void release_acquired_pages(struct xseg_segment *segment, uint32_t first, uint32_t end)
{
    for (uint32_t page = first, next; page < end; page = next) {
        next = page + segment->length[page];
        if (segment->state[page] == XSEG_PAGE_UNMAPPED)
            release_page_memory(segment, page, false);
    }
}

/* Acquire pages for the unmapped granules of a run, from the page cache or from the driver.  On
 * failure the acquired pages are released. */
static xseg_status acquire_pages(struct xseg_segment *segment, uint32_t first, uint32_t end,
                                 const struct xseg_page_source *source)
{
    const struct xseg_page_filter filter = {NULL, segment->properties, source->prepared_for};
    struct xseg_page page;

    for (uint32_t at = first; at < end; at += segment->length[at]) {
        if (segment->state[at] != XSEG_PAGE_UNMAPPED)
            continue;
        const uint64_t idle_full =
            source->use_small
                ? xseg_page_cache_usable_bytes(segment->page_cache, segment->page_bytes, &filter)
                : 0;
        segment->length[at] = choose_page_length(segment, at, end, source, idle_full);
        const uint64_t bytes = xseg_segment_page_bytes(segment, at);
        if (xseg_page_cache_acquire(segment->page_cache, bytes, &filter, &page)) {
            segment->handle[at] = page.handle;
            continue;
        }
        const xseg_status status =
            xseg_driver_create(segment->context, bytes, segment->properties, &segment->handle[at]);
        if (status != XSEG_OK) {
            segment->length[at] = 0;
            release_acquired_pages(segment, first, at);
            return status;
        }
    }
    return XSEG_OK;
}

/* Map the pages of a run.  They are in state UNKNOWN until the access rights are set. */
static xseg_status map_pages(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page += segment->length[page]) {
        if (segment->state[page] != XSEG_PAGE_UNMAPPED)
            continue;
        const xseg_status status =
            xseg_driver_map(segment->context, xseg_segment_address(segment, page),
                            xseg_segment_page_bytes(segment, page), segment->handle[page]);
        if (status != XSEG_OK)
            return status;
        xseg_segment_set_state(segment, page, XSEG_PAGE_UNKNOWN);
        xseg_segment_count_unknown(segment, (int64_t)xseg_segment_page_bytes(segment, page));
    }
    return XSEG_OK;
}

/* Roll back a map: unmap and release its pages.  A page that cannot be unmapped remains in state
 * UNKNOWN, because its access rights are unknown. */
static void roll_back_map(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    bool is_known = true;

    for (uint32_t page = first, next; page < first + count; page = next) {
        next = page + segment->length[page];
        if (segment->state[page] == XSEG_PAGE_UNMAPPED)
            release_page_memory(segment, page, false);
        else if (segment->state[page] == XSEG_PAGE_UNKNOWN &&
                 xseg_segment_unmap_page(segment, page, &is_known) == XSEG_OK)
            remove_unmapped_page(segment, page, false);
    }
}

xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                             const struct xseg_page_source *source)
{
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->granules);
    xseg_status status = acquire_pages(segment, first, first + count, source);
    if (status != XSEG_OK)
        return status;
    status = map_pages(segment, first, count);
    if (status == XSEG_OK)
        status = xseg_segment_set_access(segment, first, count);
    if (status != XSEG_OK) {
        /* The roll-back may fail as well; the message of the first failure is reported. */
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        roll_back_map(segment, first, count);
        XSEG_AUDIT(xseg_segment_audit, segment);
        return xseg_fail(status, "%s", reason);
    }
    const uint64_t bytes = count * segment->granule_bytes;
    memset(&segment->state[first], XSEG_PAGE_MAPPED, count);
    xseg_segment_record_change(segment, first, count, ++segment->page_cache->generation);
    xseg_segment_count_unknown(segment, -(int64_t)bytes);
    atomic_fetch_add_explicit(&segment->mapped, bytes, memory_order_relaxed);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;
}

xseg_status xseg_segment_retry_unknown(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    xseg_status result = XSEG_OK;
    bool is_known = true;

    for (uint32_t page = first; segment->unknown != 0 && page < first + count; page++) {
        if (segment->state[page] != XSEG_PAGE_UNKNOWN || segment->length[page] == 0)
            continue; /* not a page, or another granule of a page */
        const xseg_status status = xseg_segment_unmap_page(segment, page, &is_known);
        if (status == XSEG_OK)
            remove_unmapped_page(segment, page, false);
        else if (result == XSEG_OK)
            result = status;
    }
    return result;
}

xseg_status xseg_segment_destroy(struct xseg_segment *segment)
{
    if (segment->memory.free != NULL) {
        free_to_callback(segment);
        free_granule_tables(segment);
        return XSEG_OK;
    }
    if (!xseg_segment_is_expandable(segment)) {
        free_granule_tables(segment);
        return xseg_unreleased_release(
            segment->page_cache->unreleased,
            (struct xseg_unreleased){XSEG_UNRELEASED_ALLOCATION, segment->base, segment->bytes, 0});
    }
    XSEG_ASSERT(atomic_load(&segment->mapped) == 0 && segment->unknown == 0);
    const xseg_status status = xseg_unreleased_release(
        segment->page_cache->unreleased,
        (struct xseg_unreleased){XSEG_UNRELEASED_RANGE, segment->base, segment->reserved_bytes, 0});
    xseg_segment_abandon(segment);
    return status;
}

void xseg_segment_abandon(struct xseg_segment *segment)
{
    if (segment->memory.free != NULL)
        free_to_callback(segment);
    free_granule_tables(segment);
}

size_t xseg_segment_host_bytes(const struct xseg_segment *segment)
{
    return xseg_demand_zero_resident(segment->handle,
                                     segment->granules * XSEG_SEGMENT_TABLES_BYTES) +
           xseg_segment_retains_host_bytes(segment) +
           xseg_demand_zero_resident(segment->alias_record,
                                     segment->granules * sizeof(*segment->alias_record));
}

/* --- Audit. --- */

static bool audit_page_tables(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    uint32_t at = 0;

    while (at < segment->granules) {
        const uint32_t length = segment->length[at];
        const uint8_t state = segment->state[at];

        XSEG_INVARIANT(violation, "SEG-4", (length == 0) == (state == XSEG_PAGE_UNMAPPED),
                       "granule %" PRIu32 " is in state %d with length %" PRIu32, at, state,
                       length);
        for (uint32_t i = at + 1; i < at + length; i++)
            XSEG_INVARIANT(violation, "SEG-4",
                           i < segment->granules && segment->length[i] == 0 &&
                               segment->state[i] == state,
                           "page at granule %" PRIu32 " is inconsistent at %" PRIu32, at, i);
        at += length == 0 ? 1 : length;
    }
    return true;
}

/* The bytes of a page that count as unknown.  An aliased page counts if its granule is in state
 * UNKNOWN. */
static uint64_t unknown_bytes(const struct xseg_segment *segment, uint32_t page)
{
    const bool is_unknown = segment->state[page] == XSEG_PAGE_UNKNOWN ||
                            (xseg_segment_is_evicted(segment, page) && segment->handle[page] != 0);

    return segment->length[page] != 0 && is_unknown ? xseg_segment_page_bytes(segment, page) : 0;
}

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    const uint64_t mapped = atomic_load(&segment->mapped);
    uint64_t backed = 0, unknown = 0;

    if (!xseg_segment_is_expandable(segment))
        return true;
    XSEG_INVARIANT(violation, "SEG-1",
                   segment->base % segment->context->granularity == 0 &&
                       segment->base <= UINT64_MAX - segment->reserved_bytes,
                   "base %#" PRIx64 " with %" PRIu64 " bytes", segment->base,
                   segment->reserved_bytes);
    for (uint32_t at = 0; at < segment->granules; at++) {
        backed += segment->state[at] == XSEG_PAGE_MAPPED ? segment->granule_bytes : 0;
        unknown += unknown_bytes(segment, at);
    }
    XSEG_INVARIANT(violation, "SEG-2", mapped == backed && segment->unknown == unknown,
                   "mapped is %" PRIu64 ", pages have %" PRIu64 "; unknown is %" PRIu64
                   ", pages have %" PRIu64,
                   mapped, backed, segment->unknown, unknown);
    XSEG_INVARIANT(
        violation, "SEG-3", segment->reserved_bytes >= segment->granules * segment->granule_bytes,
        "%" PRIu32 " granules in %" PRIu64 " bytes", segment->granules, segment->reserved_bytes);
    return audit_page_tables(segment, violation) && xseg_segment_audit_retains(segment, violation);
}
