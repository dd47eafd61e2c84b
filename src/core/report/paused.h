/* SPDX-License-Identifier: MIT */
/*
 * Paused memory in a trace: blocks stay live while the memory beneath them is away, which PyTorch's snapshots cannot say.
 *
 * So the trace says that such blocks are freed right before their memory goes, and allocated right behind its return.
 * What happens to them in between is left out.
 *
 * Terms:
 *   absence  a range of addresses whose memory is away from one event to another
 *   watched  a block that begins in a range that was ever away
 *
 * Events are numbered from 0 on, as the merge gives them.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_CORE_SNAPSHOT_PAUSED_H
#define XSEG_CORE_SNAPSHOT_PAUSED_H

#include "src/base/hash_table.h"
#include "src/core/history/merge.h"
#include "src/core/report/heap_copy.h"

#define XSEG_SNAPSHOT_NEVER UINT64_MAX

struct xseg_snapshot_absence {
    uint64_t base, end;
    uint64_t from,
        to; /* events between these do not show; from is 0 and to is XSEG_SNAPSHOT_NEVER where there is none */
    bool is_open; /* while absences are found: its memory is still away */
};

/* A watched block as it was allocated, as far as that is known. */
struct xseg_snapshot_watched {
    uint64_t base, requested, stream;
    uint32_t pool, stack, frames, label;
    uint8_t was,
        is; /* at the first event, and now: XSEG_BLOCK_ALLOCATED, _PENDING, or _CACHED where there is none */
};

struct xseg_snapshot_paused {
    struct xseg_snapshot_absence *absences; /* [count] */
    size_t count, room;
    struct xseg_hash_table blocks; /* watched ones, by address */
    uint64_t next;                 /* number of the event that comes next */
};

/* Find absences and watched blocks in the events of a merge, which begins anew.  Returns false without host memory. */
bool xseg_snapshot_paused_init(struct xseg_snapshot_paused *paused,
                               struct xseg_history_merge *merge,
                               const struct xseg_heap_copy *snapshot);
void xseg_snapshot_paused_fini(struct xseg_snapshot_paused *paused);

/* Begin with the first event. */
void xseg_snapshot_paused_begin(struct xseg_snapshot_paused *paused);

/* Note the next event.  Returns whether it shows. */
bool xseg_snapshot_paused_note(struct xseg_snapshot_paused *paused,
                               const struct xseg_history_event *event);

/* Visit the blocks that begin in a range and are live or pending. */
void xseg_snapshot_paused_visit(
    const struct xseg_snapshot_paused *paused, uint64_t base, uint64_t bytes,
    void (*visit)(void *self, const struct xseg_snapshot_watched *block), void *self);

#endif
