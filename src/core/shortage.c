/* SPDX-License-Identifier: MIT */
#include "src/core/shortage.h"

#include <stdio.h>

#include "src/base/error.h"
#include "src/core/allocator.h"
#include "src/core/trim.h"
#include "src/core/walk.h"

/* Where the bytes of a device are. */
struct account {
    uint64_t live, pending;
    uint64_t cached;               /* by pools that may shrink: in whole pages or segments */
    uint64_t partial;              /* the same, beside blocks in use */
    uint64_t held;                 /* cached by pools that somebody holds */
    struct xseg_segment_held kept; /* cached by pools that may shrink, in pages that stay */
    uint64_t longest;              /* cached block of the arena that was asked */
    uint64_t free;                 /* of the device, by the driver */
    const struct xseg_arena *asked;
};

static void add_cached(struct account *account, const struct xseg_arena *arena,
                       const struct xseg_part *part)
{
    const struct xseg_segment *segment = &part->extent->segment;
    struct xseg_segment_held kept = {0, 0};
    uint64_t whole = 0;
    uint32_t first, count;

    if (arena == account->asked)
        account->longest = xseg_max(account->longest, part->bytes);
    if (!xseg_pool_may_shrink(arena->pool)) {
        account->held += part->bytes;
        return;
    }
    if (!xseg_extent_is_expandable(part->extent)) {
        whole = xseg_part_is_whole(part) ? part->bytes : 0;
        kept.pinned = xseg_segment_is_pinned(segment, 0, 1) ? whole : 0;
    } else {
        count = xseg_segment_whole_pages(segment, part->base - segment->base,
                                         xseg_part_end(part) - segment->base, &first);
        whole = segment->granule_bytes * count;
        kept = xseg_segment_held(segment, first, count);
    }
    account->cached += whole - kept.pinned - kept.exported;
    account->kept.pinned += kept.pinned;
    account->kept.exported += kept.exported;
    account->partial += part->bytes - whole;
}

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct account *account = self;

    /* What is away takes no memory. */
    if (arena->pool->state == XSEG_POOL_PAUSED)
        return;
    xseg_arena_lock(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        XSEG_WALK(part, extent)
        {
            account->live += part.state == XSEG_BLOCK_LIVE ? part.bytes : 0;
            account->pending += part.state == XSEG_BLOCK_PENDING ? part.bytes : 0;
            if (part.state == XSEG_BLOCK_CACHED)
                add_cached(account, arena, &part);
        }
    }
    xseg_arena_unlock(arena);
}

/* One part of the account, if there is anything in it. */
static void add_part(struct xseg_text *text, const char *what, uint64_t bytes)
{
    if (bytes == 0)
        return;
    xseg_text_add(text, ", %s ", what);
    xseg_text_add_bytes(text, bytes);
}

