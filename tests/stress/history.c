/* SPDX-License-Identifier: MIT */
/* Histories with concurrent threads: an iteration visits the events of a thread without a gap.  Recording can be
 * switched, visited, cleared and written at any time.  New labels do not change the labels in use. */
#include <unistd.h>

#include "tests/stress/stress.h"
#include "tests/support/history_list.h"

#define WORKERS 3u

struct worker {
    struct stage *stage;
    xseg_stream stream;
    uint64_t random;
    uint64_t pairs; /* of an allocation and a free */
};

struct stage {
    struct xseg_allocator *allocator;
    struct worker worker[WORKERS];
    atomic_uint running;
    atomic_bool over, was_seen; /* was_seen: a walk has found events */
    atomic_uint number;         /* of the hook */
};

static void start(struct stage *stage, pthread_t *thread, void *(*run)(void *))
{
    atomic_store(&stage->running, WORKERS);
    for (unsigned i = 0; i < WORKERS; i++) {
        stage->worker[i].stage = stage;
        stage->worker[i].random = i + 1;
    }
    threads_start(thread, run, stage->worker, WORKERS);
}

/* --- Iterations without gaps. --- */

#define PAIRS  40000u
#define EVENTS 500u

/* Allocate with a user value that the application encodes. */
static xseg_status take(struct worker *worker, size_t bytes, uint64_t word, void **out)
{
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .stream = worker->stream,
                                         .user = (void *)(uintptr_t)word};

    return xseg_alloc_with(worker->stage->allocator, &request, out);
}

/* The size identifies the pair: the n-th pair has 1 + n % 5000 bytes, and its user value is n + 1. */
static void *count_up(void *self)
{
    struct worker *worker = self;

    for (; worker->pairs < PAIRS; worker->pairs++) {
        void *ptr = NULL;

        CHECK_OK(take(worker, 1 + worker->pairs % 5000, worker->pairs + 1, &ptr));
        CHECK_OK(xseg_free(worker->stage->allocator, ptr));
    }
    atomic_fetch_sub(&worker->stage->running, 1);
    return NULL;
}

/* Expect that the events of one stream are pairs of an allocation and its free; returns their number. */
static uint64_t follow(const struct history_list *recorded, xseg_stream stream, bool has_words)
{
    const struct xseg_history_entry *before = NULL;
    uint64_t count = 0;

    for (size_t i = 0; i < recorded->count; i++) {
        const struct xseg_history_entry *entry = &recorded->entry[i];

        if (entry->stream != stream || entry->action > XSEG_HISTORY_FREE_COMPLETED)
            continue;
        if (before != NULL) {
            const bool is_next = before->action == XSEG_HISTORY_FREE_COMPLETED;

            assert_int_equal(entry->action, is_next ? XSEG_HISTORY_ALLOC : before->action + 1);
            assert_int_equal(entry->requested,
                             is_next ? before->requested % 5000 + 1 : before->requested);
            assert_true(is_next || entry->base == before->base);
            assert_true(entry->thread == before->thread);
            assert_true(!has_words || (uint64_t)(uintptr_t)entry->user ==
                                          (uint64_t)(uintptr_t)before->user + is_next);
        }
        assert_int_equal(entry->user != NULL, has_words);
        assert_true(!has_words ||
                    ((uint64_t)(uintptr_t)entry->user - 1) % 5000 + 1 == entry->requested);
        before = entry;
        count++;
    }
    return count;
}

static void iterate_concurrently(const char *config, bool has_words)
{
    struct stage stage = {.allocator = env_open(config)};
    uint64_t walks = 0, seen = 0, lost = 0;
    pthread_t thread[WORKERS];

    for (unsigned i = 0; i < WORKERS; i++)
        stage.worker[i].stream = i == 0 ? NULL : env_stream();
    start(&stage, thread, count_up);
    do {
        struct history_list recorded = history_read(stage.allocator, 0);

        for (unsigned i = 0; i < WORKERS; i++) {
            const uint64_t count = follow(&recorded, stage.worker[i].stream, has_words);

            assert_true(count <= EVENTS);
            seen += count;
        }
        assert_true(recorded.summary.lost >= lost);
        lost = recorded.summary.lost;
        walks++;
        free(recorded.entry);
    } while (atomic_load(&stage.running) > 0);
    threads_join(thread, WORKERS);
    /* When all threads are idle each ring is full, and all events are kept or counted. */
    struct history_list recorded = history_read(stage.allocator, 0);
    assert_int_equal(recorded.count, WORKERS * EVENTS);
    assert_int_equal(recorded.count + recorded.summary.lost, WORKERS * (UINT64_C(3) * PAIRS + 1));
    for (unsigned i = 0; i < WORKERS; i++)
        assert_int_equal(follow(&recorded, stage.worker[i].stream, has_words), EVENTS);
    free(recorded.entry);
    print_message("# %" PRIu64 " walks saw %" PRIu64 " events of blocks\n", walks, seen);
    env_close(stage.allocator, stage.worker[1].stream, stage.worker[2].stream);
}

