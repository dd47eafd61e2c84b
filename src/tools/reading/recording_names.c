/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording_names.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"

/* --- Texts. --- */

static bool is_text(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    const struct recording_names *names = owner;
    const char *text = recording_text(names->out, number);

    return strlen(text) == bytes && memcmp(text, key, bytes) == 0;
}

/* Compute the capacity of the array of strings. */
static size_t compute_capacity(size_t bytes)
{
    size_t capacity = 4096;

    while (capacity < bytes)
        capacity *= 2;
    return capacity;
}

static bool add_text(struct recording_names *names, const char *text, size_t length, uint32_t *out)
{
    struct recording *recording = names->out;
    const size_t bytes = names->text_bytes + length + 1;

    if (bytes > UINT32_MAX ||
        !array_reserve((void **)&recording->text, recording->text_count, sizeof(*recording->text)))
        return false;
    if (!recording->texts || compute_capacity(bytes) != compute_capacity(names->text_bytes)) {
        char *texts = realloc(recording->texts, compute_capacity(bytes));

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
    const uint64_t hash = index_hash(text, length);

    *out = index_find(&names->texts, hash, text, length, is_text, names);
    return *out != INDEX_NONE ||
           (add_text(names, text, length, out) && index_add(&names->texts, hash, *out));
}

/* --- Frames, pools, contexts. --- */

static bool is_frame(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    const struct recording_names *names = owner;
    return memcmp(&names->out->frames[number], key, bytes) == 0;
}

bool recording_names_frame(struct recording_names *names, const struct recording_frame *frame,
                           uint32_t *out)
{
    struct recording *recording = names->out;
    struct recording_frame padded;
    uint64_t hash;

    memset(&padded, 0, sizeof(padded)); /* padding is part of the hash */
    padded.name = frame->name;
    padded.file = frame->file;
    padded.line = frame->line;
    padded.build_id = frame->build_id;
    padded.module = frame->module;
    hash = index_hash(&padded, sizeof(padded));
    *out = index_find(&names->frames, hash, &padded, sizeof(padded), is_frame, names);
    if (*out != INDEX_NONE)
        return true;
    if (!array_reserve((void **)&recording->frames, recording->frame_count, sizeof(padded)))
        return false;
    memcpy(&recording->frames[recording->frame_count], &padded, sizeof(padded));
    *out = (uint32_t)recording->frame_count++;
    return index_add(&names->frames, hash, *out);
}

static bool is_pool(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    const struct recording_names *names = owner;
    return memcmp(names->out->pools[number], key, bytes) == 0;
}

bool recording_names_pool(struct recording_names *names, const uint64_t id[2], uint32_t *out)
{
    const size_t bytes = 2 * sizeof(id[0]);
    const uint64_t hash = index_hash(id, bytes);
    struct recording *recording = names->out;

    *out = index_find(&names->pools, hash, id, bytes, is_pool, names);
    if (*out != INDEX_NONE)
        return true;
    if (!array_reserve((void **)&recording->pools, recording->pool_count, bytes))
        return false;
    memcpy(recording->pools[recording->pool_count], id, bytes);
    *out = (uint32_t)recording->pool_count++;
    return index_add(&names->pools, hash, *out);
}

static bool is_context(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    const struct recording_names *names = owner;
    return memcmp(&names->out->contexts[number], key, bytes) == 0;
}

bool recording_names_context(struct recording_names *names, const struct recording_context *context,
                             uint32_t *out)
{
    const uint64_t hash = index_hash(context, sizeof(*context));
    struct recording *recording = names->out;

    *out = index_find(&names->contexts, hash, context, sizeof(*context), is_context, names);
    if (*out != INDEX_NONE)
        return true;
    if (!array_reserve((void **)&recording->contexts, recording->context_count, sizeof(*context)))
        return false;
    recording->contexts[recording->context_count] = *context;
    *out = (uint32_t)recording->context_count++;
    return index_add(&names->contexts, hash, *out);
}

/* --- Stacks. --- */

static bool is_stack(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    const struct recording_names *names = owner;
    const struct recording_stack *stack = &names->out->stacks[number];

    return stack->count * sizeof(uint32_t) == bytes &&
           memcmp(names->out->stack_frames + stack->first, key, bytes) == 0;
}

static bool add_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                      uint32_t *out)
{
    struct recording *recording = names->out;

    if (!array_reserve((void **)&recording->stacks, recording->stack_count,
                       sizeof(*recording->stacks)))
        return false;
    recording->stacks[recording->stack_count] =
        (struct recording_stack){(uint32_t)names->stack_frame_count, (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        if (!array_reserve((void **)&recording->stack_frames, names->stack_frame_count,
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
    const uint64_t hash = index_hash(frames, bytes);

    *out = index_find(&names->stacks, hash, frames, bytes, is_stack, names);
    return *out != INDEX_NONE ||
           (add_stack(names, frames, count, out) && index_add(&names->stacks, hash, *out));
}

/* --- All names. --- */

bool recording_names_init(struct recording_names *names, struct recording *out)
{
    static const uint64_t default_pool[2] = {0, 0};
    static const struct recording_context no_context;
    static const uint32_t no_frames[1];
    uint32_t number;

    *names = (struct recording_names){.out = out};
    /* stack_frames must not be NULL: the empty stack is compared with memcmp(). */
    return array_reserve((void **)&out->stack_frames, 0, sizeof(*out->stack_frames)) &&
           recording_names_text(names, "", &number) &&
           recording_names_pool(names, default_pool, &number) &&
           recording_names_context(names, &no_context, &number) &&
           recording_names_stack(names, no_frames, 0, &number);
}

void recording_names_fini(struct recording_names *names)
{
    index_fini(&names->texts);
    index_fini(&names->frames);
    index_fini(&names->stacks);
    index_fini(&names->pools);
    index_fini(&names->contexts);
}

/* --- Symbolized frames. --- */

/* A frame as recorded, and its index. */
struct recording_symbol {
    struct recorded_frame {
        uint64_t offset;
        uint32_t file, build_id; /* texts */
    } key;
    uint32_t frame;
};

void recording_symbols_init(struct recording_symbols *symbols, struct symbols *source)
{
    *symbols = (struct recording_symbols){.symbols = source};
}

void recording_symbols_fini(struct recording_symbols *symbols)
{
    free(symbols->found);
    index_fini(&symbols->index);
}

static bool is_recorded(const void *owner, uint32_t number, const void *key, size_t bytes)
{
    return memcmp(&((const struct recording_symbols *)owner)->found[number].key, key, bytes) == 0;
}

/* Replace the parts of a frame that the symbols of its module contain. */
static bool symbolize_frame(struct recording_symbols *symbols, struct recording_names *names,
                            struct recording_frame *frame)
{
    struct symbol symbol;

    if (!symbols_find(symbols->symbols, recording_text(names->out, frame->file),
                      recording_text(names->out, frame->build_id), frame->line, &symbol))
        return true;
    if (symbol.function && !recording_names_text(names, symbol.function, &frame->name))
        return false;
    if (!symbol.file || symbol.line <= 0)
        return true;
    frame->line = (uint64_t)symbol.line;
    frame->module = frame->file;
    frame->build_id = 0;
    return recording_names_text(names, symbol.file, &frame->file);
}

bool recording_symbols_frame(struct recording_symbols *symbols, struct recording_names *names,
                             const struct recording_frame *frame, uint32_t *out)
{
    const struct recorded_frame key = {frame->line, frame->file, frame->build_id};
    const uint64_t hash = index_hash(&key, sizeof(key));
    struct recording_frame found = *frame;
    uint32_t number;

    if (!symbols->symbols || frame->build_id == 0)
        return recording_names_frame(names, frame, out);
    number = index_find(&symbols->index, hash, &key, sizeof(key), is_recorded, symbols);
    if (number != INDEX_NONE) {
        *out = symbols->found[number].frame;
        return true;
    }
    if (!array_reserve((void **)&symbols->found, symbols->count, sizeof(*symbols->found)) ||
        !symbolize_frame(symbols, names, &found) || !recording_names_frame(names, &found, out))
        return false;
    symbols->found[symbols->count] = (struct recording_symbol){key, *out};
    return index_add(&symbols->index, hash, (uint32_t)symbols->count++);
}
