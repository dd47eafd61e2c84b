/* SPDX-License-Identifier: MIT */
#include "src/core/grow/oom_advice.h"

#include <inttypes.h>

#include "src/core/device/allocator.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"

/* A refused request, and the limits in its way. */
struct matter {
    struct xseg_pool *pool;
    const struct xseg_alloc_params *params;
    const struct xseg_oom_account *account;
    uint64_t idle; /* bytes that the device gives back to the driver before it passes a limit */
};

/* Bytes that would be taken if the request was served, after `freed` bytes were given back. */
static uint64_t taken_then(const struct matter *matter, uint64_t freed)
{
    const uint64_t taken = matter->account->taken;

    return taken - xseg_min(taken, freed) + matter->account->missing;
}

/* Bytes that the pool would have reserved if the request was served. */
static uint64_t pool_then(const struct matter *matter)
{
    return atomic_load_explicit(&matter->pool->reserved, memory_order_relaxed) +
           matter->account->missing;
}

/* Whether the driver has room for the request after `freed` bytes were given back. */
static bool has_room(const struct matter *matter, uint64_t freed)
{
    return matter->account->free + freed >= matter->account->missing;
}

static bool is_within_limits(const struct matter *matter, uint64_t freed)
{
    return taken_then(matter, freed) <= xseg_device_limit(matter->pool->device) &&
           pool_then(matter) <= xseg_pool_limit(matter->pool);
}

/* Whether the request would be served if `freed` more bytes were given back. */
static bool would_do(const struct matter *matter, uint64_t freed)
{
    return has_room(matter, freed) && is_within_limits(matter, freed);
}

/* --- Limits. --- */

/* The smallest fraction, to four digits, that allows so many bytes. */
static double fraction_for(const struct xseg_device *device, uint64_t bytes)
{
    const double total = (double)device->context.total_bytes;
    XSEG_ASSERT(total > 0);
    uint64_t parts = (uint64_t)((double)bytes / total * 10000);

    while ((uint64_t)((double)parts / 10000 * total) < bytes)
        parts++;
    return (double)parts / 10000;
}

static uint64_t mib_for(uint64_t bytes)
{
    return bytes / XSEG_MIB + (bytes % XSEG_MIB != 0);
}

/* Name the limits that the request would pass, each with the value that would let it through.  Idle memory does not
 * count as taken: a limit that is kept by giving idle memory back need not rise.  `before`: written before the first one. */
static void add_limits(struct xseg_strbuf *text, const struct matter *matter, const char *before)
{
    const struct xseg_device *device = matter->pool->device;
    const struct xseg_config *config = matter->params->config;
    const uint64_t then = taken_then(matter, matter->idle);
    const uint64_t hard = xseg_device_limits_hard(&device->limits);

    XSEG_ASSERT(!is_within_limits(matter, matter->idle));
    if (pool_then(matter) > xseg_pool_limit(matter->pool)) {
        xseg_strbuf_printf(text, "%slimit_bytes of pool %s to %" PRIu64 " MiB or more", before,
                           xseg_pool_label(matter->pool), mib_for(pool_then(matter)));
        before = ", and ";
    }
    if (then > hard) {
        xseg_strbuf_printf(text,
                           hard == config->hard_limit_bytes
                               ? "%shard_limit_mb to %" PRIu64 " or more"
                               : "%shard_bytes of xseg_limits_set() to %" PRIu64 " MiB or more",
                           before, mib_for(then));
        before = ", and ";
    }
    const double fraction = xseg_device_limits_fraction(&device->limits);
    if (fraction < 1.0 && then > (uint64_t)(fraction * (double)device->context.total_bytes))
        xseg_strbuf_printf(text, "%sper_process_memory_fraction to %.4f or more", before,
                           fraction_for(device, then));
}

/* --- The whole advice. --- */

/* A configuration under which memory cached next to blocks in use would have been released; NULL if there is none. */
static const char *about_pages(const struct matter *matter)
{
    const struct xseg_oom_account *account = matter->account;
    const struct xseg_config *config = matter->params->config;
    const bool has_full_pages = config->page_sizes != XSEG_CONFIG_PAGES_SMALL;

    if (xseg_pool_has_own_memory(matter->pool))
        return NULL;
    if (!config->expandable_segments && xseg_device_makes_pages(matter->pool->device)) {
        if (would_do(matter, matter->idle + account->split_whole))
            return "set expandable_segments:True to avoid fragmentation";
        if (has_full_pages && would_do(matter, matter->idle + account->split_small))
            return "set expandable_segments:True,page_size:small to avoid fragmentation";
    }
    if (matter->params->expandable && has_full_pages &&
        would_do(matter, matter->idle + account->small_whole))
        return "set page_size:small to avoid fragmentation";
    return NULL;
}

/* Add each change that would be enough by itself: "; release ..., or raise ...". */
static void add_changes(struct xseg_strbuf *text, const struct matter *matter, bool captures)
{
    const struct xseg_oom_account *account = matter->account;
    const char *pages = captures ? NULL : about_pages(matter);
    bool is_first = true;

    if (!captures && account->held_whole != 0 &&
        would_do(matter, matter->idle + account->held_whole)) {
        xseg_strbuf_printf(text, "; release unused private pools");
        is_first = false;
    }
    if (pages != NULL) {
        xseg_strbuf_printf(text, "%s%s", is_first ? "; " : ", or ", pages);
        is_first = false;
    }
    if (!is_within_limits(matter, matter->idle) && has_room(matter, matter->idle))
        add_limits(text, matter, is_first ? "; raise " : ", or raise ");
}

void xseg_oom_advice_add(struct xseg_strbuf *text, const struct xseg_arena *arena,
                         const struct xseg_alloc_params *params,
                         const struct xseg_oom_account *account, bool rejected)
{
    const bool captures = xseg_pending_captures(arena->device->pending);
    const struct matter matter = {arena->pool, params, account,
                                  captures || rejected ? 0 : account->cached + account->reusable};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && account->asked == arena);
    if (rejected) {
        if (would_do(&matter, account->cached + account->reusable))
            xseg_strbuf_printf(text,
                               "; set throw_on_cudamalloc_oom:False to disable the rejection");
        return;
    }
    /* No limit is in the way, and the device has room: no setting of the user refused the request. */
    if (xseg_pool_has_own_memory(arena->pool) ? arena->device->refuser == XSEG_OOM_CAUSE_DRIVER
                                              : would_do(&matter, matter.idle))
        return;
    if (captures && would_do(&matter, account->cached + account->pending_whole)) {
        xseg_strbuf_printf(text, "; end the capture first, no memory is released during a capture");
        return;
    }
    add_changes(text, &matter, captures);
}
