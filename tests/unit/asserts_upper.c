/* SPDX-License-Identifier: MIT */
/* Assertions of reclaim, grow and front strike: each case breaks one precondition in a forked child, which aborts. */
#include <string.h>

#include "src/core/cache/walk.h"
#include "src/core/device/allocator.h"
#include "src/core/front/allocator_config.h"
#include "src/core/front/allocator_open.h"
#include "src/core/front/device_alloc.h"
#include "src/core/front/device_open.h"
#include "src/core/front/request.h"
#include "src/core/grow/advice.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/guarded.h"
#include "src/core/grow/ladder.h"
#include "src/core/grow/refusal.h"
#include "src/core/grow/scrub.h"
#include "src/core/grow/shortage.h"
#include "src/core/grow/steal.h"
#include "src/core/inspect/allocator_describe.h"
#include "src/core/inspect/explain.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/forget.h"
#include "src/core/reclaim/garbage.h"
#include "src/core/reclaim/idle.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim_oversize.h"
#include "src/core/reclaim/trim_steps.h"
#include "tests/support/child.h"
#include "tests/support/scene.h"

/* The allocator of all cases, with one live block that has a segment to itself. */
static struct {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    struct xseg_pool *pool;
    struct xseg_extent *extent;
    struct xseg_arena *arena;
    struct xseg_block *block;
    const struct xseg_config *config;
    void *live;
} scene;

/* A request of 2 MiB, which the arena of the scene could serve. */
static struct xseg_need need_of_scene(void)
{
    return (struct xseg_need){
        .config = scene.config,
        .requested = 2 * MIB,
        .bytes = 2 * MIB,
        .alignment = 512,
        .span = 2 * MIB,
        .segment_bytes = 20 * MIB,
        .expandable = true,
    };
}

static void take_growth(void) XSEG_UNCHECKED
{
    xseg_lock_take(&scene.device->growth_lock);
}

static void lock_arena(void) XSEG_UNCHECKED
{
    xseg_arena_lock(scene.arena);
}

/* --- Cases of reclaim. --- */

static void decay_without_growth(void)
{
    (void)xseg_decay_now(scene.device);
}

static void forget_without_growth(void)
{
    xseg_forget_paused(scene.device);
}

static void forget_lost_of_a_sound_device(void)
{
    take_growth();
    xseg_forget_lost(scene.device);
}

static void garbage_without_growth(void)
{
    xseg_garbage_collect(scene.device, scene.config);
}

static void idle_choice_of_a_step_too_young(void)
{
    struct xseg_idle_ages ages = {.span = 1};
    struct xseg_idle_wish wish = {.ages = &ages};

    xseg_idle_choose(&wish, 1, XSEG_IDLE_ALL, 1);
}

static void idle_take_without_growth(void)
{
    struct xseg_idle_ages ages = {.span = 1};
    struct xseg_idle_wish wish = {.ages = &ages};
    struct xseg_idle_taken taken = {0};

    (void)xseg_idle_take(scene.device, &wish, &taken);
}

static void mapping_past_the_end(void)
{
    struct xseg_mapping mapping;
    uint32_t at = 0;

    (void)xseg_mapping_next(scene.extent, &at, xseg_mapping_granules(scene.extent) + 1, &mapping);
}

static void pinned_bytes_without_growth(void)
{
    (void)xseg_mapping_pinned(scene.device);
}

static void notice_without_growth(void)
{
    (void)xseg_notice_leave(scene.device, NULL);
}

static void notice_of_a_live_block(void)
{
    take_growth();
    (void)xseg_notice_leave(scene.device, scene.block);
}

static void notice_of_a_pool_that_stays(void)
{
    take_growth();
    xseg_notice_pool(scene.pool, true);
}

static void trim_without_growth(void)
{
    const struct xseg_trim_plan plan = {.wait = false};
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;

    (void)xseg_trim_device(scene.device, &plan, &done);
}

static void oversize_of_too_few_bytes(void)
{
    take_growth();
    (void)xseg_trim_oversize(scene.arena, 2 * MIB, MIB);
}

static void claim_without_the_arenas_lock(void) XSEG_UNCHECKED
{
    const struct xseg_trim_wish wish = {.least = 2 * MIB, .most = UINT64_MAX};
    uint64_t bytes = 0;

    take_growth();
    (void)xseg_trim_claim(scene.arena, &wish, &bytes);
}

static void give_of_a_live_block(void)
{
    take_growth();
    (void)xseg_trim_give(scene.block, false, XSEG_HISTORY_TRIM);
}

