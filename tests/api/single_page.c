/* SPDX-License-Identifier: MIT */
/* Pools whose blocks are one page each (single_page): what the driver says of them, reuse, and memory that is short. */
#include <string.h>

#include "tests/support/env.h"

/* The driver's own functions, as a program declares them. */
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long ptr);
int cuMemRetainAllocationHandle(unsigned long long *handle, void *ptr);
int cuMemRelease(unsigned long long handle);
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);

/* The allocation at an address, as the driver sees it from a current context. */
static void ask_driver(const void *address, unsigned long long *base, size_t *bytes)
{
    void *context = NULL;

    assert_int_equal(cuInit(0), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
    assert_int_equal(cuMemGetAddressRange_v2(base, bytes, (uintptr_t)address), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
}

static struct xseg_pool *make_pool(struct xseg_allocator *allocator, uint64_t limit)
{
    struct xseg_pool_options options = {sizeof(options), .single_page = true, .limit_bytes = limit};
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    return pool;
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* The driver sees one allocation, which is the whole block and nothing else. */
static void expect_single(const char *block, uint64_t bytes)
{
    unsigned long long base = 0, first = 0, last = 0;
    size_t seen = 0;

    ask_driver(block + bytes - 1, &base, &seen);
    assert_int_equal(base, (uintptr_t)block);
    assert_int_equal(seen, whole_pages(bytes));
    assert_int_equal(cuMemRetainAllocationHandle(&first, (void *)(uintptr_t)block), 0);
    assert_int_equal(cuMemRetainAllocationHandle(&last, (void *)((uintptr_t)block + bytes - 1)), 0);
    assert_int_equal(first, last);
    assert_int_equal(cuMemRelease(first), 0);
    assert_int_equal(cuMemRelease(last), 0);
}

/* --- One page each. --- */

static bool add_rest(void *context, const struct xseg_reason *reason)
{
    uint64_t *rest = context;

    *rest += reason->is_single_page && reason->block != NULL
                 ? reason->block_bytes - reason->block_requested
                 : 0;
    return true;
}

static bool add_single(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *bytes = context;

    if (mapping->is_single_page) {
        assert_int_equal(mapping->page_bytes, mapping->bytes);
        *bytes += mapping->bytes;
    }
    return true;
}

/* Of live blocks alone, and not of small ones and those of other pools. */
TEST(what_it_costs_is_explained)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    struct xseg_explain_result sums = {sizeof(sums)};
    uint64_t rest = 0, single = 0;

    char *const other = env_alloc(allocator, 3 * MIB, NULL);
    char *const small = env_alloc_in(allocator, pool, 1000, NULL);
    char *const block = env_alloc_in(allocator, pool, 5 * MIB + 100, NULL);
    char *const freed = env_alloc_in(allocator, pool, 31 * MIB, NULL);
    env_free(allocator, freed);
    assert_ok(xseg_explain(allocator, NULL, add_rest, &rest, &sums));
    assert_int_equal(sums.single_page_padding, MIB - 100);
    assert_int_equal(rest, MIB - 100);
    assert_ok(xseg_for_each_mapping(allocator, NULL, add_single, &single));
    assert_int_equal(single, (6 + 32) * MIB);
    env_free(allocator, other, small, block);
    env_close(allocator);
}

TEST(a_large_block_is_one_piece_of_memory)
{
    static const size_t sizes[] = {MIB + 1, 2 * MIB, 21 * MIB, 140 * MIB, 1000 * MIB + 512};
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *block[COUNT_OF(sizes)];

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint64_t created = xseg_sim_calls("cuMemCreate");

        block[i] = env_alloc_in(allocator, pool, sizes[i], NULL);
        assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 1);
        assert_int_equal(env_block(allocator, block[i]).bytes, whole_pages(sizes[i]));
        assert_int_equal(env_block(allocator, block[i]).requested, sizes[i]);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_single(block[i], sizes[i]);
        env_free(allocator, block[i]);
    }
    env_close(allocator);
}

TEST(a_pool_can_be_set_to_it_before_its_first_block)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    assert_ok(xseg_pool_set(pool, XSEG_POOL_SINGLE_PAGE, true));
    char *const block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect_single(block, 30 * MIB);
    env_free(allocator, block);
    env_empty_cache(allocator);
    env_expect_error(xseg_pool_set(pool, XSEG_POOL_SINGLE_PAGE, false), XSEG_ERR_BUSY,
                     "has served a request");
    char *const next = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect_single(next, 30 * MIB);
    env_free(allocator, next);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(small_blocks_share_pages_as_ever)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *first = env_alloc_in(allocator, pool, 1000, NULL);
    char *second = env_alloc_in(allocator, pool, 1000, NULL);

    assert_ptr_equal(second, first + 1024);
    env_free(allocator, first, second);
    env_close(allocator);
}

