/* SPDX-License-Identifier: MIT */
#include "src/core/pool/checkpoint_ranges.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/pending_unmap.h"
#include "vmm/alias.h"

/* A run of committed granules. */
struct saved_run {
    const struct xseg_range *range;
    uint32_t first, count;
};

struct xseg_checkpoint_ranges {
    size_t count;
    struct saved_run run[]; /* in the order in which ranges were reserved, then by granule */
};

/* --- Visiting the granules of a pool. --- */

/* A run of granules of one use, all of which a checkpoint has, or none. */
struct part {
    struct xseg_range_run run;
    enum xseg_elastic_use use;
    bool is_saved;
};

/* What is done with a part.  It may change what the part is used for, and nothing of others. */
typedef xseg_status step(const struct part *part, void *self);

/* The part that begins at a granule of a range.
 * saved: the next run of the checkpoint there, which ends behind the granule; NULL: there is none */
static struct part part_at(struct xseg_range_state *state, uint32_t first,
                           const struct saved_run *saved)
{
    const uint8_t *use = state->elastic.use;
    struct part part = {{state, state->extent, first, 0}, (enum xseg_elastic_use)use[first], false};
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

/* Visit the parts of a range, until a step fails.
 * next: the runs of the checkpoint from there on; moved behind those of the range */
static xseg_status visit_range(struct xseg_range_state *state, const struct saved_run **next,
                               const struct saved_run *end, step *do_it, void *self)
{
    const uint32_t granules = state->extent->segment.granules;
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0; status == XSEG_OK && at < granules;) {
        const struct saved_run *saved =
            *next != end && (*next)->range == state->range ? *next : NULL;
        const struct part part = part_at(state, at, saved);

        at += part.run.count;
        if (saved != NULL && at == saved->first + saved->count)
            ++*next;
        status = do_it(&part, self);
    }
    return status;
}

/* Visit the parts of all ranges of a pool, until a step fails.  Ranges stand in the order in which they were reserved, as
 * those of the checkpoint do, none of which has been released.
 * saved: the checkpoint; NULL: one of nothing */
static xseg_status visit(const struct xseg_pool *pool, const struct xseg_checkpoint_ranges *saved,
                         step *do_it, void *self)
{
    const struct saved_run *next = saved == NULL ? NULL : saved->run;
    const struct saved_run *end = saved == NULL ? NULL : saved->run + saved->count;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &pool->device->ranges->states)
    {
        struct xseg_range_state *state = XSEG_CONTAINER(node, struct xseg_range_state, link);

        /* A range of a lost device leaves its state behind. */
        if (status == XSEG_OK && state->pool == pool && state->range->state == state)
            status = visit_range(state, &next, end, do_it, self);
    }
    XSEG_ASSERT(status != XSEG_OK || next == end);
    return status;
}

/* --- Taking. --- */

/* The runs that are committed, as a visit collects them. */
struct harvest {
    struct saved_run *run; /* NULL: they are only counted */
    size_t count;
};

static xseg_status harvest_part(const struct part *part, void *self)
{
    struct harvest *harvest = self;

    if (part->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&part->run, part->run.first, "");
    if (part->use != XSEG_ELASTIC_ALLOCATED)
        return XSEG_OK;
    if (harvest->run != NULL)
        harvest->run[harvest->count] =
            (struct saved_run){part->run.state->range, part->run.first, part->run.count};
    harvest->count++;
    return XSEG_OK;
}

xseg_status xseg_checkpoint_ranges_take(const struct xseg_pool *pool,
                                        struct xseg_checkpoint_ranges **out)
{
    struct harvest harvest = {NULL, 0};
    const xseg_status status = visit(pool, NULL, harvest_part, &harvest);

    if (status != XSEG_OK)
        return status;
    struct xseg_checkpoint_ranges *saved =
        malloc(sizeof(*saved) + harvest.count * sizeof(saved->run[0]));
    if (saved == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu runs of granules",
                         harvest.count);
    saved->count = harvest.count;
    harvest = (struct harvest){saved->run, 0};
    (void)visit(pool, NULL, harvest_part, &harvest);
    XSEG_ASSERT(harvest.count == saved->count);
    *out = saved;
    return XSEG_OK;
}

void xseg_checkpoint_ranges_free(struct xseg_checkpoint_ranges *saved)
{
    free(saved);
}

/* --- Restoring. --- */

/* Whether a part of the checkpoint is to be taken back; whether a part is to be decommitted, as it is not in it. */
static bool comes_back(const struct part *part)
{
    return part->is_saved && part->use == XSEG_ELASTIC_UNMAPPING;
}

static bool is_surplus(const struct part *part)
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

/* Whether a granule that is pending unmap can be taken back: its page has no other mapping, and work of the default stream, which what
 * is restored belongs to, comes behind the stream that it leaves with. */
static xseg_status check_leaving(const struct xseg_range_run *run, uint32_t granule)
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

static xseg_status check_part(const struct part *part, void *self)
{
    xseg_status status = XSEG_OK;

    (void)self;
    if (part->use == XSEG_ELASTIC_CLAIMED)
        return xseg_range_fail_use(&part->run, part->run.first, "");
    if (part->is_saved && part->use == XSEG_ELASTIC_EMPTY)
        return xseg_checkpoint_fail_released(part->run.state->pool, xseg_range_base(&part->run));
    for (uint32_t i = 0; status == XSEG_OK && comes_back(part) && i < part->run.count; i++)
        status = check_leaving(&part->run, part->run.first + i);
    return status;
}

/* Give the granules that are to leave a batch: the event is recorded.  Nobody sees it before they leave. */
static xseg_status begin_part(const struct part *part, void *self)
{
    const struct xseg_range_run *run = &part->run;

    (void)self;
    return is_surplus(part) ? xseg_pending_unmap_begin(run->extent, run->first, run->count,
                                                       xseg_arena_stream(run->extent->arena))
                            : XSEG_OK;
}

/* Take the batch back, where there was one: only granules that leave have one otherwise. */
static xseg_status cancel_part(const struct part *part, void *self)
{
    const struct xseg_range_run *run = &part->run;

    (void)self;
    if (is_surplus(part) && run->extent->elastic->batch[run->first] != 0)
        xseg_pending_unmap_end(run->extent, run->first, run->count);
    return XSEG_OK;
}

xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool)
{
    xseg_status status = check_ranges(saved, pool);

    if (status == XSEG_OK)
        status = visit(pool, saved, check_part, NULL);
    if (status != XSEG_OK)
        return status;
    status = visit(pool, saved, begin_part, NULL);
    if (status != XSEG_OK)
        (void)visit(pool, saved, cancel_part, NULL);
    return status;
}

/* any: set if granules leave */
static xseg_status leave_part(const struct part *part, void *any)
{
    if (is_surplus(part)) {
        xseg_range_settle_decommit(&part->run);
        *(bool *)any = true;
    }
    return XSEG_OK;
}

static xseg_status retake_part(const struct part *part, void *self)
{
    (void)self;
    if (comes_back(part)) {
        xseg_range_recommit_run(&part->run);
        xseg_range_set_use(&part->run, XSEG_ELASTIC_ALLOCATED);
    }
    return XSEG_OK;
}

void xseg_checkpoint_ranges_finish(const struct xseg_checkpoint_ranges *saved,
                                   const struct xseg_pool *pool)
{
    bool any = false;

    /* First what leaves: then no peak counts both. */
    (void)visit(pool, saved, leave_part, &any);
    (void)visit(pool, saved, retake_part, NULL);
    if (any)
        xseg_pending_unmap_poll(pool->device, false);
}
