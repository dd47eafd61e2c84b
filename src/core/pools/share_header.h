/* SPDX-License-Identifier: MIT */
/* The header of a share: made, checked and copied. */
#ifndef XSEG_CORE_SHARE_HEADER_H
#define XSEG_CORE_SHARE_HEADER_H

#include "src/core/pools/share.h"

/*
 * Check that a header has this version and does not contradict itself: the fixed part alone, before
 * there is memory for the table; and all of it, which no other process may change meanwhile.
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

/* Make an empty share of a kind and a number of pages, with no descriptor open.  False without host memory. */
bool xseg_share_make(struct xseg_share *share, enum xseg_share_kind kind, uint64_t pages);

/* Check that a share has as many descriptors as its header says.  Returns: XSEG_OK, XSEG_ERR_ARGUMENT */
xseg_status xseg_share_check_count(const struct xseg_share_header *header, size_t fd_count);

/* The page sizes behind a header, and the fabric handles behind these. */
static inline uint64_t *xseg_share_table(struct xseg_share_header *header)
{
    return (uint64_t *)(void *)(header + 1);
}

static inline uint8_t (
    *xseg_share_fabric(struct xseg_share_header *header))[XSEG_SHARE_FABRIC_BYTES]
{
    return (uint8_t(*)[XSEG_SHARE_FABRIC_BYTES])(void *)(xseg_share_table(header) +
                                                         header->page_count);
}

/* Close the open descriptors of a share, and free its memory. */
void xseg_share_free(struct xseg_share *share);

#endif
