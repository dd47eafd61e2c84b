/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES_MOST 256 /* of a stack that are looked at; the innermost come first */

/* --- Values. --- */

/* A number that must be there, and be one. */
static bool need(struct history *history, const struct pickle_value *value, const char *key,
                 uint64_t *out)
{
    return pickle_number(pickle_find(history->pickle, value, key), out) ||
           reader_bad(history->reader, "%s`%s` is missing, or no number", history->where, key);
}

/* A number that may be missing. */
static bool want(struct history *history, const struct pickle_value *value, const char *key,
                 uint64_t *out)
{
    const struct pickle_value *found = pickle_find(history->pickle, value, key);

    return !found || pickle_number(found, out) ||
           reader_bad(history->reader, "%s`%s` is no number", history->where, key);
}

/* Of a pool's id, a pair, one half is always 0. */
static bool want_pool(struct history *history, const struct pickle_value *value, const char *key,
                      uint64_t *out)
{
    const struct pickle_value *pair = pickle_find(history->pickle, value, key);
    uint64_t half[2];

    if (!pair)
        return true;
    for (size_t i = 0; i < 2; i++)
        if (pickle_count(pair) != 2 || pair->kind == PICKLE_DICT ||
            !pickle_number(pickle_item(history->pickle, pair, i), &half[i]) || half[i] >> 62)
            return reader_bad(history->reader, "%s`%s` is no pair of numbers", history->where, key);
    if (half[0] && half[1])
        return reader_bad(history->reader, "%s`%s` has two numbers that are not 0", history->where,
                          key);
    *out = half[0] ? 2 * half[0] : half[1] ? 2 * half[1] + 1 : 0;
    return true;
}

static const struct pickle_value *list_of(const struct pickle *pickle,
                                          const struct pickle_value *value, const char *key)
{
    const struct pickle_value *list = pickle_find(pickle, value, key);

    return list && list->kind == PICKLE_LIST ? list : NULL;
}

static size_t count_of(const struct pickle_value *list)
{
    return list ? pickle_count(list) : 0;
}

/* --- Segments. --- */

struct segment {
    uint64_t device, address, bytes, stream, pool;
    const struct pickle_value *blocks; /* NULL: none */
};

static bool read_segment(struct history *history, size_t number, struct segment *out)
{
    const struct pickle_value *value = pickle_item(history->pickle, history->segments, number);

    *out = (struct segment){.blocks = list_of(history->pickle, value, "blocks")};
    history->reader->line = 0;
    (void)snprintf(history->where, sizeof(history->where), "segment %zu: ", number + 1);
    if (!need(history, value, "device", &out->device) ||
        !need(history, value, "address", &out->address) ||
        !need(history, value, "total_size", &out->bytes) ||
        !want(history, value, "stream", &out->stream) ||
        !want_pool(history, value, "segment_pool_id", &out->pool))
        return false;
    return out->bytes <= UINT64_MAX - out->address ||
           reader_bad(history->reader, "%sit ends beyond all addresses", history->where);
}

static bool add_span(struct history *history, const struct segment *segment)
{
    struct history_span *spans =
        reader_room(history->reader, history->spans, &history->span_capacity, history->span_count,
                    sizeof(*spans));

    if (!spans)
        return false;
    history->spans = spans;
    spans[history->span_count++] = (struct history_span){
        segment->address, segment->address + segment->bytes, segment->pool, 0};
    return true;
}

static int compare_spans(const void *left, const void *right)
{
    const uint64_t a = ((const struct history_span *)left)->begin;
    const uint64_t b = ((const struct history_span *)right)->begin;

    return a < b ? -1 : a > b;
}

