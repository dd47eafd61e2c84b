/* SPDX-License-Identifier: MIT */
/*
 * Elastic ranges: addresses of one's own, beneath which memory comes and goes by the page.
 *
 * For caches that manage their pages themselves, such as the paged KV cache of an inference engine: addresses for the
 * worst case, and memory for what is in use.  The memory stands under the limits, the decay and the out-of-memory
 * ladder that everything else of the allocator has, so the two do not fight for the card.
 *
 * Words:
 *   range     reserved device addresses of one device, in granules
 *   granule   the addresses of one page of the range: page_bytes, 2 MiB by default
 *   commit    have memory beneath granules
 *   decommit  give it up, in the order of a stream
 *   leaving   decommitted, while the stream may still use the memory: it can be taken back without the driver
 *   mapping   a granule that maps a physical page.  A page with several mappings is aliased (xseg_range_share())
 *
 * Offsets and sizes are multiples of a granule.
 *
 * A range belongs to a pool, its own or one that is named.  What pool.h and its neighbours say of a pool holds for its
 * ranges: statistics, limits, checkpoints, pause and resume, pins, registrations, history.  Committed bytes count as
 * reserved and allocated, those that leave as reserved and active; no allocation is counted, and an
 * aliased page counts once.  To observers, and to what xseg_block(), xseg_walk(), xseg_explain() and xseg_mappings() tell, adjacent
 * granules that are committed are like a live block, adjacent ones that leave like one that is pending, and the others
 * are holes.  xseg_free() refuses addresses of a range.
 *
 * Memory of a decommitted granule goes when the stream has passed, at the next call that looks: any of a range of the
 * device, an allocation that misses, a trim, decay.  Then it is released, or kept up to page_cache_mb.
 *
 * A granule is in one of four states.  It is *claimed* while a call maps or unmaps memory there; callbacks of observers and
 * registrations run in that state, with no lock held.  What a call does with a granule that it names:
 *
 *     call                            unmapped       claimed        mapped         pending unmap
 *     xseg_range_commit()             maps memory    BUSY           ARGUMENT       takes it back
 *     xseg_range_decommit()           ARGUMENT       BUSY           pending unmap  ARGUMENT
 *     xseg_range_hold()               allowed        BUSY           allowed        defers the unmap
 *     xseg_range_let_go()             allowed        BUSY           allowed        unmaps after the stream
 *     xseg_range_share() onto it      maps memory    BUSY           ARGUMENT       ARGUMENT
 *     xseg_range_share() from it      ARGUMENT       BUSY           allowed        ARGUMENT
 *     xseg_range_release()            allowed        BUSY           BUSY           waits for the stream
 *     xseg_pin()                      NOT_LIVE       BUSY           allowed        NOT_LIVE
 *     xseg_export()                   NOT_LIVE       BUSY           allowed        NOT_LIVE
 *     xseg_dmabuf()                   NOT_LIVE       as mapped      allowed        allowed
 *     xseg_dmabuf(), XSEG_DMABUF_PIN  NOT_LIVE       BUSY           allowed        allowed
 *     xseg_register()                 NOT_LIVE       BUSY           allowed        allowed
 *     xseg_pool_pause()               allowed        BUSY           allowed        BUSY until the stream has passed
 *     xseg_trim()                     -              skips it       -              unmaps what the stream has passed
 *
 * Pinned, exported and held memory is not unmapped: a decommitted granule stays in the last state until it is released.  A call
 * from a second thread may wait for the device memory lock, which is not held while callbacks run.
 *
 * Threads: any.  Calls about one range from several threads are served one after the other.
 * Fork, lost devices, errors: as in allocator.h.  On an error nothing has changed: no granule is half-way.
 */
#ifndef XSEG_RANGE_H
#define XSEG_RANGE_H

#include "xseg/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

struct xseg_range;

/** Particulars of a range.  Start from XSEG_RANGE_OPTIONS_INIT. */
struct xseg_range_options {
    size_t struct_bytes; /* sizeof(struct xseg_range_options) */
    /* The pool that the range belongs to; the range holds it.  NULL: a pool of its own, which ends with it. */
    struct xseg_pool *pool;
    uint64_t page_bytes;  /* a multiple of the driver's granularity, 2 MiB; 0: 2 MiB */
    uint64_t limit_bytes; /* the most physical memory of the range; 0: no limit of its own */
    /* Of a pool of its own, as in struct xseg_pool_options; with `pool` that pool says so, and these must be unset. */
    bool exportable, rdma;
    const char *name;
};
/* clang-format off */
#define XSEG_RANGE_OPTIONS_INIT {sizeof(struct xseg_range_options), NULL, 0, 0, false, false, NULL}
/* clang-format on */

