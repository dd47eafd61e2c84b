/* SPDX-License-Identifier: MIT */
/*
 * A latch: the lock of the hot path.  Of the same order as those of lock.h.
 *
 * Taking it is one exchange, giving it a plain store and a look at the number of sleepers: 7 ns a pair
 * where a pthread mutex takes 18.  The store may become visible after the look, so a thread that is
 * about to sleep first makes all others pass a barrier (membarrier), and then tries once more: either
 * it sees the store, or the giver sees that somebody sleeps.  Where the kernel has no such call, giving
 * is an exchange as well.
 *
 * ThreadSanitizer knows pthread mutexes, and nothing of that, so with it a latch is one.
 */
#ifndef XSEG_BASE_LATCH_H
#define XSEG_BASE_LATCH_H

#include <stdatomic.h>

#include "src/base/lock.h"

#if defined(__SANITIZE_THREAD__)
#define XSEG_LATCH_IS_MUTEX 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define XSEG_LATCH_IS_MUTEX 1
#endif
#endif
#ifndef XSEG_LATCH_IS_MUTEX
#define XSEG_LATCH_IS_MUTEX 0
#endif

struct XSEG_CAPABILITY xseg_latch {
#if XSEG_LATCH_IS_MUTEX
    pthread_mutex_t os;
#else
    atomic_uint taken, sleepers;
    bool has_barrier; /* the kernel's; else giving is an exchange */
#endif
    enum xseg_lock_rank rank;
};

void xseg_latch_init(struct xseg_latch *latch, enum xseg_lock_rank rank);
void xseg_latch_fini(struct xseg_latch *latch);

/* Somebody holds it: spin, then sleep. */
void xseg_latch_wait(struct xseg_latch *latch);

/* Somebody sleeps: wake one. */
void xseg_latch_wake(struct xseg_latch *latch);

static inline void xseg_latch_take(struct xseg_latch *latch) XSEG_ACQUIRES(*latch) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_taken(latch->rank);
#endif
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_lock(&latch->os);
#else
    if (__builtin_expect(atomic_exchange_explicit(&latch->taken, 1, memory_order_acquire) != 0, 0))
        xseg_latch_wait(latch);
#endif
}

static inline void xseg_latch_give(struct xseg_latch *latch) XSEG_RELEASES(*latch) XSEG_UNCHECKED
{
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_unlock(&latch->os);
#else
    if (__builtin_expect(latch->has_barrier, 1))
        atomic_store_explicit(&latch->taken, 0, memory_order_release);
    else
        (void)atomic_exchange(&latch->taken, 0);
    /* The processor may do this before the store; the compiler must not. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&latch->sleepers, memory_order_relaxed) != 0, 0))
        xseg_latch_wake(latch);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_given(latch->rank);
#endif
}

#endif
