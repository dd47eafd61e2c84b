/* SPDX-License-Identifier: MIT */
/*
 * Imported memory: pages of another process, or of this one, that were received as file descriptors
 * or fabric handles and are mapped to a reserved VA range at the offsets that they have in the
 * exporter.  Addresses between the pages remain unmapped.
 *
 *     [ page ][ page ................ ][ unmapped ........ ][ page ]
 *     base                                                         base + bytes
 *
 * A handle is released right after its map, because the mapping retains the memory.  So an unmap
 * ends the use of the memory in this process, independently of other processes.  The exporter owns
 * the memory, so the importer does not count it as reserved or unreleased.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_VMM_IMPORTED_H
#define XSEG_VMM_IMPORTED_H

#include "vmm/unreleased.h"
#include "xseg/share.h"

/* A page; offset and size are multiples of the granularity. */
struct xseg_imported_page {
    uint64_t offset, bytes;
};

struct xseg_imported {
    struct xseg_context *context;
    struct xseg_unreleased_list *unreleased;
    uint64_t base, bytes; /* of the VA range */
    const struct xseg_imported_page
        *page; /* [pages], in the order of offsets, owned by the caller */
    size_t pages;
};

/*
 * Map imported pages.  The caller has set all members except `base`.
 *
 * handle: [pages], owned by the caller
 * Returns: XSEG_OK; XSEG_ERR_NO_ADDRESSES, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER without effect,
 *          except for unreleased objects
 * Cost:    one reserve; an import, a map and a release per page; one set-access per run of
 *          adjacent pages (one per page if the driver does not batch)
 */
xseg_status xseg_imported_map(struct xseg_imported *imported, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle);

/*
 * Unmap imported pages and release their VA range.  Objects that the driver does not release become
 * unreleased.
 *
 * Cost: one unmap per run of adjacent pages (one per page if the driver does not batch), one
 *       unreserve
 */
void xseg_imported_unmap(struct xseg_imported *imported);

/* Grant or revoke a peer's read and write access.  Returns, cost: as xseg_segment_set_peer_access()
 */
xseg_status xseg_imported_set_peer_access(struct xseg_imported *imported,
                                          const struct xseg_context *peer, bool is_allowed);

#endif
