/* SPDX-License-Identifier: MIT */
/* Processes that share a card by a ledger: what is lent, what comes back, who waits how long, and what is no ledger. */
#include "tests/support/members.h"

TEST_WITH(idle_memory_is_lent_and_comes_back, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("");

    assert_ok(member_call(one, 'a', 0, 900 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    /* 400 MiB are within its share; 124 are free. */
    struct member_answer answer = member_call(other, 'a', 0, 400 * MIB);
    if (answer.status != XSEG_OK)
        fail_msg("%s", answer.text);
    assert_true(answer.ns < BOUND);
    assert_int_equal(answer.taken, 400 * MIB);
    answer = member_call(one, ' ', 0, 0);
    assert_in_range(answer.taken, 500 * MIB, 624 * MIB);
    /* Back: the other one keeps what it uses, and lends what it does not. */
    assert_ok(member_call(other, 'f', 0, 0).status);
    answer = member_call(one, 'a', 0, 900 * MIB);
    if (answer.status != XSEG_OK)
        fail_msg("%s", answer.text);
    assert_true(member_call(other, ' ', 0, 0).taken <= 124 * MIB);
}

/* Have a member refused 400 MiB, since another one uses 900; *one: that one. */
static struct member_answer ask_in_vain(unsigned *one)
{
    *one = member_start("");
    const unsigned other = member_start("");

    assert_ok(member_call(*one, 'a', 0, 900 * MIB).status);
    assert_ok(member_call(other, 'a', 0, 20 * MIB).status);
    const struct member_answer answer = member_call(other, 'a', 1, 400 * MIB);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    return answer;
}

/* What is in use is not taken: the request is refused within its time, and the text says where the memory is. */
TEST_WITH(live_memory_stays, members_begin, members_end)
{
    unsigned one;
    const struct member_answer answer = ask_in_vain(&one);

    assert_true(answer.ns < BOUND);
    assert_non_null(strstr(answer.text, "used by others"));
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_int_equal(answer.lines, 0);
}

/* A request that waits makes no pages before there is room: the others would see them as memory that is missing. */
TEST_WITH(who_waits_makes_no_pages, members_begin, members_end)
{
    unsigned one;
    const struct member_answer answer = ask_in_vain(&one);

    /* What is free has 52 small pages; some steps before and after the wait try them once each. */
    assert_true(answer.creates < 10 * 52);
}

/* Beyond a share, too, what others leave idle is lent, down to their floors. */
TEST_WITH(floors_are_kept, members_begin, members_end)
{
    const unsigned one = member_start("budget_share:0.25,budget_min_mb:300"),
                   other = member_start("budget_share:0.75");

    assert_ok(member_call(one, 'a', 0, 700 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    assert_ok(member_call(other, 'a', 0, 700 * MIB).status);
    assert_in_range(member_call(one, ' ', 0, 0).taken, 300 * MIB, 324 * MIB);
    const struct member_answer answer = member_call(other, 'a', 1, 100 * MIB);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    assert_true(member_call(one, ' ', 0, 0).taken >= 300 * MIB);
}

/* Ranges ask as allocations do; classic segments are given back as pages are. */
TEST_WITH(ranges_and_classic_segments_take_part, members_begin, members_end)
{
    const unsigned one = member_start("expandable_segments:False"), other = member_start("");

    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(one, 'a', i, 100 * MIB).status);
    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(one, 'f', i, 0).status);
    struct member_answer answer = member_call(other, 'c', 0, 512 * MIB);
    if (answer.status != XSEG_OK)
        fail_msg("%s", answer.text);
    assert_int_equal(answer.allocated, 512 * MIB);
    EXPECT_OK(member_call(one, 'a', 0, 400 * MIB));
}

/* A pool that is resumed asks as well: one engine wakes up while another one leaves its memory idle. */
TEST_WITH(pools_wake_up, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("");

    assert_ok(member_call(one, 'p', 0, 500 * MIB).status);
    assert_ok(member_call(one, 's', 0, 0).status);
    assert_ok(member_call(other, 'a', 0, 900 * MIB).status);
    struct member_answer answer = member_call(one, 'w', 0, 0);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    assert_ok(member_call(other, 'f', 0, 0).status);
    (void)usleep(200000);
    answer = member_call(one, 'w', 0, 0);
    if (answer.status != XSEG_OK)
        fail_msg("%s", answer.text);
    assert_int_equal(answer.taken, 500 * MIB);
}

/* What looks idle and cannot be given, as in a pool that somebody holds, is not waited for again and again. */
TEST_WITH(what_cannot_be_given_is_known, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("");

    assert_ok(member_call(one, 'p', 0, 900 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    struct member_answer answer = member_call(other, 'a', 0, 400 * MIB);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    assert_true(answer.ns < BOUND);
    assert_int_equal(member_call(one, ' ', 0, 0).idle, 900 * MIB);
    assert_ok(member_call(one, 'p', 1, 600 * MIB).status);
}

/* In a capture nobody is asked, nor waited for, and nothing is given back. */
TEST_WITH(captures_ask_nobody, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("");

    assert_ok(member_call(one, 'a', 0, 900 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    assert_ok(member_call(other, 'a', 1, 2 * MIB).status);
    assert_ok(member_call(other, 'm', 0, 0).status);
    assert_int_equal(member_call(other, 'a', 0, 400 * MIB).status, XSEG_ERR_NO_MEMORY);
    assert_ok(member_call(other, 'u', 0, 0).status);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_ok(member_call(one, 'm', 0, 0).status);
    assert_int_equal(member_call(other, 'a', 0, 400 * MIB).status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_ok(member_call(one, 'u', 0, 0).status);
    assert_ok(member_call(other, 'a', 0, 400 * MIB).status);
}

/* One that is killed leaves its memory to the others; one that is stopped keeps it, and the others go on. */
TEST_WITH(processes_die_and_stop, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start(""), third = member_start("");

    assert_ok(member_call(one, 'a', 0, 600 * MIB).status);
    assert_ok(member_call(third, 'a', 0, 300 * MIB).status);
    assert_ok(member_call(third, 'f', 0, 0).status);
    (void)kill(members.process[third].pid, SIGSTOP);
    struct member_answer answer = member_call(other, 'a', 0, 300 * MIB);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    assert_true(answer.ns < BOUND);
    member_kill(one);
    assert_ok(member_call(other, 'a', 0, 600 * MIB).status);
    (void)kill(members.process[third].pid, SIGCONT);
    EXPECT_OK(member_call(other, 'a', 1, 200 * MIB));
}

/* One that wants what is its own comes before one that has its share: it gets what is given back. */
TEST_WITH(who_has_its_share_waits_behind, members_begin, members_end)
{
    const unsigned one = member_start(""), greedy = member_start(""), poor = member_start("");

    assert_ok(member_call(one, 'a', 0, 400 * MIB).status);
    assert_ok(member_call(greedy, 'a', 0, 600 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    member_send(greedy, 'a', 1, 380 * MIB);
    member_send(poor, 'a', 0, 300 * MIB);
    const struct member_answer refused = member_receive(greedy), served = member_receive(poor);
    /* The greedy one may have been served before the other one asked. */
    assert_true(served.status == XSEG_OK || refused.status == XSEG_OK);
    assert_true(served.ns < BOUND && refused.ns < BOUND);
}

/* Two that are below their shares and want more than these wait for a third one, not for each other. */
TEST_WITH(who_cross_their_shares_do_not_block_each_other, members_begin, members_end)
{
    const unsigned one = member_start("page_size:small"), two = member_start("page_size:small"),
                   third = member_start("page_size:small");

    assert_ok(member_call(one, 'a', 0, 250 * MIB).status);
    assert_ok(member_call(two, 'a', 0, 250 * MIB).status);
    for (unsigned i = 0; i < 6; i++) {
        assert_ok(member_call(third, 'a', 0, 500 * MIB).status);
        assert_ok(member_call(third, 'f', 0, 0).status);
        /* Turns that saw the last round's wants are over. */
        (void)usleep(50000);
        member_send(one, 'a', 1, 120 * MIB);
        member_send(two, 'a', 1, 120 * MIB);
        const struct member_answer first = member_receive(one), second = member_receive(two);
        EXPECT_OK(first);
        EXPECT_OK(second);
        assert_ok(member_call(one, 'f', 1, 0).status);
        assert_ok(member_call(two, 'f', 1, 0).status);
        assert_ok(member_call(one, 't', 0, 0).status);
        assert_ok(member_call(two, 't', 0, 0).status);
    }
}

/* --- What is no ledger. --- */

static void write_file(const char *text, mode_t mode)
{
    const int file = open(members.budget_file, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(file, mode), 0);
    (void)close(file);
}

/* The allocator goes on without, and says so once. */
TEST_WITH(what_is_no_ledger_is_said_once, members_begin, members_end)
{
    struct stat before, after;

    write_file("somebody's notes\n", 0600);
    assert_int_equal(stat(members.budget_file, &before), 0);
    const unsigned one = member_start("");
    assert_ok(member_call(one, 'a', 0, 900 * MIB).status);
    struct member_answer answer = member_call(one, 'a', 1, 300 * MIB);
    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    (void)usleep(1200000);
    answer = member_call(one, ' ', 0, 0);
    assert_int_equal(answer.lines, 1);
    assert_non_null(strstr(answer.text, "(not in effect"));
    assert_non_null(strstr(answer.text, members.budget_file));
    assert_int_equal(stat(members.budget_file, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    /* Once the file has gone there is one. */
    assert_int_equal(unlink(members.budget_file), 0);
    const unsigned other = member_start("");
    assert_ok(member_call(one, 'f', 0, 0).status);
    (void)usleep(1200000);
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
}

/* A ledger that is removed under way is made anew by those who have it. */
TEST_WITH(a_ledger_that_was_removed_comes_again, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("");

    assert_ok(member_call(one, 'a', 0, 900 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    assert_ok(member_call(other, 'a', 1, 2 * MIB).status);
    assert_int_equal(unlink(members.budget_file), 0);
    MEMBER_EVENTUALLY(one, answer.lines == 1);
    MEMBER_EVENTUALLY(other, answer.lines == 1);
    (void)usleep(1500000);
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
}

TEST_WITH(shares_of_more_than_all_are_said_once, members_begin, members_end)
{
    const unsigned one = member_start("budget_share:0.8"), other = member_start("budget_share:0.8");

    assert_ok(member_call(one, 'a', 0, 2 * MIB).status);
    assert_ok(member_call(other, 'a', 0, 2 * MIB).status);
    MEMBER_EVENTUALLY(one, answer.lines == 1 && strstr(answer.text, "exceeds 1") != NULL);
    MEMBER_EVENTUALLY(other, answer.lines == 1);
    (void)usleep(300000);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 1);
}

/* Numbers that are too large for a ledger do no harm. */
TEST_WITH(large_numbers_are_bounded, members_begin, members_end)
{
    const unsigned one = member_start("budget_min_mb:18446744073709"), other = member_start("");

    assert_ok(member_call(one, 'a', 0, 800 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    assert_int_equal(member_call(other, 'a', 0, UINT64_C(1) << 52).status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(member_call(other, 'a', 0, 400 * MIB).status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 800 * MIB);
}

TEST(keys_are_checked)
{
    struct xseg_allocator *allocator = env_open(NULL);

    env_expect_error(xseg_config_set(allocator, "budget_share:1.5"), XSEG_ERR_CONFIG,
                     "budget_share");
    env_expect_error(xseg_config_set(allocator, "budget_wait_ms:0"), XSEG_ERR_CONFIG,
                     "budget_wait_ms");
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
    env_close(allocator);
}
