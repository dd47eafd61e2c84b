/* SPDX-License-Identifier: MIT */
/*
 * Sweeps whose faults begin at a point of the scenario, after its setup.  Each run must leave no open file descriptor.
 */
#ifndef XSEG_TESTS_FAULT_SUITE_H
#define XSEG_TESTS_FAULT_SUITE_H

#include "tests/fault/fault_env.h"

struct fault_suite_scenario {
    const char *name;
    fault_scenario play; /* calls faults_begin() */
    unsigned rounds;   /* rounds of single faults, up to 4: errors, and a driver without batches */
    unsigned distance; /* of the second fault of a pair */
};

/* A program of such sweeps. */
struct fault_suite {
    const char *name;
    const struct fault_suite_scenario *scenarios;
    size_t count;
    const char *config;
    fault_scenario halfway; /* scenario whose batches fail after some mappings */
    uint64_t min_pairs;     /* minimum number of pairs of faults */
};

/* Begin and end the injection of faults. */
void faults_begin(void);
void faults_end(void);

/*
 * The program, for main().  Every host call and every driver call fails once.  A second fault follows the first one,
 * in its rollback.  A batched unmap or set-access processes some of its mappings and then fails.
 */
int fault_suite_run(const struct fault_suite *sweep);

#endif
