/* SPDX-License-Identifier: MIT */
/*
 * The sweep over sharing: every driver call of an export and an import fails once, of the trial before
 * them and of the ways back as well; and pairs of them.
 *
 * After a failure no descriptor is open that was not, nothing is imported, and nothing is held; the same
 * call then works, and both sides see the same bytes.  In the end nothing is left behind.
 */
#include <string.h>

#include "tests/fault/stage.h"

/* The faults of a run, which strike from the first call that shares on. */
static struct xseg_sim_fault fault[2];

static void arm(void)
{
    for (unsigned i = 0; i < COUNT_OF(fault); i++)
        if (fault[i].nth != 0)
            assert_int_equal(xseg_sim_fault_set(i, &fault[i]), XSEG_OK);
}

static uint64_t imported(struct stage *stage)
{
    struct xseg_stats stats = {.struct_bytes = sizeof(stats)};
    struct xseg_where where = XSEG_WHERE_ANY;

    where.device = 0;
    while (stage_again(stage, xseg_stats(stage->allocator, &where, &stats)))
        ;
    return stats.imported_bytes;
}

static struct xseg_pool *make_pool(struct stage *stage)
{
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;
    struct xseg_pool *pool = NULL;

    options.exportable = true;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &pool)))
        ;
    return pool;
}

static struct xseg_share export_block(struct stage *stage, void *block)
{
    struct xseg_share share = XSEG_SHARE_INIT;
    const unsigned files = scene_open_files();
    xseg_status status;

    do {
        status = xseg_export(stage->allocator, block, XSEG_SHARE_FD, &share);
        if (status != XSEG_OK) {
            assert_int_equal(scene_open_files(), files);
            assert_int_equal(xseg_export_close(stage->allocator, block), XSEG_ERR_NOT_LIVE);
        }
    } while (stage_again(stage, status));
    return share;
}

static void *import_block(struct stage *stage, const struct xseg_share *share)
{
    const uint64_t before = imported(stage);
    void *block = NULL;
    xseg_status status;

    do {
        status = xseg_import(stage->allocator, 0, share, &block);
        if (status != XSEG_OK) {
            assert_null(block);
            assert_int_equal(imported(stage), before);
        }
    } while (stage_again(stage, status));
    return block;
}

/* What the driver refuses on the way back is kept for later, so these succeed. */
static void close_import(struct stage *stage, void *block)
{
    while (stage_again(stage, xseg_import_close(stage->allocator, block)))
        ;
}

static void close_export(struct stage *stage, void *block)
{
    while (stage_again(stage, xseg_export_close(stage->allocator, block)))
        ;
}

/* A word of the block, through both addresses. */
static void expect_shared(uint64_t *ours, uint64_t *theirs, size_t bytes, uint64_t value)
{
    for (size_t at = 0; at < bytes / sizeof(*ours); at += 512 * KIB) {
        theirs[at] = value;
        assert_true(ours[at] == value);
    }
}

/* A block on several pages, and one of many on a page. */
static void there_and_back(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage);
    void *blocks[2] = {stage_take_from(stage, pool, 50 * MIB, NULL),
                       stage_take_from(stage, pool, 700 * KIB, stage->side)};

    arm();
    for (unsigned i = 0; i < 2; i++) {
        const size_t bytes = i == 0 ? 50 * MIB : 700 * KIB;
        struct xseg_share share = export_block(stage, blocks[i]);
        void *first = import_block(stage, &share), *second = import_block(stage, &share);
        const bool had_bytes = stage->bytes;

        xseg_share_end(&share);
        stage->bytes = false; /* what it holds is written over, and not looked at */
        if (had_bytes)
            expect_shared(blocks[i], second, bytes, 4711);
        stage_give(stage, blocks[i]);
        stage->bytes = had_bytes;
        close_import(stage, first);
        stage_trim(stage, false);
        close_export(stage, blocks[i]);
        close_import(stage, second);
    }
    assert_int_equal(imported(stage), 0);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* The trial that the first exportable pool makes, on a device that has been opened. */
