/* SPDX-License-Identifier: MIT */
#include "src/tools/recording/recording_names.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BITS 8u

bool recording_names_room(void **array, size_t count, size_t bytes)
{
    size_t room = 16;
    void *bigger;

    if (count != 0 && (count < room || (count & (count - 1)) != 0))
        return true;
    while (room <= count)
        room *= 2;
    bigger = realloc(*array, room * bytes);
    if (bigger)
        *array = bigger;
    return bigger;
}

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash(const void *bytes, size_t count)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return sum ^ sum >> 29;
}

/* --- Tables. --- */

/* What a table's numbers stand for. */
struct kind {
    uint64_t (*hash)(const struct recording_names *names, uint32_t number);
    bool (*is)(const struct recording_names *names, uint32_t number, const void *what,
               size_t bytes);
};

static void put(const struct recording_names *names, struct recording_table *table,
                const struct kind *kind, uint32_t number)
{
    const size_t mask = ((size_t)1 << table->bits) - 1;
    size_t at = (size_t)kind->hash(names, number) & mask;

    while (table->places[at])
        at = (at + 1) & mask;
    table->places[at] = number + 1;
    table->used++;
}

static bool grow(const struct recording_names *names, struct recording_table *table,
                 const struct kind *kind)
{
    const struct recording_table old = *table;

    table->bits = old.places ? old.bits + 1 : FIRST_BITS;
    table->places = calloc((size_t)1 << table->bits, sizeof(*table->places));
    if (!table->places) {
        *table = old;
        return false;
    }
    table->used = 0;
    for (size_t i = 0; old.places && i < (size_t)1 << old.bits; i++)
        if (old.places[i])
            put(names, table, kind, old.places[i] - 1);
    free(old.places);
    return true;
}

/* Find a number; the table has room for one more afterwards. */
static bool find(const struct recording_names *names, struct recording_table *table,
                 const struct kind *kind, const void *what, size_t bytes, uint64_t sum,
                 uint32_t *out, bool *is_known)
{
    if ((!table->places || table->used >= (size_t)1 << (table->bits - 1)) &&
        !grow(names, table, kind))
        return false;
    const size_t mask = ((size_t)1 << table->bits) - 1;
    *is_known = false;
    for (size_t at = (size_t)sum & mask; table->places[at] && !*is_known; at = (at + 1) & mask) {
        *out = table->places[at] - 1;
        *is_known = kind->is(names, *out, what, bytes);
    }
    return true;
}

/* --- Texts. --- */

static uint64_t hash_text(const struct recording_names *names, uint32_t number)
{
    const char *text = recording_text(names->out, number);

    return hash(text, strlen(text));
}

static bool is_text(const struct recording_names *names, uint32_t number, const void *what,
                    size_t bytes)
{
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
        !recording_names_room((void **)&recording->text, recording->text_count,
                              sizeof(*recording->text)))
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
    static const struct kind kind = {hash_text, is_text};
    const size_t length = strlen(text);
    bool is_known;

    if (!find(names, &names->texts, &kind, text, length, hash(text, length), out, &is_known))
        return false;
    if (is_known)
        return true;
    if (!add_text(names, text, length, out))
        return false;
    put(names, &names->texts, &kind, *out);
    return true;
}

/* --- Frames, pools. --- */

static uint64_t hash_frame(const struct recording_names *names, uint32_t number)
{
    return hash(&names->out->frames[number], sizeof(struct recording_frame));
}

static bool is_frame(const struct recording_names *names, uint32_t number, const void *what,
                     size_t bytes)
{
    return memcmp(&names->out->frames[number], what, bytes) == 0;
}

