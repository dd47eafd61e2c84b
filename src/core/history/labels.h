/* SPDX-License-Identifier: MIT */
/*
 * Labels: the user's texts for threads and for annotations, each distinct text once, named by a number.
 *
 * A text is a record of fixed size in a reserved range: it stays where it is while the label is in use, and is read
 * without a lock.  Numbers are handles of a bump allocator.
 *
 * Labels that nothing names any more are dropped by mark and sweep, in bounded steps (label_sweep.h).  A cycle begins
 * with another colour.  What threads, events and blocks name is given that colour, as is each label that a thread is
 * given meanwhile; the others are dropped then.  Notes need not tell of what they overwrite, so they cost nothing.
 *
 * Terms:
 *   colour    that of the current cycle, or of the one before; a record without a label has none
 *   reader    has copied numbers of labels, and is going to read their texts: nothing is dropped meanwhile
 *   copy      entries that xseg_history_copy() has filled in: their labels are kept until the next copy
 *
 * Invariants:
 *   LABEL-1  each label is in the chain of its text's hash, once, and has a colour; `count` and `bytes` are their sums.
 *   LABEL-2  all other records are in the list of free ones, and have no colour.
 *
 * Locking: LABELS, a leaf, covers everything; xseg_history_labels_text() takes none.
 */
#ifndef XSEG_CORE_HISTORY_LABELS_H
#define XSEG_CORE_HISTORY_LABELS_H

#include "src/base/bump.h"
#include "src/base/lock.h"

/* A longer text is cut to one byte less. */
#define XSEG_HISTORY_LABEL_BYTES 120u
/* How many bytes of texts in use are never refused.  Each text counts with its terminator, in whole words. */
#define XSEG_HISTORY_LABELS_BYTES ((size_t)16 << 20)
/* Texts that come after a cycle before the next one begins; and so many more as the cycle has kept. */
#define XSEG_HISTORY_LABELS_FRESH 16384u

/* What a cycle does next. */
enum xseg_history_labels_stage {
    XSEG_HISTORY_LABELS_IDLE, /* there is no cycle */
    XSEG_HISTORY_LABELS_EVENTS,
    XSEG_HISTORY_LABELS_BLOCKS,
    XSEG_HISTORY_LABELS_DROP
};

enum xseg_history_labels_outcome {
    XSEG_HISTORY_LABELS_FOUND,
    XSEG_HISTORY_LABELS_ADDED,
    XSEG_HISTORY_LABELS_FULL, /* the texts take too many bytes */
    XSEG_HISTORY_LABELS_NO_MEMORY
};

struct xseg_history_labels {
    struct xseg_lock lock;   /* LABELS */
    struct xseg_bump memory; /* of records */
    uint32_t *bucket;        /* each the first label of a chain; NULL before the first label */
    uint32_t free;           /* first record that has no label any more; 0: none */
    uint32_t count;          /* labels */
    size_t bytes;            /* their texts */
    uint32_t readers;
    uint16_t copy; /* number of the last one */
    uint8_t colour;
    uint32_t fresh,
        most_fresh; /* texts that came since the last cycle, and how many begin the next one */
    size_t swept;   /* DROP: buckets that were looked at */
    atomic_uint stage; /* enum xseg_history_labels_stage */
};

void xseg_history_labels_init(struct xseg_history_labels *labels);
void xseg_history_labels_fini(struct xseg_history_labels *labels);

/*
 * Find the number of a text, which is copied if it is new, and colour it.  LABELS is held until the number is where
 * cycles look for it.
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

/* Begin another copy: labels of the one before are not kept for it any more.  LABELS is taken inside. */
void xseg_history_labels_begin_copy(struct xseg_history_labels *labels);
/* Keep a label for the last copy; 0 is fine.  LABELS is taken inside. */
void xseg_history_labels_keep(struct xseg_history_labels *labels, uint32_t label);

/* --- A cycle; label_sweep.h makes it. --- */

/* Whether a cycle is under way, or is to begin.  Threads: any; other threads may change that. */
bool xseg_history_labels_is_due(struct xseg_history_labels *labels);

/* Begin a cycle: all labels have the other colour now. */
void xseg_history_labels_begin(struct xseg_history_labels *labels) XSEG_REQUIRES(labels->lock);

/* Colour a label, which is in use; 0 is fine. */
void xseg_history_labels_mark(struct xseg_history_labels *labels, uint32_t label)
    XSEG_REQUIRES(labels->lock);

/* Drop labels without the cycle's colour, from so many buckets.  Returns true when the cycle is over; false also while
 * there are readers. */
bool xseg_history_labels_drop(struct xseg_history_labels *labels, size_t buckets)
    XSEG_REQUIRES(labels->lock);

bool xseg_history_labels_audit(struct xseg_history_labels *labels, struct xseg_finding *finding)
    XSEG_REQUIRES(labels->lock);

#endif
