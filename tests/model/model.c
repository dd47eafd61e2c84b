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

static void fence_extend(struct model_fence *until, unsigned queue, uint64_t position)
{
    if (until->position[queue] < position)
        until->position[queue] = position;
}

static void fence_merge(struct model_fence *until, const struct model_fence *other)
{
    for (unsigned i = 0; i < MODEL_QUEUES; i++)
        fence_extend(until, i, other->position[i]);
}

static bool is_empty(const struct model_nodes *nodes)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        if (nodes->word[i] != 0)
            return false;
    return true;
}

static bool is_subset(const struct model_nodes *subset, const struct model_nodes *set)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        if ((subset->word[i] & ~set->word[i]) != 0)
            return false;
    return true;
}

void model_add_nodes(struct model_nodes *set, const struct model_nodes *other)
{
    for (unsigned i = 0; i < MODEL_NODES / 64; i++)
        set->word[i] |= other->word[i];
}

void model_capture_node(struct model *model, unsigned queue)
{
    const unsigned node = model->nodes++;

    model->queue[queue].predecessors.word[node / 64] |= UINT64_C(1) << node % 64;
}

struct model_fence model_enqueue(struct model *model, unsigned queue)
{
    struct model_queue *own = &model->queue[queue];

    fence_extend(&own->order, queue, own->queued);
    /* Captured work does not wait for the legacy stream. */
    for (unsigned i = 0; own->capture == 0 && own->kind != MODEL_NON_BLOCKING && i < model->queues;
         i++) {
        const struct model_queue *other = &model->queue[i];

        if (other->kind == MODEL_NON_BLOCKING || (own->kind == other->kind))
            continue;
        fence_merge(&own->order, &other->order);
    }
    return own->order;
}

void model_retire(struct model *model, unsigned entry)
{
    struct model_entry *stream = &model->entry[entry];

    stream->retired = true;
    stream->retired_until = model_enqueue(model, stream->queue);
}

/* The fence of an event that the library records after the work of an entry. */
static struct model_fence event_on(struct model *model, unsigned entry)
{
    const struct model_entry *stream = &model->entry[entry];

    return stream->retired ? stream->retired_until : model_enqueue(model, stream->queue);
}

/* The position of an entry's own work. */
static struct model_fence work_of(const struct model *model, unsigned entry)
{
    const struct model_entry *stream = &model->entry[entry];
    struct model_fence until = {0};

    fence_extend(&until, stream->queue,
                 stream->retired ? stream->retired_until.position[stream->queue]
                                 : model->queue[stream->queue].queued);
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
        return (route->queues >> at & 1) != 0;
    /* An invalid capture has no ID: the library knows only its origin. */
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

/* Whether work of another stream on the freed memory of a block has not completed. */
static bool has_foreign_work(const struct model *model, const struct model_block *block)
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
    const struct model_entry *stream = &model->entry[entry];

    return stream->retired && has_completed(model, &stream->retired_until);
}

/* A segment belongs to one pool and one stream, until that stream is retired and has completed. */
static const char *record_segment(struct model *model, const struct model_segment *segment)
{
    for (unsigned i = 0; i < model->segments; i++) {
        struct model_segment *recorded = &model->segment[i];

        if (!overlap(recorded->base, recorded->bytes, segment->base, segment->bytes))
            continue;
        if (recorded->base != segment->base || recorded->bytes != segment->bytes)
            return "its segment overlaps another one";
        if (recorded->pool != segment->pool)
            return "its segment belongs to another pool";
        if (recorded->entry != segment->entry && !is_retired(model, recorded->entry))
            return "its segment belongs to a stream that is not retired";
        recorded->entry = segment->entry;
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
    if (has_foreign_work(model, block))
        return "another stream's work on its memory has not completed";
    model->block[model->blocks++] = *block;
    model->allocations++;
    return record_segment(model, segment);
}

bool model_reassign(struct model *model, struct model_block *block, unsigned entry)
{
    const bool is_allowed = is_retired(model, block->entry);

    block->entry = entry;
    return is_allowed;
}

bool model_may_reuse_entry(const struct model *model, unsigned entry)
{
    return is_retired(model, entry);
}

void model_use(struct model *model, struct model_block *block, unsigned entry)
{
    const bool is_in_capture = model->queue[model->entry[entry].queue].capture != 0;
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
    /* A use is captured only while the library knows of a capture. */
    use->is_outside = use->is_outside || !(is_in_capture && model_captures(model) > 0);
}

/* --- Free. --- */

/* Make the memory of a block available, also while work of its own stream on it continues. */
static void cache_block(struct model *model, struct model_block *block)
{
    struct model_ghost ghost = {.ptr = block->ptr, .bytes = block->bytes};

    ghost.until = work_of(model, block->entry);
    for (unsigned i = 0; i < block->uses; i++)
        fence_merge(&ghost.until, &block->use[i].until);
    if (!has_completed(model, &ghost.until) && model->ghosts < MODEL_GHOSTS) {
        model->ghost[model->ghosts++] = ghost;
        model->ghost_total++;
    }
    *block = model->block[--model->blocks];
}

void model_remove_ghosts(struct model *model)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < model->ghosts; i++)
        if (!has_completed(model, &model->ghost[i].until))
            model->ghost[kept++] = model->ghost[i];
    model->ghosts = kept;
}

