/* SPDX-License-Identifier: MIT */
#include "vmm/page_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"

void xseg_page_cache_init(struct xseg_page_cache *cache, struct xseg_context *context,
                          struct xseg_unreleased_list *unreleased)
{
    memset(cache, 0, sizeof(*cache));
    cache->context = context;
    cache->unreleased = unreleased;
}

static size_t count_stacks(const struct xseg_page_cache *cache)
{
    return cache->kinds + cache->prepared_kinds;
}

void xseg_page_cache_fini(struct xseg_page_cache *cache)
{
    for (size_t i = 0; i < count_stacks(cache); i++)
        free(xseg_page_cache_stack(cache, i)->page);
    free(cache->stack);
    free(cache->prepared_stack);
    free(cache->bucket);
    cache->stack = cache->prepared_stack = NULL;
    cache->bucket = NULL;
    cache->kinds = cache->prepared_kinds = cache->buckets = 0;
    cache->unused = 0;
}

/* --- Stacks. --- */

static bool is_of_kind(const struct xseg_page_cache_stack *stack, struct xseg_page_kind kind)
{
    return stack->kind.bytes == kind.bytes && stack->kind.properties == kind.properties &&
           stack->kind.prepared_for == kind.prepared_for;
}

static uint32_t *find_bucket(const struct xseg_page_cache *cache, const void *prepared_for)
{
    const uint64_t hash = (uint64_t)(uintptr_t)prepared_for * 0x9e3779b97f4a7c15u;

    return &cache->bucket[(size_t)(hash >> 32) & (cache->buckets - 1)];
}

static struct xseg_page_cache_stack *find_prepared_stack(const struct xseg_page_cache *cache,
                                                         struct xseg_page_kind kind)
{
    uint32_t at = cache->buckets == 0 ? 0 : *find_bucket(cache, kind.prepared_for);

    while (at != 0 && !is_of_kind(&cache->prepared_stack[at - 1], kind))
        at = cache->prepared_stack[at - 1].next;
    return at == 0 ? NULL : &cache->prepared_stack[at - 1];
}

static struct xseg_page_cache_stack *find_stack(const struct xseg_page_cache *cache,
                                                struct xseg_page_kind kind)
{
    if (kind.prepared_for != NULL)
        return find_prepared_stack(cache, kind);
    for (size_t i = 0; i < cache->kinds; i++)
        if (is_of_kind(&cache->stack[i], kind))
            return &cache->stack[i];
    return NULL;
}

/* Append a stack to an array; false on host allocation failure. */
static bool append_stack(struct xseg_page_cache_stack **stacks, size_t *count)
{
    const bool is_full = (*count & (*count - 1)) == 0; /* capacities are powers of two */
    struct xseg_page_cache_stack *grown = *stacks;

    if (is_full)
        grown = realloc(*stacks, (*count == 0 ? 1 : 2 * *count) * sizeof(*grown));
    if (grown == NULL)
        return false;
    *stacks = grown;
    grown[(*count)++] = (struct xseg_page_cache_stack){.count = 0};
    return true;
}

/* Grow the table to as many buckets as prepared stacks; false on host allocation failure. */
static bool ensure_buckets(struct xseg_page_cache *cache)
{
    const size_t buckets = cache->buckets == 0 ? 16 : 2 * cache->buckets;
    uint32_t *bucket;

    if (cache->prepared_kinds < cache->buckets)
        return true;
    bucket = calloc(buckets, sizeof(*bucket));
    if (bucket == NULL)
        return false;
    free(cache->bucket);
    cache->bucket = bucket;
    cache->buckets = buckets;
    for (uint32_t i = 0; i < cache->prepared_kinds; i++) {
        struct xseg_page_cache_stack *stack = &cache->prepared_stack[i];
        uint32_t *first = find_bucket(cache, stack->kind.prepared_for);

        if (stack->count == 0)
            continue;
        stack->next = *first;
        *first = i + 1;
    }
    return true;
}

/* Return an unused stack for prepared pages; NULL on host allocation failure.  The stack is in no
 * list until a page is pushed. */
static struct xseg_page_cache_stack *get_prepared_stack(struct xseg_page_cache *cache,
                                                        struct xseg_page_kind kind)
{
    struct xseg_page_cache_stack *stack;

