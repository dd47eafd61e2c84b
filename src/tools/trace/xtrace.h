/* SPDX-License-Identifier: MIT */
/*
 * A trace or tape of allocator calls, or a memory snapshot, read into an array of operations (docs/replay.md).
 *
 * Names are renumbered.  The ID of a block becomes a slot, which is reused after the block is freed, so that a replay
 * itself uses little memory.  Streams and pools are numbered from 1; 0 is the default stream or pool.  All rules of
 * the format are checked while the file is read, so a replay needs no checks.
 *
 *   operation  an action of the program: allocate, free, queue work, wait, ...
 *   event      an allocation or a free.
 *   answer     the statistics of PyTorch's allocator after an operation; only tapes have answers.
 *
 * Locking: none; a trace does not change after it is read, so several threads may use it.
 */
#ifndef TOOLS_XTRACE_H
#define TOOLS_XTRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "xseg/sim.h"

#define XTRACE_STREAMS 1024              /* in one file, including the default stream */
#define XTRACE_POOLS   65535             /* in one file */
#define XTRACE_MEMORY  ((size_t)1 << 30) /* host memory of one file */

enum xtrace_kind {
    XTRACE_ALLOC,         /* slot, bytes, stream, pool (if named), failed */
    XTRACE_FREE,          /* slot */
    XTRACE_USE,           /* slot, stream */
    XTRACE_WORK,          /* stream */
    XTRACE_FINISH,        /* stream */
    XTRACE_FINISH_ALL,    /* all streams */
    XTRACE_WAIT,          /* `stream` waits for `awaited` */
    XTRACE_EMPTY,         /* release cached memory */
    XTRACE_CAPTURE_BEGIN, /* pool, stream */
    XTRACE_CAPTURE_END,   /* pool */
    XTRACE_ROUTE_BEGIN,   /* pool, stream */
    XTRACE_ROUTE_END,     /* pool */
    XTRACE_POOL_RELEASE,  /* pool */
    XTRACE_MARK,          /* value: offset of the label in labels */
    XTRACE_CLOCK          /* value: microseconds */
};

struct xtrace_op {
    uint64_t value; /* bytes, microseconds or an offset */
    uint32_t line;  /* in a snapshot: number of the entry; 1 for blocks from before the history */
    uint32_t slot;
    uint16_t stream, awaited;
    uint16_t pool;
    uint8_t kind;
    bool failed; /* the allocation failed in the file */
};

/* Kinds of answers: a `=` line, a `p` line, and `s` lines by name. */
enum xtrace_row {
    XTRACE_ROW_NOW,
    XTRACE_ROW_PLACE, /* of the last allocation: index of its segment, offset in the segment */
    XTRACE_ROW_ALLOCATION,
    XTRACE_ROW_SEGMENT,
    XTRACE_ROW_ACTIVE,
    XTRACE_ROW_INACTIVE_SPLIT,
    XTRACE_ROW_ALLOCATED_BYTES,
    XTRACE_ROW_RESERVED_BYTES,
    XTRACE_ROW_ACTIVE_BYTES,
    XTRACE_ROW_INACTIVE_SPLIT_BYTES,
    XTRACE_ROW_REQUESTED_BYTES,
    XTRACE_ROW_OVERSIZE_ALLOCATIONS,
    XTRACE_ROW_OVERSIZE_SEGMENTS,
    XTRACE_ROW_NUM_ALLOC_RETRIES,
    XTRACE_ROW_NUM_OOMS,
    XTRACE_ROW_NUM_SYNC_ALL_STREAMS,
    XTRACE_ROW_NUM_DEVICE_ALLOC,
    XTRACE_ROW_NUM_DEVICE_FREE,
    XTRACE_ROW_COUNT
};

#define XTRACE_ROW_NUMBERS 12 /* maximum of a row */

struct xtrace_answer {
    uint32_t after; /* number of operations before it */
    uint32_t line;
    uint32_t row;
    uint64_t number[XTRACE_ROW_NUMBERS];
};

/* The state at the end of a snapshot, compared with its history. */
struct xtrace_end {
    uint64_t reserved;        /* bytes of its segments */
    uint64_t reserved_before; /* bytes that were reserved before the first entry */
    uint64_t bytes_before;    /* of these, bytes of blocks that a replay allocates first */
    uint64_t unfreed;         /* blocks that the history does not free and no segment contains */
    uint64_t inserted_frees;  /* frees that the history lacks, added before the next allocation */
    uint64_t unknown;         /* blocks of segments whose allocation the history lacks */
    uint64_t unknown_bytes;
    /* The origin of expandable_segments: the settings, the segments and events, PyTorch's default. */
    enum { XTRACE_SEGMENTS_NAMED, XTRACE_SEGMENTS_SHOWN, XTRACE_SEGMENTS_ASSUMED } inferred;
    bool contradicts; /* all segments and events are of the kind that the settings do not name */
};

struct xtrace {
    struct xtrace_op *ops;
    size_t op_count;
    struct xtrace_answer *answers;
    size_t answer_count;
    char *labels; /* of marks, each terminated */
    size_t label_bytes;
    char summary[800];     /* summary of the conversion of a snapshot; empty: none */
    char *config;          /* of the `c` line; NULL without one */
    uint64_t device_bytes; /* of the `d` line; 0 without one */
    enum xseg_sim_address_order address_order; /* of the `d` line */
    uint32_t place_count;                      /* segments of `p` lines */
    uint64_t events;                           /* allocations and frees */
    bool has_clock;                            /* there are `@` lines */
    bool is_snapshot;                          /* the file is a memory snapshot */
    bool has_history;                          /* of a snapshot: there are entries */
    /* Of a snapshot: bytes that could be reserved at the last failed request; 0: unknown. */
    uint64_t capacity;
    struct xtrace_end end;                /* of a snapshot */
    uint32_t slot_count;                  /* number of slots */
    uint32_t stream_count;                /* at least 1 */
    uint64_t stream_name[XTRACE_STREAMS]; /* names in the file */
    uint32_t pool_count;                  /* at least 1 */
    uint64_t *pool_name;                  /* names in the file; NULL: none */
};

/* The error in a file. */
struct xtrace_fault {
    /* In a snapshot: number of the entry, from 1; 0: the text contains the position. */
    uint64_t line;
    char text[240];
};

void xtrace_fini(struct xtrace *trace);

/* Get whether a configuration contains a key, or the key expandable_segments. */
bool xtrace_names_key(const char *config, const char *key);
bool xtrace_names_expandable(const char *config);

/* Get the name of a row in a tape, and the number of its values. */
const char *xtrace_row_name(enum xtrace_row row);
unsigned xtrace_row_numbers(enum xtrace_row row);

/*
 * Read an open file, plain or compressed.
 *
 * device: of a snapshot, the device whose history is read; -1: the device with the most entries.
 * out:    set on success; the caller calls xtrace_fini().
 * fault:  set on failure.
 *
 * Returns: whether the file is a valid trace or snapshot
 */
bool xtrace_read(FILE *file, int device, struct xtrace *out, struct xtrace_fault *fault);

#endif