static void settling_of_a_live_block(void)
{
    xseg_trim_put_back(scene.arena, scene.block);
}

static void end_of_a_hole_without_growth(void)
{
    (void)xseg_trim_end_hole(scene.extent);
}

/* --- Cases of grow. --- */

static void account_without_growth(void)
{
    const struct xseg_need need = need_of_scene();
    struct xseg_account account;

    xseg_account_take(&account, scene.arena, &need);
}

static void advice_on_another_account(void)
{
    const struct xseg_need need = need_of_scene();
    const struct xseg_account account = {.asked = NULL};
    char buffer[64];
    struct xseg_text text;

    xseg_text_init(&text, buffer, sizeof(buffer));
    take_growth();
    xseg_advice_add(&text, scene.arena, &need, &account, false);
}

static void growth_without_growth(void)
{
    const struct xseg_need need = need_of_scene();
    struct xseg_grant grant = {.base = 0};

    (void)xseg_growth_grow(scene.arena, &need, &grant);
}

static void check_of_more_covered_than_wanted(void)
{
    take_growth();
    (void)xseg_growth_check(scene.pool, MIB, 2 * MIB);
}

static void guarded_free_of_a_plain_block(void)
{
    (void)xseg_guarded_free(scene.block);
}

static void ladder_of_a_request_that_was_served(void)
{
    const struct xseg_need need = need_of_scene();
    struct xseg_grant grant = {.base = 512};

    (void)xseg_ladder_alloc(scene.arena, &need, &grant);
}

static void refusal_by_no_limit(void)
{
    take_growth();
    (void)xseg_refusal_fail(scene.pool, XSEG_REFUSER_DRIVER, MIB);
}

static void scrub_without_growth(void)
{
    (void)xseg_scrub_taker(scene.arena, NULL);
}

static void shortage_with_success(void)
{
    const struct xseg_need need = need_of_scene();
    uint64_t free_bytes;

    take_growth();
    (void)xseg_shortage_fail(scene.arena, &need, XSEG_OK, false, &free_bytes);
}

static void steal_of_half_a_page(void)
{
    const struct xseg_steal_plan plan = {
        .config = scene.config,
        .bytes = MIB,
        .granule_bytes = 2 * MIB,
        .page_bytes = 20 * MIB,
        .arena = scene.arena,
    };

    take_growth();
    (void)xseg_steal(scene.device, &plan);
}

static void stretch_of_no_bytes(void)
{
    struct xseg_stretch_place place;

    lock_arena();
    (void)xseg_stretch_find_lowest(scene.arena, 0, &place);
}

static void stretch_without_the_arenas_lock(void)
{
    struct xseg_stretch_place place;

    (void)xseg_stretch_find_cheapest(scene.arena, MIB, &place);
}

/* --- Cases of front. --- */

static void no_version_in_force(void)
{
    xseg_allocator_put_in_force(scene.allocator, NULL);
}

static void limits_of_another_allocators_device(void)
{
    struct xseg_limit_values was = XSEG_LIMIT_VALUES_INIT;

    scene.device->allocator = NULL;
    (void)xseg_allocator_limits(scene.allocator, scene.device, NULL, &was);
}

static void description_without_the_arenas_lock(void)
{
    const struct xseg_part part = {.extent = scene.extent,
                                   .base = scene.block->base,
                                   .bytes = scene.block->bytes,
                                   .state = XSEG_BLOCK_LIVE};
    struct xseg_block_info info;

    xseg_allocator_tell(&part, 0, &info);
}

static void open_without_a_log(void)
{
    struct xseg_allocator *other = NULL;

    (void)xseg_allocator_open("", NULL, NULL, &scene.allocator->clock, &other);
}

static void device_opened_without_the_lock(void)
{
    struct xseg_device *other = NULL;
    char why[64];

    (void)xseg_device_open(scene.allocator, 0, why, sizeof(why), &other);
}

static void request_of_no_bytes(void)
{
    const struct xseg_device_request request = {.config = scene.config};
    void *out = NULL;

    (void)xseg_device_alloc(scene.device, &request, &out);
}

static void reasons_beyond_their_room(void)
{
    struct xseg_reasons reasons = {.count = 1};

    (void)xseg_explain_device(scene.device, scene.config, &reasons);
}

static void request_without_a_place_for_the_address(void)
{
    const struct xseg_request request = XSEG_REQUEST_INIT;

    (void)xseg_request_serve(scene.allocator, &request, false, NULL);
}

/* --- All cases. --- */

