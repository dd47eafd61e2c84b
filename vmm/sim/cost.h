/* SPDX-License-Identifier: MIT */
/*
 * Costs: the virtual time that driver calls take.
 *
 * Costs are modeled, from presets or a cost file.  All times are in nanoseconds.  A cost is constant, or linear in the
 * size with a minimum.  Calls that fail because of their arguments, and calls without an entry, are free.  A cost is the
 * median.  With a tail seed, costs have latency tails: a log-normal distribution with rare spikes.
 *
 * A cost file has one line per member of struct sim_costs, as below.  Costs by size have up to three numbers: base, per
 * MiB, minimum.  Missing numbers are 0.  Each member occurs once, in any order.  Numbers are at most SIM_COST_MAX; a name
 * is printable ASCII.  An invalid file has no effect.  Its error message begins with the line number, except for errors
 * of the whole file.
 *
 * Not modeled: the first call of a kind takes longer, concurrent calls wait for each other.
 *
 *     # comment to the end of the line
 *     name = NVIDIA A100-SXM4-80GB
 *     reserve = 2000
 *     create = 7000 150 0
 *
 * Locking: none; the functions use their arguments only.
 */
#ifndef XSEG_SIM_COST_H
#define XSEG_SIM_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Cost by size: base + per_mib for each MiB, but at least min. */
struct sim_cost_sized {
    uint64_t base, per_mib, min;
};

#define SIM_COSTS_NAME_MAX 64

/* The members are the keys of a cost file. */
struct sim_costs {
    char name[SIM_COSTS_NAME_MAX];
    uint64_t reserve, address_free;
    struct sim_cost_sized create, map, release;
    uint64_t unmap;                      /* per call of cuMemUnmap */
    struct sim_cost_sized unmap_mapping; /* per mapping */
    uint64_t access_call;                /* per call of cuMemSetAccess */
    struct sim_cost_sized access;        /* per mapping and device */
    struct sim_cost_sized access_wide;   /* per mapping of more than 128 MiB and device */
    struct sim_cost_sized alloc, free;
    uint64_t event_create, event_record, event_query, stream_wait, synchronize;
};

/** Maximum number in a cost file, and maximum cost of a size. */
#define SIM_COST_MAX       UINT64_C(1000000000000)
#define SIM_COST_MAX_SIZED UINT64_C(100000000000000000)

/** Maximum size of a cost file. */
#define SIM_COST_FILE_MAX ((size_t)64 << 10)

/** Get a preset by name; NULL selects the default.  Returns NULL for an unknown name. */
const struct sim_costs *sim_costs_find_preset(const char *name);

/** Get the cost of a size. */
uint64_t sim_cost_for_size(struct sim_cost_sized cost, uint64_t bytes);

/** Get the cost of set-access for one mapping and one device. */
uint64_t sim_cost_set_access(const struct sim_costs *costs, uint64_t bytes);

/** Draw a cost from the latency distribution with a median.  Updates the state of the random numbers. */
uint64_t sim_cost_with_tail(uint64_t nanoseconds, uint64_t *state);

/** Get whether a name is the path of a cost file: it contains a '/' or a '.', unlike the name of a preset. */
bool sim_cost_is_path(const char *name);

/** Parse a cost file.  Returns false with an error message if it is invalid. */
bool sim_costs_parse(const char *text, size_t length, struct sim_costs *costs, char *message,
                     size_t message_bytes);

/** Read and parse a cost file.  Returns as sim_costs_parse(). */
bool sim_costs_read(const char *path, struct sim_costs *costs, char *message, size_t message_bytes);

#endif
