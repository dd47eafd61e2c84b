/* SPDX-License-Identifier: MIT */
/* What sites strand, of small programmes that are computed by hand; MIB times microseconds. */
#include <stdlib.h>

#include "src/tools/replay_model/stranded.h"
#include "tests/support/recording_builder.h"
#include "tests/support/test.h"

#define BASE  UINT64_C(0x7f0000000000)
#define SITES 4u

static uint32_t by_stack(const void *context, const struct course_block *block)
{
    assert_null(context);
    return block->stack;
}

/* What each test begins with: a builder without events. */
struct scene {
    struct builder *builder;
    struct course course;
    struct stranded stranded;
    bool is_played;
};

static int set_up(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));

    assert_non_null(scene);
    scene->builder = builder_new();
    *state = scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *scene = *state;

    if (scene->is_played) {
        stranded_fini(&scene->stranded);
        course_fini(&scene->course);
    }
    free(scene->builder);
    free(scene);
    return 0;
}

/* Play the builder to its end, which is now; its sums add up then. */
static struct stranded play(struct scene *scene)
{
    struct builder *builder = scene->builder;
    struct stranded *stranded = &scene->stranded;
    stranded_sum sum = 0;

    builder_end(builder);
    assert_true(course_init(&scene->course, &builder->recording, &builder->device));
    assert_true(stranded_init(stranded, &scene->course, SITES, by_stack, NULL));
    scene->is_played = true;
    while (stranded_step(stranded))
        ;
    stranded_finish(stranded, builder->now_us);
    assert_false(stranded->lacks_memory);
    for (uint32_t i = 0; i < SITES; i++)
        sum += stranded->sites[i].stranded;
    assert_true(sum == stranded->stranded);
    assert_true(stranded->reserved - stranded->live ==
                stranded->pending + stranded->beside + stranded->idle + stranded->stranded);
    return *stranded;
}

static void assert_sum(stranded_sum sum, uint64_t expected)
{
    assert_true(sum >> 64 == 0);
    assert_int_equal((uint64_t)sum, expected);
}

TEST_WITH(a_block_strands_its_page, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB / 2, 1);
    builder->now_us += 10;
    builder_free(builder, BASE);
    builder->now_us += 5;
    stranded = play(*state);
    assert_sum(stranded.reserved, 4 * MIB * 15);
    assert_sum(stranded.live, MIB / 2 * 10);
    assert_sum(stranded.sites[1].stranded, 3 * MIB / 2 * 10);
    assert_sum(stranded.sites[1].live, MIB / 2 * 10);
    assert_sum(stranded.idle, 2 * MIB * 10 + 4 * MIB * 5);
    assert_sum(stranded.pending + stranded.beside, 0);
}

TEST_WITH(blocks_on_a_page_share_it_equally, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 2 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder->now_us += 2;
    builder_alloc(builder, BASE + MIB, 512, 2);
    builder->now_us += 4;
    builder_free(builder, BASE);
    builder->now_us += 1;
    stranded = play(*state);
    assert_sum(stranded.sites[1].stranded, MIB * 2 + (MIB - 512) * 4 / 2);
    assert_sum(stranded.sites[2].stranded, (MIB - 512) * 4 / 2 + (2 * MIB - 512) * 1);
    assert_sum(stranded.idle, 0);
}

TEST_WITH(remainder_of_a_division_is_not_lost, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 2 * MIB, true);
    for (uint32_t i = 0; i < 3; i++)
        builder_alloc(builder, BASE + 512 * i, 512, i);
    builder->now_us += 1; /* 2 MiB - 1536 is no multiple of 3 */
    for (uint32_t i = 0; i < 3; i++)
        builder_free(builder, BASE + 512 * i);
    stranded = play(*state);
    assert_true((2 * MIB - 1536) % 3 == 2);
    assert_sum(stranded.stranded, 2 * MIB - 1536);
    assert_sum(stranded.sites[0].stranded, (2 * MIB - 1536) / 3);
    assert_sum(stranded.sites[1].stranded, (2 * MIB - 1536) / 3);
    assert_sum(stranded.sites[2].stranded, (2 * MIB - 1536) / 3 + 2);
}

TEST_WITH(a_block_over_pages_strands_the_outer_ones, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 10 * MIB, true);
    builder_alloc(builder, BASE + MIB, 6 * MIB, 1);     /* half of 0, 1, 2, half of 3 */
    builder_alloc(builder, BASE + 7 * MIB, MIB / 2, 2); /* on 3, too */
    builder->now_us += 8;
    stranded = play(*state);
    assert_sum(stranded.sites[1].stranded, MIB * 8 + MIB / 2 * 8 / 2);
    assert_sum(stranded.sites[2].stranded, MIB / 2 * 8 / 2);
    assert_sum(stranded.idle, 2 * MIB * 8);
}

TEST_WITH(pages_start_at_the_mapped_address, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE + 6 * MIB, 40 * MIB, true);
    builder_map(builder, BASE + 46 * MIB, 2 * MIB, true);
    builder_map(builder, BASE + 48 * MIB, 22 * MIB, true); /* no multiple of 20: of 2 each */
    builder_alloc(builder, BASE + 26 * MIB, MIB, 1);       /* 26 to 46 */
    builder_alloc(builder, BASE + 49 * MIB, MIB / 2, 2);   /* 48 to 50 */
    builder->now_us += 10;
    stranded = play(*state);
    assert_sum(stranded.sites[1].stranded, 19 * MIB * 10);
    assert_sum(stranded.sites[2].stranded, 3 * MIB / 2 * 10);
    assert_sum(stranded.idle, (20 + 2 + 20) * MIB * 10);
}

