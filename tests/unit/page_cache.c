/* SPDX-License-Identifier: MIT */
/* The cache of idle pages: by size, by owner, by age. */
#include "vmm/page_cache.h"

#include <unistd.h>

#include "tests/support/audit.h"
#include "tests/support/device_context.h"

#define SMALL (2 * MIB)
#define FULL  (20 * MIB)

static struct xseg_page_cache pages;

/* Two owners. */
static const int first, second;

static const struct xseg_page_filter anyone = {NULL, 0, NULL};

FIXTURE(set_up)
{
    context_open(NULL);
    xseg_page_cache_init(&pages, &context, &unreleased);
}

static void audit(void)
{
    expect_audit(xseg_page_cache_audit(&pages, &violation), NULL);
    assert_int_equal(xseg_page_cache_bytes(&pages), xseg_sim_used(0));
}

FIXTURE(tear_down)
{
    audit();
    (void)xseg_page_cache_shrink(&pages, 0, UINT64_MAX);
    xseg_page_cache_fini(&pages);
    context_close();
}

/* Add a new page with an owner. */
static uint64_t put_kind(struct xseg_page_kind kind, const void *owner)
{
    uint64_t handle = 0;

    assert_ok(xseg_driver_create(&context, kind.bytes, kind.properties, &handle));
    assert_ok(xseg_page_cache_put(&pages, kind, handle, owner, true));
    return handle;
}

static uint64_t put(uint64_t bytes, const void *owner)
{
    return put_kind((struct xseg_page_kind){bytes}, owner);
}

static void expect_take(uint64_t bytes, const void *only_of, uint64_t handle)
{
    const struct xseg_page_filter taker = {only_of, false, NULL};
    struct xseg_page page = {0};

    assert_int_equal(xseg_page_cache_acquire(&pages, bytes, &taker, &page), handle != 0);
    assert_int_equal(page.handle, handle);
    if (handle != 0)
        assert_ok(xseg_driver_release(&context, handle));
    audit();
}

TEST_WITH(pages_of_one_size_do_not_satisfy_another, set_up, tear_down)
{
    put(SMALL, &first);
    const uint64_t small = put(SMALL, &first), full = put(FULL, &first);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &anyone), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, FULL, &anyone), FULL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, 4 * MIB, &anyone), 0);
    expect_take(4 * MIB, NULL, 0);
    expect_take(FULL, NULL, full);
    expect_take(FULL, NULL, 0);
    expect_take(SMALL, NULL, small);
}

TEST_WITH(exportable_pages_are_another_kind, set_up, tear_down)
{
    const struct xseg_page_kind kind = {SMALL, true, NULL};
    const struct xseg_page_filter exporter = {NULL, true, NULL};
    struct xseg_page page = {0};
    int file = -1;

    put(SMALL, &first);
    const uint64_t handle = put_kind(kind, &first);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &anyone), SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &exporter), SMALL);
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &exporter, &page));
    assert_int_equal(page.handle, handle);
    assert_false(xseg_page_cache_acquire(&pages, SMALL, &exporter, &page));
    assert_ok(xseg_driver_export(&context, page.handle, &file));
    (void)close(file);
    assert_ok(xseg_driver_release(&context, page.handle));
    assert_ok(xseg_page_cache_create(&pages, kind));
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &anyone, &page));
    assert_int_equal(xseg_driver_export(&context, page.handle, &file), XSEG_ERR_DRIVER);
    assert_ok(xseg_driver_release(&context, page.handle));
    assert_false(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){SMALL}));
    assert_true(xseg_page_cache_release_one(&pages, kind));
}

TEST_WITH(caller_may_exclude_pages_of_other_owners, set_up, tear_down)
{
    const uint64_t own = put(SMALL, &first), fresh = put(SMALL, NULL), other = put(SMALL, &second),
                   last = put(SMALL, &second);
    const struct xseg_page_filter only = {&first, false, NULL};

    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &only), 2 * SMALL);
    expect_take(SMALL, NULL, last);
    expect_take(SMALL, &first, fresh);
    expect_take(SMALL, &first, own);
    expect_take(SMALL, &first, 0);
    expect_take(SMALL, NULL, other);
}

TEST_WITH(largest_pages_are_released_first, set_up, tear_down)
{
    for (unsigned i = 0; i < 5; i++) {
        put(SMALL, NULL);
        put(FULL, NULL);
    }
    assert_int_equal(xseg_page_cache_shrink(&pages, 50 * MIB, UINT64_MAX), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 50 * MIB);
    assert_int_equal(xseg_page_cache_shrink(&pages, 0, 3), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 8 * MIB);
    assert_false(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){FULL}));
    assert_true(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){SMALL}));
    assert_int_equal(xseg_page_cache_bytes(&pages), 6 * MIB);
    /* A page whose release fails in the driver becomes unreleased, and is no longer idle. */
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    assert_int_equal(xseg_page_cache_shrink(&pages, 0, UINT64_MAX), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 0);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), SMALL);
    assert_ok(xseg_unreleased_retry(&unreleased));
    /* A release may be limited to old pages.  A page without a time counts as put at the first time. */
    put(SMALL, NULL);
    for (uint64_t now = 100; now <= 300; now += 100) {
        xseg_page_cache_set_time(&pages, now);
        put(SMALL, NULL);
    }
    assert_int_equal(xseg_page_cache_release_old(&pages, 99, UINT64_MAX), 0);
    assert_int_equal(xseg_page_cache_release_old(&pages, 200, SMALL), SMALL);
    assert_int_equal(xseg_page_cache_release_old(&pages, 200, UINT64_MAX), 2 * SMALL);
    assert_int_equal(xseg_page_cache_bytes(&pages), SMALL);
}

TEST_WITH(prepared_pages_are_kept_for_their_caller, set_up, tear_down)
{
    const struct xseg_page_kind kind = {SMALL, 0, &second};
    const struct xseg_page_filter taker = {&first, 0, &second};
    struct xseg_page page = {0};

    assert_ok(xseg_page_cache_create(&pages, kind));
    assert_ok(xseg_page_cache_create(&pages, kind));
    put(FULL, &first);
    assert_int_equal(xseg_page_cache_prepared_bytes(&pages), 2 * SMALL);
    assert_int_equal(xseg_page_cache_kind_bytes(&pages, kind), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &anyone), 0);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &taker), 2 * SMALL);
    assert_false(xseg_page_cache_acquire(&pages, SMALL, &anyone, &page));
    xseg_page_cache_shrink_unprepared(&pages, 0); /* only the page cache is bounded */
    assert_int_equal(xseg_page_cache_bytes(&pages), 2 * SMALL);
    assert_true(xseg_page_cache_unprepare(&pages, kind));
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &anyone), SMALL);
    audit();
    const uint64_t common = put(SMALL, &first);
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &taker, &page));
    assert_int_not_equal(page.handle, common);
    assert_int_equal(xseg_page_cache_prepared_bytes(&pages), 0);
    assert_ok(xseg_driver_release(&context, page.handle));
    assert_false(xseg_page_cache_unprepare(&pages, kind));
}
