/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/message.h"
#include "src/tools/output/progress.h"
#include "src/tools/replay/history_writer.h"
#include "src/tools/replay/simulator.h"
#include "src/tools/replay/timeline.h"

#define FOREVER        UINT64_MAX
#define PROGRESS_SLICE ((size_t)1 << 15) /* operations between two updates of the progress */

/* The capture or route of a pool that has begun and not ended. */
struct route {
    enum { ROUTE_NONE, ROUTE_PLAIN, ROUTE_CAPTURE } kind;
    uint16_t stream; /* on which it began */
};

/* The state of a replay. */
struct run {
    const struct xtrace *trace;
    const struct replay_settings *settings;
    struct replay_result *out;
    struct gpu *gpu;
    struct xseg_allocator *allocator;
    struct CUstream_st **streams; /* [trace->stream_count] */
    struct xseg_pool **pools;     /* [trace->pool_count]; NULL until first used */
    void **blocks;                /* [trace->slot_count]; NULL: not allocated */
    struct route *routes;         /* [trace->pool_count] */
    uint64_t *bases;              /* [trace->place_count]; see check.h */
    uint32_t captures;            /* that have begun and not ended */
    struct check check;
    struct timeline timeline;
    struct headroom headroom, headroom_of_peak;
    struct history_writer history;
    struct trace_clock clock;
    struct stopwatch stopwatch; /* runs during calls of the allocator */
    struct xseg_driver_call *calls_before;
    uint64_t driver_ns_before; /* driver time of the allocator's probe */
    uint64_t replay_ns;        /* driver time of calls that the replay itself makes */
    bool is_simulated;
};

/* --- Operations. --- */

/* Report a failed call that ends the replay. */
static bool report_failed_operation(struct run *run, const struct xtrace_op *op,
                                    const char *message, const char *detail)
{
    message_print("%s:%" PRIu32 ": %s%s%s", run->settings->file, op->line, message,
                  detail[0] ? ": " : "", detail);
    run->out->end = REPLAY_MISMATCH;
    return false;
}

/* Report a failed call of the allocator, with its error message. */
static bool report_failed_call(struct run *run, const struct xtrace_op *op, const char *message)
{
    char detail[512] = "";

    (void)xseg_error_message(detail, sizeof(detail));
    return report_failed_operation(run, op, message, detail);
}

