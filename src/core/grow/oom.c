/* SPDX-License-Identifier: MIT */
#include "src/core/grow/fallback_chain.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/growth.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/decay.h"

/* --- Cause. --- */

enum xseg_oom_cause xseg_oom_cause_of_limit(const struct xseg_device *device, uint64_t limit)
{
    if (limit < xseg_device_limit(device))
        return XSEG_OOM_CAUSE_BUDGET;
    return xseg_device_limit(device) <
                   atomic_load_explicit(&device->limits.hard, memory_order_relaxed)
               ? XSEG_OOM_CAUSE_FRACTION
               : XSEG_OOM_CAUSE_HARD_LIMIT;
}

static const char *name_limit(const struct xseg_device *device)
{
    const struct xseg_config *config = xseg_allocator_config(device->allocator);

    switch (device->oom_cause) {
    case XSEG_OOM_CAUSE_BUDGET:
        return "budget_file";
    case XSEG_OOM_CAUSE_FRACTION:
        return "per_process_memory_fraction";
    case XSEG_OOM_CAUSE_FREE_MIN:
        return "device_free_min_mb";
    case XSEG_OOM_CAUSE_REJECTION:
        return "throw_on_cudamalloc_oom";
    default:
        return atomic_load_explicit(&device->limits.hard, memory_order_relaxed) ==
                       config->hard_limit_bytes
                   ? "hard_limit_mb"
                   : "hard_bytes of xseg_limits_set()";
    }
}

/* Append the value of the limit: ", limit 120.00 MiB". */
static void print_limit(struct xseg_strbuf *text, const struct xseg_pool *pool)
{
    const struct xseg_device *device = pool->device;

    if (device->oom_cause == XSEG_OOM_CAUSE_FREE_MIN) {
        xseg_strbuf_printf(text, ", minimum ");
        xseg_strbuf_add_mib(text,
                            xseg_device_free_min(device, xseg_allocator_config(device->allocator)));
        xseg_strbuf_printf(text, " free");
        return;
    }

    if (device->oom_cause == XSEG_OOM_CAUSE_REJECTION) {
        xseg_strbuf_printf(text, ", limit %g of the device",
                           atomic_load_explicit(&device->limits.rejection, memory_order_relaxed));
        return;
    }
    xseg_strbuf_printf(text, ", limit ");
    if (device->oom_cause == XSEG_OOM_CAUSE_POOL)
        xseg_strbuf_add_mib(text, atomic_load_explicit(&pool->limit, memory_order_relaxed));
    else if (device->oom_cause == XSEG_OOM_CAUSE_BUDGET)
        xseg_strbuf_add_mib(text,
                            atomic_load_explicit(&device->budget->share, memory_order_relaxed));
    else if (device->oom_cause == XSEG_OOM_CAUSE_FRACTION)
        xseg_strbuf_add_mib(text, xseg_device_limit(device));
    else
        xseg_strbuf_add_mib(text, atomic_load_explicit(&device->limits.hard, memory_order_relaxed));
    if (device->oom_cause == XSEG_OOM_CAUSE_BUDGET)
        xseg_strbuf_printf(text, " while other processes request their shares");
    if (device->oom_cause == XSEG_OOM_CAUSE_FRACTION)
        xseg_strbuf_printf(text, " (%g of the device)",
                           atomic_load_explicit(&device->limits.fraction, memory_order_relaxed));
}

/* Append the cause: "hard_limit_mb rejects the request". */
static void print_cause(struct xseg_strbuf *text, const struct xseg_pool *pool, xseg_status status)
{
    const struct xseg_device *device = pool->device;

    if (status == XSEG_ERR_LIMIT && device->oom_cause == XSEG_OOM_CAUSE_POOL)
        xseg_strbuf_printf(text, "limit_bytes of pool %s rejects the request",
                           xseg_pool_label(pool));
    else if (status == XSEG_ERR_LIMIT)
        xseg_strbuf_printf(text, "%s rejects the request", name_limit(device));
    else if (status == XSEG_ERR_NO_ADDRESSES)
        xseg_strbuf_printf(text, "out of virtual addresses");
    else if (device->oom_cause == XSEG_OOM_CAUSE_DRIVER && pool->has_own_memory)
        xseg_strbuf_printf(text, "memory functions of pool %s returned no memory",
                           xseg_pool_label(pool));
    else
        xseg_strbuf_printf(text, "out of memory");
}

