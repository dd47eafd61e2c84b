/* SPDX-License-Identifier: MIT */
/*
 * The snapshot at a signal (key snapshot_signal).
 *
 * The handler only counts (signal_flag.h).  An allocator remembers the count at which it wrote last; where the two differ,
 * the next call on the general path, tick or look of the background thread writes a snapshot, as automatic.h says.
 * Each allocator of the process that has the key writes one of its own.
 *
 * Files are numbered from 1 to XSEG_SIGNALLED_FILES; a number whose file was moved away is used again.
 *
 * Locking: which signal is taken changes under DRIVER; files are written with no lock held.
 */
#ifndef XSEG_CORE_SNAPSHOT_SIGNALLED_H
#define XSEG_CORE_SNAPSHOT_SIGNALLED_H

#include "src/base/signal_flag.h"
#include "src/core/device/allocator.h"

/* Most files of a process in a folder. */
#define XSEG_SIGNALLED_FILES 16u

struct xseg_signalled {
    atomic_uint taken; /* enum xseg_snapshot_signal */
    unsigned prepared; /* likewise: taken for the configuration that is about to come into force */
    /* By enum xseg_snapshot_signal: count of the signal at its last snapshot.  A thread that is late with a signal
     * compares it with its own count, not with that of the signal that followed. */
    atomic_uint seen[XSEG_SNAPSHOT_SIGNAL_USR2 + 1];
    atomic_bool is_writing;
};

void xseg_signalled_init(struct xseg_signalled *signalled);

/*
 * Take the signal that a configuration names, before it comes into force.
 *
 * Returns: XSEG_OK; XSEG_ERR_CONFIG (no folder to write into, or as xseg_signal_flag_take())
 */
xseg_status xseg_signalled_prepare(struct xseg_allocator *allocator,
                                   const struct xseg_config *config);

/* Follow the configuration in force: signals that it does not name are given back. */
void xseg_signalled_settle(struct xseg_allocator *allocator);

/* Give the signal back, because the allocator ends. */
void xseg_signalled_end(struct xseg_signalled *signalled);

/* Write the snapshot, if the signal has come and no other thread is at it.  No lock is held. */
void xseg_signalled_write(struct xseg_allocator *allocator);

#endif
