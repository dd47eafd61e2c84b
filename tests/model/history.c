/* SPDX-License-Identifier: MIT */
/*
 * Random programs whose history is replayededed: from the start, and back from the end, it must give exactly the state
 * of xseg_for_each_block() at each checkpoint.
 *
 * Between checkpoints several threads allocate, free, use, trim and let memory decay, on streams and pools that they
 * share, while memory is short or not.  At checkpoints, when threads rest, one thread does what concerns a pool as a
 * whole: pause and resume, captures, checkpoints of pools, restores, streams that go and come.  Each checkpoint is a
 * text in the history, and the state as it was then.
 *
 * Programmes of a single thread are also asked what belongs to what: the hook numbers each step, and all events
 * between the texts of two steps must have its number.  The word of a request follows from its size, so that each event
 * of a block tells whether its word is the right one.
 *
 * A failure prints its seed.  By hand:
 *   XSEG_TEST_SEED=N XSEG_TEST_SEEDS=1 build-tests/tests/test-model-history
 *   XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=10000 ...
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "xseg/history.h"

#include "tests/model/driver.h"
#include "tests/model/replay.h"
#include "tests/support/history_list.h"
#include "tests/support/rng.h"
#include "tests/support/trim_due.h"

#define PLAYERS     4u
#define STREAMS     3u
#define HELD        60u /* blocks of a player */
#define POOLS       24u
#define CHECKPOINTS 24u

struct kind {
    const char *config;
    bool is_low_on_memory; /* of memory */
    bool has_clock;        /* the machine's clock, which may stand still for long */
    unsigned players;
};

struct run;

struct player {
    struct run *run;
    uint64_t random;
    unsigned steps;
    void *held[HELD];
    unsigned count;
    char failure[256]; /* what went wrong in its thread */
};

struct run {
    struct kind kind;
    struct xseg_allocator *allocator;
    xseg_stream stream[STREAMS];
    struct player player[PLAYERS];
    struct xseg_pool *pool[POOLS]; /* by their numbers, from 1 on */
    bool is_held[POOLS], is_own[POOLS];
    unsigned pools;
    unsigned paused, captured; /* number of such a pool; 0: none */
    struct xseg_checkpoint *saved;
    unsigned saved_pool;
    struct replay state[CHECKPOINTS];
    unsigned states;
    uint32_t step;  /* for the hook */
    bool has_words; /* each request has been with its word */
};

/* The current program, for reports. */
static uint64_t seed_played;
static unsigned checkpoint_played;

static uint64_t below(struct player *player, uint64_t bound)
{
    return (rng_next(&player->random) >> 16) % bound;
}

static void be_quiet(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

/* --- Steps that any thread takes.  A thread that is not the test's own must not jump out of itself. --- */

static void expect(struct player *player, bool is_good, const char *what, xseg_status status)
{
    char text[160] = "";

    if (is_good || player->failure[0] != '\0')
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)snprintf(player->failure, sizeof(player->failure), "%s: %s: %s", what,
                   xseg_status_name(status), text);
}

static size_t any_bytes(struct player *player)
{
    switch (below(player, 5)) {
    case 0:
        return 1 + below(player, 4096);
    case 1:
        return 1 + below(player, MIB);
    case 2:
        return 1 + below(player, 10 * MIB);
    case 3:
        return 1 + below(player, 30 * MIB);
    default:
        return (size_t)512 << below(player, 16);
    }
}

/* The number of a pool that is held, or 0. */
static unsigned any_pool(struct player *player)
{
    const struct run *run = player->run;
    const unsigned first = (unsigned)below(player, POOLS);

    for (unsigned i = 0; i < run->pools; i++)
        if (run->is_held[(first + i) % run->pools])
            return (first + i) % run->pools + 1;
    return 0;
}

/* The word of a request; some have none. */
static void *word_of(uint64_t requested)
{
    return requested % 4 == 0 ? NULL : (void *)(uintptr_t)(requested * 2 + 1);
}

