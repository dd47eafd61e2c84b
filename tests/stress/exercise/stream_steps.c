/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

void step_advance(struct worker *worker)
{
    xseg_sim_advance(below(worker, 20000000));
}

void step_finish(struct worker *worker)
{
    const struct stream *stream = any_stream(worker, any_device(worker));

    if (chance(worker, 3))
        synchronize_streams(worker);
    else if (!stream->is_captured)
        driver_finish(stream->device, stream->handle);
}

/* Synchronize a stream that no other thread uses, and announce this to the library. */
void step_synchronize(struct worker *worker)
{
    const int device = any_device(worker);
    const struct stream *stream = &worker->own[device][below(worker, WORLD_OWN)];

    if (stream->is_captured)
        return;
    driver_finish(device, stream->handle);
    CHECK_OK(CALL(xseg_stream_synchronized, worker->world->allocator, device, stream->handle));
    failure_record(worker->number, "synchronized stream %p", (void *)stream->handle);
}

/* Remove a stream that is about to be destroyed from the blocks, shares and pools of this worker. */
static void clear_stream(struct worker *worker, const struct stream *stream)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        struct block *block = &worker->block[i];

        if (block->ptr == NULL)
            continue;
        block->features |=
            block->stream == stream || block->last_stream == stream ? FEATURE(RETIRED) : 0;
        if (block->stream == stream)
            block->stream = NULL;
        if (block->last_stream == stream)
            block->last_stream = NULL;
    }
    for (unsigned i = 0; i < WORLD_SHARES; i++)
        if (worker->share[i].stream == stream)
            worker->share[i].stream = NULL;
    for (unsigned i = 0; i < WORLD_POOLS; i++) {
        struct pool *pool = worker->pool[i];

        if (pool != NULL && pool->replayed_on == stream) {
            pool->replayed_on = NULL;
            pool->graph_size = 0;
            atomic_fetch_or(&pool->features, FEATURE(RETIRED));
        }
    }
}

static bool has_last_work(const struct worker *worker, const struct stream *stream)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr != NULL && worker->block[i].last_stream == stream)
            return true;
    return false;
}

/* Retire and destroy a stream, on which work on freed blocks may be queued, and create another one. */
void step_stream_retire(struct worker *worker)
{
    const int device = any_device(worker);
    struct stream *stream = &worker->own[device][below(worker, WORLD_OWN)];
    const uint64_t epoch = fault_epoch();

    /* Later work on allocated blocks cannot wait for a destroyed stream. */
    if (has_last_work(worker, stream) && !stream->is_captured)
        driver_finish(device, stream->handle);
    const xseg_status status =
        CALL(xseg_stream_retire, worker->world->allocator, device, stream->handle);
    failure_record(worker->number, "retire stream %p: %d", (void *)stream->handle, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && stream->is_captured));
    if (status != XSEG_OK || stream->is_captured)
        return;
    clear_stream(worker, stream);
    driver_stream_destroy(device, stream->handle);
    stream->handle = driver_stream(device, false);
}

/* --- Captures. --- */

void step_capture(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    if (pool == NULL || worker->capture.pool != NULL)
        return;
    struct stream *stream = &worker->own[pool->device][below(worker, WORLD_OWN)];
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_capture_begin, pool->handle, stream->handle);

    failure_record(worker->number, "capture of stream %p into pool %p: %d", (void *)stream->handle,
                   (void *)pool->handle, status);
    record_features(worker->world, FEATURE(CAPTURE), pool->device, pool, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && (pool->is_routed || pool->is_capturing)) ||
          (status == XSEG_ERR_PAUSED && pool->features & FEATURES_PAUSED));
    if (status != XSEG_OK)
        return;
    pool->is_capturing = true;
    atomic_fetch_or(&pool->features, FEATURE(CAPTURE));
    worker->capture.pool = pool;
    worker->capture.origin = stream;
    worker->capture.joined = NULL;
    driver_capture_begin(pool->device, stream->handle, DRIVER_GLOBAL);
    stream->is_captured = true;
}

void step_capture_join(struct worker *worker)
{
    if (worker->capture.pool == NULL || worker->capture.joined != NULL)
        return;
    const int device = worker->capture.pool->device;
    struct stream *origin = worker->capture.origin;
    struct stream *stream = &worker->own[device][origin == &worker->own[device][0]];

    driver_wait(device, stream->handle, origin->handle);
    stream->is_captured = true;
    worker->capture.joined = stream;
}

/* Record up to four allocated blocks to which the captured graph may refer. */
static void record_graph(struct worker *worker, struct pool *pool)
{
    pool->graph_size = 0;
    for (unsigned i = 0; i < WORLD_BLOCKS && pool->graph_size < 4; i++) {
        const struct block *block = &worker->block[i];

        /* Dedicated pages are released with a block, although a graph may refer to them. */
        if (block->ptr != NULL && block->pool == pool && block->stream == worker->capture.origin &&
            !(block->features & (FEATURE(GUARD) | FEATURE(UNMAP)))) {
            pool->graph[pool->graph_size].ptr = block->ptr;
            pool->graph[pool->graph_size++].bytes = block->bytes;
        }
    }
    pool->replayed_on = worker->capture.origin;
}

void end_capture(struct worker *worker)
{
    struct pool *pool = worker->capture.pool;
    const uint64_t epoch = fault_epoch();

    if (pool == NULL)
        return;
    if (worker->capture.joined != NULL)
        driver_wait(pool->device, worker->capture.origin->handle, worker->capture.joined->handle);
    const bool is_valid = driver_capture_end(pool->device, worker->capture.origin->handle);
    CHECK(is_valid || !fault_was_none(epoch) || worker->world->options.faults > 0);
    CHECK_OK(CALL(xseg_capture_end, pool->handle));
    failure_record(worker->number, "end of the capture into pool %p", (void *)pool->handle);
    worker->capture.origin->is_captured = false;
    if (worker->capture.joined != NULL)
        worker->capture.joined->is_captured = false;
    if (is_valid && pool->references > 0 && !pool->is_inaccessible)
        record_graph(worker, pool);
    pool->is_capturing = false;
    worker->capture.pool = NULL;
    record_features(worker->world, FEATURE(CAPTURE), pool->device, pool, NULL, true);
}

void step_capture_end(struct worker *worker)
{
    end_capture(worker);
}

/* Launch the graph: its pool keeps the memory to which it refers, even if blocks were freed. */
void step_replay(struct worker *worker)
{
    struct pool *pool = any_own_pool(worker);

    if (pool == NULL || pool->replayed_on == NULL || pool->replayed_on->is_captured ||
        pthread_rwlock_tryrdlock(&pool->contents) != 0)
        return;
    if (!pool->is_inaccessible)
        for (unsigned i = 0; i < pool->graph_size; i++)
            driver_work(pool->device, pool->replayed_on->handle, 1 + below(worker, 1000000),
                        pool->graph[i].ptr, pool->graph[i].bytes);
    (void)pthread_rwlock_unlock(&pool->contents);
    failure_record(worker->number, "replay of the graph of pool %p, %u blocks",
                   (void *)pool->handle, pool->graph_size);
}
