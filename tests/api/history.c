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

/* The calls are not the last thing that these functions do, so that they stay on the stack. */
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

static void touch(struct xseg_allocator *allocator)
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
    bool alloc, other; /* whether such events have stacks */
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

        assert_int_equal(entry->stack != 0, is_alloc ? stack_rows[i].alloc : stack_rows[i].other);
        if (entry->stack != 0)
            expect_stack(allocator, entry->stack, is_alloc, !is_alloc);
    }
    assert_in_range(recorded.summary.stacks,
                    stack_rows[i].other   ? 4
                    : stack_rows[i].alloc ? 2
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
                 "unknown stack number, 1");
    assert_ok(xseg_config_set(allocator, "history_stacks:all"));
    free_here(allocator, alloc_here(allocator, 1000));
    HISTORY_LIST recorded = history_read(allocator, 0);
    assert_ok(xseg_history_stack(allocator, recorded.entry[1].stack, end_iteration, &count));
    assert_int_equal(count, 1);
    assert_error(xseg_history_stack(allocator, 0, end_iteration, &count), ARGUMENT,
                 "unknown stack number, 0");
    assert_error(xseg_history_stack(allocator, UINT32_MAX, end_iteration, &count), ARGUMENT,
                 "unknown stack number, 4294967295");
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
    /* None without libdw.  The functions around the call, which a compiler may inline. */
    if (after.count != 0) {
        assert_in_range(after.of_here, 1, 4);
        assert_int_equal(after.functions, 1);
    }
}

struct observer_state {
    struct xseg_allocator *allocator;
    void *freed;
};

static bool free_one(void *context, const struct xseg_oom_info *oom)
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
    struct observer_state observed = {.allocator = allocator};

    (void)env_observe(allocator, .context = &observed, .on_low_memory = free_one);
    observed.freed = alloc_here(allocator, 80 * MIB);
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

/* Allocated blocks keep their stacks after recording has ended. */
TEST_TIMES(block_does_not_inherit_the_stack_of_an_earlier_block, 8,
           env_open(i & 1 ? "expandable_segments:True" : "expandable_segments:False"))
{
    /* Expandable or classic, small or large, of the default pool or of another. */
    const size_t bytes = i & 2 ? 1000 : 3 * MIB;
    struct xseg_pool *pool = i & 4 ? env_pool(allocator) : NULL;

    assert_ok(xseg_config_set(allocator, "history:all,history_stacks:all"));
    void *freed = env_alloc_in(allocator, pool, bytes, NULL);
    void *block = env_alloc_in(allocator, pool, bytes, NULL);
    void *live = env_alloc_in(allocator, pool, bytes, NULL);
    const uint32_t stack = env_block(allocator, live).stack;
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
    assert_int_equal(env_block(allocator, live).stack, stack);
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    env_free(allocator, live, block, freed);
}

/* A ring keeps the newest events and counts the others. */
TEST_ON(overwritten_events_are_counted, env_open("history:all,history_events:16"))
{
    for (unsigned i = 0; i < 100; i++)
        touch(allocator);
    struct history_list recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16);
    assert_int_equal(recorded.summary.lost, 1 + 300 - 16); /* a map, and 100 times 3 events */
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(recorded.entry[15 - i].action, XSEG_HISTORY_FREE_COMPLETED - i % 3);
    free(recorded.entry);
    /* A larger ring loses no more events, and does not recover lost ones. */
    assert_ok(xseg_config_set(allocator, "history_events:1000"));
    touch(allocator);
    recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16 + 3);
    assert_int_equal(recorded.summary.lost, 1 + 300 - 16);
    free(recorded.entry);
    assert_ok(xseg_config_set(allocator, "history_events:16"));
    touch(allocator);
    recorded = history_read(allocator, 0);
    assert_int_equal(recorded.count, 16);
    assert_int_equal(recorded.summary.lost, 1 + 306 - 16);
    free(recorded.entry);
    assert_ok(xseg_history_clear(allocator, 0));
    history_expect(allocator, "");
}

