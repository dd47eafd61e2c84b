/* SPDX-License-Identifier: MIT */
/* Steps about pools, routes, checkpoints and captures. */
#include <string.h>

#include "tests/model/world.h"

/* --- Pools. --- */

static void *own_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = self;
    void *ptr = world->own_fails ? NULL : machine_alloc(bytes);

    (void)stream;
    assert_int_equal(device, 0);
    world->own_bytes += ptr != NULL ? bytes : 0;
    return ptr;
}

static void own_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = self;

    (void)stream;
    assert_int_equal(device, 0);
    world->own_bytes -= bytes;
    machine_free(ptr);
}

/* A pool is destroyed without holders and blocks, once. */
static void note_gone(void *context, const struct xseg_statistics *last)
{
    struct ledger_pool *pool = context;

    assert_non_null(pool->pool);
    assert_int_equal(last->allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].current, 0);
    pool->pool = NULL;
}

void step_pool(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    struct ledger_pool *pool = &ledger->pool[ledger->pools];
    struct xseg_pool_options options = {sizeof(options)};
    unsigned held = 0;

    for (unsigned i = 1; i < ledger->pools; i++)
        held += ledger->pool[i].holders > 0;
    if (ledger->pools == LEDGER_POOLS || held > 3)
        return;
    options.no_split = world_below(world, 5) == 0;
    options.use_on_oom = world_below(world, 4) == 0;
    options.limit_bytes = world_below(world, 5) == 0 ? (20 + world_below(world, 80)) * MIB : 0;
    if (world_below(world, 4) == 0)
        options.memory = (struct xseg_pool_memory){own_alloc, own_free, world};
    options.on_destroy = note_gone;
    options.on_destroy_context = pool;
    pool->options = options;
    pool->holders = 1;
    const int device = world_enter(world);
    assert_int_equal(xseg_pool_create(world->allocator, 0, &options, &pool->pool), XSEG_OK);
    world_leave(world, device);
    ledger->pools++;
}

/* Somebody holds a pool once more, or lets go. */
void step_release(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    const unsigned at = (unsigned)world_below(world, ledger->pools);
    struct ledger_pool *pool = &ledger->pool[at];
    unsigned routes = 0;

    for (unsigned i = 0; i < ledger->routes; i++)
        routes += ledger->route[i].pool == at;
    if (at == 0 || pool->holders == 0)
        return;
    if (world_below(world, 3) == 0) {
        assert_int_equal(xseg_pool_retain(pool->pool), XSEG_OK);
        pool->holders++;
    } else if (pool->holders > routes) {
        assert_int_equal(xseg_pool_release(pool->pool), XSEG_OK);
        pool->holders--;
    }
}

/* --- Routes. --- */

static bool accepts(void *self, xseg_stream stream)
{
    const struct world *world = self;

    for (unsigned i = world->ledger.routes; i > 0; i--) {
        const struct ledger_route *route = &world->ledger.route[i - 1];

        for (unsigned slot = 0; !route->is_capture && slot < WORLD_SLOTS; slot++)
            if (world->queue[world->slot[slot].queue].handle == stream)
                return (route->slots >> world->slot[slot].queue & 1) != 0;
    }
    return false;
}

/* A pool that is held and neither routed to nor captured into; 0: none was found. */
static unsigned free_pool(struct world *world)
{
    const struct ledger *ledger = &world->ledger;
    const unsigned pool = world_pool(world);

    if (pool == 0 || ledger->routes == LEDGER_ROUTES)
        return 0;
    for (unsigned i = 0; i < ledger->routes; i++)
        if (ledger->route[i].pool == pool) {
            assert_int_equal(xseg_route_begin(ledger->pool[pool].pool, NULL, NULL), XSEG_ERR_BUSY);
            return 0;
        }
    return pool;
}

static bool has_route(const struct ledger *ledger)
{
    for (unsigned i = 0; i < ledger->routes; i++)
        if (!ledger->route[i].is_capture)
            return true;
    return false;
}

static void add_route(struct ledger *ledger, struct ledger_route route)
{
    ledger->route[ledger->routes++] = route;
    ledger->pool[route.pool].is_captured =
        ledger->pool[route.pool].is_captured || route.is_capture || ledger->marks > 0;
    ledger->pool[route.pool].holders++;
}

