/* SPDX-License-Identifier: MIT */
/*
 * Random programs whose recorded history is replayed: forward from the first state, and backward from the last. Both
 * must give exactly the state of xseg_for_each_block() at each checkpoint.
 *
 * Between checkpoints several threads allocate, free, use, trim and let memory decay, on shared streams and pools, with
 * much memory or little. At checkpoints, while these threads are idle, one thread calls functions that concern a whole
 * pool: pause and resume, captures, checkpoints of pools, restores, retired streams. Each checkpoint is an annotation
 * in the history, with the state at that time.
 *
 * Programs of one thread also check what an event is attributed to: the hook numbers each step, and all events between
 * the annotations of two steps must have its number. The user value of a request follows from its size, so each event
 * of a block shows whether its user value is correct.
 *
 * By hand: XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=10000 build-tests/tests/test-model-history
 */
#include <inttypes.h>
#include <pthread.h>

#include "xseg/history.h"

#include "tests/model/replay.h"
#include "tests/support/driver.h"
#include "tests/support/history_list.h"
#include "tests/support/random_program.h"
#include "tests/support/trim_due.h"

#define PLAYERS     4u
#define STREAMS     3u
#define HELD        60u /* blocks of a player */
#define POOLS       24u
#define CHECKPOINTS 24u

struct kind {
    const char *config;
    bool is_low_on_memory;
    bool has_clock; /* the simulated clock, which only some steps advance */
    unsigned players;
};

struct run;

struct player {
    struct run *run;
    uint64_t random;
    unsigned steps;
    void *held[HELD];
    unsigned count;
    char failure[256]; /* the first failure in its thread */
};

struct run {
    struct kind kind;
    struct xseg_allocator *allocator;
    xseg_stream stream[STREAMS];
    struct player player[PLAYERS];
    struct xseg_pool *pool[POOLS]; /* by ID, from 1 on */
    bool is_held[POOLS], is_own[POOLS];
    unsigned pools;
    unsigned paused, captured; /* ID of the pool; 0: none */
    struct xseg_checkpoint *saved;
    unsigned saved_pool;
    struct replay state[CHECKPOINTS];
    unsigned states;
    uint32_t step;  /* for the hook */
    bool has_users; /* each request had its user value recorded */
};

static uint64_t below(struct player *player, uint64_t bound)
{
    return (rng_next(&player->random) >> 16) % bound;
}

/* --- Steps of any thread.  Only the main thread may leave a test by longjmp(). --- */

static void expect(struct player *player, bool holds, const char *message, xseg_status status)
{
    char text[160] = "";

    if (holds || player->failure[0] != '\0')
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)snprintf(player->failure, sizeof(player->failure), "%s: %s: %s", message,
                   xseg_status_name(status), text);
}

static size_t any_bytes(struct player *player)
{
    static const size_t most[] = {4 * KIB, MIB, 10 * MIB, 30 * MIB};
    const uint64_t kind = below(player, 5);

    return kind < COUNT_OF(most) ? 1 + below(player, most[kind]) : (size_t)512 << below(player, 16);
}

static unsigned any_pool(struct player *player)
{
    const struct run *run = player->run;
    const unsigned first = (unsigned)below(player, POOLS);

    for (unsigned i = 0; i < run->pools; i++)
        if (run->is_held[(first + i) % run->pools])
            return (first + i) % run->pools + 1;
    return 0;
}

/* The user value of a request; NULL for some sizes. */
static void *user_of(uint64_t requested)
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
    request.user = user_of(request.bytes);
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

/* Another stream uses a block, with queued work or without; then the block is freed, and may be pending. */
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
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_trim_options options = {sizeof(options)};
    const unsigned pool = below(player, 3) == 0 ? any_pool(player) : 0;

    options.wait = below(player, 4) == 0 && run->captured == 0;
    options.target_bytes = below(player, 3) == 0 ? below(player, 200) * MIB : 0;
    scope.device = (int)below(player, 3) - 1;
    if (below(player, 3) == 0) {
        scope.device = 0;
        scope.one_stream = true;
        scope.stream = run->stream[below(player, STREAMS)];
    }
    scope.pool = pool != 0 && scope.device != 1 ? run->pool[pool - 1] : NULL;
    const xseg_status status = xseg_trim(run->allocator, &scope, &options, NULL);
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
    const struct xseg_scope scope = {
        sizeof(scope),
        .device = 0,
        .one_stream = true,
        .stream = player->run->stream[below(player, STREAMS)],
    };
    const xseg_status status = xseg_prewarm(player->run->allocator, &scope, any_bytes(player));
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
        "device_free_min_mb:40",
        "device_free_min_mb:0",
        "page_cache_mb:40",
        "page_cache_mb:0",
        "graph_capture_record_stream_reuse:True",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:1",
        "history_stacks:none",
        "history_stacks:all",
    };
    /* The hook numbers the steps only while stacks are recorded, so programs of one thread leave out the last two. */
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
    const uint64_t action = below(player, 100);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = player->steps++ / 60 % 2 == 0;

    if (action < (fills ? 55u : 30u))
        step_alloc(player);
    else if (action < 80)
        step_free(player);
    else if (action < 88)
        step_record_stream(player);
    else if (action < 91)
        xseg_sim_finish_all();
    else if (action < 94)
        step_trim(player);
    else if (action < 96)
        step_decay(player);
    else if (action < 97)
        step_prewarm(player);
    else if (action < 98)
        step_configure(player);
    else
        step_label(player);
}