static void step_alloc(struct player *player)
{
    struct run *run = player->run;
    struct xseg_request request = {sizeof(request)};
    const unsigned pool = below(player, 3) == 0 ? any_pool(player) : 0;
    void *ptr = NULL;

    if (player->count == HELD)
        return;
    request.device = below(player, 12) == 0;
    request.bytes = any_bytes(player);
    request.stream = request.device == 0 ? run->stream[below(player, STREAMS)] : NULL;
    request.pool = request.device == 0 && pool != 0 ? run->pool[pool - 1] : NULL;
    request.alignment = below(player, 10) == 0 ? (size_t)1 << below(player, 23) : 0;
    request.user = word_of(request.bytes);
    const xseg_status status = xseg_alloc_with(run->allocator, &request, &ptr);
    if (status == XSEG_OK)
        player->held[player->count++] = ptr;
    else
        expect(player,
               status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
                   status == XSEG_ERR_PAUSED || status == XSEG_ERR_ARGUMENT,
               "alloc", status);
}

static void step_free(struct player *player)
{
    if (player->count == 0)
        return;
    const unsigned at = (unsigned)below(player, player->count);
    const xseg_status status = xseg_free(player->run->allocator, player->held[at]);

    expect(player, status == XSEG_OK, "free", status);
    player->held[at] = player->held[--player->count];
}

/* Another stream uses a block, with work behind it or not; then it is freed, and may be pending. */
static void step_record_stream(struct player *player)
{
    struct run *run = player->run;
    const xseg_stream stream = run->stream[1 + below(player, STREAMS - 1)];

    if (player->count == 0)
        return;
    const unsigned at = (unsigned)below(player, player->count);
    struct xseg_block_info info = {sizeof(info)};
    xseg_status status = xseg_block_query(run->allocator, player->held[at], &info);
    expect(player, status == XSEG_OK, "block", status);
    if (info.device != 0)
        return;
    if (below(player, 2) == 0 && run->captured == 0)
        (void)xseg_sim_launch(stream, below(player, 2) == 0 ? UINT64_MAX : 1000);
    status = xseg_record_stream(run->allocator, player->held[at], stream);
    expect(player, status == XSEG_OK, "use", status);
    if (below(player, 2) == 0)
        return;
    status = xseg_free(run->allocator, player->held[at]);
    expect(player, status == XSEG_OK, "free", status);
    player->held[at] = player->held[--player->count];
}

static void step_trim(struct player *player)
{
    struct run *run = player->run;
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_options how = {sizeof(how)};
    const unsigned pool = below(player, 3) == 0 ? any_pool(player) : 0;

    how.wait = below(player, 4) == 0 && run->captured == 0;
    how.target_bytes = below(player, 3) == 0 ? below(player, 200) * MIB : 0;
    where.device = (int)below(player, 3) - 1;
    if (below(player, 3) == 0) {
        where.device = 0;
        where.one_stream = true;
        where.stream = run->stream[below(player, STREAMS)];
    }
    where.pool = pool != 0 && where.device != 1 ? run->pool[pool - 1] : NULL;
    const xseg_status status = xseg_trim(run->allocator, &where, &how, NULL);
    expect(player, status == XSEG_OK, "trim", status);
}

static void step_decay(struct player *player)
{
    xseg_sim_advance(below(player, 60) * 1000000);
    const xseg_status status = trim_due(player->run->allocator, 1 + below(player, 20000));

    expect(player, status == XSEG_OK, "tick", status);
}

static void step_prewarm(struct player *player)
{
    struct xseg_scope where = {sizeof(where), .device = 0, .one_stream = true};

    where.stream = player->run->stream[below(player, STREAMS)];
    const xseg_status status = xseg_prewarm(player->run->allocator, &where, any_bytes(player));
    expect(player, status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT,
           "prewarm", status);
}

static void step_configure(struct player *player)
{
    static const char *const configs[] = {
        "expandable_segments:True",
        "expandable_segments:False",
        "expandable_segments:False,max_split_size_mb:30",
        "guard_page:True",
        "guard_page:False",
        "unmap_on_free:True",
        "unmap_on_free:False",
        "idle_ms:20",
        "idle_ms:-1",
        "hard_limit_mb:150",
        "hard_limit_mb:100000",
        "page_cache_mb:40",
        "page_cache_mb:0",
        "graph_capture_record_stream_reuse:True",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:1",
        "history_stacks:none",
        "history_stacks:all",
    };
    /* The hook numbers steps only where stacks are taken. */
    const unsigned count = COUNT_OF(configs) - (player->run->kind.players == 1 ? 2 : 0);
    const xseg_status status =
        xseg_config_set(player->run->allocator, configs[below(player, count)]);

    expect(player, status == XSEG_OK, "configure", status);
}

