/* SPDX-License-Identifier: MIT */
/*
 * A biased lock: the lock of the hot path.  Its rank is one of the table in mutex.h.
 *
 * Most biased locks are taken by one thread only, that of a stream.  So the first thread that takes a biased lock
 * becomes its owner.  The owner takes the lock with two plain stores and gives it with one: 1 ns a pair, where an
 * exchange takes 7, and a pthread mutex 18.  When another thread takes the lock, it loses its owner for good.  From
 * then on a take is one exchange, and a give is a plain store and a look at the number of sleepers.
 *
 * Plain stores are enough because of membarrier: a thread that takes a biased lock away from its owner, or is
 * about to sleep, first makes all other threads pass a barrier.  After that the owner either sees that it has
 * lost the lock, or is seen to hold it.  A thread that gives the lock either sees the sleeper, or is seen to have
 * given it.  The barrier costs a few microseconds, once for each lock and before each sleep.  Where the
 * kernel has no such call, no biased lock has an owner, and a give passes a barrier of its own; where the kernel
 * refuses a later call, barrier.h has other ways.  docs/internals/memory-order.md has the orderings of all this.
 *
 * ThreadSanitizer does not understand this protocol: with it a biased lock is one word that is exchanged.  A pthread
 * mutex would not do, since it looks at no more than 64 of them that a thread holds at a time.
 */
#ifndef XSEG_BASE_BIASED_LOCK_H
#define XSEG_BASE_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/mutex.h"
#include "src/base/single_writer.h"

/* Whether it has no owner, ever. */
#define XSEG_BIASED_LOCK_IS_ATOMIC XSEG_HAS_THREAD_SANITIZER

struct XSEG_CAPABILITY xseg_biased_lock {
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_uint taken;
#else
    /* Members that hardly ever change: their cache line stays with each thread that takes the lock in turn. */
    atomic_uintptr_t owner; /* a thread; 0: none so far; XSEG_BIASED_LOCK_REVOKED: none any more */
    bool has_barrier;       /* the kernel's */
#endif
    enum xseg_lock_rank rank;
#if !XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_uint held;     /* the owner holds the lock; only the owner writes this */
    atomic_uint as_owner; /* the holder took the lock as its owner; only the holder writes this */
    atomic_uint taken, sleepers;
#endif
};

#define XSEG_BIASED_LOCK_REVOKED ((uintptr_t)1)

/* A biased lock is best laid across two cache lines: the second begins here, with the members that holders write. */
#if !XSEG_BIASED_LOCK_IS_ATOMIC
#define XSEG_BIASED_LOCK_SHARED_OFFSET offsetof(struct xseg_biased_lock, held)

_Static_assert(sizeof(atomic_uint) == 4, "the kernel sleeps on words of 32 bits");
_Static_assert(_Alignof(max_align_t) > XSEG_BIASED_LOCK_REVOKED,
               "no thread has its control block at the address that stands for no owner");
#endif

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank);
void xseg_biased_lock_fini(struct xseg_biased_lock *lock);

/* Make all other threads pass a barrier.  False where the kernel has none.  Any biased lock will do. */
bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock);

/* Whether no thread holds a biased lock.  Each thread that held it before the caller's last barrier has given it back;
 * each thread that takes it afterwards sees what the caller wrote before that barrier. */
bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock);

/* Whether some thread holds a biased lock: for assertions of code that needs the lock. */
static inline bool xseg_biased_lock_is_held(struct xseg_biased_lock *lock)
{
    return !xseg_biased_lock_is_free(lock);
}

#if XSEG_BIASED_LOCK_IS_ATOMIC
void xseg_biased_lock_lock_atomic(struct xseg_biased_lock *lock);
#else

/* Take a lock that another thread holds: spin, then sleep. */
void xseg_biased_lock_lock_contended(struct xseg_biased_lock *lock);

/* Wake one of the threads that sleep until a lock is given. */
void xseg_biased_lock_wake_waiter(struct xseg_biased_lock *lock);

/* After an exchange took a lock that can still have an owner: the caller becomes the owner, or the owner loses it. */
void xseg_biased_lock_revoke_or_claim(struct xseg_biased_lock *lock, uintptr_t self);

/* A number for the calling thread, which no other thread has while this one lives. */
static inline uintptr_t xseg_biased_lock_self(void)
{
#if defined(__x86_64__)
    uintptr_t self;

    /* The thread's own control block: pthread_self() without the call. */
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
#elif defined(__aarch64__)
    return (uintptr_t)__builtin_thread_pointer();
#else
    return (uintptr_t)pthread_self();
#endif
}

