/* SPDX-License-Identifier: MIT */
/* The tables of an extent, and the blocks that they lead to. */
#ifndef XSEG_CORE_EXTENT_BLOCKS_H
#define XSEG_CORE_EXTENT_BLOCKS_H

#include "src/core/block/extent.h"

/* Begin an extent before other threads can find it; false if its blocks are small and it is too
 * long for that. */
bool xseg_extent_init(struct xseg_extent *extent);
/* Free the tables of an extent, whose blocks are not used any more. */
void xseg_extent_fini(struct xseg_extent *extent);

/* Have the page map ready for offsets [begin, end), where memory is mapped. The device memory lock is held, no
 * other lock. Returns false on host allocation failure. */
bool xseg_extent_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* Host bytes of the tables. */
uint64_t xseg_extent_host_bytes(const struct xseg_extent *extent);

/* The live or pending block whose first byte is at `address`, which lies in the extent; or NULL. */
struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent, uint64_t address);

/* The block that covers `address`, which lies in the extent. */
struct xseg_block *xseg_extent_block_over(const struct xseg_extent *extent, uint64_t address);

bool xseg_extent_audit(const struct xseg_extent *extent, struct xseg_violation *violation);

#endif
