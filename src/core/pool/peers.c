/* SPDX-License-Identifier: MIT */
/*
 * Peers: access rights of other devices to all memory of a device (share.h).
 *
 * Locking: the device memory lock of the owner.
 */
#include <stdio.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/pool/share.h"

/* A change of the access rights of one peer to all mapped memory of a device. */
struct access_change {
    const struct xseg_context *peer;
    bool is_allowed;
    xseg_status status; /* the first error of a grant, the last error of a revocation */
};

/* A grant ends with the first error; a revocation visits all memory. */
static bool must_continue(const struct access_change *change)
{
    return change->status == XSEG_OK || !change->is_allowed;
}

static void change_arena_access(struct access_change *change, struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        if (!xseg_segment_is_expandable(segment) || !must_continue(change))
            continue;
        const xseg_status status =
            xseg_segment_set_peer_access(segment, change->peer, change->is_allowed);
        if (status != XSEG_OK)
            change->status = status;
    }
}

static xseg_status change_access(struct xseg_device *owner, const struct xseg_context *peer,
                                 bool is_allowed)
{
    struct access_change change = {peer, is_allowed, XSEG_OK};

    XSEG_DEVICE_FOR_ARENAS(arena, owner)
    {
        change_arena_access(&change, arena);
    }
    if (!must_continue(&change))
        return change.status;
    const xseg_status status = xseg_share_set_import_access(owner, peer, is_allowed);
    return status == XSEG_OK ? change.status : status;
}

/* Check that the hardware supports the peer, and that no pool is being paused or resumed. */
static xseg_status check_peer(struct xseg_device *owner, const struct xseg_context *peer)
{
    struct xseg_context *context = &owner->context;
    bool can_access = false, in_transition = false;
    const xseg_status status = xseg_driver_can_access_peer(context, peer, &can_access);

    if (status != XSEG_OK)
        return status;
    if (!can_access || context->peers == XSEG_PEERS_MAX)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "device %d cannot access memory of device %d, %s; copy through the host",
                         peer->ordinal, context->ordinal,
                         can_access ? "maximum number of peers reached"
                                    : "no peer-to-peer path (see nvidia-smi topo -p2p r)");
    /* A resume that has released the lock may have mapped pages, with the access rights before this
     * call. */
    XSEG_DEVICE_FOR_ARENAS(arena, owner)
    {
        in_transition = in_transition || arena->pool->state == XSEG_POOL_TRANSITION;
    }
    if (in_transition)
        return xseg_fail(XSEG_ERR_BUSY,
                         "pool of device %d is being paused or resumed; retry after that call has "
                         "returned",
                         context->ordinal);
    return XSEG_OK;
}

/* Revoke the rights that were granted before an error. */
static xseg_status roll_back_access(struct xseg_device *owner, struct xseg_context *peer,
                                    bool was_enabled, xseg_status status)
{
    char reason[256];
    bool is_undone;

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    is_undone = change_access(owner, peer, false) == XSEG_OK;
    if (!was_enabled)
        is_undone = xseg_driver_disable_peer(&owner->context, peer) == XSEG_OK && is_undone;
    return xseg_fail(status, "%s; device %d %s", reason, peer->ordinal,
                     is_undone ? "has the same access as before"
                               : "keeps access to some memory because the rollback failed");
}

static xseg_status add_peer(struct xseg_device *owner, struct xseg_context *peer)
{
    struct xseg_context *context = &owner->context;
    bool is_new = false;
    xseg_status status = check_peer(owner, peer);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status == XSEG_OK)
        status = xseg_driver_enable_peer(context, peer, &is_new);
    if (status != XSEG_OK)
        return status;
    status = change_access(owner, peer, true);
    if (status != XSEG_OK)
        return roll_back_access(owner, peer, !is_new, status);
    xseg_context_add_peer(context, peer);
    return XSEG_OK;
}

xseg_status xseg_peers_allow(struct xseg_device *owner, struct xseg_device *peer)
{
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held() && owner != peer);
    if (xseg_context_is_lost(&owner->context))
        return xseg_driver_fail_lost(&owner->context);
    if (xseg_context_is_lost(&peer->context))
        return xseg_driver_fail_lost(&peer->context);
    xseg_mutex_lock(&owner->memory_lock);
    if (!xseg_context_has_peer(&owner->context, &peer->context))
        status = add_peer(owner, &peer->context);
    xseg_mutex_unlock(&owner->memory_lock);
    return status;
}

void xseg_peers_renew(struct xseg_device *owner)
{
    struct xseg_allocator *allocator = owner->allocator;
    bool is_new = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&owner->memory_lock);
    for (int i = 0; i < allocator->device_count && owner->context.peers != 0; i++) {
        struct xseg_device *peer = xseg_allocator_open_device(allocator, i);

        if (peer != NULL && xseg_context_has_peer(&owner->context, &peer->context) &&
            xseg_driver_enable_peer(&owner->context, &peer->context, &is_new) != XSEG_OK)
            xseg_context_remove_peer(&owner->context, &peer->context);
    }
    xseg_mutex_unlock(&owner->memory_lock);
}
