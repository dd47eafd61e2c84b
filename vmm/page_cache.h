/* SPDX-License-Identifier: MIT */
/*
 * The page cache of a device: idle physical pages without mappings.
 *
 * A map acquires pages from the cache and creates a page only if the cache has none of the required
 * kind.  An unmap puts its pages into the cache or releases them to the driver.  So a remap of an
 * idle page from one segment to another is an unmap that keeps the page, followed by a map that
 * acquires it, without cuMemCreate() and cuMemRelease().  Between growths the cache keeps up to
 * `page_cache_mb`.
 *
 * Size and properties of a page are fixed when it is created, so pages of different kinds cannot
 * replace each other.  Each kind has a stack with the most recently used page on top, so a put is
 * O(1), and so is an acquire, unless its filter selects pages by owner.  A page remembers its last
 * owner; a page that was created for the cache has none.
 *
 * A page can be *prepared*: created in advance for one elastic range.  Other maps use a prepared
 * page only under memory pressure, after xseg_page_cache_unprepare().  There can be many ranges, so
 * the stacks of prepared pages are found by a hash table with chains; empty stacks are in a list of
 * unused ones.  Pages for any use have few kinds, and their stacks are searched linearly.
 *
 * Each page has the time at which it became idle, so that decay releases the oldest pages first.
 *
 * Invariant, which xseg_page_cache_audit() checks:
 *   PAGES-1  `bytes` is the size of all pages in the cache, `prepared` the size of prepared ones.
 *
 * Locking: the device memory lock; `bytes` and `prepared` may be read without it.
 */
#ifndef XSEG_VMM_PAGE_CACHE_H
#define XSEG_VMM_PAGE_CACHE_H

#include "vmm/unreleased.h"

/* The attributes that pages must share to replace each other. */
struct xseg_page_kind {
    uint64_t bytes;
    unsigned properties;      /* of enum xseg_page_property */
    const void *prepared_for; /* the range that the pages were created for; NULL: any use */
};

struct xseg_page {
    uint64_t handle;
    const void *owner;   /* the last owner; NULL: none */
    uint64_t idle_since; /* `now` of the cache when the page became idle */
};

struct xseg_page_cache_stack {
    struct xseg_page_kind kind;
    struct xseg_page *page; /* [capacity], oldest first */
    size_t count, capacity;
    uint32_t next; /* of a prepared stack: the next stack of its list, as index + 1; 0: none */
};

struct xseg_page_cache {
    struct xseg_context *context;
    struct xseg_unreleased_list *unreleased;
    struct xseg_page_cache_stack *stack; /* [kinds], for kinds of any use */
    size_t kinds;
    /* [prepared_kinds]: a stack with pages is in the list of its bucket, an empty one in the list
     * of unused stacks. */
    struct xseg_page_cache_stack *prepared_stack;
    size_t prepared_kinds;
    uint32_t *bucket; /* [buckets], a power of two: first stack of each list, as index + 1 */
    size_t buckets;
    uint32_t unused; /* the first unused stack, as index + 1 */
    uint64_t now;    /* time of the caller's clock; 0 before the first xseg_page_cache_set_time() */
    atomic_uint_fast64_t bytes, prepared;
    atomic_uint_fast64_t record_bytes; /* host memory of alias records of the device (alias.h) */
    uint64_t generation;               /* the latest generation of the segments of the device */
};

/* A page filter: the pages that a caller may acquire. */
struct xseg_page_filter {
    const void *last_owner;   /* pages of this last owner, or without owner; NULL: of any */
    unsigned properties;      /* exact match */
    const void *prepared_for; /* the range whose prepared pages are acquired first; NULL: none */
};

void xseg_page_cache_init(struct xseg_page_cache *cache, struct xseg_context *context,
                          struct xseg_unreleased_list *unreleased);

/* Free the tables; the pages of a lost device may still be in them. */
void xseg_page_cache_fini(struct xseg_page_cache *cache);

/* Bytes of all pages in the cache, and of prepared ones. */
static inline uint64_t xseg_page_cache_bytes(const struct xseg_page_cache *cache)
{
    return atomic_load_explicit(&cache->bytes, memory_order_relaxed);
}

static inline uint64_t xseg_page_cache_prepared_bytes(const struct xseg_page_cache *cache)
{
    return atomic_load_explicit(&cache->prepared, memory_order_relaxed);
}

/* The stack with an index below kinds + prepared_kinds. */
static inline struct xseg_page_cache_stack *
xseg_page_cache_stack(const struct xseg_page_cache *cache, size_t at)
{
    return at < cache->kinds ? &cache->stack[at] : &cache->prepared_stack[at - cache->kinds];
}

/* Bytes of the pages of a kind. */
uint64_t xseg_page_cache_kind_bytes(const struct xseg_page_cache *cache,
                                    struct xseg_page_kind kind);

/* Bytes of the pages of one size that match a filter. */
uint64_t xseg_page_cache_usable_bytes(const struct xseg_page_cache *cache, uint64_t page_bytes,
                                      const struct xseg_page_filter *filter);

/* Remove a page of a size that matches a filter, a prepared one first.  Returns false if there is
 * none. */
bool xseg_page_cache_acquire(struct xseg_page_cache *cache, uint64_t page_bytes,
                             const struct xseg_page_filter *filter, struct xseg_page *out);

/*
 * Create a page in the cache.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY;
 *          XSEG_ERR_UNSUPPORTED if the driver does not support the properties
 * Cost:    one create
 */
xseg_status xseg_page_cache_create(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/*
 * Put an unmapped page into the cache, or release it.  On host allocation failure the page is
 * released.
 *
 * owner: the last owner of the page
 * Returns: XSEG_OK; or the driver's error, and the page becomes unreleased
 * Cost:    none, or one release
 */
xseg_status xseg_page_cache_put(struct xseg_page_cache *cache, struct xseg_page_kind kind,
                                uint64_t handle, const void *owner, bool keep);

/* Change a prepared page of a kind to one for any use.  Returns false if there is none, and on host
 * allocation failure. */
bool xseg_page_cache_unprepare(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/* Release pages, the largest first and of these the most recent first, until at most `bytes` remain
 * or `max` pages are released.  Returns the number of released pages. */
uint64_t xseg_page_cache_shrink(struct xseg_page_cache *cache, uint64_t bytes, uint64_t max);

/* Release pages that are not prepared, in the same order, until at most `bytes` of these remain. */
void xseg_page_cache_shrink_unprepared(struct xseg_page_cache *cache, uint64_t bytes);

/* Release one page of a kind.  Returns false if there is none. */
bool xseg_page_cache_release_one(struct xseg_page_cache *cache, struct xseg_page_kind kind);

/* Set the time for pages that become idle from now on.  The first call also sets the time of the
 * pages in the cache. */
void xseg_page_cache_set_time(struct xseg_page_cache *cache, uint64_t now);

/* Release up to `max` bytes of pages that became idle at `before` or earlier.  Returns the released
 * bytes. */
uint64_t xseg_page_cache_release_old(struct xseg_page_cache *cache, uint64_t before, uint64_t max);

/* Release up to `max` prepared pages that became idle at `before` or earlier.  Returns the number
 * of released pages. */
uint64_t xseg_page_cache_release_prepared(struct xseg_page_cache *cache, uint64_t before,
                                          uint64_t max);

bool xseg_page_cache_audit(const struct xseg_page_cache *cache, struct xseg_violation *violation);

#endif
