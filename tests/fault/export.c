/* SPDX-License-Identifier: MIT */
/*
 * The sweep over exports and imports: every driver call of them fails once, of the probe before them and of the release as
 * well; and pairs of calls.
 *
 * After a failure no descriptor is open that was not, nothing is imported, and no page is retained; the same call then
 * works, and both sides see the same bytes.  In the end nothing is left behind.
 */
#include <string.h>

#include "tests/fault/armed.h"
#include "tests/support/exported.h"

static uint64_t imported(struct stage *stage)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    while (stage_again(stage, xseg_stats_get(stage->allocator, &where, &stats)))
        ;
    return stats.imported_bytes;
}

static struct xseg_pool *make_pool(struct stage *stage)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.exportable = true;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &pool)))
        ;
    return pool;
}

static struct exported export_block(struct stage *stage, void *block, enum xseg_handle_type type)
{
    const unsigned files = scene_open_files();
    struct exported exported;
    xseg_status status;

    do {
        status = exported_try(stage->allocator, block, type, &exported);
        if (status != XSEG_OK) {
            assert_int_equal(scene_open_files(), files);
            assert_int_equal(xseg_export_close(stage->allocator, block), XSEG_ERR_NOT_ALLOCATED);
        }
    } while (stage_again(stage, status));
    return exported;
}

/* The address of the block; and of the run. */
static void *import_block(struct stage *stage, const struct exported *exported, void **base)
{
    const uint64_t before = imported(stage);
    void *block = NULL;
    xseg_status status;

    do {
        status = exported_import(stage->allocator, exported, &block, base);
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

    armed_begin();
    for (unsigned i = 0; i < 2; i++) {
        const size_t bytes = i == 0 ? 50 * MIB : 700 * KIB;
        struct exported exported = export_block(stage, blocks[i], XSEG_HANDLE_FD);
        void *base[2] = {NULL};
        (void)import_block(stage, &exported, &base[0]);
        void *second = import_block(stage, &exported, &base[1]);
        const bool had_bytes = stage->bytes;

        exported_drop(&exported);
        stage->bytes = false; /* what it holds is written over, and not looked at */
        if (had_bytes)
            expect_shared(blocks[i], second, bytes, 4711);
        stage_give(stage, blocks[i]);
        stage->bytes = had_bytes;
        close_import(stage, base[0]);
        stage_trim(stage, false);
        close_export(stage, blocks[i]);
        close_import(stage, base[1]);
    }
    assert_int_equal(imported(stage), 0);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* The probe that the first exportable pool of an open device runs. */
static void first_pool(struct stage *stage)
{
    stage_give(stage, stage_take(stage, 1000, NULL));
    armed_begin();
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 30 * MIB, NULL);
    struct exported exported = export_block(stage, block, XSEG_HANDLE_FD);

    exported_drop(&exported);
    close_export(stage, block);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* By fabric handles, which need no descriptors. */
static void by_fabric(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 50 * MIB, NULL), *base = NULL;

    armed_begin();
    struct exported exported = export_block(stage, block, XSEG_HANDLE_FABRIC);
    (void)import_block(stage, &exported, &base);
    exported_drop(&exported);
    close_export(stage, block);
    close_import(stage, base);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* By a token: the exports fail in the server, which reports that to the import. */
static void by_token(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 50 * MIB, NULL), *base = NULL;
    struct xseg_export_token token;
    xseg_status status;

    armed_begin();
    do {
        status = xseg_export(stage->allocator, block, &token, NULL);
        if (status != XSEG_OK)
            assert_int_equal(xseg_export_close(stage->allocator, block), XSEG_ERR_NOT_ALLOCATED);
    } while (stage_again(stage, status));
    do {
        status = xseg_import(stage->allocator, 0, &token, &base);
        if (status != XSEG_OK) {
            assert_null(base);
            assert_int_equal(imported(stage), 0);
        }
    } while (stage_again(stage, status));
    close_export(stage, block);
    close_import(stage, base);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* The exporter goes first; what the importer lets go of then is seen by the close. */
static void closed(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage);
    void *block = stage_take_from(stage, pool, 50 * MIB, NULL), *base = NULL;

    armed_begin();
    struct exported exported = export_block(stage, block, XSEG_HANDLE_FD);
    (void)import_block(stage, &exported, &base);
    exported_drop(&exported);
    close_export(stage, block);
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
    close_import(stage, base);
}

static const struct armed_scenario scenarios[] = {
    {"there and back", there_and_back, 4, 4},
    {"the first pool", first_pool, 4, 6},
    {"closed", closed, 4, 6},
    {"by token", by_token, 4, 4},
    {"by fabric", by_fabric, 4, 4},
};

int main(void)
{
    const struct armed_sweep sweep = {"export", scenarios,      COUNT_OF(scenarios),
                                      NULL,     there_and_back, 300};

    return armed_run(&sweep);
}
