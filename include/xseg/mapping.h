/* SPDX-License-Identifier: MIT */
/*
 * Pins and mappings: keep memory mapped under an address, and list mapped memory.
 *
 *     if (xseg_pin(allocator, block, bytes) != XSEG_OK) // Keeps the memory mapped.
 *         return 1;
 *     register_with_network_adapter(block, bytes); // The adapter accesses the memory.
 *     deregister_from_network_adapter(block);
 *     xseg_unpin(allocator, block, bytes);
 *
 * The memory under an address changes when pages are released and others are mapped: by a trim, by decay, under memory
 * pressure, and when a pool is paused.  A library that registers addresses (NCCL, RDMA) has three choices.
 *   - Pin the memory.
 *   - Be notified before pages are unmapped and after pages are mapped (observe.h, registration.h).
 *   - Compare generations: a registration is stale if the generation has changed since.
 */
#ifndef XSEG_MAPPING_H
#define XSEG_MAPPING_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/** A run of mapped pages of one size and generation, or a classic segment. */
struct xseg_mapping {
    size_t struct_size; /* sizeof(struct xseg_mapping) of the library */
    int device;
    void *base;             /* start address */
    size_t bytes;           /* size of the run */
    size_t page_bytes;      /* size of each physical page (handle); of a classic segment its size */
    uint64_t generation;    /* increases when other memory is mapped at the address; never 0 */
    xseg_stream stream;     /* stream of the segment */
    struct xseg_pool *pool; /* private pool of the segment, or NULL */
    bool is_expandable;
    bool is_pinned;      /* a page of the run is pinned */
    bool is_exported;    /* a page of the run is exported (export.h) */
    bool is_single_page; /* the run is one page that is its whole segment (single_page in pool.h) */
};

/**
 * Visit all mapped memory: each run of adjacent pages of one size and generation, and each classic segment.
 *
 * Libraries that register each physical page need this list (NVIDIA/nccl#1820, pytorch/pytorch#165419).  Memory of
 * paused pools is not mapped.  The result describes the state at the start of the call; to rely on it later, pin the
 * pages or compare generations.
 *
 * @param scope    scope; NULL: all memory.
 * @param visit    called without a lock for each mapping, which is valid during the call; returns false to end the
 *                 walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_for_each_mapping(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_mapping *mapping), void *context);

#ifdef __cplusplus
}
#endif

#endif
