/* SPDX-License-Identifier: MIT */
/*
 * The history sweep: finds the labels and the numbers of the user's hook that are in use, drops the other labels, and
 * reports the numbers in use to the hook.
 *
 * It is a complete mark and sweep.  The roots are the contexts of threads, the events in rings and the allocated blocks.
 * Marking needs no write barrier: a label reaches events and blocks only from the context of a thread, and labels that a
 * thread is given during the sweep are marked already (labels.h).  For numbers of the hook, `discard` has the same rule:
 * numbers that were gathered after the previous sweep began are never forgotten.
 *
 * A sweep runs when a table is full: labels.h counts new labels, store.h counts numbers of the hook.  A call that gathers its
 * context runs the sweep that its number makes due, before it does anything else.  The cost of a sweep is
 * O(events + places of blocks + labels), and both counts grow with what the last sweep kept, so the cost of each new label
 * is constant on average.
 *
 * Locking: none may be held.  SWEEP covers marking and dropping.  The device memory lock is taken for the blocks of a device, HISTORY for
 * a batch of events, LABELS to begin and to drop; no arena lock.  The hook is called with no lock held.
 */
#ifndef XSEG_CORE_HISTORY_SWEEP_H
#define XSEG_CORE_HISTORY_SWEEP_H

#include "src/core/device/allocator.h"
#include "src/core/history/context.h"

/* Sweep.  The hook's `discard` is not called while another thread is in it, nor on host allocation failure; labels are not
 * dropped while there are readers (labels.h). */
void xseg_history_sweep(struct xseg_allocator *allocator);

/* Sweep because the hook has returned many numbers.  Does nothing while another thread sweeps. */
void xseg_history_sweep_numbers(struct xseg_allocator *allocator);

/* xseg_history_gather() for a call of an allocator, and the sweep that it makes due. */
static inline void xseg_allocator_gather(struct xseg_allocator *allocator, const void *user)
{
    if (__builtin_expect(xseg_history_gather(&allocator->history, user), 0))
        xseg_history_sweep_numbers(allocator);
}

#endif
