/* SPDX-License-Identifier: MIT */
/* Eight devices in one process, each with a range and a thread. On one device another thread holds the device memory lock or
 * an observer does not return; one device is full, one has work that does not end, and one loses its context. The other devices
 * continue, with and without peer access, and never wait for another device: otherwise the test would not end. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "src/core/device/device.h"
#include "tests/support/driver_calls.h"
#include "tests/support/ranges.h"

#define DEVICES  8
#define GRANULES 32u
#define ROUNDS   60u

/* STOPPED: another thread holds the device memory lock, or an observer does not return. */
enum condition { NORMAL, STOPPED, FULL, SLOW, LOST };

static const enum condition conditions[DEVICES] = {STOPPED, FULL,   SLOW,   LOST,
                                                   NORMAL,  NORMAL, NORMAL, NORMAL};

struct fixture {
    struct xseg_allocator *allocator;
    struct xseg_range *range[DEVICES];
    bool has_peers;
    atomic_bool is_stopped; /* the observer of a device does not return */
    atomic_bool may_return; /* the observer may return */
    atomic_uint done;       /* threads that have finished */
};

struct worker {
    struct fixture *fixture;
    int device;
    void *context;
    xseg_stream stream;
    unsigned commits, failures;
};

static void expect(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t address_of(struct xseg_range *range, unsigned at)
{
    struct xseg_range_info query = {sizeof(query)};

    expect(xseg_range_query(range, &query) == XSEG_OK);
    return (uint64_t)(uintptr_t)query.base + at * PAGE;
}

/* A device has access to its own memory, and the next device has if peer access was granted. */
static void expect_access(const struct worker *worker, uint64_t address)
{
    const int next = (worker->device + 1) % DEVICES;

    for (int device = 0; device < DEVICES; device++) {
        const int location[] = {1, device}; /* CU_MEM_LOCATION_TYPE_DEVICE */
        unsigned long long flags = 0;

        expect(cuMemGetAccess(&flags, location, address) == 0);
        expect((flags == ENV_READ_WRITE) ==
               (device == worker->device || (worker->fixture->has_peers && device == next)));
    }
}

/* --- The threads. --- */

/* One round of a device: commit pages, alias one, launch work on them, decommit them, and reuse one before the work ends. */
static void run_round(struct worker *worker, unsigned round)
{
    struct xseg_range *range = worker->fixture->range[worker->device];
    const unsigned first = round % 8 * 4;
    const xseg_status status = xseg_range_commit(range, first * PAGE, 2 * PAGE, worker->stream);

    if (conditions[worker->device] == FULL) {
        expect(status == XSEG_ERR_NO_MEMORY);
        worker->failures++;
        return;
    }
    expect(status == XSEG_OK);
    worker->commits++;
    expect_access(worker, address_of(range, first));
    expect(xseg_range_alias(range, (first + 2) * PAGE, PAGE, range, first * PAGE) == XSEG_OK);
    expect_access(worker, address_of(range, first + 2));
    expect(xseg_sim_launch_on(worker->stream, 1000, address_of(range, first), 3 * PAGE) == XSEG_OK);
    expect(xseg_range_decommit(range, first * PAGE, 3 * PAGE, worker->stream) == XSEG_OK);
    expect(xseg_range_commit(range, first * PAGE, PAGE, worker->stream) == XSEG_OK);
    expect(xseg_range_decommit(range, first * PAGE, PAGE, worker->stream) == XSEG_OK);
    expect(xseg_sim_finish(worker->stream) == XSEG_OK);
    expect(xseg_range_decommit(range, 0, 0, worker->stream) == XSEG_OK);
}

/* Work that does not end, and half of the range whose unmap waits for it. */
static void run_slow(struct worker *worker)
{
    struct xseg_range *range = worker->fixture->range[worker->device];

    for (unsigned at = 0; at < GRANULES / 2; at++) {
        expect(xseg_range_commit(range, at * PAGE, PAGE, worker->stream) == XSEG_OK);
        worker->commits++;
        expect(xseg_sim_launch_on(worker->stream, UINT64_MAX, address_of(range, at), PAGE) ==
               XSEG_OK);
        expect(xseg_range_decommit(range, at * PAGE, PAGE, worker->stream) == XSEG_OK);
    }
}

/* Another user of the context resets it. */
static void run_lost(struct worker *worker)
{
    struct xseg_range *range = worker->fixture->range[worker->device];

    for (unsigned round = 0; round < ROUNDS / 2; round++)
        run_round(worker, round);
    expect(xseg_range_commit(range, 4 * PAGE, PAGE, NULL) == XSEG_OK);
    expect(cuDevicePrimaryCtxReset_v2(worker->device) == 0);
    /* The first call that needs the context detects the loss. */
    expect(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL) == XSEG_ERR_DEVICE_LOST);
    expect(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL) == XSEG_OK);
    for (unsigned round = 0; round < ROUNDS; round++) {
        expect(xseg_range_commit(range, 0, PAGE, NULL) == XSEG_ERR_DEVICE_LOST);
        worker->failures++;
    }
}

