/* SPDX-License-Identifier: MIT */
#include "src/core/shelf.h"

#include <inttypes.h>

#include "src/base/align.h"

static uint32_t bin_of(uint64_t bytes)
{
    if (bytes < XSEG_MIB)
        return (uint32_t)(bytes >> 9);
    const unsigned octave = xseg_log2_floor(bytes);
    const uint32_t bin =
        XSEG_SHELF_EXACT + (octave - 20) * 256 + (uint32_t)(bytes >> (octave - 8) & 255);
    return bin < XSEG_SHELF_BINS ? bin : XSEG_SHELF_BINS - 1;
}

void xseg_shelf_init(struct xseg_shelf *shelf)
{
    xseg_bits_init(&shelf->filled, shelf->storage, XSEG_SHELF_BINS);
}

void xseg_shelf_insert(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = bin_of(block->bytes);

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    if (shelf->bin[bin] == NULL)
        xseg_bits_add(&shelf->filled, bin);
    xseg_tree_insert(&shelf->bin[bin], block);
}

void xseg_shelf_remove(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = bin_of(block->bytes);

    xseg_tree_remove(&shelf->bin[bin], block);
    if (shelf->bin[bin] == NULL)
        xseg_bits_remove(&shelf->filled, bin);
}

/* The first block in a bin above this one. */
static struct xseg_block *first_above(const struct xseg_shelf *shelf, uint32_t bin)
{
    const uint32_t next = xseg_bits_next(&shelf->filled, bin + 1);

    return next == XSEG_BITS_NONE ? NULL : xseg_tree_first(shelf->bin[next]);
}

struct xseg_block *xseg_shelf_from(const struct xseg_shelf *shelf, uint64_t bytes, uint64_t base)
{
    const uint32_t bin = bin_of(bytes);
    struct xseg_block *block = xseg_tree_find(shelf->bin[bin], bytes, base);

    return block != NULL ? block : first_above(shelf, bin);
}

struct xseg_block *xseg_shelf_find(const struct xseg_shelf *shelf, uint64_t bytes)
{
    return xseg_shelf_from(shelf, bytes, 0);
}

struct xseg_block *xseg_shelf_next(const struct xseg_shelf *shelf, const struct xseg_block *block)
{
    return xseg_shelf_from(shelf, block->bytes, block->base + 1);
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
                       bin_of(block->bytes) == bin && block->state == XSEG_BLOCK_CACHED,
                       "a block of %" PRIu64 " bytes, state %d, is in bin %" PRIu32, block->bytes,
                       block->state, bin);
    }
    return true;
}
