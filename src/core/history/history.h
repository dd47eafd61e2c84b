/* SPDX-License-Identifier: MIT */
/*
 * The history of a device: events, each with its time, thread, label and call stack.
 *
 * Each arena appends its events to its own ring (ring.h) under the arena lock, which the caller
 * holds anyway.  So recording acquires no other lock and is ordered within an arena.  The first
 * event of an arena creates the ring, which is destroyed with the device, after the arena.
 *
 * Readers merge the rings of a device, or of several devices, into one sequence (ring.h).  Times
 * alone cannot order the events of two arenas, because the counters of two CPUs may differ.  The
 * order matters where memory passes from one arena to another.  Events of such a transfer are
 * recorded under the device memory lock, with a sequence number.  The merge sorts by these numbers
 * first and by time second.
 *
 * The members of an event have three sources.  The caller provides the block and the action.  The
 * context of the calling thread provides the call stack, the frames of the user's hook, the label
 * and the thread ID; a call gathers its stack and frames at its start, before any lock is held.
 * The store, which all devices of an allocator share, provides the settings, the clock, the labels
 * (labels.h) and the stack depot.
 *
 * Cost: the settings are one 64-bit word, which is 0 while nothing is recorded.  A call on the slow
 * path tests the word once, a hit on the fast path not at all, because the configuration excludes
 * such hits (`records_blocks`).  Appending an event acquires no lock, makes no system call, causes
 * page faults only while a ring is new, and allocates host memory only for the first event of an
 * arena.
 *
 * Locking: the arena lock for appending to the ring of an arena.  The device memory lock for
 * sequence numbers and for `device_ring`.  The history lock of the store (rank HISTORY) against
 * replacement of the arrays of a ring while they are read.
 */
#ifndef XSEG_CORE_HISTORY_HISTORY_H
#define XSEG_CORE_HISTORY_HISTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/clock.h"
#include "src/base/list.h"
#include "src/base/mutex.h"
#include "src/base/stack_depot.h"
#include "src/core/history/labels.h"
#include "src/core/history/ring.h"
#include "xseg/history.h"

/* --- Store. --- */

/*
 * The history store: the part of the history that all devices of an allocator share.
 *
 * It has the settings, the clock, the labels, the stack depot, the hook of the program, and the
 * IDs of pools.
 *
 * The settings are one atomic word, so that one load determines what a call records.  The word is
 * 0 while nothing is recorded.  Its upper bits are a version, which is unique among all stores of
 * the process.  The context of a call has the version under which it was gathered, so a context
 * of other settings, or of an allocator that was closed, is detected and not used.
 *
 * Times are in ticks.  A tick is one increment of the CPU's time stamp counter if that counter is
 * invariant (CPUID 80000007h, EDX bit 8; always on aarch64), and one nanosecond of the clock of the
 * application or of CLOCK_MONOTONIC otherwise.  A reader converts ticks to nanoseconds by linear
 * interpolation between two moments at which both clocks were read: the creation of the store and
 * the read.
 *
 * A hook that was replaced remains allocated until the store is destroyed, because a thread may
 * still be in its functions.
 *
 * Locking: the lock `lock` (rank HISTORY) guards the hooks and the IDs of pools, and the arrays of
 * rings against replacement; `labels.lock` (a leaf) the labels; `sweep_lock` (rank FIRST) makes
 * sweeps exclusive.  All other members are atomic or constant.
 */

/* Settings, from the lowest bit up: the actions whose events are recorded, the actions whose call
 * stacks are recorded, and these flags. */
#define XSEG_HISTORY_STACKS_SHIFT 16u
#define XSEG_HISTORY_ORIGINS      ((uint64_t)1 << 32) /* record when blocks are allocated */
#define XSEG_HISTORY_ORIGIN_STACK ((uint64_t)1 << 33) /* record call stacks of allocations */
#define XSEG_HISTORY_TRACED       ((uint64_t)1 << 34) /* an observer has `on_trace` */
#define XSEG_HISTORY_GATHERS      ((uint64_t)1 << 35) /* calls gather a context */
#define XSEG_HISTORY_USERS        ((uint64_t)1 << 36) /* record the `user` values of requests */
/* From this bit up: the version, which is 0 only if the settings are 0. */
#define XSEG_HISTORY_VERSION_SHIFT 37u

_Static_assert(XSEG_HISTORY_ACTIONS <= XSEG_HISTORY_STACKS_SHIFT, "each action has a bit");

struct xseg_config;
struct xseg_strbuf;

