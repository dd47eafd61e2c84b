/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_lives.h"

#include <stdlib.h>

#include "src/tools/containers/containers.h"

#define LIVES_MAX UINT32_MAX

/* The state of a pass over the events. */
struct pass {
    struct view_lives *out;
    const struct recording_device *device;
    struct replay_model model;
    uint32_t *life_of; /* by the slot of a block in the model */
    uint32_t life_of_capacity;
    struct ordered mapped; /* starts of the ranges that are mapped */
    struct view_span *mapped_span;
    uint32_t mapped_capacity;
    uint32_t now, end; /* moments */
    bool out_of_memory;
};

/* --- Spans. --- */

/* Add a mapped range, as the span that it becomes; its start is a key of pass.mapped. */
static bool add_mapped(struct pass *pass, const struct view_span *span)
{
    const uint32_t slot = ordered_add(&pass->mapped, span->address);

    if (slot == ORDERED_NONE || !ordered_resize(&pass->mapped, (void **)&pass->mapped_span,
                                                &pass->mapped_capacity, sizeof(*span)))
        return false;
    pass->mapped_span[slot] = *span;
    return true;
}

static bool add_span(struct pass *pass, const struct view_span *mapped, uint64_t start,
                     uint64_t end)
{
    struct view_lives *out = pass->out;
    struct view_span *span;

    if (!array_reserve((void **)&out->spans, out->span_count, sizeof(*out->spans)))
        return false;
    span = &out->spans[out->span_count++];
    *span = *mapped;
    span->address = start;
    span->bytes = end - start;
    span->unmapped_at = pass->now;
    return true;
}

/* Unmap a range, which can consist of parts that were mapped at different moments. */
static bool unmap(struct pass *pass, uint64_t start, uint64_t end)
{
    while (start < end) {
        const uint32_t slot = ordered_up_to(&pass->mapped, start);
        struct view_span remainder = pass->mapped_span[slot];
        const uint64_t whole_end = remainder.address + remainder.bytes;
        const uint64_t part_end = whole_end < end ? whole_end : end;

        if (!add_span(pass, &remainder, start, part_end))
            return false;
        if (remainder.address < start)
            pass->mapped_span[slot].bytes = start - remainder.address;
        else
            ordered_remove(&pass->mapped, start);
        remainder.address = start = part_end;
        remainder.bytes = whole_end - part_end;
        if (remainder.bytes > 0 && !add_mapped(pass, &remainder))
            return false;
    }
    return true;
}

/* Add the spans that are mapped at the end. */
static bool add_mapped_spans(struct pass *pass)
{
    uint64_t next = 0;
    uint32_t slot;

    while ((slot = ordered_from(&pass->mapped, next)) != ORDERED_NONE) {
        const struct view_span *span = &pass->mapped_span[slot];

        next = span->address + span->bytes;
        if (!add_span(pass, span, span->address, next))
            return false;
    }
    return true;
}

static void range_added(void *self, const struct replay_model_range *range)
{
    struct pass *pass = self;
    const struct view_span span = {
        .address = range->start,
        .bytes = range->end - range->start,
        .stream = range->stream,
        .mapped_at = pass->now,
        .pool = range->pool,
        .page = range->page,
    };

    if (!add_mapped(pass, &span))
        pass->out_of_memory = true;
}

static void range_removed(void *self, const struct replay_model_range *range)
{
    struct pass *pass = self;

    if (!pass->out_of_memory && !unmap(pass, range->start, range->end))
        pass->out_of_memory = true;
}

/* --- Lives. --- */

static bool reserve_life(struct pass *pass)
{
    struct view_lives *out = pass->out;

    return out->life_count < LIVES_MAX &&
           array_reserve((void **)&out->lives, out->life_count, sizeof(*out->lives)) &&
           ordered_resize(&pass->model.blocks, (void **)&pass->life_of, &pass->life_of_capacity,
                          sizeof(*pass->life_of));
}

