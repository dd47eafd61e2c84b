/* SPDX-License-Identifier: MIT */
/*
 * Labels: the user's texts for threads and for annotations, each distinct text once, named by a number.
 *
 * A text is a record of fixed size in a reserved range: it stays where it is while the label is in use, and is read
 * without a lock.  Numbers are handles of a bump allocator.
 *
 * Labels that are not in use any more are dropped by mark and sweep (history_sweep.h).  Each sweep has a number.  The sweep
 * marks the labels of threads, events and blocks with it, as does each call that gives a label to a thread; labels without
 * the mark are dropped.  Events and blocks that are overwritten or freed do nothing for it.
 *
 * Terms:
 *   mark      the number of the last sweep that found the label in use; a record without a label has the mark 0
 *   reader    a thread that has copied numbers of labels and reads their strings: no label is dropped meanwhile
 *   full      XSEG_HISTORY_LABELS_FRESH new labels since the last sweep, and as many more as that sweep has kept; or
 *             XSEG_HISTORY_LABELS_BYTES of strings
 *
 * Invariants:
 *   LABEL-1  each label is in the chain of its string's hash, once, and has a mark; `count` and `bytes` are their sums.
 *   LABEL-2  all other records are in the list of free ones, and have no mark.
 *
 * Locking: LABELS, a leaf, covers everything except marks, which are atomic.  xseg_history_labels_text() takes no lock.
 */
#ifndef XSEG_CORE_HISTORY_LABELS_H
#define XSEG_CORE_HISTORY_LABELS_H

#include "src/base/intern.h"
#include "src/base/mutex.h"

/* A longer text is cut to one byte less. */
#define XSEG_HISTORY_LABEL_BYTES 120u
/* Bytes of strings that the table holds, twice as many while there are readers.  Each string counts with its terminator,
 * in whole words. */
#define XSEG_HISTORY_LABELS_BYTES ((size_t)16 << 20)
/* New labels between two sweeps, in addition to as many as the last sweep has kept. */
#define XSEG_HISTORY_LABELS_FRESH 16384u
/* The label in place of one that does not fit into a full table.  It is added even then. */
#define XSEG_HISTORY_LABELS_OTHER "(other)"

enum xseg_history_labels_outcome {
    XSEG_HISTORY_LABELS_FOUND,
    XSEG_HISTORY_LABELS_ADDED,
    XSEG_HISTORY_LABELS_FULL, /* sweep and retry, then add XSEG_HISTORY_LABELS_OTHER */
    XSEG_HISTORY_LABELS_NO_MEMORY
};

struct xseg_history_labels {
    struct xseg_mutex lock;  /* LABELS */
    struct xseg_bump memory; /* of records */
    uint32_t *bucket;        /* each the first label of a chain; NULL before the first label */
    uint32_t free;           /* first record that has no label any more; 0: none */
    uint32_t count;          /* labels */
    size_t bytes;            /* their texts */
    uint32_t readers;
    uint16_t sweep; /* number of the last one, never 0 */
    uint32_t fresh,
        max_fresh; /* new labels since the last sweep, and how many make the next one due */
};

void xseg_history_labels_init(struct xseg_history_labels *labels);
void xseg_history_labels_fini(struct xseg_history_labels *labels);

/*
 * Find the number of a string, which is copied if it is new, and mark it.  LABELS is held until the number is where
 * sweeps look for it.
 *
 * Cost: one look-up
 */
enum xseg_history_labels_outcome xseg_history_labels_add(struct xseg_history_labels *labels,
                                                         const char *text, uint32_t *label)
    XSEG_REQUIRES(labels->lock);

/* The text of a number that is in use; NULL for 0.  Threads: any, no lock. */
const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label);

/* Begin and end reading texts by numbers that are copied from now on.  LABELS is taken inside. */
void xseg_history_labels_begin_reading(struct xseg_history_labels *labels);
void xseg_history_labels_end_reading(struct xseg_history_labels *labels);

/* --- A sweep; history_sweep.h makes it. --- */

/* Whether a sweep is due because of new labels, and no reader prevents it from dropping labels. */
bool xseg_history_labels_is_due(const struct xseg_history_labels *labels)
    XSEG_REQUIRES(labels->lock);

/* Begin a sweep: no label is marked any more. */
void xseg_history_labels_begin(struct xseg_history_labels *labels) XSEG_REQUIRES(labels->lock);

/* Mark a label that is in use; 0 is fine.  The caller is the sweep that has begun.  Threads: any, no lock. */
void xseg_history_labels_mark(struct xseg_history_labels *labels, uint32_t label);

/* Drop the labels without a mark; none while there are readers. */
void xseg_history_labels_drop(struct xseg_history_labels *labels) XSEG_REQUIRES(labels->lock);

bool xseg_history_labels_audit(struct xseg_history_labels *labels, struct xseg_violation *violation)
    XSEG_REQUIRES(labels->lock);

#endif