/* The predicate knows of one route at a time; a second one accepts everything. */
void step_route(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    struct ledger_route route = {.pool = free_pool(world), .slots = UINT64_MAX};
    bool (*predicate)(void *, xseg_stream) = NULL;

    if (route.pool == 0)
        return;
    if (!has_route(ledger) && world_below(world, 4) != 0) {
        predicate = accepts;
        route.slots = world_below(world, UINT64_C(1) << 40);
    }
    assert_int_equal(xseg_route_begin(ledger->pool[route.pool].pool, predicate, world), XSEG_OK);
    add_route(ledger, route);
}

/* --- Checkpoints. --- */

/* Whether a pool can be looked at as a whole. */
static bool is_quiet(const struct ledger *ledger, unsigned pool, bool without_uses)
{
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (ledger_holds(&ledger->block[i], pool) &&
            (ledger->block[i].state != LEDGER_LIVE || (without_uses && ledger->block[i].uses > 0)))
            return false;
    return ledger_captures(ledger) == 0;
}

void step_checkpoint(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    const unsigned pool = world_pool(world);
    struct xseg_checkpoint *checkpoint = NULL;

    if (pool == 0)
        return;
    ledger_poll(ledger);
    const xseg_status status = xseg_pool_checkpoint(ledger->pool[pool].pool, &checkpoint);
    assert_int_equal(status, is_quiet(ledger, pool, false) ? XSEG_OK : XSEG_ERR_BUSY);
    if (status != XSEG_OK)
        return;
    xseg_checkpoint_destroy(world->checkpoint);
    world->checkpoint = checkpoint;
    world->saved_pool = pool;
    world->saved_count = 0;
    world->saved_may_be_gone = false;
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (ledger_holds(&ledger->block[i], pool))
            world->saved[world->saved_count++] = ledger->block[i];
}

/* What a restoration tells, held against what it is to tell. */
struct account {
    const struct world *world;
    unsigned freed, revived;
};

static void hear(void *self, void *ptr, bool freed)
{
    struct account *account = self;
    const struct ledger *ledger = &account->world->ledger;
    bool found = false;

    for (unsigned i = 0; freed && i < ledger->blocks; i++)
        found = found || (ledger->block[i].ptr == ptr &&
                          ledger_holds(&ledger->block[i], account->world->saved_pool));
    for (unsigned i = 0; !freed && i < account->world->saved_count; i++)
        found = found || account->world->saved[i].ptr == ptr;
    assert_true(found);
    account->freed += freed;
    account->revived += !freed;
    assert_true(freed || account->revived <= account->world->saved_count);
}

/* Whether the pool has lent memory where a block of the checkpoint lay. */
static bool is_taken(const struct world *world)
{
    const struct ledger *ledger = &world->ledger;

    for (unsigned i = 0; i < ledger->blocks; i++)
        for (unsigned j = 0; ledger->block[i].lent && j < world->saved_count; j++)
            if (ledger->block[i].ptr < world->saved[j].ptr + world->saved[j].bytes &&
                world->saved[j].ptr < ledger->block[i].ptr + ledger->block[i].bytes)
                return true;
    return false;
}

void step_restore(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    struct account account = {world, 0, 0};
    unsigned live = 0;

    if (world->checkpoint == NULL)
        return;
    const struct ledger_pool *pool = &ledger->pool[world->saved_pool];
    if (pool->holders == 0) {
        assert_int_equal(xseg_pool_restore(pool->pool, world->checkpoint, hear, &account),
                         XSEG_ERR_ARGUMENT);
        return;
    }
    ledger_poll(ledger);
    for (unsigned i = 0; i < ledger->blocks; i++)
        live += ledger_holds(&ledger->block[i], world->saved_pool);
    const bool quiet = is_quiet(ledger, world->saved_pool, true) && !is_taken(world);
    if (ledger->blocks - live + world->saved_count >= LEDGER_BLOCKS)
        return;
    const xseg_status status = xseg_pool_restore(pool->pool, world->checkpoint, hear, &account);
    if (!quiet || !world->saved_may_be_gone)
        assert_int_equal(status, quiet ? XSEG_OK : XSEG_ERR_BUSY);
    if (status != XSEG_OK) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        assert_int_equal(account.freed + account.revived, 0);
        return;
    }
    assert_int_equal(account.freed, live);
    assert_int_equal(account.revived, world->saved_count);
    ledger_restore(ledger, world->saved_pool, world->saved, world->saved_count);
    world->restored++;
}