/**
 * Reserve the addresses of a range; nothing is committed.
 *
 * @param device   CUDA ordinal; that of the pool, where one is named
 * @param bytes    a multiple of the page size; ranges and segments of a device have 32 TiB together
 * @param options  NULL for the defaults
 * @param out      the caller ends it with xseg_range_release()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT      a size that is no multiple, a pool of another device, with memory functions of its
 *                                 own, or that nobody holds; options that contradict each other
 *          XSEG_ERR_NO_ADDRESSES  the driver has none, or the 32 TiB are used up
 *          XSEG_ERR_UNSUPPORTED   the device has no virtual memory management, or rejects exportable memory
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    one cuMemAddressReserve; of a pool that is exportable, what xseg_pool_create() costs
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_reserve(struct xseg_allocator *allocator, int device,
                                                       uint64_t bytes,
                                                       const struct xseg_range_options *options,
                                                       struct xseg_range **out);

/**
 * End a range: its addresses go back to the driver.  Nothing may be committed or held.  What leaves is waited for.
 * The handle is recognised, and refused, until the allocator closes.
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY      memory is committed, held, pinned, exported or registered; a capture is under way and memory leaves; another call works on the range
 *          XSEG_ERR_PAUSED    its pool is paused
 *          XSEG_ERR_ARGUMENT  NULL, or it has been released before
 *          XSEG_ERR_DRIVER    the driver does not take a page back that leaves: release again
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    waits for the streams with which memory leaves; unmaps and releases that; frees the addresses
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_release(struct xseg_range *range);

/**
 * Have memory beneath granules, for work on a stream.
 *
 * Granules that leave are taken back: in the order of the same stream at no cost; on another one that stream waits, by
 * an event, for the one that they leave with.  The others get pages: prepared ones of the range, idle ones of its kind
 * (size, exportable, rdma) from the page cache, then new ones.  Where the driver or a limit refuses, idle pages of other
 * ranges and pools are taken; last, idle memory of other kinds goes back to the driver, which makes pages of it.
 * New memory contains anything; what is taken back is as it was.  A page with other mappings (xseg_range_share()) is
 * not taken back: the granule gets a page of its own, for which the call waits until the stream of the decommit has passed.
 *
 * All or nothing: with several at once on one device, each is served or refused as a whole.
 *
 * In a capture memory is created and mapped, and nothing is taken from elsewhere.
 *
 * @param offset  from the start of the range
 * @param bytes   0 does nothing
 * @param stream  whose later work uses the memory
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT   not whole granules of the range; a granule is committed already
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT  as for an allocation; the text says where the memory is
 *          XSEG_ERR_PAUSED     its pool is paused
 *          XSEG_ERR_BUSY       another call works on a granule; in a capture, a granule leaves with another stream; one
 *                              is pending unmap and its page has other mappings, in a capture or because it is held, pinned
 *                              or exported
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    none if all granules leave with this stream.  Else an event query for each stream that memory leaves with; one map
 *          a page, one create for each that is not idle, one set-access a contiguous run (one a page where the
 *          driver wants that), with the peers that are allowed; when memory is
 *          short, as an allocation
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_commit(struct xseg_range *range, uint64_t offset,
                                                      uint64_t bytes, xseg_stream stream);

/**
 * Give memory up once a stream has passed what is queued on it now.  Of other streams that use the memory the caller has
 * made this one wait.  Granules that are held, pinned or exported keep their page until they are let go of.
 *
 * In a capture the order is noted at its end.
 *
 * @param stream  the work behind which the memory goes
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT  not whole granules of the range; a granule is not committed
 *          XSEG_ERR_PAUSED, XSEG_ERR_BUSY, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    one event record.  Later, at a look: an event query for each stream; one unmap a contiguous run; one release a
 *          page that is not kept
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_decommit(struct xseg_range *range, uint64_t offset,
                                                        uint64_t bytes, xseg_stream stream);

/**
 * Make pages ahead, so that a commit only maps them: until `bytes` of pages are prepared for the range.  They lie beside the
 * page cache (page_cache_mb), and are left to the range until they are committed, decay, or memory is short.
 *
 * @param bytes  rounded up to whole pages
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT (nothing is taken from elsewhere for it), XSEG_ERR_ARGUMENT,
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED; the pages made by then stay
 * Threads: any; between two pages commits of other threads are served
 * Cost:    one create a page
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_prepare(struct xseg_range *range, uint64_t bytes);

/**
 * Promise a range that it can have so much physical memory: what it does not have of it counts as taken for everything
 * else of this allocator on the device.  With a hard limit (hard_limit_mb, xseg_limits(), per_process_memory_fraction)
 * below what the device has free, commits up to the quota succeed; other processes know nothing of the promise.
 *
 * Idle memory is given back to make room for it.
 *
 * @param bytes  up to the size of the range, and of its limit; 0 ends the promise
 *
 * Returns: XSEG_OK; XSEG_ERR_LIMIT, XSEG_ERR_NO_MEMORY: what is in use and promised leaves no room;
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    none while there is room; else as a trim that does not wait
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_quota(struct xseg_range *range, uint64_t bytes);

/**
 * Let granules keep their page over a decommit, since a graph that was captured uses their addresses.  Counts: as often as
 * xseg_range_let_go().  They need not be committed, and may be paused.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT; XSEG_ERR_BUSY (another call works on a granule, or the hold count of a granule is at
 *          its maximum); XSEG_ERR_FORKED
 * Cost:    no driver call
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_hold(struct xseg_range *range, uint64_t offset,
                                                    uint64_t bytes);

/**
 * Take xseg_range_hold() back.  Granules that were decommitted meanwhile go once the stream has passed.
 *
 * @param stream  one that the graph was launched on; others have been made to be waited for by it
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (also of granules that are not held), XSEG_ERR_BUSY (another call works on a
 *          granule, or, in a capture, a granule leaves with another stream that has not passed), XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER,
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    one event record, if a granule leaves
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_let_go(struct xseg_range *range, uint64_t offset,
                                                      uint64_t bytes, xseg_stream stream);

/**
 * Map the pages of committed granules at other granules as well, of the same range or another one of its pool, such as a prefix
 * that many sequences have in common.  The granules are committed then, and each one is decommitted by itself.  The page is unmapped
 * granule by granule and released with its last mapping; the pool is charged until then.  The range that committed the page is
 * charged for it as long as it maps the page (limit_bytes, quota, physical_bytes); ranges with aliases are not.
 *
 * What is written through one mapping is visible through another one to work that is ordered after it; a kernel that uses
 * both must order its accesses (docs/ranges.md).
 *
 * @param offset, bytes  granules without memory
 * @param from           a range of the same pool and page size, whose granules are committed
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT     not whole granules; a granule has memory already, or leaves; one of `from` is not
 *                                committed; ranges of different pools or page sizes
 *          XSEG_ERR_NO_MEMORY    the driver has none for the mappings themselves
 *          XSEG_ERR_PAUSED, XSEG_ERR_BUSY, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST,
 *          XSEG_ERR_FORKED
 * Cost:    one map a page; one set-access a contiguous run
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_share(struct xseg_range *range, uint64_t offset,
                                                     uint64_t bytes, struct xseg_range *from,
                                                     uint64_t from_offset);

/** What a range is, and has.  Set struct_bytes before the call. */
struct xseg_range_info {
    size_t struct_bytes; /* sizeof(struct xseg_range_info) */
    void *base;          /* fixed, as are the next five */
    uint64_t bytes;
    uint64_t page_bytes;
    int device;
    struct xseg_pool *pool;
    uint64_t limit_bytes;     /* UINT64_MAX: none of its own */
    uint64_t quota_bytes;     /* promised, with what it has of it */
    uint64_t committed_bytes; /* in granules */
    uint64_t leaving_bytes;   /* decommitted, with memory */
    uint64_t mapped_bytes;    /* of granules with memory; 0 while the pool is paused */
    uint64_t physical_bytes;  /* of physical pages that the range is charged for, each once */
    uint64_t prepared_bytes;  /* of idle pages made ahead for it */
    uint64_t
        retaken; /* how often a granule was taken back, without the driver, since it was reserved */
};
/* clang-format off */
#define XSEG_RANGE_INFO_INIT {sizeof(struct xseg_range_info), NULL, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Read what a range is and has.
 *
 * @param out  filled in up to out->struct_bytes
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_range_info(struct xseg_range *range,
                                                    struct xseg_range_info *out);

#ifdef __cplusplus
}
#endif

#endif
