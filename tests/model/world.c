/* SPDX-License-Identifier: MIT */
#include "tests/model/world.h"

#include <string.h>

#include "src/core/block/block.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "tests/support/draw.h"
#include "tests/support/recycle.h"

/* --- Random numbers: xorshift64*, the same everywhere. --- */

uint64_t world_below(struct world *world, uint64_t bound)
{
    return (draw_next(&world->random) >> 16) % bound;
}

size_t world_bytes(struct world *world)
{
    switch (world_below(world, 6)) {
    case 0:
        return 1 + world_below(world, 4096);
    case 1:
        return 1 + world_below(world, MIB);
    case 2:
        return 1 + world_below(world, 8 * MIB);
    case 3:
        return 1 + world_below(world, 40 * MIB);
    case 4:
        return ((size_t)1 + world_below(world, 3)) * 5 * MIB;
    default:
        return (size_t)512 << world_below(world, 17);
    }
}

/* --- Streams. --- */

xseg_stream world_handle(struct world *world, unsigned slot)
{
    const xseg_stream handle = world->queue[world->slot[slot].queue].handle;

    /* The legacy stream has two names. */
    return slot == 0 && world_below(world, 2) == 0 ? (xseg_stream)(uintptr_t)1 : handle;
}

void world_fill_slot(struct world *world, unsigned slot, bool again)
{
    struct ledger *ledger = &world->ledger;
    struct world_slot *at = &world->slot[slot];

    if (!again) {
        struct world_queue *queue = &world->queue[ledger->queues];

        at->queue = ledger->queues++;
        queue->is_there = true;
        const bool blocking = slot == 1 || (slot > 1 && world_below(world, 4) == 0);

        queue->handle = slot == 0   ? NULL
                        : slot == 1 ? (xseg_stream)(uintptr_t)2
                                    : machine_stream(blocking);
        ledger->queue[at->queue].kind = slot == 0  ? LEDGER_LEGACY
                                        : blocking ? LEDGER_BLOCKING
                                                   : LEDGER_APART;
    } else {
        recycle_stream(world->queue[at->queue].handle);
    }
    at->entry = ledger->entries++;
    ledger->entry[at->entry] =
        (struct ledger_entry){.handle = world->queue[at->queue].handle, .queue = at->queue};
}

void world_look(struct world *world)
{
    for (unsigned i = 0; i < world->ledger.queues; i++) {
        struct ledger_queue *queue = &world->ledger.queue[i];

        while (queue->passed < queue->queued) {
            const xseg_event event = world->queue[i].behind[(queue->passed + 1) % WORLD_WORK];

            if (!machine_has_passed(event))
                break;
            machine_event_destroy(event);
            queue->passed++;
        }
    }
    ledger_forget_ghosts(&world->ledger);
}

/* --- Beginning and end. --- */

void world_open(struct world *world, const struct world_options *options)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options driver = {sizeof(driver)};
    char config[128];

    memset(world, 0, sizeof(*world));
    world->options = *options;
    world->random = options->seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    settings.devices = 2;
    settings.memory_bytes = options->is_short ? (160 + 20 * world_below(world, 6)) * MIB : 16 * GIB;
    settings.single_mapping_calls = world_below(world, 8) == 0;
    (void)snprintf(config, sizeof(config),
                   "expandable_segments:%s,graph_capture_record_stream_reuse:%s,history:%s",
                   options->expandable ? "True" : "False", options->reuse ? "True" : "False",
                   options->seed % 4 == 0 ? "state" : "nothing");
    driver.driver = recycle_driver();
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    assert_int_equal(xseg_open(config, &driver, &world->allocator), XSEG_OK);
    machine_open();
    world->ledger.reuse = options->reuse;
    world->ledger.pools = 1;
    world->ledger.pool[0].holders = 1;
    for (unsigned i = 0; i < WORLD_SLOTS; i++)
        world_fill_slot(world, i, false);
}