/* The number of stacks depends on the call sites. */
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
    /* The ring has filled up: 65536 events of 64 bytes. */
    assert_in_range(bytes[1], bytes[0], bytes[0] + 5 * MIB);
}

struct other_thread {
    struct xseg_allocator *allocator;
    void *ptr;
    int tid;
};

static void *free_elsewhere(void *context)
{
    struct other_thread *other = context;

    other->tid = gettid();
    free_here(other->allocator, other->ptr);
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
    char word[64];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct other_thread other = {.allocator = env_open(rows[i].config)};

        other.ptr = env_alloc(other.allocator, 8 * MIB, NULL);
        void *fence = env_alloc(other.allocator, 8 * MIB, NULL);
        (void)env_run_thread(free_elsewhere, &other);
        for (unsigned k = 0; k < 19; k++)
            env_free(other.allocator, env_alloc(other.allocator, 30 * MIB, NULL));
        const xseg_status status = xseg_free(other.allocator, (char *)other.ptr + MIB);
        (void)snprintf(word, sizeof(word),
                       " ms ago by thread %d with the block of 8388608 bytes at %p%s", other.tid,
                       other.ptr, rows[i].has_frames ? ", from " : "");
        assert_error(status, NOT_ALLOCATED, word);
        if (rows[i].has_frames)
            assert_error(status, NOT_ALLOCATED, "test-api-history");
        env_free(other.allocator, fence);
        env_close(other.allocator);
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
    touch(walker->allocator);
    env_empty_cache(walker->allocator);
    assert_ok(xseg_history_clear(walker->allocator, -1));
    return ++walker->visits < walker->max;
}

TEST(iteration_visits_the_events_before_it)
{
    struct walker walker = {.allocator = env_open("history:all"), .max = 1000};
    struct xseg_history_summary summary = {sizeof(summary)};

    for (unsigned i = 0; i < 10; i++)
        touch(walker.allocator);
    assert_ok(xseg_for_each_event(walker.allocator, 0, allocate_and_clear, &walker, &summary));
    assert_int_equal(walker.visits, 1 + 10 * 3); /* a map, then alloc, free, completion */
    assert_int_equal(summary.events, 1 + 10 * 3);
    assert_int_equal(summary.lost, 0);
    history_expect(walker.allocator, "");
    for (unsigned i = 0; i < 10; i++)
        touch(walker.allocator);
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
    struct history_list both = history_read(allocator, -1), first = history_read(allocator, 0),
                        second = history_read(allocator, 1), third = history_read(allocator, 2);
    assert_int_equal(first.count, 5 * 6); /* map, alloc, free, completion, trim, unmap */
    assert_int_equal(second.count, 5 * 6 + 1);
    assert_int_equal(third.count, 0);
    assert_int_equal(both.count, first.count + second.count);
    for (size_t i = 0; i < both.count; i++) {
        const struct xseg_history_entry *same =
            i < second.count ? &second.entry[i] : &first.entry[i - second.count];

        assert_int_equal(both.entry[i].device, i < second.count ? 1 : 0);
        assert_int_equal(same->device, both.entry[i].device);
        assert_int_equal(same->action, both.entry[i].action);
        assert_int_equal(same->time_ns, both.entry[i].time_ns);
        assert_ptr_equal(same->base, both.entry[i].base);
    }
    assert_int_equal(both.entry[30].action, XSEG_HISTORY_ANNOTATION);
    free(both.entry);
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
    uint32_t number; /* result of `gather` */
    unsigned gathers;
};

static uint32_t gather_locked(void *context)
{
    struct hooked *hooked = context;

    (void)pthread_mutex_lock(&hooked->mutex);
    hooked->gathers++;
    const uint32_t number = hooked->number;
    (void)pthread_mutex_unlock(&hooked->mutex);
    return number;
}

