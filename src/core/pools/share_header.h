/* SPDX-License-Identifier: MIT */
/* The header of a share: made, checked and copied. */
#ifndef XSEG_CORE_SHARE_HEADER_H
#define XSEG_CORE_SHARE_HEADER_H

#include "src/core/pools/share.h"

/*
 * Whether a header is one of this version, and without contradictions: of what comes first, so that it
 * is known before there is room for the rest; and of all of it, which nobody else may change meanwhile.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT
 */
xseg_status xseg_share_check_fixed(const struct xseg_share_header *header);
xseg_status xseg_share_check(const struct xseg_share_header *header);

/*
 * Copy a header, and check the copy: the original may lie in memory that its author still writes to.
 *
 * bytes: how many are there
 * out:   with the table behind it; free() it
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_share_copy(const void *header, size_t bytes, struct xseg_share_header **out);

/* Room for a share of so many pages, with no descriptor open.  False without host memory. */
bool xseg_share_make(struct xseg_share *share, uint64_t pages);

/* Close what is open, and free it. */
void xseg_share_free(struct xseg_share *share);

#endif