static bool is_out_of_memory(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/* Create a pool of the trace when it is first used. */
static xseg_status get_pool(struct run *run, uint16_t number)
{
    if (run->pools[number])
        return XSEG_OK;
    const xseg_status status = xseg_pool_create(run->allocator, 0, NULL, &run->pools[number]);
    if (status == XSEG_OK)
        history_writer_add_pool(&run->history, number);
    return status;
}

static xseg_status alloc_block(struct run *run, const struct xtrace_op *op)
{
    struct xseg_request request = {sizeof(request)};

    if (op->pool == 0 && run->history.file == NULL)
        return xseg_alloc(run->allocator, 0, op->value, run->streams[op->stream],
                          &run->blocks[op->slot]);
    xseg_status status = op->pool == 0 ? XSEG_OK : get_pool(run, op->pool);
    if (status != XSEG_OK)
        return status;
    request.bytes = op->value;
    request.stream = run->streams[op->stream];
    request.pool = op->pool == 0 ? NULL : run->pools[op->pool];
    request.user = (void *)(uintptr_t)op->line; /* NOLINT(performance-no-int-to-ptr) */
    return xseg_alloc_with(run->allocator, &request, &run->blocks[op->slot]);
}

/* Finish an allocation that failed in the replay or on the tape, or that is a step of the check. */
static bool finish_allocation(struct run *run, const struct xtrace_op *op, xseg_status status)
{
    run->out->failed += op->failed;
    run->out->failed_served += op->failed && status == XSEG_OK;
    if (status == XSEG_OK && !op->failed) {
        check_served(&run->check);
        return true;
    }
    if (status == XSEG_OK) {
        void *block = run->blocks[op->slot];

        check_only_replay(&run->check, op);
        run->blocks[op->slot] = NULL;
        return xseg_free(run->allocator, block) == XSEG_OK ||
               report_failed_call(run, op, "free failed");
    }
    run->blocks[op->slot] = NULL;
    if (!is_out_of_memory(status))
        return report_failed_call(run, op, "allocation failed");
    /* After the replay diverges from the tape, any allocation may fail. */
    if (op->failed || run->check.ended)
        return true;
    check_only_tape(&run->check);
    run->out->oom_at = (int64_t)run->out->events - 1;
    if (!run->settings->quiet)
        (void)report_failed_call(run, op, "out of memory");
    run->out->end = REPLAY_OUT_OF_MEMORY;
    return false;
}

/* During a capture, a wait for a captured stream joins the capture.  Other waits have no effect: a graph cannot wait for
 * work outside of the graph, and no other stream is busy. */
static bool join_capture(struct run *run, struct CUstream_st *stream, struct CUstream_st *awaited)
{
    bool joins = false;

    return gpu_is_captured(run->gpu, awaited, &joins) &&
           (!joins || gpu_wait(run->gpu, stream, awaited));
}

/* Get the driver time, which on the simulator includes the calls that the replay itself makes. */
static uint64_t get_driver_time(const struct run *run)
{
    return run->is_simulated ? simulator.driver_time() : 0;
}

static bool wait_stream(struct run *run, const struct xtrace_op *op)
{
    struct CUstream_st *stream = run->streams[op->stream];
    struct CUstream_st *awaited = run->streams[op->awaited];
    const uint64_t begin_ns = get_driver_time(run);
    bool idle = true, success;

    if (run->captures > 0)
        success = join_capture(run, stream, awaited);
    else
        success =
            gpu_query(run->gpu, awaited, &idle) && (idle || gpu_wait(run->gpu, stream, awaited));
    run->replay_ns += get_driver_time(run) - begin_ns;
    if (!success)
        return report_failed_operation(run, op, "the driver cannot let a stream wait", "");
    /* The waiting stream is busy until its own `y`, independently of the awaited stream. */
    return idle || !run->is_simulated || simulator.launch(stream, FOREVER) == XSEG_OK ||
           report_failed_operation(run, op, "the simulator cannot queue work", "");
}

static bool queue_work(struct run *run, const struct xtrace_op *op, void *block)
{
    struct CUstream_st *stream = run->streams[op->stream];
    bool captured = true;

    /* By the format, work that is queued during a capture keeps no stream busy. */
    if (run->captures > 0 && !gpu_is_captured(run->gpu, stream, &captured))
        return report_failed_operation(run, op, "the driver cannot query a capture", "");
    if (!captured)
        return true;
    if (run->is_simulated)
        return simulator.launch(stream, FOREVER) == XSEG_OK ||
               report_failed_operation(run, op, "the simulator cannot queue work", "");
    return !block || gpu_write(run->gpu, stream, block, 1) ||
           report_failed_operation(run, op, "the driver cannot queue work", "");
}

static bool use_block(struct run *run, const struct xtrace_op *op)
{
    void *block = run->blocks[op->slot];

    /* In tapes, a use during a capture adds no work to the graph; `k` does. */
    if (run->captures == 0 && !queue_work(run, op, block))
        return false;
    return xseg_record_stream(run->allocator, block, run->streams[op->stream]) == XSEG_OK ||
           report_failed_call(run, op, "a use was rejected");
}

/* During a capture, a driver rejects a wait for a captured stream and for the context. */
static bool synchronize_uncaptured(struct run *run, struct CUstream_st *stream)
{
    bool captured = false;

    return gpu_is_captured(run->gpu, stream, &captured) &&
           (captured || gpu_synchronize(run->gpu, stream));
}

static bool synchronize(struct run *run, const struct xtrace_op *op)
{
    const bool all = op->kind == XTRACE_FINISH_ALL;
    bool success = true;

    if (run->captures == 0)
        return all ? gpu_synchronize_all(run->gpu)
                   : gpu_synchronize(run->gpu, run->streams[op->stream]);
    if (!all)
        return synchronize_uncaptured(run, run->streams[op->stream]);
    for (uint32_t i = 0; i < run->trace->stream_count && success; i++)
        success = synchronize_uncaptured(run, run->streams[i]);
    return success;
}

static bool complete_work(struct run *run, const struct xtrace_op *op)
{
    struct CUstream_st *stream = run->streams[op->stream];
    bool all = op->kind == XTRACE_FINISH_ALL;

    if (!run->is_simulated)
        return synchronize(run, op) ||
               report_failed_operation(run, op, "the driver cannot wait", "");
    if (all)
        simulator.finish_all();
    else if (simulator.finish(stream) != XSEG_OK)
        return report_failed_operation(run, op, "the simulator cannot complete work", "");
    return true;
}

static bool empty_cache(struct run *run, const struct xtrace_op *op)
{
    struct xseg_trim_options trim = {sizeof(trim)};

    trim.wait = true;
    return xseg_trim(run->allocator, NULL, &trim, NULL) == XSEG_OK ||
           report_failed_call(run, op, "cached memory cannot be released");
}

static bool is_stream(void *stream, xseg_stream requested)
{
    return stream == (void *)requested;
}

static bool begin_route(struct run *run, const struct xtrace_op *op)
{
    struct CUstream_st *stream = run->streams[op->stream];
    const bool is_capture = op->kind == XTRACE_CAPTURE_BEGIN;
    xseg_status status = get_pool(run, op->pool);

    if (status == XSEG_OK && is_capture)
        status = xseg_capture_begin(run->pools[op->pool], stream);
    else if (status == XSEG_OK)
        status = xseg_route_begin(run->pools[op->pool], is_stream, stream);
    if (status != XSEG_OK)
        return report_failed_call(run, op, "the capture or route of a pool cannot begin");
    run->routes[op->pool] = (struct route){is_capture ? ROUTE_CAPTURE : ROUTE_PLAIN, op->stream};
    run->captures += is_capture;
    return !is_capture || gpu_capture_begin(run->gpu, stream) ||
           report_failed_operation(run, op, "the driver cannot begin a capture", "");
}

/* The driver ends a capture only if its origin waits for every stream that joined. */
static bool end_capture(struct run *run, struct CUstream_st *origin)
{
    const uint64_t begin_ns = get_driver_time(run);
    bool success = true;

    for (uint32_t i = 0; i < run->trace->stream_count && success; i++) {
        bool joined = false;

        success =
            gpu_is_captured(run->gpu, run->streams[i], &joined) &&
            (!joined || run->streams[i] == origin || gpu_wait(run->gpu, origin, run->streams[i]));
    }
    success = gpu_capture_end(run->gpu, origin) && success;
    run->replay_ns += get_driver_time(run) - begin_ns;
    return success;
}

/* End the capture or route of a pool.  Returns false if the driver or the allocator fails. */
static bool end_route(struct run *run, uint16_t pool)
{
    const struct route route = run->routes[pool];
    bool success = true;

    run->routes[pool].kind = ROUTE_NONE;
    if (route.kind == ROUTE_PLAIN)
        return xseg_route_end(run->pools[pool]) == XSEG_OK;
    if (route.kind == ROUTE_CAPTURE) {
        run->captures--;
        success = end_capture(run, run->streams[route.stream]);
        success = xseg_capture_end(run->pools[pool]) == XSEG_OK && success;
    }
    return success;
}

static bool release_pool(struct run *run, const struct xtrace_op *op)
{
    struct xseg_pool *pool = run->pools[op->pool];

    run->pools[op->pool] = NULL;
    return !pool || xseg_pool_release(pool) == XSEG_OK ||
           report_failed_call(run, op, "a pool cannot be released");
}

/* Play an operation that is neither an allocation nor a free. */
static bool play_non_event(struct run *run, const struct xtrace_op *op)
{
    switch (op->kind) {
    case XTRACE_USE:
        return use_block(run, op);
    case XTRACE_WORK:
        return queue_work(run, op, NULL);
    case XTRACE_FINISH:
    case XTRACE_FINISH_ALL:
        return complete_work(run, op);
    case XTRACE_WAIT:
        return wait_stream(run, op);
    case XTRACE_EMPTY:
        return empty_cache(run, op);
    case XTRACE_CAPTURE_BEGIN:
    case XTRACE_ROUTE_BEGIN:
        return begin_route(run, op);
    case XTRACE_CAPTURE_END:
    case XTRACE_ROUTE_END:
        return end_route(run, op->pool) ||
               report_failed_call(run, op, "a capture or route cannot end");
    case XTRACE_POOL_RELEASE:
        return release_pool(run, op);
    case XTRACE_CLOCK:
        return trace_clock_advance(&run->clock, op->value) ||
               report_failed_call(run, op, "the statistics cannot be read, or a tick failed");
    default:
        trace_clock_mark(&run->clock);
        if (run->timeline.file)
            timeline_mark(&run->timeline, run->trace->labels + op->value);
        return history_writer_mark(&run->history, run->trace->labels + op->value) ||
               report_failed_call(run, op, "the history rejected a mark");
    }
}

static bool play_event(struct run *run, const struct xtrace_op *op)
{
    const bool is_step = run->check.mode == CHECK_SUCCESS;

    run->out->events++;
    if (op->kind == XTRACE_ALLOC) {
        xseg_status status = alloc_block(run, op);

        return (status == XSEG_OK && !op->failed && !is_step) || finish_allocation(run, op, status);
    }
    if (xseg_free(run->allocator, run->blocks[op->slot]) != XSEG_OK)
        return report_failed_call(run, op, "free failed");
    run->blocks[op->slot] = NULL;
    return true;
}

static bool play_operation(struct run *run, const struct xtrace_op *op)
{
    return op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE ? play_event(run, op)
                                                               : play_non_event(run, op);
}

/* Play an operation, and measure its time and its time on the trace clock. */
static bool play_measured(struct run *run, const struct xtrace_op *op)
{
    const bool is_event = op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE;
    const bool is_timed = is_event && run->clock.is_on;
    uint64_t begin_ns = 0;
    bool continues;

    if (op->kind == XTRACE_CLOCK || op->kind == XTRACE_MARK)
        return play_non_event(run, op);
    if (op->kind == XTRACE_EMPTY)
        trace_clock_suspend_waits(&run->clock);
    if (is_timed)
        begin_ns = trace_clock_now(&run->clock);
    stopwatch_start(&run->stopwatch);
    continues = play_operation(run, op);
    stopwatch_stop(&run->stopwatch);
    if (is_timed)
        trace_clock_record_call(&run->clock, trace_clock_now(&run->clock) - begin_ns);
    if (op->kind == XTRACE_EMPTY)
        trace_clock_resume_waits(&run->clock);
    return continues;
}

/*
 * Play the operations [from, to).  With a trace clock, each operation that calls the allocator is measured; otherwise
 * the caller measures all of them.
 *
 * Returns: false if the replay ends; the result contains the reason
 */
static bool play_operations(struct run *run, size_t from, size_t to)
{
    const struct xtrace_op *op = run->trace->ops + from;
    const struct xtrace_op *end = run->trace->ops + to;
    const bool is_measured = run->trace->has_clock;
    bool continues = true;

    for (; op < end && continues; op++)
        continues = is_measured ? play_measured(run, op) : play_operation(run, op);
    return continues;
}

/* --- The replay. --- */

/* Report a failure with the error message of the allocator. */
static void report_error(const struct run *run, const char *message)
{
    char detail[2048] = "";

    (void)xseg_error_message(detail, sizeof(detail));
    message_print("%s: %s%s%s", run->settings->file, message, detail[0] ? ": " : "", detail);
}

/* Read the statistics before host_bytes, which would require a system call after each step. */
static bool read_stats(struct run *run, struct xseg_statistics *stats)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = 0;
    memset(stats, 0, sizeof(*stats));
    stats->struct_size = offsetof(struct xseg_statistics, host_bytes);
    if (xseg_stats_get(run->allocator, &scope, stats) == XSEG_OK)
        return true;
    report_error(run, "the statistics cannot be read");
    run->out->end = REPLAY_MISMATCH;
    return false;
}

