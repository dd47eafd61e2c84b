/* SPDX-License-Identifier: MIT */
/* Histories with concurrent threads: an iteration visits the events of a thread without a gap.  Recording can be
 * switched, visited, cleared and written at any time.  New labels do not change the labels in use. */
#include <unistd.h>

#include "tests/stress/stress.h"
#include "tests/support/history_list.h"

#define WORKERS 3u

struct worker {
    struct shared *shared;
    xseg_stream stream;
    uint64_t random;
    uint64_t pairs; /* of an allocation and a free */
};

struct shared {
    struct xseg_allocator *allocator;
    struct worker worker[WORKERS];
    atomic_uint running;    /* number of workers that still run */
    atomic_bool is_done;    /* the workers have ended */
    atomic_bool has_events; /* a walk has found events */
    atomic_uint hook_calls;
};

static void start_threads(struct shared *shared, pthread_t *thread, void *(*run)(void *))
{
    atomic_store(&shared->running, WORKERS);
    for (unsigned i = 0; i < WORKERS; i++) {
        shared->worker[i].shared = shared;
        shared->worker[i].random = i + 1;
    }
    threads_start(thread, run, shared->worker, WORKERS);
}

/* --- Iterations without gaps. --- */

#define PAIRS  40000u
#define EVENTS 500u

/* Allocate a block with a user value. */
static xseg_status alloc_with_user(struct worker *worker, size_t bytes, uint64_t user, void **out)
{
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .stream = worker->stream,
                                         .user = (void *)(uintptr_t)user};

    return xseg_alloc_with(worker->shared->allocator, &request, out);
}

/* Allocate and free.  Size and user value identify the pair: pair n has 1 + n % 5000 bytes and the user value n + 1. */
static void *allocate_pairs(void *self)
{
    struct worker *worker = self;

    for (; worker->pairs < PAIRS; worker->pairs++) {
        void *ptr = NULL;

        CHECK_OK(alloc_with_user(worker, 1 + worker->pairs % 5000, worker->pairs + 1, &ptr));
        CHECK_OK(xseg_free(worker->shared->allocator, ptr));
    }
    atomic_fetch_sub(&worker->shared->running, 1);
    return NULL;
}

/* Expect that the events of a stream are pairs without a gap, each with an allocation, the request of a free and its
 * completion; returns the number of events. */
static uint64_t expect_pairs(const struct history_list *recorded, xseg_stream stream,
                             bool has_users)
{
    const struct xseg_history_entry *previous = NULL;
    uint64_t count = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];

        if (entry->stream != stream || entry->action > XSEG_HISTORY_FREE_COMPLETED)
            continue;
        if (previous != NULL) {
            const bool begins_pair = previous->action == XSEG_HISTORY_FREE_COMPLETED;

            assert_int_equal(entry->action,
                             begins_pair ? XSEG_HISTORY_ALLOC : previous->action + 1);
            assert_int_equal(entry->requested,
                             begins_pair ? previous->requested % 5000 + 1 : previous->requested);
            assert_true(begins_pair || entry->base == previous->base);
            assert_true(entry->thread == previous->thread);
            assert_true(!has_users || (uint64_t)(uintptr_t)entry->user ==
                                          (uint64_t)(uintptr_t)previous->user + begins_pair);
        }
        assert_int_equal(entry->user != NULL, has_users);
        assert_true(!has_users ||
                    ((uint64_t)(uintptr_t)entry->user - 1) % 5000 + 1 == entry->requested);
        previous = entry;
        count++;
    }
    return count;
}

