/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/stress/exercise/kernel.h"
#include "tests/support/driver.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

#define LEGACY     ((xseg_stream)1)
#define PER_THREAD ((xseg_stream)2)

_Thread_local struct worker *world_worker;

uint64_t below(struct worker *worker, uint64_t bound)
{
    return (rng_next(&worker->random) >> 16) % bound;
}

bool chance(struct worker *worker, unsigned one_in)
{
    return below(worker, one_in) == 0;
}

static uint64_t draw_below(struct world *world, uint64_t bound)
{
    return (rng_next(&world->random) >> 16) % bound;
}

/* --- Opening. --- */

static void check_log_line(void *context, enum xseg_log_level level, const char *line)
{
    const struct world *world = context;

    /* An error reports lost memory, which only a fault can cause. */
    if (level == XSEG_LOG_ERROR && world->options.faults == 0)
        failure("logged without a fault: %s", line);
}

/* The unwinder opens a pipe with the first stack of a process, and keeps it. */
static void capture_first_stack(void)
{
    struct xseg_allocator *allocator = NULL;
    void *ptr = NULL;

    CHECK_OK(env_try_open("history:state,history_stacks:state", &allocator));
    CHECK_OK(xseg_alloc(allocator, 0, 1, NULL, &ptr));
    CHECK(xseg_free(allocator, ptr) == XSEG_OK && xseg_close(allocator) == XSEG_OK);
}

static void open_machine(struct world *world)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    /* Count the open files on a machine without contents, which opens none itself. */
    CHECK_OK(xseg_sim_reset(&settings));
    capture_first_stack();
    CHECK_OK(xseg_sim_reset(&settings));
    world->files = env_open_fds();
    world->memory = (64 + draw_below(world, 193)) * 2 * MIB;
    settings.devices = world->options.devices;
    settings.memory_bytes = world->memory;
    settings.real_bytes = ENV_HAS_BYTES;
    settings.single_mapping_calls = draw_below(world, 4) == 0;
    settings.reuse_handles = draw_below(world, 2) == 0;
    settings.without_vmm = draw_below(world, 24) == 0;
    settings.without_peers = world->without_peers = draw_below(world, 4) == 0;
    settings.fabric = draw_below(world, 2) == 0;
    settings.tail_seed = draw_below(world, 2) * world->options.seed;
    CHECK_OK(xseg_sim_reset(&settings));
    fault_lift();
    driver_open(world->options.devices, fault_lift);
}

void world_open(struct world *world, const struct world_options *options)
{
    const struct xseg_options open_options = {sizeof(open_options), .driver = env_driver(),
                                              .log = check_log_line, .log_context = world,
                                              .clock = env_clock};
    char config[1024];

    memset(world, 0, sizeof(*world));
    world->options = *options;
    world->random = (options->seed + 1) * UINT64_C(88172645463325252) | 1;
    (void)pthread_rwlock_init(&world->lock, NULL);
    open_machine(world);
    for (int device = 0; device < (int)options->devices; device++)
        for (unsigned i = 0; i < WORLD_SHARED; i++)
            world->shared[device][i] = (struct stream){
                .handle = i == 0 ? NULL : driver_stream(device, false), .device = device};
    world->features = world_configuration(world, rng_next(&world->random), config, sizeof(config));
    world->is_exportable = strstr(config, "exportable:True") != NULL;
    if (options->has_background_thread)
        (void)strcat(config, ",background_thread:True");
    CHECK_OK(CALL(xseg_open, config, &open_options, &world->allocator));
    failure_record(0, "opened with %s", config);
    if (draw_below(world, 4) == 0)
        world_add_tracer(world);
    world->worker = calloc(options->threads, sizeof(*world->worker));
    CHECK(world->worker != NULL);
    for (unsigned i = 0; i < options->threads; i++)
        world->worker[i] = (struct worker){.world = world, .number = i};
}

