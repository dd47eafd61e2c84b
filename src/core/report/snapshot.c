/* SPDX-License-Identifier: MIT */
#include "src/core/report/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_writer.h"
#include "src/base/pickle_writer.h"
#include "src/base/symbolizer.h"
#include "src/core/arena/origins.h"
#include "src/core/config/config.h"
#include "src/core/report/explain.h"
#include "src/core/report/facts.h"
#include "src/core/report/segments.h"
#include "src/core/report/trace.h"
#include "src/core/report/words.h"
#include "xseg/version.h"

#define TEXT(name, text) text,
const char *const xseg_snapshot_words[XSEG_SNAPSHOT_WORD_COUNT] = {XSEG_SNAPSHOT_WORDS(TEXT)};

_Static_assert(XSEG_SNAPSHOT_WORD_COUNT <= XSEG_PICKLE_MAX_INTERNED,
               "a document has room for all words");
#undef TEXT

/* Of the format of the key `xseg`. */
#define FORMAT 1u

#define CONFIG_BYTES ((size_t)4096)

/* What a snapshot takes of host memory at the most, unless host_bytes says otherwise: so much, and so much for each live
 * block above so many.  OTHER_BYTES of it are for call stacks, names and output. */
#define MAX_BYTES   ((uint64_t)64 << 20)
#define BLOCK_BYTES 64u
#define BLOCKS      100000u
#define OTHER_BYTES ((uint64_t)2 << 20)

/* Entries between two looks at the clock and at the file's size. */
#define STEP 1024u

/* Bytes of a bounded file that are kept for what comes behind the trace. */
#define TAIL_BYTES ((uint64_t)64 << 10)

/* A view is what is known of one device: its blocks and events at the moment when it was looked at. */
struct view {
    struct xseg_device *device;
    struct xseg_heap_copy snapshot;
    struct xseg_reason_list reasons;
    struct xseg_history_reader reading;
    bool has_trace;
    uint64_t whole; /* events of the reading from which on none is missing */
    uint64_t reserved, page_cache, unknown;
    struct xseg_snapshot_trace trace;
};

struct writing {
    struct xseg_allocator *allocator;
    const struct xseg_snapshot_plan *plan;
    struct view *views; /* [count], of the devices that are open */
    size_t count;
    struct xseg_file_writer output;
    bool has_places; /* the end of the file can be taken back */
    struct xseg_pickle_writer pickle;
    struct xseg_snapshot_stacks stacks;
    struct xseg_snapshot_naming naming;
};

/* --- Looking. --- */

static xseg_status look_locked(struct writing *writing, struct view *view)
{
    struct xseg_device *device = view->device;
    const struct xseg_config *config = xseg_allocator_config(writing->allocator);
    struct xseg_explainer explaining = {
        .device = device,
        .config = config,
        .reasons = &view->reasons,
        .origins_now = xseg_origins_now_by(&writing->allocator->clock, config),
        .may_query_driver = writing->plan->asks,
    };
    const struct xseg_history_store *store = &writing->allocator->history;

    xseg_mutex_lock(&device->growth_lock);
    const uint64_t settings = xseg_history_store_settings(store);
    xseg_status status = xseg_explain_begin(&explaining);
    if (status == XSEG_OK) {
        const xseg_status taken = xseg_heap_copy_init(&view->snapshot, device, &explaining);

        status = xseg_explain_end(&explaining);
        status = taken != XSEG_OK ? taken : status;
    }
    view->reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    view->page_cache = xseg_page_cache_bytes(&device->page_cache);
    view->unknown = xseg_unreleased_bytes(&device->unreleased);
    xseg_mutex_unlock(&device->growth_lock);
    /* With settings that changed meanwhile the events do not lead to the picture. */
    view->has_trace = writing->plan->has_history && config->history == XSEG_HISTORY_ALL &&
                      settings != 0 && xseg_history_store_settings(store) == settings;
    return status;
}

/* Count the events since which none is missing. */
static void count_whole(struct view *view)
{
    struct xseg_history_merge *merge = &view->reading.merge;
    const struct xseg_history_event *event;

    while ((event = xseg_history_merge_next(merge)) != NULL)
        view->whole += event->time >= view->reading.complete_since;
}

/* How many events of a device may be copied beside its state. */
static uint64_t count_room(const struct writing *writing, const struct view *view)
{
    const uint64_t live = view->snapshot.allocated_blocks;
    uint64_t bytes = writing->plan->host_bytes / writing->count;

    if (writing->plan->host_bytes == 0) {
        const uint64_t state = xseg_heap_copy_host_bytes(&view->snapshot) +
                               view->reasons.count * sizeof(struct xseg_reason);

        bytes = (MAX_BYTES - OTHER_BYTES) / writing->count +
                (live - xseg_min(live, BLOCKS / writing->count)) * BLOCK_BYTES;
        bytes -= xseg_min(bytes, state);
    }
    return bytes / sizeof(struct xseg_history_event);
}

