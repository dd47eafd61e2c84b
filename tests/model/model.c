/* SPDX-License-Identifier: MIT */
#include "tests/model/model.h"

#include <string.h>

/* --- Positions and nodes. --- */

static bool has_completed(const struct model *model, const struct model_fence *until)
{
    for (unsigned i = 0; i < model->queues; i++)
        if (until->position[i] > model->queue[i].completed)
            return false;
    return true;
}

static void wait_also(struct model_fence *until, unsigned queue, uint64_t position)
{
    if (until->position[queue] < position)
        until->position[queue] = position;
}

static void wait_for_all(struct model_fence *until, const struct model_fence *more)
{
    for (unsigned i = 0; i < MODEL_QUEUES; i++)
        wait_also(until, i, more->position[i]);
}

static bool is_empty(const struct model_nodes *nodes)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        if (nodes->word[i] != 0)
            return false;
    return true;
}

static bool is_within(const struct model_nodes *inner, const struct model_nodes *outer)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        if ((inner->word[i] & ~outer->word[i]) != 0)
            return false;
    return true;
}

void model_add(struct model_nodes *to, const struct model_nodes *more)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        to->word[i] |= more->word[i];
}

void model_capture_node(struct model *model, unsigned queue)
{
    const unsigned node = model->nodes++;

    model->queue[queue].predecessors.word[node / 64] |= UINT64_C(1) << node % 64;
}

struct model_fence model_enqueue(struct model *model, unsigned queue)
{
    struct model_queue *own = &model->queue[queue];

    wait_also(&own->order, queue, own->queued);
    /* Captured work does not wait. */
    for (unsigned i = 0; own->capture == 0 && own->kind != MODEL_APART && i < model->queues; i++) {
        const struct model_queue *other = &model->queue[i];

        if (other->kind == MODEL_APART || (own->kind == other->kind))
            continue;
        wait_for_all(&own->order, &other->order);
    }
    return own->order;
}

void model_retire(struct model *model, unsigned entry)
{
    struct model_entry *known = &model->entry[entry];

    known->retired = true;
    known->retired_until = model_enqueue(model, known->queue);
}

/* The positions that an event after an entry's work waits for, according to the library. */
static struct model_fence event_on(struct model *model, unsigned entry)
{
    const struct model_entry *known = &model->entry[entry];

    return known->retired ? known->retired_until : model_enqueue(model, known->queue);
}

/* The position of an entry's own work. */
static struct model_fence work_of(const struct model *model, unsigned entry)
{
    const struct model_entry *known = &model->entry[entry];
    struct model_fence until = {0};

    wait_also(&until, known->queue,
              known->retired ? known->retired_until.position[known->queue]
                             : model->queue[known->queue].queued);
    return until;
}

/* --- Lookup. --- */

unsigned model_captures(const struct model *model)
{
    unsigned count = model->marks;

    for (unsigned i = 0; i < model->routes; i++)
        count += model->route[i].is_capture;
    return count;
}

bool model_is_origin(const struct model *model, unsigned entry)
{
    for (unsigned i = 0; i < model->routes; i++)
        if (model->route[i].is_capture && model->route[i].entry == entry)
            return true;
    return false;
}

static bool accepts(const struct model *model, const struct model_route *route, unsigned entry)
{
    const unsigned at = model->entry[entry].queue;
    const struct model_queue *queue = &model->queue[at];

    if (!route->is_capture)
        return (route->slots >> at & 1) != 0;
    /* An invalid capture has no ID any more: only its origin is known. */
    if (queue->capture == 0 || queue->is_invalid)
        return queue->is_invalid && route->entry == entry;
    return route->capture == queue->capture;
}

unsigned model_pool_of(const struct model *model, unsigned entry)
{
    for (unsigned i = model->routes; i > 0; i--)
        if (accepts(model, &model->route[i - 1], entry))
            return model->route[i - 1].pool;
    return 0;
}

struct model_block *model_find(struct model *model, const void *ptr)
{
    for (unsigned i = 0; i < model->blocks; i++)
        if (model->block[i].ptr == ptr)
            return &model->block[i];
    return NULL;
}

