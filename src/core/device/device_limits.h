/* SPDX-License-Identifier: MIT */
/*
 * Bounds: limits on the memory of a device.
 *
 *     0 ...... keep ................ soft ............. hard ........ the device's memory
 *              idle memory stays     idle memory goes   no request
 *              up to here            above              gets past it
 *
 * The limits are those of the configuration, until xseg_limits_set() sets the limits of one device; a key
 * that xseg_config_set() names sets its limit for all devices again.
 *
 * Invariants:
 *   BOUNDS-1  keep <= soft <= hard, as far as there are such limits.
 *   BOUNDS-2  0 <= fraction <= 1, and so is rejection.
 *
 * Locking: written under DRIVER; read without a lock.
 */
#ifndef XSEG_CORE_DEVICE_LIMITS_H
#define XSEG_CORE_DEVICE_LIMITS_H

#include <stdatomic.h>

#include "src/core/config/config.h"
#include "xseg/reclaim.h"

struct xseg_device;

/* Limits of a device in bytes; UINT64_MAX: no such limit. */
struct xseg_device_limits {
    atomic_uint_fast64_t hard, soft, keep;
    _Atomic double fraction;  /* of the device's memory; 1: no such limit */
    _Atomic double rejection; /* as xseg_limits.rejection_fraction */
};

static inline uint64_t xseg_device_limits_hard(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->hard, memory_order_relaxed);
}

static inline uint64_t xseg_device_limits_soft(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->soft, memory_order_relaxed);
}

static inline uint64_t xseg_device_limits_keep(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->keep, memory_order_relaxed);
}

static inline double xseg_device_limits_fraction(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->fraction, memory_order_relaxed);
}

/* The fraction of a device's memory past which throw_on_cudamalloc_oom refuses a growth at once. */
static inline double xseg_device_limits_rejection(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->rejection, memory_order_relaxed);
}

/* Set the limits of a device that opens from the configuration. */
void xseg_device_limits_init(struct xseg_device_limits *limits, const struct xseg_config *config);

/* Read the limits into the public structure. */
void xseg_device_limits_read(const struct xseg_device_limits *limits, struct xseg_limits *out);

/*
 * Set the limits; the fraction only if set->has_fraction, that of rejections only if set->has_rejection_fraction.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT if the limits contradict each other or the fraction is out of bounds, and
 *          nothing has changed
 */
xseg_status xseg_device_limits_set(struct xseg_device_limits *limits,
                                   const struct xseg_limits *set);

/*
 * Check the limits that result where the named keys of a configuration replace those of the device;
 * with `store` set them.
 *
 * Returns: XSEG_OK; XSEG_ERR_CONFIG if a key contradicts what xseg_limits_set() has set for the device
 */
xseg_status xseg_device_limits_follow(struct xseg_device *device, const struct xseg_config *config,
                                      uint64_t named, bool store);

#endif
