/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording_names.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/array.h"

/* --- Texts. --- */

static bool is_text(const void *owner, uint32_t number, const void *what, size_t bytes)
{
    const struct recording_names *names = owner;
    const char *text = recording_text(names->out, number);

    return strlen(text) == bytes && memcmp(text, what, bytes) == 0;
}

/* What all texts take, as a power of two. */
static size_t room_for(size_t bytes)
{
    size_t room = 4096;

    while (room < bytes)
        room *= 2;
    return room;
}

static bool add_text(struct recording_names *names, const char *text, size_t length, uint32_t *out)
{
    struct recording *recording = names->out;
    const size_t bytes = names->text_bytes + length + 1;

    if (bytes > UINT32_MAX ||
        !array_room((void **)&recording->text, recording->text_count, sizeof(*recording->text)))
        return false;
    if (!recording->texts || room_for(bytes) != room_for(names->text_bytes)) {
        char *texts = realloc(recording->texts, room_for(bytes));

        if (!texts)
            return false;
        recording->texts = texts;
    }
    memcpy(recording->texts + names->text_bytes, text, length + 1);
    recording->text[recording->text_count] = (uint32_t)names->text_bytes;
    names->text_bytes = bytes;
    *out = (uint32_t)recording->text_count++;
    return true;
}

bool recording_names_text(struct recording_names *names, const char *text, uint32_t *out)
{
    const size_t length = strlen(text);
    const uint64_t sum = index_sum(text, length);

    *out = index_find(&names->texts, sum, text, length, is_text, names);
    return *out != INDEX_NONE ||
           (add_text(names, text, length, out) && index_add(&names->texts, sum, *out));
}

/* --- Frames, pools. --- */

static bool is_frame(const void *owner, uint32_t number, const void *what, size_t bytes)
{
    const struct recording_names *names = owner;
    return memcmp(&names->out->frames[number], what, bytes) == 0;
}

bool recording_names_frame(struct recording_names *names, const struct recording_frame *frame,
                           uint32_t *out)
{
    struct recording *recording = names->out;
    struct recording_frame whole;
    uint64_t sum;

    memset(&whole, 0, sizeof(whole)); /* padding counts */
    whole.name = frame->name;
    whole.file = frame->file;
    whole.line = frame->line;
    whole.build_id = frame->build_id;
    whole.module = frame->module;
    sum = index_sum(&whole, sizeof(whole));
    *out = index_find(&names->frames, sum, &whole, sizeof(whole), is_frame, names);
    if (*out != INDEX_NONE)
        return true;
    if (!array_room((void **)&recording->frames, recording->frame_count, sizeof(whole)))
        return false;
    memcpy(&recording->frames[recording->frame_count], &whole, sizeof(whole));
    *out = (uint32_t)recording->frame_count++;
    return index_add(&names->frames, sum, *out);
}

static bool is_pool(const void *owner, uint32_t number, const void *what, size_t bytes)
{
    const struct recording_names *names = owner;
    return memcmp(names->out->pools[number], what, bytes) == 0;
}

bool recording_names_pool(struct recording_names *names, const uint64_t id[2], uint32_t *out)
{
    const size_t bytes = 2 * sizeof(id[0]);
    const uint64_t sum = index_sum(id, bytes);
    struct recording *recording = names->out;

    *out = index_find(&names->pools, sum, id, bytes, is_pool, names);
    if (*out != INDEX_NONE)
        return true;
    if (!array_room((void **)&recording->pools, recording->pool_count, bytes))
        return false;
    memcpy(recording->pools[recording->pool_count], id, bytes);
    *out = (uint32_t)recording->pool_count++;
    return index_add(&names->pools, sum, *out);
}

/* --- Stacks. --- */

static bool is_stack(const void *owner, uint32_t number, const void *what, size_t bytes)
{
    const struct recording_names *names = owner;
    const struct recording_stack *stack = &names->out->stacks[number];

    return stack->count * sizeof(uint32_t) == bytes &&
           memcmp(names->out->stack_frames + stack->first, what, bytes) == 0;
}

static bool add_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                      uint32_t *out)
{
    struct recording *recording = names->out;

    if (!array_room((void **)&recording->stacks, recording->stack_count,
                    sizeof(*recording->stacks)))
        return false;
    recording->stacks[recording->stack_count] =
        (struct recording_stack){(uint32_t)names->stack_frame_count, (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        if (!array_room((void **)&recording->stack_frames, names->stack_frame_count,
                        sizeof(*recording->stack_frames)))
            return false;
        recording->stack_frames[names->stack_frame_count++] = frames[i];
    }
    *out = (uint32_t)recording->stack_count++;
    return true;
}

bool recording_names_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                           uint32_t *out)
{
    const size_t bytes = count * sizeof(*frames);
    const uint64_t sum = index_sum(frames, bytes);

    *out = index_find(&names->stacks, sum, frames, bytes, is_stack, names);
    return *out != INDEX_NONE ||
           (add_stack(names, frames, count, out) && index_add(&names->stacks, sum, *out));
}

/* --- All of them. --- */

bool recording_names_init(struct recording_names *names, struct recording *out)
{
    static const uint64_t default_pool[2] = {0, 0};
    static const uint32_t no_frames[1];
    uint32_t number;

    *names = (struct recording_names){.out = out};
    /* The empty stack has a place among the frames of others. */
    return array_room((void **)&out->stack_frames, 0, sizeof(*out->stack_frames)) &&
           recording_names_text(names, "", &number) &&
           recording_names_pool(names, default_pool, &number) &&
           recording_names_stack(names, no_frames, 0, &number);
}

void recording_names_fini(struct recording_names *names)
{
    index_fini(&names->texts);
    index_fini(&names->frames);
    index_fini(&names->stacks);
    index_fini(&names->pools);
}
