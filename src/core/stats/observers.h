/* SPDX-License-Identifier: MIT */
/*
 * Observers: the user's functions, and how they are called.
 *
 * An observer is called with no lock held.  While it runs it cannot end: xseg_observers_remove() takes
 * it out of reach and waits until nobody is in it.
 *
 * What is traced happens under locks, so it is noted in a queue there and delivered later, by one
 * thread at a time, so that the order is kept.
 *
 * Locking: OBSERVERS, a leaf; it guards the list and the queue.
 */
#ifndef XSEG_CORE_OBSERVERS_H
#define XSEG_CORE_OBSERVERS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/lock.h"
#include "xseg/observe.h"

struct xseg_observers {
    struct xseg_lock lock; /* OBSERVERS */
    pthread_cond_t left;   /* a thread has left an observer that is to end */
    struct xseg_list list; /* struct xseg_watcher, in the order in which they came */
    uint64_t last_id;
    unsigned tracing;               /* how many have `trace` */
    atomic_uint noticing;           /* `leaving` or `came`; may be read without the lock */
    struct xseg_trace_entry *queue; /* [capacity], not delivered yet */
    size_t count, capacity;
    bool delivering; /* a thread is at it, and will find what others note meanwhile */
};

void xseg_observers_init(struct xseg_observers *observers);

/* Nobody is in an observer any more. */
void xseg_observers_fini(struct xseg_observers *observers);

/* Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY */
xseg_status xseg_observers_add(struct xseg_observers *observers, const struct xseg_observer *calls,
                               uint64_t *id);

/* Returns: XSEG_OK, XSEG_ERR_ARGUMENT (none has that id), XSEG_ERR_BUSY (this thread is in it) */
xseg_status xseg_observers_remove(struct xseg_observers *observers, uint64_t id);

/* Whether any observer is traced to. */
bool xseg_observers_trace(struct xseg_observers *observers);

/* What an observer is called about. */
enum xseg_observers_subject {
    XSEG_OBSERVERS_SHORT,
    XSEG_OBSERVERS_OOM,
    XSEG_OBSERVERS_REJECTED,
    XSEG_OBSERVERS_LEAVING,
    XSEG_OBSERVERS_CAME
};

/* Whether anybody would be called; false for a thread that is in an observer. */
bool xseg_observers_want(struct xseg_observers *observers, enum xseg_observers_subject subject);

/* Call all who want to know; whether any of them answered true.  No lock is held. */
bool xseg_observers_tell(struct xseg_observers *observers, enum xseg_observers_subject subject,
                         const struct xseg_shortage *shortage);

/* Call all who want to know of memory that is leaving, or came; also from within an observer.  No lock
 * is held. */
void xseg_observers_tell_of(struct xseg_observers *observers, enum xseg_observers_subject subject,
                            const struct xseg_mapping *mapping);

/* Note what has happened.  Any lock may be held but a leaf. */
void xseg_observers_note(struct xseg_observers *observers, const struct xseg_trace_entry *entry);

/* Deliver what was noted, unless another thread is at it.  No lock is held. */
void xseg_observers_deliver(struct xseg_observers *observers);

#endif
