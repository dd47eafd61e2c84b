/* SPDX-License-Identifier: MIT */
/*
 * The call stacks of a snapshot: each stack is written once, and each frame once, however many events have them.
 *
 * A stack of the user's frames comes first, then the process's own.  In a pickle a stack that was written before comes
 * again by its name.  JSON has no such names: there a stack is its number, and a table has all that were used.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_CORE_SNAPSHOT_STACKS_H
#define XSEG_CORE_SNAPSHOT_STACKS_H

#include "src/base/document.h"
#include "src/base/table.h"
#include "src/core/history/store.h"

/* Bytes of the text that a user's hook gives for its frames. */
#define XSEG_SNAPSHOT_FRAMES_BYTES 16384u

struct xseg_snapshot_stacks {
    struct xseg_history_store *store;
    struct xseg_document *document;
    struct xseg_table stacks; /* by stack and frames; of JSON the number is the one in the list */
    struct xseg_table frames; /* by a hash of address and module */
    uint64_t *listed;         /* JSON: stack, and frames above it, by number, [listed_count] */
    size_t listed_count, listed_room;
    bool lacks_memory;                     /* JSON: a stack was left out for want of host memory */
    char text[XSEG_SNAPSHOT_FRAMES_BYTES]; /* that a hook gives for frames */
};

void xseg_snapshot_stacks_init(struct xseg_snapshot_stacks *stacks,
                               struct xseg_history_store *store, struct xseg_document *document);
void xseg_snapshot_stacks_fini(struct xseg_snapshot_stacks *stacks);

/* Write a stack, and the user's frames, as a value; 0, 0: an empty list. */
void xseg_snapshot_stacks_write(struct xseg_snapshot_stacks *stacks, uint32_t stack,
                                uint32_t frames);

/* Forget what was written since a mark to which the document has gone back. */
void xseg_snapshot_stacks_rewind(struct xseg_snapshot_stacks *stacks,
                                 const struct xseg_document_mark *mark);

/* JSON: write the table of stacks as a value. */
void xseg_snapshot_stacks_list(struct xseg_snapshot_stacks *stacks);

#endif
