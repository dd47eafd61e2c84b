/* SPDX-License-Identifier: MIT */
/*
 * The time that a measurement may take, shared out by weight.
 *
 * Locking: none while shares are made; a share may be looked at by several threads.
 */
#ifndef TOOLS_PROBE_BUDGET_H
#define TOOLS_PROBE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct probe_budget {
    uint64_t deadline;    /* 0: none */
    unsigned weight_left; /* of what is still to come */
};

struct probe_share {
    uint64_t half, end, deadline; /* 0: as long as it takes */
};

void probe_budget_init(struct probe_budget *budget, unsigned seconds, unsigned weight);

/* The next one's share. */
struct probe_share probe_budget_share(struct probe_budget *budget, unsigned weight);

/* Whether everything is over. */
bool probe_budget_is_over(const struct probe_budget *budget);

/*
 * Whether there is time for another sample.  A few there are as long as not everything is over: a
 * median of three is better than none.
 */
bool probe_share_has_time(const struct probe_share *share, bool is_second_half, unsigned samples);

#endif
