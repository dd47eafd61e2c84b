/* SPDX-License-Identifier: MIT */
#include "vmm/page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"

void xseg_pages_init(struct xseg_pages *pages, struct xseg_context *context,
                     struct xseg_unreleased_list *unreleased)
{
    memset(pages, 0, sizeof(*pages));
    pages->context = context;
    pages->unreleased = unreleased;
}

static size_t count_stacks(const struct xseg_pages *pages)
{
    return pages->kinds + pages->prepared_kinds;
}

void xseg_pages_fini(struct xseg_pages *pages)
{
    for (size_t i = 0; i < count_stacks(pages); i++)
        free(xseg_pages_stack(pages, i)->page);
    free(pages->stack);
    free(pages->prepared_stack);
    free(pages->bucket);
    pages->stack = pages->prepared_stack = NULL;
    pages->bucket = NULL;
    pages->kinds = pages->prepared_kinds = pages->buckets = 0;
    pages->unused = 0;
}

/* --- Stacks. --- */

static bool is_of_kind(const struct xseg_page_stack *stack, struct xseg_page_kind kind)
{
    return stack->kind.bytes == kind.bytes && stack->kind.properties == kind.properties &&
           stack->kind.prepared_for == kind.prepared_for;
}

static uint32_t *bucket_of(const struct xseg_pages *pages, const void *filter)
{
    const uint64_t hash = (uint64_t)(uintptr_t)filter * 0x9e3779b97f4a7c15u;

    return &pages->bucket[(size_t)(hash >> 32) & (pages->buckets - 1)];
}

static struct xseg_page_stack *find_prepared(const struct xseg_pages *pages,
                                             struct xseg_page_kind kind)
{
    uint32_t at = pages->buckets == 0 ? 0 : *bucket_of(pages, kind.prepared_for);

    while (at != 0 && !is_of_kind(&pages->prepared_stack[at - 1], kind))
        at = pages->prepared_stack[at - 1].next;
    return at == 0 ? NULL : &pages->prepared_stack[at - 1];
}

static struct xseg_page_stack *find_stack(const struct xseg_pages *pages,
                                          struct xseg_page_kind kind)
{
    if (kind.prepared_for != NULL)
        return find_prepared(pages, kind);
    for (size_t i = 0; i < pages->kinds; i++)
        if (is_of_kind(&pages->stack[i], kind))
            return &pages->stack[i];
    return NULL;
}

/* Append a stack to an array; false without host memory. */
static bool append(struct xseg_page_stack **stacks, size_t *count)
{
    const bool is_full = (*count & (*count - 1)) == 0; /* capacities are powers of two */
    struct xseg_page_stack *more = *stacks;

    if (is_full)
        more = realloc(*stacks, (*count == 0 ? 1 : 2 * *count) * sizeof(*more));
    if (more == NULL)
        return false;
    *stacks = more;
    more[(*count)++] = (struct xseg_page_stack){.count = 0};
    return true;
}

/* Have as many buckets as prepared stacks; false without host memory. */
static bool has_buckets(struct xseg_pages *pages)
{
    const size_t buckets = pages->buckets == 0 ? 16 : 2 * pages->buckets;
    uint32_t *bucket;

    if (pages->prepared_kinds < pages->buckets)
        return true;
    bucket = calloc(buckets, sizeof(*bucket));
    if (bucket == NULL)
        return false;
    free(pages->bucket);
    pages->bucket = bucket;
    pages->buckets = buckets;
    for (uint32_t i = 0; i < pages->prepared_kinds; i++) {
        struct xseg_page_stack *stack = &pages->prepared_stack[i];
        uint32_t *first = bucket_of(pages, stack->kind.prepared_for);

        if (stack->count == 0)
            continue;
        stack->next = *first;
        *first = i + 1;
    }
    return true;
}

