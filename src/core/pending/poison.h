/* SPDX-License-Identifier: MIT */
/*
 * Poisoning: freed memory is filled with a pattern, and checked when it is handed out; zeroing.
 *
 * With the key debug_fill, memory of the default pools that becomes cached is overwritten with a
 * pattern, by work on its own stream.  So a block whose `poisoned` is set holds the pattern for all later
 * work of that stream.  When such a block is handed out, its memory is read back: a byte that differs
 * was written after the free, or past the end of a neighbour.
 *
 *     free  -->  pattern queued  -->  cached, poisoned  -->  handed out  -->  read back, compared
 *     growth -->      "                     "
 *
 * The pattern is a NaN in every format of floating point, so that code which reads freed memory shows it.
 * Private pools are not poisoned: graphs that were captured there go on writing to their free memory.
 * Streams that are being captured, or that the calling thread cannot name, are not poisoned either.
 *
 * If a memset fails, the block is not poisoned, and not checked later.  At the first difference the
 * pattern is written and read once more, to find out whether contents can be read back at all.
 *
 * Locking: callers may hold GROWTH, no other lock; blocks are busy, or live and not yet the user's.
 */
#ifndef XSEG_CORE_POISON_H
#define XSEG_CORE_POISON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "xseg/status.h"

#define XSEG_POISON_PATTERN UINT32_C(0xFFFDFFFD)

struct xseg_allocator;
struct xseg_arena;
struct xseg_block;
struct xseg_grant;

/* Whether a device's memory can be read back. */
enum xseg_poison_reads { XSEG_POISON_UNTRIED, XSEG_POISON_READS, XSEG_POISON_READS_NOTHING };

/* The state of poisoning of a device. */
struct xseg_poison {
    struct xseg_allocator *allocator; /* source of the configuration and the log */
    atomic_uint reads;                /* enum xseg_poison_reads */
};

void xseg_poison_init(struct xseg_poison *poison, struct xseg_allocator *allocator);

/* Whether memory of an arena is to be poisoned when it becomes cached. */
bool xseg_poison_is_on(const struct xseg_arena *arena);

/* Fill a busy block that is about to become cached, if poisoning is on.  Sets its `poisoned`. */
void xseg_poison_busy(struct xseg_block *block);

/* Fill busy blocks whose uses have ended, and take them back.  The blocks are chained through
 * `ended`. */
void xseg_poison_ended(struct xseg_block *block);

/*
 * Check the pattern of a block that is handed out, if it was poisoned; zero the requested bytes if
 * asked for.
 *
 * is_paused: set to whether the pool has been paused since the block was taken; then there is no
 *            memory, and nothing is checked or zeroed
 * Returns:   XSEG_OK; the driver's error if the block cannot be zeroed
 */
xseg_status xseg_poison_hand_out(const struct xseg_grant *grant, bool zeroed, bool *is_paused);

#endif
