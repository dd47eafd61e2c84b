/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/complain.h"
#include "src/tools/output/progress.h"
#include "src/tools/replay/player.h"
#include "src/tools/replay/simulator.h"

#define PROGRESS_SLICE ((size_t)1 << 15) /* operations between two looks at the bar */

static void say(const struct player *player, const char *what)
{
    char detail[2048] = "";

    (void)xseg_error_message(detail, sizeof(detail));
    complain("%s: %s%s%s", player->settings->file, what, detail[0] ? ": " : "", detail);
}

/* Up to the host bytes, for which the kernel would be asked after each step. */
static bool read_stats(struct player *player, struct xseg_statistics *stats)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    memset(stats, 0, sizeof(*stats));
    stats->struct_size = offsetof(struct xseg_statistics, host_bytes);
    if (xseg_stats_get(player->allocator, &where, stats) == XSEG_OK)
        return true;
    say(player, "the statistics cannot be read");
    player->out->end = REPLAY_MISMATCH;
    return false;
}

/* What is looked at between two slices. */
static bool look(struct player *player, size_t done)
{
    const struct xtrace_op *op = done > 0 ? &player->trace->ops[done - 1] : NULL;
    bool event = op && (op->kind == XTRACE_ALLOC || op->kind == XTRACE_FREE);
    bool sample = player->timeline.file && !player->timeline.has_clock && event;
    struct xseg_statistics stats;

    if (!sample && check_until(&player->check) != done)
        return true;
    if (!read_stats(player, &stats))
        return false;
    check_answers(&player->check, done, &stats);
    if (sample)
        timeline_add(&player->timeline, &stats);
    return true;
}

/* What the last operation has led to; also of the one at which the replay ends. */
static bool write_history(struct player *player, size_t done)
{
    if (journal_write(&player->journal, player->trace->ops[done - 1].line))
        return true;
    say(player, "the history cannot be read");
    player->out->end = REPLAY_MISMATCH;
    return false;
}

/* Where the next slice ends: where something is to be looked at. */
static size_t end_of_slice(const struct player *player, size_t done)
{
    size_t to = check_until(&player->check);

    if (to > player->trace->op_count)
        to = player->trace->op_count;
    if (player->settings->progress && to > done + PROGRESS_SLICE)
        to = done + PROGRESS_SLICE;
    if ((player->timeline.file && !player->timeline.has_clock) || player->journal.file)
        to = done + 1;
    return to;
}

/* What is measured is a slice; with a clock, which has much to do between operations, each operation. */
static bool play_slice(struct player *player, size_t from, size_t to)
{
    bool going;

    if (player->trace->has_clock)
        return player_play(player, from, to);
    stopwatch_start(&player->stopwatch);
    going = player_play(player, from, to);
    stopwatch_stop(&player->stopwatch);
    return going;
}

static void play_all(struct player *player)
{
    size_t done = 0;
    bool going = look(player, 0);

    stopwatch_init(&player->stopwatch);
    if (player->settings->progress)
        progress_begin(player->settings->file);
    while (going && done < player->trace->op_count) {
        const size_t to = end_of_slice(player, done);

        going = play_slice(player, done, to);
        done = to;
        if (going)
            going = look(player, done);
        going = write_history(player, done) && going;
        progress_update(done, player->trace->op_count);
    }
    progress_end();
    if (player->out->events > 0)
        player->out->ns_per_event =
            stopwatch_read(&player->stopwatch) / (double)player->out->events;
}

