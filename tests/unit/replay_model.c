/* SPDX-License-Identifier: MIT */
/* A recording played forward from its first event: the state is found from the end, whatever is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/tools/replay_model/replay_model.h"
#include "tests/support/draw.h"
#include "tests/support/programme.h"

#define BASE UINT64_C(0x7f0000000000)
#define MIB  ((uint64_t)1 << 20)

static struct replay_model begin(struct programme *programme)
{
    struct replay_model model;

    programme_end(programme);
    assert_true(replay_model_init(&model, &programme->recording, &programme->device));
    return model;
}

static size_t play(struct replay_model *model)
{
    while (replay_model_step(model))
        ;
    assert_false(model->out_of_memory);
    return model->at;
}

/* --- By hand. --- */

static void a_block_comes_and_goes(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE + 512, 1000, 3);
    programme->now_us += 5;
    programme_request_free(programme, BASE + 512);
    programme_complete_free(programme, BASE + 512);
    programme_unmap(programme, BASE + 2 * MIB, 2 * MIB);
    model = begin(programme);
    assert_int_equal(model.reserved, 0);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.reserved, 4 * MIB);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated, 1024);
    assert_int_equal(replay_model_block_at(&model, BASE + 1535)->stack, 3);
    assert_null(replay_model_block_at(&model, BASE + 1536));
    assert_null(replay_model_block_at(&model, BASE + 511));
    assert_int_equal(replay_model_next_us(&model), 1005);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated, 0);
    assert_int_equal(model.pending, 1024);
    assert_true(replay_model_block_at(&model, BASE + 512)->is_pending);
    assert_int_equal(replay_model_block_at(&model, BASE + 512)->since_us, 1005);
    assert_true(replay_model_step(&model));
    assert_null(replay_model_block_at(&model, BASE + 512));
    assert_true(replay_model_step(&model));
    assert_int_equal(model.reserved, 2 * MIB);
    assert_false(replay_model_step(&model));
    assert_int_equal(model.omitted, 0);
    replay_model_fini(&model);
    free(programme);
}

static void the_state_before_the_first_event_is_found(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme_alloc(programme, BASE + MIB, MIB, 2);
    programme_request_free(programme, BASE);
    programme->device.event_count = 0; /* a ring has lost these */
    programme_complete_free(programme, BASE);
    programme_alloc(programme, BASE, MIB, 3);
    programme_request_free(programme, BASE);
    programme_unmap(programme, BASE + 2 * MIB, 2 * MIB);
    model = begin(programme);
    assert_int_equal(model.reserved, 4 * MIB);
    assert_int_equal(model.allocated, MIB);
    assert_int_equal(model.pending, MIB);
    assert_true(replay_model_block_at(&model, BASE)->is_older);
    assert_int_equal(replay_model_block_at(&model, BASE)->stack, 0);
    assert_int_equal(replay_model_block_at(&model, BASE + MIB)->stack, 2);
    assert_int_equal(play(&model), 4);
    assert_int_equal(model.omitted, 0);
    replay_model_fini(&model);
    free(programme);
}

/* With history_skip:[free_requested], or skip_actions of PyTorch. */
static void without_requests_a_block_is_live_until_its_free_is_complete(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme->device.event_count = 0;
    programme_alloc(programme, BASE + MIB, 1000, 2);
    programme_complete_free(programme, BASE);
    programme_complete_free(programme, BASE + MIB);
    model = begin(programme);
    assert_int_equal(model.allocated, MIB);
    assert_int_equal(model.pending, 0);
    assert_int_equal(replay_model_block_at(&model, BASE)->requested, MIB);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated, MIB + 1024);
    assert_int_equal(replay_model_block_at(&model, BASE + MIB)->requested, 1000);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated, 1024);
    assert_int_equal(play(&model), 3);
    assert_int_equal(model.allocated + model.pending, 0);
    assert_int_equal(model.omitted, 0);
    replay_model_fini(&model);
    free(programme);
}

static void a_block_at_the_end_has_its_real_size(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 20 * MIB, false);
    programme_alloc(programme, BASE, 19 * MIB + 1, 1);
    programme->block[0].bytes = 20 * MIB; /* what was left was too little to split */
    model = begin(programme);
    assert_int_equal(play(&model), 2);
    assert_int_equal(model.allocated, 20 * MIB);
    replay_model_fini(&model);
    free(programme);
}

