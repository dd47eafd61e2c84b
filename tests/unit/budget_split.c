/* SPDX-License-Identifier: MIT */
/* The split of a device among processes: shares, and the memory that each member releases for
 * others. */
#include "src/core/budget/budget.h"

#include "src/base/align.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

#define TOTAL (64 * GIB)
#define MOST  8u

static struct xseg_budget_member member(uint64_t taken, uint64_t idle, uint64_t wanted,
                                        uint64_t share, uint64_t floor)
{
    return (struct xseg_budget_member){.physical = taken * GIB,
                                       .idle = idle * GIB,
                                       .demand = wanted * GIB,
                                       .named_share = share,
                                       .floor = floor * GIB};
}

static uint64_t released_by(const struct xseg_budget_member *members, unsigned count, unsigned own,
                            uint64_t free)
{
    return xseg_budget_split(members, count, own, TOTAL, free).release;
}

TEST(configured_shares_are_kept)
{
    const struct xseg_budget_member two[] = {member(10, 0, 0, 750000, 0), member(20, 0, 0, 0, 0)};
    const struct xseg_budget_member three[] = {member(0, 0, 0, 500000, 0), member(0, 0, 0, 0, 0),
                                               member(0, 0, 0, 0, 0)};
    const struct xseg_budget_member more[] = {member(0, 0, 0, 1000000, 0),
                                              member(0, 0, 0, 600000, 0), member(0, 0, 0, 0, 0)};

    assert_int_equal(xseg_budget_split(two, 2, 0, TOTAL, 0).share, 48 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 1, TOTAL, 0).share, 16 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 1, TOTAL, 0).above_share, 4 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 0, TOTAL, 0).above_share, 0);
    assert_int_equal(xseg_budget_split(three, 3, 2, TOTAL, 0).share, 16 * GIB);
    assert_int_equal(xseg_budget_split(more, 3, 0, TOTAL, 0).share, 40 * GIB);
    assert_int_equal(xseg_budget_split(more, 3, 1, TOTAL, 0).share, 24 * GIB);
    assert_int_equal(xseg_budget_split(more, 3, 2, TOTAL, 0).share, 0);
    assert_true(xseg_budget_split(more, 3, 2, TOTAL, 0).exceeds);
    assert_false(xseg_budget_split(three, 3, 0, TOTAL, 0).exceeds);
}

/* What is wanted up to a share comes of what is borrowed, whoever has most of it most; idle memory
 * within shares stays. */
TEST(memory_above_the_share_is_released_first)
{
    const struct xseg_budget_member members[] = {member(10, 0, 4, 0, 0), member(30, 12, 0, 0, 0),
                                                 member(24, 24, 0, 0, 0), member(0, 0, 0, 0, 0)};

    /* Shares of 16 GiB; 12 and 8 GiB of idle memory are borrowed. */
    assert_in_range(released_by(members, 4, 1, 0), 4 * GIB * 12 / 20, 4 * GIB * 12 / 20 + 2);
    assert_in_range(released_by(members, 4, 2, 0), 4 * GIB * 8 / 20, 4 * GIB * 8 / 20 + 2);
    assert_int_equal(released_by(members, 4, 0, 0), 0);
    assert_int_equal(released_by(members, 4, 3, 0), 0);
    /* Free memory is used before members release memory. */
    assert_int_equal(released_by(members, 4, 1, 4 * GIB), 0);
    assert_in_range(released_by(members, 4, 1, 3 * GIB), GIB * 12 / 20, GIB * 12 / 20 + 2);
    assert_int_equal(xseg_budget_split(members, 4, 1, TOTAL, 0).spare, 0);
    assert_int_equal(xseg_budget_split(members, 4, 1, TOTAL, 7 * GIB).spare, 3 * GIB);
    assert_int_equal(xseg_budget_split(members, 4, 0, TOTAL, 0).spare, UINT64_MAX);
    assert_int_equal(xseg_budget_split(members, 4, 0, TOTAL, 0).others_idle, 36 * GIB);
}

/* Beyond a share idle memory is lent down to the floor, but not by who wants some itself. */
TEST(idle_memory_is_lent_down_to_the_floor)
{
    struct xseg_budget_member members[] = {member(40, 0, 9, 0, 0), member(20, 18, 0, 0, 15),
                                           member(4, 4, 0, 0, 0)};

    assert_int_equal(released_by(members, 3, 1, 0), 5 * GIB);
    assert_int_equal(released_by(members, 3, 2, 0), 4 * GIB);
    assert_int_equal(xseg_budget_split(members, 3, 1, TOTAL, 0).spare, UINT64_MAX);
    members[2].demand = GIB;
    assert_int_equal(released_by(members, 3, 2, 0), 0);
    assert_int_equal(released_by(members, 3, 1, 0), 5 * GIB);
}