/* A hook of the user, in the list of all hooks of a store. */
struct xseg_history_hook_node {
    struct xseg_history_hook calls;
    struct xseg_history_hook_node *older;
};

/* The ID that the user assigned to a pool. */
struct xseg_pool_id {
    uint32_t pool; /* the library's ID of the pool */
    uint64_t id[2];
};

struct xseg_history_store {
    atomic_uint_fast64_t settings;
    atomic_uint_fast64_t capacity; /* events of a ring; never 0 */
    atomic_uint_fast64_t order;    /* number of sequence numbers so far */
    /* Ticks of the last change of the settings that added actions.  From this time on the history
     * has all events of the actions in the settings. */
    atomic_uint_fast64_t complete_since;
    uint64_t serial;                /* unique among all stores of the process, from 1 on */
    struct xseg_clock clock;        /* the user's clock; clock.read NULL: CLOCK_MONOTONIC */
    bool uses_cycle_counter;        /* a tick is one increment of the time stamp counter */
    uint64_t first_ticks, first_ns; /* both clocks at the creation of the store */
    struct xseg_mutex lock;         /* HISTORY */
    struct xseg_history_labels labels;
    struct xseg_mutex sweep_lock;                  /* FIRST */
    struct xseg_pool_id *pool_ids;                 /* [pool_id_count], sorted by pool; HISTORY */
    size_t pool_id_count, pool_id_capacity;        /* HISTORY */
    _Atomic(struct xseg_stack_depot *) depot;      /* NULL until the first call stack */
    _Atomic(struct xseg_history_hook_node *) hook; /* the current hook, or NULL */
    struct xseg_history_hook_node *hooks;          /* all hooks, newest first; HISTORY */
    atomic_bool is_discarding;         /* a thread prepares or calls `discard` of the hook */
    atomic_uint_fast64_t gather_count; /* frame IDs from the hook since the last sweep */
    atomic_uint_fast64_t sweep_at;     /* the count at which a sweep is due */
};

void xseg_history_store_init(struct xseg_history_store *store, const struct xseg_clock *clock);
void xseg_history_store_fini(struct xseg_history_store *store);

/* Set the settings and the capacity from a configuration. */
void xseg_history_store_configure(struct xseg_history_store *store,
                                  const struct xseg_config *config);

static inline uint64_t xseg_history_store_settings(const struct xseg_history_store *store)
{
    return atomic_load_explicit(&store->settings, memory_order_acquire);
}

static inline uint32_t xseg_history_settings_version(uint64_t settings)
{
    return (uint32_t)(settings >> XSEG_HISTORY_VERSION_SHIFT);
}

static inline bool xseg_history_settings_record(uint64_t settings, enum xseg_history_action action)
{
    return (settings >> action & 1) != 0;
}

static inline bool xseg_history_settings_stack(uint64_t settings, enum xseg_history_action action)
{
    return (settings >> (XSEG_HISTORY_STACKS_SHIFT + action) & 1) != 0;
}

/* Whether calls capture their call stack. */
static inline bool xseg_history_settings_capture(uint64_t settings)
{
    return (settings & (XSEG_HISTORY_ORIGIN_STACK | (((uint64_t)1 << XSEG_HISTORY_ACTIONS) - 1)
                                                        << XSEG_HISTORY_STACKS_SHIFT)) != 0;
}

/* --- Stacks and the hook. --- */

/* The stack depot, or NULL. */
static inline struct xseg_stack_depot *xseg_history_store_depot(struct xseg_history_store *store)
{
    return atomic_load_explicit(&store->depot, memory_order_acquire);
}

/* Create the stack depot unless it exists, and initialize the unwinder.  The caller holds no lock,
 * because the unwinder is loaded as a library.  Returns NULL on host allocation failure. */
struct xseg_stack_depot *xseg_history_store_create_depot(struct xseg_history_store *store);

/*
 * Print up to `max` frames of a call stack, innermost first, without the frames of the library.
 * Prints nothing for an unknown ID.
 *
 * @param lead  printed before the frames
 */
void xseg_history_store_print_stack(struct xseg_history_store *store, uint32_t stack, unsigned max,
                                    const char *lead, struct xseg_strbuf *text);

/* The current hook, or NULL. */
static inline const struct xseg_history_hook *
xseg_history_store_hook(const struct xseg_history_store *store)
{
    const struct xseg_history_hook_node *hook =
        atomic_load_explicit(&store->hook, memory_order_acquire);

    return hook == NULL ? NULL : &hook->calls;
}

/* Replace the hook; NULL removes it.  Returns false on host allocation failure. */
bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls);

