/* SPDX-License-Identifier: MIT */
/*
 * Scrub: with the key `scrub`, a page that comes from another pool is cleared before its new pool gets it.
 *
 * Pages move from pool to pool through the idle pages of a device (page.h): decay keeps them there, or they
 * are stolen.  A page of another pool is cleared right after it is mapped, by work on the stream that it is
 * for, so that later work of the stream finds zeroes.  No such work can be queued while a capture is
 * under way, or where the calling thread cannot name the stream.  Then pages of other pools are not used: the
 * memory comes from the driver, or is refused.
 *
 * Locking: GROWTH is held, no other lock.
 */
#ifndef XSEG_CORE_SCRUB_H
#define XSEG_CORE_SCRUB_H

#include "src/core/arena/arena.h"
#include "vmm/segment.h"

/*
 * Which idle pages an arena may have.
 *
 * segment: that the pages are for, which must have its properties; NULL: a new segment of the arena's pool
 * Cost:    with the key `scrub` a question about the stream; else none
 */
struct xseg_page_taker xseg_scrub_taker(const struct xseg_arena *arena,
                                        const struct xseg_segment *segment);

#endif
