/* SPDX-License-Identifier: MIT */
/* The demand that a process publishes in the shared budget file, and the limit that rejects it. */
#include <pthread.h>
#include <stddef.h>

#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/oom.h"
#include "tests/support/env.h"
#include "tests/support/shared_budgets.h"

static struct xseg_shared_budget seen;

/* Expect what the only process says that it wants, and of that, for what it makes pages; MiB. */
static void expect_said(uint64_t wanted, uint64_t growing)
{
    assert_int_equal(xseg_shared_budget_scan(&seen, budget_file_path), XSEG_OK);
    assert_int_equal(seen.seen[0].state, XSEG_SHARED_BUDGET_FRESH);
    assert_int_equal(seen.seen[0].record.device_count, 1);
    assert_int_equal(seen.seen[0].record.devices[0].demand, wanted * MIB);
    assert_int_equal(seen.seen[0].record.devices[0].growing, growing * MIB);
}

TEST(demands_are_published_immediately)
{
    char config[256];

    (void)snprintf(config, sizeof(config), "budget_file:%s,budget_wait_ms:60000", budget_file_path);
    struct xseg_allocator *allocator = env_open(config);
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    expect_said(0, 0);
    assert_false(xseg_budget_request(device, 100 * MIB));
    expect_said(100, 0);
    xseg_budget_grow(device, 100 * MIB);
    expect_said(100, 100);
    (void)xseg_budget_request(device, 30 * MIB);
    expect_said(130, 100);
    xseg_budget_grow_end(device, 100 * MIB);
    expect_said(130, 0);
    xseg_budget_grow(device, 30 * MIB);
    xseg_budget_request_end(device, 30 * MIB);
    expect_said(100, 30);
    xseg_budget_grow_end(device, 30 * MIB);
    expect_said(100, 0);
    xseg_budget_request_end(device, 100 * MIB);
    expect_said(0, 0);
    env_close(allocator);
}

static bool adds_twice;   /* another thread adds a device while its UUID is queried */
static int nameless = -1; /* a device whose UUID the driver does not report */
static pthread_t thread;
static unsigned questions;
static bool has_thread;

static void *add(void *self)
{
    xseg_budget_add(self);
    return NULL;
}

xseg_status __real_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid);
xseg_status __wrap_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid);

xseg_status __wrap_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid)
{
    questions++;
    if (context->ordinal == nameless)
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "no UUID is reported");
    if (adds_twice && !has_thread) {
        has_thread = true;
        assert_int_equal(pthread_create(&thread, NULL, add,
                                        (char *)context - offsetof(struct xseg_device, context)),
                         0);
        (void)usleep(50000);
    }
    return __real_xseg_driver_uuid(context, uuid);
}

/* Who has seen that the UUID is there reads it without a lock, so it is written once. */
TEST(device_uuid_is_queried_once)
{
    char config[256];

    (void)snprintf(config, sizeof(config), "budget_file:%s,budget_wait_ms:60000", budget_file_path);
    struct xseg_allocator *allocator = env_open(config);
    questions = 0;
    adds_twice = true;
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    assert_true(has_thread);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(questions, 1);
    adds_twice = false;
    env_close(allocator);
}

static bool count_device(void *context, const struct xseg_budget_entry *entry)
{
    unsigned *devices = context;

    *devices += entry->uuid != NULL;
    return true;
}

static struct xseg_allocator *open_devices(unsigned devices, struct env_log *heard)
{
    const struct xseg_sim_settings machine = {
        .struct_size = sizeof(machine), .devices = devices, .memory_bytes = 8 * MIB};
    char config[256];

    assert_int_equal(xseg_sim_reset(&machine), XSEG_OK);
    (void)snprintf(config, sizeof(config), "budget_file:%s,budget_wait_ms:60000", budget_file_path);
    return env_open_logged(config, heard);
}

TEST(each_of_64_devices_is_a_member)
{
    enum { DEVICES = 64 };
    struct env_log heard = {.lines = 0};
    struct xseg_allocator *allocator = open_devices(DEVICES, &heard);
    void *block[DEVICES];
    unsigned seen_devices = 0;

    for (int i = 0; i < DEVICES; i++)
        assert_int_equal(xseg_alloc(allocator, i, 4096, NULL, &block[i]), XSEG_OK);
    assert_int_equal(xseg_budget_members(budget_file_path, count_device, &seen_devices), XSEG_OK);
    assert_int_equal(seen_devices, DEVICES);
    for (int i = 0; i < DEVICES; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        assert_true(xseg_budget_is_member(device));
        /* There is no other process, so a request does not wait. */
        assert_false(xseg_budget_request(device, 4096));
        xseg_budget_request_end(device, 4096);
        assert_int_equal(xseg_free(allocator, block[i]), XSEG_OK);
    }
    assert_int_equal(heard.lines, 0);
    env_close(allocator);
}

