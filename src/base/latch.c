/* SPDX-License-Identifier: MIT */
#include "src/base/latch.h"

#include "src/base/barrier.h"

#if XSEG_LATCH_IS_MUTEX

void xseg_latch_init(struct xseg_latch *latch, enum xseg_lock_rank rank)
{
    (void)pthread_mutex_init(&latch->os, NULL);
    latch->rank = rank;
}

void xseg_latch_fini(struct xseg_latch *latch)
{
    (void)pthread_mutex_destroy(&latch->os);
}

bool xseg_latch_barrier(const struct xseg_latch *latch)
{
    (void)latch;
    return true;
}

bool xseg_latch_is_free(struct xseg_latch *latch) XSEG_UNCHECKED
{
    if (pthread_mutex_trylock(&latch->os) != 0)
        return false;
    (void)pthread_mutex_unlock(&latch->os);
    return true;
}

#else

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looks at a latch before sleeping; a hit holds one for some 20 ns.  Taste. */
#define SPINS 200

void xseg_latch_init(struct xseg_latch *latch, enum xseg_lock_rank rank)
{
    atomic_init(&latch->held, 0);
    atomic_init(&latch->as_owner, 0);
    atomic_init(&latch->taken, 0);
    atomic_init(&latch->sleepers, 0);
    latch->has_barrier = xseg_barrier_register();
    atomic_init(&latch->owner, latch->has_barrier ? 0 : XSEG_LATCH_NOBODYS);
    latch->rank = rank;
}

void xseg_latch_fini(struct xseg_latch *latch)
{
    XSEG_ASSERT(atomic_load(&latch->taken) == 0 && atomic_load(&latch->held) == 0);
    (void)latch;
}

bool xseg_latch_barrier(const struct xseg_latch *latch)
{
    if (latch->has_barrier)
        xseg_barrier_pass();
    return latch->has_barrier;
}

bool xseg_latch_is_free(struct xseg_latch *latch)
{
    return atomic_load_explicit(&latch->held, memory_order_acquire) == 0 &&
           atomic_load_explicit(&latch->taken, memory_order_acquire) == 0;
}

static bool try_to_take(struct xseg_latch *latch)
{
    return atomic_load_explicit(&latch->taken, memory_order_relaxed) == 0 &&
           atomic_exchange(&latch->taken, 1) == 0;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void xseg_latch_wait(struct xseg_latch *latch)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_to_take(latch))
            return;
        pause_briefly();
    }
    (void)atomic_fetch_add(&latch->sleepers, 1);
    if (latch->has_barrier)
        xseg_barrier_pass();
    /* From here on every giver sees that somebody sleeps.  Whoever gave it before is seen here. */
    while (atomic_exchange(&latch->taken, 1) != 0)
        (void)syscall(__NR_futex, &latch->taken, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    (void)atomic_fetch_sub(&latch->sleepers, 1);
}

/*
 * Whoever is here has `taken`, so nobody else is.  The owner may hold the latch all the same, or be about
 * to: after the barrier it sees that the latch is nobody's, or is seen to hold it.
 */
void xseg_latch_settle_owner(struct xseg_latch *latch, uintptr_t self)
{
    const uintptr_t owner = atomic_load(&latch->owner);

    if (owner == 0) {
        /* From the next time on. */
        atomic_store(&latch->owner, self);
        return;
    }
    atomic_store(&latch->owner, XSEG_LATCH_NOBODYS);
    xseg_barrier_pass();
    for (unsigned i = 0; atomic_load_explicit(&latch->held, memory_order_acquire) != 0; i++) {
        pause_briefly();
        if (i > SPINS)
            (void)sched_yield(); /* the owner has been interrupted */
    }
}

void xseg_latch_wake(struct xseg_latch *latch)
{
    (void)syscall(__NR_futex, &latch->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
