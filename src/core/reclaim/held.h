/* SPDX-License-Identifier: MIT */
/*
 * Whether a lock is held, for assertions: a precondition "GROWTH is held" can be checked where it stands.
 *
 * A mutex does not say who holds it, so these functions are false only if no thread does.
 */
#ifndef XSEG_CORE_HELD_H
#define XSEG_CORE_HELD_H

#include "src/core/device/device.h"

static inline bool xseg_held_lock(const struct xseg_lock *lock) XSEG_UNCHECKED
{
    pthread_mutex_t *os = (pthread_mutex_t *)(uintptr_t)&lock->os;

    if (pthread_mutex_trylock(os) != 0)
        return true;
    (void)pthread_mutex_unlock(os);
    return false;
}

/* Whether GROWTH of a device is held. */
static inline bool xseg_held_growth(const struct xseg_device *device)
{
    return xseg_held_lock(&device->growth_lock);
}

/* Whether the lock of an arena is held. */
static inline bool xseg_held_arena(const struct xseg_arena *arena)
{
    return !xseg_biased_lock_is_free((struct xseg_biased_lock *)(uintptr_t)&arena->lock);
}

#endif
