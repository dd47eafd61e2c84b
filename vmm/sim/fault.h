/* SPDX-License-Identifier: MIT */
/*
 * A fault: the n-th call of a name, or of any name, fails once with a chosen error.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_FAULT_H
#define XSEG_SIM_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/calls.h"

struct sim_fault {
    const char *name; /* of the table; NULL: any call that can fail */
    uint64_t left;    /* calls until it strikes, that one included; 0: none is set */
    int error;
    bool struck;
};

/** The table's own spelling of a name; NULL when it is not there. */
const char *sim_call_name(const char *name);

/** Whether this call is the one, as CUresult; 0 if not. */
int sim_fault_strikes(struct sim_fault *fault, enum sim_call call);

#endif
