/* SPDX-License-Identifier: MIT */
#include "src/core/stats/observers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/history/history.h"

struct observer_node {
    struct xseg_list link;
    struct xseg_observer calls;
    uint64_t id;
    unsigned running; /* number of threads that are in a callback */
    bool is_removed;  /* no new callback begins */
};

/* The callbacks that the calling thread runs, innermost first. */
static _Thread_local const struct xseg_callback *current_callback;

void xseg_callback_begin(struct xseg_callback *callback, const void *owner)
{
    *callback = (struct xseg_callback){owner, current_callback};
    current_callback = callback;
}

void xseg_callback_end(const struct xseg_callback *callback)
{
    XSEG_ASSERT(current_callback == callback);
    current_callback = callback->outer;
}

bool xseg_callback_is_running_for(const void *owner)
{
    const struct xseg_callback *callback = current_callback;

    while (callback != NULL && callback->owner != owner)
        callback = callback->outer;
    return callback != NULL;
}

bool xseg_callback_is_running(void)
{
    return current_callback != NULL;
}

void xseg_observers_init(struct xseg_observers *observers)
{
    memset(observers, 0, sizeof(*observers));
    xseg_mutex_init(&observers->lock, XSEG_RANK_OBSERVERS);
    (void)pthread_cond_init(&observers->returned, NULL);
    xseg_list_init(&observers->list);
}

void xseg_observers_fini(struct xseg_observers *observers)
{
    XSEG_ASSERT(!observers->is_delivering);
    XSEG_LIST_FOR_SAFE(node, &observers->list)
    {
        XSEG_ASSERT(XSEG_CONTAINER(node, struct observer_node, link)->running == 0);
        free(XSEG_CONTAINER(node, struct observer_node, link));
    }
    free(observers->queue);
    (void)pthread_cond_destroy(&observers->returned);
    xseg_mutex_fini(&observers->lock);
}

/* --- Registration. --- */

static bool has_mapping_callback(const struct observer_node *observer)
{
    return observer->calls.on_unmap != NULL || observer->calls.on_map != NULL;
}

xseg_status xseg_observers_add(struct xseg_observers *observers, const struct xseg_observer *calls,
                               uint64_t *id)
{
    struct observer_node *observer = calloc(1, sizeof(*observer));

    if (observer == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, observer");
    XSEG_ASSERT(calls->struct_size <= sizeof(observer->calls));
    memcpy(&observer->calls, calls, calls->struct_size);
    xseg_list_init(&observer->link);
    xseg_mutex_lock(&observers->lock);
    *id = observer->id = ++observers->last_id;
    observers->trace_count += observer->calls.on_trace != NULL;
    atomic_fetch_add(&observers->mapping_count, has_mapping_callback(observer));
    xseg_list_insert(&observers->list, &observer->link);
    xseg_mutex_unlock(&observers->lock);
    return XSEG_OK;
}

static struct observer_node *find_observer(struct xseg_observers *observers, uint64_t id)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_OBSERVERS));
    XSEG_LIST_FOR(node, &observers->list)
    {
        struct observer_node *observer = XSEG_CONTAINER(node, struct observer_node, link);

        if (observer->id == id && !observer->is_removed)
            return observer;
    }
    return NULL;
}

xseg_status xseg_observers_remove(struct xseg_observers *observers, uint64_t id)
{
    xseg_mutex_lock(&observers->lock);
    struct observer_node *observer = find_observer(observers, id);
    /* A thread in a callback does not wait for another callback. */
    const bool is_busy =
        observer != NULL && (xseg_callback_is_running_for(observer) ||
                             (observer->running > 0 && xseg_callback_is_running()));
    if (observer != NULL && !is_busy) {
        observer->is_removed = true;
        XSEG_ASSERT(observers->trace_count >= (observer->calls.on_trace != NULL));
        XSEG_ASSERT(atomic_load(&observers->mapping_count) >= has_mapping_callback(observer));
        observers->trace_count -= observer->calls.on_trace != NULL;
        atomic_fetch_sub(&observers->mapping_count, has_mapping_callback(observer));
        if (observers->trace_count == 0)
            observers->count = 0;
        while (observer->running > 0)
            (void)pthread_cond_wait(&observers->returned, &observers->lock.os);
        XSEG_ASSERT(observer->running == 0);
        xseg_list_remove(&observer->link);
        free(observer);
    }
    xseg_mutex_unlock(&observers->lock);
    if (observer == NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT, "observer does not exist, id %" PRIu64, id);
    return is_busy ? xseg_fail(XSEG_ERR_BUSY,
                               "observer is running, id %" PRIu64
                               "; remove the observer after its callback has returned",
                               id)
                   : XSEG_OK;
}

bool xseg_observers_trace(struct xseg_observers *observers)
{
    xseg_mutex_lock(&observers->lock);
    const bool has_trace = observers->trace_count > 0;
    xseg_mutex_unlock(&observers->lock);
    return has_trace;
}

/* --- Notification. --- */

/* The callback to call, and its argument. */
struct notification {
    enum xseg_observer_event event;
    const struct xseg_oom_info *info;
    const struct xseg_mapping *mapping;
    const struct xseg_trace_entry *entry; /* if not NULL, the callback is `on_trace` */
};

static bool has_callback(const struct xseg_observer *calls, const struct notification *notification)
{
    if (notification->entry != NULL)
        return calls->on_trace != NULL;
    switch (notification->event) {
    case XSEG_OBSERVER_LOW_MEMORY:
        return calls->on_low_memory != NULL;
    case XSEG_OBSERVER_OOM:
        return calls->on_out_of_memory != NULL;
    case XSEG_OBSERVER_REJECTED:
        return calls->on_rejected != NULL;
    case XSEG_OBSERVER_UNMAP:
        return calls->on_unmap != NULL;
    case XSEG_OBSERVER_MAP:
        break;
    }
    return calls->on_map != NULL;
}

