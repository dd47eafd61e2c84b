/* SPDX-License-Identifier: MIT */
/*
 * The context of a call: the stack, the user's frames, the label and the word of the request that its events carry.
 *
 * A call of the library that may note events gathers its context first, while no lock is held: a stack takes
 * time, and the user's hook may do anything.  The context stays until the thread's next call gathers; around an
 * observer, which may make calls in the middle of another, it is put aside.
 *
 * Locking: none; each thread has its own.  A mutex of the process guards the list of contexts, and covers what a thread
 * writes of its labels; no other lock is taken while it is held.
 */
#ifndef XSEG_CORE_HISTORY_CONTEXT_H
#define XSEG_CORE_HISTORY_CONTEXT_H

#include "src/base/list.h"
#include "src/core/history/store.h"

/* Labels of a thread, each of another allocator.  One more takes the place of the one that was set first. */
#define XSEG_HISTORY_LABELS 4u

/* Calls that a thread may be in by way of observers; deeper ones share the last place. */
#define XSEG_HISTORY_DEPTH 4u

/* Labels that a thread was given to put back, of scopes one inside the other. */
#define XSEG_HISTORY_SCOPES 32u

struct xseg_history_gathered {
    uint32_t version; /* of the settings under which it was gathered, see store.h; 0: none */
    uint32_t stack, frames;
    uint64_t user; /* word of the request; 0: none */
};

/* A label that a thread has. */
struct xseg_history_held {
    uint64_t store; /* serial number of the label's store; 0: no label */
    uint32_t label;
};

struct xseg_history_context {
    struct xseg_history_gathered
        gathered;    /* by the call under way; an observer's calls gather their own */
    uint32_t thread; /* the kernel's number; 0: not asked for yet */
    /* Frames of this call and of those around it, for xseg_history_contexts_visit(). */
    atomic_uint_least32_t shown[XSEG_HISTORY_DEPTH];
    uint32_t depth; /* observers that the thread is in */
    bool is_listed; /* `link` is in the list */
    bool is_gone;   /* the thread is ending, and has left the list for good */
    /* The label that was set last comes first. */
    struct xseg_history_held labels[XSEG_HISTORY_LABELS];
    struct xseg_list link; /* in the list of all threads' contexts that have frames or labels */
    uint32_t scopes;
    struct xseg_history_held before[XSEG_HISTORY_SCOPES]; /* [scopes], the innermost last */
};

/* The calling thread's context. */
struct xseg_history_context *xseg_history_context(void);

/* Put aside what the call under way has gathered, while an observer may make other calls; and take it up again. */
struct xseg_history_gathered xseg_history_defer(void);
void xseg_history_resume(const struct xseg_history_gathered *gathered);

/*
 * Visit the numbers of frames that calls of all threads have gathered and may still record, and the labels of a store that
 * threads have or were given to restore.  One of the arguments of `visit` is 0.
 */
void xseg_history_contexts_visit(const struct xseg_history_store *store,
                                 void (*visit)(void *self, uint32_t frames, uint32_t label),
                                 void *self);

/* Whether a context was gathered under these settings: under others it is that of an earlier call. */
static inline bool xseg_history_context_is_of(const struct xseg_history_context *context,
                                              uint64_t settings)
{
    return context->gathered.version == xseg_history_settings_version(settings);
}

/* Let others see what the calling thread has.  False without host memory for that, and while the thread ends. */
bool xseg_history_join_contexts(void);

/*
 * Give the calling thread a label of a store; 0: none.  LABELS is held, and the thread has joined if there is a label.
 *
 * text:       as the thread named it: one that it was given to put back ends its scope, and those inside
 * keeps_last: the label that the thread had is kept, for the thread to put back
 *
 * Returns: the label that the thread had of this store, or 0
 */
uint32_t xseg_history_set_label(struct xseg_history_store *store, uint32_t label, const char *text,
                                bool keeps_last) XSEG_REQUIRES(store->labels.lock);

/* Keep a label for the calling thread, which has joined, as if it had been given it to put back; and let it go. */
void xseg_history_retain_label(struct xseg_history_store *store, uint32_t label)
    XSEG_REQUIRES(store->labels.lock);
void xseg_history_release_label(struct xseg_history_store *store, uint32_t label);

/* The label of a store that a thread has, or 0. */
static inline uint32_t xseg_history_label_of(const struct xseg_history_context *context,
                                             const struct xseg_history_store *store)
{
    for (unsigned i = 0; i < XSEG_HISTORY_LABELS && context->labels[i].store != 0; i++)
        if (context->labels[i].store == store->serial)
            return context->labels[i].label;
    return 0;
}

/* Give the call that the thread is in another word, for the blocks that it hands out from now on.  Does nothing if the
 * settings were others when the call gathered. */
void xseg_history_set_user(const struct xseg_history_store *store, uint64_t user);

/* The word of the call that a thread is in, if it was gathered under these settings; 0: none. */
static inline uint64_t xseg_history_user_of(const struct xseg_history_context *context,
                                            uint64_t settings)
{
    return xseg_history_context_is_of(context, settings) ? context->gathered.user : 0;
}

/* xseg_history_gather() where the settings require a context. */
bool xseg_history_gather_all(struct xseg_history_store *store, uint64_t settings, uint64_t user);

/*
 * Gather the context of a call, if the settings require stacks or words.  No lock is held.
 *
 * user: the word of the request; NULL: none
 *
 * Returns: whether the numbers that the hook has returned make a sweep due, which the caller runs
 */
static inline __attribute__((warn_unused_result)) bool
xseg_history_gather(struct xseg_history_store *store, const void *user)
{
    const uint64_t settings = xseg_history_store_settings(store);

    return __builtin_expect((settings & XSEG_HISTORY_GATHERS) != 0, 0) &&
           xseg_history_gather_all(store, settings, (uint64_t)(uintptr_t)user);
}

#endif
