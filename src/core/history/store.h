/* SPDX-License-Identifier: MIT */
/*
 * The store: what the histories of an allocator's devices share, namely the settings, the clock, the labels, and
 * the depot of stacks.
 *
 * Terms:
 *   settings  one word that says what is noted; 0 while nothing is
 *   version   number that settings draw when they change, of all stores; so it tells what was gathered under other
 *             settings, or for a store that is gone
 *   ticks     the unit of the clock: nanoseconds of the user's clock or of CLOCK_MONOTONIC, or of the processor's
 *             counter where that runs at one speed whatever the processor does (CPUID 80000007h, EDX bit 8)
 *
 * Locking: HISTORY guards hooks, names of pools, and the memory of rings; LABELS the labels, SWEEP the sweep that
 * drops some.  Everything else is atomic or does not change.
 */
#ifndef XSEG_CORE_HISTORY_STORE_H
#define XSEG_CORE_HISTORY_STORE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/stack_depot.h"
#include "src/core/history/labels.h"
#include "src/core/history/pool_ids.h"
#include "xseg/history.h"

/* Settings, from the lowest bit on: actions whose events are noted, actions whose stacks are taken, and these. */
#define XSEG_HISTORY_STACKS_SHIFT 16u
#define XSEG_HISTORY_ORIGINS      ((uint64_t)1 << 32) /* live blocks: when they were allocated */
#define XSEG_HISTORY_ORIGIN_STACK ((uint64_t)1 << 33) /* live blocks: by which stack */
#define XSEG_HISTORY_TRACED       ((uint64_t)1 << 34) /* an observer has `on_trace` */
#define XSEG_HISTORY_GATHERS      ((uint64_t)1 << 35) /* calls gather their context */
#define XSEG_HISTORY_USERS        ((uint64_t)1 << 36) /* live blocks, and events: the user's words */
/* From this bit on the version, which is not 0 unless the settings are. */
#define XSEG_HISTORY_VERSION_SHIFT 37u

_Static_assert(XSEG_HISTORY_ACTIONS <= XSEG_HISTORY_STACKS_SHIFT, "each action has a bit");

struct xseg_config;
struct xseg_strbuf;

/* The user's hook.  One that is replaced stays, since a thread may still be in it. */
struct xseg_history_hooked {
    struct xseg_history_hook calls;
    struct xseg_history_hooked *before;
};

struct xseg_history_store {
    atomic_uint_fast64_t settings;
    atomic_uint_fast64_t capacity; /* events of a ring; never 0 */
    atomic_uint_fast64_t order;    /* numbers drawn so far, see history.h */
    /* Ticks: since then all actions that the settings name are noted.  Before, some were not. */
    atomic_uint_fast64_t whole_since;
    uint64_t serial;                /* of all stores there were, from 1 on */
    struct xseg_clock clock;        /* the user's, if clock.read is not NULL */
    bool counts_cycles;             /* ticks are those of the processor's counter */
    uint64_t first_ticks, first_ns; /* of one moment, when the store was made */
    struct xseg_mutex lock;         /* HISTORY */
    struct xseg_history_labels labels;
    struct xseg_mutex sweep_lock;               /* SWEEP */
    struct xseg_pool_ids pool_ids;              /* guarded by HISTORY */
    _Atomic(struct xseg_stack_depot *) depot;   /* NULL until stacks are switched on */
    _Atomic(struct xseg_history_hooked *) hook; /* the one in force, or NULL */
    struct xseg_history_hooked *hooks;          /* all so far, newest first; guarded by HISTORY */
    atomic_bool is_discarding; /* a thread collects numbers for the hook's `discard`, or is in it */
    atomic_uint_fast64_t gathers,
        sweep_after; /* numbers since the last sweep; so many make the next one due */
};

void xseg_history_store_init(struct xseg_history_store *store, const struct xseg_clock *clock);
void xseg_history_store_fini(struct xseg_history_store *store);

/* Let the settings follow a configuration. */
void xseg_history_store_follow(struct xseg_history_store *store, const struct xseg_config *config);

static inline uint64_t xseg_history_store_settings(const struct xseg_history_store *store)
{
    return atomic_load_explicit(&store->settings, memory_order_acquire);
}

/* The depot of stacks; NULL while none was taken. */
static inline struct xseg_stack_depot *xseg_history_store_depot(struct xseg_history_store *store)
{
    return atomic_load_explicit(&store->depot, memory_order_acquire);
}

/* Make the depot, unless another thread has, and ready the unwinder.  No lock is held: that opens a library.
 * Returns NULL without host memory. */
struct xseg_stack_depot *xseg_history_store_make_depot(struct xseg_history_store *store);

/*
 * Print up to `max` frames of a stack, the innermost first, from the caller of the library on; nothing of an unknown stack.
 *
 * lead: printed before the frames
 */
void xseg_history_store_print_stack(struct xseg_history_store *store, uint32_t stack, unsigned max,
                                    const char *lead, struct xseg_strbuf *text);

/* The user's hook in force, or NULL. */
static inline const struct xseg_history_hook *
xseg_history_store_hook(const struct xseg_history_store *store)
{
    const struct xseg_history_hooked *hook =
        atomic_load_explicit(&store->hook, memory_order_acquire);

    return hook == NULL ? NULL : &hook->calls;
}

/* Count a number that the hook has returned.  Returns whether a sweep is due, which stays due until one has ended: while
 * another thread sweeps, the call that reached the limit runs none. */
static inline bool xseg_history_store_count_gather(struct xseg_history_store *store)
{
    return atomic_fetch_add_explicit(&store->gathers, 1, memory_order_relaxed) >=
           atomic_load_explicit(&store->sweep_after, memory_order_relaxed);
}

/* Put a hook in force; NULL: none.  Returns false without host memory. */
bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls);

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

/* Whether calls take stacks. */
static inline bool xseg_history_settings_capture(uint64_t settings)
{
    return (settings & (XSEG_HISTORY_ORIGIN_STACK | (((uint64_t)1 << XSEG_HISTORY_ACTIONS) - 1)
                                                        << XSEG_HISTORY_STACKS_SHIFT)) != 0;
}

/* The time in ticks. */
uint64_t xseg_history_store_now(const struct xseg_history_store *store);

/* A moment by both measures; from here on times up to it can be given in nanoseconds. */
struct xseg_history_moment {
    uint64_t ticks, ns;
};
struct xseg_history_moment xseg_history_store_moment(const struct xseg_history_store *store);
uint64_t xseg_history_store_ns(const struct xseg_history_store *store,
                               const struct xseg_history_moment *moment, uint64_t ticks);

#endif
