/* SPDX-License-Identifier: MIT */
/*
 * Ranges of a checkpoint: which granules were committed, and their restore (checkpoint.h).
 *
 * A checkpoint has runs of committed granules.  A restore divides each range into sections, runs of
 * granules in one state.  Each section is recommitted, is decommitted, stays unchanged, or makes
 * the restore fail.
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

/* --- Sections of ranges. --- */

/* A run of granules in one state; all granules are in the checkpoint, or none. */
struct granule_section {
    struct xseg_range_run run;
    enum xseg_elastic_use use;
    bool is_saved;
};

/* Get the section that begins at granule `first` of a range.
 * saved: the run of the checkpoint that contains `first` or follows it in the range, or NULL */
static struct granule_section get_section(struct xseg_range_state *state, uint32_t first,
                                          const struct saved_run *saved)
{
    const uint8_t *use = state->elastic.use;
    struct granule_section section = {
        {state, state->extent, first, 0}, (enum xseg_elastic_use)use[first], false};
    uint32_t granule = first, end = state->extent->segment.granules;

    if (saved != NULL) {
        section.is_saved = saved->first <= first;
        end = section.is_saved ? saved->first + saved->count : saved->first;
    }
    XSEG_ASSERT(first < end && end <= state->extent->segment.granules);
    while (granule < end && use[granule] == use[first])
        granule++;
    section.run.count = granule - first;
    return section;
}

/* Iterates over the sections of all ranges of a pool.  The ranges of the device and of the
 * checkpoint are both in the order of reservation; no range of the checkpoint was released.  The
 * caller may change the state of the granules of the current section only. */
struct section_cursor {
    const struct xseg_pool *pool;
    const struct saved_run *next, *end; /* the runs of the checkpoint that were not visited */
    struct xseg_list *node;             /* the range, in the list of the device */
    struct granule_section section;     /* of 0 granules: the end */
};

static void next_section(struct section_cursor *cursor)
{
    const struct xseg_list *states = &cursor->pool->device->ranges->states;
    uint32_t granule = cursor->section.run.first + cursor->section.run.count;

    for (; cursor->node != states; cursor->node = cursor->node->next, granule = 0) {
        struct xseg_range_state *state =
            XSEG_CONTAINER(cursor->node, struct xseg_range_state, link);
        const struct saved_run *saved =
            cursor->next != cursor->end && cursor->next->range == state->range ? cursor->next
                                                                               : NULL;

        /* On a lost device the state of a released range stays in the list. */
        if (state->pool != cursor->pool || state->range->state != state ||
            granule == state->extent->segment.granules)
            continue;
        cursor->section = get_section(state, granule, saved);
        granule += cursor->section.run.count;
        if (saved != NULL && granule == saved->first + saved->count)
            cursor->next++;
        return;
    }
    XSEG_ASSERT(cursor->next == cursor->end);
    cursor->section.run.count = 0;
}

/* saved: the checkpoint; NULL: an empty one */
static struct section_cursor first_section(const struct xseg_pool *pool,
                                           const struct xseg_checkpoint_ranges *saved)
{
    struct section_cursor cursor = {.pool = pool, .node = pool->device->ranges->states.next};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (saved != NULL) {
        cursor.next = saved->run;
        cursor.end = saved->run + saved->count;
    }
    next_section(&cursor);
    return cursor;
}

#define FOR_SECTIONS(cursor, pool, saved)                               \
    for (struct section_cursor cursor = first_section((pool), (saved)); \
         (cursor).section.run.count != 0; next_section(&(cursor)))

/* --- Take. --- */

/* Fails with XSEG_ERR_BUSY if a granule is claimed. */
static xseg_status count_committed_runs(const struct xseg_pool *pool, size_t *count)
{
    FOR_SECTIONS(cursor, pool, NULL)
    {
        if (cursor.section.use == XSEG_ELASTIC_CLAIMED)
            return xseg_range_fail_use(&cursor.section.run, cursor.section.run.first, "");
        *count += cursor.section.use == XSEG_ELASTIC_ALLOCATED;
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
    FOR_SECTIONS(cursor, pool, NULL)
    {
        const struct xseg_range_run *run = &cursor.section.run;

        if (cursor.section.use == XSEG_ELASTIC_ALLOCATED)
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

static bool must_recommit(const struct granule_section *section)
{
    return section->is_saved && section->use == XSEG_ELASTIC_UNMAPPING;
}

static bool must_decommit(const struct granule_section *section)
{
    return !section->is_saved && section->use == XSEG_ELASTIC_ALLOCATED;
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

/* Check that a granule that is pending unmap can be recommitted on the default stream.  Its page
 * must not be aliased, and work of the default stream must run after that of the decommit. */
static xseg_status check_pending_granule(const struct xseg_range_run *run, uint32_t granule)
{
    struct xseg_device *device = xseg_device_of(run->extent);
    const struct xseg_known_stream *stream = xseg_arena_stream(run->extent->arena);
    const uint64_t base = run->extent->segment.base + granule * run->extent->segment.granule_bytes;
    xseg_stream pending_stream = NULL;

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
    (void)xseg_pending_unmap_stream(device, base, &pending_stream);
    return xseg_fail(XSEG_ERR_BUSY,
                     "granule is pending unmap, %#" PRIx64
                     " of pool %s on stream %p; synchronize the stream before the restore",
                     base, xseg_pool_label(run->state->pool), (void *)pending_stream);
}

static xseg_status check_section(const struct granule_section *section)
{
    xseg_status status = XSEG_OK;

    if (section->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&section->run, section->run.first, "");
    if (section->is_saved && section->use == XSEG_ELASTIC_EMPTY)
        return xseg_checkpoint_fail_released(section->run.state->pool,
                                             xseg_range_base(&section->run));
    for (uint32_t i = 0; status == XSEG_OK && must_recommit(section) && i < section->run.count; i++)
        status = check_pending_granule(&section->run, section->run.first + i);
    return status;
}

/* Remove the batches of granules that will not be decommitted. */
static void cancel_decommits(const struct xseg_checkpoint_ranges *saved,
                             const struct xseg_pool *pool)
{
    FOR_SECTIONS(cursor, pool, saved)
    {
        const struct xseg_range_run *run = &cursor.section.run;

        if (must_decommit(&cursor.section) && run->extent->elastic->batch[run->first] != 0)
            xseg_pending_unmap_remove(run->extent, run->first, run->count);
    }
}

xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool)
{
    xseg_status status = check_ranges(saved, pool);

    if (status != XSEG_OK)
        return status;
    FOR_SECTIONS(cursor, pool, saved)
    {
        status = check_section(&cursor.section);
        if (status != XSEG_OK)
            return status;
    }
    /* Record the events of the decommits.  A batch of allocated granules has no effect. */
    FOR_SECTIONS(cursor, pool, saved)
    {
        const struct xseg_range_run *run = &cursor.section.run;

        if (must_decommit(&cursor.section))
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

    /* Decommit first, so that no peak counter includes both sets of granules. */
    FOR_SECTIONS(cursor, pool, saved)
    {
        if (must_decommit(&cursor.section)) {
            xseg_range_settle_decommit(&cursor.section.run);
            decommitted = true;
        }
    }
    FOR_SECTIONS(cursor, pool, saved)
    {
        if (must_recommit(&cursor.section)) {
            xseg_range_recommit_run(&cursor.section.run);
            xseg_elastic_set_use(cursor.section.run.extent, cursor.section.run.first,
                                 cursor.section.run.count, XSEG_ELASTIC_ALLOCATED);
        }
    }
    if (decommitted)
        xseg_pending_unmap_poll(pool->device, false);
}
