/* SPDX-License-Identifier: MIT */
#include "tests/model/run.h"

#include <string.h>

#include "src/core/block/block.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "tests/support/handle_reuse_driver.h"
#include "tests/support/rng.h"

uint64_t run_random(struct run *run, uint64_t bound)
{
    return (rng_next(&run->random) >> 16) % bound;
}

size_t run_random_bytes(struct run *run)
{
    static const size_t max_bytes[] = {4 * KIB, MIB, 8 * MIB, 40 * MIB};
    const uint64_t kind = run_random(run, 6);

    if (kind < COUNT_OF(max_bytes))
        return 1 + run_random(run, max_bytes[kind]);
    return kind == 4 ? (1 + run_random(run, 3)) * 5 * MIB : (size_t)512 << run_random(run, 17);
}

/* --- Streams. --- */

xseg_stream run_handle(struct run *run, unsigned slot)
{
    const xseg_stream handle = run->queue[run->slot[slot].queue].handle;

    /* The legacy default stream has the handles NULL and 1. */
    return slot == 0 && run_random(run, 2) == 0 ? (xseg_stream)(uintptr_t)1 : handle;
}

void run_fill_slot(struct run *run, unsigned slot, bool reuses_handle)
{
    struct model *model = &run->model;
    struct run_slot *at = &run->slot[slot];

    if (!reuses_handle) {
        struct run_queue *queue = &run->queue[model->queues];

        at->queue = model->queues++;
        queue->exists = true;
        const bool blocking = slot == 1 || (slot > 1 && run_random(run, 4) == 0);

        queue->handle = slot == 0   ? NULL
                        : slot == 1 ? (xseg_stream)(uintptr_t)2
                                    : driver_stream(0, blocking);
        model->queue[at->queue].kind = slot == 0  ? MODEL_LEGACY
                                       : blocking ? MODEL_BLOCKING
                                                  : MODEL_NON_BLOCKING;
    } else {
        handle_reuse_stream(run->queue[at->queue].handle);
    }
    at->entry = model->entries++;
    model->entry[at->entry] =
        (struct model_entry){.handle = run->queue[at->queue].handle, .queue = at->queue};
}

static void poll_events(struct run *run)
{
    for (unsigned i = 0; i < run->model.queues; i++) {
        struct model_queue *queue = &run->model.queue[i];

        while (queue->completed < queue->queued) {
            const xseg_event event = run->queue[i].event[(queue->completed + 1) % RUN_WORK];

            if (!driver_event_has_completed(event))
                break;
            driver_event_destroy(event);
            queue->completed++;
        }
    }
    model_remove_ghosts(&run->model);
}

/* --- Beginning and end. --- */

void run_open(struct run *run, const struct run_options *options)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options driver = {sizeof(driver)};
    char config[128];

    memset(run, 0, sizeof(*run));
    run->options = *options;
    run->random = options->seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    settings.devices = 2;
    settings.memory_bytes =
        options->is_low_on_memory ? (160 + 20 * run_random(run, 6)) * MIB : 16 * GIB;
    settings.single_mapping_calls = run_random(run, 8) == 0;
    (void)snprintf(config, sizeof(config),
                   "expandable_segments:%s,graph_capture_record_stream_reuse:%s,history:%s",
                   options->expandable ? "True" : "False", options->reuse ? "True" : "False",
                   options->seed % 4 == 0 ? "state" : "nothing");
    driver.driver = handle_reuse_driver();
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_open(config, &driver, &run->allocator));
    driver_open(2, NULL);
    run->device = -1;
    run->model.reuse = options->reuse;
    run->model.pools = 1;
    run->model.pool[0].references = 1;
    for (unsigned i = 0; i < RUN_SLOTS; i++)
        run_fill_slot(run, i, false);
}