static xseg_status look(struct writing *writing, struct view *view)
{
    xseg_status status = look_locked(writing, view);

    xseg_history_merge_init(&view->reading.merge);
    if (status == XSEG_OK && view->has_trace)
        status = xseg_device_history_copy(view->device, &view->snapshot.cut,
                                          count_room(writing, view), &view->reading);
    if (status == XSEG_OK && !xseg_history_merge_begin(&view->reading.merge))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, merge of the history");
    if (status == XSEG_OK)
        count_whole(view);
    xseg_snapshot_trace_init(&view->trace, &writing->pickle, &writing->stacks, &writing->naming);
    view->trace.moment = view->reading.moment;
    if (status == XSEG_OK &&
        !xseg_snapshot_paused_init(&view->trace.paused, &view->reading.merge, &view->snapshot))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, history of paused memory");
    return status;
}

static void forget(struct view *view)
{
    xseg_snapshot_trace_fini(&view->trace);
    xseg_history_merge_fini(&view->reading.merge);
    free(view->reasons.list);
    xseg_heap_copy_fini(&view->snapshot);
}

/* Look up the names of the frames of all stacks, at most for half of the time that is left. */
static void name_frames(const struct writing *writing)
{
    struct xseg_stack_depot *depot = xseg_history_store_depot(&writing->allocator->history);
    const uint64_t now = xseg_clock_system(), deadline = writing->plan->deadline_ns;

    if (depot != NULL)
        (void)xseg_symbolizer_resolve_all(
            depot, deadline == UINT64_MAX ? UINT64_MAX : now + (xseg_max(deadline, now) - now) / 2);
}

/* --- What comes before the trace. --- */

static int ordinal_of(const struct view *view)
{
    return view->device->context.ordinal;
}

static void write_segments(struct writing *writing, bool away)
{
    xseg_pickle_open_list(&writing->pickle);
    for (size_t i = 0; i < writing->count; i++)
        xseg_snapshot_segments_write(&writing->pickle, &writing->stacks, &writing->naming,
                                     &writing->views[i].snapshot, ordinal_of(&writing->views[i]),
                                     away);
    xseg_pickle_close(&writing->pickle);
}

/* Write one end of a text that the user put into the history: PyTorch has a begin and an end of each. */
static void write_annotation(struct writing *writing, const struct view *view,
                             const struct xseg_history_event *event, unsigned stage)
{
    struct xseg_pickle_writer *pickle = &writing->pickle;
    const char *text = xseg_history_labels_text(&writing->allocator->history.labels, event->label);

    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_STAGE);
    xseg_pickle_interned(pickle, stage);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_NAME);
    xseg_pickle_string(pickle, text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICE);
    xseg_pickle_int(pickle, ordinal_of(view));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_TIME_US);
    xseg_pickle_uint(pickle,
                     xseg_snapshot_naming_us(&writing->naming, &view->reading.moment, event->time));
    xseg_pickle_close(pickle);
}

static void write_annotations(struct writing *writing)
{
    const struct xseg_history_event *event;

    xseg_pickle_open_list(&writing->pickle);
    for (size_t i = 0; i < writing->count; i++) {
        struct view *view = &writing->views[i];

        xseg_history_merge_restart(&view->reading.merge);
        while ((event = xseg_history_merge_next(&view->reading.merge)) != NULL)
            if (event->action == XSEG_HISTORY_ANNOTATION &&
                event->time >= view->reading.complete_since) {
                write_annotation(writing, view, event, XSEG_SNAPSHOT_START);
                write_annotation(writing, view, event, XSEG_SNAPSHOT_END);
            }
    }
    xseg_pickle_close(&writing->pickle);
}

static void write_empty_list(struct xseg_pickle_writer *pickle, unsigned key)
{
    xseg_pickle_key(pickle, key);
    xseg_pickle_open_list(pickle);
    xseg_pickle_close(pickle);
}

/* --- The trace, as much as there is time and room for. --- */

uint64_t xseg_snapshot_deadline(uint64_t ms)
{
    return ms == 0 ? UINT64_MAX : xseg_clock_system() + ms * 1000000u;
}

/* An attempt at the trace: the newest `entries` events of all devices. */
struct attempt {
    uint64_t entries, written;
    uint64_t began_ns, began_bytes;
};

