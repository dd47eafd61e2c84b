/* SPDX-License-Identifier: MIT */
/*
 * The journal of a replay: the library's history (xseg/history.h) as JSON, one object a line.
 *
 * The journal is written after each operation of the trace, so an event has the line of the operation that it belongs
 * to, and a ring needs room for one operation's events.  With the key block_user events of a block have the line of its
 * allocation as well.  Streams and pools have the names that the trace gives them,
 * and times are those of the trace's clock (watch.h).  Marks of the trace are annotations, and the label of all events
 * up to the next mark.
 *
 *     {"number": 1, "line": 2, "action": "segment_map", ... "stack": []}
 *     {"events": 1, "lost": 0, "stacks": 0, "stacks_lost": 0}
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_HISTORY_WRITER_H
#define TOOLS_HISTORY_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "src/tools/reading/symbols.h"
#include "src/tools/replay/trace_clock.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

struct CUstream_st;

struct history_writer {
    FILE *file; /* NULL: nobody wants one */
    const struct xtrace *trace;
    struct CUstream_st *const *streams; /* [trace->stream_count] */
    const struct trace_clock *clock;
    struct xseg_allocator *allocator; /* NULL before history_writer_begin() */
    uint32_t *pools; /* [pool_count]; pools of the trace, by the library's numbers */
    uint32_t pool_count;
    struct symbols *names;
    json_t *frames;  /* an object: where frames lie, by file and offset */
    json_t **stacks; /* [stack_count]; by the library's numbers, NULL where none was written */
    size_t stack_count;
    uint32_t line; /* of the operation whose events are being written */
    uint64_t events, lost;
    uint64_t stacks_seen, stacks_lost;
    int error; /* an errno: writing has failed, and ends */
};

/* `file` stays the caller's; the rest is read when events are written.  Returns false without host memory. */
bool history_writer_init(struct history_writer *writer, FILE *file, const struct xtrace *trace,
                         struct CUstream_st *const *streams, const struct trace_clock *clock);

/* Let an allocator record, by `history:all` unless its configuration names that key.  Returns false if it refuses. */
bool history_writer_begin(struct history_writer *writer, struct xseg_allocator *allocator,
                          const char *config);

/* The allocator has made its next pool, for a pool of the trace. */
void history_writer_add_pool(struct history_writer *writer, uint32_t pool);

/* A mark of the trace.  Returns false if the allocator refuses it. */
bool history_writer_mark(struct history_writer *writer, const char *label);

/* Write what has happened since the last call.  Returns false if the allocator does not tell. */
bool history_writer_write(struct history_writer *writer, uint32_t line);

/* Write the last line, and end.  Returns false, with the reason as an errno, if not everything was written. */
bool history_writer_fini(struct history_writer *writer, int *error);

#endif
