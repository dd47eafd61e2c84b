/* SPDX-License-Identifier: MIT */
/*
 * Random programs whose recorded history is replayed: forward from the first recorded state, and backward from the last
 * one.  Both must give exactly each recorded state, which is that of xseg_for_each_block().  An annotation in the history
 * marks each recorded state.
 *
 * Several threads allocate, free, use, trim and let memory decay, on shared streams and pools, with much memory or little.
 * In between, while these threads are idle, one thread calls functions that concern a whole pool or stream: pause and
 * resume, captures, checkpoints, restores, retirements; and states are recorded.
 *
 * Programs of one thread also check the attribution of events: the hook returns the number of the step, and all events
 * between the annotations of two steps must have the number of the first one.  The user value of a request is a function of
 * its size, so each event of a block shows whether its user value is correct.
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

#define WORKERS    4u
#define STREAMS    3u
#define BLOCKS     60u /* of a worker */
#define POOLS      24u
#define STATES_MAX 24u

/* A kind of program. */
struct kind {
    const char *config;
    bool is_low_on_memory;
    bool has_clock; /* use the simulated clock, which only some steps advance */
    unsigned threads;
};

struct run;

struct worker {
    struct run *run;
    uint64_t random;
    unsigned steps;
    void *block[BLOCKS];
    unsigned count;
    char failure[256]; /* the first failure in the thread of the worker; "": none */
};

struct run {
    struct kind kind;
    struct xseg_allocator *allocator;
    xseg_stream stream[STREAMS];
    struct worker worker[WORKERS];
    struct xseg_pool *pool[POOLS]; /* index: ID - 1 */
    bool is_retained[POOLS], has_memory_functions[POOLS];
    unsigned pools;
    unsigned paused_pool, captured_pool; /* ID; 0: none */
    struct xseg_checkpoint *checkpoint;
    unsigned checkpoint_pool;
    struct replay state[STATES_MAX];
    unsigned states;
    uint32_t step;  /* number of the step, which the hook returns */
    bool has_users; /* block_user was set at each request */
};

static uint64_t below(struct worker *worker, uint64_t bound)
{
    return (rng_next(&worker->random) >> 16) % bound;
}

/* --- Steps of any thread.  Only the main thread may leave a test by longjmp(). --- */

static void check(struct worker *worker, bool holds, const char *message, xseg_status status)
{
    char text[160] = "";

    if (holds || worker->failure[0] != '\0')
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)snprintf(worker->failure, sizeof(worker->failure), "%s: %s: %s", message,
                   xseg_status_name(status), text);
}

static size_t random_bytes(struct worker *worker)
{
    static const size_t max_bytes[] = {4 * KIB, MIB, 10 * MIB, 30 * MIB};
    const uint64_t kind = below(worker, 5);

    return kind < COUNT_OF(max_bytes) ? 1 + below(worker, max_bytes[kind])
                                      : (size_t)512 << below(worker, 16);
}

static unsigned any_pool(struct worker *worker)
{
    const struct run *run = worker->run;
    const unsigned first = (unsigned)below(worker, POOLS);

    for (unsigned i = 0; i < run->pools; i++)
        if (run->is_retained[(first + i) % run->pools])
            return (first + i) % run->pools + 1;
    return 0;
}

/* The user value of a request; NULL for some sizes. */
static void *user_of(uint64_t requested)
{
    return requested % 4 == 0 ? NULL : (void *)(uintptr_t)(requested * 2 + 1);
}

static void step_alloc(struct worker *worker)
{
    struct run *run = worker->run;
    struct xseg_request request = {sizeof(request)};
    const unsigned pool = below(worker, 3) == 0 ? any_pool(worker) : 0;
    void *ptr = NULL;

    if (worker->count == BLOCKS)
        return;
    request.device = below(worker, 12) == 0;
    request.bytes = random_bytes(worker);
    request.stream = request.device == 0 ? run->stream[below(worker, STREAMS)] : NULL;
    request.pool = request.device == 0 && pool != 0 ? run->pool[pool - 1] : NULL;
    request.alignment = below(worker, 10) == 0 ? (size_t)1 << below(worker, 23) : 0;
    request.user = user_of(request.bytes);
    const xseg_status status = xseg_alloc_with(run->allocator, &request, &ptr);
    if (status == XSEG_OK)
        worker->block[worker->count++] = ptr;
    else
        check(worker,
              status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
                  status == XSEG_ERR_PAUSED || status == XSEG_ERR_ARGUMENT,
              "alloc", status);
}

