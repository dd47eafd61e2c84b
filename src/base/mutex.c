/* SPDX-License-Identifier: MIT */
#include "src/base/mutex.h"

/* The number of locks of each rank that the calling thread holds: at most 1, except for nested locks. */
static _Thread_local unsigned held[XSEG_RANK_COUNT];

void xseg_mutex_init(struct xseg_mutex *lock, enum xseg_lock_rank rank)
{
    (void)pthread_mutex_init(&lock->os, NULL);
    lock->rank = rank;
}

void xseg_mutex_fini(struct xseg_mutex *lock)
{
    (void)pthread_mutex_destroy(&lock->os);
}

/* Record a lock of a rank, and verify that the thread holds no lock of the rank `min_rank` or above. */
static void record_acquired(enum xseg_lock_rank rank, unsigned min_rank)
{
    for (unsigned held_rank = min_rank; held_rank < XSEG_RANK_COUNT; held_rank++)
        if (held[held_rank] != 0)
            xseg_panic(__FILE__, __LINE__, "lock order", "a lock of this rank or above is held");
    held[rank]++;
}

void xseg_lock_rank_acquired(enum xseg_lock_rank rank)
{
    record_acquired(rank, rank);
}

void xseg_lock_rank_acquired_nested(enum xseg_lock_rank rank)
{
    record_acquired(rank, rank + 1u);
}

void xseg_lock_rank_released(enum xseg_lock_rank rank)
{
    XSEG_ASSERT(held[rank] != 0);
    held[rank]--;
}

bool xseg_lock_rank_is_held(enum xseg_lock_rank rank)
{
    return held[rank] != 0;
}

bool xseg_lock_rank_is_any_held(void)
{
    for (unsigned rank = 0; rank < XSEG_RANK_COUNT; rank++)
        if (held[rank] != 0)
            return true;
    return false;
}

void xseg_mutex_record_acquired(const struct xseg_mutex *lock)
{
    xseg_lock_rank_acquired(lock->rank);
}

void xseg_mutex_record_released(const struct xseg_mutex *lock)
{
    xseg_lock_rank_released(lock->rank);
}
