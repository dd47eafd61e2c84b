/* SPDX-License-Identifier: MIT */
/* Steps about blocks and streams. */
#include <string.h>

#include "tests/model/run.h"

/* A random slot; during captures often one that takes part in a capture. */
static unsigned any_slot(struct run *run)
{
    const unsigned captured = model_captures(&run->model) > 0 ? run_captured_slot(run) : MODEL_NONE;

    if (captured != MODEL_NONE && run_random(run, 2) == 0)
        return captured;
    return (unsigned)run_random(run, RUN_SLOTS);
}

static struct model_entry *entry_of(struct run *run, unsigned slot)
{
    return &run->model.entry[run->slot[slot].entry];
}

static struct model_queue *queue_of(struct run *run, unsigned slot)
{
    return &run->model.queue[run->slot[slot].queue];
}

/* An allocated block, or NULL. */
static struct model_block *any_allocated_block(struct run *run)
{
    struct model *model = &run->model;

    for (unsigned tries = 0; model->blocks > 0 && tries < 4; tries++) {
        struct model_block *block = &model->block[run_random(run, model->blocks)];

        if (block->state == MODEL_ALLOCATED)
            return block;
    }
    return NULL;
}

/* --- Allocation. --- */

/* A random pool for a request, or MODEL_NONE. */
static unsigned any_pool(struct run *run)
{
    const unsigned pool = run_pool(run);

    return pool == 0 || run_random(run, 4) != 0 ? MODEL_NONE : pool;
}

static unsigned pool_id(const struct run *run, const struct xseg_pool *pool)
{
    unsigned i = 0;

    while (i < run->model.pools && run->model.pool[i].pool != pool)
        i++;
    assert_true(i < run->model.pools);
    return i;
}

/* Check the size of a block against PyTorch's rules. */
static void check_size(const struct run *run, const struct xseg_block_info *info,
                       const struct xseg_pool_options *options)
{
    const bool exact = (info->is_expandable || info->is_small) && !options->no_split;
    const uint64_t rounded = (info->requested + 511) / 512 * 512;

    assert_int_equal(info->is_small, rounded <= MIB);
    assert_int_equal(info->is_expandable, run->options.expandable && options->memory.alloc == NULL);
    assert_int_equal(info->bytes % 512, 0);
    assert_int_equal((uintptr_t)info->base % 512, 0);
    assert_true(info->bytes >= info->requested);
    if (exact)
        assert_int_equal(info->bytes, rounded);
    else if (!options->no_split)
        assert_true(info->bytes - rounded <= MIB);
}

static void add_block(struct run *run, unsigned slot, void *ptr, size_t bytes, unsigned pool)
{
    const struct xseg_block_info info = env_block(run->allocator, ptr);
    struct model_block block = {.ptr = ptr, .bytes = info.bytes, .requested = bytes};
    struct model_segment segment = {.base = info.segment_base, .bytes = info.segment_bytes};

    block.entry = segment.entry = run->slot[slot].entry;
    block.fallback = info.fallback_pool != NULL;
    block.pool = segment.pool = pool_id(run, block.fallback ? info.fallback_pool : info.pool);
    block.is_small = info.is_small;
    if (block.pool != pool) {
        /* Under memory pressure the default pool allocates from a pool with use_on_oom. */
        assert_true(block.fallback);
        assert_null(info.pool);
        assert_int_equal(pool, 0);
        assert_true(run->model.pool[block.pool].options.use_on_oom);
        assert_true(run->model.pool[block.pool].references > 0);
        assert_false(run->model.pool[block.pool].is_captured);
        assert_true(run->options.is_low_on_memory);
        run->fallbacks++;
    }
    assert_ptr_equal(info.stream, entry_of(run, slot)->handle);
    assert_int_equal(info.requested, bytes);
    check_size(run, &info, &run->model.pool[block.pool].options);
    const char *error = model_alloc(&run->model, &block, &segment);
    if (error != NULL)
        fail_msg("%p of %zu bytes on stream %p: %s", ptr, bytes, (void *)info.stream, error);
}

