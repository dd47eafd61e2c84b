/* SPDX-License-Identifier: MIT */
#include "src/core/report/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_writer.h"
#include "src/base/string_util.h"
#include "src/base/symbolizer.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/report/explain.h"
#include "src/core/report/snapshot_writer.h"
#include "xseg/version.h"

/* Version of the value of the key `xseg`. */
#define FORMAT 1u

#define CONFIG_BYTES ((size_t)4096)

/* Default limit of host memory: DEFAULT_BYTES, plus BLOCK_BYTES for each allocated block in excess
 * of INCLUDED_BLOCKS.  OTHER_BYTES of it are for call stacks, names and output, and the copied
 * state is subtracted. */
#define DEFAULT_BYTES   ((uint64_t)64 << 20)
#define BLOCK_BYTES     64u
#define INCLUDED_BLOCKS 100000u
#define OTHER_BYTES     ((uint64_t)2 << 20)

/* Number of entries between two checks of time and size. */
#define CHECK_INTERVAL 1024u

/* Bytes of a file with a size limit that are reserved for the values after the traces. */
#define TAIL_BYTES ((uint64_t)64 << 10)

/* The copied state of a device. */
struct device_state {
    struct xseg_device *device;
    struct xseg_heap_copy heap;
    struct xseg_reason_list reasons;
    struct xseg_history_reader reader;
    bool has_trace;
    uint64_t complete_events; /* events since reader.complete_since */
    uint64_t reserved, page_cache, unreleased;
    struct xseg_snapshot_trace trace;
};

struct snapshot {
    struct xseg_allocator *allocator;
    const struct xseg_snapshot_params *params;
    struct device_state *devices; /* [count], open devices */
    size_t count;
    struct xseg_file_writer output;
    bool is_regular_file; /* the file can be truncated */
    struct xseg_snapshot_writer writer;
};

/* --- Copy of a device. --- */

static xseg_status copy_state(struct snapshot *snapshot, struct device_state *state)
{
    struct xseg_device *device = state->device;
    const struct xseg_config *config = xseg_allocator_config(snapshot->allocator);
    struct xseg_explainer explainer = {
        .device = device,
        .config = config,
        .reasons = &state->reasons,
        .origins_now = xseg_origins_now_if_enabled(&snapshot->allocator->clock, config),
        .may_query_driver = snapshot->params->may_query_driver,
    };
    const struct xseg_history_store *store = &snapshot->allocator->history;

    xseg_mutex_lock(&device->memory_lock);
    const uint64_t settings = xseg_history_store_settings(store);
    xseg_status status = xseg_explain_begin(&explainer);
    if (status == XSEG_OK) {
        const xseg_status copied = xseg_heap_copy_init(&state->heap, device, &explainer);

        status = xseg_explain_end(&explainer);
        status = copied != XSEG_OK ? copied : status;
    }
    state->reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    state->page_cache = xseg_page_cache_bytes(&device->page_cache);
    state->unreleased = xseg_unreleased_bytes(&device->unreleased);
    xseg_mutex_unlock(&device->memory_lock);
    /* If the history settings changed during the copy, the events do not lead to the copied
     * blocks. */
    state->has_trace = snapshot->params->include_events && config->history == XSEG_HISTORY_ALL &&
                       settings != 0 && xseg_history_store_settings(store) == settings;
    return status;
}

/* Maximum number of events of a device that may be copied in addition to its state. */
static uint64_t max_events(const struct snapshot *snapshot, const struct device_state *state)
{
    const uint64_t blocks = state->heap.allocated_blocks;
    uint64_t bytes = snapshot->params->max_host_bytes / snapshot->count;

    if (snapshot->params->max_host_bytes == 0) {
        const uint64_t used = xseg_heap_copy_host_bytes(&state->heap) +
                              state->reasons.count * sizeof(struct xseg_reason);

        bytes = (DEFAULT_BYTES - OTHER_BYTES) / snapshot->count +
                (blocks - xseg_min(blocks, INCLUDED_BLOCKS / snapshot->count)) * BLOCK_BYTES;
        bytes -= xseg_min(bytes, used);
    }
    return bytes / sizeof(struct xseg_history_event);
}

