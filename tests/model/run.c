/* SPDX-License-Identifier: MIT */
#include "tests/model/run.h"

#include <string.h>

#include "src/core/block/block.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "tests/support/handle_reuse_driver.h"
#include "tests/support/rng.h"

/* --- Random numbers: xorshift64*, the same everywhere. --- */

uint64_t run_random(struct run *run, uint64_t bound)
{
    return (rng_next(&run->random) >> 16) % bound;
}

size_t run_size(struct run *run)
{
    switch (run_random(run, 6)) {
    case 0:
        return 1 + run_random(run, 4096);
    case 1:
        return 1 + run_random(run, MIB);
    case 2:
        return 1 + run_random(run, 8 * MIB);
    case 3:
        return 1 + run_random(run, 40 * MIB);
    case 4:
        return ((size_t)1 + run_random(run, 3)) * 5 * MIB;
    default:
        return (size_t)512 << run_random(run, 17);
    }
}

/* --- Streams. --- */

xseg_stream run_handle(struct run *run, unsigned slot)
{
    const xseg_stream handle = run->queue[run->slot[slot].queue].handle;

    /* The legacy stream has two names. */
    return slot == 0 && run_random(run, 2) == 0 ? (xseg_stream)(uintptr_t)1 : handle;
}

void run_fill_slot(struct run *run, unsigned slot, bool again)
{
    struct model *model = &run->model;
    struct run_slot *at = &run->slot[slot];

    if (!again) {
        struct run_queue *queue = &run->queue[model->queues];

        at->queue = model->queues++;
        queue->is_there = true;
        const bool blocking = slot == 1 || (slot > 1 && run_random(run, 4) == 0);

        queue->handle = slot == 0   ? NULL
                        : slot == 1 ? (xseg_stream)(uintptr_t)2
                                    : driver_stream(0, blocking);
        model->queue[at->queue].kind = slot == 0  ? MODEL_LEGACY
                                       : blocking ? MODEL_BLOCKING
                                                  : MODEL_APART;
    } else {
        handle_reuse_stream(run->queue[at->queue].handle);
    }
    at->entry = model->entries++;
    model->entry[at->entry] =
        (struct model_entry){.handle = run->queue[at->queue].handle, .queue = at->queue};
}

void run_poll(struct run *run)
{
    for (unsigned i = 0; i < run->model.queues; i++) {
        struct model_queue *queue = &run->model.queue[i];

        while (queue->passed < queue->queued) {
            const xseg_event event = run->queue[i].behind[(queue->passed + 1) % RUN_WORK];

            if (!driver_event_has_completed(event))
                break;
            driver_event_destroy(event);
            queue->passed++;
        }
    }
    model_forget_ghosts(&run->model);
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
    run->model.reuse = options->reuse;
    run->model.pools = 1;
    run->model.pool[0].holders = 1;
    for (unsigned i = 0; i < RUN_SLOTS; i++)
        run_fill_slot(run, i, false);
}

/* End everything in the order of a well-behaved program. */
static void wind_up(struct run *run)
{
    struct model *model = &run->model;

    while (model->marks > 0)
        step_unmark(run);
    while (model->routes > 0)
        step_end_route_at(run, (unsigned)run_random(run, model->routes));
    xseg_checkpoint_destroy(run->checkpoint);
    while (run->fars > 0)
        env_free(run->allocator, run->far[--run->fars]);
    for (unsigned i = model->blocks; i > 0; i--)
        if (model->block[i - 1].state == MODEL_ALLOCATED) {
            env_free(run->allocator, model->block[i - 1].ptr);
            model_free(model, &model->block[i - 1]);
        }
    run_check(run, true);
    for (unsigned i = 1; i < model->pools; i++)
        for (; model->pool[i].holders > 0; model->pool[i].holders--)
            assert_ok(xseg_pool_release(model->pool[i].pool));
}

void run_close(struct run *run)
{
    char text[1024];

    wind_up(run);
    env_empty_cache(run->allocator);
    struct xseg_statistics stats = env_stats(run->allocator);
    assert_int_equal(stats.active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.physical_bytes, 0);
    assert_int_equal(run->own_bytes, 0);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].freed, run->model.allocations);
    assert_ok(xseg_close(run->allocator));
    xseg_sim_finish_all();
    run_poll(run);
    for (unsigned i = 2; i < run->model.queues; i++)
        if (run->queue[i].is_there)
            driver_stream_destroy(0, run->queue[i].handle);
    /* Events would end with the last holder of a context: only the two contexts are held. */
    if (xseg_sim_leaks(text, sizeof(text)) != 2)
        fail_msg("left behind: %s", text);
    driver_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Choosing. --- */

