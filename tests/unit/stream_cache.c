/* SPDX-License-Identifier: MIT */
/* The stream lookup cache: which requests fill it, what invalidates them, and forked children. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/alloc/alloc.h"
#include "tests/support/env.h"

#define BYTES 3000u

static bool has(struct xseg_allocator *allocator, xseg_stream stream)
{
    return xseg_stream_cache_find(&allocator->stream_cache, 0, stream) != NULL;
}

/* The first request grows, the second is a hit, which caches the lookup of the stream. */
static void warm(struct xseg_allocator *allocator, xseg_stream stream)
{
    for (unsigned i = 0; i < 2; i++)
        env_free(allocator, env_alloc(allocator, BYTES, stream));
}

TEST(first_hit_fills_the_cache)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");

    assert_false(has(allocator, NULL));
    env_free(allocator, env_alloc(allocator, BYTES, NULL));
    assert_false(has(allocator, NULL));
    env_free(allocator, env_alloc(allocator, BYTES, NULL));
    assert_true(has(allocator, NULL));
    assert_null(xseg_stream_cache_find(&allocator->stream_cache, 1, NULL));
    /* Handles for which the driver is queried. */
    warm(allocator, (xseg_stream)1);
    warm(allocator, (xseg_stream)2);
    assert_false(has(allocator, (xseg_stream)1));
    assert_false(has(allocator, (xseg_stream)2));
    env_close(allocator);
}

TEST(slow_path_requests_do_not_fill_the_cache)
{
    static const char *const config[] = {"roundup_power2_divisions:4", "idle_ms:1000",
                                         "unmap_on_free:True"};

    for (size_t i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open(config[i]);

        warm(allocator, NULL);
        assert_false(has(allocator, NULL));
        env_close(allocator);
    }
}

static void trace(void *context, const struct xseg_trace_entry *entry)
{
    (void)entry;
    ++*(unsigned *)context;
}

TEST(changes_of_lookup_results_invalidate_the_cache)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_observer observer = {sizeof(observer)};
    const xseg_stream stream = env_stream();
    unsigned traced = 0;
    uint64_t id = 0;

    observer.context = &traced;
    observer.on_trace = trace;
    warm(allocator, NULL);
    warm(allocator, stream);
    assert_true(has(allocator, NULL) && has(allocator, stream));

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    warm(allocator, NULL);
    assert_false(has(allocator, NULL) || has(allocator, stream));
    assert_ok(xseg_route_end(pool));
    warm(allocator, NULL);
    warm(allocator, stream);
    assert_true(has(allocator, NULL) && has(allocator, stream));

    env_capture_begin(pool, stream);
    warm(allocator, NULL);
    assert_false(has(allocator, NULL) || has(allocator, stream));
    env_graph_destroy(env_capture_end_graph(pool, stream));
    warm(allocator, NULL);
    warm(allocator, stream);
    assert_true(has(allocator, NULL) && has(allocator, stream));

    assert_ok(xseg_config_set(allocator, "max_split_size_mb:30"));
    assert_false(has(allocator, NULL) || has(allocator, stream));
    warm(allocator, NULL);
    warm(allocator, stream);
    assert_true(has(allocator, NULL) && has(allocator, stream));

    assert_ok(xseg_observer_add(allocator, &observer, &id));
    warm(allocator, NULL);
    assert_false(has(allocator, NULL));
    assert_true(traced > 0);
    assert_ok(xseg_observer_remove(allocator, id));
    warm(allocator, NULL);
    warm(allocator, stream);

    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_false(has(allocator, stream));
    assert_true(has(allocator, NULL));
    env_stream_destroy(stream);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* The default streams of all devices have one handle. */
TEST(each_device_has_its_own_cache)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;

    settings.devices = 4;
    allocator = env_open_on(&settings, "expandable_segments:True");
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
    enum { MANY = 700 };
    static xseg_stream stream[MANY];
    struct xseg_sim_settings settings = {sizeof(settings)};
    unsigned with = 0;

    settings.memory_bytes = 2 * GIB;
    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
    for (unsigned i = 0; i < MANY; i++)
        stream[i] = env_stream();
    for (unsigned round = 0; round < 2; round++) {
        with = 0;
        for (unsigned i = 0; i < MANY; i++) {
            warm(allocator, stream[i]);
            with += has(allocator, stream[i]);
        }
        assert_true(with > 100 && with <= XSEG_STREAM_CACHE_ENTRIES);
    }
    for (unsigned i = 0; i < MANY; i++) {
        assert_ok(xseg_stream_retire(allocator, 0, stream[i]));
        assert_false(has(allocator, stream[i]));
        env_stream_destroy(stream[i]);
    }
    env_close(allocator);
}

/* --- In a child. --- */

static bool child_is_refused(struct xseg_allocator *allocator, void *live)
{
    void *ptr = NULL;

    return xseg_alloc(allocator, 0, BYTES, NULL, &ptr) == XSEG_ERR_FORKED && ptr == NULL &&
           xseg_free(allocator, live) == XSEG_ERR_FORKED &&
           xseg_close(allocator) == XSEG_ERR_FORKED;
}

static void expect_child(bool (*question)(struct xseg_allocator *allocator, void *live),
                         struct xseg_allocator *allocator, void *live)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0)
        _exit(question(allocator, live) ? 0 : 1);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool child_finds_nothing(struct xseg_allocator *allocator, void *live)
{
    return !has(allocator, NULL) &&
           xseg_page_map_find(&allocator->page_map, (uint64_t)(uintptr_t)live) == NULL &&
           child_is_refused(allocator, live);
}

TEST(forked_child_finds_an_empty_cache)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");

    warm(allocator, NULL);
    void *live = env_alloc(allocator, BYTES, NULL);
    assert_true(has(allocator, NULL));
    expect_child(child_finds_nothing, allocator, live);
    assert_true(has(allocator, NULL));
    env_free(allocator, live);
    env_close(allocator);
}

/* As on a kernel without MADV_WIPEONFORK: the entry points query the process ID. */
TEST(cache_is_disabled_without_wipe_on_fork)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");

    allocator->stream_cache.is_wiped_on_fork = false;
    allocator->fast_frees_are_wiped = false;
    xseg_fork_guard_fini(&allocator->fork);
    assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
    warm(allocator, NULL);
    assert_false(has(allocator, NULL));
    void *live = env_alloc(allocator, BYTES, NULL);
    expect_child(child_is_refused, allocator, live);
    env_free(allocator, live);
    env_close(allocator);
}
