/* SPDX-License-Identifier: MIT */
/*
 * A vast arena, whose freed cells are cached one call later, beside one that is none: two allocators in
 * step, of which the other takes the general way for every call.  Each request gets the same place, each
 * count is the same, and whoever asks for a block that was just freed is told so.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "src/core/allocator.h"
#include "src/core/cell.h"
#include "tests/support/draw.h"
#include "tests/support/scene.h"

#define PLAIN "expandable_segments:True"
/* With these, frees and requests are not plain; the choice is the same. */
#define GENERAL PLAIN ",free_history:8,block_ages:True"

#define BLOCKS 60000u /* of 5 KiB on average: twice what makes an arena vast */
#define USED   16u    /* by another stream, at once */

enum { VAST, OTHER, SIDES };

struct pair {
    struct xseg_allocator *side[SIDES];
    xseg_stream user;
    uint64_t base[SIDES]; /* of the first block */
    struct {
        void *ptr[SIDES];
    } held[BLOCKS];
    unsigned count, latest; /* how often a free left a latest cell */
    unsigned due;           /* how often counts were read while something was due */
};

static uint64_t seed_state;

static uint64_t below(uint64_t bound)
{
    return draw_next(&seed_state) % bound;
}

static struct xseg_arena *arena_of(struct pair *pair)
{
    const struct xseg_extent *extent =
        xseg_lookup_find(&pair->side[VAST]->lookup, pair->base[VAST]);

    assert_non_null(extent);
    return extent->arena;
}

static struct pair *set_up(void)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct pair *pair = calloc(1, sizeof(*pair));

    assert_non_null(pair);
    settings.memory_bytes = 8 * GIB;
    pair->side[VAST] = scene_open_on(&settings, PLAIN);
    assert_int_equal(scene_try_open(GENERAL, &pair->side[OTHER]), XSEG_OK);
    pair->user = scene_stream();
    return pair;
}

static void alloc(struct pair *pair, size_t bytes)
{
    uint64_t offset[SIDES];

    if (pair->count == BLOCKS)
        return;
    for (unsigned i = 0; i < SIDES; i++) {
        void *ptr = scene_alloc(pair->side[i], bytes, NULL);

        if (pair->base[i] == 0)
            pair->base[i] = (uintptr_t)ptr;
        offset[i] = (uintptr_t)ptr - pair->base[i];
        pair->held[pair->count].ptr[i] = ptr;
    }
    /* Classic segments lie anywhere. */
    const bool is_classic = offset[VAST] != offset[OTHER];
    for (unsigned i = 0; is_classic && i < SIDES; i++) {
        const struct xseg_block_info info =
            scene_block(pair->side[i], pair->held[pair->count].ptr[i]);

        assert_false(info.is_expandable);
        offset[i] = (uint64_t)((char *)info.base - (char *)info.segment_base);
    }
    assert_int_equal(offset[VAST], offset[OTHER]);
    pair->count++;
}

static void free_at(struct pair *pair, unsigned at)
{
    for (unsigned i = 0; i < SIDES; i++)
        scene_free(pair->side[i], pair->held[at].ptr[i]);
    pair->held[at] = pair->held[--pair->count];
    pair->latest += arena_of(pair)->small.latest.sheet != NULL;
}

static size_t random_bytes(void)
{
    static const size_t most[] = {512,     2 * KIB, 4 * KIB, 8 * KIB,  8 * KIB,
                                  8 * KIB, 8 * KIB, 8 * KIB, 40 * KIB, 200 * KIB};
    const uint64_t what = below(100);

    return 1 + below(what == 0 ? MIB : most[what % COUNT_OF(most)]);
}

