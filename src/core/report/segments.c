/* SPDX-License-Identifier: MIT */
#include "src/core/report/segments.h"

#include "src/core/report/words.h"

struct writing {
    struct xseg_pickle_writer *pickle;
    struct xseg_snapshot_stacks *stacks;
    struct xseg_snapshot_naming *naming;
    int device;
};

/* What the blocks of a run add up to. */
struct sums {
    uint64_t allocated, active, requested;
};

static bool is_active(const struct xseg_heap_block *block)
{
    return block->state != XSEG_BLOCK_CACHED;
}

static struct sums add_up(const struct xseg_heap_range *run)
{
    struct sums sums = {0, 0, 0};

    for (uint32_t i = 0; i < run->count; i++) {
        const struct xseg_heap_block *block = &run->blocks[i];

        sums.allocated += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
        sums.active += is_active(block) ? block->bytes : 0;
        sums.requested += is_active(block) ? block->requested : 0;
    }
    return sums;
}

static void put_number(struct xseg_pickle_writer *pickle, unsigned key, uint64_t number)
{
    xseg_pickle_key(pickle, key);
    xseg_pickle_uint(pickle, number);
}

static unsigned state_of(const struct xseg_heap_block *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED)
        return XSEG_SNAPSHOT_ACTIVE_ALLOCATED;
    return is_active(block) ? XSEG_SNAPSHOT_ACTIVE_PENDING_FREE : XSEG_SNAPSHOT_INACTIVE;
}

static void write_block(const struct writing *writing, const struct xseg_heap_block *block)
{
    struct xseg_pickle_writer *pickle = writing->pickle;

    xseg_pickle_open_dict(pickle);
    put_number(pickle, XSEG_SNAPSHOT_ADDRESS, block->base);
    put_number(pickle, XSEG_SNAPSHOT_SIZE, block->bytes);
    put_number(pickle, XSEG_SNAPSHOT_REQUESTED_SIZE, block->requested);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_STATE);
    xseg_pickle_interned(pickle, state_of(block));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
    xseg_snapshot_stacks_write(writing->stacks, block->stack, block->frames);
    xseg_pickle_close(pickle);
}

static void write_run(const struct writing *writing, const struct xseg_heap_range *run)
{
    struct xseg_pickle_writer *pickle = writing->pickle;
    const struct sums sums = add_up(run);
    const uint64_t *pool = xseg_snapshot_naming_pool(writing->naming, run->pool);

    xseg_pickle_open_dict(pickle);
    put_number(pickle, XSEG_SNAPSHOT_DEVICE, (uint64_t)writing->device);
    put_number(pickle, XSEG_SNAPSHOT_ADDRESS, run->base);
    put_number(pickle, XSEG_SNAPSHOT_TOTAL_SIZE, run->bytes);
    put_number(pickle, XSEG_SNAPSHOT_ALLOCATED_SIZE, sums.allocated);
    put_number(pickle, XSEG_SNAPSHOT_ACTIVE_SIZE, sums.active);
    put_number(pickle, XSEG_SNAPSHOT_REQUESTED_SIZE, sums.requested);
    put_number(pickle, XSEG_SNAPSHOT_STREAM, run->stream);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENT_TYPE);
    xseg_pickle_interned(pickle, run->is_small ? XSEG_SNAPSHOT_SMALL : XSEG_SNAPSHOT_LARGE);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENT_POOL_ID);
    xseg_pickle_pair(pickle, pool[0], pool[1]);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_IS_EXPANDABLE);
    xseg_pickle_bool(pickle, run->is_expandable);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
    xseg_snapshot_stacks_write(writing->stacks, 0, 0);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_BLOCKS);
    xseg_pickle_open_list(pickle);
    for (uint32_t i = 0; i < run->count; i++)
        write_block(writing, &run->blocks[i]);
    xseg_pickle_close(pickle);
    xseg_pickle_close(pickle);
}

void xseg_snapshot_segments_write(struct xseg_pickle_writer *pickle,
                                  struct xseg_snapshot_stacks *stacks,
                                  struct xseg_snapshot_naming *naming,
                                  const struct xseg_heap_copy *snapshot, int device, bool away)
{
    const struct writing writing = {pickle, stacks, naming, device};

    for (size_t i = 0; i < snapshot->count; i++)
        if (snapshot->ranges[i]->is_evicted == away)
            write_run(&writing, snapshot->ranges[i]);
}
