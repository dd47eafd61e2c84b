/* SPDX-License-Identifier: MIT */
/* xseg_explain(): each reserved byte has one reason.  Iteration over blocks, and queries of a block by an address. */
#include <string.h>

#include "tests/support/env.h"

/* The allocator of a test, and a stream. */
static struct xseg_allocator *allocator;
static xseg_stream stream;

/* The result of xseg_explain(). */
struct explained {
    struct xseg_explain_result sums;
    struct xseg_reason reason[4096];
    size_t count;
};

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct explained *result = context;

    assert_int_equal(reason->struct_size, sizeof(*reason));
    assert_int_equal(reason->allocated_bytes + reason->pending_bytes + reason->claimed_bytes +
                         reason->cached_bytes,
                     reason->bytes);
    assert_true(result->count < COUNT_OF(result->reason));
    result->reason[result->count++] = *reason;
    return true;
}

static uint64_t sum_of(const struct xseg_explain_result *sums)
{
    return sums->allocated + sums->pending + sums->claimed + sums->pool + sums->pinned +
           sums->capture + sums->stream + sums->keep + sums->decay + sums->policy;
}

/* Explain a scope, and expect that the reasons add up to the reserved bytes. */
static const struct explained *explain(const struct xseg_scope *scope)
{
    static struct explained result;
    uint64_t bytes = 0;

    memset(&result, 0, sizeof(result));
    result.sums.struct_size = sizeof(result.sums);
    assert_ok(xseg_explain(allocator, scope, add_reason, &result, &result.sums));
    for (size_t i = 0; i < result.count; i++)
        bytes += result.reason[i].bytes;
    assert_int_equal(bytes, result.sums.reserved);
    assert_int_equal(sum_of(&result.sums), result.sums.reserved);
    if (scope == NULL)
        assert_int_equal(result.sums.reserved, env_reserved(allocator));
    return &result;
}

static bool free_allocated(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED)
        env_free(context, block->base);
    return true;
}

/* A test with an allocator and a stream, `count` times; `open` and the test may use the number of the run, `i`.  At the
 * end the allocated blocks are freed. */
#define TEST_OF_TIMES(name, count, open)                                                \
    static void name##_of(unsigned i);                                                  \
    TEST(name)                                                                          \
    {                                                                                   \
        for (unsigned i = 0; i < (count); i++) {                                        \
            allocator = (open);                                                         \
            stream = env_stream();                                                      \
            name##_of(i);                                                               \
            assert_ok(xseg_for_each_block(allocator, NULL, free_allocated, allocator)); \
            env_close(allocator, stream);                                               \
        }                                                                               \
    }                                                                                   \
    static void name##_of(__attribute__((unused)) unsigned i)

#define TEST_OF(name, open)        \
    static void name##_once(void); \
    TEST_OF_TIMES(name, 1, open)   \
    {                              \
        name##_once();             \
    }                              \
    static void name##_once(void)

static const char *const kinds[] = {ENV_KINDS};

/* Advance one second, with a decay pass that releases nothing. */
static void pass_second(void)
{
    env_advance_and_trim(allocator, 1, 1000);
}

TEST_OF(allocated_block_is_explained, env_open("expandable_segments:True"))
{
    void *large = env_alloc(allocator, 50 * MIB, NULL), *small = env_alloc(allocator, 3000, NULL);
    const struct explained *result = explain(NULL);

    /* One reason for the two full pages of the large block, one for its third page, one for the small block. */
    assert_int_equal(result->count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct xseg_reason *reason = &result->reason[i];
        const bool is_small = reason->is_small;

        assert_int_equal(reason->kind, XSEG_REASON_ALLOCATED);
        assert_ptr_equal(reason->block, is_small ? small : large);
        assert_int_equal(reason->bytes,
                         is_small ? 2 * MIB : (reason->base == large ? 2 * 20 : 20) * MIB);
        assert_int_equal(reason->block_bytes, is_small ? 3072 : 50 * MIB);
        assert_int_equal(reason->block_requested, is_small ? 3000 : 50 * MIB);
        assert_int_equal(reason->allocated_blocks, 1);
        assert_true(reason->age_ms == UINT64_MAX);
        assert_true(reason->is_expandable);
        assert_ptr_equal(reason->pool, NULL);
    }
    assert_int_equal(result->sums.allocated, (3 * 20 + 2) * MIB);
    assert_int_equal(result->sums.in_allocated_blocks, 50 * MIB + 3072);
}

