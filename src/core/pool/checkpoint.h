/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint: the blocks of a pool that were live at some time, and the granules of its ranges that were committed.
 *
 * A checkpoint lists live blocks by address.  All other state follows from these: mapped memory that is not
 * live is cached, and cached neighbours are one block.  A pool that is held usually loses no memory, so
 * its addresses are still mapped when the checkpoint is restored; if not, the restore changes nothing.
 * Cached blocks are listed for their requested sizes: PyTorch allocates and frees them in a restore, which makes the
 * requested size that of the block in the checkpoint.
 * Ranges are a part of their own (checkpoint_ranges.h).
 *
 * Locking: the device memory lock and ARENA are taken inside; none may be held.
 */
#ifndef XSEG_CORE_CHECKPOINT_H
#define XSEG_CORE_CHECKPOINT_H

#include "src/core/device/device.h"

struct xseg_checkpoint_ranges;

struct xseg_checkpoint_block {
    struct xseg_arena *arena;
    uint64_t base, bytes, requested;
};

struct xseg_checkpoint {
    struct xseg_pool *pool;
    /* Of `pool`, which may have been freed since then. */
    uint64_t serial;
    char label[XSEG_POOL_NAME_MAX + 3];
    size_t count;
    struct xseg_checkpoint_ranges *ranges;
    const uint64_t *users; /* [count], the words of the blocks' requests; NULL without block_user */
    const struct xseg_checkpoint_block *cached; /* [cached_count] */
    size_t cached_count;
    struct xseg_checkpoint_block block[]; /* live; by arena and segment, then address */
};

/* Implementations of xseg_pool_checkpoint(), xseg_checkpoint_destroy(), xseg_pool_restore() and
 * xseg_pool_check_live(). */
xseg_status xseg_checkpoint_take(struct xseg_pool *pool, struct xseg_checkpoint **out);
void xseg_checkpoint_free(struct xseg_checkpoint *checkpoint);
xseg_status xseg_checkpoint_restore(const struct xseg_checkpoint *checkpoint,
                                    void (*moved)(void *self, void *pointer, bool freed),
                                    void *self);
xseg_status xseg_checkpoint_compare(struct xseg_pool *pool, void *const *pointers, size_t count,
                                    bool *exactly);

#endif
