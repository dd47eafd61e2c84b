/* SPDX-License-Identifier: MIT */
#include "tests/fault/followed.h"

#include <stdlib.h>

#include "tests/fault/host.h"
#include "tests/model/played.h"
#include "tests/support/recorded.h"

struct xseg_pool *followed_pool;

static unsigned plays;

static void play(struct stage *stage)
{
    struct recorded recorded = recorded_walk(stage->allocator, -1);
    struct played played = {.blocks = 0},
                  is = played_read(stage->allocator, &followed_pool, followed_pool != NULL);

    assert_int_equal(recorded.summary.lost, 0);
    for (size_t i = 0; i < recorded.count; i++)
        if (!played_on(&played, &recorded.entry[i]))
            fail_msg("event %zu of %zu, %s: %s", i, recorded.count,
                     recorded_word(recorded.entry[i].action), played.why);
    if (!played_same(&played, &is))
        fail_msg("behind %zu events: %s", recorded.count, played.why);
    played_end(&played);
    played_end(&is);
    free(recorded.entry);
    plays++;
}

void followed(struct stage *stage)
{
    host_hold(true);
    if (host_struck() == 0 && stage->allocator != NULL)
        play(stage);
    host_hold(false);
}

unsigned followed_plays(void)
{
    return plays;
}