/* Count a frame ID from the hook.  Returns whether a sweep is due.  A sweep remains due until a
 * sweep has ended, because the call that reaches the limit does not sweep while another thread
 * does. */
static inline bool xseg_history_store_count_gather(struct xseg_history_store *store)
{
    return atomic_fetch_add_explicit(&store->gather_count, 1, memory_order_relaxed) >=
           atomic_load_explicit(&store->sweep_at, memory_order_relaxed);
}

/* --- IDs of pools. --- */

/* Record the user's ID of a pool, not {0, 0}.  The ID remains after the pool is destroyed, because
 * events refer to it: 24 bytes for each pool with an ID.  Returns false on host allocation
 * failure. */
bool xseg_history_store_add_pool_id(struct xseg_history_store *store, uint32_t pool,
                                    const uint64_t id[2]);

/* Get the user's ID of a pool, or {0, 0}. */
void xseg_history_store_get_pool_id(struct xseg_history_store *store, uint32_t pool,
                                    uint64_t id[2]);

/* --- Time. --- */

/* The current time in ticks. */
uint64_t xseg_history_store_now(const struct xseg_history_store *store);

/* One moment on both clocks. */
struct xseg_history_moment {
    uint64_t ticks, ns;
};

struct xseg_history_moment xseg_history_store_moment(const struct xseg_history_store *store);

/* Convert ticks before a moment to nanoseconds. */
uint64_t xseg_history_store_ns(const struct xseg_history_store *store,
                               const struct xseg_history_moment *moment, uint64_t ticks);

/* --- Contexts of threads. --- */

/*
 * The context of a call: the call stack, the frame ID of the hook, the label and the `user` value
 * that the events of the call carry.
 *
 * A call that may record events gathers its context first, while no lock is held, because capturing
 * a call stack takes microseconds and the user's hook may call any function.  The context is
 * thread-local and valid until the next call of the thread gathers.  While an observer runs in the
 * middle of a call, calls of the observer gather their own context; the context of the outer call
 * is saved and restored around the observer.
 *
 * The frame IDs and the labels of threads are roots of the history sweep (instance.h).  So a
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

/* Allocators for which a thread has a label.  A label for a further allocator replaces the least
 * recently set one. */
#define XSEG_HISTORY_LABELS 4u

/* Depth of calls that are nested by observers.  Deeper calls share the last entry. */
#define XSEG_HISTORY_DEPTH 4u

/* Labels of enclosing scopes that a thread keeps. */
#define XSEG_HISTORY_SCOPES 32u

struct xseg_history_gathered {
    uint32_t version; /* of the settings under which the context was gathered; 0: none */
    uint32_t stack, frames;
    uint64_t user; /* of the request; 0: none */
};

struct xseg_history_thread_label {
    uint64_t store; /* serial number of the label's store; 0: no label */
    uint32_t label;
};

struct xseg_history_context {
    struct xseg_history_gathered gathered; /* context of the current call */
    uint32_t thread;                       /* kernel thread ID; 0: not queried yet */
    /* Frame IDs of the current call and of the calls around it, as roots of a sweep. */
    atomic_uint_least32_t frames_in_use[XSEG_HISTORY_DEPTH];
    uint32_t depth;     /* number of nested observer callbacks that the thread runs */
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

/* Gather the context of a call; the slow path of xseg_history_gather(). */
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

/* Save the gathered context of the current call before an observer runs, and restore it
 * afterwards. */
struct xseg_history_gathered xseg_history_context_save(void);
void xseg_history_context_restore(const struct xseg_history_gathered *gathered);

/* Whether the context was gathered under these settings.  Otherwise the context is that of an
 * earlier call. */
static inline bool xseg_history_context_matches(const struct xseg_history_context *context,
                                                uint64_t settings)
{
    return context->gathered.version == xseg_history_settings_version(settings);
}

/* The `user` value of the current call; 0: none. */
static inline uint64_t xseg_history_user_of(const struct xseg_history_context *context,
                                            uint64_t settings)
{
    return xseg_history_context_matches(context, settings) ? context->gathered.user : 0;
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

/* Retain a label for the calling thread, which is registered, without making the label current; and
 * release it. */
void xseg_history_retain_label(struct xseg_history_store *store, uint32_t label)
    XSEG_REQUIRES(store->labels.lock);
void xseg_history_release_label(struct xseg_history_store *store, uint32_t label);

struct xseg_observers;

struct xseg_history {
    struct xseg_history_store *store;
    struct xseg_observers *observers;
    int device;
    _Atomic(struct xseg_history_ring *) rings; /* of all arenas that have had an event */
    /* Events that belong to no arena, such as annotations; guarded by the device memory lock. */
    struct xseg_history_ring *device_ring;
};

void xseg_history_init(struct xseg_history *history, struct xseg_history_store *store,
                       struct xseg_observers *observers, int device);
void xseg_history_fini(struct xseg_history *history);

/* The next sequence number, not 0, of the events of all devices.  The caller holds the device
 * memory lock. */
static inline uint32_t xseg_history_next_order(struct xseg_history *history)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return (uint32_t)(atomic_fetch_add_explicit(&history->store->order, 1, memory_order_relaxed) %
                      UINT32_MAX) +
           1;
}

/* Create the ring of an arena, or resize it to `capacity`.  On host allocation failure the ring is
 * unchanged, which includes NULL. */
struct xseg_history_ring *xseg_history_prepare_ring(struct xseg_history *history,
                                                    struct xseg_history_ring **ring,
                                                    uint64_t capacity);

/* Set the stack and the frames of an event if the settings request them for its action. */
static inline void xseg_history_set_stack(uint64_t settings,
                                          const struct xseg_history_context *context,
                                          struct xseg_history_event *event)
{
    const bool has_stack =
        xseg_history_context_matches(context, settings) &&
        xseg_history_settings_stack(settings, (enum xseg_history_action)event->action);

