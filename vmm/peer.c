/* SPDX-License-Identifier: MIT */
#include "vmm/peer.h"

#include "vmm/segment_page.h"

bool xseg_context_has_peer(const struct xseg_context *owner, const struct xseg_context *peer)
{
    for (unsigned i = 0; i < owner->peers; i++)
        if (owner->peer[i] == peer->device)
            return true;
    return false;
}

void xseg_context_add_peer(struct xseg_context *owner, const struct xseg_context *peer)
{
    XSEG_ASSERT(owner->peers < XSEG_PEERS_MAX && !xseg_context_has_peer(owner, peer));
    owner->peer[owner->peers++] = peer->device;
}

void xseg_context_remove_peer(struct xseg_context *owner, const struct xseg_context *peer)
{
    unsigned at = 0;

    XSEG_ASSERT(xseg_context_has_peer(owner, peer));
    while (owner->peer[at] != peer->device)
        at++;
    owner->peer[at] = owner->peer[--owner->peers];
}

/* A change of the rights of one peer.  Giving ends with the first error, taking goes on. */
struct change {
    struct xseg_context *owner;
    int peer;
    bool is_allowed;
    xseg_status status;
};

static bool goes_on(const struct change *change)
{
    return change->status == XSEG_OK || !change->is_allowed;
}

static xseg_status set(const struct change *change, uint64_t address, uint64_t bytes)
{
    return xseg_driver_set_peer_access(change->owner, change->peer, address, bytes,
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

/* How many granules from one on are mapped. */
static uint32_t run_at(const struct xseg_segment *segment, uint32_t first)
{
    uint32_t at = first;

    while (at < segment->granules && xseg_segment_is_mapped(segment, at))
        at++;
    return at - first;
}

xseg_status xseg_segment_set_peer_access(struct xseg_segment *segment,
                                         const struct xseg_context *peer, bool is_allowed)
{
    struct change change = {segment->context, peer->device, is_allowed, XSEG_OK};
    uint32_t count = 0;

    XSEG_ASSERT(xseg_segment_is_expandable(segment));
    for (uint32_t at = 0; at < segment->granules && goes_on(&change);
         at += count == 0 ? 1 : count) {
        count = run_at(segment, at);
        if (count != 0)
            set_run(&change, segment, at, count);
    }
    return change.status;
}

xseg_status xseg_imported_set_peer_access(struct xseg_imported *foreign,
                                          const struct xseg_context *peer, bool is_allowed)
{
    struct change change = {foreign->context, peer->device, is_allowed, XSEG_OK};
    uint64_t address = foreign->base;

    if (foreign->pages > 1 && set_together(&change, foreign->base, foreign->bytes))
        return XSEG_OK;
    for (size_t i = 0; i < foreign->pages && goes_on(&change); i++) {
        set_page(&change, address, foreign->page_bytes[i]);
        address += foreign->page_bytes[i];
    }
    return change.status;
}
