/* SPDX-License-Identifier: MIT */
/*
 * Single pages of a segment, and driver calls for them: for segment*.c, alias.c, evicted.c and peer.c only.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_VMM_SEGMENT_PAGE_H
#define XSEG_VMM_SEGMENT_PAGE_H

#include <string.h>

#include "vmm/alias.h"

static inline uint64_t xseg_segment_address(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->base + (uint64_t)granule * segment->granule_bytes;
}

/* Bytes of the page that starts at a granule. */
static inline uint64_t xseg_segment_page_bytes(const struct xseg_segment *segment, uint32_t granule)
{
    return (uint64_t)segment->length[granule] * segment->granule_bytes;
}

static inline void xseg_segment_set_state(struct xseg_segment *segment, uint32_t page,
                                          enum xseg_page_state state)
{
    if (xseg_alias_record(segment, page) != NULL) {
        xseg_alias_set_state(segment, page, state);
        return;
    }
    if (xseg_page_state_is_present(segment->state[page]) && !xseg_page_state_is_present(state))
        segment->unmapped_bytes += xseg_segment_page_bytes(segment, page);
    memset(&segment->state[page], (int)state, segment->length[page]);
}

static inline void xseg_segment_count_unknown(struct xseg_segment *segment, int64_t bytes)
{
    segment->unknown += (uint64_t)bytes;
    atomic_fetch_add_explicit(&segment->page_cache->unreleased->unknown, (uint64_t)bytes,
                              memory_order_relaxed);
}

/* Count the memory of a page as stuck, or no longer; that of an aliased page counts by its record. */
static inline void xseg_segment_count_unknown_page(struct xseg_segment *segment, uint32_t page,
                                                   bool is_stuck)
{
    const int64_t bytes = (int64_t)xseg_segment_page_bytes(segment, page);

    if (xseg_alias_record(segment, page) == NULL)
        xseg_segment_count_unknown(segment, is_stuck ? bytes : -bytes);
}

/* Count a page as mapped, or no longer. */
static inline void xseg_segment_count_mapped_page(struct xseg_segment *segment, uint32_t page,
                                                  bool is_mapped)
{
    const uint64_t bytes = xseg_segment_page_bytes(segment, page);
    const uint64_t more = is_mapped ? bytes : 0 - bytes;

    atomic_fetch_add_explicit(&segment->mapped, more, memory_order_relaxed);
}

/* Note that some granules have other memory from here on, or none: they get a new generation. */
static inline void xseg_segment_record_change(struct xseg_segment *segment, uint32_t first,
                                              uint32_t count, uint64_t generation)
{
    for (uint32_t at = first; at < first + count; at++)
        atomic_store_explicit(&segment->generation[at], generation, memory_order_relaxed);
}

/* Clear the mark of a page that it was ever exported, as its memory goes; returns the mark. */
static inline bool xseg_segment_clear_exported(struct xseg_segment *segment, uint32_t page)
{
    const bool was_exported = segment->was_exported != NULL && segment->was_exported[page] != 0;

    if (was_exported)
        segment->was_exported[page] = 0;
    return was_exported;
}

/* Host bytes of the retain counts of a segment, and their end. */
size_t xseg_segment_retains_host_bytes(const struct xseg_segment *segment);
void xseg_segment_free_retains(struct xseg_segment *segment);

/* Check the invariants SEG-5 and SEG-6. */
bool xseg_segment_audit_retains(const struct xseg_segment *segment,
                                struct xseg_violation *violation);

/* Unmap one page, as xseg_unreleased_unmap() does. */
xseg_status xseg_segment_unmap_page(struct xseg_segment *segment, uint32_t page, bool *is_known);

/* Let the device read and write the pages of a run: in one call where the driver accepts that. */
xseg_status xseg_segment_set_access(struct xseg_segment *segment, uint32_t first, uint32_t count);

#endif
