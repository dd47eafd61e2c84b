/* SPDX-License-Identifier: MIT */
/*
 * Reclaim: the one operation that releases cached memory of a device, according to a policy.
 *
 * Whole classic segments are freed; of expandable segments, the whole pages inside each cached
 * block are unmapped, and the parts before and after them stay cached:
 *
 *     [ cached ............................ ]              one cached block
 *     |    |        |        |        |    |               page boundaries
 *     [ca][ unmapped ................. ][ca]               the result
 *
 * Every release of cached memory (trim, decay, garbage collection, remapping under memory pressure)
 * fills in a policy and runs the same loop over the arenas:
 *
 *     claim    under the arena lock: blocks, or pages inside blocks, that the policy selects
 *     check    that no work is queued on the memory: a stream query, a wait, or a completed fence
 *     notify   observers, which may keep the memory
 *     release  each claimed block, without the arena lock
 *     settle   memory that was kept, or that the driver did not unmap, is cached again
 *
 * The smallest blocks are claimed first, and memory is released in ascending order of size, then
 * address, as in PyTorch.
 *
 * Invariants:
 *   - Memory is unmapped only after the work of its stream has completed, known from a query, a
 *     wait, or a fence (idle.h).
 *   - A page that overlaps an allocated or pending block is never unmapped.  A pool with holders
 *     keeps its memory, unless the policy names the pool or the device closes.
 *   - Nothing is unmapped during a capture.
 *   - Memory that a failed driver call leaves in an unknown state is counted, and a later trim
 *     retries the call.
 *
 * Other modules call the steps directly for blocks that they claim by other rules.
 *
 * Locking: the caller holds the device memory lock and no other lock, unless a function states
 * otherwise.  The arena lock is never held during a driver call.
 */
#ifndef XSEG_CORE_RECLAIM_H
#define XSEG_CORE_RECLAIM_H

#include "src/core/device/device.h"
#include "src/core/reclaim/idle.h"
#include "xseg/history.h"

/* The arenas of a policy, before its pool and stream are considered. */
enum xseg_reclaim_scope {
    /* Arenas of pools that are not retained, and of the pool that the policy names. */
    XSEG_RECLAIM_RELEASABLE,
    XSEG_RECLAIM_PAGES, /* of these, arenas whose memory the library allocates from the driver */
    XSEG_RECLAIM_LARGE, /* the large arenas of the default pool */
    XSEG_RECLAIM_ALL,   /* every arena */
    XSEG_RECLAIM_ARENA, /* policy->arena only */
};

/* The check that no work is queued on claimed memory. */
enum xseg_reclaim_work {
    XSEG_RECLAIM_QUERY, /* streams are queried; memory of a busy stream stays cached */
    XSEG_RECLAIM_WAIT,  /* streams are waited for */
    /* As WAIT, but not where only classic segments are freed: cuMemFree waits by itself. */
    XSEG_RECLAIM_WAIT_TO_UNMAP,
    /* The memory of a paused pool: it has no work, and observers have been notified. */
    XSEG_RECLAIM_EVICTED,
};

struct xseg_reclaim_policy {
    /* Scope. */
    enum xseg_reclaim_scope scope;
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    struct xseg_arena *arena;               /* the first arena to visit, or NULL */

    /* Selection. */
    uint64_t bytes;     /* stop after this many bytes are claimed; UINT64_MAX: no limit */
    uint64_t min_block; /* bytes of the smallest cached blocks, at least 2 MiB */
    /* Blocks of at least this size are claimed first, in a pass of their own; 0: none. */
    uint64_t preferred_block;
    uint32_t searches;     /* the current count of searches, for min_searches */
    uint32_t min_searches; /* only blocks that were cached this many searches ago; 0: any */
    /* Only pages of these ages, from the end of each block; .ages NULL: any age.  Arenas whose ages
     * are not counted are then left out. */
    struct xseg_idle_limit idle;
    bool classic_only;   /* only classic segments */
    bool all_or_nothing; /* release nothing unless `bytes` can be claimed */
    bool largest_first;  /* the largest blocks instead; with all_or_nothing and one arena */