static void iterate_concurrently(const char *config, bool has_users)
{
    struct shared shared = {.allocator = env_open(config)};
    uint64_t walks = 0, events = 0, lost = 0;
    pthread_t thread[WORKERS];

    for (unsigned i = 0; i < WORKERS; i++)
        shared.worker[i].stream = i == 0 ? NULL : env_stream();
    start_threads(&shared, thread, allocate_pairs);
    do {
        struct history_list recorded = history_read(shared.allocator, 0);

        for (unsigned i = 0; i < WORKERS; i++) {
            const uint64_t count = expect_pairs(&recorded, shared.worker[i].stream, has_users);

            assert_true(count <= EVENTS);
            events += count;
        }
        assert_true(recorded.summary.lost >= lost);
        lost = recorded.summary.lost;
        walks++;
        free(recorded.entry);
    } while (atomic_load(&shared.running) > 0);
    threads_join(thread, WORKERS);
    /* When all threads are idle each ring is full, and each event is recorded or counted as lost: three per pair, and one
     * that maps the memory of each stream. */
    struct history_list recorded = history_read(shared.allocator, 0);
    assert_int_equal(recorded.count, WORKERS * EVENTS);
    assert_int_equal(recorded.count + recorded.summary.lost, WORKERS * (UINT64_C(3) * PAIRS + 1));
    for (unsigned i = 0; i < WORKERS; i++)
        assert_int_equal(expect_pairs(&recorded, shared.worker[i].stream, has_users), EVENTS);
    free(recorded.entry);
    print_message("# %" PRIu64 " walks saw %" PRIu64 " events of blocks\n", walks, events);
    env_close(shared.allocator, shared.worker[1].stream, shared.worker[2].stream);
}

TEST(event_walk_has_no_gap)
{
    iterate_concurrently("history:all,history_events:500,history_stacks:none", false);
    iterate_concurrently("history:all,history_events:500,block_user:True", true);
}

/* --- All calls at any time. --- */

#define STEPS 3000u
#define SLOTS 24u

static const char *const labels[] = {"forward", "backward", "optimizer", "a text between", NULL};