/* --- Allocation. --- */

static bool overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Whether work of another stream on freed memory has not completed. */
static bool has_work(const struct model *model, const struct model_block *block)
{
    const unsigned own = model->entry[block->entry].queue;

    for (unsigned i = 0; i < model->ghosts; i++) {
        struct model_fence others = model->ghost[i].until;

        if (!overlap(model->ghost[i].ptr, model->ghost[i].bytes, block->ptr, block->bytes))
            continue;
        others.position[own] = 0;
        if (!has_completed(model, &others))
            return true;
    }
    return false;
}

/* Whether all work of an entry that the library can know has completed, and the stream is retired. */
static bool is_retired(const struct model *model, unsigned entry)
{
    const struct model_entry *known = &model->entry[entry];

    return known->retired && has_completed(model, &known->retired_until);
}

/* A segment belongs to one pool and one stream, until that stream is retired and has completed. */
static const char *record_segment(struct model *model, const struct model_segment *segment)
{
    for (unsigned i = 0; i < model->segments; i++) {
        struct model_segment *known = &model->segment[i];

        if (!overlap(known->base, known->bytes, segment->base, segment->bytes))
            continue;
        if (known->base != segment->base || known->bytes != segment->bytes)
            return "its segment overlaps another one";
        if (known->pool != segment->pool)
            return "its segment is that of another pool";
        if (known->entry != segment->entry && !is_retired(model, known->entry))
            return "its segment is that of a stream which is still there";
        known->entry = segment->entry;
        return NULL;
    }
    if (model->segments == MODEL_SEGMENTS)
        return "the model has no space for its segment";
    model->segment[model->segments++] = *segment;
    return NULL;
}

const char *model_alloc(struct model *model, const struct model_block *block,
                        const struct model_segment *segment)
{
    for (unsigned i = 0; i < model->blocks; i++)
        if (overlap(model->block[i].ptr, model->block[i].bytes, block->ptr, block->bytes))
            return model->block[i].state == MODEL_ALLOCATED
                       ? "it overlaps an allocated block"
                       : "it overlaps a block that other streams still use";
    if (has_work(model, block))
        return "another stream's work on its memory has not completed";
    model->block[model->blocks++] = *block;
    model->allocations++;
    return record_segment(model, segment);
}

bool model_reassign(struct model *model, struct model_block *block, unsigned entry)
{
    const bool may = is_retired(model, block->entry);

    block->entry = entry;
    return may;
}

bool model_may_reuse_entry(const struct model *model, unsigned entry)
{
    return is_retired(model, entry);
}

void model_use(struct model *model, struct model_block *block, unsigned entry)
{
    const bool inside = model->queue[model->entry[entry].queue].capture != 0;
    struct model_use *use = block->use;

    if (entry == block->entry)
        return;
    while (use < block->use + block->uses && use->entry != entry)
        use++;
    if (use == block->use + block->uses) {
        memset(use, 0, sizeof(*use));
        use->entry = entry;
        block->uses++;
    }
    /* Uses count as captured only while the library knows of a capture. */
    use->inside = use->inside || (inside && model_captures(model) > 0);
    use->outside = use->outside || !(inside && model_captures(model) > 0);
}

/* --- Free. --- */

/* The memory can be reused, also while the stream's own work on it continues. */
static void cache(struct model *model, struct model_block *block)
{
    struct model_ghost ghost = {.ptr = block->ptr, .bytes = block->bytes};

    ghost.until = work_of(model, block->entry);
    for (unsigned i = 0; i < block->uses; i++)
        wait_for_all(&ghost.until, &block->use[i].until);
    if (!has_completed(model, &ghost.until) && model->ghosts < MODEL_GHOSTS) {
        model->ghost[model->ghosts++] = ghost;
        model->ghost_total++;
    }
    *block = model->block[--model->blocks];
}

void model_forget_ghosts(struct model *model)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < model->ghosts; i++)
        if (!has_completed(model, &model->ghost[i].until))
            model->ghost[kept++] = model->ghost[i];
    model->ghosts = kept;
}

