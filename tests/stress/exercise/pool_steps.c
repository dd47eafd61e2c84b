/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

/* --- Allocation functions of pools. --- */

static void *custom_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = context;
    void *ptr = driver_alloc(device, bytes);

    (void)stream;
    if (ptr != NULL)
        atomic_fetch_add(&world->memory_function_bytes[device], bytes);
    return ptr;
}

static void custom_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = context;

    (void)stream;
    driver_free(device, ptr);
    atomic_fetch_sub(&world->memory_function_bytes[device], bytes);
}

/* --- Creation and release. --- */

static uint64_t draw_options(struct worker *worker, struct xseg_pool_options *options)
{
    struct world *world = worker->world;
    uint64_t features = 0;

    if (chance(worker, 4)) {
        options->limit_bytes = (1 + below(worker, 200)) * MIB;
        features |= FEATURE(POOL_LIMIT);
    }
    if (chance(worker, 4)) {
        options->no_split = true;
        features |= FEATURE(NO_SPLIT);
    }
    if (chance(worker, 4)) {
        options->use_on_oom = true;
        features |= FEATURE(FALLBACK);
    }
    if (chance(worker, 6)) {
        options->memory = (struct xseg_pool_memory){custom_alloc, custom_free, world};
        features |= FEATURE(MEMORY_FUNCTIONS);
    } else if (chance(worker, 3)) {
        options->exportable = true;
        features |= FEATURE(EXPORTABLE);
    }
    if (options->memory.alloc == NULL) {
        options->rdma = chance(worker, 3);
        options->single_page = chance(worker, 3);
    }
    return features;
}

void step_pool_create(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_pool_options options = {sizeof(options)};
    unsigned index = 0;

    while (index < WORLD_POOLS && worker->pool[index] != NULL)
        index++;
    if (index == WORLD_POOLS || world->pools > WORLD_POOLS_MAX - 2 * WORLD_WORKERS)
        return;
    struct pool *pool = calloc(1, sizeof(*pool));
    CHECK(pool != NULL);
    pool->device = any_device(worker);
    pool->features = draw_options(worker, &options);
    pool->references = 1;
    (void)pthread_rwlock_init(&pool->contents, NULL);
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_pool_create, world->allocator, pool->device,
             chance(worker, 8) && pool->features == 0 ? NULL : &options, &pool->handle);
    failure_record(
        worker->number,
        "pool on device %d, limit %llu, no_split %d, use_on_oom %d, memory functions %d, "
        "exportable %d, rdma %d, single_page %d: %d, %p",
        pool->device, (unsigned long long)options.limit_bytes, options.no_split, options.use_on_oom,
        options.memory.alloc != NULL, options.exportable, options.rdma, options.single_page, status,
        (void *)pool->handle);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_UNSUPPORTED && options.exportable));
    if (status != XSEG_OK) {
        (void)pthread_rwlock_destroy(&pool->contents);
        free(pool);
        return;
    }
    atomic_store_explicit(&worker->pool[index], pool, memory_order_release);
    /* Write the element before the count, so that a thread that reads the count finds the element. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&lock);
    atomic_store_explicit(&world->pool[world->pools], pool, memory_order_release);
    atomic_fetch_add_explicit(&world->pools, 1, memory_order_release);
    (void)pthread_mutex_unlock(&lock);
}

void step_retain(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    if (pool != NULL && pool->references < 4) {
        CHECK_OK(CALL(xseg_pool_retain, pool->handle));
        pool->references++;
    }
    if (pool != NULL) {
        const enum xseg_pool_setting setting =
            chance(worker, 2) ? XSEG_POOL_NO_SPLIT : XSEG_POOL_USE_ON_OOM;

        CHECK_OK(CALL(xseg_pool_set, pool->handle, setting, chance(worker, 2)));
        atomic_fetch_or(&pool->features,
                        setting == XSEG_POOL_NO_SPLIT ? FEATURE(NO_SPLIT) : FEATURE(FALLBACK));
    }
}

static void end_checkpoint(struct pool *pool)
{
    CALL_PLAIN(xseg_checkpoint_destroy, pool->checkpoint);
    pool->checkpoint = NULL;
    free(pool->saved);
    pool->saved = NULL;
    atomic_fetch_and(&pool->features, ~FEATURE(CHECKPOINT));
}

static void end_route(struct pool *pool)
{
    CHECK_OK(CALL(xseg_route_end, pool->handle));
    pool->is_routed = false;
    atomic_fetch_and(&pool->features, ~FEATURE(ROUTE));
}

void end_released_target(struct worker *worker)
{
    if (worker->released_target != NULL && worker->released_target->is_routed)
        end_route(worker->released_target);
    worker->released_target = NULL;
}

void release_pool(struct worker *worker, unsigned index)
{
    struct pool *pool = worker->pool[index];

    /* The library retains the pool during a capture or a route. */
    if (pool->is_capturing && chance(worker, 2))
        end_capture(worker);
    /* A capturing stream cannot be synchronized, so the graph that was launched on it may still run. */
    if (pool->replayed_on != NULL && pool->replayed_on->is_captured)
        return;
    if (pool->is_routed && worker->released_target == NULL && chance(worker, 2))
        worker->released_target = pool;
    else if (pool->is_routed)
        end_route(pool);
    if (pool->references == 1) {
        /* A program destroys the graph before it releases the pool. */
        if (pool->replayed_on != NULL)
            driver_finish(pool->device, pool->replayed_on->handle);
        pool->replayed_on = NULL;
        end_checkpoint(pool);
        atomic_fetch_or(&pool->features, FEATURE(RELEASED));
    }
    CHECK_OK(CALL(xseg_pool_release, pool->handle));
    failure_record(worker->number, "release pool %p with %u references", (void *)pool->handle,
                   pool->references);
    record_features(worker->world, FEATURE(RELEASED), pool->device, pool, NULL, true);
    if (--pool->references == 0)
        worker->pool[index] = NULL;
}

