/* SPDX-License-Identifier: MIT */
/* Latches: nobody is let in twice, and nobody sleeps for ever. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "src/base/latch.h"

#define THREADS 4u
#define ROUNDS  50000u

/* What threads share; `count` and `inside` are plain, so that two at once would spoil them. */
struct fixture {
    struct xseg_latch latch;
    unsigned count, inside, collisions;
    bool rests; /* the holder sleeps now and then, so that others do as well */
};

static void *count_up(void *self)
{
    const struct timespec moment = {0, 20000};
    struct fixture *f = self;

    for (unsigned i = 0; i < ROUNDS; i++) {
        xseg_latch_take(&f->latch);
        f->collisions += f->inside != 0;
        f->inside = 1;
        f->count++;
        if (f->rests && i % 500 == 0)
            (void)nanosleep(&moment, NULL);
        f->inside = 0;
        xseg_latch_give(&f->latch);
    }
    return NULL;
}

static void count_together(bool rests, bool without_barrier)
{
    struct fixture f = {.rests = rests};
    pthread_t thread[THREADS];

    xseg_latch_init(&f.latch, XSEG_RANK_ARENA);
#if !XSEG_LATCH_IS_MUTEX
    if (without_barrier)
        f.latch.has_barrier = false;
#else
    (void)without_barrier;
#endif
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, count_up, &f), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(f.count, THREADS * ROUNDS);
    assert_int_equal(f.collisions, 0);
    xseg_latch_fini(&f.latch);
}

static void one_at_a_time(void **state)
{
    (void)state;
    count_together(false, false);
}

static void sleepers_are_woken(void **state)
{
    (void)state;
    count_together(true, false);
}

/* As in a kernel that has no membarrier. */
static void it_works_without_the_barrier(void **state)
{
    (void)state;
    count_together(false, true);
    count_together(true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(it_works_without_the_barrier),
    };

    return cmocka_run_group_tests_name("latch", tests, NULL, NULL);
}