/* --- Steps about pools and streams, while the players are idle. --- */

static void *own_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    (void)self, (void)device, (void)stream;
    return driver_alloc(0, bytes);
}

static void own_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)self, (void)bytes, (void)device, (void)stream;
    driver_free(0, ptr);
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

/* Frees during a capture of blocks with uses by other streams are deferred to its end. */
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
static void move_block(void *context, void *ptr, bool freed)
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
    fail_msg("no player has %p", ptr);
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
        xseg_pool_restore(run->pool[run->saved_pool - 1], run->saved, move_block, run);
    assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED);
}

/* A stream is retired, and another one takes its slot and reuses its memory. */
static void step_retire(struct player *player)
{
    struct run *run = player->run;
    const unsigned at = 1 + (unsigned)below(player, STREAMS - 1);

    if (run->captured != 0)
        return;
    assert_ok(xseg_stream_retire(run->allocator, 0, run->stream[at]));
    driver_stream_destroy(0, run->stream[at]);
    run->stream[at] = driver_stream(0, false);
}

static void step_alone(struct player *player)
{
    static void (*const steps[])(struct player *) = {
        step_pool,    step_pool, step_release, step_pause,   step_pause,  step_capture,
        step_capture, step_save, step_restore, step_restore, step_retire,
    };

    steps[below(player, COUNT_OF(steps))](player);
}

/* --- Execution of programs. --- */

static uint32_t gather(void *context)
{
    return ((const struct run *)context)->step;
}

/* Events after an annotation are later than those before it, also by the simulated clock. */
static void write_text(struct run *run, const char *text)
{
    xseg_sim_advance(1);
    assert_ok(xseg_history_annotate(run->allocator, 0, text));
    xseg_sim_advance(1);
}

/* Write a snapshot for tests/model/snapshots.py if the variable is set; some of them are truncated. */
static void write_snapshot(struct run *run)
{
    static unsigned written;
    struct xseg_snapshot_options options = {sizeof(options)};
    const char *folder = getenv("XSEG_TEST_SNAPSHOTS");
    char path[512];

    if (folder == NULL)
        return;
    (void)snprintf(path, sizeof(path), "%s/%" PRIu64 "-%u.pickle", folder, program.seed, written);
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
        program.step = i;
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

static void end_run(struct run *run)
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

/* --- Checks of the history. --- */

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

static void play_forward(struct run *run, const struct history_list *recorded)
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

static void play_backward(struct run *run, const struct history_list *recorded)
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

/* The event of a cause is followed by its unmap event, with no sequence number of its device in between. */
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
            describe(recorded, i, "a cause", "its unmap event does not follow");
    }
}

/* Sequence numbers rise; each event of a step has the number of the step, and a stack. */
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
        if (entry->action == XSEG_HISTORY_ANNOTATION &&
            (strcmp(entry->label, "step") == 0 || is_checkpoint(entry)))
            step = entry->frames;
        if (entry->frames != step || entry->stack == 0)
            describe(recorded, i, "a step", "an event has the context of another call");
    }
}

/* Each event has the user value of its request.  The value may be missing if the request precedes block_user, or if
 * another thread changed a key of the history; a prewarm, which may fail as well, has none. */
static void expect_users(const struct run *run, const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];
        const bool has_request =
            entry->action <= XSEG_HISTORY_FREE_COMPLETED || entry->action == XSEG_HISTORY_OOM;
        const void *user = has_request ? user_of(entry->requested) : NULL;
        const bool may_lack = !run->has_users || entry->action == XSEG_HISTORY_OOM;

        if (entry->user != user && (entry->user != NULL || !may_lack))
            describe(recorded, i, "a user value", "it belongs to another request");
    }
}

/* Totals of all programs, to detect a test without effect. */
static uint64_t tally[XSEG_HISTORY_ACTIONS], tally_fallback, tally_users;

static void count_actions(const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        tally[recorded->entry[i].action]++;
        tally_fallback += recorded->entry[i].is_fallback;
        tally_users += recorded->entry[i].user != NULL;
    }
}

