/* SPDX-License-Identifier: MIT */
/*
 * A biased lock: the lock of the hot path.  Of the same order as those of lock.h.
 *
 * Most biased locks are only ever taken by one thread: that of a stream.  So a biased lock belongs to the thread
 * that took it first, which takes it with two plain stores and gives it with one: 1 ns a pair, where an
 * exchange takes 7, and a pthread mutex 18.  When another thread wants it, it is nobody's from then on,
 * and taking it is one exchange, giving it a plain store and a look at the number of sleepers.
 *
 * What makes plain stores do is membarrier: whoever takes a biased lock away from its owner, or is about to
 * sleep, first makes all other threads pass a barrier.  So the owner either sees that the biased lock is not
 * its own any more, or has shown that it holds it; and a giver either sees the sleeper, or has shown
 * the sleeper that the biased lock is free.  That costs a few microseconds, once, and before a sleep.  Where
 * the kernel has no such call, no biased lock has an owner, and giving is an exchange as well; where it refuses one
 * later, barrier.h has other ways.
 *
 * ThreadSanitizer knows pthread mutexes, and nothing of that, so with it a biased lock is one.
 */
#ifndef XSEG_BASE_BIASED_LOCK_H
#define XSEG_BASE_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/lock.h"
#include "src/base/word.h"

#define XSEG_BIASED_LOCK_IS_MUTEX XSEG_HAS_THREAD_SANITIZER

struct XSEG_CAPABILITY xseg_biased_lock {
#if XSEG_BIASED_LOCK_IS_MUTEX
    pthread_mutex_t os;
#else
    /* What hardly ever changes; threads that take the biased lock in turn keep a copy of it. */
    atomic_uintptr_t owner; /* a thread; 0: nobody yet; XSEG_BIASED_LOCK_NOBODYS */
    bool has_barrier;       /* the kernel's */
#endif
    enum xseg_lock_rank rank;
#if !XSEG_BIASED_LOCK_IS_MUTEX
    atomic_uint held;     /* by the owner as such; only it writes this */
    atomic_uint as_owner; /* how the holder took it; only the holder writes this */
    atomic_uint taken, sleepers;
#endif
};

#define XSEG_BIASED_LOCK_NOBODYS ((uintptr_t)1)

/* A biased lock is best laid across the border of two cache lines: here, with what its holder writes behind. */
#if !XSEG_BIASED_LOCK_IS_MUTEX
#define XSEG_BIASED_LOCK_BORDER offsetof(struct xseg_biased_lock, held)
#endif

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank);
void xseg_biased_lock_fini(struct xseg_biased_lock *lock);

/* Make all other threads pass a barrier.  False where the kernel has none; biased lock: any. */
bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock);

/* Whether no thread holds a biased lock.  Each thread that held it before the caller's last barrier has given it back;
 * each thread that takes it afterwards sees what the caller wrote before that barrier. */
bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock);

#if !XSEG_BIASED_LOCK_IS_MUTEX

/* Somebody holds it: spin, then sleep. */
void xseg_biased_lock_wait(struct xseg_biased_lock *lock);

/* Somebody sleeps: wake one. */
void xseg_biased_lock_wake(struct xseg_biased_lock *lock);

/* It was taken by an exchange and is not nobody's: it becomes the caller's, or is taken from its owner. */
void xseg_biased_lock_settle_owner(struct xseg_biased_lock *lock, uintptr_t self);

/* A number of the calling thread, which no other has meanwhile. */
static inline uintptr_t xseg_biased_lock_self(void)
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
static inline bool xseg_biased_lock_take_own(struct xseg_biased_lock *lock, uintptr_t self)
{
    if (__builtin_expect(!xseg_word_is(&lock->owner, self), 0))
        return false;
    atomic_store_explicit(&lock->held, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!xseg_word_is(&lock->owner, self), 0)) {
        atomic_store_explicit(&lock->held, 0, memory_order_release);
        return false;
    }
    atomic_store_explicit(&lock->as_owner, 1, memory_order_relaxed);
    return true;
}

static inline void xseg_biased_lock_take_shared(struct xseg_biased_lock *lock, uintptr_t self)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0, 0))
        xseg_biased_lock_wait(lock);
    if (__builtin_expect(atomic_load_explicit(&lock->owner, memory_order_relaxed) !=
                             XSEG_BIASED_LOCK_NOBODYS,
                         0))
        xseg_biased_lock_settle_owner(lock, self);
    atomic_store_explicit(&lock->as_owner, 0, memory_order_relaxed);
}

static inline void xseg_biased_lock_give_shared(struct xseg_biased_lock *lock)
{
    if (__builtin_expect(lock->has_barrier, 1))
        atomic_store_explicit(&lock->taken, 0, memory_order_release);
    else
        (void)atomic_exchange(&lock->taken, 0);
    /* The processor may do this before the store; the compiler must not. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0))
        xseg_biased_lock_wake(lock);
}

#endif

static inline void xseg_biased_lock_take(struct xseg_biased_lock *lock)
    XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_taken(lock->rank);
#endif
#if XSEG_BIASED_LOCK_IS_MUTEX
    (void)pthread_mutex_lock(&lock->os);
#else
    const uintptr_t self = xseg_biased_lock_self();

    if (!xseg_biased_lock_take_own(lock, self))
        xseg_biased_lock_take_shared(lock, self);
#endif
}

/* Take it if that needs no exchange; what is taken so can be given by either of the two below. */
static inline bool xseg_biased_lock_try_own(struct xseg_biased_lock *lock)
    XSEG_TRIES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_MUTEX
    (void)pthread_mutex_lock(&lock->os);
#else
    if (__builtin_expect(!xseg_biased_lock_take_own(lock, xseg_biased_lock_self()), 0))
        return false;
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_taken(lock->rank);
#endif
    return true;
}

/* Give what was taken without an exchange. */
static inline void xseg_biased_lock_give_own(struct xseg_biased_lock *lock)
    XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_MUTEX
    (void)pthread_mutex_unlock(&lock->os);
#else
    atomic_store_explicit(&lock->held, 0, memory_order_release);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_given(lock->rank);
#endif
}

static inline void xseg_biased_lock_give(struct xseg_biased_lock *lock)
    XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_MUTEX
    (void)pthread_mutex_unlock(&lock->os);
#else
    if (__builtin_expect(atomic_load_explicit(&lock->as_owner, memory_order_relaxed) != 0, 1))
        atomic_store_explicit(&lock->held, 0, memory_order_release);
    else
        xseg_biased_lock_give_shared(lock);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_note_rank_given(lock->rank);
#endif
}

#endif
