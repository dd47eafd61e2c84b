/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_lives.h"

#include <stdlib.h>

#include "src/tools/containers/containers.h"

#define LIVES_MAX UINT32_MAX

/* The state of playing the events. */
struct pass {
    struct view_lives *out;
    const struct recording_device *device;
    struct replay_model model;
    uint32_t *life_of; /* by the course's slots of blocks */
    uint32_t slot_room;
    struct ordered mapped; /* starts of what is mapped now */
    struct view_span *mapped_span;
    uint32_t mapped_room;
    uint32_t now, end; /* moments */
    bool out_of_memory;
};

/* --- Spans. --- */

/* Memory that is mapped now, as the span that it will be; its start is a key of pass.mapped. */
static bool add_mapped(struct pass *pass, const struct view_span *span)
{
    const uint32_t slot = ordered_add(&pass->mapped, span->address);

    if (slot == ORDERED_NONE || !ordered_resize(&pass->mapped, (void **)&pass->mapped_span,
                                                &pass->mapped_room, sizeof(*span)))
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
    span->died = pass->now;
    return true;
}

/* What goes is mapped, and may be parts of what came at different moments. */
static bool unmap(struct pass *pass, uint64_t start, uint64_t end)
{
    while (start < end) {
        const uint32_t slot = ordered_up_to(&pass->mapped, start);
        struct view_span rest = pass->mapped_span[slot];
        const uint64_t whole_end = rest.address + rest.bytes;
        const uint64_t stop = whole_end < end ? whole_end : end;

        if (!add_span(pass, &rest, start, stop))
            return false;
        if (rest.address < start)
            pass->mapped_span[slot].bytes = start - rest.address;
        else
            ordered_remove(&pass->mapped, start);
        rest.address = start = stop;
        rest.bytes = whole_end - stop;
        if (rest.bytes > 0 && !add_mapped(pass, &rest))
            return false;
    }
    return true;
}

/* What is still mapped at the end. */
static bool add_rest(struct pass *pass)
{
    uint64_t from = 0;
    uint32_t slot;

    while ((slot = ordered_from(&pass->mapped, from)) != ORDERED_NONE) {
        const struct view_span *span = &pass->mapped_span[slot];

        from = span->address + span->bytes;
        if (!add_span(pass, span, span->address, from))
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
        .born = pass->now,
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

static bool make_room(struct pass *pass)
{
    struct view_lives *out = pass->out;

    return out->life_count < LIVES_MAX &&
           array_reserve((void **)&out->lives, out->life_count, sizeof(*out->lives)) &&
           ordered_resize(&pass->model.blocks, (void **)&pass->life_of, &pass->slot_room,
                          sizeof(*pass->life_of));
}

static void block_added(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct pass *pass = self;
    struct view_lives *out = pass->out;

    if (pass->out_of_memory || !make_room(pass)) {
        pass->out_of_memory = true;
        return;
    }
    pass->life_of[slot] = (uint32_t)out->life_count;
    out->lives[out->life_count++] = (struct view_life){
        .address = block->address,
        .bytes = block->requested,
        .stream = block->stream,
        .born = pass->now,
        .freed = block->is_pending ? 0 : pass->end,
        .died = pass->end,
        .stack = block->stack,
        .pool = block->pool,
        .label = block->label,
    };
}

/* Of a block that is older than the events, the stack of its free is all that is known. */
static void free_life(struct pass *pass, struct view_life *life)
{
    const struct recording_event *event = &pass->device->events[pass->now - 1];

    life->freed = pass->now;
    if (life->born == 0 && life->stack == 0) {
        life->stack = event->stack;
        life->label = event->label;
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
    life->died = pass->now;
}

/* --- All of it. --- */

static bool number_events(struct pass *pass)
{
    struct view_lives *out = pass->out;

    out->event_count = pass->device->event_count;
    out->events = malloc((out->event_count + 1) * sizeof(*out->events));
    for (size_t i = 0; out->events && i < out->event_count; i++)
        out->events[i] = (uint32_t)i;
    return out->events;
}

static bool run(struct pass *pass)
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
    return !pass->out_of_memory && !pass->model.out_of_memory && add_rest(pass) &&
           number_events(pass);
}

bool view_lives_init(struct view_lives *out, const struct recording *recording,
                     const struct recording_device *device)
{
    struct pass pass = {.out = out, .device = device, .end = (uint32_t)device->event_count + 1};
    bool fine;

    *out = (struct view_lives){0};
    ordered_init(&pass.mapped);
    if (!replay_model_init(&pass.model, recording, device))
        return false;
    fine = run(&pass);
    replay_model_fini(&pass.model);
    ordered_fini(&pass.mapped);
    free(pass.mapped_span);
    free(pass.life_of);
    if (!fine)
        view_lives_fini(out);
    return fine;
}

void view_lives_fini(struct view_lives *lives)
{
    free(lives->lives);
    free(lives->spans);
    free(lives->events);
    free(lives->summed);
    *lives = (struct view_lives){0};
}
