/* SPDX-License-Identifier: MIT */
/*
 * Peers: devices that use the memory of another device directly.
 *
 * A kernel or a plain copy of one device that touches memory of another needs the right to do so.  For memory
 * that is mapped page by page, as expandable segments are, the driver gives that right for each mapping, and
 * cuCtxEnablePeerAccess or cudaDeviceEnablePeerAccess do not give it.  So a program, or a library such as NCCL,
 * that works on several devices names each pair of them here, once.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_PEER_H
#define XSEG_PEER_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Let one device read and write all memory of this allocator on another: what is mapped now, in all pools and
 * imports, and what will be, until the allocator closes.  Memory that comes back to a paused pool is included.
 *
 * The right goes one way; name the devices in the other order for the way back.  Allocations of the driver
 * (classic segments) get it as well: peer access is enabled from the peer's primary context to the owner's.
 * That access stays enabled when the allocator closes, since others in the process may rely on it by then.
 * A pool with functions of its own gets no rights here: its functions have to see to that.
 *
 * Both devices are opened if they are not yet open.  A pair that is known already is a success without a
 * driver call.
 *
 * @param owner  CUDA ordinal of the device that has the memory
 * @param peer   CUDA ordinal of the device that uses it; another one
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT     there is no such device, or both are the same one
 *          XSEG_ERR_UNSUPPORTED  the hardware has no path between the two, or has no room for another peer
 *          XSEG_ERR_BUSY         a pool of the owner is being paused or resumed by another thread
 *          XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error the peer has no right that it did not have before.  Where the driver refuses to take
 *          rights back, too, the error text says so; such a right ends when its memory is unmapped.
 * Threads: any; waits for growths and trims of the owner
 * Cost:    two calls; and one set-access for each run of adjacent pages (one a page where the driver wants
 *          that).  Growths cost no call more, but each set-access then names one device more.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner,
                                                    int peer);

#ifdef __cplusplus
}
#endif

#endif