static void count_complete_events(struct device_state *state)
{
    struct xseg_history_merge *merge = &state->reader.merge;
    const struct xseg_history_event *event;

    while ((event = xseg_history_merge_next(merge)) != NULL)
        state->complete_events += event->time >= state->reader.complete_since;
}

static xseg_status copy_device(struct snapshot *snapshot, struct device_state *state)
{
    struct xseg_history_merge *merge = &state->reader.merge;
    xseg_status status = copy_state(snapshot, state);

    xseg_history_merge_init(merge);
    if (status == XSEG_OK && state->has_trace)
        status = xseg_device_history_copy(state->device, &state->heap.cut,
                                          max_events(snapshot, state), &state->reader);
    if (status == XSEG_OK && !xseg_history_merge_begin(merge))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, merge of the history");
    if (status == XSEG_OK)
        count_complete_events(state);
    xseg_snapshot_trace_init(&state->trace, &snapshot->writer);
    state->trace.moment = state->reader.moment;
    if (status == XSEG_OK && !xseg_eviction_filter_init(&state->trace.filter, merge, &state->heap))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, history of paused memory");
    return status;
}

static void device_state_fini(struct device_state *state)
{
    xseg_snapshot_trace_fini(&state->trace);
    xseg_history_merge_fini(&state->reader.merge);
    free(state->reasons.list);
    xseg_heap_copy_fini(&state->heap);
}

/* Look up the names of all frames in at most half of the remaining time. */
static void resolve_frame_names(const struct snapshot *snapshot)
{
    struct xseg_stack_depot *depot = xseg_history_store_depot(&snapshot->allocator->history);
    const uint64_t now = xseg_clock_system(), deadline = snapshot->params->deadline_ns;

    if (depot != NULL)
        (void)xseg_symbolizer_resolve_all(
            depot, deadline == UINT64_MAX ? UINT64_MAX : now + (xseg_max(deadline, now) - now) / 2);
}

/* --- Segments and annotations. --- */

static int ordinal_of(const struct device_state *state)
{
    return state->device->context.ordinal;
}

static void write_segments(struct snapshot *snapshot, bool is_evicted)
{
    xseg_pickle_open_list(&snapshot->writer.pickle);
    for (size_t i = 0; i < snapshot->count; i++)
        xseg_snapshot_write_segments(&snapshot->writer, &snapshot->devices[i].heap,
                                     ordinal_of(&snapshot->devices[i]), is_evicted);
    xseg_pickle_close(&snapshot->writer.pickle);
}

/* Write one stage of an annotation; in PyTorch an annotation has a start and an end. */
static void write_annotation(struct snapshot *snapshot, const struct device_state *state,
                             const struct xseg_history_event *event, unsigned stage)
{
    struct xseg_snapshot_writer *writer = &snapshot->writer;
    struct xseg_pickle_writer *pickle = &writer->pickle;
    const char *text = xseg_history_labels_text(&snapshot->allocator->history.labels, event->label);

    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_STAGE);
    xseg_pickle_interned(pickle, stage);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_NAME);
    xseg_pickle_string(pickle, text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICE);
    xseg_pickle_int(pickle, ordinal_of(state));
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_TIME_US,
                               xseg_snapshot_time_us(writer, &state->reader.moment, event->time));
    xseg_pickle_close(pickle);
}

