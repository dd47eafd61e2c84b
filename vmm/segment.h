/* SPDX-License-Identifier: MIT */
/*
 * A segment: device addresses and the memory behind them.
 *
 * An expandable segment is a reserved range of addresses cut into pages, each of which is mapped to
 * physical memory of its own or is a hole:
 *
 *     base                                           base + pages * page_bytes
 *      |                                                                |
 *      [ page ][ page ][ hole ][ page ][ hole ][ hole ][ hole ][ hole ]
 *         0       1       2       3       4       5       6       7
 *
 * Addresses never move, so growing a segment never copies.  A classic segment is one cuMemAlloc: it
 * has no pages, and is mapped whole until it is freed.
 *
 * A page is in one of three states.  HOLE: no memory.  MAPPED: memory that the device may use.
 * STUCK: mapped, without known access rights, because a growth failed and could not be undone; the
 * next growth uses it, the next trim tries again to unmap it.
 *
 * Every operation is a transaction: after a failure the segment is as it was, stuck pages aside.
 *
 * Invariants, between calls; xseg_segment_audit() checks each under its tag:
 *   SEG-1  base is a multiple of the granularity, and the addresses do not wrap.
 *   SEG-2  mapped and stuck are the bytes of the pages in those states.
 *   SEG-3  reserved_bytes is at least pages * page_bytes.
 *
 * Locking: GROWTH of the device; `mapped` may be read without it.
 */
#ifndef XSEG_VMM_SEGMENT_H
#define XSEG_VMM_SEGMENT_H

#include "src/base/check.h"
#include "vmm/leftovers.h"

enum xseg_page_state { XSEG_PAGE_HOLE, XSEG_PAGE_STUCK, XSEG_PAGE_MAPPED };

struct xseg_segment {
    struct xseg_context *context;
    struct xseg_leftovers *leftovers;
    uint64_t base;
    uint64_t bytes;              /* usable addresses */
    uint64_t reserved_bytes;     /* of the reservation; 0 for a classic segment */
    uint64_t page_bytes;         /* 0 for a classic segment */
    uint32_t pages;              /* 0 for a classic segment */
    atomic_uint_fast64_t mapped; /* bytes the device may use */
    uint64_t stuck;              /* bytes in stuck pages */
    uint64_t *handle;            /* [pages], of pages that are no holes */
    uint8_t *state;              /* [pages], enum xseg_page_state */
};

static inline bool xseg_segment_is_expandable(const struct xseg_segment *segment)
{
    return segment->page_bytes != 0;
}

/*
 * Reserve the addresses of an expandable segment; nothing is mapped.
 *
 * bytes:      multiple of page_bytes
 * page_bytes: multiple of the granularity
 * Returns: XSEG_OK, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one reserve
 */
xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_leftovers *leftovers, uint64_t bytes,
                                 uint64_t page_bytes);

/*
 * The same with addresses of just that many bytes, and a page behind them that is never mapped.
 *
 * alignment: of the first address; a power of two, multiple of page_bytes
 */
xseg_status xseg_segment_reserve_guarded(struct xseg_segment *segment, struct xseg_context *context,
                                         struct xseg_leftovers *leftovers, uint64_t bytes,
                                         uint64_t page_bytes, uint64_t alignment);

/*
 * Allocate a classic segment.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one cuMemAlloc
 */
xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_leftovers *leftovers, uint64_t bytes);

/*
 * End a segment: addresses go back to the driver, or become leftovers.
 *
 * An expandable segment must have no mapped and no stuck page.
 * Returns: XSEG_OK, or the driver's error; the segment is gone in any case
 */
xseg_status xseg_segment_end(struct xseg_segment *segment);

/* End a segment of a lost device: only its host memory goes. */
void xseg_segment_abandon(struct xseg_segment *segment);

/*
 * Back the pages [first, first + count) with memory.  None of them may be mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY; XSEG_ERR_DRIVER
 * Cost:    one create and one map a page, one set-access (one a page where the driver wants that)
 */
xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count);

/*
 * Give the memory of the pages [first, first + count) back.  All of them must be mapped.
 *
 * done: how many of them, from the first on, have become holes; the others are mapped as before
 * Returns: XSEG_OK when all have; else the driver's error
 * Cost:    one unmap (one a page where the driver wants that), one release a page
 */
xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               uint32_t *done);

static inline bool xseg_segment_is_mapped(const struct xseg_segment *segment, uint32_t page)
{
    return segment->state[page] == XSEG_PAGE_MAPPED;
}

/* Try again to unmap the stuck pages.  Returns the first error; what was refused stays stuck. */
xseg_status xseg_segment_unstick(struct xseg_segment *segment);

/* Host bytes held. */
size_t xseg_segment_host_bytes(const struct xseg_segment *segment);

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_finding *finding);

#endif
