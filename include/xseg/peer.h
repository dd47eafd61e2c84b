/* SPDX-License-Identifier: MIT */
/*
 * Peer access: kernels and copies of one device that access memory of another device.
 *
 *     if (xseg_peer_allow(allocator, 0, 1) != XSEG_OK || xseg_peer_allow(allocator, 1, 0) != XSEG_OK)
 *         return 1; // Devices 0 and 1 cannot access each other.
 *
 * The driver grants access to mapped pages (expandable segments) for each mapping; cuCtxEnablePeerAccess() does not
 * apply to them.  A program or library that works on several devices, such as NCCL, calls xseg_peer_allow() once for
 * each pair.
 */
#ifndef XSEG_PEER_H
#define XSEG_PEER_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allow one device to read and write all memory of the allocator on another device.
 *
 * Access covers all pools and imports, memory that is mapped later, and paused pools when they resume, until
 * xseg_close().  It is one-way: call the function again with the devices exchanged for the other direction.  For
 * classic segments peer access is enabled from the peer's primary context to the owner's; it stays enabled after
 * xseg_close(), since other code of the process can rely on it.  Pools with memory functions are not covered.
 *
 * Both devices are opened if necessary.  A repeated call for a pair has no effect.
 *
 * @param owner  CUDA ordinal of the device that has the memory.
 * @param peer   CUDA ordinal of the device that accesses it.
 *
 * @return XSEG_ERR_UNSUPPORTED  the devices have no peer connection, or the maximum number of peers is reached.
 *         XSEG_ERR_BUSY         another thread pauses or resumes a pool of the owner.
 *         XSEG_ERR_ARGUMENT     also: both devices are the same.
 *         On an error the access is rolled back.  If the driver rejects the rollback, the message says so, and the peer
 *         keeps access to some memory until that memory is unmapped.
 * Threads: any; waits for a growth or trim of the owner.
 * Cost: two driver calls, and one set-access per run of adjacent pages (per page, where the driver requires that).
 *       Later growths make no additional call, but each set-access names one device more.
 */
XSEG_API xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer);

#ifdef __cplusplus
}
#endif

#endif
