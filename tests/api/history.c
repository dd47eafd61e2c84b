/* SPDX-License-Identifier: MIT */
/* The functions of history.h: iteration, clear, stacks, hook, annotations and labels; and changes of the keys. */
#include "xseg/history.h"
#include "tests/support/history_list.h"

#include <pthread.h>
#include <unistd.h>

/* A function in a separate section with known bounds, so that its frames can be recognized. */
#define IN_SECTION(name) __attribute__((noinline, section(#name)))

extern const char __start_code_of_alloc[], __stop_code_of_alloc[];
extern const char __start_code_of_free[], __stop_code_of_free[];

/* The calls are no tail calls, so the frames of these functions are in the recorded stacks. */
static IN_SECTION(code_of_alloc) void *alloc_here(struct xseg_allocator *allocator, size_t bytes)
{
    void *ptr = env_alloc(allocator, bytes, NULL);

    __asm__ volatile("" : : "r"(ptr) : "memory");
    return ptr;
}

static IN_SECTION(code_of_free) void free_here(struct xseg_allocator *allocator, void *ptr)
{
    env_free(allocator, ptr);
    __asm__ volatile("" : : "r"(ptr) : "memory");
}

static void alloc_and_free(struct xseg_allocator *allocator)
{
    env_free(allocator, env_alloc(allocator, 1000, NULL));
}

struct frames {
    unsigned count, of_library, of_alloc, of_free, of_test;
};

static bool count_frame(void *context, const struct xseg_history_frame *frame)
{
    struct frames *frames = context;
    const char *pc = frame->pc;

    assert_int_equal(frame->struct_size, sizeof(*frame));
    frames->count++;
    frames->of_library += frame->module != NULL && strstr(frame->module, "libxseg.so") != NULL;
    /* The innermost frames are first. */
    assert_true(frames->of_library > 0);
    frames->of_alloc += pc > __start_code_of_alloc && pc <= __stop_code_of_alloc;
    frames->of_free += pc > __start_code_of_free && pc <= __stop_code_of_free;
    frames->of_test += frame->module != NULL && strstr(frame->module, "test-api-history") != NULL;
    return true;
}

/* Expect a stack through alloc_here(), through free_here(), or both. */
static void expect_stack(struct xseg_allocator *allocator, uint32_t stack, bool of_alloc,
                         bool of_free)
{
    struct frames frames = {.count = 0};

    assert_ok(xseg_history_stack(allocator, stack, count_frame, &frames));
    assert_true(frames.count > 3 && frames.of_test > 1);
    assert_int_equal(frames.of_alloc, of_alloc);
    assert_int_equal(frames.of_free, of_free);
}

static const struct {
    const char *config;
    bool has_alloc_stacks, has_other_stacks; /* of ALLOC and SEGMENT_MAP; of other events */
} stack_rows[] = {
    {"history:all,history_stacks:none", false, false},
    {"history:all,history_stacks:state", false, false},
    {"history:all,history_stacks:alloc", true, false},
    {"history:all,history_stacks:all", true, true},
};

TEST_TIMES(stacks_are_recorded_for_the_configured_events, COUNT_OF(stack_rows),
           env_open(stack_rows[i].config))
{
    /* A miss, a hit, a large block, and a block of an arena without a fast path. */
    for (unsigned round = 0; round < 2; round++) {
        free_here(allocator, alloc_here(allocator, 1000));
        free_here(allocator, alloc_here(allocator, 30 * MIB));
    }
    HISTORY_LIST recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 2 + 4 * 3); /* maps; allocation, free, completion */
    for (size_t k = 0; k < recorded.count; k++) {
        const struct xseg_history_entry *entry = &recorded.entry[k];
        const bool is_alloc =
            entry->action == XSEG_HISTORY_ALLOC || entry->action == XSEG_HISTORY_SEGMENT_MAP;

        assert_int_equal(entry->stack != 0, is_alloc ? stack_rows[i].has_alloc_stacks
                                                     : stack_rows[i].has_other_stacks);
        if (entry->stack != 0)
            expect_stack(allocator, entry->stack, is_alloc, !is_alloc);
    }
    /* At least one stack for each recorded call site: two allocations, or two allocations and two frees. */
    assert_in_range(recorded.summary.stacks,
                    stack_rows[i].has_other_stacks   ? 4
                    : stack_rows[i].has_alloc_stacks ? 2
                                                     : 0,
                    12);
    assert_int_equal(recorded.summary.stacks_lost, 0);
}

static bool end_iteration(void *context, const struct xseg_history_frame *frame)
{
    (void)frame;
    ++*(unsigned *)context;
    return false;
}

TEST_ON(visitor_ends_the_iteration_over_a_stack, env_open("history:all"))
{
    unsigned count = 0;

    assert_error(xseg_history_stack(allocator, 1, end_iteration, &count), ARGUMENT,
                 "unknown stack ID, 1");
    assert_ok(xseg_config_set(allocator, "history_stacks:all"));
    free_here(allocator, alloc_here(allocator, 1000));
    HISTORY_LIST recorded = history_read(allocator, 0);
    assert_ok(xseg_history_stack(allocator, recorded.entry[1].stack, end_iteration, &count));
    assert_int_equal(count, 1);
    assert_error(xseg_history_stack(allocator, 0, end_iteration, &count), ARGUMENT,
                 "unknown stack ID, 0");
    assert_error(xseg_history_stack(allocator, UINT32_MAX, end_iteration, &count), ARGUMENT,
                 "unknown stack ID, 4294967295");
    assert_int_equal(count, 1);
}

