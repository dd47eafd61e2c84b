/* SPDX-License-Identifier: MIT */
/*
 * Idle pages of a device, which are not mapped anywhere: physical memory on its way from one segment to
 * another, and the page cache, which is kept for the next growth.
 *
 * A map takes its pages from here: an idle one of the right size, else a new one of the driver.  An unmap
 * puts its pages here, to be kept or to be released.  So stealing a page is an unmap that keeps the page, and a
 * map that finds it.
 *
 * Pages of different sizes cannot replace each other, nor can pages of different properties: both are fixed when
 * a page is created.  So each kind has a stack of its own, the latest page on top.  A page remembers its last
 * owner; a page that comes from the driver has none.
 *
 * A page may be *prepared*: made ahead for one taker, to whom others leave it until memory is short.
 *
 * Invariants:
 *   PAGES-1  `bytes` is the sum of the sizes of the idle cache, `prepared` of those of them that are prepared.
 *
 * Locking: the device memory lock of the device; `bytes` and `prepared` may be read without it.
 */
#ifndef XSEG_VMM_PAGE_CACHE_H
#define XSEG_VMM_PAGE_CACHE_H

#include "vmm/unreleased.h"

/* What pages must have in common to replace each other. */
struct xseg_page_kind {
    uint64_t bytes;
    unsigned properties; /* of enum xseg_page_property */
    const void
        *prepared_for; /* the one taker that the pages were made ahead for; NULL: any taker */
};

struct xseg_page {
    uint64_t handle;
    const void *owner; /* the last owner; NULL: none */
    uint64_t since;    /* `now` when the page became idle */
};

struct xseg_page_cache_stack {
    struct xseg_page_kind kind;
    struct xseg_page *page; /* [capacity] */
    size_t count, capacity;
    uint32_t next; /* of a prepared stack: the next one in its list, as index + 1; 0: none */
};

struct xseg_page_cache {
    struct xseg_context *context;
    struct xseg_unreleased_list *unreleased; /* for pages that the driver does not take back */
    struct xseg_page_cache_stack
        *stack; /* [kinds]: one for each kind for any taker that has ever been idle */
    size_t kinds;
    /* [prepared_kinds]: one for each kind with prepared cache, and unused ones.  A stack with pages is in the list of its
     * taker's bucket, so that it is found in O(1). */
    struct xseg_page_cache_stack *prepared_stack;
    size_t prepared_kinds;
    uint32_t *bucket; /* [buckets], a power of two: the first stack of a list, as index + 1 */
    size_t buckets;
    uint32_t unused; /* the first unused stack, as index + 1 */
    uint64_t now;    /* the owner's clock; 0 until it is known */
    atomic_uint_fast64_t bytes, prepared;
    atomic_uint_fast64_t record_bytes; /* host memory of records of aliased pages (alias.h) */
    uint64_t generation;               /* the last one that a segment of the device has drawn */
};

/* A filter of idle pages. */
struct xseg_page_filter {
    const void
        *last_owner; /* pages whose last owner is this one, and pages without owner; NULL: any */
    unsigned properties;      /* that the pages must have, these and no others */
    const void *prepared_for; /* whose prepared pages it takes first; NULL: none */
};

void xseg_page_cache_init(struct xseg_page_cache *cache, struct xseg_context *context,
                          struct xseg_unreleased_list *unreleased);

/* Free the tables; on a lost device pages may be in them. */
void xseg_page_cache_fini(struct xseg_page_cache *cache);

/* Bytes of idle pages. */
static inline uint64_t xseg_page_cache_bytes(const struct xseg_page_cache *cache)
{
    return atomic_load_explicit(&cache->bytes, memory_order_relaxed);
}

/* Bytes of idle pages that are prepared. */
static inline uint64_t xseg_page_cache_prepared_bytes(const struct xseg_page_cache *cache)
{
    return atomic_load_explicit(&cache->prepared, memory_order_relaxed);
}

/* The stack with an index up to kinds + prepared_kinds. */
static inline struct xseg_page_cache_stack *
xseg_page_cache_stack(const struct xseg_page_cache *cache, size_t at)
{
    return at < cache->kinds ? &cache->stack[at] : &cache->prepared_stack[at - cache->kinds];
}

/* Bytes of the idle pages of a kind. */
uint64_t xseg_page_cache_kind_bytes(const struct xseg_page_cache *cache,
                                    struct xseg_page_kind kind);

/* Leave a prepared page of a kind to any taker; false if there is none, or no host memory. */
bool xseg_page_cache_unprepare(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/* Bytes of the idle pages of one size that a taker may have. */
uint64_t xseg_page_cache_usable_bytes(const struct xseg_page_cache *cache, uint64_t page_bytes,
                                      const struct xseg_page_filter *filter);

/* Take an idle page of a size, a prepared one first; false if there is none that the taker may have. */
bool xseg_page_cache_acquire(struct xseg_page_cache *cache, uint64_t page_bytes,
                             const struct xseg_page_filter *filter, struct xseg_page *out);

/*
 * Make a new idle page, of the driver.
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY;
 *          XSEG_ERR_UNSUPPORTED (of properties that the driver refuses)
 * Cost:    one create
 */
xseg_status xseg_page_cache_create(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/*
 * Put a page that is not mapped any more here: keep it as idle, or release it.
 *
 * owner: the last owner of the page
 * Returns: XSEG_OK; or the driver's error, and the page is a leftover
 * Cost:    none if the page is kept (without host memory for that it is released); one release
 */
xseg_status xseg_page_cache_put(struct xseg_page_cache *cache, struct xseg_page_kind kind,
                                uint64_t handle, const void *owner, bool keep);

/*
 * Release idle cache, the largest and of these the latest first, until no more than `bytes` are idle,
 * but no more than `most` pages.
 *
 * Returns: how many
 */
uint64_t xseg_page_cache_shrink(struct xseg_page_cache *cache, uint64_t bytes, uint64_t max);

/* Release idle pages that are not prepared, in that order, until these are no more than `bytes`. */
void xseg_page_cache_shrink_unprepared(struct xseg_page_cache *cache, uint64_t bytes);

/* Release one idle page of a kind; false if there is none. */
bool xseg_page_cache_release_one(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/* Set the time that pages get from here on as they become idle; pages from before the first call get it, too. */
void xseg_page_cache_set_time(struct xseg_page_cache *cache, uint64_t now);

/* Release the pages that have been idle since `before` or longer, up to `most` bytes.  Returns the
 * bytes. */
uint64_t xseg_page_cache_release_old(struct xseg_page_cache *cache, uint64_t before, uint64_t max);

/* Release the prepared pages that have been idle since `before` or longer, up to `most` of them.  Returns how many. */
uint64_t xseg_page_cache_release_prepared(struct xseg_page_cache *cache, uint64_t before,
                                          uint64_t max);

bool xseg_page_cache_audit(const struct xseg_page_cache *cache, struct xseg_violation *violation);

#endif