    if (!ensure_buckets(cache))
        return NULL;
    if (cache->unused == 0) {
        if (!append_stack(&cache->prepared_stack, &cache->prepared_kinds))
            return NULL;
        cache->unused = (uint32_t)cache->prepared_kinds;
    }
    stack = &cache->prepared_stack[cache->unused - 1];
    stack->kind = kind;
    return stack;
}

/* Return the stack of a kind, a new one if there is none; NULL on host allocation failure. */
static struct xseg_page_cache_stack *get_stack(struct xseg_page_cache *cache,
                                               struct xseg_page_kind kind)
{
    struct xseg_page_cache_stack *stack = find_stack(cache, kind);

    if (stack != NULL)
        return stack;
    if (kind.prepared_for != NULL)
        return get_prepared_stack(cache, kind);
    if (!append_stack(&cache->stack, &cache->kinds))
        return NULL;
    stack = &cache->stack[cache->kinds - 1];
    stack->kind = kind;
    return stack;
}

/* Move a prepared stack from the head of the list of unused stacks to its bucket, with its first
 * page. */
static void link_prepared_stack(struct xseg_page_cache *cache, struct xseg_page_cache_stack *stack)
{
    const uint32_t at = cache->unused;
    uint32_t *first = find_bucket(cache, stack->kind.prepared_for);

    XSEG_ASSERT(at != 0 && stack == &cache->prepared_stack[at - 1]);
    cache->unused = stack->next;
    stack->next = *first;
    *first = at;
}

/* Move a prepared stack from its bucket to the list of unused stacks, after its last page. */
static void unlink_prepared_stack(struct xseg_page_cache *cache,
                                  struct xseg_page_cache_stack *stack)
{
    const uint32_t at = (uint32_t)(stack - cache->prepared_stack) + 1;
    uint32_t *link = find_bucket(cache, stack->kind.prepared_for);

    while (*link != at)
        link = &cache->prepared_stack[*link - 1].next;
    *link = stack->next;
    stack->next = cache->unused;
    cache->unused = at;
}

/* Return the stack of a kind with capacity for one more page; NULL on host allocation failure. */
static struct xseg_page_cache_stack *reserve_slot(struct xseg_page_cache *cache,
                                                  struct xseg_page_kind kind)
{
    struct xseg_page_cache_stack *stack = get_stack(cache, kind);

    if (stack == NULL || stack->count < stack->capacity)
        return stack;
    const size_t capacity = stack->capacity == 0 ? 64 : stack->capacity * 2;
    struct xseg_page *page = realloc(stack->page, capacity * sizeof(*page));
    if (page == NULL)
        return NULL;
    stack->page = page;
    stack->capacity = capacity;
    return stack;
}

/* Add a page to the byte counts, or subtract it: a negative `delta` wraps around. */
static void count_cached_bytes(struct xseg_page_cache *cache,
                               const struct xseg_page_cache_stack *stack, uint64_t delta)
{
    atomic_fetch_add_explicit(&cache->bytes, delta, memory_order_relaxed);
    if (stack->kind.prepared_for != NULL)
        atomic_fetch_add_explicit(&cache->prepared, delta, memory_order_relaxed);
}

static void push_page(struct xseg_page_cache *cache, struct xseg_page_cache_stack *stack,
                      uint64_t handle, const void *owner)
{
    if (stack->count == 0 && stack->kind.prepared_for != NULL)
        link_prepared_stack(cache, stack);
    stack->page[stack->count++] = (struct xseg_page){handle, owner, cache->now};
    count_cached_bytes(cache, stack, stack->kind.bytes);
}

/* Remove a page from its stack; the pages above it keep their order. */
static struct xseg_page remove_cached_page(struct xseg_page_cache *cache,
                                           struct xseg_page_cache_stack *stack, size_t at)
{
    const struct xseg_page page = stack->page[at];

    stack->count--;
    memmove(&stack->page[at], &stack->page[at + 1], (stack->count - at) * sizeof(page));
    count_cached_bytes(cache, stack, 0 - stack->kind.bytes);
    if (stack->count == 0 && stack->kind.prepared_for != NULL)
        unlink_prepared_stack(cache, stack);
    return page;
}

static void release_cached_page(struct xseg_page_cache *cache, struct xseg_page_cache_stack *stack,
                                size_t at)
{
    const struct xseg_page page = remove_cached_page(cache, stack, at);

    /* A page that the driver does not release becomes unreleased. */
    (void)xseg_unreleased_release(
        cache->unreleased,
        (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, page.handle, stack->kind.bytes, 0});
}