static void step_free(struct worker *worker)
{
    if (worker->count == 0)
        return;
    const unsigned index = (unsigned)below(worker, worker->count);
    const xseg_status status = xseg_free(worker->run->allocator, worker->block[index]);

    check(worker, status == XSEG_OK, "free", status);
    worker->block[index] = worker->block[--worker->count];
}

/* Record a use of another stream, with queued work or without, and free the block or not. */
static void step_record_stream(struct worker *worker)
{
    struct run *run = worker->run;
    const xseg_stream stream = run->stream[1 + below(worker, STREAMS - 1)];

    if (worker->count == 0)
        return;
    const unsigned index = (unsigned)below(worker, worker->count);
    struct xseg_block_info info = {sizeof(info)};
    xseg_status status = xseg_block_query(run->allocator, worker->block[index], &info);
    check(worker, status == XSEG_OK, "block", status);
    if (info.device != 0)
        return;
    if (below(worker, 2) == 0 && run->captured_pool == 0)
        (void)xseg_sim_launch(stream, below(worker, 2) == 0 ? UINT64_MAX : 1000);
    status = xseg_record_stream(run->allocator, worker->block[index], stream);
    check(worker, status == XSEG_OK, "use", status);
    if (below(worker, 2) == 0)
        return;
    status = xseg_free(run->allocator, worker->block[index]);
    check(worker, status == XSEG_OK, "free", status);
    worker->block[index] = worker->block[--worker->count];
}

static void step_trim(struct worker *worker)
{
    struct run *run = worker->run;
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_trim_options options = {sizeof(options)};
    const unsigned pool = below(worker, 3) == 0 ? any_pool(worker) : 0;

    options.wait = below(worker, 4) == 0 && run->captured_pool == 0;
    options.target_bytes = below(worker, 3) == 0 ? below(worker, 200) * MIB : 0;
    scope.device = (int)below(worker, 3) - 1;
    if (below(worker, 3) == 0) {
        scope.device = 0;
        scope.one_stream = true;
        scope.stream = run->stream[below(worker, STREAMS)];
    }
    scope.pool = pool != 0 && scope.device != 1 ? run->pool[pool - 1] : NULL;
    const xseg_status status = xseg_trim(run->allocator, &scope, &options, NULL);
    check(worker, status == XSEG_OK, "trim", status);
}

static void step_decay(struct worker *worker)
{
    xseg_sim_advance(below(worker, 60) * 1000000);
    const xseg_status status = trim_due(worker->run->allocator, 1 + below(worker, 20000));

    check(worker, status == XSEG_OK, "tick", status);
}

static void step_prewarm(struct worker *worker)
{
    const struct xseg_scope scope = {
        sizeof(scope),
        .device = 0,
        .one_stream = true,
        .stream = worker->run->stream[below(worker, STREAMS)],
    };
    const xseg_status status = xseg_prewarm(worker->run->allocator, &scope, random_bytes(worker));
    check(worker, status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT,
          "prewarm", status);
}

static void step_configure(struct worker *worker)
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
    /* The hook is called only while stacks are recorded, so programs of one thread do not change history_stacks. */
    const unsigned count = COUNT_OF(configs) - (worker->run->kind.threads == 1 ? 2 : 0);
    const xseg_status status =
        xseg_config_set(worker->run->allocator, configs[below(worker, count)]);

    check(worker, status == XSEG_OK, "configure", status);
}

static void step_label(struct worker *worker)
{
    static const char *const labels[] = {"forward", "backward", "optimizer", NULL};
    struct run *run = worker->run;
    const xseg_status status =
        below(worker, 2) == 0 ? xseg_history_label(run->allocator, labels[below(worker, 4)], NULL)
                              : xseg_history_annotate(run->allocator, 0, labels[below(worker, 3)]);

    check(worker, status == XSEG_OK, "label", status);
}

static void take_step(struct worker *worker)
{
    const uint64_t action = below(worker, 100);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = worker->steps++ / 60 % 2 == 0;

    if (action < (fills ? 55u : 30u))
        step_alloc(worker);
    else if (action < 80)
        step_free(worker);
    else if (action < 88)
        step_record_stream(worker);
    else if (action < 91)
        xseg_sim_finish_all();
    else if (action < 94)
        step_trim(worker);
    else if (action < 96)
        step_decay(worker);
    else if (action < 97)
        step_prewarm(worker);
    else if (action < 98)
        step_configure(worker);
    else
        step_label(worker);
}

