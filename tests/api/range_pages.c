/* SPDX-License-Identifier: MIT */
/* Where ranges get their pages: from what was made ahead or is idle, within what was promised; all or nothing; and which
 * pools can have ranges. */
#include <pthread.h>
#include <string.h>

#include "tests/support/ranges.h"
#include "xseg/observer.h"
#include "xseg/range.h"

#define GRANULES 16u

static struct xseg_range *reserve(struct xseg_allocator *allocator)
{
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, GRANULES * PAGE, NULL, &range));
    return range;
}

/* A commit of which the second part gets no memory leaves none beneath the first. */
TEST(all_or_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator);

    commit(range, 1, 1, NULL);
    env_launch_at(NULL, (char *)info(range).base + PAGE, PAGE);
    decommit(range, 1, 1, NULL);
    assert_ok(xseg_sim_fail("cuMemCreate", 2, 999));
    env_expect_error(xseg_range_commit(range, 0, 3 * PAGE, NULL), XSEG_ERR_DRIVER, "999");
    assert_int_equal(info(range).mapped_bytes, PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, PAGE);
    commit(range, 0, 3, NULL);
    assert_int_equal(info(range).recommits, 1);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    decommit(range, 0, 3, NULL);
    release(range);
    env_close(allocator);
}

/* Idle pages of one pool serve a range of another. */
TEST(idle_pages_are_everybodys)
{
    struct xseg_allocator *allocator = env_open("page_cache_mb:1024");
    struct xseg_range *range = reserve(allocator), *other = reserve(allocator);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(other, 8, 4, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    decommit(other, 8, 4, NULL);
    release(range);
    release(other);
    env_close(allocator);
}

static bool count_shortage(void *context, const struct xseg_oom_info *shortage)
{
    (void)shortage;
    ++*(unsigned *)context;
    return false;
}

/* At a limit, pages that were made ahead serve the range, and count as what it was promised: nobody is asked for memory. */
TEST(pages_made_ahead_at_a_limit)
{
    struct xseg_allocator *allocator = env_open("hard_limit_mb:32");
    struct xseg_range *range = reserve(allocator), *other = reserve(allocator);
    struct xseg_observer observer = {sizeof(observer), .on_low_memory = count_shortage};
    unsigned shortages = 0;
    uint64_t id = 0;

    observer.context = &shortages;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    assert_ok(xseg_range_set_quota(range, 8 * PAGE));
    commit(other, 0, 8, NULL);
    assert_ok(xseg_range_prepare(range, 8 * PAGE));
    assert_int_equal(xseg_sim_used(0), 16 * PAGE);
    env_expect_error(xseg_range_prepare(other, PAGE), XSEG_ERR_LIMIT, "");
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(range, 0, 8, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(shortages, 0);
    assert_ok(xseg_observer_remove(allocator, id));
    decommit(range, 0, 8, NULL);
    decommit(other, 0, 8, NULL);
    release(range);
    release(other);
    env_close(allocator);
}

/* What an observer gets while it is told that memory came. */
struct greedy {
    struct xseg_range *range;
    xseg_status status[2]; /* at the limit of the range, and below it */
    uint64_t committed;
    bool is_called;
};

static void want_more(void *context, const struct xseg_mapping *mapping)
{
    struct greedy *greedy = context;

    (void)mapping;
    if (greedy->is_called)
        return;
    greedy->is_called = true;
    greedy->committed = info(greedy->range).physical_bytes;
    greedy->status[0] = xseg_range_commit(greedy->range, 8 * PAGE, 2 * PAGE, NULL);
    greedy->status[1] = xseg_range_commit(greedy->range, 8 * PAGE, PAGE, NULL);
}

/* Memory that observers are told of counts already: what they commit meanwhile stays within the limits. */
TEST(limits_hold_while_observers_are_told)
{
    static const char *const config[] = {"hard_limit_mb:1024", "hard_limit_mb:8"};
    static const uint64_t limit[] = {4 * PAGE, 0};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open(config[i]);
        struct xseg_range_options options = {sizeof(options)};
        struct xseg_observer observer = {sizeof(observer)};
        struct greedy greedy = {0};
        uint64_t id = 0;

        options.limit_bytes = limit[i];
        assert_ok(xseg_range_reserve(allocator, 0, GRANULES * PAGE, &options, &greedy.range));
        observer.context = &greedy;
        observer.on_map = want_more;
        assert_ok(xseg_observer_add(allocator, &observer, &id));
        commit(greedy.range, 0, 3, NULL);
        assert_int_equal(greedy.committed, 3 * PAGE);
        assert_int_equal(greedy.status[0], XSEG_ERR_LIMIT);
        assert_ok(greedy.status[1]);
        assert_int_equal(xseg_sim_used(0), 4 * PAGE);
        assert_ok(xseg_observer_remove(allocator, id));
        decommit(greedy.range, 0, 3, NULL);
        decommit(greedy.range, 8, 1, NULL);
        release(greedy.range);
        env_close(allocator);
    }
}

static void *give_none(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)bytes, (void)device, (void)stream;
    return NULL;
}