static void expect_same_counts(struct pair *pair)
{
    pair->due += pair->count > 0 && xseg_counts_has_due(&arena_of(pair)->counts);
    const struct xseg_stats vast = scene_stats(pair->side[VAST]);
    const struct xseg_stats other = scene_stats(pair->side[OTHER]);

    for (unsigned i = 0; i < XSEG_STAT_GROUPS; i++) {
        assert_memory_equal(&vast.allocation[i], &other.allocation[i], sizeof(struct xseg_stat));
        assert_memory_equal(&vast.active[i], &other.active[i], sizeof(struct xseg_stat));
        assert_memory_equal(&vast.allocated_bytes[i], &other.allocated_bytes[i],
                            sizeof(struct xseg_stat));
        assert_memory_equal(&vast.active_bytes[i], &other.active_bytes[i],
                            sizeof(struct xseg_stat));
        assert_memory_equal(&vast.requested_bytes[i], &other.requested_bytes[i],
                            sizeof(struct xseg_stat));
        assert_memory_equal(&vast.reserved_bytes[i], &other.reserved_bytes[i],
                            sizeof(struct xseg_stat));
    }
}

/* Expects the same counts, too. */
static void tear_down(struct pair *pair)
{
    expect_same_counts(pair);
    while (pair->count > 0)
        free_at(pair, pair->count - 1);
    for (unsigned i = 0; i < SIDES; i++)
        assert_int_equal(xseg_close(pair->side[i]), XSEG_OK);
    scene_stream_destroy(pair->user);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    free(pair);
}

/* A few blocks wait for another stream, and come back together. */
static void use_some(struct pair *pair)
{
    void *ptr[USED][SIDES];
    unsigned count = 0;

    for (; count < USED && pair->count > 0; count++) {
        const unsigned at = (unsigned)below(pair->count);

        for (unsigned i = 0; i < SIDES; i++) {
            ptr[count][i] = pair->held[at].ptr[i];
            assert_int_equal(xseg_use(pair->side[i], ptr[count][i], pair->user), XSEG_OK);
        }
        pair->held[at] = pair->held[--pair->count];
    }
    assert_int_equal(xseg_sim_launch(pair->user, UINT64_MAX), XSEG_OK);
    while (count-- > 0)
        for (unsigned i = 0; i < SIDES; i++)
            scene_free(pair->side[i], ptr[count][i]);
    alloc(pair, random_bytes());
    assert_int_equal(xseg_sim_finish(pair->user), XSEG_OK);
}

/* With a history of frees, they are not plain. */
static void configure(struct pair *pair, const char *config)
{
    assert_int_equal(xseg_configure(pair->side[VAST], config), XSEG_OK);
}

/* What happens now and then; the arena has to be what it was, or stop being vast. */
static void step_rarely(struct pair *pair)
{
    struct xseg_finding finding = {0};
    struct xseg_arena *arena = arena_of(pair);

    switch (below(7)) {
    case 0:
        for (unsigned i = 0; i < SIDES; i++)
            scene_empty_cache(pair->side[i]);
        return;
    case 1:
        use_some(pair);
        return;
    case 2:
        /* Frees are not plain for a moment; growth makes the arena vast again. */
        if (below(8) != 0)
            return;
        configure(pair, "free_history:1");
        free_at(pair, (unsigned)below(pair->count));
        configure(pair, "free_history:0");
        for (unsigned i = 0; i < SIDES; i++)
            scene_empty_cache(pair->side[i]);
        while (pair->count < BLOCKS && arena_of(pair)->small.way != XSEG_SMALL_VAST)
            alloc(pair, MIB);
        return;
    case 3:
        xseg_arena_lock(arena);
        if (!xseg_arena_audit(arena, &finding))
            fail_msg("%s: %s", finding.tag, finding.text);
        xseg_arena_unlock(arena);
        return;
    case 4:
        for (unsigned i = 0; i < SIDES; i++)
            scene_free(pair->side[i], scene_alloc(pair->side[i], 3 * MIB, NULL));
        return;
    case 5:
        /* For a moment requests are classic; the first one takes the general way. */
        for (unsigned i = 0; i < SIDES; i++)
            assert_int_equal(xseg_configure(pair->side[i], "expandable_segments:False"), XSEG_OK);
        for (unsigned i = 0; i < 8; i++) {
            alloc(pair, 1 + below(2 * KIB));
            free_at(pair, (unsigned)below(pair->count));
        }
        for (unsigned i = 0; i < SIDES; i++)
            assert_int_equal(xseg_configure(pair->side[i], "expandable_segments:True"), XSEG_OK);
        return;
    default:
        expect_same_counts(pair);
    }
}

