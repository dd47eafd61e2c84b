/* SPDX-License-Identifier: MIT */
/*
 * Zeroed host memory of which little may ever be touched.
 *
 * Large pieces come from the kernel, page by page as they are touched.  calloc() promises that only until
 * the process has freed something large: from then on it takes such pieces from the heap, and clears them.
 *
 * Large pieces begin in different cache lines of their pages.  Otherwise what every arena has at the
 * same place would share one set of the L1 cache, for which eight streams in turn missed four lines a
 * call.
 *
 * Threads: any.
 */
#ifndef XSEG_BASE_DEMAND_ZERO_H
#define XSEG_BASE_DEMAND_ZERO_H

#include <stddef.h>

/* From here on a piece comes from the kernel, and is aligned to a cache line. */
#define XSEG_DEMAND_ZERO_LARGE ((size_t)64 << 10)

/* Returns NULL without host memory. */
void *xseg_demand_zero_alloc(size_t bytes);

/* How many bytes of a piece have memory: the pages that were touched, if only to read them.  Of one that does not come from the
 * kernel, and where the kernel does not tell, all.  NULL is fine. */
size_t xseg_demand_zero_resident(const void *memory, size_t bytes);

/* bytes: as it was taken.  NULL is fine. */
void xseg_demand_zero_free(void *memory, size_t bytes);

#endif
