/* SPDX-License-Identifier: MIT */
/*
 * Waiting for other processes: a request that the device cannot serve publishes its demand in the shared budget file
 * (budget.h).  It retries until other processes have released enough idle memory or the time has elapsed.
 *
 *     struct xseg_budget_wait budget_wait;
 *
 *     if (xseg_budget_wait_begin(&budget_wait, arena, bytes, config))
 *         while (the request fails with memory pressure && xseg_budget_wait_retry(&budget_wait))
 *             retry the request, with new pages only if budget_wait.grows
 *     xseg_budget_wait_end(&budget_wait, whether the request was served);
 *
 * Other processes release memory to the driver, where any process can allocate it first: hence the retries.  A growth that
 * fails creates pages and releases them, which other processes see as missing memory.  So a retry grows only if the device has
 * enough free memory, or if it has more than at the last growth and the free memory no longer increases.
 *
 * Locking: the caller holds the device memory lock.  Each function releases it for a while, so other threads can grow, and all
 * state of the device can change.
 */
#ifndef XSEG_CORE_BUDGET_WAIT_H
#define XSEG_CORE_BUDGET_WAIT_H

#include "src/core/device/device.h"

struct xseg_budget_wait {
    struct xseg_device *device; /* NULL: no demand is published */
    uint64_t bytes;
    uint64_t early, until; /* clock: other processes have responded; the time has elapsed */
    uint64_t tried, seen;  /* free memory at the last growth, and at the last query */
    bool by_limit;         /* a limit denied that growth, without a driver call */
    bool grows;            /* whether a growth may succeed now */
};

/*
 * Publish the demand of a request, if that can help.  It can if there are other processes, the device or the budget denies
 * the request, the device has that much memory, and no capture is active.
 *
 * arena: the arena of the request, or one of them; the history records the event there
 * bytes: that the request needs
 */
bool xseg_budget_wait_begin(struct xseg_budget_wait *budget_wait, struct xseg_arena *arena,
                            uint64_t bytes, const struct xseg_config *config);

/*
 * Wait a millisecond.  Returns false if the time has elapsed, no process has idle memory, or a capture has begun.
 *
 * Cost: one memory query
 */
bool xseg_budget_wait_retry(struct xseg_budget_wait *budget_wait);

/* Withdraw the demand.  served: whether the request was served */
void xseg_budget_wait_end(struct xseg_budget_wait *budget_wait, bool served);

#endif
