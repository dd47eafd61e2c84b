/* SPDX-License-Identifier: MIT */
/* The report of an out-of-memory failure, after the failure has returned from the fallback chain or from a commit. */
#ifndef XSEG_CORE_OOM_REPORT_H
#define XSEG_CORE_OOM_REPORT_H

#include "src/core/arena/arena.h"

/*
 * Write a memory snapshot (oom.h), then notify observers.  The caller holds no lock.
 *
 * rejected: the request was rejected immediately (throw_on_cudamalloc_oom): no snapshot, and `on_rejected` is called
 */
void xseg_oom_report(struct xseg_arena *arena, const struct xseg_need *need, xseg_status status,
                     bool rejected);

#endif
