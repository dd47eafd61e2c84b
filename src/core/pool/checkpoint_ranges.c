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

/* Iterates the parts of all ranges of a pool.  The ranges of the device and of the checkpoint are
 * both in the order of reservation; no range of the checkpoint was released.  The caller may change
 * the state of the granules of the current part only. */
struct part_cursor {
    const struct xseg_pool *pool;
    const struct saved_run *next, *end; /* the runs of the checkpoint that were not visited */
    struct xseg_list *node;             /* the range, in the list of the device */
    struct granule_part part;           /* of 0 granules: the end */
};

static void next_part(struct part_cursor *cursor)
{
    const struct xseg_list *states = &cursor->pool->device->ranges->states;
    uint32_t at = cursor->part.run.first + cursor->part.run.count;

    for (; cursor->node != states; cursor->node = cursor->node->next, at = 0) {
        struct xseg_range_state *state =
            XSEG_CONTAINER(cursor->node, struct xseg_range_state, link);
        const struct saved_run *saved =
            cursor->next != cursor->end && cursor->next->range == state->range ? cursor->next
                                                                               : NULL;

        /* On a lost device the state of a released range stays in the list. */
        if (state->pool != cursor->pool || state->range->state != state ||
            at == state->extent->segment.granules)
            continue;
        cursor->part = get_part(state, at, saved);
        at += cursor->part.run.count;
        if (saved != NULL && at == saved->first + saved->count)
            cursor->next++;
        return;
    }
    XSEG_ASSERT(cursor->next == cursor->end);
    cursor->part.run.count = 0;
}

/* saved: the checkpoint; NULL: an empty one */
static struct part_cursor first_part(const struct xseg_pool *pool,
                                     const struct xseg_checkpoint_ranges *saved)
{
    struct part_cursor cursor = {.pool = pool, .node = pool->device->ranges->states.next};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (saved != NULL) {
        cursor.next = saved->run;
        cursor.end = saved->run + saved->count;
    }
    next_part(&cursor);
    return cursor;
}

#define FOR_PARTS(at, pool, saved)                                                      \
    for (struct part_cursor at = first_part((pool), (saved)); (at).part.run.count != 0; \
         next_part(&(at)))

/* --- Take. --- */

/* Fails with XSEG_ERR_BUSY if a granule is claimed. */
static xseg_status count_committed_runs(const struct xseg_pool *pool, size_t *count)
{
    FOR_PARTS(at, pool, NULL)
    {
        if (at.part.use == XSEG_ELASTIC_CLAIMED)
            return xseg_range_fail_use(&at.part.run, at.part.run.first, "");
        *count += at.part.use == XSEG_ELASTIC_ALLOCATED;
    }
    return XSEG_OK;
}

xseg_status xseg_checkpoint_ranges_take(const struct xseg_pool *pool,
                                        struct xseg_checkpoint_ranges **out)
{
    size_t count = 0;
    const xseg_status status = count_committed_runs(pool, &count);

    if (status != XSEG_OK)
        return status;
    struct xseg_checkpoint_ranges *saved = malloc(sizeof(*saved) + count * sizeof(saved->run[0]));
    if (saved == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu runs of granules",
                         count);
    saved->count = 0;
    FOR_PARTS(at, pool, NULL)
    {
        const struct xseg_range_run *run = &at.part.run;

        if (at.part.use == XSEG_ELASTIC_ALLOCATED)
            saved->run[saved->count++] =
                (struct saved_run){run->state->range, run->first, run->count};
    }
    XSEG_ASSERT(saved->count == count);
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

/* Check that a granule that is pending unmap can be recommitted on the default stream.  Its page is not aliased, and work of the default stream runs after the work of the decommit's stream. */
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

static xseg_status check_part(const struct granule_part *part)
{
    xseg_status status = XSEG_OK;

    if (part->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&part->run, part->run.first, "");
    if (part->is_saved && part->use == XSEG_ELASTIC_EMPTY)
        return xseg_checkpoint_fail_released(part->run.state->pool, xseg_range_base(&part->run));
    for (uint32_t i = 0; status == XSEG_OK && must_recommit(part) && i < part->run.count; i++)
        status = check_pending_granule(&part->run, part->run.first + i);
    return status;
}

/* Remove the batches of granules that will not be decommitted. */
static void cancel_decommits(const struct xseg_checkpoint_ranges *saved,
                             const struct xseg_pool *pool)
{
    FOR_PARTS(at, pool, saved)
    {
        const struct xseg_range_run *run = &at.part.run;

        if (must_decommit(&at.part) && run->extent->elastic->batch[run->first] != 0)
            xseg_pending_unmap_remove(run->extent, run->first, run->count);
    }
}

xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool)
{
    xseg_status status = check_ranges(saved, pool);

    if (status != XSEG_OK)
        return status;
    FOR_PARTS(at, pool, saved)
    {
        status = check_part(&at.part);
        if (status != XSEG_OK)
            return status;
    }
    /* Record the events of the decommits.  A batch has no effect while its granules are live. */
    FOR_PARTS(at, pool, saved)
    {
        const struct xseg_range_run *run = &at.part.run;

        if (must_decommit(&at.part))
            status = xseg_pending_unmap_begin(run->extent, run->first, run->count,
                                              xseg_arena_stream(run->extent->arena));
        if (status != XSEG_OK)
            break;
    }
    if (status != XSEG_OK)
        cancel_decommits(saved, pool);
    return status;
}

void xseg_checkpoint_ranges_finish(const struct xseg_checkpoint_ranges *saved,
                                   const struct xseg_pool *pool)
{
    bool decommitted = false;

    /* Decommit first, so that no peak counter includes both. */
    FOR_PARTS(at, pool, saved)
    {
        if (must_decommit(&at.part)) {
            xseg_range_settle_decommit(&at.part.run);
            decommitted = true;
        }
    }
    FOR_PARTS(at, pool, saved)
    {
        if (must_recommit(&at.part)) {
            xseg_range_recommit_run(&at.part.run);
            xseg_elastic_set_use(at.part.run.extent, at.part.run.first, at.part.run.count,
                                 XSEG_ELASTIC_ALLOCATED);
        }
    }
    if (decommitted)
        xseg_pending_unmap_poll(pool->device, false);
}
