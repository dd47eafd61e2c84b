/* SPDX-License-Identifier: MIT */
/* The sweep over histories of pools that are paused and resumed: what went has gone, and what is back has come. */
#include <string.h>

#include "tests/fault/armed.h"
#include "tests/fault/followed.h"

static unsigned strandings; /* pauses that failed and could not be undone */

/* The pool is paused in spite of an error, as the driver refused the undo. */
static bool is_stranded(void)
{
    char text[1024];

    (void)xseg_error_message(text, sizeof(text));
    return strstr(text, "because the undo failed") != NULL;
}

static void resume(struct stage *stage, bool is_left)
{
    bool again;

    do {
        const xseg_status status = xseg_pool_resume(followed_pool);

        if (status == XSEG_OK)
            stage->paused = NULL;
        /* Of a pool that is paused in part, nobody says which pages have memory. */
        if (status == XSEG_OK || !is_left)
            followed(stage);
        again = stage_again(stage, status);
    } while (again);
}

static void pause_pool(struct stage *stage)
{
    bool again;

    do {
        const xseg_status status = xseg_pool_pause(followed_pool, XSEG_KEEP_NOTHING, NULL);
        const bool is_left = status != XSEG_OK && is_stranded();

        if (status == XSEG_OK || is_left)
            stage->paused = followed_pool;
        if (!is_left)
            followed(stage);
        again = stage_again(stage, status);
        strandings += is_left;
        if (is_left)
            resume(stage, true);
    } while (again);
}

static void give(struct stage *stage, void *ptr)
{
    stage_give(stage, ptr);
    followed(stage);
}

static void trim(struct stage *stage)
{
    stage_trim(stage, true);
    followed(stage);
}

/* Faults strike from the first pause on; what was in blocks is lost. */
static void pause_and_resume(struct stage *stage)
{
    stage->bytes = false;
    assert_int_equal(xseg_pool_create(stage->allocator, 0, NULL, &followed_pool), XSEG_OK);
    void *a = stage_take_from(stage, followed_pool, 50 * MIB, NULL);
    void *b = stage_take_from(stage, followed_pool, 700, stage->side);
    void *c = stage_take_from(stage, followed_pool, 30 * MIB, stage->side);
    void *d = stage_take(stage, 700, NULL);
    give(stage, c);
    armed_begin();
    pause_pool(stage);
    give(stage, b);
    resume(stage, false);
    b = stage_take_from(stage, followed_pool, 1000, stage->side);
    followed(stage);
    give(stage, a);
    pause_pool(stage);
    while (stage_again(stage, xseg_pool_release(followed_pool)))
        ;
    /* What is left of the pool goes, paused as it is. */
    give(stage, b);
    trim(stage);
    stage->paused = NULL;
    give(stage, d);
    trim(stage);
    armed_end();
}

static const struct armed_scenario scenarios[] = {
    {"pause and resume", pause_and_resume, 2, 6},
};

int main(void)
{
    const struct armed_sweep sweep = {"paused_history",    scenarios,
                                      COUNT_OF(scenarios), "expandable_segments:True,history:all",
                                      pause_and_resume,    200};
    const int failed = armed_run(&sweep);

    print_message("# %u pauses could not be undone, %u histories were played\n", strandings,
                  followed_plays());
    return failed != 0 || strandings == 0 || followed_plays() < 1000;
}
