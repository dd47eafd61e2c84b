/* SPDX-License-Identifier: MIT */
/*
 * Observers: the user's callbacks for low memory, failed requests, mapped and unmapped memory, and
 * traced events.
 *
 * A callback may call any function, including functions of the library, so it runs with no lock
 * held.  The notifying thread increments a count in the observer, releases the lock of the list,
 * and calls.  An observer whose count is not 0 remains in the list, so its successor can be found
 * after the call.
 *
 * xseg_observers_remove() prevents new calls and waits until no thread is in the observer.  A
 * thread in a callback does not wait, because two callbacks that remove each other's observers
 * would deadlock.  In this case the removal fails with XSEG_ERR_BUSY.
 *
 * Traced events happen under arena locks.  They are queued there and delivered at the end of the
 * call, by one thread at a time, which keeps their order.  On host allocation failure entries are
 * lost.
 *
 * Locking: the lock of the list (rank OBSERVERS) guards the list and the queue.  No other lock is
 * acquired under it.
 */
#ifndef XSEG_CORE_OBSERVERS_H
#define XSEG_CORE_OBSERVERS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/mutex.h"
#include "xseg/observer.h"

/* A callback that is running, on the stack of its thread. */
struct xseg_callback {
    const void *owner; /* the observer or registration */
    const struct xseg_callback *outer;
};

void xseg_callback_begin(struct xseg_callback *callback, const void *owner);
void xseg_callback_end(const struct xseg_callback *callback);

/* Whether the calling thread runs a callback of an owner; any callback. */
bool xseg_callback_is_running_for(const void *owner);
bool xseg_callback_is_running(void);

struct xseg_observers {
    struct xseg_mutex lock;  /* OBSERVERS */
    pthread_cond_t returned; /* a thread has left an observer that is being removed */
    struct xseg_list list;   /* struct observer_node, oldest first */
    uint64_t last_id;
    unsigned trace_count;           /* observers with `on_trace` */
    atomic_uint mapping_count;      /* observers with `on_map` or `on_unmap`; read without a lock */
    struct xseg_trace_entry *queue; /* [capacity]; entries that are not delivered yet */
    size_t count, capacity;
    bool is_delivering; /* a thread delivers entries, including those queued during the delivery */
};

void xseg_observers_init(struct xseg_observers *observers);

/* Destroy all observers.  No thread may be in one. */
void xseg_observers_fini(struct xseg_observers *observers);

/* Returns XSEG_OK or XSEG_ERR_HOST_MEMORY. */
xseg_status xseg_observers_add(struct xseg_observers *observers, const struct xseg_observer *calls,
                               uint64_t *id);

/* Returns XSEG_OK, XSEG_ERR_ARGUMENT (no observer has the ID) or XSEG_ERR_BUSY (the calling thread
 * is in the observer, or is in any callback while another thread is in the observer). */
xseg_status xseg_observers_remove(struct xseg_observers *observers, uint64_t id);

/* Whether any observer has `on_trace`. */
bool xseg_observers_trace(struct xseg_observers *observers);

/* The events other than traced ones, each with its callback in struct xseg_observer. */
enum xseg_observer_event {
    XSEG_OBSERVER_LOW_MEMORY,
    XSEG_OBSERVER_OOM,
    XSEG_OBSERVER_REJECTED,
    XSEG_OBSERVER_UNMAP,
    XSEG_OBSERVER_MAP
};

/* Whether any observer has a callback for an event.  Always false in a thread that runs a
 * callback. */
bool xseg_observers_are_registered(struct xseg_observers *observers,
                                   enum xseg_observer_event event);

/* Notify all observers of memory pressure, a failed request or a rejected one.  Returns whether any
 * callback returned true.  The caller holds no lock. */
bool xseg_observers_notify(struct xseg_observers *observers, enum xseg_observer_event event,
                           const struct xseg_oom_info *info);

/* Notify all observers of mapped or unmapped memory, also in a callback.  Queued trace entries are
 * delivered first, because they were recorded earlier.  The caller holds no lock. */
void xseg_observers_notify_mapping(struct xseg_observers *observers, enum xseg_observer_event event,
                                   const struct xseg_mapping *mapping);

/* Queue a trace entry.  The caller may hold any locks except leaf locks. */
void xseg_observers_enqueue(struct xseg_observers *observers, const struct xseg_trace_entry *entry);

/* Deliver the queued trace entries, unless another thread does.  The caller holds no lock. */
void xseg_observers_deliver(struct xseg_observers *observers);

#endif