static void events_that_do_not_fit_are_left_out(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    (void)programme_event(programme, RECORDING_ALLOC, BASE + MIB, 512); /* nothing is there */
    (void)programme_event(programme, RECORDING_FREE_COMPLETED, BASE - MIB, 512); /* in no memory */
    (void)programme_event(programme, RECORDING_SEGMENT_MAP, BASE + 64 * MIB, MIB);
    (void)programme_event(programme, RECORDING_SEGMENT_ALLOC, BASE, 4 * MIB); /* it is expandable */
    (void)programme_event(programme, RECORDING_SEGMENT_UNMAP, BASE + MIB,
                          MIB); /* it is still there */
    (void)programme_event(programme, RECORDING_SEGMENT_FREE, BASE + 1, 7);
    (void)programme_event(programme, RECORDING_OOM, 0, MIB);
    (void)programme_event(programme, RECORDING_OTHER, 0, 0);
    programme_alloc(programme, BASE, 512, 1);
    model = begin(programme);
    assert_int_equal(model.omitted, 6);
    assert_int_equal(play(&model), 10);
    assert_int_equal(model.reserved, 4 * MIB);
    assert_int_equal(model.allocated, 512);
    replay_model_fini(&model);
    free(programme);
}

/* A block that a free tells of ends where the next one begins, whatever size the event has. */
static void a_block_that_is_brought_back_ends_at_the_next(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE + 1024, 512, 1);
    programme->device.event_count = 0; /* a ring has lost these */
    (void)programme_event(programme, RECORDING_FREE_REQUESTED, BASE, 4096);
    (void)programme_event(programme, RECORDING_FREE_COMPLETED, BASE, 4096);
    model = begin(programme);
    assert_int_equal(replay_model_block_at(&model, BASE)->bytes, 1024);
    assert_int_equal(model.allocated, 1024 + 512);
    assert_int_equal(play(&model), 2);
    assert_int_equal(model.allocated, 512);
    replay_model_fini(&model);
    free(programme);
}

static void frees_of_one_kind_may_be_missing(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, 512, 1);
    programme_request_free(programme, BASE);
    programme_complete_free(programme, BASE);
    programme->device.event_count--; /* skip_actions: free_completed */
    programme_alloc(programme, BASE, 1024, 2);
    programme_request_free(programme, BASE);
    programme->device.event_count--; /* skip_actions: free_requested */
    programme_complete_free(programme, BASE);
    model = begin(programme);
    assert_int_equal(model.omitted, 0);
    for (int i = 0; i < 3; i++)
        assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated + model.pending, 0);
    assert_true(replay_model_step(&model));
    assert_int_equal(model.allocated, 1024);
    assert_int_equal(play(&model), 5);
    assert_int_equal(model.allocated + model.pending, 0);
    replay_model_fini(&model);
    free(programme);
}

static void mapped_memory_may_be_of_several_streams_later(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 8 * MIB, true);
    programme_alloc(programme, BASE + 3 * MIB, MIB, 1);
    programme_end(programme);
    programme->segments[1] = programme->segments[0];
    programme->segments[0].bytes = programme->segments[1].bytes = 4 * MIB;
    programme->segments[0].count = 2;
    programme->segments[1].address += 4 * MIB;
    programme->segments[1].count = 0;
    programme->segments[1].stream = 7;
    programme->device.segment_count = 2;
    assert_true(replay_model_init(&model, &programme->recording, &programme->device));
    assert_int_equal(model.omitted, 0);
    assert_int_equal(model.reserved, 0);
    assert_int_equal(play(&model), 2);
    assert_int_equal(model.reserved, 8 * MIB);
    assert_int_equal(model.allocated, MIB);
    replay_model_fini(&model);
    free(programme);
}

