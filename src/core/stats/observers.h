/* SPDX-License-Identifier: MIT */
/*
 * Observers: the user's functions, and how they are called.
 *
 * An observer is called with no lock held.  xseg_observers_remove() makes sure that no new call begins,
 * and waits until no thread is in the observer.
 *
 * Traced events happen under locks.  So they are queued there and delivered later, by one thread at a
 * time, which keeps their order.
 *
 * Locking: OBSERVERS, a leaf, guards the list and the queue.
 */
#ifndef XSEG_CORE_OBSERVERS_H
#define XSEG_CORE_OBSERVERS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/mutex.h"
#include "xseg/observer.h"

/* A callback that a thread runs, on the thread's stack. */
struct xseg_callback {
    const void *owner; /* the observer or registration */
    const struct xseg_callback *outer;
};

void xseg_callback_begin(struct xseg_callback *callback, const void *owner);
void xseg_callback_end(const struct xseg_callback *callback);

/* Whether this thread runs a callback of an owner, or any callback. */
bool xseg_callback_is_of(const void *owner);
bool xseg_callback_is_any(void);

struct xseg_observers {
    struct xseg_mutex lock; /* OBSERVERS */
    pthread_cond_t left;    /* signalled when a thread has left an observer that is being removed */
    struct xseg_list list;  /* struct xseg_watcher, oldest first */
    uint64_t last_id;
    unsigned tracing; /* number of observers with `on_trace` */
    /* Number of observers with `on_unmap` or `on_map`; may be read without the lock. */
    atomic_uint noticing;
    struct xseg_trace_entry *queue; /* [capacity]; entries not delivered yet */
    size_t count, capacity;
    bool delivering; /* a thread is delivering, and will find what others note meanwhile */
};

void xseg_observers_init(struct xseg_observers *observers);

/* End all observers; no thread is in one any more. */
void xseg_observers_fini(struct xseg_observers *observers);

/* Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY */
xseg_status xseg_observers_add(struct xseg_observers *observers, const struct xseg_observer *calls,
                               uint64_t *id);

/* Returns: XSEG_OK, XSEG_ERR_ARGUMENT (none has that id), XSEG_ERR_BUSY (this thread is in it) */
xseg_status xseg_observers_remove(struct xseg_observers *observers, uint64_t id);

/* Whether any observer has `on_trace`. */
bool xseg_observers_trace(struct xseg_observers *observers);

/* The events that observers are called about. */
enum xseg_observers_subject {
    XSEG_OBSERVERS_LOW_MEMORY,
    XSEG_OBSERVERS_OOM,
    XSEG_OBSERVERS_REJECTED,
    XSEG_OBSERVERS_UNMAP,
    XSEG_OBSERVERS_MAP
};

/* Whether any observer would be called; false for a thread that is in an observer. */
bool xseg_observers_are_registered(struct xseg_observers *observers,
                                   enum xseg_observers_subject subject);

/* Call all observers that have a function for a subject.  Returns whether any of them answered
 * true.  No lock is held. */
bool xseg_observers_notify(struct xseg_observers *observers, enum xseg_observers_subject subject,
                           const struct xseg_oom_info *shortage);

/* Queue a trace entry.  Any lock may be held but a leaf. */
void xseg_observers_enqueue(struct xseg_observers *observers, const struct xseg_trace_entry *entry);

/* Deliver queued trace entries, unless another thread is delivering.  No lock is held. */
void xseg_observers_deliver(struct xseg_observers *observers);

/* Call all observers that have a function for memory that is leaving or came; also from within
 * an observer.  Queued trace entries are delivered first: they are about what was there before.
 * No lock is held. */
void xseg_observers_notify_of(struct xseg_observers *observers, enum xseg_observers_subject subject,
                              const struct xseg_mapping *mapping);

#endif