static void log_nothing(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static struct xseg_driver_call *read_calls(struct player *player, size_t *count)
{
    struct xseg_driver_call *calls;

    if (xseg_driver_calls(player->allocator, NULL, 0, count) != XSEG_OK)
        return NULL;
    calls = calloc(*count + 1, sizeof(*calls));
    if (calls && xseg_driver_calls(player->allocator, calls, *count, NULL) != XSEG_OK) {
        free(calls);
        return NULL;
    }
    return calls;
}

static bool set_scene(struct player *player)
{
    struct xseg_sim_settings scene = {sizeof(scene)};
    char why[512];

    if (!simulator_open())
        return false;
    scene.memory_bytes = player->settings->device_bytes;
    scene.costs = player->settings->costs;
    scene.address_order = player->trace->address_order;
    /* What is compared is played strictly; what is timed, without the simulator's own checks. */
    scene.skip_checks = player->settings->check == CHECK_OFF;
    if (simulator.reset(&scene) == XSEG_OK)
        return true;
    (void)simulator.error_message(why, sizeof(why));
    complain("%s: the simulator has no such machine: %s", player->settings->file, why);
    return false;
}

/* Streams are made in the order of their names, as the programme made them; which one is next? */
static uint32_t next_stream(const struct player *player)
{
    const struct xtrace *trace = player->trace;
    uint32_t next = 0;

    for (uint32_t i = 1; i < trace->stream_count; i++)
        if (!player->streams[i] && (next == 0 || trace->stream_name[i] < trace->stream_name[next]))
            next = i;
    return next;
}

static bool make_streams(struct player *player)
{
    const struct xtrace *trace = player->trace;
    char problem[256];

    player->streams = calloc(trace->stream_count, sizeof(struct CUstream_st *));
    player->pools = calloc(trace->pool_count, sizeof(struct xseg_pool *));
    player->blocks = calloc((size_t)trace->slot_count + 1, sizeof(void *));
    player->routes = calloc(trace->pool_count, sizeof(*player->routes));
    player->bases = calloc((size_t)trace->place_count + 1, sizeof(*player->bases));
    check_places(&player->check, player->blocks, player->bases);
    if (!watch_init(&player->watch, trace, player->is_simulated, player->settings->tick_ms,
                    &player->timeline, &player->stopwatch) ||
        !player->streams || !player->pools || !player->blocks || !player->routes ||
        !player->bases ||
        !journal_init(&player->journal, player->settings->history, trace, player->streams,
                      &player->watch)) {
        complain("%s: no host memory is left", player->settings->file);
        return false;
    }
    player->gpu = gpu_open(player->settings->driver, problem, sizeof(problem));
    if (!player->gpu) {
        complain("%s: %s", player->settings->file, problem);
        return false;
    }
    for (uint32_t i = 1; i < trace->stream_count; i++)
        if (!gpu_stream(player->gpu, &player->streams[next_stream(player)])) {
            complain("%s: the driver made only %" PRIu32 " of %" PRIu32 " streams",
                     player->settings->file, i - 1, trace->stream_count - 1);
            return false;
        }
    return true;
}

static bool open_allocator(struct player *player)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_statistics stats;
    size_t count;

    options.driver = gpu_library(player->settings->driver);
    options.log = player->settings->quiet ? log_nothing : NULL;
    options.clock = player->is_simulated || player->trace->has_clock ? watch_now : NULL;
    options.clock_context = &player->watch;
    if (xseg_open(player->settings->config, &options, &player->allocator) != XSEG_OK) {
        char what[256];

        (void)snprintf(what, sizeof(what), "no allocator can be opened with the configuration '%s'",
                       player->settings->config);
        say(player, what);
        return false;
    }
    if ((player->trace->has_clock || player->journal.file) &&
        xseg_config_set(player->allocator, "background_thread:False") != XSEG_OK) {
        say(player, "the background thread cannot be ended");
        return false;
    }
    /* What a file or the environment says of snapshots was meant for the programme. */
    if (xseg_config_set(player->allocator, "oom_snapshot:none") != XSEG_OK) {
        say(player, "snapshots of refused requests cannot be switched off");
        return false;
    }
    /* Opens the device, so that its trial of the driver is over. */
    if (!read_stats(player, &stats))
        return false;
    watch_allocator(&player->watch, player->allocator);
    if (!journal_begin(&player->journal, player->allocator, player->settings->config)) {
        say(player, "the history cannot be switched on");
        return false;
    }
    player->calls_before = read_calls(player, &count);
    if (!player->calls_before) {
        say(player, "the driver calls cannot be counted");
        return false;
    }
    if (player->is_simulated)
        player->driver_ns_before = simulator.driver_time();
    return true;
}

