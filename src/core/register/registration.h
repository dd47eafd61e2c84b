/* SPDX-License-Identifier: MIT */
/*
 * A registration: a range of addresses that a user registers elsewhere, as xseg/register.h describes.
 *
 *     range        |<------------------------------------------->|
 *     memory   [ pages ............ ][ hole ][ pages ][ pages ..............
 *     runs         |<-- run ------->|        |<-- run ---------->|
 *
 * A *run* is memory for which `enter` was called and `leave` was not.  Where a part of a run is unmapped, `leave` is called
 * for the run, and `enter` for what remains of it.
 *
 * Callbacks of one registration may run in several threads at once, for different runs.  A run is *busy* while a callback
 * runs for it.  Memory of a busy run is not unmapped: a thread that is about to unmap it does not wait for the callback, but
 * keeps the memory (xseg_notify_keep()).  So no callback waits for another one.
 *
 * A registration has a reference for its owner and one for each thread that delivers a notification to it; the last release
 * frees it.
 *
 * Invariants:
 *   REGISTRATION-1  memory of a run that is not busy is mapped.
 *   REGISTRATION-2  runs of a registration do not overlap, and are inside its range.
 *
 * Locking: REGISTRATIONS; released while a callback runs.
 */
#ifndef XSEG_CORE_REGISTRATION_H
#define XSEG_CORE_REGISTRATION_H

#include "src/base/intervals.h"
#include "src/core/device/device.h"
#include "xseg/register.h"

/* The lock of all registrations of an allocator. */
struct xseg_registration_table {
    struct xseg_mutex lock; /* REGISTRATIONS */
    pthread_cond_t
        changed; /* signalled when a callback of a registration that is being removed has returned */
};

struct xseg_registration {
    struct xseg_interval range; /* among all registrations; `order` is the ID */
    struct xseg_registrar calls;
    struct xseg_extent *extent;
    struct xseg_device *device;
    struct xseg_pool *pool;     /* as users see it */
    struct xseg_intervals runs; /* struct xseg_registration_run */
    uint64_t bytes;             /* of runs that have entered */
    unsigned references;
    bool is_starting; /* the first runs are entering */
    bool ends;        /* it is being removed */
    /* Its classic segment, and so its addresses, are freed, unless observers are notified that the segment stays. */
    bool is_over;
    uint64_t generation;               /* of that segment, once is_over has been set */
    struct xseg_registration *same_id; /* the next registration in a list of the table */
};

/* Create a registration like another one, but without runs, with one reference; NULL without host memory. */
struct xseg_registration *xseg_registration_make(const struct xseg_registration *like);

/* Release a reference. */
void xseg_registration_release(struct xseg_registration_table *desk,
                               struct xseg_registration *registration) XSEG_REQUIRES(desk->lock);

/* Free a registration that no other thread has seen. */
void xseg_registration_free(struct xseg_registration *registration);

/*
 * Find the runs of a new registration, which are busy, and pin them if it pins.  The device memory lock is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_NOT_ALLOCATED, XSEG_ERR_PAUSED, XSEG_ERR_ARGUMENT, XSEG_ERR_BUSY,
 *          XSEG_ERR_HOST_MEMORY, as xseg_register(), and nothing is pinned
 */
xseg_status xseg_registration_find(struct xseg_registration *made);

/* Take the pins of xseg_registration_find() back.  The device memory lock is held. */
void xseg_registration_unpin(struct xseg_registration *made);

/* Call `enter` for the runs that xseg_registration_find() has found; no other thread takes them meanwhile.  Returns the address
 * of the first run that is rejected, after which no other one enters; 0: none is. */
uint64_t xseg_registration_enter_all(struct xseg_registration_table *desk,
                                     struct xseg_registration *made) XSEG_REQUIRES(desk->lock);

/* The bytes [begin, end), which are claimed, have been mapped: those that are in no run enter. */
void xseg_registration_enter(struct xseg_registration_table *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(desk->lock);

/* The bytes [begin, end), which are claimed, are about to be unmapped: the runs that overlap them leave.  Returns false if one
 * of these runs is busy: the memory must stay. */
bool xseg_registration_leave(struct xseg_registration_table *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(desk->lock);

/* End a registration that `ends`: runs leave, and are unpinned.  A run that another thread lets enter leaves in that thread. */
void xseg_registration_leave_all(struct xseg_registration_table *desk,
                                 struct xseg_registration *registration) XSEG_REQUIRES(desk->lock);

/* How many of the bytes [begin, end) are in runs. */
uint64_t xseg_registration_over(const struct xseg_registration *registration, uint64_t begin,
                                uint64_t end);

#endif
