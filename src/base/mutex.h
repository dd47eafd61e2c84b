/* SPDX-License-Identifier: MIT */
/*
 * A mutex with a rank, and the lock order of the library.
 *
 * A thread may lock only a lock whose rank is above the ranks of all locks that it holds.  Builds with checks >= 1 verify
 * this on each lock, per thread.  ARENA is the only rank of which a thread may hold several locks.  biased_lock.h has the
 * second kind of lock with a rank.  The user's clock may be called under any lock; it must not call the library.
 *
 * The ranks, from the outermost to the innermost:
 *
 * FIRST    Locked only by a thread that holds no lock:
 *            DRIVER  one per allocator.  Guards opening devices, and is held while a device is opened.
 *            SWEEP   one per allocator.  Guards the sweep of labels and of the hook's IDs.
 *            BUDGET  one per allocator.  Guards the allocator's slot in the shared budget file, and is held while the file is
 *                    read and written (budget.h).
 * DEVICE_MEMORY
 *          One per device.  Guards mapping, unmapping, allocation and release of device memory, and walks over all arenas.
 *          Held during all driver calls, including blocking ones, and during the callbacks that allocate a pool's memory,
 *          which therefore must not call the library.  Not held during other callbacks and log output, and never locked on a
 *          hit.
 * PENDING  One per device; a biased lock.  Guards the queues of blocks that are pending free.  Held while events are
 *          created, recorded and queried, not during waits.  While blocks are pending, every allocation on the device locks
 *          it to poll events.
 * ARENA    One per arena; a biased lock, the lock of the hot path.  Guards the blocks, the free index and the counters of
 *          the arena.  No driver call, callback or log output runs under it.  A thread that holds DEVICE_MEMORY may lock
 *          several arenas of the device, in any order: no other thread waits for an arena while it holds another one.
 * TABLE    One per device: guards insertion of streams, arenas and pools.  One per allocator: guards insertion into the page
 *          map, and its host memory.  Held while the capture state of a stream is queried.
 * STATS    One per device.  Guards peaks.  No lock is locked under it.
 * HISTORY  One per allocator.  Guards hooks, names of pools, and the host memory of rings while they are read.
 * REGISTRATIONS
 *          One per allocator.  Guards the user's registrations and their runs.  Released while a callback runs.
 * OBSERVERS
 *          One per allocator.  Guards the list of observers and the queued notifications.  Released while an observer is
 *          called.  No lock is locked under it.
 * LEAF     No lock is locked under one of these, so a thread holds at most one of them:
 *            LABELS  one per allocator.  Guards the strings of labels, and the label of each thread.
 *            DEPOT   one per stack depot.  Guards insertion of stacks.  Held during dl_iterate_phdr(), which waits for no
 *                    constructor and calls no function of the program.
 *            BUDGET_FILES
 *                    one per process.  Guards the list of open shared budget files (shared_budget.h).  Held while a file is
 *                    opened or closed, and during fork().
 *            DEBUG_FILL
 *                    one per device.  Guards the set of ranges that contain the debug pattern (pending.h).
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

/* Record ranks for the calling thread; called by the lock functions below and those of biased_lock.h. */
void xseg_lock_rank_acquired(enum xseg_lock_rank rank);
void xseg_lock_rank_acquired_nested(
    enum xseg_lock_rank rank); /* the thread may hold locks of this rank */
void xseg_lock_rank_released(enum xseg_lock_rank rank);
void xseg_mutex_record_acquired(const struct xseg_mutex *lock);
void xseg_mutex_record_released(const struct xseg_mutex *lock);

/* Whether the calling thread holds a lock of a rank, or of any rank.  Recorded with checks >= 1 only, for assertions. */
bool xseg_lock_rank_is_held(enum xseg_lock_rank rank);
bool xseg_lock_rank_is_any_held(void);

static inline void xseg_mutex_lock(struct xseg_mutex *lock) XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_mutex_record_acquired(lock);
#endif
    (void)pthread_mutex_lock(&lock->os);
}

/* Lock without waiting; false if another thread holds the lock. */
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
