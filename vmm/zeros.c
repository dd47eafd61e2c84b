/* SPDX-License-Identifier: MIT */
#include "vmm/zeros.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/zeroed.h"
#include "vmm/segment_page.h"

enum cover { BARE, COVERED };

struct xseg_zeros {
    uint64_t handle;
    uint8_t *cover;   /* [granules], enum cover */
    bool reads;       /* the device may read the page, and not write */
    bool has_refused; /* the driver has refused to cover a hole */
};

bool xseg_zeros_is_covered(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->zeros != NULL && segment->zeros->cover[granule] == COVERED;
}

bool xseg_zeros_are_read_only(const struct xseg_segment *segment)
{
    return segment->zeros != NULL && segment->zeros->reads;
}

uint64_t xseg_zeros_bytes(const struct xseg_segment *segment)
{
    return segment->zeros != NULL ? segment->granule_bytes : 0;
}

void xseg_zeros_abandon(struct xseg_segment *segment)
{
    if (segment->zeros == NULL)
        return;
    xseg_zeroed_give(segment->zeros->cover, segment->granules);
    free(segment->zeros);
    segment->zeros = NULL;
}

/* --- Uncovering. --- */

static xseg_status uncover_one(struct xseg_segment *segment, uint32_t granule)
{
    bool is_known = true;
    const xseg_status status =
        xseg_leftovers_unmap(segment->context, xseg_segment_address(segment, granule),
                             segment->granule_bytes, &is_known);

    if (status == XSEG_OK)
        segment->zeros->cover[granule] = BARE;
    return status;
}

static xseg_status uncover_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    xseg_status result = XSEG_OK;

    if (count > 1 && segment->context->batches_unmap &&
        xseg_driver_unmap(segment->context, xseg_segment_address(segment, first),
                          count * segment->granule_bytes) == XSEG_OK) {
        for (uint32_t at = first; at < first + count; at++)
            segment->zeros->cover[at] = BARE;
        return XSEG_OK;
    }
    for (uint32_t at = first; result == XSEG_OK && at < first + count; at++)
        result = uncover_one(segment, at);
    return result;
}

/* How many granules from one on are covered. */
static uint32_t covered_from(const struct xseg_segment *segment, uint32_t first, uint32_t end)
{
    uint32_t at = first;

    while (at < end && xseg_zeros_is_covered(segment, at))
        at++;
    return at - first;
}

xseg_status xseg_zeros_uncover(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    const uint32_t end = first + count;
    xseg_status status = XSEG_OK;

    for (uint32_t at = first, run; status == XSEG_OK && at < end; at += run + 1) {
        run = covered_from(segment, at, end);
        if (run != 0)
            status = uncover_run(segment, at, run);
    }
    return status;
}

/* --- Covering. --- */

static bool is_bare(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] == XSEG_PAGE_HOLE && segment->zeros->cover[granule] == BARE;
}

static xseg_status map_one(struct xseg_segment *segment, uint32_t granule)
{
    const xseg_status status =
        xseg_driver_map(segment->context, xseg_segment_address(segment, granule),
                        segment->granule_bytes, segment->zeros->handle);

    if (status == XSEG_OK)
        segment->zeros->cover[granule] = COVERED;
    return status;
}

static xseg_status set_rights(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    xseg_status (*const set)(struct xseg_context *, uint64_t, uint64_t) =
        segment->zeros->reads ? xseg_driver_set_access_read_only : xseg_driver_set_access;
    xseg_status status = XSEG_OK;

    if ((count == 1 || segment->context->batches_access) &&
        set(segment->context, xseg_segment_address(segment, first),
            count * segment->granule_bytes) == XSEG_OK)
        return XSEG_OK;
    for (uint32_t at = first; status == XSEG_OK && at < first + count; at++)
        status = set(segment->context, xseg_segment_address(segment, at), segment->granule_bytes);
    return status;
}