static void write_annotations(struct snapshot *snapshot)
{
    const struct xseg_history_event *event;

    xseg_pickle_open_list(&snapshot->writer.pickle);
    for (size_t i = 0; i < snapshot->count; i++) {
        struct device_state *state = &snapshot->devices[i];

        xseg_history_merge_restart(&state->reader.merge);
        while ((event = xseg_history_merge_next(&state->reader.merge)) != NULL)
            if (event->action == XSEG_HISTORY_ANNOTATION &&
                event->time >= state->reader.complete_since) {
                write_annotation(snapshot, state, event, XSEG_SNAPSHOT_START);
                write_annotation(snapshot, state, event, XSEG_SNAPSHOT_END);
            }
    }
    xseg_pickle_close(&snapshot->writer.pickle);
}

static void write_empty_list(struct snapshot *snapshot, unsigned key)
{
    xseg_pickle_key(&snapshot->writer.pickle, key);
    xseg_pickle_open_list(&snapshot->writer.pickle);
    xseg_pickle_close(&snapshot->writer.pickle);
}

/* --- Traces within the limits of time and size. --- */

uint64_t xseg_snapshot_deadline(uint64_t ms)
{
    return ms == 0 ? UINT64_MAX : xseg_clock_system() + ms * XSEG_MILLISECOND;
}

/* An attempt to write the newest `entries` of `all` events of all devices. */
struct attempt {
    uint64_t entries, all;
    uint64_t written;
    uint64_t start_ns, start_bytes;
};

/* The number of entries that fit into the remaining time and size at the rate so far. */
static uint64_t predict_entries(const struct snapshot *snapshot, const struct attempt *attempt)
{
    const uint64_t deadline = snapshot->params->deadline_ns;
    const uint64_t max_bytes = snapshot->params->max_file_bytes;
    const uint64_t now = xseg_clock_system(), bytes = xseg_file_writer_offset(&snapshot->output);
    const double written = (double)attempt->written;
    double entries = (double)attempt->entries;

    if (!snapshot->is_regular_file)
        return attempt->entries;
    if (deadline != UINT64_MAX) {
        const double ns_per_entry = (double)(now - attempt->start_ns + 1) / written;

        entries = now >= deadline ? 0 : written + (double)(deadline - now) / ns_per_entry;
    }
    if (max_bytes != UINT64_MAX) {
        const double bytes_per_entry = (double)(bytes - attempt->start_bytes + 1) / written;
        const double available =
            (double)max_bytes - (double)TAIL_BYTES - (double)attempt->start_bytes;

        entries = entries < available / bytes_per_entry ? entries : available / bytes_per_entry;
    }
    return entries <= 0 ? 0 : (uint64_t)xseg_min((uint64_t)entries, attempt->entries);
}

/* The number of entries of a device in an attempt: the same fraction of the events of each
 * device. */
static uint64_t device_entries(const struct device_state *state, const struct attempt *attempt)
{
    return attempt->all == 0 ? 0
                             : (uint64_t)((double)state->complete_events *
                                          ((double)attempt->entries / (double)attempt->all));
}

/* Write the newest events of a device.  Returns false if the attempt exceeds the limits. */
static bool write_device_trace(struct snapshot *snapshot, struct device_state *state,
                               struct attempt *attempt)
{
    const uint64_t entries = device_entries(state, attempt);
    struct xseg_history_merge *merge = &state->reader.merge;
    const struct xseg_history_event *event;
    uint64_t number = 0;

    xseg_snapshot_trace_restart(&state->trace);
    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL) {
        const bool skip = number++ < state->reader.count - entries;

        xseg_snapshot_trace_write(&state->trace, event, skip);
        attempt->written += !skip;
        if (snapshot->output.error != 0)
            return true; /* the writer discards all further output */
        if (!skip && attempt->written % CHECK_INTERVAL == 0 &&
            predict_entries(snapshot, attempt) < attempt->entries)
            return false;
    }
    return true;
}

static bool write_device_traces(struct snapshot *snapshot, struct attempt *attempt)
{
    struct xseg_pickle_writer *pickle = &snapshot->writer.pickle;
    bool is_complete = true;
    size_t next = 0;

    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICE_TRACES);
    xseg_pickle_open_list(pickle);
    for (int i = 0; is_complete && i < snapshot->allocator->device_count; i++) {
        xseg_pickle_open_list(pickle);
        if (next < snapshot->count && ordinal_of(&snapshot->devices[next]) == i)
            is_complete = write_device_trace(snapshot, &snapshot->devices[next++], attempt);
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
    return is_complete;
}

