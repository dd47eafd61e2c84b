/* SPDX-License-Identifier: MIT */
/* Demands, limits and shares of processes on one device. */
#include <pthread.h>
#include <stddef.h>

#include "src/base/align.h"
#include "src/core/budget/budget.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"
#include "tests/support/shared_budgets.h"

static struct xseg_shared_budget scanned;

/* Expect the demand of the only process, and the part of it for which pages are being created, in MiB. */
static void expect_demand(uint64_t demand, uint64_t growing)
{
    assert_ok(xseg_shared_budget_scan(&scanned, budget_file_path));
    assert_int_equal(scanned.entries[0].state, XSEG_SHARED_BUDGET_FRESH);
    assert_int_equal(scanned.entries[0].record.device_count, 1);
    assert_int_equal(scanned.entries[0].record.devices[0].demand, demand * MIB);
    assert_int_equal(scanned.entries[0].record.devices[0].growing, growing * MIB);
}

static const char *shared_config(void)
{
    static char config[256];

    (void)snprintf(config, sizeof(config), "budget_file:%s,budget_wait_ms:60000", budget_file_path);
    return config;
}

TEST(demands_are_published_immediately)
{
    struct xseg_allocator *allocator = env_open(shared_config());
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    expect_demand(0, 0);
    assert_false(xseg_budget_request(device, 100 * MIB));
    expect_demand(100, 0);
    xseg_budget_grow(device, 100 * MIB);
    expect_demand(100, 100);
    (void)xseg_budget_request(device, 30 * MIB);
    expect_demand(130, 100);
    xseg_budget_grow_end(device, 100 * MIB);
    expect_demand(130, 0);
    xseg_budget_grow(device, 30 * MIB);
    xseg_budget_request_end(device, 30 * MIB);
    expect_demand(100, 30);
    xseg_budget_grow_end(device, 30 * MIB);
    expect_demand(100, 0);
    xseg_budget_request_end(device, 100 * MIB);
    expect_demand(0, 0);
    env_close(allocator);
}

static bool adds_concurrently; /* a second thread adds a device while its UUID is queried */
static int device_without_uuid = -1;
static pthread_t adder;
static unsigned uuid_queries;
static bool has_adder;

static void *add_device(void *self)
{
    xseg_budget_add(self);
    return NULL;
}

xseg_status __real_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid);
xseg_status __wrap_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid);

xseg_status __wrap_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid)
{
    uuid_queries++;
    if (context->ordinal == device_without_uuid)
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "no UUID is reported");
    if (adds_concurrently && !has_adder) {
        has_adder = true;
        assert_int_equal(pthread_create(&adder, NULL, add_device,
                                        (char *)context - offsetof(struct xseg_device, context)),
                         0);
        (void)usleep(50000); /* time for the second thread to reach the query */
    }
    return __real_xseg_driver_uuid(context, uuid);
}

/* Readers read the UUID without a lock once they have seen that it is set, so it is written once. */
TEST(device_uuid_is_queried_once)
{
    struct xseg_allocator *allocator = env_open(shared_config());
    uuid_queries = 0;
    adds_concurrently = true;
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    assert_true(has_adder);
    assert_int_equal(pthread_join(adder, NULL), 0);
    assert_int_equal(uuid_queries, 1);
    adds_concurrently = false;
    env_close(allocator);
}

static bool count_device(void *context, const struct xseg_budget_entry *entry)
{
    unsigned *devices = context;

    *devices += entry->uuid != NULL;
    return true;
}

static struct xseg_allocator *open_devices(unsigned devices, struct env_log *log)
{
    const struct xseg_sim_settings settings = {
        .struct_size = sizeof(settings), .devices = devices, .memory_bytes = 8 * MIB};

    assert_ok(xseg_sim_reset(&settings));
    return env_open_logged(shared_config(), log);
}