    /* Release. */
    enum xseg_reclaim_work work;
    /*
     * Pages become idle pages of the device; else they are released to the driver, as segments are.
     */
    bool keep_pages;
    enum xseg_history_action cause; /* for the history */
};

/* Bytes of the selected memory by outcome. */
struct xseg_reclaim_result {
    uint64_t released;
    uint64_t busy;    /* still cached: work is queued */
    uint64_t kept;    /* still cached: an observer keeps it, or a capture has begun */
    uint64_t refused; /* still cached: the driver did not unmap it */
    uint64_t pages;   /* claimed pages; counted with policy->idle.ages only */
    /* With all_or_nothing: `bytes` were claimed, and observers did not keep them. */
    bool is_complete;
};

/*
 * Release the cached memory of a device that a policy selects.  Other threads may use the device
 * while observers are notified.  Once a capture has begun, the rest of the memory stays cached.
 *
 * result: set
 * Returns: XSEG_OK; the first error of a stream query or wait; XSEG_ERR_DEVICE_LOST
 * Cost:    O(cached blocks of at least min_block in the scope); a query (or a wait) for each arena
 *          with claimed memory, and for a busy stream an event query or record if idle.ages is set;
 *          one unmap for each run of pages
 */
xseg_status xseg_reclaim(struct xseg_device *device, const struct xseg_reclaim_policy *policy,
                         struct xseg_reclaim_result *result);

/*
 * Release idle pages of a device, its page cache, before memory of arenas: up to `*bytes`, which
 * are reduced by what was released, and up to a number of pages.  Returns the number of released
 * pages.
 */
uint64_t xseg_reclaim_page_cache(struct xseg_device *device, uint64_t *bytes, uint64_t pages);

/* --- Segments without memory. --- */

/* Destroy a segment without mapped memory: release its virtual address range.  Returns whether the
 * segment was destroyed. */
bool xseg_reclaim_destroy_unmapped(struct xseg_extent *extent);

/*
 * Destroy all segments of an arena that have no mapped memory.  Returns whether no segment is left.
 */
bool xseg_reclaim_destroy_all_unmapped(struct xseg_arena *arena);

/* xseg_reclaim_destroy_all_unmapped() as a visitor of arenas. */
void xseg_reclaim_visit_unmapped(void *self, struct xseg_arena *arena);

/* Destroy at most `max` segments of an arena that have no mapped memory. */
void xseg_reclaim_destroy_some_unmapped(struct xseg_arena *arena, uint32_t max);

/* Destroy the segment of an elastic range without mapped memory. */
void xseg_reclaim_destroy_elastic(struct xseg_extent *extent);

/* --- Steps. --- */

/* Claim whole pages inside a cached block, `count` granules from `first` on; the parts before and
 * after them stay cached.  The caller has reserved XSEG_ARENA_RECORDS block records. */
struct xseg_block *xseg_reclaim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                            uint32_t first, uint32_t count)
    XSEG_REQUIRES(arena->lock);

/* Set *idle to whether the work queued on a stream has completed; with `wait`, wait for the work
 * first. */
xseg_status xseg_reclaim_check_stream(struct xseg_device *device, struct xseg_known_stream *stream,
                                      bool wait, bool *idle);

/*
 * Release the memory of one claimed block; memory that the driver does not unmap is cached again.
 *
 * keep:    pages become idle pages of the device; else they are released to the driver, as a
 *          classic segment always is
 * cause:   for the history; SEGMENT_UNMAP if no policy is the cause
 * Returns: the released bytes
 */
uint64_t xseg_reclaim_release_block(struct xseg_block *block, bool keep,
                                    enum xseg_history_action cause);

/* Settle claimed blocks, linked through `chain`: cache them again. */
void xseg_reclaim_settle(struct xseg_block *claimed);

#endif