/* Whether a request may fail for lack of memory. */
static bool may_fail(const struct run *run, unsigned pool)
{
    const struct xseg_pool_options *options = &run->model.pool[pool].options;

    return run->options.is_low_on_memory || options->limit_bytes != 0 ||
           (options->memory.alloc != NULL && run->memory_functions_fail);
}

/*
 * Whether an allocation must poll pending blocks.  After memory pressure the poll is optional if no block of the arena of
 * the request is pending.
 */
static bool must_poll(const struct run *run, unsigned slot, unsigned pool, size_t bytes)
{
    const struct xseg_device *device = xseg_allocator_open_device(run->allocator, 0);
    const struct model *model = &run->model;

    if (device == NULL || !atomic_load(&device->polls_on_miss) || model_captures(model) > 0)
        return true;
    for (unsigned i = 0; i < model->blocks; i++)
        if (model->block[i].state != MODEL_ALLOCATED &&
            model->block[i].entry == run->slot[slot].entry && model->block[i].pool == pool &&
            model->block[i].is_small == (bytes <= MIB))
            return true;
    return false;
}

void step_alloc(struct run *run)
{
    struct model *model = &run->model;
    struct xseg_request request = {sizeof(request)};
    const unsigned slot = any_slot(run), requested_pool = any_pool(run);
    void *ptr = NULL;

    if (model->blocks >= MODEL_BLOCKS / 2)
        return;
    request.bytes = run_random_bytes(run);
    request.stream = run_handle(run, slot);
    request.pool = requested_pool == MODEL_NONE ? NULL : model->pool[requested_pool].pool;
    run->memory_functions_fail = run_random(run, 4) == 0;
    const unsigned pool =
        requested_pool != MODEL_NONE ? requested_pool : model_pool_of(model, run->slot[slot].entry);
    const unsigned before = model->blocks;
    const bool captured = model_captures(model) > 0;
    const bool polls = must_poll(run, slot, pool, request.bytes);
    model->pool[pool].is_captured = model->pool[pool].is_captured || captured;
    if (polls)
        model_before_alloc(model, run->slot[slot].entry);
    run->reused += captured ? before - model->blocks : 0;

    run_expect_lookup(run, slot);
    run_set_context(run);
    const xseg_status status = xseg_alloc_with(run->allocator, &request, &ptr);
    run->may_reclaim = may_fail(run, pool) || !polls;
    run_lookup(run, slot);
    model_name_entry(model, run->slot[slot].entry);
    if (status == XSEG_OK) {
        add_block(run, slot, ptr, request.bytes, pool);
        return;
    }
    assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    assert_true(may_fail(run, pool));
    run->rejected++;
}

void step_prewarm(struct run *run)
{
    struct xseg_scope scope = {sizeof(scope), .device = 0, .one_stream = true};
    const unsigned slot = any_slot(run), requested_pool = any_pool(run);

    scope.stream = run_handle(run, slot);
    scope.pool = requested_pool == MODEL_NONE ? NULL : run->model.pool[requested_pool].pool;
    run->memory_functions_fail = false;
    run_expect_lookup(run, slot);
    run_set_context(run);
    const xseg_status status = xseg_prewarm(run->allocator, &scope, run_random_bytes(run));
    run->may_reclaim = may_fail(run, requested_pool == MODEL_NONE ? 0 : requested_pool);
    run_lookup(run, slot);
    model_name_entry(&run->model, run->slot[slot].entry);
    if (status != XSEG_OK) {
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
        assert_true(may_fail(run, requested_pool == MODEL_NONE ? 0 : requested_pool));
    }
}

/* --- Free. --- */