static unsigned steps_by_environment(void)
{
    const char *steps = getenv("XSEG_TEST_STEPS");

    return steps != NULL ? (unsigned)strtoul(steps, NULL, 10) : 150000;
}

static void the_same_blocks_are_chosen(void **state)
{
    struct pair *pair = set_up();

    (void)state;
    seed_state = 20261122;
    while (pair->count < BLOCKS * 3 / 4)
        alloc(pair, random_bytes());
    assert_int_equal(arena_of(pair)->small.way, XSEG_SMALL_VAST);
    for (unsigned i = 0; i < steps_by_environment(); i++) {
        /* Mostly exchanges; between them the arena fills up, and drains. */
        const uint64_t what = below(100), drains = i / 15000 % 2;

        if (what < 90 && pair->count > 0)
            free_at(pair, (unsigned)below(pair->count));
        if (what < 85 + drains * 3 || (what >= 90 && drains == 0))
            alloc(pair, random_bytes());
        if (below(2000) == 0)
            step_rarely(pair);
        if (i % 64 == 0)
            expect_same_counts(pair);
    }
    expect_same_counts(pair);
    /* Most frees leave a latest cell, and something due: that way has been taken. */
    assert_in_range(pair->latest, steps_by_environment() / 4, steps_by_environment());
    assert_in_range(pair->due, steps_by_environment() / 256, steps_by_environment() / 32);
    tear_down(pair);
}

/* --- What a latest cell is for others. --- */

static struct pair *fill(void)
{
    struct pair *pair = set_up();

    while (pair->count < BLOCKS)
        alloc(pair, 4 * KIB);
    assert_int_equal(arena_of(pair)->small.way, XSEG_SMALL_VAST);
    return pair;
}

static void *free_one(struct pair *pair, unsigned at)
{
    void *ptr = pair->held[at].ptr[VAST];

    free_at(pair, at);
    const struct xseg_latest *latest = &arena_of(pair)->small.latest;
    assert_non_null(latest->sheet);
    assert_int_equal(latest->sheet->base + xseg_cell_bytes_of((uint32_t)latest->index),
                     (uintptr_t)ptr);
    return ptr;
}

static void it_is_no_live_block(void **state)
{
    struct pair *pair = fill();
    struct xseg_allocator *vast = pair->side[VAST];
    const uint64_t live = scene_stats(vast).allocated_bytes[XSEG_STAT_ALL].current;
    char *ptr = free_one(pair, 101);

    (void)state;
    assert_int_equal(scene_stats(vast).allocated_bytes[XSEG_STAT_ALL].current, live - 4 * KIB);
    ptr = free_one(pair, 201);
    scene_expect_error(xseg_free(vast, ptr), XSEG_ERR_NOT_LIVE, "freed before");
    ptr = free_one(pair, 2001);
    scene_expect_error(xseg_free(vast, ptr + 512), XSEG_ERR_NOT_LIVE, "no live block");
    ptr = free_one(pair, 301);
    assert_int_equal(scene_block(vast, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(scene_block(vast, ptr).bytes, 4 * KIB);
    ptr = free_one(pair, 401);
    scene_expect_error(xseg_use(vast, ptr, pair->user), XSEG_ERR_NOT_LIVE, "no live block");
    scene_expect_error(xseg_free(vast, ptr + 3), XSEG_ERR_NOT_LIVE, "no live block");
    /* Nor is an address inside a block that is. */
    ptr = pair->held[501].ptr[VAST];
    scene_expect_error(xseg_free(vast, ptr + 3), XSEG_ERR_NOT_LIVE, "give its start");
    scene_expect_error(xseg_free(vast, ptr + KIB), XSEG_ERR_NOT_LIVE, "give its start");
    assert_int_equal(scene_block(vast, ptr).state, XSEG_BLOCK_LIVE);
    tear_down(pair);
}

/* The only cell of its size; one that is lower than the lowest that the rack has; and a neighbour. */
static void it_is_handed_out_where_it_is_best(void **state)
{
    struct pair *pair = fill();
    struct xseg_allocator *vast = pair->side[VAST];
    void *first = pair->held[1001].ptr[VAST], *ptr = NULL;

    (void)state;
    (void)free_one(pair, 1001);
    alloc(pair, 4 * KIB);
    assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], first);
    ptr = free_one(pair, 3001);
    first = free_one(pair, 2001);
    assert_true((uintptr_t)first < (uintptr_t)ptr);
    alloc(pair, 4 * KIB);
    assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], first);
    /* It merges with what is freed behind it. */
    first = free_one(pair, 5001);
    ptr = (char *)first + 4 * KIB;
    for (unsigned i = 0; i < pair->count; i++)
        if (pair->held[i].ptr[VAST] == ptr)
            free_at(pair, i);
    alloc(pair, 8 * KIB);
    assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], first);
    scene_expect_error(xseg_free(vast, ptr), XSEG_ERR_NOT_LIVE, "give its start");
    tear_down(pair);
}

