/* SPDX-License-Identifier: MIT */
/* Driver calls: a workload makes the minimum. */
#include <string.h>

#include "tests/support/env.h"

#define PAGES 307u
#define PAGE  (20 * MIB)

/* Numbers of driver calls: those for memory, and all calls. */
struct calls {
    uint64_t reserve, create, map, access, unmap, release, all;
};

static struct calls count_calls(void)
{
    return (struct calls){
        xseg_sim_calls("cuMemAddressReserve"),
        xseg_sim_calls("cuMemCreate"),
        xseg_sim_calls("cuMemMap"),
        xseg_sim_calls("cuMemSetAccess"),
        xseg_sim_calls("cuMemUnmap"),
        xseg_sim_calls("cuMemRelease"),
        xseg_sim_calls(NULL),
    };
}

static struct calls calls_since(const struct calls *before)
{
    const struct calls now = count_calls();

    return (struct calls){
        now.reserve - before->reserve, now.create - before->create, now.map - before->map,
        now.access - before->access,   now.unmap - before->unmap,   now.release - before->release,
        now.all - before->all,
    };
}

static void expect_calls(const struct calls *before, struct calls expected)
{
    struct calls actual = calls_since(before);

    /* The number of all calls is not compared. */
    actual.all = expected.all;
    assert_memory_equal(&actual, &expected, sizeof(actual));
}

/* 8 GiB / 20 MiB = 410 pages, one of which is mapped already; as in PyTorch.  Mapped memory needs no call. */
TEST_ON(growth_of_8_gib_sets_access_once, env_open("expandable_segments:True"))
{
    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    struct calls before = count_calls();
    void *block = env_alloc(allocator, 8 * GIB, NULL);
    expect_calls(&before, (struct calls){.create = 409, .map = 409, .access = 1});
    env_free(allocator, block);
    before = count_calls();
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    assert_int_equal(calls_since(&before).all, 0);
    /* 8 GiB in 410 pages leave 8 MiB free; 92 MiB more are 5 pages. */
    env_free(allocator, env_alloc(allocator, 8 * GIB + 100 * MIB, NULL));
    expect_calls(&before, (struct calls){.create = 5, .map = 5, .access = 1});
}

/* Modeled nanoseconds of a growth by 8 GiB, and its driver calls. */
static uint64_t cost_of_8_gib(const char *config, struct calls *calls)
{
    struct xseg_allocator *allocator = env_open(config);

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    env_empty_cache(allocator);
    struct calls before = count_calls();
    const uint64_t start = xseg_sim_driver_time();
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    const uint64_t cost = xseg_sim_driver_time() - start;
    *calls = calls_since(&before);
    assert_int_equal(env_reserved(allocator), 410 * PAGE);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    env_close(allocator);
    return cost;
}

/* On the default preset, a100: 8 GiB of long pages cost the driver at most a third of the time of full pages. */
TEST(automatic_pages_cost_a_third)
{
    struct calls full, automatic;
    const uint64_t full_cost = cost_of_8_gib("page_size:fixed", &full);
    const uint64_t automatic_cost = cost_of_8_gib("page_size:auto", &automatic);

    assert_int_equal(full.create, 410);     /* 8 GiB / 20 MiB, rounded up */
    assert_int_equal(automatic.create, 27); /* 25 pages of 320 MiB, one of 160 and one of 40 */
    assert_int_equal(automatic.map, 27);
    assert_int_equal(automatic.access, 1);
    assert_in_range(automatic_cost, 1, full_cost / 3);
}

/* Long pages for large growths, full pages for others, small pages near the end of the device memory of 80 GiB. */
TEST_ON(automatic_pages_shrink_towards_the_end, env_open("page_size:auto"))
{
    static const struct {
        size_t bytes;
        unsigned pages;
    } growths[] = {
        {620 * MIB, 31}, /* 31 x 20 MiB */
        {640 * MIB, 16}, /* 16 x 40 MiB */
        {58 * GIB, 187}, /* 185 x 320 MiB, 160 and 40 */
        /* Above three quarters of the memory: pages of 20 MiB. */
        {10 * GIB, 512},
        {5 * GIB, 256},
        /* Above fifteen sixteenths: pages of 20 MiB for growths of at least 320 MiB, otherwise of 2 MiB. */
        {GIB, 51},
        {100 * MIB, 50},
    };
    void *blocks[COUNT_OF(growths)];

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    env_empty_cache(allocator);
    for (size_t i = 0; i < COUNT_OF(growths); i++) {
        const struct calls before = count_calls();

        blocks[i] = env_alloc(allocator, growths[i].bytes, NULL);
        assert_int_equal(calls_since(&before).create, growths[i].pages);
    }
    env_free_all(allocator, blocks, sizeof(blocks));
    /* All cached memory can be allocated again as one block. */
    env_free(allocator, env_alloc(allocator, 79 * GIB, NULL));
}

/* Allocate blocks of one page each, and free them; with a stride each stride-th block stays allocated. */
static void fill_cache(struct xseg_allocator *allocator, void **blocks, unsigned stride)
{
    for (unsigned i = 0; i < PAGES; i++)
        blocks[i] = env_alloc(allocator, PAGE, NULL);
    for (unsigned i = 0; i < PAGES; i++)
        if (stride == 0 || i % stride != 0) {
            env_free(allocator, blocks[i]);
            blocks[i] = NULL;
        }
}

