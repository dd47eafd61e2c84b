/* SPDX-License-Identifier: MIT */
/*
 * Decay: the release of idle memory over time, without a stall.
 *
 * A decay pass runs periodically.  It counts idle memory by age and computes a policy of
 * reclaim.h:
 *
 *   - A smooth curve specifies which fraction of the memory of each age is released, oldest first.
 *     Nothing is released up to a quarter of idle_ms, so that memory which is reused stays mapped,
 *     and all memory is released after idle_ms.  In between the curve is the smoothstep
 *     3x^2 - 2x^3, as in jemalloc's decay.
 *   - Decay stops at the retained minimum: keep_mb, or the peak of the bytes in use of the last
 *     keep_window_s.
 *   - Above soft_limit_mb, or while the device has less than device_free_min_mb free, the excess or
 *     missing bytes are released at any age.
 *
 * Passes run on the request path, in xseg_trim() with due_only, and in the background thread.  A
 * pass on the request path spends at most a slice of driver time and never waits for a stream, a
 * lock or a capture; the next pass continues.  All passes together stay within reclaim_us_per_s:
 * passes spend a credit that grows with time.  Without decay no clock is read.
 *
 * A pass is O(cached blocks).  The bytes that the curve releases are computed from the histogram of
 * ages alone, and small amounts accumulate in `owed` until they cover a page.
 */
#ifndef XSEG_CORE_DECAY_H
#define XSEG_CORE_DECAY_H

#include <stdatomic.h>

#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "xseg/status.h"

/* --- Idle memory. --- */

/*
 * Idle memory: the whole pages of cached blocks, their ages, and selection by age for reclaim.h.
 *
 * A page is idle while all of it is in a cached block.  A classic segment is idle while it is one
 * cached block.  The age of an idle page runs from the last free of a block that overlapped it:
 * each free stores the time of its arena in the granules of the block
 * (xseg_arena_run_free_actions()).  The time of an arena advances only when ages are counted, so a
 * free does not read a clock, and an age is exact up to the time between two counts.
 *
 * Ages are counted in a histogram of bytes and pages: linear steps up to a span (idle_ms), then
 * four steps per doubling.  A limit selects the oldest pages by their step.  A page is compared
 * with the limit again when it is claimed, so no list of pages is needed.
 *
 * Memory is released only if no work is queued on it: its stream is idle, or a *fence* has
 * completed, an event that was recorded on the stream when the arena's time was T.  After the event
 * has completed, the work on all memory that was cached before T has ended.  So memory of a stream
 * that is never idle can be released without a wait.
 *
 * Locking: the caller holds the device memory lock and no other lock.  The caller of functions on
 * one block or page holds the arena lock.
 */

/* --- Pages of a cached block. --- */

/* A run of granules.  A classic segment counts as one page of one granule. */
struct xseg_idle_run {
    uint32_t first, count;
};

/* The whole pages of a block of a segment; of a classic segment, its only page if the block is the
 * whole segment. */
struct xseg_idle_run xseg_idle_whole_pages(const struct xseg_segment *segment, uint64_t base,
                                           uint64_t bytes);

/* Bytes of the whole pages of a block: pages that can be released, and pages that are pinned or
 * exported. */
struct xseg_idle_bytes {
    uint64_t releasable;
    struct xseg_segment_retained retained;
};
struct xseg_idle_bytes xseg_idle_whole_bytes(const struct xseg_segment *segment, uint64_t base,
                                             uint64_t bytes);

/* Granules of a page; 0 if no page starts at the granule. */
static inline uint32_t xseg_idle_page_length(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_is_expandable(segment) ? segment->length[page] : 1;
}

static inline uint64_t xseg_idle_page_bytes(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_is_expandable(segment) ? segment->length[page] * segment->granule_bytes
                                               : segment->bytes;
}

/* Whether a page is pinned or exported. */
static inline bool xseg_idle_page_is_retained(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_has_retained(segment) &&
           xseg_segment_is_retained(segment, page, xseg_idle_page_length(segment, page));
}

/* The time of the last free of a block that overlapped a page. */
uint64_t xseg_idle_page_since(const struct xseg_segment *segment, uint32_t page);

/* --- Ages. --- */

/* Ages from 0 up to a span in equal steps; from there on four steps to a doubling. */
#define XSEG_IDLE_STEPS 64u
#define XSEG_IDLE_OLDER 64u
#define XSEG_IDLE_ALL   (XSEG_IDLE_STEPS + XSEG_IDLE_OLDER)

struct xseg_idle_ages {
    uint64_t now, span; /* nanoseconds; with a span of 0 everything is older */
    uint64_t bytes[XSEG_IDLE_ALL], pages[XSEG_IDLE_ALL]; /* by age */
    uint64_t fresh;    /* of these bytes, bytes that were in use since the previous count */
    uint64_t largest;  /* bytes of the largest page or segment */
    uint64_t cached;   /* all cached memory of the counted arenas */
    uint64_t retained; /* of the cached memory, in idle pages that are pinned or exported */
};