static unsigned find(const struct pair *pair, const void *ptr)
{
    unsigned at = 0;

    while (at < pair->count && pair->held[at].ptr[VAST] != ptr)
        at++;
    assert_in_range(at, 0, pair->count - 1);
    return at;
}

/* What was requested of a cell that is free is counted by whoever reads, before anybody has subtracted it; and what
 * is requested of it next is not taken for that. */
static void what_is_due_is_no_more_than_it_was(void **state)
{
    struct pair *pair = fill();
    const struct xseg_counts *counts = &arena_of(pair)->counts;
    void *larger[5]; /* none of the first four begins a word */

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(larger); i++)
        free_at(pair, pair->count - 1);
    for (unsigned i = 0; i < COUNT_OF(larger); i++) {
        alloc(pair, 6 * KIB - 100 - i);
        larger[i] = pair->held[pair->count - 1].ptr[VAST];
    }
    /* Not the last, behind which the frontier is. */
    for (unsigned i = 0; i < COUNT_OF(larger) - 1; i++) {
        (void)free_one(pair, find(pair, larger[i]));
        assert_true(xseg_counts_has_due(counts));
        expect_same_counts(pair);
        (void)free_one(pair, 1001 + i * 100);
        expect_same_counts(pair);
        /* The older of both: it is cached, and the only one of its size. */
        alloc(pair, 6 * KIB - i);
        assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], larger[i]);
        expect_same_counts(pair);
        (void)free_one(pair, pair->count - 1);
        alloc(pair, 6 * KIB - 200 - i);
        assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], larger[i]);
        expect_same_counts(pair);
    }
    tear_down(pair);
}

/* When a cell became idle is noted when it does. */
static void where_ages_count_there_is_none(void **state)
{
    struct pair *pair = fill();

    (void)state;
    xseg_arena_set_now(arena_of(pair), 1);
    free_at(pair, 101);
    assert_null(arena_of(pair)->small.latest.sheet);
    xseg_arena_set_now(arena_of(pair), 0);
    (void)free_one(pair, 201);
    tear_down(pair);
}

struct freeing {
    struct pair *pair;
    void *ptr;
};

static void *free_elsewhere(void *self)
{
    const struct freeing *freeing = self;

    scene_free(freeing->pair->side[VAST], freeing->ptr);
    return NULL;
}

/* Another thread frees the neighbour, and finds it cached; from then on no cell is the latest. */
static void another_thread_merges_with_it(void **state)
{
    struct pair *pair = fill();
    struct freeing freeing = {.pair = pair};
    pthread_t thread;
    char *ptr = free_one(pair, 1501);

    (void)state;
    for (unsigned i = 0; i < pair->count; i++)
        if (pair->held[i].ptr[VAST] == ptr + 4 * KIB) {
            freeing.ptr = pair->held[i].ptr[VAST];
            scene_free(pair->side[OTHER], pair->held[i].ptr[OTHER]);
            pair->held[i] = pair->held[--pair->count];
        }
    assert_non_null(freeing.ptr);
    assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, &freeing), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_same_counts(pair);
    alloc(pair, 8 * KIB);
    assert_ptr_equal(pair->held[pair->count - 1].ptr[VAST], ptr);
    tear_down(pair);
}

#define KEPT (BLOCKS - 1000) /* so that the rack has cells, and the latest is not taken at once */

struct reading {
    struct xseg_totals *totals;
    atomic_bool ends;
    uint64_t least, most;
};