TEST(alignment_is_that_of_the_page)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    struct xseg_request request = {sizeof(request)};
    void *plain = env_alloc_in(allocator, pool, 30 * MIB, NULL), *block = NULL;

    env_free(allocator, plain);
    request.pool = pool;
    request.bytes = 30 * MIB;
    request.alignment = GIB;
    assert_ok(xseg_alloc_with(allocator, &request, &block));
    assert_int_equal((uintptr_t)block % GIB, 0);
    assert_int_equal(env_block(allocator, block).bytes, 30 * MIB);
    expect_single(block, 30 * MIB);
    env_free(allocator, block);
    env_close(allocator);
}

/* --- Reuse. --- */

TEST(a_cached_page_serves_nearly_its_size_whole)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *first = env_alloc_in(allocator, pool, 100 * MIB, NULL);

    env_free(allocator, first);
    /* By less than 20 MiB, max_non_split_rounding_mb, it may be too long. */
    char *shorter = env_alloc_in(allocator, pool, 81 * MIB, NULL);
    assert_ptr_equal(shorter, first);
    assert_int_equal(env_block(allocator, shorter).bytes, 100 * MIB);
    env_free(allocator, shorter);
    char *much_shorter = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    assert_ptr_not_equal(much_shorter, first);
    expect_single(much_shorter, 80 * MIB);
    env_free(allocator, much_shorter);
    env_close(allocator);
}

TEST(a_page_is_taken_at_its_address_or_not_at_all)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *first = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    void *block = NULL;

    env_free(allocator, first);
    env_expect_error(xseg_alloc_at(pool, 40 * MIB, NULL, first + 20 * MIB, &block), XSEG_ERR_BUSY,
                     "not the start of a single page");
    assert_ok(xseg_alloc_at(pool, 40 * MIB, NULL, first, &block));
    assert_int_equal(env_block(allocator, block).bytes, 100 * MIB);
    env_free(allocator, block);
    env_close(allocator);
}

/* Idle pages of a released pool are the driver's to make others of. */
TEST(a_released_pool_makes_room_for_others)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB};

    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    env_free(allocator, env_alloc_in(allocator, pool, 200 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    void *block = env_alloc(allocator, 240 * MIB, NULL);
    env_free(allocator, block);
    env_close(allocator);
}

/* Addresses come again for pages of their size; those of other sizes are given back before new ones are taken. */
TEST(addresses_do_not_gather)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    struct xseg_scope where = XSEG_SCOPE_ALL;
    uint64_t most = 0;
    void *block;

    where.pool = pool;
    for (unsigned i = 0; i < 200; i++) {
        void *before = block = env_alloc_in(allocator, pool, (40 + 2 * i) * MIB, NULL);

        env_free(allocator, block);
        assert_ok(xseg_trim(allocator, &where, NULL, NULL));
        block = env_alloc_in(allocator, pool, (40 + 2 * i) * MIB, NULL);
        assert_ptr_equal(block, before);
        env_free(allocator, block);
        assert_ok(xseg_trim(allocator, &where, NULL, NULL));
        const uint64_t addresses = env_stats(allocator).address_bytes;
        most = addresses > most ? addresses : most;
    }
    assert_true(most <= 500 * MIB);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}

TEST(a_paused_pool_comes_back_with_single_pages)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *block = env_alloc_in(allocator, pool, 140 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
    expect_single(block, 140 * MIB);
    env_free(allocator, block);
    env_close(allocator);
}

/* --- Memory that is short. --- */

TEST(idle_pages_of_other_sizes_make_room)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB};

    /* What is idle in the pool itself, in the default pool, and where the pool has a limit of its own. */
    for (unsigned i = 0; i < 3; i++) {
        struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
        struct xseg_pool *pool = make_pool(allocator, i == 2 ? 210 * MIB : 0);
        void *other = i == 1 ? env_alloc(allocator, 160 * MIB, NULL)
                             : env_alloc_in(allocator, pool, 160 * MIB, NULL);

        env_free(allocator, other);
        char *block = env_alloc_in(allocator, pool, 200 * MIB, NULL);
        expect_single(block, 200 * MIB);
        env_free(allocator, block);
        env_close(allocator);
    }
}

TEST(a_refusal_leaves_nothing)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB};
    void *block = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
    struct xseg_pool *pool = make_pool(allocator, 0);
    const uint64_t before = env_stats(allocator).address_bytes;
    assert_int_equal(env_try_alloc_in(allocator, pool, 300 * MIB, &block), XSEG_ERR_NO_MEMORY);
    assert_int_equal(env_stats(allocator).address_bytes, before);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}

TEST(classic_segments_serve_where_they_are_asked_for)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    struct xseg_pool *pool = make_pool(allocator, 0);
    char *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    unsigned long long base = 0;
    size_t seen = 0;

    ask_driver(block, &base, &seen);
    assert_true(base <= (uintptr_t)block && base + seen >= (uintptr_t)block + 40 * MIB);
    env_free(allocator, block);
    env_close(allocator);
}
