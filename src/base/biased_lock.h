/* SPDX-License-Identifier: MIT */
/*
 * A biased lock: the lock of the hot path.  Its rank is one of the table in mutex.h.
 *
 * Almost every arena is used by one thread, the thread of its stream.  Measured for one lock and unlock without contention,
 * a pthread mutex takes 18 ns and an atomic exchange 7 ns, while an allocation of 4 KiB and its free, which lock twice, take
 * 16 ns altogether.  A biased lock takes 1 ns as long as one thread uses it: the thread that locks it first becomes its
 * owner, and the owner needs only plain stores.
 *
 * A biased lock consists of two locks, and the holder has either of them:
 *
 *   owner path    The owner stores 1 in `owner_locked`, and then loads `owner` again.  If the owner is still the calling
 *                 thread, it holds the lock.  To unlock, it stores 0.
 *   shared path   Every other thread exchanges `locked`.  If the lock is contended, the thread spins, and then sleeps on a
 *                 futex.  To unlock, the holder stores 0, and wakes a thread if `waiters` is not 0.
 *
 * A thread on the shared path that finds another owner revokes the bias: it stores XSEG_BIASED_LOCK_REVOKED in `owner`,
 * executes a barrier, and waits until `owner_locked` is 0.  A revoked lock never has an owner again, so all threads use
 * the shared path from then on.
 *
 * Both paths rely on the pattern "store one word, then load another": the owner stores `owner_locked` and loads `owner`;
 * the revoking thread stores `owner` and loads `owner_locked`.  At least one of them must see the other's store, which
 * requires a full barrier between store and load on both sides.  The barrier is what makes an exchange expensive.  Here
 * the rare side pays for both: membarrier(2) executes a full barrier on every CPU that runs a thread of the process, so
 * the owner's side needs only a compiler fence.  After the call, either the owner sees that the bias was revoked and
 * backs off, or the revoking thread sees that the owner holds the lock and waits.  The same argument covers unlock, which
 * stores `locked` and loads `waiters`, and a thread that is about to sleep, which increments `waiters` and exchanges
 * `locked`.  membarrier() takes a few microseconds: once per lock for the revocation, and once before each sleep.
 *
 * If the kernel does not provide membarrier(), `has_membarrier` is false: no lock has an owner, and each unlock of the
 * shared path executes a fence.  If only a later call fails, xseg_membarrier() uses slower methods and still succeeds.
 *
 * docs/architecture.md justifies the barrier.  ThreadSanitizer does not know membarrier(), so in its builds a biased lock
 * is a single exchanged word (XSEG_BIASED_LOCK_IS_ATOMIC).  A pthread mutex is not an alternative there:
 * ThreadSanitizer's deadlock detector supports at most 64 mutexes per thread, and a thread can hold the locks of all
 * arenas of a device.
 */
#ifndef XSEG_BASE_BIASED_LOCK_H
#define XSEG_BASE_BIASED_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/mutex.h"
#include "src/base/single_writer.h"

/* Whether a lock is a single exchanged word without an owner. */
#define XSEG_BIASED_LOCK_IS_ATOMIC XSEG_HAS_THREAD_SANITIZER

struct XSEG_CAPABILITY xseg_biased_lock {
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_uint locked;
#else
    /* Rarely written: the cache line remains shared between threads that lock in turn. */
    atomic_uintptr_t owner; /* a thread; 0: none yet; or XSEG_BIASED_LOCK_REVOKED */
    bool has_membarrier;
#endif
    enum xseg_lock_rank rank;
#if !XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_uint owner_locked; /* the owner holds the lock; only the owner writes this member */
    atomic_uint
        locked_by_owner; /* the holder used the owner path; only the holder writes this member */
    atomic_uint locked, waiters;
#endif
};

#define XSEG_BIASED_LOCK_REVOKED ((uintptr_t)1)

#if !XSEG_BIASED_LOCK_IS_ATOMIC
/* The offset of the members that each holder writes.  A second cache line should start here. */
#define XSEG_BIASED_LOCK_SHARED_OFFSET offsetof(struct xseg_biased_lock, owner_locked)

_Static_assert(sizeof(atomic_uint) == 4, "a futex has 32 bits");
_Static_assert(_Alignof(max_align_t) > XSEG_BIASED_LOCK_REVOKED,
               "no thread control block has the address XSEG_BIASED_LOCK_REVOKED");
#endif

/* Register the process for membarrier(); idempotent.  Returns whether the kernel provides the call. */
bool xseg_membarrier_register(void);

/*
 * Execute a full memory barrier on all threads of the process.  The call does not fail: if membarrier() fails, for
 * example in a sandbox, other methods are used.
 *
 * Cost: some microseconds; some milliseconds if membarrier() fails.
 */
void xseg_membarrier(void);

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank);
void xseg_biased_lock_fini(struct xseg_biased_lock *lock);

/*
 * Execute a barrier on all threads, so that xseg_biased_lock_is_free() is exact for any lock.  Returns false if the kernel
 * does not provide membarrier().
 */
bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock);

