/* SPDX-License-Identifier: MIT */
/* Steps about pools, routes, checkpoints and captures. */
#include <string.h>

#include "tests/model/run.h"

/* --- Pools. --- */

static void *custom_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    struct run *run = self;
    void *ptr = run->memory_functions_fail ? NULL : driver_alloc(0, bytes);

    (void)stream;
    assert_int_equal(device, 0);
    run->memory_function_bytes += ptr != NULL ? bytes : 0;
    return ptr;
}

static void custom_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct run *run = self;

    (void)stream;
    assert_int_equal(device, 0);
    run->memory_function_bytes -= bytes;
    driver_free(0, ptr);
}

/* Expect that a pool is destroyed once, without blocks and memory. */
static void on_destroy_pool(void *context, const struct xseg_statistics *last)
{
    struct model_pool *pool = context;

    assert_non_null(pool->pool);
    assert_int_equal(last->allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].current, 0);
    pool->pool = NULL;
}

void step_pool(struct run *run)
{
    struct model *model = &run->model;
    struct model_pool *pool = &model->pool[model->pools];
    struct xseg_pool_options options = {sizeof(options)};
    unsigned retained = 0;

    for (unsigned i = 1; i < model->pools; i++)
        retained += model->pool[i].references > 0;
    if (model->pools == MODEL_POOLS || retained > 3)
        return;
    options.no_split = run_random(run, 5) == 0;
    options.use_on_oom = run_random(run, 4) == 0;
    options.limit_bytes = run_random(run, 5) == 0 ? (20 + run_random(run, 80)) * MIB : 0;
    if (run_random(run, 4) == 0)
        options.memory = (struct xseg_pool_memory){custom_alloc, custom_free, run};
    options.on_destroy = on_destroy_pool;
    options.on_destroy_context = pool;
    pool->options = options;
    pool->references = 1;
    run_set_context(run);
    assert_ok(xseg_pool_create(run->allocator, 0, &options, &pool->pool));
    model->pools++;
}

/* Retain or release a pool. */
void step_release(struct run *run)
{
    struct model *model = &run->model;
    const unsigned at = (unsigned)run_random(run, model->pools);
    struct model_pool *pool = &model->pool[at];
    unsigned routes = 0;

    for (unsigned i = 0; i < model->routes; i++)
        routes += model->route[i].pool == at;
    if (at == 0 || pool->references == 0)
        return;
    if (run_random(run, 3) == 0) {
        assert_ok(xseg_pool_retain(pool->pool));
        pool->references++;
    } else if (pool->references > routes) {
        assert_ok(xseg_pool_release(pool->pool));
        pool->references--;
    }
}

/* --- Routes. --- */

static bool accepts(void *self, xseg_stream stream)
{
    const struct run *run = self;

    for (unsigned i = run->model.routes; i > 0; i--) {
        const struct model_route *route = &run->model.route[i - 1];

        for (unsigned slot = 0; !route->is_capture && slot < RUN_SLOTS; slot++)
            if (run->queue[run->slot[slot].queue].handle == stream)
                return (route->queues >> run->slot[slot].queue & 1) != 0;
    }
    return false;
}

/* A retained pool without a route or a capture; 0: none found. */
static unsigned free_pool(struct run *run)
{
    const struct model *model = &run->model;
    const unsigned pool = run_pool(run);

    if (pool == 0 || model->routes == MODEL_ROUTES)
        return 0;
    for (unsigned i = 0; i < model->routes; i++)
        if (model->route[i].pool == pool) {
            assert_int_equal(xseg_route_begin(model->pool[pool].pool, NULL, NULL), XSEG_ERR_BUSY);
            return 0;
        }
    return pool;
}

static bool has_route(const struct model *model)
{
    for (unsigned i = 0; i < model->routes; i++)
        if (!model->route[i].is_capture)
            return true;
    return false;
}

static void add_route(struct model *model, struct model_route route)
{
    model->route[model->routes++] = route;
    model->pool[route.pool].is_captured =
        model->pool[route.pool].is_captured || route.is_capture || model->marks > 0;
    model->pool[route.pool].references++;
}