TEST_OF(reason_names_the_largest_block_of_the_page, env_open("expandable_segments:True"))
{
    (void)env_alloc(allocator, 3 * MIB, NULL);
    void *largest = env_alloc(allocator, 9 * MIB, NULL);
    (void)env_alloc(allocator, 4 * MIB, NULL);
    const struct explained *result = explain(NULL);
    assert_int_equal(result->count, 1);
    assert_ptr_equal(result->reason[0].block, largest);
    assert_int_equal(result->reason[0].allocated_blocks, 3);
    assert_int_equal(result->reason[0].cached_bytes, (20 - 3 - 9 - 4) * MIB);
}

TEST_OF(pending_block_is_explained_with_its_stream, env_open("expandable_segments:True"))
{
    void *block = env_alloc(allocator, 20 * MIB, NULL);

    env_free_in_use(allocator, block, stream);
    const struct explained *result = explain(NULL);
    const struct xseg_reason *reason = &result->reason[0];
    assert_int_equal(result->count, 1);
    assert_int_equal(reason->kind, XSEG_REASON_PENDING);
    assert_ptr_equal(reason->block, block);
    assert_true(reason->has_waits_for);
    assert_ptr_equal(reason->waits_for, stream);
    assert_int_equal(result->sums.pending, 20 * MIB);
}

TEST_OF(idle_memory_of_a_retained_pool_is_explained, env_open("expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, pool, 30 * MIB, NULL));
    const struct explained *result = explain(NULL);
    assert_int_equal(result->sums.pool, 40 * MIB);
    assert_ptr_equal(result->reason[0].pool, pool);
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(explain(NULL)->sums.policy, 40 * MIB);
}

TEST_OF(capture_keeps_idle_memory, env_open("expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);

    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    env_capture_begin(pool, stream);
    assert_int_equal(explain(NULL)->sums.capture, 20 * MIB);
    env_capture_end(pool, stream);
    assert_int_equal(explain(NULL)->sums.policy, 20 * MIB);
}

TEST_OF(queued_work_keeps_idle_memory, env_open("expandable_segments:True"))
{
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 40 * MIB, NULL));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    uint64_t queries = xseg_sim_calls("cuStreamQuery");
    const struct explained *result = explain(NULL);
    assert_int_equal(result->sums.stream, 20 * MIB);
    assert_int_equal(result->sums.policy, 40 * MIB);
    assert_int_equal(xseg_sim_calls("cuStreamQuery"), queries + 2);
    /* A failed query of the driver does not affect the result. */
    assert_ok(xseg_sim_fail("cuStreamQuery", 1, 999)); /* CUDA_ERROR_UNKNOWN */
    result = explain(NULL);
    assert_int_equal(result->sums.stream + result->sums.policy, 60 * MIB);
    assert_ok(xseg_sim_finish(stream));
    assert_int_equal(explain(NULL)->sums.policy, 60 * MIB);
}

TEST_OF(floor_keeps_the_youngest_memory, env_open_with_clock(NULL, "idle_ms:100000,keep_mb:50"))
{
    uint64_t floor = 0;

    pass_second();
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    pass_second();
    pass_second();
    env_free(allocator, env_alloc(allocator, 40 * MIB, stream));
    pass_second();
    /* The floor of 50 MiB keeps the 40 MiB that were freed last, and one of the other pages. */
    const struct explained *result = explain(NULL);
    assert_int_equal(result->sums.keep + result->sums.decay, 100 * MIB);
    for (size_t i = 0; i < result->count; i++)
        if (result->reason[i].stream == stream) {
            assert_int_equal(result->reason[i].kind, XSEG_REASON_KEEP);
            floor += result->reason[i].bytes;
        }
    assert_int_equal(floor, 40 * MIB);
    assert_true(result->sums.keep >= 50 * MIB);
}

