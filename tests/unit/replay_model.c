/* SPDX-License-Identifier: MIT */
/* The replay model of a recording, and fragmentation by site. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/replay_model/fragmentation.h"
#include "src/tools/replay_model/replay_model.h"
#include "tests/support/recording_builder.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

/* --- Blocks and memory over time; events may be missing. --- */

#define BASE UINT64_C(0x7f0000000000)

/* A program, its model, and its fragmentation. */
struct model_env {
    struct builder *builder;
    struct replay_model model;
    struct fragmentation fragmented;
    bool has_model, has_fragmented;
};

static struct model_env *model_env_new(void)
{
    struct model_env *env = calloc(1, sizeof(*env));

    assert_non_null(env);
    env->builder = builder_new();
    return env;
}

static void model_env_free(struct model_env *env)
{
    if (env->has_fragmented)
        fragmentation_fini(&env->fragmented);
    if (env->has_model)
        replay_model_fini(&env->model);
    free(env->builder);
    free(env);
}

static int set_up(void **state)
{
    *state = model_env_new();
    return 0;
}

static int tear_down(void **state)
{
    model_env_free(*state);
    return 0;
}

/* A test with the parameters `env` and `builder`. */
#define MODEL_TEST(name)                                                     \
    static void name##_with(struct model_env *env, struct builder *builder); \
    TEST_WITH(name, set_up, tear_down)                                       \
    {                                                                        \
        name##_with(*state, ((struct model_env *)*state)->builder);          \
    }                                                                        \
    static void name##_with(struct model_env *env, struct builder *builder)

/* The model before the first event, of the recording as it is. */
static struct replay_model *begin_unchanged(struct model_env *env)
{
    if (env->has_model)
        replay_model_fini(&env->model);
    env->has_model = true;
    assert_true(replay_model_init(&env->model, &env->builder->recording, &env->builder->device));
    return &env->model;
}

/* The model before the first event, of a recording that ends with the current segments. */
static struct replay_model *begin(struct model_env *env)
{
    builder_end(env->builder);
    return begin_unchanged(env);
}

static size_t play(struct replay_model *model)
{
    while (replay_model_step(model))
        ;
    assert_false(model->out_of_memory);
    return model->at;
}

static void expect_state(const struct replay_model *model, uint64_t reserved, uint64_t allocated,
                         uint64_t pending)
{
    assert_int_equal(model->reserved, reserved);
    assert_int_equal(model->allocated, allocated);
    assert_int_equal(model->pending, pending);
}

/* --- Single events. --- */

MODEL_TEST(block_is_allocated_and_freed)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE + 512, 1000, 3);
    builder->now_us += 5;
    builder_free(builder, BASE + 512);
    builder_unmap(builder, BASE + 2 * MIB, 2 * MIB);
    struct replay_model *model = begin(env);
    expect_state(model, 0, 0, 0);
    assert_true(replay_model_step(model));
    expect_state(model, 4 * MIB, 0, 0);
    assert_true(replay_model_step(model));
    expect_state(model, 4 * MIB, 1024, 0);
    assert_int_equal(replay_model_block_at(model, BASE + 512 + 1023)->stack, 3);
    assert_null(replay_model_block_at(model, BASE + 512 + 1024));
    assert_null(replay_model_block_at(model, BASE + 511));
    assert_int_equal(replay_model_next_us(model), 1005);
    assert_true(replay_model_step(model));
    expect_state(model, 4 * MIB, 0, 1024);
    assert_true(replay_model_block_at(model, BASE + 512)->is_pending);
    assert_int_equal(replay_model_block_at(model, BASE + 512)->since_us, 1005);
    assert_true(replay_model_step(model));
    assert_null(replay_model_block_at(model, BASE + 512));
    assert_true(replay_model_step(model));
    expect_state(model, 2 * MIB, 0, 0);
    assert_false(replay_model_step(model));
    assert_int_equal(model->omitted, 0);
}

