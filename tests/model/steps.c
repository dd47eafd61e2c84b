/* SPDX-License-Identifier: MIT */
/* Steps about blocks and streams. */
#include <string.h>

#include "tests/model/world.h"

/* Any slot; while there are captures, often one of those. */
static unsigned any_slot(struct world *world)
{
    const unsigned captured =
        ledger_captures(&world->ledger) > 0 ? world_captured_slot(world) : LEDGER_NONE;

    if (captured != LEDGER_NONE && world_below(world, 2) == 0)
        return captured;
    return (unsigned)world_below(world, WORLD_SLOTS);
}

static struct ledger_entry *entry_of(struct world *world, unsigned slot)
{
    return &world->ledger.entry[world->slot[slot].entry];
}

static struct ledger_queue *queue_of(struct world *world, unsigned slot)
{
    return &world->ledger.queue[world->slot[slot].queue];
}

/* A live block, or NULL. */
static struct ledger_block *any_live(struct world *world)
{
    struct ledger *ledger = &world->ledger;

    for (unsigned tries = 0; ledger->blocks > 0 && tries < 4; tries++) {
        struct ledger_block *block = &ledger->block[world_below(world, ledger->blocks)];

        if (block->state == LEDGER_LIVE)
            return block;
    }
    return NULL;
}

/* --- Allocating. --- */

/* The pool that a request names, or LEDGER_NONE. */
static unsigned any_pool(struct world *world)
{
    const unsigned pool = world_pool(world);

    return pool == 0 || world_below(world, 4) != 0 ? LEDGER_NONE : pool;
}

static unsigned pool_id(const struct world *world, const struct xseg_pool *pool)
{
    unsigned i = 0;

    while (i < world->ledger.pools && world->ledger.pool[i].pool != pool)
        i++;
    assert_true(i < world->ledger.pools);
    return i;
}

/* What is expected of a block of some pool. */
static void check_size(const struct world *world, const struct xseg_block_info *info,
                       const struct xseg_pool_options *options)
{
    const bool exact = (info->is_expandable || info->is_small) && !options->no_split;

    assert_int_equal(info->is_small, world_round(info->requested) <= MIB);
    assert_int_equal(info->is_expandable,
                     world->options.expandable && options->memory.alloc == NULL);
    assert_int_equal(info->bytes % 512, 0);
    assert_int_equal((uintptr_t)info->base % 512, 0);
    assert_true(info->bytes >= info->requested);
    if (exact)
        assert_int_equal(info->bytes, world_round(info->requested));
    else if (!options->no_split)
        assert_true(info->bytes - world_round(info->requested) <= MIB);
}

static void enter_block(struct world *world, unsigned slot, void *ptr, size_t bytes, unsigned pool)
{
    const struct xseg_block_info info = scene_block(world->allocator, ptr);
    struct ledger_block block = {.ptr = ptr, .bytes = info.bytes, .requested = bytes};
    struct ledger_segment segment = {.base = info.segment_base, .bytes = info.segment_bytes};

    block.entry = segment.entry = world->slot[slot].entry;
    block.lent = info.fallback_pool != NULL;
    block.pool = segment.pool = pool_id(world, block.lent ? info.fallback_pool : info.pool);
    block.is_small = info.is_small;
    if (block.pool != pool) {
        /* A pool may lend to the default one when memory is short. */
        assert_true(block.lent);
        assert_null(info.pool);
        assert_int_equal(pool, 0);
        assert_true(world->ledger.pool[block.pool].options.use_on_oom);
        assert_true(world->ledger.pool[block.pool].holders > 0);
        assert_false(world->ledger.pool[block.pool].is_captured);
        assert_true(world->options.is_short);
        world->borrowed++;
    }
    assert_ptr_equal(info.stream, entry_of(world, slot)->handle);
    assert_int_equal(info.requested, bytes);
    check_size(world, &info, &world->ledger.pool[block.pool].options);
    const char *wrong = ledger_alloc(&world->ledger, &block, &segment);
    if (wrong != NULL)
        fail_msg("%p of %zu bytes on stream %p: %s", ptr, bytes, (void *)info.stream, wrong);
}

