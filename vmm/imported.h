/* SPDX-License-Identifier: MIT */
/*
 * Foreign memory: pages of another process, or of this one, that came by file descriptor or fabric handle,
 * mapped at addresses of exactly their length.
 *
 *     [ page ][ page ................ ][ page ]
 *     base                                    base + bytes
 *
 * A handle is released as soon as it is mapped, since the mapping keeps the memory.  So an unmap ends the use of
 * the memory in this process, whatever other processes do.
 *
 * Locking: the device memory lock of the device.
 */
#ifndef XSEG_VMM_IMPORTED_H
#define XSEG_VMM_IMPORTED_H

#include "vmm/unreleased.h"
#include "xseg/share.h"

struct xseg_imported {
    struct xseg_context *context;
    struct xseg_unreleased_list *unreleased;
    uint64_t base, bytes;
    const uint64_t *page_bytes; /* [pages], multiples of the granularity: the owner's */
    size_t pages;
};

/*
 * Map foreign pages.  All members but `base` are set.
 *
 * handle: [pages], which the caller keeps
 * Returns: XSEG_OK; XSEG_ERR_NO_ADDRESSES, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, and nothing has changed
 *          but for leftovers
 * Cost:    one reserve; an import, a map and a release a page; one set-access (one a page where the
 *          driver wants that)
 */
xseg_status xseg_imported_map(struct xseg_imported *foreign, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle);

/*
 * Unmap foreign pages; mappings and addresses that the driver refuses are leftovers.
 *
 * Cost: one unmap (one a page where the driver wants that), one unreserve
 */
void xseg_imported_unmap(struct xseg_imported *foreign);

#endif
