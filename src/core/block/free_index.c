/* SPDX-License-Identifier: MIT */
#include "src/core/block/free_index.h"

#include <inttypes.h>

/* Blocks that a search walks along before it asks the marks: four of five searches end within these. */
#define STEPS 4u

void xseg_free_index_init(struct xseg_free_index *free_index)
{
    XSEG_ASSERT(free_index->storage[0] == 0 && free_index->bin[0] == NULL);
    xseg_bitmap_init(&free_index->used, free_index->storage, XSEG_FREE_INDEX_BINS);
}

struct xseg_block *xseg_free_index_find_among(struct xseg_block *first, uint64_t bytes,
                                              uint64_t position)
{
    struct xseg_block *block = first;

    XSEG_ASSERT(xseg_free_index_is_below(first, bytes, position));
    XSEG_ASSERT(!xseg_free_index_is_below(first->lower, bytes, position));
    for (unsigned step = 0; step < STEPS; step++) {
        block = block->higher;
        if (!xseg_free_index_is_below(block, bytes, position))
            return block;
    }
    block = xseg_tree_find(first->left, bytes, position);
    if (block == NULL)
        block = first->lower;
    while (!xseg_free_index_is_below(block->lower, bytes, position))
        block = block->lower;
    XSEG_ASSERT(block != first && block->lower->higher == block);
    return block;
}

/* Insert a block that comes before all others of its bin. */
static void insert_first(struct xseg_block **bin, struct xseg_block *block)
{
    struct xseg_block *second = *bin, *marks = second->left;

    XSEG_ASSERT(xseg_free_index_is_below(block, second->bytes, xseg_block_position(second)));
    if (xseg_free_index_is_tree_node(second))
        xseg_tree_insert(&marks, second);
    block->left = marks;
    block->lower = second->lower;
    block->higher = second;
    second->lower = block;
    *bin = block;
}

void xseg_free_index_insert_among(struct xseg_block **bin, struct xseg_block *block)
{
    struct xseg_block *first = *bin, *last = first->lower;
    const uint64_t position = xseg_block_position(block);

    XSEG_ASSERT(last->higher == NULL && block != first && block != last);
    if (!xseg_free_index_is_below(first, block->bytes, position)) {
        insert_first(bin, block);
        return;
    }
    if (xseg_free_index_is_below(last, block->bytes, position)) {
        block->lower = last;
        block->higher = NULL;
        last->higher = block;
        first->lower = block;
    } else {
        struct xseg_block *higher = xseg_free_index_find_among(first, block->bytes, position);

        XSEG_ASSERT(higher != first && higher != block);
        block->lower = higher->lower;
        block->higher = higher;
        higher->lower->higher = block;
        higher->lower = block;
    }
    if (xseg_free_index_is_tree_node(block))
        xseg_tree_insert(&first->left, block);
}

void xseg_free_index_remove_among(struct xseg_block *first, struct xseg_block *block)
{
    struct xseg_block *lower = block->lower, *higher = block->higher;

    XSEG_ASSERT(first != block && lower->higher == block);
    XSEG_ASSERT((higher == NULL ? first : higher)->lower == block);
    lower->higher = higher;
    (higher == NULL ? first : higher)->lower = lower;
    if (xseg_free_index_is_tree_node(block))
        xseg_tree_remove(&first->left, block);
}

/* Audit a bin that is not empty. */
static bool audit_bin(uint32_t bin, struct xseg_block *first, struct xseg_violation *violation)
{
    const struct xseg_block *mark = xseg_tree_first(first->left), *last = NULL;

    for (const struct xseg_block *block = first; block != NULL; block = block->higher) {
        XSEG_INVARIANT(violation, "INDEX-2",
                       xseg_free_index_bin_of(block->bytes) == bin &&
                           block->state == XSEG_BLOCK_CACHED,
                       "a block of %" PRIu64 " bytes, state %d, is in bin %" PRIu32, block->bytes,
                       block->state, bin);
        XSEG_INVARIANT(violation, "INDEX-3",
                       last == NULL || (block->lower == last &&
                                        xseg_free_index_is_below(last, block->bytes,
                                                                 xseg_block_position(block))),
                       "bin %" PRIu32 " is out of order at %#" PRIx64, bin, block->base);
        if (last != NULL && xseg_free_index_is_tree_node(block)) {
            XSEG_INVARIANT(violation, "INDEX-4", block == mark,
                           "the mark at %#" PRIx64 " is not in the tree of bin %" PRIu32,
                           block->base, bin);
            mark = xseg_tree_next(first->left, mark);
        }
        last = block;
    }
    XSEG_INVARIANT(violation, "INDEX-3", first->lower == last,
                   "the first of bin %" PRIu32 " does not name the last", bin);
    XSEG_INVARIANT(violation, "INDEX-4", mark == NULL,
                   "the tree of bin %" PRIu32 " has what is no mark", bin);
    return true;
}

/* Whether none of the 64 bins from `bin` on has a block.  Most have none, so an audit asks this first. */
static bool are_empty(const struct xseg_free_index *free_index, uint32_t bin)
{
    uintptr_t any = 0;

    for (uint32_t i = 0; i < 64; i++)
        any |= (uintptr_t)free_index->bin[bin + i];
    return any == 0;
}

/* Audit 64 bins from `bin` on. */
static bool audit_bins(const struct xseg_free_index *free_index, uint32_t bin,
                       struct xseg_violation *violation)
{
    for (const uint32_t end = bin + 64; bin < end; bin++) {
        struct xseg_block *first = free_index->bin[bin];

        XSEG_INVARIANT(violation, "INDEX-1",
                       xseg_bitmap_test(&free_index->used, bin) == (first != NULL),
                       "bin %" PRIu32 " and its bit differ", bin);
        if (first != NULL && !audit_bin(bin, first, violation))
            return false;
    }
    return true;
}

bool xseg_free_index_audit(const struct xseg_free_index *free_index,
                           struct xseg_violation *violation)
{
    for (uint32_t bin = 0; bin < XSEG_FREE_INDEX_BINS; bin += 64)
        if ((free_index->used.word[bin / 64] != 0 || !are_empty(free_index, bin)) &&
            !audit_bins(free_index, bin, violation))
            return false;
    return true;
}
