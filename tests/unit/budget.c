/* SPDX-License-Identifier: MIT */
/* What a process says in a ledger of the memory that it wants, and which limit refuses it. */
#include <pthread.h>

#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/refusal.h"
#include "tests/support/ledgers.h"
#include "tests/support/scene.h"

static struct xseg_ledger seen;

/* Expect what the only process says that it wants, and of that, for what it makes pages; MiB. */
static void expect_said(uint64_t wanted, uint64_t growing)
{
    assert_int_equal(xseg_ledger_look(&seen, ledger_path), XSEG_OK);
    assert_int_equal(seen.seen[0].state, XSEG_LEDGER_FRESH);
    assert_int_equal(seen.seen[0].record.device_count, 1);
    assert_int_equal(seen.seen[0].record.devices[0].wanted, wanted * MIB);
    assert_int_equal(seen.seen[0].record.devices[0].growing, growing * MIB);
}

static void wants_are_written_at_once(void **state)
{
    char config[256];

    (void)state;
    (void)snprintf(config, sizeof(config), "share_budget:%s,budget_return_ms:60000", ledger_path);
    struct xseg_allocator *allocator = scene_open(config);
    scene_free(allocator, scene_alloc(allocator, 4096, NULL));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    expect_said(0, 0);
    assert_false(xseg_budget_want(device, 100 * MIB));
    expect_said(100, 0);
    xseg_budget_grow(device, 100 * MIB);
    expect_said(100, 100);
    (void)xseg_budget_want(device, 30 * MIB);
    expect_said(130, 100);
    xseg_budget_grow_no_more(device, 100 * MIB);
    expect_said(130, 0);
    xseg_budget_grow(device, 30 * MIB);
    xseg_budget_want_no_more(device, 30 * MIB);
    expect_said(100, 30);
    xseg_budget_grow_no_more(device, 30 * MIB);
    expect_said(100, 0);
    xseg_budget_want_no_more(device, 100 * MIB);
    expect_said(0, 0);
    scene_close(allocator);
}

static struct xseg_device *added;
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

/* Another thread adds the device while this one is told its UUID. */
xseg_status __wrap_xseg_driver_uuid(struct xseg_context *context, uint8_t *uuid)
{
    questions++;
    if (added != NULL && !has_thread) {
        has_thread = true;
        assert_int_equal(pthread_create(&thread, NULL, add, added), 0);
        (void)usleep(50000);
    }
    return __real_xseg_driver_uuid(context, uuid);
}

/* Who has seen that the UUID is there reads it without a lock, so it is written once. */
static void a_device_is_named_once(void **state)
{
    char config[256];

    (void)state;
    (void)snprintf(config, sizeof(config), "share_budget:%s,budget_return_ms:60000", ledger_path);
    struct xseg_allocator *allocator = scene_open(config);
    scene_free(allocator, scene_alloc(allocator, 4096, NULL));
    added = xseg_allocator_open_device(allocator, 0);
    atomic_store(&added->budget->has_uuid, false);
    questions = 0;
    xseg_budget_add(added);
    assert_true(has_thread);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(questions, 1);
    added = NULL;
    scene_close(allocator);
}

/* The allowance may have been lifted since it refused. */
static void a_limit_is_known_by_its_value(void **state)
{
    struct xseg_allocator *allocator = scene_open("hard_limit_mb:500");

    (void)state;
    scene_free(allocator, scene_alloc(allocator, 4096, NULL));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    assert_int_equal(xseg_device_allowance(device), 500 * MIB);
    assert_int_equal(xseg_refusal_of_limit(device, 500 * MIB), XSEG_REFUSER_HARD_LIMIT);
    assert_int_equal(xseg_refusal_of_limit(device, 400 * MIB), XSEG_REFUSER_BUDGET);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wants_are_written_at_once),
        cmocka_unit_test(a_device_is_named_once),
        cmocka_unit_test(a_limit_is_known_by_its_value),
    };

    return cmocka_run_group_tests_name("budget", tests, ledgers_begin, ledgers_end);
}
