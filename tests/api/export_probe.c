/* SPDX-License-Identifier: MIT */
/*
 * The probe of exports is deferred while the device has too little memory for it: no pool counts as
 * exportable before the probe, and the next growth runs the probe.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

#define NOT_SUPPORTED 801

static struct xseg_sim_settings machine(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 200 * MIB,
                                         .fabric = true};

    return settings;
}

/* Two allocators on one device; the first one has allocated all of its memory. */
struct full {
    struct xseg_allocator *holder, *allocator;
    void *all;
    char log[512]; /* the last warning of `allocator` */
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

    *full = (struct full){.holder = env_open_on(&settings, NULL)};
    full->all = env_alloc(full->holder, 200 * MIB, NULL);
    options.driver = env_driver();
    options.log = find_line;
    options.log_context = full->log;
    assert_ok(xseg_open(config, &options, &full->allocator));
}

static void free_device_memory(struct full *full)
{
    env_free(full->holder, full->all);
    env_empty_cache(full->holder);
}

static void close_full(const struct full *full)
{
    assert_ok(xseg_close(full->holder));
    env_close(full->allocator);
}

static struct xseg_pool *make_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool_options options = {sizeof(options), .exportable = true};
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    return pool;
}

static void export_and_close(struct xseg_allocator *allocator, void *block,
                             enum xseg_handle_type type)
{
    struct exported_handles exported;

    assert_ok(export_handles(allocator, block, type, &exported));
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, block));
}

TEST(the_probe_runs_when_memory_is_free)
{
    struct full full;
    void *block = NULL;

    open_full(&full, "exportable:True");
    assert_int_equal(xseg_alloc(full.allocator, 0, 1000, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_non_null(strstr(full.log, "too little free memory for the driver test"));
    free_device_memory(&full);
    /* The default pool is exportable from its first memory on. */
    block = env_alloc(full.allocator, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    const uint64_t exports = xseg_sim_calls("cuMemExportToShareableHandle");
    void *other = env_alloc(full.allocator, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemExportToShareableHandle"), exports);
    env_free(full.allocator, other, block);
    close_full(&full);
}

/* If the deferred probe fails, the default pool still gets memory that is not exportable. */
TEST(a_failed_probe_leaves_the_default_pool_not_exportable)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct exported_handles exported;
    struct xseg_pool *pool = NULL;
    struct full full;
    void *block = NULL;

    open_full(&full, "exportable:True");
    assert_ok(xseg_pool_create(full.allocator, 0, NULL, &pool));
    free_device_memory(&full);
    /* Both pages of the probe: with fabric handles, and without. */
    fault.call = "cuMemCreate";
    fault.error = NOT_SUPPORTED;
    for (unsigned i = 0; i < 2; i++) {
        fault.nth = i + 1;
        assert_ok(xseg_sim_fault_set(i, &fault));
    }
    block = env_alloc(full.allocator, 1000, NULL);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    assert_non_null(strstr(full.log, "exportable has no effect, "));
    assert_non_null(strstr(full.log, "CUDA_ERROR_NOT_SUPPORTED"));
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FD, &exported),
                     XSEG_ERR_UNSUPPORTED, "cannot be exported");
    env_free(full.allocator, block);
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}

/* A pool that is exportable by its options is created under memory pressure, and gets fabric
 * handles later. */
TEST(a_deferred_probe_finds_fabric_handles)
{
    struct exported_handles exported;
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct full full;

    open_full(&full, NULL);
    struct xseg_pool *pool = make_pool(full.allocator);
    free_device_memory(&full);
    void *block = env_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);

    /* The pages were created before the probe could run: they have no fabric handles. */
    open_full(&full, NULL);
    pool = make_pool(full.allocator);
    free_device_memory(&full);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2));
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                     XSEG_ERR_UNSUPPORTED, "before the probe of fabric handles");
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    env_free(full.allocator, block);
    scope.pool = pool;
    assert_ok(xseg_trim(full.allocator, &scope, NULL, NULL));
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}

/* If memory is too low for the probe at the export itself, the error message contains that. */
TEST(the_error_reports_a_probe_without_memory)
{
    struct exported_handles exported;
    struct full full;

    open_full(&full, NULL);
    struct xseg_pool *pool = make_pool(full.allocator);
    free_device_memory(&full);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2));
    void *block = env_alloc_in(full.allocator, pool, 1000, NULL);
    full.all = env_alloc(full.holder, 198 * MIB, NULL);
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                     XSEG_ERR_UNSUPPORTED, "out of memory for a probe");
    free_device_memory(&full);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}