TEST(each_of_64_devices_is_a_member)
{
    enum { DEVICES = 64 };
    struct env_log log = {0};
    struct xseg_allocator *allocator = open_devices(DEVICES, &log);
    void *block[DEVICES];
    unsigned member_count = 0;

    for (int i = 0; i < DEVICES; i++)
        assert_ok(xseg_alloc(allocator, i, 4096, NULL, &block[i]));
    assert_ok(xseg_budget_members(budget_file_path, count_device, &member_count));
    assert_int_equal(member_count, DEVICES);
    for (int i = 0; i < DEVICES; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        assert_true(xseg_budget_is_member(device));
        /* There is no other process, so a request does not wait. */
        assert_false(xseg_budget_request(device, 4096));
        xseg_budget_request_end(device, 4096);
        assert_ok(xseg_free(allocator, block[i]));
    }
    assert_int_equal(log.lines, 0);
    env_close(allocator);
}

/* The value of a metric of a device; -1 if there is none. */
static int metric(struct xseg_allocator *allocator, const char *name, int device)
{
    static char page[1 << 16];
    char line[96];

    assert_ok(xseg_metrics(allocator, page, sizeof(page), NULL));
    (void)snprintf(line, sizeof(line), "\n%s{device=\"%d\"} ", name, device);
    const char *sample = strstr(page, line);
    return sample == NULL ? -1 : (int)strtol(sample + strlen(line), NULL, 10);
}

/* Expect that device 1 is excluded from the budget, for a reason that one log line contains. */
static void expect_excluded(struct xseg_allocator *allocator, struct env_log *log,
                            const char *reason)
{
    struct xseg_device *device;
    void *block = NULL, *failed = NULL;

    assert_ok(xseg_alloc(allocator, 1, 4 * MIB, NULL, &block));
    device = xseg_allocator_open_device(allocator, 1);
    assert_false(xseg_budget_is_member(device));
    /* A request that waited for other processes would take budget_wait_ms, 60 s. */
    for (unsigned i = 0; i < 3; i++) {
        assert_error(xseg_alloc(allocator, 1, 6 * MIB, NULL, &failed), NO_MEMORY, "device 1");
        assert_int_equal(atomic_load(&device->budget->requests), 0);
    }
    assert_int_equal(log->lines, 1);
    assert_non_null(strstr(log->line, "budget_file: device 1 is excluded, "));
    assert_non_null(strstr(log->line, reason));
    assert_int_equal(metric(allocator, "xseg_budget_member", 1), 0);
    assert_ok(xseg_free(allocator, block));
}

/* The budget file as another process opens it, from which memory could be requested. */
static struct xseg_shared_budget other_process;

TEST(device_without_a_share_waits_for_no_process)
{
    struct env_log log = {0};

    assert_ok(xseg_shared_budget_open(&other_process, budget_file_path));
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_allocator *allocator = open_devices(2, &log);
        void *block = NULL;

        log.lines = 0;
        if (i == 0)
            device_without_uuid = 1;
        else
            atomic_store(&allocator->budget->members, XSEG_SHARED_BUDGET_DEVICES - 1);
        assert_ok(xseg_alloc(allocator, 0, 4096, NULL, &block));
        assert_int_equal(metric(allocator, "xseg_budget_member", 0), 1);
        expect_excluded(allocator, &log, i == 0 ? "no UUID is reported" : "is reached, 64");
        assert_ok(xseg_free(allocator, block));
        assert_ok(xseg_config_set(allocator, "budget_file:none"));
        assert_int_equal(metric(allocator, "xseg_budget_member", 0), -1);
        device_without_uuid = -1;
        env_close(allocator);
    }
    xseg_shared_budget_close(&other_process);
}

