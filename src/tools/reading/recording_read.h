/* SPDX-License-Identifier: MIT */
/*
 * Reading a recording: the values of a snapshot's pickle become its arrays.
 *
 * Entries of histories are taken out of the pickle while it is read (traces.h); all else is read from its values at the end.
 *
 * Locking: none; a reader belongs to one thread.
 */
#ifndef TOOLS_RECORDING_READ_H
#define TOOLS_RECORDING_READ_H

#include "src/tools/reading/input.h"
#include "src/tools/reading/names.h"
#include "src/tools/reading/recording.h"

/*
 * Read a snapshot.
 *
 * name:  of the file, for reports; copied
 * names: for frames that are a module and an offset in it (sources.h); or NULL, then no module is looked into
 *
 * Returns: false with a fault, which is a sentence; there is nothing to end then
 */
bool recording_read(struct input *input, const char *name, struct names *names,
                    struct recording *out, struct recording_fault *fault);

#endif