static void check_history(struct run *run)
{
    struct history_list recorded = history_read(run->allocator, -1);

    assert_int_equal(recorded.summary.lost, 0);
    assert_true(recorded.count > 0 && is_checkpoint(&recorded.entry[recorded.count - 1]));
    count_actions(&recorded);
    expect_marks(run, &recorded);
    expect_users(run, &recorded);
    expect_causes(&recorded);
    play_forward(run, &recorded);
    play_backward(run, &recorded);
    free(recorded.entry);
}

/* --- Programs. --- */

/* Every second program that writes snapshots has short rings. */
static bool loses_events(uint64_t seed)
{
    return getenv("XSEG_TEST_SNAPSHOTS") != NULL && seed % 2 == 1;
}

static struct xseg_allocator *open_with_real_clock(const struct xseg_sim_settings *settings,
                                                   const char *config)
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .log = env_no_log};
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_sim_reset(settings));
    assert_ok(xseg_open(config, &options, &allocator));
    return allocator;
}

static void open_world(struct run *run, const struct kind *kind, uint64_t seed)
{
    const struct xseg_sim_settings settings = {
        sizeof(settings),
        .devices = 2,
        .memory_bytes = kind->is_low_on_memory ? 240 * MIB : 16 * GIB,
    };
    const struct xseg_history_hook hook = {sizeof(hook), .context = run, .gather = gather};

    memset(run, 0, sizeof(*run));
    run->kind = *kind;
    run->allocator =
        (kind->has_clock ? env_open_quietly : open_with_real_clock)(&settings, kind->config);
    driver_open(2, NULL);
    for (unsigned i = 1; i < STREAMS; i++)
        run->stream[i] = driver_stream(0, false);
    for (unsigned i = 0; i < PLAYERS; i++) {
        run->player[i].run = run;
        run->player[i].random = program_random(seed * 64 + i);
    }
    assert_ok(xseg_history_set_hook(run->allocator, &hook));
    if (seed % 2 == 0)
        assert_ok(xseg_config_set(run->allocator, "block_user:True"));
    run->has_users = kind->players == 1 && (seed % 2 == 0 || seed % 3 != 0);
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
        driver_stream_destroy(0, run->stream[i]);
    for (unsigned i = 0; i < run->states; i++)
        replay_free(&run->state[i]);
    if (xseg_sim_leaks(text, sizeof(text)) != 2)
        fail_msg("leaked: %s", text);
    driver_close();
}

static void play_all(uint64_t first, const struct kind *kind)
{
    const uint64_t begin = program_number("XSEG_TEST_SEED", first);
    const uint64_t seeds = program_number("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 4 : 12);
    struct run *run = malloc(sizeof(*run));

    assert_non_null(run);
    memset(tally, 0, sizeof(tally));
    tally_fallback = tally_users = 0;
    for (uint64_t seed = begin; seed < begin + seeds; seed++) {
        struct kind of_seed = *kind;

        program.seed = seed;
        of_seed.has_clock = kind->has_clock || seed % 2 == 0;
        open_world(run, &of_seed, seed);
        play(run);
        end_run(run);
        if (!loses_events(seed))
            check_history(run);
        close_world(run);
    }
    program.seed = 0;
    free(run);
    for (unsigned i = 0; i < XSEG_HISTORY_ACTIONS; i++)
        print_message("# %s %" PRIu64 "\n", history_action_name((enum xseg_history_action)i),
                      tally[i]);
    print_message("# fallback %" PRIu64 ", with user values %" PRIu64 "\n", tally_fallback,
                  tally_users);
    /* In a few programs some actions may be missing: not every program resumes a pool. */
    if (seeds < 12)
        return;
    /* No process shares the device, so there are no requests to others. */
    for (unsigned i = 0; i < XSEG_HISTORY_BUDGET_REQUEST; i++)
        assert_true(tally[i] >
                    (i == XSEG_HISTORY_PAUSE || i == XSEG_HISTORY_RESUME ? 0 : seeds / 4));
    assert_true(tally_fallback > 0 || !kind->is_low_on_memory);
    assert_true(tally_users > tally[XSEG_HISTORY_ALLOC]);
}

TEST_PROGRAM(history_of_one_thread_replays)
{
    play_all(1, &(struct kind){"idle_ms:100", false, true, 1});
}

TEST_PROGRAM(history_of_one_thread_with_little_memory_replays)
{
    play_all(1001, &(struct kind){"idle_ms:100,page_cache_mb:20", true, true, 1});
}

TEST_PROGRAM(history_of_threads_replays)
{
    play_all(2001, &(struct kind){"idle_ms:100", false, false, PLAYERS});
}

TEST_PROGRAM(history_of_threads_with_little_memory_replays)
{
    play_all(3001, &(struct kind){"idle_ms:100", true, false, PLAYERS});
}

TEST_PROGRAM(history_under_a_hard_limit_replays)
{
    play_all(4001, &(struct kind){"idle_ms:100,hard_limit_mb:300", false, false, 2});
}