/* Append the start of an error message: "out of memory on device 0, 2.00 MiB requested". */
static void print_failure(struct xseg_strbuf *text, const struct xseg_pool *pool,
                          xseg_status status, uint64_t bytes)
{
    const struct xseg_device *device = pool->device;

    XSEG_ASSERT(xseg_oom_cause_is_memory_pressure(status) &&
                device->oom_cause <= XSEG_OOM_CAUSE_REJECTION);
    print_cause(text, pool, status);
    xseg_strbuf_printf(text, " on device %d, ", device->context.ordinal);
    xseg_strbuf_add_mib(text, bytes);
    xseg_strbuf_printf(text, " requested");
    if (status == XSEG_ERR_LIMIT)
        print_limit(text, pool);
}

xseg_status xseg_oom_cause_fail(struct xseg_pool *pool, enum xseg_oom_cause cause, uint64_t more)
{
    struct xseg_device *device = pool->device;
    const xseg_status status = cause == XSEG_OOM_CAUSE_DEVICE ? XSEG_ERR_NO_MEMORY : XSEG_ERR_LIMIT;
    char buffer[512];
    struct xseg_strbuf text;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && cause != XSEG_OOM_CAUSE_DRIVER);
    device->oom_cause = cause;
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    print_failure(&text, pool, status, more);
    xseg_strbuf_printf(&text, "; ");
    if (cause == XSEG_OOM_CAUSE_POOL) {
        xseg_strbuf_add_mib(&text, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
        xseg_strbuf_printf(&text, " used by the pool");
    } else if (cause == XSEG_OOM_CAUSE_FREE_MIN) {
        xseg_strbuf_add_mib(&text, device->free_bytes);
        xseg_strbuf_printf(&text, " of ");
        xseg_strbuf_add_mib(&text, device->context.total_bytes);
        xseg_strbuf_printf(&text, " free");
    } else {
        xseg_strbuf_add_mib(&text, xseg_device_physical(device));
        xseg_strbuf_printf(&text, " of ");
        xseg_strbuf_add_mib(&text, device->context.total_bytes);
        xseg_strbuf_printf(&text, " used by this allocator");
    }
    if (cause != XSEG_OOM_CAUSE_POOL && device->unused_quota != 0) {
        xseg_strbuf_printf(&text, ", ");
        xseg_strbuf_add_mib(&text, device->unused_quota);
        xseg_strbuf_printf(&text, " reserved by quotas of ranges");
    }
    return xseg_fail(status, "%s", buffer);
}

/* --- Account. --- */

/*
 * The memory of a device in bytes, by state, when a request has failed:
 *
 *     total    = free + used_by_others + physical
 *     physical = allocated + pending + cached + fragmented + retained + pinned + exported + claimed + page_cache + unreleased
 *
 * No memory is mapped or unmapped while the device memory lock is held, so the sums of mapped memory are consistent.  The
 * blocks of each arena are read under the arena's lock.
 */
struct account {
    /* `free` is returned by the driver, or computed if the query fails. */
    uint64_t total, free, used_by_others;
    uint64_t physical;
    uint64_t allocated, pending;
    uint64_t cached;     /* by pools whose memory can be released: whole pages or segments */
    uint64_t fragmented; /* by the same pools: in pages or segments with blocks in use */
    uint64_t retained;   /* cached by pools that users retain */
    /* Cached by pools whose memory can be released, but in pages that cannot be released. */
    uint64_t pinned, exported;
    uint64_t claimed;    /* by other threads */
    uint64_t page_cache; /* unmapped pages */
    uint64_t unreleased; /* the driver call that releases the memory has failed */