TEST_ON(empty_cache_unmaps_each_run_once, env_open("expandable_segments:True"))
{
    void *blocks[PAGES];

    fill_cache(allocator, blocks, 0);
    struct calls before = count_calls();
    env_empty_cache(allocator);
    expect_calls(&before, (struct calls){.unmap = 1, .release = PAGES});
    fill_cache(allocator, blocks, 11);
    before = count_calls();
    env_empty_cache(allocator);
    /* 307 / 11 = 28 blocks stay allocated, each at the start of a run of idle pages. */
    expect_calls(&before, (struct calls){.unmap = 28, .release = PAGES - 28});
    env_free_all(allocator, blocks, sizeof(blocks));
}

/* The driver rejects calls on several mappings; the library does not try such calls again. */
TEST_ON(empty_cache_unmaps_page_by_page_if_required,
        env_open_sim("expandable_segments:True", .single_mapping_calls = true))
{
    void *blocks[PAGES];

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    struct calls before = count_calls();
    fill_cache(allocator, blocks, 0);
    expect_calls(&before,
                 (struct calls){.create = PAGES - 1, .map = PAGES - 1, .access = PAGES - 1});
    before = count_calls();
    env_empty_cache(allocator);
    expect_calls(&before, (struct calls){.unmap = PAGES, .release = PAGES});
}

/* A linear congruential generator. */
static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void churn(struct xseg_allocator *allocator, void **blocks, size_t slots, unsigned steps,
                  uint32_t *seed)
{
    for (unsigned i = 0; i < steps; i++) {
        const size_t slot = next_random(seed) % slots,
                     max = next_random(seed) % 4 == 0 ? 60 * MIB : 100 * KIB;

        env_free(allocator, blocks[slot]);
        blocks[slot] = env_alloc(allocator, 1 + next_random(seed) % max, NULL);
    }
}

static uint64_t mapped_pages(struct xseg_allocator *allocator)
{
    const struct xseg_statistics stats = env_stats(allocator);

    return stats.reserved_bytes[XSEG_STAT_SMALL].current / (2 * MIB) +
           stats.reserved_bytes[XSEG_STAT_LARGE].current / PAGE;
}

TEST_ON(page_is_created_once, env_open("expandable_segments:True"))
{
    void *blocks[200] = {NULL};
    uint32_t seed = 1;

    env_free(allocator, env_alloc(allocator, 512, NULL));
    env_empty_cache(allocator);
    struct calls before = count_calls();
    const uint64_t growths = env_stats(allocator).num_device_alloc;
    const uint64_t releases = env_stats(allocator).num_device_free;
    churn(allocator, blocks, COUNT_OF(blocks), 20000, &seed);
    struct calls calls = calls_since(&before);
    assert_int_equal(calls.create, mapped_pages(allocator));
    assert_int_equal(calls.map, calls.create);
    assert_int_equal(calls.access, env_stats(allocator).num_device_alloc - growths);
    assert_int_equal(calls.unmap, 0);
    assert_int_equal(calls.release, 0);
    assert_int_equal(calls.reserve, 1); /* for large blocks; the segment for small blocks exists */
    /* One release for each page that is no longer mapped. */
    env_empty_cache(allocator);
    calls = calls_since(&before);
    assert_int_equal(calls.create - calls.release, mapped_pages(allocator));
    assert_int_equal(calls.unmap, env_stats(allocator).num_device_free - releases);
    env_free_all(allocator, blocks, sizeof(blocks));
}

TEST_ON(hit_makes_no_driver_call, env_open("expandable_segments:True"))
{
    void *blocks[200] = {NULL};
    uint32_t first_seed = 7, second_seed = 7;

    churn(allocator, blocks, COUNT_OF(blocks), 5000, &first_seed);
    env_free_all(allocator, blocks, sizeof(blocks));
    memset(blocks, 0, sizeof(blocks));
    const struct calls before = count_calls();
    churn(allocator, blocks, COUNT_OF(blocks), 5000, &second_seed);
    env_free_all(allocator, blocks, sizeof(blocks));
    assert_int_equal(calls_since(&before).all, 0);
}

/* Allocate and free, and expect one query for each stream with pending blocks. */
static void expect_queries(struct xseg_allocator *allocator, size_t bytes, uint64_t streams)
{
    const uint64_t queries = xseg_sim_calls("cuEventQuery");

    env_free(allocator, env_alloc(allocator, bytes, NULL));
    assert_int_equal(xseg_sim_calls("cuEventQuery") - queries, streams);
}

/* As in PyTorch, on hits and misses; the capture mode of the thread is changed once for all queries. */
TEST_EACH(poll_queries_each_stream_once, env_open(config), ENV_KINDS)
{
    const xseg_stream streams[2] = {env_stream(), env_stream()};

    for (size_t k = 0; k < COUNT_OF(streams); k++) {
        void *pending = env_alloc(allocator, 2 * MIB, NULL);
        env_free_in_use(allocator, pending, streams[k]);
        expect_queries(allocator, 3000, k + 1);
        expect_queries(allocator, (k + 1) * 100 * MIB, k + 1);
        const uint64_t modes = xseg_sim_calls("cuThreadExchangeStreamCaptureMode");
        expect_queries(allocator, 3000, k + 1);
        expect_queries(allocator, 100 * MIB, k + 1);
        /* Each of two polls sets the mode and restores it. */
        assert_int_equal(xseg_sim_calls("cuThreadExchangeStreamCaptureMode") - modes, 4);
    }
    xseg_sim_finish_all();
}
