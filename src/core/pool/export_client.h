/* SPDX-License-Identifier: MIT */
/* The client of a server of exports (export_server.h): resolves an export token to raw handles. */
#ifndef XSEG_CORE_EXPORT_CLIENT_H
#define XSEG_CORE_EXPORT_CLIENT_H

#include "src/core/pool/export_wire.h"

/* The pages of a run that another process exports. */
struct xseg_export_pages {
    uint8_t device[XSEG_DRIVER_UUID_BYTES]; /* UUID of the device that has the memory */
    size_t count;
    struct xseg_page_handle *handle; /* [count], with file descriptors */
};

/*
 * Resolve a token.  No lock is held: the exporter may be this process.
 *
 * out: the caller ends it
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (malformed token), XSEG_ERR_FILE (no answer), XSEG_ERR_HOST_MEMORY; the exporter's
 *          status: XSEG_ERR_NOT_ALLOCATED, XSEG_ERR_DRIVER
 */
xseg_status xseg_export_fetch(const struct xseg_export_token *token, struct xseg_export_pages *out);

/* Close the descriptors, and free the memory. */
void xseg_export_pages_end(struct xseg_export_pages *pages);

#endif
