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

bool chance(struct worker *worker, unsigned of)
{
    return below(worker, of) == 0;
}

static uint64_t world_below(struct world *world, uint64_t bound)
{
    return (rng_next(&world->random) >> 16) % bound;
}

/* --- Opening. --- */

static void check_log_line(void *context, enum xseg_log_level level, const char *line)
{
    const struct world *world = context;

    /* An error reports a loss, which requires a fault. */
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

    /* A machine with contents of memory has open files. */
    CHECK_OK(xseg_sim_reset(&settings));
    capture_first_stack();
    CHECK_OK(xseg_sim_reset(&settings));
    world->files = env_open_fds();
    world->memory = (64 + world_below(world, 193)) * 2 * MIB;
    settings.devices = world->options.devices;
    settings.memory_bytes = world->memory;
    settings.real_bytes = ENV_HAS_BYTES;
    settings.single_mapping_calls = world_below(world, 4) == 0;
    settings.reuse_handles = world_below(world, 2) == 0;
    settings.without_vmm = world_below(world, 24) == 0;
    settings.without_peers = world->without_peers = world_below(world, 4) == 0;
    settings.fabric = world_below(world, 2) == 0;
    settings.tail_seed = world_below(world, 2) * world->options.seed;
    CHECK_OK(xseg_sim_reset(&settings));
    fault_lift();
    driver_open(world->options.devices, fault_lift);
}

void world_open(struct world *world, const struct world_options *options)
{
    const struct xseg_options how = {sizeof(how), .driver = env_driver(), .log = check_log_line,
                                     .log_context = world, .clock = env_clock};
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
    CHECK_OK(CALL(xseg_open, config, &how, &world->allocator));
    failure_note(0, "opened with %s", config);
    if (world_below(world, 4) == 0)
        world_trace(world);
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
        end_share(worker, &worker->share[i]);
        CHECK(worker->share[i].imported == NULL);
    }
    for (unsigned i = 0; i < WORLD_REGISTERED; i++)
        if (worker->registered[i].id != 0)
            end_registered(worker, &worker->registered[i]);
    for (unsigned i = 0; i < WORLD_PINS; i++)
        if (worker->pin[i].ptr != NULL)
            CHECK_OK(CALL(xseg_unpin, world->allocator, worker->pin[i].ptr, worker->pin[i].bytes));
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr != NULL)
            free_block_of(worker, &worker->block[i]);
    for (unsigned i = 0; i < WORLD_TAGS; i++)
        while (worker->tag[i] != NULL)
            release_tag(worker, i);
    end_left_routes(worker);
    /* Before the thread exits, and its stream with it. */
    finish_streams(worker);
    world_worker = NULL;
}

static void close_allocator(struct world *world)
{
    const struct xseg_trim_options how = {sizeof(how), .wait = true};
    char left[1024];

    CHECK_OK(CALL(xseg_trim, world->allocator, NULL, &how, NULL));
    world_check(world);
    /* Blocks that the background thread had claimed before the trim are in the page cache now. */
    CHECK_OK(CALL(xseg_trim, world->allocator, NULL, &how, NULL));
    for (int device = 0; device < (int)world->options.devices; device++) {
        const struct xseg_scope scope = {sizeof(scope), .device = device};
        struct xseg_statistics stats = {sizeof(stats)};

        CHECK_OK(CALL(xseg_stats_get, world->allocator, &scope, &stats));
        CHECK(stats.active[0].current == 0);
        CHECK(stats.reserved_bytes[0].current == 0);
        CHECK(stats.physical_bytes == 0);
        CHECK(stats.paused_bytes == 0);
        CHECK(stats.imported_bytes == 0);
        CHECK(world->own_bytes[device] == 0);
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
    if (xseg_sim_leaks(left, sizeof(left)) != 0)
        failure("leaked: %s", left);
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
    for (unsigned i = 0; i < world->tags; i++) {
        free(world->tag[i]->saved);
        (void)pthread_rwlock_destroy(&world->tag[i]->contents);
        free(world->tag[i]);
    }
    free(world->worker);
    (void)pthread_rwlock_destroy(&world->lock);
}

/* --- Finding something. --- */

int any_device(struct worker *worker)
{
    return chance(worker, 4) ? (int)below(worker, worker->world->options.devices) : 0;
}

struct stream *any_stream(struct worker *worker, int device)
{
    const uint64_t at = below(worker, WORLD_SHARED + WORLD_OWN + 1);

    /* Devices of the current capture are chosen more often. */
    if (worker->capture.tag != NULL && worker->capture.tag->device == device && chance(worker, 2))
        return worker->capture.joined != NULL && chance(worker, 3) ? worker->capture.joined
                                                                   : worker->capture.origin;
    if (at < WORLD_SHARED)
        return &worker->world->shared[device][at];
    return at < WORLD_SHARED + WORLD_OWN ? &worker->own[device][at - WORLD_SHARED]
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

struct tag *any_own_tag(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, WORLD_TAGS);

    for (unsigned i = 0; i < WORLD_TAGS; i++)
        if (worker->tag[(first + i) % WORLD_TAGS] != NULL)
            return worker->tag[(first + i) % WORLD_TAGS];
    return NULL;
}

struct block *any_block(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, WORLD_BLOCKS);

    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        struct block *block = &worker->block[(first + i) % WORLD_BLOCKS];

        if (block->ptr != NULL && block != worker->held)
            return block;
    }
    return NULL;
}

