/* SPDX-License-Identifier: MIT */
/*
 * Touches: which memory unfinished work uses.
 *
 * A piece of work names what it touches, or names nothing and may touch anything that its device
 * can reach.  A touch keeps its piece of work alive; touches whose work has ended are dropped when
 * there are many, and when a stream is to be freed.
 *
 * In fast mode there are none.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_TOUCH_H
#define XSEG_SIM_TOUCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/origin.h"

struct sim_mapping;
struct sim_range;
struct sim_stream;
struct sim_work;

struct sim_touch {
    struct sim_work *work;
    uint64_t address, bytes; /* bytes 0: did not say */
    uint64_t stream;         /* its id */
    unsigned device;         /* of the stream */
    struct sim_origin origin;
};

struct sim_touches {
    struct sim_touch *touch;
    size_t count, capacity;
};

/** The last piece of work of a stream touches that.  Returns: false when there is no host memory */
bool sim_touches_add(const struct sim_stream *stream, uint64_t address, uint64_t bytes);

/** Drop the touches of work that has ended. */
void sim_touches_prune(void);

/** Drop all, for the end of the machine. */
void sim_touches_end(void);

/** Whether a device can reach all of that, without a report. */
bool sim_can_reach(unsigned device, uint64_t address, uint64_t bytes);

/**
 * Whether a device can reach all of that: mapped or allocated, with access rights.  In strict mode
 * the process ends with a report if not.
 */
bool sim_check_reach(unsigned device, uint64_t address, uint64_t bytes);

/** Strict: a mapping or allocation must not go under unfinished work, nor become unreachable for a device under work
 * of that device. */
void sim_check_idle(const struct sim_mapping *mapping);
void sim_check_idle_on(const struct sim_mapping *mapping, unsigned device);
void sim_check_allocation_idle(const struct sim_range *range);

/** Within a report: the lines of a mapping with its memory, and of an allocation. */
void sim_report_mapping(const struct sim_mapping *mapping);
void sim_report_allocation(const struct sim_range *range);

/** Strict: a mapping must not go with a foreign context while work may touch it. */
void sim_check_context(const struct sim_mapping *mapping);

#endif
