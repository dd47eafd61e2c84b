/* SPDX-License-Identifier: MIT */
/* placement:pages puts blocks where whole pages come free. */
#include "tests/support/scene.h"

static const char *const placements[] = {"placement:best_fit", "placement:pages"};

/* What is idle in whole pages. */
static uint64_t idle_bytes(struct xseg_allocator *allocator)
{
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;
    struct xseg_trim_options nothing = XSEG_TRIM_OPTIONS_INIT;

    nothing.leave_bytes = UINT64_MAX;
    assert_int_equal(xseg_trim(allocator, NULL, &nothing, &done), XSEG_OK);
    return done.kept_asked;
}

static uint64_t growth_calls(void)
{
    return xseg_sim_calls("cuMemCreate") + xseg_sim_calls("cuMemMap") +
           xseg_sim_calls("cuMemSetAccess");
}

static uint32_t chance;

static unsigned below(unsigned bound)
{
    chance = chance * 1664525u + 1013904223u;
    return (chance >> 8) % bound;
}

/* A block every now and then that stays, of one size, among blocks of several sizes that pass. */
static uint64_t pass_time(struct xseg_allocator *allocator, size_t unit, void **stays,
                          unsigned count)
{
    const uint64_t before = idle_bytes(allocator);
    void *passing[30] = {0};

    chance = 1;
    for (unsigned step = 0; step < count * 40; step++) {
        void **slot = &passing[below(COUNT_OF(passing))];

        if (*slot != NULL)
            scene_free(allocator, *slot);
        *slot = scene_alloc(allocator, unit * (4 + below(12)), NULL);
        if (step % 40 == 39)
            stays[step / 40] = scene_alloc(allocator, unit * 3, NULL);
    }
    for (unsigned i = 0; i < COUNT_OF(passing); i++)
        if (passing[i] != NULL)
            scene_free(allocator, passing[i]);
    return idle_bytes(allocator) - before;
}

/* A page with a block that stays is never free, so such blocks lie together. */
static void what_stays_and_what_passes_part(void **state)
{
    uint64_t idle[2][2], calls[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_allocator *allocator = scene_open(placements[i]);
        void *large[30], *small[30];

        idle[i][0] = pass_time(allocator, MIB, large, COUNT_OF(large));
        idle[i][1] = pass_time(allocator, 30 * KIB, small, COUNT_OF(small));
        calls[i] = growth_calls();
        for (unsigned at = 0; at < COUNT_OF(large); at++) {
            scene_free(allocator, large[at]);
            scene_free(allocator, small[at]);
        }
        scene_close(allocator);
    }
    assert_true(idle[1][0] >= 2 * idle[0][0]);
    assert_true(idle[1][1] >= 2 * idle[0][1]);
    /* In the long run they are fewer (benchmarks/placement.c); here hardly more. */
    assert_true(calls[1] <= calls[0] + calls[0] / 10);
}

/* A small block goes to the lowest address that is free, whatever would fit better. */
static void small_blocks_lie_low(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_allocator *allocator = scene_open(placements[i]);
        char *block[400];
        void *ptr;

        for (unsigned at = 0; at < COUNT_OF(block); at++)
            block[at] = scene_alloc(allocator, 16 * KIB, NULL);
        /* Low: a hole of two.  High: one that fits exactly. */
        scene_free(allocator, block[10]);
        scene_free(allocator, block[11]);
        scene_free(allocator, block[390]);
        ptr = scene_alloc(allocator, 16 * KIB, NULL);
        assert_ptr_equal(ptr, i == 0 ? block[390] : block[10]);
        scene_free(allocator, ptr);
        /* A wide one below, of 160 KiB. */
        for (unsigned at = 0; at < 10; at++)
            scene_free(allocator, block[at]);
        ptr = scene_alloc(allocator, 20 * KIB, NULL);
        assert_ptr_equal(ptr, block[0]);
        scene_free(allocator, ptr);
        for (unsigned at = 12; at < COUNT_OF(block); at++)
            if (at != 390)
                scene_free(allocator, block[at]);
        scene_close(allocator);
    }
}

/* Alignment holds, memory made ready is ready, and it can be switched while blocks live. */
static void everything_else_is_as_ever(void **state)
{
    struct xseg_allocator *allocator = scene_open("placement:pages");
    struct xseg_request request = XSEG_REQUEST_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;
    void *ptr[60];

    (void)state;
    where.device = 0;
    for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
        request.bytes = (i % 3 == 0 ? 3 * MIB : 100 * KIB) + i;
        request.alignment = (size_t)1 << (9 + i % 14);
        assert_int_equal(xseg_alloc_with(allocator, &request, &ptr[i]), XSEG_OK);
        assert_int_equal((uintptr_t)ptr[i] % request.alignment, 0);
        if (i % 10 == 9) {
            assert_int_equal(xseg_configure(allocator, placements[i / 10 % 2]), XSEG_OK);
            scene_free(allocator, ptr[i - 5]);
            ptr[i - 5] = NULL;
        }
    }
    assert_int_equal(xseg_configure(allocator, "placement:pages"), XSEG_OK);
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        if (ptr[i] != NULL)
            scene_free(allocator, ptr[i]);
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_int_equal(xseg_prewarm(allocator, &where, 30 * MIB), XSEG_OK);
    scene_free(allocator, scene_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    scene_expect_error(xseg_configure(allocator, "placement:first_fit"), XSEG_ERR_CONFIG,
                       "best_fit or pages");
    scene_close(allocator);

    allocator = scene_open("placement:pages,expandable_segments:False");
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, NULL));
    scene_free(allocator, scene_alloc(allocator, 5 * KIB, NULL));
    scene_close(allocator);
}

/* What is too large to be split serves nothing smaller: more has to be mapped. */
static void oversize_blocks_are_kept(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_allocator *allocator = scene_open(placements[i]);
        const uint64_t mib = i == 0 ? 60 : 80;
        void *live[2];

        assert_int_equal(xseg_configure(allocator, "placement:pages,max_split_size_mb:40"),
                         XSEG_OK);
        live[0] = scene_alloc(allocator, 60 * MIB, NULL);
        live[1] = scene_alloc(allocator, 20 * MIB, NULL);
        scene_free(allocator, live[0]);
        if (i == 0)
            assert_int_equal(xseg_configure(allocator, "max_split_size_mb:100"), XSEG_OK);
        live[0] = scene_alloc(allocator, 6 * MIB, NULL);
        assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current,
                         (mib + 20) * MIB);
        scene_free(allocator, live[0]);
        scene_free(allocator, live[1]);
        scene_close(allocator);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stays_and_what_passes_part),
        cmocka_unit_test(small_blocks_lie_low),
        cmocka_unit_test(everything_else_is_as_ever),
        cmocka_unit_test(oversize_blocks_are_kept),
    };

    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
