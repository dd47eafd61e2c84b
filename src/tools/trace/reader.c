/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_FREED  UINT32_MAX
#define SLOT_FAILED (UINT32_MAX - 1)

bool reader_fail(struct reader *reader, const char *format, ...)
{
    va_list arguments;

    reader->fault->line = reader->line;
    va_start(arguments, format);
    vsnprintf(reader->fault->text, sizeof(reader->fault->text), format, arguments);
    va_end(arguments);
    return false;
}

bool reader_out_of_memory(struct reader *reader)
{
    return reader_fail(reader, "out of host memory");
}

struct quoted reader_quote(const char *text)
{
    struct quoted quoted;
    size_t length = 0;

    for (; text[length] && length < sizeof(quoted.text) - 4; length++)
        quoted.text[length] = text[length];
    memcpy(quoted.text + length, text[length] ? "..." : "\0\0\0", 4);
    return quoted;
}

void *reader_reserve(struct reader *reader, void *array, size_t *capacity, size_t count,
                     size_t size)
{
    if (count < *capacity)
        return array;

    size_t added = *capacity ? *capacity : 256;
    void *grown;

    if (added * size > XTRACE_MEMORY - reader->allocated_bytes) {
        reader_fail(reader, "the file needs more than 1 GiB of host memory");
        return NULL;
    }
    grown = realloc(array, (*capacity + added) * size);
    if (!grown) {
        reader_out_of_memory(reader);
        return NULL;
    }
    reader->allocated_bytes += added * size;
    *capacity += added;
    return grown;
}

struct id_map_entry *reader_add_name(struct reader *reader, struct id_map *map, uint64_t name,
                                     uint32_t number, uint32_t line)
{
    size_t old_capacity = map->capacity;
    struct id_map_entry *entry = id_map_add(map, name, number, line);

    if (!entry)
        reader_out_of_memory(reader);
    reader->allocated_bytes += (map->capacity - old_capacity) * sizeof(*entry);
    if (reader->allocated_bytes > XTRACE_MEMORY) {
        reader_fail(reader, "the file needs more than 1 GiB of host memory");
        return NULL;
    }
    return entry;
}

struct xtrace_op *reader_add_op(struct reader *reader, enum xtrace_kind kind)
{
    struct xtrace *trace = &reader->trace;
    struct xtrace_op *ops =
        reader_reserve(reader, trace->ops, &reader->op_capacity, trace->op_count, sizeof(*ops));

    if (!ops)
        return NULL;
    trace->ops = ops;
    reader->last_alloc = NULL;
    ops[trace->op_count] = (struct xtrace_op){.line = reader->line, .kind = (uint8_t)kind};
    return &ops[trace->op_count++];
}

bool reader_config(struct reader *reader, const char *text)
{
    if (reader->trace.config)
        return reader_fail(reader, "duplicate `c` line");
    for (const char *byte = text; *byte; byte++)
        if (*byte < ' ' || *byte > '~')
            return reader_fail(reader,
                               "the configuration contains a byte that is not printable ASCII");
    reader->trace.config = strdup(text);
    return reader->trace.config || reader_out_of_memory(reader);
}

/* Find the index of a stream; add the stream if it does not exist. */
static bool find_stream(struct reader *reader, uint64_t name, uint16_t *out)
{
    struct id_map_entry *entry = name ? id_map_find(&reader->streams, name) : NULL;

    if (!name || entry) {
        *out = entry ? (uint16_t)entry->number : 0;
        return true;
    }
    if (reader->trace.stream_count == XTRACE_STREAMS)
        return reader_fail(reader, "the file has more than %d streams", XTRACE_STREAMS);
    if (!reader_add_name(reader, &reader->streams, name, reader->trace.stream_count, reader->line))
        return false;
    reader->trace.stream_name[reader->trace.stream_count] = name;
    *out = (uint16_t)reader->trace.stream_count++;
    return true;
}

static bool add_pool(struct reader *reader, uint64_t name, uint16_t *out)
{
    const uint32_t count = reader->trace.pool_count;
    struct pool_state *states =
        reader_reserve(reader, reader->pool_states, &reader->pool_capacity, count, sizeof(*states));
    uint64_t *names = states ? reader_reserve(reader, reader->trace.pool_name,
                                              &reader->pool_name_capacity, count, sizeof(*names))
                             : NULL;

    reader->pool_states = states ? states : reader->pool_states;
    if (!names)
        return false;
    reader->trace.pool_name = names;
    if (reader->trace.pool_count > XTRACE_POOLS)
        return reader_fail(reader, "the file has more than %d pools", XTRACE_POOLS);
    if (!reader_add_name(reader, &reader->pools, name, reader->trace.pool_count, reader->line))
        return false;
    memset(&states[count], 0, sizeof(*states));
    names[0] = 0;
    names[count] = name;
    *out = (uint16_t)reader->trace.pool_count++;
    return true;
}