struct block *free_block(struct worker *worker)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr == NULL && &worker->block[i] != worker->held)
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

struct tag *find_tag(struct world *world, const struct xseg_pool *pool)
{
    const unsigned tags = atomic_load_explicit(&world->tags, memory_order_acquire);

    for (unsigned i = tags; i-- > 0;) {
        struct tag *tag = atomic_load_explicit(&world->tag[i], memory_order_acquire);

        if (tag->pool == pool)
            return tag;
    }
    return NULL;
}

/* --- Work. --- */

void finish_streams(struct worker *worker)
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

bool block_enter(struct block *block)
{
    if (block->tag == NULL)
        return true;
    if (pthread_rwlock_tryrdlock(&block->tag->contents) != 0)
        return false;
    if (!block->tag->is_evicted)
        return true;
    (void)pthread_rwlock_unlock(&block->tag->contents);
    return false;
}

void block_leave(struct block *block)
{
    if (block->tag != NULL)
        (void)pthread_rwlock_unlock(&block->tag->contents);
}

uint64_t features_of(struct world *world, int device, const struct tag *tag,
                     const struct block *block)
{
    return world->features | world->device_features[device] | (tag == NULL ? 0 : tag->features) |
           (block == NULL ? 0 : block->features) | (fault_epoch() % 2 != 0 ? FEATURE(FAULT) : 0);
}

void note_features(struct world *world, uint64_t own, int device, struct tag *tag,
                   const struct block *block, bool served)
{
    const uint64_t lasting = FEATURE(ZEROED) | FEATURE(ALIGNED) | FEATURE(USE) |
                             FEATURE(FREE_AFTER) | FEATURE(RETIRED) | FEATURE(PREWARM) |
                             FEATURE(TRIM) | FEATURE(RESTORE) | FEATURE(PIN) | FEATURE(EXPORT) |
                             FEATURE(IMPORT);
    const uint64_t all = own | features_of(world, device, tag, block);

    feature_combine(all, served);
    if (tag != NULL)
        atomic_fetch_or(&tag->features, all & lasting);
}

struct xseg_scope scope_of(struct worker *worker, const struct tag *tag)
{
    return (struct xseg_scope){
        .struct_size = sizeof(struct xseg_scope),
        .device = tag == NULL ? any_device(worker) : tag->device,
        .pool = tag == NULL ? NULL : tag->pool,
    };
}

void mark_block(struct block *block, uint64_t feature)
{
    block->features |= feature;
    if (block->tag != NULL)
        atomic_fetch_or(&block->tag->features, feature);
}

/* Record a use by a stream, unless it is the block's own; false if the call failed. */
static bool announce(struct worker *worker, struct block *block, const struct stream *stream)
{
    const uint64_t epoch = fault_epoch();

    if (stream == block->home)
        return true;
    block->features |= FEATURE(USE);
    const xseg_status status =
        CALL(xseg_record_stream, worker->world->allocator, block->ptr,
             stream->handle == NULL && chance(worker, 2) ? LEGACY : stream->handle);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    return status == XSEG_OK;
}

void block_work(struct worker *worker, struct block *block, struct stream *stream, bool writes)
{
    /* Never open-ended: cuMemFree waits for work, and would wait forever. */
    const uint64_t time = chance(worker, 64) ? UINT64_C(5000000000) : 1 + below(worker, 10000000);
    struct kernel kernel = {KERNEL_READ, block->ptr, block->ptr, block->bytes, 0};
    const unsigned epoch = block->tag == NULL ? 0 : atomic_load(&block->tag->epoch);

    /* Waiting for a capturing stream would join its capture. */
    if (block->is_out_of_reach ||
        (block->last != NULL && block->last->is_captured && block->last != stream) ||
        !announce(worker, block, stream))
        return;
    if (stream->is_captured) {
        driver_work(block->device, stream->handle, time, block->ptr, block->bytes);
        return;
    }
    if (block->last != NULL && block->last != stream)
        driver_wait(block->device, stream->handle, block->last->handle);
    if (writes || !block->is_written || block->epoch != epoch) {
        kernel.kind = KERNEL_WRITE;
        block->number = ++worker->blocks_made * WORLD_WORKERS + worker->number;
        block->number <<= 32;
        block->is_written = true;
        block->epoch = epoch;
    }
    kernel.number = block->number;
    kernel_launch(&kernel, block->device, stream->handle, time);
    block->last = stream;
}