/* Frames with sources, of this file, and of alloc_here(). */
struct sources {
    unsigned count, of_here, functions;
};

static bool count_source(void *context, const struct xseg_history_frame *frame)
{
    /* A compiler may append a suffix, as in alloc_here.constprop.0. */
    static const char name[] = "alloc_here";
    struct sources *sources = context;

    sources->count += frame->source != NULL;
    sources->functions +=
        frame->function != NULL && strncmp(frame->function, name, sizeof(name) - 1) == 0;
    if (frame->source != NULL && strstr(frame->source, "api/history.c") != NULL)
        sources->of_here += frame->line > 0;
    return true;
}

/* Functions, files and lines are known after a snapshot. */
TEST_ON(snapshot_finds_sources, env_open("history:all,history_stacks:all"))
{
    struct sources before = {0}, after = {0};

    free_here(allocator, alloc_here(allocator, 1000));
    HISTORY_LIST recorded = history_read(allocator, 0);
    const uint32_t stack = recorded.entry[0].stack;
    assert_ok(xseg_history_stack(allocator, stack, count_source, &before));
    assert_int_equal(before.count + before.functions, 0);
    assert_ok(xseg_snapshot(allocator, "/dev/null", NULL));
    assert_ok(xseg_history_stack(allocator, stack, count_source, &after));
    /* Without libdw there are no sources.  The compiler may inline functions around the call. */
    if (after.count != 0) {
        assert_in_range(after.of_here, 1, 4);
        assert_int_equal(after.functions, 1);
    }
}

struct observer_state {
    struct xseg_allocator *allocator;
    void *freed;
};

static bool free_on_low_memory(void *context, const struct xseg_oom_info *oom)
{
    struct observer_state *state = context;

    (void)oom;
    if (state->freed == NULL)
        return false;
    free_here(state->allocator, state->freed);
    state->freed = NULL;
    return true;
}

TEST_ON(observer_does_not_replace_the_stack_of_the_request,
        env_open_mib(100, "history:all,history_stacks:all"))
{
    struct observer_state state = {.allocator = allocator};

    (void)env_observe(allocator, .context = &state, .on_low_memory = free_on_low_memory);
    state.freed = alloc_here(allocator, 80 * MIB);
    assert_ok(xseg_history_clear(allocator, -1));
    void *ptr = alloc_here(allocator, 60 * MIB);
    HISTORY_LIST recorded = history_read(allocator, 0);
    assert_true(recorded.count >= 3);
    for (size_t i = 0; i < recorded.count; i++)
        expect_stack(allocator, recorded.entry[i].stack, true,
                     recorded.entry[i].action == XSEG_HISTORY_FREE_REQUESTED ||
                         recorded.entry[i].action == XSEG_HISTORY_FREE_COMPLETED);
    env_free(allocator, ptr);
}

static const struct {
    const char *config, *words;
} recorded_rows[] = {
    {NULL, ""},
    {"history:nothing,history_stacks:all", ""},
    {"history:state,history_stacks:all", ""},
    {"history:all", "map alloc free done trim unmap"},
    {"history:all,history_skip:[]", "map alloc free done trim unmap"},
    {"history:all,history_skip:[alloc]", "map free done trim unmap"},
    {"history:all,history_skip:[free_completed,segment_map,trim]", "alloc free unmap"},
    {"history:all,history_skip:[alloc,free_requested,free_completed]", "map trim unmap"},
    {"history:all,history_skip:[alloc,free_requested,free_completed,segment_map,segment_unmap,"
     "trim]",
     ""},
};

TEST_TIMES(history_follows_configuration_changes, COUNT_OF(recorded_rows),
           env_open(recorded_rows[i].config))
{
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    env_empty_cache(allocator);
    history_expect(allocator, recorded_rows[i].words);
}

TEST_ON(keys_change_while_running, env_open(NULL))
{
    void *ptr = env_alloc(allocator, 1000, NULL);
    history_expect(allocator, "");
    assert_ok(xseg_config_set(allocator, "history:all"));
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 1000, NULL);
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 1000, NULL);
    assert_ok(xseg_config_set(allocator, "history:all,history_skip:[free_completed]"));
    env_free(allocator, ptr);
    /* Recorded events remain while recording is off. */
    history_expect(allocator, "free done alloc free");
    assert_ok(xseg_config_set(allocator, "history_stacks:all"));
    ptr = alloc_here(allocator, 1000);
    assert_ok(xseg_config_set(allocator, "history_stacks:none"));
    env_free(allocator, ptr);
    HISTORY_LIST recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 2);
    expect_stack(allocator, recorded.entry[0].stack, true, false);
    assert_int_equal(recorded.entry[1].stack, 0);
}

