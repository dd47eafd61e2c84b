/* SPDX-License-Identifier: MIT */
#include "xseg/peer.h"

#include "src/core/front/allocator_open.h"
#include "src/core/pools/peers.h"
#include "src/entry.h"

xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer)
{
    struct xseg_device *has = NULL, *uses = NULL;

    XSEG_ENTRY(allocator);
    xseg_status status = xseg_allocator_device(allocator, owner, &has);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, peer, &uses);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_REQUIRE(has != uses, "owner and peer are the same device, %d; pass two devices",
                       owner);
    return xseg_peers_allow(has, uses);
}
