/* SPDX-License-Identifier: MIT */
/*
 * Sweeps whose faults strike from a point of the scenario on, so that all of them strike in what is
 * tested, and none in what leads to it.  After each run no descriptor is open that was not.
 */
#ifndef XSEG_TESTS_FAULT_SUITE_H
#define XSEG_TESTS_FAULT_SUITE_H

#include "tests/fault/fault_env.h"

struct fault_suite_scenario {
    const char *name;
    fault_scenario play; /* calls faults_begin() */
    unsigned rounds;   /* of single faults, of up to 4: errors, and a driver that does no batches */
    unsigned distance; /* of the second fault of a pair */
};

/* A program of such sweeps. */
struct fault_suite {
    const char *name;
    const struct fault_suite_scenario *scenarios;
    size_t count;
    const char *config;
    fault_scenario halfway; /* the one with batches of which some of the mappings are done */
    uint64_t min_pairs;     /* of faults, that a sweep comes to */
};

/* Faults strike from here on; and no more. */
void faults_begin(void);
void faults_end(void);

/*
 * The program, for main().  Every host call and every driver call fails once.  A second fault follows the first one,
 * in its rollback.  A batched unmap or set-access processes some of its mappings and then fails.
 */
int fault_suite_run(const struct fault_suite *sweep);

#endif