/* Memory within the floor is kept, unless it exceeds a limit. */
TEST_OF(limits_override_the_floor, env_open_with_clock(NULL, "idle_ms:100000,keep_mb:100"))
{
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    assert_int_equal(explain(NULL)->sums.keep, 60 * MIB);
    assert_ok(xseg_config_set(allocator, "keep_mb:0,soft_limit_mb:0"));
    assert_int_equal(explain(NULL)->sums.decay, 60 * MIB);
    /* Without decay only memory above the limit is released. */
    assert_ok(xseg_config_set(allocator, "idle_ms:-1,soft_limit_mb:100"));
    assert_int_equal(explain(NULL)->sums.policy, 60 * MIB);
}

TEST_OF(recent_peak_is_a_floor, env_open_with_clock(NULL, "idle_ms:100000,keep_window_s:1000"))
{
    void *block = env_alloc(allocator, 60 * MIB, NULL);

    pass_second();
    env_free(allocator, block);
    pass_second();
    assert_int_equal(explain(NULL)->sums.keep, 60 * MIB);
    assert_ok(xseg_config_set(allocator, "keep_window_s:0"));
    assert_int_equal(explain(NULL)->sums.decay, 60 * MIB);
}

TEST_OF(age_of_a_page_is_that_of_its_last_free, env_open_with_clock(NULL, "idle_ms:1000000"))
{
    pass_second();
    void *first = env_alloc(allocator, 20 * MIB, NULL);
    for (int i = 0; i < 5; i++)
        pass_second();
    void *second = env_alloc(allocator, 3 * MIB, NULL);
    env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    for (int i = 0; i < 2; i++)
        pass_second();
    const struct explained *result = explain(NULL);
    assert_int_equal(result->count, 2);
    for (size_t i = 0; i < 2; i++) {
        const bool is_first = result->reason[i].block == first;

        assert_true(is_first || result->reason[i].block == second);
        assert_in_range(result->reason[i].age_ms, is_first ? 7000 : 2000, is_first ? 7100 : 2100);
    }
}

static const char *const configs[] = {
    "expandable_segments:True",
    "expandable_segments:False",
    "expandable_segments:True,unmap_on_free:True",
    "expandable_segments:True,large_segment_size_mb:12,idle_ms:100000,keep_mb:10",
};

/* Blocks of two streams and a pool, some of them freed or pending: the bytes of both streams add up to all bytes. */
TEST_OF_TIMES(reasons_add_up_to_the_reserved_bytes, COUNT_OF(configs), env_open(configs[i]))
{
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    void *block[600];
    uint64_t bytes = 0;

    for (size_t k = 0; k < COUNT_OF(block); k++)
        block[k] = env_alloc_in(allocator, k % 4 == 0 ? pool : NULL,
                                (k * 7919 % 97 + 1) * (k % 5 == 0 ? 300 * KIB : 3000),
                                k % 3 == 0 ? stream : NULL);
    env_launch(allocator, stream, block[1]);
    for (size_t k = 0; k < COUNT_OF(block); k++) {
        if (k % 11 == 0)
            assert_ok(xseg_record_stream(allocator, block[k], stream));
        if (k % 7 != 1)
            env_free(allocator, block[k]);
    }
    uint64_t all = explain(NULL)->sums.reserved;
    assert_int_equal(explain(NULL)->sums.in_allocated_blocks,
                     env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current);
    scope.one_stream = true;
    bytes += explain(&scope)->sums.reserved;
    scope.stream = stream;
    bytes += explain(&scope)->sums.reserved;
    assert_int_equal(bytes, all);
    scope = (struct xseg_scope)XSEG_SCOPE_ALL;
    scope.pool = pool;
    bytes = explain(&scope)->sums.reserved;
    assert_true(bytes > 0 && bytes < all);
    scope.pool = NULL;
    scope.device = 0;
    assert_int_equal(explain(&scope)->sums.reserved, all);
}

TEST_OF(pin_keeps_idle_memory, env_open("expandable_segments:True"))
{
    char *block = env_alloc(allocator, 60 * MIB, NULL);

    assert_ok(xseg_pin(allocator, block + 20 * MIB, 20 * MIB));
    env_free(allocator, block);
    const struct explained *result = explain(NULL);
    assert_int_equal(result->sums.pinned, 20 * MIB);
    assert_int_equal(result->sums.policy, 40 * MIB);
    assert_ok(xseg_unpin(allocator, block + 20 * MIB, 20 * MIB));
    assert_int_equal(explain(NULL)->sums.policy, 60 * MIB);
}