static void step_label(struct player *player)
{
    static const char *const labels[] = {"forward", "backward", "optimizer", NULL};
    struct run *run = player->run;
    const xseg_status status =
        below(player, 2) == 0 ? xseg_history_label(run->allocator, labels[below(player, 4)], NULL)
                              : xseg_history_annotate(run->allocator, 0, labels[below(player, 3)]);

    expect(player, status == XSEG_OK, "label", status);
}

static void take_step(struct player *player)
{
    const uint64_t what = below(player, 100);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = player->steps++ / 60 % 2 == 0;

    if (what < (fills ? 55u : 30u))
        step_alloc(player);
    else if (what < 80)
        step_free(player);
    else if (what < 88)
        step_record_stream(player);
    else if (what < 91)
        xseg_sim_finish_all();
    else if (what < 94)
        step_trim(player);
    else if (what < 96)
        step_decay(player);
    else if (what < 97)
        step_prewarm(player);
    else if (what < 98)
        step_configure(player);
    else
        step_label(player);
}

/* --- Steps about pools and streams, while the players rest. --- */

static void *own_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    (void)self;
    (void)device;
    (void)stream;
    return driver_alloc(bytes);
}

static void own_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)self;
    (void)bytes;
    (void)device;
    (void)stream;
    driver_free(ptr);
}

static void step_pool(struct player *player)
{
    struct run *run = player->run;
    struct xseg_pool_options options = {sizeof(options)};

    if (run->pools == POOLS)
        return;
    options.no_split = below(player, 6) == 0;
    options.use_on_oom = below(player, 2) == 0;
    options.name = below(player, 2) == 0 ? "named" : NULL;
    run->is_own[run->pools] = below(player, 5) == 0;
    if (run->is_own[run->pools])
        options.memory = (struct xseg_pool_memory){own_alloc, own_free, run};
    assert_ok(xseg_pool_create(run->allocator, 0, &options, &run->pool[run->pools]));
    run->is_held[run->pools++] = true;
}

static void step_release(struct player *player)
{
    struct run *run = player->run;
    const unsigned pool = any_pool(player);

    if (pool == 0 || pool == run->captured)
        return;
    assert_ok(xseg_pool_release(run->pool[pool - 1]));
    run->is_held[pool - 1] = false;
    run->paused = run->paused == pool ? 0 : run->paused;
}

static struct CUgraph_st *end_capture(struct run *run)
{
    struct CUgraph_st *graph = env_capture_end_graph(run->pool[run->captured - 1], run->stream[1]);

    run->captured = 0;
    return graph;
}

/* Resume the paused pool; under memory pressure blocks of all players are freed. */
static void resume(struct player *player)
{
    struct run *run = player->run;

    if (run->captured != 0)
        env_graph_destroy(end_capture(run));
    xseg_status status = xseg_pool_resume(run->pool[run->paused - 1]);
    if (status != XSEG_OK && below(player, 3) != 0) {
        for (unsigned i = 0; i < PLAYERS; i++)
            while (run->player[i].count > 0)
                env_free(run->allocator, run->player[i].held[--run->player[i].count]);
        xseg_sim_finish_all();
        assert_ok(xseg_config_set(run->allocator, "hard_limit_mb:100000"));
        status = xseg_pool_resume(run->pool[run->paused - 1]);
    }
    assert_true(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    run->paused = status == XSEG_OK ? 0 : run->paused;
}

/* Pause the first pool that can be. */
static void step_pause(struct player *player)
{
    struct run *run = player->run;
    const enum xseg_keep keep = below(player, 3) == 0 ? XSEG_KEEP_HOST : XSEG_KEEP_NOTHING;

    if (run->paused != 0) {
        resume(player);
        return;
    }
    if (run->captured != 0)
        env_graph_destroy(end_capture(run));
    xseg_sim_finish_all();
    /* Pending memory blocks the call until it is polled. */
    assert_ok(xseg_trim(run->allocator, NULL, NULL, NULL));
    for (unsigned i = run->pools; i > 0 && run->paused == 0; i--) {
        if (!run->is_held[i - 1])
            continue;
        const xseg_status status = xseg_pool_pause(run->pool[i - 1], keep, NULL);
        assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED);
        run->paused = status == XSEG_OK ? i : 0;
    }
}

