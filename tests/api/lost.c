/* SPDX-License-Identifier: MIT */
/*
 * Devices that are lost: after an error such as an illegal address, after a reset of the context
 * underneath, and after the driver's shutdown at exit.  Allocations say so, without asking the
 * driver again; frees, statistics and close work on the host side.
 */
#include "tests/support/env.h"

#include <string.h>

/* Of CUresult. */
#define DEINITIALIZED   4
#define ILLEGAL_ADDRESS 700

int cuDevicePrimaryCtxReset_v2(int device);

/* No allocation works, and none asks the driver. */
static void expect_lost(struct xseg_allocator *allocator, const char *word)
{
    const uint64_t calls = xseg_sim_calls(NULL);
    void *ptr = NULL;

    for (unsigned i = 0; i < 100; i++)
        env_expect_error(xseg_alloc(allocator, 0, (size_t)512 << i % 20, NULL, &ptr),
                         XSEG_ERR_DEVICE_LOST, word);
    assert_null(ptr);
    env_expect_error(xseg_trim(allocator, NULL, NULL, NULL), XSEG_ERR_DEVICE_LOST, word);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

TEST(after_a_sticky_error)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_allocator *allocator;
    xseg_stream side;
    void *a, *b, *c = NULL;

    allocator = env_open_on(&settings, "expandable_segments:True");
    side = env_stream();
    a = env_alloc(allocator, 5 * MIB, NULL);
    b = env_alloc(allocator, 700, NULL);
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    env_expect_error(xseg_alloc(allocator, 0, 100 * MIB, NULL, &c), XSEG_ERR_DEVICE_LOST,
                     "cuMemCreate failed, CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_lost(allocator, "device 0 is lost");
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    assert_int_equal(env_stats(allocator).num_ooms, 0);

    /* The other device is none of its business. */
    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &c));
    env_free(allocator, c);

    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "blocks are allocated, 2 on ");
    env_free(allocator, a, b);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_close(allocator)); /* a lost device keeps its memory */
    env_stream_destroy(side);
}

TEST(after_a_reset_of_the_context)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = NULL;

    assert_int_equal(cuDevicePrimaryCtxReset_v2(0), 0);
    assert_int_equal(xseg_alloc(allocator, 0, 100 * MIB, NULL, &b), XSEG_ERR_DEVICE_LOST);
    expect_lost(allocator, "device 0 is lost");
    env_free(allocator, a);
    assert_ok(xseg_close(allocator));
}

TEST(after_the_driver_has_shut_down)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *a = env_alloc(allocator, 30 * MIB, NULL);

    env_free(allocator, a);
    assert_ok(xseg_sim_fail("cuStreamQuery", 1, DEINITIALIZED));
    assert_int_equal(xseg_trim(allocator, NULL, NULL, NULL), XSEG_ERR_DEVICE_LOST);
    expect_lost(allocator, "CUDA_ERROR_DEINITIALIZED");
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_ok(xseg_close(allocator));
}

/* Found at the end: close does what is left to do. */
TEST(while_closing)
{
    struct xseg_allocator *allocator = env_open(NULL);

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuStreamSynchronize", 1, ILLEGAL_ADDRESS));
    assert_ok(xseg_close(allocator));
}

/* While a device is opened: nothing is kept, and the next attempt opens it. */
TEST(while_opening)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = NULL;

    assert_ok(xseg_sim_fail("cuMemMap", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 0, 512, NULL, &ptr), XSEG_ERR_DEVICE_LOST);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_ok(xseg_close(allocator));
}

/* The question about a pending block finds the device lost: nothing is served, though it is cached. */
TEST(while_asking)
{
    for (unsigned is_known = 0; is_known < 2; is_known++) {
        struct xseg_allocator *allocator = env_open("expandable_segments:True");
        const xseg_stream side = env_stream();
        void *pending = env_alloc(allocator, 5 * MIB, NULL), *ptr = NULL;

        (void)state;
        env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        /* A stream has a shortcut after its second request, and none after a configuration. */
        if (is_known != 0)
            env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        assert_ok(xseg_sim_launch(side, UINT64_MAX));
        assert_ok(xseg_record_stream(allocator, pending, side));
        env_free(allocator, pending);
        if (is_known == 0)
            assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
        assert_ok(xseg_sim_fail("cuEventQuery", 1, ILLEGAL_ADDRESS));
        env_expect_error(xseg_alloc(allocator, 0, 6 * MIB, NULL, &ptr), XSEG_ERR_DEVICE_LOST,
                         "device 0 is lost");
        assert_ok(xseg_close(allocator));
    }
}

/* Memory of a pool's own, at the address that `context` is. */
static void *give(void *context, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    return context;
}

static void take_back(void *context, void *memory, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    assert_ptr_equal(memory, context);
}

/* A close that is refused by another device has let go of what a lost one had pending: its address may come
 * again, and its streams may pass. */
static void pending_goes_with_the_device(size_t bytes)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool[2];
    void *gone, *other = NULL;

    options.memory = (struct xseg_pool_memory){give, take_back, (void *)((uintptr_t)1 << 46)};
    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:False");
    const xseg_stream side = env_stream();
    for (int device = 0; device < 2; device++)
        assert_ok(xseg_pool_create(allocator, device, &options, &pool[device]));
    gone = env_alloc_in(allocator, pool[0], bytes, NULL);
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, gone, side));
    env_free(allocator, gone);
    assert_ok(xseg_sim_fail("cuMemAlloc", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 0, 100 * MIB, NULL, &other), XSEG_ERR_DEVICE_LOST);

    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &other));
    env_free(allocator, other);
    fault.call = "cuMemFree";
    fault.nth = fault.every = 1;
    fault.error = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    env_expect_error(xseg_close(allocator), XSEG_ERR_DRIVER, "cuMemFree");
    assert_ok(xseg_sim_fault_set(1, NULL));

    assert_int_equal(xseg_free(allocator, gone), XSEG_ERR_NOT_ALLOCATED);
    assert_ptr_equal(env_alloc_in(allocator, pool[1], bytes, NULL), gone);
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    env_free(allocator, gone);
    assert_ok(xseg_close(allocator));
}

TEST(with_something_pending)
{
    pending_goes_with_the_device(5 * MIB);
    pending_goes_with_the_device(5000);
}