/* --- Steps about pools and streams, while the threads are idle. --- */

static void *custom_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    (void)self, (void)device, (void)stream;
    return driver_alloc(0, bytes);
}

static void custom_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)self, (void)bytes, (void)device, (void)stream;
    driver_free(0, ptr);
}

static void step_pool(struct worker *worker)
{
    struct run *run = worker->run;
    struct xseg_pool_options options = {sizeof(options)};

    if (run->pools == POOLS)
        return;
    options.no_split = below(worker, 6) == 0;
    options.use_on_oom = below(worker, 2) == 0;
    options.name = below(worker, 2) == 0 ? "named" : NULL;
    run->has_memory_functions[run->pools] = below(worker, 5) == 0;
    if (run->has_memory_functions[run->pools])
        options.memory = (struct xseg_pool_memory){custom_alloc, custom_free, run};
    assert_ok(xseg_pool_create(run->allocator, 0, &options, &run->pool[run->pools]));
    run->is_retained[run->pools++] = true;
}

static void step_release(struct worker *worker)
{
    struct run *run = worker->run;
    const unsigned pool = any_pool(worker);

    if (pool == 0 || pool == run->captured_pool)
        return;
    assert_ok(xseg_pool_release(run->pool[pool - 1]));
    run->is_retained[pool - 1] = false;
    run->paused_pool = run->paused_pool == pool ? 0 : run->paused_pool;
}

static struct CUgraph_st *end_capture(struct run *run)
{
    struct CUgraph_st *graph =
        env_capture_end_graph(run->pool[run->captured_pool - 1], run->stream[1]);

    run->captured_pool = 0;
    return graph;
}

/* Resume the paused pool.  If that fails, free the blocks of all workers, and retry in two of three cases. */
static void resume_pool(struct worker *worker)
{
    struct run *run = worker->run;

    if (run->captured_pool != 0)
        env_graph_destroy(end_capture(run));
    xseg_status status = xseg_pool_resume(run->pool[run->paused_pool - 1]);
    if (status != XSEG_OK && below(worker, 3) != 0) {
        for (unsigned i = 0; i < WORKERS; i++)
            while (run->worker[i].count > 0)
                env_free(run->allocator, run->worker[i].block[--run->worker[i].count]);
        xseg_sim_finish_all();
        assert_ok(xseg_config_set(run->allocator, "hard_limit_mb:100000"));
        status = xseg_pool_resume(run->pool[run->paused_pool - 1]);
    }
    assert_true(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    run->paused_pool = status == XSEG_OK ? 0 : run->paused_pool;
}

/* Pause the latest pool that can be paused, or resume the paused one. */
static void step_pause(struct worker *worker)
{
    struct run *run = worker->run;
    const enum xseg_keep keep = below(worker, 3) == 0 ? XSEG_KEEP_HOST : XSEG_KEEP_NOTHING;

    if (run->paused_pool != 0) {
        resume_pool(worker);
        return;
    }
    if (run->captured_pool != 0)
        env_graph_destroy(end_capture(run));
    xseg_sim_finish_all();
    /* Poll pending blocks, which would block the pause. */
    assert_ok(xseg_trim(run->allocator, NULL, NULL, NULL));
    for (unsigned i = run->pools; i > 0 && run->paused_pool == 0; i--) {
        if (!run->is_retained[i - 1])
            continue;
        const xseg_status status = xseg_pool_pause(run->pool[i - 1], keep, NULL);
        assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED);
        run->paused_pool = status == XSEG_OK ? i : 0;
    }
}

/* Begin or end a capture.  During the capture frees of blocks with uses are deferred. */
static void step_capture(struct worker *worker)
{
    struct run *run = worker->run;

    if (run->captured_pool != 0) {
        env_graph_destroy(end_capture(run));
        return;
    }
    const unsigned pool = any_pool(worker);
    if (pool == 0 || pool == run->paused_pool)
        return;
    env_capture_begin(run->pool[pool - 1], run->stream[1]);
    run->captured_pool = pool;
}

static void step_pool_checkpoint(struct worker *worker)
{
    struct run *run = worker->run;
    const unsigned pool = any_pool(worker);
    struct xseg_checkpoint *checkpoint = NULL;

    if (pool == 0 || xseg_pool_checkpoint(run->pool[pool - 1], &checkpoint) != XSEG_OK)
        return;
    xseg_checkpoint_destroy(run->checkpoint);
    run->checkpoint = checkpoint;
    run->checkpoint_pool = pool;
}