/* Record an event after each use, the latest use first. */
static void record_events(struct model *model, struct model_block *block)
{
    for (unsigned i = block->uses; i > 0; i--) {
        struct model_use *use = &block->use[i - 1];

        use->until =
            use->entry == MODEL_WAIT_STREAM ? model->wait_stream : event_on(model, use->entry);
    }
    block->state = MODEL_PENDING;
}

/* Add the predecessors of a queue to a block, if the queue is in the block's capture or the block has none yet. */
static bool add_predecessors(const struct model *model, unsigned entry, struct model_block *block)
{
    const struct model_queue *queue = &model->queue[model->entry[entry].queue];

    if (entry == MODEL_WAIT_STREAM || model->entry[entry].retired || !model->entry[entry].named ||
        queue->capture == 0 || queue->is_invalid ||
        (block->capture != 0 && block->capture != queue->capture))
        return false;
    block->capture = queue->capture;
    model_add_nodes(&block->predecessors, &queue->predecessors);
    return true;
}

static void defer_block(struct model *model, struct model_block *block)
{
    bool is_reusable = model->reuse;

    block->state = MODEL_DEFERRED;
    block->freed = ++model->deferred_frees;
    block->capture = 0;
    memset(&block->predecessors, 0, sizeof(block->predecessors));
    is_reusable = is_reusable && add_predecessors(model, block->entry, block);
    for (unsigned i = 0; is_reusable && i < block->uses; i++)
        is_reusable =
            !block->use[i].is_outside && add_predecessors(model, block->use[i].entry, block);
    if (!is_reusable || is_empty(&block->predecessors))
        block->capture = 0;
}

void model_free(struct model *model, struct model_block *block)
{
    if (block->uses == 0)
        cache_block(model, block);
    else if (model_captures(model) > 0)
        defer_block(model, block);
    else
        record_events(model, block);
}

void model_free_after(struct model *model, struct model_block *block,
                      const struct model_fence *events)
{
    if (!has_completed(model, events)) {
        fence_merge(&model->wait_stream, events);
        memset(&block->use[block->uses], 0, sizeof(block->use[0]));
        block->use[block->uses].entry = MODEL_WAIT_STREAM;
        block->use[block->uses++].is_outside = true;
    }
    model_free(model, block);
}

/* --- Reclaim. --- */

/* Remove the uses that have ended; returns true if none remains: then the block is cached. */
static bool end_uses(struct model *model, struct model_block *block,
                     bool (*has_ended)(const struct model *model, const struct model_use *use,
                                       unsigned entry),
                     unsigned entry)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < block->uses; i++)
        if (!has_ended(model, &block->use[i], entry))
            block->use[kept++] = block->use[i];
    block->uses = kept;
    if (kept == 0)
        cache_block(model, block);
    return kept == 0;
}

static bool was_only_captured(const struct model *model, const struct model_use *use,
                              unsigned entry)
{
    (void)model, (void)entry;
    return !use->is_outside;
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

/* The deferred block of a pool, or of all pools, that was freed first, or NULL. */
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

/* Deferred blocks of a pool, or of all pools, become pending for their uses outside the capture. */
static void settle_deferred(struct model *model, unsigned pool)
{
    struct model_block *block;

    while ((block = first_deferred(model, pool)) != NULL)
        if (!end_uses(model, block, was_only_captured, 0))
            record_events(model, block);
}

void model_name_entry(struct model *model, unsigned entry)
{
    if (model_captures(model) > 0)
        model->entry[entry].named = true;
}

void model_settle(struct model *model)
{
    if (model_captures(model) == 0)
        settle_deferred(model, MODEL_NONE);
}

void model_poll(struct model *model)
{
    if (model_captures(model) > 0)
        return;
    settle_deferred(model, MODEL_NONE);
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
            block->capture == queue->capture &&
            is_subset(&block->predecessors, &queue->predecessors))
            cache_block(model, block);
    }
}

void model_synchronize(struct model *model, unsigned entry)
{
    for (unsigned i = model->blocks; i > 0; i--)
        if (model->block[i - 1].state == MODEL_PENDING)
            (void)end_uses(model, &model->block[i - 1], is_of_entry, entry);
}

/* No capture is active any more: deferred blocks do not wait for nodes. */
static void forget_captures(struct model *model)
{
    for (unsigned i = 0; i < model->blocks; i++)
        model->block[i].capture = 0;
}

void model_end_route(struct model *model, unsigned index)
{
    const struct model_route ended = model->route[index];

    memmove(&model->route[index], &model->route[index + 1],
            (model->routes - index - 1) * sizeof(model->route[0]));
    model->routes--;
    if (model_captures(model) > 0)
        return;
    forget_captures(model);
    if (model->reuse)
        settle_deferred(model, ended.pool);
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
        record_events(model, block);
    }
    return end_uses(model, block, use_has_completed, 0);
}

void model_restore(struct model *model, unsigned pool, const struct model_block *saved,
                   unsigned count)
{
    for (unsigned i = model->blocks; i > 0; i--)
        if (model_belongs_to_pool(&model->block[i - 1], pool))
            cache_block(model, &model->block[i - 1]);
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

        if ((pool != MODEL_NONE && !model_belongs_to_pool(block, pool)) ||
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

static void update_peak(uint64_t *peak, uint64_t value)
{
    if (*peak < value)
        *peak = value;
}

void model_update_peaks(struct model *model)
{
    const struct model_sums sums = model_sum(model, MODEL_NONE, 0);

    update_peak(&model->peak_allocated, sums.allocated);
    update_peak(&model->peak_active, sums.active);
    update_peak(&model->peak_requested, sums.requested);
}
