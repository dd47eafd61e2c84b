/* SPDX-License-Identifier: MIT */
/*
 * The snapshot of a request that was refused for want of memory (keys oom_snapshot, oom_snapshot_ms, oom_snapshots,
 * oom_snapshot_mb).
 *
 * It is written before the call returns, and changes nothing of what the call returns.  The driver is not asked.  While
 * one is written, requests of other threads that are refused write none and do not wait.
 *
 * Locking: none may be held.
 */
#ifndef XSEG_CORE_SNAPSHOT_OOM_H
#define XSEG_CORE_SNAPSHOT_OOM_H

#include "src/core/device/allocator.h"

struct xseg_oom_snapshots {
    atomic_bool is_writing; /* a thread is */
    atomic_uint written;    /* so far */
};

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots);

/* Write a snapshot, if the configuration or the environment names a folder and there may be one more.  Its path, or why
 * there is none, is logged.  The calling thread's error text and errno stay. */
void xseg_oom_snapshots_report(struct xseg_allocator *allocator);

#endif