/* Everything comes to its end in the order in which a tidy programme would. */
static void wind_up(struct world *world)
{
    struct ledger *ledger = &world->ledger;

    while (ledger->marks > 0)
        step_unmark(world);
    while (ledger->routes > 0)
        step_end_route_at(world, (unsigned)world_below(world, ledger->routes));
    xseg_checkpoint_destroy(world->checkpoint);
    while (world->fars > 0)
        scene_free(world->allocator, world->far[--world->fars]);
    for (unsigned i = ledger->blocks; i > 0; i--)
        if (ledger->block[i - 1].state == LEDGER_LIVE) {
            scene_free(world->allocator, ledger->block[i - 1].ptr);
            ledger_free(ledger, &ledger->block[i - 1]);
        }
    world_check(world, true);
    for (unsigned i = 1; i < ledger->pools; i++)
        for (; ledger->pool[i].holders > 0; ledger->pool[i].holders--)
            assert_int_equal(xseg_pool_release(ledger->pool[i].pool), XSEG_OK);
}

void world_close(struct world *world)
{
    struct xseg_statistics stats;
    char text[1024];

    wind_up(world);
    scene_empty_cache(world->allocator);
    stats = scene_stats(world->allocator);
    assert_int_equal(stats.active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.physical_bytes, 0);
    assert_int_equal(world->own_bytes, 0);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].freed, world->ledger.allocations);
    assert_int_equal(xseg_close(world->allocator), XSEG_OK);
    xseg_sim_finish_all();
    world_look(world);
    for (unsigned i = 2; i < world->ledger.queues; i++)
        if (world->queue[i].is_there)
            machine_stream_destroy(world->queue[i].handle);
    /* Events would end with the last holder of a context: only the two contexts are held. */
    if (xseg_sim_leaks(text, sizeof(text)) != 2)
        fail_msg("left behind: %s", text);
    machine_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Choosing. --- */

unsigned world_pool(struct world *world)
{
    const unsigned first = (unsigned)world_below(world, world->ledger.pools);

    for (unsigned i = 0; i < world->ledger.pools; i++) {
        const unsigned pool = (first + i) % world->ledger.pools;

        if (pool != 0 && world->ledger.pool[pool].holders > 0)
            return pool;
    }
    return 0;
}

unsigned world_captured_slot(struct world *world)
{
    const unsigned first = (unsigned)world_below(world, WORLD_SLOTS);

    for (unsigned i = 0; i < WORLD_SLOTS; i++) {
        const unsigned slot = (first + i) % WORLD_SLOTS;
        const struct ledger_queue *queue = &world->ledger.queue[world->slot[slot].queue];

        if (queue->capture != 0 && !queue->spoilt)
            return slot;
    }
    return LEDGER_NONE;
}

/* --- Calls. --- */

static void note_leaving(struct world *world)
{
    const struct xseg_device *opened = xseg_allocator_open_device(world->allocator, 0);

    world->leaving = opened != NULL && atomic_load(&opened->streams.retiring_count) > 0;
}

int world_enter(struct world *world)
{
    const int device = (int)world_below(world, 3) - 1;

    note_leaving(world);
    machine_enter(device);
    return device;
}

void world_leave(const struct world *world, int device)
{
    (void)world;
    assert_int_equal(machine_current(), device);
}

void world_expect_ok(xseg_status status)
{
    char text[1024] = "";

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    fail_msg("%s: %s\n", xseg_status_name(status), text);
}

/* --- Agreement. --- */

/* What the library knows a slot's stream by; NULL if it has not met it. */
static const void *known_stream(struct world *world, unsigned slot)
{
    struct xseg_device *device = xseg_allocator_open_device(world->allocator, 0);
    const struct ledger_entry *entry = &world->ledger.entry[world->slot[slot].entry];
    struct xseg_known_stream *known = NULL;

    /* The calling thread's own stream is found by its number, which costs a question. */
    if (entry->met && slot == 1)
        assert_int_equal(xseg_streams_find_or_add(&device->streams, entry->handle, &known),
                         XSEG_OK);
    else if (entry->met)
        known = xseg_streams_find(&device->streams, entry->handle);
    return known;
}

