/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

void step_time(struct worker *worker)
{
    xseg_sim_advance(below(worker, 20000000));
}

void step_finish(struct worker *worker)
{
    const struct stream *stream = any_stream(worker, any_device(worker));

    if (chance(worker, 3))
        finish_streams(worker);
    else if (!stream->is_captured)
        driver_finish(stream->device, stream->handle);
}

/* On separate streams, which no other thread uses. */
void step_passed(struct worker *worker)
{
    const int device = any_device(worker);
    const struct stream *stream = &worker->own[device][below(worker, WORLD_OWN)];

    if (stream->is_captured)
        return;
    driver_finish(device, stream->handle);
    CHECK_OK(CALL(xseg_stream_synchronized, worker->world->allocator, device, stream->handle));
    failure_note(worker->number, "passed stream %p", (void *)stream->handle);
}

/* Drop the handle of a stream: it queues no more work. */
static void forget_stream(struct worker *worker, const struct stream *stream)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        struct block *block = &worker->block[i];

        if (block->ptr == NULL)
            continue;
        block->features |= block->home == stream || block->last == stream ? FEATURE(RETIRED) : 0;
        if (block->home == stream)
            block->home = NULL;
        if (block->last == stream)
            block->last = NULL;
    }
    for (unsigned i = 0; i < WORLD_SHARES; i++)
        if (worker->share[i].stream == stream)
            worker->share[i].stream = NULL;
    for (unsigned i = 0; i < WORLD_TAGS; i++) {
        struct tag *tag = worker->tag[i];

        if (tag != NULL && tag->replayed_on == stream) {
            tag->replayed_on = NULL;
            tag->graph_size = 0;
            atomic_fetch_or(&tag->features, FEATURE(RETIRED));
        }
    }
}

static bool is_worked_on(const struct worker *worker, const struct stream *stream)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr != NULL && worker->block[i].last == stream)
            return true;
    return false;
}

/* A stream is retired with work queued on freed blocks, and another stream takes its slot. */
void step_stream_retire(struct worker *worker)
{
    const int device = any_device(worker);
    struct stream *stream = &worker->own[device][below(worker, WORLD_OWN)];
    const uint64_t epoch = fault_epoch();

    /* A retired handle cannot be used to wait for live blocks. */
    if (is_worked_on(worker, stream) && !stream->is_captured)
        driver_finish(device, stream->handle);
    const xseg_status status =
        CALL(xseg_stream_retire, worker->world->allocator, device, stream->handle);
    failure_note(worker->number, "retire stream %p: %d", (void *)stream->handle, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && stream->is_captured));
    if (status != XSEG_OK || stream->is_captured)
        return;
    forget_stream(worker, stream);
    driver_stream_destroy(device, stream->handle);
    stream->handle = driver_stream(device, false);
}

/* --- Captures. --- */

void step_capture(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);

    if (tag == NULL || worker->capture.tag != NULL)
        return;
    struct stream *stream = &worker->own[tag->device][below(worker, WORLD_OWN)];
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_capture_begin, tag->pool, stream->handle);

    failure_note(worker->number, "capture of stream %p into pool %p: %d", (void *)stream->handle,
                 (void *)tag->pool, status);
    note_features(worker->world, FEATURE(CAPTURE), tag->device, tag, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && (tag->is_routed || tag->is_capturing)) ||
          (status == XSEG_ERR_PAUSED && tag->features & FEATURES_AWAY));
    if (status != XSEG_OK)
        return;
    tag->is_capturing = true;
    atomic_fetch_or(&tag->features, FEATURE(CAPTURE));
    worker->capture.tag = tag;
    worker->capture.origin = stream;
    worker->capture.joined = NULL;
    driver_capture_begin(tag->device, stream->handle, DRIVER_GLOBAL);
    stream->is_captured = true;
}

void step_capture_join(struct worker *worker)
{
    if (worker->capture.tag == NULL || worker->capture.joined != NULL)
        return;
    const int device = worker->capture.tag->device;
    struct stream *origin = worker->capture.origin;
    struct stream *stream = &worker->own[device][origin == &worker->own[device][0]];

    driver_wait(device, stream->handle, origin->handle);
    stream->is_captured = true;
    worker->capture.joined = stream;
}

/* The blocks of the pool to which the graph refers; some may be freed by now. */
static void keep_graph(struct worker *worker, struct tag *tag)
{
    tag->graph_size = 0;
    for (unsigned i = 0; i < WORLD_BLOCKS && tag->graph_size < 4; i++) {
        const struct block *block = &worker->block[i];

        /* Dedicated pages are released with a block, although a graph may refer to them. */
        if (block->ptr != NULL && block->tag == tag && block->home == worker->capture.origin &&
            !(block->features & (FEATURE(GUARD) | FEATURE(UNMAP)))) {
            tag->graph[tag->graph_size].ptr = block->ptr;
            tag->graph[tag->graph_size++].bytes = block->bytes;
        }
    }
    tag->replayed_on = worker->capture.origin;
}

void end_capture(struct worker *worker)
{
    struct tag *tag = worker->capture.tag;
    const uint64_t epoch = fault_epoch();

    if (tag == NULL)
        return;
    if (worker->capture.joined != NULL)
        driver_wait(tag->device, worker->capture.origin->handle, worker->capture.joined->handle);
    const bool is_whole = driver_capture_end(tag->device, worker->capture.origin->handle);
    CHECK(is_whole || !fault_was_none(epoch) || worker->world->options.faults > 0);
    CHECK_OK(CALL(xseg_capture_end, tag->pool));
    failure_note(worker->number, "end of the capture into pool %p", (void *)tag->pool);
    worker->capture.origin->is_captured = false;
    if (worker->capture.joined != NULL)
        worker->capture.joined->is_captured = false;
    if (is_whole && tag->holders > 0 && !tag->is_evicted)
        keep_graph(worker, tag);
    tag->is_capturing = false;
    worker->capture.tag = NULL;
    note_features(worker->world, FEATURE(CAPTURE), tag->device, tag, NULL, true);
}

void step_capture_end(struct worker *worker)
{
    end_capture(worker);
}

/* Launch the graph: its pool keeps the memory to which it refers, even if blocks were freed. */
void step_replay(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);

    if (tag == NULL || tag->replayed_on == NULL || tag->replayed_on->is_captured ||
        pthread_rwlock_tryrdlock(&tag->contents) != 0)
        return;
    if (!tag->is_evicted)
        for (unsigned i = 0; i < tag->graph_size; i++)
            driver_work(tag->device, tag->replayed_on->handle, 1 + below(worker, 1000000),
                        tag->graph[i].ptr, tag->graph[i].bytes);
    (void)pthread_rwlock_unlock(&tag->contents);
    failure_note(worker->number, "replay of the graph of pool %p, %u places", (void *)tag->pool,
                 tag->graph_size);
}