void worker_open(struct worker *worker)
{
    const struct world *world = worker->world;

    world_worker = worker;
    for (int device = 0; device < (int)world->options.devices; device++) {
        for (unsigned i = 0; i < WORLD_OWN; i++)
            worker->own[device][i] = (struct stream){
                .handle = driver_stream(device, false), .device = device, .is_own = true};
        worker->per_thread[device] = (struct stream){
            .handle = PER_THREAD, .device = device, .is_own = true, .is_per_thread = true};
    }
}

/* --- Closing. --- */

void worker_close(struct worker *worker)
{
    struct world *world = worker->world;

    for (unsigned i = 0; i < WORLD_OBSERVERS; i++)
        if (worker->observer[i] != 0)
            CHECK_OK(CALL(xseg_observer_remove, world->allocator, worker->observer[i]));
    for (unsigned i = 0; i < WORLD_SHARES; i++) {
        close_share(worker, &worker->share[i]);
        CHECK(worker->share[i].imported == NULL);
    }
    for (unsigned i = 0; i < WORLD_REGISTRATIONS; i++)
        if (worker->registration[i].id != 0)
            unregister_range(worker, &worker->registration[i]);
    for (unsigned i = 0; i < WORLD_PINS; i++)
        if (worker->pin[i].ptr != NULL)
            CHECK_OK(CALL(xseg_unpin, world->allocator, worker->pin[i].ptr, worker->pin[i].bytes));
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr != NULL)
            free_block(worker, &worker->block[i]);
    for (unsigned i = 0; i < WORLD_POOLS; i++)
        while (worker->pool[i] != NULL)
            release_pool(worker, i);
    end_released_target(worker);
    /* The per-thread default stream ends with the thread. */
    synchronize_streams(worker);
    world_worker = NULL;
}

static void close_allocator(struct world *world)
{
    const struct xseg_trim_options trim_options = {sizeof(trim_options), .wait = true};
    char leaks[1024];

    CHECK_OK(CALL(xseg_trim, world->allocator, NULL, &trim_options, NULL));
    world_check(world);
    /* Release the pages of blocks that the background thread had claimed during the first trim. */
    CHECK_OK(CALL(xseg_trim, world->allocator, NULL, &trim_options, NULL));
    for (int device = 0; device < (int)world->options.devices; device++) {
        const struct xseg_scope scope = {sizeof(scope), .device = device};
        struct xseg_statistics stats = {sizeof(stats)};

        CHECK_OK(CALL(xseg_stats_get, world->allocator, &scope, &stats));
        CHECK(stats.active[0].current == 0);
        CHECK(stats.reserved_bytes[0].current == 0);
        CHECK(stats.physical_bytes == 0);
        CHECK(stats.paused_bytes == 0);
        CHECK(stats.imported_bytes == 0);
        CHECK(world->memory_function_bytes[device] == 0);
        CHECK(xseg_sim_used((unsigned)device) == 0);
    }
    CHECK_OK(CALL(xseg_close, world->allocator));
    for (int device = 0; device < (int)world->options.devices; device++) {
        for (unsigned i = 1; i < WORLD_SHARED; i++)
            driver_stream_destroy(device, world->shared[device][i].handle);
        for (unsigned k = 0; k < world->options.threads; k++)
            for (unsigned i = 0; i < WORLD_OWN; i++)
                driver_stream_destroy(device, world->worker[k].own[device][i].handle);
    }
    driver_close();
    if (xseg_sim_leaks(leaks, sizeof(leaks)) != 0)
        failure("leaked: %s", leaks);
    CHECK_OK(xseg_sim_reset(NULL));
    CHECK(env_open_fds() == world->files);
}

