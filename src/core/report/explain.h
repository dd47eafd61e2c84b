/* SPDX-License-Identifier: MIT */
/*
 * Explain: one reason for every reserved page of a device, so the reasons of a device add up to its
 * reserved bytes.
 *
 * The input is a walk over the blocks of the device in the order of arenas, segments and
 * addresses.  While the walk passes the blocks of a page, explain sums their bytes by state; the
 * block with the most restrictive state names the reason: allocated, pending free, claimed.  A page
 * without such a block is idle.  Its reason is the first condition that keeps the page reserved, in
 * the order that enum xseg_reason_kind documents:
 *
 *   1. properties of the page: a registration, a pin, an export;
 *   2. properties of its arena: a retained private pool, a capture, work on the stream;
 *   3. policies that compare all idle pages of the device: the budget, keep_mb, decay.
 *
 * Policies need the complete list, so the third step runs after the walk.  It follows the order in
 * which the owners of the policies release memory (xseg_decay_release()): the page cache first,
 * then idle pages from the oldest to the youngest.  Idle memory above the share of the process has
 * the reason ABOVE_SHARE; it is counted in whole pages, which can divide one run of pages.  Of the
 * other idle pages, the youngest are KEEP up to the amount that decay keeps; the remaining pages
 * are DECAY.  Pages of equal age may be released in another order than their reasons suggest.
 *
 * Adjacent pages with equal reasons form one entry of the list.  Capacity for one entry per mapped
 * page is reserved before the first arena is locked, because no host memory may be allocated under
 * an arena lock.
 *
 * xseg_explain_device() walks the device itself.  A memory snapshot adds its reasons in the walk
 * that copies the blocks (heap_copy.h), so the reasons and the blocks of a snapshot are of the same
 * moment.
 *
 * Locking: the caller holds the device memory lock from begin to end, so no page is mapped or
 * unmapped; the walk holds the lock of the arena that it visits.  PENDING is locked at the end,
 * with no arena locked.
 */
#ifndef XSEG_CORE_EXPLAIN_H
#define XSEG_CORE_EXPLAIN_H

#include "src/core/device/device.h"
#include "xseg/stats.h"

/* Reasons of one or several devices; the caller frees `list`. */
struct xseg_reason_list {
    struct xseg_reason *list;
    size_t count, capacity;
};

/* An arena with segments, and the index of its first reason. */
struct xseg_explained_arena {
    struct xseg_arena *arena;
    size_t first;
};

/* The state of one pass over a device. */
struct xseg_explainer {
    struct xseg_device *device;
    const struct xseg_config *config;
    struct xseg_reason_list *reasons;
    uint64_t origins_now; /* current time, see recorder.h */
    bool may_query_driver;
    /* The caller sets the members above and zeroes the members below. */
    struct xseg_explained_arena *arenas; /* [count], in the order of their reasons */
    size_t count, capacity;
    size_t first;        /* first reason of this device */
    uint64_t decay_now;  /* current time of decay in nanoseconds; 0: ages of pages are unknown */
    uint64_t fragmented; /* cached bytes on pages that also contain blocks in use, so far */
    const struct xseg_extent *extent; /* the segment that the walk visits */
    size_t segment_first;             /* first reason of that segment */
    struct xseg_reason page;          /* the page whose blocks are being counted */
    uint32_t granule, page_granules;  /* position and size of that page; size 0: none */
};

/* Padding of an allocated block whose segment is a single page (single_page), in bytes. */
static inline uint64_t xseg_reason_single_page_padding(const struct xseg_reason *reason)
{
    return reason->is_single_page && reason->kind == XSEG_REASON_ALLOCATED
               ? reason->bytes - reason->block_requested
               : 0;
}

/*
 * Add the reasons of all reserved memory of a device.  The caller holds no lock.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 * Cost:    a stream query for each stream with idle memory; cuMemGetInfo with device_free_min_mb;
 *          O(blocks)
 */
xseg_status xseg_explain_device(struct xseg_device *device, const struct xseg_config *config,
                                struct xseg_reason_list *reasons);

/*
 * The steps of xseg_explain_device() for a caller that has its own walk: begin, one call for each
 * block of the walk, end.  The caller ends a pass if and only if begin succeeded.
 *
 * explainer: without may_query_driver no page has the reason STREAM, and none has KEEP if the kept
 *            amount depends on the free memory of the device
 * Returns:   XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_explain_begin(struct xseg_explainer *explainer);
void xseg_explain_add_block(struct xseg_explainer *explainer, const struct xseg_block_view *view);
xseg_status xseg_explain_end(struct xseg_explainer *explainer);

#endif