/* How many entries there is time and room for, as the ones so far went. */
static uint64_t estimate(const struct writing *writing, const struct attempt *attempt)
{
    const uint64_t deadline = writing->plan->deadline_ns, bytes = writing->plan->max_bytes;
    const uint64_t now = xseg_clock_system(), place = xseg_file_writer_offset(&writing->output);
    const double done = (double)attempt->written;
    double entries = (double)attempt->entries;

    if (!writing->has_places)
        return attempt->entries;
    if (deadline != UINT64_MAX) {
        const double each = (double)(now - attempt->began_ns + 1) / done;

        entries = now >= deadline ? 0 : done + (double)(deadline - now) / each;
    }
    if (bytes != UINT64_MAX) {
        const double each = (double)(place - attempt->began_bytes + 1) / done;
        const double left = (double)bytes - (double)TAIL_BYTES - (double)attempt->began_bytes;

        entries = entries < left / each ? entries : left / each;
    }
    return entries <= 0 ? 0 : (uint64_t)xseg_min((uint64_t)entries, attempt->entries);
}

/* Write the newest events of a device.  Returns false if there is not enough time or room for the attempt. */
static bool write_newest(struct writing *writing, struct view *view, uint64_t entries,
                         struct attempt *attempt)
{
    struct xseg_history_merge *merge = &view->reading.merge;
    const struct xseg_history_event *event;
    uint64_t number = 0;

    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL) {
        const bool leave_out = number++ < view->reading.count - entries;

        xseg_snapshot_trace_write(&view->trace, event, leave_out);
        attempt->written += !leave_out;
        if (writing->output.error != 0)
            return true; /* nothing more is written */
        if (!leave_out && attempt->written % STEP == 0 &&
            estimate(writing, attempt) < attempt->entries)
            return false;
    }
    return true;
}

/* How many of a device's events belong to an attempt: each device gives up the same part. */
static uint64_t part_of(const struct view *view, const struct attempt *attempt, uint64_t all)
{
    return all == 0 ? 0
                    : (uint64_t)((double)view->whole * ((double)attempt->entries / (double)all));
}

static bool write_traces(struct writing *writing, struct attempt *attempt, uint64_t all)
{
    struct xseg_pickle_writer *pickle = &writing->pickle;
    bool is_whole = true;
    size_t next = 0;

    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICE_TRACES);
    xseg_pickle_open_list(pickle);
    for (int i = 0; is_whole && i < writing->allocator->device_count; i++) {
        xseg_pickle_open_list(pickle);
        if (next < writing->count && ordinal_of(&writing->views[next]) == i) {
            struct view *view = &writing->views[next++];

            xseg_snapshot_trace_begin(&view->trace);
            is_whole = write_newest(writing, view, part_of(view, attempt, all), attempt);
        }
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
    return is_whole;
}

/* Write the traces; what there is no time or room for is left out from the beginning. */
static void write_history(struct writing *writing)
{
    const struct xseg_pickle_savepoint mark = xseg_pickle_savepoint(&writing->pickle);
    struct attempt attempt = {.entries = 0};
    uint64_t all = 0;

    for (size_t i = 0; i < writing->count; i++)
        all += writing->views[i].whole;
    attempt.entries = all;
    for (;;) {
        attempt.began_ns = xseg_clock_system();
        attempt.began_bytes = mark.place;
        attempt.written = 0;
        if (write_traces(writing, &attempt, all))
            return;
        /* Estimates of a machine that slows down are too high: an attempt has at most half of the one before. */
        attempt.entries = xseg_min(estimate(writing, &attempt) / 10 * 9, attempt.entries / 2);
        if (!xseg_pickle_rollback(&writing->pickle, &mark)) {
            writing->output.error = writing->output.error != 0 ? writing->output.error : EIO;
            return;
        }
        xseg_snapshot_stacks_rewind(&writing->stacks, &mark);
    }
}

/* --- What comes behind it. --- */

static void put_number(struct xseg_pickle_writer *pickle, unsigned key, uint64_t number)
{
    xseg_pickle_key(pickle, key);
    xseg_pickle_uint(pickle, number);
}

static void write_view(struct writing *writing, const struct view *view)
{
    struct xseg_pickle_writer *pickle = &writing->pickle;

    xseg_pickle_open_dict(pickle);
    put_number(pickle, XSEG_SNAPSHOT_DEVICE, (uint64_t)ordinal_of(view));
    put_number(pickle, XSEG_SNAPSHOT_RESERVED, view->reserved);
    put_number(pickle, XSEG_SNAPSHOT_PAGE_CACHE, view->page_cache);
    put_number(pickle, XSEG_SNAPSHOT_UNRELEASED, view->unknown);
    put_number(pickle, XSEG_SNAPSHOT_SINGLE_PAGE_PADDING,
               xseg_snapshot_facts_single_page_rest(&view->reasons));
    put_number(pickle, XSEG_SNAPSHOT_LOST, view->reading.lost);
    put_number(pickle, XSEG_SNAPSHOT_LEFT_OUT,
               view->reading.omitted + view->reading.count - view->trace.events);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_CAUSES);
    xseg_snapshot_trace_write_causes(&view->trace);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PAGES);
    xseg_snapshot_facts_write_pages(pickle, &view->reasons);
    xseg_pickle_close(pickle);
}

