/* SPDX-License-Identifier: MIT */
/*
 * Sweeps whose faults strike from a point of the scenario on, so that all of them strike in what is
 * tested, and none in what leads to it.  After each run no descriptor is open that was not.
 */
#ifndef XSEG_TESTS_ARMED_H
#define XSEG_TESTS_ARMED_H

#include "tests/fault/stage.h"

struct armed_scenario {
    const char *name;
    stage_scenario play; /* calls armed_begin() */
    unsigned rounds;   /* of single faults, of up to 4: errors, and a driver that does no batches */
    unsigned distance; /* of the second fault of a pair */
};

/* A programme of such sweeps. */
struct armed_sweep {
    const char *name;
    const struct armed_scenario *scenarios;
    size_t count;
    const char *config;
    stage_scenario halfway; /* the one with batches of which some of the mappings are done */
    uint64_t least_pairs;   /* of faults, that a sweep comes to */
};

/* Faults strike from here on; and no more. */
void armed_begin(void);
void armed_end(void);

/*
 * The programme, for main().  Every call of the host fails, and every driver call fails once.  A second fault follows
 * the first one, where the undo is.  A batched unmap or set-access does some of its mappings and then fails.
 */
int armed_run(const struct armed_sweep *sweep);

#endif
