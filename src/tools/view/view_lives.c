/* SPDX-License-Identifier: MIT */
#include "src/tools/view/view_lives.h"

#include <stdlib.h>

#include "src/tools/course/course.h"
#include "src/tools/view/view_ranges.h"

#define LIVES_MOST UINT32_MAX

/* The state of playing the events. */
struct pass {
    struct view_lives *out;
    const struct recording_device *device;
    struct course course;
    uint32_t *life_of; /* by the course's slots of blocks */
    uint32_t slot_room;
    struct view_ranges mapped; /* now */
    size_t life_room, span_room;
    uint32_t now, end; /* moments */
    bool lacks_memory;
};

/* --- Spans. --- */

static bool add_span(void *context, const struct view_range *part)
{
    struct pass *pass = context;
    struct view_lives *out = pass->out;

    if (out->span_count == pass->span_room) {
        const size_t room = pass->span_room ? 2 * pass->span_room : 256;
        struct view_span *bigger = realloc(out->spans, room * sizeof(*bigger));

        if (!bigger)
            return false;
        out->spans = bigger;
        pass->span_room = room;
    }
    out->spans[out->span_count++] = (struct view_span){
        .address = part->start,
        .bytes = part->end - part->start,
        .stream = part->stream,
        .born = part->born,
        .died = pass->now,
        .pool = part->pool,
        .page = part->page,
    };
    return true;
}

static void range_comes(void *self, const struct course_range *range)
{
    struct pass *pass = self;
    const struct view_range added = {
        .start = range->start,
        .end = range->end,
        .stream = range->stream,
        .pool = range->pool,
        .born = pass->now,
        .page = range->page,
    };

    if (!view_ranges_add(&pass->mapped, &added))
        pass->lacks_memory = true;
}

static void range_leaves(void *self, const struct course_range *range)
{
    struct pass *pass = self;

    if (!view_ranges_remove(&pass->mapped, range->start, range->end, add_span, pass))
        pass->lacks_memory = true;
}

/* --- Lives. --- */

static bool make_room(struct pass *pass)
{
    struct view_lives *out = pass->out;

    if (out->life_count == pass->life_room) {
        const size_t room = pass->life_room ? 2 * pass->life_room : 1024;
        struct view_life *bigger =
            room < LIVES_MOST ? realloc(out->lives, room * sizeof(*bigger)) : NULL;

        if (!bigger)
            return false;
        out->lives = bigger;
        pass->life_room = room;
    }
    return ordered_follow(&pass->course.blocks, (void **)&pass->life_of, &pass->slot_room,
                          sizeof(*pass->life_of));
}

static void block_comes(void *self, uint32_t slot, const struct course_block *block)
{
    struct pass *pass = self;
    struct view_lives *out = pass->out;

    if (pass->lacks_memory || !make_room(pass)) {
        pass->lacks_memory = true;
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

static void block_is_freed(void *self, uint32_t slot, const struct course_block *block)
{
    struct pass *pass = self;

    (void)block;
    if (!pass->lacks_memory)
        free_life(pass, &pass->out->lives[pass->life_of[slot]]);
}

static void block_leaves(void *self, uint32_t slot, const struct course_block *block)
{
    struct pass *pass = self;
    struct view_life *life;

    if (pass->lacks_memory)
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
    const struct course_watcher watcher = {pass,         block_comes, block_is_freed,
                                           block_leaves, range_comes, range_leaves};

    pass->out->unmatched = pass->course.left_out;
    course_watch(&pass->course, &watcher);
    do
        pass->now = (uint32_t)pass->course.at + 1;
    while (!pass->lacks_memory && course_step(&pass->course));
    pass->now = pass->end;
    return !pass->lacks_memory && !pass->course.lacks_memory &&
           view_ranges_remove(&pass->mapped, 0, UINT64_MAX, add_span, pass) && number_events(pass);
}

bool view_lives_init(struct view_lives *out, const struct recording *recording,
                     const struct recording_device *device)
{
    struct pass pass = {.out = out, .device = device, .end = (uint32_t)device->event_count + 1};
    bool fine;

    *out = (struct view_lives){0};
    if (!course_init(&pass.course, recording, device))
        return false;
    fine = run(&pass);
    course_fini(&pass.course);
    view_ranges_fini(&pass.mapped);
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
