/* SPDX-License-Identifier: MIT */
#include "src/core/grow/refusal.h"

#include "src/base/error.h"
#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"

enum xseg_refuser xseg_refusal_of_limit(const struct xseg_device *device, uint64_t limit)
{
    if (limit < xseg_device_limit(device))
        return XSEG_REFUSER_BUDGET;
    return xseg_device_limit(device) < xseg_bounds_hard(&device->bounds) ? XSEG_REFUSER_FRACTION
                                                                         : XSEG_REFUSER_HARD_LIMIT;
}

/* Write the limit that refused: "hard_limit_mb (device 0, 120.00 MiB) leaves no room for " */
static void add_refuser(struct xseg_text *text, const struct xseg_pool *pool)
{
    const struct xseg_device *device = pool->device;
    const struct xseg_config *config = xseg_allocator_config(device->allocator);
    const uint64_t hard = xseg_bounds_hard(&device->bounds);

    XSEG_ASSERT(device->refuser <= XSEG_REFUSER_REJECTION);
    switch (device->refuser) {
    case XSEG_REFUSER_POOL:
        xseg_text_add(text, "limit_bytes of pool %s (on device %d, ", xseg_pool_label(pool),
                      device->context.ordinal);
        xseg_text_add_mib(text, xseg_pool_limit(pool));
        break;
    case XSEG_REFUSER_BUDGET:
        xseg_text_add(text, "budget_file (the share of device %d, ", device->context.ordinal);
        xseg_text_add_mib(text, atomic_load_explicit(&device->budget->share, memory_order_relaxed));
        xseg_text_add(text, "; other processes wait for theirs");
        break;
    case XSEG_REFUSER_FRACTION:
        xseg_text_add(text, "per_process_memory_fraction (%g of device %d, ",
                      xseg_bounds_fraction(&device->bounds), device->context.ordinal);
        xseg_text_add_mib(text, xseg_device_limit(device));
        break;
    case XSEG_REFUSER_REJECTION:
        xseg_text_add(text, "throw_on_cudamalloc_oom (%g of device %d",
                      xseg_bounds_rejection(&device->bounds), device->context.ordinal);
        break;
    case XSEG_REFUSER_HARD_LIMIT:
        xseg_text_add(text,
                      hard == config->hard_limit_bytes
                          ? "hard_limit_mb (device %d, "
                          : "the limit that xseg_limits_set() has set (device %d, ",
                      device->context.ordinal);
        xseg_text_add_mib(text, hard);
        break;
    default:
        return;
    }
    xseg_text_add(text, ") leaves no room for ");
}

void xseg_refusal_add(struct xseg_text *text, const struct xseg_pool *pool, xseg_status status,
                      uint64_t bytes)
{
    const struct xseg_device *device = pool->device;
    const int ordinal = device->context.ordinal;

    XSEG_ASSERT(xseg_refusal_is_shortage(status));
    if (status == XSEG_ERR_NO_ADDRESSES)
        xseg_text_add(text, "device %d has no addresses left for ", ordinal);
    else if (status == XSEG_ERR_LIMIT)
        add_refuser(text, pool);
    else if (device->refuser == XSEG_REFUSER_DRIVER && xseg_pool_has_own_memory(pool))
        xseg_text_add(text, "the own function of pool %s (on device %d) has no room for ",
                      xseg_pool_label(pool), ordinal);
    else
        xseg_text_add(text, "device %d has no room for ", ordinal);
    xseg_text_add_mib(text, bytes);
}

xseg_status xseg_refusal_fail(struct xseg_pool *pool, enum xseg_refuser refuser, uint64_t more)
{
    struct xseg_device *device = pool->device;
    const xseg_status status = refuser == XSEG_REFUSER_DEVICE ? XSEG_ERR_NO_MEMORY : XSEG_ERR_LIMIT;
    char buffer[512];
    struct xseg_text text;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && refuser != XSEG_REFUSER_DRIVER);
    device->refuser = refuser;
    xseg_text_init(&text, buffer, sizeof(buffer));
    xseg_refusal_add(&text, pool, status, more);
    xseg_text_add(&text, " more: ");
    if (refuser == XSEG_REFUSER_POOL) {
        xseg_text_add_mib(&text, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
        xseg_text_add(&text, " are the pool's");
    } else {
        xseg_text_add_mib(&text, xseg_device_physical(device));
        xseg_text_add(&text, " of ");
        xseg_text_add_mib(&text, device->context.total_bytes);
        xseg_text_add(&text, " are taken");
    }
    return xseg_fail(status, "%s", buffer);
}
