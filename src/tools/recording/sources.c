/* SPDX-License-Identifier: MIT */
#include "src/tools/recording/sources.h"

#include <stdlib.h>

#define FIRST_ROOM 64u

/* A frame of a module, and its number. */
struct source {
    uint64_t offset;
    uint32_t file, build_id; /* texts; build_id 0: the place is empty */
    uint32_t frame;
};

void sources_init(struct sources *sources, struct names *names)
{
    *sources = (struct sources){.names = names};
}

void sources_fini(struct sources *sources)
{
    free(sources->places);
}

static struct source *place_of(const struct sources *sources, const struct recording_frame *frame)
{
    uint64_t sum = frame->line * UINT64_C(0x9e3779b97f4a7c15) + frame->file;
    struct source *place;

    /* Steps of Knuth's multiplicative hashing; a room is a power of two. */
    do {
        place = &sources->places[(sum >> 32) & (sources->room - 1)];
        sum += UINT64_C(1) << 32;
    } while (place->build_id && (place->offset != frame->line || place->file != frame->file ||
                                 place->build_id != frame->build_id));
    return place;
}

static bool make_room(struct sources *sources)
{
    const struct sources old = *sources;

    if (2 * sources->used < sources->room)
        return true;
    sources->room = old.room ? 2 * old.room : FIRST_ROOM;
    sources->places = calloc(sources->room, sizeof(*sources->places));
    if (!sources->places) {
        *sources = old;
        return false;
    }
    for (size_t i = 0; i < old.room; i++)
        if (old.places[i].build_id)
            *place_of(sources, &(struct recording_frame){.file = old.places[i].file,
                                                         .line = old.places[i].offset,
                                                         .build_id = old.places[i].build_id}) =
                old.places[i];
    free(old.places);
    return true;
}

/* Replace what the module tells better. */
static bool look_up(struct sources *sources, struct recording_names *into,
                    struct recording_frame *frame)
{
    struct name name;

    if (!names_find(sources->names, recording_text(into->out, frame->file),
                    recording_text(into->out, frame->build_id), frame->line, &name))
        return true;
    if (name.function && !recording_names_text(into, name.function, &frame->name))
        return false;
    if (!name.file || name.line <= 0)
        return true;
    frame->line = (uint64_t)name.line;
    frame->module = frame->file;
    frame->build_id = 0;
    return recording_names_text(into, name.file, &frame->file);
}

bool sources_frame(struct sources *sources, struct recording_names *into,
                   const struct recording_frame *frame, uint32_t *out)
{
    struct recording_frame found = *frame;
    struct source *place;

    if (!sources->names || frame->build_id == 0)
        return recording_names_frame(into, frame, out);
    if (!make_room(sources))
        return false;
    place = place_of(sources, frame);
    if (!place->build_id) {
        if (!look_up(sources, into, &found) || !recording_names_frame(into, &found, &place->frame))
            return false;
        place->offset = frame->line;
        place->file = frame->file;
        place->build_id = frame->build_id;
        sources->used++;
    }
    *out = place->frame;
    return true;
}
