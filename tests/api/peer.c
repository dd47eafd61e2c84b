/* SPDX-License-Identifier: MIT */
/* Peer access to present and future mappings, also after pauses, remaps and imports.  The simulator reports missing rights. */
#include <string.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* Entry points of the driver, by their plain C types. */
struct CUctx_st;
int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(struct CUctx_st *context);
int cuCtxEnablePeerAccess(struct CUctx_st *context, unsigned flags);
int cuCtxDisablePeerAccess(struct CUctx_st *context);
int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, size_t bytes);
int cuCtxSynchronize(void);

/* Of CUresult. */
#define PEER_ACCESS_ALREADY_ENABLED 704
#define UNKNOWN                     999

static unsigned long long address_of(const void *ptr)
{
    return (uintptr_t)ptr;
}

/* An allocator on devices of 1 GiB with real contents; the arguments are further members of struct xseg_sim_settings. */
#define open_devices(config, ...)                                                            \
    env_open_with_clock(&(struct xseg_sim_settings){sizeof(struct xseg_sim_settings),        \
                                                    .memory_bytes = GIB, .real_bytes = true, \
                                                    __VA_ARGS__},                            \
                        config)

static struct xseg_allocator *open_three_devices(const char *config)
{
    return open_devices(config, .devices = 3);
}

static bool has_access(int device, const void *ptr)
{
    return env_access_at(ptr, device) == ENV_READ_WRITE;
}

static bool has_access_to_all(int device, const void *ptr, size_t bytes)
{
    for (size_t offset = 0; offset < bytes; offset += 2 * MIB)
        if (!has_access(device, (const char *)ptr + offset))
            return false;
    return true;
}

/* Make the primary context of a device current. */
static void make_current(int device)
{
    struct CUctx_st *context = NULL;

    assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
    assert_int_equal(cuCtxSetCurrent(context), 0);
}

/* Synchronize the current context, which is that of the device, and release it. */
static void synchronize_and_leave(int device)
{
    assert_int_equal(cuCtxSynchronize(), 0);
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
}

/* Enable access of device 1 to memory of device 0, and use it. */
static void enable_access_of_1_to_0(struct xseg_allocator *allocator)
{
    void *block = env_alloc_on(allocator, 0, 3 * MIB);

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    make_current(1);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(block), 3 * MIB));
    synchronize_and_leave(1);
    env_free(allocator, block);
}

/* Copy memory of device 0 to device 1, by work of device 1. */
static void copy_to_peer(bool is_allowed)
{
    struct xseg_allocator *allocator = open_three_devices(NULL);
    unsigned char *source = env_alloc_on(allocator, 0, 30 * MIB),
                  *destination = env_alloc_on(allocator, 1, 30 * MIB);

    memset(source, 41, 30 * MIB);
    if (is_allowed)
        assert_ok(xseg_peer_allow(allocator, 0, 1));
    make_current(1);
    assert_int_equal(cuMemcpyDtoD_v2(address_of(destination), address_of(source), 30 * MIB), 0);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(source), 30 * MIB));
    synchronize_and_leave(1);
    assert_int_equal(destination[30 * MIB - 1], 41);
    env_free(allocator, source, destination);
    env_close(allocator);
}

static void copy_without_access(void)
{
    copy_to_peer(false);
}

static void launch_in_reverse_direction(void)
{
    struct xseg_allocator *allocator = open_three_devices(NULL);
    unsigned char *block = env_alloc_on(allocator, 1, 3 * MIB);

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    make_current(0);
    (void)xseg_sim_launch_on(NULL, 10, address_of(block), 3 * MIB);
}

TEST(work_of_a_peer_requires_peer_access)
{
    char text[2048];

    assert_true(child_aborted(child_run_without_argument(copy_without_access, text, sizeof(text))));
    assert_non_null(strstr(text, "access to memory without access rights"));
    assert_non_null(strstr(text, "accessed by device 1"));
    assert_true(
        child_aborted(child_run_without_argument(launch_in_reverse_direction, text, sizeof(text))));
    assert_non_null(strstr(text, "accessed by device 0"));
    copy_to_peer(true);
}