/* A paused pool has allocated blocks and no reserved memory. */
TEST_OF(paused_pool_has_no_reasons, env_open("expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    (void)env_alloc(allocator, 20 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(explain(NULL)->sums.allocated, 20 * MIB);
    assert_int_equal(explain(env_scope(.device = -1, .pool = pool))->sums.reserved, 0);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_ALLOCATED);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(explain(NULL)->sums.allocated, 60 * MIB);
}

TEST_OF(page_cache_is_explained_separately, env_open("expandable_segments:True,page_cache_mb:100"))
{
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    (void)env_trim(allocator);
    const struct explained *result = explain(NULL);
    assert_int_equal(result->sums.reserved, 0);
    assert_int_equal(result->sums.page_cache + result->sums.unreleased,
                     env_stats(allocator).physical_bytes);
}

static bool end_iteration(void *context, const struct xseg_reason *reason)
{
    (void)reason;
    ++*(unsigned *)context;
    return false;
}

static bool free_reported_block(void *context, const struct xseg_reason *reason)
{
    env_free(context, reason->block);
    return true;
}

TEST_OF(visitor_may_call_the_library_and_end_the_iteration, env_open("expandable_segments:True"))
{
    unsigned calls = 0;

    (void)env_alloc(allocator, 20 * MIB, NULL);
    (void)env_alloc(allocator, 20 * MIB, NULL);
    assert_ok(xseg_explain(allocator, NULL, end_iteration, &calls, NULL));
    assert_int_equal(calls, 1);
    assert_ok(xseg_explain(allocator, NULL, free_reported_block, allocator, NULL));
    assert_int_equal(explain(NULL)->sums.policy, 40 * MIB);
}

/* Bytes by state, and allocated blocks, of the blocks that were visited. */
struct block_sums {
    struct xseg_allocator *allocator;
    uint64_t allocated, cached, unmapped, blocks;
    const char *end; /* of the previous block */
    const void *segment;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct block_sums *sums = context;

    assert_int_equal(block->struct_size, sizeof(*block));
    /* Blocks tile their segment. */
    assert_ptr_equal(block->base,
                     block->segment_base == sums->segment ? sums->end : block->segment_base);
    sums->segment = block->segment_base;
    sums->end = (const char *)block->base + block->bytes;
    sums->allocated += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
    sums->cached += block->state == XSEG_BLOCK_CACHED ? block->bytes : 0;
    sums->unmapped += block->state == XSEG_BLOCK_UNMAPPED ? block->bytes : 0;
    sums->blocks += block->state == XSEG_BLOCK_ALLOCATED;
    return true;
}

static struct block_sums sum_blocks(const struct xseg_scope *scope)
{
    struct block_sums sums = {.allocator = allocator};

    assert_ok(xseg_for_each_block(allocator, scope, add_block, &sums));
    return sums;
}

TEST_OF_TIMES(iteration_visits_every_block, COUNT_OF(kinds), env_open(kinds[i]))
{
    void *block[2000];

    for (size_t k = 0; k < COUNT_OF(block); k++)
        block[k] = env_alloc(allocator, (k % 50 + 1) * (k % 9 == 0 ? 100 * KIB : 700), NULL);
    for (size_t k = 0; k < COUNT_OF(block); k += 3)
        env_free(allocator, block[k]);
    const struct block_sums sums = sum_blocks(NULL);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(sums.allocated, stats.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sums.blocks, stats.allocation[XSEG_STAT_ALL].current);
    assert_int_equal(sums.allocated + sums.cached, stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sums.unmapped > 0, i == 0);
}

