/* SPDX-License-Identifier: MIT */
#include "src/core/ranges/zero_page.h"

#include "src/base/error.h"
#include "src/core/grow/growth.h"
#include "src/core/pending/pending.h"
#include "vmm/zeros.h"

/* Count the page as memory in use, or no longer. */
static void count(struct xseg_range_body *body, uint64_t bytes)
{
    struct xseg_arena *arena = body->extent->arena;
    const uint64_t before = body->elastic.zeros;

    xseg_arena_lock(arena);
    body->elastic.zeros = bytes;
    if (bytes != 0) {
        xseg_counts_up(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
        xseg_counts_use(&arena->counts, bytes);
    } else {
        xseg_counts_end_use(&arena->counts, before);
        xseg_counts_down(&arena->counts, XSEG_COUNT_RESERVED_BYTES, before);
    }
    xseg_arena_unlock(arena);
    if (bytes != 0)
        xseg_pool_note_growth(arena, bytes);
    else
        xseg_pool_note_shrink(arena, before);
}

static xseg_status check_captures(const struct xseg_device *device)
{
    return xseg_pending_captures(device->pending)
               ? xseg_fail(XSEG_ERR_BUSY,
                           "a capture is under way on device %d, in which no page of zeros is "
                           "mapped or unmapped (zero_page): do it before or after it",
                           device->context.ordinal)
               : XSEG_OK;
}

xseg_status xseg_zero_page_open(struct xseg_range_body *body)
{
    struct xseg_device *device = xseg_device_of(body->extent);
    struct xseg_segment *segment = &body->extent->segment;
    xseg_status status = check_captures(device);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (status == XSEG_OK)
        status = xseg_growth_check(body->pool, segment->granule_bytes, 0);
    if (status == XSEG_OK)
        status = xseg_device_make_copier(device);
    if (status != XSEG_OK)
        return status;
    status = xseg_context_try_read_only(&device->context, &device->leftovers);
    if (status == XSEG_OK || status == XSEG_ERR_UNSUPPORTED)
        status = xseg_zeros_open(segment, device->copier, status == XSEG_OK);
    if (status == XSEG_OK)
        count(body, xseg_zeros_bytes(segment));
    return status;
}

void xseg_zero_page_close(struct xseg_range_body *body)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (body->elastic.zeros == 0)
        return;
    xseg_zeros_close(&body->extent->segment);
    count(body, 0);
}

xseg_status xseg_zero_page_uncover(const struct xseg_range_run *run)
{
    struct xseg_segment *segment = &run->extent->segment;
    const xseg_status status =
        segment->zeros == NULL ? XSEG_OK : check_captures(xseg_device_of(run->extent));

    if (segment->zeros == NULL || status != XSEG_OK)
        return status;
    return xseg_zeros_uncover(segment, run->first, run->count);
}
