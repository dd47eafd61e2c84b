/* SPDX-License-Identifier: MIT */
#include "src/core/grow/asking.h"

#include <time.h>

#include "src/base/clock.h"
#include "src/core/arena/notes.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/grow/refusal.h"
#include "src/core/pending/pending.h"

#define MILLISECOND UINT64_C(1000000)

/* Whether others could lift what refused the request. */
static bool is_liftable(const struct xseg_device *device)
{
    return device->refuser == XSEG_REFUSER_DRIVER || device->refuser == XSEG_REFUSER_DEVICE ||
           device->refuser == XSEG_REFUSER_BUDGET;
}

/* Decide by what the device has free whether a growth may succeed.  Where a limit refuses, a growth costs nothing. */
static void look(struct xseg_asking *asking)
{
    uint64_t free = 0, total = 0;

    asking->grows =
        asking->by_limit || xseg_device_memory(asking->device, &free, &total) != XSEG_OK;
    if (asking->grows)
        return;
    asking->tried = xseg_min(asking->tried, free);
    asking->grows = free > asking->tried && (free >= asking->bytes || free == asking->seen);
    asking->seen = free;
    if (asking->grows)
        asking->tried = free;
}

static void note(struct xseg_arena *arena, uint64_t bytes)
{
    if (!xseg_notes_are_kept(arena))
        return;
    xseg_arena_lock(arena);
    xseg_notes_ask(arena, bytes);
    xseg_arena_unlock(arena);
}

bool xseg_asking_begin(struct xseg_asking *asking, struct xseg_arena *arena, uint64_t bytes,
                       const struct xseg_config *config) XSEG_UNCHECKED
{
    struct xseg_device *device = arena->device;
    const uint64_t now = xseg_clock_system(), time = config->budget_wait_ms * MILLISECOND;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    *asking = (struct xseg_asking){.bytes = bytes, .early = now + time / 2, .until = now + time};
    if (!xseg_budget_is_open(device) || !is_liftable(device) ||
        bytes > device->context.total_bytes || xseg_pending_captures(device->pending))
        return false;
    asking->device = device;
    asking->by_limit = device->refuser != XSEG_REFUSER_DRIVER;
    xseg_lock_give(&device->growth_lock);
    const bool has_others = xseg_budget_want(device, bytes);
    xseg_lock_take(&device->growth_lock);
    /* The growth that failed may have found less than a look would now. */
    asking->tried = bytes - xseg_min(bytes, 1);
    if (has_others)
        note(arena, bytes);
    return has_others;
}

bool xseg_asking_wait(struct xseg_asking *asking) XSEG_UNCHECKED
{
    const struct timespec moment = {.tv_nsec = MILLISECOND};
    struct xseg_device *device = asking->device;
    const uint64_t now = xseg_clock_system();

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (now >= asking->until || xseg_pending_captures(device->pending))
        return false;
    if (now >= asking->early &&
        atomic_load_explicit(&device->budget->others_idle, memory_order_relaxed) == 0)
        return false;
    /* Other threads' growths may be refused as soon as the lock is given. */
    if (asking->grows)
        asking->by_limit = device->refuser != XSEG_REFUSER_DRIVER;
    xseg_lock_give(&device->growth_lock);
    if (asking->grows)
        xseg_budget_grow_no_more(device, asking->bytes);
    (void)nanosleep(&moment, NULL);
    xseg_lock_take(&device->growth_lock);
    look(asking);
    if (!asking->grows)
        return true;
    xseg_lock_give(&device->growth_lock);
    xseg_budget_grow(device, asking->bytes);
    xseg_lock_take(&device->growth_lock);
    return true;
}

void xseg_asking_end(struct xseg_asking *asking, bool served) XSEG_UNCHECKED
{
    struct xseg_device *device = asking->device;

    if (device == NULL)
        return;
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_lock_give(&device->growth_lock);
    xseg_budget_want_no_more(device, asking->bytes);
    if (asking->grows)
        xseg_budget_grow_no_more(device, asking->bytes);
    xseg_lock_take(&device->growth_lock);
    if (served)
        atomic_fetch_add_explicit(&device->budget->served, 1, memory_order_relaxed);
}