/* Whether a request may fail for want of memory. */
static bool may_fail(const struct world *world, unsigned pool)
{
    const struct xseg_pool_options *options = &world->ledger.pool[pool].options;

    return world->options.is_short || options->limit_bytes != 0 ||
           (options->memory.alloc != NULL && world->own_fails);
}

/*
 * Whether an allocation must look at pending blocks.  Once memory has been short it need not where none
 * of its own arena is pending: then what has passed may come back or not.
 */
static bool must_look(const struct world *world, unsigned slot, unsigned pool, size_t bytes)
{
    const struct xseg_device *device = xseg_allocator_open_device(world->allocator, 0);
    const struct ledger *ledger = &world->ledger;

    if (device == NULL || !atomic_load(&device->polls_on_miss) || ledger_captures(ledger) > 0)
        return true;
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (ledger->block[i].state != LEDGER_LIVE &&
            ledger->block[i].entry == world->slot[slot].entry && ledger->block[i].pool == pool &&
            ledger->block[i].is_small == (bytes <= MIB))
            return true;
    return false;
}

void step_alloc(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    struct xseg_request request = {sizeof(request)};
    const unsigned slot = any_slot(world), named = any_pool(world);
    void *ptr = NULL;

    if (ledger->blocks >= LEDGER_BLOCKS / 2)
        return;
    request.bytes = world_bytes(world);
    request.stream = world_handle(world, slot);
    request.pool = named == LEDGER_NONE ? NULL : ledger->pool[named].pool;
    world->own_fails = world_below(world, 4) == 0;
    const unsigned pool =
        named != LEDGER_NONE ? named : ledger_pool_of(ledger, world->slot[slot].entry);
    const unsigned before = ledger->blocks;
    const bool captured = ledger_captures(ledger) > 0;
    const bool looks = must_look(world, slot, pool, request.bytes);
    ledger->pool[pool].is_captured = ledger->pool[pool].is_captured || captured;
    if (looks)
        ledger_look(ledger, world->slot[slot].entry);
    world->reused += captured ? before - ledger->blocks : 0;

    world_expect_meeting(world, slot);
    const int device = world_enter(world);
    const xseg_status status = xseg_alloc_with(world->allocator, &request, &ptr);
    world_leave(world, device);
    world->may_come_back = may_fail(world, pool) || !looks;
    world_meet(world, slot);
    ledger_name(ledger, world->slot[slot].entry);
    if (status == XSEG_OK) {
        enter_block(world, slot, ptr, request.bytes, pool);
        return;
    }
    assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    assert_true(may_fail(world, pool));
    world->oom++;
}

void step_prewarm(struct world *world)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    const unsigned slot = any_slot(world), named = any_pool(world);

    where.device = 0;
    where.one_stream = true;
    where.stream = world_handle(world, slot);
    where.pool = named == LEDGER_NONE ? NULL : world->ledger.pool[named].pool;
    world->own_fails = false;
    world_expect_meeting(world, slot);
    const int device = world_enter(world);
    const xseg_status status = xseg_prewarm(world->allocator, &where, world_bytes(world));
    world_leave(world, device);
    world->may_come_back = may_fail(world, named == LEDGER_NONE ? 0 : named);
    world_meet(world, slot);
    ledger_name(&world->ledger, world->slot[slot].entry);
    if (status != XSEG_OK) {
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
        assert_true(may_fail(world, named == LEDGER_NONE ? 0 : named));
    }
}

/* --- Freeing. --- */

void step_free(struct world *world)
{
    struct ledger_block *block = any_live(world);
    const int device = world_enter(world);

    if (block != NULL) {
        char *ptr = block->ptr;

        scene_free(world->allocator, ptr);
        ledger_free(&world->ledger, block);
        assert_int_equal(xseg_free(world->allocator, ptr), XSEG_ERR_NOT_ALLOCATED);
    }
    world_leave(world, device);
}

