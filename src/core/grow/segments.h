/* SPDX-License-Identifier: MIT */
/*
 * Segments of arenas: creation, growth by a separate segment, and guarded blocks.
 *
 * A new segment reserves a virtual address range of 9/8 of the device's memory, as PyTorch does, so that a segment never moves.
 * A device has a limited budget of addresses (XSEG_GROWTH_ADDRESSES), and all devices of an allocator together have twice that
 * budget.  When a budget runs low, segments become shorter.
 *
 * Other kinds of segments: a classic arena allocates a segment from the driver or from the memory function of its pool; a
 * pool with single_page maps one page in a segment of that length; each guarded block has its own segment.
 *
 * A new segment is described by an extent (block.h): the tables of the extent are allocated, the extent is added to the page
 * map and to the list of its arena, and it has one claimed block.  Extents are type-stable: an extent of a destroyed segment is
 * reused and not freed, because lookups without a lock can still read it.
 *
 * Locking: the caller holds the device memory lock and no other lock, unless a function states otherwise.
 */
#ifndef XSEG_CORE_SEGMENTS_H
#define XSEG_CORE_SEGMENTS_H

#include "src/core/block/arena.h"
#include "src/core/device/device.h"

/* The budget of addresses of a device: a quarter of the 47-bit address space that every GPU has.  The remaining addresses are
 * for other users.  The budget suffices for 350 segments of PyTorch's length on a device of 80 GiB. */
#define XSEG_GROWTH_ADDRESSES ((uint64_t)1 << 45)

/*
 * Assign the next positions of the device to an extent without mapped memory, before memory is mapped in it.  PyTorch destroys
 * a segment after all of its memory was unmapped, and registers a new segment, which is the last in the order of segments.  The
 * caller also holds the lock of the arena.
 */
void xseg_growth_renew_positions(struct xseg_extent *extent);

/*
 * Reserve and register an elastic extent (block.h), whose tables exist already.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one reserve
 */
xseg_status xseg_growth_reserve_elastic(struct xseg_arena *arena,
                                        const struct xseg_segment_reservation *reservation,
                                        struct xseg_elastic *elastic, struct xseg_extent **out);

/* Add an expandable segment for a request to an arena; it is one unmapped block. */
xseg_status xseg_growth_add_segment(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params);

/* xseg_growth_run() for one kind of segment: a classic segment, a segment of one page for one block
 * (single_page), and a segment for a guarded block. */
xseg_status xseg_growth_classic(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out);
xseg_status xseg_growth_single_page(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params,
                                    struct xseg_alloc_result *out);
xseg_status xseg_growth_guarded(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out);

/* --- Guarded blocks. --- */

/*
 * Guarded blocks: blocks with a segment each, for the keys unmap_on_free and guard_page.
 *
 *     [ block ............ ][ cached ]( never mapped )      unmap_on_free
 *     [ cached ][ ............ block ]( never mapped )      guard_page
 *      <----- pages of 2 MiB ------->   2 MiB
 *
 * A free of a guarded block waits for the streams of the block and releases its pages to the driver.  The address range stays
 * reserved and unused for a while, in quarantine, so that a late access faults and a double free is recognized.
 *
 * These segments are in arenas of a private pool of the device.  The cached and the unmapped blocks of such an arena serve no
 * request, because each segment serves one block.  If the pages cannot be released (a stream is being captured, or a driver
 * call fails), they stay cached, and the next trim releases them.
 *
 * Locking: the device memory lock guards quarantines.
 */

/*
 * If a guarded block can serve a request, set `is_guarded`, and replace the arena by a guarded arena.  No lock is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_guarded_choose(struct xseg_alloc_params *params);

/*
 * Free a claimed block of a guarded arena.  No lock is held.
 *
 * Returns: XSEG_OK; as xseg_pending_free() for a block that has uses
 */
xseg_status xseg_guarded_free(struct xseg_block *block);

#endif