/* Get an unused stack of prepared pages; NULL without host memory.  It is in no list until a page is added. */
static struct xseg_page_stack *get_prepared(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_stack *stack;

    if (!has_buckets(pages))
        return NULL;
    if (pages->unused == 0) {
        if (!append(&pages->prepared_stack, &pages->prepared_kinds))
            return NULL;
        pages->unused = (uint32_t)pages->prepared_kinds;
    }
    stack = &pages->prepared_stack[pages->unused - 1];
    stack->kind = kind;
    return stack;
}

/* The stack of a kind, made if there is none; NULL without host memory. */
static struct xseg_page_stack *get_stack(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_stack *stack = find_stack(pages, kind);

    if (stack != NULL)
        return stack;
    if (kind.prepared_for != NULL)
        return get_prepared(pages, kind);
    if (!append(&pages->stack, &pages->kinds))
        return NULL;
    stack = &pages->stack[pages->kinds - 1];
    stack->kind = kind;
    return stack;
}

/* A prepared stack has got its first page: it leaves the list of unused ones, of which it is the first. */
static void begin_use(struct xseg_pages *pages, struct xseg_page_stack *stack)
{
    const uint32_t at = pages->unused;
    uint32_t *first = bucket_of(pages, stack->kind.prepared_for);

    XSEG_ASSERT(at != 0 && stack == &pages->prepared_stack[at - 1]);
    pages->unused = stack->next;
    stack->next = *first;
    *first = at;
}

/* A prepared stack has lost its last page. */
static void end_use(struct xseg_pages *pages, struct xseg_page_stack *stack)
{
    const uint32_t at = (uint32_t)(stack - pages->prepared_stack) + 1;
    uint32_t *link = bucket_of(pages, stack->kind.prepared_for);

    while (*link != at)
        link = &pages->prepared_stack[*link - 1].next;
    *link = stack->next;
    stack->next = pages->unused;
    pages->unused = at;
}

/* The stack of a kind with room for one page more; NULL without host memory. */
static struct xseg_page_stack *make_room(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_stack *stack = get_stack(pages, kind);

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

/* Change the sums by a page that comes or goes; of one that goes, `more` is negative. */
static void count_bytes(struct xseg_pages *pages, const struct xseg_page_stack *stack,
                        uint64_t more)
{
    atomic_fetch_add_explicit(&pages->bytes, more, memory_order_relaxed);
    if (stack->kind.prepared_for != NULL)
        atomic_fetch_add_explicit(&pages->prepared, more, memory_order_relaxed);
}

static void add(struct xseg_pages *pages, struct xseg_page_stack *stack, uint64_t handle,
                const void *owner)
{
    if (stack->count == 0 && stack->kind.prepared_for != NULL)
        begin_use(pages, stack);
    stack->page[stack->count++] = (struct xseg_page){handle, owner, pages->now};
    count_bytes(pages, stack, stack->kind.bytes);
}

/* Take a page out of its stack; the pages above it keep their order. */
static struct xseg_page take_at(struct xseg_pages *pages, struct xseg_page_stack *stack, size_t at)
{
    const struct xseg_page page = stack->page[at];

    stack->count--;
    memmove(&stack->page[at], &stack->page[at + 1], (stack->count - at) * sizeof(page));
    count_bytes(pages, stack, 0 - stack->kind.bytes);
    if (stack->count == 0 && stack->kind.prepared_for != NULL)
        end_use(pages, stack);
    return page;
}

static void release_at(struct xseg_pages *pages, struct xseg_page_stack *stack, size_t at)
{
    const struct xseg_page page = take_at(pages, stack, at);

    /* A page that the driver refuses is a leftover. */
    (void)xseg_unreleased_release(pages->unreleased, XSEG_UNRELEASED_PAGE, page.handle,
                                  stack->kind.bytes);
}

/* --- Taking and putting. --- */

static bool is_usable(const struct xseg_page *page, const struct xseg_page_filter *filter)
{
    return filter->only_of == NULL || page->owner == NULL || page->owner == filter->only_of;
}

uint64_t xseg_pages_idle(const struct xseg_pages *pages, uint64_t page_bytes,
                         const struct xseg_page_filter *filter)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, NULL};
    const struct xseg_page_kind prepared = {page_bytes, filter->properties, filter->prepared_for};
    const struct xseg_page_stack *stack = find_stack(pages, kind);
    uint64_t bytes = filter->prepared_for == NULL ? 0 : xseg_pages_of_kind(pages, prepared);

    if (stack == NULL)
        return bytes;
    if (filter->only_of == NULL)
        return bytes + stack->count * page_bytes;
    for (size_t i = 0; i < stack->count; i++)
        bytes += is_usable(&stack->page[i], filter) ? page_bytes : 0;
    return bytes;
}