MODEL_TEST(the_state_before_the_first_event_is_found)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, MIB, 2);
    builder_request_free(builder, BASE);
    builder->device.event_count = 0; /* lost by the ring */
    builder_complete_free(builder, BASE);
    builder_alloc(builder, BASE, MIB, 3);
    builder_request_free(builder, BASE);
    builder_unmap(builder, BASE + 2 * MIB, 2 * MIB);
    struct replay_model *model = begin(env);
    expect_state(model, 4 * MIB, MIB, MIB);
    assert_true(replay_model_block_at(model, BASE)->is_older);
    assert_int_equal(replay_model_block_at(model, BASE)->stack, 0);
    assert_int_equal(replay_model_block_at(model, BASE + MIB)->stack, 2);
    assert_int_equal(play(model), 4);
    assert_int_equal(model->omitted, 0);
}

/* With history_skip:[free_requested], or skip_actions in PyTorch. */
MODEL_TEST(without_requests_a_block_is_live_until_its_free_is_complete)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder->device.event_count = 0;
    builder_alloc(builder, BASE + MIB, 1000, 2);
    builder_complete_free(builder, BASE);
    builder_complete_free(builder, BASE + MIB);
    struct replay_model *model = begin(env);
    expect_state(model, 4 * MIB, MIB, 0);
    assert_int_equal(replay_model_block_at(model, BASE)->requested, MIB);
    assert_true(replay_model_step(model));
    assert_int_equal(model->allocated, MIB + 1024);
    assert_int_equal(replay_model_block_at(model, BASE + MIB)->requested, 1000);
    assert_true(replay_model_step(model));
    assert_int_equal(model->allocated, 1024);
    assert_int_equal(play(model), 3);
    assert_int_equal(model->allocated + model->pending, 0);
    assert_int_equal(model->omitted, 0);
}

MODEL_TEST(a_block_at_the_end_has_its_real_size)
{
    builder_map(builder, BASE, 20 * MIB, false);
    builder_alloc(builder, BASE, 19 * MIB + 1, 1);
    builder->block[0].bytes = 20 * MIB; /* the remainder was too small to split */
    struct replay_model *model = begin(env);
    assert_int_equal(play(model), 2);
    assert_int_equal(model->allocated, 20 * MIB);
}

MODEL_TEST(events_that_do_not_fit_are_left_out)
{
    builder_map(builder, BASE, 4 * MIB, true);
    (void)builder_event(builder, RECORDING_ALLOC, BASE + MIB, 512);          /* not a block */
    (void)builder_event(builder, RECORDING_FREE_COMPLETED, BASE - MIB, 512); /* not in a segment */
    (void)builder_event(builder, RECORDING_SEGMENT_MAP, BASE + 64 * MIB, MIB);
    (void)builder_event(builder, RECORDING_SEGMENT_ALLOC, BASE,
                        4 * MIB); /* the segment is expandable */
    (void)builder_event(builder, RECORDING_SEGMENT_UNMAP, BASE + MIB, MIB); /* still mapped */
    (void)builder_event(builder, RECORDING_SEGMENT_FREE, BASE + 1, 7);
    (void)builder_event(builder, RECORDING_OOM, 0, MIB);
    (void)builder_event(builder, RECORDING_OTHER, 0, 0);
    builder_alloc(builder, BASE, 512, 1);
    struct replay_model *model = begin(env);
    assert_int_equal(model->omitted, 6); /* OOM and OTHER do not change memory */
    assert_int_equal(play(model), 10);
    expect_state(model, 4 * MIB, 512, 0);
}

/* A block that only a free records ends at the next block, independently of the size in the event. */
MODEL_TEST(restored_block_ends_at_the_next_block)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE + 1024, 512, 1);
    builder->device.event_count = 0; /* lost by the ring */
    (void)builder_event(builder, RECORDING_FREE_REQUESTED, BASE, 4096);
    (void)builder_event(builder, RECORDING_FREE_COMPLETED, BASE, 4096);
    struct replay_model *model = begin(env);
    assert_int_equal(replay_model_block_at(model, BASE)->bytes, 1024);
    assert_int_equal(model->allocated, 1024 + 512);
    assert_int_equal(play(model), 2);
    assert_int_equal(model->allocated, 512);
}