/* Remove a block that a restore frees from its worker; a block that it allocates belongs to the first worker. */
static void move_block(void *context, void *ptr, bool freed)
{
    struct run *run = context;
    struct worker *first = &run->worker[0];

    if (!freed) {
        assert_true(first->count < BLOCKS);
        first->block[first->count++] = ptr;
        return;
    }
    for (unsigned i = 0; i < WORKERS; i++)
        for (unsigned k = 0; k < run->worker[i].count; k++)
            if (run->worker[i].block[k] == ptr) {
                run->worker[i].block[k] = run->worker[i].block[--run->worker[i].count];
                return;
            }
    fail_msg("no worker has %p", ptr);
}

static void step_restore(struct worker *worker)
{
    struct run *run = worker->run;

    if (run->checkpoint == NULL || !run->is_retained[run->checkpoint_pool - 1])
        return;
    /* Free the blocks of the worker, to have space for those that the restore allocates. */
    while (worker->count > 0)
        env_free(run->allocator, worker->block[--worker->count]);
    const xseg_status status =
        xseg_pool_restore(run->pool[run->checkpoint_pool - 1], run->checkpoint, move_block, run);
    assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED);
}

/* Retire a stream, and create another one, which reuses its memory. */
static void step_retire(struct worker *worker)
{
    struct run *run = worker->run;
    const unsigned index = 1 + (unsigned)below(worker, STREAMS - 1);

    if (run->captured_pool != 0)
        return;
    assert_ok(xseg_stream_retire(run->allocator, 0, run->stream[index]));
    driver_stream_destroy(0, run->stream[index]);
    run->stream[index] = driver_stream(0, false);
}

static void step_exclusive(struct worker *worker)
{
    static void (*const steps[])(struct worker *) = {
        step_pool,    step_pool,    step_release, step_pause,
        step_pause,   step_capture, step_capture, step_pool_checkpoint,
        step_restore, step_restore, step_retire,
    };

    steps[below(worker, COUNT_OF(steps))](worker);
}

/* --- Execution of programs. --- */

static uint32_t gather(void *context)
{
    return ((const struct run *)context)->step;
}

/* Record an annotation.  The clock is advanced, so that its time differs from those of other events. */
static void annotate(struct run *run, const char *text)
{
    xseg_sim_advance(1);
    assert_ok(xseg_history_annotate(run->allocator, 0, text));
    xseg_sim_advance(1);
}

/* Write a snapshot for tests/model/snapshots.py if XSEG_TEST_SNAPSHOTS is set; every second one may omit events. */
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

static void *run_worker(void *self)
{
    struct worker *worker = self;

    for (unsigned i = 0; i < 60; i++)
        take_step(worker);
    return NULL;
}

/* Execute steps in this thread, each with its own number. */
static void run_one_thread(struct run *run)
{
    for (unsigned i = 0; i < 100; i++) {
        run->step++;
        annotate(run, "step");
        take_step(&run->worker[0]);
    }
}