static void *make_random_calls(void *self)
{
    struct worker *worker = self;
    struct xseg_allocator *allocator = worker->shared->allocator;
    void *block[SLOTS] = {NULL};

    /* Continue until a walk has found events: all of them may be recorded and overwritten between two walks. */
    for (unsigned i = 0; i < STEPS || !atomic_load(&worker->shared->has_events); i++) {
        void **slot = &block[rng_next(&worker->random) % SLOTS];
        const uint64_t action = rng_next(&worker->random) % 64;
        const size_t bytes = action % 8 == 0 ? 2 * MIB + action * MIB / 4 : 1 + action * 700;

        if (*slot != NULL)
            CHECK_OK(xseg_free(allocator, *slot));
        *slot = NULL;
        CHECK_OK(alloc_with_user(worker, bytes, 2 * bytes + 1, slot));
        if (action == 1)
            CHECK_OK(xseg_trim(allocator, NULL, NULL, NULL));
        if (action == 2)
            CHECK_OK(xseg_history_annotate(allocator, 0, labels[3]));
        if (action == 3)
            CHECK_OK(xseg_history_label(allocator, labels[rng_next(&worker->random) % 3], NULL));
        if (action == 4)
            CHECK_OK(xseg_history_label(allocator, NULL, NULL));
        if (action == 5)
            CHECK(xseg_free(allocator, (char *)*slot + 1) == XSEG_ERR_NOT_ALLOCATED);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (block[i] != NULL)
            CHECK_OK(xseg_free(allocator, block[i]));
    atomic_fetch_sub(&worker->shared->running, 1);
    return NULL;
}

/* Returns an ID of frames from 1 to 1000. */
static uint32_t gather(void *context)
{
    struct shared *shared = context;

    return atomic_fetch_add(&shared->hook_calls, 1) % 1000 + 1;
}

static void discard(void *context, const uint32_t *kept, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        CHECK(kept[i] != 0);
}

/* Configure the history, set the hook and clear the history until the workers have ended. */
static void *change_settings(void *self)
{
    static const char *const configs[] = {
        "history:all",
        "history:nothing",
        "history:state",
        "history:all,history_stacks:all",
        "history:all,history_stacks:alloc",
        "history_stacks:state",
        "history_stacks:none",
        "history_events:16",
        "history_events:100",
        "history_events:5000",
        "history_skip:[alloc,annotation]",
        "history_skip:[]",
        "block_user:True",
        "block_user:False",
        "unmap_on_free:True",
        "unmap_on_free:False",
    };
    struct worker *worker = self;
    const struct xseg_history_hook hook = {sizeof(hook), .context = worker->shared,
                                           .gather = gather, .discard = discard};

    while (!atomic_load(&worker->shared->is_done)) {
        const uint64_t action = rng_next(&worker->random);

        CHECK_OK(
            xseg_config_set(worker->shared->allocator, configs[action / 8 % COUNT_OF(configs)]));
        if (action % 8 == 0)
            CHECK(xseg_history_set_hook(worker->shared->allocator,
                                        action / 8 % 3 == 0 ? NULL : &hook) == XSEG_OK);
        if (action % 8 == 1)
            CHECK_OK(xseg_history_clear(worker->shared->allocator, -1));
    }
    return NULL;
}

static bool count_frame(void *context, const struct xseg_history_frame *frame)
{
    assert_non_null(frame->pc);
    ++*(unsigned *)context;
    return true;
}

/* All references of an event can be resolved. */
static void expect_resolvable(struct xseg_allocator *allocator,
                              const struct xseg_history_entry *entry)
{
    unsigned frames = 0;
    bool is_label = entry->label == NULL;

    assert_true(entry->action < XSEG_HISTORY_ACTIONS);
    assert_int_equal(entry->device, 0);
    assert_int_equal(entry->base == NULL,
                     entry->action == XSEG_HISTORY_OOM || entry->action == XSEG_HISTORY_ANNOTATION);
    assert_true(entry->frames <= 1000); /* the largest ID of gather() */
    /* A user value matches the requested size, and events of segments have none. */
    assert_true(
        entry->user == NULL ||
        ((uint64_t)(uintptr_t)entry->user == 2 * entry->requested + 1 &&
         (entry->action <= XSEG_HISTORY_FREE_COMPLETED || entry->action == XSEG_HISTORY_OOM)));
    for (size_t i = 0; !is_label && labels[i] != NULL; i++)
        is_label = strcmp(entry->label, labels[i]) == 0;
    assert_true(is_label);
    if (entry->stack == 0)
        return;
    assert_int_equal(xseg_history_stack(allocator, entry->stack, count_frame, &frames), XSEG_OK);
    assert_true(frames > 1);
}

/* Expect that the events of all threads are in the order of their sequence numbers. */
static void check_events(struct shared *shared, uint64_t *events)
{
    struct history_list recorded = history_read(shared->allocator, -1);
    uint32_t order = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        /* Resolving frames is slow: check every 61st event with a stack. */
        if (i % 61 == 0 || recorded.entry[i].stack == 0)
            expect_resolvable(shared->allocator, &recorded.entry[i]);
        assert_true(recorded.entry[i].order == 0 || recorded.entry[i].order > order);
        order = recorded.entry[i].order == 0 ? order : recorded.entry[i].order;
    }
    *events += recorded.count;
    free(recorded.entry);
    assert_true(env_stats(shared->allocator).host_bytes > 0);
}

TEST(settings_change_while_threads_run)
{
    struct shared shared = {.allocator = env_open(NULL)};
    struct worker configurer = {.shared = &shared, .random = 99};
    pthread_t thread[WORKERS], configuring_thread;
    uint64_t walks = 0, events = 0;

    /* Two threads share a stream. */
    shared.worker[1].stream = env_stream();
    start_threads(&shared, thread, make_random_calls);
    assert_int_equal(pthread_create(&configuring_thread, NULL, change_settings, &configurer), 0);
    for (; atomic_load(&shared.running) > 0; walks++) {
        check_events(&shared, &events);
        atomic_store(&shared.has_events, events > 0);
    }
    threads_join(thread, WORKERS);
    atomic_store(&shared.is_done, true);
    assert_int_equal(pthread_join(configuring_thread, NULL), 0);
    print_message("# %" PRIu64 " passes over %" PRIu64 " events\n", walks, events);
    env_empty_cache(shared.allocator);
    env_close(shared.allocator, shared.worker[1].stream);
}