MODEL_TEST(frees_of_one_kind_may_be_missing)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, 512, 1);
    builder_free(builder, BASE);
    builder->device.event_count--; /* skip_actions: free_completed */
    builder_alloc(builder, BASE, 1024, 2);
    builder_request_free(builder, BASE);
    builder->device.event_count--; /* skip_actions: free_requested */
    builder_complete_free(builder, BASE);
    struct replay_model *model = begin(env);
    assert_int_equal(model->omitted, 0);
    for (int i = 0; i < 3; i++)
        assert_true(replay_model_step(model));
    assert_int_equal(model->allocated + model->pending, 0);
    assert_true(replay_model_step(model));
    assert_int_equal(model->allocated, 1024);
    assert_int_equal(play(model), 5);
    assert_int_equal(model->allocated + model->pending, 0);
}

MODEL_TEST(mapped_memory_may_be_of_several_streams_later)
{
    builder_map(builder, BASE, 8 * MIB, true);
    builder_alloc(builder, BASE + 3 * MIB, MIB, 1);
    builder_end(builder);
    builder->segments[1] = builder->segments[0];
    builder->segments[0].bytes = builder->segments[1].bytes = 4 * MIB;
    builder->segments[0].count = 2;
    builder->segments[1].address += 4 * MIB;
    builder->segments[1].count = 0;
    builder->segments[1].stream = 7;
    builder->device.segment_count = 2;
    struct replay_model *model = begin_unchanged(env);
    assert_int_equal(model->omitted, 0);
    assert_int_equal(model->reserved, 0);
    assert_int_equal(play(model), 2);
    expect_state(model, 8 * MIB, MIB, 0);
}

MODEL_TEST(segments_that_overlap_are_left_out)
{
    builder_map(builder, BASE, 4 * MIB, false);
    builder_alloc(builder, BASE, 512, 1);
    builder_end(builder);
    builder->device.event_count = 0;
    builder->segments[1] = builder->segments[0];
    builder->segments[1].address += MIB;
    builder->device.segment_count = 2;
    builder->blocks[0].bytes = 5 * MIB; /* larger than the segment */
    struct replay_model *model = begin_unchanged(env);
    assert_int_equal(model->omitted, 2);
    expect_state(model, 4 * MIB, 0, 0);
}

MODEL_TEST(time_never_decreases)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder->now_us -= 10;
    builder_alloc(builder, BASE, 512, 1);
    builder->now_us += 30;
    builder_free(builder, BASE);
    struct replay_model *model = begin(env);
    assert_true(replay_model_step(model));
    assert_true(replay_model_step(model));
    assert_int_equal(model->now_us, 1000);
    (void)play(model);
    assert_int_equal(model->now_us, 1020);
    for (size_t i = 0; i < builder->device.event_count; i++)
        builder->events[i].time_us = 0;
    (void)begin(env);
    (void)play(model);
    assert_false(model->has_times);
    /* Each event takes 1 us; a free and its completion count as one. */
    assert_int_equal(model->now_us, 2);
    assert_int_equal(model->ticks, 3);
}

/* --- Random programs. --- */

static uint32_t draw_below(uint64_t *rng, uint32_t limit)
{
    return (uint32_t)(rng_next(rng) >> 33) % limit;
}

#define AREA (64 * MIB) /* of addresses; the upper half contains classic segments */

static bool is_free(const struct builder *builder, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < builder->block_count; i++)
        if (builder->block[i].address < end &&
            builder->block[i].address + builder->block[i].bytes > start)
            return false;
    return true;
}

static const struct builder_range *range_at(const struct builder *builder, uint64_t address)
{
    for (size_t i = 0; i < builder->range_count; i++)
        if (address >= builder->range[i].start && address < builder->range[i].end)
            return &builder->range[i];
    return NULL;
}

static bool is_mapped(const struct builder *builder, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < builder->range_count; i++)
        if (builder->range[i].start < end && builder->range[i].end > start)
            return true;
    return false;
}