    /* Parts of the members above that would be releasable as whole pages or segments under a condition. */
    uint64_t retained_whole; /* retained: if no user retained the pools */
    uint64_t pending_whole;  /* pending: if the other streams had completed */
    uint64_t small_whole;    /* fragmented: if all pages were small */
    uint64_t classic_whole;  /* fragmented, of classic segments: if they were expandable */
    uint64_t classic_small;  /* the same if all pages were small as well */

    uint64_t longest_block; /* the longest cached block of the arena */
    uint64_t missing;       /* minimum number of bytes that the request must map or allocate */

    const struct xseg_arena *arena; /* of the request */
    uint64_t large_page_bytes;      /* page size of an expandable segment of large blocks */
};

/* Get the bytes of whole pages, or of the whole segment, in a block that is not in use. */
static struct xseg_idle_bytes whole_bytes_of(const struct xseg_block_view *view)
{
    return xseg_idle_whole_bytes(&view->extent->segment, view->base, view->bytes);
}

/* Count the bytes of whole small pages in a cached block, without those of whole pages. */
static uint64_t count_small_whole(const struct xseg_block_view *view,
                                  const struct xseg_idle_bytes *whole)
{
    const struct xseg_segment *segment = &view->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const uint64_t counted = whole->releasable + whole->retained.pinned + whole->retained.exported;
    const uint64_t start = xseg_round_up(view->base - segment->base, granule);
    const uint64_t end = xseg_round_down(xseg_block_view_end(view) - segment->base, granule);

    return start < end && end - start > counted ? end - start - counted : 0;
}

/* Get a lower bound of the bytes of whole pages that a block of a classic segment would have in an expandable segment.  The
 * position of the block in its pages is unknown. */
static uint64_t count_classic_whole(const struct xseg_block_view *view, uint64_t page)
{
    XSEG_ASSERT(page > 0);
    return view->bytes / page > 1 ? (view->bytes / page - 1) * page : 0;
}

static void account_cached(struct account *account, const struct xseg_arena *arena,
                           const struct xseg_block_view *view)
{
    const struct xseg_idle_bytes whole = whole_bytes_of(view);

    XSEG_ASSERT(view->state == XSEG_BLOCK_CACHED);

    if (arena == account->arena)
        account->longest_block = xseg_max(account->longest_block, view->bytes);
    if (!xseg_pool_may_shrink(arena->pool)) {
        account->retained += view->bytes;
        account->retained_whole += whole.releasable;
        return;
    }
    account->cached += whole.releasable;
    account->pinned += whole.retained.pinned;
    account->exported += whole.retained.exported;
    account->fragmented +=
        view->bytes - whole.releasable - whole.retained.pinned - whole.retained.exported;
    if (xseg_extent_is_expandable(view->extent))
        account->small_whole += count_small_whole(view, &whole);
    else if (whole.releasable + whole.retained.pinned == 0 && !arena->pool->has_own_memory) {
        account->classic_small += count_classic_whole(view, XSEG_SIZE_SMALL_SEGMENT);
        account->classic_whole += count_classic_whole(
            view, arena->is_small ? XSEG_SIZE_SMALL_SEGMENT : account->large_page_bytes);
    }
}

static void account_block(void *self, const struct xseg_block_view *view)
{
    struct account *account = self;
    const struct xseg_arena *arena = view->extent->arena;

    /* Evicted blocks have no memory. */
    if (arena->pool->state == XSEG_POOL_PAUSED)
        return;
    account->allocated += view->state == XSEG_BLOCK_ALLOCATED ? view->bytes : 0;
    account->pending += view->state == XSEG_BLOCK_PENDING_FREE ? view->bytes : 0;
    if (view->state == XSEG_BLOCK_PENDING_FREE && xseg_pool_may_shrink(arena->pool))
        account->pending_whole += whole_bytes_of(view).releasable;
    if (view->state == XSEG_BLOCK_CACHED)
        account_cached(account, arena, view);
}