static bool add_headroom(struct run *run, const struct xseg_statistics *stats)
{
    const uint64_t reserved = stats->reserved_bytes[0].current;

    if (headroom_add(&run->headroom, stats->allocated_bytes[0].current, reserved) &&
        headroom_add(&run->headroom_of_peak, stats->allocated_bytes[0].peak, reserved))
        return true;
    message_print("%s: out of host memory, headroom", run->settings->file);
    run->out->end = REPLAY_ERROR;
    return false;
}

/* Check the answers of the tape and record a sample between two slices. */
static bool check_and_sample(struct run *run, size_t done)
{
    const struct xtrace_op *op = done > 0 ? &run->trace->ops[done - 1] : NULL;
    bool event = op && (op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE);
    bool sample = run->timeline.file && !run->timeline.has_clock && event;
    bool is_point = run->settings->headroom && event;
    struct xseg_statistics stats;

    if (!sample && !is_point && check_until(&run->check) != done)
        return true;
    if (!read_stats(run, &stats))
        return false;
    check_answers(&run->check, done, &stats);
    if (sample)
        timeline_add(&run->timeline, &stats);
    return !is_point || add_headroom(run, &stats);
}

/* Write the events of the last operation, also of the operation at which the replay ends. */
static bool write_history(struct run *run, size_t done)
{
    if (history_writer_write(&run->history, run->trace->ops[done - 1].line))
        return true;
    report_error(run, "the history cannot be read");
    run->out->end = REPLAY_MISMATCH;
    return false;
}

