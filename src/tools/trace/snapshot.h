/* SPDX-License-Identifier: MIT */
/*
 * Conversion of a memory snapshot to the operations of a trace (docs/replay.md).
 *
 * The trace has the allocations with stream and private pool, the completed frees, the failed requests, explicit
 * releases of cached memory, the clock and the configuration.  Blocks that were allocated before the history began
 * are allocated first, by address.
 *
 * A snapshot does not contain work on streams, so no stream is ever busy, and a block that another stream used is
 * freed when that use completed.  It does not contain captures, so allocations of a graph only go to its pool; nor
 * the device's memory.
 *
 * Locking: none; one thread uses a reader.
 */
#ifndef TOOLS_SNAPSHOT_H
#define TOOLS_SNAPSHOT_H

#include "src/tools/reading/input.h"
#include "src/tools/trace/reader.h"

/*
 * Read a snapshot into the reader's trace.
 *
 * device: the device of the history; -1: as recording_device().
 *
 * Returns: false with a fault, whose line is the number of the entry, or 0
 */
bool snapshot_read(struct reader *reader, struct input *input, int device);

#endif
