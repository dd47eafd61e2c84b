/* SPDX-License-Identifier: MIT */
/*
 * The label sweep: drops the labels that nothing names any more, in cycles of bounded steps.
 *
 * A cycle marks what threads have, what kept events name, and what blocks carry; then it drops the others.  A new label
 * is marked from the start, and only labels that threads have come into events and blocks, so what happens between two
 * steps needs no note.  The labels of blocks are read without the locks of their arenas (origins.h).
 *
 * Each new text pays for a step while a cycle is under way.  A text that finds no room makes a whole cycle.
 *
 * Locking: SWEEP covers a step, which takes GROWTH, HISTORY and LABELS inside; none may be held.
 */
#ifndef XSEG_CORE_LABEL_SWEEP_H
#define XSEG_CORE_LABEL_SWEEP_H

#include "src/core/device/allocator.h"

/* Make a step if one is due; none while another thread makes one, or a driver call is under way where blocks are to be
 * looked at. */
void xseg_label_sweep_step(struct xseg_allocator *allocator);

/* Drop all that can be dropped now.  Waits for driver calls that are under way. */
void xseg_label_sweep_all(struct xseg_allocator *allocator);

#endif
