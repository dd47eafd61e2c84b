/* SPDX-License-Identifier: MIT */
/* Paths, pool IDs, times and visible events of snapshots. */
#include <time.h>
#include <unistd.h>

#include "src/core/report/snapshot.h"
#include "src/core/report/snapshot_writer.h"
#include "tests/support/history_list.h"

/* --- Paths. --- */

static void set_ranks(const char *rank, const char *slurm, const char *local)
{
    const char *const names[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};
    const char *const values[] = {rank, slurm, local};

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(values[i] == NULL ? unsetenv(names[i]) : setenv(names[i], values[i], 1),
                         0);
}

static void expect_path(const char *rank)
{
    char name[128], expected[128];

    (void)snprintf(expected, sizeof(expected), "a/folder/oom-%spid%ld-7.pickle", rank,
                   (long)getpid());
    assert_int_equal(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7), strlen(expected));
    assert_string_equal(name, expected);
}

/* The rank becomes part of a path, so only digits are accepted. */
TEST(path_has_the_rank_of_the_first_variable_with_a_rank)
{
    static const char *const invalid[] = {"", "-1", "../../etc", "1/2", "0x3", " 4", "12345678901"};
    char name[16];

    set_ranks(NULL, NULL, "2");
    expect_path("rank2-");
    set_ranks(NULL, "31", "2");
    expect_path("rank31-");
    set_ranks("1023", "31", "2");
    expect_path("rank1023-");
    for (size_t i = 0; i < COUNT_OF(invalid); i++) {
        set_ranks(invalid[i], NULL, NULL);
        expect_path("");
        set_ranks(invalid[i], invalid[i], "5");
        expect_path("rank5-");
    }
    set_ranks("0123456789", NULL, NULL);
    expect_path("rank0123456789-");
    set_ranks(NULL, NULL, NULL);
    expect_path("");
    /* A path that does not fit is truncated. */
    assert_true(xseg_oom_snapshots_path(name, sizeof(name), "a/folder", 7) >= sizeof(name));
    assert_int_equal(strlen(name), sizeof(name) - 1);
}

/* --- Pools. --- */

static const struct xseg_clock system_clock = {.read = NULL};

TEST(pool_has_the_id_of_its_user_or_its_number)
{
    const uint64_t id[2] = {5, 6};
    struct xseg_snapshot_writer writer;
    struct xseg_history_store store;

    xseg_history_store_init(&store, &system_clock);
    assert_true(xseg_history_store_add_pool_id(&store, 70, id));
    xseg_snapshot_writer_init(&writer, &store);
    for (unsigned round = 0; round < 2; round++) {
        /* Pools 70 and 6 share an entry of the cache. */
        assert_memory_equal(xseg_snapshot_pool_id(&writer, 70), id, sizeof(id));
        for (uint32_t number = 0; number < 300; number++) {
            const uint64_t *pool = xseg_snapshot_pool_id(&writer, number);

            assert_int_equal(pool[0], number == 70 ? 5 : 0);
            assert_int_equal(pool[1], number == 70 ? 6 : number);
        }
    }
    xseg_snapshot_writer_fini(&writer);
    xseg_history_store_fini(&store);
}

/* --- Times. --- */

static uint64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t read_user_time(void *context)
{
    return *(uint64_t *)context;
}

TEST(time_is_in_microseconds_since_1970_or_of_the_users_clock)
{
    uint64_t user_time = 42000500;
    const struct xseg_clock user_clock = {.read = read_user_time, .context = &user_time};
    struct xseg_snapshot_writer writer;
    struct xseg_history_store store;

    for (unsigned has_user_clock = 0; has_user_clock < 2; has_user_clock++) {
        xseg_history_store_init(&store, has_user_clock ? &user_clock : &system_clock);
        xseg_snapshot_writer_init(&writer, &store);
        const struct xseg_history_moment moment = xseg_history_store_moment(&store);
        const uint64_t time = xseg_snapshot_time_us(&writer, &moment, moment.ticks);
        if (has_user_clock)
            assert_int_equal(time, 42000);
        else
            /* From 2 s ago to 0.1 s ahead. */
            assert_in_range(now_us() - time + 1000000, 900000, 3000000);
        xseg_snapshot_writer_fini(&writer);
        xseg_history_store_fini(&store);
    }
}

/* --- The eviction filter of a trace. Addresses and sizes are in units of 4 KiB, from BASE; all events are of one ring. --- */

#define UNIT       ((uint64_t)4096)
#define BASE       ((uint64_t)1 << 40)
#define MAX_EVENTS 12000u

static struct {
    struct xseg_history_event events[MAX_EVENTS];
    size_t count;
    struct xseg_heap_copy heap;
    struct xseg_heap_range ranges[4];
    struct xseg_heap_range *list[4];
    struct xseg_heap_block blocks[4][8];
    struct xseg_history_merge merge;
    struct xseg_eviction_filter filter;
    char allocated[256]; /* by unit: x if an allocated block of the last visit begins there */
} trace;

