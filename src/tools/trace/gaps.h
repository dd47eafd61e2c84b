/* SPDX-License-Identifier: MIT */
/*
 * The gaps of a snapshot: data that a replay needs and the snapshot lacks.  Each gap is a sentence with its amount and its
 * consequence.
 *
 * A history that began late, whose ring overflowed, that was cleared, or that skips actions still ends with the state of the
 * segments.  So a replay under the file's configuration must end with as much reserved memory as the file.
 *
 * Locking: none.
 */
#ifndef TOOLS_GAPS_H
#define TOOLS_GAPS_H

#include <jansson.h>

#include "src/tools/trace/xtrace.h"

#define GAPS_MOST    6u
#define GAPS_UNKNOWN UINT64_MAX

struct gaps {
    char text[GAPS_MOST][360]; /* [count] */
    unsigned count;
    bool is_certain; /* peaks of a replay are those of the program, as far as its history goes */
};

/*
 * Find the gaps of a trace.
 *
 * @param config        the configuration of the replay
 * @param is_own        whether that is the file's configuration
 * @param end_reserved  bytes that are reserved at the end of a replay under the file's configuration; GAPS_UNKNOWN without such a replay
 */
void gaps_find(struct gaps *gaps, const struct xtrace *trace, const char *config, bool is_own,
               uint64_t end_reserved);

/* The sentences as an array.  Returns NULL without host memory. */
json_t *gaps_json(const struct gaps *gaps);

#endif
