/* SPDX-License-Identifier: MIT */
/* What sites strand, of small programmes that are computed by hand; MIB times microseconds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "src/tools/replay_model/fragmentation.h"
#include "tests/support/programme.h"

#define BASE  UINT64_C(0x7f0000000000)
#define MIB   ((uint64_t)1 << 20)
#define SITES 4u

static uint32_t by_stack(const void *context, const struct replay_model_block *block)
{
    assert_null(context);
    return block->stack;
}

/* What each test begins with: a programme without events. */
struct scene {
    struct programme *programme;
    struct replay_model model;
    struct fragmentation fragmentation;
    bool is_played;
};

static int set_up(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));

    assert_non_null(scene);
    scene->programme = programme_new();
    *state = scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *scene = *state;

    if (scene->is_played) {
        fragmentation_fini(&scene->fragmentation);
        replay_model_fini(&scene->model);
    }
    free(scene->programme);
    free(scene);
    return 0;
}

/* Play the programme to its end, which is now; its sums add up then. */
static struct fragmentation play(struct scene *scene)
{
    struct programme *programme = scene->programme;
    struct fragmentation *fragmentation = &scene->fragmentation;
    fragmentation_sum sum = 0;

    programme_end(programme);
    assert_true(replay_model_init(&scene->model, &programme->recording, &programme->device));
    assert_true(fragmentation_init(fragmentation, &scene->model, SITES, by_stack, NULL));
    scene->is_played = true;
    while (fragmentation_step(fragmentation))
        ;
    fragmentation_finish(fragmentation, programme->now_us);
    assert_false(fragmentation->out_of_memory);
    for (uint32_t i = 0; i < SITES; i++)
        sum += fragmentation->sites[i].fragmented;
    assert_true(sum == fragmentation->fragmented);
    assert_true(fragmentation->reserved - fragmentation->allocated ==
                fragmentation->pending + fragmentation->near_pending + fragmentation->idle + fragmentation->fragmented);
    return *fragmentation;
}

static void assert_sum(fragmentation_sum sum, uint64_t expected)
{
    assert_true(sum >> 64 == 0);
    assert_int_equal((uint64_t)sum, expected);
}

static void a_block_strands_its_page(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, MIB / 2, 1);
    programme->now_us += 10;
    programme_free(programme, BASE);
    programme->now_us += 5;
    fragmentation = play(*state);
    assert_sum(fragmentation.reserved, 4 * MIB * 15);
    assert_sum(fragmentation.allocated, MIB / 2 * 10);
    assert_sum(fragmentation.sites[1].fragmented, 3 * MIB / 2 * 10);
    assert_sum(fragmentation.sites[1].allocated, MIB / 2 * 10);
    assert_sum(fragmentation.idle, 2 * MIB * 10 + 4 * MIB * 5);
    assert_sum(fragmentation.pending + fragmentation.near_pending, 0);
}

static void blocks_on_a_page_share_it_equally(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 2 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme->now_us += 2;
    programme_alloc(programme, BASE + MIB, 512, 2);
    programme->now_us += 4;
    programme_free(programme, BASE);
    programme->now_us += 1;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[1].fragmented, MIB * 2 + (MIB - 512) * 4 / 2);
    assert_sum(fragmentation.sites[2].fragmented, (MIB - 512) * 4 / 2 + (2 * MIB - 512) * 1);
    assert_sum(fragmentation.idle, 0);
}

static void what_cannot_be_shared_is_not_lost(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 2 * MIB, true);
    for (uint32_t i = 0; i < 3; i++)
        programme_alloc(programme, BASE + 512 * i, 512, i);
    programme->now_us += 1; /* 2 MiB - 1536 is no multiple of 3 */
    for (uint32_t i = 0; i < 3; i++)
        programme_free(programme, BASE + 512 * i);
    fragmentation = play(*state);
    assert_true((2 * MIB - 1536) % 3 == 2);
    assert_sum(fragmentation.fragmented, 2 * MIB - 1536);
    assert_sum(fragmentation.sites[0].fragmented, (2 * MIB - 1536) / 3);
    assert_sum(fragmentation.sites[1].fragmented, (2 * MIB - 1536) / 3);
    assert_sum(fragmentation.sites[2].fragmented, (2 * MIB - 1536) / 3 + 2);
}

