/* SPDX-License-Identifier: MIT */
/*
 * What driver calls cost: a preset of modelled times, charged to the virtual clock.
 *
 * All times are nanoseconds.  A call that is refused for its arguments is charged nothing, nor is a
 * call that no preset speaks of.  Every call costs its median, unless a seed asks for latency tails:
 * a log-normal spread with a rare spike.
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

struct sim_costs {
    const char *name;
    uint64_t reserve, address_free;
    struct sim_cost_sized create;
    uint64_t map, release;
    uint64_t unmap, unmap_mapping;
    struct sim_cost_sized access; /* for each mapping and each device */
    uint64_t access_wide;         /* the same above 128 MiB */
    struct sim_cost_sized alloc;
    uint64_t free;
    uint64_t event_create, event_record, event_query, stream_wait, synchronize;
};

/** The preset of that name; NULL names the default.  Returns: NULL for an unknown name. */
const struct sim_costs *sim_costs_find(const char *name);

/** What a size costs. */
uint64_t sim_cost_of(struct sim_cost_sized cost, uint64_t bytes);

/** What set-access costs for one mapping and one device. */
uint64_t sim_cost_access(const struct sim_costs *costs, uint64_t bytes);

/** A time with the machine's latency tails. */
uint64_t sim_cost_spread(uint64_t nanoseconds);

#endif
