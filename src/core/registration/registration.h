/* SPDX-License-Identifier: MIT */
/*
 * A registration: a range of addresses whose memory a user registers elsewhere, as xseg/registration.h says.
 *
 *     range        |<------------------------------------------->|
 *     memory   [ pages ............ ][ hole ][ pages ][ pages ..............
 *     runs         |<-- run ------->|        |<-- run ---------->|
 *
 * A *run* has entered and not left: the user's `enter` was called for it.  Where a part of a run goes, the run leaves, and
 * what stays of it enters again.
 *
 * A thread *works* at a registration while it calls the user's functions; other threads that have news for it wait.
 * A call from within these functions that moves memory brings news to the thread that works already: the runs are as they
 * should be at each call, so it works on at once.  Pages of a run that is entering cannot go in such a call: they are
 * pinned meanwhile, or nobody has been given them yet.
 *
 * Invariants:
 *   REGISTRATION-1  memory of a run is mapped.
 *   REGISTRATION-2  runs of a registration do not overlap, and lie in its range.
 *
 * Locking: REGISTRATIONS, the lock of the table, guards it; let go of while a function of the user's is called.
 */
#ifndef XSEG_CORE_REGISTRATION_H
#define XSEG_CORE_REGISTRATION_H

#include "src/core/device/device.h"
#include "xseg/registration.h"

/* The lock of all registrations of an allocator, and where threads wait for each other. */
struct xseg_registration_desk {
    struct xseg_lock lock;  /* REGISTRATIONS */
    pthread_cond_t changed; /* signalled when a thread has worked at a registration */
};

struct xseg_registration {
    uint64_t id;
    uint64_t begin, end;
    struct xseg_registrar calls;
    struct xseg_extent *extent;
    struct xseg_device *device;
    struct xseg_pool *pool; /* as users see it */
    uint64_t times;         /* registered so often */
    struct xseg_list runs;  /* struct xseg_registration_run */
    unsigned users;         /* threads that work at it, or wait for that */
    bool is_worked;         /* a thread works at it */
    bool ends;              /* it is being removed */
    bool is_over;           /* its classic segment has gone, and the addresses with that */
};

/* Make a registration like another one, but without runs; NULL without host memory. */
struct xseg_registration *xseg_registration_make(const struct xseg_registration *like);

void xseg_registration_free(struct xseg_registration *registration);

/* Whether the calling thread works at a registration. */
bool xseg_registration_is_here(const struct xseg_registration *registration);

/* Begin to work at a registration, once no other thread does, and stop.  A thread that works at it already goes on at
 * once. */
void xseg_registration_begin(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration) XSEG_REQUIRES(desk->lock);
void xseg_registration_stop(struct xseg_registration_desk *desk,
                            struct xseg_registration *registration) XSEG_REQUIRES(desk->lock);

/*
 * Find the runs of a range that nobody works at yet, and pin them.  GROWTH is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_NOT_LIVE, XSEG_ERR_PAUSED, XSEG_ERR_ARGUMENT, XSEG_ERR_BUSY,
 *          XSEG_ERR_HOST_MEMORY, as xseg_register(), and nothing is pinned
 */
xseg_status xseg_registration_find(struct xseg_registration *made);

/* Take the pins of xseg_registration_find() back.  GROWTH is held. */
void xseg_registration_unpin(struct xseg_registration *made);

/* Let the runs enter that xseg_registration_find() has found, and unpin those that are not to be pinned.  When one is
 * refused, those that have entered leave.  Returns the address of a refused run; 0: none is. */
uint64_t xseg_registration_enter_all(struct xseg_registration_desk *desk,
                                     struct xseg_registration *made) XSEG_REQUIRES(desk->lock);

/* Memory has come beneath the bytes [begin, end) of a range, which nobody has been given. */
void xseg_registration_enter(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(desk->lock);

/* Memory of the bytes [begin, end) is about to go: the runs with some of it leave. */
void xseg_registration_leave(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(desk->lock);

/* All runs leave, and are unpinned. */
void xseg_registration_leave_all(struct xseg_registration_desk *desk,
                                 struct xseg_registration *registration) XSEG_REQUIRES(desk->lock);

/* How many of the bytes [begin, end) are in runs. */
uint64_t xseg_registration_over(const struct xseg_registration *registration, uint64_t begin,
                                uint64_t end);

#endif
