/* SPDX-License-Identifier: MIT */
/* Biased locks, and the process-wide memory barriers that revoke them. */
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "src/base/biased_lock.h"
#include "tests/support/test.h"
#include "tests/support/wrapped.h"

#define THREADS 4u
#define ROUNDS  50000u

/* State shared by the threads; `count` and `inside` are not atomic, so overlapping holders corrupt them. */
struct fixture {
    struct xseg_biased_lock lock;
    unsigned count, inside, collisions;
    bool sleeps; /* the holder sleeps occasionally, so that waiters sleep too */
};

static void *count_up(void *self)
{
    const struct timespec delay = {0, 20000};
    struct fixture *f = self;

    for (unsigned i = 0; i < ROUNDS; i++) {
        xseg_biased_lock_lock(&f->lock);
        f->collisions += f->inside != 0;
        f->inside = 1;
        f->count++;
        if (f->sleeps && i % 500 == 0)
            (void)nanosleep(&delay, NULL);
        f->inside = 0;
        xseg_biased_lock_unlock(&f->lock);
    }
    return NULL;
}

static void count_together(bool sleeps, bool without_barrier)
{
    struct fixture f = {.sleeps = sleeps};
    pthread_t thread[THREADS];

    xseg_biased_lock_init(&f.lock, XSEG_RANK_ARENA);
#if !XSEG_BIASED_LOCK_IS_ATOMIC
    if (without_barrier) {
        f.lock.has_membarrier = false;
        f.lock.owner = XSEG_BIASED_LOCK_REVOKED;
    }
#else
    (void)without_barrier;
#endif
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, count_up, &f), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(f.count, THREADS * ROUNDS);
    assert_int_equal(f.collisions, 0);
    xseg_biased_lock_fini(&f.lock);
}

/* All combinations of holders that sleep or not, and of a kernel with or without membarrier(). */
TEST(lock_excludes_other_threads)
{
    for (unsigned i = 0; i < 4; i++)
        count_together(i % 2 != 0, i / 2 != 0);
}

#if !XSEG_BIASED_LOCK_IS_ATOMIC

/* A biased lock, and one thread that owns it. */
struct owned {
    struct xseg_biased_lock lock;
    atomic_uint phase; /* 1: the lock has an owner; 2: the bias has been revoked */
    unsigned inside;
    atomic_uint collisions;
};

static void wait_for_phase(struct owned *f, unsigned phase)
{
    while (atomic_load(&f->phase) != phase)
        (void)sched_yield();
}

static void lock_repeatedly(struct owned *f, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        xseg_biased_lock_lock(&f->lock);
        atomic_fetch_add(&f->collisions, f->inside != 0);
        f->inside = 1;
        f->inside = 0;
        xseg_biased_lock_unlock(&f->lock);
    }
}

static void *lock_as_owner(void *self)
{
    struct owned *f = self;

    lock_repeatedly(f, 10);
    assert_true(atomic_load(&f->lock.owner) == xseg_biased_lock_self());
    atomic_store(&f->phase, 1);
    /* The main thread revokes the bias while this thread continues. */
    lock_repeatedly(f, 200000);
    wait_for_phase(f, 2);
    assert_true(atomic_load(&f->lock.owner) == XSEG_BIASED_LOCK_REVOKED);
    lock_repeatedly(f, 10);
    return NULL;
}

/* A thread owns a biased lock until a second thread locks it, whatever the first thread does at that moment. */
TEST(owner_yields_to_a_waiting_thread)
{
    for (unsigned i = 0; i < 200; i++) {
        struct owned f = {.phase = 0};
        pthread_t thread;

        xseg_biased_lock_init(&f.lock, XSEG_RANK_ARENA);
        if (!f.lock.has_membarrier) {
            print_message("# this system has no membarrier: no lock has an owner\n");
            return;
        }
        assert_int_equal(pthread_create(&thread, NULL, lock_as_owner, &f), 0);
        wait_for_phase(&f, 1);
        lock_repeatedly(&f, 2000);
        atomic_store(&f.phase, 2);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(f.collisions, 0);
        xseg_biased_lock_fini(&f.lock);
    }
}

#endif

/* A lock whose holder writes two words, and a flag that stops the writes. The flag has its own cache line, so that a
 * holder reads it while its stores are still in the store buffer. */
struct suspended {
    _Alignas(64) struct xseg_biased_lock lock;
    unsigned first, second;
    _Alignas(64) atomic_uint stop; /* odd: holders must not write */
    atomic_bool must_end;
};

static void *write_unless_stopped(void *self)
{
    struct suspended *f = self;

    while (!atomic_load(&f->must_end)) {
        xseg_biased_lock_lock(&f->lock);
        if (atomic_load_explicit(&f->stop, memory_order_acquire) % 2 == 0) {
            f->first++;
            f->second++;
        }
        xseg_biased_lock_unlock(&f->lock);
    }
    return NULL;
}

/* Message passing through the barrier in both directions: writes of earlier holders are visible, and later holders
 * see the flag. Counts of arenas are suspended this way. */
