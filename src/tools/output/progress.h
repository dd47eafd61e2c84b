/* SPDX-License-Identifier: MIT */
/*
 * How far long work has come: a line on standard error where that is a terminal, which is gone when the work has ended.
 *
 *     [##########                              ] job.pickle
 *
 * Code that does a part of the work says how far it has come, and need not know whether that is shown.
 *
 * Locking: none; one work is shown at a time, and by one thread.  While none is shown, any thread may call
 * progress_reach().
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdint.h>

/* Show a work from now on.  name: of what is worked on; it must live until the end */
void progress_begin(const char *name);
void progress_end(void);

/*
 * So much of the work is done.  all: 0: nobody knows how much there is; then bytes are done
 *
 * Cost: a clock is read; most calls draw nothing
 */
void progress_reach(uint64_t done, uint64_t all);

/* Draw a bar and what stands behind it, without a work. */
void progress_draw(uint64_t done, uint64_t all, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
