/* SPDX-License-Identifier: MIT */
/*
 * Labels: the user's texts for threads and for annotations, each distinct text once, named by a number.
 *
 * A text stays where it is until the store ends.  Numbers are handles of a bump allocator, so a text is read
 * without a lock.
 *
 * Locking: adding takes HISTORY, the store's lock, which the labels borrow; a text that is there is found without it.
 */
#ifndef XSEG_CORE_HISTORY_LABELS_H
#define XSEG_CORE_HISTORY_LABELS_H

#include "src/base/bump.h"
#include "src/base/handle_table.h"
#include "src/base/lock.h"
#include "xseg/status.h"

/* A longer text is cut to one byte less. */
#define XSEG_HISTORY_LABEL_BYTES 120u
/* What all texts and their table may take: some 200 000 labels of 30 bytes.  A programme whose labels are all
 * different must not fill the host's memory. */
#define XSEG_HISTORY_LABELS_BYTES ((size_t)16 << 20)

struct xseg_history_labels {
    struct xseg_lock *lock; /* HISTORY */
    atomic_bool is_made;    /* the rest; with the first label */
    struct xseg_bump memory;
    struct xseg_handle_table table;
};

/* lock: HISTORY, which outlives the labels */
void xseg_history_labels_init(struct xseg_history_labels *labels, struct xseg_lock *lock);
void xseg_history_labels_fini(struct xseg_history_labels *labels);

/*
 * Find the number of a text, which is copied if it is new.
 *
 * Cost: one look-up, without a lock, for a text that is there.
 *
 * Returns: XSEG_OK; XSEG_ERR_LIMIT: no room in XSEG_HISTORY_LABELS_BYTES; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_history_labels_add(struct xseg_history_labels *labels, const char *text,
                                    uint32_t *label);

/* The text of a number; NULL for 0.  Threads: any, no lock. */
const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label);

#endif
