/* SPDX-License-Identifier: MIT */
#include "vmm/segment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "vmm/segment_page.h"

/* Alignment of every block, and so of every segment. */
#define ALIGNMENT 512u

static void init(struct xseg_segment *segment, struct xseg_context *context,
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

static void lay_tables(struct xseg_segment *segment, void *memory, uint32_t granules)
{
    uint64_t *words = memory;
    uint32_t *halves = (uint32_t *)(words + 3 * (size_t)granules);

    segment->granules = granules;
    segment->handle = words;
    segment->idle_since = words + granules;
    segment->generation = (atomic_uint_fast64_t *)(words + 2 * (size_t)granules);
    segment->length = halves;
    segment->state = (uint8_t *)(halves + granules);
}

static void free_tables(struct xseg_segment *segment)
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

/* Reserve the addresses of an initialised segment. */
static xseg_status reserve(struct xseg_segment *segment,
                           const struct xseg_segment_reservation *wanted)
{
    struct xseg_context *context = segment->context;
    const uint64_t granule = xseg_max(wanted->granule_bytes, context->granularity);
    const uint32_t granules = (uint32_t)(segment->bytes / granule);
    xseg_status status;

    XSEG_ASSERT(granule % context->granularity == 0 && wanted->page_bytes % granule == 0);
    XSEG_ASSERT(segment->bytes % wanted->page_bytes == 0 && segment->bytes / granule == granules);
    segment->page_bytes = wanted->page_bytes;
    segment->granule_bytes = granule;
    segment->reserved_bytes = segment->bytes + wanted->tail_bytes;
    void *memory = xseg_demand_zero_alloc(granules * XSEG_SEGMENT_TABLES_BYTES);
    if (memory == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of %" PRIu32 " granules",
                         granules);
    lay_tables(segment, memory, granules);
    status =
        xseg_driver_reserve(context, segment->reserved_bytes, wanted->alignment, &segment->base);
    if (status != XSEG_OK)
        goto free_tables;
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;

free_tables:
    free_tables(segment);
    return status;
}

xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_page_cache *page_cache, uint64_t bytes,
                                 uint64_t page_bytes)
{
    const struct xseg_segment_reservation wanted = {
        .bytes = bytes,
        .page_bytes = page_bytes,
        .tail_bytes = xseg_round_up(bytes, XSEG_SEGMENT_ALIGNMENT) - bytes,
        .alignment = XSEG_SEGMENT_ALIGNMENT,
    };

    return xseg_segment_reserve_range(segment, context, page_cache, &wanted);
}

xseg_status xseg_segment_reserve_range(struct xseg_segment *segment, struct xseg_context *context,
                                       struct xseg_page_cache *page_cache,
                                       const struct xseg_segment_reservation *wanted)
{
    init(segment, context, page_cache, wanted->bytes);
    return reserve(segment, wanted);
}

xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_page_cache *page_cache, uint64_t bytes)
{
    init(segment, context, page_cache, bytes);
    const xseg_status status = xseg_driver_alloc(context, bytes, &segment->base);
    if (status == XSEG_OK)
        atomic_store_explicit(&segment->mapped, bytes, memory_order_relaxed);
    return status;
}

/* Give a borrowed segment back to the user's own function, whose calls another device's capture may forbid.  Where
 * the mode cannot be changed it is called all the same: the memory must not be lost. */
static void give_to_owner(const struct xseg_segment *segment)
{
    void *pointer = (void *)(uintptr_t)segment->base; /* NOLINT(performance-no-int-to-ptr) */
    int mode = 0;
    const bool is_relaxed = xseg_driver_relax_capture_mode(segment->context, &mode) == XSEG_OK;

    segment->memory.free(segment->memory.context, pointer, segment->bytes,
                         segment->context->ordinal, segment->stream);
    if (is_relaxed)
        xseg_driver_restore_capture_mode(segment->context, mode);
}

/* Ask a user's own function for memory, in a capture as well. */
static xseg_status ask_owner(struct xseg_context *context, uint64_t bytes,
                             const struct xseg_pool_memory *memory, xseg_stream stream, void **out)
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
    const xseg_status status = ask_owner(context, bytes, memory, stream, &pointer);

    init(segment, context, page_cache, bytes);
    if (status != XSEG_OK)
        return status;
    segment->memory = *memory;
    segment->stream = stream;
    segment->base = (uintptr_t)pointer;
    atomic_store_explicit(&segment->mapped, bytes, memory_order_relaxed);
    if (segment->base % ALIGNMENT == 0)
        return XSEG_OK;
    give_to_owner(segment);
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "memory function returned an address that is not %u-byte aligned, %p",
                     ALIGNMENT, pointer);
}

/* --- One page. --- */

/* Give up the memory of a page that is no longer mapped. */
static void put_page(struct xseg_segment *segment, uint32_t page, bool keep)
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
    if (handle != 0) /* a page that the driver refuses is a leftover */
        (void)xseg_page_cache_put(segment->page_cache, xseg_segment_page_kind(segment, bytes),
                                  handle, segment->owner, keep && !was_exported);
}

