/* SPDX-License-Identifier: MIT */
/*
 * Pages of a device that are not mapped anywhere: physical memory on its way from one place to
 * another, and the page cache, which is what is kept for the next growth.
 *
 * Whoever maps takes its pages from here: an idle one of the right size, else a new one of the
 * driver.  Whoever unmaps puts them here, to be kept or to be released.  So moving a page (stealing)
 * is an unmap that keeps it, and a map that finds it.
 *
 * Pages of different size cannot stand for each other, nor can those that may be exported and those
 * that may not: that is fixed when they are created.  So each kind has a stack of its own, the latest
 * on top.  A page remembers whose it was; one that comes from the driver was nobody's.
 *
 * Invariants:
 *   PAGES-1  `bytes` is the sum of the sizes of the idle pages.
 *
 * Locking: GROWTH of the device; `bytes` may be read without it.
 */
#ifndef XSEG_VMM_PAGE_H
#define XSEG_VMM_PAGE_H

#include "vmm/leftovers.h"

/* What pages must have in common to stand for each other. */
struct xseg_page_kind {
    uint64_t bytes;
    bool is_exportable;
};

struct xseg_page {
    uint64_t handle;
    const void *owner; /* whose it was; NULL: nobody's */
    uint64_t since;    /* `now` when it became idle */
};

struct xseg_page_stack {
    struct xseg_page_kind kind;
    struct xseg_page *page; /* [capacity] */
    size_t count, capacity;
};

struct xseg_pages {
    struct xseg_context *context;
    struct xseg_leftovers *leftovers; /* where pages go that the driver does not take back */
    struct xseg_page_stack *stack;    /* [kinds]: one for each kind that has ever been idle */
    size_t kinds;
    uint64_t now; /* the owner's clock; 0 until it is known */
    atomic_uint_fast64_t bytes;
    uint64_t generation; /* drawn last, by whichever segment of the device */
};

/* Which idle pages somebody may have. */
enum xseg_page_choice {
    XSEG_PAGE_ANY,
    XSEG_PAGE_OWN_FIRST, /* its own or nobody's where there are any, else another's */
    XSEG_PAGE_OWN_ONLY
};

struct xseg_page_taker {
    const void *owner; /* who takes; whose the pages are from then on */
    enum xseg_page_choice choice;
    bool is_exportable; /* of which kind they have to be */
};

void xseg_pages_init(struct xseg_pages *pages, struct xseg_context *context,
                     struct xseg_leftovers *leftovers);

/* Free the tables; on a lost device pages may be in them. */
void xseg_pages_fini(struct xseg_pages *pages);

/* Bytes of idle pages. */
static inline uint64_t xseg_pages_bytes(const struct xseg_pages *pages)
{
    return atomic_load_explicit(&pages->bytes, memory_order_relaxed);
}

/* Bytes of the idle pages of one size that a taker may have. */
uint64_t xseg_pages_idle(const struct xseg_pages *pages, uint64_t page_bytes,
                         const struct xseg_page_taker *taker);

/* An idle page of a size for a taker; false if there is none. */
bool xseg_pages_take(struct xseg_pages *pages, uint64_t page_bytes,
                     const struct xseg_page_taker *taker, struct xseg_page *out);

/*
 * A new page of the driver, to be idle.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY;
 *          XSEG_ERR_UNSUPPORTED (for one that may be exported)
 * Cost:    one create
 */
xseg_status xseg_pages_make(struct xseg_pages *pages, struct xseg_page_kind kind);

/*
 * A page is not mapped any more: keep it, or release it.
 *
 * owner: whose it was
 * Returns: XSEG_OK; or the driver's error, and it is a leftover
 * Cost:    none if it is kept (without host memory for that it is released); one release
 */
xseg_status xseg_pages_put(struct xseg_pages *pages, struct xseg_page_kind kind, uint64_t handle,
                           const void *owner, bool keep);

/*
 * Release idle pages, the largest and of these the latest first, until no more than `bytes` are idle,
 * but no more than `most` pages.
 *
 * Returns: how many
 */
uint64_t xseg_pages_shrink(struct xseg_pages *pages, uint64_t bytes, uint64_t most);

/* Release one idle page of a kind; false if there is none. */
bool xseg_pages_release(struct xseg_pages *pages, struct xseg_page_kind kind);

/* The time now, which pages have from here on; those from before there was one have it, too. */
void xseg_pages_set_time(struct xseg_pages *pages, uint64_t now);

/* Release the pages that have been idle since `before` or longer, up to `most` bytes.  Returns the
 * bytes. */
uint64_t xseg_pages_release_old(struct xseg_pages *pages, uint64_t before, uint64_t most);

bool xseg_pages_audit(const struct xseg_pages *pages, struct xseg_finding *finding);

#endif
