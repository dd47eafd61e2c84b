/* SPDX-License-Identifier: MIT */
#include "src/core/grow/budget_wait.h"

#include <time.h>

#include "src/base/clock.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/grow/oom.h"
#include "src/core/pending/pending.h"

#define MILLISECOND UINT64_C(1000000)

/* Whether memory of other processes can remove the cause of the failure. */
static bool can_others_help(const struct xseg_device *device)
{
    return device->oom_cause == XSEG_OOM_CAUSE_DRIVER ||
           device->oom_cause == XSEG_OOM_CAUSE_DEVICE || device->oom_cause == XSEG_OOM_CAUSE_BUDGET;
}

/* Decide by the free memory of the device whether a growth may succeed.  A growth that a limit denies makes no driver call. */
static void query_free_memory(struct xseg_budget_wait *budget_wait)
{
    uint64_t free = 0, total = 0;

    budget_wait->grows = budget_wait->by_limit ||
                         xseg_device_query_memory(budget_wait->device, &free, &total) != XSEG_OK;
    if (budget_wait->grows)
        return;
    budget_wait->tried = xseg_min(budget_wait->tried, free);
    budget_wait->grows =
        free > budget_wait->tried && (free >= budget_wait->bytes || free == budget_wait->seen);
    budget_wait->seen = free;
    if (budget_wait->grows)
        budget_wait->tried = free;
}

static void record_demand(struct xseg_arena *arena, uint64_t bytes)
{
    if (!xseg_recorder_is_enabled(arena))
        return;
    xseg_arena_lock(arena);
    xseg_recorder_budget_request(arena, bytes);
    xseg_arena_unlock(arena);
}

bool xseg_budget_wait_begin(struct xseg_budget_wait *budget_wait, struct xseg_arena *arena,
                            uint64_t bytes, const struct xseg_config *config) XSEG_UNCHECKED
{
    struct xseg_device *device = arena->device;
    const uint64_t now = xseg_clock_system(), time = config->budget_wait_ms * MILLISECOND;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *budget_wait =
        (struct xseg_budget_wait){.bytes = bytes, .early = now + time / 2, .until = now + time};
    if (!xseg_budget_is_open(device) || !can_others_help(device) ||
        bytes > device->context.total_bytes || xseg_pending_captures(device->pending))
        return false;
    budget_wait->device = device;
    budget_wait->by_limit = device->oom_cause != XSEG_OOM_CAUSE_DRIVER;
    xseg_mutex_unlock(&device->memory_lock);
    const bool has_others = xseg_budget_request(device, bytes);
    xseg_mutex_lock(&device->memory_lock);
    /* The growth that failed may have found less free memory than a query would now. */
    budget_wait->tried = bytes - xseg_min(bytes, 1);
    if (has_others)
        record_demand(arena, bytes);
    return has_others;
}

bool xseg_budget_wait_retry(struct xseg_budget_wait *budget_wait) XSEG_UNCHECKED
{
    const struct timespec moment = {.tv_nsec = MILLISECOND};
    struct xseg_device *device = budget_wait->device;
    const uint64_t now = xseg_clock_system();

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (now >= budget_wait->until || xseg_pending_captures(device->pending))
        return false;
    if (now >= budget_wait->early &&
        atomic_load_explicit(&device->budget->others_idle, memory_order_relaxed) == 0)
        return false;
    /* A growth of another thread can change the cause as soon as the lock is released. */
    if (budget_wait->grows)
        budget_wait->by_limit = device->oom_cause != XSEG_OOM_CAUSE_DRIVER;
    xseg_mutex_unlock(&device->memory_lock);
    if (budget_wait->grows)
        xseg_budget_grow_end(device, budget_wait->bytes);
    (void)nanosleep(&moment, NULL);
    xseg_mutex_lock(&device->memory_lock);
    query_free_memory(budget_wait);
    if (!budget_wait->grows)
        return true;
    xseg_mutex_unlock(&device->memory_lock);
    xseg_budget_grow(device, budget_wait->bytes);
    xseg_mutex_lock(&device->memory_lock);
    return true;
}

void xseg_budget_wait_end(struct xseg_budget_wait *budget_wait, bool served) XSEG_UNCHECKED
{
    struct xseg_device *device = budget_wait->device;

    if (device == NULL)
        return;
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_unlock(&device->memory_lock);
    xseg_budget_request_end(device, budget_wait->bytes);
    if (budget_wait->grows)
        xseg_budget_grow_end(device, budget_wait->bytes);
    xseg_mutex_lock(&device->memory_lock);
    if (served)
        atomic_fetch_add_explicit(&device->budget->served, 1, memory_order_relaxed);
}