xseg_status xseg_segment_unmap_page(struct xseg_segment *segment, uint32_t page, bool *is_known)
{
    return xseg_unreleased_unmap(segment->context, xseg_segment_address(segment, page),
                                 xseg_segment_page_bytes(segment, page), is_known);
}

/* Take the memory of a page that is not mapped any more away, and update the counts. */
static void clear_page(struct xseg_segment *segment, uint32_t page, bool keep)
{
    if (segment->state[page] == XSEG_PAGE_MAPPED)
        xseg_segment_count_mapped_page(segment, page, false);
    else if (segment->handle[page] != 0)
        xseg_segment_count_unknown_page(segment, page, false);
    put_page(segment, page, keep);
}

/* Mark a page as stuck: it is not known whether it is mapped, so it is not used until a growth or a trim finds out. */
static void stick_page(struct xseg_segment *segment, uint32_t page)
{
    if (segment->state[page] == XSEG_PAGE_MAPPED) {
        xseg_segment_count_mapped_page(segment, page, false);
        xseg_segment_count_unknown_page(segment, page, true);
    }
    xseg_segment_set_state(segment, page, XSEG_PAGE_UNKNOWN);
}

void xseg_segment_mark_unknown(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page += segment->length[page])
        stick_page(segment, page);
    XSEG_AUDIT(xseg_segment_audit, segment);
}

/* --- Unmapping. --- */

static bool are_all_mapped(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; at < first + count; at += segment->length[at])
        if (!xseg_segment_is_mapped(segment, at))
            return false;
    return true;
}

/* Whether a page is not mapped: it was evicted, and its pool was forgotten. */
static bool is_nowhere(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_EVICTED || segment->state[page] == XSEG_PAGE_FRESH;
}

xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               bool keep, uint32_t *done)
{
    struct xseg_context *context = segment->context;
    xseg_status result = XSEG_OK;
    bool together = false;

    XSEG_ASSERT(count > 0 && first + count <= segment->granules && segment->length[first] != 0);
    XSEG_ASSERT(!xseg_segment_is_retained(segment, first, count));
    if (segment->length[first] < count && context->batches_unmap &&
        are_all_mapped(segment, first, count))
        together = xseg_driver_unmap(context, xseg_segment_address(segment, first),
                                     count * segment->granule_bytes) == XSEG_OK;
    for (*done = 0; *done < count;) {
        const uint32_t page = first + *done, length = segment->length[page];
        xseg_status status = XSEG_OK;
        bool is_known = true;

        XSEG_ASSERT(length != 0 && *done + length <= count);
        if (!together && !is_nowhere(segment, page))
            status = xseg_segment_unmap_page(segment, page, &is_known);
        result = result == XSEG_OK ? status : result;
        if (status != XSEG_OK && is_known)
            break;
        if (is_known)
            clear_page(segment, page, keep);
        else
            stick_page(segment, page);
        *done += length;
    }
    xseg_segment_record_change(segment, first, *done, ++segment->page_cache->generation);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return result;
}

uint32_t xseg_segment_pages_inside(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                   uint32_t *first)
{
    const uint64_t granule = segment->granule_bytes;
    uint32_t from = (uint32_t)(xseg_round_up(begin, granule) / granule);
    uint32_t to = (uint32_t)(end / granule);

    /* A page that starts before the bytes, or ends behind them, is not whole. */
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

/* --- Mapping. --- */

/* Whether a page of a length fits at a granule: there are only holes, and the run does not end before. */
static bool has_room(const struct xseg_segment *segment, uint32_t at, uint32_t end, uint32_t length)
{
    if (end - at < length)
        return false;
    for (uint32_t granule = at; granule < at + length; granule++)
        if (segment->state[granule] != XSEG_PAGE_UNMAPPED)
            return false;
    return true;
}

/* Choose the length of the page at a granule, in granules.  At the start of a frame it is a full page, doubled while
 * that fits and is wanted; else a small one.  Where small pages are wanted, an idle full page is used wherever it
 * fits. */
static uint32_t choose_length(const struct xseg_segment *segment, uint32_t at, uint32_t end,
                              const struct xseg_page_source *source, uint64_t idle_full)
{
    const uint32_t full = (uint32_t)(segment->page_bytes / segment->granule_bytes);
    const bool is_wanted = source->use_small ? idle_full != 0 : at % full == 0;
    uint32_t length = full;

    if (!is_wanted || !has_room(segment, at, end, full))
        return 1;
    while (!source->use_small && 2 * length * segment->granule_bytes <= source->max_page_bytes &&
           has_room(segment, at, end, 2 * length))
        length *= 2;
    return length;
}

uint64_t xseg_segment_covered_by_idle(const struct xseg_segment *segment, uint32_t first,
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
        length = choose_length(segment, at, end, source, *full);
        uint64_t *idle = length == 1 ? small : full;
        const uint64_t bytes = length * segment->granule_bytes;
        if (*idle >= bytes && bytes <= segment->page_bytes) {
            *idle -= bytes;
            covered += bytes;
        }
    }
    return covered;
}