void step_release(struct worker *worker)
{
    const unsigned index = (unsigned)below(worker, WORLD_POOLS);

    if (worker->pool[index] != NULL)
        release_pool(worker, index);
}

/* Allocate a block, free it, and request a block at its address, which another thread may have allocated since. */
void step_alloc_at(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct xseg_request request = {sizeof(request)};
    struct pool *pool = any_own_pool(worker);
    void *ptr = NULL, *second = NULL;

    if (pool == NULL)
        return;
    request.pool = pool->handle;
    request.bytes = any_size(worker);
    request.stream = any_stream(worker, pool->device)->handle;
    if (CALL(xseg_alloc_with, allocator, &request, &ptr) != XSEG_OK || ptr == NULL)
        return;
    while (CALL(xseg_free, allocator, ptr) != XSEG_OK)
        ;
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_alloc_at, pool->handle, request.bytes, request.stream, ptr, &second);
    failure_record(worker->number, "alloc %zu bytes of pool %p at %p: %d", request.bytes,
                   (void *)pool->handle, ptr, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED ||
          !fault_was_none(epoch));
    CHECK(second == (status == XSEG_OK ? ptr : NULL));
    while (status == XSEG_OK && CALL(xseg_free, allocator, second) != XSEG_OK)
        ;
}

/* --- Routes. --- */

static bool accepts(void *context, xseg_stream stream)
{
    const struct world *world = context;

    /* Accept about two thirds of the streams, depending on the seed. */
    return ((uintptr_t)stream / 16 + world->options.seed) % 3 != 0;
}

void step_route(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);
    const uint64_t epoch = fault_epoch();

    if (pool == NULL)
        return;
    const xseg_status status = chance(worker, 2)
                                   ? CALL(xseg_route_begin, pool->handle, accepts, worker->world)
                                   : CALL(xseg_route_begin, pool->handle, NULL, NULL);
    failure_record(worker->number, "route to pool %p: %d", (void *)pool->handle, status);
    record_features(worker->world, FEATURE(ROUTE), pool->device, pool, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && (pool->is_routed || pool->is_capturing)));
    if (status == XSEG_OK) {
        pool->is_routed = true;
        atomic_fetch_or(&pool->features, FEATURE(ROUTE));
    }
}

void step_route_end(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    end_released_target(worker);
    if (pool == NULL)
        return;
    CHECK(CALL(xseg_route_end, pool->handle) == (pool->is_routed ? XSEG_OK : XSEG_ERR_ARGUMENT));
    failure_record(worker->number, "end of the route to pool %p", (void *)pool->handle);
    pool->is_routed = false;
    atomic_fetch_and(&pool->features, ~FEATURE(ROUTE));
}

/* --- Marks. --- */

