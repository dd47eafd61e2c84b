/* SPDX-License-Identifier: MIT */
/*
 * Operations on single pages of a segment, for segment*.c, alias.c and evicted.c only.
 *
 * A page is identified by its first granule.
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

static inline uint64_t xseg_segment_page_bytes(const struct xseg_segment *segment, uint32_t page)
{
    return (uint64_t)segment->length[page] * segment->granule_bytes;
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

/* Add a page to the bytes in unknown state, or subtract it.  An aliased page counts by its
 * record. */
static inline void xseg_segment_count_unknown_page(struct xseg_segment *segment, uint32_t page,
                                                   bool is_unknown)
{
    const int64_t bytes = (int64_t)xseg_segment_page_bytes(segment, page);

    if (xseg_alias_record(segment, page) == NULL)
        xseg_segment_count_unknown(segment, is_unknown ? bytes : -bytes);
}

/* Add a page to the mapped bytes, or subtract it. */
static inline void xseg_segment_count_mapped_page(struct xseg_segment *segment, uint32_t page,
                                                  bool is_mapped)
{
    const uint64_t bytes = xseg_segment_page_bytes(segment, page);
    const uint64_t more = is_mapped ? bytes : 0 - bytes;

    atomic_fetch_add_explicit(&segment->mapped, more, memory_order_relaxed);
}

/* Set the generation of granules that have got other pages, or lost their pages. */
static inline void xseg_segment_record_change(struct xseg_segment *segment, uint32_t first,
                                              uint32_t count, uint64_t generation)
{
    for (uint32_t at = first; at < first + count; at++)
        atomic_store_explicit(&segment->generation[at], generation, memory_order_relaxed);
}

/* Return whether a page was ever exported, and clear the flag because its memory is released. */
static inline bool xseg_segment_clear_exported(struct xseg_segment *segment, uint32_t page)
{
    const bool was_exported = segment->was_exported != NULL && segment->was_exported[page] != 0;

    if (was_exported)
        segment->was_exported[page] = 0;
    return was_exported;
}

/* Unmap one page, as xseg_unreleased_unmap() does. */
xseg_status xseg_segment_unmap_page(struct xseg_segment *segment, uint32_t page, bool *is_known);

/* Allow the device and its peers to read and write a run of pages, in one call if the driver
 * batches. */
xseg_status xseg_segment_set_access(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Return the host memory of the retain counts, free it, and check SEG-5 and SEG-6. */
size_t xseg_segment_retains_host_bytes(const struct xseg_segment *segment);
void xseg_segment_free_retains(struct xseg_segment *segment);
bool xseg_segment_audit_retains(const struct xseg_segment *segment,
                                struct xseg_violation *violation);

#endif
