/* SPDX-License-Identifier: MIT */
#include "src/core/grow/oom_cause.h"

#include "src/base/error.h"
#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"

enum xseg_oom_cause xseg_oom_cause_of_limit(const struct xseg_device *device, uint64_t limit)
{
    if (limit < xseg_device_limit(device))
        return XSEG_OOM_CAUSE_BUDGET;
    return xseg_device_limit(device) < xseg_device_limits_hard(&device->limits)
               ? XSEG_OOM_CAUSE_FRACTION
               : XSEG_OOM_CAUSE_HARD_LIMIT;
}

static const char *limit_name(const struct xseg_device *device)
{
    const struct xseg_config *config = xseg_allocator_config(device->allocator);

    switch (device->refuser) {
    case XSEG_OOM_CAUSE_BUDGET:
        return "budget_file";
    case XSEG_OOM_CAUSE_FRACTION:
        return "per_process_memory_fraction";
    case XSEG_OOM_CAUSE_REJECTION:
        return "throw_on_cudamalloc_oom";
    default:
        return xseg_device_limits_hard(&device->limits) == config->hard_limit_bytes
                   ? "hard_limit_mb"
                   : "hard_bytes of xseg_limits_set()";
    }
}

/* Add the value of the limit: ", limit 120.00 MiB" */
static void add_limit(struct xseg_strbuf *text, const struct xseg_pool *pool)
{
    const struct xseg_device *device = pool->device;

    if (device->refuser == XSEG_OOM_CAUSE_REJECTION) {
        xseg_strbuf_printf(text, ", limit %g of the device",
                           xseg_device_limits_rejection(&device->limits));
        return;
    }
    xseg_strbuf_printf(text, ", limit ");
    if (device->refuser == XSEG_OOM_CAUSE_POOL)
        xseg_strbuf_add_mib(text, xseg_pool_limit(pool));
    else if (device->refuser == XSEG_OOM_CAUSE_BUDGET)
        xseg_strbuf_add_mib(text,
                            atomic_load_explicit(&device->budget->share, memory_order_relaxed));
    else if (device->refuser == XSEG_OOM_CAUSE_FRACTION)
        xseg_strbuf_add_mib(text, xseg_device_limit(device));
    else
        xseg_strbuf_add_mib(text, xseg_device_limits_hard(&device->limits));
    if (device->refuser == XSEG_OOM_CAUSE_BUDGET)
        xseg_strbuf_printf(text, " while other processes request their shares");
    if (device->refuser == XSEG_OOM_CAUSE_FRACTION)
        xseg_strbuf_printf(text, " (%g of the device)",
                           xseg_device_limits_fraction(&device->limits));
}

/* Add the limit that rejects the request, or what is exhausted: "hard_limit_mb rejects the request" */
static void add_refuser(struct xseg_strbuf *text, const struct xseg_pool *pool, xseg_status status)
{
    const struct xseg_device *device = pool->device;

    if (status == XSEG_ERR_LIMIT && device->refuser == XSEG_OOM_CAUSE_POOL)
        xseg_strbuf_printf(text, "limit_bytes of pool %s rejects the request",
                           xseg_pool_label(pool));
    else if (status == XSEG_ERR_LIMIT)
        xseg_strbuf_printf(text, "%s rejects the request", limit_name(device));
    else if (status == XSEG_ERR_NO_ADDRESSES)
        xseg_strbuf_printf(text, "out of virtual addresses");
    else if (device->refuser == XSEG_OOM_CAUSE_DRIVER && xseg_pool_has_own_memory(pool))
        xseg_strbuf_printf(text, "memory functions of pool %s returned no memory",
                           xseg_pool_label(pool));
    else
        xseg_strbuf_printf(text, "out of memory");
}

void xseg_oom_cause_add(struct xseg_strbuf *text, const struct xseg_pool *pool, xseg_status status,
                        uint64_t bytes)
{
    const struct xseg_device *device = pool->device;

    XSEG_ASSERT(xseg_oom_cause_is_memory_pressure(status) &&
                device->refuser <= XSEG_OOM_CAUSE_REJECTION);
    add_refuser(text, pool, status);
    xseg_strbuf_printf(text, " on device %d, ", device->context.ordinal);
    xseg_strbuf_add_mib(text, bytes);
    xseg_strbuf_printf(text, " requested");
    if (status == XSEG_ERR_LIMIT)
        add_limit(text, pool);
}

xseg_status xseg_oom_cause_fail(struct xseg_pool *pool, enum xseg_oom_cause refuser, uint64_t more)
{
    struct xseg_device *device = pool->device;
    const xseg_status status =
        refuser == XSEG_OOM_CAUSE_DEVICE ? XSEG_ERR_NO_MEMORY : XSEG_ERR_LIMIT;
    char buffer[512];
    struct xseg_strbuf text;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                refuser != XSEG_OOM_CAUSE_DRIVER);
    device->refuser = refuser;
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_oom_cause_add(&text, pool, status, more);
    xseg_strbuf_printf(&text, "; ");
    if (refuser == XSEG_OOM_CAUSE_POOL) {
        xseg_strbuf_add_mib(&text, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
        xseg_strbuf_printf(&text, " used by the pool");
    } else {
        xseg_strbuf_add_mib(&text, xseg_device_physical(device));
        xseg_strbuf_printf(&text, " of ");
        xseg_strbuf_add_mib(&text, device->context.total_bytes);
        xseg_strbuf_printf(&text, " used by this allocator");
    }
    if (refuser != XSEG_OOM_CAUSE_POOL && device->promised != 0) {
        xseg_strbuf_printf(&text, ", ");
        xseg_strbuf_add_mib(&text, device->promised);
        xseg_strbuf_printf(&text, " reserved by quotas of ranges");
    }
    return xseg_fail(status, "%s", buffer);
}
