/* SPDX-License-Identifier: MIT */
#include "src/core/shelf.h"

#include <inttypes.h>

void xseg_shelf_init(struct xseg_shelf *shelf)
{
    xseg_bits_init(&shelf->filled, shelf->storage, XSEG_SHELF_BINS);
}

bool xseg_shelf_audit(const struct xseg_shelf *shelf, struct xseg_finding *finding)
{
    for (uint32_t bin = 0; bin < XSEG_SHELF_BINS; bin++) {
        XSEG_HOLDS(finding, "SHELF-1",
                   xseg_bits_has(&shelf->filled, bin) == (shelf->bin[bin] != NULL),
                   "bin %" PRIu32 " and its bit differ", bin);
        for (struct xseg_block *block = xseg_tree_first(shelf->bin[bin]); block != NULL;
             block = xseg_tree_next(shelf->bin[bin], block))
            XSEG_HOLDS(finding, "SHELF-2",
                       xseg_shelf_bin_of(block->bytes) == bin && block->state == XSEG_BLOCK_CACHED,
                       "a block of %" PRIu64 " bytes, state %d, is in bin %" PRIu32, block->bytes,
                       block->state, bin);
    }
    return true;
}