/* The log and the metrics report a process without a slot; it joins when another process releases its slot. */
TEST(a_process_without_a_slot_joins_later)
{
    struct xseg_shared_budget *members = calloc(XSEG_SHARED_BUDGET_SLOTS, sizeof(*members));
    struct env_log log = {0};
    void *block = NULL;

    assert_non_null(members);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_ok(xseg_shared_budget_open(&members[i], budget_file_path));
    struct xseg_allocator *allocator = open_devices(1, &log);
    assert_ok(xseg_alloc(allocator, 0, 4096, NULL, &block));
    assert_int_equal(log.lines, 1);
    assert_non_null(strstr(log.line, "64 processes have \""));
    assert_int_equal(metric(allocator, "xseg_budget_member", 0), 0);
    assert_int_equal(metric(allocator, "xseg_budget_demand_bytes", 0), -1);
    xseg_shared_budget_close(&members[20]);
    /* Rounds are rare with the longest timeout.  With 8 ms the next round is due after 1 ms. */
    assert_ok(xseg_config_set(allocator, "budget_wait_ms:8"));
    for (unsigned attempts = 0; attempts < 3000 && metric(allocator, "xseg_budget_member", 0) != 1;
         attempts++)
        (void)usleep(10000);
    assert_int_equal(metric(allocator, "xseg_budget_member", 0), 1);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        xseg_shared_budget_close(&members[i]);
    free(members);
    assert_ok(xseg_free(allocator, block));
    env_close(allocator);
}

/* The cause follows from the value with which the request was compared, because the limits may have changed since. */
TEST(limit_is_identified_by_its_value)
{
    struct xseg_allocator *allocator = env_open("hard_limit_mb:500");

    env_free(allocator, env_alloc(allocator, 4096, NULL));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    assert_int_equal(xseg_device_allowance(device), 500 * MIB);
    assert_int_equal(xseg_oom_cause_of_limit(device, 500 * MIB), XSEG_OOM_CAUSE_HARD_LIMIT);
    assert_int_equal(xseg_oom_cause_of_limit(device, 400 * MIB), XSEG_OOM_CAUSE_BUDGET);
    env_close(allocator);
}

/* --- Shares, and the memory that each member releases for others. --- */

#define TOTAL       (64 * GIB)
#define MEMBERS_MAX 8u

static struct xseg_budget_member member(uint64_t physical, uint64_t idle, uint64_t demand,
                                        uint64_t share, uint64_t min_bytes)
{
    return (struct xseg_budget_member){.physical = physical * GIB,
                                       .idle = idle * GIB,
                                       .demand = demand * GIB,
                                       .configured_share = share,
                                       .min_bytes = min_bytes * GIB};
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
    const struct xseg_budget_member oversubscribed[] = {
        member(0, 0, 0, 1000000, 0), member(0, 0, 0, 600000, 0), member(0, 0, 0, 0, 0)};

    /* 0.75 of 64 GiB, and the remainder, which member 1 exceeds by 4 GiB. */
    assert_int_equal(xseg_budget_split(two, 2, 0, TOTAL, 0).share, 48 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 1, TOTAL, 0).share, 16 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 1, TOTAL, 0).above_share, 4 * GIB);
    assert_int_equal(xseg_budget_split(two, 2, 0, TOTAL, 0).above_share, 0);
    /* Half of the remainder. */
    assert_int_equal(xseg_budget_split(three, 3, 2, TOTAL, 0).share, 16 * GIB);
    /* 1 and 0.6 are scaled down to a sum of 1, and nothing remains. */
    assert_int_equal(xseg_budget_split(oversubscribed, 3, 0, TOTAL, 0).share, 40 * GIB);
    assert_int_equal(xseg_budget_split(oversubscribed, 3, 1, TOTAL, 0).share, 24 * GIB);
    assert_int_equal(xseg_budget_split(oversubscribed, 3, 2, TOTAL, 0).share, 0);
    assert_true(xseg_budget_split(oversubscribed, 3, 2, TOTAL, 0).exceeds);
    assert_false(xseg_budget_split(three, 3, 0, TOTAL, 0).exceeds);
}

