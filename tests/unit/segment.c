/* SPDX-License-Identifier: MIT */
/* Segments: each operation is a transaction, whichever driver call fails in it. */
#include <string.h>

#include "src/base/align.h"
#include "tests/support/env.h"
#include "vmm/alias.h"
#include "vmm/context.h"
#include "vmm/evicted.h"
#include "vmm/segment.h"

#define PAGE  (2 * XSEG_MIB)
#define PAGES 64u

struct fixture {
    struct xseg_driver *driver;
    struct xseg_context context;
    struct xseg_unreleased_list unreleased;
    struct xseg_page_cache pages;
    struct xseg_segment segment;
};

static void set_up_with(struct fixture *f, uint64_t memory, uint64_t full_page)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    char why[128];

    memset(f, 0, sizeof(*f));
    settings.memory_bytes = memory;
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_driver_open(env_driver(), &f->driver));
    assert_ok(xseg_unreleased_init(&f->unreleased, &f->context));
    assert_ok(xseg_context_open(&f->context, f->driver, 0, &f->unreleased, why, sizeof(why)));
    assert_true(f->context.has_vmm);
    xseg_page_cache_init(&f->pages, &f->context, &f->unreleased);
    assert_ok(xseg_segment_reserve(&f->segment, &f->context, &f->pages, PAGES * PAGE, full_page));
}

static void set_up(struct fixture *f, uint64_t memory)
{
    set_up_with(f, memory, PAGE);
}

static void tear_down(struct fixture *f)
{
    uint32_t done = 0;

    for (uint32_t page = 0; page < PAGES; page++)
        if (xseg_segment_is_mapped(&f->segment, page))
            assert_ok(xseg_segment_unmap(&f->segment, page, f->segment.length[page], false, &done));
    (void)xseg_page_cache_shrink(&f->pages, 0, UINT64_MAX);
    xseg_page_cache_fini(&f->pages);
    assert_ok(xseg_segment_destroy(&f->segment));
    assert_ok(xseg_unreleased_retry(&f->unreleased));
    assert_ok(xseg_driver_release_context(&f->context));
    xseg_unreleased_fini(&f->unreleased);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

static const struct xseg_page_filter anyone = {NULL, false, NULL};

static xseg_status map(struct xseg_segment *segment, uint32_t first, uint32_t count, bool small)
{
    struct xseg_page_source supply = {.use_small = small};

    return xseg_segment_map(segment, first, count, &supply);
}

static uint64_t mapped(const struct fixture *f)
{
    return atomic_load(&f->segment.mapped);
}

TEST(growing_keeps_what_was_mapped)
{
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 2, false));
    const uint64_t before = f.segment.handle[1];
    assert_ok(map(&f.segment, 2, 6, false));
    assert_int_equal(mapped(&f), 8 * PAGE);
    assert_int_equal(f.segment.handle[1], before);
    /* Unmap a granule in the middle, and map it again. */
    assert_ok(xseg_segment_unmap(&f.segment, 3, 2, false, &done));
    assert_int_equal(done, 2);
    assert_false(xseg_segment_is_mapped(&f.segment, 3));
    assert_true(xseg_segment_is_mapped(&f.segment, 5));
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_ok(map(&f.segment, 3, 2, false));
    assert_int_equal(mapped(&f), 8 * PAGE);
    tear_down(&f);
}

TEST(too_little_memory_changes_nothing)
{
    struct fixture f;

    set_up(&f, 10 * PAGE);
    assert_ok(map(&f.segment, 0, 4, false));
    env_expect_error(map(&f.segment, 4, 7, false), XSEG_ERR_NO_MEMORY, "cuMemCreate");
    assert_int_equal(mapped(&f), 4 * PAGE);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_ok(map(&f.segment, 4, 6, false));
    tear_down(&f);
}

