/* SPDX-License-Identifier: MIT */
#include "tests/model/ledger.h"

#include <string.h>

/* --- Positions and nodes. --- */

bool ledger_has_passed(const struct ledger *ledger, const struct ledger_until *until)
{
    for (unsigned i = 0; i < ledger->queues; i++)
        if (until->position[i] > ledger->queue[i].passed)
            return false;
    return true;
}

static void wait_also(struct ledger_until *until, unsigned queue, uint64_t position)
{
    if (until->position[queue] < position)
        until->position[queue] = position;
}

static void wait_for_all(struct ledger_until *until, const struct ledger_until *more)
{
    for (unsigned i = 0; i < LEDGER_QUEUES; i++)
        wait_also(until, i, more->position[i]);
}

bool ledger_is_empty(const struct ledger_nodes *nodes)
{
    for (unsigned i = 0; i < LEDGER_NODES / 64; i++)
        if (nodes->word[i] != 0)
            return false;
    return true;
}

bool ledger_is_within(const struct ledger_nodes *inner, const struct ledger_nodes *outer)
{
    for (unsigned i = 0; i < LEDGER_NODES / 64; i++)
        if ((inner->word[i] & ~outer->word[i]) != 0)
            return false;
    return true;
}

void ledger_add(struct ledger_nodes *to, const struct ledger_nodes *more)
{
    for (unsigned i = 0; i < LEDGER_NODES / 64; i++)
        to->word[i] |= more->word[i];
}

void ledger_capture_node(struct ledger *ledger, unsigned queue)
{
    const unsigned node = ledger->nodes++;

    ledger->queue[queue].behind.word[node / 64] |= UINT64_C(1) << node % 64;
}

struct ledger_until ledger_act(struct ledger *ledger, unsigned queue)
{
    struct ledger_queue *own = &ledger->queue[queue];

    wait_also(&own->order, queue, own->queued);
    /* What is captured waits for nothing. */
    for (unsigned i = 0; own->capture == 0 && own->kind != LEDGER_APART && i < ledger->queues;
         i++) {
        const struct ledger_queue *other = &ledger->queue[i];

        if (other->kind == LEDGER_APART || (own->kind == other->kind))
            continue;
        wait_for_all(&own->order, &other->order);
    }
    return own->order;
}

void ledger_leave(struct ledger *ledger, unsigned entry)
{
    struct ledger_entry *known = &ledger->entry[entry];

    known->gone = true;
    known->gone_behind = ledger_act(ledger, known->queue);
}

/* What an event behind an entry's work waits for, as far as the library can know of it. */
static struct ledger_until event_on(struct ledger *ledger, unsigned entry)
{
    const struct ledger_entry *known = &ledger->entry[entry];

    return known->gone ? known->gone_behind : ledger_act(ledger, known->queue);
}

/* What an entry's own work waits for; nothing is put behind it. */
static struct ledger_until work_of(const struct ledger *ledger, unsigned entry)
{
    const struct ledger_entry *known = &ledger->entry[entry];
    struct ledger_until until = {0};

    wait_also(&until, known->queue,
              known->gone ? known->gone_behind.position[known->queue]
                          : ledger->queue[known->queue].queued);
    return until;
}

/* --- Where things belong. --- */

unsigned ledger_captures(const struct ledger *ledger)
{
    unsigned count = ledger->marks;

    for (unsigned i = 0; i < ledger->routes; i++)
        count += ledger->route[i].is_capture;
    return count;
}

bool ledger_is_origin(const struct ledger *ledger, unsigned entry)
{
    for (unsigned i = 0; i < ledger->routes; i++)
        if (ledger->route[i].is_capture && ledger->route[i].entry == entry)
            return true;
    return false;
}

static bool accepts(const struct ledger *ledger, const struct ledger_route *route, unsigned entry)
{
    const unsigned at = ledger->entry[entry].queue;
    const struct ledger_queue *queue = &ledger->queue[at];

    if (!route->is_capture)
        return (route->slots >> at & 1) != 0;
    /* A capture that was spoilt has no number any more: only where it began is known. */
    if (queue->capture == 0 || queue->spoilt)
        return queue->spoilt && route->entry == entry;
    return route->capture == queue->capture;
}

unsigned ledger_pool_of(const struct ledger *ledger, unsigned entry)
{
    for (unsigned i = ledger->routes; i > 0; i--)
        if (accepts(ledger, &ledger->route[i - 1], entry))
            return ledger->route[i - 1].pool;
    return 0;
}

