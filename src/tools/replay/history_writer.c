/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/history_writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

bool history_writer_init(struct history_writer *writer, FILE *file, const struct xtrace *trace,
                         struct CUstream_st *const *streams, const struct trace_clock *clock)
{
    *writer =
        (struct history_writer){.file = file, .trace = trace, .streams = streams, .clock = clock};
    if (!file)
        return true;
    writer->pools = calloc(trace->pool_count, sizeof(*writer->pools));
    writer->pool_count = 1; /* 0 is the default pool */
    writer->symbols = symbols_open();
    writer->frames = json_object();
    return writer->pools && writer->symbols && writer->frames;
}

bool history_writer_begin(struct history_writer *writer, struct xseg_allocator *allocator,
                          const char *config)
{
    if (!writer->file)
        return true;
    writer->allocator = allocator;
    /* Events of opening the allocator are not part of the trace. */
    return (xtrace_names_key(config, "history") ||
            xseg_config_set(allocator, "history:all") == XSEG_OK) &&
           xseg_history_clear(allocator, -1) == XSEG_OK;
}

void history_writer_add_pool(struct history_writer *writer, uint32_t pool)
{
    if (writer->pools && writer->pool_count < writer->trace->pool_count)
        writer->pools[writer->pool_count++] = pool;
}

bool history_writer_mark(struct history_writer *writer, const char *label)
{
    return !writer->allocator || (xseg_history_annotate(writer->allocator, 0, label) == XSEG_OK &&
                                  xseg_history_label(writer->allocator, label, NULL) == XSEG_OK);
}

/* --- Stacks. --- */

static json_t *nullable_text_json(const char *text)
{
    return text ? text_json(text) : json_null();
}

/* Describe a frame: symbolized if possible, otherwise as recorded. */
static json_t *frame_json(struct history_writer *writer, const struct xseg_history_frame *frame)
{
    struct symbol symbol = {frame->function, frame->function_offset, NULL, 0};

    if (frame->module)
        (void)symbols_find(writer->symbols, frame->module, frame->build_id, frame->offset, &symbol);
    if (!symbol.function)
        symbol.function_offset = frame->function ? frame->function_offset : 0;
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:I}", "function",
                     nullable_text_json(symbol.function ? symbol.function : frame->function),
                     "function_offset", (json_int_t)symbol.function_offset, "file",
                     nullable_text_json(symbol.file), "line",
                     symbol.file ? json_integer(symbol.line) : json_null(), "module",
                     nullable_text_json(frame->module), "build_id",
                     nullable_text_json(frame->build_id), "offset", (json_int_t)frame->offset);
}

/* Get the description of a frame, created once per module and offset; a borrowed reference. */
static json_t *get_frame(struct history_writer *writer, const struct xseg_history_frame *frame)
{
    json_t *object;
    char *key;

    if (asprintf(&key, "%s %s %" PRIx64, frame->module ? frame->module : "",
                 frame->build_id ? frame->build_id : "", frame->offset) < 0)
        return NULL;
    object = json_object_get(writer->frames, key);
    if (!object) {
        object = frame_json(writer, frame);
        if (json_object_set_nocheck(writer->frames, key, object) != 0)
            object = NULL;
        json_decref(object);
    }
    free(key);
    return object;
}

struct frames {
    struct history_writer *writer;
    json_t *array;
    bool is_complete;
};

static bool add_frame(void *self, const struct xseg_history_frame *frame)
{
    struct frames *frames = self;

    frames->is_complete = json_array_append(frames->array, get_frame(frames->writer, frame)) == 0;
    return frames->is_complete;
}

static bool reserve_stack(struct history_writer *writer, uint32_t stack)
{
    const size_t count = (size_t)stack * 2 + 64;
    json_t **stacks;

    if (stack < writer->stack_count)
        return true;
    stacks = realloc(writer->stacks, count * sizeof(json_t *));
    if (!stacks)
        return false;
    memset(stacks + writer->stack_count, 0, (count - writer->stack_count) * sizeof(json_t *));
    writer->stacks = stacks;
    writer->stack_count = count;
    return true;
}

/* Get the frames of a stack, described once; a new reference, or NULL if out of host memory. */
static json_t *get_stack(struct history_writer *writer, uint32_t stack)
{
    struct frames frames = {writer, NULL, true};

    if (stack == 0)
        return json_array();
    if (!reserve_stack(writer, stack))
        return NULL;
    if (!writer->stacks[stack]) {
        frames.array = json_array();
        if (!frames.array ||
            xseg_history_stack(writer->allocator, stack, add_frame, &frames) != XSEG_OK ||
            !frames.is_complete) {
            json_decref(frames.array);
            return NULL;
        }
        writer->stacks[stack] = frames.array;
    }
    return json_incref(writer->stacks[stack]);
}

/* --- Events. --- */