/* Blocks that stay allocated keep their stacks after recording has ended. */
TEST_TIMES(block_does_not_inherit_the_stack_of_an_earlier_block, 8,
           env_open(i & 1 ? "expandable_segments:True" : "expandable_segments:False"))
{
    /* Expandable or classic, small or large, of the default pool or of another. */
    const size_t bytes = i & 2 ? 1000 : 3 * MIB;
    struct xseg_pool *pool = i & 4 ? env_pool(allocator) : NULL;

    assert_ok(xseg_config_set(allocator, "history:all,history_stacks:all"));
    void *freed = env_alloc_in(allocator, pool, bytes, NULL);
    void *block = env_alloc_in(allocator, pool, bytes, NULL);
    void *allocated = env_alloc_in(allocator, pool, bytes, NULL);
    const uint32_t stack = env_block(allocator, allocated).stack;
    assert_int_not_equal(stack, 0);
    env_free(allocator, freed);
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    assert_ptr_equal(env_alloc_in(allocator, pool, bytes, NULL), freed);
    assert_int_equal(env_block(allocator, freed).stack, 0);
    assert_int_not_equal(env_block(allocator, block).stack, 0);
    env_free(allocator, block);
    assert_ptr_equal(env_alloc_in(allocator, pool, bytes, NULL), block);
    assert_int_equal(env_block(allocator, block).stack, 0);
    assert_ok(xseg_config_set(allocator, "history:all"));
    assert_int_equal(env_block(allocator, block).stack, 0);
    assert_int_equal(env_block(allocator, allocated).stack, stack);
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    env_free(allocator, allocated, block, freed);
}

/* A ring keeps the newest events and counts the events that they replaced. */
TEST_ON(overwritten_events_are_counted, env_open("history:all,history_events:16"))
{
    for (unsigned i = 0; i < 100; i++)
        alloc_and_free(allocator);
    struct history_list recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16);
    assert_int_equal(recorded.summary.lost, 1 + 100 * 3 - 16); /* a map, and 3 events per block */
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(recorded.entry[15 - i].action, XSEG_HISTORY_FREE_COMPLETED - i % 3);
    free(recorded.entry);
    /* A larger ring loses no more events, and does not recover lost ones. */
    assert_ok(xseg_config_set(allocator, "history_events:1000"));
    alloc_and_free(allocator);
    recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16 + 3);
    assert_int_equal(recorded.summary.lost, 1 + 100 * 3 - 16);
    free(recorded.entry);
    assert_ok(xseg_config_set(allocator, "history_events:16"));
    alloc_and_free(allocator);
    recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16);
    assert_int_equal(recorded.summary.lost, 1 + 102 * 3 - 16);
    free(recorded.entry);
    assert_ok(xseg_history_clear(allocator, 0));
    history_expect(allocator, "");
}

/* Equal stacks are stored once. */
TEST_ON(stacks_do_not_grow_with_events, env_open("history:all,history_stacks:all"))
{
    const unsigned pairs = 1000000 / (XSEG_CHECKS >= 3 ? 20 : 1);
    uint64_t stacks[2], bytes[2];

    for (unsigned phase = 0; phase < 2; phase++) {
        for (unsigned i = 0; i < (phase == 0 ? 1000 : pairs); i++)
            free_here(allocator, alloc_here(allocator, 1000));
        HISTORY_LIST recorded = history_read(allocator, 0);
        stacks[phase] = recorded.summary.stacks;
        assert_int_equal(recorded.summary.stacks_lost, 0);
        bytes[phase] = env_stats(allocator).host_bytes;
    }
    assert_in_range(stacks[0], 2, 8);
    assert_in_range(stacks[1], stacks[0], stacks[0] + 2);
    /* The ring is full: 65536 events of 64 bytes are 4 MiB. */
    assert_in_range(bytes[1], bytes[0], bytes[0] + 5 * MIB);
}

struct freeing_thread {
    struct xseg_allocator *allocator;
    void *ptr;
    int tid;
};

static void *free_in_thread(void *context)
{
    struct freeing_thread *thread = context;

    thread->tid = gettid();
    free_here(thread->allocator, thread->ptr);
    return NULL;
}

TEST(double_free_reports_the_first_free)
{
    static const struct {
        const char *config;
        bool has_frames;
    } rows[] = {
        {"history:all,history_stacks:all", true},
        {"history:all,history_stacks:alloc", false},
        {"history:all", false},
    };
    char words[128];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct freeing_thread thread = {.allocator = env_open(rows[i].config)};

        thread.ptr = env_alloc(thread.allocator, 8 * MIB, NULL);
        void *separator = env_alloc(thread.allocator, 8 * MIB, NULL);
        (void)env_run_thread(free_in_thread, &thread);
        for (unsigned k = 0; k < 19; k++)
            env_free(thread.allocator, env_alloc(thread.allocator, 30 * MIB, NULL));
        const xseg_status status = xseg_free(thread.allocator, (char *)thread.ptr + MIB);
        (void)snprintf(words, sizeof(words),
                       " ms ago by thread %d with the block of 8388608 bytes at %p%s", thread.tid,
                       thread.ptr, rows[i].has_frames ? ", from " : "");
        assert_error(status, NOT_ALLOCATED, words);
        if (rows[i].has_frames)
            assert_error(status, NOT_ALLOCATED, "test-api-history");
        env_free(thread.allocator, separator);
        env_close(thread.allocator);
    }
}

