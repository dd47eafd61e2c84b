/* SPDX-License-Identifier: MIT */
/*
 * The allocator: one driver, its devices, the configuration in force, and the way from an address
 * to its block.
 *
 * Devices are opened when they are first named.  A configuration is never changed once others can
 * see it: xseg_configure() makes a new one, and the old ones stay until the allocator closes, so
 * that the hit path reads it without a lock.  One that says what an old one said is that one again.
 *
 * Locking: open_lock (DRIVER) guards opening devices and changing the configuration; lookup_lock
 * (TABLE) insertion into the look-up, and shortcuts.
 */
#ifndef XSEG_CORE_ALLOCATOR_H
#define XSEG_CORE_ALLOCATOR_H

#include "src/base/clock.h"
#include "src/base/fork.h"
#include "src/base/log.h"
#include "src/core/background.h"
#include "src/core/device.h"
#include "src/core/observers.h"
#include "src/core/shortcuts.h"

struct xseg_part;

/* A configuration, and the one that was made before. */
struct xseg_config_version {
    struct xseg_config config;
    struct xseg_config_version *older;
};

struct xseg_allocator {
    struct xseg_driver *driver;
    struct xseg_log log;
    struct xseg_clock clock;
    struct xseg_fork fork;
    struct xseg_lock open_lock;   /* DRIVER */
    struct xseg_lock lookup_lock; /* TABLE */
    struct xseg_lookup lookup;
    struct xseg_shortcuts shortcuts;
    /* Whether the configuration has plain frees.  Wiped in a forked child, whose frees are refused. */
    atomic_bool *frees_plainly;
    bool frees_are_wiped;
    _Atomic(struct xseg_config_version *) config;
    struct xseg_config_version
        *versions; /* all that were made, the latest first; guarded by DRIVER */
    const char *config_source;
    struct xseg_background background;
    struct xseg_observers observers;
    atomic_uint pools_made; /* without a name: each is called by its number */
    int device_count;
    _Atomic(struct xseg_device *) *device; /* [device_count], NULL until opened */
};

/* As xseg_open() of the public header. */
xseg_status xseg_allocator_open(const char *config, const char *driver, const struct xseg_log *log,
                                const struct xseg_clock *clock, struct xseg_allocator **out);

/*
 * Whether a call may use an allocator.
 *
 * name: of the function that the user called
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for NULL; XSEG_ERR_FORKED in a forked child
 */
xseg_status xseg_allocator_check(const struct xseg_allocator *allocator, const char *name);

/* What a call says in a forked child. */
xseg_status xseg_allocator_fail_forked(void);

/* As xseg_close() of the public header. */
xseg_status xseg_allocator_close(struct xseg_allocator *allocator);

/* As xseg_configure() of the public header. */
xseg_status xseg_allocator_configure(struct xseg_allocator *allocator, const char *config);

/* Have a version be what counts from here on; it is summed up. */
void xseg_allocator_put_in_force(struct xseg_allocator *allocator,
                                 struct xseg_config_version *version);

/* Say once which keys of a string are to change something and do nothing here. */
void xseg_allocator_log_idle_keys(struct xseg_allocator *allocator, uint64_t named);

/*
 * Set the bounds of an open device; as xseg_limits() of the public header for one.
 *
 * set: NULL changes nothing
 */
xseg_status xseg_allocator_limits(struct xseg_allocator *allocator, struct xseg_device *device,
                                  const struct xseg_limits *set, struct xseg_limits *was);

/* As xseg_observe() and xseg_unobserve() of the public header. */
xseg_status xseg_allocator_observe(struct xseg_allocator *allocator,
                                   const struct xseg_observer *observer, uint64_t *id);
xseg_status xseg_allocator_unobserve(struct xseg_allocator *allocator, uint64_t id);

static inline const struct xseg_config *xseg_allocator_config(struct xseg_allocator *allocator)
{
    return &atomic_load_explicit(&allocator->config, memory_order_acquire)->config;
}

/*
 * A device by its ordinal, opened if need be.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (no such device), or what opening it said
 */
xseg_status xseg_allocator_device(struct xseg_allocator *allocator, int ordinal,
                                  struct xseg_device **out);

/* A device that is open already, or NULL. */
static inline struct xseg_device *xseg_allocator_open_device(struct xseg_allocator *allocator,
                                                             int ordinal)
{
    return atomic_load_explicit(&allocator->device[ordinal], memory_order_acquire);
}

/* Whether a pool is one of this allocator's. */
static inline bool xseg_allocator_owns(const struct xseg_allocator *allocator,
                                       const struct xseg_pool *pool)
{
    return pool->body->device->fork == &allocator->fork;
}

/* Free, as xseg_free() of the public header. */
xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer);

/* Free behind events, as xseg_free_after() of the public header. */
xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count);

/* Note a use, as xseg_use() of the public header. */
xseg_status xseg_allocator_use(struct xseg_allocator *allocator, const void *pointer,
                               xseg_stream stream);

/* What is to be told of a block; all but struct_bytes.  Its arena is locked. */
void xseg_allocator_tell(const struct xseg_part *part, uint64_t now, struct xseg_block_info *info);

/* Describe the block at any address, as xseg_block() of the public header. */
xseg_status xseg_allocator_describe(struct xseg_allocator *allocator, const void *pointer,
                                    struct xseg_block_info *out);

#endif