static void change_memory(struct builder *builder, uint64_t address)
{
    const struct builder_range *range = range_at(builder, address);
    const bool is_expandable = address < BASE + AREA / 2;
    const uint64_t start = address / (2 * MIB) * (2 * MIB);

    if (!range) {
        if (!is_mapped(builder, start, start + 4 * MIB) &&
            (!is_expandable || start + 4 * MIB <= BASE + AREA / 2))
            builder_map(builder, start, 4 * MIB, is_expandable);
    } else if (is_expandable && is_free(builder, start, start + 2 * MIB)) {
        builder_unmap(builder, start, 2 * MIB);
    } else if (!is_expandable && is_free(builder, range->start, range->end)) {
        builder_unmap(builder, range->start, range->end - range->start);
    }
}

static void change_block(struct builder *builder, uint64_t *rng, uint64_t address)
{
    const struct builder_range *range = range_at(builder, address);
    const uint64_t bytes = 512 * (1 + draw_below(rng, 1 << draw_below(rng, 13)));
    const size_t chosen =
        builder->block_count > 0 ? draw_below(rng, (uint32_t)builder->block_count) : 0;

    if (draw_below(rng, 2) == 0) {
        if (range && address + bytes <= range->end && is_free(builder, address, address + bytes))
            builder_alloc(builder, address, bytes - draw_below(rng, 512), draw_below(rng, 5));
    } else if (builder->block_count > 0) {
        if (builder->block[chosen].is_pending)
            builder_complete_free(builder, builder->block[chosen].address);
        else
            builder_request_free(builder, builder->block[chosen].address);
    }
}

static void random_step(struct builder *builder, uint64_t *rng)
{
    const uint64_t address = BASE + 512 * (uint64_t)draw_below(rng, AREA / 512);

    builder->now_us += draw_below(rng, 3);
    if (draw_below(rng, 8) == 0)
        change_memory(builder, address);
    else
        change_block(builder, rng, address);
}

static void expect_blocks(const struct replay_model *model, const struct builder *builder)
{
    uint64_t reserved = 0;

    for (size_t i = 0; i < builder->range_count; i++)
        reserved += builder->range[i].end - builder->range[i].start;
    assert_int_equal(model->reserved, reserved);
    assert_int_equal(model->blocks.count, builder->block_count);
    for (size_t i = 0; i < builder->block_count; i++) {
        const struct builder_block *block = &builder->block[i];
        const struct replay_model_block *found = replay_model_block_at(model, block->address);

        assert_non_null(found);
        assert_int_equal(found->address, block->address);
        assert_int_equal(found->bytes, block->bytes);
    }
}

/* Expect that the memory of a range is mapped, in ranges of the model of one kind with whole pages. Returns their number. */
static size_t expect_range(const struct replay_model *model, const struct builder_range *range)
{
    size_t count = 0;

    for (uint64_t at = range->start; at < range->end; count++) {
        const struct replay_model_range *found = replay_model_range_at(model, at);

        assert_non_null(found);
        assert_int_equal(found->start, at);
        assert_in_range(found->end, at + 1, range->end);
        assert_int_equal(found->is_expandable, range->is_expandable);
        assert_int_equal(found->page == 0, !range->is_expandable);
        assert_true(found->page == 0 || (found->end - at) % found->page == 0);
        at = found->end;
    }
    assert_true(range->is_expandable || count == 1);
    return count;
}

static void expect_equal(const struct replay_model *model, const struct builder *builder)
{
    size_t count = 0;

    expect_blocks(model, builder);
    for (size_t i = 0; i < builder->block_count; i++)
        assert_int_equal(replay_model_block_at(model, builder->block[i].address)->is_pending,
                         builder->block[i].is_pending);
    for (size_t i = 0; i < builder->range_count; i++)
        count += expect_range(model, &builder->range[i]);
    assert_int_equal(model->ranges.count, count);
}