struct ledger_block *ledger_find(struct ledger *ledger, const void *ptr)
{
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (ledger->block[i].ptr == ptr)
            return &ledger->block[i];
    return NULL;
}

/* --- Coming. --- */

static bool overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Work of another stream on freed memory has to have passed. */
static bool is_haunted(const struct ledger *ledger, const struct ledger_block *block)
{
    const unsigned own = ledger->entry[block->entry].queue;

    for (unsigned i = 0; i < ledger->ghosts; i++) {
        struct ledger_until others = ledger->ghost[i].until;

        if (!overlap(ledger->ghost[i].ptr, ledger->ghost[i].bytes, block->ptr, block->bytes))
            continue;
        others.position[own] = 0;
        if (!ledger_has_passed(ledger, &others))
            return true;
    }
    return false;
}

/* Whether everything that the library can know of an entry's work has passed, and it is gone. */
static bool is_gone(const struct ledger *ledger, unsigned entry)
{
    const struct ledger_entry *known = &ledger->entry[entry];

    return known->gone && ledger_has_passed(ledger, &known->gone_behind);
}

/* A segment is one pool's and one stream's, until that stream is gone and has passed. */
static const char *note_segment(struct ledger *ledger, const struct ledger_segment *segment)
{
    for (unsigned i = 0; i < ledger->segments; i++) {
        struct ledger_segment *known = &ledger->segment[i];

        if (!overlap(known->base, known->bytes, segment->base, segment->bytes))
            continue;
        if (known->base != segment->base || known->bytes != segment->bytes)
            return "its segment overlaps another one";
        if (known->pool != segment->pool)
            return "its segment is that of another pool";
        if (known->entry != segment->entry && !is_gone(ledger, known->entry))
            return "its segment is that of a stream which is still there";
        known->entry = segment->entry;
        return NULL;
    }
    if (ledger->segments == LEDGER_SEGMENTS)
        return "there are more segments than the ledger has room for";
    ledger->segment[ledger->segments++] = *segment;
    return NULL;
}

const char *ledger_alloc(struct ledger *ledger, const struct ledger_block *block,
                         const struct ledger_segment *segment)
{
    for (unsigned i = 0; i < ledger->blocks; i++)
        if (overlap(ledger->block[i].ptr, ledger->block[i].bytes, block->ptr, block->bytes))
            return ledger->block[i].state == LEDGER_LIVE
                       ? "it overlaps a live block"
                       : "it overlaps a block that other streams still use";
    if (is_haunted(ledger, block))
        return "another stream's work on that memory has not passed";
    ledger->block[ledger->blocks++] = *block;
    ledger->allocations++;
    return note_segment(ledger, segment);
}

bool ledger_hand_over(struct ledger *ledger, struct ledger_block *block, unsigned entry)
{
    const bool may = is_gone(ledger, block->entry);

    block->entry = entry;
    return may;
}

bool ledger_may_end(const struct ledger *ledger, unsigned entry)
{
    return is_gone(ledger, entry);
}

void ledger_use(struct ledger *ledger, struct ledger_block *block, unsigned entry)
{
    const bool inside = ledger->queue[ledger->entry[entry].queue].capture != 0;
    struct ledger_use *use = block->use;

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
    use->inside = use->inside || (inside && ledger_captures(ledger) > 0);
    use->outside = use->outside || !(inside && ledger_captures(ledger) > 0);
}

/* --- Going. --- */

/* The memory may be handed out again; work on it may go on. */
static void cache(struct ledger *ledger, struct ledger_block *block)
{
    struct ledger_ghost ghost = {.ptr = block->ptr, .bytes = block->bytes};

    ghost.until = work_of(ledger, block->entry);
    for (unsigned i = 0; i < block->uses; i++)
        wait_for_all(&ghost.until, &block->use[i].until);
    if (!ledger_has_passed(ledger, &ghost.until) && ledger->ghosts < LEDGER_GHOSTS) {
        ledger->ghost[ledger->ghosts++] = ghost;
        ledger->ghost_total++;
    }
    *block = ledger->block[--ledger->blocks];
}

void ledger_forget_ghosts(struct ledger *ledger)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < ledger->ghosts; i++)
        if (!ledger_has_passed(ledger, &ledger->ghost[i].until))
            ledger->ghost[kept++] = ledger->ghost[i];
    ledger->ghosts = kept;
}