/* A run of holes that is being mapped. */
struct growth {
    struct xseg_segment *segment;
    const struct xseg_page_source *source;
    uint32_t first, end;
};

static xseg_status get_page(struct growth *growth, uint32_t at)
{
    struct xseg_segment *segment = growth->segment;
    const struct xseg_page_filter filter = {NULL, segment->properties,
                                            growth->source->prepared_for};
    const uint64_t idle_full =
        growth->source->use_small
            ? xseg_page_cache_usable_bytes(segment->page_cache, segment->page_bytes, &filter)
            : 0;
    struct xseg_page page;

    segment->length[at] = choose_length(segment, at, growth->end, growth->source, idle_full);
    if (xseg_page_cache_acquire(segment->page_cache, xseg_segment_page_bytes(segment, at), &filter,
                                &page)) {
        segment->handle[at] = page.handle;
        return XSEG_OK;
    }
    const xseg_status status =
        xseg_driver_create(segment->context, xseg_segment_page_bytes(segment, at),
                           segment->properties, &segment->handle[at]);
    if (status != XSEG_OK)
        segment->length[at] = 0;
    return status;
}

/* Get pages for the holes of the run; on failure give them back. */
static xseg_status get_run(struct growth *growth)
{
    struct xseg_segment *segment = growth->segment;

    for (uint32_t at = growth->first; at < growth->end; at += segment->length[at]) {
        xseg_status status = XSEG_OK;

        if (segment->state[at] == XSEG_PAGE_UNMAPPED)
            status = get_page(growth, at);
        if (status == XSEG_OK)
            continue;
        for (uint32_t page = growth->first, next; page < at; page = next) {
            next = page + segment->length[page];
            if (segment->state[page] == XSEG_PAGE_UNMAPPED)
                put_page(segment, page, false);
        }
        return status;
    }
    return XSEG_OK;
}

/* Map the pages of the run; they are stuck until the device may use them. */
static xseg_status map_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
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

/* Undo a growth: its pages go.  A page that cannot be unmapped stays stuck, since its access rights are unknown. */
static void withdraw_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    bool is_known = true;

    for (uint32_t page = first, next; page < first + count; page = next) {
        next = page + segment->length[page];
        if (segment->state[page] == XSEG_PAGE_UNMAPPED)
            put_page(segment, page, false);
        else if (segment->state[page] == XSEG_PAGE_UNKNOWN &&
                 xseg_segment_unmap_page(segment, page, &is_known) == XSEG_OK)
            clear_page(segment, page, false);
    }
}

xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                             const struct xseg_page_source *source)
{
    struct growth growth = {segment, source, first, first + count};
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->granules);
    xseg_status status = get_run(&growth);
    if (status != XSEG_OK)
        return status;
    status = map_run(segment, first, count);
    if (status == XSEG_OK)
        status = xseg_segment_set_access(segment, first, count);
    if (status != XSEG_OK) {
        /* The undo may fail as well; the first reason is reported. */
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        withdraw_run(segment, first, count);
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

xseg_status xseg_segment_retry_unknown_run(struct xseg_segment *segment, uint32_t first,
                                           uint32_t count)
{
    xseg_status result = XSEG_OK;
    bool is_known = true;

    for (uint32_t page = first; segment->unknown != 0 && page < first + count; page++) {
        if (segment->state[page] != XSEG_PAGE_UNKNOWN)
            continue;
        const xseg_status status = xseg_segment_unmap_page(segment, page, &is_known);
        if (status == XSEG_OK)
            clear_page(segment, page, false);
        else if (result == XSEG_OK)
            result = status;
    }
    return result;
}

xseg_status xseg_segment_retry_unknown(struct xseg_segment *segment)
{
    return xseg_segment_retry_unknown_run(segment, 0, segment->granules);
}

xseg_status xseg_segment_destroy(struct xseg_segment *segment)
{
    if (segment->memory.free != NULL) {
        give_to_owner(segment);
        free_tables(segment);
        return XSEG_OK;
    }
    if (!xseg_segment_is_expandable(segment)) {
        free_tables(segment);
        return xseg_unreleased_release(segment->page_cache->unreleased, XSEG_UNRELEASED_ALLOCATION,
                                       segment->base, segment->bytes);
    }
    XSEG_ASSERT(atomic_load(&segment->mapped) == 0 && segment->unknown == 0);
    const xseg_status status =
        xseg_unreleased_release(segment->page_cache->unreleased, XSEG_UNRELEASED_RANGE,
                                segment->base, segment->reserved_bytes);
    xseg_segment_abandon(segment);
    return status;
}

void xseg_segment_abandon(struct xseg_segment *segment)
{
    if (segment->memory.free != NULL)
        give_to_owner(segment);
    free_tables(segment);
}

size_t xseg_segment_host_bytes(const struct xseg_segment *segment)
{
    return xseg_demand_zero_resident(segment->handle,
                                     segment->granules * XSEG_SEGMENT_TABLES_BYTES) +
           xseg_segment_retains_host_bytes(segment) +
           xseg_demand_zero_resident(segment->alias_record,
                                     segment->granules * sizeof(*segment->alias_record));
}