unsigned run_pool(struct run *run)
{
    const unsigned first = (unsigned)run_random(run, run->model.pools);

    for (unsigned i = 0; i < run->model.pools; i++) {
        const unsigned pool = (first + i) % run->model.pools;

        if (pool != 0 && run->model.pool[pool].holders > 0)
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

static void note_leaving(struct run *run)
{
    const struct xseg_device *opened = xseg_allocator_open_device(run->allocator, 0);

    run->leaving = opened != NULL && atomic_load(&opened->streams.retiring_count) > 0;
}

int run_call_begin(struct run *run)
{
    const int device = (int)run_random(run, 3) - 1;

    note_leaving(run);
    driver_set_current(device);
    return device;
}

void run_call_end(const struct run *run, int device)
{
    (void)run;
    assert_int_equal(driver_current(), device);
}

void run_expect_ok(xseg_status status)
{
    char text[1024] = "";

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    fail_msg("%s: %s\n", xseg_status_name(status), text);
}

/* --- Agreement. --- */

/* The library's stream entry of a slot; NULL if it has none. */
static const void *known_stream(struct run *run, unsigned slot)
{
    struct xseg_device *device = xseg_allocator_open_device(run->allocator, 0);
    const struct model_entry *entry = &run->model.entry[run->slot[slot].entry];
    struct xseg_known_stream *known = NULL;

    /* The calling thread's own stream is found by its number, which costs a question. */
    if (entry->met && slot == 1)
        assert_ok(xseg_streams_find_or_add(&device->streams, entry->handle, &known));
    else if (entry->met)
        known = xseg_streams_find(&device->streams, entry->handle);
    return known;
}

/* The entry that a live or pending block belongs to, by the library; or MODEL_NONE. */
static unsigned owner_of(struct run *run, const struct model_block *block)
{
    const struct xseg_extent *extent =
        xseg_page_map_find(&run->allocator->page_map, (uint64_t)(uintptr_t)block->ptr);

    /* No slot has the arena's stream if that has come back, and gone. */
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

/* Blocks of streams that are gone may be another stream's. */
static void look_for_heirs(struct run *run)
{
    for (unsigned i = 0; i < run->model.blocks; i++) {
        struct model_block *block = &run->model.block[i];

        if (!run->model.entry[block->entry].gone)
            continue;
        const unsigned owner = owner_of(run, block);
        if (owner != MODEL_NONE && !model_reassign(&run->model, block, owner))
            fail_msg("%p went to another stream while its own had not passed", (void *)block->ptr);
    }
}

/* A step that ran short may have recorded events for what was freed in a capture. */
static void look_for_settlement(struct run *run)
{
    const struct xseg_device *opened = xseg_allocator_open_device(run->allocator, 0);

    if (run->may_come_back && opened != NULL && xseg_list_is_empty(&opened->pending->deferred))
        model_settle(&run->model);
}

/* Pending blocks that were reclaimed without a required poll. */
static void look_for_returns(struct run *run)
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
        if (!run->may_come_back)
            fail_msg("%p came back in a step that looks at nothing", (void *)block->ptr);
        if (!model_was_reclaimed(model, block, run->has_passed))
            fail_msg("%p came back before its uses had passed", (void *)info.base);
    }
}

/* The library reuses a retired stream's entry for a new stream; uses by the retired one have completed. */
static void look_for_revival(struct run *run, unsigned slot)
{
    const unsigned now = run->slot[slot].entry;
    const void *known = known_stream(run, slot);

    for (unsigned before = 0; before < run->model.entries; before++)
        if (before != now && run->known[before] == known) {
            assert_true(model_may_reuse_entry(&run->model, before));
            run->known[before] = NULL;
        }
    run->known[now] = known;
}

void run_poll_retired(struct run *run)
{
    if (run->leaving)
        model_poll(&run->model);
}

void run_expect_nothing_pending(struct run *run)
{
    run_poll(run);
    model_poll(&run->model);
    for (unsigned i = 0; i < run->model.blocks; i++)
        assert_int_equal(run->model.block[i].state, MODEL_ALLOCATED);
}

/* The library's polls at the lookup of a slot's stream. */
static void look_at_meeting(struct run *run, unsigned slot)
{
    const struct model_entry *entry = &run->model.entry[run->slot[slot].entry];

    run_poll(run);
    /* The thread's own stream is looked up each time. */
    if (!entry->met || slot == 1)
        run_poll_retired(run);
}

void run_expect_lookup(struct run *run, unsigned slot)
{
    note_leaving(run);
    look_at_meeting(run, slot);
    run->is_expected = true;
}

void run_lookup(struct run *run, unsigned slot)
{
    struct model_entry *entry = &run->model.entry[run->slot[slot].entry];

    if (!run->is_expected)
        look_at_meeting(run, slot);
    run->is_expected = false;
    run_poll(run);
    if (!entry->met) {
        entry->met = true;
        look_for_revival(run, slot);
    }
    look_for_returns(run);
    look_for_heirs(run);
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
    if (!entry->gone)
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

    run_poll(run);
    look_for_heirs(run);
    look_for_settlement(run);
    look_for_returns(run);
    model_note_peaks(model);
    for (unsigned i = 0; i < model->blocks; i++)
        check_block(run, &model->block[i]);
    if (xseg_allocator_open_device(run->allocator, 0) == NULL)
        return;
    check_device(run, audit);
    for (unsigned i = 1; i < model->pools; i++) {
        struct xseg_scope where = {sizeof(where), .device = -1, .pool = model->pool[i].pool};
        struct xseg_statistics stats = {sizeof(stats)};

        if (where.pool != NULL)
            assert_ok(xseg_stats_get(run->allocator, &where, &stats));
        else
            assert_int_equal(model->pool[i].holders, 0);
        check_stats(&stats, model, i);
        if (model->pool[i].options.limit_bytes != 0)
            assert_true(stats.physical_bytes <= model->pool[i].options.limit_bytes);
    }
    run->may_have_looked =
        run->may_have_looked || (run->may_come_back && model_captures(model) == 0);
    run->may_come_back = run->has_passed = false;
}