/* Events behind work that some streams have queued; how many. */
static size_t some_events(struct world *world, xseg_event *events, struct ledger_until *until)
{
    size_t count = 0;

    for (unsigned slot = 0; slot < WORLD_SLOTS && count < 3; slot++) {
        const unsigned at = world->slot[slot].queue;
        const struct ledger_queue *queue = &world->ledger.queue[at];
        const uint64_t open = queue->queued - queue->passed;

        if (open == 0 || world_below(world, 2) == 0)
            continue;
        until->position[at] = queue->passed + 1 + world_below(world, open);
        events[count++] = world->queue[at].behind[until->position[at] % WORLD_WORK];
    }
    return count;
}

void step_free_after(struct world *world)
{
    struct ledger_block *block = any_live(world);
    struct ledger_until until = {0};
    xseg_event events[3];

    if (block == NULL || block->uses == LEDGER_USES)
        return;
    const size_t count = some_events(world, events, &until);
    const int device = world_enter(world);
    const xseg_status status = xseg_free_after(world->allocator, block->ptr, events, count);
    world_leave(world, device);
    if (ledger_captures(&world->ledger) > 0) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        return;
    }
    assert_int_equal(status, XSEG_OK);
    /* Behind the library's own stream that waits for events, its blocks need not wait for anything. */
    if (world_is_aside(world, block))
        ledger_free(&world->ledger, block);
    else
        ledger_free_after(&world->ledger, block, &until);
}

/* --- Using. --- */

static void use(struct world *world, struct ledger_block *block, unsigned slot)
{
    const int device = world_enter(world);
    char *ptr = block->ptr;

    assert_int_equal(xseg_record_stream(world->allocator, ptr, world_handle(world, slot)), XSEG_OK);
    world_leave(world, device);
    world_meet(world, slot);
    ledger_name(&world->ledger, world->slot[slot].entry);
    ledger_use(&world->ledger, ledger_find(&world->ledger, ptr), world->slot[slot].entry);
}

void step_use(struct world *world)
{
    struct ledger_block *block = any_live(world);

    if (block != NULL && block->uses + 1 < LEDGER_USES)
        use(world, block, any_slot(world));
}

/* In a capture: a block of one stream is used by another that takes part, and freed. */
void step_capture_share(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    const unsigned slot = world_captured_slot(world);
    const unsigned other = (unsigned)world_below(world, WORLD_SLOTS);

    if (slot == LEDGER_NONE || queue_of(world, other)->capture != queue_of(world, slot)->capture)
        return;
    for (unsigned i = 0; i < ledger->blocks; i++) {
        struct ledger_block *block = &ledger->block[i];
        char *ptr = block->ptr;

        if (block->state != LEDGER_LIVE || block->entry != world->slot[slot].entry ||
            block->uses > 1)
            continue;
        use(world, block, other);
        scene_free(world->allocator, ptr);
        ledger_free(ledger, ledger_find(ledger, ptr));
        return;
    }
}

/* Queue work on a stream, on a block or on nothing. */
static void queue_work(struct world *world, unsigned slot, const struct ledger_block *block)
{
    const unsigned at = world->slot[slot].queue;
    struct ledger_queue *queue = &world->ledger.queue[at];

    queue->queued++;
    (void)ledger_act(&world->ledger, at);
    world->queue[at].behind[queue->queued % WORLD_WORK] =
        machine_work(world->queue[at].handle, block == NULL ? NULL : block->ptr,
                     block == NULL ? 0 : block->bytes);
}