/* Fail each call of a growth of five pages once: 5 creates, 5 maps, 1 set-access. */
TEST(map_undoes_itself_at_every_failure)
{
    for (uint64_t n = 1; n <= 12; n++) {
        struct fixture f;

        set_up(&f, XSEG_GIB);
        assert_ok(map(&f.segment, 0, 3, false));
        assert_ok(xseg_sim_fail(NULL, n, 999));
        const xseg_status status = map(&f.segment, 3, 5, false);
        /* A failed set-access is retried page by page, so it is no failure. */
        assert_int_equal(status, n <= 10 ? XSEG_ERR_DRIVER : XSEG_OK);
        assert_int_equal(mapped(&f), (n <= 10 ? 3 : 8) * PAGE);
        assert_int_equal(xseg_sim_used(0), mapped(&f));
        assert_ok(xseg_sim_fail(NULL, 0, 999));
        tear_down(&f);
    }
}

/* The state after a failed map and a failed rollback. */
static void make_unknown(struct fixture *f, uint32_t page)
{
    f->segment.state[page] = XSEG_PAGE_UNKNOWN;
    f->segment.unknown += PAGE;
    atomic_fetch_add(&f->unreleased.unknown, PAGE);
    atomic_fetch_sub(&f->segment.mapped, PAGE);
}

/* The rollback fails too: the page is in unknown state and counted until the next map uses it or a retry unmaps it. */
TEST(a_failed_undo_loses_nothing)
{
    struct fixture f;

    set_up(&f, XSEG_GIB);
    f.context.batches_access = false;
    assert_ok(xseg_sim_fail("cuMemSetAccess", 2, 999));
    assert_int_equal(map(&f.segment, 0, 4, false), XSEG_ERR_DRIVER);
    assert_int_equal(mapped(&f), 0);
    assert_int_equal(f.segment.unknown, 0);

    assert_ok(map(&f.segment, 1, 1, false));
    make_unknown(&f, 1);
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    assert_ok(map(&f.segment, 0, 3, false));
    assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, 2);
    assert_int_equal(f.segment.unknown, 0);
    assert_int_equal(mapped(&f), 3 * PAGE);

    make_unknown(&f, 1);
    assert_ok(xseg_segment_retry_unknown(&f.segment, 0, f.segment.granules));
    assert_int_equal(f.segment.unknown, 0);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    tear_down(&f);
}

/* A batched unmap that fails is retried page by page; the first page that fails ends the run. */
TEST(unmap_goes_page_by_page_where_it_must)
{
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 6, false));
    assert_ok(xseg_sim_fail("cuMemUnmap", 1, 1));
    assert_ok(xseg_segment_unmap(&f.segment, 0, 3, false, &done));
    assert_int_equal(done, 3);
    f.context.batches_unmap = false;
    assert_ok(xseg_sim_fail("cuMemUnmap", 2, 1));
    assert_int_equal(xseg_segment_unmap(&f.segment, 3, 3, false, &done), XSEG_ERR_DRIVER);
    assert_int_equal(done, 1);
    assert_true(xseg_segment_is_mapped(&f.segment, 4));
    assert_int_equal(mapped(&f), 2 * PAGE);
    tear_down(&f);
}

/* A failed release is recorded and retried. */
TEST(failed_releases_are_retried)
{
    struct fixture f;
    struct xseg_violation violation = {0};
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 3, false));
    assert_ok(xseg_sim_fail("cuMemRelease", 2, 999));
    assert_ok(xseg_segment_unmap(&f.segment, 0, 3, false, &done));
    assert_int_equal(done, 3);
    assert_int_equal(f.unreleased.count, 1);
    assert_int_equal(atomic_load(&f.unreleased.physical), PAGE);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_true(xseg_unreleased_audit(&f.unreleased, &violation));
    f.unreleased.record[0].bytes++;
    assert_false(xseg_unreleased_audit(&f.unreleased, &violation));
    assert_string_equal(violation.tag, "UNREL-1");
    f.unreleased.record[0].bytes--;
    assert_ok(xseg_unreleased_retry(&f.unreleased));
    assert_int_equal(xseg_sim_used(0), 0);
    tear_down(&f);
}