/* Frees in a capture of what other streams use wait for its end. */
static void step_capture(struct player *player)
{
    struct run *run = player->run;

    if (run->captured != 0) {
        env_graph_destroy(end_capture(run));
        return;
    }
    const unsigned pool = any_pool(player);
    if (pool == 0 || pool == run->paused)
        return;
    env_capture_begin(run->pool[pool - 1], run->stream[1]);
    run->captured = pool;
}

static void step_save(struct player *player)
{
    struct run *run = player->run;
    const unsigned pool = any_pool(player);
    struct xseg_checkpoint *checkpoint = NULL;

    if (pool == 0 || xseg_pool_checkpoint(run->pool[pool - 1], &checkpoint) != XSEG_OK)
        return;
    xseg_checkpoint_destroy(run->saved);
    run->saved = checkpoint;
    run->saved_pool = pool;
}

/* A block that a restore frees has no owner; one that it revives belongs to the first player. */
static void note_move(void *context, void *ptr, bool freed)
{
    struct run *run = context;
    struct player *first = &run->player[0];

    if (!freed) {
        assert_true(first->count < HELD);
        first->held[first->count++] = ptr;
        return;
    }
    for (unsigned i = 0; i < PLAYERS; i++)
        for (unsigned k = 0; k < run->player[i].count; k++)
            if (run->player[i].held[k] == ptr) {
                run->player[i].held[k] = run->player[i].held[--run->player[i].count];
                return;
            }
    fail_msg("%p was nobody's", ptr);
}

static void step_restore(struct player *player)
{
    struct run *run = player->run;

    if (run->saved == NULL || !run->is_held[run->saved_pool - 1])
        return;
    /* Space for revived blocks. */
    while (player->count > 0)
        env_free(run->allocator, player->held[--player->count]);
    const xseg_status status =
        xseg_pool_restore(run->pool[run->saved_pool - 1], run->saved, note_move, run);
    assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED);
}

/* A stream goes, and another one takes its place; its memory is that one's in time. */
static void step_retire(struct player *player)
{
    struct run *run = player->run;
    const unsigned at = 1 + (unsigned)below(player, STREAMS - 1);

    if (run->captured != 0)
        return;
    assert_ok(xseg_stream_retire(run->allocator, 0, run->stream[at]));
    driver_stream_destroy(run->stream[at]);
    run->stream[at] = driver_stream(false);
}

static void step_alone(struct player *player)
{
    static void (*const steps[])(struct player *) = {
        step_pool,    step_pool, step_release, step_pause,   step_pause,  step_capture,
        step_capture, step_save, step_restore, step_restore, step_retire,
    };

    steps[below(player, COUNT_OF(steps))](player);
}

/* --- Playing. --- */

static uint32_t gather(void *context)
{
    return ((const struct run *)context)->step;
}

/* From a text on everything is later than what came before, also by the machine's clock. */
static void write_text(struct run *run, const char *text)
{
    xseg_sim_advance(1);
    assert_ok(xseg_history_annotate(run->allocator, 0, text));
    xseg_sim_advance(1);
}

/* Write a snapshot for tests/model/snapshots.py, where that asks for it; some without their beginning. */
static void write_snapshot(struct run *run)
{
    static unsigned written;
    struct xseg_snapshot_options options = {sizeof(options)};
    const char *folder = getenv("XSEG_TEST_SNAPSHOTS");
    char path[512];

    if (folder == NULL)
        return;
    (void)snprintf(path, sizeof(path), "%s/%" PRIu64 "-%u.pickle", folder, seed_played, written);
    options.host_bytes = written % 4 == 1 ? 20000 : 0;
    options.max_ms = written % 4 == 3 ? 2 : 0;
    assert_ok(xseg_snapshot(run->allocator, path, &options));
    written++;
}

static void *play_thread(void *self)
{
    struct player *player = self;

    for (unsigned i = 0; i < 60; i++)
        take_step(player);
    return NULL;
}

/* The steps of one thread, each with its own number. */
static void play_alone(struct run *run)
{
    for (unsigned i = 0; i < 100; i++) {
        run->step++;
        write_text(run, "step");
        take_step(&run->player[0]);
    }
}

