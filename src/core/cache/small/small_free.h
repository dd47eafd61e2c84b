/* SPDX-License-Identifier: MIT */
/* Small arenas: how blocks come back. */
#ifndef XSEG_CORE_SMALL_FREE_H
#define XSEG_CORE_SMALL_FREE_H

#include "src/core/cache/small/small.h"

/* Free the live cell that begins at a quantum; false, and nothing has changed, if none does. */
bool xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum);

/* Quanta of a chunk map, which are counted as free and in no cell, become a cached cell and merge with what is beside
 * it. */
void xseg_small_merge(struct xseg_arena *arena, struct xseg_chunk_map *chunk, uint32_t quantum,
                      uint32_t quanta);

/* Free the live cell that begins at an address, if one does. */
void xseg_small_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address);

/* The cached cell that begins at an address, or ends there; none if none does. */
struct xseg_cell xseg_small_cached_at(struct xseg_extent *extent, uint64_t address);
struct xseg_cell xseg_small_cached_before(struct xseg_extent *extent, uint64_t address);

/* A cached cell leaves the bins or the free index, and is neither live nor cached from here on. */
void xseg_small_take_off(struct xseg_arena *arena, const struct xseg_cell *cell);

/* A cell that is neither live nor cached becomes cached and merges; returns what it has become. */
struct xseg_cell xseg_small_put_on(struct xseg_arena *arena, struct xseg_cell cell);

#endif
