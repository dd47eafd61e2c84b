/* SPDX-License-Identifier: MIT */
/*
 * Registrations of memory with network adapters and communication libraries, and dma-buf
 * descriptors.
 *
 * A registration is an address range of one segment with two callbacks.  The callbacks follow the
 * memory in the range, as xseg/register.h describes:
 *
 *     range        |<------------------------------------------->|
 *     segment  [ mapped ........... ][ unmapped ][ mapped ................. ]
 *     runs         |<-- run ------->|            |<-- run ------>|
 *
 * A run is memory for which `enter` was called and `leave` was not.  When memory of a run is about
 * to be unmapped, `leave` is called for the run, and `enter` for the memory before and after, which
 * remains mapped.
 *
 * The first registration adds one internal observer (observers.h).  The observer receives each map
 * and unmap notification (mapping.h), finds the registrations that overlap it and calls their
 * callbacks.  The table of an allocator has its registrations in an interval tree by address and in
 * a hash table by ID.  So a notification is O(log n) in the number of registrations, plus those
 * that overlap.
 *
 * Several threads can run callbacks of one registration at the same time, for different runs.  A
 * run is busy while a callback runs for it.  A thread that is about to unmap memory of a busy run
 * does not wait for the callback: it keeps the memory mapped (xseg_notify_keep()).  Therefore no
 * callback waits for another one, and callbacks cannot deadlock.
 *
 * A registration has one reference for its owner and one for each thread that delivers a
 * notification to it; the last release frees it.  An unregister waits until only the owner's
 * reference remains, so no callback runs after the unregister has returned.  A registration counts
 * in `registered` of its extent, which keeps the addresses of an expandable segment reserved.  With
 * `pin`, each run retains its pages.
 *
 * A dma-buf descriptor with XSEG_DMABUF_PIN retains its pages, too.  Its pin is in a table indexed
 * by the descriptor.  If the program closes the descriptor by close(), the stale pin is released
 * when another pinned descriptor gets the same value.
 *
 * Invariants:
 *   REGISTRATION-1  memory of a run that is not busy is mapped.
 *   REGISTRATION-2  runs of a registration do not overlap, and are inside its range.
 *
 * Locking: the lock of the table (rank REGISTRATIONS) guards all data of this module.  It is
 * released while a callback runs, and while a run is pinned or unpinned, because the device memory
 * lock has the lower rank.
 */
#ifndef XSEG_CORE_REGISTER_H
#define XSEG_CORE_REGISTER_H

#include "src/base/intervals.h"
#include "src/core/device/device.h"
#include "xseg/register.h"

struct xseg_registration {
    struct xseg_interval range; /* in the tree of the table; `order` is the ID */
    struct xseg_registrar registrar;
    struct xseg_extent *extent;
    struct xseg_device *device;
    struct xseg_pool *pool;     /* xseg_pool_visible() */
    struct xseg_intervals runs; /* struct xseg_registration_run */
    uint64_t bytes;             /* registered, in all runs */
    unsigned references;
    bool is_starting; /* `enter` has not been called for all initial runs */
    bool is_ending;   /* an unregister has begun */
    /* The classic segment is released, and so are the addresses.  Reset if the segment is kept. */
    bool is_released;
    uint64_t generation;            /* of that segment, valid once is_released has been set */
    struct xseg_registration *next; /* in its hash bucket */
};

/* All registrations of an allocator. */
struct xseg_registrations {
    struct xseg_allocator *allocator;
    struct xseg_mutex lock; /* rank REGISTRATIONS */
    pthread_cond_t changed; /* a thread has released its reference to an ending registration */
    struct xseg_intervals ranges;     /* all registrations, by address */
    struct xseg_registration **by_id; /* [buckets], a power of two */
    size_t count, buckets;
    uint64_t last_id;
    atomic_uint_fast64_t changes; /* number of registrations that began or ended */
    atomic_bool has_observer;     /* the observer was added; may be read without the lock */
    struct xseg_dmabuf_pin **pin; /* [pin_capacity], by descriptor; NULL: not pinned */
    size_t pin_capacity;
};

void xseg_registrations_init(struct xseg_registrations *table, struct xseg_allocator *allocator);