static void play_together(struct run *run)
{
    pthread_t thread[PLAYERS];

    for (unsigned i = 0; i < run->kind.players; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, play_thread, &run->player[i]), 0);
    write_snapshot(run);
    for (unsigned i = 0; i < run->kind.players; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

static void reach_checkpoint(struct run *run)
{
    for (unsigned i = 0; i < PLAYERS; i++)
        if (run->player[i].failure[0] != '\0')
            fail_msg("player %u: %s", i, run->player[i].failure);
    run->step++;
    write_text(run, "checkpoint");
    assert_true(run->states < CHECKPOINTS);
    run->state[run->states++] = replay_read(run->allocator, run->pool, run->pools);
    write_snapshot(run);
}

static void play(struct run *run)
{
    reach_checkpoint(run);
    for (unsigned i = 0; i < CHECKPOINTS - 3; i++) {
        checkpoint_played = i;
        run->step++;
        write_text(run, "step");
        step_alone(&run->player[0]);
        step_alone(&run->player[0]);
        if (run->kind.players == 1)
            play_alone(run);
        else
            play_together(run);
        if (i % 3 != 0)
            continue;
        reach_checkpoint(run);
    }
    reach_checkpoint(run);
}

static void wind_up(struct run *run)
{
    run->step++;
    write_text(run, "step");
    if (run->captured != 0)
        env_graph_destroy(end_capture(run));
    xseg_checkpoint_destroy(run->saved);
    xseg_sim_finish_all();
    if (run->paused != 0)
        resume(&run->player[0]);
    for (unsigned i = 0; i < PLAYERS; i++)
        while (run->player[i].count > 0)
            env_free(run->allocator, run->player[i].held[--run->player[i].count]);
    for (unsigned i = 0; i < run->pools; i++)
        if (run->is_held[i])
            assert_ok(xseg_pool_release(run->pool[i]));
    env_empty_cache(run->allocator);
    reach_checkpoint(run);
    const struct replay *last = &run->state[run->states - 1];
    assert_int_equal(last->blocks, 0);
    assert_int_equal(last->ranges, 0);
}

/* --- What the history says. --- */

static bool is_checkpoint(const struct xseg_history_entry *entry)
{
    return entry->action == XSEG_HISTORY_ANNOTATION && strcmp(entry->label, "checkpoint") == 0;
}

static void describe(const struct history_list *recorded, size_t at, const char *way,
                     const char *why)
{
    for (size_t i = at < 6 ? 0 : at - 6; i < recorded->count && i < at + 3; i++) {
        const struct xseg_history_entry *e = &recorded->entry[i];

        print_error("%s %zu %s base %p bytes %" PRIu64 " requested %" PRIu64 " pool %" PRIu32
                    "%s device %d stream %p order %" PRIu32 " time %" PRIu64 " %s\n",
                    i == at ? "->" : "  ", i, history_action_name(e->action), e->base, e->bytes,
                    e->requested, e->pool, e->is_fallback ? " lent" : "", e->device,
                    (void *)e->stream, e->order, e->time_ns, e->label == NULL ? "" : e->label);
    }
    fail_msg("%s: %s", way, why);
}

static void play_onwards(struct run *run, const struct history_list *recorded)
{
    struct replay replay = replay_copy(&run->state[0]);
    unsigned checkpoint = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        if (!replay_apply(&replay, &recorded->entry[i]))
            describe(recorded, i, "from the start", replay.why);
        if (is_checkpoint(&recorded->entry[i]) && !replay_equal(&replay, &run->state[checkpoint++]))
            describe(recorded, i, "at a checkpoint", replay.why);
    }
    assert_int_equal(checkpoint, run->states);
    replay_free(&replay);
}

static void play_backwards(struct run *run, const struct history_list *recorded)
{
    struct replay replay = replay_copy(&run->state[run->states - 1]);
    unsigned checkpoint = run->states;

    for (size_t i = recorded->count; i > 0; i--) {
        const struct xseg_history_entry *entry = &recorded->entry[i - 1];

        if (is_checkpoint(entry) && !replay_equal(&replay, &run->state[--checkpoint]))
            describe(recorded, i - 1, "at a checkpoint, backwards", replay.why);
        if (!replay_undo(&replay, entry))
            describe(recorded, i - 1, "back from the end", replay.why);
    }
    assert_int_equal(checkpoint, 0);
    replay_free(&replay);
}