static void add_account(struct xseg_text *text, struct xseg_device *device, struct account *account)
{
    uint64_t total = 0;

    if (xseg_driver_memory(&device->context, &account->free, &total) == XSEG_OK) {
        xseg_text_add(text, ": it has ");
        xseg_text_add_bytes(text, account->free);
        xseg_text_add(text, " free of ");
        xseg_text_add_bytes(text, total);
    }
    xseg_text_add(text, "; reserved here ");
    xseg_text_add_bytes(text, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    xseg_text_add(text, ", of which live ");
    xseg_text_add_bytes(text, account->live);
    add_part(text, "freed but waiting for other streams", account->pending);
    add_part(text, "cached", account->cached);
    add_part(text, "cached on pages that blocks in use share", account->partial);
    add_part(text, "cached in pools that are held, such as graphs'", account->held);
    add_part(text, "cached but pinned", account->kept.pinned);
    add_part(text, "cached but exported", account->kept.exported);
    add_part(text, "kept for reuse", xseg_pages_bytes(&device->pages));
    add_part(text, "that the driver did not take back", xseg_leftovers_bytes(&device->leftovers));
}

/* What could still be mapped: the driver and the limit allow it. */
static uint64_t room(const struct xseg_device *device, const struct xseg_need *need,
                     const struct account *account)
{
    const uint64_t limit = xseg_device_limit(device, need->config);
    const uint64_t physical = xseg_device_physical(device);

    return xseg_min(account->free, limit - xseg_min(limit, physical));
}

/* What the user could do about it; the first that applies. */
static const char *advice(struct xseg_arena *arena, const struct xseg_need *need,
                          const struct account *account)
{
    if (xseg_pending_captures(&arena->device->pending))
        return "end the capture first: nothing is given back while it is under way";
    if (arena->pool->is_full)
        return "raise the pool's limit_bytes, or free blocks of the pool";
    if (xseg_bounds_hard(&arena->device->bounds) < arena->device->context.total_bytes &&
        xseg_bounds_hard(&arena->device->bounds) == xseg_device_limit(arena->device, need->config))
        return "raise hard_limit_mb (or the device's limit, see xseg_limits), or free blocks";
    if (account->held >= need->bytes)
        return "release pools whose graphs are gone";
    if (account->cached + account->partial >= need->bytes && !need->expandable)
        return "expandable_segments:True would make one of the cached pieces";
    if (need->expandable && room(arena->device, need, account) + account->partial >= need->bytes &&
        need->config->page_sizes != XSEG_CONFIG_PAGES_SMALL)
        return "page_mb:small would leave less on pages that blocks in use share";
    return NULL;
}

xseg_status xseg_shortage_fail(struct xseg_arena *arena, const struct xseg_need *need,
                               xseg_status status)
{
    struct xseg_device *device = arena->device;
    struct account account = {.asked = arena};
    char reason[256], buffer[1024];
    struct xseg_text text;

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_text()->buffer);
    xseg_device_visit_arenas(device, add_arena, &account);
    xseg_text_init(&text, buffer, sizeof(buffer));
    xseg_text_add(&text, "device %d has no room for ", device->context.ordinal);
    xseg_text_add_bytes(&text, need->requested);
    add_account(&text, device, &account);
    if (account.longest != 0) {
        xseg_text_add(&text, "; the longest piece cached on this stream is ");
        xseg_text_add_bytes(&text, account.longest);
    }
    xseg_text_add(&text, "; %s", reason);
    const char *help = advice(arena, need, &account);
    if (help != NULL)
        xseg_text_add(&text, "; %s", help);
    return xseg_fail(status, "%s", buffer);
}

bool xseg_shortage_tell(struct xseg_arena *arena, const struct xseg_need *need, xseg_status status,
                        enum xseg_observers_subject subject, unsigned attempt)
{
    struct xseg_device *device = arena->device;
    struct xseg_observers *observers = &device->allocator->observers;
    uint64_t free = 0, total = 0;
    char text[1024];

    if (!xseg_observers_want(observers, subject))
        return false;
    /* What observers do writes other texts over it. */
    (void)snprintf(text, sizeof(text), "%s", xseg_fail_text()->buffer);
    (void)xseg_driver_memory(&device->context, &free, &total);
    const struct xseg_shortage shortage = {
        .struct_bytes = sizeof(shortage),
        .device = device->context.ordinal,
        .stream = xseg_arena_stream(arena)->handle,
        .pool = arena->pool->is_private && !arena->pool->is_alone ? arena->pool : NULL,
        .bytes = need->requested,
        .status = status,
        .attempt = attempt,
        .is_capturing = xseg_pending_captures(&device->pending),
        .allowed_bytes =
            xseg_min(xseg_device_limit(device, need->config), device->context.total_bytes),
        .free_bytes = free,
        .text = text,
    };
    const bool answer = xseg_observers_tell(observers, subject, &shortage);
    (void)xseg_fail(status, "%s", text);
    return answer;
}