TEST_IN_POOL(peer_access_covers_present_and_future_mappings, open_three_devices(NULL))
{
    void *first = env_alloc_on(allocator, 0, 50 * MIB), *small = env_alloc_on(allocator, 0, 1000);
    void *pool_block = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_false(has_access(1, first));
    /* The driver calls of a growth without peers. */
    uint64_t calls = xseg_sim_calls(NULL);
    const uint64_t sets = xseg_sim_calls("cuMemSetAccess");
    void *growing = env_alloc_on(allocator, 0, 60 * MIB);
    const uint64_t growth_calls = xseg_sim_calls(NULL) - calls;
    env_free(allocator, growing);
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), sets + 1);

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_true(has_access_to_all(1, first, 50 * MIB) && has_access(1, small));
    assert_true(has_access_to_all(1, pool_block, 20 * MIB));
    assert_true(has_access_to_all(0, first, 50 * MIB));
    assert_false(has_access(2, first));
    /* A growth makes as many driver calls as without peers. */
    calls = xseg_sim_calls(NULL);
    void *later = env_alloc_on(allocator, 0, 60 * MIB);
    assert_int_equal(xseg_sim_calls(NULL) - calls, growth_calls);
    assert_true(has_access_to_all(1, later, 60 * MIB) && has_access_to_all(0, later, 60 * MIB));
    /* A second peer, and the first one again, which makes no driver call. */
    assert_ok(xseg_peer_allow(allocator, 0, 2));
    assert_true(has_access_to_all(2, later, 60 * MIB) && has_access_to_all(1, later, 60 * MIB));
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    /* Peer access is one-directional. */
    void *block_of_peer = env_alloc_on(allocator, 1, 3 * MIB);
    assert_false(has_access(0, block_of_peer));
    env_free(allocator, block_of_peer, first, small, later, pool_block);
}

TEST(peer_access_has_the_documented_cost)
{
    struct xseg_allocator *allocator = open_three_devices(NULL);
    void *first = env_alloc_on(allocator, 0, 50 * MIB), *small = env_alloc_on(allocator, 0, 1000);

    env_free(allocator, env_alloc_on(allocator, 1, 1000));
    uint64_t calls = xseg_sim_calls("cuMemSetAccess");
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_int_equal(xseg_sim_calls("cuMemSetAccess") - calls, 2); /* a large and a small run */
    assert_int_equal(xseg_sim_calls("cuDeviceCanAccessPeer"), 1);
    assert_int_equal(xseg_sim_calls("cuCtxEnablePeerAccess"), 1);
    env_free(allocator, first, small);
    env_close(allocator);

    /* If the driver accepts one mapping per call, the three pages of 50 MiB need three calls. */
    allocator = open_devices(NULL, .devices = 3, .single_mapping_calls = true);
    first = env_alloc_on(allocator, 0, 50 * MIB);
    env_free(allocator, env_alloc_on(allocator, 1, 1000));
    calls = xseg_sim_calls("cuMemSetAccess");
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_int_equal(xseg_sim_calls("cuMemSetAccess") - calls, 3);
    assert_true(has_access_to_all(1, first, 50 * MIB));
    env_free(allocator, first);
    env_close(allocator);
}

