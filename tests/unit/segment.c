/* SPDX-License-Identifier: MIT */
/* Segments: each operation is a transaction, at the failure of any of its driver calls. */
#include "vmm/segment.h"
#include "src/base/align.h"
#include "tests/support/audit.h"
#include "tests/support/device_context.h"
#include "vmm/alias.h"
#include "vmm/evicted.h"

#define PAGE  (2 * XSEG_MIB)
#define PAGES 64u

#define FULL 4u /* granules of a full page */

static struct xseg_page_cache pages;
static struct xseg_segment segment;

static void set_up_with(uint64_t memory, uint64_t full_page)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    memset(&segment, 0, sizeof(segment));
    settings.memory_bytes = memory;
    context_open(&settings);
    assert_true(context.has_vmm);
    xseg_page_cache_init(&pages, &context, &unreleased);
    assert_ok(xseg_segment_reserve(&segment, &context, &pages, PAGES * PAGE, full_page));
}

FIXTURE(set_up)
{
    set_up_with(XSEG_GIB, PAGE);
}

FIXTURE(set_up_full_pages)
{
    set_up_with(XSEG_GIB, FULL * PAGE);
}

static xseg_status map(struct xseg_segment *target, uint32_t first, uint32_t count, bool use_small)
{
    struct xseg_page_source source = {.use_small = use_small};

    return xseg_segment_map(target, first, count, &source);
}

/* Unmap whole pages, which are released or enter the page cache. */
static void unmap(uint32_t first, uint32_t count, bool cache)
{
    uint32_t done = 0;

    assert_ok(xseg_segment_unmap(&segment, first, count, cache, &done));
    assert_int_equal(done, count);
}

FIXTURE(tear_down)
{
    for (uint32_t page = 0; page < PAGES; page++)
        if (xseg_segment_is_mapped(&segment, page))
            unmap(page, segment.length[page], false);
    (void)xseg_page_cache_shrink(&pages, 0, UINT64_MAX);
    xseg_page_cache_fini(&pages);
    assert_ok(xseg_segment_destroy(&segment));
    context_close();
}

static uint64_t mapped(void)
{
    return atomic_load(&segment.mapped);
}

static void expect_segment_audit(const char *tag)
{
    expect_audit(xseg_segment_audit(&segment, &violation), tag);
}

TEST_WITH(growth_keeps_mapped_pages, set_up, tear_down)
{
    assert_ok(map(&segment, 0, 2, false));
    const uint64_t before = segment.handle[1];
    assert_ok(map(&segment, 2, 6, false));
    assert_int_equal(mapped(), 8 * PAGE);
    assert_int_equal(segment.handle[1], before);
    /* Unmap granules in the middle, and map them again. */
    unmap(3, 2, false);
    assert_false(xseg_segment_is_mapped(&segment, 3));
    assert_true(xseg_segment_is_mapped(&segment, 5));
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_ok(map(&segment, 3, 2, false));
    assert_int_equal(mapped(), 8 * PAGE);
}

TEST(failed_growth_changes_nothing)
{
    set_up_with(10 * PAGE, PAGE);
    assert_ok(map(&segment, 0, 4, false));
    assert_error(map(&segment, 4, 7, false), NO_MEMORY, "cuMemCreate");
    assert_int_equal(mapped(), 4 * PAGE);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_ok(map(&segment, 4, 6, false));
    (void)tear_down(NULL);
}

/* Fail each call of a growth of five pages once: 5 creates, 5 maps, 1 set-access. */
TEST(map_is_rolled_back_at_every_failure)
{
    for (uint64_t n = 1; n <= 12; n++) {
        (void)set_up(NULL);
        assert_ok(map(&segment, 0, 3, false));
        assert_ok(xseg_sim_fail(NULL, n, 999));
        const xseg_status status = map(&segment, 3, 5, false);
        /* A failed set-access is retried page by page, so the map succeeds. */
        assert_int_equal(status, n <= 10 ? XSEG_ERR_DRIVER : XSEG_OK);
        assert_int_equal(mapped(), (n <= 10 ? 3 : 8) * PAGE);
        assert_int_equal(xseg_sim_used(0), mapped());
        assert_ok(xseg_sim_fail(NULL, 0, 999));
        (void)tear_down(NULL);
    }
}