/* Make some calls while the device is marked as capturing. */
void step_mark(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    const int device = any_device(worker);
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_capture_mark, allocator, device);

    failure_record(worker->number, "mark of device %d: %d", device, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    if (status != XSEG_OK)
        return;
    step_route(worker);
    step_alloc(worker);
    step_free(worker);
    step_route_end(worker);
    CHECK_OK(CALL(xseg_capture_unmark, allocator, device));
    failure_record(worker->number, "unmark of device %d", device);
}

/* --- Pauses. --- */

/* Pause a pool.  The caller holds pool->contents for writing. */
static void pause_locked(struct worker *worker, struct pool *pool)
{
    static const struct {
        enum xseg_keep keep;
        uint64_t feature;
        const char *name;
    } modes[] = {{XSEG_KEEP_NOTHING, FEATURE(PAUSE_NOTHING), "nothing"},
                 {XSEG_KEEP_HOST, FEATURE(PAUSE_HOST), "on the host"},
                 {XSEG_KEEP_FILE, FEATURE(PAUSE_FILE), "in a file"}};
    static atomic_uint files;
    const uint64_t epoch = fault_epoch(), mode = below(worker, COUNT_OF(modes));
    const uint64_t feature = modes[mode].feature;
    const char *folder = getenv("TMPDIR");
    char file[256];

    (void)snprintf(file, sizeof(file), "%s/xseg-exercise-%d-%u", folder != NULL ? folder : P_tmpdir,
                   (int)getpid(), atomic_fetch_add(&files, 1));
    const xseg_status status = CALL(xseg_pool_pause, pool->handle, modes[mode].keep,
                                    modes[mode].keep == XSEG_KEEP_FILE ? file : NULL);
    failure_record(worker->number, "pause pool %p, keeping %s: %d", (void *)pool->handle,
                   modes[mode].name, status);
    feature_combine(feature |
                        (features_of(worker->world, pool->device, pool, NULL) & ~FEATURES_PAUSED),
                    status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED ||
          !fault_was_none(epoch) || (status == XSEG_ERR_PAUSED && pool->is_inaccessible));
    if (status == XSEG_ERR_PAUSED || (status != XSEG_OK && fault_was_none(epoch)))
        return;
    /* If the rollback failed as well, the pool is paused, and resume restores everything. */
    pool->is_inaccessible = true;
    pool->may_be_paused = status != XSEG_OK;
    if (feature == FEATURE(PAUSE_NOTHING) && status == XSEG_OK)
        atomic_fetch_add(&pool->epoch, 1);
    atomic_fetch_and(&pool->features, ~FEATURES_PAUSED);
    atomic_fetch_or(&pool->features, feature);
}

void step_pause(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    if (pool == NULL || pthread_rwlock_trywrlock(&pool->contents) != 0)
        return;
    if (!chance(worker, 4))
        synchronize_streams(worker);
    pause_locked(worker, pool);
    (void)pthread_rwlock_unlock(&pool->contents);
}

void step_resume(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    if (pool == NULL || pthread_rwlock_trywrlock(&pool->contents) != 0)
        return;
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_pool_resume, pool->handle);
    failure_record(worker->number, "resume pool %p: %d", (void *)pool->handle, status);
    record_features(worker->world, 0, pool->device, pool, NULL, status == XSEG_OK);
    if (!pool->is_inaccessible)
        CHECK(status == XSEG_ERR_ARGUMENT);
    else
        CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
              status == XSEG_ERR_BUSY || !fault_was_none(epoch) ||
              (status == XSEG_ERR_ARGUMENT && pool->may_be_paused));
    if (status == XSEG_OK || status == XSEG_ERR_ARGUMENT) {
        pool->is_inaccessible = pool->may_be_paused = false;
        atomic_fetch_and(&pool->features, ~FEATURES_PAUSED);
    }
    (void)pthread_rwlock_unlock(&pool->contents);
}

/* --- Checkpoints.  The caller holds world->lock for writing, because blocks of all workers are accessed. --- */

/* The allocated blocks of a pool; ownership passes to the caller. */
static struct saved *list_blocks(struct world *world, const struct pool *pool, unsigned *count)
{
    struct saved *saved = calloc(world->options.threads * WORLD_BLOCKS, sizeof(*saved));

    CHECK(saved != NULL);
    *count = 0;
    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            const struct block *block = &world->worker[k].block[i];

