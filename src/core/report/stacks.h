/* SPDX-License-Identifier: MIT */
/*
 * The call stacks of a snapshot.  Each stack and each frame is written once; later uses refer to it by its memo.
 *
 * The frames of the user's hook come first, then the frames of the process.
 *
 * Locking: none.  It is used by one thread.
 */
#ifndef XSEG_CORE_SNAPSHOT_STACKS_H
#define XSEG_CORE_SNAPSHOT_STACKS_H

#include "src/base/hash_table.h"
#include "src/base/pickle_writer.h"
#include "src/core/history/store.h"

/* Bytes of the text that a user's hook gives for its frames. */
#define XSEG_SNAPSHOT_FRAMES_BYTES 16384u

struct xseg_snapshot_stacks {
    struct xseg_history_store *store;
    struct xseg_pickle_writer *pickle;
    struct xseg_hash_table stacks;         /* by stack and frames */
    struct xseg_hash_table frames;         /* by a hash of address and module */
    char text[XSEG_SNAPSHOT_FRAMES_BYTES]; /* the hook's names of frames */
};

void xseg_snapshot_stacks_init(struct xseg_snapshot_stacks *stacks,
                               struct xseg_history_store *store, struct xseg_pickle_writer *pickle);
void xseg_snapshot_stacks_fini(struct xseg_snapshot_stacks *stacks);

/* Write a stack, and the user's frames, as a value; 0, 0: an empty list. */
void xseg_snapshot_stacks_write(struct xseg_snapshot_stacks *stacks, uint32_t stack,
                                uint32_t frames);

/* Forget what was written since a mark to which the document has gone back. */
void xseg_snapshot_stacks_rewind(struct xseg_snapshot_stacks *stacks,
                                 const struct xseg_pickle_savepoint *mark);

#endif