static void first_pool(struct stage *stage)
{
    stage_give(stage, stage_take(stage, 1000, NULL));
    arm();
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 30 * MIB, NULL);
    struct xseg_share share = export_block(stage, block);

    xseg_share_end(&share);
    close_export(stage, block);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* The exporter goes first; what the importer lets go of then is seen by the close. */
static void closed(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 50 * MIB, NULL), *seen;

    arm();
    struct xseg_share share = export_block(stage, block);
    seen = import_block(stage, &share);
    xseg_share_end(&share);
    close_export(stage, block);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
    close_import(stage, seen);
}

static const struct {
    const char *name;
    stage_scenario play;
    unsigned distance; /* of the second fault of a pair */
} scenarios[] = {
    {"there and back", there_and_back, 4},
    {"the first pool", first_pool, 6},
    {"closed", closed, 6},
};

/* A round of single faults: with which error, and whether the driver takes one mapping a call. */
static const struct {
    int error;
    bool one_by_one;
} rounds[] = {{999, false}, {999, true}, {2, false}, {1, false}};

static struct xseg_sim_settings settings_of(bool one_by_one)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

    settings.memory_bytes = GIB;
    settings.real_bytes = true;
    settings.one_by_one = one_by_one;
    return settings;
}

/* Run a scenario; whether the last of its faults struck. */
static bool run(stage_scenario play, const struct xseg_sim_settings *settings)
{
    const struct xseg_sim_fault none = stage_nth_call(0, 1);
    const unsigned files = scene_open_files();

    (void)stage_run(play, settings, NULL, none, none);
    assert_int_equal(scene_open_files(), files);
    return xseg_sim_fault_struck(fault[1].nth != 0 ? 1 : 0) != 0;
}

static void singles(void **state)
{
    uint64_t n = 0;

    (void)state;
    fault[1].nth = 0;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++) {
        for (unsigned round = 0; round < COUNT_OF(rounds); round++) {
            const struct xseg_sim_settings settings = settings_of(rounds[round].one_by_one);

            for (n = 1; fault[0] = stage_nth_call(n, rounds[round].error),
                run(scenarios[i].play, &settings);
                 n++)
                assert_true(n < 1000);
        }
        print_message("# %s: %u driver calls\n", scenarios[i].name, (unsigned)(n - 1));
        assert_true(n > 20);
    }
}

/* A second fault behind the first one, where the undo is. */
static void pairs(void **state)
{
    const struct xseg_sim_settings settings = settings_of(false);
    uint64_t runs = 0;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        for (uint64_t behind = 1; behind <= scenarios[i].distance; behind++)
            for (uint64_t n = 1;
                 fault[0] = stage_nth_call(n, 999), fault[1] = stage_nth_call(n + behind, 999),
                          run(scenarios[i].play, &settings);
                 n++)
                runs++;
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 300);
}

/* A batched unmap or set-access that does some of its mappings and then fails. */
static void halfway(void **state)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemSetAccess"};
    const struct xseg_sim_settings settings = settings_of(false);
    uint64_t runs = 0;

    (void)state;
    fault[1].nth = 0;
    for (unsigned call = 0; call < COUNT_OF(calls); call++)
        for (uint64_t mappings = 1; mappings <= 3; mappings++) {
            fault[0] = stage_nth_call(1, 999);
            fault[0].call = calls[call];
            fault[0].halfway = mappings;
            for (; run(there_and_back, &settings); fault[0].nth++)
                runs++;
        }
    assert_true(runs > 10);
}

/* The machine's own files are there from the first run on. */
static int warm_up(void **state)
{
    const struct xseg_sim_settings settings = settings_of(false);
    const struct xseg_sim_fault none = stage_nth_call(0, 1);

    (void)state;
    (void)stage_run(there_and_back, &settings, NULL, none, none);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singles),
        cmocka_unit_test(pairs),
        cmocka_unit_test(halfway),
    };

    return cmocka_run_group_tests_name("share", tests, warm_up, NULL);
}
