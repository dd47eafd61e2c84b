/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints: the allocated blocks of a pool at one time, and the committed granules of its
 * ranges; and their restore.
 *
 * A checkpoint lists allocated blocks by address.  All other state follows from these: mapped
 * memory that is not allocated is cached, and adjacent cached blocks are coalesced.  Cached blocks
 * are listed for their requested sizes only, because PyTorch's restore allocates and frees each of
 * them, which sets the requested size to the size of the block.
 *
 * A checkpoint does not retain the pool's memory.  A restore checks that all of the memory is still
 * mapped.  Everything that can fail happens before the first change, so a restore that fails
 * changes nothing.  Then it frees all allocated blocks of the pool and allocates those of the
 * checkpoint at their addresses.
 *
 * Ranges (range.h):
 *
 *     granule        0     1     2     3     4     5     6
 *     checkpoint   [used][used][    ][    ][used][    ][    ]
 *     current      [used][pend][used][pend][used][    ][used]
 *     restore        |   recom-  de-    |    |     |    de-
 *                        mit   commit                  commit
 *
 * A restore recommits granules that are pending unmap, and creates no page: a granule that has been
 * unmapped cannot be restored.  Granules that have been committed since then are decommitted in the
 * order of the default stream, as blocks that were allocated since then are freed.  A range is
 * identified by its handle, which no other range has before the device closes.  A range that was
 * reserved later has no granule in the checkpoint.
 *
 * Locking: the functions lock the device memory and the arenas.  The device memory lock is held
 * during the entire restore, except while observers run after its last change.
 */
#ifndef XSEG_CORE_CHECKPOINT_H
#define XSEG_CORE_CHECKPOINT_H

#include "src/core/device/device.h"

struct xseg_checkpoint_block {
    struct xseg_arena *arena;
    uint64_t base, bytes, requested;
};

struct xseg_checkpoint {
    struct xseg_pool *pool;
    /* Serial and label of `pool`, which may have been freed since the checkpoint. */
    uint64_t serial;
    char label[XSEG_POOL_NAME_MAX + 3];
    size_t count;
    struct xseg_checkpoint_ranges *ranges;
    const uint64_t *users; /* [count], user words of the blocks; NULL without block_user */
    const struct xseg_checkpoint_block *cached; /* [cached_count] */
    size_t cached_count;
    struct xseg_checkpoint_block block[]; /* allocated; by arena and segment, then address */
};

/* Implementations of xseg_pool_checkpoint(), xseg_checkpoint_destroy(), xseg_pool_restore() and
 * xseg_pool_check_live().  No lock is held. */
xseg_status xseg_checkpoint_take(struct xseg_pool *pool, struct xseg_checkpoint **out);
void xseg_checkpoint_free(struct xseg_checkpoint *checkpoint);
xseg_status xseg_checkpoint_restore(const struct xseg_checkpoint *checkpoint,
                                    void (*moved)(void *self, void *pointer, bool freed),
                                    void *self);
xseg_status xseg_checkpoint_compare(struct xseg_pool *pool, void *const *pointers, size_t count,
                                    bool *exactly);

/* --- Ranges of a checkpoint (checkpoint_ranges.c).  The device memory lock is held. --- */

/* The committed granules of all ranges of a pool. */
struct xseg_checkpoint_ranges;

/* List the committed granules.  Fails with XSEG_ERR_BUSY if a granule is claimed, or with
 * XSEG_ERR_HOST_MEMORY. */
xseg_status xseg_checkpoint_ranges_take(const struct xseg_pool *pool,
                                        struct xseg_checkpoint_ranges **out);
void xseg_checkpoint_ranges_free(struct xseg_checkpoint_ranges *saved);

/*
 * Begin a restore: do everything that can fail.  The device memory lock must stay locked until
 * xseg_checkpoint_ranges_finish().
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY (memory was unmapped, or its stream has pending work),
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, and nothing has changed
 * Cost:    one event query for each stream with pending unmaps, if the known completions do not
 *          suffice; one event record for each run of granules that will be decommitted
 */
xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool);

/* Finish a restore.  If granules were decommitted, a poll follows, which can release the device
 * memory lock while observers run. */
void xseg_checkpoint_ranges_finish(const struct xseg_checkpoint_ranges *saved,
                                   const struct xseg_pool *pool);

/* Fail with XSEG_ERR_BUSY because memory of a checkpoint has been released. */
xseg_status xseg_checkpoint_fail_released(const struct xseg_pool *pool, uint64_t address);

#endif
