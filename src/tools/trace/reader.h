/* SPDX-License-Identifier: MIT */
/*
 * The builder of a trace: the state of a file that is being read, and the rules of each operation.  The grammar of lines
 * is in xtrace.c, the conversion of a memory snapshot in snapshot.c.
 *
 * A function that rejects its input returns false or NULL, with the fault set on the current line.  All host memory
 * of a reader is bounded by XTRACE_MEMORY.
 *
 * Locking: none; one thread uses a reader.
 */
#ifndef TOOLS_READER_H
#define TOOLS_READER_H

#include "src/tools/containers/containers.h"
#include "src/tools/trace/xtrace.h"

#define FIELDS_MAX 15 /* one more than the longest valid line */

/* The state of a private pool. */
struct pool_state {
    uint32_t open_line; /* line of a begin without an end; 0: none */
    uint16_t stream;    /* of that begin */
    bool capturing;     /* that begin is of a capture */
    bool released;
};

struct reader {
    struct xtrace trace;
    struct xtrace_fault *fault;
    uint32_t line;
    size_t allocated_bytes; /* bytes in growing arrays */
    size_t op_capacity, answer_capacity, label_capacity;
    struct id_map blocks, streams, pools;
    struct id_map places;           /* segments of `p` lines, by the ID of their first block */
    struct pool_state *pool_states; /* [trace.pool_count]; the first is the default pool's */
    size_t pool_capacity, pool_name_capacity;
    uint32_t *free_slots;
    size_t free_count, free_capacity;
    bool captured[XTRACE_STREAMS];
    bool has_clock;
    uint64_t clock;
    struct id_map_entry *last_alloc; /* set if the last operation is an allocation */
};

/* The fields of a line. */
struct fields {
    char *text[FIELDS_MAX];
    unsigned count;
    uint64_t number[FIELDS_MAX]; /* of numeric fields */
};

/* A part of the file, truncated for a message. */
struct quoted {
    char text[36];
};

struct quoted reader_quote(const char *text);

/* Set the fault on the current line.  Returns false. */
bool reader_fail(struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool reader_out_of_memory(struct reader *reader);

/* Grow an array to more than `count` elements.  Returns NULL with a fault; the array is unchanged then. */
void *reader_reserve(struct reader *reader, void *array, size_t *capacity, size_t count,
                     size_t size);

/* Add an ID to one of the reader's tables.  line: at least 1 */
struct id_map_entry *reader_add_name(struct reader *reader, struct id_map *map, uint64_t name,
                                     uint32_t number, uint32_t line);

struct xtrace_op *reader_add_op(struct reader *reader, enum xtrace_kind kind);

/* Each function reads one line of the file. */
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

/* Find the index of the segment of a `p` line. */
bool reader_place(struct reader *reader, const struct fields *fields, uint32_t *segment);

#endif