/* Find the end of the next slice, at which check_and_sample() or write_history() has work. */
static size_t find_slice_end(const struct run *run, size_t done)
{
    size_t to = check_until(&run->check);

    if (to > run->trace->op_count)
        to = run->trace->op_count;
    if (run->settings->progress && to > done + PROGRESS_SLICE)
        to = done + PROGRESS_SLICE;
    if ((run->timeline.file && !run->timeline.has_clock) || run->history.file ||
        run->settings->headroom)
        to = done + 1;
    return to;
}

/* Measure a slice as a whole; with a trace clock, which works between operations, measure each operation. */
static bool play_slice(struct run *run, size_t from, size_t to)
{
    bool continues;

    if (run->trace->has_clock)
        return play_operations(run, from, to);
    stopwatch_start(&run->stopwatch);
    continues = play_operations(run, from, to);
    stopwatch_stop(&run->stopwatch);
    return continues;
}

static void play_all(struct run *run)
{
    size_t done = 0;
    bool continues = check_and_sample(run, 0);

    stopwatch_init(&run->stopwatch);
    if (run->settings->progress)
        progress_begin(run->settings->file);
    while (continues && done < run->trace->op_count) {
        const size_t to = find_slice_end(run, done);

        continues = play_slice(run, done, to);
        done = to;
        if (continues)
            continues = check_and_sample(run, done);
        continues = write_history(run, done) && continues;
        progress_update(done, run->trace->op_count);
    }
    progress_end();
    if (run->out->events > 0)
        run->out->ns_per_event = stopwatch_read(&run->stopwatch) / (double)run->out->events;
}