/* The step of memory that has been idle since a time, an index of `bytes` and `pages`.  Memory that
 * became idle after the count has age 0: another count may run while observers are notified. */
uint32_t xseg_idle_step(const struct xseg_idle_ages *ages, uint64_t since);

/*
 * Whether ages of an arena's memory are counted.  Guarded arenas, pools with memory functions of
 * the application, and pools that xseg_pool_may_trim() excludes are not counted.
 *
 * named: a pool that is included although it has holders, or NULL
 */
static inline bool xseg_idle_is_counted(const struct xseg_arena *arena,
                                        const struct xseg_pool *named)
{
    return xseg_pool_may_trim(arena->pool, named) && !arena->pool->has_own_memory &&
           !arena->is_guarded;
}

/*
 * Count idle memory by age, and set the time of every arena to `now`, which must not decrease
 * between calls.
 *
 * named: as in xseg_idle_is_counted()
 */
void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages);

/* --- Selection by age. --- */

/* A selection of idle memory by steps of age in `ages`. */
struct xseg_idle_limit {
    const struct xseg_idle_ages *ages;
    uint32_t step;                   /* later steps are selected completely */
    uint64_t step_bytes, step_pages; /* bytes and pages of `step` that may still be selected */
    uint64_t pages;                  /* pages of all steps that may still be selected */
    bool rounds_up;                  /* the last page may exceed `step_bytes` */
};

/* Set a limit that selects the oldest pages: at most `bytes` and `pages`, and no page of a step
 * before `youngest`. */
void xseg_idle_select_oldest(struct xseg_idle_limit *limit, uint64_t bytes, uint32_t youngest,
                             uint64_t pages);

/* Subtract a page that has been idle since a time from a limit.  Returns false if the limit does
 * not select the page. */
bool xseg_idle_claim(struct xseg_idle_limit *limit, uint64_t since, uint64_t bytes);

/* --- Fences. --- */

/* Poll the fence of an arena whose stream is busy, or record one.  Returns a time T: the work on
 * memory that was cached before T has completed. */
uint64_t xseg_idle_poll_fence(struct xseg_arena *arena, uint64_t now);

/* Return the fences of all arenas, because the device closes. */
void xseg_idle_return_fences(struct xseg_device *device);

/* Return the fences of a pool's arenas, because the pool is about to be destroyed. */
void xseg_idle_return_pool_fences(struct xseg_pool *pool);

/* --- Decay. --- */

#define XSEG_DECAY_WINDOW 16u

/* Peaks of the bytes in use, one for each time slot of the last keep_window_s.  Guarded by the
 * device memory lock. */
struct xseg_decay_window {
    uint64_t peak[XSEG_DECAY_WINDOW];
    uint64_t slot; /* index of the current slot since the start of the clock */
};

/* The decay of one device; guarded by the device memory lock. */
struct xseg_decay {
    atomic_uint_fast64_t due; /* clock of the next pass; may be read without the lock */
    uint64_t last_pass;       /* clock of the last pass; 0 before the first */
    uint64_t time;            /* the latest time of the arenas */
    uint64_t owed;            /* bytes that the curve releases, but that are not released yet */
    uint64_t credit;          /* nanoseconds of driver time that passes may spend */
    uint64_t page_cost;       /* moving average of nanoseconds per released page */
    struct xseg_decay_window window;
};

/* The time for ages of idle memory, which never decreases.  The caller holds the device memory
 * lock. */
uint64_t xseg_decay_now(struct xseg_device *device);

/* Compute how many of `idle` bytes of idle memory decay keeps: bytes below the retained minimum or,
 * without idle_ms, bytes within the limits.  The caller holds the device memory lock. */
uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle);

/* Run a pass on the request path, if one is due and no thread holds the device memory lock.  The
 * caller holds no lock. */
void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config);

/* The time between two passes of the background thread, in nanoseconds. */
uint64_t xseg_decay_interval(const struct xseg_config *config);

/*
 * Run a pass in the background thread.  It waits for the device memory lock and spends the driver
 * time that reclaim_us_per_s grants.  The caller holds no lock.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_background_pass(struct xseg_device *device,
                                       const struct xseg_config *config);

/*
 * Release idle memory of any age for other processes, also below the retained minimum.  Does not
 * wait for streams.  The caller holds the device memory lock, and no capture is active.
 *
 * bytes: target; the last page may exceed it
 * Returns: the bytes by which the physical memory of the device has decreased
 */
uint64_t xseg_decay_release(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t bytes);

/*
 * Run a pass now, for xseg_trim() with due_only.  The caller holds no lock.
 *
 * max_ns: limit of the driver time in nanoseconds; at least one page is released
 * released: increased by the bytes by which the physical memory decreases
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_release_due(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t max_ns, uint64_t *released);

#endif