bool recording_names_frame(struct recording_names *names, const struct recording_frame *frame,
                           uint32_t *out)
{
    static const struct kind kind = {hash_frame, is_frame};
    struct recording *recording = names->out;
    struct recording_frame whole;
    bool is_known;

    memset(&whole, 0, sizeof(whole)); /* padding counts */
    whole.name = frame->name;
    whole.file = frame->file;
    whole.line = frame->line;
    whole.build_id = frame->build_id;
    whole.module = frame->module;
    if (!find(names, &names->frames, &kind, &whole, sizeof(whole), hash(&whole, sizeof(whole)), out,
              &is_known))
        return false;
    if (is_known)
        return true;
    if (!recording_names_room((void **)&recording->frames, recording->frame_count, sizeof(whole)))
        return false;
    memcpy(&recording->frames[recording->frame_count], &whole, sizeof(whole));
    *out = (uint32_t)recording->frame_count++;
    put(names, &names->frames, &kind, *out);
    return true;
}

static uint64_t hash_pool(const struct recording_names *names, uint32_t number)
{
    return hash(names->out->pools[number], sizeof(names->out->pools[number]));
}

static bool is_pool(const struct recording_names *names, uint32_t number, const void *what,
                    size_t bytes)
{
    return memcmp(names->out->pools[number], what, bytes) == 0;
}

bool recording_names_pool(struct recording_names *names, const uint64_t id[2], uint32_t *out)
{
    static const struct kind kind = {hash_pool, is_pool};
    const size_t bytes = 2 * sizeof(id[0]);
    struct recording *recording = names->out;
    bool is_known;

    if (!find(names, &names->pools, &kind, id, bytes, hash(id, bytes), out, &is_known))
        return false;
    if (is_known)
        return true;
    if (!recording_names_room((void **)&recording->pools, recording->pool_count, bytes))
        return false;
    memcpy(recording->pools[recording->pool_count], id, bytes);
    *out = (uint32_t)recording->pool_count++;
    put(names, &names->pools, &kind, *out);
    return true;
}

/* --- Stacks. --- */

static uint64_t hash_stack(const struct recording_names *names, uint32_t number)
{
    const struct recording_stack *stack = &names->out->stacks[number];

    return hash(names->out->stack_frames + stack->first, stack->count * sizeof(uint32_t));
}

static bool is_stack(const struct recording_names *names, uint32_t number, const void *what,
                     size_t bytes)
{
    const struct recording_stack *stack = &names->out->stacks[number];

    return stack->count * sizeof(uint32_t) == bytes &&
           memcmp(names->out->stack_frames + stack->first, what, bytes) == 0;
}

static bool add_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                      uint32_t *out)
{
    struct recording *recording = names->out;

    if (!recording_names_room((void **)&recording->stacks, recording->stack_count,
                              sizeof(*recording->stacks)))
        return false;
    recording->stacks[recording->stack_count] =
        (struct recording_stack){(uint32_t)names->stack_frame_count, (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        if (!recording_names_room((void **)&recording->stack_frames, names->stack_frame_count,
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
    static const struct kind kind = {hash_stack, is_stack};
    const size_t bytes = count * sizeof(*frames);
    bool is_known;

    if (!find(names, &names->stacks, &kind, frames, bytes, hash(frames, bytes), out, &is_known))
        return false;
    if (is_known)
        return true;
    if (!add_stack(names, frames, count, out))
        return false;
    put(names, &names->stacks, &kind, *out);
    return true;
}

/* --- All of them. --- */

bool recording_names_init(struct recording_names *names, struct recording *out)
{
    static const uint64_t default_pool[2] = {0, 0};
    static const uint32_t no_frames[1];
    uint32_t number;

    *names = (struct recording_names){.out = out};
    /* The empty stack has a place among the frames of others. */
    return recording_names_room((void **)&out->stack_frames, 0, sizeof(*out->stack_frames)) &&
           recording_names_text(names, "", &number) &&
           recording_names_pool(names, default_pool, &number) &&
           recording_names_stack(names, no_frames, 0, &number);
}

void recording_names_fini(struct recording_names *names)
{
    free(names->texts.places);
    free(names->frames.places);
    free(names->stacks.places);
    free(names->pools.places);
}