            if (block->ptr != NULL && block->pool == pool)
                saved[(*count)++] = (struct saved){block->ptr, block->bytes};
        }
    return saved;
}

void step_checkpoint(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);
    const uint64_t epoch = fault_epoch();

    if (pool == NULL)
        return;
    if (pool->checkpoint != NULL)
        end_checkpoint(pool);
    synchronize_streams(worker);
    const xseg_status status = CALL(xseg_pool_checkpoint, pool->handle, &pool->checkpoint);
    failure_record(worker->number, "checkpoint of pool %p: %d", (void *)pool->handle, status);
    record_features(worker->world, FEATURE(CHECKPOINT), pool->device, pool, NULL,
                    status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch));
    if (status != XSEG_OK)
        return;
    atomic_fetch_or(&pool->features, FEATURE(CHECKPOINT));
    pool->saved = list_blocks(worker->world, pool, &pool->saved_count);
}

struct restoring {
    struct worker *worker;
    struct pool *pool;
    unsigned freed, allocated;
};

static void remove_block(struct restoring *restoring, const void *ptr)
{
    struct world *world = restoring->worker->world;

    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            struct block *block = &world->worker[k].block[i];

            if (block->ptr == ptr) {
                CHECK(block->pool == restoring->pool);
                block->ptr = NULL;
                restoring->freed++;
                return;
            }
        }
    failure("restore frees %p, which no worker has", ptr);
}

static void add_block(struct restoring *restoring, char *ptr)
{
    const struct pool *pool = restoring->pool;
    struct block *block = any_free_slot(restoring->worker);

    for (unsigned i = 0; i < pool->saved_count; i++) {
        if (pool->saved[i].ptr != ptr)
            continue;
        restoring->allocated++;
        if (block == NULL) {
            CHECK_OK(CALL(xseg_free, restoring->worker->world->allocator, ptr));
            return;
        }
        struct xseg_block_info info = {sizeof(info)};

        CHECK_OK(CALL(xseg_block_query, restoring->worker->world->allocator, ptr, &info));
        *block = (struct block){.ptr = ptr,
                                .bytes = pool->saved[i].bytes,
                                .device = pool->device,
                                .pool = restoring->pool,
                                .stream = find_stream(restoring->worker, pool->device, info.stream),
                                .features = FEATURE(RESTORE)};
        block->last_stream = block->stream;
        block->has_foreign_work = block->stream == NULL;
        return;
    }
    failure("restore allocates %p, which is not in the checkpoint", (void *)ptr);
}

static void restore_block(void *context, void *ptr, bool freed)
{
    if (freed)
        remove_block(context, ptr);
    else
        add_block(context, ptr);
}

void step_restore(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);
    struct restoring restoring = {worker, pool, 0, 0};
    const uint64_t epoch = fault_epoch();

    if (pool == NULL || pool->checkpoint == NULL)
        return;
    synchronize_streams(worker);
    unsigned block_count = 0;
    free(list_blocks(worker->world, pool, &block_count));
    const xseg_status status =
        CALL(xseg_pool_restore, pool->handle, pool->checkpoint, restore_block, &restoring);
    failure_record(worker->number, "restore pool %p: %d", (void *)pool->handle, status);
    record_features(worker->world, FEATURE(RESTORE), pool->device, pool, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch) ||
          (status == XSEG_ERR_PAUSED && pool->is_inaccessible));
    CHECK(restoring.freed == (status == XSEG_OK ? block_count : 0));
    CHECK(restoring.allocated == (status == XSEG_OK ? pool->saved_count : 0));
}

void step_check_live(struct worker *worker)
{
    struct world *world = worker->world;
    struct pool *pool = any_own_pool(worker);
    void *ptrs[WORLD_WORKERS * WORLD_BLOCKS];
    bool is_exact = false;

    if (pool == NULL)
        return;
    unsigned count = 0;
    struct saved *saved = list_blocks(world, pool, &count);
    for (unsigned i = 0; i < count; i++)
        ptrs[i] = saved[i].ptr;
    free(saved);
    CHECK_OK(CALL(xseg_pool_check_live, pool->handle, ptrs, count, &is_exact));
    CHECK(is_exact);
    if (count == 0)
        return;
    CHECK_OK(CALL(xseg_pool_check_live, pool->handle, ptrs, count - 1, &is_exact));
    CHECK(!is_exact);
}
