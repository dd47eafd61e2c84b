/* SPDX-License-Identifier: MIT */
/*
 * Messages of the simulator: error messages, reports of strict mode and origins of objects.
 *
 * Error message: a function of sim.h that fails stores its message per thread, for xseg_sim_error_message().  The form
 * is "operation: what failed, value; what to do".  The operation is the function or the environment variable.  Bytes
 * that are not printable ASCII are shown as \xNN.
 *
 * Origin: the call that created an object, with its number, thread and virtual time.  Physical memory, mappings,
 * address ranges, registrations and queued work record their origin.
 *
 * Report: in strict mode, undefined behavior of a real driver ends the process.  sim_report_begin() writes the error and
 * the call in progress, sim_report_line() one line per object with its origin, and sim_report_end() the call stack:
 *
 *     xseg-sim: cuMemUnmap: undefined behavior, queued work accesses the memory; synchronize its stream first
 *       call:         cuMemUnmap, call 12, thread 1, time 4200 ns
 *       mapping:      2097152 bytes at 0x200000000, created by cuMemMap, call 7, thread 1, time 2000 ns
 *       work:         stream 1 of device 0, accesses 50 bytes at 0x200000064, queued by xseg_sim_launch_on, ...
 *       stack:
 *     the frames of the caller
 *
 * Leaks: xseg_sim_leaks() prints one line per kind of object that has not been released.
 *
 * Locking: error messages are thread-local and need no lock; all else runs under the machine lock.
 */
#ifndef XSEG_SIM_REPORT_H
#define XSEG_SIM_REPORT_H

#include <stdint.h>
#include <stdnoreturn.h>

#include "xseg/sim.h"

struct sim_mapping;
struct sim_range;

/** Size of an error message or line, its terminator included. */
#define SIM_MESSAGE_MAX 512

/** Store the error message of the calling thread.  Returns the status. */
xseg_status sim_error(xseg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Write a line to standard error. */
void sim_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The call that created or destroyed an object. */
struct sim_origin {
    const char *call;
    uint64_t number;       /* of the call, from the reset on */
    uint64_t thread, time; /* thread 0 without strict mode */
};

/** Get the origin of objects that the call in progress creates. */
struct sim_origin sim_origin_of_call(void);

/** Begin a report.  `error` is the error and, after a semicolon, the corrective action. */
void sim_report_begin(const char *error);

/**
 * Write the line of an object.
 *
 * With an origin the line continues with " by" and the origin, so the description must end with a verb such as
 * "created".
 *
 * @param label   the first column.
 * @param origin  origin, or NULL.
 */
void sim_report_line(const char *label, const struct sim_origin *origin, const char *form, ...)
    __attribute__((format(printf, 3, 4)));

/** Write the lines of a mapping and its memory, or of an allocation. */
void sim_report_mapping(const struct sim_mapping *mapping);
void sim_report_allocation(const struct sim_range *range);

/** Write the call stack and end the process. */
noreturn void sim_report_end(void);

#endif
