/* SPDX-License-Identifier: MIT */
#include "src/core/block/free_index.h"

#include <inttypes.h>

void xseg_free_index_init(struct xseg_free_index *free_index, char *records)
{
    XSEG_ASSERT(free_index->storage[0] == 0 && free_index->bin[0] == 0);
    xseg_bitmap_init(&free_index->used, free_index->storage, XSEG_FREE_INDEX_BINS);
    free_index->records = records;
}

/* --- The path from the first block of a bin to the root. --- */

/* Search the path from the first block upward; returns the last block that precedes a key, or 0.
 * above: set to the next block of the path, which does not precede the key, or to 0 */
static inline uint32_t search_path(char *records, uint32_t first, const struct xseg_tree_key *key,
                                   uint32_t *above)
{
    uint32_t below = 0;

    while (first != 0) {
        const struct xseg_block *block = xseg_block_at(records, first);

        if (!xseg_tree_precedes(block, key))
            break;
        below = first;
        first = block->left;
    }
    *above = first;
    return below;
}

struct xseg_block *xseg_free_index_find_in_bin(const struct xseg_free_index *free_index,
                                               uint32_t bin, uint64_t bytes, uint64_t position)
{
    const struct xseg_tree_key key = {.by_size = bin >= XSEG_FREE_INDEX_EXACT,
                                      .is_position = true,
                                      .bytes = bytes,
                                      .position = position};
    char *records = free_index->records;
    uint32_t above;
    const uint32_t below = search_path(records, free_index->bin[bin], &key, &above);

    XSEG_ASSERT(below != 0);
    struct xseg_block *block =
        xseg_tree_lower_bound(records, xseg_block_at(records, below)->right, &key);
    if (block != NULL || above == 0)
        return block;
    return xseg_block_at(records, above);
}

/* xseg_free_index_insert_into_bin() for a bin of several sizes, or of one. */
static inline __attribute__((always_inline)) void
insert_block(char *records, uint32_t *bin, struct xseg_block *block, bool by_size)
{
    const struct xseg_tree_key key = xseg_tree_key_of(block, by_size);
    const uint32_t handle = xseg_block_handle(records, block);
    const uint32_t priority = xseg_tree_priority(handle);
    uint32_t above, right = 0;
    const uint32_t below = search_path(records, *bin, &key, &above);

    if (below != 0) {
        struct xseg_block *lower = xseg_block_at(records, below);

        if (xseg_tree_priority(below) > priority) {
            xseg_tree_insert(records, &lower->right, block, &key);
            return;
        }
        xseg_tree_split(records, lower->right, &key, &lower->right, &right);
        lower->left = handle;
    } else {
        *bin = handle;
    }
    /* The block is on the path now. Blocks above it with a lower priority become its right
     * subtree. */
    while (above != 0 && xseg_tree_priority(above) <= priority) {
        struct xseg_block *higher = xseg_block_at(records, above);
        const uint32_t parent = higher->left;

        higher->left = right;
        right = above;
        above = parent;
    }
    block->left = above;
    block->right = right;
}

void xseg_free_index_insert_into_bin(char *records, uint32_t *bin, struct xseg_block *block)
{
    if (block->bytes < XSEG_MIB)
        insert_block(records, bin, block, false);
    else
        insert_block(records, bin, block, true);
}

/* Replace a removed block on the path by its right subtree: the left spine of the subtree joins the
 * path. Blocks with a lower priority than the block below on the path are joined with that block's
 * right subtree instead.
 * below: 0 if the removed block was the first */
static void replace_on_path(char *records, uint32_t *bin, uint32_t below, uint32_t right,
                            uint32_t parent)
{
    struct xseg_block *lower = below == 0 ? NULL : xseg_block_at(records, below);

    while (right != 0) {
        struct xseg_block *block = xseg_block_at(records, right);
        const uint32_t next = block->left;

        if (lower != NULL && xseg_tree_priority(below) > xseg_tree_priority(right)) {
            lower->right = xseg_tree_join(records, lower->right, right);
            break;
        }
        block->left = parent;
        parent = right;
        right = next;
    }
    if (lower != NULL)
        lower->left = parent;
    else
        *bin = parent;
}

/* xseg_free_index_remove_from_bin() for a bin of several sizes, or of one. */
static inline __attribute__((always_inline)) void
remove_block(char *records, uint32_t *bin, struct xseg_block *block, bool by_size)
{
    const struct xseg_tree_key key = xseg_tree_key_of(block, by_size);
    uint32_t above;
    const uint32_t below = search_path(records, *bin, &key, &above);

    if (above == xseg_block_handle(records, block))
        replace_on_path(records, bin, below, block->right, block->left);
    else
        xseg_tree_remove(records, &xseg_block_at(records, below)->right, block, &key);
}