void step_work(struct world *world)
{
    const unsigned slot = any_slot(world);
    const struct ledger_queue *queue = queue_of(world, slot);
    struct ledger_block *block = any_live(world);
    const bool announced_first = world_below(world, 2) == 0;

    /* The legacy stream would spoil captures of streams that wait for it. */
    if (queue->queued - queue->passed + 1 >= WORLD_WORK || queue->capture != 0 ||
        (slot == 0 && ledger_captures(&world->ledger) > 0))
        return;
    if (block == NULL || block->uses + 1 >= LEDGER_USES) {
        queue_work(world, slot, NULL);
        return;
    }
    const void *ptr = block->ptr;
    if (announced_first)
        use(world, block, slot);
    queue_work(world, slot, ledger_find(&world->ledger, ptr));
    if (!announced_first)
        use(world, block, slot);
}

/* The host waits for the last piece of a stream's work, and with it for all that this needs. */
static void finish(struct world *world, unsigned slot)
{
    const struct ledger_queue *queue = queue_of(world, slot);
    const unsigned at = world->slot[slot].queue;

    if (queue->passed < queue->queued)
        machine_wait(world->queue[at].behind[queue->queued % WORLD_WORK]);
}

void step_finish(struct world *world)
{
    const unsigned slot = any_slot(world);

    if (world_below(world, 4) == 0)
        xseg_sim_finish_all();
    else
        finish(world, slot);
}

void step_passed(struct world *world)
{
    const unsigned slot = any_slot(world);

    if (queue_of(world, slot)->passed < queue_of(world, slot)->queued)
        return;
    const int device = world_enter(world);
    assert_int_equal(xseg_stream_synchronized(world->allocator, 0, world_handle(world, slot)),
                     XSEG_OK);
    world_leave(world, device);
    ledger_passed(&world->ledger, world->slot[slot].entry);
    world->may_come_back = world->has_passed = world->may_have_looked;
}

/* A stream goes, and either its handle comes again, or another stream takes its place. */
void step_gone(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    const unsigned slot = 2 + (unsigned)world_below(world, WORLD_SLOTS - 2);
    const unsigned at = world->slot[slot].queue;
    struct ledger_entry *entry = entry_of(world, slot);

    if (ledger->queues == LEDGER_QUEUES || ledger->entries == LEDGER_ENTRIES)
        return;
    const int device = world_enter(world);
    const xseg_status status = xseg_stream_retire(world->allocator, 0, world->queue[at].handle);
    world_leave(world, device);
    const bool captured = ledger->queue[at].capture != 0 && ledger_captures(ledger) > 0;
    const bool is_busy =
        entry->met && (captured || ledger_is_origin(ledger, world->slot[slot].entry));
    assert_int_equal(status, is_busy ? XSEG_ERR_BUSY : XSEG_OK);
    /* A stream that the library has not met may be captured; the stream does not go all the same. */
    if (is_busy || ledger->queue[at].capture != 0)
        return;
    ledger_leave(ledger, world->slot[slot].entry);
    const bool again = world_below(world, 2) == 0;
    if (!again) {
        machine_stream_destroy(world->queue[at].handle);
        world->queue[at].is_there = false;
    }
    world_fill_slot(world, slot, again);
}

/* --- Trimming. --- */

static uint64_t reserved_bytes(struct world *world)
{
    return scene_stats(world->allocator).reserved_bytes[XSEG_STAT_ALL].current;
}