static void block_added(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct pass *pass = self;
    struct view_lives *out = pass->out;

    if (pass->out_of_memory || !reserve_life(pass)) {
        pass->out_of_memory = true;
        return;
    }
    pass->life_of[slot] = (uint32_t)out->life_count;
    out->lives[out->life_count++] = (struct view_life){
        .address = block->address,
        .bytes = block->requested,
        .stream = block->stream,
        .allocated_at = pass->now,
        .free_requested_at = block->is_pending ? 0 : pass->end,
        .freed_at = pass->end,
        .stack = block->stack,
        .pool = block->pool,
        .context = block->context,
    };
}

/* A block that is older than the recording has only the stack of its free. */
static void free_life(struct pass *pass, struct view_life *life)
{
    const struct recording_event *event = &pass->device->events[pass->now - 1];

    life->free_requested_at = pass->now;
    if (life->allocated_at == 0 && life->stack == 0) {
        life->stack = event->stack;
        life->context = event->context;
    }
    life->free_stack = event->stack == life->stack ? 0 : event->stack;
}

static void block_freed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct pass *pass = self;

    (void)block;
    if (!pass->out_of_memory)
        free_life(pass, &pass->out->lives[pass->life_of[slot]]);
}

static void block_removed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct pass *pass = self;
    struct view_life *life;

    if (pass->out_of_memory)
        return;
    life = &pass->out->lives[pass->life_of[slot]];
    if (!block->is_pending)
        free_life(pass, life);
    life->freed_at = pass->now;
}

/* --- The pass. --- */

static bool number_events(struct pass *pass)
{
    struct view_lives *out = pass->out;

    out->event_count = pass->device->event_count;
    out->events = malloc((out->event_count + 1) * sizeof(*out->events));
    for (size_t i = 0; out->events && i < out->event_count; i++)
        out->events[i] = (uint32_t)i;
    return out->events;
}

static bool replay_events(struct pass *pass)
{
    const struct replay_model_observer observer = {pass,          block_added, block_freed,
                                                   block_removed, range_added, range_removed};

    pass->out->unmatched = pass->model.omitted;
    pass->out->dropped = pass->model.dropped;
    replay_model_observe(&pass->model, &observer);
    do
        pass->now = (uint32_t)pass->model.at + 1;
    while (!pass->out_of_memory && replay_model_step(&pass->model));
    pass->now = pass->end;
    return !pass->out_of_memory && !pass->model.out_of_memory && add_mapped_spans(pass) &&
           number_events(pass);
}

bool view_lives_init(struct view_lives *out, const struct recording *recording,
                     const struct recording_device *device)
{
    struct pass pass = {.out = out, .device = device, .end = (uint32_t)device->event_count + 1};
    bool success;

    *out = (struct view_lives){0};
    ordered_init(&pass.mapped);
    if (!replay_model_init(&pass.model, recording, device))
        return false;
    success = replay_events(&pass);
    replay_model_fini(&pass.model);
    ordered_fini(&pass.mapped);
    free(pass.mapped_span);
    free(pass.life_of);
    if (!success)
        view_lives_fini(out);
    return success;
}

void view_lives_fini(struct view_lives *lives)
{
    free(lives->lives);
    free(lives->spans);
    free(lives->events);
    free(lives->summed);
    *lives = (struct view_lives){0};
}

/* --- Reduction. --- */

/* The state of a reduction; indices are moments before it. */
struct reduction {
    struct view_lives *lives;
    /* [event_count + 2]: the new moment of each moment, or of the last remaining moment before it */
    uint32_t *moment_of;
    int64_t *change; /* [event_count + 1]: of the bytes of summed lives */
};

static double compute_weight(const struct view_life *life)
{
    return (double)life->bytes * (life->freed_at - life->allocated_at);
}

static int compare_weights(const void *first, const void *second)
{
    const double a = *(const double *)first, b = *(const double *)second;

    return (a < b) - (a > b);
}