/* An event behind each use, the last one first. */
static void record(struct ledger *ledger, struct ledger_block *block)
{
    for (unsigned i = block->uses; i > 0; i--) {
        struct ledger_use *use = &block->use[i - 1];

        use->until = use->entry == LEDGER_SIDE ? ledger->side : event_on(ledger, use->entry);
    }
    block->state = LEDGER_PENDING;
}

/* The nodes of a queue, if it is in that capture or in the first one found. */
static bool mark(const struct ledger *ledger, unsigned entry, struct ledger_block *block)
{
    const struct ledger_queue *queue = &ledger->queue[ledger->entry[entry].queue];

    if (entry == LEDGER_SIDE || ledger->entry[entry].gone || !ledger->entry[entry].named ||
        queue->capture == 0 || queue->spoilt ||
        (block->capture != 0 && block->capture != queue->capture))
        return false;
    block->capture = queue->capture;
    ledger_add(&block->marks, &queue->behind);
    return true;
}

static void defer(struct ledger *ledger, struct ledger_block *block)
{
    bool all = ledger->reuse;

    block->state = LEDGER_DEFERRED;
    block->freed = ++ledger->frees;
    block->capture = 0;
    memset(&block->marks, 0, sizeof(block->marks));
    all = all && mark(ledger, block->entry, block);
    for (unsigned i = 0; all && i < block->uses; i++)
        all = !block->use[i].outside && mark(ledger, block->use[i].entry, block);
    if (!all || ledger_is_empty(&block->marks))
        block->capture = 0;
}

void ledger_free(struct ledger *ledger, struct ledger_block *block)
{
    if (block->uses == 0)
        cache(ledger, block);
    else if (ledger_captures(ledger) > 0)
        defer(ledger, block);
    else
        record(ledger, block);
}

void ledger_free_after(struct ledger *ledger, struct ledger_block *block,
                       const struct ledger_until *events)
{
    if (!ledger_has_passed(ledger, events)) {
        wait_for_all(&ledger->side, events);
        memset(&block->use[block->uses], 0, sizeof(block->use[0]));
        block->use[block->uses].entry = LEDGER_SIDE;
        block->use[block->uses++].outside = true;
    }
    ledger_free(ledger, block);
}

/* --- Coming back. --- */

/* Uses that are over end; with the last one the block is free.  Returns whether it is. */
static bool end_uses(struct ledger *ledger, struct ledger_block *block,
                     bool (*is_over)(const struct ledger *ledger, const struct ledger_use *use,
                                     unsigned entry),
                     unsigned entry)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < block->uses; i++)
        if (!is_over(ledger, &block->use[i], entry))
            block->use[kept++] = block->use[i];
    block->uses = kept;
    if (kept == 0)
        cache(ledger, block);
    return kept == 0;
}

static bool was_only_captured(const struct ledger *ledger, const struct ledger_use *use,
                              unsigned entry)
{
    (void)ledger;
    (void)entry;
    return !use->outside;
}

static bool use_has_passed(const struct ledger *ledger, const struct ledger_use *use,
                           unsigned entry)
{
    (void)entry;
    return ledger_has_passed(ledger, &use->until);
}

static bool is_of_entry(const struct ledger *ledger, const struct ledger_use *use, unsigned entry)
{
    (void)ledger;
    return use->entry == entry;
}

/* The deferred block of a pool, or of all, that was freed first; NULL if there is none. */
static struct ledger_block *first_deferred(struct ledger *ledger, unsigned pool)
{
    struct ledger_block *first = NULL;

    for (unsigned i = 0; i < ledger->blocks; i++) {
        struct ledger_block *block = &ledger->block[i];

        if (block->state == LEDGER_DEFERRED && (pool == LEDGER_NONE || block->pool == pool) &&
            (first == NULL || block->freed < first->freed))
            first = block;
    }
    return first;
}

/* Deferred blocks of a pool, or of all, wait for what they were used for outside the capture. */
static void settle(struct ledger *ledger, unsigned pool)
{
    struct ledger_block *block;

    while ((block = first_deferred(ledger, pool)) != NULL)
        if (!end_uses(ledger, block, was_only_captured, 0))
            record(ledger, block);
}

void ledger_name(struct ledger *ledger, unsigned entry)
{
    if (ledger_captures(ledger) > 0)
        ledger->entry[entry].named = true;
}

void ledger_settle(struct ledger *ledger)
{
    if (ledger_captures(ledger) == 0)
        settle(ledger, LEDGER_NONE);
}