/* Record an event after each use, the last one first. */
static void record(struct model *model, struct model_block *block)
{
    for (unsigned i = block->uses; i > 0; i--) {
        struct model_use *use = &block->use[i - 1];

        use->until = use->entry == MODEL_SIDE ? model->side : event_on(model, use->entry);
    }
    block->state = MODEL_PENDING;
}

/* Add the predecessors of a queue to a block, if the queue is in the block's capture or the block has none yet. */
static bool mark(const struct model *model, unsigned entry, struct model_block *block)
{
    const struct model_queue *queue = &model->queue[model->entry[entry].queue];

    if (entry == MODEL_SIDE || model->entry[entry].retired || !model->entry[entry].named ||
        queue->capture == 0 || queue->is_invalid ||
        (block->capture != 0 && block->capture != queue->capture))
        return false;
    block->capture = queue->capture;
    model_add(&block->marks, &queue->predecessors);
    return true;
}

static void defer(struct model *model, struct model_block *block)
{
    bool all = model->reuse;

    block->state = MODEL_DEFERRED;
    block->freed = ++model->frees;
    block->capture = 0;
    memset(&block->marks, 0, sizeof(block->marks));
    all = all && mark(model, block->entry, block);
    for (unsigned i = 0; all && i < block->uses; i++)
        all = !block->use[i].outside && mark(model, block->use[i].entry, block);
    if (!all || is_empty(&block->marks))
        block->capture = 0;
}

void model_free(struct model *model, struct model_block *block)
{
    if (block->uses == 0)
        cache(model, block);
    else if (model_captures(model) > 0)
        defer(model, block);
    else
        record(model, block);
}

void model_free_after(struct model *model, struct model_block *block,
                      const struct model_fence *events)
{
    if (!has_completed(model, events)) {
        wait_for_all(&model->side, events);
        memset(&block->use[block->uses], 0, sizeof(block->use[0]));
        block->use[block->uses].entry = MODEL_SIDE;
        block->use[block->uses++].outside = true;
    }
    model_free(model, block);
}

/* --- Reclaim. --- */

/* Remove completed uses; without uses the block is free.  Returns whether it is. */
static bool end_uses(struct model *model, struct model_block *block,
                     bool (*is_over)(const struct model *model, const struct model_use *use,
                                     unsigned entry),
                     unsigned entry)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < block->uses; i++)
        if (!is_over(model, &block->use[i], entry))
            block->use[kept++] = block->use[i];
    block->uses = kept;
    if (kept == 0)
        cache(model, block);
    return kept == 0;
}

static bool was_only_captured(const struct model *model, const struct model_use *use,
                              unsigned entry)
{
    (void)model, (void)entry;
    return !use->outside;
}

static bool use_has_completed(const struct model *model, const struct model_use *use,
                              unsigned entry)
{
    (void)entry;
    return has_completed(model, &use->until);
}

static bool is_of_entry(const struct model *model, const struct model_use *use, unsigned entry)
{
    (void)model;
    return use->entry == entry;
}

/* The deferred block of a pool, or of all, that was freed first, or NULL. */
static struct model_block *first_deferred(struct model *model, unsigned pool)
{
    struct model_block *first = NULL;

    for (unsigned i = 0; i < model->blocks; i++) {
        struct model_block *block = &model->block[i];

        if (block->state == MODEL_DEFERRED && (pool == MODEL_NONE || block->pool == pool) &&
            (first == NULL || block->freed < first->freed))
            first = block;
    }
    return first;
}

/* Deferred blocks of a pool, or of all, become pending for their uses outside the capture. */
static void settle(struct model *model, unsigned pool)
{
    struct model_block *block;

    while ((block = first_deferred(model, pool)) != NULL)
        if (!end_uses(model, block, was_only_captured, 0))
            record(model, block);
}

void model_name_entry(struct model *model, unsigned entry)
{
    if (model_captures(model) > 0)
        model->entry[entry].named = true;
}

void model_settle(struct model *model)
{
    if (model_captures(model) == 0)
        settle(model, MODEL_NONE);
}