static void collect(struct player *player)
{
    struct replay_result *out = player->out;
    struct xseg_statistics stats;

    if (player->is_simulated)
        out->driver_ns = simulator.driver_time() - player->driver_ns_before - player->own_ns;
    out->has_driver_time = player->is_simulated;
    out->calls = read_calls(player, &out->call_count);
    if (!out->calls) {
        say(player, "the driver calls cannot be counted");
        out->call_count = 0;
        out->end = REPLAY_MISMATCH;
    }
    for (size_t i = 0; i < out->call_count; i++)
        out->calls[i].count -= player->calls_before[i].count;
    if (!read_stats(player, &stats))
        return;
    out->peak_requested = stats.requested_bytes[0].peak;
    out->peak_allocated = stats.allocated_bytes[0].peak;
    out->peak_active = stats.active_bytes[0].peak;
    out->peak_reserved = stats.reserved_bytes[0].peak;
    out->end_reserved = stats.reserved_bytes[0].current;
    watch_read(&player->watch, &out->watch);
    if (player->settings->explain &&
        !explained_take(&out->explained, player->allocator, player->trace, player->streams)) {
        say(player, "the allocator does not explain itself");
        out->end = REPLAY_MISMATCH;
    }
}

static void judge(struct player *player)
{
    struct replay_result *out = player->out;
    struct check *check = &player->check;

    check_fini(check);
    out->was_checked = check->mode != CHECK_OFF;
    out->checked = check->steps;
    out->mismatches = check->mismatches;
    out->check_end_line = check->ended_line;
    if (out->end == REPLAY_DONE && check->mismatches > 0)
        out->end = REPLAY_MISMATCH;
    if (!timeline_fini(&player->timeline))
        out->end = REPLAY_REFUSED;
}

/* End the journal; also where nothing was replayed.  The command reports a failed write when it closes the file. */
static void end_history(struct player *player)
{
    int error = 0;

    if (journal_fini(&player->journal, &error))
        return;
    if (error == ENOMEM)
        complain("%s: out of host memory for the history", player->settings->file);
    player->out->end = REPLAY_REFUSED;
}

/* Give everything back.  Returns whether all of it was taken. */
static bool clear_up(struct player *player)
{
    bool fine = true;
    char left[1024];

    for (uint32_t i = 1; player->allocator && i < player->trace->pool_count; i++)
        fine &= player_end_route(player, (uint16_t)i);
    for (uint32_t i = 0; player->allocator && i < player->trace->slot_count; i++)
        fine &= xseg_free(player->allocator, player->blocks[i]) == XSEG_OK;
    for (uint32_t i = 1; player->allocator && i < player->trace->pool_count; i++)
        fine &= !player->pools[i] || xseg_pool_release(player->pools[i]) == XSEG_OK;
    if (!fine)
        say(player, "not everything could be freed at the end");
    if (player->allocator && xseg_close(player->allocator) != XSEG_OK) {
        say(player, "the allocator cannot be closed");
        fine = false;
    }
    gpu_close(player->gpu);
    if (player->is_simulated && simulator.leaks(left, sizeof(left)) > 0) {
        complain("%s: left over at the end:", player->settings->file);
        complain_lines(left);
        fine = false;
    }
    watch_fini(&player->watch);
    free(player->routes);
    free(player->bases);
    free(player->streams);
    free(player->pools);
    free(player->blocks);
    free(player->calls_before);
    return fine;
}

void replay_run(const struct xtrace *trace, const struct replay_settings *settings,
                struct replay_result *out)
{
    struct player player = {.trace = trace, .settings = settings, .out = out};

    *out = (struct replay_result){.end = REPLAY_DONE, .oom_at = -1};
    player.is_simulated = settings->driver == GPU_SIMULATED;
    if (player.is_simulated && !set_scene(&player)) {
        out->end = REPLAY_REFUSED;
        return;
    }
    check_init(&player.check, settings->check, settings->file, trace);
    timeline_init(&player.timeline, settings->timeline, trace);
    if (make_streams(&player) && open_allocator(&player)) {
        play_all(&player);
        collect(&player);
        judge(&player);
    } else {
        out->end = REPLAY_REFUSED;
    }
    end_history(&player);
    if (!clear_up(&player) && out->end == REPLAY_DONE)
        out->end = REPLAY_MISMATCH;
}

void replay_result_fini(struct replay_result *result)
{
    free(result->calls);
    result->calls = NULL;
    result->call_count = 0;
}