static const char *action_name(enum xseg_history_action action)
{
    static const char *const names[XSEG_HISTORY_ACTIONS] = {
        [XSEG_HISTORY_ALLOC] = "alloc",
        [XSEG_HISTORY_FREE_REQUESTED] = "free_requested",
        [XSEG_HISTORY_FREE_COMPLETED] = "free_completed",
        [XSEG_HISTORY_SEGMENT_ALLOC] = "segment_alloc",
        [XSEG_HISTORY_SEGMENT_FREE] = "segment_free",
        [XSEG_HISTORY_SEGMENT_MAP] = "segment_map",
        [XSEG_HISTORY_SEGMENT_UNMAP] = "segment_unmap",
        [XSEG_HISTORY_OOM] = "oom",
        [XSEG_HISTORY_REMAP] = "remap",
        [XSEG_HISTORY_DECAY] = "decay",
        [XSEG_HISTORY_TRIM] = "trim",
        [XSEG_HISTORY_PAUSE] = "pause",
        [XSEG_HISTORY_RESUME] = "resume",
        [XSEG_HISTORY_ANNOTATION] = "annotation",
        [XSEG_HISTORY_BUDGET_REQUEST] = "budget_request",
        [XSEG_HISTORY_BUDGET_RELEASE] = "budget_release",
    };

    return action < XSEG_HISTORY_ACTIONS ? names[action] : "unknown";
}

/* Get the name of a stream in the trace; 0: the default stream. */
static uint64_t get_stream_name(const struct history_writer *writer, xseg_stream handle)
{
    for (uint32_t i = 0; i < writer->trace->stream_count; i++)
        if (writer->streams[i] == handle)
            return writer->trace->stream_name[i];
    return 0;
}

/* Get the name of a pool in the trace; 0: the default pool. */
static uint64_t get_pool_name(const struct history_writer *writer, uint32_t number)
{
    return number > 0 && number < writer->pool_count
               ? writer->trace->pool_name[writer->pools[number]]
               : 0;
}

static json_t *event_json(struct history_writer *writer, const struct xseg_history_entry *entry)
{
    return json_pack("{s:I, s:I, s:s, s:i, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o}",
                     "number", (json_int_t)writer->events, "line", (json_int_t)writer->line,
                     "action", action_name(entry->action), "device", entry->device, "stream",
                     (json_int_t)get_stream_name(writer, entry->stream), "pool",
                     (json_int_t)get_pool_name(writer, entry->pool), "fallback", entry->is_fallback,
                     "base", (json_int_t)(uintptr_t)entry->base, "bytes", (json_int_t)entry->bytes,
                     "requested", (json_int_t)entry->requested, "time_ns",
                     (json_int_t)trace_clock_trace_ns(writer->clock, entry->time_ns), "order",
                     (json_int_t)entry->order, "thread", entry->thread, "label",
                     nullable_text_json(entry->label), "stack", get_stack(writer, entry->stack));
}

/* Add xseg_request.user of the block, which is the line of its allocation, if it is set. */
static json_t *add_user(json_t *object, const void *user)
{
    if (!object || !user ||
        json_object_set_new(object, "user", json_integer((json_int_t)(uintptr_t)user)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

/* Write an object as a line, and release it. */
static bool write_line(struct history_writer *writer, json_t *object)
{
    errno = 0;
    if (!object)
        writer->error = ENOMEM;
    else if (json_dumpf(object, writer->file, JSON_COMPACT) != 0 ||
             fputc('\n', writer->file) == EOF)
        writer->error = errno ? errno : EIO;
    json_decref(object);
    return writer->error == 0;
}

static bool write_event(void *self, const struct xseg_history_entry *entry)
{
    struct history_writer *writer = self;

    writer->events++;
    return write_line(writer, add_user(event_json(writer, entry), entry->user));
}

bool history_writer_write(struct history_writer *writer, uint32_t line)
{
    struct xseg_history_summary summary = {sizeof(summary)};

    if (!writer->allocator || writer->error)
        return true;
    writer->line = line;
    if (xseg_for_each_event(writer->allocator, -1, write_event, writer, &summary) != XSEG_OK ||
        xseg_history_clear(writer->allocator, -1) != XSEG_OK)
        return false;
    writer->lost += summary.lost;
    writer->stacks_seen = summary.stacks;
    writer->stacks_lost = summary.stacks_lost;
    return true;
}

bool history_writer_fini(struct history_writer *writer, int *error)
{
    if (writer->allocator && writer->error == 0)
        (void)write_line(
            writer, json_pack("{s:I, s:I, s:I, s:I}", "events", (json_int_t)writer->events, "lost",
                              (json_int_t)writer->lost, "stacks", (json_int_t)writer->stacks_seen,
                              "stacks_lost", (json_int_t)writer->stacks_lost));
    if (writer->file && writer->error == 0 && !output_flush(writer->file))
        writer->error = errno ? errno : EIO;
    for (size_t i = 0; i < writer->stack_count; i++)
        json_decref(writer->stacks[i]);
    free(writer->stacks);
    json_decref(writer->frames);
    symbols_close(writer->symbols);
    free(writer->pools);
    *error = writer->error;
    return writer->error == 0;
}