TEST_ON(peer_access_survives_a_pause, open_three_devices(NULL))
{
    struct xseg_pool *paused_later = env_pool(allocator), *paused_before = env_pool(allocator);
    unsigned char *first = env_alloc_in(allocator, paused_later, 30 * MIB, NULL),
                  *second = env_alloc_in(allocator, paused_before, 30 * MIB, NULL);

    memset(first, 7, 30 * MIB);
    memset(second, 8, 30 * MIB);
    /* Peer access is enabled while one pool is paused, and before the other pool is paused. */
    assert_ok(xseg_pool_pause(paused_before, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_pool_pause(paused_later, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_pool_resume(paused_before));
    assert_ok(xseg_pool_resume(paused_later));
    assert_true(has_access_to_all(1, first, 30 * MIB) && has_access_to_all(1, second, 30 * MIB));
    assert_true(first[30 * MIB - 1] == 7 && second[0] == 8);
    env_free(allocator, first, second);
    assert_ok(xseg_pool_release(paused_later));
    assert_ok(xseg_pool_release(paused_before));
}

/* On a full device, idle pages of one stream are remapped to a block of another. */
TEST_ON(peer_access_follows_remapped_pages, open_three_devices(NULL))
{
    xseg_stream stream = env_stream();
    void *idle = env_alloc_on(allocator, 0, 700 * MIB);

    env_free(allocator, idle);
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    void *block = env_alloc(allocator, 900 * MIB, stream);
    /* The block has 45 pages of 20 MiB, which were not all created. */
    assert_true(xseg_sim_calls("cuMemCreate") - created < 900 / 20);
    assert_true(has_access_to_all(1, block, 900 * MIB));
    env_free(allocator, block);
    env_empty_cache(allocator);
}

TEST_ON(peer_access_covers_imports, open_three_devices(NULL))
{
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    struct exported_handles exported;
    void *imported_before = NULL, *imported_after = NULL, *base[2] = {NULL};

    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_ok(export_handles(allocator, block, XSEG_HANDLE_FD, &exported));
    assert_ok(import_handles(allocator, &exported, &imported_before, &base[0]));
    assert_false(has_access(1, imported_before));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(import_handles(allocator, &exported, &imported_after, &base[1]));
    export_handles_close(&exported);
    assert_true(has_access_to_all(1, imported_before, 50 * MIB) &&
                has_access_to_all(1, imported_after, 50 * MIB));
    assert_ok(xseg_import_close(allocator, base[0]));
    assert_ok(xseg_import_close(allocator, base[1]));
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

TEST_ON(peer_access_covers_classic_segments, open_three_devices("expandable_segments:False"))
{
    void *first = env_alloc_on(allocator, 0, 3 * MIB);
    struct CUctx_st *owner = NULL;

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    void *later = env_alloc_on(allocator, 0, 40 * MIB);
    make_current(1);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(first), 3 * MIB));
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(later), 40 * MIB));
    /* Peer access that the program has enabled or enables later is no error. */
    assert_int_equal(cuDevicePrimaryCtxRetain(&owner, 2), 0);
    assert_int_equal(cuCtxEnablePeerAccess(owner, 0), 0);
    assert_ok(xseg_peer_allow(allocator, 2, 1));
    assert_int_equal(cuCtxEnablePeerAccess(owner, 0), PEER_ACCESS_ALREADY_ENABLED);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(2), 0);
    synchronize_and_leave(1);
    env_free(allocator, first, later);
}

/* A close that fails has released contexts, and with them their peer access, which later calls enable again. */
TEST_TIMES(peer_access_survives_a_failed_close, 2, open_three_devices("expandable_segments:False"))
{
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_sim_fail("cuDevicePrimaryCtxRelease", 2, UNKNOWN));
    assert_error(xseg_close(allocator), DRIVER, "cuDevicePrimaryCtxRelease");
    if (i != 0) { /* the driver also fails to enable the access again */
        env_fault(1, .call = "cuCtxEnablePeerAccess", .error = UNKNOWN);
        assert_ok(xseg_sim_fail("cuDevicePrimaryCtxRelease", 2, UNKNOWN));
        assert_int_equal(xseg_close(allocator), XSEG_ERR_DRIVER);
        assert_int_equal(xseg_sim_fault_count(1), 1);
    }
    enable_access_of_1_to_0(allocator);
}

TEST_ON(peer_access_covers_devices_without_vmm,
        open_devices(NULL, .devices = 3, .without_vmm = true))
{
    enable_access_of_1_to_0(allocator);
}

TEST_ON(invalid_peers_are_rejected, open_devices(NULL, .devices = 3, .without_peers = true))
{
    void *block = env_alloc_on(allocator, 0, 3 * MIB);

    assert_error(xseg_peer_allow(NULL, 0, 1), ARGUMENT, "NULL");
    assert_error(xseg_peer_allow(allocator, 0, 3), ARGUMENT, "device 3 does not exist");
    assert_error(xseg_peer_allow(allocator, -1, 1), ARGUMENT, "device -1 does not exist");
    assert_error(xseg_peer_allow(allocator, 1, 1), ARGUMENT, "same device");
    assert_error(xseg_peer_allow(allocator, 0, 1), UNSUPPORTED,
                 "device 1 cannot access memory of device 0");
    assert_false(has_access(1, block));
    env_free(allocator, block);
}

/* The driver supports eight peers of a context. */
TEST_ON(excess_peers_are_rejected, open_devices(NULL, .devices = 10))
{
    for (int owner = 1; owner < 9; owner++)
        assert_ok(xseg_peer_allow(allocator, owner, 0));
    void *block = env_alloc_on(allocator, 9, 3 * MIB);
    assert_error(xseg_peer_allow(allocator, 9, 0), UNSUPPORTED, "CUDA_ERROR_TOO_MANY_PEERS");
    assert_false(has_access(0, block));
    env_free(allocator, block);
}

