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
 * the decay and the out-of-memory fallback chain of all other memory of the allocator, so the cache and other users of
 * the GPU share it.
 *
 * Terms:
 *   range           a reserved VA range of one device, divided into granules.
 *   granule         the addresses of one page of the range: page_bytes, 2 MiB by default.
 *   commit          map pages in granules.
 *   decommit        unmap pages in stream order.
 *   pending unmap   decommitted, while the stream may still use the memory.  Such a granule can be recommitted.
 *   recommit        commit a granule that is pending unmap: its page stays mapped and keeps its contents.
 *   prepared page   a page that xseg_range_prepare() created for the range, not mapped yet.
 *   mapping, alias  a granule that maps a physical page; a page with several mappings is aliased (xseg_range_alias()).
 *
 * Offsets and sizes are in bytes and multiples of a granule.
 *
 * A range belongs to a pool, and the functions of pools and scopes apply to it: statistics, limits, checkpoints, pause
 * and resume, pins, registrations, history.  Committed bytes count as reserved and allocated, bytes that are pending
 * unmap as reserved and active.  No allocations are counted, and an aliased page counts once.  Observers and the
 * functions xseg_block_query(), xseg_for_each_block(), xseg_explain() and xseg_for_each_mapping() report adjacent
 * committed granules as a live block, adjacent granules that are pending unmap as a pending block, and other granules
 * as unmapped.  xseg_free() rejects addresses of a range.
 *
 * Memory that is pending unmap is unmapped once the work that was queued on its stream at the decommit has completed,
 * by the next call that polls.  Calls of ranges of the device, misses, trims and decay passes poll.  The page is then
 * released, or kept up to page_cache_mb.
 *
 * A granule is in one of four states.  It is *claimed* while a call maps or unmaps memory there; callbacks of observers
 * and registrations run in that state, without a lock.  The effect of a call on a granule that it names:
 *
 *     call                            unmapped       claimed        mapped         pending unmap
 *     xseg_range_commit()             maps memory    BUSY           ARGUMENT       recommits it
 *     xseg_range_decommit()           ARGUMENT       BUSY           pending unmap  ARGUMENT
 *     xseg_range_hold()               allowed        BUSY           allowed        defers the unmap
 *     xseg_range_unhold()             allowed        BUSY           allowed        unmaps after the work
 *     xseg_range_alias() onto it      maps memory    BUSY           ARGUMENT       ARGUMENT
 *     xseg_range_alias() from it      ARGUMENT       BUSY           allowed        ARGUMENT
 *     xseg_range_release()            allowed        BUSY           BUSY           waits for the work
 *     xseg_pin()                      NOT_ALLOCATED  BUSY           allowed        NOT_ALLOCATED
 *     xseg_export()                   NOT_ALLOCATED  BUSY           allowed        NOT_ALLOCATED
 *     xseg_dmabuf_open()                   NOT_ALLOCATED  as mapped      allowed        allowed
 *     xseg_dmabuf_open(), XSEG_DMABUF_PIN  NOT_ALLOCATED  BUSY           allowed        allowed
 *     xseg_register()                 NOT_ALLOCATED  BUSY           allowed        allowed
 *     xseg_pool_pause()               allowed        BUSY           allowed        BUSY until the work completes
 *     xseg_trim()                     -              skips it       -              unmaps if the work has completed
 *
 * Pinned, exported and held memory is not unmapped: a decommitted granule stays in the last state until the last
 * reference is released.  A call of a second thread may wait for the device memory lock, which is not held during
 * callbacks.
 *
 * Calls of several threads for one range are serialized.  An error leaves all granules unchanged.
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
    struct xseg_pool *pool; /* retained by the range; NULL: a new pool, released with the range */
    uint64_t page_bytes;  /* page size, a multiple of the driver's granularity of 2 MiB; 0: 2 MiB */
    uint64_t limit_bytes; /* maximum of physical memory; 0: unlimited */
    bool exportable, rdma; /* of the new pool (struct xseg_pool_options); not with `pool` */
    const char *name;      /* of the new pool; not with `pool` */
};