void ledger_poll(struct ledger *ledger)
{
    if (ledger_captures(ledger) > 0)
        return;
    settle(ledger, LEDGER_NONE);
    for (unsigned i = ledger->blocks; i > 0; i--)
        if (ledger->block[i - 1].state == LEDGER_PENDING)
            (void)end_uses(ledger, &ledger->block[i - 1], use_has_passed, 0);
}

void ledger_look(struct ledger *ledger, unsigned entry)
{
    const struct ledger_queue *queue = &ledger->queue[ledger->entry[entry].queue];

    if (ledger_captures(ledger) == 0) {
        ledger_poll(ledger);
        return;
    }
    if (!ledger->reuse || queue->capture == 0 || queue->spoilt)
        return;
    for (unsigned i = ledger->blocks; i > 0; i--) {
        struct ledger_block *block = &ledger->block[i - 1];

        if (block->state == LEDGER_DEFERRED && block->entry == entry &&
            block->capture == queue->capture && ledger_is_within(&block->marks, &queue->behind))
            cache(ledger, block);
    }
}

void ledger_passed(struct ledger *ledger, unsigned entry)
{
    for (unsigned i = ledger->blocks; i > 0; i--)
        if (ledger->block[i - 1].state == LEDGER_PENDING)
            (void)end_uses(ledger, &ledger->block[i - 1], is_of_entry, entry);
}

/* No capture is under way: blocks that were freed in one wait for its nodes no more. */
static void forget_captures(struct ledger *ledger)
{
    for (unsigned i = 0; i < ledger->blocks; i++)
        ledger->block[i].capture = 0;
}

void ledger_end_route(struct ledger *ledger, unsigned at)
{
    const struct ledger_route ended = ledger->route[at];

    memmove(&ledger->route[at], &ledger->route[at + 1],
            (ledger->routes - at - 1) * sizeof(ledger->route[0]));
    ledger->routes--;
    if (ledger_captures(ledger) > 0)
        return;
    forget_captures(ledger);
    if (ledger->reuse)
        settle(ledger, ended.pool);
}

void ledger_mark(struct ledger *ledger)
{
    ledger->marks++;
    for (unsigned i = 0; i < ledger->routes; i++)
        ledger->pool[ledger->route[i].pool].is_captured = true;
}

void ledger_unmark(struct ledger *ledger)
{
    ledger->marks--;
    if (ledger_captures(ledger) == 0)
        forget_captures(ledger);
}

bool ledger_came_back(struct ledger *ledger, struct ledger_block *block, bool has_passed)
{
    if (block->state == LEDGER_LIVE || (ledger_captures(ledger) > 0 && !has_passed))
        return false;
    if (block->state == LEDGER_DEFERRED && ledger_captures(ledger) > 0)
        return false;
    if (block->state == LEDGER_DEFERRED) {
        if (end_uses(ledger, block, was_only_captured, 0))
            return true;
        record(ledger, block);
    }
    return end_uses(ledger, block, use_has_passed, 0);
}

void ledger_restore(struct ledger *ledger, unsigned pool, const struct ledger_block *saved,
                    unsigned count)
{
    for (unsigned i = ledger->blocks; i > 0; i--)
        if (ledger_holds(&ledger->block[i - 1], pool))
            cache(ledger, &ledger->block[i - 1]);
    for (unsigned i = 0; i < count; i++) {
        struct ledger_block *block = &ledger->block[ledger->blocks++];

        *block = saved[i];
        block->uses = 0;
        ledger->allocations++;
    }
}

/* --- What must be counted. --- */

struct ledger_sums ledger_sum(const struct ledger *ledger, unsigned pool, unsigned size)
{
    struct ledger_sums sums = {0};

    for (unsigned i = 0; i < ledger->blocks; i++) {
        const struct ledger_block *block = &ledger->block[i];

        if ((pool != LEDGER_NONE && !ledger_holds(block, pool)) ||
            (size != 0 && block->is_small != (size == 1)))
            continue;
        sums.allocations += block->state == LEDGER_LIVE;
        sums.allocated += block->state == LEDGER_LIVE ? block->bytes : 0;
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

void ledger_note_peaks(struct ledger *ledger)
{
    const struct ledger_sums sums = ledger_sum(ledger, LEDGER_NONE, 0);

    raise(&ledger->peak_allocated, sums.allocated);
    raise(&ledger->peak_active, sums.active);
    raise(&ledger->peak_requested, sums.requested);
}