/* The whole configuration in force. */
static void write_configuration(struct writing *writing)
{
    char buffer[CONFIG_BYTES];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_config_print(xseg_allocator_config(writing->allocator), &text);
    xseg_pickle_key(&writing->pickle, XSEG_SNAPSHOT_CONFIGURATION);
    xseg_pickle_string(&writing->pickle, buffer, strlen(buffer));
}

static void write_own(struct writing *writing)
{
    struct xseg_pickle_writer *pickle = &writing->pickle;
    const char *source = writing->allocator->config_source;

    xseg_pickle_open_dict(pickle);
    put_number(pickle, XSEG_SNAPSHOT_FORMAT, FORMAT);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_VERSION);
    xseg_pickle_string(pickle, XSEG_VERSION_TEXT, strlen(XSEG_VERSION_TEXT));
    write_configuration(writing);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_CONFIGURATION_SOURCE);
    xseg_pickle_string(pickle, source, strlen(source));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICES);
    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < writing->count; i++)
        write_view(writing, &writing->views[i]);
    xseg_pickle_close(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PAUSED);
    write_segments(writing, true);
    xseg_pickle_close(pickle);
}

/* --- All of it. --- */

static xseg_status write_all(struct writing *writing, int file)
{
    struct xseg_pickle_writer *pickle = &writing->pickle;
    struct stat found;

    xseg_file_writer_init(&writing->output, file);
    writing->has_places = fstat(file, &found) == 0 && S_ISREG(found.st_mode);
    xseg_pickle_begin(pickle, &writing->output, xseg_snapshot_words);
    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENTS);
    write_segments(writing, false);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_ALLOCATOR_SETTINGS);
    xseg_snapshot_facts_write_settings(pickle, xseg_allocator_config(writing->allocator));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_EXTERNAL_ANNOTATIONS);
    write_annotations(writing);
    write_empty_list(pickle, XSEG_SNAPSHOT_HOST_SEGMENTS);
    write_empty_list(pickle, XSEG_SNAPSHOT_HOST_TRACES);
    write_history(writing);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_XSEG);
    write_own(writing);
    xseg_pickle_close(pickle);
    return xseg_pickle_end(pickle) ? XSEG_OK : XSEG_ERR_FILE;
}

static xseg_status find_devices(struct writing *writing)
{
    struct xseg_allocator *allocator = writing->allocator;

    writing->views = calloc((size_t)allocator->device_count + 1, sizeof(*writing->views));
    if (writing->views == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot");
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            writing->views[writing->count++].device = device;
    }
    return XSEG_OK;
}

xseg_status xseg_snapshot_write(struct xseg_allocator *allocator,
                                const struct xseg_snapshot_plan *plan, int file, int *error)
{
    struct writing *writing = calloc(1, sizeof(*writing));

    if (writing == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot");
    writing->allocator = allocator;
    writing->plan = plan;
    xseg_snapshot_stacks_init(&writing->stacks, &allocator->history, &writing->pickle);
    xseg_snapshot_naming_init(&writing->naming, &allocator->history);
    xseg_history_labels_begin_reading(&allocator->history.labels);
    xseg_status status = find_devices(writing);
    for (size_t i = 0; status == XSEG_OK && i < writing->count; i++)
        status = look(writing, &writing->views[i]);
    if (status == XSEG_OK) {
        name_frames(writing);
        status = write_all(writing, file);
    }
    *error = writing->output.error;
    xseg_history_labels_end_reading(&allocator->history.labels);
    for (size_t i = 0; i < writing->count; i++)
        forget(&writing->views[i]);
    xseg_snapshot_stacks_fini(&writing->stacks);
    free(writing->views);
    free(writing);
    return status;
}

/* --- The file. --- */

static xseg_status fail_file(const char *path, int error)
{
    return xseg_fail(XSEG_ERR_FILE, "snapshot file cannot be written, \"%s\" (%s)", path,
                     strerror(error));
}

xseg_status xseg_snapshot_file_write(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_plan *plan, const char *path)
{
    struct xseg_atomic_file place;
    int error = xseg_atomic_file_open(&place, path);

    if (error != 0)
        return fail_file(path, error);
    const xseg_status status = xseg_snapshot_write(allocator, plan, place.file, &error);
    const int ended = xseg_atomic_file_close(&place, status == XSEG_OK);
    if (status == XSEG_ERR_FILE)
        return fail_file(path, error);
    return status == XSEG_OK && ended != 0 ? fail_file(path, ended) : status;
}
