/* SPDX-License-Identifier: MIT */
/*
 * Imports: runs of pages of other processes, or of this one, mapped here.  An import is foreign memory (foreign.h), which is
 * in no arena.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_CORE_IMPORT_H
#define XSEG_CORE_IMPORT_H

#include "src/core/pool/share.h"

/*
 * As xseg_import_handles() and xseg_import_close().  No lock is held.
 *
 * uuid: of the device that has the memory; NULL: not known
 */
xseg_status xseg_share_import(struct xseg_device *device, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle, size_t count,
                              const uint8_t *uuid, uint64_t *address);
xseg_status xseg_share_unimport(struct xseg_allocator *allocator, uint64_t address);

/* Free the records of imports, which only a lost device still has.  Their mappings stay. */
void xseg_share_discard_imports(struct xseg_sharing *sharing);

/* Give a peer the right to read and write all imports of a device, or take it away, as peer.h of vmm says.  The device memory lock is
 * held. */
xseg_status xseg_share_set_peer(struct xseg_device *device, const struct xseg_context *peer,
                                bool is_allowed);

#endif