TEST_OF(block_iteration_respects_the_scope, env_open("expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    (void)env_alloc(allocator, 2 * MIB, NULL);
    (void)env_alloc(allocator, 4 * MIB, stream);
    (void)env_alloc_in(allocator, pool, 8 * MIB, NULL);
    assert_int_equal(sum_blocks(NULL).allocated, (2 + 4 + 8) * MIB);
    scope.one_stream = true;
    scope.stream = stream;
    assert_int_equal(sum_blocks(&scope).allocated, 4 * MIB);
    scope.stream = NULL;
    assert_int_equal(sum_blocks(&scope).allocated, (2 + 8) * MIB);
    scope.pool = pool;
    assert_int_equal(sum_blocks(&scope).allocated, 8 * MIB);
}

static bool free_some(void *context, const struct xseg_block_info *block)
{
    struct block_sums *sums = context;

    if (block->state == XSEG_BLOCK_ALLOCATED) {
        sums->blocks++;
        env_free(sums->allocator, block->base);
    }
    return sums->blocks < 900;
}

/* The blocks that the visitor frees coalesce; the iteration continues after them. */
TEST_OF(iteration_allows_changes, env_open("expandable_segments:True"))
{
    struct block_sums sums = {.allocator = allocator};

    for (int i = 0; i < 1000; i++)
        (void)env_alloc(allocator, 512, NULL);
    assert_ok(xseg_for_each_block(allocator, NULL, free_some, &sums));
    assert_int_equal(sums.blocks, 900); /* free_some() ends the iteration */
    assert_int_equal(sum_blocks(NULL).blocks, 1000 - 900);
}

TEST_OF(unopened_device_has_no_blocks, env_open("expandable_segments:True"))
{
    struct xseg_explain_result sums = {sizeof(sums)};

    assert_int_equal(sum_blocks(NULL).allocated, 0);
    assert_ok(xseg_explain(allocator, NULL, NULL, NULL, &sums));
    assert_int_equal(sums.reserved, 0);
}

TEST_OF(invalid_arguments_have_error_messages, env_open("expandable_segments:True"))
{
    struct xseg_allocator *second = NULL;
    struct xseg_explain_result sums = {sizeof(sums)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct block_sums blocks = {0};

    assert_error(xseg_for_each_block(NULL, NULL, add_block, NULL), ARGUMENT, "NULL");
    assert_error(xseg_for_each_block(allocator, NULL, NULL, NULL), ARGUMENT, "visit is NULL");
    assert_error(xseg_explain(NULL, NULL, NULL, NULL, &sums), ARGUMENT, "NULL");
    sums.struct_size = 7;
    assert_error(xseg_explain(allocator, NULL, NULL, NULL, &sums), ARGUMENT,
                 "out->struct_size is unknown, 7");
    scope.struct_size = 1;
    assert_error(xseg_for_each_block(allocator, &scope, add_block, &blocks), ARGUMENT,
                 "scope->struct_size is unknown, 1");
    scope = (struct xseg_scope)XSEG_SCOPE_ALL;
    scope.device = 7;
    assert_error(xseg_explain(allocator, &scope, NULL, NULL, NULL), ARGUMENT, "device 7");
    assert_ok(env_try_open(NULL, &second));
    scope = (struct xseg_scope)XSEG_SCOPE_ALL;
    scope.pool = env_pool(second);
    assert_error(xseg_explain(allocator, &scope, NULL, NULL, NULL), ARGUMENT, "another allocator");
    assert_ok(xseg_pool_release(scope.pool));
    assert_ok(xseg_close(second));
    assert_string_equal(xseg_reason_message((enum xseg_reason_kind)99), "unknown");
    assert_non_null(strstr(xseg_reason_message(XSEG_REASON_ALLOCATED), "allocated block"));
}

/* --- Queries by an address: from a tensor to its block, and from the block to the adjacent free space, so that a
 * program can release the block that makes the largest range, as an article on PyTorch requires. --- */

/* The example of the article: 1000 MiB are free, but a block in the middle prevents a request of 800 MiB. */
TEST_OF(block_query_reports_the_adjacent_free_bytes,
        env_open_mib(1020, "expandable_segments:False"))
{
    void *ptr = env_alloc(allocator, 1020 * MIB, NULL);

    env_free(allocator, ptr);
    char *before = env_alloc(allocator, 500 * MIB, NULL);
    char *tensor = env_alloc(allocator, 20 * MIB, NULL);
    char *after = env_alloc(allocator, 500 * MIB, NULL);
    env_free(allocator, before, after);
    assert_int_equal(xseg_alloc(allocator, 0, 800 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);

    const struct xseg_block_info info = env_block(allocator, tensor + 5 * MIB);
    assert_ptr_equal(info.base, tensor);
    assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(info.bytes, 20 * MIB);
    assert_int_equal(info.free_before, 500 * MIB);
    assert_int_equal(info.free_after, 500 * MIB);
}

/* The purpose in the article: of several candidates, release the block that makes the largest free range. */
TEST_OF(block_query_finds_the_best_block_to_release, env_open("expandable_segments:True"))
{
    char *ptr[8], *best = NULL;
    size_t max = 0;

    for (unsigned i = 0; i < 8; i++)
        ptr[i] = env_alloc(allocator, 10 * MIB, NULL);
    env_free(allocator, ptr[1], ptr[4], ptr[6]);
    for (unsigned i = 0; i < 8; i++) {
        const struct xseg_block_info info = env_block(allocator, ptr[i]);
        const size_t free_bytes = info.free_before + info.bytes + info.free_after;

        if (info.state == XSEG_BLOCK_ALLOCATED && free_bytes > max) {
            max = free_bytes;
            best = ptr[i];
        }
    }
    assert_ptr_equal(best, ptr[5]);
    assert_int_equal(max, 30 * MIB);
}

TEST_OF(small_block_is_found_by_any_address, env_open("expandable_segments:True"))
{
    char *ptr[64];
    struct xseg_block_info info;

    for (unsigned i = 0; i < 64; i++)
        ptr[i] = env_alloc(allocator, 100 * (i + 1), NULL);
    for (unsigned i = 0; i < 64; i++) {
        info = env_block(allocator, ptr[i] + 100 * i);
        assert_ptr_equal(info.base, ptr[i]);
        assert_int_equal(info.requested, 100 * (i + 1));
        assert_true(info.is_small);
    }
    for (unsigned i = 0; i < 64; i += 2)
        env_free(allocator, ptr[i]);
    info = env_block(allocator, ptr[30] + 5);
    assert_int_equal(info.state, XSEG_BLOCK_CACHED);
    assert_int_equal(info.requested, 100 * (30 + 1));
    info = env_block(allocator, ptr[31]);
    assert_int_equal(info.free_before, 7 * 512); /* of 3100 bytes, rounded up to 512 */
    assert_int_equal(info.free_after, 7 * 512);  /* of 3300 bytes */
    assert_int_equal(info.unmapped_before, 0);
}

static void expect_requested(const void *address, enum xseg_block_state state, size_t requested)
{
    const struct xseg_block_info info = env_block(allocator, address);

    assert_int_equal(info.state, state);
    assert_int_equal(info.requested, requested);
}

/* Requests of three adjacent blocks, and of a block that reuses the start of their memory. */
static const struct {
    size_t bytes[3], reused;
} request_cases[] = {
    {{MIB + 5, MIB + 600, MIB + 1500}, MIB + 1},
    {{500, 600, 1500}, 1},
    {{300 * KIB + 5, 200 * KIB, 128 * KIB}, 150 * KIB},
};

/* As in PyTorch: the remainder of a split keeps the size as well. */
TEST_OF_TIMES(free_block_keeps_the_size_of_its_last_request, 2 * COUNT_OF(request_cases),
              env_open(kinds[i % 2]))
{
    const size_t *bytes = request_cases[i / 2].bytes, reused = request_cases[i / 2].reused;
    char *ptr[3];

    for (unsigned k = 0; k < 3; k++)
        ptr[k] = env_alloc(allocator, bytes[k], NULL);
    (void)env_alloc(allocator, bytes[0], NULL);
    env_free(allocator, ptr[0]);
    assert_int_equal(env_block(allocator, ptr[0]).requested, bytes[0]);
    env_free(allocator, ptr[2]);
    assert_int_equal(env_block(allocator, ptr[2]).requested, bytes[2]);
    env_free(allocator, ptr[1]);
    assert_ptr_equal(env_block(allocator, ptr[1]).base, ptr[0]);
    assert_int_equal(env_block(allocator, ptr[1]).requested, bytes[1]);
    char *part = env_alloc(allocator, reused, NULL);
    assert_ptr_equal(part, ptr[0]);
    assert_int_equal(env_block(allocator, part).requested, reused);
    assert_int_equal(env_block(allocator, ptr[1]).requested, bytes[1]);
    env_free(allocator, part);
    assert_int_equal(env_block(allocator, ptr[1]).requested, reused);
}

/* The remainder of an unmapped block has no last request; the mapped pages keep theirs. */
TEST_OF(remainder_of_an_unmapped_block_has_no_request, env_open("expandable_segments:True"))
{
    char *first = env_alloc(allocator, 3 * MIB, NULL);
    char *second = env_alloc(allocator, 50 * MIB + 1, NULL);
    char *third = env_alloc(allocator, 3 * MIB, NULL);

    env_free(allocator, second);
    env_empty_cache(allocator);
    expect_requested(first + 3 * MIB, XSEG_BLOCK_CACHED, 0);
    expect_requested(third - MIB, XSEG_BLOCK_CACHED, 0);
    expect_requested(first + 25 * MIB, XSEG_BLOCK_UNMAPPED, 0);
    assert_ptr_equal(env_alloc(allocator, 21 * MIB, NULL), second);
    expect_requested(first + 25 * MIB, XSEG_BLOCK_CACHED, 50 * MIB + 1);
}

/* As in PyTorch, blocks are unmapped in the order of size, so memory that is mapped again has the requested size of the
 * largest block.  An empty segment is destroyed, so memory of a new segment has no requested size. */
TEST_OF_TIMES(remapped_memory_has_the_request_size_of_the_last_unmap, 2,
              env_open("expandable_segments:True"))
{
    static const size_t mib[][3] = {{40, 20, 20}, {20, 20, 40}};
    static const size_t last_requested[] = {40 * MIB - 1, 40 * MIB - 3};
    char *ptr[3];

    for (unsigned k = 0; k < 3; k++)
        ptr[k] = env_alloc(allocator, mib[i][k] * MIB - k - 1, NULL);
    void *separator = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, ptr[1]);
    env_empty_cache(allocator);
    env_free(allocator, ptr[0], ptr[2]);
    env_empty_cache(allocator);
    char *remapped = env_alloc(allocator, 10 * MIB, NULL);
    assert_ptr_equal(remapped, ptr[0]);
    expect_requested(remapped + 10 * MIB, XSEG_BLOCK_CACHED, last_requested[i]);
    env_free(allocator, remapped, separator);
    env_empty_cache(allocator);
    remapped = env_alloc(allocator, 10 * MIB, NULL);
    expect_requested(remapped + 10 * MIB, XSEG_BLOCK_CACHED, 0);
}

/* Blocks of more than 4 GiB, whose page map entries are in several chunks. */
TEST_OF(large_block_is_found_by_any_address, env_open("expandable_segments:True"))
{
    char *first = env_alloc(allocator, 9 * GIB, NULL);
    char *second = env_alloc(allocator, 3 * MIB, NULL);
    char *third = env_alloc(allocator, 20 * GIB, NULL);

    assert_ptr_equal(env_block(allocator, first).base, first);
    assert_ptr_equal(env_block(allocator, first + 9 * GIB - 1).base, first);
    assert_ptr_equal(env_block(allocator, second + MIB + 7).base, second);
    assert_ptr_equal(env_block(allocator, third + 13 * GIB).base, third);
    env_free(allocator, first);
    assert_int_equal(env_block(allocator, first + 5 * GIB).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, second).free_before, 9 * GIB);
    env_free(allocator, second);
    assert_int_equal(env_block(allocator, third).free_before, 9 * GIB + 3 * MIB);
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, first + 5 * GIB).state, XSEG_BLOCK_UNMAPPED);
}

TEST_OF(unknown_addresses_are_rejected, env_open("expandable_segments:True"))
{
    void *ptr = env_alloc(allocator, 512, NULL);
    struct xseg_block_info info = {sizeof(info)};

    for (unsigned i = 0; i < 2; i++)
        assert_error(xseg_block_query(allocator, i == 0 ? &info : NULL, &info), NOT_ALLOCATED,
                     "not in memory");
    assert_error(xseg_block_query(allocator, ptr, NULL), ARGUMENT, "NULL");
    /* Only the members that the older header of a caller has are written. */
    info.struct_size = offsetof(struct xseg_block_info, state);
    info.device = 1234;
    assert_ok(xseg_block_query(allocator, ptr, &info));
    assert_ptr_equal(info.base, ptr);
    assert_int_equal(info.device, 1234);
}
