/* SPDX-License-Identifier: MIT */
/*
 * The calls whose costs are measured, as steps of a round: each takes a round from one state to the next,
 * by one call of the driver or, where its name ends in `each`, by one for each page.
 *
 * A step returns whether all its calls went well.  One that failed leaves the round as it can be put
 * back from.
 *
 * Locking: none; a round belongs to the thread that its driver belongs to.
 */
#ifndef TOOLS_PROBE_ROUND_H
#define TOOLS_PROBE_ROUND_H

#include "src/tools/commands/probe/probe_driver.h"

/* Pages of the longest run. */
#define PROBE_RUN_MAX 128

/* What the calls of a round work on. */
struct probe_round {
    struct probe_driver *driver;
    const char *doing;
    uint64_t base, page, handle[PROBE_RUN_MAX];
    unsigned pages, created, mapped;
    uint64_t address; /* of an allocation; 0: none */
    void *event;
};

typedef bool probe_step(struct probe_round *round);

probe_step probe_round_create_page;
probe_step probe_round_map_page;
probe_step probe_round_allow_together;
probe_step probe_round_allow_each;
probe_step probe_round_unmap_together;
probe_step probe_round_unmap_each;
probe_step probe_round_release_page;
probe_step probe_round_reserve_range;
probe_step probe_round_unreserve_range;
probe_step probe_round_allocate;
probe_step probe_round_free_allocation;
probe_step probe_round_create_event;
probe_step probe_round_record_event;
probe_step probe_round_query_event;
probe_step probe_round_destroy_event;
probe_step probe_round_ask_memory;
probe_step probe_round_wait_for_event;
probe_step probe_round_wait_for_stream;

/*
 * What a round still has goes, offered once more where it was refused.  Returns false when something
 * is left: then there are no more rounds, so that a driver that keeps everything is not filled.
 */
bool probe_round_put_back(struct probe_round *round);
bool probe_round_put_range_back(struct probe_round *round);

#endif