/*
 * Whether no thread holds the lock.  Every thread that held it before the caller's last barrier has unlocked it; every
 * thread that locks it afterwards sees the caller's stores before that barrier.
 */
bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock);

/* Whether any thread holds the lock; for assertions of functions whose caller holds it. */
static inline bool xseg_biased_lock_is_held(struct xseg_biased_lock *lock)
{
    return !xseg_biased_lock_is_free(lock);
}

#if XSEG_BIASED_LOCK_IS_ATOMIC
void xseg_biased_lock_lock_atomic(struct xseg_biased_lock *lock);
#else

/* Acquire `locked` while another thread has it: spin, then sleep. */
void xseg_biased_lock_lock_contended(struct xseg_biased_lock *lock);

/* Wake one of the threads that sleep in xseg_biased_lock_lock_contended(). */
void xseg_biased_lock_wake_waiter(struct xseg_biased_lock *lock);

/* Make the calling thread the owner of a lock without one, or revoke the bias.  The caller has `locked`. */
void xseg_biased_lock_revoke_or_claim(struct xseg_biased_lock *lock, uintptr_t self);

/* An ID of the calling thread, unique among running threads. */
static inline uintptr_t xseg_biased_lock_self(void)
{
#if defined(__x86_64__)
    uintptr_t self;

    /* The address of the thread control block: pthread_self() without the call. */
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
#elif defined(__aarch64__)
    return (uintptr_t)__builtin_thread_pointer();
#else
    return (uintptr_t)pthread_self();
#endif
}

/* Lock on the owner path; false if the calling thread is not the owner. */
static inline bool xseg_biased_lock_try_owner(struct xseg_biased_lock *lock, uintptr_t self)
{
    /* Only the thread itself stores its ID.  On ARM, an acquire load would wait for the release store of the last unlock. */
    if (__builtin_expect(!xseg_atomic_equals_in_memory(&lock->owner, self), 0))
        return false;
    XSEG_ASSERT(atomic_load_explicit(&lock->owner_locked, memory_order_relaxed) == 0);
    atomic_store_explicit(&lock->owner_locked, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!xseg_atomic_equals_in_memory(&lock->owner, self), 0)) {
        atomic_store_explicit(&lock->owner_locked, 0, memory_order_release);
        return false;
    }
    atomic_store_explicit(&lock->locked_by_owner, 1, memory_order_relaxed);
    return true;
}

/* Lock on the shared path. */
static inline void xseg_biased_lock_lock_shared(struct xseg_biased_lock *lock, uintptr_t self)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->locked, 1, memory_order_acquire) != 0, 0))
        xseg_biased_lock_lock_contended(lock);
    if (__builtin_expect(atomic_load_explicit(&lock->owner, memory_order_relaxed) !=
                             XSEG_BIASED_LOCK_REVOKED,
                         0))
        xseg_biased_lock_revoke_or_claim(lock, self);
    XSEG_ASSERT(atomic_load_explicit(&lock->locked, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->locked_by_owner, 0, memory_order_relaxed);
}

/* Unlock on the shared path. */
static inline void xseg_biased_lock_unlock_shared(struct xseg_biased_lock *lock)
{
    XSEG_ASSERT(atomic_load_explicit(&lock->locked, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->locked, 0, memory_order_release);
    /* The CPU may load `waiters` before the store, which membarrier() corrects; the compiler must not. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(!lock->has_membarrier, 0))
        atomic_thread_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&lock->waiters, memory_order_relaxed) != 0, 0))
        xseg_biased_lock_wake_waiter(lock);
}

#endif

/* Lock without the check of ranks. */
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

/* Lock while the calling thread holds other locks of the same rank; see ARENA in mutex.h. */
static inline void xseg_biased_lock_lock_nested(struct xseg_biased_lock *lock)
    XSEG_ACQUIRES(*lock) XSEG_UNCHECKED
{
#if XSEG_CHECKS >= 1
    xseg_lock_rank_acquired_nested(lock->rank);
#endif
    xseg_biased_lock_lock_unranked(lock);
}

/* Lock if the calling thread is the owner.  Either unlock function releases the lock. */
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

/* Unlock after xseg_biased_lock_trylock_owner(). */
static inline void xseg_biased_lock_unlock_owner(struct xseg_biased_lock *lock)
    XSEG_RELEASES(*lock) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_store_explicit(&lock->locked, 0, memory_order_release);
#else
    XSEG_ASSERT(atomic_load_explicit(&lock->owner_locked, memory_order_relaxed) == 1);
    atomic_store_explicit(&lock->owner_locked, 0, memory_order_release);
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
    atomic_store_explicit(&lock->locked, 0, memory_order_release);
#else
    if (__builtin_expect(atomic_load_explicit(&lock->locked_by_owner, memory_order_relaxed) != 0,
                         1))
        atomic_store_explicit(&lock->owner_locked, 0, memory_order_release);
    else
        xseg_biased_lock_unlock_shared(lock);
#endif
#if XSEG_CHECKS >= 1
    xseg_lock_rank_released(lock->rank);
#endif
}

#endif
