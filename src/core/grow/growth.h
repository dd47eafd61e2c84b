/* SPDX-License-Identifier: MIT */
/*
 * Growth: mapping or allocating memory for a request that no cached block can serve.
 *
 * An expandable arena grows in the virtual address ranges of its segments.  The candidate range is PyTorch's
 * choice: the lowest sequence of unmapped and cached blocks that is long enough.  A growth claims the candidate range under
 * the lock of the arena, checks limits, maps the unmapped blocks without the lock, and settles the range under the lock:
 *
 *     claim   the blocks of the range are claimed, so no other thread uses them; a new segment is reserved if there is no range
 *     check   limits of the pool, the device and the budget, with the bytes that idle pages of the page cache cover
 *     map     one xseg_segment_map() for each unmapped block
 *     settle  the mapped blocks become one cached block, from which the request is served
 *
 * If a step fails, the blocks become what they were; memory that was mapped stays cached.
 *
 * A new segment reserves 9/8 of the device's memory in addresses, as PyTorch does, so that a segment never moves.  A device
 * has a limited budget of addresses (XSEG_GROWTH_ADDRESSES).  When the budget runs low, segments become shorter.
 *
 * Page sizes: full pages (page_bytes of the segment) while memory is plentiful, small pages (the granularity) under memory
 * pressure, longer pages with page_size:auto.
 *
 * Other kinds of segments: a classic arena allocates a segment from the driver or from the memory function of its pool; a
 * pool with single_page maps one page in a segment of that length; a guarded block has a segment to itself.
 *
 * A new segment is described by an extent (block.h): its tables are allocated, it is added to the page map and to the list of
 * its arena, and it has one claimed block.  Extents of destroyed segments are reused, because lookups without a lock can still
 * read them; they are type-stable.
 *
 * Memory pressure is a status of these functions; fallback_chain.h decides what happens then.
 *
 * Locking: the caller holds the device memory lock and no other lock.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/block/arena.h"
#include "src/core/device/device.h"

/* --- Candidate ranges. --- */

/*
 * A candidate range: adjacent unmapped and cached blocks of one segment in which a request fits once the unmapped blocks are
 * mapped.
 *
 *     [ allocated ][ cached ][ unmapped ][ cached ][ unmapped ........ ][ allocated ]
 *                  |<------ candidate range of a request ------>|
 *                            of the last unmapped block only the pages that the request needs
 *
 * Two ranges are of interest: the lowest one by position (block.h), which is PyTorch's choice, and under memory pressure the
 * one that needs the fewest bytes.  Both searches walk the tree of unmapped blocks of the arena: O(unmapped blocks + blocks in
 * the ranges that begin there).
 *
 * A candidate range is claimed under the lock of the arena, mapped without that lock, and settled under it again.  In
 * between its blocks are in the state XSEG_BLOCK_CLAIMED, so no other thread allocates or coalesces them.  A cached small
 * block gets a record when it is claimed.  The growth maps unmapped blocks from the lowest address on and stops at the first
 * failure (`failed`).  The settle turns the blocks before it into cached memory and the others into unmapped blocks again.
 *
 * Locking: the device memory lock is held from the claim to the settle; the lock of the arena where a function says so.
 */

struct xseg_candidate {
    struct xseg_block *first, *last; /* claimed, and so are all blocks in between */
    uint64_t missing;                /* bytes of its unmapped blocks */
    bool small;                      /* to be mapped with small pages */
    uint64_t max_page_bytes;         /* not small: of the longest page; 0: full pages */
    struct xseg_block *failed;       /* the first block that could not be mapped, or NULL */
};

/* Find the candidate range of `bytes` that needs the fewest bytes, the lowest of equal ones.  Returns the first block of the
 * range, or NULL if there is none.  The arena is locked.
 * missing: set to the bytes to be mapped in small pages; UINT64_MAX if there is no range */
struct xseg_block *xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                                uint64_t *missing);

/*
 * Map the unmapped blocks of a candidate range, lowest first, up to the first failure.  No arena is locked.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_candidate_map(struct xseg_candidate *candidate);

/* Settle a candidate range: mapped blocks become cached, the others unmapped.  mapped: false if xseg_candidate_map() was not
 * called.  Returns what the last block has become, as xseg_arena_settle().  The arena is locked. */
struct xseg_block *xseg_candidate_settle(struct xseg_arena *arena,
                                         const struct xseg_candidate *candidate, bool mapped);

/* The number of full-page slots in the unmapped blocks of a candidate range, wherever pages start. */
uint64_t xseg_candidate_full_pages(const struct xseg_candidate *candidate);

/* The number of missing bytes that idle pages of the page cache can cover, as far as the filter accepts them. */
uint64_t xseg_candidate_covered(const struct xseg_candidate *candidate,
                                const struct xseg_page_filter *filter);