/* Full pages are in full-page slots, small pages in the remaining granules; each is unmapped in one
 * piece. */
TEST(full_page_slots_get_full_pages_and_the_rest_granules)
{
    enum { FULL = 4 };
    struct fixture f;
    uint32_t done = 0, first = 0;

    set_up_with(&f, XSEG_GIB, FULL * PAGE);
    assert_ok(map(&f.segment, 3, 8, false));
    assert_int_equal(f.segment.length[3], 1);
    assert_int_equal(f.segment.length[4], FULL);
    assert_int_equal(f.segment.length[5], 0);
    assert_int_equal(f.segment.length[8], 1);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), 1 + 1); /* one for the probe */

    /* Whole pages of a range: a page that extends past the range does not count. */
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 3 * PAGE, 11 * PAGE, &first), 8);
    assert_int_equal(first, 3);
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 3 * PAGE + 1, 9 * PAGE, &first), 5);
    assert_int_equal(first, 4);
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 5 * PAGE, 11 * PAGE - 1, &first), 2);
    assert_int_equal(first, 8);
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 3 * PAGE, 7 * PAGE, &first), 1);
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 5 * PAGE, 8 * PAGE, &first), 0);
    assert_int_equal(xseg_segment_page_end(&f.segment, 6), 8);
    assert_int_equal(xseg_segment_page_end(&f.segment, 4), 4);

    assert_ok(xseg_segment_unmap(&f.segment, 4, FULL, false, &done));
    assert_int_equal(done, FULL);
    assert_ok(map(&f.segment, 4, FULL, true));
    assert_int_equal(f.segment.length[4], 1);
    tear_down(&f);
}

/* Large pages cover 2, 4, 8, ... whole slots where they fit; the rest is mapped as without them. */
TEST(large_pages_are_used_where_they_fit)
{
    enum { FULL = 2 };
    static const struct {
        uint32_t at, length;
    } wanted[] = {{1, 1}, {2, 8}, {10, 8}, {18, 4}, {22, 2}, {24, 1}};
    struct xseg_page_source supply = {.max_page_bytes = 9 * PAGE};
    struct fixture f;
    uint32_t done = 0, first = 0;

    set_up_with(&f, XSEG_GIB, FULL * PAGE);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    assert_ok(xseg_segment_map(&f.segment, 1, 24, &supply));
    for (size_t i = 0; i < XSEG_COUNT_OF(wanted); i++)
        assert_int_equal(f.segment.length[wanted[i].at], wanted[i].length);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created + XSEG_COUNT_OF(wanted));
    assert_int_equal(xseg_sim_used(0), 24 * PAGE);
    /* A large page is unmapped in one piece, or not at all. */
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 3 * PAGE, 20 * PAGE, &first), 8);
    assert_int_equal(first, 10);
    assert_int_equal(xseg_segment_pages_inside(&f.segment, 3 * PAGE, 10 * PAGE, &first), 0);
    assert_ok(xseg_segment_unmap(&f.segment, 10, 8, true, &done));
    assert_int_equal(done, 8);
    /* The page is cached, and used by the next growth with enough space. */
    assert_ok(xseg_segment_map(&f.segment, 30, 8, &supply));
    assert_int_equal(f.segment.length[30], 8);
    assert_int_equal(xseg_sim_used(0), 24 * PAGE);
    /* Small pages where the source uses them. */
    supply.use_small = true;
    assert_ok(xseg_segment_map(&f.segment, 10, 8, &supply));
    assert_int_equal(f.segment.length[10], 1);
    tear_down(&f);
}