/* The value of a metric of a device; -1 if there is none. */
static int metric(struct xseg_allocator *allocator, const char *name, int device)
{
    static char page[1 << 16];
    char line[96];

    assert_int_equal(xseg_metrics(allocator, page, sizeof(page), NULL), XSEG_OK);
    (void)snprintf(line, sizeof(line), "\n%s{device=\"%d\"} ", name, device);
    const char *found = strstr(page, line);
    return found == NULL ? -1 : (int)strtol(found + strlen(line), NULL, 10);
}

/* Expect that a request of device 1 asks no process, for a reason that one line of the log has. */
static void expect_no_part(struct xseg_allocator *allocator, struct env_log *heard,
                           const char *reason)
{
    struct xseg_device *device;
    void *block = NULL, *more = NULL;

    assert_int_equal(xseg_alloc(allocator, 1, 4 * MIB, NULL, &block), XSEG_OK);
    device = xseg_allocator_open_device(allocator, 1);
    assert_false(xseg_budget_is_member(device));
    /* A request that waited would do so for half a minute. */
    for (unsigned i = 0; i < 3; i++) {
        env_expect_error(xseg_alloc(allocator, 1, 6 * MIB, NULL, &more), XSEG_ERR_NO_MEMORY,
                         "device 1");
        assert_int_equal(atomic_load(&device->budget->asks), 0);
    }
    assert_int_equal(heard->lines, 1);
    assert_non_null(strstr(heard->line, "budget_file: device 1 is excluded, "));
    assert_non_null(strstr(heard->line, reason));
    assert_int_equal(metric(allocator, "xseg_budget_member", 1), 0);
    assert_int_equal(xseg_free(allocator, block), XSEG_OK);
}

/* A device of another process, which would be asked. */
static struct xseg_shared_budget other;

TEST(device_without_a_share_waits_for_no_process)
{
    struct env_log heard = {.lines = 0};

    assert_int_equal(xseg_shared_budget_open(&other, budget_file_path), XSEG_OK);
    for (unsigned way = 0; way < 2; way++) {
        struct xseg_allocator *allocator = open_devices(2, &heard);
        void *block = NULL;

        heard.lines = 0;
        if (way == 0)
            nameless = 1;
        else
            atomic_store(&allocator->budget->members, XSEG_SHARED_BUDGET_DEVICES - 1);
        assert_int_equal(xseg_alloc(allocator, 0, 4096, NULL, &block), XSEG_OK);
        assert_int_equal(metric(allocator, "xseg_budget_member", 0), 1);
        expect_no_part(allocator, &heard, way == 0 ? "no UUID is reported" : "is reached, 64");
        assert_int_equal(xseg_free(allocator, block), XSEG_OK);
        assert_int_equal(xseg_config_set(allocator, "budget_file:none"), XSEG_OK);
        assert_int_equal(metric(allocator, "xseg_budget_member", 0), -1);
        nameless = -1;
        env_close(allocator);
    }
    xseg_shared_budget_close(&other);
}

/* The log and the metrics report a process that finds no slot; it joins when another process leaves. */
TEST(a_process_without_a_slot_joins_later)
{
    struct xseg_shared_budget *many = calloc(XSEG_SHARED_BUDGET_SLOTS, sizeof(*many));
    struct env_log heard = {.lines = 0};
    void *block = NULL;

    assert_non_null(many);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_int_equal(xseg_shared_budget_open(&many[i], budget_file_path), XSEG_OK);
    struct xseg_allocator *allocator = open_devices(1, &heard);
    assert_int_equal(xseg_alloc(allocator, 0, 4096, NULL, &block), XSEG_OK);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.line, "64 processes have \""));
    assert_int_equal(metric(allocator, "xseg_budget_member", 0), 0);
    assert_int_equal(metric(allocator, "xseg_budget_demand_bytes", 0), -1);
    xseg_shared_budget_close(&many[20]);
    /* Turns are rare with the longest time; a turn a millisecond later is due. */
    assert_int_equal(xseg_config_set(allocator, "budget_wait_ms:8"), XSEG_OK);
    for (unsigned tries = 0; tries < 3000 && metric(allocator, "xseg_budget_member", 0) != 1;
         tries++)
        (void)usleep(10000);
    assert_int_equal(metric(allocator, "xseg_budget_member", 0), 1);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        xseg_shared_budget_close(&many[i]);
    free(many);
    assert_int_equal(xseg_free(allocator, block), XSEG_OK);
    env_close(allocator);
}

/* The allowance may have been lifted since it refused. */
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

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