struct walker {
    struct xseg_allocator *allocator;
    unsigned visits, max;
};

/* The visitor may call the library; later events are not visited. */
static bool allocate_and_clear(void *context, const struct xseg_history_entry *entry)
{
    struct walker *walker = context;

    (void)entry;
    alloc_and_free(walker->allocator);
    env_empty_cache(walker->allocator);
    assert_ok(xseg_history_clear(walker->allocator, -1));
    return ++walker->visits < walker->max;
}

TEST(iteration_visits_the_events_before_it)
{
    struct walker walker = {.allocator = env_open("history:all"), .max = 1000};
    struct xseg_history_summary summary = {sizeof(summary)};

    for (unsigned i = 0; i < 10; i++)
        alloc_and_free(walker.allocator);
    assert_ok(xseg_for_each_event(walker.allocator, 0, allocate_and_clear, &walker, &summary));
    assert_int_equal(walker.visits, 1 + 10 * 3); /* a map, then alloc, free, completion */
    assert_int_equal(summary.events, 1 + 10 * 3);
    assert_int_equal(summary.lost, 0);
    history_expect(walker.allocator, "");
    for (unsigned i = 0; i < 10; i++)
        alloc_and_free(walker.allocator);
    walker = (struct walker){.allocator = walker.allocator, .max = 4};
    assert_ok(xseg_for_each_event(walker.allocator, -1, allocate_and_clear, &walker, NULL));
    assert_int_equal(walker.visits, 4);
    env_close(walker.allocator);
}

TEST_ON(events_of_devices_are_separate, env_open_sim_with_clock("history:all", .devices = 3))
{
    void *ptr = NULL;

    /* The events of device 1 precede those of device 0. */
    for (unsigned i = 0; i < 10; i++) {
        xseg_sim_advance(1000);
        if (i == 5)
            assert_ok(xseg_history_annotate(allocator, 1, "between"));
        xseg_sim_advance(1000);
        assert_ok(xseg_alloc(allocator, i < 5 ? 1 : 0, 30 * MIB, NULL, &ptr));
        env_free(allocator, ptr);
        env_empty_cache(allocator);
    }
    struct history_list all = history_read(allocator, -1), first = history_read(allocator, 0),
                        second = history_read(allocator, 1), third = history_read(allocator, 2);
    assert_int_equal(first.count, 5 * 6); /* map, alloc, free, completion, trim, unmap */
    assert_int_equal(second.count, 5 * 6 + 1);
    assert_int_equal(third.count, 0);
    assert_int_equal(all.count, first.count + second.count);
    for (size_t i = 0; i < all.count; i++) {
        const struct xseg_history_entry *expected =
            i < second.count ? &second.entry[i] : &first.entry[i - second.count];

        assert_int_equal(all.entry[i].device, i < second.count ? 1 : 0);
        assert_int_equal(expected->device, all.entry[i].device);
        assert_int_equal(expected->action, all.entry[i].action);
        assert_int_equal(expected->time_ns, all.entry[i].time_ns);
        assert_ptr_equal(expected->base, all.entry[i].base);
    }
    assert_int_equal(all.entry[30].action, XSEG_HISTORY_ANNOTATION);
    free(all.entry);
    free(first.entry);
    free(second.entry);
    assert_ok(xseg_history_clear(allocator, 1));
    second = history_read(allocator, -1);
    assert_int_equal(second.count, 30);
    assert_int_equal(second.entry[0].device, 0);
    free(second.entry);
}

TEST_ON(event_times_are_those_of_the_users_clock, env_open_with_clock(NULL, "history:all"))
{
    for (unsigned i = 0; i < 20; i++) {
        xseg_sim_advance(UINT64_C(1234567));
        const uint64_t now = xseg_sim_clock();
        void *ptr = env_alloc(allocator, 1000, NULL);
        HISTORY_LIST recorded = history_read(allocator, 0);
        for (size_t k = 0; k < recorded.count; k++)
            assert_in_range(recorded.entry[k].time_ns, now, xseg_sim_clock());
        assert_ok(xseg_history_clear(allocator, 0));
        env_free(allocator, ptr);
        assert_ok(xseg_history_clear(allocator, 0));
    }
}

struct hooked {
    pthread_mutex_t mutex; /* recursive, as an interpreter's lock is */
    struct xseg_allocator *allocator;
    uint32_t frames; /* result of `gather` */
    unsigned gathers;
};

static uint32_t gather_locked(void *context)
{
    struct hooked *hooked = context;

    (void)pthread_mutex_lock(&hooked->mutex);
    hooked->gathers++;
    const uint32_t frames = hooked->frames;
    (void)pthread_mutex_unlock(&hooked->mutex);
    return frames;
}