static void run_normal(struct worker *worker)
{
    struct xseg_device_stats device_stats[DEVICES];
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    size_t count = 0;

    scope.device = worker->device;
    for (unsigned round = 0; round < ROUNDS; round++) {
        run_round(worker, round);
        expect(xseg_device_stats_get(worker->fixture->allocator, device_stats,
                                     sizeof(device_stats[0]), DEVICES, &count) == XSEG_OK &&
               count == DEVICES);
        expect(xseg_stats_get(worker->fixture->allocator, &scope, &stats) == XSEG_OK);
        expect(xseg_range_prepare(worker->fixture->range[worker->device], PAGE) == XSEG_OK ||
               conditions[worker->device] == FULL);
        expect(xseg_trim(worker->fixture->allocator, &scope, NULL, NULL) == XSEG_OK);
    }
}

static void run_full(struct worker *worker)
{
    for (unsigned round = 0; round < ROUNDS; round++)
        run_round(worker, round);
}

static void create_stream(struct worker *worker)
{
    expect(cuDevicePrimaryCtxRetain(&worker->context, worker->device) == 0);
    expect(cuCtxSetCurrent(worker->context) == 0);
    expect(cuStreamCreate(&worker->stream, 1) == 0);
}

static void *run_worker(void *self)
{
    static void (*const scenarios[])(struct worker *) = {run_normal, run_normal, run_full, run_slow,
                                                         run_lost};
    struct worker *worker = self;

    create_stream(worker);
    scenarios[conditions[worker->device]](worker);
    atomic_fetch_add(&worker->fixture->done, 1);
    return NULL;
}

/* --- The fixture. --- */

static void open_fixture(struct fixture *fixture, bool has_peers)
{
    *fixture = (struct fixture){.has_peers = has_peers};
    fixture->allocator =
        env_open_sim(NULL, .devices = DEVICES, .memory_bytes = 2 * GRANULES * PAGE);
    for (int device = 0; device < DEVICES; device++) {
        assert_ok(xseg_range_reserve(fixture->allocator, device, GRANULES * PAGE, NULL,
                                     &fixture->range[device]));
        if (conditions[device] == FULL)
            assert_ok(xseg_sim_set_external_memory((unsigned)device, UINT64_MAX / 2));
    }
    for (int device = 0; has_peers && device < DEVICES; device++)
        assert_ok(xseg_peer_allow(fixture->allocator, device, (device + 1) % DEVICES));
}