/* The table is empty. */
void xseg_registrations_fini(struct xseg_registrations *table);

/* --- Implementations of the public functions; no lock is held. --- */

xseg_status xseg_registrations_add(struct xseg_registrations *table, uint64_t address,
                                   uint64_t bytes, const struct xseg_registrar *registrar,
                                   uint64_t *id);
xseg_status xseg_registrations_remove(struct xseg_registrations *table, uint64_t id);
xseg_status xseg_dmabuf_acquire(struct xseg_registrations *table, uint64_t address, uint64_t bytes,
                                unsigned flags, int *fd, uint64_t *offset);
xseg_status xseg_dmabuf_release(struct xseg_registrations *table, int fd);

/* --- Queries.  Overlapping registrations are counted separately.  No lock is held. --- */

/* Fail with XSEG_ERR_BUSY if a registration exists. */
xseg_status xseg_registrations_check_none(struct xseg_registrations *table);

/* Registered bytes of a device.  Locks nothing before the first registration. */
uint64_t xseg_registrations_bytes(struct xseg_registrations *table, int device);

/* Registered bytes of a pool of a device, as xseg_pool_visible(); NULL: of the default pool. */
uint64_t xseg_registrations_pool_bytes(struct xseg_registrations *table, int device,
                                       const struct xseg_pool *pool);

/* Registered bytes in [begin, end). */
uint64_t xseg_registrations_bytes_in(struct xseg_registrations *table, uint64_t begin,
                                     uint64_t end);

/* Whether a registration pins some of the bytes [begin, end). */
bool xseg_registrations_pin_any(struct xseg_registrations *table, uint64_t begin, uint64_t end);

/* --- Runs of one registration (registered_runs.c). --- */

/* Create a registration from a draft, without runs and with one reference.  Returns NULL on host
 * allocation failure. */
struct xseg_registration *xseg_registration_create(const struct xseg_registration *draft);

/* Release a reference. */
void xseg_registration_release(struct xseg_registrations *table,
                               struct xseg_registration *registration) XSEG_REQUIRES(table->lock);

/* Free a registration that is in no table. */
void xseg_registration_free(struct xseg_registration *registration);

/*
 * Add the initial runs of a registration, all busy, and pin them if the registration pins.  The
 * device memory lock is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_NOT_ALLOCATED, XSEG_ERR_PAUSED, XSEG_ERR_ARGUMENT, XSEG_ERR_BUSY,
 *          XSEG_ERR_HOST_MEMORY as xseg_register(), and nothing is pinned
 */
xseg_status xseg_registration_add_initial_runs(struct xseg_registration *registration);

/* Release the pins of the initial runs.  The device memory lock is held. */
void xseg_registration_unpin_all(struct xseg_registration *registration);

/* Call `enter` for the initial runs, up to the first run that `enter` rejects.  Returns the address
 * of the rejected run, or 0. */
uint64_t xseg_registration_start(struct xseg_registrations *table,
                                 struct xseg_registration *registration) XSEG_REQUIRES(table->lock);

/* The claimed bytes [begin, end) have been mapped: call `enter` for those that are in no run. */
void xseg_registration_follow_map(struct xseg_registrations *table,
                                  struct xseg_registration *registration, uint64_t begin,
                                  uint64_t end) XSEG_REQUIRES(table->lock);

/* The claimed bytes [begin, end) are about to be unmapped: call `leave` for the runs that overlap
 * them.  Returns false if one of these runs is busy: the memory must remain mapped. */
bool xseg_registration_follow_unmap(struct xseg_registrations *table,
                                    struct xseg_registration *registration, uint64_t begin,
                                    uint64_t end) XSEG_REQUIRES(table->lock);

/* Call `leave` for all runs of an ending registration, and unpin them.  A run for which another
 * thread runs `enter` is removed by that thread. */
void xseg_registration_end_runs(struct xseg_registrations *table,
                                struct xseg_registration *registration) XSEG_REQUIRES(table->lock);

/* Registered bytes in [begin, end) of one registration. */
uint64_t xseg_registration_bytes_in(const struct xseg_registration *registration, uint64_t begin,
                                    uint64_t end);

#endif
