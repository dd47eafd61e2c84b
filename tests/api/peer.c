/* SPDX-License-Identifier: MIT */
/* Peer access to present and future mappings, over pauses, remaps, imports.  The simulator reports missing rights. */
#include <string.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* An entry point of the driver, by its plain C types. */
struct CUctx_st;
int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(struct CUctx_st *context);
int cuCtxEnablePeerAccess(struct CUctx_st *context, unsigned flags);
int cuCtxDisablePeerAccess(struct CUctx_st *context);
int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, size_t bytes);
int cuCtxSynchronize(void);

#define ENABLED_ALREADY 704
#define UNKNOWN         999

static unsigned long long address_of(const void *ptr)
{
    return (uintptr_t)ptr;
}

/* An allocator on devices of 1 GiB with real contents, and other members of struct xseg_sim_settings. */
#define open_devices(config, ...)                                                            \
    env_open_with_clock(&(struct xseg_sim_settings){sizeof(struct xseg_sim_settings),        \
                                                    .memory_bytes = GIB, .real_bytes = true, \
                                                    __VA_ARGS__},                            \
                        config)

static struct xseg_allocator *open_three(const char *config)
{
    return open_devices(config, .devices = 3);
}

static bool reaches(int device, const void *ptr)
{
    return env_access_at(ptr, device) == ENV_READ_WRITE;
}

static bool reaches_all(int device, const void *ptr, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        if (!reaches(device, (const char *)ptr + at))
            return false;
    return true;
}

static void enter(int device)
{
    struct CUctx_st *context = NULL;

    assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
    assert_int_equal(cuCtxSetCurrent(context), 0);
}

static void leave(int device)
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
    enter(1);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(block), 3 * MIB));
    leave(1);
    env_free(allocator, block);
}

static void copy_between(bool is_allowed)
{
    struct xseg_allocator *allocator = open_three(NULL);
    unsigned char *here = env_alloc_on(allocator, 0, 30 * MIB),
                  *there = env_alloc_on(allocator, 1, 30 * MIB);

    memset(here, 41, 30 * MIB);
    if (is_allowed)
        assert_ok(xseg_peer_allow(allocator, 0, 1));
    enter(1);
    assert_int_equal(cuMemcpyDtoD_v2(address_of(there), address_of(here), 30 * MIB), 0);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(here), 30 * MIB));
    leave(1);
    assert_int_equal(there[30 * MIB - 1], 41);
    env_free(allocator, here, there);
    env_close(allocator);
}

static void copy_without_access(void)
{
    copy_between(false);
}

static void launch_in_reverse_direction(void)
{
    struct xseg_allocator *allocator = open_three(NULL);
    unsigned char *there = env_alloc_on(allocator, 1, 3 * MIB);

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    enter(0);
    (void)xseg_sim_launch_on(NULL, 10, address_of(there), 3 * MIB);
}

TEST(work_of_a_peer_requires_peer_access)
{
    char text[2048];

    assert_true(child_aborted(child_run_part(copy_without_access, text, sizeof(text))));
    assert_non_null(strstr(text, "access to memory without access rights"));
    assert_non_null(strstr(text, "accessed by device 1"));
    assert_true(child_aborted(child_run_part(launch_in_reverse_direction, text, sizeof(text))));
    assert_non_null(strstr(text, "accessed by device 0"));
    copy_between(true);
}

TEST_IN_POOL(peer_access_covers_present_and_future_mappings, open_three(NULL))
{
    void *first = env_alloc_on(allocator, 0, 50 * MIB), *small = env_alloc_on(allocator, 0, 1000);
    void *own = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_false(reaches(1, first));
    uint64_t calls = xseg_sim_calls(NULL);
    const uint64_t sets = xseg_sim_calls("cuMemSetAccess");
    void *before = env_alloc_on(allocator, 0, 60 * MIB);
    const uint64_t growth = xseg_sim_calls(NULL) - calls;
    env_free(allocator, before);
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), sets + 1);
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_true(reaches_all(1, first, 50 * MIB) && reaches(1, small));
    assert_true(reaches_all(1, own, 20 * MIB));
    assert_true(reaches_all(0, first, 50 * MIB));
    assert_false(reaches(2, first));
    /* A growth makes as many driver calls as without peers. */
    calls = xseg_sim_calls(NULL);
    void *later = env_alloc_on(allocator, 0, 60 * MIB);
    assert_int_equal(xseg_sim_calls(NULL) - calls, growth);
    assert_true(reaches_all(1, later, 60 * MIB) && reaches_all(0, later, 60 * MIB));
    /* A second peer, and the first one again, which makes no driver call. */
    assert_ok(xseg_peer_allow(allocator, 0, 2));
    assert_true(reaches_all(2, later, 60 * MIB) && reaches_all(1, later, 60 * MIB));
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    /* Peer access is one-directional. */
    void *there = env_alloc_on(allocator, 1, 3 * MIB);
    assert_false(reaches(0, there));
    env_free(allocator, there, first, small, later, own);
}

