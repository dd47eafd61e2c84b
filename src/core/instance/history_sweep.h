/* SPDX-License-Identifier: MIT */
/*
 * The history sweep: a mark-and-sweep collection of labels and of the numbers that the
 * application's hook returned; and the labels of threads.
 *
 * The roots are the contexts of threads, the events in rings and the allocated blocks.  Marking
 * needs no write barrier.  A label is attached to events and blocks only from the context of a
 * thread, and a label that a thread sets during the sweep is created marked (labels.h).  Numbers of
 * the hook follow the same rule: numbers that were gathered after the previous sweep began are not
 * discarded.
 *
 * A sweep runs when a table is full: labels.h counts new labels, store.h counts numbers of the
 * hook.  A call that gathers its context runs the sweep that its number makes due, before it does
 * anything else.  A sweep is O(events + blocks + labels).  Both limits grow with the number of
 * survivors of the last sweep, so the amortized cost of each new label is constant.
 *
 * When the table of labels is full, unused labels are dropped; while all are in use, a new label is
 * XSEG_HISTORY_LABELS_OTHER.
 *
 * Locking: the caller holds no lock.  SWEEP covers marking and dropping.  A sweep locks the device
 * memory lock for the blocks of a device, HISTORY for a batch of events, and LABELS to begin and to
 * drop; it locks no arena.  The hook is called without a lock.
 */
#ifndef XSEG_CORE_HISTORY_SWEEP_H
#define XSEG_CORE_HISTORY_SWEEP_H

#include "src/core/device/allocator.h"
#include "src/core/history/context.h"

/* Sweep labels and numbers.  The hook's `discard` is not called while another thread runs it, or
 * after a host allocation failure.  Labels are not dropped while there are readers (labels.h). */
void xseg_history_sweep(struct xseg_allocator *allocator);

/* Sweep because the hook returned many numbers.  Does nothing while another thread sweeps. */
void xseg_history_sweep_numbers(struct xseg_allocator *allocator);

/* xseg_history_gather() for a call of an allocator, and the sweep that it makes due. */
static inline void xseg_allocator_gather(struct xseg_allocator *allocator, const void *user)
{
    if (__builtin_expect(xseg_history_gather(&allocator->history, user), 0))
        xseg_history_sweep_numbers(allocator);
}

/*
 * Set the label of the calling thread; NULL: none.
 *
 * last: NULL, or set to the previous label of the thread, whose string is kept until the thread
 *       restores it
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text, const char **last);

/* Write an annotation into the history of a device.  Returns: as xseg_label_set(); XSEG_OK if
 * annotations are not recorded */
xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text);

#endif
