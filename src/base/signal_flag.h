/* SPDX-License-Identifier: MIT */
/*
 * Signals of the process that raise a flag: the handler counts, and what is to be done is done later by a thread that
 * looks at the count.
 *
 * A signal is *taken* while somebody wants its flag.  Only a signal whose disposition is SIG_DFL is taken, so a handler
 * of the program is never replaced.  The last one that gives it back restores SIG_DFL, unless the program has set
 * something else meanwhile.
 *
 * A forked child inherits the disposition and the counts, but nobody in it has taken a signal yet.
 *
 * Locking: a lock of its own, inside which nothing else is locked; it is held for a few system calls.
 */
#ifndef XSEG_BASE_SIGNAL_FLAG_H
#define XSEG_BASE_SIGNAL_FLAG_H

#include "xseg/status.h"

/*
 * Take a signal.
 *
 * number: of the signal, from 1 to 64
 * what:   begins the sentence of a refusal: the key and its value
 * Returns: XSEG_OK, XSEG_ERR_CONFIG (the process handles or ignores the signal, or the system refuses)
 */
xseg_status xseg_signal_flag_take(int number, const char *what);

/* Give back a signal that was taken. */
void xseg_signal_flag_give(int number);

/* How often the signal has come while it was taken.  One load. */
unsigned xseg_signal_flag_count(int number);

#endif
