/* SPDX-License-Identifier: MIT */
/*
 * Reclaim: the operation that releases cached memory of a device, according to a policy.
 *
 * Whole classic segments are freed; of expandable segments, the whole pages inside each cached
 * block are unmapped, and the remainders of the block stay cached:
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
 *     wait, or a fence (decay.h).
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
#include "src/core/device/pool.h"
#include "src/core/reclaim/decay.h"
#include "xseg/history.h"
#include "xseg/reclaim.h"

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
    /* Blocks of at least this size are claimed first, in a separate pass; 0: no such pass. */
    uint64_t preferred_block;
    uint32_t searches;     /* the current count of searches, for min_searches */
    uint32_t min_searches; /* only blocks that were cached this many searches ago; 0: any */
    /* Only pages of these ages, from the end of each block; .ages NULL: any age.  A policy with
     * ages excludes arenas whose ages are not counted. */
    struct xseg_idle_limit idle;
    bool classic_only;   /* only classic segments */
    bool all_or_nothing; /* release nothing unless `bytes` can be claimed */
    bool largest_first;  /* claim the largest blocks; requires all_or_nothing and one arena */

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
    uint64_t busy;   /* still cached: work is queued */
    uint64_t kept;   /* still cached: an observer keeps it, or a capture has begun */
    uint64_t failed; /* still cached: the driver did not unmap it */
    uint64_t pages;  /* claimed pages; counted with policy->idle.ages only */
    /* With all_or_nothing: `bytes` were claimed, and observers did not keep them. */
    bool is_complete;
};

/*
 * Release the cached memory of a device that a policy selects.  Other threads may use the device
 * while observers are notified.  After a capture has begun, the remaining memory stays cached.
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
 * Destroy all segments of an arena that have no mapped memory.  Returns whether no segment remains.
 */
bool xseg_reclaim_destroy_all_unmapped(struct xseg_arena *arena);

/* Destroy at most `max` segments of an arena that have no mapped memory. */
void xseg_reclaim_destroy_some_unmapped(struct xseg_arena *arena, uint32_t max);

/* Destroy the segment of an elastic range without mapped memory. */
void xseg_reclaim_destroy_elastic(struct xseg_extent *extent);

/* --- Steps. --- */

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

/* --- Trim. --- */

/*
 * A trim is a policy that releases cached memory immediately: on a call of the application, for a
 * limit, or for a request that is about to fail.  decay.h has the policies that release memory over
 * time.
 *
 * A trim of a device first completes pending blocks and pending unmaps, by a poll or a wait,
 * retries failed driver calls, discards paused pools that cannot be resumed, and releases the page
 * cache.  Then one reclaim releases the selected memory.  Finally all memory that is still reserved
 * in the scope is counted by the reason why it was kept.
 * Without `wait` a trim never waits for a stream.
 */

/* The scope and the options of a trim. */
struct xseg_trim_plan {
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    bool wait;                              /* for pending blocks and streams */
    bool retained_pools;                    /* include pools with holders: the device closes */
    uint64_t target_bytes;                  /* stop at this many reserved bytes of the scope */
    uint64_t idle_ms; /* only memory that has been idle for this time; 0: any */
};

/*
 * Trim a device.  The caller holds the device memory lock and no other lock.
 *
 * result:  the results of this device are added
 * Returns: XSEG_OK; XSEG_ERR_DRIVER if a stream could not be queried or waited for;
 *          XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trim_result *result);

/*
 * Release all idle memory of a device before a request is retried.  The caller holds the device
 * memory lock and no other lock.
 *
 * wait: wait for pending blocks and streams
 * Returns: XSEG_OK, also if a stream could not be queried or waited for: the memory of other
 *          streams is released; XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_all(struct xseg_device *device, bool wait);

/*
 * Apply changed limits: release the page cache above page_cache_mb and, down to the hard limit,
 * idle memory without queued work.  The caller holds no lock.
 *
 * Cost: no driver call within the limits; else as a trim that does not wait
 */
void xseg_trim_to_limits(struct xseg_device *device);

/*
 * Free cached classic segments of an arena of at least `min` bytes: the smallest segment with
 * `needed` bytes, else the largest segments that have `needed` bytes together (PyTorch's rule for
 * max_split_size_mb).  cuMemFree waits for the device.  The caller holds the device memory lock and
 * no other lock.
 *
 * Returns: whether `needed` bytes were freed; if not, no memory was freed
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t min, uint64_t needed);

/*
 * Collect garbage by age for a request that is about to grow.  The threshold is the fraction
 * garbage_collection_threshold of the limit that per_process_memory_fraction sets.  While more is
 * reserved, old cached memory of the large arenas of the default pool is released, but not during a
 * capture.  The caller holds the device memory lock and no other lock.
 *
 * The age of a cached block is the number of searches of these arenas since the block was cached.
 * Each round releases the blocks that are at least as old as the average (PyTorch's rule).
 *
 * Cost: waits for the streams whose memory is unmapped
 */
void xseg_trim_garbage(struct xseg_device *device, const struct xseg_config *config);

/* --- Release of pools. --- */

/*
 * Release of pools, and discard of paused pools (pause.h).
 *
 * A pool is released by its holders and by segments that end.  The last holder retires the pool;
 * the last reference destroys it (pool.h).  A paused pool that cannot be resumed any more is
 * discarded: its saved contents are freed, and its evicted blocks become unmapped blocks.
 *
 * Locking: functions that release a pool state their locks; functions that discard are called with
 * the device memory lock held and no other lock.
 */

struct xseg_contents;
struct xseg_device;

/*
 * Remove a holder of a pool.  The last holder retires the pool; a pool without memory is destroyed,
 * and its `on_destroy` is called.  The caller holds no lock.
 *
 * Returns: false if the pool has no holder
 * Cost:    if the pool has segments without memory, one cuMemAddressFree per segment
 */
bool xseg_release_pool(struct xseg_pool *pool);

/* End the segment exports of a pool, which have no close (xseg_export_segment()).  The device
 * memory lock is held. */
void xseg_unexport_segments(struct xseg_pool *pool);

/* Drop a reference of a pool; the last one destroys the pool.  Locks PENDING.  The caller holds no
 * ARENA lock and must not read the pool afterwards, unless it visits the pool. */
void xseg_release_pool_reference(struct xseg_pool *pool);

/* Free the saved contents of a pool; NULL is ignored.  The caller holds the device memory lock. */
void xseg_discard_contents(struct xseg_contents *contents);

/* Discard paused pools without holders and without allocated blocks.
 * all: discard every paused pool, because the device closes */
void xseg_discard_paused_pools(struct xseg_device *device, bool all);

/* Free the saved contents of all pools and nothing else, because the device is lost. */
void xseg_discard_lost_contents(struct xseg_device *device);

#endif