TEST(event_walk_has_no_gap)
{
    iterate_concurrently("history:all,history_events:500,history_stacks:none", false);
    iterate_concurrently("history:all,history_events:500,block_user:True", true);
}

/* --- All calls at any time. --- */

#define STEPS 3000u
#define HELD  24u

static const char *const labels[] = {"forward", "backward", "optimizer", "a text between", NULL};

static void *do_anything(void *self)
{
    struct worker *worker = self;
    struct xseg_allocator *allocator = worker->stage->allocator;
    void *held[HELD] = {NULL};

    /* And until events were seen: all of them may be recorded and overwritten between two walks. */
    for (unsigned i = 0; i < STEPS || !atomic_load(&worker->stage->was_seen); i++) {
        void **at = &held[rng_next(&worker->random) % HELD];
        const uint64_t action = rng_next(&worker->random) % 64;
        const size_t bytes = action % 8 == 0 ? 2 * MIB + action * MIB / 4 : 1 + action * 700;

        if (*at != NULL)
            CHECK_OK(xseg_free(allocator, *at));
        *at = NULL;
        CHECK_OK(take(worker, bytes, 2 * bytes + 1, at));
        if (action == 1)
            CHECK_OK(xseg_trim(allocator, NULL, NULL, NULL));
        if (action == 2)
            CHECK_OK(xseg_history_annotate(allocator, 0, labels[3]));
        if (action == 3)
            CHECK_OK(xseg_history_label(allocator, labels[rng_next(&worker->random) % 3], NULL));
        if (action == 4)
            CHECK_OK(xseg_history_label(allocator, NULL, NULL));
        if (action == 5)
            CHECK(xseg_free(allocator, (char *)*at + 1) == XSEG_ERR_NOT_ALLOCATED);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i] != NULL)
            CHECK_OK(xseg_free(allocator, held[i]));
    atomic_fetch_sub(&worker->stage->running, 1);
    return NULL;
}

static uint32_t gather(void *context)
{
    struct stage *stage = context;

    return atomic_fetch_add(&stage->number, 1) % 1000 + 1;
}

static void discard(void *context, const uint32_t *kept, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        assert_true(kept[i] != 0);
}

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
    const struct xseg_history_hook hook = {sizeof(hook), .context = worker->stage, .gather = gather,
                                           .discard = discard};

    while (!atomic_load(&worker->stage->over)) {
        const uint64_t action = rng_next(&worker->random);

        CHECK_OK(
            xseg_config_set(worker->stage->allocator, configs[action / 8 % COUNT_OF(configs)]));
        if (action % 8 == 0)
            CHECK(xseg_history_set_hook(worker->stage->allocator,
                                        action / 8 % 3 == 0 ? NULL : &hook) == XSEG_OK);
        if (action % 8 == 1)
            CHECK_OK(xseg_history_clear(worker->stage->allocator, -1));
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
    assert_true(entry->frames <= 1000);
    /* A user value belongs to its size, and events of segments have none. */
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

/* Events of both threads are in the order of their sequence numbers. */
static void check_events(struct stage *stage, uint64_t *seen)
{
    struct history_list recorded = history_read(stage->allocator, -1);
    uint32_t order = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        /* Resolving names of frames is slow. */
        if (i % 61 == 0 || recorded.entry[i].stack == 0)
            expect_resolvable(stage->allocator, &recorded.entry[i]);
        assert_true(recorded.entry[i].order == 0 || recorded.entry[i].order > order);
        order = recorded.entry[i].order == 0 ? order : recorded.entry[i].order;
    }
    *seen += recorded.count;
    free(recorded.entry);
    assert_true(env_stats(stage->allocator).host_bytes > 0);
}

