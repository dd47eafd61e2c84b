/* SPDX-License-Identifier: MIT */
/* Driver calls: a workload makes the minimum. */
#include <string.h>

#include "tests/support/env.h"

#define PAGES 307u
#define PAGE  (20 * MIB)

/* Counts of the calls that create, map, unmap and release memory. */
struct calls {
    uint64_t reserve, create, map, access, unmap, release, all;
};

static struct calls count(void)
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

static struct calls since(const struct calls *before)
{
    const struct calls now = count();

    return (struct calls){
        now.reserve - before->reserve, now.create - before->create, now.map - before->map,
        now.access - before->access,   now.unmap - before->unmap,   now.release - before->release,
        now.all - before->all,
    };
}

static void expect(const struct calls *before, struct calls expected)
{
    struct calls actual = since(before);

    /* The sum is not compared. */
    actual.all = expected.all;
    assert_memory_equal(&actual, &expected, sizeof(actual));
}

/* 8 GiB / 20 MiB = 410 pages, one of which is mapped already; as in PyTorch.  Mapped memory needs no call. */
TEST_ON(growth_of_8_gib_sets_access_once, env_open("expandable_segments:True"))
{
    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    struct calls before = count();
    void *block = env_alloc(allocator, 8 * GIB, NULL);
    expect(&before, (struct calls){.create = 409, .map = 409, .access = 1});
    env_free(allocator, block);
    before = count();
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    assert_int_equal(since(&before).all, 0);
    /* 8 GiB in 410 pages leave 8 MiB free; 92 MiB more are 5 pages. */
    env_free(allocator, env_alloc(allocator, 8 * GIB + 100 * MIB, NULL));
    expect(&before, (struct calls){.create = 5, .map = 5, .access = 1});
}

/* Modelled nanoseconds of a growth by 8 GiB, and its pages. */
static uint64_t cost_of_8_gib(const char *config, struct calls *made)
{
    struct xseg_allocator *allocator = env_open(config);

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    env_empty_cache(allocator);
    struct calls before = count();
    const uint64_t began = xseg_sim_driver_time();
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    const uint64_t cost = xseg_sim_driver_time() - began;
    *made = since(&before);
    assert_int_equal(env_reserved(allocator), 8200 * MIB);
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
    assert_int_equal(automatic.create, 27); /* 25 of 320 MiB, 160, 40 */
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
        {620 * MIB, 31}, /* of 20 MiB */
        {640 * MIB, 16}, /* of 40 MiB */
        {58 * GIB, 187}, /* most of 320 MiB */
        /* Above three quarters of the memory: of 20 MiB. */
        {10 * GIB, 512},
        {5 * GIB, 256},
        /* Above fifteen sixteenths: of 2 MiB, unless those would be too many. */
        {GIB, 51},
        {100 * MIB, 50},
    };
    void *blocks[COUNT_OF(growths)];

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    env_empty_cache(allocator);
    for (size_t i = 0; i < COUNT_OF(growths); i++) {
        const struct calls before = count();

        blocks[i] = env_alloc(allocator, growths[i].bytes, NULL);
        assert_int_equal(since(&before).create, growths[i].pages);
    }
    env_free_all(allocator, blocks, sizeof(blocks));
    /* All of it can be allocated again as one block. */
    env_free(allocator, env_alloc(allocator, 79 * GIB, NULL));
}

/* Idle blocks of one page each; every n-th block stays allocated. */
static void fill(struct xseg_allocator *allocator, void **blocks, unsigned live_every)
{
    for (unsigned i = 0; i < PAGES; i++)
        blocks[i] = env_alloc(allocator, PAGE, NULL);
    for (unsigned i = 0; i < PAGES; i++)
        if (live_every == 0 || i % live_every != 0) {
            env_free(allocator, blocks[i]);
            blocks[i] = NULL;
        }
}