/**
 * Reserve the addresses of a range.  Nothing is committed.
 *
 * @param device   CUDA ordinal.
 * @param bytes    size, a multiple of the page size; all ranges and segments of a device have at most 32 TiB of
 *                 addresses.
 * @param options  NULL for the defaults.
 * @param out      receives the range; release it with xseg_range_release().
 *
 * @return XSEG_ERR_NO_ADDRESSES  the driver or the 32 TiB have no addresses left.
 *         XSEG_ERR_UNSUPPORTED   the device has no virtual memory management, or cannot export memory.
 *         XSEG_ERR_ARGUMENT      also: the pool is of another device, has memory functions, or has been released; or
 *                                options contradict each other.
 * Cost: one cuMemAddressReserve; for an exportable range the probe of xseg_pool_create().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_reserve(struct xseg_allocator *allocator, int device,
                                                       uint64_t bytes,
                                                       const struct xseg_range_options *options,
                                                       struct xseg_range **out);

/**
 * Release the addresses of a range.  Waits for memory that is pending unmap.
 *
 * @return XSEG_ERR_BUSY      memory is committed, held, pinned, exported, registered or claimed; or a capture is active
 *                            and memory is pending unmap.
 *         XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_DRIVER    the driver does not unmap a page; call again.
 *         XSEG_ERR_ARGUMENT  also: the range has been released.  Such handles are detected until xseg_close().
 * Cost: synchronizes the streams of memory that is pending unmap, unmaps and releases this memory; one address-free.
 */
XSEG_API xseg_status xseg_range_release(struct xseg_range *range);

/**
 * Commit granules for work on a stream.
 *
 * Granules that are pending unmap are recommitted: they keep their page and its contents.  On the stream of the
 * decommit this needs no driver call; another `stream` waits, by an event, for the stream of the decommit.  An aliased
 * page is not recommitted: the granule gets another page, after the stream of the decommit has completed.
 *
 * Other granules get prepared pages of the range, then idle pages of the same kind (size, exportable, rdma) from the
 * page cache, then new pages.  If the driver or a limit rejects a page, idle pages of other ranges and pools are moved,
 * and idle pages of other kinds are released.  New memory has undefined contents.  During a capture idle
 * pages of other ranges and pools are neither moved nor released.
 *
 * The call commits all granules or none.
 *
 * @param offset  offset from the start of the range.
 * @param bytes   size; 0 has no effect.
 * @param stream  stream whose later work uses the memory.
 *
 * @return XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT  as xseg_alloc(); the message lists what holds the memory.
 *         XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_BUSY      a granule is claimed.  During a capture, a granule is pending unmap on another stream whose
 *                            work has not completed.  A granule is pending unmap with an aliased page, and a capture
 *                            is active, or the granule is held, pinned or exported.
 *         XSEG_ERR_ARGUMENT  also: a granule is committed.
 * Cost: no driver call to recommit on the same stream.  Otherwise an event query for each stream with memory that is
 *       pending unmap, one map per page, one create per new page, and one set-access per contiguous run (per page,
 *       where the driver requires that).  Under memory pressure as xseg_alloc().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_commit(struct xseg_range *range, uint64_t offset,
                                                      uint64_t bytes, xseg_stream stream);

/**
 * Decommit granules: their memory is unmapped when the work that is queued on a stream now has completed.
 *
 * Make the stream wait for all other streams that use the memory.  Held, pinned and exported granules keep their pages
 * until the last reference is released.  During a capture the event is recorded at the end of the capture.
 *
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
 * Prepared pages are not part of page_cache_mb.  They are reserved for the range until they are committed, decay, or
 * memory pressure reclaims them.  Commits of other threads are served between two pages.
 *
 * @param bytes  size, rounded up to whole pages; at most the size of the range.
 *
 * @return XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT  no memory is available; nothing is reclaimed for prepared pages.
 *         After an error the pages that were created stay prepared.
 * Cost: one create per page.
 */
XSEG_API xseg_status xseg_range_prepare(struct xseg_range *range, uint64_t bytes);

