/* SPDX-License-Identifier: MIT */
/*
 * Fault injection: driver calls that fail on request.
 *
 * A fault has a filter (name of the call, address range) and a countdown.  Each call that matches the filter decrements
 * the countdown; at 0 the call fails with the error of the fault, without effect, and the countdown restarts with
 * `every`.  Faults are independent: a call that one fault fails still counts for the others, and the fault of the lowest
 * slot determines the error.
 *
 * A halfway fault applies to cuMemUnmap and cuMemSetAccess: the call processes `halfway` mappings and then fails.
 *
 * Invariants: slot_end is greater than the index of every active slot.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_FAULT_H
#define XSEG_SIM_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/calls.h"
#include "xseg/sim.h"

struct sim_fault {
    const char *name;        /* pointer from the call table; NULL: any call that can fail */
    uint64_t address, bytes; /* bytes 0: any address */
    uint64_t countdown;      /* matching calls until the fault, that call included; 0: inactive */
    uint64_t every;          /* countdown after the fault; 0: once */
    uint64_t halfway;        /* mappings that the call processes before it fails */
    uint64_t count;          /* calls that the fault has affected */
    int error;
};

struct sim_faults {
    struct sim_fault fault[XSEG_SIM_FAULTS];
    unsigned slot_end;
    /* Halfway fault of the call in progress: its error, or 0, and the mappings until it applies. */
    int halfway_error;
    uint64_t halfway_remaining;
};

/** Get the pointer of the call table for a name; NULL for an unknown name. */
const char *sim_call_name(const char *name);

/**
 * Count a call.
 *
 * @param first, second  addresses among the arguments, or 0.
 *
 * Returns the CUresult with which the call must fail, or 0.
 */
int sim_faults_check_call(struct sim_faults *faults, enum sim_call call, uint64_t first,
                          uint64_t second);

/** Count a mapping that the call in progress is about to process.  Returns the error if the call must stop, or 0. */
int sim_faults_check_mapping(struct sim_faults *faults);

#endif
