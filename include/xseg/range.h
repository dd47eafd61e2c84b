/* SPDX-License-Identifier: MIT */
/*
 * Elastic ranges: VA ranges whose pages the user commits and decommits, such as a paged KV cache.
 *
 *     xseg_range_reserve(allocator, 0, 1ull << 40, NULL, &range); // Reserves 1 TiB.
 *     xseg_range_commit(range, 0, 64 << 20, stream);              // Maps 64 MiB for work on the stream.
 *     // Queue work that uses the memory.
 *     xseg_range_decommit(range, 0, 64 << 20, stream); // Unmaps the memory after this work has completed.
 *     xseg_range_release(range);
 *
 * The addresses cover the worst case, and memory is mapped only where it is used.  The memory is subject to the limits,
 * the decay and the out-of-memory fallback chain of all other memory of the allocator.  Requests and other ranges can
 * therefore use memory that a range has decommitted.
 *
 * Terms:
 *   range           a reserved VA range of one device, divided into granules.
 *   granule         the addresses of one page of the range: page_bytes, 2 MiB by default.
 *   commit          map pages in granules.
 *   decommit        unmap the pages of granules in stream order.
 *   pending unmap   decommitted, while the stream may still use the memory.  Such a granule can be recommitted.
 *   recommit        commit a granule that is pending unmap: its page stays mapped and keeps its contents.
 *   hold            a count of a granule (xseg_range_hold()); a held granule keeps its page after a decommit.
 *   prepared page   a page that xseg_range_prepare() created for the range, not mapped yet.
 *   alias           a further mapping of a physical page in another granule (xseg_range_alias()); a page with several
 *                   mappings is aliased.
 *
 * Offsets and sizes are in bytes.  They are multiples of a granule, except for xseg_range_prepare() and
 * xseg_range_set_quota().
 *
 * A range belongs to a pool, and the functions of pools and scopes apply to it: statistics, limits, checkpoints, pause
 * and resume, pins, registrations, history.  Committed bytes count as reserved and allocated, and bytes that are
 * pending unmap as reserved and active.  No allocations are counted, and an aliased page counts once.
 *
 * xseg_block_query(), xseg_for_each_block() and xseg_explain() report adjacent committed granules as an allocated
 * block, adjacent granules that are pending unmap as a pending block, and other granules as unmapped.  Observers and
 * xseg_for_each_mapping() report runs of mapped granules.  xseg_free() rejects addresses of a range.
 *
 * Memory that is pending unmap is unmapped by the first poll after the work that was queued on its stream at the
 * decommit has completed.  Calls of all ranges of the device, misses, trims and decay passes poll.  The page is then
 * released, or kept up to page_cache_mb.
 *
 * A granule is in one of four states: unmapped, claimed, committed, or pending unmap.  It is claimed while a call maps
 * or unmaps memory there; callbacks of observers and registrations run in that state, without a lock.  The table shows
 * what a call does with a granule that it names.  The words in capitals are the statuses XSEG_ERR_ARGUMENT,
 * XSEG_ERR_BUSY and XSEG_ERR_NOT_ALLOCATED.
 *
 *     call                                 unmapped       claimed          committed      pending unmap
 *     xseg_range_commit()                  maps memory    BUSY             ARGUMENT       recommits it
 *     xseg_range_decommit()                ARGUMENT       BUSY             pending unmap  ARGUMENT
 *     xseg_range_hold()                    allowed        BUSY             allowed        defers the unmap
 *     xseg_range_unhold()                  allowed        BUSY             allowed        unmaps after the work
 *     xseg_range_alias() to it             maps memory    BUSY             ARGUMENT       ARGUMENT
 *     xseg_range_alias() from it           ARGUMENT       BUSY             allowed        ARGUMENT
 *     xseg_range_release()                 allowed        BUSY             BUSY           waits for the work
 *     xseg_pin(), xseg_export()            NOT_ALLOCATED  BUSY             allowed        NOT_ALLOCATED
 *     xseg_dmabuf_open()                   NOT_ALLOCATED  if mapped        allowed        allowed
 *     xseg_dmabuf_open(), XSEG_DMABUF_PIN  NOT_ALLOCATED  BUSY             allowed        allowed
 *     xseg_register()                      NOT_ALLOCATED  BUSY             allowed        allowed
 *     xseg_pool_pause()                    allowed        BUSY             allowed        BUSY until the work completes
 *     xseg_trim()                          no effect      no effect        no effect      unmaps after the work
 *
 * A granule that is pinned, exported or held is not unmapped: after a decommit it stays pending unmap until its last
 * pin, export and hold is released.
 *
 * Threads: every function of this header waits for the device memory lock, so calls of several threads for one range
 * are serialized.  The lock is not held during callbacks.
 *
 * Errors: an error leaves all granules unchanged.
 */
