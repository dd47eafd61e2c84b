/* SPDX-License-Identifier: MIT */
/*
 * Whatever the calling thread has current, and whatever it captures on another device, stays as it
 * is, and what the library does to a device happens in that device's context.
 */
#include "tests/support/env.h"

/* Entry points of the driver, by their plain C types. */
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, void **graph);
int cuGraphDestroy(void *graph);

static void *context[2];

static struct xseg_allocator *open_two(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};

    struct xseg_allocator *allocator = env_open_on(&settings, config);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRetain(&context[i], i), 0);
    return allocator;
}

static void close_two(struct xseg_allocator *allocator)
{
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(i), 0);
    env_close(allocator);
}

static uint64_t trim(struct xseg_allocator *allocator, int device, bool wait)
{
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_options how = {sizeof(how), .wait = wait};

    where.device = device;
    assert_ok(xseg_trim(allocator, &where, &how, &done));
    return done.released;
}

/* Device 0 has work queued that says nothing of what it touches: the simulator ends the process if
 * its pages go while another device's context is current. */
TEST(pages_go_in_their_own_devices_context)
{
    struct xseg_allocator *allocator = open_two("expandable_segments:True");
    const xseg_stream busy = env_stream();
    void *current = NULL;

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
    assert_ok(xseg_sim_launch(busy, UINT64_MAX));
    assert_int_equal(cuCtxSetCurrent(context[1]), 0);
    assert_int_equal(trim(allocator, 0, false), 40 * MIB);
    assert_int_equal(cuCtxGetCurrent(&current), 0);
    assert_ptr_equal(current, context[1]);
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    xseg_sim_finish_all();
    env_stream_destroy(busy);
    close_two(allocator);
}

/* Pending and cached memory of device 1. */
static void leave_memory(struct xseg_allocator *allocator, xseg_stream per_thread)
{
    void *ptr = NULL, *cached = NULL;

    assert_ok(xseg_alloc(allocator, 1, 3 * MIB, NULL, &ptr));
    assert_ok(xseg_alloc(allocator, 1, 90 * MIB, NULL, &cached));
    env_free(allocator, cached);
    assert_int_equal(cuCtxSetCurrent(context[1]), 0);
    assert_ok(xseg_sim_launch(per_thread, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, ptr, per_thread));
    env_free(allocator, ptr);
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
}

/* In the strictest mode a query or a wait by the capturing thread spoils its capture. */
TEST(a_trim_spoils_no_capture_of_another_device)
{
    static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};
    const xseg_stream per_thread = (xseg_stream)(uintptr_t)2;

    for (unsigned i = 0; i < 2 * COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = open_two(configs[i / 2]);
        const xseg_stream captured = env_stream();
        void *graph = NULL;

        leave_memory(allocator, per_thread);
        assert_int_equal(cuStreamBeginCapture_v2(captured, 0), 0);
        assert_true(trim(allocator, 1, i % 2 == 0) > 0);
        assert_int_equal(cuStreamEndCapture(captured, &graph), 0);
        assert_int_equal(cuGraphDestroy(graph), 0);
        assert_int_equal(cuCtxSetCurrent(NULL), 0);
        xseg_sim_finish_all();
        env_stream_destroy(captured);
        close_two(allocator);
    }
}

/* A pool at its own limit waits for its pending blocks without a trim. */
TEST(a_full_pool_spoils_no_capture_of_another_device)
{
    struct xseg_allocator *allocator = open_two("expandable_segments:True");
    struct xseg_pool_options options = {sizeof(options), .limit_bytes = 20 * MIB};
    struct xseg_request request = {sizeof(request)};
    const xseg_stream captured = env_stream(), per_thread = (xseg_stream)(uintptr_t)2;
    void *ptr = NULL, *again = NULL, *graph = NULL;

    assert_ok(xseg_pool_create(allocator, 1, &options, &request.pool));
    request.bytes = 15 * MIB;
    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    assert_int_equal(cuCtxSetCurrent(context[1]), 0);
    assert_ok(xseg_sim_launch(per_thread, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, ptr, per_thread));
    env_free(allocator, ptr);
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
    assert_int_equal(cuStreamBeginCapture_v2(captured, 0), 0);
    assert_ok(xseg_alloc_with(allocator, &request, &again));
    assert_ptr_equal(again, ptr);
    assert_int_equal(cuStreamEndCapture(captured, &graph), 0);
    assert_int_equal(cuGraphDestroy(graph), 0);
    env_free(allocator, again);
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    env_stream_destroy(captured);
    close_two(allocator);
}