/* The state after a failed map and a failed rollback. */
static void make_unknown(uint32_t page)
{
    segment.state[page] = XSEG_PAGE_UNKNOWN;
    segment.unknown += PAGE;
    atomic_fetch_add(&unreleased.unknown, PAGE);
    atomic_fetch_sub(&segment.mapped, PAGE);
}

/* The rollback fails too: the page is in unknown state and counted until the next map uses it or a retry unmaps it. */
TEST_WITH(failed_rollback_is_retried, set_up, tear_down)
{
    context.batches_access = false;
    assert_ok(xseg_sim_fail("cuMemSetAccess", 2, 999));
    assert_int_equal(map(&segment, 0, 4, false), XSEG_ERR_DRIVER);
    assert_int_equal(mapped(), 0);
    assert_int_equal(segment.unknown, 0);

    assert_ok(map(&segment, 1, 1, false));
    make_unknown(1);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    assert_ok(map(&segment, 0, 3, false));
    assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, 2);
    assert_int_equal(segment.unknown, 0);
    assert_int_equal(mapped(), 3 * PAGE);

    make_unknown(1);
    assert_ok(xseg_segment_retry_unknown(&segment, 0, segment.granules));
    assert_int_equal(segment.unknown, 0);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
}

/* A batched unmap that fails is retried page by page; the first page that fails ends the run. */
TEST_WITH(failed_unmap_is_retried_page_by_page, set_up, tear_down)
{
    uint32_t done = 0;

    assert_ok(map(&segment, 0, 6, false));
    assert_ok(xseg_sim_fail("cuMemUnmap", 1, 1));
    unmap(0, 3, false);
    context.batches_unmap = false;
    assert_ok(xseg_sim_fail("cuMemUnmap", 2, 1));
    assert_int_equal(xseg_segment_unmap(&segment, 3, 3, false, &done), XSEG_ERR_DRIVER);
    assert_int_equal(done, 1);
    assert_true(xseg_segment_is_mapped(&segment, 4));
    assert_int_equal(mapped(), 2 * PAGE);
}

TEST_WITH(failed_releases_are_retried, set_up, tear_down)
{
    assert_ok(map(&segment, 0, 3, false));
    assert_ok(xseg_sim_fail("cuMemRelease", 2, 999));
    unmap(0, 3, false);
    assert_int_equal(unreleased.count, 1);
    assert_int_equal(atomic_load(&unreleased.physical), PAGE);
    assert_int_equal(xseg_sim_used(0), PAGE);
    expect_audit(xseg_unreleased_audit(&unreleased, &violation), NULL);
    WITH_VALUE(unreleased.record[0].bytes, unreleased.record[0].bytes + 1,
               expect_audit(xseg_unreleased_audit(&unreleased, &violation), "UNREL-1"));
    assert_ok(xseg_unreleased_retry(&unreleased));
    assert_int_equal(xseg_sim_used(0), 0);
}

/* Each page, full or small, is unmapped in one piece. */
TEST_WITH(full_pages_are_in_full_page_slots_only, set_up_full_pages, tear_down)
{
    uint32_t first = 0;

    assert_ok(map(&segment, 3, 8, false));
    assert_int_equal(segment.length[3], 1);
    assert_int_equal(segment.length[4], FULL);
    assert_int_equal(segment.length[5], 0);
    assert_int_equal(segment.length[8], 1);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), 1 + 1); /* one for the probe */

    /* Whole pages of a range: a page that extends past the range does not count. */
    assert_int_equal(xseg_segment_pages_inside(&segment, 3 * PAGE, 11 * PAGE, &first), 8);
    assert_int_equal(first, 3);
    assert_int_equal(xseg_segment_pages_inside(&segment, 3 * PAGE + 1, 9 * PAGE, &first), 5);
    assert_int_equal(first, 4);
    assert_int_equal(xseg_segment_pages_inside(&segment, 5 * PAGE, 11 * PAGE - 1, &first), 2);
    assert_int_equal(first, 8);
    assert_int_equal(xseg_segment_pages_inside(&segment, 3 * PAGE, 7 * PAGE, &first), 1);
    assert_int_equal(xseg_segment_pages_inside(&segment, 5 * PAGE, 8 * PAGE, &first), 0);
    assert_int_equal(xseg_segment_page_end(&segment, 6), 8);
    assert_int_equal(xseg_segment_page_end(&segment, 4), 4);

    unmap(4, FULL, false);
    assert_ok(map(&segment, 4, FULL, true));
    assert_int_equal(segment.length[4], 1);
}