void step_free(struct run *run)
{
    struct model_block *block = any_allocated_block(run);

    run_set_context(run);
    if (block != NULL) {
        char *ptr = block->ptr;

        env_free(run->allocator, ptr);
        model_free(&run->model, block);
        assert_int_equal(xseg_free(run->allocator, ptr), XSEG_ERR_NOT_ALLOCATED);
    }
}

/* Up to three events after queued work of random streams; returns the number of events. */
static size_t random_events(struct run *run, xseg_event *events, struct model_fence *until)
{
    size_t count = 0;

    for (unsigned slot = 0; slot < RUN_SLOTS && count < 3; slot++) {
        const unsigned at = run->slot[slot].queue;
        const struct model_queue *queue = &run->model.queue[at];
        const uint64_t pending = queue->queued - queue->completed;

        if (pending == 0 || run_random(run, 2) == 0)
            continue;
        until->position[at] = queue->completed + 1 + run_random(run, pending);
        events[count++] = run->queue[at].event[until->position[at] % RUN_WORK];
    }
    return count;
}

void step_free_after(struct run *run)
{
    struct model_block *block = any_allocated_block(run);
    struct model_fence until = {0};
    xseg_event events[3];

    if (block == NULL || block->uses == MODEL_USES)
        return;
    const size_t count = random_events(run, events, &until);
    run_set_context(run);
    const xseg_status status = xseg_free_after(run->allocator, block->ptr, events, count);
    if (model_captures(&run->model) > 0) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        return;
    }
    assert_ok(status);
    /* The library's own stream waits for the events, so a block that it orders needs no use. */
    if (run_is_library_stream(run, block))
        model_free(&run->model, block);
    else
        model_free_after(&run->model, block, &until);
}

/* --- Use. --- */

/* Record a use of a block by the stream of a slot. */
static void use_block(struct run *run, struct model_block *block, unsigned slot)
{
    run_set_context(run);
    char *ptr = block->ptr;

    assert_ok(xseg_record_stream(run->allocator, ptr, run_handle(run, slot)));
    run_lookup(run, slot);
    model_name_entry(&run->model, run->slot[slot].entry);
    model_use(&run->model, model_find(&run->model, ptr), run->slot[slot].entry);
}

void step_record_stream(struct run *run)
{
    struct model_block *block = any_allocated_block(run);

    if (block != NULL && block->uses + 1 < MODEL_USES)
        use_block(run, block, any_slot(run));
}

/* In a capture, record a use of a block by another stream of the capture, and free the block. */
void step_capture_use(struct run *run)
{
    struct model *model = &run->model;
    const unsigned slot = run_captured_slot(run), other = (unsigned)run_random(run, RUN_SLOTS);

    if (slot == MODEL_NONE || queue_of(run, other)->capture != queue_of(run, slot)->capture)
        return;
    for (unsigned i = 0; i < model->blocks; i++) {
        struct model_block *block = &model->block[i];
        char *ptr = block->ptr;

        if (block->state != MODEL_ALLOCATED || block->entry != run->slot[slot].entry ||
            block->uses > 1)
            continue;
        use_block(run, block, other);
        env_free(run->allocator, ptr);
        model_free(model, model_find(model, ptr));
        return;
    }
}

/* Queue work on a stream, which accesses a block or no memory. */
static void queue_work(struct run *run, unsigned slot, const struct model_block *block)
{
    const unsigned at = run->slot[slot].queue;
    struct model_queue *queue = &run->model.queue[at];

    queue->queued++;
    (void)model_enqueue(&run->model, at);
    driver_work(0, run->queue[at].handle, UINT64_MAX, block == NULL ? NULL : block->ptr,
                block == NULL ? 0 : block->bytes);
    run->queue[at].event[queue->queued % RUN_WORK] = driver_event(0, run->queue[at].handle);
}

