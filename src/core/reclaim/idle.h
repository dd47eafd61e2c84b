/* SPDX-License-Identifier: MIT */
/*
 * Idle memory by age: how long each page has not been in use, and taking the oldest pages.
 *
 * A page is idle while it lies wholly in a cached block; a classic segment, while it is one cached
 * block.  Its age runs from the last free of a block that touched it: each free notes its arena's
 * time, `now`, at the granules of the block (xseg_arena_stamp()).  The arena's time only moves with a
 * look, so that a free needs no clock, and an age is exact up to the time between two looks.
 *
 * Memory goes only if no work is queued on it.  Either its stream is idle, or a *fence* has passed: an
 * event that was recorded on the stream when the arena's time was T.  Once the event is complete, the work
 * on all memory that was cached before T has ended.  So memory of a stream that never rests can go, too,
 * without a wait.
 *
 * Pools with a holder are left alone, unless a trim names one, and so are pools with memory functions of their own.
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
    uint64_t fresh;   /* of these bytes, those in use at some time since the look before */
    uint64_t largest; /* bytes of the largest page or segment */
    uint64_t cached;  /* all cached memory of these pools */
    uint64_t held;    /* of it, in idle pages that stay: pinned or exported */
};

/*
 * The step of the ages in `bytes` and `pages` that memory is counted in which has been idle since a time.  Memory that
 * became idle after the look began has no age: another look may run while observers are told.
 */
uint32_t xseg_idle_step(const struct xseg_idle_ages *ages, uint64_t since);

/*
 * Count idle memory.  From here on `now` is the time of every arena; it must not be below the one of the last call.
 *
 * named: a pool that may be held, see xseg_pool_may_trim(); or NULL
 */
void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages);

/* Which idle memory to take, by steps of age in `ages`. */
struct xseg_idle_wish {
    const struct xseg_idle_ages *ages;
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    uint32_t step;                          /* everything of later steps */
    uint64_t part, part_pages;              /* bytes and pages of this step */
    bool rounds_up; /* the last page may be larger than the rest of `part` */
    uint64_t pages; /* no more than so many */
    bool wait;      /* for busy streams */
    bool keep;      /* pages stay idle; else the driver gets them */
    bool is_gift;   /* other processes want it: the cause is GIVE, not DECAY */
};

/* Set the steps and pages of a wish: the oldest pages, `bytes` of them, none of a step before `youngest`, and no more
 * than `pages`. */
void xseg_idle_choose(struct xseg_idle_wish *wish, uint64_t bytes, uint32_t youngest,
                      uint64_t pages);

/* What has become of the wanted memory, in bytes. */
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

/* Give the fences back: the device closes.  GROWTH is held. */
void xseg_idle_end(struct xseg_device *device);

#endif
