/* SPDX-License-Identifier: MIT */
/*
 * Reclaim: trims, limits, prewarming and pins of device memory.
 *
 *     struct xseg_scope scope = XSEG_SCOPE_ALL;
 *     struct xseg_trim_options options = {sizeof(options)};
 *     struct xseg_trim_result result = {sizeof(result)};
 *     scope.device = 0;
 *     options.target_bytes = 1 << 30; // Keep 1 GiB reserved on device 0.
 *     if (xseg_trim(allocator, &scope, &options, &result) == XSEG_OK)
 *         printf("%llu bytes released\n", (unsigned long long)result.released); // The driver has them.
 *
 * Terms:
 *   idle      cached memory that covers whole pages or whole classic segments, so that it can be released.
 *   trim      the release of idle memory on request (xseg_trim()).
 *   decay     the periodic release of memory that has been idle for some time, or that exceeds a soft limit
 *             (docs/services.md).  It runs in decay passes while a decay key is set: idle_ms, soft_limit_mb or
 *             device_free_min_mb, or soft_bytes of xseg_limits_set().
 *   remap     the move of an idle page to the segment of another stream or pool, under memory pressure.
 *
 * The memory at an address changes if its page is unmapped and another page is mapped there.  Trims, decay, remaps and
 * the pause of a pool unmap pages; only a pause unmaps pages of allocated blocks.  A library that registers addresses
 * (NCCL, RDMA) has three choices.
 *   - Pin the memory (xseg_pin()).
 *   - Use callbacks before pages are unmapped and after pages are mapped (observer.h, register.h).
 *   - Compare generations (struct xseg_mapping): a registration is stale if the generation has changed since.
 */
#ifndef XSEG_RECLAIM_H
#define XSEG_RECLAIM_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of xseg_trim(). */
struct xseg_trim_options {
    size_t struct_size;    /* sizeof(struct xseg_trim_options) */
    bool wait;             /* synchronize the streams of pending and cached blocks */
    uint64_t target_bytes; /* stop once at most this many bytes are reserved, per device */
    uint64_t idle_ms;      /* release only memory that has been idle for this time; 0: any age */
    bool due_only;         /* release only memory that is due */
    uint64_t max_us;       /* due_only: maximum driver time per device in us; 0: unlimited */
};

/** Result of xseg_trim(), in bytes.  Set struct_size before the call. */
struct xseg_trim_result {
    size_t struct_size;       /* sizeof(struct xseg_trim_result) */
    uint64_t released;        /* released to the driver */
    uint64_t kept_fragmented; /* cached, on pages or in segments that also have blocks in use */
    uint64_t kept_busy;       /* cached, but the work of its stream has not completed */
    uint64_t kept_pool;       /* cached in private pools that the call skips */
    uint64_t kept_pending;    /* in pending blocks */
    uint64_t kept_failed;     /* the driver call failed; the next trim retries it */
    uint64_t kept_capture;    /* cached, but a capture is active on the device */
    uint64_t kept_by_options; /* idle, but excluded by target_bytes or idle_ms */
    uint64_t remaining;       /* still allocated from the driver; see xseg_trim() */
    uint64_t kept_pinned;     /* cached, but pinned: xseg_pin(), descriptors, registrations */
    uint64_t kept_exported;   /* cached, but exported (share.h) and not pinned */
};

/**
 * Release idle memory to the driver: whole classic segments, and whole pages of expandable segments.
 *
 * Segments keep their VA ranges.  If the scope selects neither a stream nor a pool, the page cache (page_cache_mb) is
 * released first.  A device with an active capture is skipped.  A retained private pool is skipped, unless the scope
 * names the pool.  A retained pool that took part in a capture is always skipped, since graphs may use its cached
 * memory.
 *
 * wait: by default the call waits for no stream and keeps the memory of busy streams.  With `wait` it synchronizes the
 * streams of pending blocks, cached blocks and decommitted granules.
 *
 * target_bytes: 0 releases all idle memory of the scope.
 *
 * idle_ms: ages are recorded while a decay key is set (docs/services.md), otherwise from the first trim with idle_ms
 * on.
 *
 * due_only: the call releases memory that is due by idle_ms, soft_limit_mb, soft_bytes (xseg_limits_set()) or
 * device_free_min_mb (docs/services.md).  Without one of these keys or limits nothing is due.  Allocations and frees
 * release memory that is due in small steps.  A program that has periods without requests calls xseg_trim() with
 * due_only from a timer or an idle loop.  Each call releases at least one due page per device, and the next call
 * continues after max_us.  The result has only `released` and `remaining`.  due_only excludes wait, target_bytes and
 * idle_ms.
 *
 * remaining: the reserved memory of the scope.  If the scope selects neither a stream nor a pool, the page cache and
 * memory that the driver did not release are added.
 *
 * @param scope    scope; NULL: all memory.
 * @param options  NULL for the defaults.
 * @param out      receives the result, up to out->struct_size bytes; may be NULL.
 *
 * @return XSEG_OK               also if the driver did not release some memory (kept_failed).
 *         XSEG_ERR_DRIVER       a stream could not be queried or synchronized.  Memory of other streams may have been
 *                               released; the result is not written.
 *         XSEG_ERR_UNSUPPORTED  due_only, and the scope names a pool or a stream.
 *         XSEG_ERR_ARGUMENT     also: due_only with an excluded option, or max_us without due_only.
 * Threads: any; waits for the device memory lock.
 * Cost: one stream query (or synchronize) for each stream and pool with idle memory, separately for small and large
 *       segments.  One unmap for each contiguous run of idle pages, if the driver supports that, and one release per
 *       page.
 */
