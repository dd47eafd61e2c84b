/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/sources.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/array.h"

/* What a frame of a module was recorded as, and its number. */
struct source {
    struct source_key {
        uint64_t offset;
        uint32_t file, build_id; /* texts */
    } key;
    uint32_t frame;
};

void sources_init(struct sources *sources, struct names *names)
{
    *sources = (struct sources){.names = names};
}

void sources_fini(struct sources *sources)
{
    free(sources->found);
    index_fini(&sources->index);
}

static bool is_source(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    return memcmp(&((const struct sources *)owner)->found[number].key, key, bytes) == 0;
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
    const struct source_key key = {frame->line, frame->file, frame->build_id};
    const uint64_t sum = index_sum(&key, sizeof(key));
    struct recording_frame found = *frame;
    uint32_t number;

    if (!sources->names || frame->build_id == 0)
        return recording_names_frame(into, frame, out);
    number = index_find(&sources->index, sum, &key, sizeof(key), is_source, sources);
    if (number != INDEX_NONE) {
        *out = sources->found[number].frame;
        return true;
    }
    if (!array_room((void **)&sources->found, sources->count, sizeof(*sources->found)) ||
        !look_up(sources, into, &found) || !recording_names_frame(into, &found, out))
        return false;
    sources->found[sources->count] = (struct source){key, *out};
    return index_add(&sources->index, sum, (uint32_t)sources->count++);
}