static void a_block_over_pages_strands_the_outer_ones(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 10 * MIB, true);
    programme_alloc(programme, BASE + MIB, 6 * MIB, 1);     /* half of 0, 1, 2, half of 3 */
    programme_alloc(programme, BASE + 7 * MIB, MIB / 2, 2); /* on 3, too */
    programme->now_us += 8;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[1].fragmented, MIB * 8 + MIB / 2 * 8 / 2);
    assert_sum(fragmentation.sites[2].fragmented, MIB / 2 * 8 / 2);
    assert_sum(fragmentation.idle, 2 * MIB * 8);
}

static void pages_are_counted_from_where_memory_came(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE + 6 * MIB, 40 * MIB, true);
    programme_map(programme, BASE + 46 * MIB, 2 * MIB, true);
    programme_map(programme, BASE + 48 * MIB, 22 * MIB, true); /* no multiple of 20: of 2 each */
    programme_alloc(programme, BASE + 26 * MIB, MIB, 1);       /* 26 to 46 */
    programme_alloc(programme, BASE + 49 * MIB, MIB / 2, 2);   /* 48 to 50 */
    programme->now_us += 10;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[1].fragmented, 19 * MIB * 10);
    assert_sum(fragmentation.sites[2].fragmented, 3 * MIB / 2 * 10);
    assert_sum(fragmentation.idle, (20 + 2 + 20) * MIB * 10);
}

static void a_block_over_large_pages_strands_the_outer_ones(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 80 * MIB, true);
    programme_alloc(programme, BASE + 15 * MIB, 30 * MIB, 1); /* 5 of the first, 5 of the third */
    programme_alloc(programme, BASE + 59 * MIB, MIB, 2);      /* on the third, too */
    programme->now_us += 2;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[1].fragmented, 15 * MIB * 2 + 14 * MIB * 2 / 2);
    assert_sum(fragmentation.sites[2].fragmented, 14 * MIB * 2 / 2);
    assert_sum(fragmentation.idle, 20 * MIB * 2);
}

static void what_is_unmapped_in_parts_has_small_pages(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 20 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme->now_us += 3;
    programme_unmap(programme, BASE + 8 * MIB, 2 * MIB);
    programme->now_us += 1;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[1].fragmented, MIB * 4);
    assert_sum(fragmentation.idle, 18 * MIB * 3 + 16 * MIB);
}

/* No allocator does that, but a file may say so. */
static void a_page_with_a_block_stays_one_whatever_is_mapped_anew(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 40 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme_unmap(programme, BASE + 10 * MIB, 20 * MIB);
    programme_alloc(programme, BASE + 8 * MIB, MIB, 2);
    programme->now_us += 2; /* 8 MiB are cached on what is left of the page, 10 elsewhere */
    programme_map(programme, BASE + 10 * MIB, 20 * MIB, true);
    programme_alloc(programme, BASE + 12 * MIB, MIB, 3);
    programme_alloc(programme, BASE + 22 * MIB, MIB, 0);
    programme->now_us += 3; /* 17 MiB on the page, 9 from there to 30 MiB, 10 elsewhere */
    fragmentation = play(*state);
    assert_sum(fragmentation.fragmented, 8 * MIB * 2 + (17 + 9) * MIB * 3);
    assert_sum(fragmentation.sites[3].fragmented, 17 * MIB);
    assert_sum(fragmentation.sites[0].fragmented, 9 * MIB * 3);
    assert_sum(fragmentation.idle, 10 * MIB * 5);
}