TEST(settings_change_while_threads_run)
{
    struct stage stage = {.allocator = env_open(NULL)};
    struct worker switcher = {.stage = &stage, .random = 99};
    pthread_t thread[WORKERS], switching;
    uint64_t passes = 0, seen = 0;

    /* Two threads share a stream. */
    stage.worker[1].stream = env_stream();
    start(&stage, thread, do_anything);
    assert_int_equal(pthread_create(&switching, NULL, change_settings, &switcher), 0);
    for (; atomic_load(&stage.running) > 0; passes++) {
        check_events(&stage, &seen);
        atomic_store(&stage.was_seen, seen > 0);
    }
    threads_join(thread, WORKERS);
    atomic_store(&stage.over, true);
    assert_int_equal(pthread_join(switching, NULL), 0);
    print_message("# %" PRIu64 " passes over %" PRIu64 " events\n", passes, seen);
    env_empty_cache(stage.allocator);
    env_close(stage.allocator, stage.worker[1].stream);
}

/* --- Labels without end. --- */

#define REQUESTS 40000u
#define KEPT     200u /* blocks that a thread holds, each with its own label */

/* The label of a block contains its requested size. */
static bool is_right(const char *label, size_t requested)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%zu bytes", requested);
    return label != NULL && strcmp(label, text) == 0;
}

static void *label_anew(void *self)
{
    struct worker *worker = self;
    struct xseg_allocator *allocator = worker->stage->allocator;
    const size_t first = (size_t)(worker - worker->stage->worker) + 1;
    void *held[KEPT] = {NULL};
    char text[32];

    for (size_t bytes = first; bytes < REQUESTS * WORKERS; bytes += WORKERS) {
        void **at = &held[rng_next(&worker->random) % KEPT];
        struct xseg_block_info info = {sizeof(info)};
        const char *before = NULL;

        (void)snprintf(text, sizeof(text), "%zu bytes", bytes);
        CHECK_OK(xseg_history_label(allocator, "a scope", &before));
        CHECK_OK(xseg_history_label(allocator, text, NULL));
        if (*at != NULL) {
            CHECK_OK(xseg_block_query(allocator, *at, &info));
            CHECK(is_right(info.label, info.requested));
            CHECK_OK(xseg_free(allocator, *at));
        }
        CHECK_OK(take(worker, bytes, bytes, at));
        if (bytes % 64 == 0)
            CHECK_OK(xseg_history_annotate(allocator, 0, text));
        if (bytes % 512 == 0)
            CHECK_OK(xseg_trim(allocator, NULL, NULL, NULL));
        CHECK_OK(xseg_history_label(allocator, before, NULL));
    }
    for (unsigned i = 0; i < KEPT; i++)
        if (held[i] != NULL)
            CHECK_OK(xseg_free(allocator, held[i]));
    atomic_fetch_sub(&worker->stage->running, 1);
    return NULL;
}

static bool visit_label(void *context, const struct xseg_history_entry *entry)
{
    if (entry->action == XSEG_HISTORY_ALLOC) {
        assert_true(is_right(entry->label, entry->requested));
        ++*(uint64_t *)context;
    }
    return true;
}

static bool visit_block(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED && block->label != NULL) {
        assert_true(is_right(block->label, block->requested));
        ++*(uint64_t *)context;
    }
    return true;
}

/* Sweeps of all threads do not change labels of blocks and events. */
TEST(labels_are_correct_while_threads_create_new_ones)
{
    struct stage stage = {.allocator = env_open("history:all,history_events:1000")};
    uint64_t passes = 0, seen = 0;
    pthread_t thread[WORKERS];

    stage.worker[1].stream = env_stream();
    start(&stage, thread, label_anew);
    for (; atomic_load(&stage.running) > 0; passes++) {
        assert_int_equal(xseg_for_each_event(stage.allocator, -1, visit_label, &seen, NULL),
                         XSEG_OK);
        assert_int_equal(xseg_for_each_block(stage.allocator, NULL, visit_block, &seen), XSEG_OK);
        (void)usleep(2000);
    }
    threads_join(thread, WORKERS);
    print_message("# %" PRIu64 " passes over %" PRIu64 " labels\n", passes, seen);
    env_empty_cache(stage.allocator);
    env_close(stage.allocator, stage.worker[1].stream);
}
