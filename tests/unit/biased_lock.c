/* SPDX-License-Identifier: MIT */
/* Biased locks: nobody is let in twice, and nobody sleeps for ever. */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "src/base/biased_lock.h"
#include "tests/support/test.h"

#define THREADS 4u
#define ROUNDS  50000u

/* What threads share; `count` and `inside` are plain, so that two at once would spoil them. */
struct fixture {
    struct xseg_biased_lock lock;
    unsigned count, inside, collisions;
    bool rests; /* the holder sleeps now and then, so that others do as well */
};

static void *count_up(void *self)
{
    const struct timespec moment = {0, 20000};
    struct fixture *f = self;

    for (unsigned i = 0; i < ROUNDS; i++) {
        xseg_biased_lock_lock(&f->lock);
        f->collisions += f->inside != 0;
        f->inside = 1;
        f->count++;
        if (f->rests && i % 500 == 0)
            (void)nanosleep(&moment, NULL);
        f->inside = 0;
        xseg_biased_lock_unlock(&f->lock);
    }
    return NULL;
}

static void count_together(bool rests, bool without_barrier)
{
    struct fixture f = {.rests = rests};
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

TEST(lock_excludes_other_threads)
{
    count_together(false, false);
}

TEST(sleepers_are_woken)
{
    count_together(true, false);
}

/* As in a kernel that has no membarrier. */
TEST(lock_works_without_the_barrier)
{
    count_together(false, true);
    count_together(true, true);
}

#if !XSEG_BIASED_LOCK_IS_ATOMIC

/* A biased lock, and one thread that owns it. */
struct owned {
    struct xseg_biased_lock lock;
    atomic_uint turn;
    unsigned inside;
    atomic_uint collisions;
};

static void wait_for_turn(struct owned *f, unsigned turn)
{
    while (atomic_load(&f->turn) != turn)
        (void)sched_yield();
}

static void use(struct owned *f, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        xseg_biased_lock_lock(&f->lock);
        atomic_fetch_add(&f->collisions, f->inside != 0);
        f->inside = 1;
        f->inside = 0;
        xseg_biased_lock_unlock(&f->lock);
    }
}

static void *own(void *self)
{
    struct owned *f = self;

    use(f, 10);
    assert_true(atomic_load(&f->lock.owner) == xseg_biased_lock_self());
    atomic_store(&f->turn, 1);
    /* The other thread takes it away while this one goes on. */
    use(f, 200000);
    wait_for_turn(f, 2);
    assert_true(atomic_load(&f->lock.owner) == XSEG_BIASED_LOCK_REVOKED);
    use(f, 10);
    return NULL;
}

/* The first thread owns a biased lock, until another one wants it: in the middle of all it does. */
TEST(owner_yields_to_a_waiting_thread)
{
    for (unsigned i = 0; i < 200; i++) {
        struct owned f = {.turn = 0};
        pthread_t thread;

        xseg_biased_lock_init(&f.lock, XSEG_RANK_ARENA);
        if (!f.lock.has_membarrier) {
            print_message("# this system has no membarrier: no lock has an owner\n");
            return;
        }
        assert_int_equal(pthread_create(&thread, NULL, own, &f), 0);
        wait_for_turn(&f, 1);
        use(&f, 2000);
        atomic_store(&f.turn, 2);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(f.collisions, 0);
        xseg_biased_lock_fini(&f.lock);
    }
}

#endif

/* A lock whose holder writes two words, and a note that asks holders to write neither.  The note has a cache line of its
 * own, so that a holder reads it while its own stores still wait for theirs. */
struct noted {
    _Alignas(64) struct xseg_biased_lock lock;
    unsigned first, second;
    _Alignas(64) atomic_uint note; /* odd: asks for that */
    atomic_bool is_over;
};

static void *write_unless_asked(void *self)
{
    struct noted *f = self;

    while (!atomic_load(&f->is_over)) {
        xseg_biased_lock_lock(&f->lock);
        if (atomic_load_explicit(&f->note, memory_order_acquire) % 2 == 0) {
            f->first++;
            f->second++;
        }
        xseg_biased_lock_unlock(&f->lock);
    }
    return NULL;
}

/* Message passing by way of the barrier, in both directions: what holders of before have written is seen, and holders
 * of afterwards see the note.  Counts of arenas rest by this. */
TEST(released_lock_keeps_its_mode_after_a_barrier)
{
    struct noted f = {.note = 0};
    unsigned free_times = 0, torn = 0;
    pthread_t thread;

    xseg_biased_lock_init(&f.lock, XSEG_RANK_ARENA);
    assert_int_equal(pthread_create(&thread, NULL, write_unless_asked, &f), 0);
    for (unsigned i = 0; i < 200000 && free_times < 20000; i++) {
        atomic_fetch_add(&f.note, 1);
        if (xseg_biased_lock_barrier(&f.lock) && xseg_biased_lock_is_free(&f.lock)) {
            const unsigned first = f.first, second = f.second;

            for (unsigned k = 0; k < 100; k++)
                atomic_signal_fence(memory_order_seq_cst);
            torn += first != second || first != f.first || second != f.second;
            free_times++;
        }
        atomic_fetch_add(&f.note, 1);
        if (i % 64 == 0)
            (void)sched_yield();
    }
    atomic_store(&f.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(torn, 0);
    if (free_times == 0)
        print_message("# the lock was never found free: this system may have no membarrier\n");
    xseg_biased_lock_fini(&f.lock);
}