/* Pages that are being created are not released once more; they are reserved for the growing
 * member. */
TEST(growing_demands_are_not_released_twice)
{
    struct xseg_budget_member members[] = {member(10, 0, 12, 0, 0), member(40, 30, 0, 0, 0)};

    assert_in_range(released_by(members, 2, 1, 2 * GIB), 10 * GIB, 10 * GIB + 2);
    members[0].growing = 12 * GIB;
    assert_int_equal(released_by(members, 2, 1, 2 * GIB), 0);
    assert_int_equal(xseg_budget_split(members, 2, 1, TOTAL, 13 * GIB).spare, GIB);
    /* One request makes pages, another one waits. */
    members[0].growing = 5 * GIB;
    assert_in_range(released_by(members, 2, 1, 2 * GIB), 5 * GIB, 5 * GIB + 2);
}

/* Two that want memory beyond their shares do not hold each other up where there is enough for
 * both. */
TEST(member_above_its_share_gets_spare_memory)
{
    const struct xseg_budget_member members[] = {member(20, 0, 10, 0, 0), member(20, 0, 10, 0, 0),
                                                 member(4, 0, 0, 0, 0)};

    for (unsigned i = 0; i < 2; i++) {
        const struct xseg_budget_split split = xseg_budget_split(members, 3, i, TOTAL, 20 * GIB);

        assert_true(members[i].physical + split.spare >= 30 * GIB);
        assert_true(split.share < 30 * GIB);
    }
    assert_int_equal(xseg_budget_split(members, 3, 0, TOTAL, GIB).spare, 0);
}

TEST(members_keep_memory_without_demands)
{
    const struct xseg_budget_member alone[] = {member(60, 60, 0, 0, 0)};
    const struct xseg_budget_member two[] = {member(60, 60, 0, 0, 0), member(1, 1, 0, 0, 0)};

    assert_int_equal(released_by(alone, 1, 0, 0), 0);
    assert_int_equal(released_by(two, 2, 0, 0), 0);
    assert_int_equal(released_by(two, 2, 1, 0), 0);
    assert_int_equal(xseg_budget_split(alone, 1, 0, TOTAL, 0).share, TOTAL);
}

/*
 * Whatever the figures are: a need is met, as far as idle memory allows, after some turns; nobody
 * gives more than is idle, nor goes below its share or floor while borrowed memory of others would
 * do.
 */
TEST(demands_are_met_within_some_rounds)
{
    uint64_t random = 7;

    for (unsigned round = 0; round < 20000; round++) {
        struct xseg_budget_member members[MOST];
        const unsigned count = 2 + (unsigned)(rng_next(&random) % (MOST - 1));
        uint64_t free = 0, lendable = 0, want = 0;

        for (unsigned i = 0; i < count; i++) {
            const uint64_t taken = rng_next(&random) % (TOTAL / count);

            members[i] = (struct xseg_budget_member){
                .physical = taken,
                .idle = rng_next(&random) % (taken + 1),
                .named_share = rng_next(&random) % 3 == 0 ? rng_next(&random) % 1000001 : 0,
                .floor = rng_next(&random) % 2 == 0 ? 0 : rng_next(&random) % GIB,
            };
        }
        members[0].demand = want = 1 + rng_next(&random) % (8 * GIB);
        for (unsigned i = 1; i < count; i++)
            lendable +=
                xseg_min(members[i].idle,
                         members[i].physical - xseg_min(members[i].physical, members[i].floor));
        for (unsigned turn = 0; turn < 4; turn++) {
            uint64_t given[MOST];

            for (unsigned i = 1; i < count; i++)
                given[i] = released_by(members, count, i, free);
            for (unsigned i = 1; i < count; i++) {
                assert_true(given[i] <= members[i].idle);
                members[i].physical -= given[i];
                members[i].idle -= given[i];
                free += given[i];
                assert_true(given[i] == 0 || members[i].physical >= members[i].floor);
            }
        }
        assert_true(free >= xseg_min(want, lendable));
        /* A little more than is wanted, since each rounds up. */
        assert_true(free <= want + 2 * MOST);
    }
}
