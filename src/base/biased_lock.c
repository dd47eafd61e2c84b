/* SPDX-License-Identifier: MIT */
#include "src/base/biased_lock.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- The barrier on all threads. --- */

static bool call_membarrier(int command)
{
    return syscall(__NR_membarrier, command, 0, 0) == 0;
}

bool xseg_membarrier_register(void)
{
    return call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/*
 * Unmapping a page interrupts the CPUs that run this process to invalidate their TLB entries, and an interrupt is a
 * barrier.  Some CPUs invalidate TLB entries without an interrupt.  The sleep covers those: a store remains in a store
 * buffer for less than a thousandth of that time.
 */
static void interrupt_other_cpus(void)
{
    const struct timespec delay = {0, 2000000};
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page != MAP_FAILED) {
        *(volatile char *)page = 1;
        (void)munmap(page, 1);
    }
    (void)nanosleep(&delay, NULL);
}

void xseg_membarrier(void)
{
    if (!call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) &&
        !call_membarrier(MEMBARRIER_CMD_GLOBAL))
        interrupt_other_cpus();
}

/* --- The lock. --- */

#if XSEG_BIASED_LOCK_IS_ATOMIC

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank)
{
    XSEG_ASSERT(rank >= XSEG_RANK_FIRST && rank < XSEG_RANK_COUNT);
    atomic_init(&lock->locked, 0);
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

/* Lock and unlock, so that the next holder sees the caller's earlier stores. */
bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock)
{
    unsigned locked = 0;

    if (!atomic_compare_exchange_strong(&lock->locked, &locked, 1))
        return false;
    atomic_store_explicit(&lock->locked, 0, memory_order_release);
    return true;
}

void xseg_biased_lock_lock_atomic(struct xseg_biased_lock *lock)
{
    while (atomic_exchange_explicit(&lock->locked, 1, memory_order_acquire) != 0)
        (void)sched_yield();
}

#else

/* The number of attempts to acquire a contended lock before the thread sleeps.  A hit holds a lock for about 20 ns; the number
 * is an estimate. */
#define SPINS 200

void xseg_biased_lock_init(struct xseg_biased_lock *lock, enum xseg_lock_rank rank)
{
    XSEG_ASSERT(rank >= XSEG_RANK_FIRST && rank < XSEG_RANK_COUNT);
    atomic_init(&lock->owner_locked, 0);
    atomic_init(&lock->locked_by_owner, 0);
    atomic_init(&lock->locked, 0);
    atomic_init(&lock->waiters, 0);
    lock->has_membarrier = xseg_membarrier_register();
    atomic_init(&lock->owner, lock->has_membarrier ? 0 : XSEG_BIASED_LOCK_REVOKED);
    lock->rank = rank;
}

void xseg_biased_lock_fini(struct xseg_biased_lock *lock)
{
    XSEG_ASSERT(xseg_biased_lock_is_free(lock) && atomic_load(&lock->waiters) == 0);
    (void)lock;
}

bool xseg_biased_lock_barrier(const struct xseg_biased_lock *lock)
{
    if (lock->has_membarrier)
        xseg_membarrier();
    return lock->has_membarrier;
}

bool xseg_biased_lock_is_free(struct xseg_biased_lock *lock)
{
    return atomic_load_explicit(&lock->owner_locked, memory_order_acquire) == 0 &&
           atomic_load_explicit(&lock->locked, memory_order_acquire) == 0;
}

static bool try_acquire(struct xseg_biased_lock *lock)
{
    return atomic_load_explicit(&lock->locked, memory_order_relaxed) == 0 &&
           atomic_exchange(&lock->locked, 1) == 0;
}

static void relax_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* most CPUs execute `yield` as a no-op */
#endif
}

void xseg_biased_lock_lock_contended(struct xseg_biased_lock *lock)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_acquire(lock))
            return;
        relax_cpu();
    }
    (void)atomic_fetch_add(&lock->waiters, 1);
    if (lock->has_membarrier)
        xseg_membarrier();
    /* An unlock before the barrier is visible to the exchange; an unlock after the barrier sees the waiter. */
    while (atomic_exchange(&lock->locked, 1) != 0)
        (void)syscall(__NR_futex, &lock->locked, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    XSEG_ASSERT(atomic_load(&lock->waiters) > 0);
    (void)atomic_fetch_sub(&lock->waiters, 1);
}

/*
 * The caller has `locked`, so no other thread executes this function for the lock.  The owner may nevertheless hold the
 * lock, or be about to: after the barrier, the owner sees the revocation, or this thread sees `owner_locked`.
 */
void xseg_biased_lock_revoke_or_claim(struct xseg_biased_lock *lock, uintptr_t self)
{
    const uintptr_t owner = atomic_load(&lock->owner);

    XSEG_ASSERT(atomic_load(&lock->locked) == 1 && owner != XSEG_BIASED_LOCK_REVOKED);
    XSEG_ASSERT(lock->has_membarrier);
    if (owner == 0) {
        /* The caller holds the lock by the shared path this time, and uses the owner path from the next time on. */
        atomic_store(&lock->owner, self);
        return;
    }
    atomic_store(&lock->owner, XSEG_BIASED_LOCK_REVOKED);
    xseg_membarrier();
    for (unsigned i = 0; atomic_load_explicit(&lock->owner_locked, memory_order_acquire) != 0;
         i++) {
        relax_cpu();
        if (i > SPINS)
            (void)sched_yield(); /* the owner was preempted */
    }
}

void xseg_biased_lock_wake_waiter(struct xseg_biased_lock *lock)
{
    (void)syscall(__NR_futex, &lock->locked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