/* --- Acquire and put. --- */

static bool is_page_usable(const struct xseg_page *page, const struct xseg_page_filter *filter)
{
    return filter->last_owner == NULL || page->owner == NULL || page->owner == filter->last_owner;
}

uint64_t xseg_page_cache_usable_bytes(const struct xseg_page_cache *cache, uint64_t page_bytes,
                                      const struct xseg_page_filter *filter)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, NULL};
    const struct xseg_page_kind prepared = {page_bytes, filter->properties, filter->prepared_for};
    const struct xseg_page_cache_stack *stack = find_stack(cache, kind);
    uint64_t bytes = filter->prepared_for == NULL ? 0 : xseg_page_cache_kind_bytes(cache, prepared);

    if (stack == NULL)
        return bytes;
    if (filter->last_owner == NULL)
        return bytes + stack->count * page_bytes;
    for (size_t i = 0; i < stack->count; i++)
        bytes += is_page_usable(&stack->page[i], filter) ? page_bytes : 0;
    return bytes;
}

uint64_t xseg_page_cache_kind_bytes(const struct xseg_page_cache *cache, struct xseg_page_kind kind)
{
    const struct xseg_page_cache_stack *stack = find_stack(cache, kind);

    return stack == NULL ? 0 : stack->count * kind.bytes;
}

static bool acquire_prepared_page(struct xseg_page_cache *cache, uint64_t page_bytes,
                                  const struct xseg_page_filter *filter, struct xseg_page *out)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, filter->prepared_for};
    struct xseg_page_cache_stack *stack = find_stack(cache, kind);

    if (stack == NULL || stack->count == 0)
        return false;
    *out = remove_cached_page(cache, stack, stack->count - 1);
    return true;
}

bool xseg_page_cache_acquire(struct xseg_page_cache *cache, uint64_t page_bytes,
                             const struct xseg_page_filter *filter, struct xseg_page *out)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, NULL};
    struct xseg_page_cache_stack *stack = find_stack(cache, kind);

    if (filter->prepared_for != NULL && acquire_prepared_page(cache, page_bytes, filter, out))
        return true;
    if (stack == NULL || stack->count == 0)
        return false;
    size_t at = stack->count;
    while (at > 0 && !is_page_usable(&stack->page[at - 1], filter))
        at--;
    if (at == 0)
        return false;
    *out = remove_cached_page(cache, stack, at - 1);
    return true;
}