#ifndef XSEG_RANGE_H
#define XSEG_RANGE_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct xseg_range;

/** Options of xseg_range_reserve(). */
struct xseg_range_options {
    size_t struct_size;     /* sizeof(struct xseg_range_options) */
    struct xseg_pool *pool; /* the range retains it; NULL: a new pool, released with the range */
    uint64_t page_bytes;    /* page size, a multiple of the driver's granularity; 0: 2 MiB */
    uint64_t limit_bytes;   /* maximum of physical memory of the range; 0: unlimited */
    bool exportable;        /* option of the new pool (struct xseg_pool_options); not with `pool` */
    bool rdma;              /* option of the new pool; not with `pool` */
    const char *name;       /* option of the new pool; not with `pool` */
};

/**
 * Reserve the addresses of a range.  No memory is committed.
 *
 * @param device   CUDA ordinal.
 * @param bytes    size, a multiple of the page size.  A range can reserve addresses only while the ranges and segments of
 *                 the device together have at most 32 TiB.
 * @param options  NULL for the defaults.
 * @param out      receives the range; release it with xseg_range_release().
 *
 * @return XSEG_ERR_NO_ADDRESSES  the driver or the 32 TiB have no addresses left.
 *         XSEG_ERR_UNSUPPORTED   the device has no virtual memory management, or cannot export memory (exportable).
 *         XSEG_ERR_ARGUMENT      also: the pool is of another device, has memory functions, or has been released; or an
 *                                option of a new pool is set together with `pool`.
 * Cost: one cuMemAddressReserve; for an exportable or rdma range the probe of xseg_pool_create().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_reserve(struct xseg_allocator *allocator, int device,
                                                       uint64_t bytes,
                                                       const struct xseg_range_options *options,
                                                       struct xseg_range **out);

/**
 * Release the addresses of a range.  The call waits for the work of memory that is pending unmap.
 *
 * @return XSEG_ERR_BUSY      memory is committed, held, pinned, exported, registered or claimed; or a capture is active
 *                            and memory is pending unmap.
 *         XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_DRIVER    the driver did not unmap a page; the call can be repeated.
 *         XSEG_ERR_ARGUMENT  also: the range has already been released; the library detects this until xseg_close().
 * Cost: synchronizes the streams of memory that is pending unmap, and unmaps and releases this memory; one
 *       address-free.
 */
XSEG_API xseg_status xseg_range_release(struct xseg_range *range);

