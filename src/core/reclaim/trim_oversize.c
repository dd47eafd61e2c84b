/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/trim_oversize.h"

#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim_steps.h"

static void give_all(struct xseg_block *claimed)
{
    struct xseg_block *next;

    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        (void)xseg_trim_give(block, false, XSEG_HISTORY_TRIM);
    }
}

static bool is_whole_classic(void *self, const struct xseg_block *block)
{
    (void)self;
    return !xseg_extent_is_expandable(block->extent) && xseg_block_is_whole(block);
}

/* Cut a chain of claimed blocks, the largest first, behind the first blocks that have `wanted` bytes together;
 * returns the rest. */
static struct xseg_block *cut_chain(struct xseg_block *claimed, uint64_t wanted)
{
    struct xseg_block *rest;
    uint64_t bytes = 0;

    XSEG_ASSERT(claimed != NULL);
    for (;; claimed = claimed->right) {
        XSEG_ASSERT(claimed->right == NULL || claimed->right->bytes <= claimed->bytes);
        bytes += claimed->bytes;
        if (bytes >= wanted || claimed->right == NULL)
            break;
    }
    rest = claimed->right;
    claimed->right = NULL;
    return rest;
}

bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t least, uint64_t wanted)
{
    struct xseg_trim_wish wish = {wanted, 1, is_whole_classic, NULL};
    uint64_t bytes = 0;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && least > 0 && wanted >= least);
    xseg_arena_lock(arena);
    struct xseg_block *claimed = xseg_trim_claim(arena, &wish, &bytes);
    if (claimed == NULL) {
        wish.least = least;
        wish.most = UINT64_MAX;
        claimed = xseg_trim_claim(arena, &wish, &bytes);
    }
    xseg_arena_unlock(arena);
    if (claimed == NULL)
        return false;
    struct xseg_block *rest = cut_chain(claimed, wanted);
    xseg_trim_put_back(arena, rest);
    if (bytes < wanted || !xseg_notice_leave(arena->device, claimed)) {
        xseg_trim_put_back(arena, claimed);
        return false;
    }
    give_all(claimed);
    return true;
}