/* Notify observers (mapping.h) of the blocks of a candidate range that were mapped. */
void xseg_candidate_notify(const struct xseg_candidate *candidate);

/* --- Growth. --- */

/* The budget of addresses of a device: a quarter of the 47 bits that every GPU has.  That leaves addresses to other users,
 * and suffices for 350 segments as long as PyTorch's on a device of 80 GiB. */
#define XSEG_GROWTH_ADDRESSES ((uint64_t)1 << 45)

/*
 * Grow for a request, and serve the request.
 *
 * Returns: XSEG_OK and the block, allocated (cached if params->keep);
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_PAUSED,
 *          XSEG_ERR_DRIVER, XSEG_ERR_UNSUPPORTED, and nothing has changed
 */
xseg_status xseg_growth_run(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            struct xseg_alloc_result *out);

/*
 * The two halves of a growth in an expandable segment.  The first claims a candidate range, in a new segment if necessary.
 * The second maps the range and serves the request from it.
 *
 * small:  claim the range that needs the fewest small pages; else the lowest range
 * status: XSEG_OK; or the reason why no memory may be mapped, which is returned after the range is settled
 */
xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool small, struct xseg_candidate *candidate);
xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_candidate *candidate, xseg_status status,
                               struct xseg_alloc_result *out);

/*
 * Check all limits for a growth of a pool by `more` bytes.
 *
 * covered: the number of these bytes that idle pages cover, which count as physical memory already
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY (more than the device has), XSEG_ERR_LIMIT
 */
xseg_status xseg_growth_check(struct xseg_pool *pool, uint64_t more, uint64_t covered);

/* Check the pool's own limit for a growth by `more` bytes: XSEG_OK, XSEG_ERR_LIMIT. */
xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more);

/*
 * Give an extent without mapped memory the next positions of its device, before memory is mapped in it.  PyTorch destroys a
 * segment that has lost all of its memory, and registers a new one, which comes last in the order of segments.  The lock of
 * the arena is held as well.
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

/* xseg_growth_run() for one kind of segment: a classic one, one page for one block (single_page),
 * and a segment for a guarded block. */
xseg_status xseg_growth_classic(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out);
xseg_status xseg_growth_single_page(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params,
                                    struct xseg_alloc_result *out);
xseg_status xseg_growth_guarded(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out);

/* Fail with XSEG_ERR_UNSUPPORTED because a device makes no pages. */
xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device);

/* --- Remap. --- */

/*
 * Remap: under memory pressure, idle pages of the device move to the segment that grows.
 *
 * An idle page is a whole page in a cached block whose stream has completed its work.  A remap unmaps the page where it is,
 * and the growth maps it in the candidate range, without a release and a create.  Idle pages that the request cannot use as
 * they are (full pages without a full-page slot in the range, pages with other properties, classic segments) are released to
 * the driver, which then has memory for small pages.
 *
 *     create pages   full pages first, small pages for the rest, as far as limits and the driver allow
 *     reclaim        cached pages of the growing arena, then of other arenas, into the page cache: the missing bytes only
 *     convert        while pages are missing: release a surplus page, create pages from its memory
 *
 * If all idle memory together does not suffice, nothing is reclaimed.  Pools that users retain keep their pages.  During a
 * capture no memory is unmapped: the remap only creates pages.
 *
 * Locking: the caller holds the device memory lock and no other lock.
 */

/* The pages that a growth needs. */
struct xseg_remap_plan {
    const struct xseg_config *config;
    struct xseg_page_filter filter;
    uint64_t bytes;           /* to be mapped; a multiple of granule_bytes */
    uint64_t granule_bytes;   /* of a small page of the growing segment */
    uint64_t page_bytes;      /* of a full page of the growing segment */
    uint64_t full_pages;      /* full-page slots in the candidate range */
    bool wait;                /* wait for streams with queued work */
    struct xseg_arena *arena; /* the growing arena, whose own idle pages are reclaimed first */
};

/*
 * Provide idle pages in the page cache for plan->bytes.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY or XSEG_ERR_LIMIT if there are not enough; XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER.
 *          The page cache can have more pages than before in any case.  The caller maps or releases them.
 * Cost:    creates; a query, or a wait, for each stream whose memory is considered; an unmap for each contiguous run
 */
xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan);

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
 * These segments are in arenas of a private pool of the device.  The free lists and the unmapped blocks of such an arena serve
 * no request, since a segment serves one block.  segments.c creates the segments.  If the pages cannot be released (a stream is
 * being captured, or a driver call fails), they stay cached, and the next trim releases them.
 *
 * Locking: the device memory lock guards quarantines.
 */

/* The maximum number of segments of an arena in quarantine; then the older half is destroyed. */
#define XSEG_GUARDED_QUARANTINE 4096u

/*
 * If a guarded block can serve a request, mark the request, and replace its arena by a guarded one.  No lock is held.
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
