/* SPDX-License-Identifier: MIT */
/*
 * Addresses: ranges that are handed out upwards, so that none comes twice before all have been used.
 * From then on the next gap is taken that lies above the last range, or else from the first address on.
 * Falling addresses are the mirror image of that.  Shuffled ones are the first gap from a pseudo-random address on.
 *
 * A range is a reservation (cuMemAddressReserve) or an allocation (cuMemAlloc).  It starts 2 MiB
 * aligned at least and takes whole granules of 2 MiB.
 *
 * Invariants: ranges lie in the array by rising base and do not overlap; the live bytes never
 * exceed the limit; no address above 2^47 is given out.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_ADDRESS_H
#define XSEG_SIM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/bytes.h"
#include "vmm/sim/origin.h"
#include "xseg/sim.h"

struct sim_mapping;

struct sim_range {
    uint64_t base, bytes; /* as asked for */
    unsigned device;      /* allocation: whose memory */
    /* Reservation: the mapping that covers each granule; NULL for an allocation. */
    struct sim_mapping **granule;
    uint64_t mapped; /* granules that are covered */
    struct sim_origin origin;
    struct sim_store store; /* of an allocation */
    bool syncs;             /* of an allocation: copies of it wait for their end (SYNC_MEMOPS) */
    /* Of an allocation of another process: whose, its number there, and how often it was opened. */
    bool is_foreign;
    int process;
    uint64_t number, opened;
};

struct sim_addresses {
    struct sim_range **range; /* NULL where one was given back */
    uint64_t *base;           /* of each, kept when it was given back */
    size_t count, capacity, gone;
    size_t reservations, allocations; /* that are live */
    uint64_t next, live_bytes, limit_bytes;
    bool is_used_up; /* addresses come again; then no range that was given back is in the array */
    enum xseg_sim_address_order order;
    uint64_t drawn;      /* shuffled: the last pseudo-random number */
    uint64_t held_bytes; /* by somebody else, as a test wants it */
};

void sim_addresses_start(struct sim_addresses *addresses, uint64_t limit_bytes,
                         enum xseg_sim_address_order order);
void sim_addresses_end(struct sim_addresses *addresses);

/**
 * Hand out a range.
 *
 * @param alignment  a power of two
 *
 * Returns: NULL when addresses or host memory have run out
 */
struct sim_range *sim_range_take(struct sim_addresses *addresses, uint64_t bytes,
                                 uint64_t alignment, int is_reservation);

/** Give a range back; a reservation must have nothing mapped. */
void sim_range_put(struct sim_addresses *addresses, struct sim_range *range);

/** The live range that an address lies in, or NULL. */
struct sim_range *sim_range_find(const struct sim_addresses *addresses, uint64_t address);

#endif