/* Write the traces of all devices.  If the limits of time and size require it, the oldest events
 * are omitted. */
static void write_traces(struct snapshot *snapshot)
{
    const struct xseg_pickle_savepoint savepoint = xseg_pickle_savepoint(&snapshot->writer.pickle);
    struct attempt attempt = {.start_bytes = savepoint.offset};

    for (size_t i = 0; i < snapshot->count; i++)
        attempt.all += snapshot->devices[i].complete_events;
    attempt.entries = attempt.all;
    for (;;) {
        attempt.start_ns = xseg_clock_system();
        attempt.written = 0;
        if (write_device_traces(snapshot, &attempt))
            return;
        /* If the host becomes slower, predictions are too high, so each attempt has at most half of
         * the entries of the previous one. */
        attempt.entries =
            xseg_min(predict_entries(snapshot, &attempt) / 10 * 9, attempt.entries / 2);
        if (!xseg_snapshot_writer_rollback(&snapshot->writer, &savepoint)) {
            snapshot->output.error = snapshot->output.error != 0 ? snapshot->output.error : EIO;
            return;
        }
    }
}

/* --- The value of the key `xseg`. --- */

static uint64_t single_page_padding(const struct xseg_reason_list *reasons)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < reasons->count; i++)
        bytes += xseg_reason_single_page_padding(&reasons->list[i]);
    return bytes;
}

static void write_device(struct snapshot *snapshot, const struct device_state *state)
{
    struct xseg_snapshot_writer *writer = &snapshot->writer;
    const struct xseg_history_reader *reader = &state->reader;

    xseg_pickle_open_dict(&writer->pickle);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_DEVICE, (uint64_t)ordinal_of(state));
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_RESERVED, state->reserved);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_PAGE_CACHE, state->page_cache);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_UNRELEASED, state->unreleased);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_SINGLE_PAGE_PADDING,
                               single_page_padding(&state->reasons));
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_LOST, reader->lost);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_LEFT_OUT,
                               reader->omitted + reader->count - state->trace.events);
    xseg_pickle_key(&writer->pickle, XSEG_SNAPSHOT_CAUSES);
    xseg_snapshot_trace_write_causes(&state->trace);
    xseg_pickle_key(&writer->pickle, XSEG_SNAPSHOT_PAGES);
    xseg_snapshot_write_pages(writer, &state->reasons);
    xseg_pickle_close(&writer->pickle);
}

static void write_text(struct snapshot *snapshot, unsigned key, const char *text)
{
    xseg_pickle_key(&snapshot->writer.pickle, key);
    xseg_pickle_string(&snapshot->writer.pickle, text, strlen(text));
}

static void write_configuration(struct snapshot *snapshot)
{
    char buffer[CONFIG_BYTES];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_config_print(xseg_allocator_config(snapshot->allocator), &text);
    write_text(snapshot, XSEG_SNAPSHOT_CONFIGURATION, buffer);
    write_text(snapshot, XSEG_SNAPSHOT_CONFIGURATION_SOURCE, snapshot->allocator->config_source);
}

static void write_xseg_value(struct snapshot *snapshot)
{
    struct xseg_pickle_writer *pickle = &snapshot->writer.pickle;

    xseg_pickle_open_dict(pickle);
    xseg_snapshot_write_number(&snapshot->writer, XSEG_SNAPSHOT_FORMAT, FORMAT);
    write_text(snapshot, XSEG_SNAPSHOT_VERSION, XSEG_VERSION_TEXT);
    write_configuration(snapshot);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_DEVICES);
    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < snapshot->count; i++)
        write_device(snapshot, &snapshot->devices[i]);
    xseg_pickle_close(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PAUSED);
    write_segments(snapshot, true);
    xseg_pickle_close(pickle);
}