/* The cause of what goes is replay_history by what goes; between them nothing of its device draws a number. */
static void expect_causes(const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i], *next = entry + 1;

        if (entry->action < XSEG_HISTORY_REMAP || entry->action > XSEG_HISTORY_TRIM)
            continue;
        while (next < recorded->entry + recorded->count &&
               (next->order == 0 || next->device != entry->device))
            next++;
        if (next == recorded->entry + recorded->count || next->base != entry->base ||
            next->bytes != entry->bytes || next->stream != entry->stream ||
            (next->action != XSEG_HISTORY_SEGMENT_UNMAP &&
             next->action != XSEG_HISTORY_SEGMENT_FREE))
            describe(recorded, i, "a cause", "what it goes with does not follow");
    }
}

/* Numbers rise; each event of a step has the step's number, and a stack. */
static void expect_marks(const struct run *run, const struct history_list *recorded)
{
    uint32_t order = 0, step = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];

        if (entry->order != 0 && entry->order <= order)
            describe(recorded, i, "numbers", "they do not rise");
        order = entry->order != 0 ? entry->order : order;
        if (run->kind.players != 1)
            continue;
        if (entry->action == XSEG_HISTORY_ANNOTATION && strcmp(entry->label, "step") == 0)
            step = entry->frames;
        else if (is_checkpoint(entry))
            step = entry->frames;
        if (entry->frames != step || entry->stack == 0)
            describe(recorded, i, "a step", "an event has the context of another call");
    }
}

/* Each event has the user value of its request.  The value may be missing if the request precedes block_user, or if
 * another thread changed a key of the history; a prewarm, which may fail as well, has none. */
static void expect_words(const struct run *run, const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];
        const bool has_request =
            entry->action <= XSEG_HISTORY_FREE_COMPLETED || entry->action == XSEG_HISTORY_OOM;
        void *word = has_request ? word_of(entry->requested) : NULL;

        const bool may_lack = !run->has_words || entry->action == XSEG_HISTORY_OOM;

        if (entry->user != word && (entry->user != NULL || !may_lack))
            describe(recorded, i, "a word", "it is that of another request");
    }
}

/* Totals of all programs, to detect a test without effect. */
static uint64_t tally[XSEG_HISTORY_ACTIONS], tally_lent, tally_words;

static void add_up(const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        tally[recorded->entry[i].action]++;
        tally_lent += recorded->entry[i].is_fallback;
        tally_words += recorded->entry[i].user != NULL;
    }
}

static void look_back(struct run *run)
{
    struct history_list recorded = history_read(run->allocator, -1);

    assert_int_equal(recorded.summary.lost, 0);
    assert_true(recorded.count > 0 && is_checkpoint(&recorded.entry[recorded.count - 1]));
    add_up(&recorded);
    expect_marks(run, &recorded);
    expect_words(run, &recorded);
    expect_causes(&recorded);
    play_onwards(run, &recorded);
    play_backwards(run, &recorded);
    free(recorded.entry);
}

/* --- Programs. --- */

/* Every second program that writes snapshots has short rings. */
static bool loses_events(uint64_t seed)
{
    return getenv("XSEG_TEST_SNAPSHOTS") != NULL && seed % 2 == 1;
}

static void open_world(struct run *run, const struct kind *kind, uint64_t seed)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    struct xseg_history_hook hook = {sizeof(hook)};

    memset(run, 0, sizeof(*run));
    run->kind = *kind;
    settings.devices = 2;
    settings.memory_bytes = kind->is_low_on_memory ? 240 * MIB : 16 * GIB;
    options.driver = env_driver();
    options.clock = kind->has_clock ? env_clock : NULL;
    options.log = be_quiet;
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_open(kind->config, &options, &run->allocator));
    driver_open();
    for (unsigned i = 1; i < STREAMS; i++)
        run->stream[i] = driver_stream(false);
    for (unsigned i = 0; i < PLAYERS; i++) {
        run->player[i].run = run;
        run->player[i].random = (seed * 64 + i) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    }
    hook.context = run;
    hook.gather = gather;
    assert_ok(xseg_history_set_hook(run->allocator, &hook));
    if (seed % 2 == 0)
        assert_ok(xseg_config_set(run->allocator, "block_user:True"));
    run->has_words = kind->players == 1 && (seed % 2 == 0 || seed % 3 != 0);
    /* Memory from before the history is in the first state. */
    if (seed % 3 == 0)
        for (unsigned i = 0; i < 100; i++)
            take_step(&run->player[0]);
    assert_ok(xseg_config_set(
        run->allocator, loses_events(seed)
                            ? "history:all,history_stacks:all,history_skip:[],history_events:40"
                            : "history:all,history_stacks:all,history_skip:[],"
                              "history_events:1000000,block_user:True"));
}

