/* SPDX-License-Identifier: MIT */
/*
 * What a memory snapshot of PyTorch says about one device: its history, which is a list of entries in
 * the order of time, and its segments with their blocks at the end.
 *
 * A snapshot is what torch.cuda.memory._dump_snapshot() pickles: a dictionary with `segments`,
 * `device_traces` (a list of entries for each device) and `allocator_settings`; or the list of
 * segments alone.  Keys that older releases do not write have defaults.  A block without `address`
 * follows the one before it.  A block without `requested_size` is as large as its request.  An entry
 * without `pool_id` lies in the pool of the segment that holds it at the end, if that segment has
 * been there since.  Of xseg's own facts (its key `xseg`) the causes are read.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_HISTORY_H
#define TOOLS_HISTORY_H

#include "src/tools/files/pickle.h"
#include "src/tools/trace/reader.h"

enum history_action {
    HISTORY_ALLOC,
    HISTORY_FREE_REQUESTED,
    HISTORY_FREE_COMPLETED,
    HISTORY_OOM,
    HISTORY_GROWTH, /* segment_alloc, segment_map */
    HISTORY_RETURN, /* segment_free, segment_unmap */
    HISTORY_REMARK, /* what has no part in it: snapshot, annotate */
    HISTORY_UNKNOWN
};

/* Why memory goes back; only xseg's own snapshots tell. */
enum history_cause {
    HISTORY_CAUSE_OPEN,  /* the programme asked for it, or the allocator was short of memory */
    HISTORY_CAUSE_STEAL, /* the allocator was short of memory */
    HISTORY_CAUSE_OWN    /* the allocator did it by itself, short of memory or not */
};

struct history_entry {
    enum history_action action;
    bool is_unmap;    /* of HISTORY_RETURN: pages of a segment, not the whole of it */
    uint8_t cause;    /* enum history_cause */
    uint64_t address; /* not of HISTORY_OOM */
    uint64_t bytes, stream;
    uint64_t pool;        /* a name for it; 0: the default pool */
    uint64_t time;        /* microseconds; 0: unknown */
    uint64_t device_free; /* of HISTORY_OOM: bytes that the device had left */
};

/* A live block at the end. */
struct history_block {
    uint64_t address, bytes, stream, pool;
};

/* A segment of a private pool at the end. */
struct history_span {
    uint64_t begin, end, pool;
    size_t since; /* number of the first entry that may be about it */
};

struct history {
    struct reader *reader; /* takes faults, and counts host memory */
    const struct pickle *pickle;
    const struct pickle_value *segments, *entries; /* NULL: none */
    size_t count;                                  /* entries */
    size_t devices;                                /* that the snapshot has a history of */
    uint64_t device;
    uint64_t reserved; /* at the end */
    uint8_t *causes;   /* [count]; NULL: none are told */
    struct history_span *spans;
    size_t span_count, span_capacity;
    char where[40]; /* what a fault is in, beside the reader's line */
};

/* Everything below returns false where the snapshot is wrong; the reader has then set the fault. */

/*
 * Look for what there is about a device.
 *
 * @param device  -1: the device with most entries; without any, that of the largest segment
 */
bool history_open(struct history *history, struct reader *reader, const struct pickle *pickle,
                  int device);
void history_close(struct history *history);

/* Entry `number`, from 1; the reader's line is that afterwards. */
bool history_entry(struct history *history, size_t number, struct history_entry *out);

/* Whether an entry's stack says that the programme asked for it; `has_stack`: there is one. */
bool history_is_asked(const struct history *history, size_t number, bool *has_stack);

/* Call a function with each block that is live at the end, until it returns false. */
bool history_blocks(struct history *history,
                    bool (*function)(void *self, const struct history_block *block), void *self);

#endif
