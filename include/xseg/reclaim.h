/* SPDX-License-Identifier: MIT */
/*
 * Reclaim: release cached memory to the driver, limit memory, map memory in advance, and pin memory.
 *
 *     struct xseg_scope scope = XSEG_SCOPE_ALL;
 *     struct xseg_trim_options options = {sizeof(options)};
 *     struct xseg_trim_result result = {sizeof(result)};
 *     scope.device = 0;
 *     options.target_bytes = 1 << 30; // Keep 1 GiB reserved on device 0.
 *     if (xseg_trim(allocator, &scope, &options, &result) == XSEG_OK)
 *         printf("%llu bytes released\n", (unsigned long long)result.released); // The driver has them.
 *
 * The memory under an address changes when pages are released and others are mapped: by a trim, by decay, under memory
 * pressure, and when a pool is paused.  A library that registers addresses (NCCL, RDMA) has three choices.
 *   - Pin the memory (xseg_pin()).
 *   - Be notified before pages are unmapped and after pages are mapped (observer.h, register.h).
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
    size_t struct_size; /* sizeof(struct xseg_trim_options) */
    bool wait; /* synchronize the streams of pending and cached blocks; false: keep busy memory */
    uint64_t target_bytes; /* stop once at most this much is reserved, per device; 0: no minimum */
    uint64_t idle_ms;      /* release only memory that is idle for this time; 0: any age */
    bool due_only;         /* release only memory that is due; excludes the members above */
    uint64_t max_us; /* due_only: maximum driver time per device in microseconds; 0: unlimited */
};

/** Result of xseg_trim(), in bytes.  Set struct_size before the call. */
struct xseg_trim_result {
    size_t struct_size;       /* sizeof(struct xseg_trim_result) */
    uint64_t released;        /* released to the driver */
    uint64_t kept_fragmented; /* cached, on pages or in segments that also hold blocks in use */
    uint64_t kept_busy;       /* cached, but the work of its stream has not completed */
    uint64_t kept_pool;       /* cached in private pools that are excluded */
    uint64_t kept_pending;    /* in pending blocks */
    uint64_t kept_failed;     /* the driver call failed; retried by the next trim */
    uint64_t kept_capture;    /* cached, but a capture is active on the device */
    uint64_t kept_by_options; /* idle, but excluded by target_bytes or idle_ms */
    uint64_t remaining;     /* reserved in the scope; of devices also idle pages, failed releases */
    uint64_t kept_pinned;   /* cached, but pinned with xseg_pin() */
    uint64_t kept_exported; /* cached, but exported with xseg_export() and not pinned */
};

/**
 * Release idle cached memory to the driver: whole classic segments, and whole pages of expandable segments.
 *
 * Segments keep their VA ranges.  If neither a stream nor a pool is selected, the page cache (page_cache_mb) is
 * released first.  Private pools that are retained are skipped, unless the scope names one and the pool never took part
 * in a capture.  Devices with an active capture are skipped.
 *
 * due_only releases what is due by idle_ms, soft_limit_mb or soft_bytes (xseg_limits_set()), and device_free_min_mb
 * (docs/services.md).  Allocations and frees do the same in small steps.  A program that can be without requests calls
 * it from a timer or an idle loop.  Each call releases at least one page, if one is due; memory beyond max_us is
 * released by the next call.  Without one of these keys or limits nothing is due.  The result has only `released` and
 * `remaining`.
 *
 * Ages are recorded while a decay key is set (docs/services.md), otherwise from the first trim with idle_ms on.
 *
 * @param scope    scope; NULL: all memory.
 * @param options  NULL for the defaults, which never wait.
 * @param out      receives the result, up to out->struct_size bytes; may be NULL.
 *
 * @return XSEG_OK               also if the driver did not release some memory (kept_failed).
 *         XSEG_ERR_DRIVER       a stream could not be queried or synchronized; xseg_stats_get() counts what was
 *                               released before.
 *         XSEG_ERR_UNSUPPORTED  due_only, and the scope names a pool or a stream.
 * Threads: any; waits for a growth or trim of the device, with due_only for no stream.
 * Cost: one stream query (or synchronize) for each stream, pool and size class with idle memory.  One unmap for each
 *       contiguous run of idle pages, if the driver supports that, and one release per page.
 */
