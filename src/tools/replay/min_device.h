/* SPDX-License-Identifier: MIT */
/*
 * The smallest simulated device on which a trace completes, by bisection.
 *
 * The search starts between the peak of requested memory and the peak of reserved memory on a large device.  Its step
 * is 2 MiB, and the result is exact to 0.1 % or 2 MiB.
 *
 * Locking: as for a replay.
 */
#ifndef TOOLS_MIN_DEVICE_H
#define TOOLS_MIN_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "src/tools/replay/replay.h"

/*
 * Find the smallest device.
 *
 * settings:     of a replay on the simulator; device_bytes, check, timeline, history, explain and quiet are ignored.
 * large_result: the result of a replay with these settings.
 * requires_all: whether requests that failed in the file must succeed.
 * out:          bytes.
 *
 * Returns: false if the trace completes on no device
 */
bool min_device_find(const struct xtrace *trace, const struct replay_settings *settings,
                     const struct replay_result *large_result, bool requires_all, uint64_t *out);

#endif
