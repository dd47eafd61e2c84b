/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/release.h"

#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/idle.h"
#include "src/core/reclaim/trim_steps.h"

/* Free the addresses of a retired pool that has no memory mapped.  A trim does that later if a capture is active. */
static void free_addresses(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct xseg_fail_saved kept;

    /* The release may follow a failure of its caller. */
    xseg_fail_save(&kept);
    xseg_mutex_lock(&device->growth_lock);
    if (!xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context))
        xseg_pool_visit_arenas(pool, xseg_trim_finish_unmapped_of, NULL);
    xseg_mutex_unlock(&device->growth_lock);
    xseg_fail_restore(&kept);
}

bool xseg_release_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    bool is_last = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (!xseg_pool_release_last(pool, &is_last))
        return false;
    if (!is_last)
        return true;
    /* The holders' reference keeps the pool until here. */
    if (atomic_load(&pool->references) > 1 && atomic_load(&pool->reserved) == 0)
        free_addresses(pool);
    xseg_release_reference(pool);
    xseg_pools_notify(device);
    return true;
}

void xseg_release_reference(struct xseg_pool *pool)
{
    if (!xseg_pool_drop_reference(pool))
        return;
    xseg_idle_end_pool(pool);
    xseg_pools_destroy(pool);
}
