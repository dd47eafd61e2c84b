/* SPDX-License-Identifier: MIT */
#include "src/core/block/tree.h"

uint64_t xseg_tree_count(char *records, uint32_t root)
{
    uint64_t count = 0;

    while (root != 0) {
        const struct xseg_block *block = xseg_block_at(records, root);

        count += 1 + xseg_tree_count(records, block->left);
        root = block->right;
    }
    return count;
}