FIXTURE(begin)
{
    memset(&trace, 0, sizeof(trace));
    trace.heap.ranges = trace.list;
}

static void add_event(enum xseg_history_action action, uint64_t from, uint64_t units)
{
    assert_true(trace.count < MAX_EVENTS);
    trace.events[trace.count] = (struct xseg_history_event){
        .time = trace.count + 1,
        .base = BASE + from * UNIT,
        .requested = units * UNIT,
        .size = xseg_history_event_size(units * UNIT) & XSEG_HISTORY_SIZE_MASK,
        .stack = (uint32_t)trace.count + 1,
        .action = (uint8_t)action,
    };
    trace.count++;
}

/* Append events, such as "alloc 0 2, free 0 2", with the names of history_action_name(). */
static void append_events(const char *events)
{
    unsigned from, units;
    char action_name[16];
    int length;

    for (; sscanf(events, "%15s %u %u%n", action_name, &from, &units, &length) == 3;
         events += length) {
        unsigned action = 0;

        while (strcmp(history_action_name(action), action_name) != 0)
            action++;
        add_event(action, from, units);
        length += events[length] == ',';
    }
    assert_string_equal(events, "");
}

/* Add a range to the state after the last event. */
static void add_range(uint64_t from, uint64_t units, bool is_evicted)
{
    struct xseg_heap_range *range = &trace.ranges[trace.heap.count];

    range->base = BASE + from * UNIT;
    range->bytes = units * UNIT;
    range->is_evicted = is_evicted;
    range->blocks = trace.blocks[trace.heap.count];
    trace.list[trace.heap.count++] = range;
}

static void add_block(uint64_t from, uint64_t units, uint8_t state)
{
    const size_t last = trace.heap.count - 1;
    struct xseg_heap_range *range = trace.list[last];

    trace.blocks[last][range->count++] =
        (struct xseg_heap_block){.base = BASE + from * UNIT, .bytes = units * UNIT, .state = state};
}

static void init_filter(void)
{
    struct xseg_history_event *copy = malloc((trace.count + 1) * sizeof(*copy));

    assert_non_null(copy);
    memcpy(copy, trace.events, trace.count * sizeof(*copy));
    xseg_history_merge_init(&trace.merge);
    assert_true(xseg_history_merge_add(&trace.merge, copy, NULL, trace.count));
    assert_true(xseg_history_merge_begin(&trace.merge));
    assert_true(xseg_eviction_filter_init(&trace.filter, &trace.merge, &trace.heap));
}

FIXTURE(end)
{
    xseg_eviction_filter_fini(&trace.filter);
    xseg_history_merge_fini(&trace.merge);
}

/* `expected` has a digit for each event: 1 if the trace shows it.  The filter runs twice, because a trace can restart. */
static void expect_shown(const char *expected)
{
    char shown[64];

    for (unsigned round = 0; round < 2; round++) {
        memset(shown, 0, sizeof(shown));
        xseg_eviction_filter_restart(&trace.filter);
        for (size_t i = 0; i < trace.count; i++)
            shown[i] = xseg_eviction_filter_apply(&trace.filter, &trace.events[i]) ? '1' : '0';
        assert_string_equal(shown, expected);
    }
}

static void mark_block(void *self, const struct xseg_tracked_block *block)
{
    (void)self;
    if (block->state == XSEG_BLOCK_ALLOCATED)
        trace.allocated[(block->base - BASE) / UNIT] = 'x';
}

/* Expect the blocks of a range that are allocated after the first `events` events: an x at the first unit of each. */
static void expect_allocated(size_t events, uint64_t from, uint64_t units, const char *expected)
{
    memset(trace.allocated, '.', sizeof(trace.allocated));
    xseg_eviction_filter_restart(&trace.filter);
    for (size_t i = 0; i < events; i++)
        (void)xseg_eviction_filter_apply(&trace.filter, &trace.events[i]);
    xseg_eviction_filter_visit(&trace.filter, BASE + from * UNIT, units * UNIT, mark_block, NULL);
    trace.allocated[strlen(expected)] = '\0';
    assert_string_equal(trace.allocated, expected);
}

TEST_WITH(trace_without_pause_shows_all_events, begin, end)
{
    append_events("map 0 10, alloc 0 2, free 0 2, done 0 2, unmap 0 10");
    init_filter();
    assert_int_equal(trace.filter.count, 0);
    expect_shown("11111");
    expect_allocated(2, 0, 10, "...");
}

TEST_WITH(events_during_a_pause_are_hidden, begin, end)
{
    append_events("alloc 0 2, alloc 4 2, alloc 20 2, pause 0 10, free 4 2, done 4 2, free 20 2, "
                  "resume 0 10, free 0 2");
    init_filter();
    expect_shown("111100111");
    expect_allocated(3, 0, 10, "x...x...");
    expect_allocated(7, 0, 10, "x.......");
    /* The end of a range is exclusive. */
    expect_allocated(3, 0, 4, "x...");
    expect_allocated(3, 1, 4, "....x");
    expect_allocated(9, 0, 10, "........");
}