/* --- More labels than the table has. --- */

#define REQUESTS       40000u
#define LABELED_BLOCKS 200u /* blocks of a thread, each with its own label */

/* Whether a label contains the requested size of its block. */
static bool has_size_label(const char *label, size_t requested)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%zu bytes", requested);
    return label != NULL && strcmp(label, text) == 0;
}

static void *change_labels(void *self)
{
    struct worker *worker = self;
    struct xseg_allocator *allocator = worker->shared->allocator;
    const size_t first = (size_t)(worker - worker->shared->worker) + 1;
    void *block[LABELED_BLOCKS] = {NULL};
    char text[32];

    for (size_t bytes = first; bytes < REQUESTS * WORKERS; bytes += WORKERS) {
        void **slot = &block[rng_next(&worker->random) % LABELED_BLOCKS];
        struct xseg_block_info info = {sizeof(info)};
        const char *previous = NULL;

        (void)snprintf(text, sizeof(text), "%zu bytes", bytes);
        CHECK_OK(xseg_history_label(allocator, "a scope", &previous));
        CHECK_OK(xseg_history_label(allocator, text, NULL));
        if (*slot != NULL) {
            CHECK_OK(xseg_block_query(allocator, *slot, &info));
            CHECK(has_size_label(info.label, info.requested));
            CHECK_OK(xseg_free(allocator, *slot));
        }
        CHECK_OK(alloc_with_user(worker, bytes, bytes, slot));
        if (bytes % 64 == 0)
            CHECK_OK(xseg_history_annotate(allocator, 0, text));
        if (bytes % 512 == 0)
            CHECK_OK(xseg_trim(allocator, NULL, NULL, NULL));
        CHECK_OK(xseg_history_label(allocator, previous, NULL));
    }
    for (unsigned i = 0; i < LABELED_BLOCKS; i++)
        if (block[i] != NULL)
            CHECK_OK(xseg_free(allocator, block[i]));
    atomic_fetch_sub(&worker->shared->running, 1);
    return NULL;
}

static bool check_event_label(void *context, const struct xseg_history_entry *entry)
{
    if (entry->action == XSEG_HISTORY_ALLOC) {
        assert_true(has_size_label(entry->label, entry->requested));
        ++*(uint64_t *)context;
    }
    return true;
}

static bool check_block_label(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED && block->label != NULL) {
        assert_true(has_size_label(block->label, block->requested));
        ++*(uint64_t *)context;
    }
    return true;
}

/* The sweeps of the table do not change the labels of blocks and events. */
TEST(labels_are_correct_while_threads_create_new_ones)
{
    struct shared shared = {.allocator = env_open("history:all,history_events:1000")};
    uint64_t walks = 0, checked = 0;
    pthread_t thread[WORKERS];

    shared.worker[1].stream = env_stream();
    start_threads(&shared, thread, change_labels);
    for (; atomic_load(&shared.running) > 0; walks++) {
        assert_int_equal(
            xseg_for_each_event(shared.allocator, -1, check_event_label, &checked, NULL), XSEG_OK);
        assert_int_equal(xseg_for_each_block(shared.allocator, NULL, check_block_label, &checked),
                         XSEG_OK);
        (void)usleep(2000);
    }
    threads_join(thread, WORKERS);
    print_message("# %" PRIu64 " passes over %" PRIu64 " labels\n", walks, checked);
    env_empty_cache(shared.allocator);
    env_close(shared.allocator, shared.worker[1].stream);
}