static void discard_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static struct xseg_driver_call *read_calls(struct run *run, size_t *count)
{
    struct xseg_driver_call *calls;

    if (xseg_driver_calls(run->allocator, NULL, 0, count) != XSEG_OK)
        return NULL;
    calls = calloc(*count + 1, sizeof(*calls));
    if (calls && xseg_driver_calls(run->allocator, calls, *count, NULL) != XSEG_OK) {
        free(calls);
        return NULL;
    }
    return calls;
}

static bool reset_simulator(struct run *run)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    char reason[512];

    if (!simulator_open())
        return false;
    settings.memory_bytes = run->settings->device_bytes;
    settings.costs = run->settings->costs;
    settings.address_order = run->trace->address_order;
    /* The simulator's checks cost time, so a replay that is timed runs without them. */
    settings.skip_checks = run->settings->check == CHECK_OFF;
    if (simulator.reset(&settings) == XSEG_OK)
        return true;
    (void)simulator.error_message(reason, sizeof(reason));
    message_print("%s: the simulator rejects its settings: %s", run->settings->file, reason);
    return false;
}

/* Find the next stream to create: in the order of names, as the program created the streams. */
static uint32_t find_next_stream(const struct run *run)
{
    const struct xtrace *trace = run->trace;
    uint32_t next = 0;

    for (uint32_t i = 1; i < trace->stream_count; i++)
        if (!run->streams[i] && (next == 0 || trace->stream_name[i] < trace->stream_name[next]))
            next = i;
    return next;
}

