/* SPDX-License-Identifier: MIT */
/*
 * The allocator: one driver, its devices, and the configuration in effect.
 *
 * A device is opened by the first call that names it.  A configuration is immutable after its
 * publication: xseg_config_set() publishes a new version.  All versions are kept until the
 * allocator closes, so that the fast path reads the current version with one load and without a
 * lock.  A version that equals an older one is not stored again: the older one is published.
 *
 * State of modules above this one (background thread, registrations, budget, ...) is allocated
 * together with the allocator (allocator_open.c) and referenced by pointers to incomplete types.
 *
 * Locking: open_lock (DRIVER) guards the opening of devices and changes of the configuration; the
 * lock of the page map (TABLE) guards changes of the stream lookup cache.
 */
#ifndef XSEG_CORE_ALLOCATOR_H
#define XSEG_CORE_ALLOCATOR_H

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "src/core/device/device.h"
#include "src/core/stats/observers.h"
#include "src/core/stream/streams.h"

struct xseg_background;
struct xseg_oom_snapshots;
struct xseg_publisher;
struct xseg_registrations;
struct xseg_budget;

/* A configuration, and the previous version. */
struct xseg_config_version {
    struct xseg_config config;
    struct xseg_config_version *older;
};

struct xseg_allocator {
    struct xseg_driver *driver;
    struct xseg_log log;
    struct xseg_clock clock;
    struct xseg_fork_guard fork;
    struct xseg_mutex open_lock; /* DRIVER */
    struct xseg_page_map page_map;
    struct xseg_stream_cache stream_cache;
    /* Whether the configuration allows fast-path frees.  The kernel wipes this in a forked child,
     * whose frees are rejected. */
    atomic_bool *fast_frees_enabled;
    bool fast_frees_are_wiped;
    _Atomic(struct xseg_config_version *) config;
    struct xseg_config_version *versions; /* all versions, newest first; guarded by DRIVER */
    const char *config_source;
    struct xseg_background *background;       /* instance.h */
    struct xseg_registrations *registrations; /* register.h */
    struct xseg_oom_snapshots *oom_snapshots; /* snapshot.h */
    struct xseg_budget *budget;               /* budget.h */
    struct xseg_publisher *publisher;         /* memory_stats.h */
    struct xseg_observers observers;
    struct xseg_history_store history;
    atomic_uint pools_created; /* number of pools that the application created */
    int device_count;
    _Atomic(struct xseg_device *) *device; /* [device_count], NULL until opened */
};

/*
 * Whether a call may use an allocator.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for NULL; XSEG_ERR_FORKED in a forked child
 */
xseg_status xseg_allocator_check(const struct xseg_allocator *allocator);

/* Fail with the error of calls in a forked child. */
xseg_status xseg_allocator_fail_forked(void);

/* Fail because an address is not in a segment of the allocator. */
xseg_status xseg_allocator_fail_foreign(uint64_t address);

static inline const struct xseg_config *xseg_allocator_config(struct xseg_allocator *allocator)
{
    return &atomic_load_explicit(&allocator->config, memory_order_acquire)->config;
}

/* An open device, or NULL. */
static inline struct xseg_device *xseg_allocator_open_device(struct xseg_allocator *allocator,
                                                             int ordinal)
{
    XSEG_ASSERT(ordinal >= 0 && ordinal < allocator->device_count);
    return atomic_load_explicit(&allocator->device[ordinal], memory_order_acquire);
}

/* Deliver the queued events to observers with `on_trace`.  No lock is held. */
static inline void xseg_allocator_deliver(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->traced, 0))
        xseg_observers_deliver(&allocator->observers);
}

/* Whether a pool belongs to the allocator. */
static inline bool xseg_allocator_owns(const struct xseg_allocator *allocator,
                                       const struct xseg_pool *pool)
{
    XSEG_ASSERT(pool != NULL);
    return pool->device->fork == &allocator->fork;
}

#endif