static void close_world(struct run *run)
{
    char text[1024];

    assert_ok(xseg_close(run->allocator));
    for (unsigned i = 1; i < STREAMS; i++)
        driver_stream_destroy(run->stream[i]);
    for (unsigned i = 0; i < run->states; i++)
        replay_free(&run->state[i]);
    if (xseg_sim_leaks(text, sizeof(text)) != 2)
        fail_msg("left behind: %s", text);
    driver_close();
}

static unsigned long by_environment(const char *name, unsigned long usual)
{
    const char *value = getenv(name);

    return value != NULL ? strtoul(value, NULL, 10) : usual;
}

static void note_programme(void)
{
    char text[128];

    (void)snprintf(text, sizeof(text),
                   "behind checkpoint %u of the programme XSEG_TEST_SEED=%llu XSEG_TEST_SEEDS=1\n",
                   checkpoint_played, (unsigned long long)seed_played);
    (void)!write(STDERR_FILENO, text, strlen(text));
}

/* The simulator and the audits end the process. */
static void report_abort(int number)
{
    (void)number;
    note_programme();
}

static int report_failure(void **state)
{
    (void)state;
    if (seed_played != 0)
        note_programme();
    seed_played = 0;
    return 0;
}

static void play_all(uint64_t first, const struct kind *kind)
{
    const uint64_t begin = by_environment("XSEG_TEST_SEED", first);
    const uint64_t seeds = by_environment("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 4 : 12);
    struct run *run = malloc(sizeof(*run));

    assert_non_null(run);
    memset(tally, 0, sizeof(tally));
    tally_lent = tally_words = 0;
    for (uint64_t seed = begin; seed < begin + seeds; seed++) {
        struct kind of_seed = *kind;

        seed_played = seed;
        of_seed.has_clock = kind->has_clock || seed % 2 == 0;
        open_world(run, &of_seed, seed);
        play(run);
        wind_up(run);
        if (!loses_events(seed))
            look_back(run);
        close_world(run);
    }
    seed_played = 0;
    free(run);
    for (unsigned i = 0; i < XSEG_HISTORY_ACTIONS; i++)
        print_message("# %s %llu\n", history_action_name((enum xseg_history_action)i),
                      (unsigned long long)tally[i]);
    print_message("# lent %llu, with words %llu\n", (unsigned long long)tally_lent,
                  (unsigned long long)tally_words);
    /* A few programs need not have every action: a paused pool comes back in one of several. */
    if (seeds < 12)
        return;
    /* Nobody shares the machine, so nobody asks or gives. */
    for (unsigned i = 0; i < XSEG_HISTORY_BUDGET_REQUEST; i++)
        assert_true(tally[i] >
                    (i == XSEG_HISTORY_PAUSE || i == XSEG_HISTORY_RESUME ? 0 : seeds / 4));
    assert_true(tally_lent > 0 || !kind->is_low_on_memory);
    assert_true(tally_words > tally[XSEG_HISTORY_ALLOC]);
}

static void alone_with_room(void **state)
{
    (void)state;
    play_all(1, &(struct kind){"idle_ms:100", false, true, 1});
}

static void alone_running_short(void **state)
{
    (void)state;
    play_all(1001, &(struct kind){"idle_ms:100,page_cache_mb:20", true, true, 1});
}

static void together_with_room(void **state)
{
    (void)state;
    play_all(2001, &(struct kind){"idle_ms:100", false, false, PLAYERS});
}

static void together_running_short(void **state)
{
    (void)state;
    play_all(3001, &(struct kind){"idle_ms:100", true, false, PLAYERS});
}

static void under_a_hard_limit(void **state)
{
    (void)state;
    play_all(4001, &(struct kind){"idle_ms:100,hard_limit_mb:300", false, false, 2});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(alone_with_room, report_failure),
        cmocka_unit_test_teardown(alone_running_short, report_failure),
        cmocka_unit_test_teardown(together_with_room, report_failure),
        cmocka_unit_test_teardown(together_running_short, report_failure),
        cmocka_unit_test_teardown(under_a_hard_limit, report_failure),
    };

    (void)signal(SIGABRT, report_abort);
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