static bool create_streams(struct run *run)
{
    const struct xtrace *trace = run->trace;
    char error[256];

    run->streams = calloc(trace->stream_count, sizeof(struct CUstream_st *));
    run->pools = calloc(trace->pool_count, sizeof(struct xseg_pool *));
    run->blocks = calloc((size_t)trace->slot_count + 1, sizeof(void *));
    run->routes = calloc(trace->pool_count, sizeof(*run->routes));
    run->bases = calloc((size_t)trace->place_count + 1, sizeof(*run->bases));
    check_places(&run->check, run->blocks, run->bases);
    if (!trace_clock_init(&run->clock, trace, run->is_simulated, run->settings->tick_ms,
                          &run->timeline, &run->stopwatch) ||
        !run->streams || !run->pools || !run->blocks || !run->routes || !run->bases ||
        !history_writer_init(&run->history, run->settings->history, trace, run->streams,
                             &run->clock)) {
        message_print("%s: out of host memory", run->settings->file);
        return false;
    }
    run->gpu = gpu_open(run->settings->driver, error, sizeof(error));
    if (!run->gpu) {
        message_print("%s: %s", run->settings->file, error);
        return false;
    }
    for (uint32_t i = 1; i < trace->stream_count; i++)
        if (!gpu_stream(run->gpu, &run->streams[find_next_stream(run)])) {
            message_print("%s: the driver made only %" PRIu32 " of %" PRIu32 " streams",
                          run->settings->file, i - 1, trace->stream_count - 1);
            return false;
        }
    return true;
}

static bool open_allocator(struct run *run)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_statistics stats;
    size_t count;

    options.driver = gpu_library(run->settings->driver);
    options.log = run->settings->quiet ? discard_log : NULL;
    options.clock = run->is_simulated || run->trace->has_clock ? trace_clock_now : NULL;
    options.clock_context = &run->clock;
    if (xseg_open(run->settings->config, &options, &run->allocator) != XSEG_OK) {
        char message[256];

        (void)snprintf(message, sizeof(message),
                       "no allocator can be opened with the configuration '%s'",
                       run->settings->config);
        report_error(run, message);
        return false;
    }
    if ((run->trace->has_clock || run->history.file) &&
        xseg_config_set(run->allocator, "background_thread:False") != XSEG_OK) {
        report_error(run, "the background thread cannot be ended");
        return false;
    }
    /* A setting of the file or the environment applies to the program, not to its replay. */
    if (xseg_config_set(run->allocator, "oom_snapshot:none") != XSEG_OK) {
        report_error(run, "oom_snapshot cannot be switched off");
        return false;
    }
    /* This opens the device, so the probe of the driver precedes the first operation. */
    if (!read_stats(run, &stats))
        return false;
    trace_clock_begin(&run->clock, run->allocator);
    if (!history_writer_begin(&run->history, run->allocator, run->settings->config)) {
        report_error(run, "the history cannot be enabled");
        return false;
    }
    run->calls_before = read_calls(run, &count);
    if (!run->calls_before) {
        report_error(run, "the driver calls cannot be counted");
        return false;
    }
    if (run->is_simulated)
        run->driver_ns_before = simulator.driver_time();
    return true;
}