/* Release everything in the order of a correct program. */
static void release_all(struct run *run)
{
    struct model *model = &run->model;

    while (model->marks > 0)
        step_unmark(run);
    while (model->routes > 0)
        step_end_route_at(run, (unsigned)run_random(run, model->routes));
    xseg_checkpoint_destroy(run->checkpoint);
    while (run->device1_blocks > 0)
        env_free(run->allocator, run->device1_block[--run->device1_blocks]);
    for (unsigned i = model->blocks; i > 0; i--)
        if (model->block[i - 1].state == MODEL_ALLOCATED) {
            env_free(run->allocator, model->block[i - 1].ptr);
            model_free(model, &model->block[i - 1]);
        }
    run_check(run, true);
    for (unsigned i = 1; i < model->pools; i++)
        for (; model->pool[i].references > 0; model->pool[i].references--)
            assert_ok(xseg_pool_release(model->pool[i].pool));
}

void run_close(struct run *run)
{
    char text[1024];

    release_all(run);
    env_empty_cache(run->allocator);
    struct xseg_statistics stats = env_stats(run->allocator);
    assert_int_equal(stats.active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.physical_bytes, 0);
    assert_int_equal(run->memory_function_bytes, 0);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].freed, run->model.allocations);
    assert_ok(xseg_close(run->allocator));
    xseg_sim_finish_all();
    poll_events(run);
    for (unsigned i = 2; i < run->model.queues; i++)
        if (run->queue[i].exists)
            driver_stream_destroy(0, run->queue[i].handle);
    /* Only the two contexts remain.  Check before driver_close(): the simulator does not report events of a context whose last
     * reference is released. */
    if (xseg_sim_leaks(text, sizeof(text)) != 2)
        fail_msg("leaked: %s", text);
    driver_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Random choices. --- */

unsigned run_pool(struct run *run)
{
    const unsigned first = (unsigned)run_random(run, run->model.pools);

    for (unsigned i = 0; i < run->model.pools; i++) {
        const unsigned pool = (first + i) % run->model.pools;

        if (pool != 0 && run->model.pool[pool].references > 0)
            return pool;
    }
    return 0;
}

unsigned run_captured_slot(struct run *run)
{
    const unsigned first = (unsigned)run_random(run, RUN_SLOTS);

    for (unsigned i = 0; i < RUN_SLOTS; i++) {
        const unsigned slot = (first + i) % RUN_SLOTS;
        const struct model_queue *queue = &run->model.queue[run->slot[slot].queue];

        if (queue->capture != 0 && !queue->is_invalid)
            return slot;
    }
    return MODEL_NONE;
}

/* --- Calls. --- */

static void record_retiring(struct run *run)
{
    const struct xseg_device *opened = xseg_allocator_open_device(run->allocator, 0);

    run->has_retiring = opened != NULL && atomic_load(&opened->streams.retiring_count) > 0;
}

void run_set_context(struct run *run)
{
    assert_int_equal(driver_current(), run->device);
    record_retiring(run);
    run->device = (int)run_random(run, 3) - 1;
    driver_set_current(run->device);
}

/* --- Comparison of the library and the model. --- */

/* The library's stream entry of a slot, or NULL. */
static const void *known_stream(struct run *run, unsigned slot)
{
    struct xseg_device *device = xseg_allocator_open_device(run->allocator, 0);
    const struct model_entry *entry = &run->model.entry[run->slot[slot].entry];
    struct xseg_known_stream *known = NULL;

    /* The library finds the per-thread default stream by its ID, which it queries. */
    if (entry->is_known && slot == 1)
        assert_ok(xseg_streams_find_or_add(&device->streams, entry->handle, &known));
    else if (entry->is_known)
        known = xseg_streams_find(&device->streams, entry->handle);
    return known;
}

/* The entry of the stream that orders a block according to the library, or MODEL_NONE. */
static unsigned owner_of(struct run *run, const struct model_block *block)
{
    const struct xseg_extent *extent =
        xseg_page_map_find(&run->allocator->page_map, (uint64_t)(uintptr_t)block->ptr);

    /* No slot has the stream of the arena if that stream is retired as well. */
    for (unsigned i = 0; extent != NULL && i < RUN_SLOTS; i++)
        if (known_stream(run, i) == xseg_arena_stream(extent->arena))
            return run->slot[i].entry;
    return MODEL_NONE;
}

