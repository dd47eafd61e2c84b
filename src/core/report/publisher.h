/* SPDX-License-Identifier: MIT */
/*
 * A publisher writes the memory usage of an allocator (usage.h) to shared memory that other
 * processes can read (key publish, xseg/published.h).
 *
 * Publishing is deferred housekeeping (housekeeping.h).  Figures are put on the board when memory
 * has come or gone since the last time; else when the last ones are older than 10 ms, and than a
 * hundred times what it takes to read them.  A thread that finds another one publishing goes on,
 * and that one looks once more before it leaves.
 *
 * Locking: who has set is_busy has the board; nobody waits for it but xseg_publisher_follow() and
 * xseg_publisher_end().
 */
#ifndef XSEG_CORE_PUBLISHER_H
#define XSEG_CORE_PUBLISHER_H

#include "src/base/host_memory.h"
#include "src/base/published.h"
#include "src/core/device/allocator.h"

struct xseg_publisher {
    atomic_bool is_busy, is_open;
    struct xseg_shared_region region; /* guarded by is_busy */
    atomic_uint_fast64_t due_ns;      /* of CLOCK_MONOTONIC: when figures are old */
    atomic_uint_fast64_t changes;     /* how often memory had come and gone when they were read */
};

void xseg_publisher_init(struct xseg_publisher *publisher);

/* Begin or end to publish, as the configuration in force says.  Where that fails, a line is
 * logged.  No lock is held. */
void xseg_publisher_follow(struct xseg_allocator *allocator);

/* Fill all of a frame but its time.  Cost: O(pools + arenas). */
void xseg_publisher_fill(struct xseg_allocator *allocator, struct xseg_published_sample *frame);

/* End to publish, because the allocator ends. */
void xseg_publisher_end(struct xseg_publisher *publisher);

/* Publish if memory has come, gone or been refused since the last time, or the figures are old.  No
 * lock is held. */
void xseg_publisher_run(struct xseg_allocator *allocator);

#endif
