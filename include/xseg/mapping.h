/* SPDX-License-Identifier: MIT */
/*
 * Mappings: which addresses have memory, for those who register them elsewhere (NCCL, RDMA, another
 * process), and pins that keep it there.
 *
 * Memory beneath an address changes when pages go back to the driver and others come: by a trim, by
 * decay, when memory is short, and when a pool is paused.  A program that registers addresses can
 *   - pin them: their pages stay until they are unpinned;
 *   - be told before pages go and after others came: `leaving` and `came` of xseg_observe();
 *   - compare generations: each range has a number that is drawn anew whenever other memory comes to
 *     lie beneath it.  A registration is stale if the number is another one than when it was made.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_MAPPING_H
#define XSEG_MAPPING_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Keep the memory beneath a part of a live block: its pages are not unmapped, moved or paused until
 * they are unpinned, also when the block is freed, and pins are counted.  A classic segment is pinned
 * as a whole.
 *
 * Pins are the pages', not the block's: free the block when you like, but unpin what you pinned.
 *
 * @param ptr    anywhere in a live block
 * @param bytes  not 0, and not beyond the block's end
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE  ptr lies in no live block
 *          XSEG_ERR_PAUSED    the block's pool is paused: there is nothing to pin
 *          XSEG_ERR_ARGUMENT (also: the part ends outside the block), XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_BUSY (pinned 2^32 - 1 times already), XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pin(struct xseg_allocator *allocator, const void *ptr,
                                             size_t bytes);

/**
 * Take a pin back, once for each xseg_pin() with the same arguments.  The block may be gone.  Pins of descriptors and of
 * registrations are counted separately: xseg_unpin() does not release them.
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT  a page of the part is not pinned; nothing has changed
 *          XSEG_ERR_NOT_LIVE  the part lies in no segment
 *          XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_unpin(struct xseg_allocator *allocator, const void *ptr,
                                               size_t bytes);

/** Addresses with memory beneath them, as they were when it was asked. */
struct xseg_mapping {
    size_t struct_bytes; /* sizeof(struct xseg_mapping), as the library knows it */
    int device;
    void *base;
    size_t bytes;
    /* Each so many bytes from `base` on are one piece of physical memory with a handle of its own; of
     * a classic segment all. */
    size_t page_bytes;
    uint64_t generation;    /* rises whenever other memory comes to lie there; never 0 */
    xseg_stream stream;     /* of the segment */
    struct xseg_pool *pool; /* its private pool, or NULL */
    bool is_expandable;
    bool is_pinned;   /* a page of it is */
    bool is_exported; /* a page of it is (export.h) */
    bool
        is_single_page; /* one page that is all of its segment, since its pool has single_page (pool.h) */
};

/**
 * Visit all addresses that have memory, for libraries that register each physical page of a range by itself (NCCL, see
 * NVIDIA/nccl#1820 and pytorch/pytorch#165419): each run of adjacent pages of one size and one generation, and
 * each classic segment.  Memory of paused pools is not there.
 *
 * What is told was true when the call began on the device; compare generations, or pin, to rely on it.
 *
 * @param where  NULL for everything
 * @param visit  called with no lock held for each mapping, which is valid during the call; false ends
 *               the walk
 *
 * Returns: XSEG_OK, also when visit ended it; XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_FORKED; XSEG_ERR_DRIVER (there is no such stream)
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status
xseg_mappings(struct xseg_allocator *allocator, const struct xseg_where *where,
              bool (*visit)(void *context, const struct xseg_mapping *mapping), void *context);

#ifdef __cplusplus
}
#endif

#endif