static void nothing_broken(void) XSEG_UNCHECKED
{
    take_growth();
    (void)xseg_decay_now(scene.device);
    (void)xseg_mapping_pinned(scene.device);
    xseg_lock_give(&scene.device->growth_lock);
}

/* Whether a forked child aborts in a case, with an assertion's report. */
static bool strikes(void (*run)(void))
{
    char said[4096];
    const int status = child_run_part(run, said, sizeof(said));

    if (status == 0)
        return false;
    if (!child_aborted(status) || strstr(said, ": broken: ") == NULL)
        fail_msg("status %#x, says \"%s\"", (unsigned)status, said);
    return true;
}

struct example {
    const char *name;
    void (*run)(void);
};
#define EXAMPLE(run) \
    {                \
#run, run    \
    }

static void expect_strikes(const struct example *examples, size_t count)
{
    assert_false(strikes(nothing_broken));
    for (size_t i = 0; i < count; i++)
        if (!strikes(examples[i].run))
            fail_msg("no assertion strikes: %s", examples[i].name);
}

static void preconditions_of_reclaim(void **state)
{
    static const struct example examples[] = {
        EXAMPLE(decay_without_growth),
        EXAMPLE(forget_without_growth),
        EXAMPLE(forget_lost_of_a_sound_device),
        EXAMPLE(garbage_without_growth),
        EXAMPLE(idle_choice_of_a_step_too_young),
        EXAMPLE(idle_take_without_growth),
        EXAMPLE(mapping_past_the_end),
        EXAMPLE(pinned_bytes_without_growth),
        EXAMPLE(notice_without_growth),
        EXAMPLE(notice_of_a_live_block),
        EXAMPLE(notice_of_a_pool_that_stays),
        EXAMPLE(trim_without_growth),
        EXAMPLE(oversize_of_too_few_bytes),
        EXAMPLE(claim_without_the_arenas_lock),
        EXAMPLE(give_of_a_live_block),
        EXAMPLE(settling_of_a_live_block),
        EXAMPLE(end_of_a_hole_without_growth),
    };

    (void)state;
    expect_strikes(examples, COUNT_OF(examples));
}

static void preconditions_of_grow(void **state)
{
    static const struct example examples[] = {
        EXAMPLE(account_without_growth),        EXAMPLE(advice_on_another_account),
        EXAMPLE(growth_without_growth),         EXAMPLE(check_of_more_covered_than_wanted),
        EXAMPLE(guarded_free_of_a_plain_block), EXAMPLE(ladder_of_a_request_that_was_served),
        EXAMPLE(refusal_by_no_limit),           EXAMPLE(scrub_without_growth),
        EXAMPLE(shortage_with_success),         EXAMPLE(steal_of_half_a_page),
        EXAMPLE(stretch_of_no_bytes),           EXAMPLE(stretch_without_the_arenas_lock),
    };

    (void)state;
    expect_strikes(examples, COUNT_OF(examples));
}

static void preconditions_of_front(void **state)
{
    static const struct example examples[] = {
        EXAMPLE(no_version_in_force),
        EXAMPLE(limits_of_another_allocators_device),
        EXAMPLE(description_without_the_arenas_lock),
        EXAMPLE(open_without_a_log),
        EXAMPLE(device_opened_without_the_lock),
        EXAMPLE(request_of_no_bytes),
        EXAMPLE(reasons_beyond_their_room),
        EXAMPLE(request_without_a_place_for_the_address),
    };

    (void)state;
    expect_strikes(examples, COUNT_OF(examples));
}

static int set_up(void **state)
{
    (void)state;
    scene.allocator = scene_open("expandable_segments:True");
    scene.live = scene_alloc(scene.allocator, 20 * MIB, NULL);
    scene.device = xseg_allocator_open_device(scene.allocator, 0);
    scene.pool = &scene.device->pool;
    scene.config = xseg_allocator_config(scene.allocator);
    scene.extent = xseg_page_map_find(&scene.allocator->page_map, (uint64_t)(uintptr_t)scene.live);
    scene.arena = scene.extent->arena;
    scene.block = scene.extent->first;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scene_free(scene.allocator, scene.live);
    scene_close(scene.allocator);
    return 0;
}

int main(void)
{
    if (XSEG_CHECKS == 0) {
        (void)puts("1..0 # SKIP this build has no assertions");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preconditions_of_reclaim),
        cmocka_unit_test(preconditions_of_grow),
        cmocka_unit_test(preconditions_of_front),
    };

    return cmocka_run_group_tests_name("asserts_upper", tests, set_up, tear_down);
}
