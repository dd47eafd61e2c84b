/* SPDX-License-Identifier: MIT */
/*
 * What driver calls cost: a preset of modelled times, charged to the virtual clock.
 *
 * All times are nanoseconds.  A call that is refused for its arguments is charged nothing, nor is a
 * call that no preset speaks of.  Every call costs its median, unless a seed asks for latency tails:
 * a log-normal spread with a rare spike.
 *
 * Not modelled: that the first call of a kind takes longer, and that a thread waits for another one's
 * call.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_COST_H
#define XSEG_SIM_COST_H

#include <stddef.h>
#include <stdint.h>

/** A time that grows with size: base + each MiB, but at least `least`. */
struct sim_cost_sized {
    uint64_t base, per_mib, least;
};

#define SIM_COSTS_NAME 64

/* cost_file.c has the same members as keys of a file. */
struct sim_costs {
    char name[SIM_COSTS_NAME];
    uint64_t reserve, address_free;
    struct sim_cost_sized create, map, release;
    uint64_t unmap;                      /* a call of cuMemUnmap, and for each mapping: */
    struct sim_cost_sized unmap_mapping; /* by its size */
    uint64_t access_call;         /* a call of cuMemSetAccess, and for each mapping and device: */
    struct sim_cost_sized access; /* by its size */
    struct sim_cost_sized access_wide; /* by its size, above 128 MiB */
    struct sim_cost_sized alloc, free;
    uint64_t event_create, event_record, event_query, stream_wait, synchronize;
};

/** More than any call takes: a number of a preset, and what a size costs. */
#define SIM_COST_MOST      UINT64_C(1000000000000)
#define SIM_COST_MOST_SIZE UINT64_C(100000000000000000)

/** The preset of that name; NULL names the default.  Returns: NULL for an unknown name. */
const struct sim_costs *sim_costs_find(const char *name);

/** What a size costs. */
uint64_t sim_cost_of(struct sim_cost_sized cost, uint64_t bytes);

/** What set-access costs for one mapping and one device. */
uint64_t sim_cost_access(const struct sim_costs *costs, uint64_t bytes);

/** A time with the machine's latency tails. */
uint64_t sim_cost_spread(uint64_t nanoseconds);

#endif