/**
 * Commit granules for work on a stream.
 *
 * Granules that are pending unmap are recommitted.  On the stream of the decommit this needs no driver call.  Another
 * `stream` is made to wait, by an event, for the stream of the decommit.  A granule whose page is aliased is not
 * recommitted: it gets another page, after the call has waited for the stream of the decommit.
 *
 * Unmapped granules get prepared pages of the range, then idle pages of the same kind (size, exportable, rdma) from the
 * page cache, then new pages.  If the driver or a limit rejects a page, idle pages of other ranges and pools are moved,
 * and idle pages of other kinds are released.  During a capture idle pages of other ranges and pools are neither moved
 * nor released.  The contents of new memory are undefined.
 *
 * The call commits all granules or none.
 *
 * @param offset  offset from the start of the range.
 * @param bytes   size; 0 has no effect.
 * @param stream  stream whose later work uses the memory.
 *
 * @return XSEG_ERR_NO_MEMORY  as for xseg_alloc(); the message lists the uses of the memory.
 *         XSEG_ERR_LIMIT      as for xseg_alloc(); also limit_bytes of the range.
 *         XSEG_ERR_PAUSED     the pool is paused.
 *         XSEG_ERR_BUSY       one of these conditions applies.
 *                             - A granule is claimed.
 *                             - A capture is active, and a granule is pending unmap on another stream whose work has
 *                               not completed.
 *                             - The page of a granule that is pending unmap is aliased; and a capture is active, or the
 *                               granule is held, pinned or exported.
 *         XSEG_ERR_ARGUMENT   also: a granule is committed.
 * Cost: no driver call to recommit on the same stream.  Otherwise an event query for each stream with memory that is
 *       pending unmap, one map per page, one create per new page, and one set-access per contiguous run (per page, if
 *       the driver requires that); with device_free_min_mb one cuMemGetInfo if pages are created.  Under memory
 *       pressure as xseg_alloc().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_commit(struct xseg_range *range, uint64_t offset,
                                                      uint64_t bytes, xseg_stream stream);

/**
 * Decommit granules: their memory is unmapped when the work that is queued on a stream now has completed.
 *
 * Make the stream wait for all other streams that use the memory.  Granules that are held, pinned or exported keep
 * their pages until the last hold, pin and export is released.  During a capture the event is recorded after the end of
 * the capture.
 *
 * @param offset  offset from the start of the range.
 * @param bytes   size; 0 has no effect.
 * @param stream  stream that orders the unmap.
 *
 * @return XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_BUSY      a granule is claimed.
 *         XSEG_ERR_ARGUMENT  also: a granule is not committed.
 * Cost: one event record.  Later polls: an event query for each stream, one unmap per contiguous run, one release per
 *       page.
 */
XSEG_API xseg_status xseg_range_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                         xseg_stream stream);

/**
 * Create pages in advance, so that a commit only maps them, until the range has `bytes` of prepared pages.
 *
 * Prepared pages are not part of page_cache_mb.  They are reserved for the range until they are committed, until they
 * decay, or until memory pressure reclaims them.  The device memory lock is released after each page, so commits of
 * other threads are served during the call.
 *
 * @param bytes  size, rounded up to whole pages; at most the size of the range.
 *
 * @return XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT  no memory is available.  The call reclaims no memory.
 *         After an error the pages that were created stay prepared.
 * Cost: one create per page, and one cuMemGetInfo per page with device_free_min_mb.
 */
XSEG_API xseg_status xseg_range_prepare(struct xseg_range *range, uint64_t bytes);

/**
 * Reserve physical memory for a range without creating pages.
 *
 * The unused part of the quota counts as memory in use for all other requests of this allocator on the device.  Idle
 * memory is released if the quota needs it.
 *
 * Other processes do not observe the quota.  Commits up to the quota succeed only if the driver can provide this
 * memory: set a hard limit of the device (hard_limit_mb, xseg_limits_set(), per_process_memory_fraction) below its free
 * memory, or device_free_min_mb in the other processes.
 *
 * @param bytes  quota, at most the size and limit_bytes of the range; 0 removes the quota.
 *
 * @return XSEG_ERR_LIMIT      memory in use and other quotas leave too little of the hard limit, or of the device
 *                             memory above device_free_min_mb.
 *         XSEG_ERR_NO_MEMORY  memory in use and other quotas leave too little of the device memory.
 *         After an error the previous quota applies.
 * Cost: no driver call if enough memory is available; otherwise as a trim that does not wait.  A larger quota queries
 *       cuMemGetInfo with device_free_min_mb.
 */
