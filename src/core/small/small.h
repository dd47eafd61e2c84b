/* SPDX-License-Identifier: MIT */
/*
 * Small arenas: how they serve, with cells (cells.h) instead of a record a block.
 *
 * A hit changes cells only.  The records of an extent's chain are there for growth and trims, see
 * tract.h.
 *
 * Cached cells are in the arena's bins if they are narrow, in its free index if they are wide.  The
 * *victim* is a wide cell that is in neither: the rest of the wide cell that was cut last.  The victim
 * shrinks and grows with each small allocation and free beside it, without a change to the free index.
 *
 * Invariants; xseg_small_audit() checks them, and those of cells.h and bins.h:
 *   SMALL-1  no two cached cells are adjacent.
 *   SMALL-2  every wide cached cell is in the free index or is the victim, and nothing else is.
 *   SMALL-3  an arena is plain exactly while its bins have one top word for each size.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_SMALL_H
#define XSEG_CORE_SMALL_H

#include "src/core/arena/arena.h"

/* --- Hits. --- */

/* Serve a request from cached cells, as PyTorch would choose; false if there is none. */
bool xseg_small_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                      struct xseg_alloc_result *out);

/*
 * Serve a plain request: a quantum is all the alignment it needs, and a cell may be split.
 *
 * requested:                   bytes, not 0
 * expandable, max_split_bytes: of the configuration
 * Returns: the address; 0, and nothing has changed, if no cell fits, or patterns have to be looked at
 */
uint64_t xseg_small_hit(struct xseg_arena *arena, uint64_t requested, bool expandable,
                        uint64_t max_split_bytes);

/* --- Cells by address. --- */

/* Hand out cached memory at an address; one cached cell covers all of it. */
struct xseg_alloc_result xseg_small_hand_out_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params);

/* The first wide cached cell that is not below (bytes, position), as a node that is in the free index, or NULL. */
struct xseg_block *xseg_small_from(struct xseg_arena *arena, uint64_t bytes, uint64_t position);

#endif