/* A full page has two granules.  Long pages have 4 or 8, the largest power of two below max_page_bytes. */
TEST(long_pages_are_used_where_they_fit)
{
    /* The first granule of a page, and the number of its granules. */
    static const uint32_t expected[][2] = {{1, 1}, {2, 8}, {10, 8}, {18, 4}, {22, 2}, {24, 1}};
    struct xseg_page_source source = {.max_page_bytes = 9 * PAGE};
    uint32_t first = 0;

    set_up_with(XSEG_GIB, 2 * PAGE);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    assert_ok(xseg_segment_map(&segment, 1, 24, &source));
    for (size_t i = 0; i < XSEG_COUNT_OF(expected); i++)
        assert_int_equal(segment.length[expected[i][0]], expected[i][1]);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created + XSEG_COUNT_OF(expected));
    assert_int_equal(xseg_sim_used(0), 24 * PAGE);
    /* A long page is unmapped in one piece, or not at all. */
    assert_int_equal(xseg_segment_pages_inside(&segment, 3 * PAGE, 20 * PAGE, &first), 8);
    assert_int_equal(first, 10);
    assert_int_equal(xseg_segment_pages_inside(&segment, 3 * PAGE, 10 * PAGE, &first), 0);
    unmap(10, 8, true);
    /* The page is cached, and used by the next growth with enough space. */
    assert_ok(xseg_segment_map(&segment, 30, 8, &source));
    assert_int_equal(segment.length[30], 8);
    assert_int_equal(xseg_sim_used(0), 24 * PAGE);
    /* The source can restrict a map to small pages. */
    source.use_small = true;
    assert_ok(xseg_segment_map(&segment, 10, 8, &source));
    assert_int_equal(segment.length[10], 1);
    (void)tear_down(NULL);
}

TEST_WITH(failed_retry_unmaps_a_long_page_once, set_up_full_pages, tear_down)
{
    assert_ok(map(&segment, 0, FULL, false));
    xseg_segment_mark_unknown(&segment, 0, FULL);
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    assert_ok(xseg_sim_fail("cuMemUnmap", 1, 999));
    assert_int_equal(xseg_segment_retry_unknown(&segment, 0, FULL), XSEG_ERR_DRIVER);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 1);
    assert_ok(xseg_segment_retry_unknown(&segment, 0, FULL));
    assert_int_equal(segment.unknown, 0);
    assert_int_equal(xseg_sim_used(0), 0);
}

TEST_WITH(cached_page_is_mapped_at_another_address, set_up_full_pages, tear_down)
{
    assert_ok(map(&segment, 0, FULL + 2, false));
    unmap(0, FULL + 2, true);
    assert_int_equal(xseg_page_cache_bytes(&pages), (FULL + 2) * PAGE);
    assert_int_equal(xseg_page_cache_usable_bytes(&pages, PAGE, &(struct xseg_page_filter){0}),
                     2 * PAGE);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    /* The full page is used where it fits, including outside of the slots. */
    assert_ok(map(&segment, 11, FULL + 2, true));
    assert_int_equal(segment.length[11], FULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(xseg_page_cache_bytes(&pages), 0);
}

TEST_WITH(audit_reports_the_violated_invariant, set_up, tear_down)
{
    assert_ok(map(&segment, 0, 4, false));
    expect_segment_audit(NULL);
    WITH_VALUE(segment.base, segment.base + 512, expect_segment_audit("SEG-1"));
    WITH_VALUE(segment.mapped, segment.mapped + PAGE, expect_segment_audit("SEG-2"));
    WITH_VALUE(segment.reserved_bytes, segment.reserved_bytes - XSEG_GIB,
               expect_segment_audit("SEG-3"));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 0, 1));
    WITH_VALUE(segment.retain_counts[XSEG_RETAIN_PIN].granules,
               segment.retain_counts[XSEG_RETAIN_PIN].granules + 1, expect_segment_audit("SEG-5"));
    assert_true(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 0, 1));
}