TEST(barrier_publishes_the_writes_of_earlier_holders)
{
    struct suspended f = {.stop = 0};
    unsigned free_count = 0, torn = 0;
    pthread_t thread;

    xseg_biased_lock_init(&f.lock, XSEG_RANK_ARENA);
    assert_int_equal(pthread_create(&thread, NULL, write_unless_stopped, &f), 0);
    for (unsigned i = 0; i < 200000 && free_count < 20000; i++) {
        atomic_fetch_add(&f.stop, 1);
        if (xseg_biased_lock_barrier(&f.lock) && xseg_biased_lock_is_free(&f.lock)) {
            const unsigned first = f.first, second = f.second;

            for (unsigned k = 0; k < 100; k++)
                atomic_signal_fence(memory_order_seq_cst);
            torn += first != second || first != f.first || second != f.second;
            free_count++;
        }
        atomic_fetch_add(&f.stop, 1);
        if (i % 64 == 0)
            (void)sched_yield();
    }
    atomic_store(&f.must_end, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(torn, 0);
    if (free_count == 0)
        print_message(
            "# the lock was never free after a barrier: this system may have no membarrier\n");
    xseg_biased_lock_fini(&f.lock);
}

/* --- Barriers, with each method that the kernel may support. --- */

#define BARRIER_ROUNDS 300u

static atomic_uint failing_commands; /* commands of membarrier() that fail */
static atomic_uint expedited_calls, global_calls, munmap_calls;

WRAPPED(long, syscall, long number, long a, long b, long c, long d, long e, long f);
WRAPPED(int, munmap, void *address, size_t bytes);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == __NR_membarrier) {
        atomic_fetch_add(&expedited_calls, a == MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        atomic_fetch_add(&global_calls, a == MEMBARRIER_CMD_GLOBAL);
        if ((atomic_load(&failing_commands) & (unsigned)a) != 0) {
            errno = EPERM;
            return -1;
        }
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

int __wrap_munmap(void *address, size_t bytes)
{
    atomic_fetch_add(&munmap_calls, 1);
    return __real_munmap(address, bytes);
}

static void fail_membarrier(unsigned commands)
{
    atomic_store(&failing_commands, commands);
    atomic_store(&expedited_calls, 0);
    atomic_store(&global_calls, 0);
    atomic_store(&munmap_calls, 0);
}

TEST(barrier_falls_back_when_a_method_fails)
{
    if (!xseg_membarrier_register()) {
        print_message("# this system has no membarrier\n");
        return;
    }
    fail_membarrier(0);
    xseg_membarrier();
    assert_int_equal(atomic_load(&expedited_calls), 1);
    assert_int_equal(atomic_load(&global_calls), 0);
    fail_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    xseg_membarrier();
    assert_int_equal(atomic_load(&global_calls), 1);
    fail_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_GLOBAL);
    xseg_membarrier();
    assert_int_equal(atomic_load(&expedited_calls), 1);
    assert_int_equal(atomic_load(&global_calls), 1);
    assert_int_equal(atomic_load(&munmap_calls), 1);
    fail_membarrier(0);
}

/* Two threads each write a word and then read the other word; at least one of them must see the other thread's write (store
 * buffering). */
struct pair {
    atomic_uint round, done;
    atomic_uint by_thread, by_test; /* the words, each named after its writer */
    atomic_uint seen_by_thread;
};

static void wait_for_round(atomic_uint *word, unsigned round)
{
    /* The threads must run concurrently; on one CPU this thread must yield its time slice. */
    for (unsigned spins = 0; atomic_load(word) != round; spins++)
        if (spins > 10000)
            (void)sched_yield();
}

static void *write_and_read(void *self)
{
    struct pair *pair = self;

    for (unsigned round = 1; round <= BARRIER_ROUNDS; round++) {
        wait_for_round(&pair->round, round);
        atomic_store_explicit(&pair->by_thread, round, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        atomic_store_explicit(&pair->seen_by_thread,
                              atomic_load_explicit(&pair->by_test, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store(&pair->done, round);
    }
    return NULL;
}

static void exchange_words(unsigned commands)
{
    struct pair pair = {0};
    pthread_t thread;

    fail_membarrier(commands);
    assert_int_equal(pthread_create(&thread, NULL, write_and_read, &pair), 0);
    for (unsigned round = 1; round <= BARRIER_ROUNDS; round++) {
        atomic_store(&pair.round, round);
        atomic_store_explicit(&pair.by_test, round, memory_order_relaxed);
        xseg_membarrier();
        const unsigned seen_by_test = atomic_load_explicit(&pair.by_thread, memory_order_relaxed);
        wait_for_round(&pair.done, round);
        assert_true(seen_by_test == round || atomic_load(&pair.seen_by_thread) == round);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    fail_membarrier(0);
}

TEST(barrier_orders_accesses_of_two_threads)
{
    (void)xseg_membarrier_register();
    exchange_words(0);
    exchange_words(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    exchange_words(MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_GLOBAL);
}

#if !XSEG_BIASED_LOCK_IS_ATOMIC

static void *lock_and_unlock(void *self)
{
    xseg_biased_lock_lock(self);
    xseg_biased_lock_unlock(self);
    return NULL;
}

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
        (void)lock_and_unlock(&lock);
    fail_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    assert_int_equal(pthread_create(&thread, NULL, lock_and_unlock, &lock), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&global_calls), 1);
    fail_membarrier(0);
    xseg_biased_lock_fini(&lock);
}

#endif