XSEG_API xseg_status xseg_trim(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                               const struct xseg_trim_options *options,
                               struct xseg_trim_result *out);

/** Limits of a device or a pool, in bytes.  Initialize with XSEG_LIMITS_INIT. */
struct xseg_limits {
    size_t struct_size;  /* sizeof(struct xseg_limits) */
    uint64_t hard_bytes; /* maximum of physical memory; UINT64_MAX: unlimited */
    uint64_t soft_bytes; /* above it idle memory of any age is released; UINT64_MAX: unlimited */
    uint64_t keep_bytes; /* reserved memory up to which idle memory does not decay */
    double fraction;     /* maximum, 0 to 1 of the device memory (per_process_memory_fraction) */
    bool has_fraction;   /* false: keep the current fraction */
    double rejection_fraction;   /* throw_on_cudamalloc_oom rejects requests above it; 0 to 1 */
    bool has_rejection_fraction; /* false: keep the current rejection_fraction */
};
/* clang-format off */
#define XSEG_LIMITS_INIT {sizeof(struct xseg_limits), UINT64_MAX, UINT64_MAX, 0, 1, false, 1, false}
/* clang-format on */

/**
 * Get the limits of one device or one private pool.
 *
 * The limits of a device are initially those of hard_limit_mb, soft_limit_mb, keep_mb and per_process_memory_fraction.
 * The rejection fraction is initially per_process_memory_fraction.  The limit of a pool is initially limit_bytes of its
 * options; a pool has only hard_bytes.
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
 * of 1 is unlimited, and `fraction` does not change the rejection fraction.  A later xseg_config_set() sets the limits
 * whose keys it names, and the rejection fraction with per_process_memory_fraction.
 *
 * A request that would exceed hard_bytes or the fraction is served from idle memory, or fails with XSEG_ERR_LIMIT; the
 * lower of both applies.  garbage_collection_threshold has an effect only while the fraction is below 1.  soft_bytes
 * never causes a failure.  A hard limit or a fraction below the memory in use releases idle memory of the device
 * immediately, as xseg_trim() without waiting.  Live blocks stay; until enough memory is released, no request allocates
 * memory from the driver.
 *
 * @param scope   names one device or one private pool, and no stream.
 * @param limits  new limits.
 *
 * @return XSEG_ERR_ARGUMENT     keep_bytes <= soft_bytes <= hard_bytes is violated, or a fraction is not from 0 to 1.
 *         XSEG_ERR_UNSUPPORTED  the scope names a stream, or limits of a pool other than hard_bytes are set.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call, unless more than hard_bytes are in use.
 */
XSEG_API xseg_status xseg_limits_set(struct xseg_allocator *allocator,
                                     const struct xseg_scope *scope,
                                     const struct xseg_limits *limits);

/**
 * Map pages, or allocate a classic segment, so that the next request of up to `bytes` is a hit.
 *
 * The call has no effect if a cached block of that size exists.
 *
 * @param scope  names a device or a pool; the stream is the legacy default stream unless one_stream is set.
 * @param bytes  size of one future request; up to 1 MiB the memory is in small segments.
 *
 * @return as xseg_alloc().
 * Cost: as a miss of xseg_alloc(); no allocation is counted.
 */
XSEG_API xseg_status xseg_prewarm(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  size_t bytes);

/* --- Pins. --- */

/**
 * Pin the memory under a part of a live block: its pages are not unmapped, moved or paused until they are unpinned.
 *
 * Pins are counted for each page, and stay when the block is freed.  A classic segment is pinned as a whole.
 *
 * @param ptr    any address in a live block.
 * @param bytes  size of the part, not 0; it ends in the block.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  ptr is not in a live block.
 *         XSEG_ERR_PAUSED    the pool of the block is paused.
 *         XSEG_ERR_BUSY      another call has claimed the memory, or a page has 2^32 - 1 pins.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pin(struct xseg_allocator *allocator, const void *ptr, size_t bytes);

/**
 * Unpin memory, once for each xseg_pin() with the same arguments.  The block may have been freed.
 *
 * Pins of descriptors and registrations are counted separately and are not released by this function.
 *
 * @return XSEG_ERR_ARGUMENT  a page of the part is not pinned; no pin is released.
 *         XSEG_ERR_NOT_ALLOCATED  the part is in no segment.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_unpin(struct xseg_allocator *allocator, const void *ptr, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
