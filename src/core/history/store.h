/* SPDX-License-Identifier: MIT */
/*
 * The history store: the part of the history that all devices of an allocator share.
 *
 * It has the settings, the clock, the labels, the stack depot, the hook of the program, and the
 * IDs of pools.
 *
 * The settings are one atomic word, so that a call decides with one load what it records.  The word
 * is 0 while nothing is recorded.  Its upper bits are a version, which is unique among all stores
 * of the process.  The context of a call (context.h) has the version under which it was gathered,
 * so a context of other settings, or of an allocator that was closed, is recognized and not used.
 *
 * Times are in ticks.  A tick is one increment of the CPU's time stamp counter if that counter is
 * invariant (CPUID 80000007h, EDX bit 8; always on aarch64), and one nanosecond of the clock of the
 * application or of CLOCK_MONOTONIC otherwise.  A reader converts ticks to nanoseconds by linear
 * interpolation between two moments at which both clocks were read: the creation of the store and
 * the read.
 *
 * A hook that was replaced stays allocated until the store is destroyed, because a thread may still
 * be in its functions.
 *
 * Locking: the lock `lock` (rank HISTORY) guards the hooks and the IDs of pools, and the arrays of
 * rings against replacement; `labels.lock` (a leaf) the labels; `sweep_lock` (rank FIRST) makes
 * sweeps exclusive.  All other members are atomic or constant.
 */
#ifndef XSEG_CORE_HISTORY_STORE_H
#define XSEG_CORE_HISTORY_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/stack_depot.h"
#include "src/core/history/labels.h"
#include "xseg/history.h"

/* Settings, from the lowest bit on: the actions whose events are recorded, the actions whose call
 * stacks are recorded, and these flags. */
#define XSEG_HISTORY_STACKS_SHIFT 16u
#define XSEG_HISTORY_ORIGINS      ((uint64_t)1 << 32) /* record when blocks are allocated */
#define XSEG_HISTORY_ORIGIN_STACK ((uint64_t)1 << 33) /* record the call stacks of these */
#define XSEG_HISTORY_TRACED       ((uint64_t)1 << 34) /* an observer has `on_trace` */
#define XSEG_HISTORY_GATHERS      ((uint64_t)1 << 35) /* calls gather a context */
#define XSEG_HISTORY_USERS        ((uint64_t)1 << 36) /* record the `user` values of requests */
/* From this bit on the version, which is 0 only if the settings are. */
#define XSEG_HISTORY_VERSION_SHIFT 37u

_Static_assert(XSEG_HISTORY_ACTIONS <= XSEG_HISTORY_STACKS_SHIFT, "each action has a bit");

struct xseg_config;
struct xseg_strbuf;

/* A hook of the user, in the list of all hooks of a store. */
struct xseg_history_hook_node {
    struct xseg_history_hook calls;
    struct xseg_history_hook_node *older;
};

/* The ID that the user gave to a pool. */
struct xseg_pool_id {
    uint32_t pool; /* the library's ID of the pool */
    uint64_t id[2];
};

struct xseg_history_store {
    atomic_uint_fast64_t settings;
    atomic_uint_fast64_t capacity; /* events of a ring; never 0 */
    atomic_uint_fast64_t order;    /* sequence numbers so far, see history.h */
    /* Ticks at which the recorded actions last became more.  From this time on the history has
     * all events of the actions in the settings. */
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
    atomic_bool is_discarding;         /* a thread prepares or runs `discard` of the hook */
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

/* Create the stack depot, unless another thread has done so, and initialize the unwinder.  The
 * caller holds no lock, because the unwinder is loaded as a library.  Returns NULL on host
 * allocation failure. */
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

/* Count a frame ID from the hook.  Returns whether a sweep is due.  A sweep remains due until one
 * has ended, because the call that reaches the limit does not sweep while another thread does. */
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

#endif
