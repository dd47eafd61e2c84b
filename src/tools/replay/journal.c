/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/output.h"
#include "src/tools/output/printable.h"

bool journal_init(struct journal *journal, FILE *file, const struct xtrace *trace,
                  struct CUstream_st *const *streams, const struct watch *watch)
{
    *journal = (struct journal){.file = file, .trace = trace, .streams = streams, .watch = watch};
    if (!file)
        return true;
    journal->pools = calloc(trace->pool_count, sizeof(*journal->pools));
    journal->pool_count = 1; /* number 0 is the default pool */
    journal->names = names_open();
    journal->frames = json_object();
    return journal->pools && journal->names && journal->frames;
}

bool journal_begin(struct journal *journal, struct xseg_allocator *allocator, const char *config)
{
    if (!journal->file)
        return true;
    journal->allocator = allocator;
    /* What the allocator did while it was opened is no part of the trace. */
    return (xtrace_names_key(config, "history") ||
            xseg_config_set(allocator, "history:all") == XSEG_OK) &&
           xseg_history_clear(allocator, -1) == XSEG_OK;
}

void journal_add_pool(struct journal *journal, uint32_t pool)
{
    if (journal->pools && journal->pool_count < journal->trace->pool_count)
        journal->pools[journal->pool_count++] = pool;
}

bool journal_mark(struct journal *journal, const char *label)
{
    return !journal->allocator || (xseg_history_annotate(journal->allocator, 0, label) == XSEG_OK &&
                                   xseg_history_label(journal->allocator, label, NULL) == XSEG_OK);
}

/* --- Stacks. --- */

static json_t *text_or_null(const char *text)
{
    return text ? printable_json(text) : json_null();
}

/* What is known of a frame: by its file, else as it was recorded. */
static json_t *describe_frame(struct journal *journal, const struct xseg_history_frame *frame)
{
    struct name name = {frame->function, frame->function_offset, NULL, 0};

    if (frame->module)
        (void)names_find(journal->names, frame->module, frame->build_id, frame->offset, &name);
    if (!name.function)
        name.function_offset = frame->function ? frame->function_offset : 0;
    return json_pack(
        "{s:o, s:I, s:o, s:o, s:o, s:o, s:I}", "function",
        text_or_null(name.function ? name.function : frame->function), "function_offset",
        (json_int_t)name.function_offset, "file", text_or_null(name.file), "line",
        name.file ? json_integer(name.line) : json_null(), "module", text_or_null(frame->module),
        "build_id", text_or_null(frame->build_id), "offset", (json_int_t)frame->offset);
}

/* A description of a frame, which is made once for each place in a file; borrowed. */
static json_t *get_frame(struct journal *journal, const struct xseg_history_frame *frame)
{
    json_t *known;
    char *key;

    if (asprintf(&key, "%s %s %" PRIx64, frame->module ? frame->module : "",
                 frame->build_id ? frame->build_id : "", frame->offset) < 0)
        return NULL;
    known = json_object_get(journal->frames, key);
    if (!known) {
        known = describe_frame(journal, frame);
        if (json_object_set_nocheck(journal->frames, key, known) != 0)
            known = NULL;
        json_decref(known);
    }
    free(key);
    return known;
}

struct frames {
    struct journal *journal;
    json_t *array;
    bool is_whole;
};

static bool add_frame(void *self, const struct xseg_history_frame *frame)
{
    struct frames *frames = self;

    frames->is_whole = json_array_append(frames->array, get_frame(frames->journal, frame)) == 0;
    return frames->is_whole;
}

static bool have_room(struct journal *journal, uint32_t stack)
{
    const size_t count = (size_t)stack * 2 + 64;
    json_t **stacks;

    if (stack < journal->stack_count)
        return true;
    stacks = realloc(journal->stacks, count * sizeof(json_t *));
    if (!stacks)
        return false;
    memset(stacks + journal->stack_count, 0, (count - journal->stack_count) * sizeof(json_t *));
    journal->stacks = stacks;
    journal->stack_count = count;
    return true;
}

