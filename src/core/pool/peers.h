/* SPDX-License-Identifier: MIT */
/*
 * Peers of a device: other devices that may use its memory, of all pools and imports.
 *
 * Mapped memory has its own access rights (peer.h of vmm).  Classic segments are the driver's allocations, on which
 * a context has rights: the peer's context is enabled for all of the owner's.
 *
 * Locking: the device memory lock of the device that has the memory.
 */
#ifndef XSEG_CORE_PEERS_H
#define XSEG_CORE_PEERS_H

#include "src/core/device/device.h"

/* As xseg_peer_allow() of the public header, for two open devices.  No lock is held. */
xseg_status xseg_peers_allow(struct xseg_device *owner, struct xseg_device *peer);

/*
 * After a close that failed: contexts that had been let go are new ones, on which no peer is enabled.  Enable those that
 * are known again.  One that the driver refuses is not known any more, so that the next xseg_peer_allow() tries all of
 * it.  No lock is held; nothing is mapped on the device.
 */
void xseg_peers_renew(struct xseg_device *owner);

#endif