static uint32_t gather_unlocked(void *context)
{
    return ((const struct hooked *)context)->frames;
}

static void make_calls(struct hooked *hooked, unsigned i)
{
    env_free(hooked->allocator, env_alloc(hooked->allocator, 1000, NULL));
    env_free(hooked->allocator, env_alloc(hooked->allocator, 30 * MIB, NULL));
    if (i % 10 == 0)
        env_empty_cache(hooked->allocator);
}

static void *call_with_mutex(void *context)
{
    struct hooked *hooked = context;

    for (unsigned i = 0; i < 500; i++) {
        (void)pthread_mutex_lock(&hooked->mutex);
        make_calls(hooked, i);
        (void)pthread_mutex_unlock(&hooked->mutex);
    }
    return NULL;
}

static void *call_without_mutex(void *context)
{
    for (unsigned i = 0; i < 500; i++)
        make_calls(context, i);
    return NULL;
}

static void set_hook(struct xseg_allocator *allocator, struct hooked *hooked,
                     uint32_t (*gather)(void *context))
{
    struct xseg_history_hook hook = {sizeof(hook), .context = hooked, .gather = gather};

    assert_ok(xseg_history_set_hook(allocator, &hook));
}

TEST_ON(stacks_begin_with_user_frames, env_open("history:all,history_stacks:alloc"))
{
    struct hooked hooked = {.frames = 0};

    set_hook(allocator, &hooked, gather_unlocked);
    for (uint32_t i = 1; i < 50; i++) {
        hooked.frames = i * 1000;
        void *ptr = env_alloc(allocator, i % 2 == 0 ? 1000 : 30 * MIB, NULL);
        hooked.frames = 7;
        env_free(allocator, ptr);
        struct history_list recorded = history_read(allocator, 0);
        for (size_t k = 0; k < recorded.count; k++)
            assert_int_equal(recorded.entry[k].frames,
                             recorded.entry[k].action == XSEG_HISTORY_ALLOC ||
                                     recorded.entry[k].action == XSEG_HISTORY_SEGMENT_MAP
                                 ? i * 1000
                                 : 0);
        free(recorded.entry);
        assert_ok(xseg_history_clear(allocator, 0));
    }
    assert_ok(xseg_history_set_hook(allocator, NULL));
    alloc_and_free(allocator);
    struct history_list recorded = history_read(allocator, 0);
    for (size_t k = 0; k < recorded.count; k++)
        assert_int_equal(recorded.entry[k].frames, 0);
    assert_int_not_equal(recorded.entry[0].stack, 0);
    free(recorded.entry);
}

/* One thread calls the library with the hook's mutex, another waits for this mutex in the hook: a lock of the library that is
 * held around the hook would deadlock both. */
TEST(no_lock_is_held_around_the_hook)
{
    struct hooked hooked = {.frames = 5, .allocator = env_open("history:all,history_stacks:all")};
    pthread_mutexattr_t recursive;
    pthread_t locked, unlocked;

    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&hooked.mutex, &recursive);
    set_hook(hooked.allocator, &hooked, gather_locked);
    assert_int_equal(pthread_create(&locked, NULL, call_with_mutex, &hooked), 0);
    assert_int_equal(pthread_create(&unlocked, NULL, call_without_mutex, &hooked), 0);
    assert_int_equal(pthread_join(locked, NULL), 0);
    assert_int_equal(pthread_join(unlocked, NULL), 0);
    /* 2 threads x 500 x 4 allocations and frees, and trims. */
    assert_true(hooked.gathers > 4000);
    env_close(hooked.allocator);
    (void)pthread_mutex_destroy(&hooked.mutex);
    (void)pthread_mutexattr_destroy(&recursive);
}

static bool name_line(void *context, uint32_t frames, char *text, size_t bytes)
{
    assert_non_null(context);
    (void)snprintf(text, bytes, "line %u of train.py", (unsigned)frames);
    return true;
}

static bool name_at_length(void *context, uint32_t frames, char *text, size_t bytes)
{
    (void)context, (void)frames;
    memset(text, 'x', bytes - 1);
    text[bytes - 1] = '\0';
    return true;
}

static bool name_nothing(void *context, uint32_t frames, char *text, size_t bytes)
{
    (void)context, (void)frames, (void)text;
    return bytes == 0;
}

static bool name_without_text(void *context, uint32_t frames, char *text, size_t bytes)
{
    return !name_nothing(context, frames, text, bytes);
}

/* The error of a double free names the frames of the hook. */
static const struct {
    bool (*name)(void *context, uint32_t frames, char *text, size_t bytes);
    const char *word;
} frame_rows[] = {
    {name_line, ", in line 33 of train.py"},
    {name_at_length, ", in xxxxxx"},
    {name_nothing, ", from "},
    {name_without_text, ", from "},
    {NULL, ", from "},
};