TEST(random_programs_keep_lifetimes_of_blocks)
{
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct model_env *env = model_env_new();
        struct builder *builder = env->builder, *first_state = malloc(sizeof(*first_state));
        uint64_t rng = seed;

        assert_non_null(first_state);
        for (int i = 0; i < 400; i++)
            random_step(builder, &rng);
        *first_state = *builder;
        size_t lost = builder->device.event_count;
        for (int i = 0; i < 1200; i++)
            random_step(builder, &rng);
        builder->device.event_count -= lost; /* lost by the ring */
        memmove(builder->events, builder->events + lost,
                builder->device.event_count * sizeof(builder->events[0]));
        struct replay_model *model = begin(env);
        assert_int_equal(model->omitted, 0);
        expect_equal(model, first_state);
        assert_int_equal(play(model), builder->device.event_count);
        expect_equal(model, builder);
        free(first_state);
        model_env_free(env);
    }
}

/* Events are missing, or have wrong sizes, actions and streams; at the end the state is that of the segments. */
TEST(missing_events_are_tolerated)
{
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct model_env *env = model_env_new();
        struct builder *builder = env->builder;
        uint64_t rng = seed;
        size_t kept = 0;

        for (int i = 0; i < 1000; i++)
            random_step(builder, &rng);
        for (size_t i = 0; i < builder->device.event_count; i++) {
            struct recording_event *event = &builder->events[kept];

            *event = builder->events[i];
            if (draw_below(&rng, 20) == 0)
                continue;
            if (draw_below(&rng, 20) == 0)
                event->bytes = draw_below(&rng, UINT32_MAX);
            if (draw_below(&rng, 20) == 0)
                event->action = (uint8_t)draw_below(&rng, RECORDING_OTHER + 1);
            event->stream = draw_below(&rng, 2);
            kept++;
        }
        builder->device.event_count = kept;
        struct replay_model *model = begin(env);
        (void)play(model);
        expect_blocks(model, builder);
        model_env_free(env);
    }
}

/* --- Fragmentation of small programs, computed by hand in bytes times microseconds. --- */

#define SITES 4u

static uint32_t by_stack(const void *context, const struct replay_model_block *block)
{
    assert_null(context);
    return block->stack;
}

/* Play the program to its end, the current time; its sums are complete then. */
static struct fragmentation play_fragmentation(struct model_env *env)
{
    struct fragmentation *fragmented = &env->fragmented;
    fragmentation_sum sum = 0;

    assert_true(fragmentation_init(fragmented, begin(env), SITES, by_stack, NULL));
    env->has_fragmented = true;
    while (fragmentation_step(fragmented))
        ;
    fragmentation_finish(fragmented, env->builder->now_us);
    assert_false(fragmented->out_of_memory);
    for (uint32_t i = 0; i < SITES; i++)
        sum += fragmented->sites[i].fragmented;
    assert_true(sum == fragmented->fragmented);
    assert_true(fragmented->reserved - fragmented->allocated ==
                fragmented->pending + fragmented->near_pending + fragmented->idle +
                    fragmented->fragmented);
    return *fragmented;
}

static void assert_sum(fragmentation_sum sum, uint64_t expected)
{
    assert_true(sum >> 64 == 0);
    assert_int_equal((uint64_t)sum, expected);
}

static void assert_sites(const struct fragmentation *fragmented, const uint64_t expected[SITES])
{
    for (uint32_t i = 0; i < SITES; i++)
        assert_sum(fragmented->sites[i].fragmented, expected[i]);
}

MODEL_TEST(a_block_strands_its_page)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB / 2, 1);
    builder->now_us += 10;
    builder_free(builder, BASE);
    builder->now_us += 5;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sum(fragmented.reserved, 4 * MIB * 15);
    assert_sum(fragmented.allocated, MIB / 2 * 10);
    assert_sum(fragmented.sites[1].fragmented, 3 * MIB / 2 * 10);
    assert_sum(fragmented.sites[1].allocated, MIB / 2 * 10);
    assert_sum(fragmented.idle, 2 * MIB * 10 + 4 * MIB * 5);
    assert_sum(fragmented.pending + fragmented.near_pending, 0);
}