bool run_is_library_stream(const struct run *run, const struct model_block *block)
{
    struct xseg_device *device = xseg_allocator_open_device(run->allocator, 0);
    const struct xseg_extent *extent =
        xseg_page_map_find(&run->allocator->page_map, (uint64_t)(uintptr_t)block->ptr);

    return extent != NULL && device->wait_stream != NULL &&
           xseg_arena_stream(extent->arena) ==
               xseg_streams_find(&device->streams, device->wait_stream);
}

/* Read which streams order the blocks of retired streams. */
static void update_owners(struct run *run)
{
    for (unsigned i = 0; i < run->model.blocks; i++) {
        struct model_block *block = &run->model.block[i];

        if (!run->model.entry[block->entry].retired)
            continue;
        const unsigned owner = owner_of(run, block);
        if (owner != MODEL_NONE && !model_reassign(&run->model, block, owner))
            fail_msg("%p was reassigned before its own stream had completed", (void *)block->ptr);
    }
}

/* Under memory pressure the library may have recorded events for blocks that were freed in a capture. */
static void update_deferred(struct run *run)
{
    const struct xseg_device *opened = xseg_allocator_open_device(run->allocator, 0);

    if (run->may_reclaim && opened != NULL && xseg_list_is_empty(&opened->pending->deferred))
        model_settle(&run->model);
}

/* Remove pending blocks that the library has reclaimed, although the step does not have to poll. */
static void update_reclaimed(struct run *run)
{
    struct model *model = &run->model;

    for (unsigned i = model->blocks; i > 0; i--) {
        struct model_block *block = &model->block[i - 1];
        struct xseg_block_info info = {sizeof(info)};

        if (block->state == MODEL_ALLOCATED)
            continue;
        const xseg_status status = xseg_block_query(run->allocator, block->ptr, &info);
        if (status == XSEG_OK && info.state == XSEG_BLOCK_PENDING_FREE && info.base == block->ptr)
            continue;
        if (!run->may_reclaim)
            fail_msg("%p was reclaimed in a step that does not poll", (void *)block->ptr);
        if (!model_was_reclaimed(model, block, run->is_synchronized))
            fail_msg("%p was reclaimed before its uses had completed", (void *)info.base);
    }
}

/* Read the library's entry of a new stream, which may be the reused entry of a retired stream that has completed. */
static void update_entries(struct run *run, unsigned slot)
{
    const unsigned current = run->slot[slot].entry;
    const void *known = known_stream(run, slot);

    for (unsigned previous = 0; previous < run->model.entries; previous++)
        if (previous != current && run->known[previous] == known) {
            assert_true(model_may_reuse_entry(&run->model, previous));
            run->known[previous] = NULL;
        }
    run->known[current] = known;
}

void run_poll_retired(struct run *run)
{
    if (run->has_retiring)
        model_poll(&run->model);
}

void run_expect_nothing_pending(struct run *run)
{
    poll_events(run);
    model_poll(&run->model);
    for (unsigned i = 0; i < run->model.blocks; i++)
        assert_int_equal(run->model.block[i].state, MODEL_ALLOCATED);
}

/* Poll as the library does when it looks up the stream of a slot. */
static void poll_at_lookup(struct run *run, unsigned slot)
{
    const struct model_entry *entry = &run->model.entry[run->slot[slot].entry];

    poll_events(run);
    /* The per-thread default stream is looked up by its ID in each call. */
    if (!entry->is_known || slot == 1)
        run_poll_retired(run);
}

void run_expect_lookup(struct run *run, unsigned slot)
{
    record_retiring(run);
    poll_at_lookup(run, slot);
    run->is_lookup_expected = true;
}

