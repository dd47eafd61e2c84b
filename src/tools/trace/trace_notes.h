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
#ifndef TOOLS_NOTES_H
#define TOOLS_NOTES_H

#include <jansson.h>

#include "src/tools/trace/xtrace.h"

#define TRACE_NOTES_MAX      6u
#define TRACE_NOTES_UNKNOWN UINT64_MAX

struct trace_notes {
    char text[TRACE_NOTES_MAX][360]; /* [count] */
    unsigned count;
    bool is_certain; /* peaks of a replay are those of the program, as far as its history goes */
};

/*
 * Find the gaps of a trace.
 *
 * @param config        the configuration of the replay
 * @param is_own        whether that is the file's configuration
 * @param end_reserved  bytes that are reserved at the end of a replay under the file's configuration; TRACE_NOTES_UNKNOWN without such a replay
 */
void trace_notes_find(struct trace_notes *notes, const struct xtrace *trace, const char *config, bool is_own,
                uint64_t end_reserved);

/* The sentences as an array.  Returns NULL without host memory. */
json_t *trace_notes_json(const struct trace_notes *notes);

#endif