/* Count the bytes that the request must map, in small pages in the cheapest candidate range, or must allocate. */
static uint64_t count_missing(struct xseg_arena *arena, const struct xseg_alloc_params *params)
{
    const uint64_t granule = arena->device->context.granularity;
    uint64_t missing;

    XSEG_ASSERT(params->span > 0);
    if (!params->expandable)
        return params->segment_bytes;
    if (params->is_guarded || params->is_single)
        return xseg_round_up(params->bytes, XSEG_SIZE_SMALL_SEGMENT);
    xseg_biased_lock_lock(&arena->lock);
    const bool found = xseg_candidate_find_cheapest(arena, params->span, &missing) != NULL;
    xseg_biased_lock_unlock(&arena->lock);
    return found ? missing : xseg_round_up(params->span, granule);
}

static void collect_account(struct account *account, struct xseg_arena *arena,
                            const struct xseg_alloc_params *params)
{
    struct xseg_device *device = arena->device;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *account = (struct account){
        .arena = arena,
        .large_page_bytes =
            params->config->page_sizes == XSEG_CONFIG_PAGES_SMALL
                ? XSEG_SIZE_SMALL_SEGMENT
                : xseg_round_up(params->config->large_segment_bytes, XSEG_SIZE_SMALL_SEGMENT),
    };
    xseg_device_walk(device, account_block, account);
    account->missing = count_missing(arena, params);
    account->physical = xseg_device_physical(device);
    account->page_cache = xseg_page_cache_bytes(&device->page_cache);
    account->unreleased = xseg_unreleased_bytes(&device->unreleased);
    XSEG_ASSERT(account->physical == reserved + account->page_cache + account->unreleased);
    account->claimed =
        reserved - xseg_min(reserved, account->allocated + account->pending + account->cached +
                                          account->fragmented + account->retained +
                                          account->pinned + account->exported);
    if (xseg_device_query_memory(device, &account->free, &account->total) != XSEG_OK) {
        account->total = device->context.total_bytes;
        account->free = account->total - xseg_min(account->total, account->physical);
    }
    XSEG_ASSERT(account->free <= account->total);
    account->used_by_others =
        account->total - xseg_min(account->total, account->free + account->physical);
}

/* Append a part of the account, unless it is 0.  separator: text before the part, then ", " */
static void print_part(struct xseg_strbuf *text, const char **separator, uint64_t bytes,
                       const char *state)
{
    if (bytes == 0)
        return;
    xseg_strbuf_printf(text, "%s", *separator);
    xseg_strbuf_add_mib(text, bytes);
    xseg_strbuf_printf(text, " %s", state);
    *separator = ", ";
}

/* Append the account: "; 100.00 MiB needed from the driver, ...". */
static void print_account(struct xseg_strbuf *text, const struct account *account)
{
    const struct xseg_device *device = account->arena->device;
    const char *main_separator = ", ", *part_separator = ": ", *note_separator = "; ";

    xseg_strbuf_printf(text, "; ");
    xseg_strbuf_add_mib(text, account->missing);
    xseg_strbuf_printf(text, " needed from the %s, ",
                       account->arena->pool->has_own_memory ? "memory functions" : "driver");
    xseg_strbuf_add_mib(text, account->free);
    xseg_strbuf_printf(text, " of ");
    xseg_strbuf_add_mib(text, account->total);
    xseg_strbuf_printf(text, " free");
    print_part(text, &main_separator, account->used_by_others, "used by others");
    xseg_strbuf_printf(text, ", ");
    xseg_strbuf_add_mib(text, account->physical);
    xseg_strbuf_printf(text, " used by this allocator");
    print_part(text, &part_separator, account->allocated, "allocated");
    print_part(text, &part_separator, account->pending, "pending free");
    print_part(text, &part_separator, account->cached, "cached");
    print_part(text, &part_separator, account->fragmented, "fragmented");
    print_part(text, &part_separator, account->retained, "cached by private pools");
    print_part(text, &part_separator, account->pinned, "cached and pinned");
    print_part(text, &part_separator, account->exported, "cached and exported");
    print_part(text, &part_separator, account->claimed, "claimed by other threads");
    print_part(text, &part_separator, account->page_cache, "in the page cache");
    print_part(text, &part_separator, account->unreleased, "unreleased");
    print_part(text, &note_separator, account->longest_block,
               "in the largest cached block on this stream");
    print_part(text, &note_separator, device->unused_quota, "reserved by quotas of ranges");
}

