/* SPDX-License-Identifier: MIT */
#include "src/core/grow/unpaged.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/guarded.h"
#include "src/core/grow/oom_cause.h"
#include "vmm/context.h"

/* Whether a growth for a request makes pages. */
static bool is_paged(const struct xseg_device *device, const struct xseg_alloc_params *params)
{
    return params->expandable && xseg_device_makes_pages(device);
}

bool xseg_unpaged_is_failure(const struct xseg_device *device,
                             const struct xseg_alloc_params *params, xseg_status status,
                             struct xseg_unpaged *request)
{
    const unsigned before = request->failures;

    request->failures = xseg_unpaged_begin(device).failures;
    /* Pages whose size or properties the device does not take fail without such a call, or with a status of their own. */
    return is_paged(device, params) && (status == XSEG_ERR_UNSUPPORTED ||
                                        (status == XSEG_ERR_DRIVER && request->failures != before));
}

/* Whether the driver, and no limit, spoke of a want of memory that the counts of this process do not explain.  They are
 * asked first, since a device that is full by them needs no driver call. */
static bool is_doubtful(const struct xseg_device *device, const struct xseg_alloc_params *params,
                        xseg_status status)
{
    const uint64_t plenty = xseg_context_ample_bytes(&device->context, params->segment_bytes);
    const uint64_t physical = xseg_device_physical(device);

    return is_paged(device, params) && status == XSEG_ERR_NO_MEMORY &&
           device->refuser == XSEG_OOM_CAUSE_DRIVER && physical <= device->context.total_bytes &&
           plenty <= device->context.total_bytes - physical;
}

/* Grow again, to see whether a failure lasts.  Returns: the last status */
static xseg_status grow_again(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool is_doubted, struct xseg_alloc_result *out,
                              struct xseg_unpaged *request, bool *lasts)
{
    xseg_status status = XSEG_OK;

    *lasts = true;
    for (unsigned attempt = 1; *lasts && attempt < XSEG_UNPAGED_TRIES; attempt++) {
        status = xseg_growth_run(arena, params, out);
        *lasts = is_doubted ? status == XSEG_ERR_NO_MEMORY
                            : xseg_unpaged_is_failure(arena->device, params, status, request);
    }
    return status;
}

/* Grow with a classic segment, as if the device made no pages.  What a guarded block stands for is one of the default
 * pool. */
static xseg_status grow_classic(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_alloc_params plain = *params;

    XSEG_ASSERT(params->is_guarded == arena->is_guarded);
    if (params->is_guarded)
        arena = xseg_pool_find_arena(&device->pool, xseg_arena_stream(arena), params->is_small);
    if (arena == NULL)
        return XSEG_ERR_UNSUPPORTED;
    plain.is_guarded = plain.at_end = false;
    atomic_store_explicit(&device->is_unpaged, true, memory_order_relaxed);
    const xseg_status status = xseg_growth_run(arena, &plain, out);
    atomic_store_explicit(&device->is_unpaged, false, memory_order_relaxed);
    return status;
}

void xseg_unpaged_give_up(struct xseg_device *device, struct xseg_unpaged *request)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && xseg_device_makes_pages(device));
    (void)snprintf(request->text, sizeof(request->text), "%s", xseg_fail_detail());
    atomic_store_explicit(&device->is_unpaged, true, memory_order_relaxed);
}

xseg_status xseg_unpaged_alloc_classic(struct xseg_arena *arena,
                                       const struct xseg_alloc_params *params, xseg_status status,
                                       struct xseg_alloc_result *out, struct xseg_unpaged *request)
{
    struct xseg_device *device = arena->device;
    struct xseg_fail_saved kept;
    uint64_t free = 0;
    bool lasts = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && out->base == 0);
    const bool is_doubted =
        is_doubtful(device, params, status) &&
        xseg_context_has_ample_memory(&device->context, params->segment_bytes, &free);
    if (!is_doubted && !xseg_unpaged_is_failure(arena->device, params, status, request))
        return status;
    status = grow_again(arena, params, is_doubted, out, request, &lasts);
    if (!lasts)
        return status;
    if (is_doubted)
        xseg_fail_append(" with %" PRIu64 " MiB free", free >> 20);
    xseg_fail_save(&kept);
    const xseg_status classic = grow_classic(arena, params, out);
    xseg_fail_restore(&kept);
    if (classic == XSEG_OK || (!is_doubted && xseg_oom_cause_is_memory_pressure(classic))) {
        xseg_unpaged_give_up(device, request);
        return XSEG_OK;
    }
    return status;
}

xseg_status xseg_unpaged_fail(const struct xseg_device *device)
{
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "virtual memory management is not available on device %d",
                     device->context.ordinal);
}

void xseg_unpaged_log(struct xseg_device *device, const struct xseg_unpaged *request)
{
    struct xseg_allocator *allocator = device->allocator;

    if (request->text[0] == '\0')
        return;
    xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                  "device %d: expandable segments have been disabled, %s; new segments are classic "
                  "segments%s, set expandable_segments:False to disable expandable segments from "
                  "the start",
                  device->context.ordinal, request->text,
                  xseg_guarded_is_enabled(xseg_allocator_config(allocator))
                      ? " without unmap_on_free and guard_page"
                      : "");
}
