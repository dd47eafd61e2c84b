/* SPDX-License-Identifier: MIT */
/*
 * The importer's side of an offer (offer.h): from a text to a share.
 *
 * The descriptors are taken out of the exporter (pidfd_getfd).  Where the system refuses that (a container, ptrace_scope,
 * another namespace of processes), its socket is asked.
 */
#ifndef XSEG_CORE_OFFER_IMPORT_H
#define XSEG_CORE_OFFER_IMPORT_H

#include "xseg/share.h"

/*
 * Get the share that a text offers.  No lock is held.
 *
 * out: ended by the caller
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (no such text), XSEG_ERR_FILE (neither way leads to the share),
 *          XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_offer_import(const char *text, struct xseg_share *out);

#endif
