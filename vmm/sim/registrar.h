/* SPDX-License-Identifier: MIT */
/*
 * Registrars: others that have memory registered, so that their devices reach it, as libraries for networks do.
 *
 * A registration is a range of addresses that somebody else uses until it is taken back.  What a registrar asks of the
 * memory before it registers it differs by kind (sim.h); registered memory is the same for all.
 *
 * Invariants: registrations->bytes is the sum over all that are there.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_REGISTRAR_H
#define XSEG_SIM_REGISTRAR_H

#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/origin.h"

struct sim_mapping;
struct sim_range;

struct sim_registration {
    uint64_t id; /* unique in the process */
    uint64_t address, bytes;
    const char *registrar; /* its name in messages, such as "NCCL" */
    struct sim_origin origin;
};

struct sim_registrations {
    struct sim_registration *registration;
    size_t count, capacity;
    uint64_t bytes, made;
};

/** Strict: a mapping or allocation must not go while some of it is registered. */
void sim_registrar_check_mapping(const struct sim_mapping *mapping);
void sim_registrar_check_allocation(const struct sim_range *range);

/** End all, for the end of the machine. */
void sim_registrations_end(void);

#endif