/* Find the minimal weight that remains, and how many lives with that weight do.  Returns false on host allocation failure. */
static bool find_min_weight(const struct view_lives *lives, size_t max, double *min, size_t *ties)
{
    double *weights = malloc(lives->life_count * sizeof(*weights));

    if (!weights)
        return false;
    for (size_t i = 0; i < lives->life_count; i++)
        weights[i] = compute_weight(&lives->lives[i]);
    qsort(weights, lives->life_count, sizeof(*weights), compare_weights);
    *min = weights[max - 1];
    *ties = 0;
    for (size_t i = max; i-- > 0 && weights[i] == *min;)
        ++*ties;
    free(weights);
    return true;
}

/* Remove lives from the array, add their bytes to `change`, and mark their events. */
static void remove_lives(struct reduction *reduction, double min, size_t ties)
{
    struct view_lives *lives = reduction->lives;
    const uint32_t end = (uint32_t)lives->event_count + 1;
    size_t count = 0;

    for (size_t i = 0; i < lives->life_count; i++) {
        const struct view_life life = lives->lives[i];
        const double weight = compute_weight(&life);

        if (weight > min || (weight == min && ties > 0)) {
            ties -= weight == min;
            lives->lives[count++] = life;
            continue;
        }
        reduction->change[life.allocated_at] += (int64_t)life.bytes;
        if (life.freed_at < end)
            reduction->change[life.freed_at] -= (int64_t)life.bytes;
        reduction->moment_of[life.allocated_at] = 1;
        reduction->moment_of[life.free_requested_at] = 1;
        reduction->moment_of[life.freed_at] = 1;
    }
    lives->summed_count = lives->life_count - count;
    lives->life_count = count;
}

/* Renumber the remaining events; removed events get the moment before them. */
static void renumber_events(struct reduction *reduction)
{
    struct view_lives *lives = reduction->lives;
    const size_t end = lives->event_count + 1;
    int64_t sum = reduction->change[0];
    uint32_t count = 0;

    reduction->moment_of[0] = 0;
    lives->summed[0] = (uint64_t)sum;
    for (size_t moment = 1; moment < end; moment++) {
        sum += reduction->change[moment];
        if (!reduction->moment_of[moment]) {
            lives->events[count++] = lives->events[moment - 1];
            lives->summed[count] = (uint64_t)sum;
        } else if ((uint64_t)sum > lives->summed[count]) {
            lives->summed[count] = (uint64_t)sum;
        }
        reduction->moment_of[moment] = count;
    }
    reduction->moment_of[end] = count + 1;
    lives->event_count = count;
}

static void renumber_intervals(struct reduction *reduction)
{
    struct view_lives *lives = reduction->lives;

    for (size_t i = 0; i < lives->life_count; i++) {
        struct view_life *life = &lives->lives[i];

        life->allocated_at = reduction->moment_of[life->allocated_at];
        life->free_requested_at = reduction->moment_of[life->free_requested_at];
        life->freed_at = reduction->moment_of[life->freed_at];
    }
    for (size_t i = 0; i < lives->span_count; i++) {
        lives->spans[i].mapped_at = reduction->moment_of[lives->spans[i].mapped_at];
        lives->spans[i].unmapped_at = reduction->moment_of[lives->spans[i].unmapped_at];
    }
}

bool view_lives_reduce(struct view_lives *lives, size_t max_lives)
{
    struct reduction reduction = {.lives = lives};
    double min = 0;
    size_t ties = 0;
    bool success;

    if (lives->life_count <= max_lives)
        return true;
    reduction.moment_of = calloc(lives->event_count + 2, sizeof(*reduction.moment_of));
    reduction.change = calloc(lives->event_count + 1, sizeof(*reduction.change));
    lives->summed = calloc(lives->event_count + 1, sizeof(*lives->summed));
    success = reduction.moment_of && reduction.change && lives->summed &&
              find_min_weight(lives, max_lives, &min, &ties);
    if (success) {
        remove_lives(&reduction, min, ties);
        renumber_events(&reduction);
        renumber_intervals(&reduction);
    }
    free(reduction.moment_of);
    free(reduction.change);
    return success;
}