/* What a trim of everything kept is all that is cached. */
static void check_kept(struct world *world, const struct xseg_trim_result *done)
{
    const struct xseg_statistics stats = scene_stats(world->allocator);

    assert_int_equal(done->kept_fragmented + done->kept_busy + done->kept_pool + done->kept_capture,
                     stats.reserved_bytes[XSEG_STAT_ALL].current -
                         stats.active_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(done->kept_pending, stats.active_bytes[XSEG_STAT_ALL].current -
                                             stats.allocated_bytes[XSEG_STAT_ALL].current);
}

void step_trim(struct world *world)
{
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_options how = {sizeof(how)};
    const unsigned slot = any_slot(world), named = any_pool(world);
    const uint64_t before = reserved_bytes(world);
    const bool captured = ledger_captures(&world->ledger) > 0;

    how.wait = world_below(world, 3) == 0;
    where.device = 0;
    where.one_stream = world_below(world, 3) == 0;
    where.stream = world_handle(world, slot);
    where.pool = named == LEDGER_NONE ? NULL : world->ledger.pool[named].pool;
    ledger_poll(&world->ledger);
    const int device = world_enter(world);
    assert_int_equal(xseg_trim(world->allocator, &where, &how, &done), XSEG_OK);
    world_leave(world, device);
    world->may_come_back = true;
    world->saved_may_be_gone =
        world->saved_may_be_gone || (named == world->saved_pool && done.released > 0);
    if (where.one_stream)
        world_meet(world, slot);
    if (how.wait && !captured)
        world_expect_nothing_pending(world);
    assert_int_equal(done.released, before - reserved_bytes(world));
    assert_int_equal(done.kept_failed, 0);
    assert_true(captured ? done.released == 0 : done.kept_capture == 0);
    assert_true(!how.wait || done.kept_busy == 0);
    if (!where.one_stream && where.pool == NULL)
        check_kept(world, &done);
}

/* --- Beside it. --- */

/* Device 1 has blocks, too, whatever is current and captured here. */
void step_far(struct world *world)
{
    const int device = world_enter(world);

    if (world->fars < WORLD_FAR && world_below(world, 2) == 0) {
        const xseg_status status =
            xseg_alloc(world->allocator, 1, world_bytes(world), NULL, &world->far[world->fars]);

        if (status == XSEG_OK)
            world->fars++;
        else
            assert_true(world->options.is_short && status == XSEG_ERR_NO_MEMORY);
    } else if (world->fars > 0) {
        scene_free(world->allocator, world->far[--world->fars]);
    } else {
        struct xseg_scope where = XSEG_SCOPE_ALL;

        where.device = 1;
        world_expect_ok(xseg_trim(world->allocator, &where, NULL, NULL));
    }
    world_leave(world, device);
}

void step_bad_input(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    struct ledger_block *block = any_live(world);
    const unsigned pool = (unsigned)world_below(world, ledger->pools);
    const unsigned slot = any_slot(world);
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    if (block != NULL) {
        const xseg_event none = NULL;
        const int device = world_enter(world);

        assert_int_equal(xseg_free(world->allocator, block->ptr + 256), XSEG_ERR_NOT_ALLOCATED);
        assert_int_equal(xseg_free_after(world->allocator, block->ptr, &none, 1),
                         ledger_captures(ledger) > 0 ? XSEG_ERR_BUSY : XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_record_stream(world->allocator,
                                            block->ptr + (block->bytes > 512 ? 512 : 0),
                                            (xseg_stream)(uintptr_t)0x1234560),
                         block->bytes > 512 ? XSEG_ERR_NOT_ALLOCATED : XSEG_ERR_DRIVER);
        world_leave(world, device);
        if (block->bytes <= 512)
            world_look_at_leaving(world);
    }
    assert_int_equal(xseg_stream_retire(world->allocator, 0, world_handle(world, slot % 2)),
                     XSEG_ERR_ARGUMENT);
    request.bytes = 1;
    request.pool = ledger->pool[pool].pool;
    if (request.pool != NULL && ledger->pool[pool].holders == 0) {
        assert_int_equal(xseg_alloc_with(world->allocator, &request, &ptr), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_pool_retain(request.pool), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_pool_release(request.pool), XSEG_ERR_ARGUMENT);
        assert_int_equal(xseg_route_begin(request.pool, NULL, NULL), XSEG_ERR_ARGUMENT);
        const int device = world_enter(world);
        assert_int_equal(xseg_capture_begin(request.pool, world_handle(world, slot)),
                         XSEG_ERR_ARGUMENT);
        world_leave(world, device);
        world_meet(world, slot);
    }
}
