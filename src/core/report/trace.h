/* SPDX-License-Identifier: MIT */
/*
 * The trace of a snapshot: the events of one device as PyTorch's entries.
 *
 * A viewer starts from the segments and takes the entries back, the last one first.  So the entries end where the
 * segments were looked at, and none is missing between them.  Each change of memory is a segment's entry: a steal, a
 * decay or a trim shows as the entry behind its event.  The cause of such an entry is told apart.
 *
 * Locking: none; it belongs to one thread.  The user's hook is called, with no lock held.
 */
#ifndef XSEG_CORE_SNAPSHOT_TRACE_H
#define XSEG_CORE_SNAPSHOT_TRACE_H

#include "src/core/history/merge.h"
#include "src/core/report/naming.h"
#include "src/core/report/paused.h"
#include "src/core/report/stacks.h"

/* Why memory has gone or come: the entry that takes or brings it. */
struct xseg_snapshot_cause {
    uint64_t entry; /* its place in the trace */
    uint8_t action; /* enum xseg_history_action */
};

struct xseg_snapshot_trace {
    struct xseg_pickle_writer *pickle;
    struct xseg_snapshot_stacks *stacks;
    struct xseg_snapshot_naming *naming;
    struct xseg_history_moment moment;
    uint64_t events;                    /* so far, with those that have no entry */
    uint64_t entries;                   /* written so far */
    struct xseg_snapshot_cause *causes; /* [cause_count] */
    size_t cause_count, cause_room;
    struct xseg_snapshot_paused paused;
    uint8_t cause;       /* why memory is about to go; XSEG_HISTORY_ACTIONS: none is */
    uint64_t cause_base; /* of that memory */
};

void xseg_snapshot_trace_init(struct xseg_snapshot_trace *trace, struct xseg_pickle_writer *pickle,
                              struct xseg_snapshot_stacks *stacks,
                              struct xseg_snapshot_naming *naming);
void xseg_snapshot_trace_fini(struct xseg_snapshot_trace *trace);

/* Begin the entries, also anew. */
void xseg_snapshot_trace_begin(struct xseg_snapshot_trace *trace);

/* Go on to the next event: write its entries, if it has any, or leave them out. */
void xseg_snapshot_trace_write(struct xseg_snapshot_trace *trace,
                               const struct xseg_history_event *event, bool leave_out);

/* Write the causes as a value: a list of [place of the entry, cause]. */
void xseg_snapshot_trace_write_causes(const struct xseg_snapshot_trace *trace);

#endif
