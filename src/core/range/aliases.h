/* SPDX-License-Identifier: MIT */
/*
 * Aliases: granules that map the physical page of another committed granule (vmm/alias.h), of the same range or another
 * one of its pool.
 *
 * The pool is charged for the page until its last mapping is removed.  The range that committed the page is charged for it
 * as long as it maps the page.  The page is in use while any of its granules is live; then it is pending until unmapped.
 *
 * Locking: the device memory lock, taken or held where a function says so.
 */
#ifndef XSEG_CORE_ALIASES_H
#define XSEG_CORE_ALIASES_H

#include "src/core/range/range.h"

/* As xseg_range_alias() of the public header.  No lock is held. */
xseg_status xseg_aliases_map(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                             struct xseg_range *from, uint64_t from_offset);

/* Count the live granules of a run as not live.  Returns the bytes of the pages that no live granule maps any more.  The device memory lock
 * is held. */
uint64_t xseg_aliases_end_use(const struct xseg_range_run *run);

/* Count the granules of a run as live, none of whose pages has another mapping.  The device memory lock is held. */
void xseg_aliases_use_again(const struct xseg_range_run *run);

/* The first granule of a run, from one on, that is pending unmap and whose page has other mappings; the end of the run if
 * there is none.  The device memory lock is held. */
uint32_t xseg_aliases_next_pending(const struct xseg_range_run *run, uint32_t from);

#endif