/* --- The file. --- */

/* Write the settings with the default minimum of free memory of an integrated device.  So a replay
 * on another kind of device, as by xseg advise, keeps the same amount of memory free. */
static void write_settings(struct snapshot *snapshot)
{
    struct xseg_config config = *xseg_allocator_config(snapshot->allocator);

    for (size_t i = 0; i < snapshot->count; i++) {
        const uint64_t min = xseg_device_free_min(snapshot->devices[i].device, &config);

        if (min != 0)
            config.device_free_min_bytes = min;
    }
    xseg_snapshot_write_settings(&snapshot->writer, &config);
}

static xseg_status write_pickle(struct snapshot *snapshot, int file)
{
    struct xseg_pickle_writer *pickle = &snapshot->writer.pickle;
    struct stat found;

    xseg_file_writer_init(&snapshot->output, file);
    snapshot->is_regular_file = fstat(file, &found) == 0 && S_ISREG(found.st_mode);
    xseg_pickle_begin(pickle, &snapshot->output, xseg_snapshot_strings);
    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENTS);
    write_segments(snapshot, false);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_ALLOCATOR_SETTINGS);
    write_settings(snapshot);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_EXTERNAL_ANNOTATIONS);
    write_annotations(snapshot);
    write_empty_list(snapshot, XSEG_SNAPSHOT_HOST_SEGMENTS);
    write_empty_list(snapshot, XSEG_SNAPSHOT_HOST_TRACES);
    write_traces(snapshot);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_XSEG);
    write_xseg_value(snapshot);
    xseg_pickle_close(pickle);
    return xseg_pickle_end(pickle) ? XSEG_OK : XSEG_ERR_FILE;
}

static xseg_status list_devices(struct snapshot *snapshot)
{
    struct xseg_allocator *allocator = snapshot->allocator;

    snapshot->devices = calloc((size_t)allocator->device_count + 1, sizeof(*snapshot->devices));
    if (snapshot->devices == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot");
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            snapshot->devices[snapshot->count++].device = device;
    }
    return XSEG_OK;
}

/* Write a snapshot to a file.  On XSEG_ERR_FILE, *error is the errno, and no error message is
 * set. */
static xseg_status write_snapshot(struct xseg_allocator *allocator,
                                  const struct xseg_snapshot_params *params, int file, int *error)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));

    if (snapshot == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot");
    snapshot->allocator = allocator;
    snapshot->params = params;
    xseg_snapshot_writer_init(&snapshot->writer, &allocator->history);
    xseg_history_labels_begin_reading(&allocator->history.labels);
    xseg_status status = list_devices(snapshot);
    for (size_t i = 0; status == XSEG_OK && i < snapshot->count; i++)
        status = copy_device(snapshot, &snapshot->devices[i]);
    if (status == XSEG_OK) {
        resolve_frame_names(snapshot);
        status = write_pickle(snapshot, file);
    }
    *error = snapshot->output.error;
    xseg_history_labels_end_reading(&allocator->history.labels);
    for (size_t i = 0; i < snapshot->count; i++)
        device_state_fini(&snapshot->devices[i]);
    xseg_snapshot_writer_fini(&snapshot->writer);
    free(snapshot->devices);
    free(snapshot);
    return status;
}

static xseg_status fail_file(const char *path, int error)
{
    return xseg_fail(XSEG_ERR_FILE, "snapshot file cannot be written, \"%s\" (%s)", path,
                     strerror(error));
}

xseg_status xseg_snapshot_write_file(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_params *params, const char *path)
{
    struct xseg_atomic_file replacement;
    int error = xseg_atomic_file_open(&replacement, path);

    if (error != 0)
        return fail_file(path, error);
    const xseg_status status = write_snapshot(allocator, params, replacement.file, &error);
    const int end_error = xseg_atomic_file_close(&replacement, status == XSEG_OK);
    if (status == XSEG_ERR_FILE)
        return fail_file(path, error);
    return status == XSEG_OK && end_error != 0 ? fail_file(path, end_error) : status;
}

