/* SPDX-License-Identifier: MIT */
/*
 * Reading a trace: the grammar of traces and tapes.  reader.h has what their lines mean, snapshot.h what snapshots are as
 * lines.
 *
 * Locking: none; a reader belongs to one thread.
 */
#ifndef TOOLS_XTRACE_READ_H
#define TOOLS_XTRACE_READ_H

#include <stdio.h>

#include "src/tools/trace/xtrace.h"

/*
 * Read an open file, plain or compressed.
 *
 * @param device  whose history is taken from a snapshot; -1: that of the device with most entries
 * @param out    filled in on success; the caller calls xtrace_fini()
 * @param fault  filled in on failure
 *
 * Returns: whether the whole file is a trace or a snapshot.
 */
bool xtrace_read(FILE *file, int device, struct xtrace *out, struct xtrace_fault *fault);

#endif