/* Take a lock as its owner; false if the calling thread is not the owner. */
static inline bool xseg_biased_lock_try_owner(struct xseg_biased_lock *lock, uintptr_t self)
{
    /* Only the thread itself writes this value.  An acquire would wait on ARM for the release of the last give. */
    if (__builtin_expect(!xseg_atomic_equals_in_memory(&lock->owner, self), 0))
        return false;
    XSEG_ASSERT(atomic_load_explicit(&lock->held, memory_order_relaxed) == 0);
    atomic_store_explicit(&lock->held, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!xseg_atomic_equals_in_memory(&lock->owner, self), 0)) {
        atomic_store_explicit(&lock->held, 0, memory_order_release);
        return false;
    }
    atomic_store_explicit(&lock->as_owner, 1, memory_order_relaxed);
    return true;
}

/* Take a lock that any thread may hold. */
static inline void xseg_biased_lock_lock_shared(struct xseg_biased_lock *lock, uintptr_t self)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0, 0))
        xseg_biased_lock_lock_contended(lock);
    if (__builtin_expect(atomic_load_explicit(&lock->owner, memory_order_relaxed) !=
                             XSEG_BIASED_LOCK_REVOKED,
                         0))
        xseg_biased_lock_revoke_or_claim(lock, self);
    XSEG_ASSERT(atomic_load_explicit(&lock->taken, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->as_owner, 0, memory_order_relaxed);
}

/* Give a lock that was taken by an exchange. */
static inline void xseg_biased_lock_unlock_shared(struct xseg_biased_lock *lock)
{
    XSEG_ASSERT(atomic_load_explicit(&lock->taken, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
    /* With a barrier the processor may load `sleepers` before the store; the compiler must not. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!lock->has_barrier, 0))
        atomic_thread_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0))
        xseg_biased_lock_wake_waiter(lock);
}

#endif

/* Take a lock of which the rank is noted. */
static inline void xseg_biased_lock_lock_unranked(struct xseg_biased_lock *lock)
    XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_ATOMIC
    xseg_biased_lock_lock_atomic(lock);
#else
    const uintptr_t self = xseg_biased_lock_self();

    if (!xseg_biased_lock_try_owner(lock, self))
        xseg_biased_lock_lock_shared(lock, self);
#endif
}

static inline void xseg_biased_lock_lock(struct xseg_biased_lock *lock)
    XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_rank_acquired(lock->rank);
#endif
    xseg_biased_lock_lock_unranked(lock);
}

/* Take a lock beside others of its rank: mutex.h says where that is allowed. */
static inline void xseg_biased_lock_lock_nested(struct xseg_biased_lock *lock)
    XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_rank_acquired_nested(lock->rank);
#endif
    xseg_biased_lock_lock_unranked(lock);
}

/* Take a lock if the calling thread is its owner.  Either function below gives it back. */
static inline bool xseg_biased_lock_trylock_owner(struct xseg_biased_lock *lock)
    XSEG_TRIES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_ATOMIC
    xseg_biased_lock_lock_atomic(lock);
#else
    if (__builtin_expect(!xseg_biased_lock_try_owner(lock, xseg_biased_lock_self()), 0))
        return false;
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_rank_acquired(lock->rank);
#endif
    return true;
}

/* Give a lock that was taken without an exchange. */
static inline void xseg_biased_lock_unlock_owner(struct xseg_biased_lock *lock)
    XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
#else
    XSEG_ASSERT(atomic_load_explicit(&lock->held, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->held, 0, memory_order_release);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_rank_released(lock->rank);
#endif
}

static inline void xseg_biased_lock_unlock(struct xseg_biased_lock *lock)
    XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_biased_lock_is_held(lock));
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
#else
    if (__builtin_expect(atomic_load_explicit(&lock->as_owner, memory_order_relaxed) != 0, 1))
        atomic_store_explicit(&lock->held, 0, memory_order_release);
    else
        xseg_biased_lock_unlock_shared(lock);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_rank_released(lock->rank);
#endif
}

/*
 * A memory barrier that all threads of the process pass, at the cost of the one that asks for it: the
 * others need only keep the order of their instructions.  What it is for: biased_lock.h.
 *
 * membarrier() does it.  A kernel that registers a process may refuse a later call, for want of memory or
 * because a sandbox has closed in meanwhile; there are other ways then, so a pass cannot fail.
 *
 * Locking: none; any thread at any time.
 */

/* Before the first pass; may be repeated.  Returns: whether the kernel has the call */
bool xseg_membarrier_register(void);

/*
 * On return every other thread has passed a full barrier since the call began.  Some microseconds; some
 * milliseconds where membarrier() is refused.
 */
void xseg_membarrier(void);

#endif
