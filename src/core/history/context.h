/* SPDX-License-Identifier: MIT */
/*
 * The context of a call: the call stack, the frame ID of the hook, the label and the `user` value
 * that the events of the call carry.
 *
 * A call that may record events gathers its context first, while no lock is held, because capturing
 * a call stack takes microseconds and the user's hook may do anything.  The context is thread-local
 * and valid until the next call of the thread gathers.  While an observer runs in the middle of a
 * call, calls of the observer gather their own context; the context of the outer call is saved and
 * restored around the observer.
 *
 * The frame IDs and the labels of threads are roots of the history sweep (history_sweep.h).  So a
 * thread that gathers frame IDs of a hook, or has a label, registers its context in a list of the
 * process and unregisters it when the thread ends.
 *
 * A thread has one current label for each allocator, in `labels`.  A program uses labels as nested
 * scopes: it sets a label, remembers the string of the previous one, and sets that string again at
 * the end of the scope.  Until then the library keeps the previous label alive in `saved_labels`.
 *
 * Locking: none for the own context of a thread.  A mutex of the process, under which no other lock
 * is acquired, guards the list of contexts and the labels in them.
 */
#ifndef XSEG_CORE_HISTORY_CONTEXT_H
#define XSEG_CORE_HISTORY_CONTEXT_H

#include "src/base/list.h"
#include "src/core/history/store.h"

/* Allocators for which a thread has a label.  One more replaces the label that was set first. */
#define XSEG_HISTORY_LABELS 4u

/* Depth of calls that are nested by observers.  Deeper calls share the last entry. */
#define XSEG_HISTORY_DEPTH 4u

/* Labels of enclosing scopes that a thread keeps. */
#define XSEG_HISTORY_SCOPES 32u

struct xseg_history_gathered {
    uint32_t version; /* of the settings under which it was gathered, see store.h; 0: none */
    uint32_t stack, frames;
    uint64_t user; /* of the request; 0: none */
};

struct xseg_history_thread_label {
    uint64_t store; /* serial number of the label's store; 0: no label */
    uint32_t label;
};

struct xseg_history_context {
    struct xseg_history_gathered gathered; /* by the current call */
    uint32_t thread;                       /* kernel thread ID; 0: not queried yet */
    /* Frame IDs of the current call and of the calls around it, as roots of a sweep. */
    atomic_uint_least32_t frames_in_use[XSEG_HISTORY_DEPTH];
    uint32_t depth;     /* number of observers that the thread is in */
    bool is_registered; /* `link` is in the list */
    bool has_ended;     /* the thread is ending and has unregistered for good */
    struct xseg_history_thread_label labels[XSEG_HISTORY_LABELS]; /* last set first */
    struct xseg_list link; /* in the list of registered contexts */
    uint32_t saved_count;
    struct xseg_history_thread_label saved_labels[XSEG_HISTORY_SCOPES]; /* innermost scope last */
};

/* The context of the calling thread. */
struct xseg_history_context *xseg_history_context(void);

/* Register the context of the calling thread as roots of sweeps.  Returns false on host allocation
 * failure, and while the thread ends. */
bool xseg_history_context_register(void);

/*
 * Visit the roots in the registered contexts of all threads: the frame IDs that calls have gathered
 * and may still record, and the current and saved labels of a store.  Each call of `visit` has a
 * frame ID or a label; the other argument is 0.
 */
void xseg_history_for_each_root(const struct xseg_history_store *store,
                                void (*visit)(void *self, uint32_t frames, uint32_t label),
                                void *self);

/* --- Gathering. --- */

/* xseg_history_gather() if the settings request a context. */
bool xseg_history_gather_all(struct xseg_history_store *store, uint64_t settings, uint64_t user);

/*
 * Gather the context of a call if the settings request call stacks or `user` values.  The caller
 * holds no lock.
 *
 * @param user  of the request; NULL: none
 * @return whether a history sweep is due, which the caller then runs
 */
static inline __attribute__((warn_unused_result)) bool
xseg_history_gather(struct xseg_history_store *store, const void *user)
{
    const uint64_t settings = xseg_history_store_settings(store);

    return __builtin_expect((settings & XSEG_HISTORY_GATHERS) != 0, 0) &&
           xseg_history_gather_all(store, settings, (uint64_t)(uintptr_t)user);
}

/* Save what the current call has gathered before an observer runs, and restore it afterwards. */
struct xseg_history_gathered xseg_history_context_save(void);
void xseg_history_context_restore(const struct xseg_history_gathered *gathered);

/* Whether the context was gathered under these settings.  If not, it belongs to an earlier call. */
static inline bool xseg_history_context_is_of(const struct xseg_history_context *context,
                                              uint64_t settings)
{
    return context->gathered.version == xseg_history_settings_version(settings);
}

/* The `user` value of the current call; 0: none. */
static inline uint64_t xseg_history_user_of(const struct xseg_history_context *context,
                                            uint64_t settings)
{
    return xseg_history_context_is_of(context, settings) ? context->gathered.user : 0;
}

/* Change the `user` value of the current call for the blocks that it allocates from now on.  Does
 * nothing if the settings have changed since the call gathered its context. */
void xseg_history_set_user(const struct xseg_history_store *store, uint64_t user);

/* --- Labels. --- */

/* The current label of a thread, or 0. */
static inline uint32_t xseg_history_label_of(const struct xseg_history_context *context,
                                             const struct xseg_history_store *store)
{
    for (unsigned i = 0; i < XSEG_HISTORY_LABELS && context->labels[i].store != 0; i++)
        if (context->labels[i].store == store->serial)
            return context->labels[i].label;
    return 0;
}

/*
 * Set the current label of the calling thread.  The caller holds the lock of the labels.  The
 * thread must be registered unless the label is 0.
 *
 * @param label       0: none
 * @param text        the string that the program passed; the string of a saved label ends the scope
 *                    of that label
 * @param saves_last  save the last label for the end of the scope
 * @return the last label, or 0
 */
uint32_t xseg_history_set_label(struct xseg_history_store *store, uint32_t label, const char *text,
                                bool saves_last) XSEG_REQUIRES(store->labels.lock);

/* Keep a label alive for the calling thread, which is registered, without making it current; and
 * release it. */
void xseg_history_retain_label(struct xseg_history_store *store, uint32_t label)
    XSEG_REQUIRES(store->labels.lock);
void xseg_history_release_label(struct xseg_history_store *store, uint32_t label);

#endif