static void *read_on(void *self)
{
    struct reading *reading = self;

    while (!atomic_load(&reading->ends)) {
        const uint64_t now = xseg_totals_current(reading->totals, XSEG_COUNT_REQUESTED_BYTES);

        reading->least = now < reading->least ? now : reading->least;
        reading->most = now > reading->most ? now : reading->most;
    }
    return NULL;
}

/* What another thread reads meanwhile, as one that looks around does, is off by no more than a few blocks. */
static void another_thread_reads_what_is_requested(void **state)
{
    struct pair *pair = fill();
    struct reading reading = {.totals = &arena_of(pair)->device->totals, .least = UINT64_MAX};
    pthread_t thread;

    (void)state;
    while (pair->count > KEPT)
        free_at(pair, (unsigned)below(pair->count));
    pair->latest = 0;
    assert_int_equal(pthread_create(&thread, NULL, read_on, &reading), 0);
    for (unsigned i = 0; i < BLOCKS; i++) {
        alloc(pair, 4 * KIB - below(512));
        free_at(pair, (unsigned)below(pair->count));
    }
    atomic_store(&reading.ends, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_in_range(pair->latest, BLOCKS / 2, BLOCKS);
    assert_in_range(reading.least, (KEPT - 4) * (4 * KIB - 511), KEPT * 4 * KIB);
    assert_in_range(reading.most, reading.least, (KEPT + 4) * 4 * KIB);
    tear_down(pair);
}

/* --- When an arena is vast. --- */

static void it_is_vast_while_frees_are_plain(void **state)
{
    struct pair *pair = fill();
    struct xseg_allocator *vast = pair->side[VAST];
    struct xseg_arena *arena = arena_of(pair);

    (void)state;
    assert_int_equal(atomic_load(vast->frees), (uintptr_t)arena);
    (void)free_one(pair, 101);
    configure(pair, "free_history:1");
    assert_int_equal(arena->small.way, XSEG_SMALL_PLAIN);
    assert_null(arena->small.latest.sheet);
    assert_int_equal(atomic_load(vast->frees), XSEG_FREES_GENERALLY);
    configure(pair, "free_history:0");
    assert_int_equal(atomic_load(vast->frees), XSEG_FREES_PLAINLY);
    tear_down(pair);
}

/* A second stream's arena is not; and when the first one's segment has ended, nobody is. */
static void it_is_vast_while_its_segment_is_there(void **state)
{
    struct pair *pair = fill();
    struct xseg_allocator *vast = pair->side[VAST];
    struct xseg_arena *arena = arena_of(pair);
    void *ptr = NULL;

    (void)state;
    for (unsigned i = 0; i < SIDES; i++)
        scene_free(pair->side[i], scene_alloc(pair->side[i], 1000, pair->user));
    assert_int_equal(arena->small.way, XSEG_SMALL_VAST);
    while (pair->count > 0)
        free_at(pair, pair->count - 1);
    for (unsigned i = 0; i < SIDES; i++)
        scene_empty_cache(pair->side[i]);
    assert_int_equal(arena->small.way, XSEG_SMALL_VAST);
    /* No addresses are left: segments that are nothing but a hole end. */
    xseg_sim_hold_addresses(UINT64_MAX / 2);
    assert_int_not_equal(xseg_alloc(vast, 0, 300 * MIB, pair->user, &ptr), XSEG_OK);
    xseg_sim_hold_addresses(0);
    assert_int_equal(arena->small.way, XSEG_SMALL_PLAIN);
    assert_int_equal(atomic_load(vast->frees), XSEG_FREES_PLAINLY);
    tear_down(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_blocks_are_chosen),
        cmocka_unit_test(it_is_no_live_block),
        cmocka_unit_test(it_is_handed_out_where_it_is_best),
        cmocka_unit_test(what_is_due_is_no_more_than_it_was),
        cmocka_unit_test(where_ages_count_there_is_none),
        cmocka_unit_test(another_thread_merges_with_it),
        cmocka_unit_test(another_thread_reads_what_is_requested),
        cmocka_unit_test(it_is_vast_while_frees_are_plain),
        cmocka_unit_test(it_is_vast_while_its_segment_is_there),
    };

    return cmocka_run_group_tests_name("latest", tests, NULL, NULL);
}
