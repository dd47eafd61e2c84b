/* SPDX-License-Identifier: MIT */
/*
 * Contexts: open a device, probe the features of its driver, and list the peers of the device.
 *
 * Some boards, virtual GPUs and subsystems report virtual memory management (VMM) and then fail its
 * calls.  So VMM counts as available only if a probe succeeds: the probe reserves a VA range,
 * creates two pages, maps them, sets their access rights and unmaps them.  The same probe
 * determines whether one call can set the access rights of several mappings, and whether one call
 * can unmap several mappings, because CUDA does not document this.
 *
 * If the probe fails for lack of memory, the device may be full.  The library then assumes that VMM
 * works, and growth reports the error.  An out-of-memory error is spurious if ample memory is free
 * before and cuMemAlloc() works after a second probe: Jetson boards report unsupported pages this
 * way (FACT-CRE-5).
 *
 * struct xseg_context is defined in driver.h, whose functions have it as a parameter.
 *
 * Locking: open and close of a device exclude other calls.  The list of peers is guarded by the
 * device memory lock.
 */
#ifndef XSEG_VMM_CONTEXT_H
#define XSEG_VMM_CONTEXT_H

#include "vmm/unreleased.h"

/*
 * Open a device: retain its primary context and probe virtual memory management.
 *
 * reason:  set to the reason for which virtual memory management does not work; "" if it works
 * Returns: XSEG_OK (has_vmm contains the result of the probe), XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY,
 *          XSEG_ERR_DEVICE_LOST
 * Cost:    as xseg_context_probe_pages(), up to twice
 */
xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_unreleased_list *unreleased, char *reason,
                              size_t reason_bytes);

/* Retain the primary context after xseg_driver_release_context().  If that fails, the device is
 * lost. */
void xseg_context_retain_again(struct xseg_context *context);

/*
 * Probe whether pages with some properties can be created, mapped and accessed.
 *
 * properties: of enum xseg_page_property.
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_NO_ADDRESSES: the probe is inconclusive.  Another
 *          status means that such pages are unsupported.
 * Cost:    one reserve and unreserve; two creates, maps and releases; one or two set-access and
 *          unmap calls.
 */
xseg_status xseg_context_probe_pages(struct xseg_context *context,
                                     struct xseg_unreleased_list *unreleased, unsigned properties);

/* The free memory that makes an out-of-memory error for `bytes` implausible; a driver may reserve
 * some memory for itself. */
static inline uint64_t xseg_context_ample_bytes(const struct xseg_context *context, uint64_t bytes)
{
    return 2 * bytes + context->total_bytes / 16;
}

/* Whether xseg_context_ample_bytes() are free (free_memory.h).  The current error message is
 * preserved.  free: the free memory; 0 if the query fails */
bool xseg_context_has_ample_memory(struct xseg_context *context, uint64_t bytes, uint64_t *free);

/* --- Peers: other devices with access to the mapped memory of the owner. --- */

bool xseg_context_has_peer(const struct xseg_context *owner, const struct xseg_context *peer);

/* Add a peer: every later map also grants access to the peer.  The number of peers is below
 * XSEG_PEERS_MAX. */
void xseg_context_add_peer(struct xseg_context *owner, const struct xseg_context *peer);

/* Remove a peer.  Existing mappings still grant access to the peer. */
void xseg_context_remove_peer(struct xseg_context *owner, const struct xseg_context *peer);

#endif
