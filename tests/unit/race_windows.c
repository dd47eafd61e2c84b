/* SPDX-License-Identifier: MIT */
/* Races between a check and the action that follows: a thread that holds no lock is parked between the two, and
 * another thread changes the state. The linker redirects the second step to this file (--wrap). */
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "src/core/block/arena.h"
#include "src/core/pending/pending.h"
#include "tests/support/env.h"
#include "tests/support/wrapped.h"

/* --- Gates at which threads park. --- */

/* An armed gate stops the first thread that reaches it, until the gate is opened. */
struct gate {
    atomic_bool is_armed, reached, open;
};

static struct gate at_arena_alloc, at_fill_allocated, at_driver_fill;

static void arm(struct gate *gate)
{
    atomic_store(&gate->reached, false);
    atomic_store(&gate->open, false);
    atomic_store(&gate->is_armed, true);
}

static void pass(struct gate *gate)
{
    if (!atomic_exchange(&gate->is_armed, false))
        return;
    atomic_store(&gate->reached, true);
    while (!atomic_load(&gate->open))
        (void)sched_yield();
}

static void wait_for(struct gate *gate)
{
    while (!atomic_load(&gate->reached))
        (void)sched_yield();
}

/* NOLINTBEGIN(bugprone-reserved-identifier) */
WRAPPED(xseg_status, xseg_arena_alloc, struct xseg_arena *arena,
        const struct xseg_alloc_params *params, struct xseg_alloc_result *out);
WRAPPED(xseg_status, xseg_debug_fill_allocated, const struct xseg_alloc_result *result, bool zeroed,
        bool *is_paused);
WRAPPED(xseg_status, xseg_driver_fill, struct xseg_context *context, uint64_t address,
        uint64_t bytes, uint32_t word, xseg_stream stream);
/* NOLINTEND(bugprone-reserved-identifier) */

xseg_status __wrap_xseg_arena_alloc(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params,
                                    struct xseg_alloc_result *out)
{
    pass(&at_arena_alloc);
    return __real_xseg_arena_alloc(arena, params, out);
}

xseg_status __wrap_xseg_debug_fill_allocated(const struct xseg_alloc_result *result, bool zeroed,
                                             bool *is_paused)
{
    pass(&at_fill_allocated);
    return __real_xseg_debug_fill_allocated(result, zeroed, is_paused);
}

xseg_status __wrap_xseg_driver_fill(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                    uint32_t word, xseg_stream stream)
{
    pass(&at_driver_fill);
    return __real_xseg_driver_fill(context, address, bytes, word, stream);
}

/* --- Threads. --- */

static struct xseg_allocator *allocator;
static struct xseg_pool *pool;
static struct xseg_request request; /* of the thread */
static void *ptr;
static xseg_status status;
static pthread_t thread;

static void open_with(const char *config, size_t bytes, bool zeroed)
{
    allocator = env_open(config);
    pool = env_pool(allocator);
    ptr = NULL;
    request =
        (struct xseg_request){sizeof(request), .bytes = bytes, .pool = pool, .zeroed = zeroed};
}