static uint32_t gather_unlocked(void *context)
{
    return ((const struct hooked *)context)->number;
}

static void call_some(struct hooked *hooked, unsigned i)
{
    env_free(hooked->allocator, env_alloc(hooked->allocator, 1000, NULL));
    env_free(hooked->allocator, env_alloc(hooked->allocator, 30 * MIB, NULL));
    if (i % 10 == 0)
        env_empty_cache(hooked->allocator);
}

static void *call_locked(void *context)
{
    struct hooked *hooked = context;

    for (unsigned i = 0; i < 500; i++) {
        (void)pthread_mutex_lock(&hooked->mutex);
        call_some(hooked, i);
        (void)pthread_mutex_unlock(&hooked->mutex);
    }
    return NULL;
}

static void *call_unlocked(void *context)
{
    for (unsigned i = 0; i < 500; i++)
        call_some(context, i);
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
    struct hooked hooked = {.number = 0};

    set_hook(allocator, &hooked, gather_unlocked);
    for (uint32_t i = 1; i < 50; i++) {
        hooked.number = i * 1000;
        void *ptr = env_alloc(allocator, i % 2 == 0 ? 1000 : 30 * MIB, NULL);
        hooked.number = 7;
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
    touch(allocator);
    struct history_list recorded = history_read(allocator, 0);
    for (size_t k = 0; k < recorded.count; k++)
        assert_int_equal(recorded.entry[k].frames, 0);
    assert_int_not_equal(recorded.entry[0].stack, 0);
    free(recorded.entry);
}

/* One thread calls with the hook's lock held, another waits for it in the hook: a library lock would deadlock both. */
TEST(no_lock_is_held_around_the_hook)
{
    struct hooked hooked = {.number = 5, .allocator = env_open("history:all,history_stacks:all")};
    pthread_mutexattr_t recursive;
    pthread_t locked, unlocked;

    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&hooked.mutex, &recursive);
    set_hook(hooked.allocator, &hooked, gather_locked);
    assert_int_equal(pthread_create(&locked, NULL, call_locked, &hooked), 0);
    assert_int_equal(pthread_create(&unlocked, NULL, call_unlocked, &hooked), 0);
    assert_int_equal(pthread_join(locked, NULL), 0);
    assert_int_equal(pthread_join(unlocked, NULL), 0);
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
    struct hooked hooked = {.number = 33};
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

/* --- Discarded numbers of the hook. --- */

#define NUMBERS_MAX 2000000u

/* A hook with a new number for each call, which drops numbers as soon as it may. */
struct counting {
    pthread_mutex_t mutex;
    uint32_t last;
    unsigned discards;            /* calls of discard_old() */
    unsigned held, held_max;      /* numbers that are not dropped, and their maximum */
    uint8_t dropped[NUMBERS_MAX]; /* by number */
    unsigned before[NUMBERS_MAX]; /* `discards` when the number was returned */
};

static uint32_t gather_new(void *context)
{
    struct counting *counting = context;

    (void)pthread_mutex_lock(&counting->mutex);
    const uint32_t number = ++counting->last % NUMBERS_MAX;
    counting->before[number] = counting->discards;
    counting->held++;
    if (counting->held > counting->held_max)
        counting->held_max = counting->held;
    (void)pthread_mutex_unlock(&counting->mutex);
    return number;
}

static bool is_among(const uint32_t *kept, size_t count, uint32_t number)
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (kept[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && kept[low] == number;
}

static void discard_old(void *context, const uint32_t *kept, size_t count)
{
    struct counting *counting = context;

    (void)pthread_mutex_lock(&counting->mutex);
    for (size_t i = 1; i < count; i++)
        assert_true(kept[i] > kept[i - 1]);
    for (uint32_t number = 1; number <= counting->last && number < NUMBERS_MAX; number++) {
        /* Returned before the previous call of this function. */
        const bool is_old = counting->before[number] + 1 <= counting->discards;

        if (!is_old || counting->dropped[number] != 0 || is_among(kept, count, number))
            continue;
        counting->dropped[number] = 1;
        counting->held--;
    }
    counting->discards++;
    (void)pthread_mutex_unlock(&counting->mutex);
}

static bool is_known(struct counting *counting, uint32_t number)
{
    assert_true(number < NUMBERS_MAX);
    return number == 0 || counting->dropped[number] == 0;
}

static bool check_block(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE)
        assert_true(is_known(context, block->frames));
    return true;
}

/* Expect that the numbers of all events and blocks are not dropped. */
static void expect_known(struct xseg_allocator *allocator, struct counting *counting)
{
    HISTORY_LIST recorded = history_read(allocator, -1);

    for (size_t i = 0; i < recorded.count; i++)
        assert_true(is_known(counting, recorded.entry[i].frames));
    assert_ok(xseg_for_each_block(allocator, NULL, check_block, counting));
}

static struct counting *hook_counting(struct xseg_allocator *allocator)
{
    struct counting *counting = calloc(1, sizeof(*counting));
    const struct xseg_history_hook hook = {sizeof(hook), .context = counting, .gather = gather_new,
                                           .discard = discard_old};

    assert_non_null(counting);
    (void)pthread_mutex_init(&counting->mutex, NULL);
    assert_ok(xseg_history_set_hook(allocator, &hook));
    return counting;
}

static void close_counting(struct xseg_allocator *allocator, struct counting *counting)
{
    env_close(allocator);
    (void)pthread_mutex_destroy(&counting->mutex);
    free(counting);
}

/* A clear keeps the labels of allocated blocks and of later events. */
TEST(numbers_of_cleared_events_are_discarded)
{
    struct xseg_allocator *allocator = env_open("history:all,history_stacks:all");
    struct counting *counting = hook_counting(allocator);
    void *live[10];

    for (size_t i = 0; i < COUNT_OF(live); i++)
        live[i] = env_alloc(allocator, i % 2 == 0 ? 1000 : 30 * MIB, NULL);
    for (unsigned i = 0; i < 100; i++)
        touch(allocator);
    expect_known(allocator, counting);
    const unsigned held = counting->held;
    for (unsigned i = 0; i < 3; i++)
        assert_ok(xseg_history_clear(allocator, -1));
    assert_int_equal(counting->discards, 3);
    assert_in_range(counting->held, COUNT_OF(live), held / 2);
    expect_known(allocator, counting);
    for (size_t i = 0; i < COUNT_OF(live); i++) {
        assert_int_not_equal(env_block(allocator, live[i]).frames, 0);
        env_free(allocator, live[i]);
    }
    close_counting(allocator, counting);
}

static void *call_often(void *context)
{
    struct xseg_allocator *allocator = context;
    void *held[64] = {NULL};

    for (unsigned i = 0; i < 150000; i++) {
        void **at = &held[i * 7 % COUNT_OF(held)];

        if (*at != NULL && xseg_free(allocator, *at) != XSEG_OK)
            return allocator;
        *at = NULL;
        if (xseg_alloc(allocator, 0, 1000 + i % 5000, NULL, at) != XSEG_OK)
            return allocator;
    }
    for (size_t i = 0; i < COUNT_OF(held); i++)
        if (held[i] != NULL && xseg_free(allocator, held[i]) != XSEG_OK)
            return allocator;
    return NULL;
}

/* Labels are collected while threads run and without a clear. */
TEST(unused_numbers_are_discarded_while_threads_run)
{
    struct xseg_allocator *allocator =
        env_open("history:all,history_stacks:all,history_events:1000");
    struct counting *counting = hook_counting(allocator);
    pthread_t thread[3];
    void *failed = NULL;

    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, allocator), 0);
    for (unsigned i = 0; i < COUNT_OF(thread); i++) {
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    expect_known(allocator, counting);
    print_message("# %u numbers, %u discards, at most %u held\n", (unsigned)counting->last,
                  counting->discards, counting->held_max);
    assert_true(counting->last >= 800000);
    assert_true(counting->discards >= 2);
    assert_in_range(counting->held_max, 1000, 400000);
    close_counting(allocator, counting);
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

    touch(context);
    assert_ok(xseg_history_label(context, "thread", &before));
    assert_null(before);
    touch(context);
    return NULL;
}

