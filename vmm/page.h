/* SPDX-License-Identifier: MIT */
/*
 * Pages of a device that are not mapped anywhere: physical memory on its way from one place to
 * another.
 *
 * Whoever maps takes its pages from here: an idle one of the right size, else a new one of the
 * driver.  Whoever unmaps puts them here, to be kept or to be released.  So moving a page (stealing)
 * is an unmap that keeps it, and a map that finds it.
 *
 * Pages of different size cannot stand for each other.
 *
 * Invariants:
 *   PAGES-1  `bytes` is the sum of the sizes of the idle pages.
 *
 * Locking: GROWTH of the device; `bytes` may be read without it.
 */
#ifndef XSEG_VMM_PAGE_H
#define XSEG_VMM_PAGE_H

#include "vmm/leftovers.h"

struct xseg_page {
    uint64_t handle, bytes;
};

struct xseg_pages {
    struct xseg_context *context;
    struct xseg_leftovers *leftovers; /* where pages go that the driver does not take back */
    struct xseg_page *idle;           /* [capacity] */
    size_t count, capacity;
    atomic_uint_fast64_t bytes;
};

void xseg_pages_init(struct xseg_pages *pages, struct xseg_context *context,
                     struct xseg_leftovers *leftovers);

/* Free the table; on a lost device pages may be in it. */
void xseg_pages_fini(struct xseg_pages *pages);

/* Bytes of idle pages. */
static inline uint64_t xseg_pages_bytes(const struct xseg_pages *pages)
{
    return atomic_load_explicit(&pages->bytes, memory_order_relaxed);
}

/* Bytes of the idle pages of one size. */
uint64_t xseg_pages_idle(const struct xseg_pages *pages, uint64_t page_bytes);

/* An idle page of a size; false if there is none. */
bool xseg_pages_take(struct xseg_pages *pages, uint64_t page_bytes, uint64_t *handle);

/*
 * A new page of the driver, to be idle.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one create
 */
xseg_status xseg_pages_make(struct xseg_pages *pages, uint64_t page_bytes);

/*
 * A page is not mapped any more: keep it, or release it.
 *
 * Returns: XSEG_OK; or the driver's error, and it is a leftover
 * Cost:    none if it is kept (without host memory for that it is released); one release
 */
xseg_status xseg_pages_put(struct xseg_pages *pages, uint64_t page_bytes, uint64_t handle,
                           bool keep);

/* Release idle pages, the latest first, until no more than `bytes` are idle. */
void xseg_pages_shrink(struct xseg_pages *pages, uint64_t bytes);

bool xseg_pages_audit(const struct xseg_pages *pages, struct xseg_finding *finding);

#endif
