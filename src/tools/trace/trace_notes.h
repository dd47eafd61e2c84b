/* SPDX-License-Identifier: MIT */
/*
 * Notes on a trace: the data that a replay needs and the file lacks.  Each note is a message with the amount of
 * missing data and its consequence.
 *
 * A history that began late, whose ring overflowed, that was cleared, or that skips actions still ends with the
 * segments of the snapshot.  So a replay with the file's configuration must end with as much reserved memory as the
 * snapshot.
 *
 * Locking: none.
 */
#ifndef TOOLS_TRACE_NOTES_H
#define TOOLS_TRACE_NOTES_H

#include <jansson.h>

#include "src/tools/trace/xtrace.h"

#define TRACE_NOTES_MAX     6u
#define TRACE_NOTES_UNKNOWN UINT64_MAX

struct trace_notes {
    char text[TRACE_NOTES_MAX][360]; /* [count] */
    unsigned count;
    bool is_certain; /* peaks of the replay are those of the program, within its history */
};

/*
 * Find the missing data of a trace.
 *
 * config:       the configuration of the replay.
 * is_own:       the configuration is that of the file.
 * end_reserved: bytes reserved at the end of a replay with the file's configuration; TRACE_NOTES_UNKNOWN: there was
 *               no such replay.
 */
void trace_notes_find(struct trace_notes *notes, const struct xtrace *trace, const char *config,
                      bool is_own, uint64_t end_reserved);

/* Make an array of the notes.  Returns NULL if out of host memory. */
json_t *trace_notes_json(const struct trace_notes *notes);

#endif