/**
 * Reserve physical memory for a range without creating it.
 *
 * The unused part of the quota counts as memory in use for all other requests of this allocator on the device.  With a
 * hard limit below the free memory of the device (hard_limit_mb, xseg_limits_set(), per_process_memory_fraction), commits
 * up to the quota succeed.  Other processes do not see the quota.  Idle memory is released to make space for it.
 *
 * @param bytes  at most the size and the limit of the range; 0 removes the quota.
 *
 * @return XSEG_ERR_LIMIT, XSEG_ERR_NO_MEMORY  memory in use and other quotas leave too little.
 * Cost: no driver call if enough memory is free; otherwise as a trim that does not wait.
 */
XSEG_API xseg_status xseg_range_set_quota(struct xseg_range *range, uint64_t bytes);

/**
 * Hold granules: they keep their pages over a decommit, for a captured graph that uses their addresses.
 *
 * Holds are counted for each granule, committed or not, also while the pool is paused.
 *
 * @return XSEG_ERR_BUSY  a granule is claimed, or its hold count is at the maximum.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_range_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes);

/**
 * Release one hold of each granule.  A decommitted granule without further holds, pins and exports is unmapped when the
 * work that is queued on `stream` now has completed.
 *
 * @param stream  a stream on which the graph was launched; this stream must already wait for every other stream that
 *                used the granules.
 *
 * @return XSEG_ERR_BUSY      a granule is claimed, or, during a capture, is pending unmap on another stream whose work
 *                            has not completed.
 *         XSEG_ERR_ARGUMENT  also: a granule is not held.
 * Cost: one event record if a granule is pending unmap.
 */
XSEG_API xseg_status xseg_range_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                       xseg_stream stream);

/**
 * Alias pages: map the pages of committed granules in other granules as well, such as a prefix that many sequences
 * share.
 *
 * The new granules are committed, and each granule is decommitted independently.  A page is released with its last
 * mapping, and the pool is charged until then.  The range that committed the page is charged for it (limit_bytes, quota,
 * physical_bytes) until its own last mapping of the page is removed; other ranges are never charged for the page.
 *
 * Writes through one mapping are visible through another one to work that is ordered after them; a kernel that uses
 * both must order its accesses (docs/ranges.md).
 *
 * @param offset       offset of unmapped granules.
 * @param bytes        size.
 * @param from         a range of the same pool and page size, or the same range.
 * @param from_offset  offset of committed granules in `from`.
 *
 * @return XSEG_ERR_NO_MEMORY  the driver has no memory for the mappings.
 *         XSEG_ERR_PAUSED     the pool is paused.
 *         XSEG_ERR_BUSY       a granule is claimed.
 *         XSEG_ERR_ARGUMENT   also: a new granule is mapped or pending unmap, one of `from` is not committed, or the
 *                             ranges differ in pool or page size.
 * Cost: one map per page; one set-access per contiguous run.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_alias(struct xseg_range *range, uint64_t offset,
                                                     uint64_t bytes, struct xseg_range *from,
                                                     uint64_t from_offset);

/** State of a range.  Set struct_size before the call. */
struct xseg_range_info {
    size_t struct_size;  /* sizeof(struct xseg_range_info) */
    void *base;          /* start address */
    uint64_t bytes;      /* size */
    uint64_t page_bytes; /* size of a granule */
    int device;
    struct xseg_pool *pool;
    uint64_t limit_bytes;         /* UINT64_MAX: unlimited */
    uint64_t quota_bytes;         /* quota, including its used part */
    uint64_t committed_bytes;     /* in committed granules */
    uint64_t pending_unmap_bytes; /* in granules that are pending unmap */
    uint64_t mapped_bytes;   /* in all mappings, also pending unmap; 0 while the pool is paused */
    uint64_t physical_bytes; /* in pages charged to the range; 0 while the pool is paused */
    uint64_t prepared_bytes; /* in prepared pages */
    uint64_t recommits;      /* number of recommitted granules since the range was reserved */
};

/**
 * Query the state of a range.
 *
 * @param out  receives the state, up to out->struct_size bytes.
 *
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_range_query(struct xseg_range *range, struct xseg_range_info *out);

#ifdef __cplusplus
}
#endif

#endif