/* Find the index of a pool that an operation uses; add the pool if it does not exist. */
static bool find_pool(struct reader *reader, uint64_t name, uint16_t *out)
{
    struct id_map_entry *entry = name ? id_map_find(&reader->pools, name) : NULL;

    if (!name)
        return reader_fail(reader, "pool 0 is the default pool");
    if (!entry)
        return add_pool(reader, name, out);
    if (reader->pool_states[entry->number].released)
        return reader_fail(reader, "pool %" PRIu64 " was released before", name);
    *out = (uint16_t)entry->number;
    return true;
}

/* Find the entry of an allocated block. */
static struct id_map_entry *find_block(struct reader *reader, uint64_t id)
{
    struct id_map_entry *entry = id_map_find(&reader->blocks, id);

    if (!entry)
        reader_fail(reader, "block %" PRIu64 " was never allocated", id);
    else if (entry->number == SLOT_FREED)
        reader_fail(reader, "block %" PRIu64 " was freed on line %" PRIu32, id, entry->line);
    else if (entry->number == SLOT_FAILED)
        reader_fail(reader,
                    "block %" PRIu64 " does not exist: its allocation on line %" PRIu32 " failed",
                    id, entry->line);
    else
        return entry;
    return NULL;
}

static bool free_slot(struct reader *reader, uint32_t slot)
{
    uint32_t *slots = reader_reserve(reader, reader->free_slots, &reader->free_capacity,
                                     reader->free_count, sizeof(*slots));

    if (!slots)
        return false;
    reader->free_slots = slots;
    slots[reader->free_count++] = slot;
    return true;
}

bool reader_alloc(struct reader *reader, const struct fields *fields)
{
    uint64_t id = fields->number[1];
    struct id_map_entry *entry = id_map_find(&reader->blocks, id);
    bool recycled = reader->free_count > 0;
    uint32_t slot =
        recycled ? reader->free_slots[reader->free_count - 1] : reader->trace.slot_count;
    uint16_t stream = 0, pool = 0;
    struct xtrace_op *op;

    if (entry)
        return reader_fail(reader, "block %" PRIu64 " appeared before; IDs are never used twice",
                           id);
    if (!find_stream(reader, fields->number[3], &stream))
        return false;
    if (fields->count > 4 && fields->number[4] && !find_pool(reader, fields->number[4], &pool))
        return false;
    entry = reader_add_name(reader, &reader->blocks, id, slot, reader->line);
    op = entry ? reader_add_op(reader, XTRACE_ALLOC) : NULL;
    if (!op)
        return false;
    op->value = fields->number[2];
    op->slot = slot;
    op->stream = stream;
    op->pool = pool;
    if (recycled)
        reader->free_count--;
    else
        reader->trace.slot_count++;
    reader->trace.events++;
    reader->last_alloc = entry;
    return true;
}

bool reader_free(struct reader *reader, const struct fields *fields)
{
    struct id_map_entry *entry = find_block(reader, fields->number[1]);
    struct xtrace_op *op = entry ? reader_add_op(reader, XTRACE_FREE) : NULL;

    if (!op || !free_slot(reader, entry->number))
        return false;
    op->slot = entry->number;
    entry->number = SLOT_FREED;
    entry->line = reader->line;
    reader->trace.events++;
    return true;
}

/* `! oom`: the last allocation failed. */
bool reader_failure(struct reader *reader, const struct fields *fields)
{
    struct id_map_entry *entry = reader->last_alloc;

    if (strcmp(fields->text[1], "oom") != 0)
        return reader_fail(reader, "`!` is followed by `oom`, not by '%s'",
                           reader_quote(fields->text[1]).text);
    if (!entry)
        return reader_fail(reader, "`! oom` must follow an allocation");
    if (!free_slot(reader, entry->number))
        return false;
    entry->number = SLOT_FAILED;
    reader->trace.ops[reader->trace.op_count - 1].failed = true;
    reader->last_alloc = NULL;
    return true;
}

bool reader_use(struct reader *reader, const struct fields *fields)
{
    struct id_map_entry *entry = find_block(reader, fields->number[1]);
    uint16_t stream = 0;
    struct xtrace_op *op;

    if (!entry || !find_stream(reader, fields->number[2], &stream))
        return false;
    op = reader_add_op(reader, XTRACE_USE);
    if (!op)
        return false;
    op->slot = entry->number;
    op->stream = stream;
    return true;
}

static bool add_stream_op(struct reader *reader, enum xtrace_kind kind, uint64_t name)
{
    uint16_t stream = 0;
    struct xtrace_op *op;

    if (!find_stream(reader, name, &stream))
        return false;
    op = reader_add_op(reader, kind);
    if (op)
        op->stream = stream;
    return op;
}

bool reader_work(struct reader *reader, const struct fields *fields)
{
    return add_stream_op(reader, XTRACE_WORK, fields->number[1]);
}

bool reader_finish(struct reader *reader, const struct fields *fields)
{
    return add_stream_op(reader, XTRACE_FINISH, fields->number[1]);
}

bool reader_empty(struct reader *reader, const struct fields *fields)
{
    (void)fields;
    return reader_add_op(reader, XTRACE_EMPTY);
}