void step_work(struct run *run)
{
    const unsigned slot = any_slot(run);
    const struct model_queue *queue = queue_of(run, slot);
    struct model_block *block = any_allocated_block(run);
    const bool records_first = run_random(run, 2) == 0;

    /* Work on the legacy stream would invalidate captures of blocking streams. */
    if (queue->queued - queue->completed + 1 >= RUN_WORK || queue->capture != 0 ||
        (slot == 0 && model_captures(&run->model) > 0))
        return;
    if (block == NULL || block->uses + 1 >= MODEL_USES) {
        queue_work(run, slot, NULL);
        return;
    }
    const void *ptr = block->ptr;
    if (records_first)
        use_block(run, block, slot);
    queue_work(run, slot, model_find(&run->model, ptr));
    if (!records_first)
        use_block(run, block, slot);
}

/* Wait for the last work of a stream, and for all work on which that work depends. */
static void finish_stream(struct run *run, unsigned slot)
{
    const struct model_queue *queue = queue_of(run, slot);
    const unsigned at = run->slot[slot].queue;

    if (queue->completed < queue->queued)
        driver_event_synchronize(0, run->queue[at].event[queue->queued % RUN_WORK]);
}

void step_finish(struct run *run)
{
    const unsigned slot = any_slot(run);

    if (run_random(run, 4) == 0)
        xseg_sim_finish_all();
    else
        finish_stream(run, slot);
}

void step_synchronize(struct run *run)
{
    const unsigned slot = any_slot(run);

    if (queue_of(run, slot)->completed < queue_of(run, slot)->queued)
        return;
    run_set_context(run);
    assert_ok(xseg_stream_synchronized(run->allocator, 0, run_handle(run, slot)));
    model_synchronize(&run->model, run->slot[slot].entry);
    run->may_reclaim = run->is_synchronized = run->may_have_polled;
}

/* Retire the stream of a slot, and replace it by a stream with the same handle or another one. */
void step_retire(struct run *run)
{
    struct model *model = &run->model;
    const unsigned slot = 2 + (unsigned)run_random(run, RUN_SLOTS - 2), at = run->slot[slot].queue;
    struct model_entry *entry = entry_of(run, slot);

    if (model->queues == MODEL_QUEUES || model->entries == MODEL_ENTRIES)
        return;
    run_set_context(run);
    const xseg_status status = xseg_stream_retire(run->allocator, 0, run->queue[at].handle);
    const bool captured = model->queue[at].capture != 0 && model_captures(model) > 0;
    const bool is_busy =
        entry->is_known && (captured || model_is_origin(model, run->slot[slot].entry));
    assert_int_equal(status, is_busy ? XSEG_ERR_BUSY : XSEG_OK);
    /* The library accepts an unknown stream that is capturing, but the driver must not destroy it. */
    if (is_busy || model->queue[at].capture != 0)
        return;
    model_retire(model, run->slot[slot].entry);
    const bool reuses_handle = run_random(run, 2) == 0;
    if (!reuses_handle) {
        driver_stream_destroy(0, run->queue[at].handle);
        run->queue[at].exists = false;
    }
    run_fill_slot(run, slot, reuses_handle);
}

/* --- Trim. --- */

static uint64_t reserved_bytes(struct run *run)
{
    return env_stats(run->allocator).reserved_bytes[XSEG_STAT_ALL].current;
}

