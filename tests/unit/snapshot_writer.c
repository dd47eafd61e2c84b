/* SPDX-License-Identifier: MIT */
/* Paths, pool IDs and times in snapshots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/core/report/snapshot.h"
#include "src/core/report/snapshot_writer.h"
#include "tests/support/test.h"

/* --- Paths. --- */

static void set_ranks(const char *rank, const char *slurm, const char *local)
{
    const char *const names[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};
    const char *const values[] = {rank, slurm, local};

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(values[i] == NULL ? unsetenv(names[i]) : setenv(names[i], values[i], 1),
                         0);
}

static void expect_path(const char *rank)
{
    char name[128], want[128];

    (void)snprintf(want, sizeof(want), "a/folder/oom-%spid%ld-7.pickle", rank, (long)getpid());
    assert_int_equal(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7), strlen(want));
    assert_string_equal(name, want);
}

TEST(path_has_the_rank_of_the_first_variable_with_a_rank)
{
    set_ranks(NULL, NULL, NULL);
    expect_path("");
    set_ranks(NULL, NULL, "2");
    expect_path("rank2-");
    set_ranks(NULL, "31", "2");
    expect_path("rank31-");
    set_ranks("1023", "31", "2");
    expect_path("rank1023-");
}

/* The rank becomes part of a path, so only digits are accepted. */
TEST(rank_is_a_number)
{
    static const char *const wrong[] = {"", "-1", "../../etc", "1/2", "0x3", " 4", "12345678901"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        set_ranks(wrong[i], NULL, NULL);
        expect_path("");
        set_ranks(wrong[i], wrong[i], "5");
        expect_path("rank5-");
    }
    set_ranks("0123456789", NULL, NULL);
    expect_path("rank0123456789-");
    set_ranks(NULL, NULL, NULL);
}

TEST(path_that_does_not_fit_is_truncated)
{
    char name[16];

    assert_true(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7) >= sizeof(name));
    assert_int_equal(strlen(name), sizeof(name) - 1);
}

/* --- Pools. --- */

static const struct xseg_clock system_clock = {.read = NULL};

TEST(pool_has_the_id_of_its_user_or_its_number)
{
    const uint64_t id[2] = {5, 6};
    struct xseg_snapshot_writer writer;
    struct xseg_history_store store;

    xseg_history_store_init(&store, &system_clock);
    assert_true(xseg_history_store_add_pool_id(&store, 70, id));
    xseg_snapshot_writer_init(&writer, &store);
    for (unsigned round = 0; round < 2; round++) {
        /* Pools 70 and 6 share an entry of the cache. */
        assert_memory_equal(xseg_snapshot_pool_id(&writer, 70), id, sizeof(id));
        for (uint32_t number = 0; number < 300; number++) {
            const uint64_t *pool = xseg_snapshot_pool_id(&writer, number);

            assert_int_equal(pool[0], number == 70 ? 5 : 0);
            assert_int_equal(pool[1], number == 70 ? 6 : number);
        }
    }
    xseg_snapshot_writer_fini(&writer);
    xseg_history_store_fini(&store);
}

/* --- Times. --- */

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

TEST(time_is_in_microseconds_since_1970_or_of_the_users_clock)
{
    uint64_t own = 42000500;
    const struct xseg_clock own_clock = {.read = read_own, .self = &own};
    struct xseg_snapshot_writer writer;
    struct xseg_history_store store;

    xseg_history_store_init(&store, &system_clock);
    xseg_snapshot_writer_init(&writer, &store);
    const struct xseg_history_moment moment = xseg_history_store_moment(&store);
    const uint64_t time = xseg_snapshot_time_us(&writer, &moment, moment.ticks);
    assert_in_range(now_us() - time + 1000000, 900000, 3000000);
    xseg_snapshot_writer_fini(&writer);
    xseg_history_store_fini(&store);
    xseg_history_store_init(&store, &own_clock);
    xseg_snapshot_writer_init(&writer, &store);
    const struct xseg_history_moment then = xseg_history_store_moment(&store);
    assert_int_equal(xseg_snapshot_time_us(&writer, &then, then.ticks), 42000);
    xseg_snapshot_writer_fini(&writer);
    xseg_history_store_fini(&store);
}
