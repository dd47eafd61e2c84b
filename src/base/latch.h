/* SPDX-License-Identifier: MIT */
/*
 * A latch: the lock of the hot path.  Of the same order as those of lock.h.
 *
 * Most latches are only ever taken by one thread: that of a stream.  So a latch belongs to the thread
 * that took it first, which takes it with two plain stores and gives it with one: 1 ns a pair, where an
 * exchange takes 7, and a pthread mutex 18.  When another thread wants it, it is nobody's from then on,
 * and taking it is one exchange, giving it a plain store and a look at the number of sleepers.
 *
 * What makes plain stores do is membarrier: whoever takes a latch away from its owner, or is about to
 * sleep, first makes all other threads pass a barrier.  So the owner either sees that the latch is not
 * its own any more, or has shown that it holds it; and a giver either sees the sleeper, or has shown
 * the sleeper that the latch is free.  That costs a few microseconds, once, and before a sleep.  Where
 * the kernel has no such call, no latch has an owner, and giving is an exchange as well; where it refuses one
 * later, barrier.h has other ways.
 *
 * ThreadSanitizer knows pthread mutexes, and nothing of that, so with it a latch is one.
 */
#ifndef XSEG_BASE_LATCH_H
#define XSEG_BASE_LATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/lock.h"
#include "src/base/word.h"

#define XSEG_LATCH_IS_MUTEX XSEG_HAS_THREAD_SANITIZER

struct XSEG_CAPABILITY xseg_latch {
#if XSEG_LATCH_IS_MUTEX
    pthread_mutex_t os;
#else
    /* What hardly ever changes; threads that take the latch in turn keep a copy of it. */
    atomic_uintptr_t owner; /* a thread; 0: nobody yet; XSEG_LATCH_NOBODYS */
    bool has_barrier;       /* the kernel's */
#endif
    enum xseg_lock_rank rank;
#if !XSEG_LATCH_IS_MUTEX
    atomic_uint held;     /* by the owner as such; only it writes this */
    atomic_uint as_owner; /* how the holder took it; only the holder writes this */
    atomic_uint taken, sleepers;
#endif
};

#define XSEG_LATCH_NOBODYS ((uintptr_t)1)

/* A latch is best laid across the border of two cache lines: here, with what its holder writes behind. */
#if !XSEG_LATCH_IS_MUTEX
#define XSEG_LATCH_BORDER offsetof(struct xseg_latch, held)
#endif

void xseg_latch_init(struct xseg_latch *latch, enum xseg_lock_rank rank);
void xseg_latch_fini(struct xseg_latch *latch);

/* Make all other threads pass a barrier.  False where the kernel has none; latch: any. */
bool xseg_latch_barrier(const struct xseg_latch *latch);

/* Whether no thread holds a latch.  Each thread that held it before the caller's last barrier has given it back;
 * each thread that takes it afterwards sees what the caller wrote before that barrier. */
bool xseg_latch_is_free(struct xseg_latch *latch);

#if !XSEG_LATCH_IS_MUTEX

/* Somebody holds it: spin, then sleep. */
void xseg_latch_wait(struct xseg_latch *latch);

/* Somebody sleeps: wake one. */
void xseg_latch_wake(struct xseg_latch *latch);

/* It was taken by an exchange and is not nobody's: it becomes the caller's, or is taken from its owner. */
void xseg_latch_settle_owner(struct xseg_latch *latch, uintptr_t self);

/* A number of the calling thread, which no other has meanwhile. */
static inline uintptr_t xseg_latch_self(void)
{
#if defined(__x86_64__)
    uintptr_t self;

    /* The thread's own control block: pthread_self() without the call. */
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
#else
    return (uintptr_t)pthread_self();
#endif
}

/* As the owner; false for anybody else. */
static inline bool xseg_latch_take_own(struct xseg_latch *latch, uintptr_t self)
{
    if (__builtin_expect(!xseg_word_is(&latch->owner, self), 0))
        return false;
    atomic_store_explicit(&latch->held, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!xseg_word_is(&latch->owner, self), 0)) {
        atomic_store_explicit(&latch->held, 0, memory_order_release);
        return false;
    }
    atomic_store_explicit(&latch->as_owner, 1, memory_order_relaxed);
    return true;
}

static inline void xseg_latch_take_shared(struct xseg_latch *latch, uintptr_t self)
{
    if (__builtin_expect(atomic_exchange_explicit(&latch->taken, 1, memory_order_acquire) != 0, 0))
        xseg_latch_wait(latch);
    if (__builtin_expect(
            atomic_load_explicit(&latch->owner, memory_order_relaxed) != XSEG_LATCH_NOBODYS, 0))
        xseg_latch_settle_owner(latch, self);
    atomic_store_explicit(&latch->as_owner, 0, memory_order_relaxed);
}

static inline void xseg_latch_give_shared(struct xseg_latch *latch)
{
    if (__builtin_expect(latch->has_barrier, 1))
        atomic_store_explicit(&latch->taken, 0, memory_order_release);
    else
        (void)atomic_exchange(&latch->taken, 0);
    /* The processor may do this before the store; the compiler must not. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&latch->sleepers, memory_order_relaxed) != 0, 0))
        xseg_latch_wake(latch);
}

#endif

static inline void xseg_latch_take(struct xseg_latch *latch) XSEG_ACQUIRES(*latch) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_taken(latch->rank);
#endif
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_lock(&latch->os);
#else
    const uintptr_t self = xseg_latch_self();

    if (!xseg_latch_take_own(latch, self))
        xseg_latch_take_shared(latch, self);
#endif
}

/* Take it if that needs no exchange; what is taken so can be given by either of the two below. */
static inline bool xseg_latch_try_own(struct xseg_latch *latch) XSEG_TRIES(*latch) XSEG_UNCHECKED
{
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_lock(&latch->os);
#else
    if (__builtin_expect(!xseg_latch_take_own(latch, xseg_latch_self()), 0))
        return false;
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_taken(latch->rank);
#endif
    return true;
}

/* Give what was taken without an exchange. */
static inline void xseg_latch_give_own(struct xseg_latch *latch)
    XSEG_RELEASES(*latch) XSEG_UNCHECKED
{
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_unlock(&latch->os);
#else
    atomic_store_explicit(&latch->held, 0, memory_order_release);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_given(latch->rank);
#endif
}

static inline void xseg_latch_give(struct xseg_latch *latch) XSEG_RELEASES(*latch) XSEG_UNCHECKED
{
#if XSEG_LATCH_IS_MUTEX
    (void)pthread_mutex_unlock(&latch->os);
#else
    if (__builtin_expect(atomic_load_explicit(&latch->as_owner, memory_order_relaxed) != 0, 1))
        atomic_store_explicit(&latch->held, 0, memory_order_release);
    else
        xseg_latch_give_shared(latch);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_given(latch->rank);
#endif
}

#endif
