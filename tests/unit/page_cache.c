/* SPDX-License-Identifier: MIT */
/* The cache of idle pages: by size, by owner, by age. */
#include "vmm/page_cache.h"

#include <unistd.h>

#include "tests/support/audit.h"
#include "tests/support/device_context.h"

#define SMALL (2 * MIB)
#define FULL  (20 * MIB)

static struct xseg_page_cache pages;

/* Two owners; only their addresses are used. */
static const int first, second;

/* Pages of any owner, without properties. */
static const struct xseg_page_filter any_owner = {NULL, 0, NULL};

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

/* Acquire a page of a size and, unless `last_owner` is NULL, of this owner or none.  `handle` is the expected page; 0: none. */
static void expect_acquire(uint64_t bytes, const void *last_owner, uint64_t handle)
{
    const struct xseg_page_filter filter = {last_owner, 0, NULL};
    struct xseg_page page = {0};

    assert_int_equal(xseg_page_cache_acquire(&pages, bytes, &filter, &page), handle != 0);
    assert_int_equal(page.handle, handle);
    if (handle != 0)
        assert_ok(xseg_driver_release(&context, handle));
    audit();
}

TEST_WITH(pages_of_one_size_do_not_satisfy_another, set_up, tear_down)
{
    put(SMALL, &first);
    const uint64_t small = put(SMALL, &first), full = put(FULL, &first);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &any_owner), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, FULL, &any_owner), FULL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, 4 * MIB, &any_owner), 0);
    expect_acquire(4 * MIB, NULL, 0);
    expect_acquire(FULL, NULL, full);
    expect_acquire(FULL, NULL, 0);
    expect_acquire(SMALL, NULL, small);
}

TEST_WITH(exportable_pages_are_another_kind, set_up, tear_down)
{
    const struct xseg_page_kind kind = {SMALL, XSEG_PAGE_EXPORTABLE, NULL};
    const struct xseg_page_filter exportable = {NULL, XSEG_PAGE_EXPORTABLE, NULL};
    struct xseg_page page = {0};
    int file = -1;

    put(SMALL, &first);
    const uint64_t handle = put_kind(kind, &first);

    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &any_owner), SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &exportable), SMALL);
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &exportable, &page));
    assert_int_equal(page.handle, handle);
    assert_false(xseg_page_cache_acquire(&pages, SMALL, &exportable, &page));
    assert_ok(xseg_driver_export(&context, page.handle, &file));
    (void)close(file);
    assert_ok(xseg_driver_release(&context, page.handle));

    /* The filter without properties acquires the page that is not exportable, so only the new exportable page remains. */
    assert_ok(xseg_page_cache_create(&pages, kind));
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &any_owner, &page));
    assert_int_equal(xseg_driver_export(&context, page.handle, &file), XSEG_ERR_DRIVER);
    assert_ok(xseg_driver_release(&context, page.handle));
    assert_false(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){SMALL}));
    assert_true(xseg_page_cache_release_one(&pages, kind));
}

TEST_WITH(caller_may_exclude_pages_of_other_owners, set_up, tear_down)
{
    const uint64_t of_first = put(SMALL, &first), of_none = put(SMALL, NULL),
                   of_second = put(SMALL, &second), newest = put(SMALL, &second);
    const struct xseg_page_filter filter = {&first, 0, NULL};

    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &filter), 2 * SMALL);
    expect_acquire(SMALL, NULL, newest);
    expect_acquire(SMALL, &first, of_none);
    expect_acquire(SMALL, &first, of_first);
    expect_acquire(SMALL, &first, 0);
    expect_acquire(SMALL, NULL, of_second);
}

TEST_WITH(largest_pages_are_released_first, set_up, tear_down)
{
    for (unsigned i = 0; i < 5; i++) {
        put(SMALL, NULL);
        put(FULL, NULL);
    }
    /* 3 of the 5 full pages, then the other 2 and one small page. */
    assert_int_equal(xseg_page_cache_shrink(&pages, 50 * MIB, UINT64_MAX), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 2 * FULL + 5 * SMALL);
    assert_int_equal(xseg_page_cache_shrink(&pages, 0, 3), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 4 * SMALL);
    assert_false(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){FULL}));
    assert_true(xseg_page_cache_release_one(&pages, (struct xseg_page_kind){SMALL}));
    assert_int_equal(xseg_page_cache_bytes(&pages), 3 * SMALL);

    /* A page whose release fails in the driver becomes unreleased, and is no longer idle. */
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    assert_int_equal(xseg_page_cache_shrink(&pages, 0, UINT64_MAX), 3);
    assert_int_equal(xseg_page_cache_bytes(&pages), 0);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), SMALL);
    assert_ok(xseg_unreleased_retry(&unreleased));

    /* A release may be limited to old pages.  A page from before the first xseg_page_cache_set_time() has the time of that
     * call, 100. */
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
    const struct xseg_page_filter with_prepared = {&first, 0, &second};
    struct xseg_page page = {0};

    assert_ok(xseg_page_cache_create(&pages, kind));
    assert_ok(xseg_page_cache_create(&pages, kind));
    put(FULL, &first);
    assert_int_equal(xseg_page_cache_prepared_bytes(&pages), 2 * SMALL);
    assert_int_equal(xseg_page_cache_kind_bytes(&pages, kind), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &any_owner), 0);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &with_prepared), 2 * SMALL);
    assert_false(xseg_page_cache_acquire(&pages, SMALL, &any_owner, &page));
    xseg_page_cache_shrink_unprepared(&pages, 0); /* releases the full page only */
    assert_int_equal(xseg_page_cache_bytes(&pages), 2 * SMALL);
    assert_true(xseg_page_cache_unprepare(&pages, kind));
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, SMALL, &any_owner), SMALL);
    audit();

    /* The remaining prepared page is acquired before pages for any use. */
    const uint64_t unprepared = put(SMALL, &first);
    assert_true(xseg_page_cache_acquire(&pages, SMALL, &with_prepared, &page));
    assert_int_not_equal(page.handle, unprepared);
    assert_int_equal(xseg_page_cache_prepared_bytes(&pages), 0);
    assert_ok(xseg_driver_release(&context, page.handle));
    assert_false(xseg_page_cache_unprepare(&pages, kind));
}