void step_holds(struct world *world)
{
    const struct ledger *ledger = &world->ledger;
    const unsigned pool = (unsigned)world_below(world, ledger->pools);
    void *ptr[LEDGER_BLOCKS + 2];
    size_t count = 0;
    bool exactly = false;

    if (pool == 0)
        return;
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (ledger_holds(&ledger->block[i], pool) && ledger->block[i].state == LEDGER_LIVE)
            ptr[count++] = ledger->block[i].ptr;
    if (ledger->pool[pool].pool == NULL) {
        assert_int_equal(count, 0);
        return;
    }
    ptr[count] = count > 0 ? ptr[world_below(world, count)] : NULL;
    assert_int_equal(xseg_pool_check_live(ledger->pool[pool].pool, ptr, count, &exactly), XSEG_OK);
    assert_true(exactly);
    if (count > 0) {
        assert_int_equal(xseg_pool_check_live(ledger->pool[pool].pool, ptr, count + 1, &exactly),
                         XSEG_OK);
        assert_true(exactly);
        assert_int_equal(
            xseg_pool_check_live(ledger->pool[pool].pool, ptr + 1, count - 1, &exactly), XSEG_OK);
        assert_false(exactly);
    }
    ptr[count] = &exactly;
    assert_int_equal(xseg_pool_check_live(ledger->pool[pool].pool, ptr, count + 1, &exactly),
                     XSEG_OK);
    assert_false(exactly);
}

/* --- Captures. --- */

static unsigned slot_of_entry(const struct world *world, unsigned entry)
{
    for (unsigned slot = 0; slot < WORLD_SLOTS; slot++)
        if (world->slot[slot].entry == entry)
            return slot;
    return LEDGER_NONE;
}

/* The driver's side of a capture begins. */
static void begin_for_real(struct world *world, struct ledger_route *route)
{
    const unsigned slot = slot_of_entry(world, route->entry);

    if (slot == LEDGER_NONE || route->capture != 0 ||
        world->ledger.queue[world->slot[slot].queue].capture != 0)
        return;
    struct ledger_queue *queue = &world->ledger.queue[world->slot[slot].queue];
    route->capture = machine_capture(world->queue[world->slot[slot].queue].handle,
                                     (enum machine_mode)world_below(world, 3));
    queue->capture = route->capture;
    queue->spoilt = false;
    memset(&queue->behind, 0, sizeof(queue->behind));
}

void step_capture(struct world *world)
{
    struct ledger *ledger = &world->ledger;
    const unsigned slot = 1 + (unsigned)world_below(world, WORLD_SLOTS - 1);
    struct ledger_route route = {.is_capture = true, .entry = world->slot[slot].entry};

    route.pool = free_pool(world);
    if (route.pool == 0)
        return;
    if (ledger_is_origin(ledger, route.entry))
        assert_int_equal(
            xseg_capture_begin(ledger->pool[route.pool].pool, world_handle(world, slot)),
            XSEG_ERR_BUSY);
    if (ledger_is_origin(ledger, route.entry) ||
        ledger->queue[world->slot[slot].queue].capture != 0)
        return;
    const struct xseg_device *opened = xseg_allocator_open_device(world->allocator, 0);
    const bool waits = opened != NULL && opened->is_memory_low && ledger_captures(ledger) == 0;
    const int device = world_enter(world);
    assert_int_equal(xseg_capture_begin(ledger->pool[route.pool].pool, world_handle(world, slot)),
                     XSEG_OK);
    world_leave(world, device);
    world->may_come_back = waits;
    world_meet(world, slot);
    if (waits)
        world_expect_nothing_pending(world);
    add_route(ledger, route);
    ledger_name(ledger, route.entry);
    if (world_below(world, 4) != 0)
        begin_for_real(world, &ledger->route[ledger->routes - 1]);
}

/* The device counts as capturing, whether a stream is captured or not. */
void step_mark(struct world *world)
{
    struct ledger *ledger = &world->ledger;

    if (ledger->marks < 2 && world_below(world, 3) == 0) {
        const int device = world_enter(world);

        assert_int_equal(xseg_capture_mark(world->allocator, 0), XSEG_OK);
        world_leave(world, device);
        ledger_mark(ledger);
    } else if (ledger->marks > 0) {
        step_unmark(world);
    }
}

void step_unmark(struct world *world)
{
    assert_int_equal(xseg_capture_unmark(world->allocator, 0), XSEG_OK);
    ledger_unmark(&world->ledger);
}

/* The route of a capture, under way in the driver or not yet; NULL: none was found. */
static struct ledger_route *any_capture(struct world *world)
{
    struct ledger *ledger = &world->ledger;