/* Cached pages are mapped elsewhere: nothing is created. */
TEST(cached_page_is_mapped_at_another_address)
{
    enum { FULL = 4 };
    struct fixture f;
    uint32_t done = 0;

    set_up_with(&f, XSEG_GIB, FULL * PAGE);
    assert_ok(map(&f.segment, 0, FULL + 2, false));
    assert_ok(xseg_segment_unmap(&f.segment, 0, FULL + 2, true, &done));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), (FULL + 2) * PAGE);
    assert_int_equal(xseg_page_cache_usable_bytes(&f.pages, PAGE, &anyone), 2 * PAGE);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    /* The full page is used where it fits, including outside of the slots. */
    assert_ok(map(&f.segment, 11, FULL + 2, true));
    assert_int_equal(f.segment.length[11], FULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 0);
    tear_down(&f);
}

TEST(the_audit_names_the_broken_invariant)
{
    struct fixture f;
    struct xseg_violation violation = {0};

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 4, false));
    assert_true(xseg_segment_audit(&f.segment, &violation));
    f.segment.base += 512;
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-1");
    f.segment.base -= 512;
    atomic_fetch_add(&f.segment.mapped, PAGE);
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-2");
    atomic_fetch_sub(&f.segment.mapped, PAGE);
    f.segment.reserved_bytes -= XSEG_GIB;
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-3");
    f.segment.reserved_bytes += XSEG_GIB;
    assert_ok(xseg_segment_retain(&f.segment, XSEG_RETAIN_PIN, 0, 1));
    f.segment.retain_counts[XSEG_RETAIN_PIN].granules++;
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-5");
    f.segment.retain_counts[XSEG_RETAIN_PIN].granules--;
    assert_true(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 0, 1));
    tear_down(&f);
}

/* Pins are counted for each granule; a page with a pinned granule is retained. */
TEST(pinned_pages_are_retained)
{
    struct fixture f;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 8, false));
    assert_false(xseg_segment_is_retained(&f.segment, 0, 8));
    assert_false(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 0, 1));
    assert_ok(xseg_segment_retain(&f.segment, XSEG_RETAIN_PIN, 3 * PAGE - 1, 3 * PAGE + 1));
    assert_ok(xseg_segment_retain(&f.segment, XSEG_RETAIN_PIN, 3 * PAGE, 4 * PAGE));
    assert_int_equal(xseg_segment_all_retained_bytes(&f.segment).pinned, 2 * PAGE);
    for (uint32_t page = 0; page < 8; page++)
        assert_int_equal(xseg_segment_is_retained(&f.segment, page, 1), page == 2 || page == 3);
    assert_false(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, PAGE,
                                      4 * PAGE)); /* the second is not pinned */
    assert_true(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 3 * PAGE - 1, 3 * PAGE + 1));
    assert_false(xseg_segment_is_pinned(&f.segment, 2, 1));
    assert_true(xseg_segment_is_pinned(&f.segment, 3, 1));
    assert_true(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 3 * PAGE, 4 * PAGE));
    f.segment.retain_counts[XSEG_RETAIN_PIN].count[5] = UINT32_MAX;
    f.segment.retain_counts[XSEG_RETAIN_PIN].granules = 1;
    env_expect_error(xseg_segment_retain(&f.segment, XSEG_RETAIN_PIN, 4 * PAGE, 6 * PAGE),
                     XSEG_ERR_BUSY, "maximum");
    assert_int_equal(f.segment.retain_counts[XSEG_RETAIN_PIN].count[4], 0);
    f.segment.retain_counts[XSEG_RETAIN_PIN].count[5] =
        f.segment.retain_counts[XSEG_RETAIN_PIN].granules = 0;
    tear_down(&f);
}

/* Segments of a lost device are destroyed with their references when the allocator starts to close; users release
 * these later if the close fails. */
