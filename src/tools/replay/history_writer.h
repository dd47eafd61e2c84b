/* SPDX-License-Identifier: MIT */
/*
 * The history of a replay as JSON, one object per line: the library's events (xseg/history.h).
 *
 * Events are written after each operation of the trace, so each event has the line of its operation, and the ring
 * contains only the events of one operation.  With the key block_user, events of a block have the line of its
 * allocation in addition.  Streams and pools have their names in the trace, and times are those of the trace clock.
 * Marks of the trace are annotations, and the label of all events up to the next mark.
 *
 *     {"number": 1, "line": 2, "action": "segment_map", ... "stack": []}
 *     {"events": 1, "lost": 0, "stacks": 0, "stacks_lost": 0}
 *
 * Locking: none; one replay uses a writer.
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
    FILE *file; /* NULL: no history is written */
    const struct xtrace *trace;
    struct CUstream_st *const *streams; /* [trace->stream_count] */
    const struct trace_clock *clock;
    struct xseg_allocator *allocator; /* NULL before history_writer_begin() */
    uint32_t *pools; /* [pool_count]; pools of the trace by the library's pool ID */
    uint32_t pool_count;
    struct symbols *symbols;
    json_t *frames;  /* an object: described frames, by module and offset */
    json_t **stacks; /* [stack_count]; by the library's stack ID, NULL: not written yet */
    size_t stack_count;
    uint32_t line; /* of the operation whose events are being written */
    uint64_t events, lost;
    uint64_t stacks_seen, stacks_lost;
    int error; /* errno of the first failed write; later events are discarded */
};

/* `file` remains the caller's.  Returns false if out of host memory. */
bool history_writer_init(struct history_writer *writer, FILE *file, const struct xtrace *trace,
                         struct CUstream_st *const *streams, const struct trace_clock *clock);

/* Start recording, with `history:all` unless `config` contains the key history.  Returns false if the allocator
 * rejects the key. */
bool history_writer_begin(struct history_writer *writer, struct xseg_allocator *allocator,
                          const char *config);

/* Record that the allocator has created its next pool, for a pool of the trace. */
void history_writer_add_pool(struct history_writer *writer, uint32_t pool);

/* Record a mark of the trace.  Returns false if the allocator rejects it. */
bool history_writer_mark(struct history_writer *writer, const char *label);

/* Write the events since the last call.  Returns false if they cannot be read. */
bool history_writer_write(struct history_writer *writer, uint32_t line);

/* Write the last line.  Returns false with an errno if any write failed. */
bool history_writer_fini(struct history_writer *writer, int *error);

#endif