void world_close(struct world *world)
{
    for (int device = 0; device < (int)world->options.devices; device++)
        for (unsigned i = 0; i < WORLD_SHARED; i++)
            driver_finish(device, world->shared[device][i].handle);
    world_check(world);
    if (world->tracer != 0) {
        CHECK_OK(CALL(xseg_observer_remove, world->allocator, world->tracer));
        CHECK(world->traced == 0);
        CHECK(world->traced_bytes == 0);
        world->tracer = 0;
    }
    close_allocator(world);
    for (unsigned i = 0; i < world->pools; i++) {
        free(world->pool[i]->saved);
        (void)pthread_rwlock_destroy(&world->pool[i]->contents);
        free(world->pool[i]);
    }
    free(world->worker);
    (void)pthread_rwlock_destroy(&world->lock);
}

/* --- Random choices, and lookup. --- */

int any_device(struct worker *worker)
{
    return chance(worker, 4) ? (int)below(worker, worker->world->options.devices) : 0;
}

struct stream *any_stream(struct worker *worker, int device)
{
    const uint64_t index = below(worker, WORLD_SHARED + WORLD_OWN + 1);

    /* Prefer the streams of the current capture. */
    if (worker->capture.pool != NULL && worker->capture.pool->device == device && chance(worker, 2))
        return worker->capture.joined != NULL && chance(worker, 3) ? worker->capture.joined
                                                                   : worker->capture.origin;
    if (index < WORLD_SHARED)
        return &worker->world->shared[device][index];
    return index < WORLD_SHARED + WORLD_OWN ? &worker->own[device][index - WORLD_SHARED]
                                            : &worker->per_thread[device];
}

struct stream *find_stream(struct worker *worker, int device, xseg_stream handle)
{
    for (unsigned i = 0; i < WORLD_SHARED; i++)
        if (worker->world->shared[device][i].handle == handle)
            return &worker->world->shared[device][i];
    for (unsigned i = 0; i < WORLD_OWN; i++)
        if (worker->own[device][i].handle == handle)
            return &worker->own[device][i];
    return NULL;
}

struct pool *any_own_pool(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, WORLD_POOLS);

    for (unsigned i = 0; i < WORLD_POOLS; i++)
        if (worker->pool[(first + i) % WORLD_POOLS] != NULL)
            return worker->pool[(first + i) % WORLD_POOLS];
    return NULL;
}

struct block *any_block(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, WORLD_BLOCKS);

    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        struct block *block = &worker->block[(first + i) % WORLD_BLOCKS];

        if (block->ptr != NULL && block != worker->block_in_use)
            return block;
    }
    return NULL;
}

struct block *any_free_slot(struct worker *worker)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr == NULL && &worker->block[i] != worker->block_in_use)
            return &worker->block[i];
    return NULL;
}

size_t any_size(struct worker *worker)
{
    const uint64_t kind = below(worker, 100);

    if (kind < 45)
        return 1 + below(worker, 16 * KIB);
    if (kind < 70)
        return 1 + below(worker, 2 * MIB);
    if (kind < 97)
        return 1 + below(worker, 24 * MIB);
    return 1 + below(worker, worker->world->memory / 3);
}

struct pool *find_pool(struct world *world, const struct xseg_pool *handle)
{
    const unsigned pools = atomic_load_explicit(&world->pools, memory_order_acquire);

    for (unsigned i = pools; i-- > 0;) {
        struct pool *pool = atomic_load_explicit(&world->pool[i], memory_order_acquire);

        if (pool->handle == handle)
            return pool;
    }
    return NULL;
}

/* --- Work. --- */

void synchronize_streams(struct worker *worker)
{
    for (int device = 0; device < (int)worker->world->options.devices; device++) {
        for (unsigned i = 0; i < WORLD_SHARED; i++)
            driver_finish(device, worker->world->shared[device][i].handle);
        for (unsigned i = 0; i < WORLD_OWN; i++)
            if (!worker->own[device][i].is_captured)
                driver_finish(device, worker->own[device][i].handle);
        driver_finish(device, worker->per_thread[device].handle);
    }
}