static void collect_results(struct run *run)
{
    struct replay_result *out = run->out;
    struct xseg_statistics stats;

    if (run->is_simulated)
        out->driver_ns = simulator.driver_time() - run->driver_ns_before - run->replay_ns;
    out->has_driver_time = run->is_simulated;
    out->calls = read_calls(run, &out->call_count);
    if (!out->calls) {
        report_error(run, "the driver calls cannot be counted");
        out->call_count = 0;
        out->end = REPLAY_MISMATCH;
    }
    for (size_t i = 0; i < out->call_count; i++)
        out->calls[i].count -= run->calls_before[i].count;
    if (!read_stats(run, &stats))
        return;
    out->peak_requested = stats.requested_bytes[0].peak;
    out->peak_allocated = stats.allocated_bytes[0].peak;
    out->peak_active = stats.active_bytes[0].peak;
    out->peak_reserved = stats.reserved_bytes[0].peak;
    out->end_allocated = stats.allocated_bytes[0].current;
    out->end_reserved = stats.reserved_bytes[0].current;
    out->headroom = headroom_find(&run->headroom);
    out->headroom_of_peak = headroom_find(&run->headroom_of_peak);
    trace_clock_get(&run->clock, &out->clock);
    if (run->settings->explain &&
        !explanation_query(&out->explanation, run->allocator, run->trace, run->streams)) {
        report_error(run, "the reserved memory cannot be explained");
        out->end = REPLAY_MISMATCH;
    }
}

static void finish_check(struct run *run)
{
    struct replay_result *out = run->out;
    struct check *check = &run->check;

    check_fini(check);
    out->was_checked = check->mode != CHECK_OFF;
    out->checked = check->steps;
    out->mismatches = check->mismatches;
    out->check_end_line = check->ended_line;
    if (out->end == REPLAY_DONE && check->mismatches > 0)
        out->end = REPLAY_MISMATCH;
    if (!timeline_fini(&run->timeline))
        out->end = REPLAY_ERROR;
}

/* End the history, also if nothing was replayed.  The command reports a failed write when it closes the file. */
static void end_history(struct run *run)
{
    int error = 0;

    if (history_writer_fini(&run->history, &error))
        return;
    if (error == ENOMEM)
        message_print("%s: out of host memory for the history", run->settings->file);
    run->out->end = REPLAY_ERROR;
}

/* Free all memory and close the allocator.  Returns whether everything succeeded. */
static bool clean_up(struct run *run)
{
    bool success = true;
    char leaks[1024];

    for (uint32_t i = 1; run->allocator && i < run->trace->pool_count; i++)
        success &= end_route(run, (uint16_t)i);
    for (uint32_t i = 0; run->allocator && i < run->trace->slot_count; i++)
        success &= xseg_free(run->allocator, run->blocks[i]) == XSEG_OK;
    for (uint32_t i = 1; run->allocator && i < run->trace->pool_count; i++)
        success &= !run->pools[i] || xseg_pool_release(run->pools[i]) == XSEG_OK;
    if (!success)
        report_error(run, "blocks or pools cannot be freed at the end");
    if (run->allocator && xseg_close(run->allocator) != XSEG_OK) {
        report_error(run, "the allocator cannot be closed");
        success = false;
    }
    gpu_close(run->gpu);
    if (run->is_simulated && simulator.leaks(leaks, sizeof(leaks)) > 0) {
        message_print("%s: leaked by the replay:", run->settings->file);
        message_lines(leaks);
        success = false;
    }
    trace_clock_fini(&run->clock);
    headroom_fini(&run->headroom);
    headroom_fini(&run->headroom_of_peak);
    free(run->routes);
    free(run->bases);
    free(run->streams);
    free(run->pools);
    free(run->blocks);
    free(run->calls_before);
    return success;
}

void replay_run(const struct xtrace *trace, const struct replay_settings *settings,
                struct replay_result *out)
{
    struct run run = {.trace = trace, .settings = settings, .out = out};

    *out = (struct replay_result){.end = REPLAY_DONE, .oom_at = -1};
    run.is_simulated = settings->driver == GPU_SIMULATED;
    if (run.is_simulated && !reset_simulator(&run)) {
        out->end = REPLAY_ERROR;
        return;
    }
    check_init(&run.check, settings->check, settings->file, trace);
    timeline_init(&run.timeline, settings->timeline, trace);
    if (create_streams(&run) && open_allocator(&run)) {
        play_all(&run);
        collect_results(&run);
        finish_check(&run);
    } else {
        out->end = REPLAY_ERROR;
    }
    end_history(&run);
    if (!clean_up(&run) && out->end == REPLAY_DONE)
        out->end = REPLAY_MISMATCH;
}

void replay_result_fini(struct replay_result *result)
{
    free(result->calls);
    result->calls = NULL;
    result->call_count = 0;
}