bool reader_wait(struct reader *reader, const struct fields *fields)
{
    uint16_t stream = 0, awaited = 0;
    struct xtrace_op *op;

    if (!find_stream(reader, fields->number[1], &stream) ||
        !find_stream(reader, fields->number[2], &awaited))
        return false;
    op = reader_add_op(reader, XTRACE_WAIT);
    if (!op)
        return false;
    op->stream = stream;
    op->awaited = awaited;
    return true;
}

static bool begin_pool_use(struct reader *reader, const struct fields *fields, bool capturing)
{
    uint64_t name = fields->number[1];
    uint16_t stream = 0, pool = 0;
    struct pool_state *state;
    struct xtrace_op *op;

    if (!find_pool(reader, name, &pool) || !find_stream(reader, fields->number[2], &stream))
        return false;
    state = &reader->pool_states[pool];
    if (state->open_line)
        return reader_fail(reader,
                           "pool %" PRIu64 " was begun on line %" PRIu32 " and has not ended", name,
                           state->open_line);
    if (capturing && stream == 0)
        return reader_fail(reader, "the default stream cannot be captured");
    if (capturing && reader->captured[stream])
        return reader_fail(reader, "stream %" PRIu64 " is being captured already",
                           fields->number[2]);
    op = reader_add_op(reader, capturing ? XTRACE_CAPTURE_BEGIN : XTRACE_ROUTE_BEGIN);
    if (!op)
        return false;
    op->pool = pool;
    op->stream = stream;
    state->open_line = reader->line;
    state->stream = stream;
    state->capturing = capturing;
    if (capturing)
        reader->captured[stream] = true;
    return true;
}

static bool end_pool_use(struct reader *reader, const struct fields *fields, bool capturing)
{
    uint64_t name = fields->number[1];
    struct id_map_entry *entry = id_map_find(&reader->pools, name);
    struct pool_state *state = entry ? &reader->pool_states[entry->number] : NULL;
    struct xtrace_op *op;

    if (!state || !state->open_line || state->capturing != capturing)
        return reader_fail(reader, "no %s to pool %" PRIu64 " has begun",
                           capturing ? "capture" : "routing", name);
    op = reader_add_op(reader, capturing ? XTRACE_CAPTURE_END : XTRACE_ROUTE_END);
    if (!op)
        return false;
    op->pool = (uint16_t)entry->number;
    state->open_line = 0;
    if (capturing)
        reader->captured[state->stream] = false;
    return true;
}

bool reader_capture_begin(struct reader *reader, const struct fields *fields)
{
    return begin_pool_use(reader, fields, true);
}

bool reader_capture_end(struct reader *reader, const struct fields *fields)
{
    return end_pool_use(reader, fields, true);
}

bool reader_route_begin(struct reader *reader, const struct fields *fields)
{
    return begin_pool_use(reader, fields, false);
}

bool reader_route_end(struct reader *reader, const struct fields *fields)
{
    return end_pool_use(reader, fields, false);
}

bool reader_pool_release(struct reader *reader, const struct fields *fields)
{
    uint64_t name = fields->number[1];
    struct id_map_entry *entry = id_map_find(&reader->pools, name);
    struct pool_state *state = entry ? &reader->pool_states[entry->number] : NULL;
    struct xtrace_op *op;

    if (!state)
        return reader_fail(reader, "pool %" PRIu64 " was never begun", name);
    if (state->released)
        return reader_fail(reader, "pool %" PRIu64 " was released before", name);
    if (state->open_line)
        return reader_fail(reader,
                           "pool %" PRIu64 " was begun on line %" PRIu32 " and has not ended", name,
                           state->open_line);
    op = reader_add_op(reader, XTRACE_POOL_RELEASE);
    if (!op)
        return false;
    op->pool = (uint16_t)entry->number;
    state->released = true;
    return true;
}

bool reader_place(struct reader *reader, const struct fields *fields, uint32_t *segment)
{
    const uint64_t first = fields->number[1];
    struct id_map_entry *entry = id_map_find(&reader->places, first);

    if (!reader->last_alloc)
        return reader_fail(reader, "`p` must follow an allocation that was served");
    if (!entry && id_map_find(&reader->blocks, first) != reader->last_alloc)
        return reader_fail(reader, "no segment began with block %" PRIu64, first);
    if (!entry)
        entry = reader_add_name(reader, &reader->places, first, reader->trace.place_count++,
                                reader->line);
    if (!entry)
        return false;
    *segment = entry->number;
    return true;
}

bool reader_clock(struct reader *reader, const struct fields *fields)
{
    uint64_t time_us = fields->number[1];
    struct xtrace_op *op;

    if (reader->has_clock && time_us < reader->clock)
        return reader_fail(reader,
                           "the clock decreases from %" PRIu64 " to %" PRIu64 " microseconds",
                           reader->clock, time_us);
    if (time_us > UINT64_MAX / 1000)
        return reader_fail(reader, "the time exceeds 2^64 nanoseconds");
    op = reader_add_op(reader, XTRACE_CLOCK);
    if (!op)
        return false;
    op->value = time_us;
    reader->has_clock = reader->trace.has_clock = true;
    reader->clock = time_us;
    return true;
}
