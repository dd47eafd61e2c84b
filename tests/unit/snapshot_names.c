/* SPDX-License-Identifier: MIT */
/* What snapshots call files, pools and moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "src/core/report/naming.h"
#include "src/core/report/oom.h"

/* --- Files. --- */

static void set_ranks(const char *rank, const char *slurm, const char *local)
{
    const char *const names[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};
    const char *const values[] = {rank, slurm, local};

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(values[i] == NULL ? unsetenv(names[i]) : setenv(names[i], values[i], 1),
                         0);
}

static void expect_name(const char *rank)
{
    char name[128], want[128];

    (void)snprintf(want, sizeof(want), "a/folder/oom-%spid%ld-7.pickle", rank, (long)getpid());
    assert_int_equal(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7), strlen(want));
    assert_string_equal(name, want);
}

static void the_first_launcher_that_says_a_rank_counts(void **state)
{
    (void)state;
    set_ranks(NULL, NULL, NULL);
    expect_name("");
    set_ranks(NULL, NULL, "2");
    expect_name("rank2-");
    set_ranks(NULL, "31", "2");
    expect_name("rank31-");
    set_ranks("1023", "31", "2");
    expect_name("rank1023-");
}

/* A rank becomes part of a path: nothing but digits may. */
static void a_rank_is_a_number(void **state)
{
    static const char *const wrong[] = {"", "-1", "../../etc", "1/2", "0x3", " 4", "12345678901"};

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        set_ranks(wrong[i], NULL, NULL);
        expect_name("");
        set_ranks(wrong[i], wrong[i], "5");
        expect_name("rank5-");
    }
    set_ranks("0123456789", NULL, NULL);
    expect_name("rank0123456789-");
    set_ranks(NULL, NULL, NULL);
}

static void a_name_that_does_not_fit_is_cut(void **state)
{
    char name[16];

    (void)state;
    assert_true(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7) >= sizeof(name));
    assert_int_equal(strlen(name), sizeof(name) - 1);
}

/* --- Pools. --- */

static const struct xseg_clock system_clock = {.read = NULL};

static void pools_have_the_name_of_their_user_or_their_number(void **state)
{
    const uint64_t id[2] = {5, 6};
    struct xseg_snapshot_naming naming;
    struct xseg_history_store store;

    (void)state;
    xseg_history_store_init(&store, &system_clock);
    assert_true(xseg_history_store_add_pool_id(&store, 70, id));
    xseg_snapshot_naming_init(&naming, &store);
    for (unsigned round = 0; round < 2; round++) {
        /* 70 and 6 share a place of what is remembered. */
        assert_memory_equal(xseg_snapshot_naming_pool(&naming, 70), id, sizeof(id));
        for (uint32_t number = 0; number < 300; number++) {
            const uint64_t *pool = xseg_snapshot_naming_pool(&naming, number);

            assert_int_equal(pool[0], number == 70 ? 5 : 0);
            assert_int_equal(pool[1], number == 70 ? 6 : number);
        }
    }
    xseg_history_store_fini(&store);
}

/* --- Moments. --- */

static uint64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t read_own(void *context)
{
    return *(uint64_t *)context;
}

static void moments_are_microseconds_since_1970_or_the_users(void **state)
{
    uint64_t own = 42000500;
    const struct xseg_clock own_clock = {.read = read_own, .self = &own};
    struct xseg_snapshot_naming naming;
    struct xseg_history_store store;

    (void)state;
    xseg_history_store_init(&store, &system_clock);
    xseg_snapshot_naming_init(&naming, &store);
    const struct xseg_history_moment moment = xseg_history_store_moment(&store);
    const uint64_t named = xseg_snapshot_naming_us(&naming, &moment, moment.ticks);
    assert_in_range(now_us() - named + 1000000, 900000, 3000000);
    xseg_history_store_fini(&store);
    xseg_history_store_init(&store, &own_clock);
    xseg_snapshot_naming_init(&naming, &store);
    const struct xseg_history_moment then = xseg_history_store_moment(&store);
    assert_int_equal(xseg_snapshot_naming_us(&naming, &then, then.ticks), 42000);
    xseg_history_store_fini(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_launcher_that_says_a_rank_counts),
        cmocka_unit_test(a_rank_is_a_number),
        cmocka_unit_test(a_name_that_does_not_fit_is_cut),
        cmocka_unit_test(pools_have_the_name_of_their_user_or_their_number),
        cmocka_unit_test(moments_are_microseconds_since_1970_or_the_users),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
