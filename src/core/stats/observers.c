/* SPDX-License-Identifier: MIT */
#include "src/core/stats/observers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/history/context.h"

/* An observer in the list. */
struct xseg_watcher {
    struct xseg_list link;
    struct xseg_observer calls;
    uint64_t id;
    unsigned inside; /* number of calls that are under way */
    bool ends;       /* the observer is being removed, and is not called any more */
};

/* The callbacks that this thread is in, the innermost first. */
static _Thread_local const struct xseg_callback *here;

void xseg_callback_begin(struct xseg_callback *callback, const void *owner)
{
    *callback = (struct xseg_callback){owner, here};
    here = callback;
}

void xseg_callback_end(const struct xseg_callback *callback)
{
    XSEG_ASSERT(here == callback);
    here = callback->outer;
}

bool xseg_callback_is_of(const void *owner)
{
    const struct xseg_callback *callback = here;

    while (callback != NULL && callback->owner != owner)
        callback = callback->outer;
    return callback != NULL;
}

bool xseg_callback_is_any(void)
{
    return here != NULL;
}

void xseg_observers_init(struct xseg_observers *observers)
{
    memset(observers, 0, sizeof(*observers));
    xseg_mutex_init(&observers->lock, XSEG_RANK_OBSERVERS);
    (void)pthread_cond_init(&observers->left, NULL);
    xseg_list_init(&observers->list);
}

void xseg_observers_fini(struct xseg_observers *observers)
{
    XSEG_ASSERT(!observers->delivering);
    XSEG_LIST_FOR_SAFE(node, &observers->list)
    {
        XSEG_ASSERT(XSEG_CONTAINER(node, struct xseg_watcher, link)->inside == 0);
        free(XSEG_CONTAINER(node, struct xseg_watcher, link));
    }
    free(observers->queue);
    (void)pthread_cond_destroy(&observers->left);
    xseg_mutex_fini(&observers->lock);
}

/* --- Coming and going. --- */

static unsigned is_noticing(const struct xseg_watcher *watcher)
{
    return watcher->calls.on_unmap != NULL || watcher->calls.on_map != NULL;
}

xseg_status xseg_observers_add(struct xseg_observers *observers, const struct xseg_observer *calls,
                               uint64_t *id)
{
    struct xseg_watcher *watcher = calloc(1, sizeof(*watcher));

    if (watcher == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, observer");
    XSEG_ASSERT(calls->struct_size <= sizeof(watcher->calls));
    memcpy(&watcher->calls, calls, calls->struct_size);
    xseg_list_init(&watcher->link);
    xseg_mutex_lock(&observers->lock);
    *id = watcher->id = ++observers->last_id;
    observers->tracing += watcher->calls.on_trace != NULL;
    atomic_fetch_add(&observers->noticing, is_noticing(watcher));
    xseg_list_insert(&observers->list, &watcher->link);
    xseg_mutex_unlock(&observers->lock);
    return XSEG_OK;
}

static struct xseg_watcher *find(struct xseg_observers *observers, uint64_t id)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_OBSERVERS));
    XSEG_LIST_FOR(node, &observers->list)
    {
        struct xseg_watcher *watcher = XSEG_CONTAINER(node, struct xseg_watcher, link);

        if (watcher->id == id && !watcher->ends)
            return watcher;
    }
    return NULL;
}

xseg_status xseg_observers_remove(struct xseg_observers *observers, uint64_t id)
{
    xseg_mutex_lock(&observers->lock);
    struct xseg_watcher *watcher = find(observers, id);
    /* A callback does not wait for another one. */
    const bool is_busy = watcher != NULL && (xseg_callback_is_of(watcher) ||
                                             (watcher->inside > 0 && xseg_callback_is_any()));
    if (watcher != NULL && !is_busy) {
        watcher->ends = true;
        XSEG_ASSERT(observers->tracing >= (watcher->calls.on_trace != NULL));
        XSEG_ASSERT(atomic_load(&observers->noticing) >= is_noticing(watcher));
        observers->tracing -= watcher->calls.on_trace != NULL;
        atomic_fetch_sub(&observers->noticing, is_noticing(watcher));
        if (observers->tracing == 0)
            observers->count = 0;
        while (watcher->inside > 0)
            (void)pthread_cond_wait(&observers->left, &observers->lock.os);
        XSEG_ASSERT(watcher->inside == 0);
        xseg_list_remove(&watcher->link);
        free(watcher);
    }
    xseg_mutex_unlock(&observers->lock);
    if (watcher == NULL)
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
    const bool traces = observers->tracing > 0;
    xseg_mutex_unlock(&observers->lock);
    return traces;
}

/* --- Calling. --- */

/* A message to observers: which function is called, and its argument. */
struct message {
    enum xseg_observers_subject subject;
    const struct xseg_oom_info *shortage;
    const struct xseg_mapping *mapping;
    const struct xseg_trace_entry *entry; /* not NULL: the function is `on_trace` */
};

static bool wants(const struct xseg_observer *calls, const struct message *message)
{
    if (message->entry != NULL)
        return calls->on_trace != NULL;
    switch (message->subject) {
    case XSEG_OBSERVERS_LOW_MEMORY:
        return calls->on_low_memory != NULL;
    case XSEG_OBSERVERS_OOM:
        return calls->on_out_of_memory != NULL;
    case XSEG_OBSERVERS_REJECTED:
        return calls->on_rejected != NULL;
    case XSEG_OBSERVERS_UNMAP:
        return calls->on_unmap != NULL;
    case XSEG_OBSERVERS_MAP:
        break;
    }
    return calls->on_map != NULL;
}