/* The predicate serves one route at a time; a second route accepts all streams. */
void step_route(struct run *run)
{
    struct model *model = &run->model;
    struct model_route route = {.pool = free_pool(run), .queues = UINT64_MAX};
    bool (*predicate)(void *, xseg_stream) = NULL;

    if (route.pool == 0)
        return;
    if (!has_route(model) && run_random(run, 4) != 0) {
        predicate = accepts;
        route.queues = run_random(run, UINT64_C(1) << 40);
    }
    assert_ok(xseg_route_begin(model->pool[route.pool].pool, predicate, run));
    add_route(model, route);
}

/* --- Checkpoints. --- */

/* Whether a checkpoint of a pool can succeed, or a restore (without_uses). */
static bool is_idle(const struct model *model, unsigned pool, bool without_uses)
{
    for (unsigned i = 0; i < model->blocks; i++)
        if (model_belongs_to_pool(&model->block[i], pool) &&
            (model->block[i].state != MODEL_ALLOCATED ||
             (without_uses && model->block[i].uses > 0)))
            return false;
    return model_captures(model) == 0;
}

void step_checkpoint(struct run *run)
{
    struct model *model = &run->model;
    const unsigned pool = run_pool(run);
    struct xseg_checkpoint *checkpoint = NULL;

    if (pool == 0)
        return;
    model_poll(model);
    const xseg_status status = xseg_pool_checkpoint(model->pool[pool].pool, &checkpoint);
    assert_int_equal(status, is_idle(model, pool, false) ? XSEG_OK : XSEG_ERR_BUSY);
    if (status != XSEG_OK)
        return;
    xseg_checkpoint_destroy(run->checkpoint);
    run->checkpoint = checkpoint;
    run->saved_pool = pool;
    run->saved_count = 0;
    run->saved_may_be_released = false;
    for (unsigned i = 0; i < model->blocks; i++)
        if (model_belongs_to_pool(&model->block[i], pool))
            run->saved[run->saved_count++] = model->block[i];
}

/* The number of callbacks of a restore. */
struct restore_counts {
    const struct run *run;
    unsigned freed, allocated_again;
};

/* Count a callback, and expect that its block is allocated in the model, or saved in the checkpoint. */
static void count_callback(void *self, void *ptr, bool freed)
{
    struct restore_counts *counts = self;
    const struct model *model = &counts->run->model;
    bool found = false;

    for (unsigned i = 0; freed && i < model->blocks; i++)
        found = found || (model->block[i].ptr == ptr &&
                          model_belongs_to_pool(&model->block[i], counts->run->saved_pool));
    for (unsigned i = 0; !freed && i < counts->run->saved_count; i++)
        found = found || counts->run->saved[i].ptr == ptr;
    assert_true(found);
    counts->freed += freed;
    counts->allocated_again += !freed;
    assert_true(freed || counts->allocated_again <= counts->run->saved_count);
}

/* Whether a fallback allocation overlaps a block of the checkpoint. */
static bool is_overlapped(const struct run *run)
{
    const struct model *model = &run->model;

    for (unsigned i = 0; i < model->blocks; i++)
        for (unsigned j = 0; model->block[i].fallback && j < run->saved_count; j++)
            if (model->block[i].ptr < run->saved[j].ptr + run->saved[j].bytes &&
                run->saved[j].ptr < model->block[i].ptr + model->block[i].bytes)
                return true;
    return false;
}

void step_restore(struct run *run)
{
    struct model *model = &run->model;
    struct restore_counts counts = {run, 0, 0};
    unsigned allocated = 0;

    if (run->checkpoint == NULL)
        return;
    const struct model_pool *pool = &model->pool[run->saved_pool];
    if (pool->references == 0) {
        assert_int_equal(xseg_pool_restore(pool->pool, run->checkpoint, count_callback, &counts),
                         XSEG_ERR_ARGUMENT);
        return;
    }
    model_poll(model);
    for (unsigned i = 0; i < model->blocks; i++)
        allocated += model_belongs_to_pool(&model->block[i], run->saved_pool);
    const bool can_restore = is_idle(model, run->saved_pool, true) && !is_overlapped(run);
    if (model->blocks - allocated + run->saved_count >= MODEL_BLOCKS)
        return;
    const xseg_status status =
        xseg_pool_restore(pool->pool, run->checkpoint, count_callback, &counts);
    if (!can_restore || !run->saved_may_be_released)
        assert_int_equal(status, can_restore ? XSEG_OK : XSEG_ERR_BUSY);
    if (status != XSEG_OK) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        assert_int_equal(counts.freed + counts.allocated_again, 0);
        return;
    }
    assert_int_equal(counts.freed, allocated);
    assert_int_equal(counts.allocated_again, run->saved_count);
    model_restore(model, run->saved_pool, run->saved, run->saved_count);
    run->restored++;
}