void run_lookup(struct run *run, unsigned slot)
{
    struct model_entry *entry = &run->model.entry[run->slot[slot].entry];

    if (!run->is_lookup_expected)
        poll_at_lookup(run, slot);
    run->is_lookup_expected = false;
    poll_events(run);
    if (!entry->is_known) {
        entry->is_known = true;
        update_entries(run, slot);
    }
    update_reclaimed(run);
    update_owners(run);
}

static void check_block(struct run *run, const struct model_block *block)
{
    const struct xseg_block_info info = env_block(run->allocator, block->ptr);
    const struct model_entry *entry = &run->model.entry[block->entry];

    assert_ptr_equal(info.base, block->ptr);
    assert_int_equal(info.bytes, block->bytes);
    assert_int_equal(info.requested, block->requested);
    assert_int_equal(info.state, block->state == MODEL_ALLOCATED ? XSEG_BLOCK_ALLOCATED
                                                                 : XSEG_BLOCK_PENDING_FREE);
    assert_int_equal(info.device, 0);
    const struct xseg_pool *pool = run->model.pool[block->pool].pool;
    assert_ptr_equal(info.pool, block->fallback ? NULL : pool);
    assert_ptr_equal(info.fallback_pool, block->fallback ? pool : NULL);
    assert_int_equal(info.is_small, block->is_small);
    if (!entry->retired)
        assert_ptr_equal(info.stream, entry->handle);
}

static void check_stats(const struct xseg_statistics *stats, const struct model *model,
                        unsigned pool)
{
    for (unsigned size = 0; size < XSEG_STAT_GROUPS; size++) {
        const struct model_sums sums = model_sum(model, pool, size);

        assert_int_equal(stats->allocation[size].current, sums.allocations);
        assert_int_equal(stats->allocated_bytes[size].current, sums.allocated);
        assert_int_equal(stats->active[size].current, sums.active_blocks);
        assert_int_equal(stats->active_bytes[size].current, sums.active);
        assert_int_equal(stats->requested_bytes[size].current, sums.requested);
        assert_true(stats->reserved_bytes[size].current >= sums.active);
    }
}

static void check_device(struct run *run, bool audit)
{
    struct xseg_device *device = xseg_allocator_open_device(run->allocator, 0);
    const struct xseg_statistics stats = env_stats(run->allocator);
    struct xseg_violation violation = {0};

    check_stats(&stats, &run->model, MODEL_NONE);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, run->model.allocations);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].peak, run->model.peak_allocated);
    assert_int_equal(stats.active_bytes[XSEG_STAT_ALL].peak, run->model.peak_active);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].peak, run->model.peak_requested);
    assert_int_equal(stats.physical_bytes, stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
    if (audit && !xseg_device_audit(device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

void run_check(struct run *run, bool audit)
{
    struct model *model = &run->model;

    assert_int_equal(driver_current(), run->device);
    poll_events(run);
    update_owners(run);
    update_deferred(run);
    update_reclaimed(run);
    model_update_peaks(model);
    for (unsigned i = 0; i < model->blocks; i++)
        check_block(run, &model->block[i]);
    if (xseg_allocator_open_device(run->allocator, 0) == NULL)
        return;
    check_device(run, audit);
    for (unsigned i = 1; i < model->pools; i++) {
        struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = model->pool[i].pool};
        struct xseg_statistics stats = {sizeof(stats)};

        if (scope.pool != NULL)
            assert_ok(xseg_stats_get(run->allocator, &scope, &stats));
        else
            assert_int_equal(model->pool[i].references, 0);
        check_stats(&stats, model, i);
        if (model->pool[i].options.limit_bytes != 0)
            assert_true(stats.physical_bytes <= model->pool[i].options.limit_bytes);
    }
    run->may_have_polled = run->may_have_polled || (run->may_reclaim && model_captures(model) == 0);
    run->may_reclaim = run->is_synchronized = false;
}