/* A pool that was paused before the first event and then destroyed is known only by its frees. */
TEST_WITH(events_of_a_pool_that_is_always_paused_are_hidden, begin, end)
{
    append_events("free 0 1, done 0 1, free 4 1");
    trace.events[0].flags = trace.events[1].flags = XSEG_HISTORY_EVICTED;
    init_filter();
    expect_shown("001");
}

/* One pause, three resumes; then two pauses and one resume. */
TEST_WITH(pause_and_resume_in_parts_hide_only_their_parts, begin, end)
{
    append_events("pause 0 12, resume 4 4, free 1 1, free 5 1, free 9 1, resume 8 4, done 1 1, "
                  "done 9 1, resume 0 4, alloc 1 1, pause 0 6, pause 6 6, free 1 1, resume 0 12, "
                  "done 1 1");
    init_filter();
    expect_shown("110101011111011");
    /* The first event of the block at 5 is its free, so it was allocated before the first event. */
    expect_allocated(1, 4, 4, ".....x..");
    expect_allocated(13, 0, 12, "............");
}

/* The initial states do not depend on the events that were applied before the restart. */
TEST_WITH(restart_restores_the_initial_state_of_each_block, begin, end)
{
    append_events("done 1 1, alloc 1 1, alloc 4 1, free 6 1, done 6 1, alloc 6 1, pause 0 8");
    init_filter();
    for (unsigned round = 0; round < 2; round++) {
        expect_allocated(0, 0, 8, "......x.");
        expect_allocated(7, 0, 8, ".x..x.x.");
    }
}

TEST_WITH(pause_before_the_events_hides_from_the_first_event, begin, end)
{
    append_events("free 2 1, free 12 1, resume 0 10, free 3 1");
    add_range(0, 10, false);
    add_block(0, 1, XSEG_BLOCK_ALLOCATED);
    add_block(1, 8, XSEG_BLOCK_CACHED);
    add_block(9, 1, XSEG_BLOCK_PENDING_FREE);
    init_filter();
    expect_shown("0111");
    /* Blocks without an event have the state of the heap copy. */
    expect_allocated(2, 0, 10, "x..x......");
}

TEST(pool_that_remains_paused_hides_its_events)
{
    for (unsigned has_pause = 0; has_pause < 2; has_pause++) {
        (void)begin(NULL);
        if (has_pause)
            append_events("pause 0 8");
        append_events("free 3 1, done 3 1, alloc 9 1");
        add_range(0, 8, true);
        add_block(0, 1, XSEG_BLOCK_ALLOCATED);
        add_block(1, 7, XSEG_BLOCK_CACHED);
        init_filter();
        assert_int_equal(trace.filter.count, 1);
        expect_shown(has_pause ? "1001" : "001");
        expect_allocated(0, 0, 8, "x..x....");
        (void)end(NULL);
    }
}

/* Other segments are mapped at the addresses of the destroyed pool. */
TEST_WITH(destroyed_paused_pool_ends_its_evicted_ranges, begin, end)
{
    append_events("alloc 0 4, pause 0 8, free 0 4, done 0 4, map 0 2, alloc 0 1, free 4 1, "
                  "segment 2 6, alloc 4 1");
    init_filter();
    expect_shown("110011011");
    expect_allocated(9, 0, 8, "x...x...");
}

/* Count the allocated blocks: a pending block is subtracted first. */
static void count_block(void *self, const struct xseg_tracked_block *block)
{
    assert_int_not_equal(block->state, XSEG_BLOCK_CACHED);
    *(size_t *)self -= block->state == XSEG_BLOCK_PENDING_FREE;
    ++*(size_t *)self;
}

/* More blocks than the initial capacity of the table, and many pauses of one range. */
TEST_WITH(many_blocks_are_tracked_through_many_pauses, begin, end)
{
    size_t hidden = 0, allocated = 0;

    for (unsigned i = 0; i < 5000; i++)
        add_event(XSEG_HISTORY_ALLOC, i, 1);
    for (unsigned i = 0; i < 100; i++) {
        append_events("pause 0 5000");
        for (unsigned k = 0; k < 40; k++)
            add_event(XSEG_HISTORY_FREE_REQUESTED, 40 * i + k, 1);
        append_events("resume 0 5000");
    }
    init_filter();
    assert_int_equal(trace.filter.count, 100);
    for (size_t i = 0; i < trace.count; i++)
        hidden += !xseg_eviction_filter_apply(&trace.filter, &trace.events[i]);
    assert_int_equal(hidden, 100 * 40);
    xseg_eviction_filter_visit(&trace.filter, BASE, 5000 * UNIT, count_block, &allocated);
    assert_int_equal(allocated, 5000 - 100 * 40);
}