TEST(peer_access_has_the_documented_cost)
{
    struct xseg_allocator *allocator = open_three(NULL);
    void *first = env_alloc_on(allocator, 0, 50 * MIB), *small = env_alloc_on(allocator, 0, 1000);

    env_free(allocator, env_alloc_on(allocator, 1, 1000));
    uint64_t calls = xseg_sim_calls("cuMemSetAccess");
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_int_equal(xseg_sim_calls("cuMemSetAccess") - calls, 2);
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
    assert_true(reaches_all(1, first, 50 * MIB));
    env_free(allocator, first);
    env_close(allocator);
}

TEST_ON(peer_access_survives_a_pause, open_three(NULL))
{
    struct xseg_pool *before = env_pool(allocator), *paused = env_pool(allocator);
    unsigned char *one = env_alloc_in(allocator, before, 30 * MIB, NULL),
                  *two = env_alloc_in(allocator, paused, 30 * MIB, NULL);

    memset(one, 7, 30 * MIB);
    memset(two, 8, 30 * MIB);
    /* Peer access is enabled while one pool is paused, and before the other pool is paused. */
    assert_ok(xseg_pool_pause(paused, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_pool_pause(before, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_pool_resume(paused));
    assert_ok(xseg_pool_resume(before));
    assert_true(reaches_all(1, one, 30 * MIB) && reaches_all(1, two, 30 * MIB));
    assert_true(one[30 * MIB - 1] == 7 && two[0] == 8);
    env_free(allocator, one, two);
    assert_ok(xseg_pool_release(before));
    assert_ok(xseg_pool_release(paused));
}

/* On a full device, idle pages of one stream are remapped to a block of another. */
TEST_ON(peer_access_follows_remapped_pages, open_three(NULL))
{
    xseg_stream stream = env_stream();
    void *idle = env_alloc_on(allocator, 0, 700 * MIB);

    env_free(allocator, idle);
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    void *block = env_alloc(allocator, 900 * MIB, stream);
    /* The block has more pages than were created. */
    assert_true(xseg_sim_calls("cuMemCreate") - created < 900 / 20);
    assert_true(reaches_all(1, block, 900 * MIB));
    env_free(allocator, block);
    env_empty_cache(allocator);
}

TEST_ON(peer_access_covers_imports, open_three(NULL))
{
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    struct exported_handles exported;
    void *before = NULL, *after = NULL, *base[2] = {NULL};

    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_ok(export_handles(allocator, block, XSEG_HANDLE_FD, &exported));
    assert_ok(import_handles(allocator, &exported, &before, &base[0]));
    assert_false(reaches(1, before));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(import_handles(allocator, &exported, &after, &base[1]));
    export_handles_close(&exported);
    assert_true(reaches_all(1, before, 50 * MIB) && reaches_all(1, after, 50 * MIB));
    assert_ok(xseg_import_close(allocator, base[0]));
    assert_ok(xseg_import_close(allocator, base[1]));
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

TEST_ON(peer_access_covers_classic_segments, open_three("expandable_segments:False"))
{
    void *first = env_alloc_on(allocator, 0, 3 * MIB);
    struct CUctx_st *owner = NULL;

    assert_ok(xseg_peer_allow(allocator, 0, 1));
    void *later = env_alloc_on(allocator, 0, 40 * MIB);
    enter(1);
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(first), 3 * MIB));
    assert_ok(xseg_sim_launch_on(NULL, 10, address_of(later), 40 * MIB));
    /* Peer access that the program has enabled or enables later is no error. */
    assert_int_equal(cuDevicePrimaryCtxRetain(&owner, 2), 0);
    assert_int_equal(cuCtxEnablePeerAccess(owner, 0), 0);
    assert_ok(xseg_peer_allow(allocator, 2, 1));
    assert_int_equal(cuCtxEnablePeerAccess(owner, 0), ENABLED_ALREADY);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(2), 0);
    leave(1);
    env_free(allocator, first, later);
}