static void close_fixture(struct fixture *fixture, struct worker *worker)
{
    /* No thread has waited for the work of the slow device. */
    for (int device = 0; device < DEVICES; device++) {
        const struct xseg_range_info range_info = info(fixture->range[device]);

        if (conditions[device] == SLOW)
            assert_int_equal(range_info.pending_unmap_bytes, GRANULES / 2 * PAGE);
        else if (conditions[device] == NORMAL)
            assert_int_equal(range_info.pending_unmap_bytes + range_info.committed_bytes, 0);
        release(fixture->range[device]);
    }
    assert_ok(xseg_close(fixture->allocator));
    for (int device = 0; device < DEVICES; device++) {
        if (conditions[device] == LOST)
            continue;
        assert_int_equal(xseg_sim_used((unsigned)device), 0);
        assert_int_equal(cuCtxSetCurrent(worker[device].context), 0);
        assert_int_equal(cuStreamDestroy_v2(worker[device].stream), 0);
        assert_int_equal(cuCtxSetCurrent(NULL), 0);
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
    }
}

/* Start the thread of the stopped device, or the threads of all others. */
static void start_threads(struct fixture *fixture, struct worker *worker, pthread_t *thread,
                          bool of_stopped_device)
{
    for (int device = 0; device < DEVICES; device++) {
        if ((conditions[device] == STOPPED) != of_stopped_device)
            continue;
        worker[device] = (struct worker){.fixture = fixture, .device = device};
        assert_int_equal(pthread_create(&thread[device], NULL, run_worker, &worker[device]), 0);
    }
}

static void join_threads(const pthread_t *thread, bool of_stopped_device)
{
    for (int device = 0; device < DEVICES; device++)
        if ((conditions[device] == STOPPED) == of_stopped_device)
            assert_int_equal(pthread_join(thread[device], NULL), 0);
}

static void expect_progress(const struct worker *worker)
{
    for (int device = 0; device < DEVICES; device++) {
        if (conditions[device] == NORMAL)
            assert_int_equal(worker[device].commits, ROUNDS);
        if (conditions[device] == FULL || conditions[device] == LOST)
            assert_int_equal(worker[device].failures, ROUNDS);
    }
}

/* --- The tests. --- */

TEST(locked_device_blocks_no_other_device)
{
    for (unsigned has_peers = 0; has_peers < 2; has_peers++) {
        struct fixture fixture;
        struct worker worker[DEVICES] = {0};
        pthread_t thread[DEVICES];

        open_fixture(&fixture, has_peers != 0);
        struct xseg_device *device = xseg_allocator_open_device(fixture.allocator, 0);
        xseg_mutex_lock(&device->memory_lock);
        start_threads(&fixture, worker, thread, false);
        join_threads(thread, false);
        xseg_mutex_unlock(&device->memory_lock);
        expect_progress(worker);
        start_threads(&fixture, worker, thread, true);
        join_threads(thread, true);
        assert_int_equal(worker[0].commits, ROUNDS);
        close_fixture(&fixture, worker);
    }
}

/* An observer that blocks on new memory of the stopped device until the test permits it to return. */
static void block_in_callback(void *context, const struct xseg_mapping *mapping)
{
    struct fixture *fixture = context;

    if (conditions[mapping->device] != STOPPED || atomic_exchange(&fixture->is_stopped, true))
        return;
    while (!atomic_load(&fixture->may_return))
        (void)sched_yield();
}

TEST(device_with_a_blocked_observer_blocks_no_other_device)
{
    struct fixture fixture;
    struct worker worker[DEVICES] = {0};
    pthread_t thread[DEVICES];

    open_fixture(&fixture, true);
    const uint64_t id =
        env_observe(fixture.allocator, .context = &fixture, .on_map = block_in_callback);
    start_threads(&fixture, worker, thread, true);
    while (!atomic_load(&fixture.is_stopped))
        (void)sched_yield();
    start_threads(&fixture, worker, thread, false);
    join_threads(thread, false);
    assert_int_equal(atomic_load(&fixture.done), DEVICES - 1);
    expect_progress(worker);
    atomic_store(&fixture.may_return, true);
    join_threads(thread, true);
    assert_int_equal(worker[0].commits, ROUNDS);
    assert_ok(xseg_observer_remove(fixture.allocator, id));
    close_fixture(&fixture, worker);
}