    if (ledger->routes == 0)
        return NULL;
    struct ledger_route *route = &ledger->route[world_below(world, ledger->routes)];
    return route->is_capture ? route : NULL;
}

void step_capture_begin_late(struct world *world)
{
    struct ledger_route *route = any_capture(world);

    if (route != NULL)
        begin_for_real(world, route);
}

void step_capture_node(struct world *world)
{
    const unsigned slot = world_captured_slot(world);

    if (slot == LEDGER_NONE || world->ledger.nodes == LEDGER_NODES)
        return;
    machine_capture_node(world->queue[world->slot[slot].queue].handle);
    ledger_capture_node(&world->ledger, world->slot[slot].queue);
}

static void join(struct world *world, unsigned later, unsigned earlier)
{
    struct ledger_queue *to = &world->ledger.queue[later];
    const struct ledger_queue *from = &world->ledger.queue[earlier];

    machine_join(world->queue[later].handle, world->queue[earlier].handle);
    if (to->capture == 0)
        memset(&to->behind, 0, sizeof(to->behind));
    to->capture = from->capture;
    to->spoilt = false;
    ledger_add(&to->behind, &from->behind);
}

void step_capture_join(struct world *world)
{
    const unsigned slot = world_captured_slot(world);
    const unsigned other = 1 + (unsigned)world_below(world, WORLD_SLOTS - 1);

    if (slot == LEDGER_NONE || other == slot)
        return;
    const unsigned from = world->slot[slot].queue, to = world->slot[other].queue;
    /* A stream that another capture is about to begin on must not join this one. */
    if (world->ledger.queue[to].capture == world->ledger.queue[from].capture ||
        (world->ledger.queue[to].capture == 0 &&
         !ledger_is_origin(&world->ledger, world->slot[other].entry)))
        join(world, to, from);
}

void step_capture_spoil(struct world *world)
{
    const unsigned slot = world_captured_slot(world);

    if (slot == LEDGER_NONE)
        return;
    struct ledger_queue *queue = &world->ledger.queue[world->slot[slot].queue];
    machine_spoil(world->queue[world->slot[slot].queue].handle);
    for (unsigned i = 0; i < world->ledger.queues; i++)
        if (world->ledger.queue[i].capture == queue->capture)
            world->ledger.queue[i].spoilt = true;
}

/* The driver's side of a capture ends; one that nobody spoilt yields a graph. */
static void end_for_real(struct world *world, const struct ledger_route *route)
{
    struct ledger *ledger = &world->ledger;
    const unsigned origin = ledger->entry[route->entry].queue;
    const bool spoilt = ledger->queue[origin].spoilt;

    if (route->capture == 0 || ledger->queue[origin].capture != route->capture)
        return;
    for (unsigned i = 0; !spoilt && i < ledger->queues; i++)
        if (i != origin && ledger->queue[i].capture == route->capture)
            join(world, origin, i);
    assert_int_equal(machine_capture_end(world->queue[origin].handle), !spoilt);
    for (unsigned i = 0; i < ledger->queues; i++)
        if (ledger->queue[i].capture == route->capture)
            ledger->queue[i].capture = ledger->queue[i].spoilt = 0;
}

/* --- Ends of both. --- */

void step_end_route_at(struct world *world, unsigned at)
{
    struct ledger *ledger = &world->ledger;
    const struct ledger_route route = ledger->route[at];
    struct xseg_pool *pool = ledger->pool[route.pool].pool;

    if (route.is_capture)
        end_for_real(world, &route);
    assert_int_equal(route.is_capture ? xseg_route_end(pool) : xseg_capture_end(pool),
                     XSEG_ERR_ARGUMENT);
    const int device = world_enter(world);
    assert_int_equal(route.is_capture ? xseg_capture_end(pool) : xseg_route_end(pool), XSEG_OK);
    world_leave(world, device);
    ledger->pool[route.pool].holders--;
    ledger_end_route(ledger, at);
}

void step_route_end(struct world *world)
{
    const struct ledger *ledger = &world->ledger;

    for (unsigned i = 0; i < ledger->routes; i++)
        if (!ledger->route[i].is_capture) {
            step_end_route_at(world, i);
            return;
        }
}

void step_capture_end(struct world *world)
{
    struct ledger_route *route = any_capture(world);

    if (route == NULL)
        return;
    /* Work may go on between the driver's end and ours. */
    if (world_below(world, 4) == 0)
        end_for_real(world, route);
    else
        step_end_route_at(world, (unsigned)(route - world->ledger.route));
}