/* Cover a run of bare holes, as far as the driver maps the page. */
static xseg_status cover_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    xseg_status status = XSEG_OK;
    uint32_t mapped = 0;

    while (mapped < count && status == XSEG_OK) {
        status = map_one(segment, first + mapped);
        mapped += status == XSEG_OK;
    }
    if (mapped == 0)
        return status;
    const xseg_status given = set_rights(segment, first, mapped);
    /* A place without rights is as good as a bare one. */
    if (given != XSEG_OK)
        (void)uncover_run(segment, first, mapped);
    return status == XSEG_OK ? given : status;
}

static xseg_status cover_all(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    const uint32_t end = first + count;
    xseg_status status = XSEG_OK;

    for (uint32_t at = first, run; status == XSEG_OK && at < end; at += run + 1) {
        for (run = 0; at + run < end && is_bare(segment, at + run);)
            run++;
        if (run != 0)
            status = cover_run(segment, at, run);
    }
    return status;
}

void xseg_zeros_cover(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    struct xseg_zeros *zeros = segment->zeros;

    if (zeros == NULL)
        return;
    zeros->has_refused = zeros->has_refused ? cover_all(segment, 0, segment->granules) != XSEG_OK
                                            : cover_all(segment, first, count) != XSEG_OK;
    XSEG_AUDIT(xseg_segment_audit, segment);
}

/* --- The page. --- */

/* Make the page at the first granule, filled. */
static xseg_status fill(struct xseg_segment *segment, xseg_stream stream)
{
    struct xseg_context *context = segment->context;
    xseg_status status = map_one(segment, 0);

    if (status == XSEG_OK)
        status = xseg_driver_set_access(context, segment->base, segment->granule_bytes);
    if (status == XSEG_OK)
        status = xseg_driver_fill(context, segment->base, segment->granule_bytes, 0, stream);
    if (status == XSEG_OK)
        status = xseg_driver_stream_wait(context, stream);
    /* Covered again with the others, it gets their rights. */
    if (status == XSEG_OK)
        status = uncover_one(segment, 0);
    return status;
}

/* Have the tables; the page is not made yet. */
static xseg_status make_tables(struct xseg_segment *segment, bool reads)
{
    struct xseg_zeros *zeros = calloc(1, sizeof(*zeros));
    uint8_t *cover = zeros == NULL ? NULL : xseg_zeroed_take(segment->granules);

    if (cover == NULL) {
        free(zeros);
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the page of zeros of a range");
    }
    zeros->cover = cover;
    zeros->reads = reads;
    segment->zeros = zeros;
    return XSEG_OK;
}

xseg_status xseg_zeros_open(struct xseg_segment *segment, xseg_stream stream, bool reads)
{
    struct xseg_fail_kept kept;
    xseg_status status = make_tables(segment, reads);

    if (status != XSEG_OK)
        return status;
    status =
        xseg_driver_create(segment->context, segment->granule_bytes, 0, &segment->zeros->handle);
    if (status != XSEG_OK) {
        xseg_zeros_abandon(segment);
        return status;
    }
    status = fill(segment, stream);
    if (status == XSEG_OK)
        status = cover_all(segment, 0, segment->granules);
    if (status != XSEG_OK) {
        xseg_fail_keep(&kept);
        xseg_zeros_close(segment);
        xseg_fail_restore(&kept);
    }
    return status;
}

void xseg_zeros_close(struct xseg_segment *segment)
{
    struct xseg_leftovers *leftovers = segment->pages->leftovers;
    uint64_t still = 0; /* where the page is still mapped */

    if (segment->zeros == NULL)
        return;
    (void)xseg_zeros_uncover(segment, 0, segment->granules);
    for (uint32_t at = 0; at < segment->granules; at++) {
        if (!xseg_zeros_is_covered(segment, at))
            continue;
        if (still == 0)
            still = xseg_segment_address(segment, at);
        else
            (void)xseg_leftovers_give(leftovers, XSEG_LEFTOVER_MAPPING,
                                      xseg_segment_address(segment, at), segment->granule_bytes);
    }
    (void)xseg_leftovers_give_mapped(leftovers, segment->zeros->handle, still,
                                     segment->granule_bytes);
    xseg_zeros_abandon(segment);
}
