/* SPDX-License-Identifier: MIT */
/*
 * A mutex with a rank, and the one table of lock order.
 *
 * A thread may take a lock only if its rank is above every rank that it already holds; builds with
 * checks >= 1 enforce that as it runs.  Of ARENA alone a thread may take several, see device.h.
 *
 * The user's clock may be read under any of these; it must not call the library.
 *
 * FIRST    Taken only while the thread holds no lock:
 *          DRIVER  one per allocator.  Guards opening of devices.  Held across: every call that opens one.
 *          SWEEP   one per allocator.  Guards the sweep of labels and of the hook's numbers.
 *          BUDGET  one per allocator.  Guards its slot in a ledger of processes (budget.h).  Held across: reads and writes of
 *                  the ledger's file.
 * The device memory lock   one per device.  Whoever maps, unmaps, allocates or frees device memory, or walks all
 *          arenas, holds it.  Held across: every driver call, the blocking ones included, and the
 *          functions that a pool's memory comes from, which must not call the library for that reason.
 *          Never held across: other callbacks, log output.  Never taken on a hit.
 * PENDING  one per device, a lock.  Guards the queues of blocks that wait for other streams.
 *          Held across: event create, record, query.  Never across a wait.  While blocks are
 *          pending, every allocation on the device takes it for a look at their events.
 * ARENA    one per arena, a lock (biased_lock.h).  The hot-path lock: guards blocks, free index and counters of one arena.
 *          No driver call, no callback, no log output under it.  Whoever holds the device memory lock may take those of all arenas of
 *          the device, in any order: nobody else waits for one while it has another.
 * TABLE    one per device: guards insertion of streams, arenas and pools.  One per allocator: guards
 *          insertion into the page map, and its host memory.  Held across: questions about a stream.
 * STATS    one per device.  Guards peaks.  Leaf.
 * HISTORY  one per allocator.  Guards hooks, names of pools, and the memory of rings while they are read.
 * REGISTRATIONS one per allocator.  Guards the user's registrations and their runs.  Released while a callback runs.
 * OBSERVERS one per allocator.  Guards the list of observers and what is to be told to them.  Leaf.
 *          Let go of while one is called.
 * LEAF     No lock is taken under one of these, so no thread holds two of them:
 *          LABELS         one per allocator.  Guards the strings of labels, and which label a thread has.
 *          DEPOT          one per depot of stacks.  Guards adding a stack.  Held across: dl_iterate_phdr() of the loader, which
 *                         waits for no constructor and calls nothing of the program.
 *          LEDGERS        one per process.  Guards the list of open ledgers (shared_budget.h).  Held across: opening and closing their
 *                         files, and a fork.
 */
#ifndef XSEG_BASE_MUTEX_H
#define XSEG_BASE_MUTEX_H

#include <pthread.h>

#include "src/base/check.h"

#if defined(__clang__)
#define XSEG_TSA(x) __attribute__((x))
#else
#define XSEG_TSA(x)
#endif
#define XSEG_CAPABILITY  XSEG_TSA(capability("mutex"))
#define XSEG_ACQUIRES(m) XSEG_TSA(acquire_capability(m))
#define XSEG_RELEASES(m) XSEG_TSA(release_capability(m))
#define XSEG_REQUIRES(m) XSEG_TSA(requires_capability(m))
#define XSEG_TRIES(m)    XSEG_TSA(try_acquire_capability(true, m))
#define XSEG_UNCHECKED   XSEG_TSA(no_thread_safety_analysis)

enum xseg_lock_rank {
    XSEG_RANK_FIRST = 1,
    XSEG_RANK_DEVICE_MEMORY,
    XSEG_RANK_PENDING,
    XSEG_RANK_ARENA,
    XSEG_RANK_TABLE,
    XSEG_RANK_STATS,
    XSEG_RANK_HISTORY,
    XSEG_RANK_REGISTRATIONS,
    XSEG_RANK_OBSERVERS,
    XSEG_RANK_LEAF,
    XSEG_RANK_COUNT
};

struct XSEG_CAPABILITY xseg_mutex {
    pthread_mutex_t os;
    enum xseg_lock_rank rank;
};

void xseg_mutex_init(struct xseg_mutex *lock, enum xseg_lock_rank rank);
void xseg_mutex_fini(struct xseg_mutex *lock);

/* Rank bookkeeping of the calling thread; the lock functions below and those of biased_lock.h call them. */
void xseg_lock_rank_acquired(enum xseg_lock_rank rank);
void xseg_lock_rank_acquired_nested(enum xseg_lock_rank rank); /* others of this rank may be held */
void xseg_lock_rank_released(enum xseg_lock_rank rank);
void xseg_mutex_record_acquired(const struct xseg_mutex *lock);
void xseg_mutex_record_released(const struct xseg_mutex *lock);

/* Whether the calling thread holds a lock of a rank, or of any rank.  For assertions: noted with
 * checks >= 1 only. */
bool xseg_lock_rank_is_held(enum xseg_lock_rank rank);
bool xseg_lock_rank_is_any_held(void);

static inline void xseg_mutex_lock(struct xseg_mutex *lock) XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_mutex_record_acquired(lock);
#endif
    (void)pthread_mutex_lock(&lock->os);
}

/* Take a lock that nobody holds; false if somebody does. */
static inline bool xseg_mutex_trylock(struct xseg_mutex *lock) XSEG_TRIES(*lock) XSEG_UNCHECKED
{
    if (pthread_mutex_trylock(&lock->os) != 0)
        return false;
#if XSEG_CHECKS >= 1
    xseg_mutex_record_acquired(lock);
#endif
    return true;
}

static inline void xseg_mutex_unlock(struct xseg_mutex *lock) XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
    (void)pthread_mutex_unlock(&lock->os);
#if XSEG_CHECKS >= 1
    xseg_mutex_record_released(lock);
#endif
}

#endif