void xseg_free_index_remove_from_bin(char *records, uint32_t *bin, struct xseg_block *block)
{
    if (block->bytes < XSEG_MIB)
        remove_block(records, bin, block, false);
    else
        remove_block(records, bin, block, true);
}

uint64_t xseg_free_index_count(const struct xseg_free_index *free_index)
{
    char *records = free_index->records;
    uint64_t count = 0;

    for (uint32_t bin = xseg_bitmap_next(&free_index->used, 0); bin != XSEG_BITMAP_NONE;
         bin = xseg_bitmap_next(&free_index->used, bin + 1))
        for (uint32_t handle = free_index->bin[bin]; handle != 0;
             handle = xseg_block_at(records, handle)->left)
            count += 1 + xseg_tree_count(records, xseg_block_at(records, handle)->right);
    return count;
}

/* --- Audit. --- */

/* The state of an audit of one bin. */
struct bin_audit {
    char *records;
    const struct xseg_block *last;
    struct xseg_violation *violation;
    uint32_t bin;
};

static bool audit_block(struct bin_audit *audit, uint32_t handle, uint32_t parent_priority)
{
    const struct xseg_block *block = xseg_block_at(audit->records, handle);
    struct xseg_violation *violation = audit->violation;
    const struct xseg_tree_key key = xseg_tree_key_of(block, true);

    XSEG_INVARIANT(violation, "INDEX-2",
                   xseg_free_index_bin_of(block->bytes) == audit->bin &&
                       block->state == XSEG_BLOCK_CACHED,
                   "a block of %" PRIu64 " bytes, state %d, is in bin %" PRIu32, block->bytes,
                   block->state, audit->bin);
    XSEG_INVARIANT(violation, "INDEX-3",
                   audit->last == NULL || xseg_tree_precedes(audit->last, &key),
                   "bin %" PRIu32 " is out of order at %#" PRIx64, audit->bin, block->base);
    XSEG_INVARIANT(violation, "INDEX-4", xseg_tree_priority(handle) <= parent_priority,
                   "the block at %#" PRIx64 " in bin %" PRIu32 " has a parent of a lower priority",
                   block->base, audit->bin);
    audit->last = block;
    return true;
}

/* Audit a subtree with ordinary links.
 * parent_priority: that of the block to which the subtree is linked */
static bool audit_subtree(struct bin_audit *audit, uint32_t root, uint32_t parent_priority)
{
    while (root != 0) {
        const struct xseg_block *block = xseg_block_at(audit->records, root);

        if (!audit_subtree(audit, block->left, xseg_tree_priority(root)) ||
            !audit_block(audit, root, parent_priority))
            return false;
        parent_priority = xseg_tree_priority(root);
        root = block->right;
    }
    return true;
}

static bool audit_bin(const struct xseg_free_index *free_index, uint32_t bin,
                      struct xseg_violation *violation)
{
    struct bin_audit audit = {free_index->records, NULL, violation, bin};

    for (uint32_t handle = free_index->bin[bin]; handle != 0;) {
        const struct xseg_block *block = xseg_block_at(audit.records, handle);
        const uint32_t parent = block->left;

        if (!audit_block(&audit, handle, parent == 0 ? UINT32_MAX : xseg_tree_priority(parent)) ||
            !audit_subtree(&audit, block->right, xseg_tree_priority(handle)))
            return false;
        handle = parent;
    }
    return true;
}

/* Whether 64 bins, starting at `bin`, are empty. Most bins are, so an audit checks this first. */
static bool are_bins_empty(const struct xseg_free_index *free_index, uint32_t bin)
{
    uint32_t handles = 0;

    for (uint32_t i = 0; i < 64; i++)
        handles |= free_index->bin[bin + i];
    return handles == 0;
}

/* Audit 64 bins, starting at `bin`. */
static bool audit_bins(const struct xseg_free_index *free_index, uint32_t bin,
                       struct xseg_violation *violation)
{
    for (const uint32_t end = bin + 64; bin < end; bin++) {
        const bool is_used = free_index->bin[bin] != 0;

        XSEG_INVARIANT(violation, "INDEX-1", xseg_bitmap_test(&free_index->used, bin) == is_used,
                       "bin %" PRIu32 " and its bit differ", bin);
        if (is_used && !audit_bin(free_index, bin, violation))
            return false;
    }
    return true;
}

bool xseg_free_index_audit(const struct xseg_free_index *free_index,
                           struct xseg_violation *violation)
{
    for (uint32_t bin = 0; bin < XSEG_FREE_INDEX_BINS; bin += 64)
        if ((free_index->used.word[bin / 64] != 0 || !are_bins_empty(free_index, bin)) &&
            !audit_bins(free_index, bin, violation))
            return false;
    return true;
}