uint64_t xseg_pages_of_kind(const struct xseg_pages *pages, struct xseg_page_kind kind)
{
    const struct xseg_page_stack *stack = find_stack(pages, kind);

    return stack == NULL ? 0 : stack->count * kind.bytes;
}

static bool take_prepared(struct xseg_pages *pages, uint64_t page_bytes,
                          const struct xseg_page_filter *filter, struct xseg_page *out)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, filter->prepared_for};
    struct xseg_page_stack *stack = find_stack(pages, kind);

    if (stack == NULL || stack->count == 0)
        return false;
    *out = take_at(pages, stack, stack->count - 1);
    return true;
}

bool xseg_pages_acquire(struct xseg_pages *pages, uint64_t page_bytes,
                        const struct xseg_page_filter *filter, struct xseg_page *out)
{
    const struct xseg_page_kind kind = {page_bytes, filter->properties, NULL};
    struct xseg_page_stack *stack = find_stack(pages, kind);

    if (filter->prepared_for != NULL && take_prepared(pages, page_bytes, filter, out))
        return true;
    if (stack == NULL || stack->count == 0)
        return false;
    size_t at = stack->count;
    while (at > 0 && !is_usable(&stack->page[at - 1], filter))
        at--;
    if (at == 0)
        return false;
    *out = take_at(pages, stack, at - 1);
    return true;
}

