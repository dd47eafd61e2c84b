/* SPDX-License-Identifier: MIT */
/*
 * Block descriptions for users: struct xseg_block_info of one address or of every block of an
 * arena.
 *
 * Locking: a description is read under the lock of the block's arena.  A list of blocks is read in
 * batches; the arena is unlocked between two batches, so blocks can be allocated, freed and
 * coalesced during the list.
 */
#ifndef XSEG_CORE_BLOCK_INFO_H
#define XSEG_CORE_BLOCK_INFO_H

#include "src/core/device/allocator.h"

/* Describe the block at an address; struct_size is not written.  Implements xseg_block_query(). */
xseg_status xseg_block_info_at(struct xseg_allocator *allocator, const void *pointer,
                               struct xseg_block_info *out);

/*
 * Describe the blocks of an arena from an address on, in the order of their addresses.
 * The caller holds no lock.
 *
 * pool:    the pool of the segments; NULL: every pool
 * cursor:  the address; receives the end of the last block
 * now:     current time, see origins.h
 * Returns: the number of blocks; 0 after the last one
 */
size_t xseg_block_info_list(struct xseg_arena *arena, const struct xseg_pool *pool,
                            uint64_t *cursor, uint64_t now, struct xseg_block_info *out,
                            size_t max);

#endif
