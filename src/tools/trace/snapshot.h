/* SPDX-License-Identifier: MIT */
/*
 * A memory snapshot of PyTorch, turned into the operations of a trace (docs/replay.md).
 *
 * What a snapshot knows and a trace has goes over: allocations with stream and private pool, frees
 * when they are complete, requests that failed, memory that the programme gave back, the clock and the
 * configuration.  What was live before the history begins is allocated first, in the order of
 * addresses.
 *
 * A snapshot does not know of work on streams, so nothing is ever busy, and a block that another
 * stream used is freed when that use was over.  It does not know of captures, so a graph's
 * allocations only go to its pool.  It does not know the memory of the device.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_SNAPSHOT_H
#define TOOLS_SNAPSHOT_H

#include "src/tools/reading/input.h"
#include "src/tools/trace/reader.h"

/*
 * Read a snapshot into the reader's trace.
 *
 * @param device  -1: the one that has most to tell
 *
 * Returns: false with the reader's fault set; its line is the number of the entry, or 0.
 */
bool snapshot_read(struct reader *reader, struct input *input, int device);

#endif