TEST_TIMES(double_free_report_has_user_frames, COUNT_OF(frame_rows),
           env_open("history:all,history_stacks:all"))
{
    struct hooked hooked = {.frames = 33};
    const struct xseg_history_hook hook = {sizeof(hook), .context = &hooked,
                                           .gather = gather_unlocked, .name = frame_rows[i].name};

    assert_ok(xseg_history_set_hook(allocator, &hook));
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    env_free(allocator, ptr);
    assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, frame_rows[i].word);
    /* Without the hook the frames of the event have no name. */
    assert_ok(xseg_history_set_hook(allocator, NULL));
    assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, ", from ");
}

/* --- Discarded frame IDs of the hook. --- */

#define IDS_MAX 2000000u

/* A hook that returns a new frame ID for each call, and discards IDs as soon as it may. */
struct frame_ids {
    pthread_mutex_t mutex;
    uint32_t last;
    unsigned discards;                 /* calls of discard_old() */
    unsigned in_use, in_use_max;       /* IDs that are not discarded, and their maximum */
    uint8_t is_discarded[IDS_MAX];     /* by ID */
    unsigned discards_before[IDS_MAX]; /* `discards` when the ID was returned */
};

static uint32_t gather_new(void *context)
{
    struct frame_ids *ids = context;

    (void)pthread_mutex_lock(&ids->mutex);
    const uint32_t id = ++ids->last % IDS_MAX;
    ids->discards_before[id] = ids->discards;
    ids->in_use++;
    if (ids->in_use > ids->in_use_max)
        ids->in_use_max = ids->in_use;
    (void)pthread_mutex_unlock(&ids->mutex);
    return id;
}

static bool contains_id(const uint32_t *kept, size_t count, uint32_t id)
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (kept[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && kept[low] == id;
}

static void discard_old(void *context, const uint32_t *kept, size_t count)
{
    struct frame_ids *ids = context;

    (void)pthread_mutex_lock(&ids->mutex);
    for (size_t i = 1; i < count; i++)
        assert_true(kept[i] > kept[i - 1]);
    for (uint32_t id = 1; id <= ids->last && id < IDS_MAX; id++) {
        /* Returned before the previous call of this function. */
        const bool is_old = ids->discards_before[id] + 1 <= ids->discards;

        if (!is_old || ids->is_discarded[id] != 0 || contains_id(kept, count, id))
            continue;
        ids->is_discarded[id] = 1;
        ids->in_use--;
    }
    ids->discards++;
    (void)pthread_mutex_unlock(&ids->mutex);
}

static bool is_known(struct frame_ids *ids, uint32_t id)
{
    assert_true(id < IDS_MAX);
    return id == 0 || ids->is_discarded[id] == 0;
}

static bool expect_known_block(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE)
        assert_true(is_known(context, block->frames));
    return true;
}

/* Expect that the frame IDs of all events and blocks are not discarded. */
static void expect_known(struct xseg_allocator *allocator, struct frame_ids *ids)
{
    HISTORY_LIST recorded = history_read(allocator, -1);

    for (size_t i = 0; i < recorded.count; i++)
        assert_true(is_known(ids, recorded.entry[i].frames));
    assert_ok(xseg_for_each_block(allocator, NULL, expect_known_block, ids));
}

static struct frame_ids *hook_with_new_ids(struct xseg_allocator *allocator)
{
    struct frame_ids *ids = calloc(1, sizeof(*ids));
    const struct xseg_history_hook hook = {sizeof(hook), .context = ids, .gather = gather_new,
                                           .discard = discard_old};

    assert_non_null(ids);
    (void)pthread_mutex_init(&ids->mutex, NULL);
    assert_ok(xseg_history_set_hook(allocator, &hook));
    return ids;
}

static void close_with_ids(struct xseg_allocator *allocator, struct frame_ids *ids)
{
    env_close(allocator);
    (void)pthread_mutex_destroy(&ids->mutex);
    free(ids);
}

/* A clear keeps the frame IDs of allocated blocks and of later events. */
TEST(frame_ids_of_cleared_events_are_discarded)
{
    struct xseg_allocator *allocator = env_open("history:all,history_stacks:all");
    struct frame_ids *ids = hook_with_new_ids(allocator);
    void *allocated[10];

    for (size_t i = 0; i < COUNT_OF(allocated); i++)
        allocated[i] = env_alloc(allocator, i % 2 == 0 ? 1000 : 30 * MIB, NULL);
    for (unsigned i = 0; i < 100; i++)
        alloc_and_free(allocator);
    expect_known(allocator, ids);
    const unsigned in_use_before = ids->in_use;
    for (unsigned i = 0; i < 3; i++)
        assert_ok(xseg_history_clear(allocator, -1));
    assert_int_equal(ids->discards, 3);
    assert_in_range(ids->in_use, COUNT_OF(allocated), in_use_before / 2);
    expect_known(allocator, ids);
    for (size_t i = 0; i < COUNT_OF(allocated); i++) {
        assert_int_not_equal(env_block(allocator, allocated[i]).frames, 0);
        env_free(allocator, allocated[i]);
    }
    close_with_ids(allocator, ids);
}