void step_check_live(struct run *run)
{
    const struct model *model = &run->model;
    const unsigned pool = (unsigned)run_random(run, model->pools);
    void *ptr[MODEL_BLOCKS + 2];
    size_t count = 0;
    bool is_exact = false;

    if (pool == 0)
        return;
    for (unsigned i = 0; i < model->blocks; i++)
        if (model_belongs_to_pool(&model->block[i], pool) &&
            model->block[i].state == MODEL_ALLOCATED)
            ptr[count++] = model->block[i].ptr;
    if (model->pool[pool].pool == NULL) {
        assert_int_equal(count, 0);
        return;
    }
    ptr[count] = count > 0 ? ptr[run_random(run, count)] : NULL;
    assert_ok(xseg_pool_check_live(model->pool[pool].pool, ptr, count, &is_exact));
    assert_true(is_exact);
    if (count > 0) {
        assert_ok(xseg_pool_check_live(model->pool[pool].pool, ptr, count + 1, &is_exact));
        assert_true(is_exact);
        assert_ok(xseg_pool_check_live(model->pool[pool].pool, ptr + 1, count - 1, &is_exact));
        assert_false(is_exact);
    }
    ptr[count] = &is_exact;
    assert_ok(xseg_pool_check_live(model->pool[pool].pool, ptr, count + 1, &is_exact));
    assert_false(is_exact);
}

/* --- Captures. --- */

static unsigned slot_of_entry(const struct run *run, unsigned entry)
{
    for (unsigned slot = 0; slot < RUN_SLOTS; slot++)
        if (run->slot[slot].entry == entry)
            return slot;
    return MODEL_NONE;
}

/* Begin a capture in the driver. */
static void begin_in_driver(struct run *run, struct model_route *route)
{
    const unsigned slot = slot_of_entry(run, route->entry);

    if (slot == MODEL_NONE || route->capture != 0 ||
        run->model.queue[run->slot[slot].queue].capture != 0)
        return;
    struct model_queue *queue = &run->model.queue[run->slot[slot].queue];
    const xseg_stream stream = run->queue[run->slot[slot].queue].handle;
    driver_capture_begin(0, stream, (enum driver_mode)run_random(run, 3));
    queue->capture = route->capture = driver_capture_id(stream);
    queue->is_invalid = false;
    memset(&queue->predecessors, 0, sizeof(queue->predecessors));
}

void step_capture(struct run *run)
{
    struct model *model = &run->model;
    const unsigned slot = 1 + (unsigned)run_random(run, RUN_SLOTS - 1);
    struct model_route route = {.is_capture = true, .entry = run->slot[slot].entry};

    route.pool = free_pool(run);
    if (route.pool == 0)
        return;
    if (model_is_origin(model, route.entry))
        assert_int_equal(xseg_capture_begin(model->pool[route.pool].pool, run_handle(run, slot)),
                         XSEG_ERR_BUSY);
    if (model_is_origin(model, route.entry) || model->queue[run->slot[slot].queue].capture != 0)
        return;
    const struct xseg_device *opened = xseg_allocator_open_device(run->allocator, 0);
    const bool waits = opened != NULL && opened->is_memory_low && model_captures(model) == 0;
    run_set_context(run);
    assert_ok(xseg_capture_begin(model->pool[route.pool].pool, run_handle(run, slot)));
    run->may_reclaim = waits;
    run_lookup(run, slot);
    if (waits)
        run_expect_nothing_pending(run);
    add_route(model, route);
    model_name_entry(model, route.entry);
    if (run_random(run, 4) != 0)
        begin_in_driver(run, &model->route[model->routes - 1]);
}

/* Mark the device as capturing, or unmark it, whether a stream is captured or not. */
void step_mark(struct run *run)
{
    struct model *model = &run->model;

    if (model->marks < 2 && run_random(run, 3) == 0) {
        run_set_context(run);
        assert_ok(xseg_capture_mark(run->allocator, 0));
        model_mark(model);
    } else if (model->marks > 0) {
        step_unmark(run);
    }
}

void step_unmark(struct run *run)
{
    assert_ok(xseg_capture_unmark(run->allocator, 0));
    model_unmark(&run->model);
}

/* A random route, if it is that of a capture; or NULL. */
static struct model_route *any_capture(struct run *run)
{
    struct model *model = &run->model;

