/* SPDX-License-Identifier: MIT */
/* Pages for GPUDirect RDMA: the key and the option, separate page sources, and drivers without support. */
#include <string.h>

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

/* Of CUresult. */
#define INVALID_VALUE 1
#define NOT_SUPPORTED 801

#define RDMA_CAPABLE 15 /* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE */

/* An entry point of the driver, by its plain C types. */
int cuPointerGetAttribute(void *data, int attribute, unsigned long long ptr);

static bool supports_rdma(const void *block)
{
    unsigned is_capable = 7;

    assert_int_equal(cuPointerGetAttribute(&is_capable, RDMA_CAPABLE, (uintptr_t)block), 0);
    return is_capable == 1;
}

static struct xseg_pool *create_pool(struct xseg_allocator *allocator, bool rdma)
{
    return env_pool_of(allocator, .rdma = rdma);
}

/* Whether RDMA can access a new block of a pool, or of the default pool (NULL). */
static bool allocates_rdma_memory(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                  size_t bytes)
{
    void *block = pool == NULL ? env_alloc(allocator, bytes, NULL)
                               : env_alloc_in(allocator, pool, bytes, NULL);
    const bool is_capable = supports_rdma(block);

    env_free(allocator, block);
    return is_capable;
}

TEST_TIMES(key_applies_to_all_pools, 2, env_open(i != 0 ? "rdma:True" : NULL))
{
    struct xseg_pool *pool = create_pool(allocator, false);

    assert_int_equal(allocates_rdma_memory(allocator, NULL, 1000), i);
    assert_int_equal(allocates_rdma_memory(allocator, NULL, 30 * MIB), i);
    assert_int_equal(allocates_rdma_memory(allocator, pool, 30 * MIB), i);
}

TEST_ON(option_applies_to_one_pool, env_open(NULL))
{
    struct xseg_pool *pool = create_pool(allocator, true);

    assert_true(allocates_rdma_memory(allocator, pool, 30 * MIB));
    assert_true(allocates_rdma_memory(allocator, pool, 1000));
    assert_false(allocates_rdma_memory(allocator, NULL, 30 * MIB));
}

TEST_EACH(classic_segments_and_guarded_blocks_support_rdma, env_open(config),
          "rdma:True,expandable_segments:False", "rdma:True,guard_page:True")
{
    assert_true(allocates_rdma_memory(allocator, NULL, 30 * MIB));
}

TEST_ON(resumed_pool_has_rdma_pages, env_open(NULL))
{
    struct xseg_pool *pool = create_pool(allocator, true);
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
    assert_true(supports_rdma(block));
    env_free(allocator, block);
}

/* Pages of a released pool in the page cache serve another pool only if both have the same kind of pages. */
TEST_TIMES(idle_pages_serve_their_kind_only, 4, env_open("page_cache_mb:1000,idle_ms:0"))
{
    struct xseg_pool *first_pool = create_pool(allocator, i % 2 != 0);
    struct xseg_pool *second_pool = create_pool(allocator, i / 2 != 0);

    env_free(allocator, env_alloc_in(allocator, first_pool, 40 * MIB, NULL));
    assert_ok(xseg_pool_release(first_pool));
    assert_ok(trim_due(allocator, UINT64_MAX));
    assert_int_equal(env_stats(allocator).idle_page_bytes, 40 * MIB);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    void *block = env_alloc_in(allocator, second_pool, 40 * MIB, NULL);
    assert_int_equal(supports_rdma(block), i / 2);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, i % 2 == i / 2 ? 0 : 40 / 20);
    env_free(allocator, block);
}

