/* SPDX-License-Identifier: MIT */
/*
 * Ranges of a checkpoint: which granules were committed, and their restore (checkpoint.h).
 *
 * A checkpoint has runs of committed granules.  A restore visits each range as a sequence of parts,
 * so that a part is either recommitted, decommitted, left as it is, or a reason to fail.
 *
 * Locking: the device memory lock is held by the caller.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/pool/checkpoint.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/pending_unmap.h"
#include "vmm/alias.h"

struct saved_run {
    const struct xseg_range *range;
    uint32_t first, count;
};

struct xseg_checkpoint_ranges {
    size_t count;
    struct saved_run run[]; /* in the order in which ranges were reserved, then by granule */
};

/* --- Parts of ranges. --- */

/* A run of granules in one state, either all in the checkpoint or none. */
struct granule_part {
    struct xseg_range_run run;
    enum xseg_elastic_use use;
    bool is_saved;
};

/* An action may change the state of its part, and of no other granules. */
typedef xseg_status part_action(const struct granule_part *part, void *self);

/* The part that begins at granule `first` of a range.
 * saved: the run of the checkpoint that contains `first` or follows it in the range, or NULL */
static struct granule_part get_part(struct xseg_range_state *state, uint32_t first,
                                    const struct saved_run *saved)
{
    const uint8_t *use = state->elastic.use;
    struct granule_part part = {
        {state, state->extent, first, 0}, (enum xseg_elastic_use)use[first], false};
    uint32_t at = first, end = state->extent->segment.granules;

    if (saved != NULL) {
        part.is_saved = saved->first <= first;
        end = part.is_saved ? saved->first + saved->count : saved->first;
    }
    XSEG_ASSERT(first < end && end <= state->extent->segment.granules);
    while (at < end && use[at] == use[first])
        at++;
    part.run.count = at - first;
    return part;
}

/* Visit the parts of a range until an action fails.
 * next: the first run of the checkpoint not visited yet; advanced past the runs of the range */
static xseg_status for_each_part_of_range(struct xseg_range_state *state,
                                          const struct saved_run **next,
                                          const struct saved_run *end, part_action *action,
                                          void *self)
{
    const uint32_t granules = state->extent->segment.granules;
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0; status == XSEG_OK && at < granules;) {
        const struct saved_run *saved =
            *next != end && (*next)->range == state->range ? *next : NULL;
        const struct granule_part part = get_part(state, at, saved);

        at += part.run.count;
        if (saved != NULL && at == saved->first + saved->count)
            ++*next;
        status = action(&part, self);
    }
    return status;
}

/* Visit the parts of all ranges of a pool until an action fails.  The ranges of the device and of
 * the checkpoint are both in the order of reservation; no range of the checkpoint was released.
 * saved: the checkpoint; NULL: an empty one */
static xseg_status for_each_part(const struct xseg_pool *pool,
                                 const struct xseg_checkpoint_ranges *saved, part_action *action,
                                 void *self)
{
    const struct saved_run *next = saved == NULL ? NULL : saved->run;
    const struct saved_run *end = saved == NULL ? NULL : saved->run + saved->count;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &pool->device->ranges->states)
    {
        struct xseg_range_state *state = XSEG_CONTAINER(node, struct xseg_range_state, link);

        /* On a lost device the state of a released range stays in the list. */
        if (status == XSEG_OK && state->pool == pool && state->range->state == state)
            status = for_each_part_of_range(state, &next, end, action, self);
    }
    XSEG_ASSERT(status != XSEG_OK || next == end);
    return status;
}

/* --- Take. --- */

struct run_list {
    struct saved_run *run; /* NULL: they are only counted */
    size_t count;
};

static xseg_status add_committed_run(const struct granule_part *part, void *self)
{
    struct run_list *list = self;

    if (part->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&part->run, part->run.first, "");
    if (part->use != XSEG_ELASTIC_ALLOCATED)
        return XSEG_OK;
    if (list->run != NULL)
        list->run[list->count] =
            (struct saved_run){part->run.state->range, part->run.first, part->run.count};
    list->count++;
    return XSEG_OK;
}

xseg_status xseg_checkpoint_ranges_take(const struct xseg_pool *pool,
                                        struct xseg_checkpoint_ranges **out)
{
    struct run_list list = {NULL, 0};
    const xseg_status status = for_each_part(pool, NULL, add_committed_run, &list);

    if (status != XSEG_OK)
        return status;
    struct xseg_checkpoint_ranges *saved =
        malloc(sizeof(*saved) + list.count * sizeof(saved->run[0]));
    if (saved == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu runs of granules",
                         list.count);
    saved->count = list.count;
    list = (struct run_list){saved->run, 0};
    (void)for_each_part(pool, NULL, add_committed_run, &list);
    XSEG_ASSERT(list.count == saved->count);
    *out = saved;
    return XSEG_OK;
}

void xseg_checkpoint_ranges_free(struct xseg_checkpoint_ranges *saved)
{
    free(saved);
}

/* --- Restore. --- */

static bool must_recommit(const struct granule_part *part)
{
    return part->is_saved && part->use == XSEG_ELASTIC_UNMAPPING;
}

