/* SPDX-License-Identifier: MIT */
/* The lower rooms of the core abort when a caller breaks a precondition: a case for each module. */
#include <string.h>

#include "src/core/arena/arena.h"
#include "src/core/config/config_keys.h"
#include "src/core/config/config_load.h"
#include "src/core/config/config_names.h"
#include "src/core/config/config_print.h"
#include "src/core/config/config_table.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/device/orphan.h"
#include "src/core/history/history.h"
#include "src/core/history/merge.h"
#include "src/core/pending/deferred.h"
#include "src/core/pending/poison.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/pools/checkpoint.h"
#include "src/core/pools/obstacle.h"
#include "src/core/pools/page_trial.h"
#include "src/core/pools/pause.h"
#include "src/core/pools/share.h"
#include "src/core/pools/share_header.h"
#include "src/core/pools/share_socket.h"
#include "src/core/stats/fragments.h"
#include "src/core/stats/observers.h"
#include "src/core/stream/shortcuts.h"
#include "src/core/stream/topology.h"
#include "tests/support/child.h"

/* A call that breaks a precondition, and the file that says so. */
struct breach {
    void (*commit)(void);
    const char *file;
};

/* Zeroed objects: the children that change them are thrown away. */
static struct xseg_allocator allocator;
static struct xseg_arena arena;
static struct xseg_block block;
static struct xseg_config config;
static struct xseg_context context;
static struct xseg_counts counts;
static struct xseg_device device;
static struct xseg_extent extent;
static struct xseg_known_stream stream;
static struct xseg_pending pending;
static struct xseg_pool pool;
static struct xseg_pool_body body;
static struct xseg_streams streams;
static struct xseg_totals totals;

static int set_up(void **state)
{
    (void)state;
    xseg_config_init(&config);
    xseg_totals_init(&totals);
    xseg_counts_init(&counts, &totals, true);
    xseg_list_init(&stream.going);
    pending.fences.context = &context;
    device.pending = &pending;
    body.device = &device;
    body.pool = &pool;
    pool.body = &body;
    arena.device = &device;
    arena.pool = &pool;
    extent.arena = &arena;
    block.extent = &extent;
    return 0;
}

/* Expect that each breach ends in an assertion of its file; without self-checks there is none. */
static void expect_all(const struct breach *breach, size_t count)
{
    char said[2048];

    for (size_t i = 0; i < count; i++) {
        const int status = child_run_part(breach[i].commit, said, sizeof(said));

        if (!child_aborted(status) || strstr(said, breach[i].file) == NULL ||
            strstr(said, "broken: ") == NULL)
            fail_msg("no assertion of %s: status %#x, says \"%s\"", breach[i].file,
                     (unsigned)status, said);
    }
}

#define EXPECT_ALL(breaches) expect_all(breaches, sizeof(breaches) / sizeof((breaches)[0]))

/* --- config --- */

static void parse_without_text(void)
{
    (void)xseg_config_parse(&config, NULL, NULL);
}

static void find_without_name(void)
{
    (void)xseg_config_names_find(NULL, 1);
}

static void ask_effect_of_no_key(void)
{
    (void)xseg_config_keys_has_effect(&config, XSEG_CONFIG_KEYS);
}

static void print_unknown_choice(void)
{
    char buffer[64];
    struct xseg_text text;

    xseg_text_init(&text, buffer, sizeof(buffer));
    config.page_sizes = 7;
    (void)xseg_config_print_value(&config, XSEG_CONFIG_PAGE, &text);
}

static void load_without_source(void)
{
    (void)xseg_config_load(&config, "", NULL, NULL);
}

static void take_segment_of_unrounded_size(void)
{
    (void)xseg_size_segment(&config, XSEG_SIZE_QUANTUM + 1);
}

