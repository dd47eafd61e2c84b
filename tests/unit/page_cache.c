/* SPDX-License-Identifier: MIT */
/* The cache of idle pages: by size, by owner, by age. */
#include "vmm/page_cache.h"

#include <string.h>
#include <unistd.h>

#include "tests/support/env.h"
#include "vmm/context.h"

#define SMALL (2 * MIB)
#define FULL  (20 * MIB)

struct fixture {
    struct xseg_driver *driver;
    struct xseg_context context;
    struct xseg_unreleased_list unreleased;
    struct xseg_page_cache pages;
};

/* Two owners. */
static const int first, second;

static void set_up(struct fixture *f)
{
    const struct xseg_sim_settings settings = {sizeof(settings)};
    char why[128];

    memset(f, 0, sizeof(*f));
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_driver_open(env_driver(), &f->driver));
    assert_ok(xseg_unreleased_init(&f->unreleased, &f->context));
    assert_ok(xseg_context_open(&f->context, f->driver, 0, &f->unreleased, why, sizeof(why)));
    xseg_page_cache_init(&f->pages, &f->context, &f->unreleased);
}

static void audit(const struct fixture *f)
{
    struct xseg_violation violation = {0};

    assert_true(xseg_page_cache_audit(&f->pages, &violation));
    assert_int_equal(xseg_page_cache_bytes(&f->pages), xseg_sim_used(0));
}

static void tear_down(struct fixture *f)
{
    audit(f);
    (void)xseg_page_cache_shrink(&f->pages, 0, UINT64_MAX);
    xseg_page_cache_fini(&f->pages);
    assert_ok(xseg_unreleased_retry(&f->unreleased));
    assert_ok(xseg_driver_release_context(&f->context));
    xseg_unreleased_fini(&f->unreleased);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* Add a new page with an owner. */
static uint64_t put_kind(struct fixture *f, struct xseg_page_kind kind, const void *owner)
{
    uint64_t handle = 0;

    assert_ok(xseg_driver_create(&f->context, kind.bytes, kind.properties, &handle));
    assert_ok(xseg_page_cache_put(&f->pages, kind, handle, owner, true));
    return handle;
}

static uint64_t put(struct fixture *f, uint64_t bytes, const void *owner)
{
    return put_kind(f, (struct xseg_page_kind){bytes, false, NULL}, owner);
}

static void expect_take(struct fixture *f, uint64_t bytes, const void *only_of, uint64_t handle)
{
    const struct xseg_page_filter taker = {only_of, false, NULL};
    struct xseg_page page = {0};

    assert_int_equal(xseg_page_cache_acquire(&f->pages, bytes, &taker, &page), handle != 0);
    assert_int_equal(page.handle, handle);
    if (handle != 0)
        assert_ok(xseg_driver_release(&f->context, handle));
    audit(f);
}

TEST(pages_of_one_size_do_not_satisfy_another)
{
    const struct xseg_page_filter anyone = {NULL, false, NULL};
    struct fixture f;

    set_up(&f);
    put(&f, SMALL, &first);
    const uint64_t small = put(&f, SMALL, &first), full = put(&f, FULL, &first);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &anyone), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, FULL, &anyone), FULL);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, 4 * MIB, &anyone), 0);
    expect_take(&f, 4 * MIB, NULL, 0);
    expect_take(&f, FULL, NULL, full);
    expect_take(&f, FULL, NULL, 0);
    expect_take(&f, SMALL, NULL, small);
    tear_down(&f);
}

TEST(exportable_pages_are_another_kind)
{
    const struct xseg_page_kind kind = {SMALL, true, NULL};
    const struct xseg_page_filter plain = {NULL, false, NULL}, exporter = {NULL, true, NULL};
    struct xseg_page page = {0};
    struct fixture f;
    int file = -1;

    set_up(&f);
    put(&f, SMALL, &first);
    const uint64_t handle = put_kind(&f, kind, &first);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &plain), SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &exporter), SMALL);
    assert_true(xseg_page_cache_acquire(&f.pages, SMALL, &exporter, &page));
    assert_int_equal(page.handle, handle);
    assert_false(xseg_page_cache_acquire(&f.pages, SMALL, &exporter, &page));
    assert_ok(xseg_driver_export(&f.context, page.handle, &file));
    (void)close(file);
    assert_ok(xseg_driver_release(&f.context, page.handle));
    assert_ok(xseg_page_cache_create(&f.pages, kind));
    assert_true(xseg_page_cache_acquire(&f.pages, SMALL, &plain, &page));
    assert_int_equal(xseg_driver_export(&f.context, page.handle, &file), XSEG_ERR_DRIVER);
    assert_ok(xseg_driver_release(&f.context, page.handle));
    assert_false(
        xseg_page_cache_release_one(&f.pages, (struct xseg_page_kind){SMALL, false, NULL}));
    assert_true(xseg_page_cache_release_one(&f.pages, kind));
    tear_down(&f);
}