static bool must_decommit(const struct granule_part *part)
{
    return !part->is_saved && part->use == XSEG_ELASTIC_ALLOCATED;
}

xseg_status xseg_checkpoint_fail_released(const struct xseg_pool *pool, uint64_t address)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "memory of the checkpoint has been released, %#" PRIx64
                     " of pool %s; take another checkpoint",
                     address, xseg_pool_label(pool));
}

static xseg_status check_ranges(const struct xseg_checkpoint_ranges *saved,
                                const struct xseg_pool *pool)
{
    for (size_t i = 0; i < saved->count; i++)
        if (saved->run[i].range->state == NULL)
            return xseg_fail(XSEG_ERR_BUSY,
                             "range of the checkpoint has been released, pool %s; take another "
                             "checkpoint",
                             xseg_pool_label(pool));
    return XSEG_OK;
}

/* Check that a granule that is pending unmap can be recommitted on the default stream: its page is
 * not aliased, and work of the default stream runs after the work of the decommit's stream. */
static xseg_status check_pending_granule(const struct xseg_range_run *run, uint32_t granule)
{
    struct xseg_device *device = xseg_device_of(run->extent);
    const struct xseg_known_stream *stream = xseg_arena_stream(run->extent->arena);
    const uint64_t base = run->extent->segment.base + granule * run->extent->segment.granule_bytes;
    xseg_stream waits_for = NULL;

    if (xseg_alias_exists(&run->extent->segment, granule))
        return xseg_fail(XSEG_ERR_BUSY,
                         "granule is pending unmap and its page is aliased, %#" PRIx64
                         " of pool %s; decommit the other mappings, or commit the granule, before "
                         "the restore",
                         base, xseg_pool_label(run->state->pool));
    if (!xseg_pending_unmap_is_ordered(run->extent, granule, stream))
        xseg_pending_unmap_query(device);
    if (xseg_pending_unmap_is_ordered(run->extent, granule, stream))
        return XSEG_OK;
    (void)xseg_pending_unmap_stream(device, base, &waits_for);
    return xseg_fail(XSEG_ERR_BUSY,
                     "granule is pending unmap, %#" PRIx64
                     " of pool %s on stream %p; synchronize the stream before the restore",
                     base, xseg_pool_label(run->state->pool), (void *)waits_for);
}

static xseg_status check_part(const struct granule_part *part, void *self)
{
    xseg_status status = XSEG_OK;

    (void)self;
    if (part->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&part->run, part->run.first, "");
    if (part->is_saved && part->use == XSEG_ELASTIC_EMPTY)
        return xseg_checkpoint_fail_released(part->run.state->pool, xseg_range_base(&part->run));
    for (uint32_t i = 0; status == XSEG_OK && must_recommit(part) && i < part->run.count; i++)
        status = check_pending_granule(&part->run, part->run.first + i);
    return status;
}

/* Record the event of a decommit.  The batch has no effect while the granules are live. */
static xseg_status begin_decommit(const struct granule_part *part, void *self)
{
    const struct xseg_range_run *run = &part->run;

    (void)self;
    return must_decommit(part) ? xseg_pending_unmap_begin(run->extent, run->first, run->count,
                                                          xseg_arena_stream(run->extent->arena))
                               : XSEG_OK;
}

/* Remove the batch again, if begin_decommit() has created it. */
static xseg_status cancel_decommit(const struct granule_part *part, void *self)
{
    const struct xseg_range_run *run = &part->run;

    (void)self;
    if (must_decommit(part) && run->extent->elastic->batch[run->first] != 0)
        xseg_pending_unmap_end(run->extent, run->first, run->count);
    return XSEG_OK;
}

xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool)
{
    xseg_status status = check_ranges(saved, pool);

    if (status == XSEG_OK)
        status = for_each_part(pool, saved, check_part, NULL);
    if (status != XSEG_OK)
        return status;
    status = for_each_part(pool, saved, begin_decommit, NULL);
    if (status != XSEG_OK)
        (void)for_each_part(pool, saved, cancel_decommit, NULL);
    return status;
}

/* any: set if granules were decommitted */
static xseg_status decommit_part(const struct granule_part *part, void *any)
{
    if (must_decommit(part)) {
        xseg_range_settle_decommit(&part->run);
        *(bool *)any = true;
    }
    return XSEG_OK;
}

static xseg_status recommit_part(const struct granule_part *part, void *self)
{
    (void)self;
    if (must_recommit(part)) {
        xseg_range_recommit_run(&part->run);
        xseg_range_set_use(&part->run, XSEG_ELASTIC_ALLOCATED);
    }
    return XSEG_OK;
}

void xseg_checkpoint_ranges_finish(const struct xseg_checkpoint_ranges *saved,
                                   const struct xseg_pool *pool)
{
    bool any = false;

    /* Decommit first, so that no peak counter includes both. */
    (void)for_each_part(pool, saved, decommit_part, &any);
    (void)for_each_part(pool, saved, recommit_part, NULL);
    if (any)
        xseg_pending_unmap_poll(pool->device, false);
}