MODEL_TEST(blocks_on_a_page_share_it_equally)
{
    builder_map(builder, BASE, 2 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder->now_us += 2;
    builder_alloc(builder, BASE + MIB, 512, 2);
    builder->now_us += 4;
    builder_free(builder, BASE);
    builder->now_us += 1;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sites(
        &fragmented,
        (const uint64_t[SITES]){
            [1] = MIB * 2 + (MIB - 512) * 4 / 2, [2] = (MIB - 512) * 4 / 2 + (2 * MIB - 512) * 1});
    assert_sum(fragmented.idle, 0);
}

MODEL_TEST(remainder_of_a_division_is_not_lost)
{
    builder_map(builder, BASE, 2 * MIB, true);
    for (uint32_t i = 0; i < 3; i++)
        builder_alloc(builder, BASE + 512 * i, 512, i);
    builder->now_us += 1; /* 2 MiB - 1536 is not divisible by 3 */
    for (uint32_t i = 0; i < 3; i++)
        builder_free(builder, BASE + 512 * i);
    struct fragmentation fragmented = play_fragmentation(env);
    assert_true((2 * MIB - 1536) % 3 == 2);
    assert_sum(fragmented.fragmented, 2 * MIB - 1536);
    assert_sites(&fragmented, (const uint64_t[SITES]){[0] = (2 * MIB - 1536) / 3,
                                                      [1] = (2 * MIB - 1536) / 3,
                                                      [2] = (2 * MIB - 1536) / 3 + 2});
}

MODEL_TEST(a_block_over_pages_strands_the_outer_ones)
{
    builder_map(builder, BASE, 10 * MIB, true);
    builder_alloc(builder, BASE + MIB, 6 * MIB, 1);     /* half of 0, 1, 2, half of 3 */
    builder_alloc(builder, BASE + 7 * MIB, MIB / 2, 2); /* on 3 as well */
    builder->now_us += 8;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sites(&fragmented,
                 (const uint64_t[SITES]){[1] = MIB * 8 + MIB / 2 * 8 / 2, [2] = MIB / 2 * 8 / 2});
    assert_sum(fragmented.idle, 2 * MIB * 8);
}

MODEL_TEST(pages_start_at_the_mapped_address)
{
    builder_map(builder, BASE + 6 * MIB, 40 * MIB, true);
    builder_map(builder, BASE + 46 * MIB, 2 * MIB, true);
    builder_map(builder, BASE + 48 * MIB, 22 * MIB, true); /* not divisible by 20: 2 for each */
    builder_alloc(builder, BASE + 26 * MIB, MIB, 1);       /* 26 to 46 */
    builder_alloc(builder, BASE + 49 * MIB, MIB / 2, 2);   /* 48 to 50 */
    builder->now_us += 10;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sites(&fragmented, (const uint64_t[SITES]){[1] = 19 * MIB * 10, [2] = 3 * MIB / 2 * 10});
    assert_sum(fragmented.idle, (20 + 2 + 20) * MIB * 10);
}

MODEL_TEST(a_block_over_large_pages_strands_the_outer_ones)
{
    builder_map(builder, BASE, 80 * MIB, true);
    builder_alloc(builder, BASE + 15 * MIB, 30 * MIB, 1); /* 5 of the first, 5 of the third */
    builder_alloc(builder, BASE + 59 * MIB, MIB, 2);      /* on the third as well */
    builder->now_us += 2;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sites(&fragmented, (const uint64_t[SITES]){
                                  [1] = 15 * MIB * 2 + 14 * MIB * 2 / 2, [2] = 14 * MIB * 2 / 2});
    assert_sum(fragmented.idle, 20 * MIB * 2);
}

MODEL_TEST(partially_unmapped_memory_has_small_pages)
{
    builder_map(builder, BASE, 20 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder->now_us += 3;
    builder_unmap(builder, BASE + 8 * MIB, 2 * MIB);
    builder->now_us += 1;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sum(fragmented.sites[1].fragmented, MIB * 4);
    assert_sum(fragmented.idle, 18 * MIB * 3 + 16 * MIB);
}

/* No allocator unmaps and maps a part of a page on which a block is allocated, but a file may contain such events. */
MODEL_TEST(page_with_a_block_survives_remapping)
{
    builder_map(builder, BASE, 40 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_unmap(builder, BASE + 10 * MIB, 20 * MIB);
    builder_alloc(builder, BASE + 8 * MIB, MIB, 2);
    builder->now_us += 2; /* 8 MiB are cached on the remainder of the page, 10 elsewhere */
    builder_map(builder, BASE + 10 * MIB, 20 * MIB, true);
    builder_alloc(builder, BASE + 12 * MIB, MIB, 3);
    builder_alloc(builder, BASE + 22 * MIB, MIB, 0);
    builder->now_us += 3; /* 17 MiB on the page, 9 from there to 30 MiB, 10 elsewhere */
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sum(fragmented.fragmented, 8 * MIB * 2 + (17 + 9) * MIB * 3);
    /* Sites 1 and 2 share the page for 2 us, and with site 3 for 3 us. */
    assert_sites(&fragmented, (const uint64_t[SITES]){9 * MIB * 3, 25 * MIB, 25 * MIB, 17 * MIB});
    assert_sum(fragmented.idle, 10 * MIB * 5);
}

MODEL_TEST(classic_segment_is_one_page)
{
    builder_map(builder, BASE + MIB, 20 * MIB, false);
    builder_map(builder, BASE + 21 * MIB, 20 * MIB, false); /* separate from the first */
    builder_alloc(builder, BASE + 9 * MIB, MIB, 3);
    builder->now_us += 3;
    builder_free(builder, BASE + 9 * MIB);
    builder_unmap(builder, BASE + MIB, 20 * MIB);
    builder->now_us += 1;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sum(fragmented.sites[3].fragmented, 19 * MIB * 3);
    assert_sum(fragmented.idle, 20 * MIB * 4);
}

MODEL_TEST(pending_blocks_have_a_separate_row)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, MIB / 2, 2);
    builder_alloc(builder, BASE + 2 * MIB, MIB, 1);
    builder_request_free(builder, BASE);
    builder_request_free(builder, BASE + 2 * MIB);
    builder->now_us += 4;
    builder_complete_free(builder, BASE);
    builder_complete_free(builder, BASE + 2 * MIB);
    struct fragmentation fragmented = play_fragmentation(env);
    assert_sum(fragmented.pending, 2 * MIB * 4);
    assert_sum(fragmented.near_pending, MIB * 4);            /* on the second page */
    assert_sum(fragmented.sites[2].fragmented, MIB / 2 * 4); /* on the first */
    assert_sum(fragmented.sites[1].fragmented, 0);
    assert_sum(fragmented.idle, 0);
}

MODEL_TEST(peak_is_at_the_maximum_of_reserved_memory)
{
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, MIB, 3);
    builder_free(builder, BASE + MIB);
    builder_map(builder, BASE + 4 * MIB, 4 * MIB, true);
    builder_alloc(builder, BASE + 4 * MIB, 3 * MIB, 2); /* here: 8 MiB, 4 of them allocated */
    builder_free(builder, BASE);
    builder_alloc(builder, BASE, MIB / 2, 1);
    builder_unmap(builder, BASE + 2 * MIB, 2 * MIB);
    builder_alloc(builder, BASE + MIB, MIB, 1); /* more allocated, but less reserved */
    builder->now_us += 1;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_int_equal(fragmented.peak.reserved, 8 * MIB);
    assert_int_equal(fragmented.peak.allocated, 4 * MIB);
    assert_int_equal(fragmented.peak.event, 7);
    assert_int_equal(fragmented.sites[1].peak_bytes, MIB);
    assert_int_equal(fragmented.sites[2].peak_bytes, 3 * MIB);
    assert_int_equal(fragmented.sites[3].peak_bytes, 0);
    assert_int_equal(fragmented.sites[1].blocks, 3);
}

MODEL_TEST(sums_may_need_more_than_64_bits)
{
    const uint64_t bytes = (uint64_t)1 << 40, duration_us = (uint64_t)1 << 45;

    builder_map(builder, BASE, bytes, false);
    builder_alloc(builder, BASE, 512, 1);
    builder->now_us += duration_us;
    struct fragmentation fragmented = play_fragmentation(env);
    assert_true(fragmented.sites[1].fragmented == (fragmentation_sum)(bytes - 512) * duration_us);
}