    event->stack = has_stack ? context->gathered.stack : 0;
    event->frames = has_stack ? context->gathered.frames : 0;
}

/* Set the members of an event that the caller has not set: thread, label, stack, frames, time. */
static inline void xseg_history_complete_event(const struct xseg_history *history,
                                               uint64_t settings,
                                               const struct xseg_history_context *context,
                                               struct xseg_history_event *event)
{
    const struct xseg_history_store *store = history->store;

    event->thread = context->thread;
    if (event->label == 0)
        event->label = xseg_history_label_of(context, store);
    xseg_history_set_stack(settings, context, event);
    if (event->time == 0)
        event->time = xseg_history_store_now(store);
}

/*
 * Append an event to the ring of an arena.  If a new ring cannot be allocated, the event is lost.
 *
 * The function is inline so that the event stays in registers: a store to memory followed by an
 * immediate load doubles the time of an append.
 *
 * @param ring     the ring of the arena; NULL: create it
 * @param context  the context of the calling thread
 * @param then     a second action on the same block at the same time; XSEG_HISTORY_ACTIONS: none
 */
static inline void xseg_history_append(struct xseg_history *history,
                                       struct xseg_history_ring **ring, uint64_t settings,
                                       const struct xseg_history_context *context,
                                       struct xseg_history_event event,
                                       enum xseg_history_action then)
{
    const uint64_t capacity = atomic_load_explicit(&history->store->capacity, memory_order_relaxed);
    struct xseg_history_ring *target = *ring;

    XSEG_ASSERT(capacity != 0 && event.action < XSEG_HISTORY_ACTIONS);
    if (__builtin_expect(target == NULL || target->capacity != capacity, 0))
        target = xseg_history_prepare_ring(history, ring, capacity);
    if (target == NULL)
        return;
    xseg_history_complete_event(history, settings, context, &event);
    xseg_history_ring_append(target, &event);
    if (then == XSEG_HISTORY_ACTIONS)
        return;
    event.action = (uint8_t)then;
    xseg_history_set_stack(settings, context, &event);
    xseg_history_ring_append(target, &event);
}

/* Append an event with its `user`, which may be 0, to the ring of an arena.  On host allocation
 * failure for the `user` array the event has no `user`. */
void xseg_history_append_with_user(struct xseg_history *history, struct xseg_history_ring **ring,
                                   uint64_t settings, const struct xseg_history_context *context,
                                   struct xseg_history_event *event, uint64_t user);

/* Append an event that belongs to no arena to the ring of the device, which is created with this
 * capacity.  The caller holds the device memory lock.  Returns false on host allocation failure. */
bool xseg_history_append_to_device(struct xseg_history *history, uint64_t capacity,
                                   uint64_t settings, struct xseg_history_event *event);

/* Resident host bytes of all rings.  Acquires the history lock. */
uint64_t xseg_history_host_bytes(const struct xseg_history *history);

/*
 * Print when, in which thread and from which call stack the block at an address was last freed, for
 * messages about double frees and writes after a free.  The caller holds no lock, because the
 * user's hook is called to name its frames.
 *
 * @param lead  printed first
 * @return false, with nothing printed, if no such free is recorded
 */
bool xseg_history_print_free(struct xseg_history *history, uint64_t address, const char *lead,
                             struct xseg_strbuf *text);

#endif
