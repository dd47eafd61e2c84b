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

/* Faults strike from here on; and no more. */
void armed_begin(void);
void armed_end(void);

/* Play once without faults, before the sweeps: the machine's own files are there from then on. */
void armed_warm_up(stage_scenario play, const char *config);

/* Every driver call fails once. */
void armed_singles(const struct armed_scenario *scenarios, size_t count, const char *config);

/* A second fault behind the first one, where the undo is; the number of pairs. */
uint64_t armed_pairs(const struct armed_scenario *scenarios, size_t count, const char *config);

/* A batched unmap or set-access does some of its mappings and then fails; the number of runs. */
uint64_t armed_halfway(stage_scenario play, const char *config);

#endif