void model_poll(struct model *model)
{
    if (model_captures(model) > 0)
        return;
    settle(model, MODEL_NONE);
    for (unsigned i = model->blocks; i > 0; i--)
        if (model->block[i - 1].state == MODEL_PENDING)
            (void)end_uses(model, &model->block[i - 1], use_has_completed, 0);
}

void model_before_alloc(struct model *model, unsigned entry)
{
    const struct model_queue *queue = &model->queue[model->entry[entry].queue];

    if (model_captures(model) == 0) {
        model_poll(model);
        return;
    }
    if (!model->reuse || queue->capture == 0 || queue->is_invalid)
        return;
    for (unsigned i = model->blocks; i > 0; i--) {
        struct model_block *block = &model->block[i - 1];

        if (block->state == MODEL_DEFERRED && block->entry == entry &&
            block->capture == queue->capture && is_within(&block->marks, &queue->predecessors))
            cache(model, block);
    }
}

void model_synchronize(struct model *model, unsigned entry)
{
    for (unsigned i = model->blocks; i > 0; i--)
        if (model->block[i - 1].state == MODEL_PENDING)
            (void)end_uses(model, &model->block[i - 1], is_of_entry, entry);
}

/* No capture is active: deferred blocks do not wait for nodes any more. */
static void forget_captures(struct model *model)
{
    for (unsigned i = 0; i < model->blocks; i++)
        model->block[i].capture = 0;
}

void model_end_route(struct model *model, unsigned at)
{
    const struct model_route ended = model->route[at];

    memmove(&model->route[at], &model->route[at + 1],
            (model->routes - at - 1) * sizeof(model->route[0]));
    model->routes--;
    if (model_captures(model) > 0)
        return;
    forget_captures(model);
    if (model->reuse)
        settle(model, ended.pool);
}

void model_mark(struct model *model)
{
    model->marks++;
    for (unsigned i = 0; i < model->routes; i++)
        model->pool[model->route[i].pool].is_captured = true;
}

void model_unmark(struct model *model)
{
    model->marks--;
    if (model_captures(model) == 0)
        forget_captures(model);
}

bool model_was_reclaimed(struct model *model, struct model_block *block, bool is_synchronized)
{
    if (block->state == MODEL_ALLOCATED || (model_captures(model) > 0 && !is_synchronized))
        return false;
    if (block->state == MODEL_DEFERRED && model_captures(model) > 0)
        return false;
    if (block->state == MODEL_DEFERRED) {
        if (end_uses(model, block, was_only_captured, 0))
            return true;
        record(model, block);
    }
    return end_uses(model, block, use_has_completed, 0);
}

void model_restore(struct model *model, unsigned pool, const struct model_block *saved,
                   unsigned count)
{
    for (unsigned i = model->blocks; i > 0; i--)
        if (model_holds(&model->block[i - 1], pool))
            cache(model, &model->block[i - 1]);
    for (unsigned i = 0; i < count; i++) {
        struct model_block *block = &model->block[model->blocks++];

        *block = saved[i];
        block->uses = 0;
        model->allocations++;
    }
}

/* --- Statistics. --- */

struct model_sums model_sum(const struct model *model, unsigned pool, unsigned size)
{
    struct model_sums sums = {0};

    for (unsigned i = 0; i < model->blocks; i++) {
        const struct model_block *block = &model->block[i];

        if ((pool != MODEL_NONE && !model_holds(block, pool)) ||
            (size != 0 && block->is_small != (size == 1)))
            continue;
        sums.allocations += block->state == MODEL_ALLOCATED;
        sums.allocated += block->state == MODEL_ALLOCATED ? block->bytes : 0;
        sums.active_blocks++;
        sums.active += block->bytes;
        sums.requested += block->requested;
    }
    return sums;
}

static void raise(uint64_t *peak, uint64_t value)
{
    if (*peak < value)
        *peak = value;
}

void model_note_peaks(struct model *model)
{
    const struct model_sums sums = model_sum(model, MODEL_NONE, 0);

    raise(&model->peak_allocated, sums.allocated);
    raise(&model->peak_active, sums.active);
    raise(&model->peak_requested, sums.requested);
}