TEST_ON(labels_apply_to_a_scope_and_a_thread, env_open("history:all"))
{
    const char *outer = "not set", *inner = NULL;

    touch(allocator);
    assert_ok(xseg_history_label(allocator, "outer", &outer));
    assert_null(outer);
    touch(allocator);
    assert_ok(xseg_history_label(allocator, "inner", &inner));
    assert_string_equal(inner, "outer");
    touch(allocator);
    (void)env_run_thread(work_with_a_label, allocator);
    touch(allocator);
    assert_ok(xseg_history_label(allocator, inner, NULL));
    touch(allocator);
    assert_ok(xseg_history_label(allocator, outer, NULL));
    touch(allocator);
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
    touch(first);
    touch(second);
    assert_ok(xseg_history_label(second, "two", &before));
    assert_null(before);
    touch(first);
    touch(second);
    assert_ok(xseg_history_label(second, before, NULL));
    touch(first);
    touch(second);
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
    touch(allocator);
    expect_labels(allocator, (const char *const[]){NULL, "thread", NULL}, 3);
    assert_ok(xseg_history_label(allocator, "mine", &before));
    assert_null(before);
}

static bool never(void *context, const struct xseg_history_entry *entry)
{
    (void)context, (void)entry;
    fail_msg("visited");
    return false;
}