xseg_status xseg_page_cache_create(struct xseg_page_cache *cache, struct xseg_page_kind kind)
{
    struct xseg_page_cache_stack *stack = reserve_slot(cache, kind);
    uint64_t handle = 0;

    if (stack == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, page record");
    const xseg_status status =
        xseg_driver_create(cache->context, kind.bytes, kind.properties, &handle);
    if (status == XSEG_OK)
        push_page(cache, stack, handle, NULL);
    return status;
}

xseg_status xseg_page_cache_put(struct xseg_page_cache *cache, struct xseg_page_kind kind,
                                uint64_t handle, const void *owner, bool keep)
{
    struct xseg_page_cache_stack *stack = keep ? reserve_slot(cache, kind) : NULL;

    if (stack != NULL) {
        push_page(cache, stack, handle, owner);
        return XSEG_OK;
    }
    return xseg_unreleased_release(
        cache->unreleased, (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, kind.bytes, 0});
}

bool xseg_page_cache_unprepare(struct xseg_page_cache *cache, struct xseg_page_kind kind)
{
    struct xseg_page_kind common = kind;

    XSEG_ASSERT(kind.prepared_for != NULL);
    common.prepared_for = NULL;
    struct xseg_page_cache_stack *to = reserve_slot(cache, common);
    struct xseg_page_cache_stack *from =
        find_stack(cache, kind); /* after the array may have moved */
    if (to == NULL || from == NULL || from->count == 0)
        return false;
    const struct xseg_page page = remove_cached_page(cache, from, from->count - 1);
    to->page[to->count++] = page;
    count_cached_bytes(cache, to, kind.bytes);
    return true;
}

/* --- Release. --- */

/* Return the stack with the largest pages; NULL if there is none.  prepared: include prepared
 * pages */
static struct xseg_page_cache_stack *find_largest_stack(const struct xseg_page_cache *cache,
                                                        bool prepared)
{
    struct xseg_page_cache_stack *largest = NULL;

    for (size_t i = 0; i < (prepared ? count_stacks(cache) : cache->kinds); i++) {
        struct xseg_page_cache_stack *stack = xseg_page_cache_stack(cache, i);

        if (stack->count > 0 && (largest == NULL || stack->kind.bytes > largest->kind.bytes))
            largest = stack;
    }
    return largest;
}

uint64_t xseg_page_cache_shrink(struct xseg_page_cache *cache, uint64_t bytes, uint64_t max)
{
    uint64_t count = 0;

    for (; xseg_page_cache_bytes(cache) > bytes && count < max; count++) {
        struct xseg_page_cache_stack *stack = find_largest_stack(cache, true);

        release_cached_page(cache, stack, stack->count - 1);
    }
    return count;
}

void xseg_page_cache_shrink_unprepared(struct xseg_page_cache *cache, uint64_t bytes)
{
    while (xseg_page_cache_bytes(cache) - xseg_page_cache_prepared_bytes(cache) > bytes) {
        struct xseg_page_cache_stack *stack = find_largest_stack(cache, false);

        release_cached_page(cache, stack, stack->count - 1);
    }
}

bool xseg_page_cache_release_one(struct xseg_page_cache *cache, struct xseg_page_kind kind)
{
    struct xseg_page_cache_stack *stack = find_stack(cache, kind);

    if (stack == NULL || stack->count == 0)
        return false;
    release_cached_page(cache, stack, stack->count - 1);
    return true;
}

void xseg_page_cache_set_time(struct xseg_page_cache *cache, uint64_t now)
{
    const bool is_first = cache->now == 0;

    cache->now = now;
    for (size_t i = 0; is_first && i < count_stacks(cache); i++)
        for (size_t at = 0; at < xseg_page_cache_stack(cache, i)->count; at++)
            xseg_page_cache_stack(cache, i)->page[at].idle_since = now;
}

/* Release up to `max` bytes of pages of a stack that became idle at `before` or earlier.  Returns
 * the released bytes. */
static uint64_t release_old_pages(struct xseg_page_cache *cache,
                                  struct xseg_page_cache_stack *stack, uint64_t before,
                                  uint64_t max)
{
    uint64_t bytes = 0;

    for (size_t at = 0; at < stack->count && bytes < max;)
        if (stack->page[at].idle_since <= before) {
            release_cached_page(cache, stack, at);
            bytes += stack->kind.bytes;
        } else {
            at++;
        }
    return bytes;
}

uint64_t xseg_page_cache_release_old(struct xseg_page_cache *cache, uint64_t before, uint64_t max)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count_stacks(cache) && bytes < max; i++)
        bytes += release_old_pages(cache, xseg_page_cache_stack(cache, i), before, max - bytes);
    return bytes;
}

uint64_t xseg_page_cache_release_prepared(struct xseg_page_cache *cache, uint64_t before,
                                          uint64_t max)
{
    uint64_t count = 0;

    for (size_t i = 0; i < cache->prepared_kinds && count < max; i++) {
        struct xseg_page_cache_stack *stack = &cache->prepared_stack[i];
        const uint64_t max_bytes = xseg_min(max - count, stack->count) * stack->kind.bytes;

        count += release_old_pages(cache, stack, before, max_bytes) / stack->kind.bytes;
    }
    return count;
}

bool xseg_page_cache_audit(const struct xseg_page_cache *cache, struct xseg_violation *violation)
{
    uint64_t bytes = 0, prepared = 0;

    for (size_t i = 0; i < count_stacks(cache); i++) {
        const struct xseg_page_cache_stack *stack = xseg_page_cache_stack(cache, i);

        bytes += stack->count * stack->kind.bytes;
        prepared += stack->kind.prepared_for != NULL ? stack->count * stack->kind.bytes : 0;
    }
    XSEG_INVARIANT(violation, "PAGES-1", bytes == xseg_page_cache_bytes(cache),
                   "bytes is %" PRIu64 ", idle pages have %" PRIu64, xseg_page_cache_bytes(cache),
                   bytes);
    XSEG_INVARIANT(violation, "PAGES-1", prepared == xseg_page_cache_prepared_bytes(cache),
                   "prepared is %" PRIu64 ", prepared pages have %" PRIu64,
                   xseg_page_cache_prepared_bytes(cache), prepared);
    return true;
}