TEST_WITH(a_block_over_large_pages_strands_the_outer_ones, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 80 * MIB, true);
    builder_alloc(builder, BASE + 15 * MIB, 30 * MIB, 1); /* 5 of the first, 5 of the third */
    builder_alloc(builder, BASE + 59 * MIB, MIB, 2);      /* on the third, too */
    builder->now_us += 2;
    stranded = play(*state);
    assert_sum(stranded.sites[1].stranded, 15 * MIB * 2 + 14 * MIB * 2 / 2);
    assert_sum(stranded.sites[2].stranded, 14 * MIB * 2 / 2);
    assert_sum(stranded.idle, 20 * MIB * 2);
}

TEST_WITH(partially_unmapped_memory_has_small_pages, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 20 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder->now_us += 3;
    builder_unmap(builder, BASE + 8 * MIB, 2 * MIB);
    builder->now_us += 1;
    stranded = play(*state);
    assert_sum(stranded.sites[1].stranded, MIB * 4);
    assert_sum(stranded.idle, 18 * MIB * 3 + 16 * MIB);
}

/* No allocator does that, but a file may say so. */
TEST_WITH(page_with_a_block_survives_remapping, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 40 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_unmap(builder, BASE + 10 * MIB, 20 * MIB);
    builder_alloc(builder, BASE + 8 * MIB, MIB, 2);
    builder->now_us += 2; /* 8 MiB are cached on what is left of the page, 10 elsewhere */
    builder_map(builder, BASE + 10 * MIB, 20 * MIB, true);
    builder_alloc(builder, BASE + 12 * MIB, MIB, 3);
    builder_alloc(builder, BASE + 22 * MIB, MIB, 0);
    builder->now_us += 3; /* 17 MiB on the page, 9 from there to 30 MiB, 10 elsewhere */
    stranded = play(*state);
    assert_sum(stranded.stranded, 8 * MIB * 2 + (17 + 9) * MIB * 3);
    assert_sum(stranded.sites[3].stranded, 17 * MIB);
    assert_sum(stranded.sites[0].stranded, 9 * MIB * 3);
    assert_sum(stranded.idle, 10 * MIB * 5);
}

TEST_WITH(classic_segment_is_one_page, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE + MIB, 20 * MIB, false);
    builder_map(builder, BASE + 21 * MIB, 20 * MIB, false); /* not one with the first */
    builder_alloc(builder, BASE + 9 * MIB, MIB, 3);
    builder->now_us += 3;
    builder_free(builder, BASE + 9 * MIB);
    builder_unmap(builder, BASE + MIB, 20 * MIB);
    builder->now_us += 1;
    stranded = play(*state);
    assert_sum(stranded.sites[3].stranded, 19 * MIB * 3);
    assert_sum(stranded.idle, 20 * MIB * 4);
}

TEST_WITH(pending_blocks_have_a_row_of_their_own, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, MIB / 2, 2);
    builder_alloc(builder, BASE + 2 * MIB, MIB, 1);
    builder_request_free(builder, BASE);
    builder_request_free(builder, BASE + 2 * MIB);
    builder->now_us += 4;
    builder_complete_free(builder, BASE);
    builder_complete_free(builder, BASE + 2 * MIB);
    stranded = play(*state);
    assert_sum(stranded.pending, 2 * MIB * 4);
    assert_sum(stranded.beside, MIB * 4);                /* on the second page */
    assert_sum(stranded.sites[2].stranded, MIB / 2 * 4); /* on the first */
    assert_sum(stranded.sites[1].stranded, 0);
    assert_sum(stranded.idle, 0);
}

TEST_WITH(peak_is_at_the_maximum_of_reserved_memory, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;

    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, MIB, 3);
    builder_free(builder, BASE + MIB);
    builder_map(builder, BASE + 4 * MIB, 4 * MIB, true);
    builder_alloc(builder, BASE + 4 * MIB, 3 * MIB, 2); /* here: 8 MiB, 4 of them live */
    builder_free(builder, BASE);
    builder_alloc(builder, BASE, MIB / 2, 1);
    builder_unmap(builder, BASE + 2 * MIB, 2 * MIB);
    builder_alloc(builder, BASE + MIB, MIB, 1); /* more live, but less reserved */
    builder->now_us += 1;
    stranded = play(*state);
    assert_int_equal(stranded.peak.reserved, 8 * MIB);
    assert_int_equal(stranded.peak.live, 4 * MIB);
    assert_int_equal(stranded.peak.event, 7);
    assert_int_equal(stranded.sites[1].peak_bytes, MIB);
    assert_int_equal(stranded.sites[2].peak_bytes, 3 * MIB);
    assert_int_equal(stranded.sites[3].peak_bytes, 0);
    assert_int_equal(stranded.sites[1].blocks, 3);
}

TEST_WITH(sums_may_need_more_than_64_bits, set_up, tear_down)
{
    struct builder *builder = ((struct scene *)*state)->builder;
    struct stranded stranded;
    const uint64_t bytes = (uint64_t)1 << 40, passed = (uint64_t)1 << 45;

    builder_map(builder, BASE, bytes, false);
    builder_alloc(builder, BASE, 512, 1);
    builder->now_us += passed;
    stranded = play(*state);
    assert_true(stranded.sites[1].stranded == (stranded_sum)(bytes - 512) * passed);
}
