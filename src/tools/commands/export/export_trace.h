/* SPDX-License-Identifier: MIT */
/*
 * A recording as a Perfetto trace: the memory of its devices over time.
 *
 * Each device has counters of reserved, allocated, pending and cached bytes, also for each pool if there are several.
 * Other tracks have the events of segments with their causes, out-of-memory errors, the times in which pools were
 * paused, and the largest blocks.  docs/export.md describes them.
 *
 * A counter is written when it changes, so the sums over the trace are those of the recording.
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
 * @param device      NULL: all devices
 * @param max_blocks  number of blocks of a device that have slices
 * @param dropped     receives the blocks outside of segments, which are omitted
 * @return false on host allocation failure; ferror() reports output errors
 *
 * Cost: O(log n) per event; a byte of host memory per event of a device, and the state of the model
 */
bool export_trace_write(FILE *out, const struct recording *recording,
                        const struct recording_device *device, size_t max_blocks,
                        struct replay_model_dropped *dropped);

#endif
