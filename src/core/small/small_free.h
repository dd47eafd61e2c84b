/* SPDX-License-Identifier: MIT */
/* Small arenas: how blocks come back. */
#ifndef XSEG_CORE_SMALL_FREE_H
#define XSEG_CORE_SMALL_FREE_H

#include "src/core/small/small.h"

/* Free the live cell that begins at a quantum; false, and nothing has changed, if there is none. */
bool xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum);

/* Make quanta of a chunk map, which are counted as free and in no cell, a cached cell, and merge it with its
 * neighbours. */
void xseg_small_merge(struct xseg_arena *arena, struct xseg_chunk_map *chunk, uint32_t quantum,
                      uint32_t quanta);

/* Free the live cell that begins at an address, if there is one. */
void xseg_small_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address);

/* The cached cell that begins at an address, or none. */
struct xseg_cell xseg_small_cached_at(struct xseg_extent *extent, uint64_t address);
/* The cached cell that ends at an address, or none. */
struct xseg_cell xseg_small_cached_before(struct xseg_extent *extent, uint64_t address);

/* Take a cached cell out of the bins or the free index; then it is neither live nor cached. */
void xseg_small_take_off(struct xseg_arena *arena, const struct xseg_cell *cell);

/* Make a cell cached that is neither live nor cached, and merge it; returns the merged cell. */
struct xseg_cell xseg_small_put_on(struct xseg_arena *arena, struct xseg_cell cell);

#endif
