/* SPDX-License-Identifier: MIT */
/*
 * Origins and reports: which call created an object, and the reports of undefined behavior in strict mode.
 *
 * A report is written to standard error line by line and ends the process:
 *
 *     xseg-sim: cuMemUnmap: undefined behavior, queued work accesses the memory; synchronize its stream first
 *       call:         cuMemUnmap, call 12, thread 1, time 4200 ns
 *       mapping:      2097152 bytes at 0x200000000, created by cuMemMap, call 7, thread 1, time 2000 ns
 *       work:         stream 1 of device 0, accesses 50 bytes at 0x200000064, queued by xseg_sim_launch_on, ...
 *       stack:
 *     the frames of the caller
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_ORIGIN_H
#define XSEG_SIM_ORIGIN_H

#include <stdint.h>
#include <stdnoreturn.h>

/** Which call made, or ended, a thing. */
struct sim_origin {
    const char *call;
    uint64_t number;       /* of the call since the reset */
    uint64_t thread, time; /* thread 0 in fast mode, which does not ask */
};

/** The call under way. */
struct sim_origin sim_origin_here(void);

/** Begin a report: its first line and the current call.  what: the error, and after a semicolon what to do */
void sim_report_begin(const char *what);

/**
 * Write a line about an object: a label and a description.  If the origin is known, " by" and the origin follow, so the
 * description ends with a verb such as "created".
 */
void sim_report_line(const char *kind, const struct sim_origin *origin, const char *form, ...)
    __attribute__((format(printf, 3, 4)));

/** Write the stack of the caller, and end the process. */
noreturn void sim_report_end(void);

#endif