xseg_status xseg_pages_create(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_stack *stack = make_room(pages, kind);
    uint64_t handle = 0;

    if (stack == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, page record");
    const xseg_status status =
        xseg_driver_create(pages->context, kind.bytes, kind.properties, &handle);
    if (status == XSEG_OK)
        add(pages, stack, handle, NULL);
    return status;
}

xseg_status xseg_pages_return(struct xseg_pages *pages, struct xseg_page_kind kind, uint64_t handle,
                              const void *owner, bool keep)
{
    struct xseg_page_stack *stack = keep ? make_room(pages, kind) : NULL;

    if (stack != NULL) {
        add(pages, stack, handle, owner);
        return XSEG_OK;
    }
    return xseg_unreleased_release(pages->unreleased, XSEG_UNRELEASED_PAGE, handle, kind.bytes);
}

bool xseg_pages_unprepare(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_kind common = kind;

    XSEG_ASSERT(kind.prepared_for != NULL);
    common.prepared_for = NULL;
    struct xseg_page_stack *to = make_room(pages, common);
    struct xseg_page_stack *from = find_stack(pages, kind); /* may have moved */
    if (to == NULL || from == NULL || from->count == 0)
        return false;
    const struct xseg_page page = take_at(pages, from, from->count - 1);
    to->page[to->count++] = page;
    count_bytes(pages, to, kind.bytes);
    return true;
}

/* --- Releasing idle pages. --- */

/* The stack with the largest pages; NULL if there are none.  prepared: among prepared ones, too */
static struct xseg_page_stack *find_largest(const struct xseg_pages *pages, bool prepared)
{
    struct xseg_page_stack *largest = NULL;

    for (size_t i = 0; i < (prepared ? count_stacks(pages) : pages->kinds); i++) {
        struct xseg_page_stack *stack = xseg_pages_stack(pages, i);

        if (stack->count > 0 && (largest == NULL || stack->kind.bytes > largest->kind.bytes))
            largest = stack;
    }
    return largest;
}

uint64_t xseg_pages_shrink(struct xseg_pages *pages, uint64_t bytes, uint64_t max)
{
    uint64_t count = 0;

    for (; xseg_pages_bytes(pages) > bytes && count < max; count++) {
        struct xseg_page_stack *stack = find_largest(pages, true);

        release_at(pages, stack, stack->count - 1);
    }
    return count;
}

void xseg_pages_shrink_to(struct xseg_pages *pages, uint64_t bytes)
{
    while (xseg_pages_bytes(pages) - xseg_pages_prepared(pages) > bytes) {
        struct xseg_page_stack *stack = find_largest(pages, false);

        release_at(pages, stack, stack->count - 1);
    }
}

bool xseg_pages_release(struct xseg_pages *pages, struct xseg_page_kind kind)
{
    struct xseg_page_stack *stack = find_stack(pages, kind);

    if (stack == NULL || stack->count == 0)
        return false;
    release_at(pages, stack, stack->count - 1);
    return true;
}

void xseg_pages_set_time(struct xseg_pages *pages, uint64_t now)
{
    const bool is_first = pages->now == 0;

    pages->now = now;
    for (size_t i = 0; is_first && i < count_stacks(pages); i++)
        for (size_t at = 0; at < xseg_pages_stack(pages, i)->count; at++)
            xseg_pages_stack(pages, i)->page[at].since = now;
}

/* Release pages of one stack that have been idle since `before` or longer, up to `most` bytes.  Returns the bytes. */
static uint64_t release_old(struct xseg_pages *pages, struct xseg_page_stack *stack,
                            uint64_t before, uint64_t max)
{
    uint64_t bytes = 0;

    for (size_t at = 0; at < stack->count && bytes < max;)
        if (stack->page[at].since <= before) {
            release_at(pages, stack, at);
            bytes += stack->kind.bytes;
        } else {
            at++;
        }
    return bytes;
}

uint64_t xseg_pages_release_old(struct xseg_pages *pages, uint64_t before, uint64_t max)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count_stacks(pages) && bytes < max; i++)
        bytes += release_old(pages, xseg_pages_stack(pages, i), before, max - bytes);
    return bytes;
}

uint64_t xseg_pages_release_prepared(struct xseg_pages *pages, uint64_t before, uint64_t max)
{
    uint64_t count = 0;

    for (size_t i = 0; i < pages->prepared_kinds && count < max; i++) {
        struct xseg_page_stack *stack = &pages->prepared_stack[i];
        const uint64_t left = xseg_min(max - count, stack->count) * stack->kind.bytes;

        count += release_old(pages, stack, before, left) / stack->kind.bytes;
    }
    return count;
}

bool xseg_pages_audit(const struct xseg_pages *pages, struct xseg_violation *violation)
{
    uint64_t bytes = 0, prepared = 0;

    for (size_t i = 0; i < count_stacks(pages); i++) {
        const struct xseg_page_stack *stack = xseg_pages_stack(pages, i);

        bytes += stack->count * stack->kind.bytes;
        prepared += stack->kind.prepared_for != NULL ? stack->count * stack->kind.bytes : 0;
    }
    XSEG_INVARIANT(violation, "PAGES-1", bytes == xseg_pages_bytes(pages),
                   "bytes is %" PRIu64 ", idle pages have %" PRIu64, xseg_pages_bytes(pages),
                   bytes);
    XSEG_INVARIANT(violation, "PAGES-1", prepared == xseg_pages_prepared(pages),
                   "prepared is %" PRIu64 ", prepared pages have %" PRIu64,
                   xseg_pages_prepared(pages), prepared);
    return true;
}
