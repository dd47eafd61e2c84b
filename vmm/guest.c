/* SPDX-License-Identifier: MIT */
#include "vmm/guest.h"

#include <stdio.h>

#include "src/base/error.h"
#include "src/base/zeroed.h"
#include "vmm/segment_page.h"

static bool has_table(struct xseg_segment *segment)
{
    if (segment->role == NULL)
        segment->role = xseg_zeroed_take(segment->granules * sizeof(*segment->role));
    return segment->role != NULL;
}

/* Give a granule up that was to be a guest: it is a hole again. */
static void clear(struct xseg_segment *segment, uint32_t granule)
{
    segment->handle[granule] = 0;
    segment->length[granule] = 0;
    segment->state[granule] = XSEG_PAGE_HOLE;
    segment->role[granule] = 0;
}

static xseg_status map_one(struct xseg_segment *segment, uint32_t granule, uint64_t handle)
{
    XSEG_ASSERT(segment->state[granule] == XSEG_PAGE_HOLE && handle != 0);
    const xseg_status status = xseg_driver_map(
        segment->context, xseg_segment_address(segment, granule), segment->granule_bytes, handle);

    if (status != XSEG_OK)
        return status;
    segment->handle[granule] = handle;
    segment->length[granule] = 1;
    segment->role[granule] = XSEG_PAGE_GUEST;
    segment->state[granule] = XSEG_PAGE_STUCK;
    return XSEG_OK;
}

/* Unmap the first `count` granules of a run again.  One that the driver refuses stays stuck. */
static void withdraw(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    bool is_known = true;

    for (uint32_t granule = first; granule < first + count; granule++)
        if (xseg_segment_unmap_page(segment, granule, &is_known) == XSEG_OK)
            clear(segment, granule);
}

xseg_status xseg_guest_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at)
{
    xseg_status status = XSEG_OK;
    uint32_t mapped = 0;
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->granules && at + count <= from->granules);
    XSEG_ASSERT(segment->granule_bytes == from->granule_bytes);
    /* The owner's table is needed once the ownership moves, which must not fail. */
    if (!has_table(segment) || !has_table(from))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the guests of a segment");
    for (; mapped < count && status == XSEG_OK; mapped += status == XSEG_OK)
        status = map_one(segment, first + mapped, from->handle[at + mapped]);
    if (status == XSEG_OK)
        status = xseg_segment_access(segment, first, count);
    if (status != XSEG_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_text()->buffer);
        withdraw(segment, first, mapped);
        XSEG_AUDIT(xseg_segment_audit, segment);
        return xseg_fail(status, "%s", reason);
    }
    for (uint32_t granule = first; granule < first + count; granule++) {
        segment->state[granule] = XSEG_PAGE_MAPPED;
        xseg_segment_count_mapped_page(segment, granule, true);
    }
    xseg_segment_note_change(segment, first, count, ++segment->pages->generation);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;
}

/* Make a page a guest, or the owner of its memory, in any state. */
static void set_guest(struct xseg_segment *segment, uint32_t page, bool is_guest)
{
    const bool is_mapped = xseg_segment_is_mapped(segment, page);
    const bool has_memory = segment->handle[page] != 0 && !is_mapped;

    if (has_memory && is_guest)
        xseg_segment_count_stuck_page(segment, page, false);
    if (is_mapped)
        segment->guests += is_guest ? segment->granule_bytes : 0 - segment->granule_bytes;
    segment->role[page] ^= XSEG_PAGE_GUEST;
    XSEG_ASSERT(xseg_segment_is_guest(segment, page) == is_guest);
    if (has_memory && !is_guest)
        xseg_segment_count_stuck_page(segment, page, true);
}

void xseg_guest_swap(struct xseg_segment *owner, uint32_t page, struct xseg_segment *guest,
                     uint32_t place)
{
    XSEG_ASSERT(owner->handle[page] == guest->handle[place]);
    XSEG_ASSERT(!xseg_segment_is_guest(owner, page) && xseg_segment_is_guest(guest, place));
    XSEG_ASSERT(owner->role != NULL);
    set_guest(owner, page, true);
    set_guest(guest, place, false);
    XSEG_AUDIT(xseg_segment_audit, owner);
}
