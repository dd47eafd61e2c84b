/* SPDX-License-Identifier: MIT */
/*
 * Idle memory by age: since when each page has not been in use, and taking the oldest.
 *
 * A page is idle while it lies wholly in a cached block; a classic segment, while it is one cached
 * block.  Its age runs from the last free of a block that touched it: each free notes its arena's
 * time, `now`, at the granules of the block (xseg_arena_stamp()).  That time only moves when somebody
 * looks, so that a free needs no clock, and an age is exact up to the time between two looks.
 *
 * What is to go must not have work queued.  Either its stream is idle, or a fence says so: an event
 * that was recorded on the stream when the arena's time was T; once it is complete, all that was
 * cached before T has passed.  So a stream that never rests holds up nothing, and nobody waits.
 *
 * Left alone are pools that somebody holds, unless a trim names one, and pools with memory functions of their own.
 *
 * Locking: GROWTH is held, no other lock; no capture is under way on the device.
 */
#ifndef XSEG_CORE_IDLE_H
#define XSEG_CORE_IDLE_H

#include "src/core/device/device.h"

/* Ages from 0 up to a span in equal steps; from there on four steps to a doubling. */
#define XSEG_IDLE_STEPS 64u
#define XSEG_IDLE_OLDER 64u
#define XSEG_IDLE_ALL   (XSEG_IDLE_STEPS + XSEG_IDLE_OLDER)

struct xseg_idle_ages {
    uint64_t now, span; /* nanoseconds; with a span of 0 everything is older */
    uint64_t bytes[XSEG_IDLE_ALL], pages[XSEG_IDLE_ALL]; /* by age */
    uint64_t fresh;   /* of these, what has been in use since the look before */
    uint64_t largest; /* bytes of the largest page or segment */
};

/*
 * Count what is idle.  From here on `now` is the time of every arena; it must not be below the last.
 *
 * named: a pool that may be held, see xseg_pool_may_trim(); or NULL
 */
void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages);

/* What to take: by step of age in `ages`. */
struct xseg_idle_wish {
    const struct xseg_idle_ages *ages;
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    uint32_t step;                          /* everything of later steps */
    uint64_t part, part_pages;              /* bytes and pages of this one */
    bool rounds_up;                         /* a page for what is left of `part`; else none */
    uint64_t pages;                         /* no more than so many */
    bool wait;                              /* for busy streams */
    bool keep;                              /* pages are idle afterwards; else the driver's */
};

/* How far the oldest pages are to go: `bytes` of them, none younger than a step, and no more than so
 * many pages.  Sets what the wish says of steps and pages. */
void xseg_idle_choose(struct xseg_idle_wish *wish, uint64_t bytes, uint32_t youngest,
                      uint64_t pages);

/* What happened to it, in bytes. */
struct xseg_idle_taken {
    uint64_t returned, busy, refused;
    uint64_t pages; /* taken */
};

/*
 * Take the wanted pages out of their segments, those of busy streams as far as a fence allows.
 *
 * Returns: XSEG_OK, or XSEG_ERR_DEVICE_LOST
 * Cost:    for each arena with such pages a stream query, and for a busy one an event query or
 *          record; unmap and release of what goes
 */
xseg_status xseg_idle_take(struct xseg_device *device, const struct xseg_idle_wish *wish,
                           struct xseg_idle_taken *taken);

/* The device closes, or is lost: fences go back. */
void xseg_idle_end(struct xseg_device *device);

#endif
