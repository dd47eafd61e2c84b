/* SPDX-License-Identifier: MIT */
/*
 * Labels: an intern table of the strings that the program attaches to threads and events.
 *
 * Each distinct string is stored once and has a 32-bit ID.  A label is a record of fixed size in a
 * bump allocator, so it never moves and its string is read without a lock.  The ID is the handle of
 * the record in that allocator.  A hash table with chains finds a label by its string.
 *
 * Unused labels are collected by incremental mark and sweep (instance.h).  Each sweep has a
 * number, and the mark of a label is the number of the last sweep that found the label in use.  A
 * sweep marks the labels of threads, events and allocated blocks, and then drops the labels whose
 * mark is older.  New labels, and labels that a thread sets again, are marked with the number of
 * the current sweep.  Only a label of a thread can get into an event or a block.  So events and
 * blocks need no write barrier: allocations and overwritten events need no extra work.
 *
 * A sweep is due after XSEG_HISTORY_LABELS_FRESH new labels plus the number of labels that the last
 * sweep kept, so its cost is amortized over the new labels.  The table is full at
 * XSEG_HISTORY_LABELS_BYTES of strings.  While there are readers, which have copied IDs and will
 * read their strings later, no label is dropped, and the table may grow to twice this size.
 *
 * Invariants:
 *   LABEL-1  Each label is in the chain of its hash exactly once and has a mark.  `count` and
 *            `bytes` are the sums over these labels.
 *   LABEL-2  All other records are in the free list and have the mark 0.
 *
 * Locking: `lock`, a leaf, guards all members except marks, which are atomic, and strings, which
 * do not change while their label is in use.
 */
#ifndef XSEG_CORE_HISTORY_LABELS_H
#define XSEG_CORE_HISTORY_LABELS_H

#include "src/base/intern.h"
#include "src/base/mutex.h"

/* Size of a string with its terminator.  A longer string is truncated. */
#define XSEG_HISTORY_LABEL_BYTES 120u
/* Limit of the sum of all strings, each with its terminator and rounded up to 8 bytes. */
#define XSEG_HISTORY_LABELS_BYTES ((size_t)16 << 20)
/* New labels between two sweeps, in addition to the number that the last sweep kept. */
#define XSEG_HISTORY_LABELS_FRESH 16384u
/* The label that replaces a new label if the table is full.  A full table accepts this one. */
#define XSEG_HISTORY_LABELS_OTHER "(other)"

enum xseg_history_labels_outcome {
    XSEG_HISTORY_LABELS_FOUND,
    XSEG_HISTORY_LABELS_ADDED,
    XSEG_HISTORY_LABELS_FULL, /* sweep and retry, then add XSEG_HISTORY_LABELS_OTHER */
    XSEG_HISTORY_LABELS_NO_MEMORY
};

struct xseg_history_labels {
    struct xseg_mutex lock;  /* LEAF */
    struct xseg_bump memory; /* the records */
    uint32_t *bucket;        /* heads of the chains; NULL before the first label */
    uint32_t free;           /* head of the list of free records; 0: empty */
    uint32_t count;          /* number of labels */
    size_t bytes;            /* of their strings */
    uint32_t readers;
    uint16_t sweep;            /* number of the current or last sweep, never 0 */
    uint32_t fresh, max_fresh; /* new labels since the last sweep; number that makes a sweep due */
};

void xseg_history_labels_init(struct xseg_history_labels *labels);
void xseg_history_labels_fini(struct xseg_history_labels *labels);

/*
 * Find or add the label of a string, and mark it.  The caller holds the lock until the label is in
 * the context of a thread, where sweeps find it.
 *
 * Cost: one lookup
 */
enum xseg_history_labels_outcome xseg_history_labels_add(struct xseg_history_labels *labels,
                                                         const char *text, uint32_t *label)
    XSEG_REQUIRES(labels->lock);

/* The string of a label that is in use; NULL for 0.  Lock-free. */
const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label);

/* Begin and end a reader.  Between these calls, the strings of all labels whose IDs the reader
 * copies remain valid.  Both functions acquire the lock. */
void xseg_history_labels_begin_reading(struct xseg_history_labels *labels);
void xseg_history_labels_end_reading(struct xseg_history_labels *labels);

/* --- Sweeps, for history_sweep.c. --- */

/* Whether new labels make a sweep due, and no reader prevents it. */
bool xseg_history_labels_is_due(const struct xseg_history_labels *labels)
    XSEG_REQUIRES(labels->lock);

/* Begin a sweep: all marks become old. */
void xseg_history_labels_begin(struct xseg_history_labels *labels) XSEG_REQUIRES(labels->lock);

/* Mark a label as in use for the current sweep; 0 has no effect.  Lock-free. */
void xseg_history_labels_mark(struct xseg_history_labels *labels, uint32_t label);

/* Drop all labels with an old mark, unless there are readers. */
void xseg_history_labels_drop(struct xseg_history_labels *labels) XSEG_REQUIRES(labels->lock);

/* Check LABEL-1 and LABEL-2. */
bool xseg_history_labels_audit(struct xseg_history_labels *labels, struct xseg_violation *violation)
    XSEG_REQUIRES(labels->lock);

#endif