static void *call_often(void *context)
{
    struct xseg_allocator *allocator = context;
    void *blocks[64] = {NULL};

    for (unsigned i = 0; i < 150000; i++) {
        void **slot = &blocks[i * 7 % COUNT_OF(blocks)];

        if (*slot != NULL && xseg_free(allocator, *slot) != XSEG_OK)
            return allocator;
        *slot = NULL;
        if (xseg_alloc(allocator, 0, 1000 + i % 5000, NULL, slot) != XSEG_OK)
            return allocator;
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        if (blocks[i] != NULL && xseg_free(allocator, blocks[i]) != XSEG_OK)
            return allocator;
    return NULL;
}

/* Frame IDs are collected while threads run and without a clear. */
TEST(unused_frame_ids_are_discarded_while_threads_run)
{
    struct xseg_allocator *allocator =
        env_open("history:all,history_stacks:all,history_events:1000");
    struct frame_ids *ids = hook_with_new_ids(allocator);
    pthread_t thread[3];
    void *failed = NULL;

    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, allocator), 0);
    for (unsigned i = 0; i < COUNT_OF(thread); i++) {
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    expect_known(allocator, ids);
    print_message("# %u frame IDs, %u discards, at most %u in use\n", (unsigned)ids->last,
                  ids->discards, ids->in_use_max);
    /* 3 threads x 150000 x an allocation and a free are 900000 IDs. */
    assert_true(ids->last >= 800000);
    assert_true(ids->discards >= 2);
    assert_in_range(ids->in_use_max, 1000, 400000);
    close_with_ids(allocator, ids);
}

TEST_ON(annotations_are_ordered_between_events, env_open("history:all,history_stacks:all"))
{
    char text[300];

    assert_ok(xseg_history_annotate(allocator, 0, "begin"));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    (void)strcpy(text, "overwritten soon");
    assert_ok(xseg_history_annotate(allocator, 0, text));
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_ok(xseg_history_annotate(allocator, 0, ""));
    assert_ok(xseg_history_annotate(allocator, 0, text));
    struct history_list recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 8);
    assert_string_equal(recorded.entry[0].label, "begin");
    assert_string_equal(recorded.entry[5].label, "overwritten soon");
    assert_string_equal(recorded.entry[6].label, "");
    assert_int_equal(strlen(recorded.entry[7].label), 119);
    assert_null(recorded.entry[0].base);
    assert_int_equal(recorded.entry[0].bytes, 0);
    assert_int_equal(recorded.entry[0].thread, gettid());
    assert_int_not_equal(recorded.entry[0].stack, 0);
    free(recorded.entry);
    history_expect(allocator, "text map alloc free done text text text");
    /* If there are more annotations than the ring holds, the newest are kept. */
    for (unsigned i = 0; i < 5000; i++)
        assert_ok(xseg_history_annotate(allocator, 0, i < 4990 ? "old" : "new"));
    recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count + recorded.summary.lost, 5000);
    assert_in_range(recorded.count, 1000, 4999);
    assert_string_equal(recorded.entry[recorded.count - 10].label, "new");
    assert_string_equal(recorded.entry[recorded.count - 11].label, "old");
    free(recorded.entry);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ok(xseg_config_set(allocator, "history_skip:[annotation]"));
    assert_ok(xseg_history_annotate(allocator, 0, "skipped"));
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    assert_ok(xseg_history_annotate(allocator, 0, "off"));
    history_expect(allocator, "");
}

/* Expect the labels of all ALLOC events in their order, and clear the history. */
static void expect_labels(struct xseg_allocator *allocator, const char *const *labels, size_t count)
{
    HISTORY_LIST recorded = history_read(allocator, 0);
    size_t found = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        if (recorded.entry[i].action != XSEG_HISTORY_ALLOC)
            continue;
        assert_true(found < count);
        if (labels[found] == NULL)
            assert_null(recorded.entry[i].label);
        else
            assert_string_equal(recorded.entry[i].label, labels[found]);
        found++;
    }
    assert_int_equal(found, count);
    assert_ok(xseg_history_clear(allocator, -1));
}

static void *work_with_a_label(void *context)
{
    const char *before = "not set";

    alloc_and_free(context);
    assert_ok(xseg_history_label(context, "thread", &before));
    assert_null(before);
    alloc_and_free(context);
    return NULL;
}

TEST_ON(labels_apply_to_a_scope_and_a_thread, env_open("history:all"))
{
    const char *outer = "not set", *inner = NULL;

    alloc_and_free(allocator);
    assert_ok(xseg_history_label(allocator, "outer", &outer));
    assert_null(outer);
    alloc_and_free(allocator);
    assert_ok(xseg_history_label(allocator, "inner", &inner));
    assert_string_equal(inner, "outer");
    alloc_and_free(allocator);
    (void)env_run_thread(work_with_a_label, allocator);
    alloc_and_free(allocator);
    assert_ok(xseg_history_label(allocator, inner, NULL));
    alloc_and_free(allocator);
    assert_ok(xseg_history_label(allocator, outer, NULL));
    alloc_and_free(allocator);
    expect_labels(
        allocator,
        (const char *const[]){NULL, "outer", "inner", NULL, "thread", "inner", "outer", NULL}, 8);
}