static void run_threads(struct run *run)
{
    pthread_t thread[WORKERS];

    for (unsigned i = 0; i < run->kind.threads; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_worker, &run->worker[i]), 0);
    write_snapshot(run);
    for (unsigned i = 0; i < run->kind.threads; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

static void record_state(struct run *run)
{
    for (unsigned i = 0; i < WORKERS; i++)
        if (run->worker[i].failure[0] != '\0')
            fail_msg("worker %u: %s", i, run->worker[i].failure);
    run->step++;
    annotate(run, "state");
    assert_true(run->states < STATES_MAX);
    run->state[run->states++] = replay_read(run->allocator, run->pool, run->pools);
    write_snapshot(run);
}

static void run_program(struct run *run)
{
    record_state(run);
    for (unsigned i = 0; i < STATES_MAX - 3; i++) {
        program.step = i;
        run->step++;
        annotate(run, "step");
        step_exclusive(&run->worker[0]);
        step_exclusive(&run->worker[0]);
        if (run->kind.threads == 1)
            run_one_thread(run);
        else
            run_threads(run);
        if (i % 3 != 0)
            continue;
        record_state(run);
    }
    record_state(run);
}

static void end_run(struct run *run)
{
    run->step++;
    annotate(run, "step");
    if (run->captured_pool != 0)
        env_graph_destroy(end_capture(run));
    xseg_checkpoint_destroy(run->checkpoint);
    xseg_sim_finish_all();
    if (run->paused_pool != 0)
        resume_pool(&run->worker[0]);
    for (unsigned i = 0; i < WORKERS; i++)
        while (run->worker[i].count > 0)
            env_free(run->allocator, run->worker[i].block[--run->worker[i].count]);
    for (unsigned i = 0; i < run->pools; i++)
        if (run->is_retained[i])
            assert_ok(xseg_pool_release(run->pool[i]));
    env_empty_cache(run->allocator);
    record_state(run);
    const struct replay *final_state = &run->state[run->states - 1];
    assert_int_equal(final_state->blocks, 0);
    assert_int_equal(final_state->ranges, 0);
}

/* --- Checks of the history. --- */

/* Whether an event marks a recorded state. */
static bool is_state(const struct xseg_history_entry *entry)
{
    return entry->action == XSEG_HISTORY_ANNOTATION && strcmp(entry->label, "state") == 0;
}

/* Print the events around an event, and fail. */
static void fail_at_event(const struct history_list *recorded, size_t index, const char *direction,
                          const char *error)
{
    for (size_t i = index < 6 ? 0 : index - 6; i < recorded->count && i < index + 3; i++) {
        const struct xseg_history_entry *event = &recorded->entry[i];

        print_error("%s %zu %s base %p bytes %" PRIu64 " requested %" PRIu64 " pool %" PRIu32
                    "%s device %d stream %p order %" PRIu32 " time %" PRIu64 " %s\n",
                    i == index ? "->" : "  ", i, history_action_name(event->action), event->base,
                    event->bytes, event->requested, event->pool,
                    event->is_fallback ? " fallback" : "", event->device, (void *)event->stream,
                    event->order, event->time_ns, event->label == NULL ? "" : event->label);
    }
    fail_msg("%s: %s", direction, error);
}

static void replay_forward(struct run *run, const struct history_list *recorded)
{
    struct replay replay = replay_copy(&run->state[0]);
    unsigned state = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        if (!replay_apply(&replay, &recorded->entry[i]))
            fail_at_event(recorded, i, "forward", replay.error);
        if (is_state(&recorded->entry[i]) && !replay_equal(&replay, &run->state[state++]))
            fail_at_event(recorded, i, "in a recorded state, forward", replay.error);
    }
    assert_int_equal(state, run->states);
    replay_free(&replay);
}

static void replay_backward(struct run *run, const struct history_list *recorded)
{
    struct replay replay = replay_copy(&run->state[run->states - 1]);
    unsigned state = run->states;

    for (size_t i = recorded->count; i > 0; i--) {
        const struct xseg_history_entry *entry = &recorded->entry[i - 1];

        if (is_state(entry) && !replay_equal(&replay, &run->state[--state]))
            fail_at_event(recorded, i - 1, "in a recorded state, backward", replay.error);
        if (!replay_undo(&replay, entry))
            fail_at_event(recorded, i - 1, "backward", replay.error);
    }
    assert_int_equal(state, 0);
    replay_free(&replay);
}

/* Expect that the next event of the device with a sequence number after the event of a cause is the unmap. */
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
            fail_at_event(recorded, i, "cause", "the unmap event does not follow");
    }
}

/* Expect that sequence numbers increase, and that each event of a step has the number of the step, and a stack. */
static void expect_attribution(const struct run *run, const struct history_list *recorded)
{
    uint32_t order = 0, step = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];

        if (entry->order != 0 && entry->order <= order)
            fail_at_event(recorded, i, "order", "sequence numbers do not increase");
        order = entry->order != 0 ? entry->order : order;
        if (run->kind.threads != 1)
            continue;
        if (entry->action == XSEG_HISTORY_ANNOTATION &&
            (strcmp(entry->label, "step") == 0 || is_state(entry)))
            step = entry->frames;
        if (entry->frames != step || entry->stack == 0)
            fail_at_event(recorded, i, "attribution",
                          "the event has the number of another step, or no stack");
    }
}

/* Expect that each event has the user value of its request.  The value may be missing if the request precedes block_user, if
 * another thread has changed a key of the history, or if a prewarm has failed. */