/* Call the callback for an event.  Returns its result, or false. */
static bool call_event_callback(const struct xseg_observer *calls,
                                const struct notification *notification)
{
    switch (notification->event) {
    case XSEG_OBSERVER_LOW_MEMORY:
        return calls->on_low_memory(calls->context, notification->info);
    case XSEG_OBSERVER_OOM:
        calls->on_out_of_memory(calls->context, notification->info);
        break;
    case XSEG_OBSERVER_REJECTED:
        calls->on_rejected(calls->context, notification->info);
        break;
    case XSEG_OBSERVER_UNMAP:
        calls->on_unmap(calls->context, notification->mapping);
        break;
    case XSEG_OBSERVER_MAP:
        calls->on_map(calls->context, notification->mapping);
        break;
    }
    return false;
}

static bool call_observer(const struct observer_node *observer,
                          const struct notification *notification)
{
    const struct xseg_observer *calls = &observer->calls;
    struct xseg_callback callback;
    const struct xseg_history_gathered gathered = xseg_history_context_save();
    bool result = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_callback_begin(&callback, observer);
    if (notification->entry != NULL)
        calls->on_trace(calls->context, notification->entry);
    else
        result = call_event_callback(calls, notification);
    xseg_callback_end(&callback);
    xseg_history_context_restore(&gathered);
    return result;
}

/* Call all observers that have a callback.  The lock is released during each call.  An observer
 * remains in the list while a thread runs its callback, so its successor is valid afterwards. */
static bool call_all_observers(struct xseg_observers *observers,
                               const struct notification *notification)
    XSEG_REQUIRES(observers->lock)
{
    bool result = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_OBSERVERS));
    for (struct xseg_list *node = observers->list.next, *next; node != &observers->list;
         node = next) {
        struct observer_node *observer = XSEG_CONTAINER(node, struct observer_node, link);

        if (!observer->is_removed && has_callback(&observer->calls, notification)) {
            observer->running++;
            xseg_mutex_unlock(&observers->lock);
            result = call_observer(observer, notification) || result;
            xseg_mutex_lock(&observers->lock);
            XSEG_ASSERT(observer->running != 0);
            observer->running--;
        }
        next = node->next;
        if (observer->is_removed && observer->running == 0)
            (void)pthread_cond_broadcast(&observers->returned);
    }
    return result;
}

bool xseg_observers_are_registered(struct xseg_observers *observers, enum xseg_observer_event event)
{
    const struct notification notification = {.event = event};
    bool is_registered = false;

    if (xseg_callback_is_running())
        return false;
    xseg_mutex_lock(&observers->lock);
    XSEG_LIST_FOR(node, &observers->list)
    {
        const struct observer_node *observer = XSEG_CONTAINER(node, struct observer_node, link);

        is_registered = is_registered ||
                        (!observer->is_removed && has_callback(&observer->calls, &notification));
    }
    xseg_mutex_unlock(&observers->lock);
    return is_registered;
}

bool xseg_observers_notify(struct xseg_observers *observers, enum xseg_observer_event event,
                           const struct xseg_oom_info *info)
{
    const struct notification notification = {.event = event, .info = info};

    xseg_mutex_lock(&observers->lock);
    const bool result = call_all_observers(observers, &notification);
    xseg_mutex_unlock(&observers->lock);
    return result;
}

/* --- Trace queue. --- */

void xseg_observers_enqueue(struct xseg_observers *observers, const struct xseg_trace_entry *entry)
{
    XSEG_ASSERT(entry->struct_size == sizeof(*entry));
    xseg_mutex_lock(&observers->lock);
    if (observers->count == observers->capacity) {
        const size_t capacity = observers->capacity == 0 ? 64 : observers->capacity * 2;
        struct xseg_trace_entry *grown = realloc(observers->queue, capacity * sizeof(*grown));

        observers->queue = grown != NULL ? grown : observers->queue;
        observers->capacity = grown != NULL ? capacity : observers->capacity;
    }
    XSEG_ASSERT(observers->count <= observers->capacity);
    if (observers->trace_count > 0 && observers->count < observers->capacity)
        observers->queue[observers->count++] = *entry;
    xseg_mutex_unlock(&observers->lock);
}

/* Remove all entries from the queue.  The caller frees the returned array. */
static struct xseg_trace_entry *detach_queue(struct xseg_observers *observers, size_t *count)
{
    struct xseg_trace_entry *queue = observers->queue;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_OBSERVERS));
    XSEG_ASSERT(observers->count != 0 && queue != NULL);
    *count = observers->count;
    observers->queue = NULL;
    observers->count = observers->capacity = 0;
    return queue;
}

void xseg_observers_deliver(struct xseg_observers *observers)
{
    xseg_mutex_lock(&observers->lock);
    while (!observers->is_delivering && observers->count > 0) {
        size_t count = 0;
        struct xseg_trace_entry *queue = detach_queue(observers, &count);

        observers->is_delivering = true;
        for (size_t i = 0; i < count; i++)
            (void)call_all_observers(observers, &(const struct notification){.entry = &queue[i]});
        observers->is_delivering = false;
        free(queue);
    }
    xseg_mutex_unlock(&observers->lock);
}

void xseg_observers_notify_mapping(struct xseg_observers *observers, enum xseg_observer_event event,
                                   const struct xseg_mapping *mapping)
{
    const struct notification notification = {.event = event, .mapping = mapping};

    xseg_observers_deliver(observers);
    xseg_mutex_lock(&observers->lock);
    (void)call_all_observers(observers, &notification);
    xseg_mutex_unlock(&observers->lock);
}