/* The first span that ends above an address. */
static size_t span_above(const struct history *history, uint64_t address)
{
    size_t low = 0, high = history->span_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (history->spans[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The private pool that an address lies in, as far as the segments at the end can tell. */
static uint64_t pool_at(const struct history *history, uint64_t address, size_t number)
{
    const size_t at = span_above(history, address);

    if (at == history->span_count)
        return 0;
    const struct history_span *span = &history->spans[at];
    return span->begin <= address && span->since <= number ? span->pool : 0;
}

/* What a segment that was freed held is not known to have been in the pool of a later one. */
static void note_return(struct history *history, const struct history_entry *entry, size_t number)
{
    const uint64_t end = entry->address + entry->bytes;

    for (size_t at = span_above(history, entry->address);
         at < history->span_count && history->spans[at].begin < end; at++)
        history->spans[at].since = number + 1;
}

static bool find_spans(struct history *history)
{
    struct history_entry entry;
    struct segment segment;

    for (size_t i = 0; i < count_of(history->segments); i++) {
        if (!read_segment(history, i, &segment))
            return false;
        if (segment.device != history->device)
            continue;
        history->reserved += segment.bytes;
        if (segment.pool && !add_span(history, &segment))
            return false;
    }
    if (history->span_count == 0)
        return true;
    qsort(history->spans, history->span_count, sizeof(*history->spans), compare_spans);
    for (size_t number = 1; number <= history->count; number++) {
        if (!history_entry(history, number, &entry))
            return false;
        if (entry.action == HISTORY_RETURN && !entry.is_unmap)
            note_return(history, &entry, number);
    }
    return true;
}

/* --- Devices. --- */

static bool largest_segment(struct history *history, uint64_t *device)
{
    uint64_t most = 0;
    struct segment segment;

    for (size_t i = 0; i < count_of(history->segments); i++) {
        if (!read_segment(history, i, &segment))
            return false;
        if (segment.bytes <= most)
            continue;
        most = segment.bytes;
        *device = segment.device;
    }
    return true;
}

static bool choose_device(struct history *history, const struct pickle_value *traces, int device)
{
    size_t most = 0;

    history->devices = count_of(traces);
    history->device = device < 0 ? 0 : (uint64_t)device;
    for (size_t i = 0; i < history->devices && device < 0; i++) {
        const size_t count = pickle_count(pickle_item(history->pickle, traces, i));

        if (count <= most)
            continue;
        most = count;
        history->device = i;
    }
    if (device < 0 && most == 0 && !largest_segment(history, &history->device))
        return false;
    if (history->device >= history->devices)
        return true;
    history->entries = pickle_item(history->pickle, traces, (size_t)history->device);
    if (history->entries->kind != PICKLE_LIST)
        return reader_bad(history->reader, "the history of device %" PRIu64 " is no list",
                          history->device);
    history->count = pickle_count(history->entries);
    return history->count < UINT32_MAX ||
           reader_bad(history->reader, "the history has more entries than can be counted");
}

/* --- Causes. --- */

/* A word that is not known is something that a later release of xseg does by itself. */
static enum history_cause cause_of(const char *word)
{
    if (strcmp(word, "trim") == 0)
        return HISTORY_CAUSE_OPEN;
    return strcmp(word, "steal") == 0 ? HISTORY_CAUSE_STEAL : HISTORY_CAUSE_OWN;
}

/* A cause is a list of the place of its entry, from 0, and a word. */
static bool read_causes(struct history *history, const struct pickle_value *list)
{
    const struct pickle *pickle = history->pickle;

    if (count_of(list) == 0)
        return true;
    history->causes = calloc(history->count + 1, sizeof(*history->causes));
    if (!history->causes)
        return reader_no_memory(history->reader);
    for (size_t i = 0; i < count_of(list); i++) {
        const struct pickle_value *item = pickle_item(pickle, list, i);
        const char *word;
        uint64_t entry;

        if (item->kind != PICKLE_LIST || pickle_count(item) < 2 ||
            !pickle_number(pickle_item(pickle, item, 0), &entry) || entry >= history->count ||
            !(word = pickle_string(pickle, pickle_item(pickle, item, 1))))
            return reader_bad(history->reader, "%sa cause is no list of an entry and a word",
                              history->where);
        history->causes[entry] = (uint8_t)cause_of(word);
    }
    return true;
}

/* What xseg's own facts say of the device. */
static bool find_causes(struct history *history)
{
    const struct pickle_value *own =
        pickle_find(history->pickle, pickle_top(history->pickle), "xseg");
    const struct pickle_value *devices = list_of(history->pickle, own, "devices");

    (void)snprintf(history->where, sizeof(history->where), "xseg: ");
    for (size_t i = 0; i < count_of(devices); i++) {
        const struct pickle_value *device = pickle_item(history->pickle, devices, i);
        uint64_t number;

        if (!need(history, device, "device", &number))
            return false;
        if (number == history->device)
            return read_causes(history, list_of(history->pickle, device, "causes"));
    }
    return true;
}

bool history_open(struct history *history, struct reader *reader, const struct pickle *pickle,
                  int device)
{
    const struct pickle_value *top = pickle_top(pickle);

    *history = (struct history){.reader = reader, .pickle = pickle};
    history->segments = top->kind == PICKLE_LIST ? top : list_of(pickle, top, "segments");
    if (!history->segments)
        return reader_bad(reader, "this is no memory snapshot: there are no `segments`");
    if (!choose_device(history, list_of(pickle, top, "device_traces"), device))
        return false;
    return find_spans(history) && find_causes(history);
}

void history_close(struct history *history)
{
    free(history->spans);
    free(history->causes);
    history->spans = NULL;
    history->causes = NULL;
}

/* --- Entries. --- */

static const struct {
    const char *name;
    enum history_action action;
} actions[] = {
    {"alloc", HISTORY_ALLOC},
    {"free_completed", HISTORY_FREE_COMPLETED},
    {"free_requested", HISTORY_FREE_REQUESTED},
    {"oom", HISTORY_OOM},
    {"segment_alloc", HISTORY_GROWTH},
    {"segment_map", HISTORY_GROWTH},
    {"segment_free", HISTORY_RETURN},
    {"segment_unmap", HISTORY_RETURN},
    {"snapshot", HISTORY_REMARK},
    {"annotate", HISTORY_REMARK},
};

static enum history_action action_of(const char *name)
{
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(name, actions[i].name) == 0)
            return actions[i].action;
    return HISTORY_UNKNOWN;
}

bool history_entry(struct history *history, size_t number, struct history_entry *out)
{
    const struct pickle *pickle = history->pickle;
    const struct pickle_value *value = pickle_item(pickle, history->entries, number - 1);
    const char *name = pickle_string(pickle, pickle_find(pickle, value, "action"));

    *out = (struct history_entry){.action = name ? action_of(name) : HISTORY_UNKNOWN};
    out->is_unmap = name && strcmp(name, "segment_unmap") == 0;
    out->cause = history->causes ? history->causes[number - 1] : HISTORY_CAUSE_OPEN;
    history->reader->line = (uint32_t)number;
    history->where[0] = '\0';
    if (!name)
        return reader_bad(history->reader, "the entry has no `action`");
    if (out->action == HISTORY_REMARK || out->action == HISTORY_UNKNOWN)
        return true;
    if (out->action != HISTORY_OOM && !need(history, value, "addr", &out->address))
        return false;
    if (!need(history, value, "size", &out->bytes) ||
        !want(history, value, "stream", &out->stream) ||
        !want(history, value, "time_us", &out->time) ||
        !want(history, value, "device_free", &out->device_free) ||
        !want_pool(history, value, "pool_id", &out->pool))
        return false;
    if (out->bytes > UINT64_MAX - out->address)
        return reader_bad(history->reader, "the entry ends beyond all addresses");
    if (out->action != HISTORY_OOM && !pickle_find(pickle, value, "pool_id"))
        out->pool = pool_at(history, out->address, number);
    return true;
}

bool history_is_asked(const struct history *history, size_t number, bool *has_stack)
{
    const struct pickle *pickle = history->pickle;
    const struct pickle_value *entry = pickle_item(pickle, history->entries, number - 1);
    const struct pickle_value *frames = list_of(pickle, entry, "frames");

    *has_stack = count_of(frames) > 0;
    for (size_t i = 0; i < count_of(frames) && i < FRAMES_MOST; i++) {
        const struct pickle_value *frame = pickle_item(pickle, frames, i);
        const char *name = pickle_string(pickle, pickle_find(pickle, frame, "name"));

        /* As Python, C++ and xseg call it. */
        if (name && (strcmp(name, "empty_cache") == 0 || strcmp(name, "xseg_trim") == 0 ||
                     strstr(name, "emptyCache")))
            return true;
    }
    return false;
}

/* --- Blocks. --- */

struct visit {
    bool (*function)(void *self, const struct history_block *block);
    void *self;
    size_t count; /* blocks so far */
};

static bool visit_block(struct history *history, const struct segment *segment,
                        const struct pickle_value *value, uint64_t *address, struct visit *visit)
{
    const char *state =
        pickle_string(history->pickle, pickle_find(history->pickle, value, "state"));
    struct history_block block = {.stream = segment->stream, .pool = segment->pool};
    uint64_t bytes;

    if (!state)
        return reader_bad(history->reader, "%sa block has no `state`", history->where);
    if (++visit->count > history->pickle->count)
        return reader_bad(history->reader, "%sits blocks are those of others", history->where);
    if (!want(history, value, "address", address) || !need(history, value, "size", &bytes))
        return false;
    block.address = *address;
    *address += bytes;
    if (!want(history, value, "requested_size", &block.bytes))
        return false;
    if (block.bytes == 0)
        block.bytes = bytes;
    /* active_allocated, active_pending_free; inactive is the other. */
    return strncmp(state, "active", 6) != 0 || visit->function(visit->self, &block);
}

bool history_blocks(struct history *history,
                    bool (*function)(void *self, const struct history_block *block), void *self)
{
    struct visit visit = {function, self, 0};
    struct segment segment;

    for (size_t i = 0; i < count_of(history->segments); i++) {
        uint64_t address;

        if (!read_segment(history, i, &segment))
            return false;
        address = segment.address;
        for (size_t at = 0; segment.device == history->device && at < count_of(segment.blocks);
             at++)
            if (!visit_block(history, &segment, pickle_item(history->pickle, segment.blocks, at),
                             &address, &visit))
                return false;
    }
    return true;
}
