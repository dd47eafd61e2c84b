/* SPDX-License-Identifier: MIT */
#include "src/core/device/device_limits.h"

#include <inttypes.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/config_table.h"
#include "src/core/device/device.h"

/* The first contradiction between limits, as text; NULL if there is none. */
static const char *contradiction(const struct xseg_limits *set)
{
    if (set->soft_bytes != UINT64_MAX && set->soft_bytes > set->hard_bytes)
        return "soft_bytes exceeds hard_bytes";
    if (set->keep_bytes > set->soft_bytes)
        return "keep_bytes exceeds soft_bytes";
    return set->keep_bytes > set->hard_bytes ? "keep_bytes exceeds hard_bytes" : NULL;
}

static void store_all(struct xseg_device_limits *limits, const struct xseg_limits *set)
{
    XSEG_ASSERT(contradiction(set) == NULL && !(set->fraction < 0) && set->fraction <= 1);
    atomic_store_explicit(&limits->hard, set->hard_bytes, memory_order_relaxed);
    atomic_store_explicit(&limits->soft, set->soft_bytes, memory_order_relaxed);
    atomic_store_explicit(&limits->keep, set->keep_bytes, memory_order_relaxed);
    if (set->has_fraction)
        atomic_store_explicit(&limits->fraction, set->fraction, memory_order_relaxed);
    if (set->has_rejection_fraction)
        atomic_store_explicit(&limits->rejection, set->rejection_fraction, memory_order_relaxed);
}

void xseg_device_limits_init(struct xseg_device_limits *limits, const struct xseg_config *config)
{
    const struct xseg_limits set = {
        .struct_size = sizeof(set),
        .hard_bytes = config->hard_limit_bytes,
        .soft_bytes = config->soft_limit_bytes,
        .keep_bytes = config->keep_bytes,
        .fraction = config->memory_fraction,
        .has_fraction = true,
        .rejection_fraction = config->memory_fraction,
        .has_rejection_fraction = true,
    };

    store_all(limits, &set);
}

void xseg_device_limits_read(const struct xseg_device_limits *limits, struct xseg_limits *out)
{
    *out = (struct xseg_limits){
        .struct_size = sizeof(*out),
        .hard_bytes = xseg_device_limits_hard(limits),
        .soft_bytes = xseg_device_limits_soft(limits),
        .keep_bytes = xseg_device_limits_keep(limits),
        .fraction = xseg_device_limits_fraction(limits),
        .has_fraction = true,
        .rejection_fraction = xseg_device_limits_rejection(limits),
        .has_rejection_fraction = true,
    };
}

xseg_status xseg_device_limits_set(struct xseg_device_limits *limits, const struct xseg_limits *set)
{
    const char *wrong = contradiction(set);

    if (wrong != NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "%s, keep_bytes is %" PRIu64 ", soft_bytes %" PRIu64
                         ", hard_bytes %" PRIu64 "; use keep_bytes <= soft_bytes <= hard_bytes",
                         wrong, set->keep_bytes, set->soft_bytes, set->hard_bytes);
    /* A fraction that is NaN fails both comparisons. */
    if (set->has_fraction && !(set->fraction >= 0 && set->fraction <= 1))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "fraction is out of range, %g; use a number from 0 to 1", set->fraction);
    if (set->has_rejection_fraction &&
        !(set->rejection_fraction >= 0 && set->rejection_fraction <= 1))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "rejection_fraction is out of range, %g; use a number from 0 to 1",
                         set->rejection_fraction);
    store_all(limits, set);
    return XSEG_OK;
}

xseg_status xseg_device_limits_follow(struct xseg_device *device, const struct xseg_config *config,
                                      uint64_t named, bool store)
{
    struct xseg_limits set;

    XSEG_ASSERT((named >> (XSEG_CONFIG_KEYS + XSEG_CONFIG_IGNORED)) == 0);
    xseg_device_limits_read(&device->limits, &set);
    if ((named >> XSEG_CONFIG_HARD_LIMIT & 1) != 0)
        set.hard_bytes = config->hard_limit_bytes;
    if ((named >> XSEG_CONFIG_SOFT_LIMIT & 1) != 0)
        set.soft_bytes = config->soft_limit_bytes;
    if ((named >> XSEG_CONFIG_KEEP & 1) != 0)
        set.keep_bytes = config->keep_bytes;
    set.has_fraction = (named >> XSEG_CONFIG_MEMORY_FRACTION & 1) != 0;
    set.has_rejection_fraction = set.has_fraction;
    if (set.has_fraction)
        set.fraction = set.rejection_fraction = config->memory_fraction;
    const char *wrong = contradiction(&set);
    if (wrong != NULL)
        return xseg_fail(
            XSEG_ERR_CONFIG,
            "values contradict the limits that xseg_limits_set() has set for device %d, "
            "%s; set hard_limit_mb, soft_limit_mb and keep_mb together",
            device->context.ordinal, wrong);
    if (store)
        store_all(&device->limits, &set);
    return XSEG_OK;
}