TEST_ON(empty_cache_unmaps_each_run_once, env_open("expandable_segments:True"))
{
    void *blocks[PAGES];

    fill(allocator, blocks, 0);
    struct calls before = count();
    env_empty_cache(allocator);
    expect(&before, (struct calls){.unmap = 1, .release = PAGES});
    fill(allocator, blocks, 11);
    before = count();
    env_empty_cache(allocator);
    expect(&before, (struct calls){.unmap = 28, .release = PAGES - 28});
    env_free_all(allocator, blocks, sizeof(blocks));
}

/* The driver rejects calls on several mappings, which are not retried for each run. */
TEST_ON(empty_cache_unmaps_page_by_page_if_required,
        env_open_sim("expandable_segments:True", .single_mapping_calls = true))
{
    void *blocks[PAGES];

    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    struct calls before = count();
    fill(allocator, blocks, 0);
    expect(&before, (struct calls){.create = PAGES - 1, .map = PAGES - 1, .access = PAGES - 1});
    before = count();
    env_empty_cache(allocator);
    expect(&before, (struct calls){.unmap = PAGES, .release = PAGES});
}

/* A small generator, the same each time. */
static uint32_t draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void churn(struct xseg_allocator *allocator, void **blocks, size_t slots, unsigned steps,
                  uint32_t *seed)
{
    for (unsigned i = 0; i < steps; i++) {
        const size_t slot = draw(seed) % slots, max = draw(seed) % 4 == 0 ? 60 * MIB : 100 * KIB;

        env_free(allocator, blocks[slot]);
        blocks[slot] = env_alloc(allocator, 1 + draw(seed) % max, NULL);
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
    struct calls before = count();
    const uint64_t growths = env_stats(allocator).num_device_alloc;
    const uint64_t shrinks = env_stats(allocator).num_device_free;
    churn(allocator, blocks, COUNT_OF(blocks), 20000, &seed);
    struct calls made = since(&before);
    assert_int_equal(made.create, mapped_pages(allocator));
    assert_int_equal(made.map, made.create);
    assert_int_equal(made.access, env_stats(allocator).num_device_alloc - growths);
    assert_int_equal(made.unmap, 0);
    assert_int_equal(made.release, 0);
    assert_int_equal(made.reserve, 1); /* of large blocks; the segment of small blocks exists */
    /* One release for each page that is no longer mapped. */
    env_empty_cache(allocator);
    made = since(&before);
    assert_int_equal(made.create - made.release, mapped_pages(allocator));
    assert_int_equal(made.unmap, env_stats(allocator).num_device_free - shrinks);
    env_free_all(allocator, blocks, sizeof(blocks));
}

TEST_ON(hit_makes_no_driver_call, env_open("expandable_segments:True"))
{
    void *blocks[200] = {NULL};
    uint32_t first = 7, again = 7;

    churn(allocator, blocks, COUNT_OF(blocks), 5000, &first);
    env_free_all(allocator, blocks, sizeof(blocks));
    memset(blocks, 0, sizeof(blocks));
    const struct calls before = count();
    churn(allocator, blocks, COUNT_OF(blocks), 5000, &again);
    env_free_all(allocator, blocks, sizeof(blocks));
    assert_int_equal(since(&before).all, 0);
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
    const xseg_stream user[2] = {env_stream(), env_stream()};

    for (size_t n = 0; n < COUNT_OF(user); n++) {
        void *pending = env_alloc(allocator, 2 * MIB, NULL);
        env_free_in_use(allocator, pending, user[n]);
        expect_queries(allocator, 3000, n + 1);
        expect_queries(allocator, (n + 1) * 100 * MIB, n + 1);
        const uint64_t modes = xseg_sim_calls("cuThreadExchangeStreamCaptureMode");
        expect_queries(allocator, 3000, n + 1);
        expect_queries(allocator, 100 * MIB, n + 1);
        assert_int_equal(xseg_sim_calls("cuThreadExchangeStreamCaptureMode") - modes, 4);
    }
    xseg_sim_finish_all();
}
