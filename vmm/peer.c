/* SPDX-License-Identifier: MIT */
#include "vmm/peer.h"

#include "vmm/segment_page.h"
#include "vmm/zeros.h"

bool xseg_peer_is_known(const struct xseg_context *owner, const struct xseg_context *peer)
{
    for (unsigned i = 0; i < owner->peers; i++)
        if (owner->peer[i] == peer->device)
            return true;
    return false;
}

void xseg_peer_add(struct xseg_context *owner, const struct xseg_context *peer)
{
    XSEG_ASSERT(owner->peers < XSEG_PEERS_MAX && !xseg_peer_is_known(owner, peer));
    owner->peer[owner->peers++] = peer->device;
}

void xseg_peer_remove(struct xseg_context *owner, const struct xseg_context *peer)
{
    unsigned at = 0;

    XSEG_ASSERT(xseg_peer_is_known(owner, peer));
    while (owner->peer[at] != peer->device)
        at++;
    owner->peer[at] = owner->peer[--owner->peers];
}

/* A change of the rights of one peer.  Giving ends with the first error, taking goes on. */
struct change {
    struct xseg_context *owner;
    int peer;
    bool is_allowed;
    bool reads; /* only reading is allowed */
    xseg_status status;
};

static bool goes_on(const struct change *change)
{
    return change->status == XSEG_OK || !change->is_allowed;
}

static xseg_status set(const struct change *change, uint64_t address, uint64_t bytes)
{
    return change->is_allowed && change->reads
               ? xseg_driver_set_peer_access_read_only(change->owner, change->peer, address, bytes)
               : xseg_driver_set_peer_access(change->owner, change->peer, address, bytes,
                                             change->is_allowed);
}

static void set_page(struct change *change, uint64_t address, uint64_t bytes)
{
    const xseg_status status = set(change, address, bytes);

    if (status != XSEG_OK)
        change->status = status;
}

/* Whether the driver changed the rights of a whole run in one call. */
static bool set_together(const struct change *change, uint64_t address, uint64_t bytes)
{
    return change->owner->batches_access && set(change, address, bytes) == XSEG_OK;
}

static void set_run(struct change *change, const struct xseg_segment *segment, uint32_t first,
                    uint32_t count)
{
    if (segment->length[first] < count &&
        set_together(change, xseg_segment_address(segment, first), count * segment->granule_bytes))
        return;
    for (uint32_t page = first; page < first + count && goes_on(change);
         page += segment->length[page])
        set_page(change, xseg_segment_address(segment, page),
                 xseg_segment_page_bytes(segment, page));
}

/* Whether the device may only read the page that a granule belongs to; a reader is one granule long. */
static bool reads(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->length[granule] == 1 && xseg_segment_reads(segment, granule);
}

/* How many granules from one on are mapped, with the same right of their own device. */
static uint32_t run_at(const struct xseg_segment *segment, uint32_t first)
{
    uint32_t at = first;

    while (at < segment->granules && xseg_segment_is_mapped(segment, at) &&
           reads(segment, at) == reads(segment, first))
        at++;
    return at - first;
}

/* Set the rights on the page of zeros, wherever it is mapped. */
static void set_zeros(struct change *change, const struct xseg_segment *segment)
{
    const uint32_t end = segment->granules;

    for (uint32_t at = 0, run; at < end && goes_on(change); at += run + 1) {
        for (run = 0; at + run < end && xseg_zeros_is_covered(segment, at + run);)
            run++;
        if (run > 1 &&
            set_together(change, xseg_segment_address(segment, at), run * segment->granule_bytes))
            continue;
        for (uint32_t i = 0; i < run && goes_on(change); i++)
            set_page(change, xseg_segment_address(segment, at + i), segment->granule_bytes);
    }
}

xseg_status xseg_peer_set_segment(struct xseg_segment *segment, const struct xseg_context *peer,
                                  bool is_allowed)
{
    struct change change = {segment->context, peer->device, is_allowed, false, XSEG_OK};
    uint32_t count = 0;

    XSEG_ASSERT(xseg_segment_is_expandable(segment));
    for (uint32_t at = 0; at < segment->granules && goes_on(&change);
         at += count == 0 ? 1 : count) {
        count = run_at(segment, at);
        change.reads = reads(segment, at);
        if (count != 0)
            set_run(&change, segment, at, count);
    }
    if (segment->zeros != NULL) {
        change.reads = xseg_zeros_are_read_only(segment);
        set_zeros(&change, segment);
    }
    return change.status;
}

xseg_status xseg_peer_set_foreign(struct xseg_foreign *foreign, const struct xseg_context *peer,
                                  bool is_allowed)
{
    struct change change = {foreign->context, peer->device, is_allowed, false, XSEG_OK};
    uint64_t address = foreign->base;

    if (foreign->pages > 1 && set_together(&change, foreign->base, foreign->bytes))
        return XSEG_OK;
    for (size_t i = 0; i < foreign->pages && goes_on(&change); i++) {
        set_page(&change, address, foreign->page_bytes[i]);
        address += foreign->page_bytes[i];
    }
    return change.status;
}
