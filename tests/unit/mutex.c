/* SPDX-License-Identifier: MIT */
/* Lock ranks: ascending order is accepted, and a violation ends the process with a message. */
#include <stdlib.h>
#include <string.h>

#include "src/base/mutex.h"
#include "tests/support/child.h"

/* Record locks of two ranks as acquired, one after the other. */
static void lock_in_order(enum xseg_lock_rank first, enum xseg_lock_rank second)
{
    struct xseg_mutex lock[2];

    xseg_mutex_init(&lock[0], first);
    xseg_mutex_init(&lock[1], second);
    xseg_mutex_record_acquired(&lock[0]);
    xseg_mutex_record_acquired(&lock[1]);
    xseg_mutex_record_released(&lock[1]);
    xseg_mutex_record_released(&lock[0]);
    xseg_mutex_fini(&lock[1]);
    xseg_mutex_fini(&lock[0]);
}

static void lock_pair(const void *pair)
{
    const enum xseg_lock_rank *rank = pair;

    lock_in_order(rank[0], rank[1]);
}

/* Each rank is locked again after it was unlocked. */
TEST(ascending_ranks_are_accepted)
{
    for (int first = XSEG_RANK_FIRST; first < XSEG_RANK_COUNT; first++)
        for (int second = first + 1; second < XSEG_RANK_COUNT; second++)
            lock_in_order((enum xseg_lock_rank)first, (enum xseg_lock_rank)second);
}

TEST(lower_or_equal_rank_is_fatal)
{
    static const enum xseg_lock_rank pair[][2] = {
        {XSEG_RANK_ARENA, XSEG_RANK_ARENA},
        {XSEG_RANK_ARENA, XSEG_RANK_DEVICE_MEMORY},
        {XSEG_RANK_STATS, XSEG_RANK_FIRST},
    };
    static const enum xseg_lock_rank ascending[2] = {XSEG_RANK_DEVICE_MEMORY, XSEG_RANK_ARENA};
    char output[2048];

    for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
        assert_true(child_aborted(child_run(lock_pair, pair[i], output, sizeof(output))));
        assert_non_null(
            strstr(output, "check failed: lock order a lock of this rank or above is held"));
    }
    assert_int_equal(child_run(lock_pair, ascending, output, sizeof(output)), 0);
    assert_string_equal(output, "");
}

/* Record nested locks of two arenas and, if the argument is not NULL, one of STATS between them. */
static void lock_nested(const void *with_stats)
{
    xseg_lock_rank_acquired(XSEG_RANK_DEVICE_MEMORY);
    xseg_lock_rank_acquired_nested(XSEG_RANK_ARENA);
    if (with_stats != NULL)
        xseg_lock_rank_acquired(XSEG_RANK_STATS);
    xseg_lock_rank_acquired_nested(XSEG_RANK_ARENA);
    xseg_lock_rank_released(XSEG_RANK_ARENA);
    if (!xseg_lock_rank_is_held(XSEG_RANK_ARENA))
        abort();
    xseg_lock_rank_released(XSEG_RANK_ARENA);
    if (xseg_lock_rank_is_held(XSEG_RANK_ARENA))
        abort();
    xseg_lock_rank_released(XSEG_RANK_DEVICE_MEMORY);
}

TEST(locks_of_one_rank_may_be_nested_explicitly)
{
    char output[2048];

    assert_int_equal(child_run(lock_nested, NULL, output, sizeof(output)), 0);
    assert_true(child_aborted(child_run(lock_nested, "with STATS", output, sizeof(output))));
    assert_non_null(
        strstr(output, "check failed: lock order a lock of this rank or above is held"));
}
