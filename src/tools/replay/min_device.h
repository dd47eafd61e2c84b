/* SPDX-License-Identifier: MIT */
/*
 * The smallest simulated device on which a trace completes, by bisection.
 *
 * The search starts between the peak of what is requested and the peak of what is reserved when
 * memory is plenty, goes in steps of 2 MiB, and ends when it is sure to 0.1 % or 2 MiB.
 *
 * Locking: as for a replay.
 */
#ifndef TOOLS_MIN_DEVICE_H
#define TOOLS_MIN_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "src/tools/replay/replay.h"

/*
 * Find it.
 *
 * @param settings  of a replay on the simulator; device_bytes, check, timeline and quiet do not count
 * @param full      what such a replay gave
 * @param of_all    it completes where requests that failed in the file are served, too; otherwise they may fail
 * @param out       bytes
 *
 * Returns: false where the trace does not complete on a device of any size.
 */
bool min_device_find(const struct xtrace *trace, const struct replay_settings *settings,
                     const struct replay_result *full, bool of_all, uint64_t *out);

#endif