/* For a demand within a share, members above their shares release memory in proportion; the others release none. */
TEST(memory_above_the_share_is_released_first)
{
    const struct xseg_budget_member members[] = {member(10, 0, 4, 0, 0), member(30, 12, 0, 0, 0),
                                                 member(24, 24, 0, 0, 0), member(0, 0, 0, 0, 0)};

    /* The shares are 16 GiB.  Of the idle memory, 12 and 8 GiB are above the shares.  Each part is rounded up. */
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

/* For demands above a share, members without demands release idle memory down to their floors. */
TEST(idle_memory_is_released_down_to_the_floor)
{
    struct xseg_budget_member members[] = {member(40, 0, 9, 0, 0), member(20, 18, 0, 0, 15),
                                           member(4, 4, 0, 0, 0)};

    /* 20 GiB less the minimum of 15 GiB, and all 4 GiB. */
    assert_int_equal(released_by(members, 3, 1, 0), 5 * GIB);
    assert_int_equal(released_by(members, 3, 2, 0), 4 * GIB);
    assert_int_equal(xseg_budget_split(members, 3, 1, TOTAL, 0).spare, UINT64_MAX);
    /* A member with a demand releases no memory below its share. */
    members[2].demand = GIB;
    assert_int_equal(released_by(members, 3, 2, 0), 0);
    assert_int_equal(released_by(members, 3, 1, 0), 5 * GIB);
}

/* Members release no memory for pages that are being created.  Free memory is reserved for the growing member. */
TEST(growing_demands_are_not_released_twice)
{
    struct xseg_budget_member members[] = {member(10, 0, 12, 0, 0), member(40, 30, 0, 0, 0)};

    assert_in_range(released_by(members, 2, 1, 2 * GIB), 10 * GIB, 10 * GIB + 2);
    members[0].growing = 12 * GIB;
    assert_int_equal(released_by(members, 2, 1, 2 * GIB), 0);
    assert_int_equal(xseg_budget_split(members, 2, 1, TOTAL, 13 * GIB).spare, GIB);
    /* One request creates pages of 5 GiB; the other one waits for 7 GiB, of which 2 GiB are free. */
    members[0].growing = 5 * GIB;
    assert_in_range(released_by(members, 2, 1, 2 * GIB), 5 * GIB, 5 * GIB + 2);
}

/* Two members with demands above their shares do not block each other if there is enough memory for both. */
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

/* With random statistics, demands are met after some rounds as far as idle memory permits.  No member releases more
 * than its idle memory, or memory below its minimum. */
TEST(demands_are_met_within_some_rounds)
{
    uint64_t random = 7;

    for (unsigned round = 0; round < 20000; round++) {
        struct xseg_budget_member members[MEMBERS_MAX];
        const unsigned count = 2 + (unsigned)(rng_next(&random) % (MEMBERS_MAX - 1));
        uint64_t free = 0, idle_above_floors = 0, demand = 0;

        for (unsigned i = 0; i < count; i++) {
            const uint64_t physical = rng_next(&random) % (TOTAL / count);

            members[i] = (struct xseg_budget_member){
                .physical = physical,
                .idle = rng_next(&random) % (physical + 1),
                .configured_share = rng_next(&random) % 3 == 0 ? rng_next(&random) % 1000001 : 0,
                .min_bytes = rng_next(&random) % 2 == 0 ? 0 : rng_next(&random) % GIB,
            };
        }
        members[0].demand = demand = 1 + rng_next(&random) % (8 * GIB);
        for (unsigned i = 1; i < count; i++)
            idle_above_floors +=
                xseg_min(members[i].idle,
                         members[i].physical - xseg_min(members[i].physical, members[i].min_bytes));
        for (unsigned pass = 0; pass < 4; pass++) {
            uint64_t released[MEMBERS_MAX];

            for (unsigned i = 1; i < count; i++)
                released[i] = released_by(members, count, i, free);
            for (unsigned i = 1; i < count; i++) {
                assert_true(released[i] <= members[i].idle);
                members[i].physical -= released[i];
                members[i].idle -= released[i];
                free += released[i];
                assert_true(released[i] == 0 || members[i].physical >= members[i].min_bytes);
            }
        }
        assert_true(free >= xseg_min(demand, idle_above_floors));
        /* Slightly more than the demand, because each member rounds up. */
        assert_true(free <= demand + 2 * MEMBERS_MAX);
    }
}

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