/* Call the function of a message that is not a trace entry.  Returns its answer. */
static bool say(const struct xseg_observer *calls, const struct message *message)
{
    switch (message->subject) {
    case XSEG_OBSERVERS_LOW_MEMORY:
        return calls->on_low_memory(calls->context, message->shortage);
    case XSEG_OBSERVERS_OOM:
        calls->on_out_of_memory(calls->context, message->shortage);
        break;
    case XSEG_OBSERVERS_REJECTED:
        calls->on_rejected(calls->context, message->shortage);
        break;
    case XSEG_OBSERVERS_UNMAP:
        calls->on_unmap(calls->context, message->mapping);
        break;
    case XSEG_OBSERVERS_MAP:
        calls->on_map(calls->context, message->mapping);
        break;
    }
    return false;
}

static bool call(const struct xseg_watcher *watcher, const struct message *message)
{
    const struct xseg_observer *calls = &watcher->calls;
    struct xseg_callback callback;
    const struct xseg_history_gathered gathered = xseg_history_context_save();
    bool answer = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_callback_begin(&callback, watcher);
    if (message->entry != NULL)
        calls->on_trace(calls->context, message->entry);
    else
        answer = say(calls, message);
    xseg_callback_end(&callback);
    xseg_history_context_restore(&gathered);
    return answer;
}

/* Call all observers that want a message; the lock is released for each call.  An observer stays
 * in the list while a thread is in its function, so the next one can be found from there. */
static bool call_all(struct xseg_observers *observers, const struct message *message)
    XSEG_REQUIRES(observers->lock)
{
    bool answer = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_OBSERVERS));
    for (struct xseg_list *node = observers->list.next, *next; node != &observers->list;
         node = next) {
        struct xseg_watcher *watcher = XSEG_CONTAINER(node, struct xseg_watcher, link);

        if (!watcher->ends && wants(&watcher->calls, message)) {
            watcher->inside++;
            xseg_mutex_unlock(&observers->lock);
            answer = call(watcher, message) || answer;
            xseg_mutex_lock(&observers->lock);
            XSEG_ASSERT(watcher->inside != 0);
            watcher->inside--;
        }
        next = node->next;
        if (watcher->ends && watcher->inside == 0)
            (void)pthread_cond_broadcast(&observers->left);
    }
    return answer;
}

bool xseg_observers_are_registered(struct xseg_observers *observers,
                                   enum xseg_observers_subject subject)
{
    const struct message message = {.subject = subject};
    bool any = false;

    if (xseg_callback_is_any())
        return false;
    xseg_mutex_lock(&observers->lock);
    XSEG_LIST_FOR(node, &observers->list)
    {
        const struct xseg_watcher *watcher = XSEG_CONTAINER(node, struct xseg_watcher, link);

        any = any || (!watcher->ends && wants(&watcher->calls, &message));
    }
    xseg_mutex_unlock(&observers->lock);
    return any;
}

bool xseg_observers_notify(struct xseg_observers *observers, enum xseg_observers_subject subject,
                           const struct xseg_oom_info *shortage)
{
    const struct message message = {.subject = subject, .shortage = shortage};

    xseg_mutex_lock(&observers->lock);
    const bool answer = call_all(observers, &message);
    xseg_mutex_unlock(&observers->lock);
    return answer;
}

/* --- Tracing. --- */

void xseg_observers_enqueue(struct xseg_observers *observers, const struct xseg_trace_entry *entry)
{
    XSEG_ASSERT(entry->struct_size == sizeof(*entry));
    xseg_mutex_lock(&observers->lock);
    if (observers->count == observers->capacity) {
        const size_t capacity = observers->capacity == 0 ? 64 : observers->capacity * 2;
        struct xseg_trace_entry *queue = realloc(observers->queue, capacity * sizeof(*queue));

        observers->queue = queue != NULL ? queue : observers->queue;
        observers->capacity = queue != NULL ? capacity : observers->capacity;
    }
    XSEG_ASSERT(observers->count <= observers->capacity);
    if (observers->tracing > 0 && observers->count < observers->capacity)
        observers->queue[observers->count++] = *entry;
    xseg_mutex_unlock(&observers->lock);
}

/* Take the whole queue.  Returns its entries, which the caller frees. */
static struct xseg_trace_entry *take_queue(struct xseg_observers *observers, size_t *count)
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
    while (!observers->delivering && observers->count > 0) {
        size_t count = 0;
        struct xseg_trace_entry *queue = take_queue(observers, &count);

        observers->delivering = true;
        for (size_t i = 0; i < count; i++)
            (void)call_all(observers, &(const struct message){.entry = &queue[i]});
        observers->delivering = false;
        free(queue);
    }
    xseg_mutex_unlock(&observers->lock);
}

void xseg_observers_notify_of(struct xseg_observers *observers, enum xseg_observers_subject subject,
                              const struct xseg_mapping *mapping)
{
    const struct message message = {.subject = subject, .mapping = mapping};

    xseg_observers_deliver(observers);
    xseg_mutex_lock(&observers->lock);
    (void)call_all(observers, &message);
    xseg_mutex_unlock(&observers->lock);
}