/* --- Snapshots of out-of-memory failures. --- */

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots)
{
    atomic_init(&snapshots->is_writing, false);
    atomic_init(&snapshots->written, 0);
}

/* Get the rank that a launcher assigned to this process, or NULL.  torchrun sets RANK, Slurm sets
 * SLURM_PROCID; LOCAL_RANK distinguishes the processes of one host. */
static const char *get_rank(void)
{
    static const char *const variables[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *value = secure_getenv(variables[i]);

        if (value != NULL && value[0] != '\0' && strlen(value) <= 10 &&
            strspn(value, "0123456789") == strlen(value))
            return value;
    }
    return NULL;
}

size_t xseg_oom_snapshots_path(char *path, size_t bytes, const char *folder, unsigned number)
{
    const char *rank = get_rank();
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, path, bytes);
    xseg_strbuf_printf(&text, "%s/oom-", folder);
    if (rank != NULL)
        xseg_strbuf_printf(&text, "rank%s-", rank);
    xseg_strbuf_printf(&text, "pid%ld-%u.pickle", (long)getpid(), number);
    return text.length;
}

/* Choose the path with the lowest number from `number` on that does not exist: another allocator
 * may write into the folder, and an earlier process may have had the same process ID.  Returns
 * false if the path is too long. */
static bool choose_path(char *path, size_t bytes, const char *folder, unsigned number)
{
    do {
        if (xseg_oom_snapshots_path(path, bytes, folder, number++) >= bytes)
            return false;
    } while (access(path, F_OK) == 0);
    return true;
}

static void write_into_folder(struct xseg_allocator *allocator, const char *folder, unsigned number)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const struct xseg_snapshot_params params = {
        .include_events = true,
        .may_query_driver = false,
        .max_host_bytes = 0,
        .max_file_bytes = config->oom_snapshot_bytes,
        .deadline_ns = xseg_snapshot_deadline(config->oom_snapshot_ms),
    };
    char path[XSEG_CONFIG_PATH_BYTES + 64];
    struct xseg_fail_saved saved;

    xseg_fail_save(&saved);
    if (!choose_path(path, sizeof(path), folder, number))
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "out of memory: no snapshot written, path is too long, %s", path);
    else if (xseg_snapshot_write_file(allocator, &params, path) == XSEG_OK)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "out of memory: wrote memory snapshot to %s", path);
    else
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "out of memory: no snapshot written, %s",
                      xseg_fail_detail());
    xseg_fail_restore(&saved);
}

/* Write a snapshot if a folder is configured and fewer than XSEG_OOM_SNAPSHOTS attempts were made,
 * and log its path or the error.  The calling thread's error message and errno are preserved. */
static void write_oom_snapshot(struct xseg_allocator *allocator)
{
    struct xseg_oom_snapshots *snapshots = allocator->oom_snapshots;
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const char *folder =
        config->oom_snapshot[0] != '\0' ? config->oom_snapshot : secure_getenv("XSEG_OOM_SNAPSHOT");
    const int error = errno;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (folder == NULL || folder[0] == '\0' || strcmp(folder, "none") == 0 ||
        atomic_exchange(&snapshots->is_writing, true))
        return;
    if (atomic_load(&snapshots->written) < XSEG_OOM_SNAPSHOTS)
        write_into_folder(allocator, folder, atomic_fetch_add(&snapshots->written, 1) + 1);
    atomic_store(&snapshots->is_writing, false);
    errno = error;
}

void xseg_oom_report(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, bool rejected)
{
    if (!rejected)
        write_oom_snapshot(arena->device->allocator);
    (void)xseg_oom_notify(arena, params, status,
                          rejected ? XSEG_OBSERVER_REJECTED : XSEG_OBSERVER_OOM, 0);
}