TEST(destroyed_segment_has_no_references)
{
    struct xseg_segment segment;
    struct fixture f;

    set_up(&f, XSEG_GIB);
    assert_ok(xseg_segment_reserve(&segment, &f.context, &f.pages, PAGES * PAGE, PAGE));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_EXPORT, 0, 2 * PAGE));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 0, PAGE));
    assert_ok(xseg_segment_destroy(&segment));
    assert_false(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 0, PAGE));
    xseg_segment_unexport(&segment, 0, 2);
    assert_false(xseg_segment_is_retained(&segment, 0, 2));
    tear_down(&f);
}

/* An export retains whole pages; a page that was ever exported is released to the driver. */
TEST(exported_pages_are_retained_and_not_cached)
{
    enum { FULL = 4 };
    struct xseg_violation violation = {0};
    struct fixture f;
    uint32_t first = 0, done = 0;

    set_up_with(&f, XSEG_GIB, FULL * PAGE);
    f.segment.properties = XSEG_PAGE_EXPORTABLE;
    assert_ok(map(&f.segment, 0, 4 * FULL, false));
    /* Bytes in the middle of two pages select pages 1 and 2. */
    assert_int_equal(
        xseg_segment_pages_overlapping(&f.segment, 5 * PAGE + 17, 8 * PAGE + 1, &first), 2 * FULL);
    assert_int_equal(first, FULL);
    assert_ok(xseg_segment_export(&f.segment, FULL, 2 * FULL));
    assert_ok(xseg_segment_export(&f.segment, FULL, FULL));
    assert_ok(xseg_segment_retain(&f.segment, XSEG_RETAIN_PIN, 9 * PAGE, 9 * PAGE + 1));
    assert_int_equal(xseg_segment_all_retained_bytes(&f.segment).exported, FULL * PAGE);
    assert_int_equal(xseg_segment_all_retained_bytes(&f.segment).pinned, FULL * PAGE);
    assert_true(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 9 * PAGE, 9 * PAGE + 1));
    assert_int_equal(xseg_segment_all_retained_bytes(&f.segment).exported, 2 * FULL * PAGE);
    for (uint32_t page = 0; page < 4; page++)
        assert_int_equal(xseg_segment_is_retained(&f.segment, page * FULL, FULL),
                         page == 1 || page == 2);
    assert_false(xseg_segment_release(&f.segment, XSEG_RETAIN_PIN, 4 * PAGE,
                                      5 * PAGE)); /* it is not a pin */
    assert_true(xseg_segment_audit(&f.segment, &violation));
    xseg_segment_unexport(&f.segment, FULL, FULL);
    assert_true(xseg_segment_is_exported(&f.segment, FULL, 1));
    xseg_segment_unexport(&f.segment, FULL, 2 * FULL);
    assert_false(xseg_segment_is_retained(&f.segment, 0, 4 * FULL));

    f.segment.retain_counts[XSEG_RETAIN_EXPORT].granules++;
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-5");
    f.segment.retain_counts[XSEG_RETAIN_EXPORT].granules--;
    f.segment.retain_counts[XSEG_RETAIN_EXPORT].count[0] = UINT32_MAX;
    f.segment.retain_counts[XSEG_RETAIN_EXPORT].granules = 1;
    env_expect_error(xseg_segment_export(&f.segment, 0, FULL), XSEG_ERR_BUSY, "maximum");
    assert_false(xseg_segment_audit(&f.segment, &violation));
    assert_string_equal(violation.tag, "SEG-6");
    f.segment.retain_counts[XSEG_RETAIN_EXPORT].count[0] =
        f.segment.retain_counts[XSEG_RETAIN_EXPORT].granules = 0;

    assert_ok(xseg_segment_unmap(&f.segment, 0, 4 * FULL, true, &done));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 2 * FULL * PAGE);
    /* The next page at these granules was never exported. */
    assert_ok(map(&f.segment, 0, 4 * FULL, false));
    assert_ok(xseg_segment_unmap(&f.segment, 0, 4 * FULL, true, &done));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 4 * FULL * PAGE);
    tear_down(&f);
}