/* The frames of a stack, which are looked up once; a new reference, NULL without host memory. */
static json_t *get_stack(struct journal *journal, uint32_t stack)
{
    struct frames frames = {journal, NULL, true};

    if (stack == 0)
        return json_array();
    if (!have_room(journal, stack))
        return NULL;
    if (!journal->stacks[stack]) {
        frames.array = json_array();
        if (!frames.array ||
            xseg_history_stack(journal->allocator, stack, add_frame, &frames) != XSEG_OK ||
            !frames.is_whole) {
            json_decref(frames.array);
            return NULL;
        }
        journal->stacks[stack] = frames.array;
    }
    return json_incref(journal->stacks[stack]);
}

/* --- Events. --- */

static const char *action_text(enum xseg_history_action action)
{
    static const char *const texts[XSEG_HISTORY_ACTIONS] = {
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

    return action < XSEG_HISTORY_ACTIONS ? texts[action] : "unknown";
}

/* What the trace calls a stream; 0: the default stream. */
static uint64_t stream_of(const struct journal *journal, xseg_stream handle)
{
    for (uint32_t i = 0; i < journal->trace->stream_count; i++)
        if (journal->streams[i] == handle)
            return journal->trace->stream_name[i];
    return 0;
}

/* What the trace calls a pool; 0: the default pool. */
static uint64_t pool_of(const struct journal *journal, uint32_t number)
{
    return number > 0 && number < journal->pool_count
               ? journal->trace->pool_name[journal->pools[number]]
               : 0;
}

static json_t *describe(struct journal *journal, const struct xseg_history_entry *entry)
{
    return json_pack("{s:I, s:I, s:s, s:i, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o}",
                     "number", (json_int_t)journal->events, "line", (json_int_t)journal->line,
                     "action", action_text(entry->action), "device", entry->device, "stream",
                     (json_int_t)stream_of(journal, entry->stream), "pool",
                     (json_int_t)pool_of(journal, entry->pool), "lent", entry->is_fallback, "base",
                     (json_int_t)(uintptr_t)entry->base, "bytes", (json_int_t)entry->bytes,
                     "requested", (json_int_t)entry->requested, "time_ns",
                     (json_int_t)watch_trace_ns(journal->watch, entry->time_ns), "order",
                     (json_int_t)entry->order, "thread", entry->thread, "label",
                     text_or_null(entry->label), "stack", get_stack(journal, entry->stack));
}

/* Add the word of a block's request, which is the line that the trace allocates it on, if there is one. */
static json_t *with_user(json_t *object, const void *user)
{
    if (!object || !user ||
        json_object_set_new(object, "user", json_integer((json_int_t)(uintptr_t)user)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

/* Write an object as a line, and give it up. */
static bool write_line(struct journal *journal, json_t *object)
{
    errno = 0;
    if (!object)
        journal->error = ENOMEM;
    else if (json_dumpf(object, journal->file, JSON_COMPACT) != 0 ||
             fputc('\n', journal->file) == EOF)
        journal->error = errno ? errno : EIO;
    json_decref(object);
    return journal->error == 0;
}

static bool write_event(void *self, const struct xseg_history_entry *entry)
{
    struct journal *journal = self;

    journal->events++;
    return write_line(journal, with_user(describe(journal, entry), entry->user));
}

bool journal_write(struct journal *journal, uint32_t line)
{
    struct xseg_history_summary summary = {sizeof(summary)};

    if (!journal->allocator || journal->error)
        return true;
    journal->line = line;
    if (xseg_for_each_event(journal->allocator, -1, write_event, journal, &summary) != XSEG_OK ||
        xseg_history_clear(journal->allocator, -1) != XSEG_OK)
        return false;
    journal->lost += summary.lost;
    journal->stacks_seen = summary.stacks;
    journal->stacks_lost = summary.stacks_lost;
    return true;
}

bool journal_fini(struct journal *journal, int *error)
{
    if (journal->allocator && journal->error == 0)
        (void)write_line(journal,
                         json_pack("{s:I, s:I, s:I, s:I}", "events", (json_int_t)journal->events,
                                   "lost", (json_int_t)journal->lost, "stacks",
                                   (json_int_t)journal->stacks_seen, "stacks_lost",
                                   (json_int_t)journal->stacks_lost));
    if (journal->file && journal->error == 0 && !output_flush(journal->file))
        journal->error = errno ? errno : EIO;
    for (size_t i = 0; i < journal->stack_count; i++)
        json_decref(journal->stacks[i]);
    free(journal->stacks);
    json_decref(journal->frames);
    names_close(journal->names);
    free(journal->pools);
    *error = journal->error;
    return journal->error == 0;
}