XSEG_API xseg_status xseg_range_set_quota(struct xseg_range *range, uint64_t bytes);

/**
 * Hold granules: they keep their pages after a decommit, for a captured graph that uses their addresses.
 *
 * Holds are counted for each granule, also for unmapped granules and while the pool is paused.
 *
 * @param offset  offset from the start of the range.
 * @param bytes   size.
 *
 * @return XSEG_ERR_BUSY  a granule is claimed, or its hold count is at the maximum, 2^32 - 1.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_range_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes);

/**
 * Release one hold of each granule.
 *
 * A decommitted granule without further holds, pins and exports is unmapped once both the work that is queued on
 * `stream` now and the work before its decommit have completed.
 *
 * @param offset  offset from the start of the range.
 * @param bytes   size.
 * @param stream  a stream on which the graph was launched; this stream must already wait for every other stream that
 *                used the granules.
 *
 * @return XSEG_ERR_BUSY      one of these conditions applies.
 *                            - A granule is claimed.
 *                            - A capture is active, and a granule is pending unmap on another stream whose work has not
 *                              completed.
 *         XSEG_ERR_ARGUMENT  also: a granule is not held.
 * Cost: one event record if a granule is pending unmap.
 */
XSEG_API xseg_status xseg_range_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                       xseg_stream stream);

/**
 * Alias pages: map the pages of committed granules in other granules as well, such as a prefix that many sequences
 * share.
 *
 * The new granules are committed, and each granule is decommitted independently.  A page is released when its last
 * mapping is removed, and the pool is charged for the page until then.  The range that committed the page is charged
 * for it (limit_bytes, quota, physical_bytes) until its own last mapping of the page is removed.  Other ranges are
 * never charged for the page.
 *
 * Work that is ordered after a write through one mapping reads the written data through every mapping.  A kernel that
 * accesses a page through two mappings must order its accesses (docs/ranges.md).
 *
 * @param offset       offset of unmapped granules.
 * @param bytes        size.
 * @param from         a range of the same pool and page size, or the same range.
 * @param from_offset  offset of committed granules in `from`.
 *
 * @return XSEG_ERR_NO_MEMORY  the driver has no memory for the mappings.
 *         XSEG_ERR_PAUSED     the pool is paused.
 *         XSEG_ERR_BUSY       a granule is claimed.
 *         XSEG_ERR_ARGUMENT   also: a new granule is not unmapped, a granule of `from` is not committed, or the ranges
 *                             differ in pool or page size.
 * Cost: one map per page; one set-access per contiguous run.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_alias(struct xseg_range *range, uint64_t offset,
                                                     uint64_t bytes, struct xseg_range *from,
                                                     uint64_t from_offset);

/** State of a range.  Set struct_size before the call. */
struct xseg_range_info {
    size_t struct_size;           /* sizeof(struct xseg_range_info) */
    void *base;                   /* start address */
    uint64_t bytes;               /* size */
    uint64_t page_bytes;          /* size of a granule */
    int device;                   /* CUDA ordinal */
    struct xseg_pool *pool;       /* pool of the range */
    uint64_t limit_bytes;         /* maximum of physical_bytes; UINT64_MAX: unlimited */
    uint64_t quota_bytes;         /* quota, including its used part */
    uint64_t committed_bytes;     /* in committed granules */
    uint64_t pending_unmap_bytes; /* in granules that are pending unmap */
    uint64_t mapped_bytes;   /* in committed and pending granules; 0 while the pool is paused */
    uint64_t physical_bytes; /* in pages charged to the range; 0 while the pool is paused */
    uint64_t prepared_bytes; /* in prepared pages */
    uint64_t recommits;      /* number of recommitted granules since the reservation */
};

/**
 * Query the state of a range.
 *
 * @param out  receives the state, up to out->struct_size bytes.
 *
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_range_query(struct xseg_range *range, struct xseg_range_info *out);

#ifdef __cplusplus
}
#endif

#endif