/* The entry that a live or pending block belongs to, by the library; or LEDGER_NONE. */
static unsigned owner_of(struct world *world, const struct ledger_block *block)
{
    const struct xseg_extent *extent =
        xseg_page_map_find(&world->allocator->page_map, (uint64_t)(uintptr_t)block->ptr);

    /* No slot has the arena's stream if that has come back, and gone. */
    for (unsigned i = 0; extent != NULL && i < WORLD_SLOTS; i++)
        if (known_stream(world, i) == xseg_arena_stream(extent->arena))
            return world->slot[i].entry;
    return LEDGER_NONE;
}

bool world_is_aside(const struct world *world, const struct ledger_block *block)
{
    struct xseg_device *device = xseg_allocator_open_device(world->allocator, 0);
    const struct xseg_extent *extent =
        xseg_page_map_find(&world->allocator->page_map, (uint64_t)(uintptr_t)block->ptr);

    return extent != NULL && device->wait_stream != NULL &&
           xseg_arena_stream(extent->arena) ==
               xseg_streams_find(&device->streams, device->wait_stream);
}

/* Blocks of streams that are gone may be another stream's. */
static void look_for_heirs(struct world *world)
{
    for (unsigned i = 0; i < world->ledger.blocks; i++) {
        struct ledger_block *block = &world->ledger.block[i];

        if (!world->ledger.entry[block->entry].gone)
            continue;
        const unsigned owner = owner_of(world, block);
        if (owner != LEDGER_NONE && !ledger_hand_over(&world->ledger, block, owner))
            fail_msg("%p went to another stream while its own had not passed", (void *)block->ptr);
    }
}

/* A step that ran short may have recorded events for what was freed in a capture. */
static void look_for_settlement(struct world *world)
{
    const struct xseg_device *opened = xseg_allocator_open_device(world->allocator, 0);

    if (world->may_come_back && opened != NULL && xseg_list_is_empty(&opened->pending->deferred))
        ledger_settle(&world->ledger);
}

/* Pending blocks that have come back although nothing had to be looked at. */
static void look_for_returns(struct world *world)
{
    struct ledger *ledger = &world->ledger;

    for (unsigned i = ledger->blocks; i > 0; i--) {
        struct ledger_block *block = &ledger->block[i - 1];
        struct xseg_block_info info = {sizeof(info)};

        if (block->state == LEDGER_LIVE)
            continue;
        const xseg_status status = xseg_block_query(world->allocator, block->ptr, &info);
        if (status == XSEG_OK && info.state == XSEG_BLOCK_PENDING_FREE && info.base == block->ptr)
            continue;
        if (!world->may_come_back)
            fail_msg("%p came back in a step that looks at nothing", (void *)block->ptr);
        if (!ledger_came_back(ledger, block, world->has_passed))
            fail_msg("%p came back before its uses had passed", (void *)info.base);
    }
}

/* The library knows a new stream by what it knew one by that is gone; uses by that one have passed. */
static void look_for_revival(struct world *world, unsigned slot)
{
    const unsigned now = world->slot[slot].entry;
    const void *known = known_stream(world, slot);

    for (unsigned before = 0; before < world->ledger.entries; before++)
        if (before != now && world->known[before] == known) {
            assert_true(ledger_may_end(&world->ledger, before));
            world->known[before] = NULL;
        }
    world->known[now] = known;
}

void world_look_at_leaving(struct world *world)
{
    if (world->leaving)
        ledger_poll(&world->ledger);
}

void world_expect_nothing_pending(struct world *world)
{
    world_look(world);
    ledger_poll(&world->ledger);
    for (unsigned i = 0; i < world->ledger.blocks; i++)
        assert_int_equal(world->ledger.block[i].state, LEDGER_LIVE);
}

/* What the library looks at where it meets a slot's stream. */
static void look_at_meeting(struct world *world, unsigned slot)
{
    const struct ledger_entry *entry = &world->ledger.entry[world->slot[slot].entry];

    world_look(world);
    /* The thread's own stream is looked up each time. */
    if (!entry->met || slot == 1)
        world_look_at_leaving(world);
}

