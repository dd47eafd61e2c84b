/* SPDX-License-Identifier: MIT */
/*
 * The trial of exporting where memory was too short for it: nothing is taken for exportable that was not tried, and the
 * trial is made when there is memory.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/exported.h"
#include "tests/support/scene.h"

#define NOT_SUPPORTED 801

static struct xseg_sim_settings machine(void)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = 200 * MIB;
    settings.fabric = true;
    return settings;
}

/* Two allocators on a device whose memory is all the first one's; `log` is told the second one's warnings. */
struct full {
    struct xseg_allocator *holder, *allocator;
    void *all;
    char log[512];
};

static void find_line(void *context, enum xseg_log_level level, const char *line)
{
    if (level == XSEG_LOG_WARNING)
        (void)snprintf(context, 512, "%s", line);
}

static void open_full(struct full *full, const char *config)
{
    const struct xseg_sim_settings settings = machine();
    struct xseg_options options = {sizeof(options)};

    *full = (struct full){.holder = scene_open_on(&settings, NULL)};
    full->all = scene_alloc(full->holder, 200 * MIB, NULL);
    options.driver = scene_driver();
    options.log = find_line;
    options.log_context = full->log;
    assert_int_equal(xseg_open(config, &options, &full->allocator), XSEG_OK);
}

/* From here on there is memory. */
static void make_room(struct full *full)
{
    scene_free(full->holder, full->all);
    scene_empty_cache(full->holder);
}

static void close_full(const struct full *full)
{
    assert_int_equal(xseg_close(full->holder), XSEG_OK);
    scene_close(full->allocator);
}

static struct xseg_pool *make_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.exportable = true;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    return pool;
}

static void export_and_close(struct xseg_allocator *allocator, void *block,
                             enum xseg_handle_type type)
{
    struct exported exported;

    assert_int_equal(exported_try(allocator, block, type, &exported), XSEG_OK);
    exported_drop(&exported);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
}

static void memory_is_tried_when_there_is_some(void **state)
{
    struct full full;
    void *block = NULL;

    (void)state;
    open_full(&full, "exportable:True");
    assert_int_equal(xseg_alloc(full.allocator, 0, 1000, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_non_null(strstr(full.log, "too little free memory for the driver test"));
    make_room(&full);
    /* The default pool is exportable from its first memory on. */
    block = scene_alloc(full.allocator, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    const uint64_t exports = xseg_sim_calls("cuMemExportToShareableHandle");
    void *other = scene_alloc(full.allocator, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemExportToShareableHandle"), exports);
    scene_free(full.allocator, other);
    scene_free(full.allocator, block);
    close_full(&full);
}

/* A driver that refuses such memory, which could not be seen at first, does not refuse memory to the default pool. */
static void what_was_not_tried_is_not_taken_for_exportable(void **state)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct exported exported;
    struct xseg_pool *pool = NULL;
    struct full full;
    void *block = NULL;

    (void)state;
    open_full(&full, "exportable:True");
    assert_int_equal(xseg_pool_create(full.allocator, 0, NULL, &pool), XSEG_OK);
    make_room(&full);
    /* Both creations of the trial: with fabric handles, and without. */
    fault.call = "cuMemCreate";
    fault.error = NOT_SUPPORTED;
    for (unsigned i = 0; i < 2; i++) {
        fault.nth = i + 1;
        assert_int_equal(xseg_sim_fault_set(i, &fault), XSEG_OK);
    }
    block = scene_alloc(full.allocator, 1000, NULL);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    assert_non_null(strstr(full.log, "exportable has no effect, "));
    assert_non_null(strstr(full.log, "CUDA_ERROR_NOT_SUPPORTED"));
    scene_expect_error(exported_try(full.allocator, block, XSEG_HANDLE_FD, &exported),
                       XSEG_ERR_UNSUPPORTED, "cannot be exported");
    scene_free(full.allocator, block);
    block = scene_alloc_in(full.allocator, pool, 1000, NULL);
    scene_free(full.allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    close_full(&full);
}

/* A pool that is exportable by its options is made in spite of the shortage, and has fabric handles later. */
static void fabric_handles_are_tried_again(void **state)
{
    struct exported exported;
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct full full;

    (void)state;
    open_full(&full, NULL);
    struct xseg_pool *pool = make_pool(full.allocator);
    make_room(&full);
    void *block = scene_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    scene_free(full.allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    close_full(&full);

    /* The pages were made when there was memory again, but before the trial was: that is not a driver's failure. */
    open_full(&full, NULL);
    pool = make_pool(full.allocator);
    make_room(&full);
    assert_int_equal(xseg_sim_fail("cuMemCreate", 1, 2), XSEG_OK);
    block = scene_alloc_in(full.allocator, pool, 1000, NULL);
    scene_expect_error(exported_try(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                       XSEG_ERR_UNSUPPORTED, "before the probe of fabric handles");
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    scene_free(full.allocator, block);
    where.pool = pool;
    assert_int_equal(xseg_trim(full.allocator, &where, NULL, NULL), XSEG_OK);
    block = scene_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    scene_free(full.allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    close_full(&full);
}

/* Still short at the export itself: the sentence says that, and nothing of a missing fabric. */
static void a_device_that_stays_full_says_so(void **state)
{
    struct exported exported;
    struct full full;

    (void)state;
    open_full(&full, NULL);
    struct xseg_pool *pool = make_pool(full.allocator);
    make_room(&full);
    assert_int_equal(xseg_sim_fail("cuMemCreate", 1, 2), XSEG_OK);
    void *block = scene_alloc_in(full.allocator, pool, 1000, NULL);
    full.all = scene_alloc(full.holder, 198 * MIB, NULL);
    scene_expect_error(exported_try(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                       XSEG_ERR_UNSUPPORTED, "out of memory for a probe");
    make_room(&full);
    scene_free(full.allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    close_full(&full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_tried_when_there_is_some),
        cmocka_unit_test(what_was_not_tried_is_not_taken_for_exportable),
        cmocka_unit_test(fabric_handles_are_tried_again),
        cmocka_unit_test(a_device_that_stays_full_says_so),
    };

    return cmocka_run_group_tests_name("export trial", tests, NULL, NULL);
}
