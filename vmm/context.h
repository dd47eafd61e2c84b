/* SPDX-License-Identifier: MIT */
/*
 * Opening a device: its primary context is retained, and the abilities of its driver are tried out.
 *
 * Virtual memory management counts as working only if a trial of reserve, create, map, set-access
 * and unmap succeeds, since some boards, virtual GPUs and subsystems report it and then refuse.  The trial
 * also finds whether one call may cover several mappings, which the driver does not document.
 *
 * A refusal for want of memory is a shortage, unless plenty is free: Jetson boards refuse pages in these words
 * (FACT-CRE-5).
 *
 * struct xseg_context itself is in driver.h.
 */
#ifndef XSEG_VMM_CONTEXT_H
#define XSEG_VMM_CONTEXT_H

#include "vmm/unreleased.h"

/*
 * Open a device.
 *
 * why: set to the reason why virtual memory management does not work; "" if it does
 * Returns: XSEG_OK (look at has_vmm), XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY, XSEG_ERR_DEVICE_LOST
 * Cost:    primary context retained; two pages are created, mapped, unmapped and released
 */
xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_unreleased_list *unreleased, char *why, size_t why_bytes);

/*
 * Try whether pages of some properties can be made, mapped and used.
 *
 * properties: of enum xseg_page_property
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_NO_ADDRESSES: it was not found out; another status: they cannot
 * Cost:    one reserve and its end; two creates, maps and releases; set-access and unmap, one or two each
 */
xseg_status xseg_context_probe_pages(struct xseg_context *context,
                                     struct xseg_unreleased_list *unreleased, unsigned properties);

/* Free memory beside which a want of memory for `bytes` is not believed: a driver may keep some for itself. */
static inline uint64_t xseg_context_ample_bytes(const struct xseg_context *context, uint64_t bytes)
{
    return 2 * bytes + context->total_bytes / 16;
}

/* Whether the driver says that as much is free.  The error text stays.  free: what it says; 0 if it does not */
bool xseg_context_has_ample_memory(struct xseg_context *context, uint64_t bytes, uint64_t *free);

/* Retain the primary context again after a close.  If that fails, the device is lost. */
void xseg_context_retain_again(struct xseg_context *context);

#endif
