/* SPDX-License-Identifier: MIT */
/*
 * A trace or tape of allocator calls, or a memory snapshot of PyTorch (docs/replay.md), read into one
 * array that can be replayed many times.
 *
 * Names are renumbered.  A block's ID becomes a slot, which is used again once the block is freed,
 * so that a replay touches as little memory of its own as it can.  Streams and pools are counted
 * from 1, and 0 is the default stream or pool.  All rules of the format are checked while reading:
 * whatever comes out can be replayed without further checks.
 *
 * Words:
 *   operation  what a programme did: allocate, free, queue work, wait, ...
 *   event      an allocation or a free
 *   answer     what PyTorch's own allocator said after an operation; only tapes have answers
 *
 * Locking: none; a trace does not change once it is read, so any number of threads may use it.
 */
#ifndef TOOLS_XTRACE_H
#define TOOLS_XTRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "xseg/sim.h"

#define XTRACE_STREAMS 1024              /* streams in one file, the default stream included */
#define XTRACE_POOLS   65535             /* private pools in one file */
#define XTRACE_MEMORY  ((size_t)1 << 30) /* host memory that one file may take */

enum xtrace_kind {
    XTRACE_ALLOC,         /* slot, bytes, stream, pool (if named), failed */
    XTRACE_FREE,          /* slot */
    XTRACE_USE,           /* slot, stream */
    XTRACE_WORK,          /* stream */
    XTRACE_FINISH,        /* stream */
    XTRACE_FINISH_ALL,    /* all streams */
    XTRACE_WAIT,          /* stream waits for other */
    XTRACE_EMPTY,         /* cached memory goes back */
    XTRACE_CAPTURE_BEGIN, /* pool, stream */
    XTRACE_CAPTURE_END,   /* pool */
    XTRACE_ROUTE_BEGIN,   /* pool, stream */
    XTRACE_ROUTE_END,     /* pool */
    XTRACE_POOL_RELEASE,  /* pool */
    XTRACE_MARK,          /* value: where the label starts in labels */
    XTRACE_CLOCK          /* value: microseconds */
};

struct xtrace_op {
    uint64_t value; /* bytes, microseconds or an offset */
    uint32_t line; /* in a snapshot: the entry of the history; 1 for what was live before it, too */
    uint32_t slot;
    uint16_t stream, other;
    uint16_t pool;
    uint8_t kind;
    bool failed; /* PyTorch had no memory for this allocation */
};

/* Rows of answers.  The first is a `=` line, the second a `p` line, the others are `s` lines by name. */
enum xtrace_row {
    XTRACE_ROW_NOW,
    XTRACE_ROW_PLACE, /* where the last allocation is: the number of its segment, the offset in that */
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

#define XTRACE_ROW_NUMBERS 12 /* at most, in one row */

struct xtrace_answer {
    uint32_t after; /* operations that come before it */
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
    uint64_t made_up;         /* frees that the history lacks, added before the next allocation */
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
    char *labels; /* of marks, one after the other, each terminated */
    size_t label_bytes;
    char note[800];        /* how a snapshot became a trace; empty: nothing to say */
    char *config;          /* of the `c` line; NULL without one */
    uint64_t device_bytes; /* of the `d` line; 0 without one */
    enum xseg_sim_address_order address_order; /* of the `d` line */
    uint32_t place_count;                      /* segments that `p` lines name are below this */
    uint64_t events;                           /* allocations and frees */
    bool has_clock;                            /* there are `@` lines */
    bool is_snapshot;                          /* the file is a memory snapshot */
    bool has_history;                          /* of a snapshot: there are entries */
    uint64_t
        capacity; /* of a snapshot: bytes that could be reserved when a request last failed; 0: unknown */
    struct xtrace_end end;                /* of a snapshot */
    uint32_t slot_count;                  /* slots are below this */
    uint32_t stream_count;                /* streams are below this; at least 1 */
    uint64_t stream_name[XTRACE_STREAMS]; /* what the file calls each */
    uint32_t pool_count;                  /* pools are below this; at least 1 */
    uint64_t *pool_name;                  /* what the file calls each; NULL: it has none */
};

/* What is wrong with a file, and where. */
struct xtrace_fault {
    uint64_t line; /* in a snapshot: the entry of the history, from 1; 0: the text says where */
    char text[240];
};

void xtrace_fini(struct xtrace *trace);

/* Whether a configuration names a key; and the one that switches between the two ways of getting memory. */
bool xtrace_names_key(const char *config, const char *key);
bool xtrace_names_expandable(const char *config);

/* The name of a row of answers as a tape spells it, and how many numbers it has. */
const char *xtrace_row_name(enum xtrace_row row);
unsigned xtrace_row_numbers(enum xtrace_row row);

/*
 * Reading a trace: the grammar of traces and tapes.  reader.h has what their lines mean, snapshot.h what snapshots are as
 * lines.
 *
 * Locking: none; a reader belongs to one thread.
 */

/*
 * Read an open file, plain or compressed.
 *
 * @param device  whose history is taken from a snapshot; -1: that of the device with most entries
 * @param out    filled in on success; the caller calls xtrace_fini()
 * @param fault  filled in on failure
 *
 * Returns: whether the whole file is a trace or a snapshot.
 */
bool xtrace_read(FILE *file, int device, struct xtrace *out, struct xtrace_fault *fault);

#endif