/* The steps of a pause with this floor; each driver call of the way back fails once. */
TEST(pages_are_evicted_and_restored)
{
    enum { FULL = 4 };

    for (uint64_t n = 0; n < 30; n++) {
        struct fixture f;

        set_up_with(&f, XSEG_GIB, FULL * PAGE);
        assert_ok(map(&f.segment, 0, FULL, false));
        assert_ok(map(&f.segment, FULL, 3, true));
        const uint64_t generation = xseg_segment_generation(&f.segment, 0, PAGE);
        assert_ok(xseg_evicted_unmap(&f.segment));
        assert_int_equal(mapped(&f), 0);
        assert_int_equal(xseg_unreleased_bytes(&f.unreleased), (FULL + 3) * PAGE);
        assert_int_equal(xseg_evicted_unbacked_bytes(&f.segment), 0);
        xseg_evicted_release(&f.segment);
        assert_int_equal(xseg_unreleased_bytes(&f.unreleased), 0);
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(xseg_evicted_bytes(&f.segment), (FULL + 3) * PAGE);
        assert_ok(xseg_sim_fail(NULL, n, 999));
        xseg_status status = xseg_evicted_create(&f.segment);
        if (status == XSEG_OK)
            status = xseg_evicted_map(&f.segment);
        assert_ok(xseg_sim_fail(NULL, 0, 0));
        if (status != XSEG_OK) {
            assert_ok(xseg_evicted_roll_back(&f.segment));
            assert_int_equal(xseg_sim_used(0), 0);
            assert_int_equal(xseg_evicted_unbacked_bytes(&f.segment), (FULL + 3) * PAGE);
            assert_ok(xseg_evicted_create(&f.segment));
            assert_ok(xseg_evicted_map(&f.segment));
        }
        xseg_evicted_finish(&f.segment);
        assert_int_equal(mapped(&f), (FULL + 3) * PAGE);
        assert_int_equal(f.segment.length[0], FULL);
        assert_true(xseg_segment_generation(&f.segment, 0, PAGE) > generation);
        assert_true(xseg_segment_audit(&f.segment, &(struct xseg_violation){0}));
        tear_down(&f);
    }
}

/* A guarded segment has its own addresses and one page more, with the requested alignment; no segment uses the
 * following page. */
TEST(guarded_segment_maps_the_minimum)
{
    struct xseg_segment guarded, next;
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(xseg_segment_reserve_range(
        &guarded, &f.context, &f.pages,
        &(struct xseg_segment_reservation){3 * PAGE, PAGE, PAGE, 64 * XSEG_MIB, 0}));
    assert_ok(
        xseg_segment_reserve_range(&next, &f.context, &f.pages,
                                   &(struct xseg_segment_reservation){PAGE, PAGE, PAGE, PAGE, 0}));
    assert_int_equal(guarded.base % (64 * XSEG_MIB), 0);
    assert_int_equal(guarded.bytes, 3 * PAGE);
    assert_int_equal(guarded.reserved_bytes, 4 * PAGE);
    assert_true(next.base >= guarded.base + 4 * PAGE);
    assert_ok(map(&guarded, 0, 3, false));
    assert_ok(xseg_segment_unmap(&guarded, 0, 3, false, &done));
    assert_ok(xseg_segment_destroy(&guarded));
    assert_ok(xseg_segment_destroy(&next));
    tear_down(&f);
}