/* --- Advice. --- */

/* A request that failed, and the account, from which advice is computed. */
struct denied_request {
    struct xseg_pool *pool;
    const struct xseg_alloc_params *params;
    const struct account *account;
    uint64_t idle; /* bytes that the device would release before the request fails */
};

/* Physical memory if `freed` bytes were released and the request was served. */
static uint64_t physical_after(const struct denied_request *request, uint64_t freed)
{
    const uint64_t physical = request->account->physical;

    return physical - xseg_min(physical, freed) + request->account->missing;
}

/* Reserved bytes of the pool if the request was served. */
static uint64_t pool_bytes_after(const struct denied_request *request)
{
    return atomic_load_explicit(&request->pool->reserved, memory_order_relaxed) +
           request->account->missing;
}

/* Whether the driver has memory for the request after `freed` bytes were released. */
static bool has_driver_memory(const struct denied_request *request, uint64_t freed)
{
    return request->account->free + freed >= request->account->missing;
}

/* Free memory of the device if `freed` bytes were released and the request was served. */
static uint64_t free_after(const struct denied_request *request, uint64_t freed)
{
    const uint64_t free = request->account->free + freed;

    return free - xseg_min(free, request->account->missing);
}

static bool keeps_min_free_memory(const struct denied_request *request, uint64_t freed)
{
    return free_after(request, freed) >=
           xseg_device_free_min(request->pool->device, request->params->config);
}

static bool is_within_limits(const struct denied_request *request, uint64_t freed)
{
    return physical_after(request, freed) <= xseg_device_limit(request->pool->device) &&
           keeps_min_free_memory(request, freed) &&
           pool_bytes_after(request) <=
               atomic_load_explicit(&request->pool->limit, memory_order_relaxed);
}

/* Whether the request would be served if `freed` bytes were released. */
static bool would_suffice(const struct denied_request *request, uint64_t freed)
{
    return has_driver_memory(request, freed) && is_within_limits(request, freed);
}

/* The smallest fraction, with four decimals, that allows this number of bytes. */
static double min_fraction_for(const struct xseg_device *device, uint64_t bytes)
{
    const double total = (double)device->context.total_bytes;
    XSEG_ASSERT(total > 0);
    uint64_t parts = (uint64_t)((double)bytes / total * 10000);

    while ((uint64_t)((double)parts / 10000 * total) < bytes)
        parts++;
    return (double)parts / 10000;
}

static uint64_t round_up_to_mib(uint64_t bytes)
{
    return bytes / XSEG_MIB + (bytes % XSEG_MIB != 0);
}

/* Append the limits that the request would exceed, each with a value that allows the request.  A limit that suffices after idle
 * memory is released is omitted.  separator: text before the first change */