/* A failed close has released contexts, and with them their peer access. */
TEST_TIMES(peer_access_survives_a_failed_close, 2, open_three("expandable_segments:False"))
{
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_sim_fail("cuDevicePrimaryCtxRelease", 2, UNKNOWN));
    assert_error(xseg_close(allocator), DRIVER, "cuDevicePrimaryCtxRelease");
    /* The driver fails to enable it again, so a new call enables the pair. */
    if (i != 0) {
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
    assert_false(reaches(1, block));
    env_free(allocator, block);
}

/* The driver supports eight peers of a context. */
TEST_ON(excess_peers_are_rejected, open_devices(NULL, .devices = 10))
{
    for (int owner = 1; owner < 9; owner++)
        assert_ok(xseg_peer_allow(allocator, owner, 0));
    void *block = env_alloc_on(allocator, 9, 3 * MIB);
    assert_error(xseg_peer_allow(allocator, 9, 0), UNSUPPORTED, "CUDA_ERROR_TOO_MANY_PEERS");
    assert_false(reaches(0, block));
    env_free(allocator, block);
}

static void fail_set_access(uint64_t nth, uint64_t every)
{
    env_fault(0, .call = "cuMemSetAccess", .nth = nth, .every = every, .error = UNKNOWN);
}

/* The call for the second run of pages fails, so the access of the first run is rolled back. */
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
        assert_false(reaches(1, first) || reaches(1, (char *)first + 48 * MIB));
        assert_false(reaches(1, small));
        assert_true(reaches_all(0, first, 50 * MIB) && reaches(0, small));
        enter(1);
        assert_int_equal(cuDevicePrimaryCtxRetain(&owner, 0), 0);
        assert_int_equal(cuCtxEnablePeerAccess(owner, 0), 0);
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
        leave(1);
        /* Another user had enabled it before, so it stays enabled. */
        fail_set_access(nth, 0);
        assert_int_equal(xseg_peer_allow(allocator, 0, 1), XSEG_ERR_DRIVER);
        enter(1);
        assert_int_equal(cuCtxEnablePeerAccess(owner, 0), ENABLED_ALREADY);
        assert_int_equal(cuCtxDisablePeerAccess(owner), 0);
        leave(1);
    }
    /* Memory mapped after a failure is accessible by the owner only. */
    void *later = env_alloc_on(allocator, 0, 100 * MIB);
    assert_false(reaches(1, later));
    /* The rollback fails as well. */
    fail_set_access(2, 1);
    assert_error(xseg_peer_allow(allocator, 0, 1), DRIVER, "device 1 keeps access to some memory");
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_true(reaches_all(1, first, 50 * MIB) && reaches_all(1, later, 100 * MIB));
    env_free(allocator, first, small, later);
}

/* Runs during the pause or resume of the pool, whose pages are mapped with the previous access. */
struct meddling {
    struct xseg_allocator *allocator;
    xseg_status answers[8];
    unsigned count;
};

static void call_in_notification(void *context, const struct xseg_mapping *mapping)
{
    struct meddling *meddling = context;

    (void)mapping;
    if (meddling->count < COUNT_OF(meddling->answers))
        meddling->answers[meddling->count++] = xseg_peer_allow(meddling->allocator, 0, 1);
}

TEST_IN_POOL(pause_and_resume_block_changes_of_peers, open_three(NULL))
{
    struct meddling meddling = {allocator, {0}, 0};
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    const uint64_t id =
        env_observe(allocator, .on_unmap = call_in_notification, .context = &meddling);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_true(meddling.count > 0);
    assert_int_equal(meddling.answers[0], XSEG_ERR_BUSY);
    assert_ok(xseg_observer_remove(allocator, id));
    assert_ok(xseg_peer_allow(allocator, 0, 1));
    assert_ok(xseg_pool_resume(pool));
    assert_true(reaches_all(1, block, 30 * MIB));
    env_free(allocator, block);
}

static void expect_failure_in_child(const void *argument)
{
    struct xseg_allocator *allocator = *(struct xseg_allocator *const *)argument;

    _exit(xseg_peer_allow(allocator, 0, 1) == XSEG_ERR_FORKED ? 0 : 1);
}

TEST_ON(calls_of_a_forked_child_fail, open_three(NULL))
{
    char text[256];

    assert_int_equal(child_run(expect_failure_in_child, &allocator, text, sizeof(text)), 0);
}