TEST_WITH(pinned_pages_are_retained, set_up, tear_down)
{
    assert_ok(map(&segment, 0, 8, false));
    assert_false(xseg_segment_is_retained(&segment, 0, 8));
    assert_false(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 0, 1));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 3 * PAGE - 1, 3 * PAGE + 1));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 3 * PAGE, 4 * PAGE));
    assert_int_equal(xseg_segment_all_retained_bytes(&segment).pinned, 2 * PAGE);
    for (uint32_t page = 0; page < 8; page++)
        assert_int_equal(xseg_segment_is_retained(&segment, page, 1), page == 2 || page == 3);
    /* Granule 1 is not pinned. */
    assert_false(xseg_segment_release(&segment, XSEG_RETAIN_PIN, PAGE, 4 * PAGE));
    assert_true(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 3 * PAGE - 1, 3 * PAGE + 1));
    assert_false(xseg_segment_is_pinned(&segment, 2, 1));
    assert_true(xseg_segment_is_pinned(&segment, 3, 1));
    assert_true(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 3 * PAGE, 4 * PAGE));
    struct xseg_retain_counts *counts = &segment.retain_counts[XSEG_RETAIN_PIN];
    counts->count[5] = UINT32_MAX;
    counts->granules = 1;
    assert_error(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 4 * PAGE, 6 * PAGE), BUSY,
                 "maximum");
    assert_int_equal(counts->count[4], 0);
    counts->count[5] = counts->granules = 0;
}

/* Segments of a lost device are destroyed with their references when the allocator starts to close; users release
 * these later if the close fails. */
TEST_WITH(destroyed_segment_has_no_references, set_up, tear_down)
{
    struct xseg_segment second;

    assert_ok(xseg_segment_reserve(&second, &context, &pages, PAGES * PAGE, PAGE));
    assert_ok(xseg_segment_retain(&second, XSEG_RETAIN_EXPORT, 0, 2 * PAGE));
    assert_ok(xseg_segment_retain(&second, XSEG_RETAIN_PIN, 0, PAGE));
    assert_ok(xseg_segment_destroy(&second));
    assert_false(xseg_segment_release(&second, XSEG_RETAIN_PIN, 0, PAGE));
    xseg_segment_unexport(&second, 0, 2);
    assert_false(xseg_segment_is_retained(&second, 0, 2));
}

/* An export retains whole pages; a page that was ever exported is released to the driver. */
TEST_WITH(exported_pages_are_retained_and_not_cached, set_up_full_pages, tear_down)
{
    uint32_t first = 0;

    segment.properties = XSEG_PAGE_EXPORTABLE;
    assert_ok(map(&segment, 0, 4 * FULL, false));
    /* Bytes in the middle of two pages select pages 1 and 2. */
    assert_int_equal(xseg_segment_pages_overlapping(&segment, 5 * PAGE + 17, 8 * PAGE + 1, &first),
                     2 * FULL);
    assert_int_equal(first, FULL);
    assert_ok(xseg_segment_export(&segment, FULL, 2 * FULL));
    assert_ok(xseg_segment_export(&segment, FULL, FULL));
    assert_ok(xseg_segment_retain(&segment, XSEG_RETAIN_PIN, 9 * PAGE, 9 * PAGE + 1));
    assert_int_equal(xseg_segment_all_retained_bytes(&segment).exported, FULL * PAGE);
    assert_int_equal(xseg_segment_all_retained_bytes(&segment).pinned, FULL * PAGE);
    assert_true(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 9 * PAGE, 9 * PAGE + 1));
    assert_int_equal(xseg_segment_all_retained_bytes(&segment).exported, 2 * FULL * PAGE);
    for (uint32_t page = 0; page < 4; page++)
        assert_int_equal(xseg_segment_is_retained(&segment, page * FULL, FULL),
                         page == 1 || page == 2);
    assert_false(xseg_segment_release(&segment, XSEG_RETAIN_PIN, 4 * PAGE, 5 * PAGE));
    expect_segment_audit(NULL);
    xseg_segment_unexport(&segment, FULL, FULL);
    assert_true(xseg_segment_is_exported(&segment, FULL, 1));
    xseg_segment_unexport(&segment, FULL, 2 * FULL);
    assert_false(xseg_segment_is_retained(&segment, 0, 4 * FULL));

    struct xseg_retain_counts *counts = &segment.retain_counts[XSEG_RETAIN_EXPORT];
    WITH_VALUE(counts->granules, counts->granules + 1, expect_segment_audit("SEG-5"));
    counts->count[0] = UINT32_MAX;
    counts->granules = 1;
    assert_error(xseg_segment_export(&segment, 0, FULL), BUSY, "maximum");
    expect_segment_audit("SEG-6");
    counts->count[0] = counts->granules = 0;

    unmap(0, 4 * FULL, true);
    assert_int_equal(xseg_page_cache_bytes(&pages), 2 * FULL * PAGE);
    /* The next page at these granules was never exported. */
    assert_ok(map(&segment, 0, 4 * FULL, false));
    unmap(0, 4 * FULL, true);
    assert_int_equal(xseg_page_cache_bytes(&pages), 4 * FULL * PAGE);
}

