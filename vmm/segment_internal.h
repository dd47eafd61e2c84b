/* SPDX-License-Identifier: MIT */
/*
 * Internals of segments, for segment.c, segment_retain.c, alias.c and evicted.c only: operations on
 * single pages, and changes of alias records.
 *
 * A page is identified by its first granule.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_VMM_SEGMENT_INTERNAL_H
#define XSEG_VMM_SEGMENT_INTERNAL_H

#include <string.h>

#include "vmm/alias.h"
#include "vmm/segment.h"

/* --- Alias records. --- */

/* Set the state of a granule with a record, and update the counts. */
void xseg_alias_set_state(struct xseg_segment *segment, uint32_t granule,
                          enum xseg_page_state state);

/* Set the handle of the page of a granule with a record. */
void xseg_alias_set_handle(struct xseg_segment *segment, uint32_t granule, uint64_t handle);

/*
 * Remove a mapping that the driver has removed: the granule becomes unmapped.  The last mapping of
 * a page frees the record.
 *
 * was_exported: in: whether the granule was; out: whether any mapping of the page was
 * Returns: the handle of a page without mappings, which the caller releases; 0: none
 */
uint64_t xseg_alias_remove(struct xseg_segment *segment, uint32_t granule, bool *was_exported);

/* Free the table of a segment, and the records to which only this segment refers. */
void xseg_alias_free(struct xseg_segment *segment);

/* --- Single pages. --- */

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

/* Set the generation of granules whose pages have changed. */
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
