/* SPDX-License-Identifier: MIT */
#include "src/base/biased_lock.h"

#include <linux/membarrier.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool membarrier(int command)
{
    return syscall(__NR_membarrier, command, 0, 0) == 0;
}

bool xseg_membarrier_register(void)
{
    return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/*
 * A page that goes out of use interrupts the processors that run this process, as they must forget its
 * address, and an interrupt is a barrier.  Some processors are told without one; by the end of the sleep
 * their stores have been seen all the same, since none is kept back for a thousandth of that time.
 */
static void interrupt_others(void)
{
    const struct timespec moment = {0, 2000000};
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page != MAP_FAILED) {
        *(volatile char *)page = 1;
        (void)munmap(page, 1);
    }
    (void)nanosleep(&moment, NULL);
}

void xseg_membarrier(void)
{
    if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !membarrier(MEMBARRIER_CMD_GLOBAL))
        interrupt_others();
}

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
    lock->has_barrier = xseg_membarrier_register();
    atomic_init(&lock->owner, lock->has_barrier ? 0 : XSEG_BIASED_LOCK_REVOKED);
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
        xseg_membarrier();
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

void xseg_biased_lock_lock_contended(struct xseg_biased_lock *lock)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_to_take(lock))
            return;
        pause_briefly();
    }
    (void)atomic_fetch_add(&lock->sleepers, 1);
    if (lock->has_barrier)
        xseg_membarrier();
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
void xseg_biased_lock_revoke_or_claim(struct xseg_biased_lock *lock, uintptr_t self)
{
    const uintptr_t owner = atomic_load(&lock->owner);

    XSEG_ASSERT(atomic_load(&lock->taken) == 1 && owner != XSEG_BIASED_LOCK_REVOKED);
    XSEG_ASSERT(lock->has_barrier);
    if (owner == 0) {
        /* The caller has this lock by the exchange, and takes it as the owner from the next time on. */
        atomic_store(&lock->owner, self);
        return;
    }
    atomic_store(&lock->owner, XSEG_BIASED_LOCK_REVOKED);
    xseg_membarrier();
    for (unsigned i = 0; atomic_load_explicit(&lock->held, memory_order_acquire) != 0; i++) {
        pause_briefly();
        if (i > SPINS)
            (void)sched_yield(); /* the owner has been interrupted */
    }
}

void xseg_biased_lock_wake_waiter(struct xseg_biased_lock *lock)
{
    (void)syscall(__NR_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