static bool never_frame(void *context, const struct xseg_history_frame *frame)
{
    (void)context, (void)frame;
    fail_msg("visited");
    return false;
}

TEST_ON(invalid_input_is_rejected, env_open_sim("history:all", .devices = 2))
{
    struct xseg_history_summary summary = {.struct_size = 3};
    struct xseg_history_hook hook = {sizeof(hook)};
    assert_error(xseg_for_each_event(NULL, 0, never, NULL, NULL), ARGUMENT, "NULL");
    assert_error(xseg_for_each_event(allocator, 0, NULL, NULL, NULL), ARGUMENT, "visit");
    assert_error(xseg_for_each_event(allocator, 0, never, NULL, &summary), ARGUMENT,
                 "summary->struct_size is unknown, 3");
    assert_error(xseg_for_each_event(allocator, 2, never, NULL, NULL), ARGUMENT,
                 "device 2 does not exist");
    assert_error(xseg_for_each_event(allocator, -2, never, NULL, NULL), ARGUMENT,
                 "device -2 does not exist");
    assert_error(xseg_history_clear(NULL, 0), ARGUMENT, "NULL");
    assert_error(xseg_history_clear(allocator, 2), ARGUMENT, "device 2 does not exist");
    assert_error(xseg_history_stack(NULL, 1, never_frame, NULL), ARGUMENT, "NULL");
    assert_error(xseg_history_stack(allocator, 1, NULL, NULL), ARGUMENT, "visit");
    assert_error(xseg_history_stack(allocator, 1, never_frame, NULL), ARGUMENT,
                 "unknown stack number, 1");
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
    touch(allocator);
    env_expect_forked(
        true, xseg_for_each_event(allocator, 0, never, NULL, NULL),
        xseg_history_clear(allocator, 0), xseg_history_stack(allocator, 1, never_frame, NULL),
        xseg_history_set_hook(allocator, NULL), xseg_history_annotate(allocator, 0, "child"),
        xseg_history_label(allocator, "child", NULL));
    history_expect(allocator, "map alloc free done");
}
