/* SPDX-License-Identifier: MIT */
/*
 * Accesses: the memory that queued work accesses, for the checks of strict mode.
 *
 * Work names the ranges that it accesses (xseg_sim_launch_on(), copies, fills), or none; then it may access all memory
 * that its device can reach.  Each access retains its work.  When memory is unmapped or freed, or loses access rights,
 * the accesses of work that has not completed are searched for an overlap, and an overlap ends the process with a
 * report.  When work is queued, its ranges must be mapped and accessible: a mapping of a later call, but before the work
 * would execute, counts as missing.
 *
 * Work without ranges conflicts only with an unmap in a context of another device, since a kernel that uses other memory
 * is legal.
 *
 * Accesses of completed work are removed when the array is full and when destroyed streams are freed.  So adding an access
 * is O(1) amortized, and a check is O(accesses).  Without strict mode no accesses are recorded.
 *
 * Invariants: work->accesses counts the accesses of the work.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_ACCESS_H
#define XSEG_SIM_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/report.h"

struct sim_mapping;
struct sim_range;
struct sim_stream;
struct sim_work;

struct sim_access {
    struct sim_work *work;
    uint64_t address, bytes; /* bytes 0: unknown memory */
    uint64_t stream;         /* ID */
    unsigned device;         /* of the stream */
    struct sim_origin origin;
};

struct sim_accesses {
    struct sim_access *access;
    size_t count, capacity;
};

/** Record an access of the last work of a stream; bytes 0: unknown memory.  Returns false on host allocation failure. */
bool sim_accesses_add(const struct sim_stream *stream, uint64_t address, uint64_t bytes);

/** Remove the accesses of completed work. */
void sim_accesses_prune(void);

/** Remove all accesses. */
void sim_accesses_destroy(void);

/** Get whether a range is mapped or allocated, and accessible to a device. */
bool sim_is_accessible(unsigned device, uint64_t address, uint64_t bytes);

/** As sim_is_accessible(); in strict mode an inaccessible range ends the process with a report. */
bool sim_check_accessible(unsigned device, uint64_t address, uint64_t bytes);

/** End the process with a report if queued work accesses a mapping, an allocation, or, on a device, a mapping. */
void sim_check_mapping_idle(const struct sim_mapping *mapping);
void sim_check_mapping_idle_on(const struct sim_mapping *mapping, unsigned device);
void sim_check_allocation_idle(const struct sim_range *range);

/** End the process with a report if queued work may access a mapping and the current context is of another device. */
void sim_check_mapping_context(const struct sim_mapping *mapping);

#endif