void world_expect_meeting(struct world *world, unsigned slot)
{
    note_leaving(world);
    look_at_meeting(world, slot);
    world->is_expected = true;
}

void world_meet(struct world *world, unsigned slot)
{
    struct ledger_entry *entry = &world->ledger.entry[world->slot[slot].entry];

    if (!world->is_expected)
        look_at_meeting(world, slot);
    world->is_expected = false;
    world_look(world);
    if (!entry->met) {
        entry->met = true;
        look_for_revival(world, slot);
    }
    look_for_returns(world);
    look_for_heirs(world);
}

static void check_block(struct world *world, const struct ledger_block *block)
{
    const struct xseg_block_info info = scene_block(world->allocator, block->ptr);
    const struct ledger_entry *entry = &world->ledger.entry[block->entry];

    assert_ptr_equal(info.base, block->ptr);
    assert_int_equal(info.bytes, block->bytes);
    assert_int_equal(info.requested, block->requested);
    assert_int_equal(info.state,
                     block->state == LEDGER_LIVE ? XSEG_BLOCK_ALLOCATED : XSEG_BLOCK_PENDING_FREE);
    assert_int_equal(info.device, 0);
    const struct xseg_pool *pool = world->ledger.pool[block->pool].pool;
    assert_ptr_equal(info.pool, block->lent ? NULL : pool);
    assert_ptr_equal(info.fallback_pool, block->lent ? pool : NULL);
    assert_int_equal(info.is_small, block->is_small);
    if (!entry->gone)
        assert_ptr_equal(info.stream, entry->handle);
}

static void check_stats(const struct xseg_statistics *stats, const struct ledger *ledger,
                        unsigned pool)
{
    for (unsigned size = 0; size < XSEG_STAT_GROUPS; size++) {
        const struct ledger_sums sums = ledger_sum(ledger, pool, size);

        assert_int_equal(stats->allocation[size].current, sums.allocations);
        assert_int_equal(stats->allocated_bytes[size].current, sums.allocated);
        assert_int_equal(stats->active[size].current, sums.active_blocks);
        assert_int_equal(stats->active_bytes[size].current, sums.active);
        assert_int_equal(stats->requested_bytes[size].current, sums.requested);
        assert_true(stats->reserved_bytes[size].current >= sums.active);
    }
}

static void check_device(struct world *world, bool audit)
{
    struct xseg_device *device = xseg_allocator_open_device(world->allocator, 0);
    const struct xseg_statistics stats = scene_stats(world->allocator);
    struct xseg_violation violation = {0};

    check_stats(&stats, &world->ledger, LEDGER_NONE);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, world->ledger.allocations);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].peak, world->ledger.peak_allocated);
    assert_int_equal(stats.active_bytes[XSEG_STAT_ALL].peak, world->ledger.peak_active);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].peak, world->ledger.peak_requested);
    assert_int_equal(stats.physical_bytes, stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
    if (audit && !xseg_device_audit(device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

void world_check(struct world *world, bool audit)
{
    struct ledger *ledger = &world->ledger;

    world_look(world);
    look_for_heirs(world);
    look_for_settlement(world);
    look_for_returns(world);
    ledger_note_peaks(ledger);
    for (unsigned i = 0; i < ledger->blocks; i++)
        check_block(world, &ledger->block[i]);
    if (xseg_allocator_open_device(world->allocator, 0) == NULL)
        return;
    check_device(world, audit);
    for (unsigned i = 1; i < ledger->pools; i++) {
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_statistics stats = {sizeof(stats)};

        where.pool = ledger->pool[i].pool;
        if (where.pool != NULL)
            assert_int_equal(xseg_stats_get(world->allocator, &where, &stats), XSEG_OK);
        else
            assert_int_equal(ledger->pool[i].holders, 0);
        check_stats(&stats, ledger, i);
        if (ledger->pool[i].options.limit_bytes != 0)
            assert_true(stats.physical_bytes <= ledger->pool[i].options.limit_bytes);
    }
    world->may_have_looked =
        world->may_have_looked || (world->may_come_back && ledger_captures(ledger) == 0);
    world->may_come_back = world->has_passed = false;
}