static void close_all(void)
{
    assert_ok(status);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

static void *make_request(void *unused)
{
    status = xseg_alloc_with(allocator, &request, &ptr);
    return unused;
}

/* Make the request in a thread, until it parks at a gate. */
static void start_until(struct gate *gate)
{
    arm(gate);
    assert_int_equal(pthread_create(&thread, NULL, make_request, NULL), 0);
    wait_for(gate);
}

static void open_and_join(struct gate *gate)
{
    atomic_store(&gate->open, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* --- A pool is released. --- */

static void count_destroyed(void *context, const struct xseg_statistics *last)
{
    unsigned *destroyed = context;

    assert_int_equal(last->struct_size, sizeof(*last));
    ++*destroyed;
}

/* A routed request retains its pool: the route ends and the pool is released before the request locks its arena. */
TEST(a_routed_request_retains_its_pool)
{
    /* Without rounding the request would take the fast path, which locks the arena immediately. */
    static const char *const configs[] = {"roundup_power2_divisions:2,expandable_segments:True",
                                          "roundup_power2_divisions:2,expandable_segments:False"};

    for (unsigned i = 0; i < 4 * COUNT_OF(configs); i++) {
        const bool has_cached = i % 4 < 2;
        unsigned destroyed = 0;

        open_with(configs[i / 4], i % 2 == 0 ? 1000 : 30 * MIB, false);
        assert_ok(xseg_pool_release(pool));
        pool =
            env_pool_of(allocator, .on_destroy = count_destroyed, .on_destroy_context = &destroyed);
        request.pool = NULL;
        if (has_cached)
            env_free(allocator, env_alloc_in(allocator, pool, request.bytes, NULL));
        assert_ok(xseg_route_begin(pool, NULL, NULL));
        start_until(&at_arena_alloc);
        assert_ok(xseg_route_end(pool));
        assert_ok(xseg_pool_release(pool));
        env_empty_cache(allocator);
        assert_int_equal(destroyed, 0);
        open_and_join(&at_arena_alloc);
        assert_ok(status);
        assert_ptr_equal(env_block(allocator, ptr).pool, pool);
        assert_int_equal(env_block(allocator, ptr).requested, request.bytes);
        assert_int_equal(destroyed, 0);
        env_free(allocator, ptr);
        env_empty_cache(allocator);
        assert_int_equal(destroyed, 1);
        assert_int_equal(env_stats(allocator).reserved_bytes[0].current, 0);
        env_close(allocator);
    }
}

/* --- A pool is paused. --- */

/* The pool is paused after the block was allocated and before it is zeroed.  The pause unmaps the memory of the block, so the
 * request fails like a later one. */
TEST(block_of_a_concurrently_paused_pool_is_not_zeroed)
{
    for (unsigned i = 0; i < 4; i++) {
        open_with("expandable_segments:True", i % 2 == 0 ? 1000 : 30 * MIB, true);
        start_until(&at_fill_allocated);
        assert_ok(xseg_pool_pause(pool, i < 2 ? XSEG_KEEP_NOTHING : XSEG_KEEP_HOST, NULL));
        open_and_join(&at_fill_allocated);
        assert_int_equal(status, XSEG_ERR_PAUSED);
        assert_null(ptr);
        assert_int_equal(env_stats(allocator).allocation[0].current, 0);
        assert_ok(xseg_pool_resume(pool));
        (void)make_request(NULL);
        close_all();
    }
}

/* The pool is paused and resumed before the retry, which has the context of the first attempt. */
TEST(retry_keeps_the_user_value_of_the_request)
{
    for (unsigned i = 0; i < 2; i++) {
        open_with("expandable_segments:True,block_user:True", i == 0 ? 1000 : 30 * MIB, true);
        request.user = &request;
        start_until(&at_fill_allocated);
        assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
        arm(&at_arena_alloc);
        atomic_store(&at_fill_allocated.open, true);
        wait_for(&at_arena_alloc);
        assert_ok(xseg_pool_resume(pool));
        open_and_join(&at_arena_alloc);
        assert_ok(status);
        assert_ptr_equal(env_block(allocator, ptr).user, &request);
        close_all();
    }
}

/* The request uses the memory until the block is zeroed. */
TEST(a_pool_is_not_paused_while_a_block_is_zeroed)
{
    for (unsigned i = 0; i < 2; i++) {
        open_with("expandable_segments:True", i == 0 ? 1000 : 30 * MIB, true);
        start_until(&at_driver_fill);
        assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY,
                     "in use by a call of another thread");
        open_and_join(&at_driver_fill);
        assert_ok(status);
        env_stream_wait(NULL, NULL);
        assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
        assert_ok(xseg_pool_resume(pool));
        close_all();
    }
}