/* The steps of a pause and a resume; each driver call of the resume fails once. */
TEST(pages_are_evicted_and_restored)
{
    for (uint64_t n = 0; n < 30; n++) {
        (void)set_up_full_pages(NULL);
        assert_ok(map(&segment, 0, FULL, false));
        assert_ok(map(&segment, FULL, 3, true));
        const uint64_t generation = xseg_segment_generation(&segment, 0, PAGE);
        assert_ok(xseg_evicted_unmap(&segment));
        assert_int_equal(mapped(), 0);
        assert_int_equal(xseg_unreleased_bytes(&unreleased), (FULL + 3) * PAGE);
        assert_int_equal(xseg_evicted_unbacked_bytes(&segment), 0);
        xseg_evicted_release(&segment);
        assert_int_equal(xseg_unreleased_bytes(&unreleased), 0);
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(xseg_evicted_bytes(&segment), (FULL + 3) * PAGE);
        assert_ok(xseg_sim_fail(NULL, n, 999));
        xseg_status status = xseg_evicted_create(&segment);
        if (status == XSEG_OK)
            status = xseg_evicted_map(&segment);
        assert_ok(xseg_sim_fail(NULL, 0, 0));
        if (status != XSEG_OK) {
            assert_ok(xseg_evicted_roll_back(&segment));
            assert_int_equal(xseg_sim_used(0), 0);
            assert_int_equal(xseg_evicted_unbacked_bytes(&segment), (FULL + 3) * PAGE);
            assert_ok(xseg_evicted_create(&segment));
            assert_ok(xseg_evicted_map(&segment));
        }
        xseg_evicted_finish(&segment);
        assert_int_equal(mapped(), (FULL + 3) * PAGE);
        assert_int_equal(segment.length[0], FULL);
        assert_true(xseg_segment_generation(&segment, 0, PAGE) > generation);
        expect_segment_audit(NULL);
        (void)tear_down(NULL);
    }
}

/* A guarded segment has its own addresses and one page more, with the requested alignment; no segment uses the
 * following page. */
TEST_WITH(guarded_segment_maps_the_minimum, set_up, tear_down)
{
    struct xseg_segment guarded, next;
    uint32_t done = 0;

    assert_ok(xseg_segment_reserve_range(
        &guarded, &context, &pages,
        &(struct xseg_segment_reservation){3 * PAGE, PAGE, PAGE, 64 * XSEG_MIB}));
    assert_ok(xseg_segment_reserve_range(
        &next, &context, &pages, &(struct xseg_segment_reservation){PAGE, PAGE, PAGE, PAGE}));
    assert_int_equal(guarded.base % (64 * XSEG_MIB), 0);
    assert_int_equal(guarded.bytes, 3 * PAGE);
    assert_int_equal(guarded.reserved_bytes, 4 * PAGE);
    assert_true(next.base >= guarded.base + 4 * PAGE);
    assert_ok(map(&guarded, 0, 3, false));
    assert_ok(xseg_segment_unmap(&guarded, 0, 3, false, &done));
    assert_ok(xseg_segment_destroy(&guarded));
    assert_ok(xseg_segment_destroy(&next));
}

