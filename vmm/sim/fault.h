/* SPDX-License-Identifier: MIT */
/*
 * Faults: calls that fail because a test wants them to.
 *
 * Each fault counts the calls that it is about, and strikes at a chosen one, or again and again.
 * Faults are independent: a call in which one strikes counts for the others all the same.
 *
 * Invariants: `top` is above every slot that is set.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_FAULT_H
#define XSEG_SIM_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/calls.h"
#include "xseg/sim.h"

struct sim_fault {
    const char *name;        /* of the table; NULL: any call that can fail */
    uint64_t address, bytes; /* calls with an address in there; bytes 0: all calls */
    uint64_t left;           /* calls until it strikes, that one included; 0: none is set */
    uint64_t every;          /* and again after so many; 0: never */
    uint64_t halfway;        /* mappings that the call does before it fails */
    uint64_t struck;
    int error;
};

struct sim_faults {
    struct sim_fault fault[XSEG_SIM_FAULTS];
    unsigned top;
    /* Of the call under way: the error that it has to return after so many mappings, or 0. */
    int halfway_error;
    uint64_t halfway_left;
};

/** The table's own spelling of a name; NULL when it is not there. */
const char *sim_call_name(const char *name);

/**
 * Count a call.
 *
 * @param first, second  its addresses; 0: it has none
 *
 * Returns: what it must fail with on entry, as CUresult; 0 if it may go on
 */
int sim_faults_strike(struct sim_faults *faults, enum sim_call call, uint64_t first,
                      uint64_t second);

/** A call is about to do one mapping.  Returns: the error if it must stop here, else 0. */
int sim_faults_stop(struct sim_faults *faults);

#endif