static void print_limit_changes(struct xseg_strbuf *text, const struct denied_request *request,
                                const char *separator)
{
    const char *raise = "raise ";
    const struct xseg_device *device = request->pool->device;
    const struct xseg_config *config = request->params->config;
    const uint64_t physical = physical_after(request, request->idle);
    const uint64_t hard = atomic_load_explicit(&device->limits.hard, memory_order_relaxed);

    XSEG_ASSERT(!is_within_limits(request, request->idle));
    if (pool_bytes_after(request) >
        atomic_load_explicit(&request->pool->limit, memory_order_relaxed)) {
        xseg_strbuf_printf(text, "%s%slimit_bytes of pool %s to %" PRIu64 " MiB or more", separator,
                           raise, xseg_pool_label(request->pool),
                           round_up_to_mib(pool_bytes_after(request)));
        separator = ", and ";
        raise = "";
    }
    if (physical > hard) {
        xseg_strbuf_printf(text,
                           hard == config->hard_limit_bytes
                               ? "%s%shard_limit_mb to %" PRIu64 " or more"
                               : "%s%shard_bytes of xseg_limits_set() to %" PRIu64 " MiB or more",
                           separator, raise, round_up_to_mib(physical));
        separator = ", and ";
        raise = "";
    }
    const double fraction = atomic_load_explicit(&device->limits.fraction, memory_order_relaxed);
    if (fraction < 1.0 && physical > (uint64_t)(fraction * (double)device->context.total_bytes)) {
        xseg_strbuf_printf(text, "%s%sper_process_memory_fraction to %.4f or more", separator,
                           raise, min_fraction_for(device, physical));
        separator = ", and ";
    }
    if (!keeps_min_free_memory(request, request->idle)) {
        const uint64_t mib = free_after(request, request->idle) / XSEG_MIB;

        xseg_strbuf_printf(text, "%slower device_free_min_mb to %" PRIu64 "%s", separator, mib,
                           mib == 0 ? "" : " or less");
    }
}

/* Find a setting with which fragmented memory could have been released, and the request served; NULL if there is none. */
static const char *find_page_setting(const struct denied_request *request)
{
    const struct account *account = request->account;
    const struct xseg_config *config = request->params->config;
    const bool has_full_pages = config->page_sizes != XSEG_CONFIG_PAGES_SMALL;

    if (request->pool->has_own_memory)
        return NULL;
    if (!config->expandable_segments && xseg_device_makes_pages(request->pool->device)) {
        if (would_suffice(request, request->idle + account->classic_whole))
            return "set expandable_segments:True to avoid fragmentation";
        if (has_full_pages && would_suffice(request, request->idle + account->classic_small))
            return "set expandable_segments:True,page_size:small to avoid fragmentation";
    }
    if (request->params->expandable && has_full_pages &&
        would_suffice(request, request->idle + account->small_whole))
        return "set page_size:small to avoid fragmentation";
    return NULL;
}

/* Append each change that suffices by itself: "; release ..., or raise ...". */
static void print_changes(struct xseg_strbuf *text, const struct denied_request *request,
                          bool is_capturing)
{
    const struct account *account = request->account;
    const char *page_setting = is_capturing ? NULL : find_page_setting(request);
    bool is_first = true;

    if (!is_capturing && account->retained_whole != 0 &&
        would_suffice(request, request->idle + account->retained_whole)) {
        xseg_strbuf_printf(text, "; release unused private pools");
        is_first = false;
    }
    if (page_setting != NULL) {
        xseg_strbuf_printf(text, "%s%s", is_first ? "; " : ", or ", page_setting);
        is_first = false;
    }
    if (!is_within_limits(request, request->idle) && has_driver_memory(request, request->idle))
        print_limit_changes(text, request, is_first ? "; " : ", or ");
}

/* Append changes each of which alone would have served the request, such as "; raise hard_limit_mb to 220 or more". */
static void print_advice(struct xseg_strbuf *text, const struct xseg_arena *arena,
                         const struct xseg_alloc_params *params, const struct account *account,
                         bool rejected)
{
    const bool is_capturing = xseg_pending_captures(arena->device->pending);
    const struct denied_request request = {
        arena->pool, params, account,
        is_capturing || rejected ? 0 : account->cached + account->page_cache};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && account->arena == arena);
    if (rejected) {
        if (would_suffice(&request, account->cached + account->page_cache))
            xseg_strbuf_printf(text,
                               "; set throw_on_cudamalloc_oom:False to disable the rejection");
        return;
    }
    /* No limit denies the request, and the device has memory: no setting caused the failure. */
    if (arena->pool->has_own_memory ? arena->device->oom_cause == XSEG_OOM_CAUSE_DRIVER
                                    : would_suffice(&request, request.idle))
        return;
    if (is_capturing && would_suffice(&request, account->cached + account->pending_whole)) {
        xseg_strbuf_printf(text, "; end the capture first, no memory is released during a capture");
        return;
    }
    print_changes(text, &request, is_capturing);
}

