/* SPDX-License-Identifier: MIT */
/* All threads pass the barrier, whichever of its ways the kernel leaves open. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>

#include "src/base/biased_lock.h"
#include "tests/support/test.h"

#define ROUNDS 300u

/* --- The kernel, as the test has it: commands of membarrier() that it refuses. --- */

static atomic_uint refused;
static atomic_uint expedited, global, unmapped;

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
int __real_munmap(void *address, size_t bytes);
int __wrap_munmap(void *address, size_t bytes);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == __NR_membarrier) {
        atomic_fetch_add(&expedited, a == MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        atomic_fetch_add(&global, a == MEMBARRIER_CMD_GLOBAL);
        if ((atomic_load(&refused) & (unsigned)a) != 0) {
            errno = EPERM;
            return -1;
        }
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

int __wrap_munmap(void *address, size_t bytes)
{
    atomic_fetch_add(&unmapped, 1);
    return __real_munmap(address, bytes);
}

static void refuse(unsigned commands)
{
    atomic_store(&refused, commands);
    atomic_store(&expedited, 0);
    atomic_store(&global, 0);
    atomic_store(&unmapped, 0);
}

/* --- Which way is taken. --- */

TEST(barrier_falls_back_when_a_method_fails)
{
    if (!xseg_membarrier_register()) {
        print_message("# this system has no membarrier\n");
        return;
    }
    refuse(0);
    xseg_membarrier();
    assert_int_equal(atomic_load(&expedited), 1);
    assert_int_equal(atomic_load(&global), 0);
    refuse(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    xseg_membarrier();
    assert_int_equal(atomic_load(&global), 1);
    refuse(MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_GLOBAL);
    xseg_membarrier();
    assert_int_equal(atomic_load(&expedited), 1);
    assert_int_equal(atomic_load(&global), 1);
    assert_int_equal(atomic_load(&unmapped), 1);
    refuse(0);
}

/* --- What it is worth. --- */

/* Each of two threads writes its own word and reads the other's; at least one has to see the other. */
struct pair {
    atomic_uint round, done;
    atomic_uint mine, other, seen;
};

static void wait_for(atomic_uint *word, unsigned round)
{
    /* Both at once is what is wanted; where there is one processor, the other thread needs it. */
    for (unsigned spins = 0; atomic_load(word) != round; spins++)
        if (spins > 10000)
            (void)sched_yield();
}

static void *write_and_read(void *self)
{
    struct pair *pair = self;

    for (unsigned round = 1; round <= ROUNDS; round++) {
        wait_for(&pair->round, round);
        atomic_store_explicit(&pair->mine, round, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        atomic_store_explicit(&pair->seen, atomic_load_explicit(&pair->other, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store(&pair->done, round);
    }
    return NULL;
}

static void nobody_overlooks_the_other(unsigned commands)
{
    struct pair pair = {0};
    pthread_t thread;

    refuse(commands);
    assert_int_equal(pthread_create(&thread, NULL, write_and_read, &pair), 0);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        unsigned read;

        atomic_store(&pair.round, round);
        atomic_store_explicit(&pair.other, round, memory_order_relaxed);
        xseg_membarrier();
        read = atomic_load_explicit(&pair.mine, memory_order_relaxed);
        wait_for(&pair.done, round);
        assert_true(read == round || atomic_load(&pair.seen) == round);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    refuse(0);
}

TEST(barrier_orders_accesses_of_two_threads)
{
    (void)xseg_membarrier_register();
    nobody_overlooks_the_other(0);
    nobody_overlooks_the_other(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    nobody_overlooks_the_other(MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_GLOBAL);
}

#if !XSEG_BIASED_LOCK_IS_ATOMIC

static void *take_and_give(void *self)
{
    xseg_biased_lock_lock(self);
    xseg_biased_lock_unlock(self);
    return NULL;
}

/* Taking a lock from its owner passes the barrier, and notices that it is refused. */
TEST(biased_lock_never_relies_on_a_failed_barrier)
{
    struct xseg_biased_lock lock;
    pthread_t thread;

    xseg_biased_lock_init(&lock, XSEG_RANK_ARENA);
    if (!lock.has_membarrier) {
        print_message("# this system has no membarrier: no lock has an owner\n");
        return;
    }
    for (int i = 0; i < 2; i++)
        (void)take_and_give(&lock);
    refuse(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    assert_int_equal(pthread_create(&thread, NULL, take_and_give, &lock), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&global), 1);
    refuse(0);
    xseg_biased_lock_fini(&lock);
}

#endif