static void segments_that_overlap_are_left_out(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, false);
    programme_alloc(programme, BASE, 512, 1);
    programme_end(programme);
    programme->device.event_count = 0;
    programme->segments[1] = programme->segments[0];
    programme->segments[1].address += MIB;
    programme->device.segment_count = 2;
    programme->blocks[0].bytes = 5 * MIB; /* more than the segment has */
    assert_true(replay_model_init(&model, &programme->recording, &programme->device));
    assert_int_equal(model.omitted, 2);
    assert_int_equal(model.reserved, 4 * MIB);
    assert_int_equal(model.allocated, 0);
    replay_model_fini(&model);
    free(programme);
}

static void time_does_not_go_back(void **state)
{
    struct programme *programme = programme_new();
    struct replay_model model;

    (void)state;
    programme_map(programme, BASE, 4 * MIB, true);
    programme->now_us -= 10;
    programme_alloc(programme, BASE, 512, 1);
    programme->now_us += 30;
    programme_free(programme, BASE);
    model = begin(programme);
    assert_true(replay_model_step(&model));
    assert_true(replay_model_step(&model));
    assert_int_equal(model.now_us, 1000);
    (void)play(&model);
    assert_int_equal(model.now_us, 1020);
    replay_model_fini(&model);
    for (size_t i = 0; i < programme->device.event_count; i++)
        programme->events[i].time_us = 0;
    model = begin(programme);
    (void)play(&model);
    assert_false(model.has_times);
    /* An event is a microsecond, a free and its completion right behind it are one. */
    assert_int_equal(model.now_us, 2);
    assert_int_equal(model.ticks, 3);
    replay_model_fini(&model);
    free(programme);
}

/* --- Random programmes. --- */

static uint32_t draw_below(uint64_t *draw, uint32_t limit)
{
    return (uint32_t)(draw_next(draw) >> 33) % limit;
}

#define AREA (64 * MIB) /* of addresses; the upper half is for classic segments */

static bool is_free(const struct programme *programme, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < programme->block_count; i++)
        if (programme->block[i].address < end &&
            programme->block[i].address + programme->block[i].bytes > start)
            return false;
    return true;
}

static const struct programme_range *range_at(const struct programme *programme, uint64_t address)
{
    for (size_t i = 0; i < programme->range_count; i++)
        if (address >= programme->range[i].start && address < programme->range[i].end)
            return &programme->range[i];
    return NULL;
}

static bool is_mapped(const struct programme *programme, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < programme->range_count; i++)
        if (programme->range[i].start < end && programme->range[i].end > start)
            return true;
    return false;
}

static void change_memory(struct programme *programme, uint64_t address)
{
    const struct programme_range *range = range_at(programme, address);
    const bool is_expandable = address < BASE + AREA / 2;
    const uint64_t start = address / (2 * MIB) * (2 * MIB);

    if (!range) {
        if (!is_mapped(programme, start, start + 4 * MIB) &&
            (!is_expandable || start + 4 * MIB <= BASE + AREA / 2))
            programme_map(programme, start, 4 * MIB, is_expandable);
    } else if (is_expandable && is_free(programme, start, start + 2 * MIB)) {
        programme_unmap(programme, start, 2 * MIB);
    } else if (!is_expandable && is_free(programme, range->start, range->end)) {
        programme_unmap(programme, range->start, range->end - range->start);
    }
}

static void change_block(struct programme *programme, uint64_t *draw, uint64_t address)
{
    const struct programme_range *range = range_at(programme, address);
    const uint64_t bytes = 512 * (1 + draw_below(draw, 1 << draw_below(draw, 13)));
    const size_t some =
        programme->block_count > 0 ? draw_below(draw, (uint32_t)programme->block_count) : 0;

    if (draw_below(draw, 2) == 0) {
        if (range && address + bytes <= range->end && is_free(programme, address, address + bytes))
            programme_alloc(programme, address, bytes - draw_below(draw, 512), draw_below(draw, 5));
    } else if (programme->block_count > 0) {
        if (programme->block[some].is_pending)
            programme_complete_free(programme, programme->block[some].address);
        else
            programme_request_free(programme, programme->block[some].address);
    }
}

static void step(struct programme *programme, uint64_t *draw)
{
    const uint64_t address = BASE + 512 * (uint64_t)draw_below(draw, AREA / 512);

    programme->now_us += draw_below(draw, 3);
    if (draw_below(draw, 8) == 0)
        change_memory(programme, address);
    else
        change_block(programme, draw, address);
}

