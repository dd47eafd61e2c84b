/* SPDX-License-Identifier: MIT */
/*
 * What the lines of a trace mean: the state of a file that is being read, and the rules that each
 * operation must keep.  The grammar, how a line is cut into fields, is in xtrace_read.c; what the entries
 * of a memory snapshot are as lines, in snapshot.c.
 *
 * Every function that can refuse returns false (or NULL) and has then set the fault.  The memory
 * that a file makes the reader hold is bounded by XTRACE_MEMORY.
 *
 * Locking: none; a reader belongs to one thread.
 */
#ifndef TOOLS_READER_H
#define TOOLS_READER_H

#include "src/tools/containers/containers.h"
#include "src/tools/trace/xtrace.h"

#define FIELDS_MAX 15 /* one more than the longest line has */

/* Where a private pool stands. */
struct pool_state {
    uint32_t open_line; /* of the begin that has no end yet; 0: none */
    uint16_t stream;    /* of that begin */
    bool capturing;     /* that begin is a capture's */
    bool released;
};

struct reader {
    struct xtrace trace;
    struct xtrace_fault *fault;
    uint32_t line;
    size_t held; /* bytes in growing arrays */
    size_t op_capacity, answer_capacity, label_capacity;
    struct id_map blocks, streams, pools;
    struct id_map places;           /* segments that `p` lines name, by the block that began each */
    struct pool_state *pool_states; /* [trace.pool_count]; the first is the default pool's */
    size_t pool_capacity, pool_name_capacity;
    uint32_t *free_slots;
    size_t free_count, free_capacity;
    bool captured[XTRACE_STREAMS];
    bool has_clock;
    uint64_t clock;
    struct id_map_entry *last_alloc; /* set directly after an allocation */
};

/* A line in pieces. */
struct fields {
    char *text[FIELDS_MAX];
    unsigned count;
    uint64_t number[FIELDS_MAX]; /* of those that are numbers */
};

/* A piece of the file, cut for a message; complain.h shows bytes that cannot be printed. */
struct quoted {
    char text[36];
};

struct quoted reader_quote(const char *text);

/* Set the fault, on the line that is being read. */
bool reader_fail(struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool reader_out_of_memory(struct reader *reader);

/* An array with room for one more element, or NULL; then the old one is as it was. */
void *reader_reserve(struct reader *reader, void *array, size_t *capacity, size_t count,
                     size_t size);

/* A name in one of the reader's tables, or NULL.  line: at least 1. */
struct id_map_entry *reader_add_name(struct reader *reader, struct id_map *map, uint64_t name,
                                     uint32_t number, uint32_t line);

struct xtrace_op *reader_add_op(struct reader *reader, enum xtrace_kind kind);

/* Each of these reads one line of the file. */
bool reader_config(struct reader *reader, const char *text);
bool reader_alloc(struct reader *reader, const struct fields *fields);
bool reader_free(struct reader *reader, const struct fields *fields);
bool reader_failure(struct reader *reader, const struct fields *fields);
bool reader_use(struct reader *reader, const struct fields *fields);
bool reader_work(struct reader *reader, const struct fields *fields);
bool reader_finish(struct reader *reader, const struct fields *fields);
bool reader_empty(struct reader *reader, const struct fields *fields);
bool reader_wait(struct reader *reader, const struct fields *fields);
bool reader_capture_begin(struct reader *reader, const struct fields *fields);
bool reader_capture_end(struct reader *reader, const struct fields *fields);
bool reader_route_begin(struct reader *reader, const struct fields *fields);
bool reader_route_end(struct reader *reader, const struct fields *fields);
bool reader_pool_release(struct reader *reader, const struct fields *fields);
bool reader_clock(struct reader *reader, const struct fields *fields);

/* The number of the segment that a `p` line names. */
bool reader_place(struct reader *reader, const struct fields *fields, uint32_t *segment);

#endif
