/* SPDX-License-Identifier: MIT */
/* Idle pages that are kept for the next growth, and what of their contents the next one sees. */
#include <string.h>

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

#define MS UINT64_C(1000000)

static struct xseg_allocator *open_mib(size_t mib, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = mib * MIB};

    return env_open_with_clock(&settings, config);
}

static void expect(struct xseg_allocator *allocator, uint64_t reserved_mib, uint64_t idle_mib)
{
    const struct xseg_statistics stats = env_stats(allocator);

    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, reserved_mib * MIB);
    assert_int_equal(stats.idle_page_bytes, idle_mib * MIB);
    assert_int_equal(stats.physical_bytes, (reserved_mib + idle_mib) * MIB);
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
}

static void pass(struct xseg_allocator *allocator, unsigned milliseconds)
{
    for (unsigned i = 0; i < milliseconds; i += 10) {
        xseg_sim_advance(10 * MS);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
}

/* So many bytes become idle, and decay takes them. */
static void let_go(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream)
{
    env_free(allocator, env_alloc(allocator, bytes, stream));
    pass(allocator, 300);
}

/* --- The cache. --- */

TEST(without_the_key_nothing_is_kept)
{
    struct xseg_allocator *allocator = open_mib(4096, "idle_ms:100");

    let_go(allocator, 200 * MIB, NULL);
    expect(allocator, 0, 0);
    env_close(allocator);
}

TEST(pages_are_kept_up_to_a_bound_and_used_first)
{
    struct xseg_allocator *allocator = open_mib(4096, "idle_ms:100,page_cache_mb:100");
    const xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool(allocator);
    void *ptr = NULL;

    let_go(allocator, 200 * MIB, NULL);
    expect(allocator, 0, 100);
    const uint64_t created = xseg_sim_calls("cuMemCreate"),
                   released = xseg_sim_calls("cuMemRelease");
    /* Another stream's, and another pool's. */
    void *of_stream = env_alloc(allocator, 60 * MIB, stream);
    ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect(allocator, 100, 0);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), released);
    env_free(allocator, of_stream, ptr);
    pass(allocator, 300);
    /* The pool is held, so what it has stays there. */
    expect(allocator, 40, 60);
    assert_ok(xseg_pool_release(pool));
    pass(allocator, 300);
    expect(allocator, 0, 100);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), released);
    env_close(allocator, stream);
}

TEST(emptying_the_cache_empties_it)
{
    struct xseg_allocator *allocator = open_mib(4096, "idle_ms:100,page_cache_mb:100");
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options how = {sizeof(how)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    const xseg_stream stream = env_stream();

    let_go(allocator, 100 * MIB, NULL);
    /* A trim of one stream leaves the page cache alone. */
    where.device = 0;
    where.one_stream = true;
    where.stream = stream;
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    expect(allocator, 0, 100);
    /* "Shrink to N" takes from it first. */
    env_free(allocator, env_alloc(allocator, 60 * MIB, stream));
    let_go(allocator, 10 * MIB, NULL);
    expect(allocator, 0, 100);
    env_free(allocator, env_alloc(allocator, 60 * MIB, stream));
    how.target_bytes = 80 * MIB;
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    assert_int_equal(done.released, 20 * MIB);
    assert_int_equal(done.kept_by_options, 80 * MIB);
    assert_int_equal(done.remaining, 80 * MIB);
    expect(allocator, 60, 20);
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.released, 80 * MIB);
    expect(allocator, 0, 0);
    env_close(allocator, stream);
}

TEST(a_trim_by_age_takes_old_pages_of_it)
{
    struct xseg_allocator *allocator = open_mib(4096, "idle_ms:0,page_cache_mb:400");
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options how = {sizeof(how)};
    void *ptr[2] = {env_alloc(allocator, 100 * MIB, NULL), env_alloc(allocator, 60 * MIB, NULL)};

    for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
        env_free(allocator, ptr[i]);
        pass(allocator, 1000);
    }
    expect(allocator, 0, 160);
    how.idle_ms = 1500;
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    assert_int_equal(done.released, 100 * MIB);
    assert_int_equal(done.kept_by_options, 60 * MIB);
    expect(allocator, 0, 60);
    env_close(allocator);
}

/* What a limit wants back comes from the cache first, and is not kept there. */
TEST(limits_count_what_is_kept)
{
    struct xseg_allocator *allocator = open_mib(4096, "idle_ms:100,page_cache_mb:200");
    void *ptr, *more = NULL;

    ptr = env_alloc(allocator, 100 * MIB, NULL);
    let_go(allocator, 200 * MIB, NULL);
    expect(allocator, 100, 200);
    assert_ok(xseg_config_set(allocator, "soft_limit_mb:180"));
    pass(allocator, 10);
    expect(allocator, 100, 80);
    /* A growth out of the cache takes nothing more of the device. */
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:180"));
    more = env_alloc(allocator, 80 * MIB, NULL);
    expect(allocator, 180, 0);
    env_free(allocator, more, ptr);
    pass(allocator, 300);
    expect(allocator, 0, 180);
    assert_ok(xseg_config_set(allocator, "page_cache_mb:40"));
    expect(allocator, 0, 40);
    env_close(allocator);
}

/* Pages of a size that nobody asks for make room for those of another one. */
TEST(kept_pages_are_in_nobodys_way)
{
    static const char *const config[] = {"idle_ms:100,page_cache_mb:200,hard_limit_mb:200",
                                         "idle_ms:100,page_cache_mb:200"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = open_mib(i == 0 ? 4096 : 200, config[i]);
        void *small[180];

        let_go(allocator, 200 * MIB, NULL);
        expect(allocator, 0, 200);
        for (unsigned at = 0; at < COUNT_OF(small); at++)
            small[at] = env_alloc(allocator, MIB, NULL);
        assert_int_equal(env_reserved(allocator), 180 * MIB);
        assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
        assert_true(xseg_sim_peak(0) <= 200 * MIB);
        for (unsigned at = 0; at < COUNT_OF(small); at++)
            env_free(allocator, small[at]);
        assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
        env_free(allocator, env_alloc(allocator, 150 * MIB, NULL));
        env_close(allocator);
    }
}

TEST(unmapped_blocks_are_recycled)
{
    struct xseg_allocator *allocator = open_mib(4096, "unmap_on_free:True,page_cache_mb:10");

    env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    expect(allocator, 0, 4);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    for (unsigned i = 0; i < 10; i++)
        env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    expect(allocator, 0, 10);
    env_close(allocator);
}

/* --- Contents of pages. --- */

static struct xseg_allocator *open_real(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB,
                                         .real_bytes = true};

    return env_open_with_clock(&settings, config);
}

/* Write a secret into a block and let its pages go. */
static void leave_secrets(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes)
{
    void *ptr = env_alloc_in(allocator, pool, bytes, NULL);

    memset(ptr, 0x5e, bytes);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    pass(allocator, 300);
}

static size_t count_secrets(const void *ptr, size_t bytes)
{
    const unsigned char *byte = ptr;
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += byte[i] == 0x5e;
    return count;
}

/* A pool that comes back without its own contents does not come back with those of another one. */
TEST(a_resume_takes_no_pages_of_others)
{
    struct xseg_allocator *allocator = open_real("idle_ms:100,page_cache_mb:100");
    struct xseg_pool *pool = env_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 40 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    leave_secrets(allocator, env_pool(allocator), 40 * MIB);
    assert_int_equal(env_stats(allocator).idle_page_bytes, 40 * MIB);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(count_secrets(ptr, 40 * MIB), 0);
    expect(allocator, 40, 40);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}