    if (model->routes == 0)
        return NULL;
    struct model_route *route = &model->route[run_random(run, model->routes)];
    return route->is_capture ? route : NULL;
}

void step_capture_begin_late(struct run *run)
{
    struct model_route *route = any_capture(run);

    if (route != NULL)
        begin_in_driver(run, route);
}

void step_capture_node(struct run *run)
{
    const unsigned slot = run_captured_slot(run);

    if (slot == MODEL_NONE || run->model.nodes == MODEL_NODES)
        return;
    driver_work(0, run->queue[run->slot[slot].queue].handle, 1000, NULL, 0);
    model_capture_node(&run->model, run->slot[slot].queue);
}

static void join(struct run *run, unsigned later, unsigned earlier)
{
    struct model_queue *to = &run->model.queue[later];
    const struct model_queue *from = &run->model.queue[earlier];

    driver_wait(0, run->queue[later].handle, run->queue[earlier].handle);
    if (to->capture == 0)
        memset(&to->predecessors, 0, sizeof(to->predecessors));
    to->capture = from->capture;
    to->is_invalid = false;
    model_add_nodes(&to->predecessors, &from->predecessors);
}

void step_capture_join(struct run *run)
{
    const unsigned slot = run_captured_slot(run);
    const unsigned other = 1 + (unsigned)run_random(run, RUN_SLOTS - 1);

    if (slot == MODEL_NONE || other == slot)
        return;
    const unsigned from = run->slot[slot].queue, to = run->slot[other].queue;
    /* A stream that is the origin of another capture must not join this one before its capture has begun in the driver. */
    if (run->model.queue[to].capture == run->model.queue[from].capture ||
        (run->model.queue[to].capture == 0 &&
         !model_is_origin(&run->model, run->slot[other].entry)))
        join(run, to, from);
}

void step_capture_invalidate(struct run *run)
{
    const unsigned slot = run_captured_slot(run);

    if (slot == MODEL_NONE)
        return;
    struct model_queue *queue = &run->model.queue[run->slot[slot].queue];
    driver_capture_invalidate(0, run->queue[run->slot[slot].queue].handle);
    for (unsigned i = 0; i < run->model.queues; i++)
        if (run->model.queue[i].capture == queue->capture)
            run->model.queue[i].is_invalid = true;
}

/* End a capture in the driver; a valid capture yields a graph. */
static void end_in_driver(struct run *run, const struct model_route *route)
{
    struct model *model = &run->model;
    const unsigned origin = model->entry[route->entry].queue;
    const bool is_invalid = model->queue[origin].is_invalid;

    if (route->capture == 0 || model->queue[origin].capture != route->capture)
        return;
    for (unsigned i = 0; !is_invalid && i < model->queues; i++)
        if (i != origin && model->queue[i].capture == route->capture)
            join(run, origin, i);
    assert_int_equal(driver_capture_end(0, run->queue[origin].handle), !is_invalid);
    for (unsigned i = 0; i < model->queues; i++)
        if (model->queue[i].capture == route->capture)
            model->queue[i].capture = model->queue[i].is_invalid = 0;
}

/* --- End of routes and captures. --- */

void step_end_route_at(struct run *run, unsigned index)
{
    struct model *model = &run->model;
    const struct model_route route = model->route[index];
    struct xseg_pool *pool = model->pool[route.pool].pool;

    if (route.is_capture)
        end_in_driver(run, &route);
    assert_int_equal(route.is_capture ? xseg_route_end(pool) : xseg_capture_end(pool),
                     XSEG_ERR_ARGUMENT);
    run_set_context(run);
    assert_ok(route.is_capture ? xseg_capture_end(pool) : xseg_route_end(pool));
    model->pool[route.pool].references--;
    model_end_route(model, index);
}

void step_route_end(struct run *run)
{
    const struct model *model = &run->model;

    for (unsigned i = 0; i < model->routes; i++)
        if (!model->route[i].is_capture) {
            step_end_route_at(run, i);
            return;
        }
}

void step_capture_end(struct run *run)
{
    struct model_route *route = any_capture(run);

    if (route == NULL)
        return;
    /* Sometimes end the capture only in the driver, so that other calls precede the end in the library. */
    if (run_random(run, 4) == 0)
        end_in_driver(run, route);
    else
        step_end_route_at(run, (unsigned)(route - run->model.route));
}
