/* SPDX-License-Identifier: MIT */
#include "src/base/biased_lock.h"

#include "src/base/barrier.h"

#if XSEG_BIASED_LOCK_IS_ATOMIC

#include <sched.h>

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank)
{
    XSEG_ASSERT(rank >= XSEG_RANK_FIRST && rank < XSEG_RANK_COUNT);
    atomic_init(&lock->taken, 0);
    lock->rank = rank;
}

void xseg_biased_lock_fini(struct xseg_biased_lock *lock)
{
    XSEG_ASSERT(xseg_biased_lock_is_free(lock));
    (void)lock;
}

bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock)
{
    (void)lock;
    return true;
}

/* It is taken for that, so that the next holder sees what the caller wrote before. */
bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock)
{
    unsigned taken = 0;

    if (!atomic_compare_exchange_strong(&lock->taken, &taken, 1))
        return false;
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
    return true;
}

void xseg_biased_lock_lock_atomic(struct xseg_biased_lock *lock)
{
    while (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0)
        (void)sched_yield();
}

#else

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How often a thread looks at a taken lock before it sleeps.  A hit holds a lock for some 20 ns; the number is a
 * matter of taste. */
#define SPINS 200

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank)
{
    XSEG_ASSERT(rank >= XSEG_RANK_FIRST && rank < XSEG_RANK_COUNT);
    atomic_init(&lock->held, 0);
    atomic_init(&lock->as_owner, 0);
    atomic_init(&lock->taken, 0);
    atomic_init(&lock->sleepers, 0);
    lock->has_barrier = xseg_barrier_register();
    atomic_init(&lock->owner, lock->has_barrier ? 0 : XSEG_BIASED_LOCK_UNOWNED);
    lock->rank = rank;
}

void xseg_biased_lock_fini(struct xseg_biased_lock *lock)
{
    XSEG_ASSERT(xseg_biased_lock_is_free(lock) && atomic_load(&lock->sleepers) == 0);
    (void)lock;
}

bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock)
{
    if (lock->has_barrier)
        xseg_barrier_pass();
    return lock->has_barrier;
}

bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock)
{
    return atomic_load_explicit(&lock->held, memory_order_acquire) == 0 &&
           atomic_load_explicit(&lock->taken, memory_order_acquire) == 0;
}

static bool try_to_take(struct xseg_biased_lock *lock)
{
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 &&
           atomic_exchange(&lock->taken, 1) == 0;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` takes no time on most processors */
#endif
}

void xseg_biased_lock_wait(struct xseg_biased_lock *lock)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_to_take(lock))
            return;
        pause_briefly();
    }
    (void)atomic_fetch_add(&lock->sleepers, 1);
    if (lock->has_barrier)
        xseg_barrier_pass();
    /* From here on a thread that gives the lock sees the sleeper; a give before the barrier is seen here. */
    while (atomic_exchange(&lock->taken, 1) != 0)
        (void)syscall(__NR_futex, &lock->taken, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    XSEG_ASSERT(atomic_load(&lock->sleepers) > 0);
    (void)atomic_fetch_sub(&lock->sleepers, 1);
}

/*
 * The caller has `taken`, so no other thread is in this function.  The owner may hold the lock all the same, or be
 * about to: after the barrier the owner sees that it has lost the lock, or is seen to hold it.
 */
void xseg_biased_lock_settle_owner(struct xseg_biased_lock *lock, uintptr_t self)
{
    const uintptr_t owner = atomic_load(&lock->owner);

    XSEG_ASSERT(atomic_load(&lock->taken) == 1 && owner != XSEG_BIASED_LOCK_UNOWNED);
    XSEG_ASSERT(lock->has_barrier);
    if (owner == 0) {
        /* The caller has this lock by the exchange, and takes it as the owner from the next time on. */
        atomic_store(&lock->owner, self);
        return;
    }
    atomic_store(&lock->owner, XSEG_BIASED_LOCK_UNOWNED);
    xseg_barrier_pass();
    for (unsigned i = 0; atomic_load_explicit(&lock->held, memory_order_acquire) != 0; i++) {
        pause_briefly();
        if (i > SPINS)
            (void)sched_yield(); /* the owner has been interrupted */
    }
}

void xseg_biased_lock_wake(struct xseg_biased_lock *lock)
{
    (void)syscall(__NR_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