static void of_a_classic_segment_the_segment_is_the_page(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE + MIB, 20 * MIB, false);
    programme_map(programme, BASE + 21 * MIB, 20 * MIB, false); /* not one with the first */
    programme_alloc(programme, BASE + 9 * MIB, MIB, 3);
    programme->now_us += 3;
    programme_free(programme, BASE + 9 * MIB);
    programme_unmap(programme, BASE + MIB, 20 * MIB);
    programme->now_us += 1;
    fragmentation = play(*state);
    assert_sum(fragmentation.sites[3].fragmented, 19 * MIB * 3);
    assert_sum(fragmentation.idle, 20 * MIB * 4);
}

static void pending_blocks_have_a_row_of_their_own(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme_alloc(programme, BASE + MIB, MIB / 2, 2);
    programme_alloc(programme, BASE + 2 * MIB, MIB, 1);
    programme_request_free(programme, BASE);
    programme_request_free(programme, BASE + 2 * MIB);
    programme->now_us += 4;
    programme_complete_free(programme, BASE);
    programme_complete_free(programme, BASE + 2 * MIB);
    fragmentation = play(*state);
    assert_sum(fragmentation.pending, 2 * MIB * 4);
    assert_sum(fragmentation.near_pending, MIB * 4);                /* on the second page */
    assert_sum(fragmentation.sites[2].fragmented, MIB / 2 * 4); /* on the first */
    assert_sum(fragmentation.sites[1].fragmented, 0);
    assert_sum(fragmentation.idle, 0);
}

static void the_peak_is_where_most_was_reserved(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;

    programme_map(programme, BASE, 4 * MIB, true);
    programme_alloc(programme, BASE, MIB, 1);
    programme_alloc(programme, BASE + MIB, MIB, 3);
    programme_free(programme, BASE + MIB);
    programme_map(programme, BASE + 4 * MIB, 4 * MIB, true);
    programme_alloc(programme, BASE + 4 * MIB, 3 * MIB, 2); /* here: 8 MiB, 4 of them live */
    programme_free(programme, BASE);
    programme_alloc(programme, BASE, MIB / 2, 1);
    programme_unmap(programme, BASE + 2 * MIB, 2 * MIB);
    programme_alloc(programme, BASE + MIB, MIB, 1); /* more live, but less reserved */
    programme->now_us += 1;
    fragmentation = play(*state);
    assert_int_equal(fragmentation.peak.reserved, 8 * MIB);
    assert_int_equal(fragmentation.peak.allocated, 4 * MIB);
    assert_int_equal(fragmentation.peak.event, 7);
    assert_int_equal(fragmentation.sites[1].peak_bytes, MIB);
    assert_int_equal(fragmentation.sites[2].peak_bytes, 3 * MIB);
    assert_int_equal(fragmentation.sites[3].peak_bytes, 0);
    assert_int_equal(fragmentation.sites[1].blocks, 3);
}

static void sums_may_need_more_than_64_bits(void **state)
{
    struct programme *programme = ((struct scene *)*state)->programme;
    struct fragmentation fragmentation;
    const uint64_t bytes = (uint64_t)1 << 40, passed = (uint64_t)1 << 45;

    programme_map(programme, BASE, bytes, false);
    programme_alloc(programme, BASE, 512, 1);
    programme->now_us += passed;
    fragmentation = play(*state);
    assert_true(fragmentation.sites[1].fragmented == (fragmentation_sum)(bytes - 512) * passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_block_strands_its_page, set_up, tear_down),
        cmocka_unit_test_setup_teardown(blocks_on_a_page_share_it_equally, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_shared_is_not_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_block_over_pages_strands_the_outer_ones, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pages_are_counted_from_where_memory_came, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_block_over_large_pages_strands_the_outer_ones, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_is_unmapped_in_parts_has_small_pages, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_page_with_a_block_stays_one_whatever_is_mapped_anew,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_a_classic_segment_the_segment_is_the_page, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pending_blocks_have_a_row_of_their_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_peak_is_where_most_was_reserved, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sums_may_need_more_than_64_bits, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