TEST(caller_may_exclude_pages_of_other_owners)
{
    struct fixture f;

    set_up(&f);
    const uint64_t own = put(&f, SMALL, &first), fresh = put(&f, SMALL, NULL),
                   other = put(&f, SMALL, &second), last = put(&f, SMALL, &second);
    const struct xseg_page_filter only = {&first, false, NULL};

    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &only), 2 * SMALL);
    expect_take(&f, SMALL, NULL, last);
    expect_take(&f, SMALL, &first, fresh);
    expect_take(&f, SMALL, &first, own);
    expect_take(&f, SMALL, &first, 0);
    expect_take(&f, SMALL, NULL, other);
    tear_down(&f);
}

TEST(largest_pages_are_released_first)
{
    struct fixture f;

    set_up(&f);
    for (unsigned i = 0; i < 5; i++) {
        put(&f, SMALL, NULL);
        put(&f, FULL, NULL);
    }
    assert_int_equal(xseg_page_cache_shrink(&f.pages, 50 * MIB, UINT64_MAX), 3);
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 50 * MIB);
    assert_int_equal(xseg_page_cache_shrink(&f.pages, 0, 3), 3);
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 8 * MIB);
    assert_false(xseg_page_cache_release_one(&f.pages, (struct xseg_page_kind){FULL, false, NULL}));
    assert_true(xseg_page_cache_release_one(&f.pages, (struct xseg_page_kind){SMALL, false, NULL}));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 6 * MIB);
    tear_down(&f);
}

TEST(release_may_be_limited_to_old_pages)
{
    struct fixture f;

    set_up(&f);
    put(&f, SMALL, NULL); /* without a time: counts as put at the first time */
    for (uint64_t now = 100; now <= 300; now += 100) {
        xseg_page_cache_set_time(&f.pages, now);
        put(&f, SMALL, NULL);
    }
    assert_int_equal(xseg_page_cache_release_old(&f.pages, 99, UINT64_MAX), 0);
    assert_int_equal(xseg_page_cache_release_old(&f.pages, 200, SMALL), SMALL);
    assert_int_equal(xseg_page_cache_release_old(&f.pages, 200, UINT64_MAX), 2 * SMALL);
    assert_int_equal(xseg_page_cache_bytes(&f.pages), SMALL);
    tear_down(&f);
}

/* A page whose release fails in the driver becomes unreleased, and is no longer idle. */
TEST(failed_releases_become_unreleased)
{
    struct fixture f;

    set_up(&f);
    put(&f, SMALL, NULL);
    put(&f, SMALL, NULL);
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    assert_int_equal(xseg_page_cache_shrink(&f.pages, 0, UINT64_MAX), 2);
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 0);
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), SMALL);
    assert_ok(xseg_unreleased_retry(&f.unreleased));
    tear_down(&f);
}

TEST(prepared_pages_are_kept_for_their_caller)
{
    const struct xseg_page_kind kind = {SMALL, 0, &second};
    const struct xseg_page_filter anyone = {NULL, 0, NULL}, taker = {&first, 0, &second};
    struct xseg_page page = {0};
    struct fixture f;

    set_up(&f);
    assert_ok(xseg_page_cache_create(&f.pages, kind));
    assert_ok(xseg_page_cache_create(&f.pages, kind));
    put(&f, FULL, &first);
    assert_int_equal(xseg_page_cache_prepared_bytes(&f.pages), 2 * SMALL);
    assert_int_equal(xseg_page_cache_kind_bytes(&f.pages, kind), 2 * SMALL);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &anyone), 0);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &taker), 2 * SMALL);
    assert_false(xseg_page_cache_acquire(&f.pages, SMALL, &anyone, &page));
    xseg_page_cache_shrink_unprepared(&f.pages, 0); /* only the page cache is bounded */
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 2 * SMALL);
    assert_true(xseg_page_cache_unprepare(&f.pages, kind));
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, SMALL, &anyone), SMALL);
    audit(&f);
    const uint64_t common = put(&f, SMALL, &first);
    assert_true(xseg_page_cache_acquire(&f.pages, SMALL, &taker, &page));
    assert_int_not_equal(page.handle, common);
    assert_int_equal(xseg_page_cache_prepared_bytes(&f.pages), 0);
    assert_ok(xseg_driver_release(&f.context, page.handle));
    assert_false(xseg_page_cache_unprepare(&f.pages, kind));
    tear_down(&f);
}
