/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/player.h"

#include <inttypes.h>

#include "src/tools/output/complain.h"
#include "src/tools/replay/simulator.h"

#define FOREVER UINT64_MAX

/* A call failed that has no right to: the replay cannot go on. */
static bool fail(struct player *player, const struct xtrace_op *op, const char *what,
                 const char *detail)
{
    complain("%s:%" PRIu32 ": %s%s%s", player->settings->file, op->line, what,
             detail[0] ? ": " : "", detail);
    player->out->end = REPLAY_MISMATCH;
    return false;
}

/* As fail(), with the allocator's own account of the failure. */
static bool xseg_failed(struct player *player, const struct xtrace_op *op, const char *what)
{
    char detail[512] = "";

    (void)xseg_error_message(detail, sizeof(detail));
    return fail(player, op, what, detail);
}

static bool is_out_of_memory(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/* A pool of the trace, made when it is first mentioned. */
static xseg_status get_pool(struct player *player, uint16_t number)
{
    if (player->pools[number])
        return XSEG_OK;
    const xseg_status status = xseg_pool_create(player->allocator, 0, NULL, &player->pools[number]);
    if (status == XSEG_OK)
        journal_add_pool(&player->journal, number);
    return status;
}

static xseg_status alloc_block(struct player *player, const struct xtrace_op *op)
{
    struct xseg_request request = {sizeof(request)};

    if (op->pool == 0 && player->journal.file == NULL)
        return xseg_alloc(player->allocator, 0, op->value, player->streams[op->stream],
                          &player->blocks[op->slot]);
    xseg_status status = op->pool == 0 ? XSEG_OK : get_pool(player, op->pool);
    if (status != XSEG_OK)
        return status;
    request.bytes = op->value;
    request.stream = player->streams[op->stream];
    request.pool = op->pool == 0 ? NULL : player->pools[op->pool];
    request.user = (void *)(uintptr_t)op->line; /* NOLINT(performance-no-int-to-ptr) */
    return xseg_alloc_with(player->allocator, &request, &player->blocks[op->slot]);
}

/* An allocation that failed here or on the tape, or that is judged. */
static bool settle(struct player *player, const struct xtrace_op *op, xseg_status status)
{
    player->out->failed += op->failed;
    player->out->failed_served += op->failed && status == XSEG_OK;
    if (status == XSEG_OK && !op->failed) {
        check_served(&player->check);
        return true;
    }
    if (status == XSEG_OK) {
        void *block = player->blocks[op->slot];

        check_only_here(&player->check, op);
        player->blocks[op->slot] = NULL;
        return xseg_free(player->allocator, block) == XSEG_OK ||
               xseg_failed(player, op, "free failed");
    }
    player->blocks[op->slot] = NULL;
    if (!is_out_of_memory(status))
        return xseg_failed(player, op, "allocation failed");
    /* Past the point where the programmes part, nobody knows what should be served. */
    if (op->failed || player->check.ended)
        return true;
    check_only_tape(&player->check);
    player->out->oom_at = (int64_t)player->out->events - 1;
    if (!player->settings->quiet)
        (void)xseg_failed(player, op, "out of memory");
    player->out->end = REPLAY_OUT_OF_MEMORY;
    return false;
}

/*
 * A wait while a capture is under way: for a stream that takes part it means to join.  A graph cannot
 * wait for what is outside of it, and outside nobody becomes busy.
 */
static bool join_capture(struct player *player, struct CUstream_st *stream,
                         struct CUstream_st *other)
{
    bool joins = false;

    return gpu_is_captured(player->gpu, other, &joins) &&
           (!joins || gpu_wait(player->gpu, stream, other));
}

/* The simulator charges the replay's own calls, too; they are not the allocator's. */
static uint64_t driver_time(const struct player *player)
{
    return player->is_simulated ? simulator.driver_time() : 0;
}

static bool wait_stream(struct player *player, const struct xtrace_op *op)
{
    struct CUstream_st *stream = player->streams[op->stream];
    struct CUstream_st *other = player->streams[op->other];
    const uint64_t before = driver_time(player);
    bool idle = true, fine;

    if (player->captures > 0)
        fine = join_capture(player, stream, other);
    else
        fine =
            gpu_idle(player->gpu, other, &idle) && (idle || gpu_wait(player->gpu, stream, other));
    player->own_ns += driver_time(player) - before;
    if (!fine)
        return fail(player, op, "the driver refused to let a stream wait", "");
    /* The stream that waits is busy until its own `y`, whatever becomes of the other. */
    return idle || !player->is_simulated || simulator.launch(stream, FOREVER) == XSEG_OK ||
           fail(player, op, "the simulator refused to queue work", "");
}

static bool queue_work(struct player *player, const struct xtrace_op *op, void *block)
{
    struct CUstream_st *stream = player->streams[op->stream];
    bool captured = true;

    /* By the format, what is queued while a capture is under way keeps no stream busy. */
    if (player->captures > 0 && !gpu_is_captured(player->gpu, stream, &captured))
        return fail(player, op, "the driver refused to say what is captured", "");
    if (!captured)
        return true;
    if (player->is_simulated)
        return simulator.launch(stream, FOREVER) == XSEG_OK ||
               fail(player, op, "the simulator refused to queue work", "");
    return !block || gpu_touch(player->gpu, stream, block, 1) ||
           fail(player, op, "the driver refused to queue work", "");
}

static bool use_block(struct player *player, const struct xtrace_op *op)
{
    void *block = player->blocks[op->slot];

    /* In the tapes a use during a capture adds nothing to the graph; `k` does. */
    if (player->captures == 0 && !queue_work(player, op, block))
        return false;
    return xseg_record_stream(player->allocator, block, player->streams[op->stream]) == XSEG_OK ||
           xseg_failed(player, op, "a use was refused");
}

/* While a capture is under way, a driver lets nobody wait for its streams, nor for all of the context. */
static bool finish_beside_capture(struct player *player, struct CUstream_st *stream)
{
    bool captured = false;

    return gpu_is_captured(player->gpu, stream, &captured) &&
           (captured || gpu_finish(player->gpu, stream));
}

static bool finish_on_driver(struct player *player, const struct xtrace_op *op)
{
    const bool all = op->kind == XTRACE_FINISH_ALL;
    bool fine = true;

    if (player->captures == 0)
        return all ? gpu_finish_all(player->gpu)
                   : gpu_finish(player->gpu, player->streams[op->stream]);
    if (!all)
        return finish_beside_capture(player, player->streams[op->stream]);
    for (uint32_t i = 0; i < player->trace->stream_count && fine; i++)
        fine = finish_beside_capture(player, player->streams[i]);
    return fine;
}

static bool finish(struct player *player, const struct xtrace_op *op)
{
    struct CUstream_st *stream = player->streams[op->stream];
    bool all = op->kind == XTRACE_FINISH_ALL;

    if (!player->is_simulated)
        return finish_on_driver(player, op) || fail(player, op, "the driver refused to wait", "");
    if (all)
        simulator.finish_all();
    else if (simulator.finish(stream) != XSEG_OK)
        return fail(player, op, "the simulator refused to finish work", "");
    return true;
}

static bool empty_cache(struct player *player, const struct xtrace_op *op)
{
    struct xseg_trim_options trim = {sizeof(trim)};

    trim.wait = true;
    return xseg_trim(player->allocator, NULL, &trim, NULL) == XSEG_OK ||
           xseg_failed(player, op, "cached memory could not be given back");
}

static bool is_stream(void *stream, xseg_stream other)
{
    return stream == (void *)other;
}

static bool begin_route(struct player *player, const struct xtrace_op *op)
{
    struct CUstream_st *stream = player->streams[op->stream];
    const bool is_capture = op->kind == XTRACE_CAPTURE_BEGIN;
    xseg_status status = get_pool(player, op->pool);

    if (status == XSEG_OK && is_capture)
        status = xseg_capture_begin(player->pools[op->pool], stream);
    else if (status == XSEG_OK)
        status = xseg_route_begin(player->pools[op->pool], is_stream, stream);
    if (status != XSEG_OK)
        return xseg_failed(player, op, "a pool could not be begun");
    player->routes[op->pool] =
        (struct player_route){is_capture ? PLAYER_ROUTE_CAPTURE : PLAYER_ROUTE_PLAIN, op->stream};
    player->captures += is_capture;
    return !is_capture || gpu_capture_begin(player->gpu, stream) ||
           fail(player, op, "the driver refused to capture", "");
}

/* The driver ends a capture only when every stream that joined has been waited for. */
static bool end_capture(struct player *player, struct CUstream_st *origin)
{
    const uint64_t before = driver_time(player);
    bool fine = true;

    for (uint32_t i = 0; i < player->trace->stream_count && fine; i++) {
        bool joined = false;

        fine = gpu_is_captured(player->gpu, player->streams[i], &joined) &&
               (!joined || player->streams[i] == origin ||
                gpu_wait(player->gpu, origin, player->streams[i]));
    }
    fine = gpu_capture_end(player->gpu, origin) && fine;
    player->own_ns += driver_time(player) - before;
    return fine;
}

bool player_end_route(struct player *player, uint16_t pool)
{
    const struct player_route route = player->routes[pool];
    bool fine = true;

    player->routes[pool].kind = PLAYER_ROUTE_NONE;
    if (route.kind == PLAYER_ROUTE_PLAIN)
        return xseg_route_end(player->pools[pool]) == XSEG_OK;
    if (route.kind == PLAYER_ROUTE_CAPTURE) {
        player->captures--;
        fine = end_capture(player, player->streams[route.stream]);
        fine = xseg_capture_end(player->pools[pool]) == XSEG_OK && fine;
    }
    return fine;
}

static bool release_pool(struct player *player, const struct xtrace_op *op)
{
    struct xseg_pool *pool = player->pools[op->pool];

    player->pools[op->pool] = NULL;
    return !pool || xseg_pool_release(pool) == XSEG_OK ||
           xseg_failed(player, op, "a pool could not be released");
}

/* Everything that is not an event. */
static bool play_other(struct player *player, const struct xtrace_op *op)
{
    switch (op->kind) {
    case XTRACE_USE:
        return use_block(player, op);
    case XTRACE_WORK:
        return queue_work(player, op, NULL);
    case XTRACE_FINISH:
    case XTRACE_FINISH_ALL:
        return finish(player, op);
    case XTRACE_WAIT:
        return wait_stream(player, op);
    case XTRACE_EMPTY:
        return empty_cache(player, op);
    case XTRACE_CAPTURE_BEGIN:
    case XTRACE_ROUTE_BEGIN:
        return begin_route(player, op);
    case XTRACE_CAPTURE_END:
    case XTRACE_ROUTE_END:
        return player_end_route(player, op->pool) ||
               xseg_failed(player, op, "a capture or a route could not be ended");
    case XTRACE_POOL_RELEASE:
        return release_pool(player, op);
    case XTRACE_CLOCK:
        return watch_move(&player->watch, op->value) ||
               xseg_failed(player, op, "the allocator could not be looked at");
    default:
        watch_mark(&player->watch);
        if (player->timeline.file)
            timeline_mark(&player->timeline, player->trace->labels + op->value);
        return journal_mark(&player->journal, player->trace->labels + op->value) ||
               xseg_failed(player, op, "the history refused a mark");
    }
}

static bool play_event(struct player *player, const struct xtrace_op *op)
{
    const bool judged = player->check.mode == CHECK_FLOOR;

    player->out->events++;
    if (op->kind == XTRACE_ALLOC) {
        xseg_status status = alloc_block(player, op);

        return (status == XSEG_OK && !op->failed && !judged) || settle(player, op, status);
    }
    if (xseg_free(player->allocator, player->blocks[op->slot]) != XSEG_OK)
        return xseg_failed(player, op, "free failed");
    player->blocks[op->slot] = NULL;
    return true;
}

static bool play(struct player *player, const struct xtrace_op *op)
{
    return op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE ? play_event(player, op)
                                                               : play_other(player, op);
}

/* Play an operation and measure it: the time that it takes here, and the time by the clock of the trace. */
static bool play_measured(struct player *player, const struct xtrace_op *op)
{
    const bool is_event = op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE;
    const bool is_watched = is_event && player->watch.is_on;
    uint64_t before = 0;
    bool going;

    if (op->kind == XTRACE_CLOCK || op->kind == XTRACE_MARK)
        return play_other(player, op);
    if (op->kind == XTRACE_EMPTY)
        watch_step_aside(&player->watch);
    if (is_watched)
        before = watch_now(&player->watch);
    stopwatch_start(&player->stopwatch);
    going = play(player, op);
    stopwatch_stop(&player->stopwatch);
    if (is_watched)
        watch_call(&player->watch, watch_now(&player->watch) - before);
    if (op->kind == XTRACE_EMPTY)
        watch_step_back(&player->watch);
    return going;
}

bool player_play(struct player *player, size_t from, size_t to)
{
    const struct xtrace_op *op = player->trace->ops + from;
    const struct xtrace_op *end = player->trace->ops + to;
    const bool is_measured = player->trace->has_clock;
    bool going = true;

    for (; op < end && going; op++)
        going = is_measured ? play_measured(player, op) : play(player, op);
    return going;
}