/* An aliased page is released with its last mapping, whichever that is, and charged to its first segment once. */
TEST(aliased_page_is_released_with_its_last_mapping)
{
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 3, false));
    assert_ok(xseg_alias_map(&f.segment, 10, 3, &f.segment, 0));
    assert_int_equal(mapped(&f), 6 * PAGE);
    assert_int_equal(f.segment.alias_bytes, 3 * PAGE);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_true(xseg_alias_exists(&f.segment, 1));
    assert_ok(xseg_segment_unmap(&f.segment, 11, 2, false, &done));
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(f.segment.unmapped_bytes, 0);
    assert_false(xseg_alias_exists(&f.segment, 1));
    assert_ok(xseg_segment_unmap(&f.segment, 0, 1, false, &done));
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(f.segment.alias_bytes, 0);
    assert_ok(xseg_segment_unmap(&f.segment, 10, 1, false, &done));
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    assert_int_equal(f.segment.unmapped_bytes, PAGE);
    tear_down(&f);
}

/* A page that the driver may still map at a granule in unknown state is neither reused nor
 * released, and counts once. */
TEST(an_alias_in_unknown_state_keeps_its_page)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    assert_ok(map(&f.segment, 0, 1, false));
    fault.call = "cuMemSetAccess";
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    fault.call = "cuMemUnmap";
    fault.every = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    assert_int_equal(xseg_alias_map(&f.segment, 10, 1, &f.segment, 0), XSEG_ERR_DRIVER);
    assert_ok(xseg_sim_fault_set(1, NULL));
    assert_int_equal(f.segment.unknown, PAGE);
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), 0);
    assert_ok(xseg_segment_unmap(&f.segment, 0, 1, true, &done));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 0);
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), PAGE);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_segment_retry_unknown(&f.segment, 0, f.segment.granules));
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), 0);
    assert_int_equal(xseg_sim_used(0), 0);
    tear_down(&f);
}

/* A page that was exported through one mapping is not cached when another mapping is the last. */
TEST(exported_alias_is_not_cached)
{
    struct fixture f;
    uint32_t done = 0;

    set_up(&f, XSEG_GIB);
    f.segment.properties = XSEG_PAGE_EXPORTABLE;
    assert_ok(map(&f.segment, 0, 1, false));
    assert_ok(xseg_segment_export(&f.segment, 0, 1));
    assert_ok(xseg_alias_map(&f.segment, 10, 1, &f.segment, 0));
    xseg_segment_unexport(&f.segment, 0, 1);
    assert_ok(xseg_segment_unmap(&f.segment, 0, 1, true, &done));
    assert_ok(xseg_segment_unmap(&f.segment, 10, 1, true, &done));
    assert_int_equal(xseg_page_cache_bytes(&f.pages), 0);
    assert_int_equal(xseg_sim_used(0), 0);
    tear_down(&f);
}

/* Fail each call of mapping three aliases once: 3 maps, 1 set-access; and two in a row, one of which belongs to the
 * rollback. */
TEST(aliases_undo_themselves_at_every_failure)
{
    for (uint64_t n = 1; n <= 12; n++) {
        const bool twice = n > 6;
        struct fixture f;

        set_up(&f, XSEG_GIB);
        assert_ok(map(&f.segment, 0, 3, false));
        assert_ok(xseg_sim_fail(NULL, twice ? n - 6 : n, 999));
        struct xseg_sim_fault next = XSEG_SIM_FAULT_INIT;
        next.nth = n - 5;
        if (twice)
            assert_ok(xseg_sim_fault_set(1, &next));
        const xseg_status status = xseg_alias_map(&f.segment, 10, 3, &f.segment, 0);
        assert_int_equal(mapped(&f), (status == XSEG_OK ? 6 : 3) * PAGE);
        assert_int_equal(status == XSEG_OK, n > (twice ? 10 : 3));
        assert_ok(xseg_sim_fail(NULL, 0, 999));
        assert_ok(xseg_sim_fault_set(1, NULL));
        assert_ok(xseg_segment_retry_unknown(&f.segment, 0, f.segment.granules));
        assert_int_equal(xseg_sim_used(0), 3 * PAGE);
        assert_int_equal(xseg_unreleased_bytes(&f.unreleased), 0);
        tear_down(&f);
    }
}