static void fail_set_access(uint64_t nth, uint64_t every)
{
    env_fault(0, .call = "cuMemSetAccess", .nth = nth, .every = every, .error = UNKNOWN);
}

/* One of the set-access calls for four pages fails, so the access to the earlier pages is rolled back. */
TEST_ON(failed_peer_access_changes_nothing,
        open_devices(NULL, .devices = 3, .single_mapping_calls = true))
{
    struct CUctx_st *owner = NULL;
    void *first = env_alloc_on(allocator, 0, 50 * MIB), *small = env_alloc_on(allocator, 0, 1000);
    env_free(allocator, env_alloc_on(allocator, 1, 1000)); /* so that the device is open */
    for (uint64_t nth = 1; nth <= 4; nth++) {
        fail_set_access(nth, 0);
        assert_error(xseg_peer_allow(allocator, 0, 1), DRIVER,
                     "device 1 has the same access as before");
        assert_false(has_access(1, first) || has_access(1, (char *)first + 48 * MIB));
        assert_false(has_access(1, small));
        assert_true(has_access_to_all(0, first, 50 * MIB) && has_access(0, small));
        /* The access between the contexts is disabled again, so the program can enable it. */
        make_current(1);
        assert_int_equal(cuDevicePrimaryCtxRetain(&owner, 0), 0);
        assert_int_equal(cuCtxEnablePeerAccess(owner, 0), 0);
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
        synchronize_and_leave(1);
        /* The program has enabled the access of the context itself, so this access stays enabled. */
        fail_set_access(nth, 0);
        assert_int_equal(xseg_peer_allow(allocator, 0, 1), XSEG_ERR_DRIVER);
        make_current(1);
        assert_int_equal(cuCtxEnablePeerAccess(owner, 0), PEER_ACCESS_ALREADY_ENABLED);
        assert_int_equal(cuCtxDisablePeerAccess(owner), 0);
        synchronize_and_leave(1);
    }
    /* Memory that is mapped after a failure is accessible by the owner only. */
    void *later = env_alloc_on(allocator, 0, 100 * MIB);
    assert_false(has_access(1, later));
    /* The rollback fails as well. */
    fail_set_access(2, 1);
    assert_error(xseg_peer_allow(allocator, 0, 1), DRIVER, "device 1 keeps access to some memory");
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_true(has_access_to_all(1, first, 50 * MIB) && has_access_to_all(1, later, 100 * MIB));
    env_free(allocator, first, small, later);
}

/* Calls of xseg_peer_allow() in notifications. */
struct peer_calls {
    struct xseg_allocator *allocator;
    xseg_status statuses[8];
    unsigned count;
};

static void allow_peer_in_notification(void *context, const struct xseg_mapping *mapping)
{
    struct peer_calls *calls = context;

    (void)mapping;
    if (calls->count < COUNT_OF(calls->statuses))
        calls->statuses[calls->count++] = xseg_peer_allow(calls->allocator, 0, 1);
}

/* During a pause or resume the pages of the pool are mapped with the previous access, so the call fails. */
TEST_IN_POOL(pause_and_resume_block_changes_of_peers, open_three_devices(NULL))
{
    struct peer_calls calls = {allocator, {0}, 0};
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    const uint64_t id = env_observe(allocator, .on_unmap = allow_peer_in_notification,
                                    .on_map = allow_peer_in_notification, .context = &calls);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_true(calls.count > 0);
    assert_int_equal(calls.statuses[0], XSEG_ERR_BUSY);
    calls.count = 0;
    assert_ok(xseg_pool_resume(pool));
    assert_true(calls.count > 0);
    assert_int_equal(calls.statuses[0], XSEG_ERR_BUSY);
    assert_ok(xseg_observer_remove(allocator, id));
    /* Between a pause and a resume the call succeeds, and it applies to the pages that the resume maps. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_access_to_all(1, block, 30 * MIB));
    env_free(allocator, block);
}

static void expect_failure_in_child(const void *argument)
{
    struct xseg_allocator *allocator = *(struct xseg_allocator *const *)argument;

    _exit(xseg_peer_allow(allocator, 0, 1) == XSEG_ERR_FORKED ? 0 : 1);
}

TEST_ON(calls_of_a_forked_child_fail, open_three_devices(NULL))
{
    char text[256];

    assert_int_equal(child_run(expect_failure_in_child, &allocator, text, sizeof(text)), 0);
}
