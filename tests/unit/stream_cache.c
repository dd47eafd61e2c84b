/* SPDX-License-Identifier: MIT */
/* The stream lookup cache: which requests fill it, what invalidates them, and forked children. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/alloc/alloc.h"
#include "tests/support/allocator.h"
#include "tests/support/child.h"

#define BYTES 3000u

static bool is_cached(xseg_stream stream)
{
    return xseg_stream_cache_find(&allocator->stream_cache, 0, stream) != NULL;
}

/* The first request allocates memory from the driver; the second is a hit, which caches the lookup of the stream. */
static void warm(xseg_stream stream)
{
    for (unsigned i = 0; i < 2; i++)
        env_free(allocator, env_alloc(allocator, BYTES, stream));
}

ALLOCATOR_TEST(first_hit_fills_the_cache)
{
    assert_false(is_cached(NULL));
    env_free(allocator, env_alloc(allocator, BYTES, NULL));
    assert_false(is_cached(NULL));
    env_free(allocator, env_alloc(allocator, BYTES, NULL));
    assert_true(is_cached(NULL));
    assert_null(xseg_stream_cache_find(&allocator->stream_cache, 1, NULL));
    /* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, for which the driver is queried. */
    warm((xseg_stream)1);
    warm((xseg_stream)2);
    assert_false(is_cached((xseg_stream)1));
    assert_false(is_cached((xseg_stream)2));
}

TEST(slow_path_requests_do_not_fill_the_cache)
{
    static const char *const config[] = {"roundup_power2_divisions:4", "idle_ms:1000",
                                         "unmap_on_free:True"};

    for (size_t i = 0; i < COUNT_OF(config); i++) {
        allocator = env_open(config[i]);

        warm(NULL);
        assert_false(is_cached(NULL));
        env_close(allocator);
    }
}

/* Expect that the lookups of the default stream and of another one are cached after hits. */
static void expect_cached(xseg_stream stream)
{
    warm(NULL);
    warm(stream);
    assert_true(is_cached(NULL) && is_cached(stream));
}

static void count_trace(void *context, const struct xseg_trace_entry *entry)
{
    (void)entry;
    ++*(unsigned *)context;
}

ALLOCATOR_TEST(changes_of_lookup_results_invalidate_the_cache)
{
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    unsigned traced = 0;

    expect_cached(stream);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    warm(NULL);
    assert_false(is_cached(NULL) || is_cached(stream));
    assert_ok(xseg_route_end(pool));
    expect_cached(stream);

    env_capture_begin(pool, stream);
    warm(NULL);
    assert_false(is_cached(NULL) || is_cached(stream));
    env_graph_destroy(env_capture_end_graph(pool, stream));
    expect_cached(stream);

    assert_ok(xseg_config_set(allocator, "max_split_size_mb:30"));
    assert_false(is_cached(NULL) || is_cached(stream));
    expect_cached(stream);

    const uint64_t id = env_observe(allocator, .context = &traced, .on_trace = count_trace);
    warm(NULL);
    assert_false(is_cached(NULL));
    assert_true(traced > 0);
    assert_ok(xseg_observer_remove(allocator, id));
    warm(NULL);
    warm(stream);

    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_false(is_cached(stream));
    assert_true(is_cached(NULL));
    env_stream_destroy(stream);
    assert_ok(xseg_pool_release(pool));
}

/* The default streams of all devices have one handle. */
TEST(each_device_has_its_own_cache)
{
    allocator = env_open_sim("expandable_segments:True", .devices = 4);
    for (unsigned i = 0; i < 8; i++) {
        void *ptr = NULL;

        assert_ok(xseg_alloc(allocator, (int)i % 4, BYTES, NULL, &ptr));
        assert_ok(xseg_free(allocator, ptr));
    }
    for (int i = 0; i < 4; i++)
        assert_non_null(xseg_stream_cache_find(&allocator->stream_cache, i, NULL));
    env_close(allocator);
}

/* More streams than entries: some share an entry. */
TEST(streams_may_share_a_cache_entry)
{
    enum { STREAMS = 700 };
    static xseg_stream stream[STREAMS];
    unsigned cached = 0;

    allocator = env_open_sim("expandable_segments:True", .memory_bytes = 2 * GIB);
    for (unsigned i = 0; i < STREAMS; i++)
        stream[i] = env_stream();
    for (unsigned round = 0; round < 2; round++) {
        cached = 0;
        for (unsigned i = 0; i < STREAMS; i++) {
            warm(stream[i]);
            cached += is_cached(stream[i]);
        }
        assert_true(cached > 100 && cached <= XSEG_STREAM_CACHE_ENTRIES);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        assert_ok(xseg_stream_retire(allocator, 0, stream[i]));
        assert_false(is_cached(stream[i]));
        env_stream_destroy(stream[i]);
    }
    env_close(allocator);
}

/* --- Forked children. --- */

static bool calls_of_child_fail(void *block)
{
    void *ptr = NULL;

    return xseg_alloc(allocator, 0, BYTES, NULL, &ptr) == XSEG_ERR_FORKED && ptr == NULL &&
           xseg_free(allocator, block) == XSEG_ERR_FORKED &&
           xseg_close(allocator) == XSEG_ERR_FORKED;
}

static void expect_child(bool (*part)(void *block), void *block)
{
    const pid_t child = fork();

    if (child == 0)
        _exit(part(block) ? 0 : 1);
    child_expect_success(child);
}

static bool child_finds_nothing(void *block)
{
    return !is_cached(NULL) &&
           xseg_page_map_find(&allocator->page_map, (uint64_t)(uintptr_t)block) == NULL &&
           calls_of_child_fail(block);
}

ALLOCATOR_TEST(forked_child_finds_an_empty_cache)
{
    warm(NULL);
    void *block = env_alloc(allocator, BYTES, NULL);
    assert_true(is_cached(NULL));
    expect_child(child_finds_nothing, block);
    assert_true(is_cached(NULL));
    env_free(allocator, block);
}

/* As on a kernel without MADV_WIPEONFORK: the entry points query the process ID. */
ALLOCATOR_TEST(cache_is_disabled_without_wipe_on_fork)
{
    allocator->stream_cache.is_wiped_on_fork = false;
    allocator->fast_frees_are_wiped = false;
    xseg_fork_guard_fini(&allocator->fork);
    assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
    warm(NULL);
    assert_false(is_cached(NULL));
    void *block = env_alloc(allocator, BYTES, NULL);
    expect_child(calls_of_child_fail, block);
    env_free(allocator, block);
}
