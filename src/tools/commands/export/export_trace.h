/* SPDX-License-Identifier: MIT */
/*
 * A recording as a trace in Perfetto's format: memory of its devices over time.
 *
 * Of each device there are counters: reserved, live, pending and cached bytes, and those of each pool where there are
 * several.  Other tracks have what happened to segments and why, requests that failed, times in which pools were paused,
 * and the blocks that held most bytes for longest.  docs/export.md describes them.
 *
 * A counter is written when it changes.  So the sums over the trace are those of the recording.
 *
 * Locking: none.
 */
#ifndef TOOLS_EXPORT_TRACE_H
#define TOOLS_EXPORT_TRACE_H

#include <stdio.h>

#include "src/tools/replay_model/replay_model.h"

/*
 * Write the trace.
 *
 * device:      the one to write; NULL: all of them
 * most_blocks: how many blocks of a device have slices
 * dropped:     blocks that are left out
 *
 * Returns: false without host memory.  What could not be written is the stream's to say (ferror())
 * Cost:    O(log n) an event; of host memory a byte for each event of a device, and what its state takes
 */
bool export_trace_write(FILE *out, const struct recording *recording,
                        const struct recording_device *device, size_t most_blocks,
                        struct replay_model_dropped *dropped);

#endif