/* --- Error message and observers. --- */

/* Append the driver call that failed, if no limit denied the request. */
static void print_driver_call(struct xseg_strbuf *text, const struct xseg_arena *arena,
                              xseg_status status)
{
    const char *call =
        atomic_load_explicit(&arena->device->context.last_oom_call, memory_order_relaxed);

    if (status == XSEG_ERR_NO_ADDRESSES) {
        xseg_strbuf_printf(text, "; cuMemAddressReserve failed, ");
        xseg_strbuf_add_mib(text,
                            atomic_load_explicit(&arena->device->addresses, memory_order_relaxed));
        xseg_strbuf_printf(text, " of virtual addresses reserved by this allocator");
    }
    if (status == XSEG_ERR_NO_MEMORY && arena->device->oom_cause == XSEG_OOM_CAUSE_DRIVER &&
        call != NULL && !arena->pool->has_own_memory)
        xseg_strbuf_printf(text, "; %s failed, CUDA_ERROR_OUT_OF_MEMORY", call);
}

xseg_status xseg_oom_fail(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          xseg_status status, bool rejected)
{
    struct account account;
    char buffer[1024];
    struct xseg_strbuf text;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_oom_cause_is_memory_pressure(status));
    collect_account(&account, arena, params);
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    print_failure(&text, arena->pool, status, params->requested);
    print_account(&text, &account);
    print_driver_call(&text, arena, status);
    if (status != XSEG_ERR_NO_ADDRESSES)
        print_advice(&text, arena, params, &account, rejected);
    if (!rejected && xseg_recorder_is_enabled(arena)) {
        xseg_biased_lock_lock(&arena->lock);
        xseg_recorder_oom(arena, params->requested, account.free);
        xseg_biased_lock_unlock(&arena->lock);
    }
    return xseg_fail(status, "%s", buffer);
}

bool xseg_oom_notify(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, enum xseg_observer_event subject, unsigned attempt)
{
    struct xseg_device *device = arena->device;
    struct xseg_observers *observers = &device->allocator->observers;
    uint64_t free = 0, total = 0;
    struct xseg_fail_saved saved;
    char buffer[XSEG_FAIL_BYTES];
    struct xseg_strbuf message;

    XSEG_ASSERT(xseg_oom_cause_is_memory_pressure(status) && subject <= XSEG_OBSERVER_REJECTED);
    if (!xseg_observers_are_registered(observers, subject))
        return false;
    /* Observers may call functions of this library that fail and replace the error message. */
    xseg_fail_save(&saved);
    xseg_strbuf_init(&message, buffer, sizeof(buffer));
    xseg_fail_print(&message);
    (void)xseg_device_query_memory(device, &free, &total);
    const struct xseg_oom_info info = {
        .struct_size = sizeof(info),
        .device = device->context.ordinal,
        .stream = xseg_arena_stream(arena)->handle,
        .pool = xseg_pool_visible(arena->pool),
        .bytes = params->requested,
        .status = status,
        .attempt = attempt,
        .is_capturing = xseg_pending_captures(device->pending),
        .allowed_bytes = xseg_min(xseg_device_limit(device), device->context.total_bytes),
        .free_bytes = free,
        .message = buffer,
        .block_bytes = params->bytes,
        .segment_bytes = params->segment_bytes,
    };
    const bool retries = xseg_observers_notify(observers, subject, &info);
    xseg_fail_restore(&saved);
    return retries;
}