/* Under memory pressure, pages of the other kind are released to the driver, and new pages are created. */
TEST_TIMES(pages_of_the_other_kind_are_replaced, 2, env_open_sim(NULL, .memory_bytes = 200 * MIB))
{
    struct xseg_pool *first_pool = create_pool(allocator, i == 0),
                     *second_pool = create_pool(allocator, i != 0);
    env_free(allocator, env_alloc_in(allocator, first_pool, 160 * MIB, NULL));
    assert_ok(xseg_pool_release(first_pool));
    char *block = env_alloc_in(allocator, second_pool, 160 * MIB, NULL);
    for (size_t offset = 0; offset < 160 * MIB; offset += 2 * MIB)
        assert_int_equal(supports_rdma(block + offset), i);
    env_free(allocator, block);
}

static struct env_log logged;

static struct xseg_allocator *open_driver(const char *config, enum xseg_sim_rdma rdma)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .rdma = rdma};

    assert_ok(xseg_sim_reset(&settings));
    return env_open_logged(config, &logged);
}

TEST_TIMES(missing_rdma_support_is_logged_once, 2, open_driver(NULL, XSEG_SIM_RDMA_WORKS))
{
    /* The device is open, so the next page is created by the probe for RDMA. */
    env_free(allocator, env_alloc(allocator, 1000, NULL));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, i == 0 ? NOT_SUPPORTED : INVALID_VALUE));
    struct xseg_pool *pool = create_pool(allocator, true);
    assert_true(xseg_sim_failed());
    env_expect_warnings(&logged, 1, "device 0: rdma has no effect");
    env_expect_warnings(&logged, 1, "cuMemCreate");
    assert_false(allocates_rdma_memory(allocator, pool, 30 * MIB));
    /* The probe is not repeated. */
    assert_false(allocates_rdma_memory(allocator, create_pool(allocator, true), 30 * MIB));
    assert_int_equal(logged.lines, 1);
}

/* Drivers without support.  Some of them create a page, but its set-access fails, or the flag is ignored. */
static const struct {
    enum xseg_sim_rdma rdma;
    const char *reason;
} drivers[] = {
    {XSEG_SIM_RDMA_CREATE_FAILS, "cuMemCreate"},
    {XSEG_SIM_RDMA_ACCESS_FAILS, "cuMemSetAccess"},
    {XSEG_SIM_RDMA_IGNORED, "driver ignores the flag for GPUDirect RDMA"},
    {XSEG_SIM_RDMA_ABSENT, "cuMemCreate"},
};

TEST_TIMES(probe_accesses_the_created_page, COUNT_OF(drivers),
           open_driver("rdma:True", drivers[i].rdma))
{
    assert_false(allocates_rdma_memory(allocator, NULL, 30 * MIB));
    env_expect_warnings(&logged, 1, drivers[i].reason);
}

/* Another allocator has all memory when the device is opened, so the probe for RDMA runs later. */
TEST(probe_runs_when_memory_is_free)
{
    void *ptr = NULL;

    struct xseg_allocator *first_allocator = env_open_mib(200, NULL);
    void *all_memory = env_alloc(first_allocator, 200 * MIB, NULL);
    struct xseg_allocator *allocator = env_open_logged("rdma:True", &logged);
    struct xseg_pool *pool = create_pool(allocator, false);
    assert_int_equal(env_try_alloc(allocator, 1000, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(env_try_alloc_in(allocator, pool, 1000, &ptr), XSEG_ERR_NO_MEMORY);
    env_free(first_allocator, all_memory);
    env_empty_cache(first_allocator);
    assert_ok(xseg_close(first_allocator));
    /* The existing segments have no memory yet, so their pages support RDMA as well. */
    assert_true(allocates_rdma_memory(allocator, NULL, 1000));
    assert_true(allocates_rdma_memory(allocator, pool, 1000));
    assert_int_equal(logged.lines, 0);
    env_close(allocator);
}

TEST_ON(custom_memory_is_rejected, env_open("rdma:True"))
{
    struct xseg_pool_options options = {sizeof(options), .memory = env_no_memory, .rdma = true};
    struct xseg_pool *pool = NULL;

    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT,
                 "rdma with memory functions");
    options.rdma = false;
    pool = env_pool_with(allocator, &options);
}
