/* SPDX-License-Identifier: MIT */
/*
 * Tracts: the chain of records of a small extent, whose live and cached blocks are cells.
 *
 * The chain is kept for the driver's sake: holes, busy blocks, and *tracts*.  A tract is what is mapped
 * and divided into cells:
 *
 *     records   [ tract ............................ ][ hole ... ][ tract ... ][ busy ]
 *     cells      [ live ][ cached ][ live ][ cached ]              [ live ]
 *
 * Whoever needs a record of a cell has it *isolated*: the tract is cut, and the cell becomes a block of
 * the chain, because other streams use it, or because a growth or a trim claims it.  When it is cached
 * again, it becomes a cell again, and the tracts join.
 *
 * Tracts and isolated cells are in a tree by address; what else is in the chain follows one of them.
 *
 * Invariants; xseg_tract_audit() checks them:
 *   TRACT-1  no two tracts are adjacent.
 *   TRACT-2  cells tile their tract; what else is in the chain is marked as a record.
 *   TRACT-3  exactly tracts and isolated cells are in the tree.
 *
 * Locking: ARENA; making chunk maps, GROWTH.
 */
#ifndef XSEG_CORE_TRACT_H
#define XSEG_CORE_TRACT_H

#include "src/core/cache/small/bins.h"
#include "src/core/cache/small/cell.h"

struct xseg_arena;

/* The state of a tract's record, beside those of enum xseg_block_state. */
#define XSEG_BLOCK_TRACT 16u

/* Records that a claim, with the cuts after it, may need. */
#define XSEG_TRACT_RECORDS 4u

/*
 * Make the chunk maps of offsets [begin, end) of an extent, and of the quantum behind, where a hole begins.
 * GROWTH is held, no other lock.  Returns false without host memory.
 */
bool xseg_tract_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* The extent ends: its chunk maps leave the bins.  No cell is left. */
void xseg_tract_uncover(struct xseg_arena *arena, const struct xseg_extent *extent);

/* The record that covers an address: a tract, or another block of the chain. */
struct xseg_block *xseg_tract_over(const struct xseg_extent *extent, uint64_t address);

/* Claim a cached cell: it becomes a busy block.  Two records must be in stock. */
struct xseg_block *xseg_tract_claim(struct xseg_arena *arena, const struct xseg_cell *cell);

/* Make a live cell a block of its own, until it is free.  Two records must be in stock. */
struct xseg_block *xseg_tract_isolate(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint32_t quantum);

/* A mapped block that was claimed becomes a cached cell and merges; returns its node, or NULL if it is
 * narrow. */
struct xseg_block *xseg_tract_settle(struct xseg_arena *arena, struct xseg_block *block);

/* The same for a block that was isolated. */
void xseg_tract_take_back(struct xseg_arena *arena, struct xseg_block *block);

/* A block that is no tract begins at its base from now on, or does no longer. */
void xseg_tract_mark(const struct xseg_block *block);
void xseg_tract_unmark(const struct xseg_block *block);

/* A block has become a hole, or is one no longer: the cached cell before it is told. */
void xseg_tract_note_hole(const struct xseg_block *block, bool is_hole);

bool xseg_tract_audit(const struct xseg_extent *extent, struct xseg_finding *finding);

/* The record that begins where a cached cell ends, if one does. */
static inline struct xseg_block *xseg_tract_behind(const struct xseg_cell *cell)
{
    const struct xseg_block *tract =
        xseg_tract_over(cell->extent, xseg_cell_address_of(cell->extent, cell->quantum));

    return tract->next;
}

/* Whether a hole begins where a cached cell ends. */
static inline bool xseg_tract_has_hole_behind(const struct xseg_cell *cell)
{
    const struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t end = cell->quantum + cell->quanta;

    return end < cells->quanta &&
           (xseg_cells_word(cells, end)->record & xseg_cells_bit(end)) != 0 &&
           xseg_tract_behind(cell)->state == XSEG_BLOCK_HOLE;
}

#endif