TEST(labels_of_two_allocators_do_not_mix)
{
    struct xseg_allocator *first = env_open("history:all"), *second = NULL;
    const char *before = "not set";

    assert_ok(env_try_open("history:all", &second));
    assert_ok(xseg_history_label(first, "one", NULL));
    alloc_and_free(first);
    alloc_and_free(second);
    assert_ok(xseg_history_label(second, "two", &before));
    assert_null(before);
    alloc_and_free(first);
    alloc_and_free(second);
    assert_ok(xseg_history_label(second, before, NULL));
    alloc_and_free(first);
    alloc_and_free(second);
    expect_labels(first, (const char *const[]){"one", "one", "one"}, 3);
    expect_labels(second, (const char *const[]){NULL, "two", NULL}, 3);
    assert_ok(xseg_close(second));
    env_close(first);
}

/* A thread has no label in the next allocator, which may be at the same address. */
TEST_TIMES(labels_end_with_the_allocator, 10, env_open("history:all,history_stacks:alloc"))
{
    const char *before = "not set";

    /* The label of the other thread has the same index. */
    (void)env_run_thread(work_with_a_label, allocator);
    alloc_and_free(allocator);
    expect_labels(allocator, (const char *const[]){NULL, "thread", NULL}, 3);
    assert_ok(xseg_history_label(allocator, "mine", &before));
    assert_null(before);
}

static bool fail_if_visited(void *context, const struct xseg_history_entry *entry)
{
    (void)context, (void)entry;
    fail_msg("visited");
    return false;
}

static bool fail_if_frame_visited(void *context, const struct xseg_history_frame *frame)
{
    (void)context, (void)frame;
    fail_msg("visited");
    return false;
}

TEST_ON(invalid_input_is_rejected, env_open_sim("history:all", .devices = 2))
{
    struct xseg_history_summary summary = {.struct_size = 3};
    struct xseg_history_hook hook = {sizeof(hook)};
    assert_error(xseg_for_each_event(NULL, 0, fail_if_visited, NULL, NULL), ARGUMENT, "NULL");
    assert_error(xseg_for_each_event(allocator, 0, NULL, NULL, NULL), ARGUMENT, "visit");
    assert_error(xseg_for_each_event(allocator, 0, fail_if_visited, NULL, &summary), ARGUMENT,
                 "summary->struct_size is unknown, 3");
    assert_error(xseg_for_each_event(allocator, 2, fail_if_visited, NULL, NULL), ARGUMENT,
                 "device 2 does not exist");
    assert_error(xseg_for_each_event(allocator, -2, fail_if_visited, NULL, NULL), ARGUMENT,
                 "device -2 does not exist");
    assert_error(xseg_history_clear(NULL, 0), ARGUMENT, "NULL");
    assert_error(xseg_history_clear(allocator, 2), ARGUMENT, "device 2 does not exist");
    assert_error(xseg_history_stack(NULL, 1, fail_if_frame_visited, NULL), ARGUMENT, "NULL");
    assert_error(xseg_history_stack(allocator, 1, NULL, NULL), ARGUMENT, "visit");
    assert_error(xseg_history_stack(allocator, 1, fail_if_frame_visited, NULL), ARGUMENT,
                 "unknown stack ID, 1");
    assert_error(xseg_history_set_hook(NULL, NULL), ARGUMENT, "NULL");
    assert_error(xseg_history_set_hook(allocator, &hook), ARGUMENT, "gather");
    hook.gather = gather_unlocked;
    hook.struct_size--;
    assert_error(xseg_history_set_hook(allocator, &hook), ARGUMENT, "hook->struct_size is unknown");
    assert_error(xseg_history_annotate(NULL, 0, "text"), ARGUMENT, "NULL");
    assert_error(xseg_history_annotate(allocator, 0, NULL), ARGUMENT, "text");
    assert_error(xseg_history_annotate(allocator, -1, "text"), ARGUMENT, "-1");
    assert_error(xseg_history_annotate(allocator, 2, "text"), ARGUMENT, "2");
    assert_error(xseg_history_label(NULL, "text", NULL), ARGUMENT, "NULL");
    assert_ok(xseg_history_label(allocator, NULL, NULL));
    assert_error(xseg_config_set(allocator, "history_events:15"), CONFIG, "16");
    assert_error(xseg_config_set(allocator, "history_events:16777217"), CONFIG, "16777216");
    assert_error(xseg_config_set(allocator, "history:some"), CONFIG, "some");
    assert_error(xseg_config_set(allocator, "history_skip:[alloc,nonsense]"), CONFIG, "nonsense");
    history_expect(allocator, "");
}

TEST_ON(calls_of_a_forked_child_fail, env_open("history:all,history_stacks:all"))
{
    alloc_and_free(allocator);
    env_expect_forked(true, xseg_for_each_event(allocator, 0, fail_if_visited, NULL, NULL),
                      xseg_history_clear(allocator, 0),
                      xseg_history_stack(allocator, 1, fail_if_frame_visited, NULL),
                      xseg_history_set_hook(allocator, NULL),
                      xseg_history_annotate(allocator, 0, "child"),
                      xseg_history_label(allocator, "child", NULL));
    history_expect(allocator, "map alloc free done");
}