static void take_none(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)ptr, (void)bytes, (void)device, (void)stream;
}

/* A pool of another device, or one that gets its memory elsewhere, has no range; what the pool says is not said twice. */
TEST(pools_that_have_none)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_pool_options own = {sizeof(own)};
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL, *strange = NULL;
    struct xseg_range *range = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    own.memory.alloc = give_none;
    own.memory.free = take_none;
    assert_ok(xseg_pool_create(allocator, 1, NULL, &pool));
    assert_ok(xseg_pool_create(allocator, 1, &own, &strange));
    options.pool = pool;
    env_expect_error(xseg_range_reserve(allocator, 0, PAGE, &options, &range), XSEG_ERR_ARGUMENT,
                     "use a pool of device 0");
    options.name = "cache";
    env_expect_error(xseg_range_reserve(allocator, 1, PAGE, &options, &range), XSEG_ERR_ARGUMENT,
                     "name is set together with pool");
    options.name = NULL;
    options.exportable = true;
    env_expect_error(xseg_range_reserve(allocator, 1, PAGE, &options, &range), XSEG_ERR_ARGUMENT,
                     "exportable is set together with pool");
    options.exportable = false;
    options.rdma = true;
    env_expect_error(xseg_range_reserve(allocator, 1, PAGE, &options, &range), XSEG_ERR_ARGUMENT,
                     "rdma is set together with pool");
    options.rdma = false;
    options.pool = strange;
    env_expect_error(xseg_range_reserve(allocator, 1, PAGE, &options, &range), XSEG_ERR_ARGUMENT,
                     "memory functions");
    assert_ok(xseg_pool_release(strange));
    options.pool = pool;
    assert_ok(xseg_range_reserve(allocator, 1, PAGE, &options, &range));
    assert_ptr_equal(info(range).pool, pool);
    assert_int_equal(info(range).device, 1);
    /* The range holds it. */
    assert_ok(xseg_pool_release(pool));
    commit(range, 0, 1, NULL);
    decommit(range, 0, 1, NULL);
    release(range);
    env_close(allocator);
}

static void *release_range(void *context)
{
    struct xseg_range **range = context;

    assert_ok(xseg_range_release(*range));
    *range = NULL;
    return NULL;
}

/* Releases a range in another thread when a line says that no snapshot could be written. */
static void release_when_short(void *context, enum xseg_log_level level, const char *line)
{
    struct xseg_range **range = context;
    pthread_t thread;

    if (level == XSEG_LOG_INFO || strstr(line, "snapshot") == NULL || *range == NULL)
        return;
    assert_int_equal(pthread_create(&thread, NULL, release_range, range), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void count_refusal(void *context, const struct xseg_oom_info *shortage)
{
    unsigned *count = context;

    (void)shortage;
    ++*count;
}

/* The pool of a range exists until the report of a refused commit is complete. */
TEST(a_range_is_released_while_a_refusal_is_reported)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 4 * PAGE};
    struct xseg_options options = {sizeof(options)};
    struct xseg_observer observer = {sizeof(observer)};
    struct xseg_allocator *allocator = NULL;
    struct xseg_range *range, *to_release = NULL;
    unsigned count = 0;
    uint64_t id = 0;

    assert_ok(xseg_sim_reset(&settings));
    options.driver = env_driver();
    options.log = release_when_short;
    options.log_context = &to_release;
    assert_ok(xseg_open("oom_snapshot:/dev/null", &options, &allocator));
    observer.context = &count;
    observer.on_out_of_memory = count_refusal;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    range = to_release = reserve(allocator);
    assert_int_equal(xseg_range_commit(range, 0, GRANULES * PAGE, NULL), XSEG_ERR_NO_MEMORY);
    assert_null(to_release);
    assert_int_equal(count, 1);
    env_close(allocator);
}