/* Assert that a model has the blocks and the memory of a program. */
static void compare_blocks(const struct replay_model *model, const struct programme *programme)
{
    uint64_t reserved = 0;

    for (size_t i = 0; i < programme->range_count; i++)
        reserved += programme->range[i].end - programme->range[i].start;
    assert_int_equal(model->reserved, reserved);
    assert_int_equal(model->blocks.count, programme->block_count);
    for (size_t i = 0; i < programme->block_count; i++) {
        const struct programme_block *block = &programme->block[i];
        const struct replay_model_block *found = replay_model_block_at(model, block->address);

        assert_non_null(found);
        assert_int_equal(found->address, block->address);
        assert_int_equal(found->bytes, block->bytes);
    }
}

/* That memory is there, as ranges of one kind of whole pages.  Returns how many. */
static size_t compare_range(const struct replay_model *model, const struct programme_range *range)
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

/* That its state is the same. */
static void compare(const struct replay_model *model, const struct programme *programme)
{
    size_t count = 0;

    compare_blocks(model, programme);
    for (size_t i = 0; i < programme->block_count; i++)
        assert_int_equal(replay_model_block_at(model, programme->block[i].address)->is_pending,
                         programme->block[i].is_pending);
    for (size_t i = 0; i < programme->range_count; i++)
        count += compare_range(model, &programme->range[i]);
    assert_int_equal(model->ranges.count, count);
}

static void random_programmes_begin_and_end_as_they_did(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct programme *programme = programme_new(), *early = malloc(sizeof(*early));
        uint64_t draw = seed;
        struct replay_model model;
        size_t before;

        assert_non_null(early);
        for (int i = 0; i < 400; i++)
            step(programme, &draw);
        *early = *programme;
        before = programme->device.event_count;
        for (int i = 0; i < 1200; i++)
            step(programme, &draw);
        programme->device.event_count -= before; /* a ring has lost these */
        memmove(programme->events, programme->events + before,
                programme->device.event_count * sizeof(programme->events[0]));
        model = begin(programme);
        assert_int_equal(model.omitted, 0);
        compare(&model, early);
        assert_int_equal(play(&model), programme->device.event_count);
        compare(&model, programme);
        replay_model_fini(&model);
        free(early);
        free(programme);
    }
}

/* Whatever is missing or wrong, an event that is played finds what it changes. */
static void events_that_are_missing_do_no_harm(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct programme *programme = programme_new();
        uint64_t draw = seed;
        struct replay_model model;
        size_t kept = 0;

        for (int i = 0; i < 1000; i++)
            step(programme, &draw);
        for (size_t i = 0; i < programme->device.event_count; i++) {
            struct recording_event *event = &programme->events[kept];

            *event = programme->events[i];
            if (draw_below(&draw, 20) == 0)
                continue;
            if (draw_below(&draw, 20) == 0)
                event->bytes = draw_below(&draw, UINT32_MAX);
            if (draw_below(&draw, 20) == 0)
                event->action = (uint8_t)draw_below(&draw, RECORDING_OTHER + 1);
            event->stream = draw_below(&draw, 2);
            kept++;
        }
        programme->device.event_count = kept;
        model = begin(programme);
        (void)play(&model);
        compare_blocks(&model, programme);
        replay_model_fini(&model);
        free(programme);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_comes_and_goes),
        cmocka_unit_test(the_state_before_the_first_event_is_found),
        cmocka_unit_test(without_requests_a_block_is_live_until_its_free_is_complete),
        cmocka_unit_test(a_block_at_the_end_has_its_real_size),
        cmocka_unit_test(events_that_do_not_fit_are_left_out),
        cmocka_unit_test(a_block_that_is_brought_back_ends_at_the_next),
        cmocka_unit_test(frees_of_one_kind_may_be_missing),
        cmocka_unit_test(mapped_memory_may_be_of_several_streams_later),
        cmocka_unit_test(segments_that_overlap_are_left_out),
        cmocka_unit_test(time_does_not_go_back),
        cmocka_unit_test(random_programmes_begin_and_end_as_they_did),
        cmocka_unit_test(events_that_are_missing_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