static void config_aborts(void **state)
{
    static const struct breach breaches[] = {
        {parse_without_text, "config/config.c"},
        {find_without_name, "config/config_names.c"},
        {ask_effect_of_no_key, "config/config_keys.c"},
        {print_unknown_choice, "config/config_print.c"},
        {load_without_source, "config/config_load.c"},
        {take_segment_of_unrounded_size, "config/size.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- stats --- */

static void count_below_zero(void)
{
    xseg_counts_down(&counts, XSEG_COUNT_RESERVED_BYTES, 1);
}

static void free_what_was_not_allocated(void)
{
    xseg_counts_free(&counts, 512, 1);
}

static void rest_without_lock(void)
{
    xseg_counts_let_rest(&counts, NULL, NULL);
}

static void pend_what_was_not_allocated(void)
{
    xseg_counts_pend(&counts, 1, 512);
}

static void add_empty_fragment(void)
{
    xseg_fragments_add(&counts, 0);
}

static void observe_entry_of_no_size(void)
{
    const struct xseg_trace_entry entry = {.struct_bytes = 0};
    struct xseg_observers observers;

    xseg_observers_init(&observers);
    xseg_observers_note(&observers, &entry);
}

static void stats_abort(void **state)
{
    static const struct breach breaches[] = {
        {count_below_zero, "stats/counts.h"},      {free_what_was_not_allocated, "stats/counts.h"},
        {rest_without_lock, "stats/counts.c"},     {pend_what_was_not_allocated, "stats/counts.c"},
        {add_empty_fragment, "stats/fragments.h"}, {observe_entry_of_no_size, "stats/observers.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- history --- */

static struct xseg_history_store store;

static void ring_without_capacity(void)
{
    (void)xseg_history_ring_create(0);
}

static void read_behind_the_last_event(void)
{
    struct xseg_history_event event;

    (void)xseg_history_ring_read(xseg_history_ring_create(1), 0, &event);
}

static void event_of_an_odd_size(void)
{
    (void)xseg_history_event_size(100);
}

static void draw_without_lock(void)
{
    static struct xseg_history history = {.store = &store};

    (void)xseg_history_draw(&history);
}

static void depot_under_a_lock(void) XSEG_UNCHECKED
{
    static struct xseg_lock lock;

    xseg_lock_init(&lock, XSEG_RANK_STATS);
    xseg_lock_take(&lock);
    (void)xseg_history_store_make_depot(&store);
}

static void gather_under_a_lock(void) XSEG_UNCHECKED
{
    static struct xseg_lock lock;

    xseg_lock_init(&lock, XSEG_RANK_STATS);
    xseg_lock_take(&lock);
    xseg_history_gather_all(&store, XSEG_HISTORY_GATHERS, 0);
}

static void merge_nothing(void)
{
    struct xseg_history_merge merge;

    xseg_history_merge_init(&merge);
    (void)xseg_history_merge_add(&merge, NULL, NULL, 0);
}

static void begin_a_merge_twice(void)
{
    struct xseg_history_merge merge;

    xseg_history_merge_init(&merge);
    (void)xseg_history_merge_begin(&merge);
    (void)xseg_history_merge_begin(&merge);
}

static void history_aborts(void **state)
{
    static const struct breach breaches[] = {
        {ring_without_capacity, "history/ring.c"}, {read_behind_the_last_event, "history/ring.c"},
        {event_of_an_odd_size, "history/event.h"}, {draw_without_lock, "history/history.h"},
        {depot_under_a_lock, "history/store.c"},   {gather_under_a_lock, "history/context.c"},
        {merge_nothing, "history/merge.c"},        {begin_a_merge_twice, "history/merge.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- stream --- */

static void add_shortcut_without_lock(void)
{
    struct xseg_shortcuts shortcuts = {0};

    xseg_shortcuts_add(&shortcuts, &stream);
}

static void leave_twice(void)
{
    xseg_list_init(&streams.leaving);
    stream.state = XSEG_STREAM_LEAVING;
    xseg_streams_note_leaving(&streams, &stream);
}

static void wait_for_no_marks(void)
{
    struct xseg_topology_view view = {0};
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    (void)xseg_topology_wait(&view, &waiter, &mark, 0);
}

static void stream_aborts(void **state)
{
    static const struct breach breaches[] = {
        {add_shortcut_without_lock, "stream/shortcuts.c"},
        {leave_twice, "stream/streams.c"},
        {wait_for_no_marks, "stream/topology.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- device --- */

static void check_nameless_call(void)
{
    (void)xseg_allocator_check(&allocator, NULL);
}

static void open_device_below_zero(void)
{
    (void)xseg_allocator_open_device(&allocator, -1);
}

static void keep_more_than_soft_limit(void)
{
    config.soft_limit_bytes = 1;
    config.keep_bytes = 2;
    xseg_bounds_init(&device.bounds, &config);
}

static void visit_nothing(void)
{
    xseg_device_visit_arenas(&device, NULL, NULL);
}

static void look_for_orphans_without_lock(void)
{
    (void)xseg_orphan_can_adopt(&arena);
}

static void shrink_without_lock(void)
{
    xseg_pool_note_shrink(&arena, 512);
}

static void shrink_below_zero(void)
{
    xseg_lock_note_rank_taken(XSEG_RANK_GROWTH);
    xseg_pool_note_shrink(&arena, 512);
}

static void ask_about_shrinking_without_lock(void)
{
    (void)xseg_pool_may_shrink(&pool);
}

static void end_visit_that_never_began(void)
{
    xseg_retire_end_visit(&device);
}

static void begin_route_to_no_pool(void)
{
    const struct xseg_route route = {.pool = NULL};

    (void)xseg_routes_begin(&device.routes, &route);
}

static void device_aborts(void **state)
{
    static const struct breach breaches[] = {
        {check_nameless_call, "device/allocator.c"},
        {open_device_below_zero, "device/allocator.h"},
        {keep_more_than_soft_limit, "device/bounds.c"},
        {visit_nothing, "device/device.c"},
        {look_for_orphans_without_lock, "device/orphan.c"},
        {shrink_without_lock, "device/pool.c"},
        {shrink_below_zero, "device/pool.c"},
        {ask_about_shrinking_without_lock, "device/pool.h"},
        {end_visit_that_never_began, "device/retire.c"},
        {begin_route_to_no_pool, "device/route.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- pending --- */

static void uncount_below_zero(void)
{
    xseg_pending_uncount_one(&pending);
}

static void use_block_without_lock(void)
{
    xseg_pending_use(&arena, &block, &stream, false);
}

static void unmark_without_lock(void)
{
    xseg_deferred_unmark(&pending);
}

static void poison_without_allocator(void)
{
    struct xseg_poison poison;

    xseg_poison_init(&poison, NULL);
}

static void end_streams_without_lock(void)
{
    xseg_stream_retirement_end(&device);
}

static void pending_aborts(void **state)
{
    static const struct breach breaches[] = {
        {uncount_below_zero, "pending/pending.h"},
        {use_block_without_lock, "pending/pending.c"},
        {unmark_without_lock, "pending/deferred.c"},
        {poison_without_allocator, "pending/poison.c"},
        {end_streams_without_lock, "pending/stream_retirement.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- pools --- */

static void compare_without_pointers(void)
{
    bool exactly;

    (void)xseg_checkpoint_compare(&pool, NULL, 1, &exactly);
}

static void open_pool_without_lock(void)
{
    xseg_obstacle_open(&pool);
}

static void pause_under_lock(void)
{
    xseg_lock_note_rank_taken(XSEG_RANK_DRIVER);
    (void)xseg_pause_begin(&pool, XSEG_KEEP_NOTHING, NULL);
}

static void try_share_under_lock(void)
{
    bool works;

    xseg_lock_note_rank_taken(XSEG_RANK_GROWTH);
    (void)xseg_page_trial_export(&device, &works);
}

static void make_share_of_no_pages(void)
{
    struct xseg_share share;

    (void)xseg_share_make(&share, XSEG_SHARE_FD, 0);
}

static void fetch_share_into_nothing(void)
{
    (void)xseg_share_fetch(-1, NULL);
}

static void pools_abort(void **state)
{
    static const struct breach breaches[] = {
        {compare_without_pointers, "pools/checkpoint.c"},
        {open_pool_without_lock, "pools/obstacle.c"},
        {pause_under_lock, "pools/pause.c"},
        {try_share_under_lock, "pools/page_trial.c"},
        {make_share_of_no_pages, "pools/share_header.c"},
        {fetch_share_into_nothing, "pools/share_socket.c"},
    };

    (void)state;
    EXPECT_ALL(breaches);
}

/* --- What a thread holds. --- */

static void held_ranks_are_known(void **state)
{
    (void)state;
    assert_false(xseg_lock_is_any_held());
    xseg_lock_note_rank_taken(XSEG_RANK_PENDING);
    assert_true(xseg_lock_is_any_held());
    assert_true(xseg_lock_is_held(XSEG_RANK_PENDING));
    assert_false(xseg_lock_is_held(XSEG_RANK_GROWTH));
    assert_false(xseg_lock_is_held(XSEG_RANK_ARENA));
    xseg_lock_note_rank_given(XSEG_RANK_PENDING);
    assert_false(xseg_lock_is_held(XSEG_RANK_PENDING));
    assert_false(xseg_lock_is_any_held());
}

int main(void)
{
    if (XSEG_CHECKS == 0) {
        (void)puts("1..0 # SKIP this build has no assertions");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_aborts),  cmocka_unit_test(stats_abort),
        cmocka_unit_test(history_aborts), cmocka_unit_test(stream_aborts),
        cmocka_unit_test(device_aborts),  cmocka_unit_test(pending_aborts),
        cmocka_unit_test(pools_abort),    cmocka_unit_test(held_ranks_are_known),
    };

    return cmocka_run_group_tests_name("asserts_lower", tests, set_up, NULL);
}