/* An aliased page is released with its last mapping, whichever that is, and charged to its first segment once. */
TEST_WITH(aliased_page_is_released_with_its_last_mapping, set_up, tear_down)
{
    assert_ok(map(&segment, 0, 3, false));
    assert_ok(xseg_alias_map(&segment, 10, 3, &segment, 0));
    assert_int_equal(mapped(), 6 * PAGE);
    assert_int_equal(segment.alias_bytes, 3 * PAGE);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_true(xseg_alias_exists(&segment, 1));
    unmap(11, 2, false);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(segment.unmapped_bytes, 0);
    assert_false(xseg_alias_exists(&segment, 1));
    unmap(0, 1, false);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(segment.alias_bytes, 0);
    unmap(10, 1, false);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    assert_int_equal(segment.unmapped_bytes, PAGE);
}

/* The page is neither reused nor released, and counts once. */
TEST_WITH(an_alias_in_unknown_state_keeps_its_page, set_up, tear_down)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    assert_ok(map(&segment, 0, 1, false));
    fault.call = "cuMemSetAccess";
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    fault.call = "cuMemUnmap";
    fault.every = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    assert_int_equal(xseg_alias_map(&segment, 10, 1, &segment, 0), XSEG_ERR_DRIVER);
    assert_ok(xseg_sim_fault_set(1, NULL));
    assert_int_equal(segment.unknown, PAGE);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), 0);
    unmap(0, 1, true);
    assert_int_equal(xseg_page_cache_bytes(&pages), 0);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), PAGE);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_segment_retry_unknown(&segment, 0, segment.granules));
    assert_int_equal(xseg_unreleased_bytes(&unreleased), 0);
    assert_int_equal(xseg_sim_used(0), 0);
}

TEST_WITH(exported_alias_is_not_cached, set_up, tear_down)
{
    segment.properties = XSEG_PAGE_EXPORTABLE;
    assert_ok(map(&segment, 0, 1, false));
    assert_ok(xseg_segment_export(&segment, 0, 1));
    assert_ok(xseg_alias_map(&segment, 10, 1, &segment, 0));
    xseg_segment_unexport(&segment, 0, 1);
    unmap(0, 1, true);
    unmap(10, 1, true);
    assert_int_equal(xseg_page_cache_bytes(&pages), 0);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* Fail each call of mapping three aliases, 3 maps and 1 set-access; and two consecutive calls, one in the rollback. */
TEST(aliases_are_rolled_back_at_every_failure)
{
    for (uint64_t n = 1; n <= 12; n++) {
        const bool twice = n > 6;
        /* A failed set-access is retried, so the fourth call fails the function only if the next one fails as well. */

        (void)set_up(NULL);
        assert_ok(map(&segment, 0, 3, false));
        assert_ok(xseg_sim_fail(NULL, twice ? n - 6 : n, 999));
        struct xseg_sim_fault next = XSEG_SIM_FAULT_INIT;
        next.nth = n - 5;
        if (twice)
            assert_ok(xseg_sim_fault_set(1, &next));
        const xseg_status status = xseg_alias_map(&segment, 10, 3, &segment, 0);
        assert_int_equal(mapped(), (status == XSEG_OK ? 6 : 3) * PAGE);
        assert_int_equal(status == XSEG_OK, n > (twice ? 10 : 3));
        assert_ok(xseg_sim_fail(NULL, 0, 999));
        assert_ok(xseg_sim_fault_set(1, NULL));
        assert_ok(xseg_segment_retry_unknown(&segment, 0, segment.granules));
        assert_int_equal(xseg_sim_used(0), 3 * PAGE);
        assert_int_equal(xseg_unreleased_bytes(&unreleased), 0);
        (void)tear_down(NULL);
    }
}