static void expect_users(const struct run *run, const struct history_list *recorded)
{
    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];
        const bool has_request =
            entry->action <= XSEG_HISTORY_FREE_COMPLETED || entry->action == XSEG_HISTORY_OOM;
        const void *user = has_request ? user_of(entry->requested) : NULL;
        const bool may_be_missing = !run->has_users || entry->action == XSEG_HISTORY_OOM;

        if (entry->user != user && (entry->user != NULL || !may_be_missing))
            fail_at_event(recorded, i, "user value", "it belongs to another request");
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
    assert_true(recorded.count > 0 && is_state(&recorded.entry[recorded.count - 1]));
    count_actions(&recorded);
    expect_attribution(run, &recorded);
    expect_users(run, &recorded);
    expect_causes(&recorded);
    replay_forward(run, &recorded);
    replay_backward(run, &recorded);
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

static void open_run(struct run *run, const struct kind *kind, uint64_t seed)
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
    for (unsigned i = 0; i < WORKERS; i++) {
        run->worker[i].run = run;
        run->worker[i].random = program_random_state(seed * 64 + i);
    }
    assert_ok(xseg_history_set_hook(run->allocator, &hook));
    if (seed % 2 == 0)
        assert_ok(xseg_config_set(run->allocator, "block_user:True"));
    run->has_users = kind->threads == 1 && (seed % 2 == 0 || seed % 3 != 0);
    /* Some programs allocate memory before the history is enabled: the first state has blocks. */
    if (seed % 3 == 0)
        for (unsigned i = 0; i < 100; i++)
            take_step(&run->worker[0]);
    assert_ok(xseg_config_set(
        run->allocator, loses_events(seed)
                            ? "history:all,history_stacks:all,history_skip:[],history_events:40"
                            : "history:all,history_stacks:all,history_skip:[],"
                              "history_events:1000000,block_user:True"));
}

static void close_run(struct run *run)
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

static void run_programs(uint64_t first, const struct kind *kind)
{
    const uint64_t begin = program_number("XSEG_TEST_SEED", first);
    const uint64_t seeds = program_number("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 4 : 12);
    struct run *run = malloc(sizeof(*run));

    assert_non_null(run);
    memset(tally, 0, sizeof(tally));
    tally_fallback = tally_users = 0;
    for (uint64_t seed = begin; seed < begin + seeds; seed++) {
        struct kind kind_of_seed = *kind;

        program.seed = seed;
        kind_of_seed.has_clock = kind->has_clock || seed % 2 == 0;
        open_run(run, &kind_of_seed, seed);
        run_program(run);
        end_run(run);
        if (!loses_events(seed))
            check_history(run);
        close_run(run);
    }
    program.seed = 0;
    free(run);
    for (unsigned i = 0; i < XSEG_HISTORY_ACTIONS; i++)
        print_message("# %s %" PRIu64 "\n", history_action_name((enum xseg_history_action)i),
                      tally[i]);
    print_message("# fallback %" PRIu64 ", with user values %" PRIu64 "\n", tally_fallback,
                  tally_users);
    /* A few programs need not have all actions: not every program resumes a pool. */
    if (seeds < 12)
        return;
    /* No other process shares the device, so there are no BUDGET_REQUEST and BUDGET_RELEASE events. */
    for (unsigned i = 0; i < XSEG_HISTORY_BUDGET_REQUEST; i++)
        assert_true(tally[i] >
                    (i == XSEG_HISTORY_PAUSE || i == XSEG_HISTORY_RESUME ? 0 : seeds / 4));
    assert_true(tally_fallback > 0 || !kind->is_low_on_memory);
    assert_true(tally_users > tally[XSEG_HISTORY_ALLOC]);
}

TEST_PROGRAM(history_of_one_thread_replays)
{
    run_programs(1, &(struct kind){"idle_ms:100", false, true, 1});
}

TEST_PROGRAM(history_of_one_thread_with_little_memory_replays)
{
    run_programs(1001, &(struct kind){"idle_ms:100,page_cache_mb:20", true, true, 1});
}

TEST_PROGRAM(history_of_threads_replays)
{
    run_programs(2001, &(struct kind){"idle_ms:100", false, false, WORKERS});
}

TEST_PROGRAM(history_of_threads_with_little_memory_replays)
{
    run_programs(3001, &(struct kind){"idle_ms:100", true, false, WORKERS});
}

TEST_PROGRAM(history_under_a_hard_limit_replays)
{
    run_programs(4001, &(struct kind){"idle_ms:100,hard_limit_mb:300", false, false, 2});
}