XSEG_API xseg_status xseg_trim(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                               const struct xseg_trim_options *options,
                               struct xseg_trim_result *out);

/** Limits of a device or a pool.  Initialize with XSEG_LIMITS_INIT. */
struct xseg_limits {
    size_t struct_size;          /* sizeof(struct xseg_limits) */
    uint64_t hard_bytes;         /* maximum of physical memory; UINT64_MAX: unlimited */
    uint64_t soft_bytes;         /* decay releases idle memory above it; UINT64_MAX: unlimited */
    uint64_t keep_bytes;         /* decay stops at this many reserved bytes */
    double fraction;             /* maximum of physical memory, 0 to 1 of the device memory */
    bool has_fraction;           /* false: keep the current fraction */
    double rejection_fraction;   /* throw_on_cudamalloc_oom rejects requests above it; 0 to 1 */
    bool has_rejection_fraction; /* false: keep the current rejection_fraction */
};
/* clang-format off */
#define XSEG_LIMITS_INIT {sizeof(struct xseg_limits), UINT64_MAX, UINT64_MAX, 0, 1, false, 1, false}
/* clang-format on */

/**
 * Get the limits of one device or one private pool.
 *
 * The initial limits of a device are those of the keys hard_limit_mb, soft_limit_mb, keep_mb and
 * per_process_memory_fraction.  The initial rejection_fraction is per_process_memory_fraction.  A pool has only
 * hard_bytes, initially limit_bytes of its options.
 *
 * @param scope  names one device or one private pool, and no stream.
 * @param out    receives the limits, up to out->struct_size bytes.  Both has_ members are true for a device.
 *
 * @return XSEG_ERR_UNSUPPORTED  the scope names a stream.
 * Cost: no driver call once the device is open.
 */
XSEG_API xseg_status xseg_limits_get(struct xseg_allocator *allocator,
                                     const struct xseg_scope *scope, struct xseg_limits *out);

/**
 * Set the limits of one device or one private pool.
 *
 * hard_bytes, soft_bytes and keep_bytes are replaced together: get the limits first to change one of them.  A fraction
 * of 1 is unlimited.  `fraction` does not change the rejection_fraction.  A later xseg_config_set() sets the limits
 * whose keys it names, and the rejection_fraction with per_process_memory_fraction.
 *
 * The lower one of hard_bytes and `fraction` applies.  A request that would exceed it is served from idle memory, or
 * fails with XSEG_ERR_LIMIT.  soft_bytes never causes a failure.  garbage_collection_threshold has an effect only while
 * `fraction` is below 1.
 *
 * A limit of a device that is below the memory in use releases idle memory of the device immediately, as xseg_trim()
 * without `wait`.  Allocated blocks stay; until enough memory is released, no request allocates memory from the driver.
 * The limit of a pool applies to later growths of the pool and releases nothing.
 *
 * @param scope   names one device or one private pool, and no stream.
 * @param limits  new limits.
 *
 * @return XSEG_ERR_ARGUMENT     also: keep_bytes exceeds soft_bytes or hard_bytes, a limited soft_bytes exceeds
 *                               hard_bytes, or a fraction is not from 0 to 1.
 *         XSEG_ERR_UNSUPPORTED  the scope names a stream, or limits of a pool other than hard_bytes are set.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call, unless more than the limit is in use.
 */
XSEG_API xseg_status xseg_limits_set(struct xseg_allocator *allocator,
                                     const struct xseg_scope *scope,
                                     const struct xseg_limits *limits);

/**
 * Map pages, or allocate a classic segment, so that the next request of up to `bytes` in the scope is a hit.
 *
 * The call has no effect if a cached block of that size exists.
 *
 * @param scope  names one device or one pool; the stream is the legacy default stream unless one_stream is set.
 * @param bytes  size of one future request; up to 1 MiB the memory is in small segments.  0 has no effect.
 *
 * @return the statuses of xseg_alloc().
 *         XSEG_ERR_ARGUMENT  also: the scope names no device, or the pool has been released.
 * Threads: any; waits for the device memory lock.
 * Cost: as a miss of xseg_alloc().  No allocation is counted.
 */
XSEG_API xseg_status xseg_prewarm(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  size_t bytes);

/* --- Pins. --- */

/**
 * Pin the memory of a part of an allocated block: the pages of the part are not unmapped, moved or paused until they
 * are unpinned.
 *
 * Pins are counted for each page, and stay when the block is freed.  A classic segment is pinned as a whole.
 *
 * @param ptr    any address in an allocated block.
 * @param bytes  size of the part, not 0; the part ends in the block.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  ptr is not in an allocated block.
 *         XSEG_ERR_PAUSED         the pool of the block is paused.
 *         XSEG_ERR_BUSY           another call has claimed the memory, or a page has 2^32 - 1 pins.
 *         XSEG_ERR_ARGUMENT       also: the part exceeds the block.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pin(struct xseg_allocator *allocator, const void *ptr, size_t bytes);

/**
 * Unpin memory, once for each xseg_pin() with the same arguments.
 *
 * The block may have been freed.  Pins of descriptors and registrations (register.h) are counted separately, and this
 * function does not release them.
 *
 * @return XSEG_ERR_ARGUMENT       also: a page of the part is not pinned, and no pin is released; or the part exceeds
 *                                 its segment.
 *         XSEG_ERR_NOT_ALLOCATED  ptr is in no segment.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_unpin(struct xseg_allocator *allocator, const void *ptr, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