bool block_lock_contents(struct block *block)
{
    if (block->pool == NULL)
        return true;
    if (pthread_rwlock_tryrdlock(&block->pool->contents) != 0)
        return false;
    if (!block->pool->is_inaccessible)
        return true;
    (void)pthread_rwlock_unlock(&block->pool->contents);
    return false;
}

void block_unlock_contents(struct block *block)
{
    if (block->pool != NULL)
        (void)pthread_rwlock_unlock(&block->pool->contents);
}

uint64_t features_of(struct world *world, int device, const struct pool *pool,
                     const struct block *block)
{
    return world->features | world->device_features[device] | (pool == NULL ? 0 : pool->features) |
           (block == NULL ? 0 : block->features) | (fault_epoch() % 2 != 0 ? FEATURE(FAULT) : 0);
}

void record_features(struct world *world, uint64_t features, int device, struct pool *pool,
                     const struct block *block, bool served)
{
    const uint64_t pool_features = FEATURE(ZEROED) | FEATURE(ALIGNED) | FEATURE(USE) |
                                   FEATURE(FREE_AFTER) | FEATURE(RETIRED) | FEATURE(PREWARM) |
                                   FEATURE(TRIM) | FEATURE(RESTORE) | FEATURE(PIN) |
                                   FEATURE(EXPORT) | FEATURE(IMPORT);
    const uint64_t set = features | features_of(world, device, pool, block);

    feature_combine(set, served);
    if (pool != NULL)
        atomic_fetch_or(&pool->features, set & pool_features);
}

struct xseg_scope scope_of(struct worker *worker, const struct pool *pool)
{
    return (struct xseg_scope){
        .struct_size = sizeof(struct xseg_scope),
        .device = pool == NULL ? any_device(worker) : pool->device,
        .pool = pool == NULL ? NULL : pool->handle,
    };
}

void mark_block(struct block *block, uint64_t feature)
{
    block->features |= feature;
    if (block->pool != NULL)
        atomic_fetch_or(&block->pool->features, feature);
}

/* Record the use of a block by another stream than its own; returns false if the call failed. */
static bool record_use(struct worker *worker, struct block *block, const struct stream *stream)
{
    const uint64_t epoch = fault_epoch();

    if (stream == block->stream)
        return true;
    block->features |= FEATURE(USE);
    const xseg_status status =
        CALL(xseg_record_stream, worker->world->allocator, block->ptr,
             stream->handle == NULL && chance(worker, 2) ? LEGACY : stream->handle);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    return status == XSEG_OK;
}

void block_queue_work(struct worker *worker, struct block *block, struct stream *stream,
                      bool writes)
{
    /* Work has an end, since cuMemFree waits for it: 5 s in one of 64 cases, otherwise at most 10 ms. */
    const uint64_t time = chance(worker, 64) ? UINT64_C(5000000000) : 1 + below(worker, 10000000);
    struct kernel kernel = {KERNEL_READ, block->ptr, block->ptr, block->bytes, 0};
    const unsigned epoch = block->pool == NULL ? 0 : atomic_load(&block->pool->epoch);

    /* A stream that waits for a capturing stream would join the capture. */
    if (block->has_foreign_work ||
        (block->last_stream != NULL && block->last_stream->is_captured &&
         block->last_stream != stream) ||
        !record_use(worker, block, stream))
        return;
    if (stream->is_captured) {
        driver_work(block->device, stream->handle, time, block->ptr, block->bytes);
        return;
    }
    if (block->last_stream != NULL && block->last_stream != stream)
        driver_wait(block->device, stream->handle, block->last_stream->handle);
    if (writes || !block->is_written || block->epoch != epoch) {
        kernel.kind = KERNEL_WRITE;
        block->number = ++worker->blocks_written * WORLD_WORKERS + worker->number;
        block->number <<= 32;
        block->is_written = true;
        block->epoch = epoch;
    }
    kernel.number = block->number;
    kernel_launch(&kernel, block->device, stream->handle, time);
    block->last_stream = stream;
}
