/* SPDX-License-Identifier: MIT */
/*
 * Origins and reports: which call made a thing, and what is said when a program does what a real
 * driver leaves undefined.
 *
 * A report goes to standard error line by line and ends the process:
 *
 *     xseg-sim: undefined on a real driver: memory is unmapped that queued work touches
 *       call:    cuMemUnmap, call 12, thread 1, at 4200 ns
 *       mapping: 2097152 bytes at 0x200000000, made by cuMemMap, call 7, thread 1, at 2000 ns
 *       used by: ...
 *       where:   the caller's frames
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

/** Begin a report: its first line and the call under way. */
void sim_report_begin(const char *what);

/** A line about a thing: its kind, words about it, and where it comes from (NULL: unknown). */
void sim_report_line(const char *kind, const struct sim_origin *origin, const char *form, ...)
    __attribute__((format(printf, 3, 4)));

/** Say where the caller stands, and end the process. */
noreturn void sim_report_end(void);

#endif
