/* SPDX-License-Identifier: MIT */
/*
 * Executable graphs: the operations of a graph as it was when it was instantiated, in an order that
 * its edges allow, with the chosen bodies of conditional nodes in their places.
 *
 * A launch checks and queues them one after the other on its stream, so memory that a graph copies or
 * fills has to be there each time.  A launch waits for the one before it, on whatever stream that was.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_EXECUTABLE_H
#define XSEG_SIM_EXECUTABLE_H

/** Drop all; for the end of the machine. */
void sim_executables_end(void);

#endif