/* Expect that a trim of all memory reports all memory that it kept. */
static void check_kept(struct run *run, const struct xseg_trim_result *result)
{
    const struct xseg_statistics stats = env_stats(run->allocator);

    assert_int_equal(
        result->kept_fragmented + result->kept_busy + result->kept_pool + result->kept_capture,
        stats.reserved_bytes[XSEG_STAT_ALL].current - stats.active_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(result->kept_pending, stats.active_bytes[XSEG_STAT_ALL].current -
                                               stats.allocated_bytes[XSEG_STAT_ALL].current);
}

void step_trim(struct run *run)
{
    struct xseg_trim_result result = {sizeof(result)};
    struct xseg_scope scope = {sizeof(scope), .device = 0};
    struct xseg_trim_options options = {sizeof(options)};
    const unsigned slot = any_slot(run), requested_pool = any_pool(run);
    const uint64_t before = reserved_bytes(run);
    const bool captured = model_captures(&run->model) > 0;

    options.wait = run_random(run, 3) == 0;
    scope.one_stream = run_random(run, 3) == 0;
    scope.stream = run_handle(run, slot);
    scope.pool = requested_pool == MODEL_NONE ? NULL : run->model.pool[requested_pool].pool;
    model_poll(&run->model);
    run_set_context(run);
    assert_ok(xseg_trim(run->allocator, &scope, &options, &result));
    run->may_reclaim = true;
    run->saved_may_be_released =
        run->saved_may_be_released || (requested_pool == run->saved_pool && result.released > 0);
    if (scope.one_stream)
        run_lookup(run, slot);
    if (options.wait && !captured)
        run_expect_nothing_pending(run);
    assert_int_equal(result.released, before - reserved_bytes(run));
    assert_int_equal(result.kept_failed, 0);
    assert_true(captured ? result.released == 0 : result.kept_capture == 0);
    assert_true(!options.wait || result.kept_busy == 0);
    if (!scope.one_stream && scope.pool == NULL)
        check_kept(run, &result);
}

/* --- Other steps. --- */

/* Allocate, free or trim on device 1, with any current context and any captures on device 0. */
void step_second_device(struct run *run)
{
    run_set_context(run);
    if (run->device1_blocks < RUN_DEVICE1 && run_random(run, 2) == 0) {
        const xseg_status status = xseg_alloc(run->allocator, 1, run_random_bytes(run), NULL,
                                              &run->device1_block[run->device1_blocks]);

        if (status == XSEG_OK)
            run->device1_blocks++;
        else
            assert_true(run->options.is_low_on_memory && status == XSEG_ERR_NO_MEMORY);
    } else if (run->device1_blocks > 0) {
        env_free(run->allocator, run->device1_block[--run->device1_blocks]);
    } else {
        struct xseg_scope scope = {sizeof(scope), .device = 1};

        assert_ok(xseg_trim(run->allocator, &scope, NULL, NULL));
    }
}

void step_bad_input(struct run *run)
{
    struct model *model = &run->model;
    struct model_block *block = any_allocated_block(run);
    const unsigned pool = (unsigned)run_random(run, model->pools), slot = any_slot(run);
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    if (block != NULL) {
        const xseg_event none = NULL;

        run_set_context(run);
        assert_int_equal(xseg_free(run->allocator, block->ptr + 256), XSEG_ERR_NOT_ALLOCATED);
        assert_int_equal(xseg_free_after(run->allocator, block->ptr, &none, 1),
                         model_captures(model) > 0 ? XSEG_ERR_BUSY : XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_record_stream(run->allocator,
                                            block->ptr + (block->bytes > 512 ? 512 : 0),
                                            (xseg_stream)(uintptr_t)0x1234560),
                         block->bytes > 512 ? XSEG_ERR_NOT_ALLOCATED : XSEG_ERR_DRIVER);
        if (block->bytes <= 512)
            run_poll_retired(run);
    }
    assert_int_equal(xseg_stream_retire(run->allocator, 0, run_handle(run, slot % 2)),
                     XSEG_ERR_ARGUMENT);
    request.bytes = 1;
    request.pool = model->pool[pool].pool;
    if (request.pool != NULL && model->pool[pool].references == 0) {
        assert_int_equal(xseg_alloc_with(run->allocator, &request, &ptr), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_pool_retain(request.pool), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_pool_release(request.pool), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_route_begin(request.pool, NULL, NULL), XSEG_ERR_ARGUMENT);
        run_set_context(run);
        assert_int_equal(xseg_capture_begin(request.pool, run_handle(run, slot)),
                         XSEG_ERR_ARGUMENT);
        run_lookup(run, slot);
    }
}
