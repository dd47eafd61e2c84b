/* SPDX-License-Identifier: MIT */
/* Lock ranks: the order is kept, and breaking it ends the process with a sentence. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "src/base/lock.h"

/* Note locks of two ranks as taken, one after the other. */
static void take_both(enum xseg_lock_rank first, enum xseg_lock_rank second)
{
    struct xseg_lock lock[2];

    xseg_lock_init(&lock[0], first);
    xseg_lock_init(&lock[1], second);
    xseg_lock_note_taken(&lock[0]);
    xseg_lock_note_taken(&lock[1]);
    xseg_lock_note_given(&lock[1]);
    xseg_lock_note_given(&lock[0]);
    xseg_lock_fini(&lock[1]);
    xseg_lock_fini(&lock[0]);
}

/* What a child says on standard error that takes both; "" if it lives to the end. */
static void ask_a_child(enum xseg_lock_rank first, enum xseg_lock_rank second, char *said,
                        size_t bytes)
{
    int end[2], status = 0;
    size_t length = 0;

    assert_int_equal(pipe(end), 0);
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(end[1], STDERR_FILENO);
        take_both(first, second);
        _exit(0);
    }
    assert_true(child > 0);
    (void)close(end[1]);
    for (ssize_t got = 1; got > 0; length += (size_t)got) {
        got = read(end[0], said + length, bytes - 1 - length);
        assert_true(got >= 0);
    }
    said[length] = '\0';
    (void)close(end[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, length > 0);
}

static void ranks_rise(void **state)
{
    (void)state;
    for (int first = XSEG_RANK_DRIVER; first < XSEG_RANK_COUNT; first++)
        for (int second = first + 1; second < XSEG_RANK_COUNT; second++)
            take_both((enum xseg_lock_rank)first, (enum xseg_lock_rank)second);
}

static void what_was_given_may_be_taken_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        take_both(XSEG_RANK_GROWTH, XSEG_RANK_STATS);
}

static void a_rank_below_or_the_same_is_fatal(void **state)
{
    static const enum xseg_lock_rank pair[][2] = {
        {XSEG_RANK_ARENA, XSEG_RANK_ARENA},
        {XSEG_RANK_ARENA, XSEG_RANK_GROWTH},
        {XSEG_RANK_STATS, XSEG_RANK_DRIVER},
    };
    char said[2048];

    (void)state;
    for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
        ask_a_child(pair[i][0], pair[i][1], said, sizeof(said));
        assert_non_null(strstr(said, "broken: lock order a lock of this rank or above is held"));
    }
    ask_a_child(XSEG_RANK_GROWTH, XSEG_RANK_ARENA, said, sizeof(said));
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_rise),
        cmocka_unit_test(what_was_given_may_be_taken_again),
        cmocka_unit_test(a_rank_below_or_the_same_is_fatal),
    };

    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
