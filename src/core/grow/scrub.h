/* SPDX-License-Identifier: MIT */
/*
 * Scrub: with the key of that name, what one pool has left in a page is cleared before another pool
 * gets it.
 *
 * Pages move from pool to pool through the idle ones of a device (page.h): kept there by decay, or
 * stolen.  A page of another pool is cleared by work on the stream that it is for, right after it is
 * mapped, so whatever that stream does next finds zeroes.  Where no such work can be queued (the
 * stream is being captured, a capture is under way, or the calling thread cannot name the stream) the
 * pages of others are not used: the memory comes from the driver, or is refused.
 *
 * Locking: GROWTH is held, no other lock.
 */
#ifndef XSEG_CORE_SCRUB_H
#define XSEG_CORE_SCRUB_H

#include "src/core/cache/arena.h"
#include "vmm/page.h"

/*
 * Which idle pages an arena may have.
 *
 * Cost: with the key a question about the stream; else none
 */
struct xseg_page_taker xseg_scrub_taker(const struct xseg_arena *arena);

#endif
