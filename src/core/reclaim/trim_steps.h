/* SPDX-License-Identifier: MIT */
/*
 * The steps of reclaim.h, and the release of segments without memory.  Modules that claim a block by other rules use them
 * directly.
 *
 * Locking: the caller holds the device memory lock.
 */
#ifndef XSEG_CORE_TRIM_STEPS_H
#define XSEG_CORE_TRIM_STEPS_H

#include "src/core/device/device.h"
#include "xseg/history.h"

/* --- Segments without memory.  The caller holds no other lock. --- */

/* Release the virtual address range of a segment if no memory is mapped there; returns whether the segment has ended. */
bool xseg_trim_finish_unmapped(struct xseg_extent *extent);

/* xseg_trim_finish_unmapped() for all segments of an arena.  Returns whether no segment is left. */
bool xseg_trim_finish_unmapped_all(struct xseg_arena *arena);

/* xseg_trim_finish_unmapped_all() as a visitor of arenas. */
void xseg_trim_finish_unmapped_of(void *self, struct xseg_arena *arena);

/* xseg_trim_finish_unmapped() for segments of an arena until `most` have ended. */
void xseg_trim_finish_unmapped_some(struct xseg_arena *arena, uint32_t max);

/* Release the virtual address range of an elastic extent without mapped memory. */
void xseg_trim_finish_elastic(struct xseg_extent *extent);

/* --- Steps. --- */

/*
 * Claim whole pages inside a cached block, `count` granules from `first` on; the parts before and after them stay cached.
 * XSEG_ARENA_RECORDS must be in stock.
 */
struct xseg_block *xseg_trim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                         uint32_t first, uint32_t count) XSEG_REQUIRES(arena->lock);

/* Set *idle to whether the work queued on a stream has completed; with `wait`, wait for the work. */
xseg_status xseg_trim_is_idle(struct xseg_device *device, struct xseg_known_stream *stream,
                              bool wait, bool *idle);

/*
 * Release the memory of one claimed block; memory that the driver does not unmap is cached again.
 *
 * keep:    pages become idle pages of the device; else they are released to the driver, as a classic segment always is
 * cause:   for the history: STEAL, DECAY, TRIM, GIVE, or SEGMENT_UNMAP where it is none of these
 * Returns: the released bytes
 */
uint64_t xseg_trim_release_pages(struct xseg_block *block, bool keep,
                                 enum xseg_history_action cause);

/* Settle claimed blocks, linked through `right`: they are cached again. */
void xseg_trim_settle(struct xseg_block *claimed);

#endif
