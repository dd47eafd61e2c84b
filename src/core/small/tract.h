/* SPDX-License-Identifier: MIT */
/*
 * Tracts: the chain of records of a small extent, whose live and cached blocks are cells.
 *
 * Growth and trims work on the chain: holes, busy blocks, and *tracts*.  A tract is memory that is mapped
 * and divided into cells:
 *
 *     records   [ tract ............................ ][ hole ... ][ tract ... ][ busy ]
 *     cells      [ live ][ cached ][ live ][ cached ]              [ live ]
 *
 * A cell that needs a record is *isolated*: its tract is cut, and the cell becomes a block of the chain.  That is
 * so while other streams use the cell, or a growth or a trim claims it.  When the block is cached again, it
 * becomes a cell again, and the tracts join.
 *
 * Tracts and isolated cells are in a tree by address; other blocks of the chain follow one of them.
 *
 * Invariants; xseg_tract_audit() checks them:
 *   TRACT-1  no two tracts are adjacent.
 *   TRACT-2  cells tile their tract; other blocks of the chain are marked as records.
 *   TRACT-3  exactly tracts and isolated cells are in the tree.
 *
 * Locking: ARENA; making chunk maps, the device memory lock.
 */
#ifndef XSEG_CORE_TRACT_H
#define XSEG_CORE_TRACT_H

#include "src/core/block/bins.h"
#include "src/core/small/cell.h"

struct xseg_arena;

/* Records that a claim and the cuts after it may need. */
#define XSEG_TRACT_RECORDS 4u

/*
 * Make the chunk maps of offsets [begin, end) of an extent, and of the quantum behind, where a hole begins.
 * The device memory lock is held, no other lock.  Returns false without host memory.
 */
bool xseg_tract_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* Take the chunk maps of an extent that ends out of the bins.  No cell is left. */
void xseg_tract_uncover(struct xseg_arena *arena, const struct xseg_extent *extent);

/* Rank the chunk maps of an extent anew, after its position (extent.h) has changed.  It has no cached cell. */
void xseg_tract_reorder(const struct xseg_extent *extent);

/* The record that covers an address: a tract, or another block of the chain. */
struct xseg_block *xseg_tract_over(const struct xseg_extent *extent, uint64_t address);

/* Claim a cached cell, which becomes a busy block.  Two records must be in stock. */
struct xseg_block *xseg_tract_claim(struct xseg_arena *arena, const struct xseg_cell *cell);

/* Make a live cell a block of the chain until it is freed.  Two records must be in stock. */
struct xseg_block *xseg_tract_isolate(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint32_t quantum);

/* Make a mapped block that was claimed a cached cell, and merge it; returns the node of the result, or NULL if
 * that is narrow. */
struct xseg_block *xseg_tract_settle(struct xseg_arena *arena, struct xseg_block *block);

/* Make a block that was isolated a cached cell, and merge it. */
void xseg_tract_take_back(struct xseg_arena *arena, struct xseg_block *block);

/* Mark the base of a block as a record, or take the mark away.  The block is no tract. */
void xseg_tract_mark(const struct xseg_block *block);
void xseg_tract_unmark(const struct xseg_block *block);

/* Tell the cached cell before a block, if there is one, that the block is a hole, or is no hole any more. */
void xseg_tract_note_hole(const struct xseg_block *block, bool is_unmapped);

bool xseg_tract_audit(const struct xseg_extent *extent, struct xseg_violation *violation);

#endif
